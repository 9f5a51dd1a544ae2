"""A call, and the fields of its replies: parts of them, rows, chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call, join, length, take_row, take_rows, tensors_of
from clusterfl.message import Fields
from clusterfl.methods import FedAvg


def test_a_part_of_a_call_has_its_own_rows() -> None:
    each: Fields = {"a": torch.arange(4), "t": {"w": torch.arange(8).reshape(4, 2)}}
    call = Call(FedAvg(), "train", torch.tensor([7, 1, 5, 3]), {}, each, keys.key(0), 2, test_of=torch.arange(4))
    part = call.only(torch.tensor([2, 0]))
    assert part.ids.tolist() == [5, 7] and part.each["a"].tolist() == [2, 0]  # type: ignore[union-attr]
    tree: Any = part.each["t"]
    assert tree["w"].tolist() == [[4, 5], [0, 1]] and part.round == 2
    assert part.test_of is not None and part.test_of.tolist() == [2, 0]
    assert int(part.client_key(5)) == int(call.client_key(5)), "a client's key does not depend on who else is asked"


def test_rows_of_fields() -> None:
    tensor, tree = torch.arange(6).reshape(3, 2), {"w": torch.arange(3)}
    for positions in (torch.tensor([1, 2]), slice(1, 3)):
        picked, inner = take_rows(tensor, positions), take_rows(tree, positions)
        assert isinstance(picked, Tensor) and picked.tolist() == [[2, 3], [4, 5]]
        assert isinstance(inner, dict) and inner["w"].tolist() == [1, 2]
    assert length(tensor) == length(tree) == 3
    assert take_row(tensor, 2).tolist() == [4, 5]  # type: ignore[union-attr]
    assert [(field, name) for field, name, _ in tensors_of({"a": tensor, "t": tree})] == [("a", ""), ("t", "w")]


def test_chunks_are_joined_in_their_order() -> None:
    parts: list[Fields] = [{"a": torch.tensor([j]), "t": {"w": torch.tensor([[j]])}, "e": {}} for j in range(3)]
    whole = join(parts, 5)  # two clients did not answer
    tree: Any = whole["t"]
    assert whole["a"].tolist() == [0, 1, 2] and tree["w"].tolist() == [[0], [1], [2]]  # type: ignore[union-attr]
    assert whole["e"] == {} and join([{}, {}], 2) == {}


def test_a_joined_reply_is_not_the_one_that_came() -> None:
    """An engine may write the next reply where it wrote this one."""
    came = torch.ones(2, 3)
    whole = join([{"a": came}], 2)
    came.zero_()
    assert whole["a"].sum() == 6  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(1, 1)},
        {"a": torch.ones(1, 3, dtype=torch.int64)},
        {"b": torch.ones(1, 3)},
        {"a": {"w": torch.ones(1, 3)}},
    ],
)
def test_chunks_that_are_not_alike_are_not_joined(other: Fields) -> None:
    """Nothing is broadcast, nothing takes another type, and no row is left as memory was."""
    with pytest.raises(ValueError, match="all replies to a call should have it"):
        join([{"a": torch.ones(1, 3)}, other], 2)
