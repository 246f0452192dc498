"""Curves of a running run, of bounded size however long it is."""

from __future__ import annotations

POINTS_KEPT = 400
"""Of a curve; it is thinned out to half when it has more."""

Point = tuple[int, tuple[float | None, ...]]
"""A round, and the values there."""


class Curve:
    """Points (round, values), thinned evenly to `most`; the newest is always there."""

    def __init__(self, most: int = POINTS_KEPT) -> None:
        self._most = most
        self._points: list[Point] = []
        self._every = 1
        self._count = 0
        self._last: Point | None = None

    def add(self, round: int, *values: float | None) -> None:
        self._last = (round, values)
        if self._count % self._every == 0:
            self._points.append(self._last)
        self._count += 1
        if len(self._points) > self._most:
            del self._points[1::2]
            self._every *= 2

    def points(self) -> list[Point]:
        last = [self._last] if self._last and self._last is not self._points[-1] else []
        return self._points + last
