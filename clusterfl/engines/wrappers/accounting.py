"""What Gaussian releases cost, by dp-accounting: epsilon is never below the true one.

Two worlds are neighbours if one client's data (or one of its samples) is replaced by any other, so that what is cut to
length 1 moves by 2 at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

CERTAIN = 100.0  # from here on a release tells nearly all, and a formula is good enough
ORDERS = (*range(2, 33), 40, 48, 64, 96, 128)  # Rényi orders; whole and small ones are quick

Sample = tuple[int, int, int]  # clients asked, of how many, and the releases of each in that round


@dataclass(frozen=True)
class Cost:
    """What was released: ``most`` by one client in all, ``always`` of that in calls that asked everybody, and
    ``rounds``: in how many rounds a sample of the clients was asked, by (asked, of how many, releases)."""

    most: int
    always: int = 0
    rounds: Mapping[Sample, int] = field(default_factory=dict)

    def epsilon(self, noise_multiplier: float, delta: float, *, secret: bool) -> float:
        """``secret``: nobody who sees the uploads knows who was asked, and the sampling amplifies."""
        known = epsilon(self.most, noise_multiplier, delta)
        if not secret or not self.rounds:
            return known
        # both hold, so the lower one does
        rounds = tuple(sorted(self.rounds.items()))
        return min(known, epsilon_of_samples(self.always, rounds, noise_multiplier, delta))


@lru_cache(maxsize=4096)
def epsilon(releases: int, noise_multiplier: float, delta: float) -> float:
    """Epsilon of so many Gaussian releases, by privacy loss distributions."""
    if not releases:
        return 0.0
    distance = 2.0 * math.sqrt(releases) / noise_multiplier  # between neighbours, in standard deviations
    if distance > CERTAIN:  # Rényi's bound in closed form: the distributions would fill the memory
        return distance * distance / 2.0 + distance * math.sqrt(2.0 * math.log(1.0 / delta))
    import dp_accounting
    from dp_accounting import pld

    # REPLACE_ONE counts twice the clip as an update's sensitivity; coarser steps cost below 1e-4 of epsilon
    step = 1e-3 * max(1.0, distance)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, step)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), releases)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=4096)
def epsilon_of_samples(
    always: int, rounds: tuple[tuple[Sample, int], ...], noise_multiplier: float, delta: float
) -> float:
    """Epsilon where each round asks a fixed number of clients, drawn without replacement and kept secret (Wang, Balle
    and Kasiviswanathan, 2019), and ``always`` releases of everybody beside."""
    import dp_accounting
    from dp_accounting import rdp

    # the Rényi accountant takes the noise in units of the sensitivity, which is twice the clip
    release = dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)
    accountant = rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    if always:
        accountant.compose(release, always)
    for (asked, clients, releases), count in rounds:
        event = dp_accounting.SelfComposedDpEvent(release, releases)
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(clients, asked, event), count)
    return float(accountant.get_epsilon(delta))
