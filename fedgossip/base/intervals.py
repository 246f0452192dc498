"""Stretches of time, and how long at least one of them lasts: what goes on at once is counted once."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]
"""From when until when, in nanoseconds of one clock."""


def covered_ns(spans: Iterable[Span], since_ns: int, until_ns: int) -> int:
    """Return how long, between the two times, at least one of the spans lasts: the length of their union."""
    total, end = 0, since_ns
    for begins, ends in sorted(spans):
        stop = ends if ends < until_ns else until_ns
        if stop > end and begins < until_ns:
            total += stop - (begins if begins > end else end)
            end = stop
    return total
