"""Engines agree, meter, lose clients and name culprits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Call, Client, Cohort, Payload, on_client, on_server
from clusterfl.data.population import Population, Shards
from clusterfl.engines import Flaky, Plan, Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.guard import Guard, finite
from clusterfl.engines.worker import stacking
from clusterfl.errors import ClientError, NoReplies
from clusterfl.method import Procedures
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.local import Local
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.local import SGD, Train, sgd
from clusterfl.task import Task
from clusterfl.testing import assert_close, assert_equal, play, small_population, small_task
from clusterfl.tree import Tree, concat, repeat, row

RULE = SGD(lr=0.1, batch=10, epochs=1)
IDS = torch.arange(12)


@dataclass(frozen=True)
class Probe(Procedures):
    """Small procedures that show what an engine does."""

    poison: ClassVar[int] = 5

    @on_client
    def count(self, me: Client) -> dict[str, Payload]:
        me.keep(calls=me.state.get("calls", torch.zeros((), dtype=torch.int64)) + 1)
        return {"calls": me.state.get("calls", torch.zeros((), dtype=torch.int64)), "draw": keys.uniform(me.key)}

    @on_client
    def fail(self, me: Client, i: Tensor) -> dict[str, Payload]:
        if not me.stacked and int(i) == self.poison:
            raise ZeroDivisionError("bad luck")
        if me.stacked:
            raise RuntimeError("cannot be stacked")
        return {"i": i}

    @on_client
    def die_once(self, me: Client, i: Tensor, path: Tensor) -> dict[str, Payload]:
        from pathlib import Path

        mark = Path(bytes(path.tolist()).decode())
        if int(i) == self.poison and not mark.exists():
            mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return {"i": i + 1}

    @on_client
    def die_always(self, me: Client) -> dict[str, Payload]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    @on_server
    def square(self, me: Client, x: Tensor) -> dict[str, Payload]:
        return {"y": x * x, "draw": keys.uniform(me.key)}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    engine = Pool(small_task(), small_population(), workers=2)
    yield engine
    engine.close()


def cohort(engine: BaseEngine, seed: int = 0) -> Cohort:
    return engine.cohort(IDS, keys.key(seed))


@pytest.mark.parametrize("method", [FedAvg(local=RULE), IFCA(k=2, local=RULE), Local(local=RULE)], ids=lambda m: m.name)
def test_pool_equals_serial_bit_for_bit(method: Any, pool: Pool) -> None:
    pool.set_states({})
    serial = Serial(small_task(), small_population())
    state = play(method, serial)
    assert_equal(state, play(method, pool), "pool and serial")
    assert_equal(serial.states(), pool.states(), "what clients keep")
    served = method.serve(state, IDS)
    assert_equal(serial.evaluate(method, served, IDS, keys.key(1)), pool.evaluate(method, served, IDS, keys.key(1)), "")


def test_a_stacked_pool_has_the_same_bits_with_any_number_of_workers(tmp_path: Any) -> None:
    method, plan = IFCA(k=2, local=RULE), Plan(stacked=True, chunk=3)
    alone = play(method, Stacked(small_task(), small_population(), plan))
    with Pool(small_task(), small_population(), plan, workers=1) as one:
        assert_equal(alone, play(method, one), "one worker")


def test_answers_stay_as_they_are_while_they_are_held_and_memory_is_used_again(pool: Pool) -> None:
    """A worker writes its answers into memory that it shares; a slot is written anew only when nobody looks."""
    theta = small_task().init(keys.key(0))

    def chunks(engine: BaseEngine, seed: int) -> list[Tree]:
        call = Call(Train(RULE), "train", IDS, {"theta": theta}, {}, keys.key(seed), 0)
        return [chunk.fields["theta"] for chunk in engine.execute(call)]  # type: ignore[misc]

    held = [concat(chunks(pool, seed)) for seed in range(3)]  # copies
    views = [chunks(pool, seed) for seed in range(3)]
    for mine, others in zip(held, views, strict=True):
        assert_equal(mine, concat(others), "answers that are held")
    one = views[0][0]["0.weight"][0]
    before = one.clone()
    del views, others
    for seed in range(30):
        chunks(pool, seed + 10)
    assert torch.equal(one, before), "a single row keeps its slot"
    # 36 answers were held at once, and a worker may answer all of a call: hundreds of answers need no more
    assert sum(len(m.slots) for m in pool._members) <= 36 + 2 * len(IDS), "slots are used again"


@pytest.mark.parametrize("spread", [1.25, 4.0])
def test_clients_of_like_size_are_stacked(spread: float) -> None:
    sizes = torch.tensor([100, 7, 90, 30, 1, 60, 28, 2000, 99])
    call = Call(Probe(), "count", torch.arange(len(sizes)), {}, {}, keys.key(0), 0)
    plan = Plan(stacked=True, chunk=3, spread=spread)
    got = [sizes[p].tolist() for p in stacking(call, sizes, {}, plan, exact=False)]
    if spread == 1.25:
        assert got == [[2000], [100, 90, 99], [60], [7, 30, 28], [1]]
    else:  # up to 32 samples any sizes go together, as many as a chunk holds
        assert got == [[2000], [100, 90, 99], [30, 60, 28], [7, 1]]
    assert [sizes[p].tolist() for p in stacking(call, torch.full_like(sizes, 5), {}, plan, exact=True)] != []


def test_a_dead_worker_is_replaced_and_its_clients_are_asked_again(pool: Pool, tmp_path: Any) -> None:
    path = torch.tensor(list(str(tmp_path / "mark").encode()), dtype=torch.uint8)
    got = cohort(pool).run(Probe().die_once, {"path": path}, i=IDS)
    assert got["i"].tolist() == (IDS + 1).tolist()
    assert (tmp_path / "mark").exists()


def test_a_chunk_that_always_kills_its_worker_is_reported(pool: Pool) -> None:
    with pytest.raises(ClientError, match=r"Probe\.die_always failed on client \d+: its worker died"):
        cohort(pool).run(Probe().die_always)
    assert len(cohort(pool).run(Probe().count)) == 12, "the pool goes on"


@pytest.mark.parametrize("kind", ["serial", "stacked", "pool"])
def test_an_error_names_procedure_and_client(kind: str, pool: Pool) -> None:
    engine = pool if kind == "pool" else {"serial": Serial, "stacked": Stacked}[kind](small_task(), small_population())
    with pytest.raises(ClientError, match=r"Probe\.fail failed on client 5: ZeroDivisionError: bad luck"):
        cohort(engine).run(Probe().fail, i=IDS)


def test_draws_and_kept_state_are_equal_in_every_engine(pool: Pool) -> None:
    pool.set_states({})
    engines: list[BaseEngine] = [
        Serial(small_task(), small_population()),
        Stacked(small_task(), small_population()),
        Wire(small_task(), small_population()),
        pool,
    ]
    seen = []
    for engine in engines:
        engine.traffic.up.clear(), engine.traffic.down.clear()  # the pool is other tests' too
        first, second = cohort(engine, 1).run(Probe().count), cohort(engine, 2).run(Probe().count)
        assert first["calls"].tolist() == [0] * 12 and second["calls"].tolist() == [1] * 12
        mapped = cohort(engine).map(Probe().square, x=torch.arange(5.0))
        seen.append((second["draw"], mapped["y"], mapped["draw"]))
        assert engine.traffic.total_down == 0 and engine.traffic.total_up == 2 * 12 * 12
    for other in seen[1:]:
        assert_equal(seen[0], other, "draws")
    assert seen[0][1].tolist() == [0, 1, 4, 9, 16]


def test_traffic_is_payload_per_procedure() -> None:
    engine = Serial(small_task(), small_population())
    theta = engine.task.init(keys.key(0))
    cohort(engine).run(FedAvg(local=RULE).train, {"theta": theta})
    assert engine.traffic.down == {"FedAvg.train": 12 * engine.task.size}
    assert engine.traffic.up == {"FedAvg.train": 12 * (engine.task.size + 4)}
    wire = Wire(small_task(), small_population())
    cohort(wire).run(FedAvg(local=RULE).train, {"theta": theta})
    assert wire.traffic.down == engine.traffic.down
    assert wire.wire_down > wire.traffic.total_down and wire.wire_up > wire.traffic.total_up


def test_flaky_loses_the_same_clients_each_time_and_nobody_means_no_replies() -> None:
    lost = [cohort(Flaky(Serial(small_task(), small_population()), 0.5)).run(Probe().count).ids for _ in range(2)]
    assert torch.equal(lost[0], lost[1]) and 0 < len(lost[0]) < 12
    with pytest.raises(NoReplies, match=r"Probe\.count"):
        cohort(Flaky(Serial(small_task(), small_population()), 1.0)).run(Probe().count)
    with pytest.raises(ValueError, match="drop=2"):
        Flaky(Serial(small_task(), small_population()), 2.0)


@pytest.mark.parametrize("rule", [RULE, SGD(lr=0.1, batch=7, steps=9, momentum=0.9, weight_decay=0.01)])
def test_stacked_equals_serial_for_clients_of_very_unlike_size(rule: SGD) -> None:
    sizes = [3, 50, 7, 51, 49, 20, 21, 1, 64, 33, 8, 9]
    parts = []
    for i, n in enumerate(sizes):
        k = keys.fold_in(keys.key(9), i)
        parts.append((keys.normal(k, n, 6), keys.randint(keys.fold_in(k, 1), 3, n)))
    population = Population(Shards.from_parts(parts), Shards.from_parts(parts), 12, 3)
    method = FedAvg(local=rule)
    assert_close(
        play(method, Serial(small_task(), population)), play(method, Stacked(small_task(), population)), "ragged"
    )


def batch_norm_task() -> Task:
    return Task(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)), 3)


def test_batch_norm_buffers_travel_and_are_averaged_in_every_engine() -> None:
    population, method = small_population(), FedAvg(local=RULE)
    reference = play(method, Serial(batch_norm_task(), population))
    assert_equal(reference, play(method, Wire(batch_norm_task(), population)), "wire")
    assert_close(reference, play(method, Stacked(batch_norm_task(), population)), "stacked")
    assert int(reference.theta["1.num_batches_tracked"]) > 0
    assert float(reference.theta["1.running_mean"].abs().max()) > 0.0


def test_batch_norm_against_a_plain_module() -> None:
    """One client, full batches: the buffers and weights are those of ordinary PyTorch."""
    task, population = batch_norm_task(), small_population(ragged=False)
    task.module[3].p = 0.0  # type: ignore[union-attr, operator]
    theta = task.init(keys.key(3))
    got = (
        Serial(task, population)
        .cohort(IDS[:1], keys.key(0))
        .run(FedAvg(local=SGD(lr=0.1, batch=24, epochs=3)).train, {"theta": theta})
    )
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))
    module.load_state_dict(theta)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = population.train.of(0)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    assert_close(row(got["theta"], 0), dict(module.state_dict()), "plain PyTorch")


def test_a_streamed_mean_equals_the_mean_of_all_replies() -> None:
    engine = Serial(small_task(), small_population())
    theta = repeat(engine.task.init(keys.key(0)), 2)
    s = IDS % 2
    mean = MeanBy(theta, by=s, weights="n")
    got = cohort(engine).run(FedAvg(local=RULE).train, {"theta": row(theta, 0)}, into=mean)
    assert "theta" not in got.fields and "n" in got.fields
    full = cohort(engine).run(FedAvg(local=RULE).train, {"theta": row(theta, 0)})
    for name, t in mean.result().items():
        for k in range(2):
            w = full["n"][s == k].double()
            rows_ = full["theta"][name][s == k].double()
            by_hand = (rows_ * w.reshape(-1, *([1] * (rows_.dim() - 1)))).sum(0) / w.sum()
            assert torch.allclose(t[k].double(), by_hand, atol=1e-6)


@dataclass(frozen=True)
class Bad(Procedures):
    """Client 3 answers in a bad way."""

    how: str = "nan"

    @on_client
    def train(self, me: Client, theta: Tree, i: Tensor) -> dict[str, Payload]:
        new = sgd(me, theta, RULE)
        n, fields = me.size, {}
        if int(i) == 3:
            w = new["0.weight"].clone()
            if self.how == "nan":
                new = {n_: t * torch.nan for n_, t in new.items()}
            elif self.how == "one-inf":
                w[0, 0] = torch.inf
                new["0.weight"] = w
            elif self.how == "shape":
                new["0.weight"] = w[:, :2].clone()
            elif self.how == "broadcast":
                new["0.weight"] = w[:1].clone()
            elif self.how == "dtype":
                new["0.weight"] = w.double()
            elif self.how == "missing":
                del new["0.bias"]
            elif self.how == "extra":
                fields["surprise"] = torch.zeros(2)
            elif self.how.startswith("n="):
                n = torch.tensor(float(self.how[2:]))
        return {"theta": new, "n": n, **fields}


@pytest.mark.parametrize(
    "how",
    ["nan", "one-inf", "shape", "broadcast", "dtype", "missing", "extra", "n=0", "n=-1", "n=nan", "n=1e12"],
)
def test_a_bad_reply_is_rejected_and_the_round_goes_on(how: str) -> None:
    population = small_population()
    guard = Guard(Wire(small_task(), population), sample=population.train.x[0])
    theta = guard.task.init(keys.key(0))
    got = cohort(guard).run(Bad(how).train, {"theta": theta}, i=IDS)
    assert got.ids.tolist() == [i for i in range(12) if i != 3]
    assert guard.rejected == {3: 1}
    assert got["theta"]["0.weight"].dtype == torch.float32


def test_a_guard_lets_sound_replies_through_unchanged() -> None:
    population = small_population()
    for method in (FedAvg(local=RULE), IFCA(k=2, local=RULE), Local(local=RULE)):
        guard = Guard(Serial(small_task(), population), sample=population.train.x[0])
        assert_equal(play(method, Serial(small_task(), population)), play(method, guard), method.name)
        assert guard.rejected == {}


def test_damaged_repeated_and_late_messages() -> None:
    """A message that is flipped or cut is dropped; one that comes twice counts once; an old one never counts."""
    old: list[bytes] = []

    def transport(reply: bytes) -> list[bytes]:
        old.append(reply)
        turn = len(old) - 1
        if turn % 4 == 0:
            at = (turn * 7919) % len(reply)
            return [reply[:at] + bytes([reply[at] ^ (1 << turn % 8)]) + reply[at + 1 :]]
        if turn % 4 == 1:
            return [reply[: len(reply) * (turn % 5) // 5]]
        return [reply, reply] if turn % 4 == 2 else [old[turn - 1], reply]

    wire = Wire(small_task(), small_population(), transport)
    got = cohort(wire).run(Probe().count)
    assert got.ids.tolist() == [i for i in range(12) if i % 4 >= 2]
    assert wire.dropped == 12


def test_clients_whose_data_changes_at_a_round_train_and_are_measured_on_the_new_data() -> None:
    """Drift: from round 2 on every client holds what its neighbour of the other group held."""
    from dataclasses import replace

    from clusterfl.loop import Schedule, Simulation

    before = small_population(ragged=False)
    assert before.truth is not None
    other = torch.arange(14).reshape(-1, 2).flip(1).flatten()
    after = replace(before, train=before.train.select(other), test=before.test.select(other), truth=before.truth[other])
    population = replace(before, drift=(2, after))
    method, sims = IFCA(k=2, local=RULE), []
    for engine in (Serial(small_task(), population), Stacked(small_task(), population)):
        sim = Simulation(method, population, engine, Schedule(rounds=3))
        sim.run()
        assert engine.holds is after
        sims.append(sim)
    assert_close(sims[0].state, sims[1].state, "drift")
    assert not torch.equal(sims[0].records[1].assign, sims[0].records[3].assign), "clients follow their data"
    plain = Simulation(method, before, Serial(small_task(), before), Schedule(rounds=3))
    plain.run()
    assert torch.equal(plain.records[1].accuracy, sims[0].records[1].accuracy), "nothing changes before the drift"


def test_a_script_without_a_main_guard_may_use_worker_processes(tmp_path: Any) -> None:
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import clusterfl\n"
        "sim = clusterfl.Config.load(None, ['engine.name=pool', 'engine.workers=1', 'rounds=1']).build().simulation\n"
        "print('accuracy', sim.run().accuracy.mean)\n"
        "sim.engine.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1


def test_stacked_clients_may_have_channels_last() -> None:
    x, y = keys.normal(keys.key(0), 60, 2, 12, 12), keys.randint(keys.key(1), 3, 60)
    shards = Shards.from_rows(x, y, list(torch.arange(60).split(20)))
    population = Population(shards, shards, 3, 3)

    def task() -> Task:
        return Task(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)), 3)

    method = IFCA(k=2, local=RULE)
    one = play(method, Serial(task(), population))
    together = play(method, Serial(task(), population, Plan(stacked=True, chunk=2, channels_last=True)))
    assert torch.equal(one.assign, together.assign)
    assert_close(one.centers, together.centers, "stacked, channels last", 1e-5)


def test_finite_rows() -> None:
    big = torch.finfo(torch.float32).max
    rows = torch.tensor([[1.0, 2.0], [torch.inf, 1.0], [torch.nan, 1.0], [torch.inf, -torch.inf], [big, big]])
    assert finite(rows).tolist() == [True, False, False, False, True]
    assert finite(torch.zeros(2, 0)).tolist() == [True, True]
