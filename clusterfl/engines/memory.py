"""What glibc's malloc does with freed memory: keep it for the next step, or give it back. Elsewhere: nothing."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 32 << 20  # glibc takes no higher threshold


def keep_memory() -> None:
    """Tells glibc's malloc to reuse large blocks.

    A stack of models is megabytes; by default each new one is mapped, filled with zeros page by page and
    unmapped again, which costs more than the arithmetic on it (784-200-10 perceptrons: 1.3 times the whole step).
    For processes that are ours alone: workers and the command line.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """Hands freed memory back to the system, where the C library can: the split of many clients leaves gaps."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
