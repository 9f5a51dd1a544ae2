"""What noise covers of a reply, as its declaration says (message.py), and what leaves a client as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterfl.call import Call, tensors_of
from clusterfl.message import Cluster, Declaration, Fields, Gradient, Kept, Labels, Model, Statistic
from clusterfl.task import Task


@dataclass(frozen=True)
class Coverage:
    """How many Gaussian releases a reply is, what of it no noise covers, and what of that the rest is given, each as
    "procedure: field"."""

    releases: int
    uncovered: list[str]
    given: list[str]


def bounded(declared: Declaration, fields: Sequence[str] | Fields) -> dict[str, float]:
    """The fields of a reply that have a bound of their own."""
    kinds = {name: declared.get(name) for name in fields}
    return {n: k.bound for n, k in kinds.items() if isinstance(k, Statistic | Labels) and k.bound is not None}


def coverage(task: Task, call: Call, fields: Fields) -> Coverage:
    """What such a reply costs and tells, with the tensors that it holds."""
    covered = bounded(call.declared, fields)
    updated, uncovered = False, []
    for place, name, t in tensors_of(fields):
        kind = call.declared.get(place)
        if place in covered or (isinstance(kind, Model) and name in task.fixed):
            continue
        if not isinstance(kind, Model | Gradient):
            uncovered.append(f"{call.label}: {place}")
        elif t.is_floating_point() and name not in task.fixed:
            updated = True
        else:
            uncovered.append(f"{call.label}: {place}.{name}")
    return Coverage(updated + len(covered), list(dict.fromkeys(uncovered)), chosen(call.label, call.declared))


def chosen(label: str, declared: Declaration) -> list[str]:
    """The fields by which a client says which model it began from, or will begin from."""
    rows = [k.row for k in declared.values() if isinstance(k, Model) and isinstance(k.row, str)]
    return [f"{label}: {name}" for name, k in declared.items() if name in rows or isinstance(k, Cluster)]


def covered_by(label: str, declared: Declaration) -> tuple[list[str], Coverage]:
    """What a procedure's declaration alone says: the fields that noise covers, and the coverage of all of them."""
    sent = {name: kind for name, kind in declared.items() if not isinstance(kind, Kept)}
    bounds = bounded(declared, list(sent))
    moved = [n for n, k in sent.items() if isinstance(k, Model | Gradient)]
    bare = [f"{label}: {n}" for n in sent if n not in bounds and n not in moved]
    return [*moved, *bounds], Coverage(bool(moved) + len(bounds), bare, chosen(label, declared))
