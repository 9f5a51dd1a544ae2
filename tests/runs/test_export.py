"""Exported models run without clusterfl and answer as it does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import clusterfl
from clusterfl.errors import ConfigError
from clusterfl.methods import FedAvg
from tests.hospitals import NAMES, hospital_run
from tests.runs.python_runs import LOCAL, module, run

X = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)

PLAIN = """
import json, sys
import numpy, torch
from pathlib import Path
folder, data, out = map(Path, sys.argv[1:])
manifest = json.loads((folder / "manifest.json").read_text())
(entry,) = manifest["models"]
model = torch.export.load(folder / entry["file"]).module()
answer = model(torch.from_numpy(numpy.load(data)))
out.write_text(json.dumps([manifest["class_names"][k] for k in answer.argmax(1).tolist()]))
assert "clusterfl" not in sys.modules
"""


@pytest.fixture(scope="module")
def ifca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hospital_run(tmp_path_factory.mktemp("ifca"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hospital_run(tmp_path_factory.mktemp("local"), "method.name=local")


def test_plain_pytorch_answers_as_the_library(local: Path, tmp_path: Path) -> None:
    trained = clusterfl.load(local)
    manifest = clusterfl.export(trained, tmp_path / "out", client="hospital-03", format="torch")
    assert manifest["feature_names"] == ["a", "b", "c"] and manifest["class_names"] == ["mild", "none", "severe"]
    np.save(tmp_path / "x.npy", X)
    command = [sys.executable, "-I", "-c", PLAIN, str(tmp_path / "out"), str(tmp_path / "x.npy"), str(tmp_path / "y")]
    subprocess.run(command, check=True)
    assert json.loads((tmp_path / "y").read_text()) == trained.predict("hospital-03", X).tolist()


def test_onnx(ifca: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    trained = clusterfl.load(ifca)
    clusterfl.export(trained, tmp_path / "out", cluster=trained.cluster_of("hospital-01"), format="onnx")
    (file,) = (tmp_path / "out").glob("*.onnx")
    (answer,) = runtime.InferenceSession(str(file)).run(None, {"x": X})
    np.testing.assert_allclose(answer, trained.outputs("hospital-01", X), rtol=1e-4, atol=1e-5)


def test_every_clients_model_or_every_clusters(ifca: Path, local: Path, tmp_path: Path) -> None:
    own = clusterfl.export(clusterfl.load(local), tmp_path / "own")
    assert [entry["clients"] for entry in own["models"]] == [[name] for name in NAMES] and own["personal"]
    assert own["models"][2]["file"] == "hospital-02.safetensors"
    trained = clusterfl.load(ifca)
    shared = clusterfl.export(trained, tmp_path / "shared")
    assert sorted(name for entry in shared["models"] for name in entry["clients"]) == NAMES
    assert [entry["cluster"] for entry in shared["models"]] == [0, 1] and not shared["personal"]
    for entry in shared["models"]:
        tree = load_file(tmp_path / "shared" / entry["file"])
        assert all(torch.equal(t, tree[n]) for n, t in trained.tree(entry["clients"][0]).items())
    assert json.loads((tmp_path / "shared" / "manifest.json").read_text()) == shared
    before = clusterfl.export(clusterfl.load(local), tmp_path / "before", cluster=0)
    assert [entry["file"] for entry in before["models"]] == ["cluster-0.safetensors"] and not before["personal"]


def test_a_module_from_python(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", FedAvg(local=LOCAL))
    clusterfl.export(clusterfl.load(tmp_path / "run", model=module()), tmp_path / "out", client="client-01")
    mine = module()
    mine.load_state_dict(load_file(tmp_path / "out" / "client-01.safetensors"))
    x, y = outcome.population.test.of(1)
    right = float((mine(x).argmax(1) == y).double().mean())
    assert right == pytest.approx(float(outcome.records[-1].accuracy[1]))


def test_what_cannot_be_exported_says_why(ifca: Path, tmp_path: Path) -> None:
    trained = clusterfl.load(ifca)
    for more, says in (
        ({"format": "onx"}, "format='onx' should be a known format; did you mean 'onnx'"),
        ({"client": "nobody"}, "client='nobody' should be a client of the run"),
        ({"cluster": 5}, "cluster=5 should be one of the run's, 0 to 1"),
        ({"client": "hospital-00", "cluster": 1}, "should be given without cluster=1"),
    ):
        with pytest.raises(ConfigError, match=says):
            clusterfl.export(trained, tmp_path / "out", **more)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="should be a new folder: there is a run in it"):
        clusterfl.export(trained, ifca)  # it once went there, and the run could no longer be read
    clusterfl.export(trained, tmp_path / "out")
    with pytest.raises(ConfigError, match="should be a new folder: there are exported models in it"):
        clusterfl.export(trained, tmp_path / "out")
