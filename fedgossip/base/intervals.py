"""Intervals of time, and the length of their union: simultaneous work is counted once."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""(start, end) in nanoseconds of one clock."""


def covered_ns(spans: Iterable[Span], since_ns: int, until_ns: int) -> int:
    """Return the length of the union of the spans, between the two times, in nanoseconds."""
    total, end = 0, since_ns
    for begins, ends in sorted(spans):
        stop = ends if ends < until_ns else until_ns
        if stop > end and begins < until_ns:
            total += stop - (begins if begins > end else end)
            end = stop
    return total
