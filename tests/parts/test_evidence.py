"""Evidence that clients belong together, against the densities that it stands for."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import dirichlet_multinomial, multivariate_normal
from torch import Tensor

from clusterfl import keys
from clusterfl.parts.evidence import (
    Spread,
    Summaries,
    class_evidence,
    evidence,
    pooled,
    same_classes,
    to_groups,
    whitening,
)


def summaries(n: int, classes: int = 3, d: int = 2, seed: int = 0) -> Summaries:
    key = keys.key(seed)
    weights = keys.randint(keys.fold_in(key, "w"), 6, n, classes).double()
    means = keys.normal(keys.fold_in(key, "m"), n, classes, d).double()
    return Summaries(weights, means, torch.ones(n).double(), torch.ones(n).double())


def brute(a: Summaries, b: Summaries, spread: Spread) -> float:
    """The log density of the differences of means in one group less that in two, all classes of a dimension at once."""
    held = ((a.weights[0] > 0) & (b.weights[0] > 0)).nonzero().flatten()
    total = 0.0
    for k in range(a.means.shape[-1]):
        difference = (a.means[0, held, k] - b.means[0, held, k]).numpy()
        noise = torch.diag(1 / a.weights[0, held] + 1 / b.weights[0, held])
        shared = float(spread.omega[k] * (a.effect[0] + b.effect[0])) * torch.ones(len(held), len(held))
        far = 2.0 * spread.tau2 * torch.eye(len(held))
        one, two = (multivariate_normal(cov=(noise + shared + more).numpy()) for more in (0.0, far))
        total += one.logpdf(difference) - two.logpdf(difference)
    return total


@pytest.mark.parametrize("omega", [(0.0, 0.0), (0.3, 1.5)])
def test_the_bayes_factor_is_the_ratio_of_densities(omega: tuple[float, float]) -> None:
    s, spread = summaries(5), Spread(0.4, torch.tensor(omega).double())
    table = evidence(s, s, spread)
    for i in range(5):
        for j in range(5):
            a, b = s.take(torch.tensor([i])), s.take(torch.tensor([j]))
            if bool(((a.weights > 0) & (b.weights > 0)).any()):
                assert float(table[i, j]) == pytest.approx(brute(a, b, spread), abs=1e-6)


def test_a_class_that_one_lacks_says_nothing() -> None:
    s, spread = summaries(2), Spread(0.4, torch.tensor([0.2, 0.1]).double())
    s.weights[0, 1] = 0.0
    before = evidence(s, s, spread)[0, 1]
    s.means[0, 1] = 1e3
    assert evidence(s, s, spread)[0, 1] == before
    nothing = Summaries(torch.zeros_like(s.weights), s.means, s.size, s.effect)
    assert float(evidence(nothing, s, spread).abs().max()) == 0.0


def test_where_groups_share_classes_a_class_that_looks_alike_says_little() -> None:
    s = summaries(2)
    s.weights[:] = 50.0
    s.means[1] = s.means[0]
    s.means[1, 2] += 5.0
    none = torch.zeros(2).double()
    plain, shared = (class_evidence(s, s, Spread(0.4, none, same))[0, 1] for same in (0.0, 0.5))
    assert plain[0] > 2.0 and shared[0] == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=0.1)
    assert shared[2] == pytest.approx(float(plain[2]) + torch.log(torch.tensor(2.0)).item(), abs=1e-6)
    assert same_classes(s, Spread(0.4, none)) == pytest.approx(2 / 3)


def test_label_counts_are_evidence_too() -> None:
    counts = torch.tensor([[5.0, 0.0, 2.0], [1.0, 7.0, 0.0]]).double()
    s = Summaries(torch.zeros(2, 3).double(), torch.zeros(2, 3, 1).double(), torch.ones(2), torch.ones(2), counts)

    def log(c: Tensor) -> float:  # without the number of orders, which is the same on both sides
        n = c.sum()
        orders = torch.lgamma(n + 1) - torch.lgamma(c + 1).sum()
        return float(dirichlet_multinomial([1.0] * 3, int(n)).logpmf(c.numpy())) - float(orders)

    expected = log(counts[0] + counts[1]) - log(counts[0]) - log(counts[1])
    assert float(evidence(s, s, Spread(0.4, torch.zeros(1).double()))[0, 1]) == pytest.approx(expected)


def test_a_group_is_the_mean_of_its_members_and_a_client_is_left_out_of_its_own() -> None:
    s, spread = summaries(6), Spread(0.4, torch.tensor([0.2, 0.1]).double())
    s.weights[:] += 1.0
    labels = torch.tensor([0, 0, 1, 1, 1, 0])
    groups = pooled(s, labels, 2)
    w = s.weights[labels == 0]
    assert torch.allclose(groups.means[0], (w.unsqueeze(-1) * s.means[labels == 0]).sum(0) / w.sum(0).unsqueeze(-1))
    assert groups.size.tolist() == [3.0, 3.0] and 1 / 3 <= float(groups.effect[0]) < 1.0
    table = to_groups(s, labels, spread)
    rest = pooled(s.take(torch.tensor([1, 5])), torch.zeros(2, dtype=torch.int64), 1)
    rest = Summaries(rest.weights, rest.means, rest.size, groups.effect[:1])
    spread = Spread(0.4, spread.omega, same_classes(groups, spread))
    assert float(table[0, 0]) == pytest.approx(float(evidence(s.take(torch.tensor([0])), rest, spread)[0, 0]))
    assert torch.allclose(table[0, 1], evidence(s, groups, spread)[0, 1])


def test_whitening_takes_out_the_bias_of_an_inverse() -> None:
    """Squares of new samples, whitened by an estimate of few degrees of freedom, are 1 on average and not above."""
    d, f, total = 8, 30, 0.0
    for seed in range(40):
        x = keys.normal(keys.key(seed), f, d).double()
        total += float((keys.normal(keys.key(1000 + seed), 200, d).double() @ whitening(x.T @ x, f)).square().mean())
    plain = f / (f - d - 1)
    assert 0.75 < total / 40 < 1.05 < plain
    assert torch.equal(whitening(torch.zeros(3, 3), 0.0), torch.eye(3, dtype=torch.float64))
