"""A deadline that follows the measured durations.

    deadline = factor * (median + 4 MAD)        MAD: the median distance from the median

clamped to two limits.  Median and MAD, not mean and deviation: a few long waits, which a deadline must cut, hardly
move them (up to half of the samples may be outliers).

Source: the estimate of a mean and a deviation that TCP's timer follows (Jacobson, Congestion avoidance and control,
SIGCOMM 1988), with their robust counterparts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

WINDOW = 32
"""Number of latest durations that count: a lasting slowdown takes effect after half of them."""

ENOUGH = 5
"""Minimum number of durations; with fewer the first deadline applies."""

DEVIATIONS = 4


class Deadline:
    """Follows durations in nanoseconds, between `least_ns` and `longest_ns`; equal ones make it constant.

    `first_ns` applies until ENOUGH durations are recorded, where a short wait costs little; by default `longest_ns`.
    """

    def __init__(self, longest_ns: int, least_ns: int, factor: int = 8, first_ns: int | None = None) -> None:
        assert 0 <= least_ns <= longest_ns and factor >= 1
        self.first_ns = longest_ns if first_ns is None else min(max(first_ns, least_ns), longest_ns)
        self.longest_ns, self.least_ns, self.factor = longest_ns, least_ns, factor
        self._seen: deque[int] = deque(maxlen=WINDOW)
        self._ordered: list[int] = []  # the same, ascending

    def record(self, duration_ns: int) -> None:
        """Record a duration; the caller omits those that the deadline cut short."""
        if len(self._seen) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._seen[0])]
        self._seen.append(duration_ns)
        insort(self._ordered, duration_ns)

    def quickest_ns(self) -> int:
        """Return the shortest recorded duration, which no loss has lengthened; 0 before the first."""
        return self._ordered[0] if self._ordered else 0

    def usual_ns(self) -> int:
        """Return the median duration; 0 while fewer than ENOUGH are recorded."""
        return self._ordered[len(self._ordered) // 2] if len(self._ordered) >= ENOUGH else 0

    def now_ns(self) -> int:
        """Return the deadline of the next wait."""
        seen = self._ordered
        if len(seen) < ENOUGH:
            return self.first_ns
        usual = seen[len(seen) // 2]
        deviation = _median([abs(one - usual) for one in seen]) if seen[0] != seen[-1] else 0
        return min(max(self.factor * (usual + DEVIATIONS * deviation), self.least_ns), self.longest_ns)


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]
