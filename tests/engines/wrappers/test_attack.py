"""Attackers: who they are and what they falsify."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.engines import Plan, Pool, Serial, Stacked, Wire
from clusterfl.engines.wrappers.attack import Attack, AttackConfig, attackers, flip_labels
from clusterfl.errors import ConfigError
from clusterfl.methods import IFCA, FedAvg, FedPer, FedSGD
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from tests.engines.wrappers.exchanges import BOTH, BOTH_CHOOSING, IDS, RULE, flatten

LIARS = torch.tensor([1, 4, 7])


# -- who lies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.25, 0.4])
def test_attackers_are_spread_or_together_and_the_key_decides(share: float) -> None:
    truth = torch.tensor([0, 1, 2, 3] * 5)
    base = small_population()
    parts = base.train.select(torch.arange(20) % 12), base.test.select(torch.arange(20) % 12)
    population = Population(*parts, 20, 3, truth=truth)
    kind = {"kind": "sign-flip", "share": share}
    spread = attackers(AttackConfig(**kind), population, keys.key(0))
    together = attackers(AttackConfig(**kind, where="one-cluster"), population, keys.key(0))
    for found in (spread, together):
        assert len(found) == round(20 * share) and found.unique().tolist() == found.tolist()
    counts = torch.bincount(truth[spread], minlength=4)
    assert int(counts.max() - counts.min()) <= 1
    full = torch.bincount(truth[together], minlength=4).sort(descending=True).values.tolist()
    assert full == [min(5, max(0, len(together) - 5 * j)) for j in range(4)]
    assert spread.tolist() == attackers(AttackConfig(**kind), population, keys.key(0)).tolist()
    assert spread.tolist() != attackers(AttackConfig(**kind), population, keys.key(3)).tolist()


def test_without_truth_there_is_no_cluster_to_take_over() -> None:
    base = small_population()
    population = Population(base.train, base.test, CLIENTS, 3)
    assert len(attackers(AttackConfig("scale", 0.5), population, keys.key(0))) == 6
    with pytest.raises(ConfigError, match="one-cluster"):
        attackers(AttackConfig("scale", where="one-cluster"), population, keys.key(0))
    assert not len(attackers(AttackConfig(), population, keys.key(0)))


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.0}, {"scale": 0.0}], ids=str)
def test_attacks_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="should be"):
        AttackConfig("scale", **wrong)


def test_labels_are_flipped_for_liars_alone_even_where_samples_are_shared() -> None:
    base = small_population()
    shared = base.train.select(torch.tensor([0, 1, 0, 1, 2, 2] + [3] * 8))  # clients 0 and 2 hold the same samples
    after = Population(shared, base.test, CLIENTS, 3)
    population = Population(shared, base.test, CLIENTS, 3, drift=(4, after))
    lying = flip_labels(population, torch.tensor([2, 5]))
    for held in (lying, lying.at(9)):
        for i in range(14):
            x, y = held.train.of(i)
            x0, y0 = population.train.of(i)
            assert torch.equal(x, x0) and torch.equal(y, 2 - y0 if i in (2, 5) else y0)
    assert lying.digest != population.digest and torch.equal(lying.test.y, population.test.y)


# -- what they send -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Serial, Stacked])
@pytest.mark.parametrize("kind", ["sign-flip", "scale", "gaussian"])
def test_false_updates(kind: Any, make: Any) -> None:
    population, method = small_population(), FedAvg(local=RULE)
    theta = small_task().init(keys.key(0))
    plain = make(small_task(), population)
    lying = Attack(make(small_task(), population), AttackConfig(kind, scale=2.0), LIARS)
    honest, false = (e.cohort(IDS, keys.key(1)).run(method.train, {"theta": theta}) for e in (plain, lying))
    names = small_task().params
    start = torch.cat([theta[n].flatten() for n in names]).double()
    u, v = (flatten(got["theta"], names) - start for got in (honest, false))
    good = torch.tensor([i for i in range(CLIENTS) if i not in LIARS])
    assert torch.equal(v[good], u[good]) and torch.equal(honest["n"], false["n"])
    assert torch.allclose(v[LIARS].norm(dim=1), 2 * u[LIARS].norm(dim=1), rtol=1e-4)
    if kind == "gaussian":
        cosine = torch.nn.functional.cosine_similarity(u[LIARS], v[LIARS])
        assert float(cosine.abs().max()) < 0.5 and not torch.equal(v[1] / v[1].norm(), v[4] / v[4].norm())
    else:
        assert torch.allclose(v[LIARS], (2 if kind == "scale" else -2) * u[LIARS], atol=1e-5)


def test_what_a_client_began_from_is_found_in_every_kind_of_exchange() -> None:
    """A K-centre choice, a body alone, a bare gradient: the reversed update is relative to what was sent."""
    population, task = small_population(), small_task()
    centers = task.init_stack(keys.key(0), 2)
    flip = AttackConfig("sign-flip", scale=1.0)

    def both(method: Any, **sent: Any) -> tuple[Any, Any]:
        plain, lying = Serial(small_task(), population), Attack(Serial(small_task(), population), flip, IDS)
        return tuple(e.cohort(IDS, keys.key(1)).run(method, sent) for e in (plain, lying))

    honest, false = both(IFCA(k=2, local=RULE).choose_and_train, centers=centers)
    for n in task.params:
        assert torch.allclose(false["theta"][n], 2 * centers[n][honest["s"]] - honest["theta"][n], atol=1e-6)
    body = {n: t for n, t in task.init(keys.key(0)).items() if n not in task.head}
    honest, false = both(FedPer(local=RULE).train, body=body)
    for n, t in body.items():
        assert torch.allclose(false["body"][n], 2 * t - honest["body"][n], atol=1e-6)
    honest, false = both(FedSGD(local=RULE).gradient, theta=task.init(keys.key(0)))
    for n in task.params:
        assert torch.allclose(false["grad"][n], -honest["grad"][n])


@pytest.mark.parametrize("make", [Serial, Stacked, Wire])
@pytest.mark.parametrize("exchange", [BOTH, BOTH_CHOOSING], ids=["one model", "a choice of two"])
def test_the_update_is_reversed_whatever_the_fields_are_called(exchange: Any, make: Any) -> None:
    """With `w` sent and `model` returned, the whole model would be taken for an update by who guesses by names."""
    flip = AttackConfig("sign-flip", scale=2.0)
    honest, usual, unusual = (
        exchange[names](engine)
        for names, engine in (
            ("usual", make(small_task(), small_population())),
            ("usual", Attack(make(small_task(), small_population()), flip, LIARS)),
            ("unusual", Attack(make(small_task(), small_population()), flip, LIARS)),
        )
    )
    assert torch.equal(unusual, usual)
    good = torch.tensor([i for i in range(CLIENTS) if i not in LIARS])
    assert torch.equal(unusual[good], honest[good])
    assert torch.allclose(unusual[LIARS], -2.0 * honest[LIARS], atol=1e-5)


def test_attacks_are_the_same_in_every_engine() -> None:
    method, population = IFCA(k=2, local=RULE), small_population()
    with Pool(small_task(), population, Plan(), workers=2) as pool:
        for config in (AttackConfig("sign-flip"), AttackConfig("gaussian")):
            reference = play(method, Attack(Serial(small_task(), population), config, LIARS))
            assert_equal(reference, play(method, Attack(pool, config, LIARS)), "pool and serial under attack")
            assert_close(reference, play(method, Attack(Stacked(small_task(), population), config, LIARS)), "stacked")
