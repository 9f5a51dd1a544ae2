"""Groups by evidence: as many as there are, one where there are none, and the same for a crowd."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from clusterfl import keys
from clusterfl.bench.evidence import World, describe_all, synthetic_statistics
from clusterfl.bench.grid import Entry, config_of
from clusterfl.bench.grid import World as GridWorld
from clusterfl.metrics import clustering
from clusterfl.parts import kinship
from clusterfl.parts.describe import Describe, summaries
from clusterfl.parts.evidence import Summaries
from clusterfl.parts.explained import blurred, explained
from clusterfl.parts.kinship import agglomerate, find_groups, numbered, placed, refine, settled
from clusterfl.parts.spreads import FLOOR, clear_directions, measured


def world(n: int = 20, groups: int = 3, own: float = 0.0, client: float = 0.0, c: int = 4) -> tuple[Summaries, Tensor]:
    """Clients of c classes in 16 dimensions, some of them missing; own and client are the spreads of clients."""
    key, d = keys.key(0), 16
    truth = torch.arange(n) % groups
    weights = keys.randint(keys.fold_in(key, "w"), 20, n, c).double()
    mu = keys.normal(keys.fold_in(key, "mu"), groups, c, d).double()[truth]
    noise = keys.normal(keys.fold_in(key, "noise"), n, c, d).double() / weights.clamp(min=1.0).sqrt().unsqueeze(-1)
    each = own**0.5 * keys.normal(keys.fold_in(key, "own"), n, c, d).double()
    all_classes = client**0.5 * keys.normal(keys.fold_in(key, "client"), n, 1, d).double()
    return Summaries(weights, mu + noise + each + all_classes, torch.ones(n).double(), torch.ones(n).double()), truth


@pytest.mark.parametrize("spreads", [{}, {"client": 0.5}, {"own": 0.3}])
@pytest.mark.parametrize("groups", [1, 3])
def test_groups_are_found_and_counted(groups: int, spreads: dict[str, float]) -> None:
    s, truth = world(60, groups, **spreads)
    found = find_groups(s).labels
    assert clustering(found, truth).ari == 1.0 and int(found.max()) + 1 == groups


def test_a_number_of_groups_can_be_asked_for() -> None:
    s, _ = world(12, 3)
    for k in (1, 2, 3, 5, 12):
        assert len(find_groups(s, k).labels.unique()) == k


def test_it_stops_at_the_ways_to_cut() -> None:
    """Two halves whose evidence for two is between 0 and what the best of all cuts may have by chance stay one."""
    s, _ = world(16, 1)
    free = measured(s, torch.zeros(16, dtype=torch.int64), own=False).spread
    assert int(agglomerate(s, free).max()) == 0
    assert int(agglomerate(replace(s, size=torch.zeros(16).double()), free).max()) >= 0


def test_a_misplaced_client_moves_and_groups_that_are_one_are_joined() -> None:
    s, truth = world(18, 3)
    spread = measured(s, truth).spread
    wrong = truth.clone()
    wrong[0] = 1
    assert clustering(refine(s, wrong, spread), truth).ari == 1.0
    cut = torch.where((truth == 2) & (torch.arange(18) < 9), 3, truth)
    assert clustering(refine(s, cut, spread), truth).ari == 1.0


def test_the_spreads_are_what_they_were_made_with() -> None:
    s, truth = world(200, 3, client=0.5)
    found = measured(s, truth, own=False)
    assert 0.35 < float(found.spread.omega.mean()) < 0.65 and 0.6 < found.spread.tau2 < 1.6
    s, truth = world(200, 3, own=0.3)
    assert 0.2 < measured(s, truth).own.size < 0.4
    s, truth = world(200, 1)
    assert measured(s, truth, own=False).spread.tau2 == FLOOR


def test_a_crowd_is_grouped_through_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinship, "MOST", 40)
    s, truth = synthetic_statistics(300, keys.key(1))
    truth[7], s.means[7] = 5, s.means[7] + 3.0  # one of its own kind, whom the sample may miss
    s.means[7] *= s.weights[7].unsqueeze(-1) > 0
    found = find_groups(s).labels
    assert clustering(found, truth).ari > 0.98 and int(found.max()) + 1 in (5, 6)


def test_groups_are_numbered_by_their_first_member() -> None:
    assert numbered(torch.tensor([7, 7, 2, 7, 5, 2])).tolist() == [0, 0, 1, 0, 2, 1]


def test_what_all_classes_of_a_group_share_makes_a_group_too() -> None:
    """As light and contrast do: at first sight it looks like effects of the clients themselves."""
    s, _ = world(32, 1)
    truth = torch.arange(32) % 4
    shift = 2.0 * keys.normal(keys.fold_in(keys.key(0), "shift"), 4, 1, 16).double()
    found = find_groups(replace(s, means=s.means + shift[truth])).labels
    assert clustering(found, truth).ari == 1.0 and int(found.max()) == 3


def test_clients_that_are_wrong_together_do_not_chase_each_other() -> None:
    """Two of these clients changed places in every pass when all moved at once."""
    population = World("digits", "permute_labels", 0.1).population(2)
    known = describe_all(population, Describe())
    s, _ = summaries(known.counts, known.means, known.blur, known.scatter, float(known.freedom))
    assert population.truth is not None
    assert clustering(find_groups(s).labels, population.truth[: population.clients]).ari == 1.0


def test_true_groups_explain_clients_better_than_others() -> None:
    s, truth = world(40, 4, client=0.3)
    right = explained(s, measured(s, truth))
    for wrong in (truth // 2, torch.zeros_like(truth), torch.arange(40) % 8, truth[keys.permutation(keys.key(3), 40)]):
        assert explained(s, measured(s, wrong)) < right


def test_a_density_is_that_of_the_whole_normal_distribution() -> None:
    """Against torch's own, one client at a time, with classes that share the client effect."""
    s, truth = world(6, 2, client=0.5)
    found = measured(s, truth, own=False)
    t, total = found.turned(s), -6 * math.log(2)
    for i in range(6):
        mates = [j for j in range(6) if truth[j] == truth[i] and j != i]
        rest = [j for j in range(6) if j != i]
        c = [c for c in range(4) if t.weights[i, c] > 0 and t.weights[rest, c].sum() > 0]
        w = t.weights[mates][:, c].sum(0)
        near = (t.weights[mates][:, c, None] * t.means[mates][:, c]).sum(0)
        all_ = (t.weights[rest][:, c, None] * t.means[rest][:, c]).sum(0) / t.weights[rest][:, c].sum(0)[:, None]
        precision = w + 1.0 / found.spread.tau2
        mean = (near + all_ / found.spread.tau2) / precision[:, None]
        mass = t.weights[truth == truth[i]].sum(1)
        share = 1.0 + float(mass.square().sum() / mass.sum().square())
        for d in range(16):
            covariance = torch.diag(1.0 / t.weights[i, c] + 1.0 / precision) + share * found.spread.omega[d]
            total += float(MultivariateNormal(mean[:, d], covariance).log_prob(t.means[i, c, d]))
    assert explained(s, replace(found, labels=truth)) == pytest.approx(total, rel=1e-9)


def test_groups_are_blurred_when_their_members_lie_apart_too() -> None:
    s, truth = world(60, 3)
    assert not blurred(s, truth)
    s, truth = world(60, 3, own=3.0)
    assert blurred(s, truth)


def test_groups_that_follow_nothing_are_blurred() -> None:
    s, _ = world(60, 1)
    assert blurred(s, torch.arange(60) % 4)


def test_groups_that_differ_clearly_in_one_class_of_many_are_not_blurred() -> None:
    """On average over classes they hardly lie apart."""
    s, _ = world(60, 1, c=30)
    truth = torch.arange(60) % 2
    s.means[truth == 1, 0] += 0.8
    assert measured(s, truth).spread.tau2 == FLOOR
    assert not blurred(s, truth)


def test_clients_that_share_only_what_is_alike_everywhere_are_not_pooled_for_it() -> None:
    """Two groups swap a pair of classes each, and most clients lack these: pooling the surest first came to .69."""
    aris = []
    for seed in range(3):
        population = config_of(Entry(GridWorld("digits", "one swap", "Dir .1"), "kin", seed)).population()
        known = describe_all(population, Describe())
        s, _ = summaries(known.counts, known.means, known.blur, known.scatter, float(known.freedom))
        assert population.truth is not None
        aris.append(clustering(find_groups(s).labels, population.truth[: population.clients]).ari)
    assert statistics.fmean(aris) > 0.75


def faint(groups: int, d: int = 64) -> tuple[Summaries, Tensor]:
    """32 clients of ten classes whose groups differ along one of d directions only, in all classes alike."""
    key, n, c = keys.key(0), 32, 10
    truth = torch.arange(n) % groups
    weights = keys.randint(keys.fold_in(key, "w"), 30, n, c).double() + 5.0
    noise = keys.normal(keys.fold_in(key, "noise"), n, c, d).double() / weights.sqrt().unsqueeze(-1)
    noise[:, :, 3] += 0.7 * truth.double().unsqueeze(1)
    return Summaries(weights, noise, torch.ones(n).double(), torch.ones(n).double()), truth


def test_groups_that_differ_in_few_directions_are_seen_along_these() -> None:
    s, truth = faint(3)
    few = clear_directions(s)
    assert few is not None and few.shape == (64, 1) and abs(float(few[3, 0])) > 0.9
    whole = settled(s, torch.zeros(32, dtype=torch.int64))
    found = find_groups(s)
    assert clustering(found.labels, truth).ari == 1.0 > clustering(whole.labels, truth).ari
    assert found.among is not None and found.turned(s).means.shape == (32, 10, 1)
    assert explained(s, found) > explained(s, replace(measured(s, truth), labels=truth))


def test_chance_and_differences_everywhere_give_no_clear_directions() -> None:
    assert clear_directions(faint(1)[0]) is None
    s, _ = world(60, 3)
    assert clear_directions(replace(s, means=s.means[..., :2] * 10.0)) is None


def test_a_client_is_placed_along_the_directions_in_which_groups_differ() -> None:
    s, truth = faint(3)
    table = placed(s, truth[:30], 3)
    assert table.argmax(dim=1).tolist() == truth[30:].tolist()
