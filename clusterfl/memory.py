"""Memory that a process of ours keeps, instead of giving it back and asking for it again at every step."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # glibc takes no higher threshold


def keep_memory() -> None:
    """Tells glibc's malloc to reuse large blocks.

    A stack of models is megabytes; by default each new one is mapped, filled with zeros page by page and
    unmapped again, which costs more than the arithmetic on it (784-200-10 perceptrons: 1.3 times the whole step).
    For processes that are ours alone: workers and the command line. Elsewhere than glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
