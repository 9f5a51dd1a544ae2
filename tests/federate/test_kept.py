"""What a node keeps: whole or not there, and taken back to where a resumed run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clusterfl.engines.flower.messages import Place
from clusterfl.errors import ClusterflError, DataError
from clusterfl.federate.kept import Disk


def tree(value: float) -> dict[str, torch.Tensor]:
    return {"head/w": torch.tensor(value)}


def at(epoch: int, oldest: int = -1, **resumed: int) -> Place:
    """A place in a run that began with attempt a and was resumed at these rounds."""
    return Place("run1", {"a": 0, **resumed}, epoch, oldest)


def test_what_is_kept_is_read_in_the_next_round_and_in_the_same(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.kept(at(0)) == {}
    disk.keep(at(0), 1, {}, tree(1.0))
    disk.keep(at(1), 2, tree(1.0), tree(2.0))
    assert Disk(tmp_path).kept(at(1)) == tree(2.0) == disk.kept(at(5))
    assert disk.kept(replace(at(1), run="run2")) == {}


def test_another_attempt_at_a_round_does_not_build_on_the_broken_one(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for epoch in range(4):
        disk.keep(at(epoch), epoch, {}, tree(epoch))
    assert disk.kept(at(2, b=2)) == tree(1.0)
    assert disk.kept(at(5, b=2)) == tree(1.0)  # it was away while the others did rounds 2 to 4 again
    assert disk.kept(at(5, b=2, c=4)) == tree(1.0)  # and while they resumed once more
    disk.keep(at(2, b=2), 20, {}, tree(20.0))
    assert disk.kept(at(2, b=2)) == tree(20.0) == disk.kept(at(3, b=2))
    assert sorted(p.name for p in tmp_path.rglob("*.kept")) == [
        "epoch-000000-a.kept",
        "epoch-000001-a.kept",
        "epoch-000002-b.kept",
    ]


def test_what_was_kept_with_a_reply_that_does_not_count_is_taken_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(at(0), 1, {}, tree(1.0))
    disk.keep(at(1), 2, tree(1.0), tree(2.0))
    assert disk.kept(at(1), 2) == tree(1.0)  # the same request again, for its answer was lost
    assert disk.kept(replace(at(2), void=(1, 5))) == tree(2.0)
    assert disk.kept(replace(at(2), void=(2, 5))) == tree(1.0)
    assert disk.kept(at(2)) == tree(1.0)  # for good: it is told once


def test_only_what_a_resume_may_need_stays(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for epoch in range(8):
        disk.keep(at(epoch, oldest=epoch - 3), epoch, {}, tree(epoch))
    assert sorted(p.name for p in tmp_path.rglob("*.kept")) == [f"epoch-00000{e}-a.kept" for e in (4, 5, 6, 7)]


def test_damage_is_noticed(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.keep(at(0), 1, {}, tree(1.0))
    (path,) = tmp_path.rglob("*.kept")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="is damaged"):
        disk.kept(at(1))
    with pytest.raises(ClusterflError, match="letters and digits"):
        disk.kept(replace(at(0), run="../up"))
    with pytest.raises(ClusterflError, match="letters and digits"):
        disk.keep(Place("run1", {"../up": 0}, 0, -1), 1, {}, tree(1.0))


def test_a_damaged_model_in_service_falls_back_to_the_last_good_one(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.serving() is None
    disk.serve(0, 1, tree(1.0))
    disk.serve(1, 7, tree(7.0))
    disk.serve(0, 1, tree(1.0))
    disk.serve(0, 2, tree(2.0))
    assert len(list((tmp_path / "serving").glob("*.safetensors"))) == 2
    assert disk.serving() == (2, tree(2.0))
    (tmp_path / "serving" / "cluster-0-version-2.safetensors").write_bytes(b"noise")
    assert disk.serving() == (1, tree(1.0))
