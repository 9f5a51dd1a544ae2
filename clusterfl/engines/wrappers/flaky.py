"""An engine whose clients drop out at random: for tests, and for studies of unreliable devices."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from clusterfl import keys
from clusterfl.call import Call, Chunk
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers import Wrapper


class Flaky(Wrapper):
    """Each client of each call is lost with probability ``drop``, or always if it is in ``gone``."""

    def __init__(self, inner: BaseEngine, drop: float, gone: frozenset[int] = frozenset()) -> None:
        if not 0.0 <= drop <= 1.0:
            raise ValueError(f"drop={drop} should be between 0 and 1")
        super().__init__(inner)
        self.drop, self.gone = drop, gone

    def execute(self, call: Call) -> Iterator[Chunk]:
        if call.server or call.measure:
            yield from self.inner.execute(call)
            return
        draws = torch.stack([keys.uniform(keys.fold_in(call.client_key(int(i)), "flaky")) for i in call.ids])
        lost = torch.tensor([int(i) in self.gone for i in call.ids])
        stay = ((draws >= self.drop) & ~lost).nonzero().flatten()
        if len(stay):
            for chunk in self.inner.execute(call.only(stay)):
                yield Chunk(stay[chunk.positions], chunk.fields)
