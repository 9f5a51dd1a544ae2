"""What clients have said about their data, as a server keeps it: who has spoken, and everything that was said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from clusterfl.cohort import Replies
from clusterfl.method import State
from clusterfl.parts.describe import Describe, Known, read, summaries
from clusterfl.parts.evidence import Summaries
from clusterfl.tree import put


@dataclass(frozen=True)
class Told(State):
    """Statistics of all clients, row by row; those of clients that have not spoken are 0."""

    known: Tensor  # [N] bool: who has described itself
    times: Tensor  # [N] int64: how often each was asked to, for each time costs privacy
    stale: Tensor  # [N] bool: whose data has changed since
    counts: Tensor  # [N, C]
    means: Tensor  # [N, C, d]
    blur: Tensor  # [N]: variance of the noise on a class's sum
    scatter: Tensor  # [d, d] float64, over all clients
    freedom: Tensor  # of the scatter

    @property
    def speakers(self) -> Tensor:
        """The clients that have described themselves."""
        return self.known.nonzero().flatten()

    @property
    def sizes(self) -> Tensor:
        """``[N]``: samples of each client, 0 of those that have not spoken."""
        return self.counts.sum(dim=1).double()

    def asked(self, ids: Tensor) -> Self:
        """These clients are about to describe themselves: what they say counts even if it is lost on its way."""
        return replace(self, times=put(self.times, ids, self.times[ids] + 1))

    def heard(self, got: Replies, describe: Describe) -> Self:
        """With these replies in place of what the same clients said before."""
        new = read(got, describe)
        c, d = new.means.shape[1:]
        empty = not self.means.shape[2]
        means = torch.zeros(len(self.known), c, d) if empty else self.means
        yes = torch.ones(len(got), dtype=torch.bool)
        return replace(
            self,
            known=put(self.known, got.ids, yes),
            stale=put(self.stale, got.ids, ~yes),
            counts=put(self.counts, got.ids, new.counts),
            means=put(means, got.ids, new.means),
            blur=put(self.blur, got.ids, new.blur),
            scatter=new.scatter if empty else self.scatter + new.scatter,
            freedom=self.freedom + new.freedom,
        )

    def summaries(self, ids: Tensor, *, labels: bool, guests: Known | None = None) -> tuple[Summaries, Tensor]:
        """Whitened summaries of clients ``ids``, with those of guests after them, and the whitening."""
        counts, means, blur = self.counts[ids].double(), self.means[ids].double(), self.blur[ids].double()
        if guests is not None:
            counts, means = torch.cat([counts, guests.counts]), torch.cat([means, guests.means])
            blur = torch.cat([blur, guests.blur])
        return summaries(counts, means, blur, self.scatter, float(self.freedom), labels=labels)
