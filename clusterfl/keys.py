"""Counter-based randomness: a key is a 0-d int64 tensor, and every draw is a pure function of it.

The same key gives the same draws in every engine, alone or inside ``vmap``, on any number of
workers and after any restart. The generator is SplitMix64 (Steele et al., 2014) used as a
counter-based hash; integer arithmetic wraps modulo 2**64, as the algorithm wants.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

Key = Tensor

# SplitMix64's constants, written as the signed 64-bit integers that torch holds.
_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB
_FOLD = 0x2545F4914F6CDD1D


def _shift(z: Tensor, n: int) -> Tensor:
    """Logical right shift; torch's own shift keeps the sign."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    return z ^ _shift(z, 31)


def key(seed: int) -> Key:
    """The root key of a seed (any integer)."""
    wrapped = (seed + 2**63) % 2**64 - 2**63
    return _mix(torch.tensor(wrapped, dtype=torch.int64) + _GAMMA)


def fold_in(key: Key, *data: int | str | Tensor) -> Key:
    """A new key for each datum; ``fold_in(k, a, b)`` is ``fold_in(fold_in(k, a), b)``."""
    for datum in data:
        if isinstance(datum, str):
            datum = zlib.crc32(datum.encode())
        # `datum * GAMMA + FOLD` is mixed on its own first, so that small counters differ in every bit
        mixed = _mix(torch.as_tensor(datum, dtype=torch.int64, device=key.device) * _GAMMA + _FOLD)
        key = _mix((key ^ mixed) + _GAMMA)
    return key


def split(key: Key, n: int) -> Tensor:
    """``n`` keys ``[n]``, the same as ``fold_in(key, i)`` for i < n."""
    return fold_in(key, torch.arange(n, device=key.device))


def bits(key: Key, *shape: int) -> Tensor:
    """Uniform int64: all 64 bits random."""
    n = int(np.prod(shape)) if shape else 1
    counter = torch.arange(1, n + 1, device=key.device)
    return _mix(key + counter * _GAMMA).reshape(shape)


def uniform(key: Key, *shape: int) -> Tensor:
    """float32 in [0, 1), on the grid of 2**-24."""
    return _shift(bits(key, *shape), 40).to(torch.float32) * 2.0**-24


def normal(key: Key, *shape: int) -> Tensor:
    """Standard normal float32, by Box-Muller.

    It is computed in float64 and rounded, so that vectorised and scalar `log` and `cos`, which may
    differ in their last bit, still give the same float32.
    """
    b = bits(key, *shape)
    u = (_shift(b, 32).to(torch.float64) + 0.5) * 2.0**-32
    v = (b & 0xFFFFFFFF).to(torch.float64) * 2.0**-32
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * torch.pi * v)).to(torch.float32)


def randint(key: Key, high: int | Tensor, *shape: int) -> Tensor:
    """int64 in [0, high). The bias is below high / 2**32."""
    return (_shift(bits(key, *shape), 32) * high) >> 32


def permutation(key: Key, n: int, valid: int | Tensor | None = None) -> Tensor:
    """A random order of ``range(n)``.

    With ``valid`` the first ``valid`` places hold a permutation of ``range(valid)``, the same one that
    ``permutation(key, valid)`` gives, and the padding follows.
    """
    draws = bits(key, n)
    if valid is not None:
        draws = torch.where(torch.arange(n, device=key.device) < valid, _shift(draws, 1), 2**63 - 1)
    else:
        draws = _shift(draws, 1)
    return torch.argsort(draws, stable=True)


def choice(key: Key, n: int, size: int) -> Tensor:
    """``size`` different numbers below ``n``, in ascending order."""
    return permutation(key, n)[:size].sort().values


def numpy_rng(key: Key) -> np.random.Generator:
    """A numpy generator of its own for code that needs one (scikit-learn, Dirichlet draws)."""
    return np.random.Generator(np.random.Philox(int(key) % 2**64))


def seed32(key: Key) -> int:
    """A 31-bit seed for libraries that take an integer (scikit-learn's ``random_state``)."""
    return int(_shift(key, 33))
