"""Checkpoints: whole or absent, all that a run is, and of that run alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterfl.config import CheckpointConfig
from clusterfl.engines import Serial, codec
from clusterfl.engines.wrappers import wrapper_of
from clusterfl.engines.wrappers.privacy import Private
from clusterfl.loop import Simulation
from clusterfl.method import Single
from clusterfl.methods import IFCA, FedPer
from clusterfl.record import Record, Schedule
from clusterfl.runs.checkpoint import CheckpointError, Checkpoints, Entry, newest_snapshot, read_snapshot
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import small_population, small_task
from tests.engines.wrappers.exchanges import ALONE, RULE, private

METHOD = FedPer(local=RULE)  # clients keep their heads


def simulation(rounds: int = 4, method: Any = METHOD, engine: Any = None) -> Simulation:
    population = small_population()
    schedule = Schedule(rounds, participation=0.5)
    return Simulation(method, population, engine or Serial(small_task(), population), schedule)


def saver(folder: Path, *, every: int = 1, keep: int = 2, **digests: str) -> Checkpoints:
    given = {"config": "c", "data": "d", "version": "v", **digests}
    return Checkpoints(folder, CheckpointConfig(every, keep), **given)


def saved(folder: Path, rounds: int, *, of: int = 4, **rule: int) -> Simulation:
    """A run of ``of`` rounds after so many of them, saved as it went."""
    sim, saving = simulation(of), saver(folder, **rule)
    sim.start()
    saving.save(sim)
    for _ in range(rounds):
        sim.step()
        saving.save(sim)
    return sim


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").glob("round-*"))


def test_everything_comes_back(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 2), simulation()
    assert saver(tmp_path).restore(second)
    assert second.round == 2 and [r.round for r in second.records] == [0, 1, 2]
    assert_equal(first.state, second.state, "state")
    assert_equal(first.engine.states(), second.engine.states(), "what clients keep")
    assert_equal(first.records, second.records, "records")
    assert first.engine.traffic == second.engine.traffic
    assert second.engine.traffic.fields, "bytes by field too"
    whole = simulation()
    outcome, again = whole.run(), second.run()
    assert_equal(whole.state, second.state, "the end")
    assert outcome.bytes_up == again.bytes_up and outcome.bytes_down == again.bytes_down
    assert whole.engine.traffic == second.engine.traffic


def test_the_last_two_are_kept_and_the_last_round_is_always_saved(tmp_path: Path) -> None:
    saved(tmp_path / "a", 4)
    assert files(tmp_path / "a") == ["round-000003.ckpt", "round-000004.ckpt"]
    saved(tmp_path / "b", 5, of=5, every=2, keep=3)
    assert files(tmp_path / "b") == ["round-000002.ckpt", "round-000004.ckpt", "round-000005.ckpt"]
    saved(tmp_path / "c", 4, every=0)
    assert not (tmp_path / "c").exists(), "none were asked for"
    assert not saver(tmp_path / "c").restore(simulation())
    with pytest.raises(CheckpointError, match=r"should hold a checkpoint; run it with checkpoint\.every"):
        newest_snapshot(tmp_path / "c")


def test_rounds_after_the_checkpoint_are_run_again_and_recorded_once(tmp_path: Path) -> None:
    saved(tmp_path, 3, every=2)
    second = simulation()
    assert saver(tmp_path, every=2).restore(second) and second.round == 2 and len(second.records) == 3
    second.step()
    saver(tmp_path, every=2).save(second)
    second.step()
    saver(tmp_path, every=2).save(second)
    third = simulation()
    assert saver(tmp_path, every=2).restore(third) and [r.round for r in third.records] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("digest", "what"), [({"config": "x"}, "config"), ({"data": "x"}, "data")])
def test_another_runs_checkpoint_is_refused(digest: dict[str, str], what: str, tmp_path: Path) -> None:
    saved(tmp_path, 1)
    sim = simulation()
    with pytest.raises(CheckpointError, match=f"was written with another {what}; resume it with the same one"):
        saver(tmp_path, **digest).restore(sim)
    assert sim.state is None and sim.round == 0


def test_another_versions_checkpoint_is_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 1)
    with caplog.at_level(logging.WARNING):
        assert saver(tmp_path, version="w").restore(simulation())
    assert "was written by version v: the last bits may differ" in caplog.text


def test_a_damaged_one_costs_a_round_and_two_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 3)
    newest, before = (tmp_path / "checkpoints" / f"round-00000{t}.ckpt" for t in (3, 2))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"round-000003\.ckpt is damaged"):
        read_snapshot(newest)
    sim = simulation()
    with caplog.at_level(logging.WARNING):
        assert saver(tmp_path).restore(sim) and sim.round == 2 == newest_snapshot(tmp_path).round
    assert "the one before it is used" in caplog.text
    before.write_bytes(b"")
    with pytest.raises(CheckpointError, match="can be read; the run has to be started again"):
        saver(tmp_path).restore(simulation())


def test_a_journal_without_its_checkpoints_is_none(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    for name in files(tmp_path):
        (tmp_path / "checkpoints" / name).unlink()
    assert not saver(tmp_path).restore(simulation())
    assert list((tmp_path / "checkpoints").iterdir()) == [], "what is begun anew begins with an empty journal"


def test_a_resume_goes_on_counting_what_privacy_costs(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    whole = simulation(method=ALONE, engine=private())
    whole.run()
    first, saving = simulation(method=ALONE, engine=private()), saver(tmp_path)
    first.start(), saving.save(first)
    for _ in range(2):
        first.step(), saving.save(first)
    second = simulation(method=ALONE, engine=private())
    assert saver(tmp_path).restore(second)
    assert_equal(second.engine.account(), first.engine.account(), "the account")
    second.run()
    assert [r.epsilon for r in second.records] == [r.epsilon for r in whole.records]
    assert_equal(whole.state, second.state, "the model")
    releases = [wrapper_of(sim.engine, Private).releases for sim in (whole, second)]  # type: ignore[union-attr,arg-type]
    assert torch.equal(*releases) and newest_snapshot(tmp_path).kept == {}, "the account is nobody's kept state"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"round": "two"}, "its round is 'two'"),
        ({"traffic": {"up": {"FedPer.train": "much"}}}, "its traffic is not counted in bytes"),
        ({"traffic": 3}, "its traffic is not counted in bytes"),
        ({"kept": {0: {"head": "text"}}}, "what its clients keep are no tensors"),
        ({"kept": [1]}, "what its clients keep are no tensors"),
        ({"account": [1, 2]}, "its account of privacy are no tensors"),
        ({"state": {"theta": 1}}, "its state is another one"),
        ({"state": Single({"a": 3})}, "its state is another one"),  # type: ignore[dict-item]
    ],
    ids=str,
)
def test_a_whole_checkpoint_of_wrong_types_is_passed_over(
    change: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 2)
    newest = tmp_path / "checkpoints" / files(tmp_path)[-1]
    newest.write_bytes(codec.pack(replace(read_snapshot(newest), **change)))
    again = simulation()
    assert saver(tmp_path).restore(again) and again.round == 1
    assert said in caplog.text and newest_snapshot(tmp_path, METHOD, 12).round == 1


def test_assignments_out_of_range_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    method = IFCA(k=2, local=RULE)
    sim, saving = simulation(2, method), saver(tmp_path)
    sim.start()
    saving.save(sim)
    sim.step()
    saving.save(sim)
    newest = tmp_path / "checkpoints" / files(tmp_path)[-1]
    far = replace(sim.state, assign=sim.state.assign + 7)
    newest.write_bytes(codec.pack(replace(read_snapshot(newest), state=far)))
    assert saver(tmp_path).restore(simulation(2, method))
    assert "its clients use models that are not there" in caplog.text


def test_the_journal_holds_who_moved_and_no_more(tmp_path: Path) -> None:
    record = Record(0, torch.tensor([1, 0, 2, 2]), {}, 0.0, 1, 2, {}, 0.5)
    moved = replace(record, round=1, assign=torch.tensor([1, 0, 0, 2]))
    first, second, third = (Entry.of(moved, None), Entry.of(moved, record), Entry.of(replace(moved, round=2), moved))
    assert first.moved.tolist() == [0, 1, 2, 3] and second.moved.tolist() == [2] and not len(third.moved)
    assert_equal(second.whole(record), moved, "the record")
    assert third.whole(moved).assign is moved.assign  # one tensor for all rounds in which nobody moves
    large = replace(record, assign=torch.zeros(100_000, dtype=torch.int64))
    assert len(codec.pack(Entry.of(replace(large, round=1), large))) < 2000
    with pytest.raises(ValueError, match="clients moved that there are not"):
        Entry(moved, torch.tensor([7]), torch.tensor([0])).whole(record)
