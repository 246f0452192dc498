"""A drawing's curves as lines of text, for a terminal: a letter of its own for each curve, axes in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fedgossip.report.page.drawing import MARKERS
from fedgossip.report.page.numbers import number

HEIGHT, MARGIN = 16, 11
"""Lines of a panel; letters left of it."""
SIGNS = "ox+*#@%&=~^$"
assert len(SIGNS) >= len(MARKERS)


def terminal_curves(rows: Sequence[Mapping[str, Any]], x: str, width: int) -> list[str]:
    """Return the panels of `rows`, as `learning_curves` numbers them, one below the other, at most `width` letters."""
    lines: list[str] = []
    labels = list(dict.fromkeys(row["curve"] for row in rows))
    for panel in dict.fromkeys(row["panel"] for row in rows):
        mine = [row for row in rows if row["panel"] == panel]
        lines += [*([panel] if panel else []), *_panel(mine, labels, x, max(20, width - MARGIN - 2)), ""]
    return [*lines, *(f"{sign} {label}" for sign, label in zip(SIGNS, labels, strict=False))]


def _panel(rows: Sequence[Mapping[str, Any]], labels: Sequence[str], x: str, width: int) -> list[str]:
    values = [row["mean"] for row in rows]
    log = min(values) > 0 and max(values) / min(values) > 30
    place = math.log10 if log else float
    low, high = place(min(values)), place(max(values))
    left, right = min(row[x] for row in rows), max(row[x] for row in rows)
    grid = [[" "] * width for _ in range(HEIGHT)]
    for at, label in enumerate(labels):
        points = [
            (_share(row[x], left, right) * (width - 1), _share(place(row["mean"]), low, high) * (HEIGHT - 1))
            for row in rows if row["curve"] == label
        ]  # fmt: skip
        for column, value in _filled(points):
            grid[HEIGHT - 1 - round(value)][column] = SIGNS[at]
    ends = {0: number(max(values)), HEIGHT - 1: number(min(values))}
    lines = [f"{ends.get(at, ''):>{MARGIN}} |{''.join(line).rstrip()}" for at, line in enumerate(grid)]
    axis = f"{number(left)}{x + (', log y' if log else ''):^{width - 16}}{number(right):>8}"
    return [*lines, f"{'':>{MARGIN}} +{'-' * width}", f"{'':>{MARGIN}}  {axis}"]


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


def _filled(points: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """Return the points and, in every column between two of them, the line that joins them."""
    if not points:
        return []
    found = [(round(points[0][0]), points[0][1])]
    for (x0, y0), (x1, y1) in pairwise(points):
        first, last = round(x0), round(x1)
        found += [(at, y0 + (y1 - y0) * (at - first) / (last - first)) for at in range(first + 1, last)]
        found.append((last, y1))
    return found
