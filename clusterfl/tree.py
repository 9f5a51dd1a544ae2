"""Trees of tensors: a model's parameters and buffers by name, alone or stacked.

A *stack* is a tree whose tensors share a leading axis: ``[m]`` clients or ``[K]`` centres.
Everything here is a small pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of equal shapes, stacked along a new leading axis."""
    if not trees:
        raise ValueError("trees=[] should hold at least one tree")
    return {name: torch.stack([t[name] for t in trees]) for name in trees[0]}


def concat(stacks: Sequence[Tree]) -> Tree:
    """Stacks joined along their leading axis."""
    return {name: torch.cat([t[name] for t in stacks]) for name in stacks[0]}


def take(tree: Tree, index: Tensor) -> Tree:
    """Rows of a stack: ``take(centers, assign)`` gives each client its centre."""
    return {name: t[index] for name, t in tree.items()}


def row(tree: Tree, i: int) -> Tree:
    """One row of a stack as a tree of its own."""
    return {name: t[i] for name, t in tree.items()}


def pick(tree: Tree, i: Tensor) -> Tree:
    """One row of a stack, its number a tensor: inside ``vmap`` each client picks its own."""
    return {name: t.index_select(0, i.reshape(1))[0] for name, t in tree.items()}


def rows(tree: Tree) -> int:
    """How many rows a stack has."""
    return next(iter(tree.values())).shape[0]


def put(values: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """A copy of ``values`` with ``values[index] = new``."""
    out = values.clone()
    out[index] = new.to(values.dtype)
    return out


def put_rows(tree: Tree, index: Tensor, new: Tree) -> Tree:
    """A copy of a stack with the given rows replaced."""
    return {name: put(t, index, new[name]) for name, t in tree.items()}


def repeat(tree: Tree, k: int) -> Tree:
    """One tree, ``k`` times, as a stack that owns its memory."""
    return {name: t.unsqueeze(0).repeat(k, *([1] * t.dim())) for name, t in tree.items()}


def map_floats(f: Callable[..., Tensor], first: Tree, *others: Tree) -> Tree:
    """``f`` on the floating tensors; integer buffers are copied from ``first``."""
    return {name: f(t, *(o[name] for o in others)) if t.is_floating_point() else t for name, t in first.items()}


def subtract(a: Tree, b: Tree) -> Tree:
    return map_floats(torch.sub, a, b)


def add(a: Tree, b: Tree, scale: float = 1.0) -> Tree:
    return map_floats(lambda x, y: x + scale * y, a, b)


def select(tree: Tree, names: Iterable[str]) -> Tree:
    """The named tensors, in the order of ``names``."""
    return {name: tree[name] for name in names}


def flat(tree: Tree, names: Iterable[str] | None = None) -> Tensor:
    """A stack as a matrix ``[m, P]`` of its floating tensors (or of ``names``)."""
    return torch.cat([t.reshape(t.shape[0], -1) for t in _chosen(tree, names)], dim=1)


def vector(tree: Tree, names: Iterable[str] | None = None) -> Tensor:
    """A single tree as a vector ``[P]``."""
    return torch.cat([t.reshape(-1) for t in _chosen(tree, names)])


def _chosen(tree: Tree, names: Iterable[str] | None) -> list[Tensor]:
    return [t for t in tree.values() if t.is_floating_point()] if names is None else [tree[n] for n in names]


def unvector(values: Tensor, like: Tree) -> Tree:
    """The inverse of :func:`vector`: ``values`` ``[P]`` under the names and in the shapes of ``like``."""
    parts = values.split([t.numel() for t in like.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}


def nbytes(value: Tensor | Tree) -> int:
    """Bytes of the payload, without any framing."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(nbytes(t) for t in value.values())


def is_finite(tree: Tree) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tree.values() if t.is_floating_point())
