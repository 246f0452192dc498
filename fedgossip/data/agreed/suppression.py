"""Counts and moments that may be published without disclosing a count from 1 to `least` - 1.

Each hidden count has a **twin**: another table with another count in its place and the same publication.
tests/sites/test_disclosure.py covers all lists up to four cells and 16 records, and random tables of columns and
evaluations.  It checks columns one by one.

    lists      Cells that are parts of a known total, including empty cells.  Hidden are the small ones and then the
               next larger ones, until the hidden are two or more, have `least` records together and are not all 1 or
               all `least` - 1.  The rule orders cells only by their counts, so exchanging two hidden counts gives a
               twin; if all are equal, moving one record does.
    moments    Mean and deviation of a column with a histogram: exact if a twin has the same sums, else rounded
               until one has, else not published.
    tables     Rows of cells with known totals of rows and columns: whole rows are hidden, until their columns have
               enough together.

Hidden cells that can exchange records have `least` together or more.  Participants see the full sums; this protects
against readers of the publication.  Only numpy, exact integers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FINE = 8
"""Number of possible values per bin, at a column's resolution, above which it counts as continuous."""
PRECISIONS = (0, 64, 16, 4)
"""Fractions of a deviation (1 / n) to which moments are rounded, the finest first; 0: they are exact."""
EDGES = 4
"""The same for the moments that determine a histogram's edges, if exact ones would disclose counts."""
FREE = 8
"""Number of values that a column must allow in addition to one per bin; with fewer, the moments could
disclose counts.
"""
PARTNERS = 6
"""Maximum number of hidden cells, the largest, tried as partners of another for an exchange of records."""
MOVES = 400
"""Maximum number of steps that move records towards given sums."""


def is_small(count: int, least: int) -> bool:
    return 0 < count < least


def hidden_places(counts: Sequence[int], least: int, apart: Collection[int] = (), rest: int = 0) -> frozenset[int]:
    """Return the places to hide in a list with a known total; those `apart` are uncounted, with `rest` together."""
    found = {place for place, count in enumerate(counts) if is_small(count, least)} | set(apart)
    if not found:
        return frozenset()
    values = [counts[place] for place in found if place not in apart] + ([rest] if apart else [])
    total = sum(values)
    others = sorted({count for place, count in enumerate(counts) if count and place not in found})
    for count in others:
        alike = len(values) > 1 and min(values) == max(values) and not 1 < values[0] < least - 1
        if len(found) > 1 and total >= least and not alike:
            break
        more = {place for place, one in enumerate(counts) if one == count and place not in found}
        found |= more  # all of equal size, or their order would disclose them
        values += [count] * len(more)
        total += count * len(more)
    return frozenset(found)


def suppressed(counts: Sequence[int], least: int, never: Collection[int] = (), rest: int = 0) -> tuple[int | None, ...]:
    """Return the counts with None for the hidden ones."""
    hidden = hidden_places(counts, least, never, rest)
    return tuple(None if place in hidden else count for place, count in enumerate(counts))


def hidden_rows(rows: Sequence[Sequence[int]], least: int) -> frozenset[int]:
    """Return the rows to hide in a table with known totals of all rows and of all columns.

    These are the rows with a small cell, and more, the smallest first, until they are two with none or `least` in each
    column, not all 1; all rows with records if no such set exists.
    """
    found = {place for place, row in enumerate(rows) if any(is_small(one, least) for one in row)}
    others = sorted((place for place in range(len(rows)) if place not in found), key=lambda place: sum(rows[place]))
    for place in others:
        columns = [[rows[one][k] for one in found] for k in range(len(rows[place]))]
        if not found or (len(found) > 1 and all(_is_loose(column, least) for column in columns)):
            break
        if sum(rows[place]):
            found.add(place)
    return frozenset(found)


def _is_loose(column: Sequence[int], least: int) -> bool:
    return not sum(column) or (sum(column) >= least and sum(map(bool, column)) > 1)


def hidden_confusion(table: Sequence[Sequence[int]], least: int) -> frozenset[tuple[int, int]]:
    """Return the cells to hide in a confusion matrix with known totals of rows and of the diagonal."""
    found = [set(hidden_places(row, least)) for row in table]
    if not any(found):
        return frozenset()
    diagonal = {place for place, row in enumerate(found) if place in row}
    order = sorted((place for place in range(len(table)) if table[place][place]), key=lambda place: table[place][place])
    for place in order:
        if not diagonal or (len(diagonal) > 1 and not is_small(sum(table[k][k] for k in diagonal), least)):
            break
        others = [k for k, count in enumerate(table[place]) if count and k != place]
        if place not in diagonal and others:
            diagonal.add(place)
            found[place] |= {place, min(others, key=lambda k: table[place][k])}
    if diagonal and (len(diagonal) < 2 or len(table) == 2):
        found = [set(range(len(row))) for row in table]
    return frozenset((place, k) for place, row in enumerate(found) for k in row)


def round_share(part: int, whole: int, least: int) -> tuple[float, float]:
    """Return a share of records, and its maximum error: a small side is reported as 0 to 2 `least` records."""
    if is_small(part, least) or is_small(whole - part, least):
        within = min(least, whole / 2)
        return (within if part < whole - part else whole - within) / whole, within / whole
    return part / whole, 0.0


def round_shares(
    rows: Sequence[tuple[int, int]], least: int, rest: tuple[int, int] = (0, 0)
) -> list[tuple[float | None, float]]:
    """Return the shares of the first of each pair, and their maximum rounding errors, with a known total of all.

    `rest`: the pair of records in no row.  Pairs with a small side, and disclosing ones, are rounded to steps of more
    than `least` records; None if the steps disclose it too.
    """
    hidden = hidden_rows([*rows, rest], least)
    if len(rows) in hidden and len(hidden) == 1:
        hidden |= set(range(len(rows)))
    steps = [_step_of(sum(row), least) if place in hidden else 0 for place, row in enumerate(rows)]
    found: list[tuple[float | None, float]] = []
    ranges = []
    for (first, second), step in zip(rows, steps, strict=True):
        n = first + second
        share = first / n if n else None
        if step and n:
            share = min(1.0, round(first / n / step) * step)
            ranges.append((max(0, math.ceil(n * (share - step / 2))), min(n, math.floor(n * (share + step / 2)))))
        found.append((share, step / 2))
    if len(rows) in hidden:
        ranges.append((0, sum(rest)))
    total = sum(rows[place][0] for place in hidden if place < len(rows)) + (rest[0] if len(rows) in hidden else 0)
    if len(ranges) == len(hidden) and all(steps[k] for k in hidden if k < len(rows)) and _are_open(ranges, total):
        return found
    return [(None, 0.0) if place in hidden else one for place, one in enumerate(found)]


def _step_of(count: int, least: int) -> float:
    return next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if step * count >= least + 1), 0.0)


def _are_open(ranges: Sequence[tuple[int, int]], total: int) -> bool:
    low, high = (sum(one[k] for one in ranges) for k in (0, 1))
    return all(min(b, total - (low - a)) - max(a, total - (high - b)) >= 1 for a, b in ranges)


# --- moments ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnSums:
    """Exact sums of numbers, in units of 2^-shift and 4^-shift."""

    count: int
    total: int
    squares: int
    shift: int

    @property
    def mean(self) -> Fraction:
        return Fraction(self.total, self.count << self.shift)

    @property
    def variance(self) -> Fraction:
        """The variance, at least 0."""
        n = self.count
        return Fraction(n * self.squares - self.total * self.total, n * n << 2 * self.shift)

    def moments(self, precision: int) -> tuple[float, float]:
        """Return mean and deviation, exact or rounded to the power of two next below 1 / `precision` deviations."""
        mean, deviation = float(self.mean), math.sqrt(self.variance)
        if not precision or not deviation:
            return mean, deviation
        step = self.step(precision)
        return float(round(self.mean / step) * step), float(max(1, round(Fraction(deviation) / step)) * step)

    def step(self, precision: int) -> Fraction:
        """Return the step to which moments are rounded."""
        return Fraction(2) ** (math.frexp(math.sqrt(self.variance) / precision)[1] - 1)

    @property
    def resolution(self) -> Fraction | None:
        """Return the largest power of ten whose multiples all numbers can be, by their sums; None without one."""
        for power in range(3, -7, -1):
            step = Fraction(10) ** power
            total = Fraction(self.total, 1 << self.shift) / step
            squares = Fraction(self.squares, 1 << 2 * self.shift) / step**2
            each = Fraction(0 if power >= 0 else 1, 1 << 51)  # tenths have no exact binary form
            if abs(total - round(total)) <= each * (self.count + abs(total)) and (
                abs(squares - round(squares)) <= each * (self.count + squares)
            ):
                return step
        return None

    def is_coarse(self, width: float) -> bool:
        """Return whether a bin of this width has fewer than FINE possible values."""
        step = self.resolution
        return step is not None and width < FINE * step


@dataclass(frozen=True)
class PublishedMoments:
    """The published moments of a column of numbers."""

    hidden: frozenset[int]
    """Indices of hidden bins; the index after the bins is that of the empty cells."""
    moments: tuple[float, float] | None
    precision: int = 0
    values: int = 0
    """Maximum number of distinct values; 0: unknown."""
    codes: tuple[float, ...] = ()
    """Least and greatest of evenly spaced values, and their spacing or more; () if unknown."""
    beyond: int = 0
    """Steps by which the values beyond the histogram exceed the first one possible, together."""
    step: Fraction | None = None
    """All numbers are whole multiples of it, a few in each bin; None: unknown."""
    edges: bool = True
    """Whether the histogram may be published: false if its edges follow from withheld moments."""


def round_moments(
    sums: ColumnSums, counts: Sequence[int], missing: int, edges: Floats, least: int, *, own: bool
) -> PublishedMoments:
    """Return the publishable moments of a column with these sums, bins and empty cells; `own`: edges follow from its
    moments (EDGES).
    """
    cells = [*counts, missing]
    hidden = hidden_places(cells, least)
    coarse = bool(sums.variance) and sums.is_coarse(float(edges[1] - edges[0]))
    twins = CoarseTwins(sums, edges, own) if coarse else FineTwins(sums, edges)
    of = PublishedMoments(
        hidden, None, values=twins.values(cells, hidden, least), codes=twins.codes(cells), beyond=twins.beyond(cells),
        step=sums.resolution if coarse else None,
    )  # fmt: skip
    for precision in PRECISIONS if sums.variance else PRECISIONS[:1]:
        if sums.count < least or (not precision and len(counts) in hidden):
            continue  # an exact mean discloses its number of records
        if twins.open(cells, precision, least) and _all_have_twins(twins, cells, hidden, least, precision):
            codes = () if precision and (counts[0] or counts[-1]) else of.codes  # which follow from exact moments
            return replace(of, moments=sums.moments(precision), precision=precision, codes=codes)
    return replace(of, codes=(), edges=not own)


def _all_have_twins(twins: Twins, cells: Sequence[int], hidden: Collection[int], least: int, precision: int) -> bool:
    """Return whether hidden cells can exchange records unnoticed, `least` or more together."""
    order = sorted(hidden, key=lambda place: (-cells[place], place))
    group = {place: {place} for place in order}
    for place in reversed(order):
        if not is_small(cells[place], least):
            break
        for other in order[:PARTNERS]:
            if _is_enough(group[place], cells, least):
                break
            if other not in group[place] and _exchange(twins, cells, place, other, hidden, least, precision):
                joined = group[place] | group[other]
                group |= dict.fromkeys(joined, joined)
        if len(group[place]) < 2:
            return False
    return all(_is_enough(one, cells, least) for place, one in group.items() if is_small(cells[place], least))


def _is_enough(group: Collection[int], cells: Sequence[int], least: int) -> bool:
    return len(group) > 1 and sum(cells[one] for one in group) >= least


def _exchange(
    twins: Twins, cells: Sequence[int], place: int, other: int, hidden: Collection[int], least: int, precision: int
) -> bool:
    for more in (1, -1, cells[other] - cells[place]):
        moved = list(cells)
        moved[place] += more
        moved[other] -= more
        same = more and min(moved[place], moved[other]) >= 0 and hidden_places(moved, least) == hidden
        if same and twins.exists(moved, precision):
            return True
    return False


class Twins(Protocol):
    """Tables with other counts of bins and the same published moments."""

    def values(self, cells: Sequence[int], hidden: Collection[int], least: int) -> int:
        """Return the possible number of distinct values, which discloses no `hidden` count; 0: unknown."""

    def codes(self, cells: Sequence[int]) -> tuple[float, ...]:
        """Return `PublishedMoments.codes`."""

    def beyond(self, cells: Sequence[int]) -> int:
        """Return `PublishedMoments.beyond`."""

    def open(self, cells: Sequence[int], precision: int, least: int) -> bool:
        """Return whether moments of this precision disclose nothing about values within a bin."""

    def exists(self, cells: Sequence[int], precision: int) -> bool:
        """Return whether a table with these counts of bins, followed by the empty cells, exists."""


@dataclass(frozen=True, eq=False)
class FineTwins:
    """Twins of a column with many values per bin: any deviation between the least and the greatest is possible, because
    sums of squares are continuous on a convex set.
    """

    sums: ColumnSums
    edges: Floats

    def values(self, cells: Sequence[int], hidden: Collection[int], least: int) -> int:  # noqa: ARG002
        return 0

    def codes(self, cells: Sequence[int]) -> tuple[float, ...]:  # noqa: ARG002
        return ()

    def beyond(self, cells: Sequence[int]) -> int:  # noqa: ARG002
        return 0

    def open(self, cells: Sequence[int], precision: int, least: int) -> bool:  # noqa: ARG002
        return True

    def exists(self, cells: Sequence[int], precision: int) -> bool:  # noqa: ARG002
        counts = np.array(cells[:-1], np.float64)
        mean, variance = float(self.sums.mean), float(self.sums.variance)
        n = counts.sum()
        z = self.edges - mean
        far = 4 * math.sqrt(max(n, 1) * variance) + abs(z[0]) + abs(z[-1])
        low, high = np.concatenate([[-far], z]), np.concatenate([z, [far]])
        if not float(counts @ low) < 0 < float(counts @ high):
            return False
        margin = float(z[1] - z[0]) ** 2
        return bool(self._least(counts, low, high) + margin < n * variance < self._most(counts, low, high) - margin)

    @staticmethod
    def _least(counts: Floats, low: Floats, high: Floats) -> float:
        """Return the least sum of squares of numbers with sum 0, each as close to the common value as
        its bin allows.
        """
        turns = np.append(low, high[-1])  # the ends of all bins, in order; np.unique would import numpy.ma
        totals = np.clip(turns[:, None], low, high) @ counts
        at = float(np.interp(0.0, totals, turns))
        return float(counts @ np.clip(at, low, high) ** 2)

    @staticmethod
    def _most(counts: Floats, low: Floats, high: Floats) -> float:
        """Return a large sum of squares of numbers with sum 0: all except one at an end of their bins."""
        left, found = -float(counts @ low), float(counts @ low**2)
        for k in np.flatnonzero(counts)[::-1].tolist():
            width = high[k] - low[k]
            whole = min(counts[k], left // width)
            found += whole * (high[k] ** 2 - low[k] ** 2)
            left -= whole * width
            if whole < counts[k]:
                return float(found + (low[k] + left) ** 2 - low[k] ** 2)
        return float(found)


class CoarseTwins:
    """Twins of a column with few values per bin: constructs a table in whole multiples of their resolution."""

    def __init__(self, sums: ColumnSums, edges: Floats, own: bool) -> None:
        step = sums.resolution
        assert step is not None
        self.sums, self._own, self._step = sums, own, step
        self._published: dict[int, tuple[float, float]] = {}
        self._centre = round(sums.mean / step)
        aside = Fraction(0) if step >= 1 else Fraction(1, 10**6)  # tenths have no exact binary form
        from_zero = [Fraction(edge) / step - self._centre for edge in edges.tolist()]
        begins = [math.ceil(one + aside) for one in from_zero]
        ends = [math.ceil(one - aside) - 1 for one in from_zero]
        last, behind = math.floor(from_zero[-1] - aside), math.floor(from_zero[-1] + aside) + 1
        far = 2 + math.isqrt(math.ceil(16 * sums.count * sums.variance / step**2))
        mean = sums.mean / step - self._centre
        self._each = mean, sums.variance / step**2 + mean * mean
        """Mean and mean square of a number."""
        self._low = [ends[0] - far, *begins[:-1], behind]
        self._high = [ends[0], *ends[1:-1], last, behind + far]

    def values(self, cells: Sequence[int], hidden: Collection[int], least: int) -> int:
        sizes = {k: max(1, high - low + 1) for k, (low, high) in self._ranges(cells).items()}
        for k in {0, len(self._low) - 1} & sizes.keys():
            sizes[k] = least - 1 if k in hidden else min(sizes[k], cells[k])
        return sum(sizes.values())

    def codes(self, cells: Sequence[int]) -> tuple[float, ...]:
        ranges = list(self._ranges(cells).values())
        apart = {low - high for (_, high), (low, _) in pairwise(ranges)}
        if len(apart) > 1 or min(apart, default=1) < 1:
            return ()
        widest = max((high - low for (low, _), (_, high) in pairwise(ranges)), default=ranges[0][1] - ranges[0][0])
        ends = (ranges[0][0] + self._centre, ranges[-1][1] + self._centre, max(1, widest))
        return tuple(float(one * self._step) for one in ends)

    def beyond(self, cells: Sequence[int]) -> int:
        outer = self._outer(cells)
        return abs(outer[1] - cells[outer[0]] * (self._low if outer[0] else self._high)[outer[0]]) if outer else 0

    def _outer(self, cells: Sequence[int]) -> tuple[int, int, int] | None:
        """Return the one bin of numbers beyond the edges, and their sums, if these follow; else None."""
        last = len(self._low) - 1
        inner, outer = [k for k in range(1, last) if cells[k]], [k for k in (0, last) if cells[k]]
        if len(outer) != 1 or any(self._low[k] != self._high[k] for k in inner):
            return None
        total, squares = (round(self.sums.count * one) for one in self._each)
        total -= sum(cells[k] * self._low[k] for k in inner)
        return outer[0], total, squares - sum(cells[k] * self._low[k] ** 2 for k in inner)

    def _ranges(self, cells: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the least and greatest possible number in each filled bin."""
        found = {k: (self._low[k], self._high[k]) for k in range(len(self._low)) if cells[k]}
        if outer := self._outer(cells):
            k, total, squares = outer
            reach = math.isqrt(max(0, cells[k] * squares - total * total) * (cells[k] - 1))  # Samuelson's inequality
            low, high = found[k]
            found[k] = max(low, -((reach - total) // cells[k])), min(high, (total + reach) // cells[k])
        return found

    def open(self, cells: Sequence[int], precision: int, least: int) -> bool:
        free = sum(max(0, high - low) for low, high in self._ranges(cells).values())
        if not free or free >= FREE:
            return True
        return bool(precision) and self.sums.count * self.sums.step(precision) >= 8 * least * self._step

    def exists(self, cells: Sequence[int], precision: int) -> bool:
        counts = cells[:-1]
        n = sum(counts)
        if not n or any(count and low > high for count, low, high in zip(counts, self._low, self._high, strict=True)):
            return False
        total, squares = (round(n * one) for one in self._each)
        squares += (squares - total) % 2
        found = self._build_sums(counts, total, squares)
        if found is None:
            return False
        if not precision:
            return found == (total, squares)
        sums = self._back(n, *found)
        levels = (precision, EDGES) if self._own else (precision,)
        return all(sums.moments(level) == self._published_moments(level) for level in levels)

    def _published_moments(self, precision: int) -> tuple[float, float]:
        if precision not in self._published:
            self._published[precision] = self.sums.moments(precision)
        return self._published[precision]

    def _back(self, n: int, total: int, squares: int) -> ColumnSums:
        c, step = self._centre, self._step
        wholes = total + n * c, squares + 2 * c * total + n * c * c
        (top, low) = (step.numerator << 64, step.denominator)
        return ColumnSums(n, wholes[0] * top // low, wholes[1] * top * top // (low * low), 64)

    def _build_sums(self, counts: Sequence[int], total: int, squares: int) -> tuple[int, int] | None:
        """Return sum and sum of squares of whole numbers in bins close to the goal, or None."""
        place, bins = self._start(counts, squares)
        missing = total - sum(value * count for (_, value), count in place.items())
        over = squares - sum(value * value * count for (_, value), count in place.items())
        up = missing > 0
        for bin in sorted(bins, reverse=(over > 0) == up):
            value, count = bins[bin], counts[bin]
            room = self._high[bin] - value if up else value - self._low[bin]
            each = min(room, abs(missing) // count)
            single = min(count, abs(missing) - each * count) if each < room else 0
            way = 1 if up else -1
            del place[bin, value]
            for moved, many in ((each, count - single), (each + 1, single)):
                if many:
                    place[bin, value + way * moved] = many
            missing -= way * (each * count + single)
            if not missing:
                break
        if missing:
            return None
        over = squares - sum(value * value * count for (_, value), count in place.items())
        for _ in range(MOVES):
            step = over and self._step_towards(place, over)
            if not step:
                break
            over -= step
        return total, squares - over

    def _start(self, counts: Sequence[int], squares: int) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
        """Return the number of values at each place, and each bin's place: its middle."""
        bins = {k: (self._low[k] + self._high[k]) // 2 for k, count in enumerate(counts) if count}
        ends = {0: self._high[0], len(counts) - 1: self._low[-1]}
        inner = sum(value * value * counts[k] for k, value in bins.items() if k not in ends)
        outer = sum(counts[k] for k in ends)
        far = math.isqrt(max(0, squares - inner) // outer) if outer else 0
        for k, end in ends.items():
            if k in bins:
                bins[k] = min(end, max(-far, self._low[k])) if k == 0 else max(end, min(far, self._high[k]))
        return {(k, value): counts[k] for k, value in bins.items()}, bins

    def _step_towards(self, place: dict[tuple[int, int], int], over: int) -> int:
        """Move pairs of numbers by one, apart or together; return the change of their sum of squares."""
        apart = over > 0
        keys = sorted(place, key=lambda key: key[1])
        upwards = [key for key in keys if key[1] < self._high[key[0]]]
        downwards = [key for key in keys if key[1] > self._low[key[0]]]
        values = [key[1] for key in (downwards if apart else upwards)]
        most = abs(over) // 2 + (-1 if apart else 1)  # maximum difference of the two values
        best: tuple[int, tuple[int, int], tuple[int, int]] | None = None
        for key in upwards if apart else downwards:
            at = bisect_left(values, key[1] - most)
            if at == len(values):
                continue
            other = (downwards if apart else upwards)[at]
            difference = key[1] - other[1]
            if difference < (0 if apart else 2) or (key == other and place[key] < 2):
                continue
            if best is None or difference > best[0]:
                best = difference, key, other
        if best is None:
            return 0
        difference, one, two = best
        each = 2 * difference + 2 if apart else 2 - 2 * difference
        many = min(place[one] // 2 if one == two else min(place[one], place[two]), over // each)
        way = 1 if apart else -1
        for (bin, value), by in ((one, way), (two, -way)):
            place[bin, value] -= many
            place[bin, value + by] = place.get((bin, value + by), 0) + many
        for key in (one, two):
            if not place.get(key, 1):
                del place[key]
        return many * each
