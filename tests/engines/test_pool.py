"""Worker processes: the bits of serial, shared memory, and workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from clusterfl import keys
from clusterfl.call import Call
from clusterfl.engines import Plan, Pool, Serial, parallel
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.blocks import own_memory
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.make import make_engine
from clusterfl.engines.pool import _slots_each
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.errors import ClientError
from clusterfl.evaluate.served import evaluate
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.fedper import FedPer
from clusterfl.methods.ifca import IFCA
from clusterfl.methods.local import Local
from clusterfl.parts.local import Train
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import Tree, concat
from tests.engines.probe import IDS, RULE, Probe, cohort


@pytest.mark.parametrize("method", [FedAvg(local=RULE), IFCA(k=2, local=RULE), Local(local=RULE)], ids=lambda m: m.name)
def test_pool_equals_serial_bit_for_bit(method: Any, pool: Pool) -> None:
    pool.set_states({})
    serial = Serial(small_task(), small_population())
    state = play(method, serial)
    assert_equal(state, play(method, pool), "pool and serial")
    assert_equal(serial.states(), pool.states(), "what clients keep")
    served = method.serve(state, IDS)
    scores = (evaluate(engine, method, served, IDS, keys.key(1)) for engine in (serial, pool))
    assert_equal(*scores, "evaluation")


@pytest.mark.parametrize("plan", [Plan(), Plan(stacked=True, chunk=3)], ids=["eager", "stacked"])
def test_the_bits_are_the_same_with_any_number_of_workers(plan: Plan) -> None:
    methods = (IFCA(k=2, local=RULE), FedPer(local=RULE))  # one that keeps nothing on its clients, and one that does

    def outcome(engine: BaseEngine) -> list[Any]:
        found = []
        for method in methods:
            engine.set_states({})
            state = play(method, engine)
            scores = evaluate(engine, method, method.serve(state, IDS), IDS, keys.key(1), metrics=engine.task.metrics)
            found.append([state, engine.states(), scores])
        return found

    alone = outcome(Serial(small_task(), small_population(), plan))
    for workers in (1, 2, 3):
        with Pool(small_task(), small_population(), plan, workers=workers) as pool:
            assert len({member.process.pid for member in pool._members}) == workers
            assert_equal(alone, outcome(pool), f"{workers} workers")


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


def test_a_dead_worker_is_replaced_and_its_clients_are_asked_again(pool: Pool, tmp_path: Any) -> None:
    path = torch.tensor(list(str(tmp_path / "mark").encode()), dtype=torch.uint8)
    got = cohort(pool).run(Probe().die_once, {"path": path}, i=IDS)
    assert got["i"].tolist() == (IDS + 1).tolist()
    assert (tmp_path / "mark").exists()


def test_a_chunk_that_always_kills_its_worker_is_reported(pool: Pool) -> None:
    with pytest.raises(ClientError, match=r"Probe\.die_always failed on client \d+: its worker died"):
        cohort(pool).run(Probe().die_always)
    assert len(cohort(pool).run(Probe().count)) == 12, "the pool goes on"


def test_a_script_without_a_main_guard_may_use_worker_processes(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import clusterfl\n"
        "config = clusterfl.Config.load(None, ['engine.name=pool', 'engine.workers=1', 'rounds=1'])\n"
        "print('accuracy', clusterfl.run(config).accuracy.mean)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1


def test_a_stopped_worker_is_ended_and_its_clients_are_asked_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP: the run once waited for ever, without a word."""
    monkeypatch.setattr(parallel, "POLL", 0.2)
    monkeypatch.setattr(parallel, "SHORTEST", 1.0)
    pool._longest.clear()  # nothing is known of how long a chunk takes: that it stands still is seen
    stopped = pool._members[0].process
    os.kill(stopped.pid, signal.SIGSTOP)
    pool.set_states({})
    state = play(FedAvg(local=RULE), pool)
    assert_equal(play(FedAvg(local=RULE), Serial(small_task(), small_population())), state, "stopped and serial")
    assert not stopped.is_alive() and len(pool._members) == 2
    assert "a worker is gone in FedAvg.train (no answer in" in caplog.text


def test_a_chunk_that_takes_far_longer_than_others_did_is_asked_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    while not all(member in pool._known for member in pool._members):  # one that starts may take its time
        cohort(pool).run(Probe().count)
    pool.set_states({})
    monkeypatch.setattr(parallel, "POLL", 0.2)
    monkeypatch.setattr(parallel, "SHORTEST", 3.0)
    pool._longest["Probe.sleep_once"] = 0.01
    path = torch.tensor(list(str(tmp_path / "mark").encode()), dtype=torch.uint8)
    got = cohort(pool).run(Probe().sleep_once, {"path": path}, i=IDS)
    assert got["i"].tolist() == (IDS + 1).tolist()


def test_a_pool_with_a_stopped_worker_ends() -> None:
    with Pool(small_task(), small_population(), workers=1) as pool:
        process = pool._members[0].process
        os.kill(process.pid, signal.SIGSTOP)
    assert not process.is_alive()


def test_without_shared_memory_messages_are_copied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """64 MB of /dev/shm, or 1,024 open files: neither ends a run."""
    monkeypatch.setattr("clusterfl.engines.pool.shared_memory", own_memory)
    monkeypatch.setattr("clusterfl.engines.pool._slots_each", lambda workers: 0)
    method = FedPer(local=RULE)
    with Pool(small_task(), small_population(), workers=2) as pool:
        state = play(method, pool)
        assert not any(member.slots for member in pool._members)
        serial = Serial(small_task(), small_population())
        assert_equal(play(method, serial), state, "copied and serial")
        assert_equal(serial.states(), pool.states(), "what clients keep")
    assert caplog.text.count("messages to worker processes are copied") == 1


def test_where_clients_cannot_be_shared_this_process_computes_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(shards: Any) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr("clusterfl.engines.pool._shared", full)
    with make_engine(EngineConfig("pool", workers=2, stacked=False), small_task(), small_population()) as engine:
        assert isinstance(engine, Guard) and isinstance(engine.inner, Serial)
    assert "this process computes alone, to the same bits" in caplog.text


def test_open_files_do_not_grow_with_the_clients(pool: Pool) -> None:
    theta = small_task().init(keys.key(0))
    call = Call(Train(RULE), "train", IDS, {"theta": theta}, {}, keys.key(0), 0)
    held = [list(pool.execute(call)) for _ in range(5)]
    limit = _slots_each(2)
    assert held and sum(len(m.slots) for m in pool._members) <= 2 * limit
    assert _slots_each(10**6) == 4
