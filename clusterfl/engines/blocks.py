"""Nested dicts and lists of tensors in one piece of memory: how messages travel between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Nested dicts of tensors in ONE tensor: a message costs one handle or one copy, not one per tensor."""

    memory: Tensor
    layout: Any

    @staticmethod
    def of(value: Any, room: Callable[[int], Tensor]) -> Block:
        """``room``: where so many bytes find place."""
        tensors: list[tuple[Tensor, int]] = []
        end = 0

        def place(v: Any) -> Any:
            nonlocal end
            if isinstance(v, Tensor):
                at, end = end, end + -(-v.numel() * v.element_size() // 64) * 64
                tensors.append((v, at))
                return (at, v.dtype, tuple(v.shape))
            if isinstance(v, dict):
                return {n: place(x) for n, x in v.items()}
            return [place(x) for x in v]

        layout = place(value)
        memory = room(max(end, 1))
        for t, at in tensors:
            _window(memory, at, t.dtype, tuple(t.shape)).copy_(t)
        return Block(memory, layout)

    def value(self) -> Any:
        def take(v: Any) -> Any:
            if isinstance(v, tuple):
                return _window(self.memory, *v)
            if isinstance(v, dict):
                return {n: take(x) for n, x in v.items()}
            return [take(x) for x in v]

        return take(self.layout)


@dataclass(frozen=True)
class Copied:
    """A block that travels as bytes, where there is no memory to share."""

    memory: bytes
    layout: Any

    def value(self) -> Any:
        return Block(torch.frombuffer(bytearray(self.memory), dtype=torch.uint8), self.layout).value()


def travelling(block: Block) -> Block | Copied:
    """The block as it can go to another process."""
    return block if block.memory.is_shared() else Copied(block.memory.numpy().tobytes(), block.layout)


def own_memory(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def shared_memory(size: int) -> Tensor:
    """Memory that other processes can see; ``share_memory_`` would fill it with a copy first.

    Where there is no room for it (64 MB in a container, too many open files), it is memory of our own.
    """
    try:
        return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))
    except RuntimeError:
        return own_memory(size)


def _window(memory: Tensor, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    n = 1
    for s in shape:
        n *= s
    size = n * torch.empty(0, dtype=dtype).element_size()
    return memory[at : at + size].view(dtype).reshape(shape)
