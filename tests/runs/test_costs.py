"""The formulae of costs: every method has them, and their bytes are those that the method declares."""

from __future__ import annotations

import pytest

from clusterfl.methods import METHODS
from clusterfl.methods.mcfl import known_k
from clusterfl.models import MODELS
from clusterfl.runs.costs import COSTS, Scale, figures, shown, size, time, value
from clusterfl.task import Task
from tests.commands.calls import call

WIDTH, CLASSES, SAMPLE = 64, 10, 28 * 28  # features before the last layer, as FCCA's formula takes them


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(MODELS["mlp"].builder((1, 28, 28), CLASSES, widths=[WIDTH]), CLASSES)


def test_every_method_has_a_cost() -> None:
    assert COSTS.keys() == METHODS.keys()
    for cost in COSTS.values():
        for formula in (cost.down, cost.up, cost.work, cost.memory, cost.once, cost.once_memory):
            assert value(formula, Scale()) >= 0
        assert cost.when or not cost.once


@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_method(name: str, task: Task) -> None:
    method = METHODS[name]()
    head = WIDTH * CLASSES + CLASSES
    scale = Scale(P=task.size / 4, H=head, K=known_k(method), C=CLASSES, D=SAMPLE)
    assert method.cost(task) == (value(COSTS[name].down, scale), value(COSTS[name].up, scale))


def test_how_figures_are_said() -> None:
    assert [size(0), size(31_400), size(4.01e12)] == ["0 B", "31.4 kB", "4.01 TB"]
    assert [time(0), time(1.57e7), time(2.01e12), time(3.2e17)] == ["0 ms", "1.57 ms", "3.35 min", "1.01 years"]
    assert shown("4*K*P + N**2") == "4·K·P + N²"
    assert "| ifca | 126 kB | 31.4 kB |" in figures()


def test_the_command_prints_them() -> None:
    assert "| ifca | 126 kB |" in call("methods", "--costs").stdout
    assert "IFCA.choose_and_train" in call("methods", "ifca", "--page").stdout
    refused = call("methods", "--page")
    assert refused.exit_code == 2
