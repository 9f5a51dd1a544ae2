"""Tables on nodes: columns and words are agreed by name, so that a model reads the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import clusterfl
from clusterfl.config import Config
from clusterfl.engines import codec
from clusterfl.errors import ClusterflError
from clusterfl.federate.folder import Federation
from clusterfl.federate.server import attend, read_nodes
from clusterfl.runs.model_files import load_models
from tests.commands.calls import call
from tests.federate.fleet import Fleet, own, run
from tests.federate.test_service import TASK

ROWS = {  # (age, ward, outcome) of each patient, and whether the sample is a test one
    "rome": [(0.3, "er", "ill"), (0.4, "icu", "well"), (0.2, "er", "ill"), (0.9, "icu", "well"), (0.6, "er", "ill")],
    "oslo": [(0.8, "icu", "well"), (0.1, "lab", "ill"), (0.7, "icu", "well"), (0.5, "lab", "ill"), (0.4, "icu", "ill")],
}
TRAINED = ["method.name=fedavg", "rounds=2", "local.epochs=1", "data.client_column=town", "data.label_column=outcome"]
TRAINED += ['data.categorical=["ward"]']


def lines(town: str, columns: str = "age,ward,outcome,split") -> list[str]:
    out = []
    for j, (age, ward, outcome) in enumerate(ROWS[town]):
        row = {"town": town, "age": age, "ward": ward, "outcome": outcome, "split": "test" if j == 4 else "train"}
        out.append(",".join(str(row[name]) for name in columns.split(",")))
    return [columns, *out]


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n")
    return path


def federation(folder: Path, *changes: str, **more: Any) -> tuple[Federation, Fleet]:
    """Two nodes whose tables have their columns in another order, and not the same words."""
    files = {
        "rome": write(folder / "rome.csv", lines("rome")),
        "oslo": write(folder / "oslo.csv", lines("oslo", "ward,split,outcome,age")),
    }
    return own(folder / "f", files, "data.source=given", *TRAINED, *changes, **more)


def test_nodes_with_tables_learn_what_a_simulation_of_them_learns(tmp_path: Path) -> None:
    made, fleet = federation(tmp_path)
    run(made, fleet)
    columns = "town,age,ward,outcome,split"
    table = write(tmp_path / "all.csv", [*lines("rome", columns), *lines("oslo", columns)[1:]])
    clusterfl.run(Config.load(None, [f"data.source=table:{table}", *TRAINED]), out=tmp_path / "sim")
    mine, simulated = load_models(made.run_folder), load_models(tmp_path / "sim")
    for name, weights in simulated[0].items():
        assert torch.allclose(mine[0][name], weights, atol=1e-6), name
    cards = [json.loads((run / "data.json").read_text()) for run in (made.run_folder, tmp_path / "sim")]
    for key in ("feature_names", "categories", "class_names", "input_shape"):
        assert cards[0][key] == cards[1][key], key
    assert cards[0]["feature_names"] == ["age", "ward=er", "ward=icu", "ward=lab"]
    told = []
    for folder in (made.run_folder, tmp_path / "sim"):
        done = call("predict", str(folder), "--client", "rome", "--data", str(tmp_path / "oslo.csv"), "--json")
        assert done.exit_code == 0, done.output
        told.append(json.loads(done.stdout)["predictions"])
    assert told[0] == told[1]


def test_words_of_the_run_hold_at_a_resume_and_for_newcomers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, fleet = federation(tmp_path, "rounds=1")
    run(made, fleet)
    attend(made, fleet, "2", {**TASK, "task": "publish"})
    made.config.write_text(Config.load(made.config).model_copy(update={"rounds": 2}).toml())
    write(tmp_path / "oslo.csv", [*lines("oslo"), "0.5,attic,ill,train"])
    run(made, fleet, "3", resume=True)
    assert "'oslo' is refused: its words in column 'ward' ['attic'] are not among those agreed on" in caplog.text
    known = read_nodes(made.run_folder)
    assert known["words"] == [["er", "icu", "lab"]] and known["columns"] == ["age", "ward"]
    assert (known["seen"]["rome"]["rounds"], known["seen"]["oslo"]["rounds"]) == (2, 1)

    late = Federation(**{**vars(made), "nodes": (*made.nodes, "bern")})
    fleet.settings["bern"] = {"home": tmp_path / "bern", "data": str(tmp_path / "oslo.csv")}
    with pytest.raises(ClusterflError, match=r"'bern' cannot be admitted: unknown words in column 'ward' \['attic'\]"):
        attend(late, fleet, "4", {**TASK, "task": "admit", "node": "bern"})
    write(tmp_path / "oslo.csv", lines("oslo"))
    (line,) = attend(late, fleet, "5", {**TASK, "task": "admit", "node": "bern"})
    assert "serves version 1" in line


def test_words_that_the_federation_names_leave_room_for_those_to_come(tmp_path: Path) -> None:
    wards = ("er", "icu", "lab", "ward 9")
    made, fleet = federation(tmp_path, "rounds=1", categories={"ward": wards})
    run(made, fleet)
    assert read_nodes(made.run_folder)["words"] == [list(wards)]
    made.write()
    assert Federation.read(made.folder).categories == {"ward": wards}


def test_tables_with_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    made, fleet = federation(tmp_path)
    write(tmp_path / "oslo.csv", [line.replace("age", "years") for line in lines("oslo")])
    with pytest.raises(ClusterflError, match=r"node 'oslo' lacks \['age'\] and has \['years'\] beside"):
        run(made, fleet)
    made, fleet = federation(tmp_path, 'data.feature_columns=["ward"]')
    write(tmp_path / "oslo.csv", [line.replace("age", "years") for line in lines("oslo")])
    run(made, fleet)
    assert read_nodes(made.run_folder)["columns"] == ["ward"]


def test_where_everybody_is_refused_the_run_says_so(tmp_path: Path) -> None:
    made, fleet = federation(tmp_path, classes=("alive", "dead"))
    with pytest.raises(ClusterflError, match=r"none does \(rome: unknown classes \['ill', 'well'\]; oslo: "):
        run(made, fleet)
    assert not made.run_folder.exists()


@pytest.mark.parametrize("lie", [{"train": -4}, {"words": ()}, {"words": (("a",), ("b",))}])
def test_what_cannot_be_said_of_data_is_not_believed(lie: dict[str, Any], tmp_path: Path) -> None:
    made, fleet = federation(tmp_path, "rounds=1")

    def spoil(name: str, turn: int, answer: bytes) -> bytes:
        said = codec.unpack(answer)
        return codec.pack(type(said)(**{**vars(said), **lie})) if (name, turn) == ("oslo", 1) else answer

    fleet.spoil = spoil
    run(made, fleet)
    known = read_nodes(made.run_folder)
    assert known["introductions"]["oslo"]["declined"] == "what it says of its data cannot be"
    assert known["seen"]["rome"]["rounds"] == 1 and known["seen"]["oslo"]["rounds"] == 0
