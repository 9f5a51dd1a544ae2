"""Imports point one way: what is below knows nothing of what is above it, and no two modules know each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "clusterfl"

# low to high: a module may import what is on lower lines and what is in its own room, and nothing else
LAYERS: tuple[set[str], ...] = (
    {"errors", "fields", "keys", "lazy", "tree", "data_root"},  # values
    {"outside", "losses"},
    {"models", "data", "scores"},
    {"metrics"},
    {"task"},
    {"client"},
    {"message"},
    {"call"},
    {"cohort"},
    {"method"},
    {"parts", "evaluate"},
    {"record"},
    {"callback"},
    {"methods", "loop", "engines"},  # engines know the protocol, not the methods; the loop knows the protocol alone
    {"config", "testing"},
    {"runs"},
    {"reproduce", "report", "bench", "federate"},
    {"commands"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# within engines: what lies around an engine does not know which one it is
CONCRETE = {"serial", "parallel", "pool", "ray", "wire", "worker", "auto", "make", "flower"}


class Import(NamedTuple):
    module: str  # that imports, as clusterfl.x.y
    target: str  # that is imported
    line: int
    at_once: bool  # when the module is imported, not when a function is called

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: imports {self.target}"


def room(module: str) -> str:
    """The package or module right below clusterfl; '' for clusterfl itself."""
    return module.partition(".")[2].partition(".")[0]


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def statements(node: ast.AST, at_once: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import below a node, inside functions too, but for those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(ast.Module(child.orelse, []), at_once)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_once
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from statements(child, at_once and not inside)


@cache
def imports() -> tuple[Import, ...]:
    """All imports of clusterfl's modules by each other; ``from clusterfl.a import b`` is of a.b where that is one."""
    found = []
    for module, tree in modules().items():
        for statement, at_once in statements(tree):
            if isinstance(statement, ast.ImportFrom):
                assert not statement.level, f"{module}, line {statement.lineno}: imports are absolute here"
                base = statement.module or ""
                names = [f"{base}.{a.name}" if f"{base}.{a.name}" in modules() else base for a in statement.names]
            else:
                names = [alias.name for alias in statement.names]
            found += [
                Import(module, target, statement.lineno, at_once)
                for target in dict.fromkeys(names)
                if target.partition(".")[0] == "clusterfl" and target != module
            ]
    return tuple(found)


def test_every_room_has_its_place() -> None:
    rooms = {room(module) for module in modules()} - {""}
    assert rooms == LEVEL.keys(), "a new package or module should be given its layer above"


@pytest.mark.parametrize("layer", range(len(LAYERS)), ids=lambda j: "+".join(sorted(LAYERS[j])))
def test_a_layer_knows_only_lower_ones(layer: int) -> None:
    wrong = [
        i
        for i in imports()
        if room(i.module) in LAYERS[layer]
        and room(i.target) not in ("", room(i.module))
        and LEVEL[room(i.target)] >= layer
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("low", "high"), [("methods", "engines"), ("parts", "engines"), ("engines", "methods")])
def test_methods_and_engines_do_not_know_each_other(low: str, high: str) -> None:
    wrong = [i for i in imports() if room(i.module) == low and room(i.target) == high]
    assert not wrong, "\n".join(map(str, wrong))


def test_wrappers_do_not_know_which_engine_they_are_around() -> None:
    forbidden = {f"clusterfl.engines.{name}" for name in CONCRETE}
    wrong = [i for i in imports() if i.module.startswith("clusterfl.engines.wrappers") and i.target in forbidden]
    assert not wrong, "\n".join(map(str, wrong))


def test_of_the_package_itself_only_its_version_and_place_are_used() -> None:
    """Its other names are looked up on first use, which would lead around every layer."""
    for module, tree in modules().items():
        if module == "clusterfl":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "clusterfl":
                for alias in node.names:
                    known = alias.name == "__version__" or f"clusterfl.{alias.name}" in modules()
                    assert known, f"{module}, line {node.lineno}: clusterfl.{alias.name}"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "clusterfl":
                known = node.attr in ("__version__", "__file__")
                assert known, f"{module}, line {node.lineno}: clusterfl.{node.attr}"


def test_the_package_itself_loads_nothing() -> None:
    assert [i for i in imports() if i.module == "clusterfl" and i.target != "clusterfl.lazy"] == []


def test_no_two_modules_need_each_other() -> None:
    """No cycle among the imports that happen when modules are loaded; a package counts as its ``__init__``."""
    needs: dict[str, set[str]] = {module: set() for module in modules()}
    for i in imports():
        if i.at_once and i.target in needs:
            needs[i.module].add(i.target)
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> None:
        if module in done:
            return
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        path.append(module)
        for target in sorted(needs[module]):
            visit(target)
        path.pop()
        done.add(module)

    for module in needs:
        visit(module)


def test_imports_inside_functions_are_seen_and_those_for_type_checkers_are_not() -> None:
    source = (
        "from typing import TYPE_CHECKING\nimport a\n"
        "if TYPE_CHECKING:\n    import b\nelse:\n    import c\n"
        "def f():\n    import d\n    class X:\n        import e\n"
    )
    found = [(s.names[0].name, at_once) for s, at_once in statements(ast.parse(source)) if isinstance(s, ast.Import)]
    assert found == [("a", True), ("c", True), ("d", False), ("e", False)]
