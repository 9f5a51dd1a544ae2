"""The durable run over nodes: the simulator's figures to the bit, whatever nodes do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clusterfl
from clusterfl.config import Config
from clusterfl.engines import codec
from clusterfl.engines.flower.engine import Terms
from clusterfl.engines.flower.messages import Reply
from clusterfl.errors import ClusterflError
from clusterfl.federate.folder import Federation
from clusterfl.federate.server import read_nodes
from clusterfl.runs.model_files import load_models
from clusterfl.tree import Tree
from tests.commands.calls import call
from tests.federate.fleet import DIGITS, Fleet, demo, own, run
from tests.federate.run_folder import every_command_works


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


NATURAL = ["data.split=natural", "data.shift=none", "data.test=own", "local.lr=0.02"]
METHODS = {
    "ifca": ["method.name=ifca", "method.k=2"],
    "md-icfl": ["method.name=md-icfl", "method.k=2", "method.privacy=strong", "method.warmup=0"],
    "fedper": ["method.name=fedper", "model.name=mlp"],
    "fesem": ["method.name=fesem", "method.k=2"],
    "kin": ["method.name=kin", "data.samples=60"],
    "private": ["method.name=ifca", "method.k=2", "privacy.clip=1.0", "privacy.noise_multiplier=0.1"],
    "samples": ["method.name=fedavg", "privacy.clip=1.0", "privacy.noise_multiplier=0.5", "privacy.unit=sample"],
    "numbers": ["method.name=ifca", "method.k=2", "data.source=linear-regression", "task.loss=mse", *NATURAL],
}


@pytest.mark.parametrize("name", METHODS)
def test_nodes_learn_what_the_simulator_learns(name: str, tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 4, *METHODS[name])
    run(federation, fleet)
    config = Config.load(None, [*DIGITS, "data.clients=4", *METHODS[name], "engine.name=serial"])
    clusterfl.run(config, out=tmp_path / "sim")
    mine, simulated = summary(federation.run_folder), summary(tmp_path / "sim")
    for table in (mine, simulated):
        del table["seconds"]
    assert list(mine["assignments"]) == list(mine["per_client"]) == [f"node-{i}" for i in range(4)]
    assert list(mine.pop("assignments").values()) == list(simulated.pop("assignments").values())
    for name in ("metrics", "per_client"):
        assert len(mine.pop(name)) == len(simulated.pop(name))
    assert mine.keys() == simulated.keys()
    for key, value in mine.items():  # nodes sum in float32 what the simulator sums in float64
        exact = not isinstance(value, float)
        assert value == (simulated[key] if exact else pytest.approx(simulated[key], rel=1e-5)), key
    models, others = load_models(federation.run_folder), load_models(tmp_path / "sim")
    assert models.keys() == others.keys()
    for k, tree in models.items():
        assert all(torch.equal(t, others[k][n]) for n, t in tree.items())


@pytest.mark.parametrize("method", ["fedper", "ifca"])
def test_a_run_that_breaks_in_a_round_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    """FedPer's nodes have kept what they learnt in the broken round; the resumed one does not build on it."""
    changes = [*METHODS[method], "rounds=3"]
    whole, fleet = demo(tmp_path / "whole", 3, *changes)
    run(whole, fleet)
    broken, fleet = demo(tmp_path / "broken", 3, *changes)
    turns = {"fedper": 5, "ifca": 6}[method]  # within round 2, when some nodes have answered already

    def die(name: str, turn: int, answer: bytes) -> bytes:
        if turn == turns and name == "node-1":
            raise KeyboardInterrupt
        return answer

    fleet.spoil = die
    with pytest.raises(KeyboardInterrupt):
        run(broken, fleet, "1")
    fleet.spoil = Fleet.spoil
    run(broken, fleet, "2", resume=True)
    for k, tree in load_models(whole.run_folder).items():
        assert all(torch.equal(t, load_models(broken.run_folder)[k][n]) for n, t in tree.items())
    ours, theirs = summary(broken.run_folder), summary(whole.run_folder)
    assert (ours["accuracy_mean"], ours["bytes_up"]) == (theirs["accuracy_mean"], theirs["bytes_up"])


def test_a_node_that_goes_away_is_left_out_and_comes_back_under_its_name(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 3, *METHODS["ifca"], "rounds=3")

    def leave(name: str, turn: int, answer: bytes) -> bytes | None:
        return None if name == "node-2" and turn in (3, 4) else answer

    fleet.spoil = leave
    run(federation, fleet)
    seen = read_nodes(federation.run_folder)["seen"]
    assert seen["node-2"]["rounds"] == 2 and seen["node-0"]["rounds"] == 3
    assert seen["node-2"]["failed"] == 2 and "did not answer" in seen["node-2"]["reason"]
    assert summary(federation.run_folder)["rounds"] == 3


def test_a_reply_that_is_not_sound_is_rejected_and_counted(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 3, *METHODS["ifca"])

    def poison(name: str, turn: int, answer: bytes) -> bytes:
        said = codec.unpack(answer)
        if name != "node-1" or "theta" not in said.fields:
            return answer
        bad = {n: torch.full_like(t, torch.nan) for n, t in said.fields["theta"].items()}
        return codec.pack(Reply(said.token, {**said.fields, "theta": bad}))

    fleet.spoil = poison
    run(federation, fleet)
    found = read_nodes(federation.run_folder)["seen"]
    assert found["node-1"]["rejected"] >= 2 and found["node-0"]["rejected"] == 0
    assert summary(federation.run_folder)["rejected"] == found["node-1"]["rejected"]


def test_a_node_whose_reply_does_not_count_keeps_nothing_of_it(tmp_path: Path) -> None:
    """A reply that is lost on the way: the node has trained its head, but the simulator's client has not."""
    federation, fleet = demo(tmp_path / "f", 2, *METHODS["fedper"], "eval_every=2")

    def lose(name: str, turn: int, answer: bytes) -> bytes | None:
        return None if (name, turn) == ("node-1", 2) else answer

    fleet.spoil = lose
    run(federation, fleet)
    seen = read_nodes(federation.run_folder)["seen"]["node-1"]
    assert seen["void"] == [] and seen["rounds"] == 1
    assert before(federation, 1, 2) == {}  # the second round began without what the first had kept


def before(federation: Federation, node: int, epoch: int) -> Tree:
    """What a node had kept when it was asked in a round."""
    (path,) = (federation.folder / f"node-{node}").rglob(f"epoch-{epoch:06d}-*.kept")
    found: Tree = codec.unpack(path.read_bytes()).before
    return found


def test_replies_that_are_lost_twice_rejected_or_too_few_leave_nothing_kept(tmp_path: Path) -> None:
    """Two rounds in a row, each of whose requests the node has carried out: it is told of both."""
    changes = [*METHODS["fedper"], "eval_every=9", "rounds=3"]
    lost, fleet = demo(tmp_path / "lost", 2, *changes)
    fleet.spoil = lambda name, turn, answer: None if name == "node-1" and turn in (2, 3) else answer
    run(lost, fleet)
    assert before(lost, 1, 3) == {} != before(lost, 0, 3)

    def poison(name: str, turn: int, answer: bytes) -> bytes:
        said = codec.unpack(answer)
        if (name, turn) != ("node-1", 2):
            return answer
        bad = {n: torch.full_like(t, torch.nan) for n, t in said.fields["body"].items()}
        return codec.pack(Reply(said.token, {**said.fields, "body": bad}))

    rejected, fleet = demo(tmp_path / "rejected", 2, *changes)
    fleet.spoil = poison
    run(rejected, fleet)
    assert before(rejected, 1, 2) == {} != before(rejected, 0, 2)

    terms = Terms(timeout=0.05, wait=0.05, poll=0.01, least=2)
    few, fleet = demo(tmp_path / "few", 2, *changes, terms=terms)
    fleet.spoil = lambda name, turn, answer: None if (name, turn) == ("node-1", 2) else answer
    run(few, fleet)
    assert before(few, 0, 2) == {} == before(few, 1, 2)  # node 0 has answered, but nobody used it
    assert before(few, 0, 3) != {}


def test_too_few_replies_leave_the_models_and_then_end_the_run(tmp_path: Path) -> None:
    terms = Terms(timeout=0.05, wait=0.05, poll=0.01, least=2, patience=2)
    federation, fleet = demo(tmp_path / "f", 2, *METHODS["ifca"], "rounds=9", terms=terms)

    def silence(name: str, turn: int, answer: bytes) -> bytes | None:
        return None if turn > 2 and name == "node-0" else answer

    fleet.spoil = silence
    with pytest.raises(ClusterflError, match=r"2 times in a row had fewer.*mend the nodes and resume"):
        run(federation, fleet)
    rows = [json.loads(line) for line in (federation.run_folder / "rounds.jsonl").read_text().splitlines()]
    assert rows[-1]["logged"]["no_replies"] == 1.0


def test_a_run_folder_is_one_like_any_other(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 3, *METHODS["ifca"])
    run(federation, fleet)
    every_command_works(federation.run_folder, tmp_path)


def test_personal_models_are_looked_for_on_their_nodes(tmp_path: Path) -> None:
    federation, fleet = demo(tmp_path / "f", 2, *METHODS["fedper"], "rounds=1")
    run(federation, fleet)
    for more in (["--client", "node-1"], []):
        done = call("export", str(federation.run_folder), "--to", str(tmp_path / "out"), *more)
        assert done.exit_code == 2 and "has its personal model on its own node" in done.stderr
    done = call("export", str(federation.run_folder), "--to", str(tmp_path / "out"), "--cluster", "0")
    assert done.exit_code == 0, done.output


# -- their own data ----------------------------------------------------------------------------------------


def flowers(folder: Path, classes: dict[str, list[str]], n: int = 30) -> dict[str, Path]:
    files = {}
    for j, (name, mine) in enumerate(classes.items()):
        rng = np.random.default_rng(j)
        y = np.array(mine)[rng.integers(len(mine), size=n)]
        x = rng.normal(size=(n, 5)).astype(np.float32) + (y == mine[0])[:, None]
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], x=x, y=y)
    return files


OWN = ["method.name=ifca", "method.k=2", "rounds=1"]


def test_classes_are_agreed_by_name(tmp_path: Path) -> None:
    files = flowers(tmp_path, {"rome": ["rose", "tulip"], "oslo": ["iris", "rose"], "bern": ["tulip", "iris"]})
    federation, fleet = own(tmp_path / "f", files, *OWN)
    run(federation, fleet)
    known = read_nodes(federation.run_folder)
    assert known["classes"] == ["iris", "rose", "tulip"]
    assert known["introductions"]["rome"]["train"] == 24 and known["introductions"]["rome"]["test"] == 6
    found = summary(federation.run_folder)
    assert found["clients"] == 3 and found["accuracy_mean"] is not None and found["ari"] is None
    details = json.loads((federation.run_folder / "details.json").read_text())
    assert details["train"] == [24, 24, 24]
    assert details["labels"] is details["cluster_labels"] is details["confusion"] is None  # nobody here knows them
    assert call("report", str(federation.run_folder)).exit_code == 0


def test_a_node_with_an_unknown_class_and_one_with_too_little_are_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = flowers(tmp_path, {"rome": ["rose", "tulip"], "oslo": ["daisy", "rose"], "bern": ["rose", "tulip"]})
    np.savez(tmp_path / "lima.npz", x=np.zeros((1, 5), np.float32), y=np.array(["rose"]))
    files["lima"] = tmp_path / "lima.npz"
    federation, fleet = own(tmp_path / "f", files, *OWN, classes=("rose", "tulip"))
    run(federation, fleet)
    assert "'oslo' is refused: its classes ['daisy']" in caplog.text
    assert "'lima' takes no part: it holds 1 training samples" in caplog.text
    known = read_nodes(federation.run_folder)
    assert known["seen"]["rome"]["rounds"] == 1 and known["seen"]["oslo"]["rounds"] == 0


def test_samples_of_two_shapes_are_refused(tmp_path: Path) -> None:
    files = flowers(tmp_path, {"rome": ["rose", "tulip"]})
    np.savez(tmp_path / "oslo.npz", x=np.zeros((9, 4), np.float32), y=np.array(["rose"] * 9))
    federation, fleet = own(tmp_path / "f", {**files, "oslo": tmp_path / "oslo.npz"}, *OWN)
    with pytest.raises(ClusterflError, match=r"one shape on all nodes, but have: rome: \[5\]; oslo: \[4\]"):
        run(federation, fleet)
    assert not federation.run_folder.exists()


def with_oslo_away(tmp_path: Path) -> tuple[Federation, Fleet]:
    """Two nodes after a round of two, of which one has gone since."""
    files = flowers(tmp_path, {"rome": ["rose", "tulip"], "oslo": ["iris", "rose"]})
    federation, fleet = own(tmp_path / "f", files, *OWN)
    run(federation, fleet)
    config = Config.load(federation.config)
    federation.config.write_text(config.model_copy(update={"rounds": 2}).toml())
    fleet.away = {"oslo"}
    return federation, fleet


def test_a_node_that_is_away_at_a_resume_keeps_what_it_said(tmp_path: Path) -> None:
    federation, fleet = with_oslo_away(tmp_path)
    run(federation, fleet, "2", resume=True)
    known = read_nodes(federation.run_folder)
    assert known["seen"]["rome"]["rounds"] == 2 and known["seen"]["oslo"]["rounds"] == 1
    assert "not connected" in known["seen"]["oslo"]["reason"] and summary(federation.run_folder)["rounds"] == 2


def test_a_node_that_is_revoked_is_not_waited_for(tmp_path: Path) -> None:
    federation, fleet = with_oslo_away(tmp_path)
    patient = replace(federation, revoked=("oslo",), terms=Terms(timeout=0.2, wait=1e6, poll=0.01, least=1))
    run(patient, fleet, "2", resume=True)  # would else wait for days
    assert read_nodes(federation.run_folder)["seen"]["rome"]["rounds"] == 2
