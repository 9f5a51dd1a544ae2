"""FCCA's similarity against loops over pairs of draws, and cluster names that stay."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clusterfl import keys
from clusterfl.models import Flow
from clusterfl.parts.similarity import keep_names, mean_by_cluster, pairwise, signature, similarity
from clusterfl.tree import Tree

FLOW, CLIENTS, DRAWS = Flow(4, 3, blocks=2, hidden=8), 4, 12
EPS = keys.normal(keys.key(1), 2, DRAWS, FLOW.dim)


def flows() -> list[Tree]:
    """Flows far from their start, each another way."""
    shaken = []
    for i in range(CLIENTS):
        key = keys.fold_in(keys.key(2), i)
        shaken.append({n: t + 0.4 * keys.normal(keys.fold_in(key, n), *t.shape) for n, t in FLOW.init(key).items()})
    return shaken


def generated(theta: Tree, half: int, label: int) -> np.ndarray:
    onehot = torch.eye(FLOW.classes)[label].expand(DRAWS, -1)
    z: Tensor = FLOW.inverse(theta, EPS[half], onehot)
    return z.double().numpy()


def test_b_is_the_mean_cosine_over_all_pairs_of_draws() -> None:
    clients = flows()
    b, p, s = similarity(torch.stack([signature(FLOW, theta, EPS) for theta in clients]))
    assert b.shape == (FLOW.classes, CLIENTS, CLIENTS)
    for y in range(FLOW.classes):
        first = [generated(theta, 0, y) for theta in clients]
        second = [generated(theta, 1, y) for theta in clients]
        for i in range(CLIENTS):
            for j in range(CLIENTS):
                cosines = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u in first[i] for v in second[j]]
                np.testing.assert_allclose(b[y, i, j].item(), np.mean(cosines), atol=1e-6)
                confidence = max(abs(b[y, i, i].item()), abs(b[y, j, j].item()))
                assert p[y, i, j].item() == confidence
                assert s[y, i, j].item() == b[y, i, j].item() * confidence


def test_all_pairs_and_the_papers_paired_draws_agree() -> None:
    """Eq. 4 pairs the draws of eps1 and eps2 one by one; its mean is the same, only noisier."""
    eps = keys.normal(keys.key(5), 2, 20_000, FLOW.dim)
    clients = flows()[:2]
    b = similarity(torch.stack([signature(FLOW, theta, eps) for theta in clients])).b
    onehot = torch.eye(FLOW.classes)[1].expand(eps.shape[1], -1)
    u, v = (FLOW.inverse(theta, e, onehot) for theta, e in zip(clients, eps, strict=True))
    paired = torch.nn.functional.cosine_similarity(u, v, dim=1).double()
    assert abs(paired.mean() - b[1, 0, 1]) < 5 * paired.std() / eps.shape[1] ** 0.5


def test_pairwise_is_the_symmetric_mean_over_labels() -> None:
    signatures = torch.stack([signature(FLOW, theta, EPS) for theta in flows()])
    found, alike = similarity(signatures), pairwise(signatures)
    assert torch.equal(alike, alike.T)
    for i in range(CLIENTS):
        for j in range(CLIENTS):
            torch.testing.assert_close(alike[i, j], (found.s[:, i, j].mean() + found.s[:, j, i].mean()) / 2)
    torch.testing.assert_close(found.mean().p, found.p.mean(dim=0))


def test_a_flow_that_knows_nothing_is_like_nobody() -> None:
    nothing = {n: torch.zeros_like(t) for n, t in FLOW.init(keys.key(0)).items()}
    eps = keys.normal(keys.key(6), 2, 4_000, FLOW.dim)
    b = similarity(torch.stack([signature(FLOW, theta, eps) for theta in (nothing, *flows())])).b
    assert b[:, 0].abs().max() < 0.05 < b[:, 1:, 1:].abs().max()


def test_mean_by_cluster() -> None:
    alike = torch.tensor([[1.0, 0.5, -0.5], [0.5, 1.0, 0.0]], dtype=torch.float64)
    got = mean_by_cluster(alike, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(got, torch.tensor([[0.75, -1.0, -0.5], [0.75, -1.0, 0.0]], dtype=torch.float64))


ids = st.integers(1, 4).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.tuples(*[st.integers(0, k - 1)] * 2), min_size=1, max_size=12))
)


@given(ids)
def test_keeping_names_only_renames_and_keeps_as_many_as_can_be(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    k, pairs = drawn
    found, before = torch.tensor(pairs).T
    named = keep_names(found, before, k)
    assert len({(a, b) for a, b in zip(found.tolist(), named.tolist(), strict=True)}) == len(found.unique())
    assert len(named.unique()) == len(found.unique())
    best = max(int((torch.tensor(names)[found] == before).sum()) for names in permutations(range(k)))
    assert int((named == before).sum()) == best
