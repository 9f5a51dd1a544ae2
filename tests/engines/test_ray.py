"""Ray actors answer as the pool's workers do, and are replaced when they die."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterfl import Config, keys
from clusterfl.engines import Plan, Pool, Ray
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.errors import ClientError, ClusterflError, ConfigError
from clusterfl.evaluate.served import evaluate
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedper import FedPer
from clusterfl.methods.ifca import IFCA
from clusterfl.parts.local import SGD
from clusterfl.runs.setup import prepare
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task
from tests.conftest import nothing_to_share

ray = pytest.importorskip("ray", reason="the ray engine needs the extra: pip install 'clusterfl[ray]'")
pytestmark = pytest.mark.skipif(nothing_to_share(), reason="Ray's nodes share memory, and /dev/shm has no room")

RULE = SGD(lr=0.1, batch=10, epochs=1)
IDS = torch.arange(12)
CORES = 4  # logical ones: two engines with two actors each may be there at once
METHODS: list[Any] = [FedAvg(local=RULE), IFCA(k=2, local=RULE), FedPer(local=RULE)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster that is already there: engines join it and leave it as it was."""
    from clusterfl.engines.ray import connect

    assert connect(CORES, None)
    yield
    ray.shutdown()


@pytest.fixture(scope="module", params=["eager", "stacked"])
def pair(request: Any, cluster: None) -> Iterator[tuple[Pool, Ray]]:
    plan = Plan(stacked=request.param == "stacked", chunk=5)
    with (
        Pool(small_task(), small_population(), plan, workers=1) as pool,
        Ray(small_task(), small_population(), plan, workers=2) as actors,
    ):
        yield pool, actors
    assert ray.is_initialized(), "the cluster was not the engine's to end"


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_ray_equals_pool_bit_for_bit(method: Any, pair: tuple[Pool, Ray]) -> None:
    pool, actors = pair
    states = []
    for engine in pair:
        engine.set_states({})
        states.append(play(method, engine))
    assert_equal(*states, "ray and pool")
    assert_equal(pool.states(), actors.states(), "what clients keep")
    assert bool(actors.states()) == (method.name == "fedper")
    served = method.serve(states[0], IDS)
    assert_equal(*(evaluate(e, method, served, IDS, keys.key(1)) for e in pair), "evaluation")


@pytest.mark.parametrize("pair", ["eager"], indirect=True)
def test_an_actor_that_is_killed_is_replaced_and_the_result_is_the_same(pair: tuple[Pool, Ray]) -> None:
    pool, actors = pair
    for engine in pair:
        engine.set_states({})
    method = FedPer(local=RULE)
    expected = play(method, pool)
    before = actors._members[0].actor
    ray.kill(before)
    assert_equal(expected, play(method, actors), "after the death")
    assert_equal(pool.states(), actors.states(), "what clients keep")
    assert actors._members[0].actor is not before


def test_without_a_core_for_a_new_actor_fewer_go_on(
    cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that is lost leaves no core behind: the run once waited for it for ever."""
    monkeypatch.setattr("clusterfl.engines.ray.START", 3.0)

    class Holder:
        def ready(self) -> None: ...

    method = FedAvg(local=RULE)
    with Ray(small_task(), small_population(), workers=2) as actors:
        expected = play(method, actors)
        free = int(ray.available_resources().get("CPU", 0))
        holders = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(free + 1)]  # one more waits for a core
        ray.get([holder.ready.remote() for holder in holders[:free]])
        ray.kill(actors._members[0].actor)
        ray.get(holders[free].ready.remote())  # and has it now
        assert_equal(expected, play(method, actors), "with one actor fewer")
        assert len(actors._members) == 1 and "1 go on" in caplog.text
        for holder in holders:
            ray.kill(holder)


FRAGILE = """
from dataclasses import dataclass
from clusterfl.message import Labels, on_client
from clusterfl.method import Procedures

@dataclass(frozen=True)
class Fragile(Procedures):
    @on_client(i=Labels("a whole number", bound=None))
    def fail(self, me, i):
        if int(i) == 5:
            raise ZeroDivisionError("bad luck")
        return {"i": i}
"""


@pytest.mark.parametrize("pair", ["eager"], indirect=True)
def test_errors_name_the_procedure_and_the_client_or_what_is_missing(
    pair: tuple[Pool, Ray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)  # the actors, which are there already, do not look here
    module = importlib.import_module("only_here")
    cohort = pair[1].cohort(IDS, keys.key(0))
    with pytest.raises(RuntimeError, match=r"a Ray actor cannot answer: .*No module named 'only_here'"):
        cohort.run(module.Fragile().fail, i=IDS)
    ray.cloudpickle.register_pickle_by_value(module)
    with pytest.raises(ClientError, match=r"Fragile\.fail failed on client 5: ZeroDivisionError: bad luck"):
        cohort.run(module.Fragile().fail, i=IDS)


def test_a_config_names_it(cluster: None) -> None:
    few = ["engine.name=ray", "engine.workers=1", "data.clients=4", "data.samples=10", "rounds=1"]
    setup = prepare(Config.load(None, few))
    assert setup.config.engine.stacked is True
    with setup.simulation() as simulation:
        assert isinstance(simulation.engine, Guard) and isinstance(simulation.engine.inner, Ray)
        assert simulation.run().accuracy.mean > 0.0
    with pytest.raises(ConfigError, match=r"engine\.workers=5 should be at most 4, the cores of the Ray cluster"):
        Ray(small_task(), small_population(), workers=CORES + 1)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ray" else find(name, *a))
    with pytest.raises(ConfigError, match=r"pip install 'clusterfl\[ray\]'"):
        Ray(small_task(), small_population(), workers=1)


def test_a_cluster_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterfl.engines.ray import connect

    def init(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen")  # as Ray does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterflError, match=r"could not be started .*: The current node timed out during startup\.$"):
        connect(1, None)
