"""Groups compared by ranks: Kruskal and Wallis's test, of two groups Wilcoxon's rank sum, by a histogram.

All records of a bin are tied, so it is the test of values replaced by their bins; Wilcoxon's z is the root of H,
without a correction of continuity.  H has two digits and p is that of this H: an exact one would be an equation for the
counts of bins, some of which are small.  There are no quartiles of groups: with H they can leave one table possible.

Sources: Kruskal and Wallis, JASA 47 (1952); Wilcoxon, Biometrics Bulletin 1 (1945).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class RankTest(NamedTuple):
    """H with two digits, its degrees of freedom, and its p."""

    statistic: float
    freedom: int
    p: float


def rank_test(counts: npt.NDArray[np.int64]) -> RankTest | None:
    """Return the test that groups are alike, from the records of each group in each bin, [groups, bins]; None if all
    records are in one bin, or a group has none.
    """
    from scipy import special

    of_groups, of_bins = counts.sum(axis=1), counts.sum(axis=0)
    total = int(of_bins.sum())
    ties = 1 - float((of_bins.astype(float) ** 3 - of_bins).sum()) / (float(total) ** 3 - total) if total > 1 else 0.0
    if len(counts) < 2 or not of_groups.all() or ties <= 0:
        return None
    ranks = np.cumsum(of_bins) - (of_bins - 1) / 2  # the mean rank of a bin's records
    sums = counts @ ranks
    h = (12 / (total * (total + 1)) * float((sums**2 / of_groups).sum()) - 3 * (total + 1)) / ties
    statistic, freedom = float(f"{max(h, 0.0):.2g}"), len(counts) - 1
    return RankTest(statistic, freedom, float(special.chdtrc(freedom, statistic)))
