"""Which clients belong together, and in how many groups: an agglomeration by evidence that stops by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.parts.evidence import Spread, Summaries, evidence, pooled, to_groups
from clusterfl.parts.explained import explained, fitted
from clusterfl.parts.spreads import Groups, along, clear_directions, measured

MOST = 512  # clients that are agglomerated at once; more are assigned to what a sample of so many shows
FEW = 16  # groups for which a smaller table is not worth its making
PASSES = 8  # of leftovers, and of wider spreads
MOVES = 32  # times that the surest clients move
EFFECTS = 4  # times that the client effect is measured anew


def find_groups(s: Summaries, k: int | None = None, *, effect: bool = True, narrow: bool = True) -> Groups:
    """As many groups as there is evidence for (or k), out of whitened summaries.

    What all classes of a client have in common may be its own effect or its group's, as light and contrast are. So
    groups are looked for twice: as if all of it were the clients' own, and as if none were. And they may differ in all
    directions or in a few, where the others would only hide it: if there are such, both looks are taken along these,
    too. Those count that explain their members better (:func:`explained`), and :func:`bettered` looks for others that
    do so still more.
    """
    if len(s) > MOST:
        return _find_many(s, k, effect=effect, narrow=narrow)
    together = torch.zeros(len(s), dtype=torch.int64)
    if not effect:
        found = measured(s, together, effect=False, own=False)
        return replace(found, labels=_grouped(s, found, k))
    looks = []
    for few in dict.fromkeys((None, clear_directions(s) if narrow else None)):
        seen = along(s, few)
        looks.append(replace(settled(seen, together, k), among=few))
        free = _grouped(seen, measured(seen, together, effect=False, own=False), k)
        if not torch.equal(free, looks[-1].labels):  # else they are settled already
            looks.append(replace(settled(seen, free, k), among=few))
    return bettered(s, max(looks, key=partial(explained, s)), k)


def settled(s: Summaries, labels: Tensor, k: int | None = None) -> Groups:
    """The client effect is what is left of it within groups, and groups are found beside it, until these stay.

    Groups are right when the spread within them explains itself: as long as their members lie further apart than they
    were taken to, they are taken to do so, and groups that are no further apart than that become one.
    """
    for _ in range(EFFECTS):
        found = measured(s, labels, own=False)
        before, labels = labels, _grouped(s, found, k)
        if torch.equal(labels, before):
            break
    found = replace(found, labels=labels)
    for _ in range(PASSES if k is None else 0):
        wider = measured(s, in_company(found.turned(s), labels, found.spread))
        if int(labels.max()) == 0 or wider.own.size <= 1.1 * found.own.size + 0.01:
            break
        turned = wider.turned(s)
        joined = agglomerate(pooled(turned, labels, int(labels.max()) + 1), wider.spread)
        labels = refine(turned, numbered(joined[labels]), wider.spread)
        found = replace(wider, labels=labels)
    return found


def bettered(s: Summaries, found: Groups, k: int | None = None) -> Groups:
    """The groups found, or others beside the same spreads that explain clients better.

    Agglomeration takes a class that looks alike for a sign of one group. Where groups differ in a few classes only that
    is no sign, and clients that share the others are pooled first, wrongly and for good. So it is done again as if half
    of the classes looked the same everywhere. Then groups are dissolved, one by one, as long as the rest do better.
    """
    turned, spread = found.turned(s), found.spread
    other = refine(turned, agglomerate(turned, replace(spread, same=0.5), k), spread, k)
    found = max(found, replace(found, labels=other), key=partial(explained, s))
    while k is None and int(found.labels.max()) > 0:
        table, labels = to_groups(turned, found.labels, spread), found.labels
        tries = []
        for g in range(table.shape[1]):
            elsewhere = table.index_fill(1, torch.tensor(g), -torch.inf).argmax(dim=1)
            tries.append(replace(found, labels=numbered(torch.where(labels == g, elsewhere, labels))))
        one_less = max(tries, key=partial(explained, s))
        one_less = replace(one_less, labels=refine(turned, one_less.labels, spread))
        if explained(s, one_less) <= explained(s, found):
            break
        found = one_less
    return found


def placed(s: Summaries, labels: Tensor, k: int) -> Tensor:
    """``[n, K]``: the evidence that clients after the first, whose ``labels`` are known, are one with each group."""
    first, rest = torch.arange(len(s)).split([len(labels), len(s) - len(labels)])
    found = fitted(s.take(first), labels)
    turned = found.turned(s)
    return evidence(turned.take(rest), pooled(turned.take(first), labels, k), found.spread)


def best_possible(s: Summaries, truth: Tensor) -> Tensor:
    """Every client placed by the statistics and spreads of the *true* groups, itself left out."""
    right = fitted(s, truth)
    return to_groups(right.turned(s), truth, right.spread).argmax(dim=1)


def in_company(s: Summaries, labels: Tensor, spread: Spread) -> Tensor:
    """The same groups, but clients that are alone are put with those that they are nearest to."""
    alone = torch.bincount(labels)[labels] == 1
    if not bool(alone.any()) or int(labels.max()) == 0:
        return labels
    table = evidence(s, s, spread).fill_diagonal_(-torch.inf)
    labels, near = labels.clone(), table.argmax(dim=1)
    for i in alone.nonzero().flatten().tolist():
        if int((labels == labels[i]).sum()) == 1:
            labels[i] = labels[near[i]]
    return numbered(labels)


def _grouped(s: Summaries, found: Groups, k: int | None) -> Tensor:
    turned = found.turned(s)
    return refine(turned, agglomerate(turned, found.spread, k), found.spread, k)


def _find_many(s: Summaries, k: int | None, *, effect: bool, narrow: bool) -> Groups:
    """A sample is agglomerated, the rest assigned; those that belong to no group found are agglomerated again."""
    order = keys.permutation(keys.key(0), len(s))
    first = order[:MOST]
    found = find_groups(s.take(first), k, effect=effect, narrow=narrow)
    turned, spread = found.turned(s), found.spread
    labels = torch.full((len(s),), -1)
    labels[first] = found.labels
    for _ in range(PASSES):
        count = int(labels.max()) + 1
        known = labels >= 0
        groups = pooled(turned.take(known.nonzero().flatten()), labels[known], count)
        rest = (~known).nonzero().flatten()
        table = torch.cat([evidence(turned.take(part), groups, spread) for part in rest.split(4096)])
        best = table.max(dim=1)
        fits = best.values >= (-torch.inf if k is not None else 0.0)
        labels[rest[fits]] = best.indices[fits]
        left = rest[~fits]
        if not len(left):
            break
        some = left[:MOST]
        labels[some] = count + refine(turned.take(some), agglomerate(turned.take(some), spread), spread)
    labels[labels < 0] = 0
    joined = agglomerate(pooled(turned, labels, int(labels.max()) + 1), spread, k)
    return replace(found, labels=numbered(joined[labels]))


def agglomerate(s: Summaries, spread: Spread, k: int | None = None) -> Tensor:
    """Labels ``[N]``: the two with the strongest evidence for one group are pooled, as long as there are any.

    Two groups stay apart if the evidence for two outweighs the ways in which so many clients can be cut: of 2^size cuts
    the best one looks like something even where there is nothing. With ``k`` it goes on to k groups, no matter what.
    """
    n = len(s)
    whole, s = s, s.take(torch.arange(n))  # a copy, whose rows are pooled in place
    labels, left = torch.arange(n), n
    table = torch.cat([evidence(s.take(part), s, spread) for part in torch.arange(n).split(64)])
    table.fill_diagonal_(-torch.inf)
    while left > (k or 1):
        worth = table
        if k is None:
            cuts = math.log(2.0) * (s.size.unsqueeze(1) + s.size)
            worth = torch.where(table + cuts > 0, table, -torch.inf)
        i, j = sorted(divmod(int(worth.argmax()), n))
        if i == j or worth[i, j] == -torch.inf:
            break
        _pool_into(s, i, j)
        labels[labels == j] = i
        left -= 1
        gone = table[i] == -torch.inf
        line = torch.where(gone, -torch.inf, evidence(s.take(torch.tensor([i])), s, spread)[0])
        table[i], table[:, i] = line, line
        table[j], table[:, j] = -torch.inf, -torch.inf
        if FEW < left <= n // 2:  # a smaller table for what is left
            labels = numbered(labels)
            return numbered(agglomerate(pooled(whole, labels, left), spread, k)[labels])
    return numbered(labels)


def _pool_into(s: Summaries, i: int, j: int) -> None:
    """Row i becomes i and j together."""
    one = pooled(s.take(torch.tensor([i, j])), torch.zeros(2, dtype=torch.int64), 1)
    s.weights[i], s.means[i], s.size[i], s.effect[i] = one.weights[0], one.means[0], one.size[0], one.effect[0]
    if s.counts is not None and one.counts is not None:
        s.counts[i] = one.counts[0]


def refine(s: Summaries, labels: Tensor, spread: Spread, k: int | None = None) -> Tensor:
    """Clients move to the group that they have most evidence for; groups that are one now are pooled.

    The surest move first, and with them who gains half as much: two that are wrong together can chase each other from
    group to group for ever.
    """
    for _ in range(MOVES):
        before = labels
        table = to_groups(s, labels, spread)
        best = table.max(dim=1)
        gain = best.values - table.gather(1, labels.unsqueeze(1)).squeeze(1)
        labels = torch.where(gain >= max(0.5 * float(gain.max()), 1e-9), best.indices, labels)
        if k is not None and len(labels.unique()) < k:
            return before
        labels = numbered(labels)
        joined = agglomerate(pooled(s, labels, int(labels.max()) + 1), spread, k)
        labels = numbered(joined[labels])
        if torch.equal(labels, before):
            break
    return labels


def numbered(labels: Tensor) -> Tensor:
    """The same groups, numbered by their first member."""
    seen: dict[int, int] = {}
    return torch.tensor([seen.setdefault(int(g), len(seen)) for g in labels], dtype=torch.int64)
