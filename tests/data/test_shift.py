"""Shifts against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data.shift import make_shift, mirror, rotate, swap_pairs, turn_bilinear
from clusterfl.errors import ConfigError, DataError

KEY = keys.key(3)
X = keys.uniform(KEY, 5, 2, 6, 6)
Y = torch.arange(10)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, -1, 5])
def test_quarter_turns_are_exact(turns: int) -> None:
    expected = np.rot90(X.numpy(), turns, axes=(2, 3))
    assert np.array_equal(rotate(X, 90.0 * turns).numpy(), expected)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_bilinear_turns_the_same_way(turns: int) -> None:
    torch.testing.assert_close(turn_bilinear(X, 90.0 * turns), rotate(X, 90.0 * turns), atol=1e-5, rtol=0)


def test_bilinear_against_a_plain_loop() -> None:
    angle, n = 30.0, X.shape[-1]
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    image = X[0, 0].double().numpy()
    expected = np.zeros((n, n))
    centre = (n - 1) / 2
    for row in range(n):
        for col in range(n):
            # x to the right, y upwards; the source of a place is its inverse rotation
            px, py = col - centre, centre - row
            sx, sy = cos * px + sin * py, -sin * px + cos * py
            r, c = min(max(centre - sy, 0), n - 1), min(max(centre + sx, 0), n - 1)
            r0, c0 = min(int(r), n - 2), min(int(c), n - 2)
            fr, fc = r - r0, c - c0
            expected[row, col] = (
                image[r0, c0] * (1 - fr) * (1 - fc)
                + image[r0, c0 + 1] * (1 - fr) * fc
                + image[r0 + 1, c0] * fr * (1 - fc)
                + image[r0 + 1, c0 + 1] * fr * fc
            )
    np.testing.assert_allclose(rotate(X, angle)[0, 0].numpy(), expected, atol=1e-5)


def test_default_angles_divide_the_circle() -> None:
    assert make_shift("rotate", 4, 10, KEY).angles == (0, 90, 180, 270)
    assert make_shift("rotate", 2, 10, KEY).angles == (0, 180)
    shift = make_shift("rotate", 2, 10, KEY, (0, 45))
    assert shift.angles == (0, 45) and torch.equal(shift.apply(X, Y, 1)[1], Y)


@pytest.mark.parametrize("name", ["swap_labels", "rotate+swap"])
def test_two_clusters_differ_in_exactly_four_classes(name: str) -> None:
    shift = make_shift(name, 5, 10, KEY)
    maps = [shift.apply(X, Y, k)[1].numpy() for k in range(5)]
    for i, a in enumerate(maps):
        assert (a != np.arange(10)).sum() == 2 and (a[a] == np.arange(10)).all()
        for b in maps[:i]:
            assert (a != b).sum() == 4
    turned = shift.apply(X, Y, 1)[0]
    assert torch.equal(turned, X) == (name == "swap_labels")


def test_more_clusters_than_disjoint_pairs_still_differ() -> None:
    for classes in (4, 5, 7, 10):
        most = classes * (classes - 1) // 2
        pairs = swap_pairs(most, classes, KEY)
        assert len({frozenset(p) for p in pairs}) == most
        first = [c for p in pairs[: classes // 2] for c in p]
        assert len(set(first)) == len(first)
    with pytest.raises(ConfigError, match="clusters=4 should be at most 3"):
        swap_pairs(4, 3, KEY)


def test_permutations_are_different_and_cluster_0_keeps_its_labels() -> None:
    shift = make_shift("permute_labels", 6, 3, KEY)
    maps = {tuple(m) for m in shift.labels.tolist()}
    assert len(maps) == 6 and all(sorted(m) == [0, 1, 2] for m in maps)
    assert shift.labels[0].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="clusters=7 should be at most the 6 orders"):
        make_shift("permute_labels", 7, 3, KEY)


def test_wrong_shifts_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rotate'"):
        make_shift("rotat", 4, 10, KEY)
    with pytest.raises(ConfigError, match="should be 4 numbers"):
        make_shift("rotate", 4, 10, KEY, (0.0, 90.0))
    with pytest.raises(ConfigError, match="should be unset unless"):
        make_shift("none", 2, 10, KEY, (0.0, 90.0))
    with pytest.raises(DataError, match="should have images"):
        rotate(torch.zeros(3, 8), 90)
    with pytest.raises(DataError, match="multiple of 180"):
        rotate(torch.zeros(3, 1, 8, 6), 90)


def test_flips_are_numpys_and_undo_themselves() -> None:
    shift = make_shift("flip", 4, 10, KEY)
    image = X.numpy()
    expected = [image, np.flip(image, 3), np.flip(image, 2), np.rot90(image, 2, axes=(2, 3))]
    for k, wanted in enumerate(expected):
        x, y = shift.apply(X, torch.arange(5), k)
        assert np.array_equal(x.numpy(), wanted) and torch.equal(y, torch.arange(5))
        assert torch.equal(mirror(x, k), X)
    with pytest.raises(ConfigError, match="clusters=5 should be at most 4 with shift='flip'"):
        make_shift("flip", 5, 10, KEY)
    with pytest.raises(DataError, match="shift='flip' should have images"):
        mirror(torch.zeros(3, 4), 1)


def test_contrast_is_of_the_cluster_and_its_own_inverse_is_a_negative() -> None:
    x, y = torch.rand(3, 1, 4, 4) * 2 - 1, torch.arange(3)
    shift = make_shift("contrast", 4, 3, keys.key(0))
    seen = [shift.apply(x, y, k) for k in range(4)]
    assert torch.equal(seen[0][0], x) and torch.equal(seen[2][0], -x) and all(torch.equal(s[1], y) for s in seen)
    assert float(seen[1][0].abs().max()) < float(x.abs().max())
    with pytest.raises(ConfigError, match="at most 4 with shift='contrast'"):
        make_shift("contrast", 5, 3, keys.key(0))
