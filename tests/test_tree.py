"""Trees and stacks of tensors."""

from __future__ import annotations

import pytest
import torch

from clusterfl import tree
from clusterfl.tree import Tree


def make(n: int) -> Tree:
    g = torch.Generator().manual_seed(n)
    return {"w": torch.randn(3, 2, generator=g), "b": torch.randn(3, generator=g), "steps": torch.tensor(n)}


def equal(a: Tree, b: Tree) -> bool:
    return list(a) == list(b) and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def test_stack_row_rows_and_take() -> None:
    trees = [make(i) for i in range(4)]
    stacked = tree.stack(trees)
    assert tree.rows(stacked) == 4 and stacked["w"].shape == (4, 3, 2)
    assert all(equal(tree.row(stacked, i), t) for i, t in enumerate(trees))
    assert equal(tree.take(stacked, torch.tensor([2, 0, 2])), tree.stack([trees[2], trees[0], trees[2]]))
    assert equal(tree.concat([stacked, stacked]), tree.stack(trees + trees))
    with pytest.raises(ValueError, match="at least one"):
        tree.stack([])


def test_put_copies_and_keeps_the_dtype() -> None:
    before = torch.zeros(4, dtype=torch.int64)
    after = tree.put(before, torch.tensor([1, 3]), torch.tensor([5.0, 6.0]))
    assert after.tolist() == [0, 5, 0, 6] and after.dtype == torch.int64 and before.sum() == 0
    stacked = tree.stack([make(0), make(1), make(2)])
    changed = tree.put_rows(stacked, torch.tensor([1]), tree.stack([make(7)]))
    assert equal(tree.row(changed, 1), make(7)) and equal(tree.row(changed, 2), make(2))
    assert equal(tree.row(stacked, 1), make(1))


def test_repeat_owns_its_memory() -> None:
    one = make(1)
    many = tree.repeat(one, 3)
    assert all(equal(tree.row(many, i), one) for i in range(3))
    many["w"][0] += 1
    assert equal(tree.row(many, 1), one) and equal(one, make(1))


def test_arithmetic_leaves_integers_alone() -> None:
    a, b = make(1), make(2)
    minus = tree.subtract(a, b)
    assert torch.equal(minus["w"], a["w"] - b["w"]) and minus["steps"] == 1
    back = tree.add(minus, b)
    assert torch.allclose(back["b"], a["b"])
    assert torch.equal(tree.add(a, b, scale=2.0)["b"], a["b"] + 2.0 * b["b"])


def test_flat_and_vector() -> None:
    stacked = tree.stack([make(0), make(1)])
    assert tree.flat(stacked).shape == (2, 9)
    assert torch.equal(tree.flat(stacked)[1], tree.vector(make(1)))
    assert torch.equal(tree.flat(stacked, ["b"]), stacked["b"])
    assert list(tree.select(make(0), ["b", "w"])) == ["b", "w"]


def test_bytes_and_finiteness() -> None:
    assert tree.nbytes(make(0)) == 9 * 4 + 8 and tree.nbytes(torch.zeros(3, dtype=torch.float64)) == 24
    assert tree.is_finite(make(0))
    assert not tree.is_finite({**make(0), "b": torch.tensor([0.0, torch.nan, 1.0])})
