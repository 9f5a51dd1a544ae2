"""What private clients have been charged: every call once, however often it is repeated."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clusterfl.call import Call
from clusterfl.engines.wrappers.accounting import Cost
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Charge:
    """What one call costs its clients, and what of its replies that does not cover."""

    call: str  # the same for a call that is repeated after a crash with the same keys
    clients: list[int]
    releases: int  # Gaussian releases of each client
    uncovered: list[str]
    given: list[str] = field(default_factory=list)  # what of the uncovered the rest is conditional on
    round: int = 0
    of: int = 0  # how many clients these were drawn from; 0: everybody was asked


@dataclass
class Ledger:
    """Every charge. A call that is repeated releases the same bits and is charged once."""

    charged: set[str] = field(default_factory=set)
    releases: Counter[int] = field(default_factory=Counter)  # by client
    always: Counter[int] = field(default_factory=Counter)  # by client: of calls that asked everybody
    sampled: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by round: asked, of how many, releases
    uncovered: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)

    @property
    def most(self) -> int:
        return max(self.releases.values(), default=0)

    @property
    def cost(self) -> Cost:
        return Cost(self.most, max(self.always.values(), default=0), Counter(self.sampled.values()))

    def charge(self, charge: Charge) -> None:
        """Notes a charge; whoever stores ledgers does so before this returns."""
        self.charged.add(charge.call)
        self.uncovered.update(charge.uncovered)
        self.given.update(charge.given)
        self.count(charge)

    def count(self, charge: Charge) -> None:
        for i in charge.clients if charge.releases else ():
            self.releases[i] += charge.releases
            if not charge.of:
                self.always[i] += charge.releases
        if charge.of and charge.releases:
            asked, of, releases = self.sampled.get(charge.round, (0, 0, 0))
            # a second call of a round asks those of the same sample that are left
            size = max(asked, len(charge.clients))
            self.sampled[charge.round] = (size, max(of, charge.of), releases + charge.releases)

    def account(self, clients: int) -> Tree:
        """What a checkpoint needs in order to go on counting."""
        releases, always = (
            torch.tensor([counts[i] for i in range(clients)], dtype=torch.int64)
            for counts in (self.releases, self.always)
        )
        rounds = [[t, *sample] for t, sample in self.sampled.items()]
        sampled = torch.tensor(rounds, dtype=torch.int64).reshape(len(rounds), 4)
        return {"releases": releases, "always": always, "sampled": sampled}

    @staticmethod
    def of_account(account: Tree | Tensor | None) -> Ledger:
        """The ledger that goes on from an account."""
        ledger = Ledger()
        if account is None:
            return ledger
        if isinstance(account, Tensor):  # as checkpoints had it when nothing was sampled in secret
            account = {"releases": account, "always": account, "sampled": torch.zeros(0, 4, dtype=torch.int64)}
        for counts, name in ((ledger.releases, "releases"), (ledger.always, "always")):
            counts.update({i: n for i, n in enumerate(account[name].tolist()) if n})
        ledger.sampled = {t: (a, of, n) for t, a, of, n in account["sampled"].tolist()}
        return ledger


def call_name(call: Call) -> str:
    """The same for the same call of the same program: another version might round differently."""
    from clusterfl import __version__

    what = f"{__version__} {torch.__version__} {call.label} {int(call.key)}"
    return hashlib.sha256(what.encode()).hexdigest()[:24]
