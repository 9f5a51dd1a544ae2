"""The documentation: its code runs, and every key, figure and command is in it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
from click import Group
from typer.main import get_command

import clusterfl
from clusterfl.commands.app import app
from clusterfl.config import Config
from clusterfl.config.schema import _TABLES
from clusterfl.methods import METHODS
from clusterfl.methods.presets import PAPER
from clusterfl.runs import coverage
from clusterfl.runs.costs import figures, formulae
from clusterfl.runs.method_pages import generated, server_sees
from tests.commands.calls import call
from tests.hospitals import NAMES, hospital_table

ROOT = Path(__file__).parent.parent
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))
PAPERS = sorted(path.parent.name for path in ROOT.glob("experiments/*/notes.md"))
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
    pages = ("docs/config.md", "docs/regression.md", "docs/commands.md")
    found = [block for page in pages for block in blocks(page, "toml")]
    assert found
    for text in found:
        Config.parse(tomllib.loads(text))


SECTIONS = ["Algorithm", "Parameters", "What leaves the client", "Communication", "When to use it"]
SECTIONS += ["When not to use it", "Where the paper", "Example"]  # "Where the paper is silent, or …"


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


@pytest.mark.parametrize("name", METHODS)
def test_every_page_says_what_the_code_says(name: str) -> None:
    """What leaves and what it costs, word by word; an algorithm in steps or formulae; defaults beside the paper's."""
    text = (ROOT / f"docs/methods/{name}.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    table, cost = generated(name)
    assert table in sections["What leaves the client"], f"clusterfl methods {name} --page makes it"
    assert cost in sections["Communication"], f"clusterfl methods {name} --page makes it"
    assert re.search(r"^(\d\. |    \S|- )", sections["Algorithm"], flags=re.MULTILINE), f"{name}: steps or formulae"
    assert name in PAPER or "| from |" in sections["Parameters"] or METHODS[name].paper == "this project", name


def test_the_tables_of_costs_are_those_of_the_formulae() -> None:
    text = (ROOT / "docs/costs.md").read_text(encoding="utf-8")
    assert formulae() in text and figures() in text, "clusterfl methods --costs makes them"


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
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    for name in (name for name, command in commands.items() if not command.hidden):
        assert f"clusterfl {name}" in text, f"clusterfl {name} is not in docs/commands.md"


def indented(page: str) -> list[str]:
    """The commands of a page's indented blocks, without remarks and paths of the program."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^ {4}(?:\.venv/bin/)?(clusterfl .*)$", text, flags=re.MULTILINE)
    return [line.partition("  #")[0].strip() for line in lines]


@pytest.mark.parametrize("line", [*indented("docs/commands.md"), *indented("docs/report.md"), *indented("README.md")])
def test_commands_of_the_docs_can_be_typed(line: str) -> None:
    """Each names a command and options that there are; what they do is tested elsewhere."""
    command: Any = get_command(app)
    words = shlex.split(line)[1:]
    while isinstance(command, Group):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words, resilient_parsing=True)
    options = {name for p in command.params for name in p.opts}
    assert {w.partition("=")[0] for w in words if w.startswith("--")} <= options, line


def test_the_demo_is_what_the_docs_say() -> None:
    """The command behind table and picture is that of `make demo`, and the table has its methods."""
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    command = re.search(r"\$\(BIN\)/(clusterfl compare .*)", make)
    assert command
    for page in ("README.md", "docs/report.md"):
        assert command[1] in (ROOT / page).read_text(encoding="utf-8").replace("\n", " "), page
    table = re.findall(r"^\| ([\w-]+) \| \d", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    methods = re.search(r"--methods ([\w,-]+)", command[1])
    assert methods and table == methods[1].split(",")


def test_the_second_command_of_the_readme_runs(tmp_path: Path) -> None:
    """On a table whose two kinds of clients nobody has told apart."""
    (line,) = indented("README.md")
    hospital_table(NAMES).to_csv(tmp_path / "patients.csv", index=False)
    done = call(*shlex.split(line)[1:], "--set", "rounds=2", "--set", "engine.name=serial", folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert list(tmp_path.glob("runs/*/report.html"))


def test_llms_txt_has_every_page_of_the_site() -> None:
    nav = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = re.findall(r"^- \[.+?\]\((.+?)\): .+$", (ROOT / "docs/llms.txt").read_text(), flags=re.MULTILINE)
    assert nav and listed == nav
    for name in METHODS:
        assert f"- [{name}](methods/{name}.md): {METHODS[name].summary}\n" in (ROOT / "docs/llms.txt").read_text()


PICTURES = sorted((ROOT / "docs").glob("*.png"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small_and_shown(path: Path) -> None:
    assert path.stat().st_size < 300_000
    assert any(path.name in (ROOT / page).read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page}: {target}"


WORDS = {"AISTATS", "CONTRIBUTING", "FEATURES", "FEMNIST", "METHODS", "SETTINGS", "SIGKILL", "SIGSTOP", "UNKNOWN"}


@pytest.mark.parametrize("page", [*PAGES, *(f"experiments/{name}/notes.md" for name in PAPERS)])
def test_no_word_stands_in_for_a_figure_to_come(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not set(re.findall(r"\b[A-Z]{7,}\b", text)) - WORDS
    assert not re.search(r"\bTODO\b|\bTBD\b|\bXXX|\bFIXME\b", text)


def test_what_the_server_sees_is_what_the_declarations_say() -> None:
    text = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    assert server_sees() in text, f"docs/deployment.md should have this table:\n{server_sees()}"


def test_the_table_of_what_epsilon_covers_is_that_of_the_declarations() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    assert coverage.table() in text, "clusterfl methods --privacy makes it"
