"""Pages: their numbers are the summary's, of one run and of several, and they say what they leave out."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusterfl
from clusterfl.commands.federate import _say as say_federation
from clusterfl.config import Config
from clusterfl.errors import ClusterflError
from clusterfl.report.flow import flow, rounds_shown
from clusterfl.report.groups import compared, labels
from clusterfl.report.learning import agreement_figure, by_cluster, five_worst, trouble_figures
from clusterfl.report.one_run import page_of
from clusterfl.report.page import render, write_report
from clusterfl.report.parts import safe_json
from clusterfl.report.runs import Metric, folders_of, read_run
from clusterfl.report.several import page_of_several
from clusterfl.report.svg import said
from tests.report.folders import made, write_json

SMALL = [
    "rounds=3",
    "data.clients=8",
    "data.samples=30",
    "data.unseen=2",
    "data.test_samples=100",
    "engine.name=serial",
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "kin"
    clusterfl.run(Config.load(None, SMALL), out=folder)
    return folder


def test_the_tiles_are_the_summarys_numbers(real: Path) -> None:
    summary = json.loads((real / "summary.json").read_text())
    page = page_of(read_run(real))
    tiles = {tile.key: tile for tile in page.tiles}
    assert {"accuracy_mean", "accuracy_bottom5", "ari", "clusters_found", "bytes_up", "seconds"} <= tiles.keys()
    text = render(page)
    for key, tile in tiles.items():
        assert tile.value == summary[key] and json.loads(tile.exact) == summary[key]
        assert f'data-key="{key}" data-value="{tile.exact}"' in text and tile.text in text
    assert tiles["accuracy_mean"].text == said(summary["accuracy_mean"], "share")


def test_the_table_is_the_runs_clients(real: Path) -> None:
    run = read_run(real)
    summary = json.loads((real / "summary.json").read_text())
    table = next(s.table for s in page_of(run).sections if s.table)
    column = [c.label for c in table.columns].index
    trained = [row for row in table.rows if row[-1] == "trained"]
    assert {row[0]: row[column("cluster")] for row in trained} == summary["assignments"]
    assert np.mean([row[column("accuracy")] for row in trained]) == pytest.approx(summary["accuracy_mean"], abs=1e-6)
    assert {row[0]: row[column("cluster")] for row in table.rows[8:]} == summary["unseen_assignments"]
    unseen = [row[column("accuracy")] for row in table.rows[8:]]
    assert np.mean(unseen) == pytest.approx(summary["unseen_accuracy"], abs=1e-6)
    assert all(row[column("train")] == 30 for row in table.rows)


def test_what_a_run_was_can_be_repeated_from_its_page(real: Path) -> None:
    text = render(page_of(read_run(real)))
    config = Config.load(real / "config.toml")
    for said_there in (config.digest(), clusterfl.__version__, f"clusterfl run {real / 'config.toml'}"):
        assert said_there in text
    assert json.loads((real / "summary.json").read_text())["data_sha256"] in text


def test_an_unfinished_run_is_drawn_up_to_its_last_whole_round(real: Path, tmp_path: Path) -> None:
    import shutil

    place = tmp_path / "stopped"
    shutil.copytree(real, place)
    for name in ("summary.json", "details.json", "metrics.parquet", "assignments.parquet"):
        (place / name).unlink()
    run = read_run(place)
    assert not run.finished and run.rounds.tolist() == [0, 1, 2, 3]
    assert run.values[-1].mean() == pytest.approx(json.loads((real / "summary.json").read_text())["accuracy_mean"])
    text = render(page_of(run))
    assert "has not ended" in text and "3 of 3 rounds" in text
    (place / "checkpoints" / "records.log").unlink()
    with pytest.raises(ClusterflError, match="at least one round"):
        read_run(place)


def test_a_run_judged_by_an_error_is_better_when_it_is_lower(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    run = read_run(folder)
    lower = type(run)(
        **{**run.__dict__, "metric": Metric("rmse", higher=False), "summary": {**summary, "rmse_mean": 0.5}}
    )
    assert lower.margins is not None and run.margins is not None
    assert lower.margins[0] == pytest.approx(run.cross[0, 1:].min() - run.cross[0, 0])  # type: ignore[index]
    tile = page_of(lower).tiles[0]
    assert (tile.key, tile.value, tile.text) == ("rmse_mean", 0.5, "0.5")
    values = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    assert five_worst(values, higher=True) == [3.0] and five_worst(values, higher=False) == [4.0]


def test_drop_outs_have_a_figure_where_there_were_any(tmp_path: Path) -> None:
    run = read_run(made(tmp_path / "run"))
    assert [f.title for f in trouble_figures(run)][:1] == ["Rejected replies"]
    rows = [{**row, "logged": {"silent": 3.0}} if row["round"] == 2 else row for row in run.rows]
    figure = trouble_figures(replace(run, rows=rows))[0]
    assert figure.title == "Drop-outs" and "round 2\nDrop-outs: 3" in figure.drawing


def test_what_is_logged_of_each_cluster_is_one_figure(tmp_path: Path) -> None:
    run = read_run(made(tmp_path / "run"))
    logged = [{"gap_0": t, "gap_10": 2.0 * t, "margin": 0.1 * t, "still": 1.0} for t in range(len(run.rows))]
    rows = [{**row, "logged": found} for row, found in zip(run.rows, logged, strict=True)]
    figures = {f.title: f.drawing for f in trouble_figures(replace(run, rows=rows))}
    assert list(figures) == ["Rejected replies", "Logged: gap", "Logged: margin"]
    assert "cluster 0: 2\ncluster 10: 4" in figures["Logged: gap"]


def test_models_of_single_clients_have_their_names(tmp_path: Path) -> None:
    run = read_run(made(tmp_path / "run", clients=4, k=2))
    assert run.cluster_name(1) == "cluster 1"
    each = replace(
        run, assign=np.tile(np.arange(4)[::-1], (len(run.rounds), 1)), summary={**run.summary, "settled": None}
    )
    assert [each.cluster_name(k) for k in range(4)] == [f"client-{i}" for i in (3, 2, 1, 0)]


def test_where_nobody_moves_and_nobody_knows_the_truth_nothing_settles(tmp_path: Path) -> None:
    run = read_run(made(tmp_path / "run", truth=False))
    assert agreement_figure(run)
    still = replace(run, rows=[{**row, "moved": 0.0} for row in run.rows])
    assert agreement_figure(still) == []


def test_a_federation_that_has_ended_can_write_its_report(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    place = tmp_path / "run"
    shutil.copytree(real, place)
    say_federation(place, json=False, report=True)
    assert f"report: {place / 'report.html'}" in capsys.readouterr().out and (place / "report.html").exists()
    say_federation(place, json=False, report=False)
    assert f"see `clusterfl report {place}`" in capsys.readouterr().out


def test_by_cluster_is_the_mean_of_who_was_there() -> None:
    values, assign = np.array([[0.2, 0.4, 0.9], [0.3, 0.5, 0.7]]), np.array([[0, 0, 1], [0, 0, 0]])
    found = by_cluster(values, assign, [0, 1])
    assert found[0].tolist() == pytest.approx([0.3, 0.5]) and found[1][0] == 0.9 and math.isnan(found[1][1])


def test_the_flow_draws_the_rounds_with_moves_and_every_client() -> None:
    assert rounds_shown([0.0, 0.5, 0.0, 0.0, 0.1, 0.0, 0.0]) == [0, 1, 3, 4, 6]
    assert rounds_shown([0.0]) == [0] and len(rounds_shown([0.1] * 1000)) == 8
    drawn = flow([np.array([0, 0, 1]), np.array([0, 1, 1])], ["start", "round 1"], ["x", "y", "z"], title="t")
    assert drawn.count("ribbon") == 3 and "cluster 0 → cluster 1\n1 clients\ny" in drawn


def test_several_runs(tmp_path: Path) -> None:
    for method, level in (("fedavg", 0.5), ("ifca", 0.9)):
        for seed in range(3):
            made(tmp_path / "runs" / f"{method}-seed{seed}", method=method, seed=seed, level=level)
    runs = [read_run(f) for f in folders_of([tmp_path])]
    page = page_of_several(runs)
    table = page.sections[0].table
    assert table is not None
    means = {row[0]: row[1] for row in table.rows}
    for method in ("fedavg", "ifca"):
        own = [r.summary["accuracy_mean"] for r in runs if r.title == method]
        assert means[method]["v"] == pytest.approx(np.mean(own), abs=1e-12)
    assert (
        means["ifca"]["c"] == "best"
        and means["fedavg"]["c"] == ""
        and page.tiles[0].text == said(means["ifca"]["v"], "share")
    )
    every = page.sections[-1].table
    assert every is not None and {r.summary["accuracy_mean"] for r in runs} == {row[2] for row in every.rows}
    assert page.sections[0].lead and "Holm" in page.sections[0].lead


def test_runs_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    assert labels(["a", "a", "b"], [{"k": 2, "x": 1}, {"k": 3, "x": 1}, {"k": 9}]) == ["a, k=2", "a, k=3", "b"]
    near = labels(["a", "a", "a"], [{"lr": 1}, {"lr": 2}, {"lr": 2}], ["here", "there", "there"])
    assert near == ["a", "a", "a"]  # what differs only from place to place tells nothing
    one, two = made(tmp_path / "one", k=2), made(tmp_path / "two", k=3)
    found = compared([read_run(one), read_run(two), read_run(one)])
    assert found.methods == ["ifca, k=2", "ifca, k=3"] and len(found.scenarios) == 1
    assert found.left_out == [f"{one} repeats {one} and is left out."]
    other = made(tmp_path / "other", data="another")
    summary = {**json.loads((other / "summary.json").read_text()), "metric": "rmse"}
    write_json(other / "summary.json", {**summary, "rmse_mean": 1.0})
    assert "measured by rmse" in compared([read_run(one), read_run(other)]).left_out[0]


def test_json_cannot_end_its_script() -> None:
    hostile = {"</script><script>": "\u2028<!--&"}
    text = safe_json(hostile)
    assert not set("<>&\u2028") & set(text) and json.loads(text) == hostile


def test_where_a_report_goes_and_what_it_refuses(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    assert write_report(folder) == folder / "report.html"
    assert write_report(folder, out=tmp_path / "deep" / "page.html").exists()
    with pytest.raises(ClusterflError, match="should be the folder of a run"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ClusterflError, match=r"with a config\.toml"):
        write_report(tmp_path / "empty")
    (folder / "summary.json").write_text("{")
    with pytest.raises(ClusterflError, match="damaged"):
        write_report(folder)
    with pytest.raises(ClusterflError, match="at least one folder"):
        write_report()


@pytest.mark.parametrize("content", [b"\xff\x00", b"{}", b"[]", None], ids=["no text", "{}", "[]", "gone"])
@pytest.mark.parametrize("name", ["summary.json", "details.json", "rounds.jsonl", "config.toml", "metrics.parquet"])
def test_a_damaged_run_has_a_page_or_is_refused_by_name(real: Path, tmp_path: Path, name: str, content: Any) -> None:
    """Once a traceback."""
    folder = tmp_path / "run"
    shutil.copytree(real, folder)
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    try:
        write_report(folder)
    except ClusterflError as e:
        assert str(folder) in str(e) and "\n" not in str(e)


def test_a_page_below_a_file_is_refused(real: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterflError, match="should be in a folder that can be written"):
        write_report(real, out=tmp_path / "file" / "page.html")
