"""The documentation: its code runs, and every key, figure and command is in it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest
from typer.main import get_command

import clusterfl
from clusterfl.commands.app import app
from clusterfl.config import Config
from clusterfl.config.schema import _TABLES
from clusterfl.methods import METHODS
from clusterfl.methods.presets import PAPER
from clusterfl.runs import coverage

ROOT = Path(__file__).parent.parent
SMALL = ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial"]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/python.md", "docs/own-data.md", "docs/regression.md", "README.md"])
def test_the_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    assert code
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look their module up by name
    exec(compile(code, page, "exec"), module.__dict__)


def test_the_configs_load() -> None:
    found = [block for page in ("docs/config.md", "docs/regression.md", "README.md") for block in blocks(page, "toml")]
    assert found
    for text in found:
        Config.parse(tomllib.loads(text))


SECTIONS = ["Algorithm", "Parameters", "What leaves the client", "Communication", "When to use it"]
SECTIONS += ["Where the paper", "Example"]  # "Where the paper is silent, or …"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name: str) -> None:
    """With every section, every parameter, a config that runs it and code."""
    page = f"docs/methods/{name}.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    for section in SECTIONS:
        assert sum(title.startswith(section) for title in titles) == 1, f"{page}: {section}"
    for f in dataclasses.fields(METHODS[name]):
        if f.name != "local":  # its table is of docs/config.md
            assert f"`{f.name}`" in text, f"{page}: {f.name}"
    configs = blocks(page, "toml")
    assert configs and blocks(page, "python")
    for config in configs:
        assert Config.parse(tomllib.loads(config)).method.name == name


@pytest.mark.parametrize("name", PAPER)
def test_every_page_says_what_the_paper_has(name: str) -> None:
    text = (ROOT / f"docs/methods/{name}.md").read_text(encoding="utf-8")
    said = text.partition("## The paper's settings\n")[2].partition("\n## ")[0]
    for key in [*PAPER[name].method, *PAPER[name].local]:
        assert f"`{key}" in said or f"[local] {key}" in said, f"{name}: {key}"
    assert ("changes nothing" in said) == (not PAPER[name].method), name


LONG = {"md-icfl", "fcca"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in METHODS])
def test_the_code_of_a_methods_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"docs/methods/{name}.md"
    (tmp_path / f"{name}.toml").write_text(blocks(page, "toml")[0])  # the code may load it
    test_the_code_runs(page, tmp_path, monkeypatch)


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs/config.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    for name in Config.model_fields:
        assert f"`{name}`" in sections["Top level"] or any(f"[{name}" in title for title in sections), name
    for table, cls in _TABLES.items():
        for f in dataclasses.fields(cls):
            assert f"| `{f.name}` |" in sections[f"[{table}]"], f"{table}.{f.name} is not in docs/config.md"


def test_every_result_is_documented(tmp_path: Path) -> None:
    clusterfl.run(Config.load(None, SMALL), out=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    first = json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[0])
    for name in [*summary, *first, *(p.name for p in tmp_path.iterdir() if p.is_file() and p.name != ".lock")]:
        assert f"`{name}`" in text, f"{name} is not in docs/results.md"


def test_every_command_is_documented() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (name for name, command in commands.items() if not command.hidden):
        assert f"clusterfl {name}" in text, f"clusterfl {name} is not in README.md"


PAGES = sorted(str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page}: {target}"


def test_the_table_of_what_epsilon_covers_is_that_of_the_declarations() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert coverage.table() in text, "clusterfl methods --privacy makes it"
