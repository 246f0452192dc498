"""The sums from which sites compute common statistics: whole numbers, so that only their exact sum is visible.

    first round     records; per column the filled and the empty cells, sum and sum of squares; per category the
                    number of sites with it
    second round    histograms, on edges computed from the first; records of each category

A number x counts as the whole number nearest to x 2^shift, of at most 2^104: 53 bits and more at any scale; n S2 - S1^2
loses nothing.

**Noise** hides a single record from all participants.  Every number is divided by a record's maximum contribution,
rounded to grains, and gets discrete Gaussian noise in grains (`secure.noise`).  A record counts in the number of
records, in each column as missing or in sum and squares, in one bin or category.  Its length is therefore bounded, and
each round is one Gaussian release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.data.agreed.suppression import EDGES, ColumnSums
from fedgossip.data.columns.table_schema import DROP, MEAN, SchemaColumn, SiteColumns, TableSchema
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.secure.noise import discrete_gaussian
from fedgossip.secure.primitives import Entropy

BINS = 32
"""Number of bins of a histogram; without declared bounds plus one on each side."""
SPREAD = 4
"""Range of a histogram without declared bounds: deviations on each side of the mean."""
UNBOUNDED = 40
"""Bits of the largest number of a column without declared bounds."""
PRECISION = 104
"""Bits of the largest whole number that represents a number."""
RECORDS = 1 << 31
"""Maximum number of records of a site."""
SITES = 3
"""Minimum number of sites with a category for its count: a sum over fewer discloses each site's count."""

NOBODY = ""
"""Name of the empty cells in place of a category; no category has this name."""

Name = tuple[str, ...]

GRAIN = 1 << 16
"""Grains per maximum contribution of one record to a number."""
NORMAL_95 = 1.959964
"""Quantile: the standard normal is within this distance of 0 in 95 % of cases."""
MOST = 12
"""Number of standard deviations of noise within a number's bound."""


def check_bounded(schema: TableSchema) -> None:
    """Raise ConfigError for a column without declared bounds: a record's contribution to its sum is unbounded."""
    for one in schema.columns:
        if not one.categories and not one.bounded:
            text = f"column {one.name!r} has no bounds, so no noise can hide a record in its sum"
            raise ConfigError(text, f'Declare them: [data.columns] "{one.name}" = {{ low = ..., high = ... }}.')


def length_of(schema: TableSchema, round: int) -> float:
    """Return the maximum length of one record's contribution to the numbers of a round, in their units."""
    if round:
        return math.sqrt(len(schema.columns))
    gaps = schema.missing == MEAN or schema.counts_empty
    return math.sqrt(1 + sum((gaps and not one.label) if one.categories else 2 for one in schema.columns))


def deviation_of(schema: TableSchema, round: int, names: int, multiplier: float) -> float:
    """Return the standard deviation of noise on each of `names` numbers, in grains, with the effect of rounding."""
    return grains_of(length_of(schema, round), names, multiplier)


def grains_of(length: float, names: int, multiplier: float) -> float:
    """Return the standard deviation of noise on each of `names` numbers, in grains, from a record's
    `length` in units.
    """
    return multiplier * (length * GRAIN + math.sqrt(names))


def unit_of(column: SchemaColumn, what: str, shift: int) -> int:
    """Return one record's maximum contribution to a number of this column."""
    if what not in ("sum", "squares"):
        return 1
    largest = math.ceil(math.ldexp(max(abs(column.low or 0.0), abs(column.high or 0.0)), shift))
    return largest if what == "sum" else largest * largest


def hidden(
    numbers: Mapping[Name, int], units: Callable[[Name], int], deviation: float, entropy: Entropy
) -> dict[Name, int]:
    """Return the numbers with noise; they depend on nothing finer than their noisy grains."""
    draws: Sequence[int] = discrete_gaussian(deviation, len(numbers), entropy).tolist()
    found = {}
    for (name, value), draw in zip(numbers.items(), draws, strict=True):
        unit = units(name)
        found[name] = divided((divided(value * GRAIN, unit) + draw) * unit, GRAIN)
    return found


def half_width(deviation: float, unit: int, sites: int) -> float:
    """Return the maximum shift by noise of a sum over `sites`, at 95 % confidence, in the units of the number.

    The sum has variance sites * ((deviation * unit / GRAIN)^2 + 1/12), the twelfth for rounding, and a normal interval;
    a discrete Gaussian above a few grains has its `deviation` (Canonne, Kamath and Steinke, The discrete Gaussian for
    differential privacy, NeurIPS 2020).
    """
    return NORMAL_95 * math.sqrt(sites * ((deviation * unit / GRAIN) ** 2 + 1 / 12))


def divided(number: int, by: int) -> int:
    """Return the whole number nearest to a quotient, ties to even, so rounding has no bias."""
    down, rest = divmod(number, by)
    return down + (2 * rest > by or (2 * rest == by and down % 2))


Numbers = Mapping[Name, int]


OUTSIDE: Name = "outside", "at"
"""Number of sites at which data.where leaves out records."""


def is_about_records(name: Name) -> bool:
    """Return whether a number depends on records, and not only on sites."""
    return name != ("sites",) and name[1:2] != ("at",)


def round_of(name: Name) -> int:
    """Return the round that sums a number."""
    return int(name[1:2] in (("bin",), ("of",)))


def shift_of(column: SchemaColumn) -> int:
    """Return the number of fractional bits of this column's numbers."""
    largest = max(abs(column.low or 0.0), abs(column.high or 0.0))
    return PRECISION - (math.frexp(largest)[1] if column.bounded and largest else UNBOUNDED)


@dataclass(frozen=True)
class SumLayout:
    """The position of each number in a vector, for a schema."""

    schema: TableSchema
    noise: float = 0.0
    """Noise in units of one record's maximum contribution; 0: exact sums."""

    @property
    def asks_before(self) -> bool:
        """Whether a round before the others counts the sites at which data.where leaves out records; noise hides it."""
        return bool(self.schema.where) and not self.noise

    @cached_property
    def bounds(self) -> Mapping[Name, int]:
        """Return the maximum magnitude of each number of a site, in the order of the vector."""
        if not self.noise:
            return self._exactly
        room = math.ceil(MOST * self.noise * (len(self._exactly) + 1))
        return {name: bound + room * self.unit(name) for name, bound in self._exactly.items()}

    @cached_property
    def _exactly(self) -> Mapping[Name, int]:
        found: dict[Name, int] = {("sites",): 1} | ({OUTSIDE: 1} if self.asks_before else {}) | {("records",): RECORDS}
        if self.schema.missing == DROP:
            found["dropped",] = RECORDS
        for one in self.schema.columns:
            found[one.name, "missing"] = RECORDS
            if self.schema.counts_empty and not one.label:
                found[one.name, "at", NOBODY] = 1
            if one.categories:
                found |= {(one.name, "at", category): 1 for category in one.categories}
                found |= {(one.name, "of", category): RECORDS for category in one.categories}
            else:
                found |= {(one.name, "sum"): RECORDS << PRECISION, (one.name, "squares"): RECORDS << 2 * PRECISION}
                found |= {(one.name, "bin", str(k)): RECORDS for k in range(BINS + 2)}
        return found

    @property
    def exact(self) -> ExactSums:
        return ExactSums(tuple(self.bounds.values()), layout=self.schema.digest)

    def hidden(self, numbers: Numbers, round: int, entropy: Entropy) -> Numbers:
        """Return a site's numbers of a round with the noise of the layout, as sent."""
        if not self.noise:
            return numbers
        about_records = {name: value for name, value in numbers.items() if is_about_records(name)}
        noisy = hidden(about_records, self.unit, self._deviation(round), entropy)
        return noisy | ({("sites",): 1} if ("sites",) in numbers else {})

    def _deviation(self, round: int) -> float:
        names = sum(is_about_records(name) and round_of(name) == round for name in self._exactly)
        return deviation_of(self.schema, round, names, self.noise)

    def margin(self, name: Name, sites: int) -> float:
        """Return the maximum shift by noise of a sum over `sites`, at 95 % confidence; 0 without noise."""
        return half_width(self._deviation(round_of(name)), self.unit(name), sites) if self.noise else 0.0

    def unit(self, name: Name) -> int:
        """Return one record's maximum contribution to a number."""
        column = next((one for one in self.schema.columns if one.name == name[0] and len(name) > 1), None)
        return 1 if column is None else unit_of(column, name[1], shift_of(column))

    def vector(self, numbers: Numbers) -> Vector:
        """Return a vector of the numbers; absent names are 0."""
        return as_vector(words_of([numbers.get(name, 0) for name in self.bounds]))

    def numbers(self, vector: Vector) -> Numbers:
        """Return the numbers of a vector by their names.  Raises ConfigError for an invalid vector."""
        words = words_in(vector)
        if words is None or words.size != self.exact.length:
            raise ConfigError(
                "the received vector holds no sums of columns", "Were all started with the same experiment file?"
            )
        return dict(zip(self.bounds, integers_of(words), strict=True))


@dataclass(frozen=True)
class ColumnMoments:
    """Count, mean and deviation of a column of numbers over all sites."""

    count: int
    mean: float
    deviation: float

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        half = SPREAD * self.deviation or 1.0
        return np.linspace(self.mean - half, self.mean + half, BINS + 1)


def moments_of(column: SchemaColumn, numbers: Numbers, *, noisy: bool = False) -> ColumnMoments:
    """Return count, mean and deviation, each the float64 nearest to the exact value from the sums.

    Impossible values of `noisy` sums are clipped; an impossible deviation is replaced by that of evenly spread numbers.
    """
    count = numbers["records",] - numbers[column.name, "missing"]
    if count < 1:
        return ColumnMoments(0, 0.0, 0.0)
    sums = column_sums(column, numbers)
    mean, variance = sums.mean, sums.variance
    if noisy and column.low is not None and column.high is not None:
        most = (column.high - column.low) / 2
        within = min(max(float(mean), column.low), column.high)
        spread = math.sqrt(variance) if 0 < variance <= most * most else most / math.sqrt(3)
        return ColumnMoments(count, within, spread)
    return ColumnMoments(count, float(mean), math.sqrt(variance))


def column_sums(column: SchemaColumn, numbers: Numbers) -> ColumnSums:
    """Return the sums of a non-empty column of numbers."""
    count = numbers["records",] - numbers[column.name, "missing"]
    return ColumnSums(count, numbers[column.name, "sum"], numbers[column.name, "squares"], shift_of(column))


def edges_of(column: SchemaColumn, numbers: Numbers, *, noisy: bool = False) -> npt.NDArray[np.float64]:
    """Return the BINS + 1 edges of a column's histogram, the same at all sites, from the sums of the first round.

    Without declared bounds from the moments; rounded moments if cells are empty, or bins have few possible values.
    """
    if column.bounded:
        return np.linspace(column.low or 0.0, column.high or 0.0, BINS + 1)
    moments = moments_of(column, numbers, noisy=noisy)
    if moments.count and not noisy:
        sums = column_sums(column, numbers)
        if numbers[column.name, "missing"] or sums.is_coarse(2 * SPREAD * moments.deviation / BINS):
            moments = ColumnMoments(moments.count, *sums.moments(EDGES))
    return moments.edges


def first_sums(site: SiteColumns) -> dict[Name, int]:
    """Return a site's numbers of the first round.  Raises ConfigError for a number that is too large."""
    found: dict[Name, int] = {("sites",): 1, ("records",): site.records}
    if site.schema.missing == DROP:
        found["dropped",] = site.dropped
    for one in site.schema.columns:
        cells = site.cells[one.name]
        found[one.name, "missing"] = sum(cell is None for cell in cells)
        if site.schema.counts_empty and not one.label:
            found[one.name, "at", NOBODY] = int(found[one.name, "missing"] > 0)
        if one.categories:
            found |= {(one.name, "at", category): int(category in cells) for category in one.categories}
            continue
        whole = _round_to_whole(one, site.numbers(one.name))
        found |= {(one.name, "sum"): sum(whole), (one.name, "squares"): sum(value * value for value in whole)}
    return found


def _round_to_whole(column: SchemaColumn, values: npt.NDArray[np.float64]) -> Sequence[int]:
    shifted = [int(value) for value in np.rint(np.ldexp(values, shift_of(column))).tolist()]
    if max(map(abs, shifted), default=0) > 1 << PRECISION:
        text = f"column {column.name!r} has numbers beyond 2^{UNBOUNDED}"
        raise ConfigError(text, f'Declare its bounds: [data.columns] "{column.name}" = {{ low = ..., high = ... }}.')
    return shifted


def second_sums(site: SiteColumns, pooled: Numbers, *, noisy: bool = False) -> dict[Name, int]:
    """Return a site's numbers of the second round, given the sums of the first; `noisy`: noise will
    hide each record.
    """
    found: dict[Name, int] = {}
    for one in site.schema.columns:
        if one.categories:
            cells = site.cells[one.name]
            enough = {category for category in one.categories if pooled[one.name, "at", category] >= SITES}
            counted = [category for category in one.categories if noisy or category in enough]
            found |= {(one.name, "of", category): cells.count(category) for category in counted}
            continue
        edges = edges_of(one, pooled, noisy=noisy)
        for place, count in enumerate(histogram(site.numbers(one.name), edges)):
            found[one.name, "bin", str(place)] = count
    return found


def histogram(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> Sequence[int]:
    """Return the number of values below the edges, in each bin [a, b), the last including b, and above."""
    inner, _ = np.histogram(values, edges)
    return [int((values < edges[0]).sum()), *map(int, inner), int((values > edges[-1]).sum())]


def margins_of(column: SchemaColumn, numbers: Numbers, layout: SumLayout) -> dict[str, float]:
    """Return the maximum shift by noise of a column's figures, at 95 % confidence: half the width of each interval.

    By name: count, missing; of numbers mean, deviation and bin; of categories each.  With N numbers (records less
    missing cells), sum S and squares Q the mean m = S/N moves by (dS - m dN)/N, the variance v = Q/N - m^2 by (dQ - 2m
    dS + (m^2 - v) dN)/N: the delta method (Casella and Berger, Statistical Inference, 5.5.4).  If noise can move N by
    half, or a variance out of range, the interval is the bounds' width.
    """
    sites = numbers["sites",]
    of = {"missing": layout.margin((column.name, "missing"), sites)}
    of["count"] = h_n = math.hypot(layout.margin(("records",), sites), of["missing"])
    if column.categories:
        return of | {"category": layout.margin((column.name, "of", ""), sites)}
    of["bin"] = layout.margin((column.name, "bin", ""), sites)
    shift, n = shift_of(column), numbers["records",] - numbers[column.name, "missing"]
    h_s = math.ldexp(layout.margin((column.name, "sum"), sites), -shift)
    h_q = math.ldexp(layout.margin((column.name, "squares"), sites), -2 * shift)
    width = (column.high or 0.0) - (column.low or 0.0)
    of |= {"mean": width, "deviation": width / 2}
    if n < 1 or 2 * h_n >= n:
        return of
    sums = column_sums(column, numbers)
    m, v = float(sums.mean), float(sums.variance)
    of["mean"] = min(width, math.hypot(h_s, m * h_n) / n)
    if 0 < v <= (width / 2) ** 2:
        h_v = math.hypot(h_q, 2 * m * h_s, (m * m - v) * h_n) / n
        below, above = math.sqrt(max(0.0, v - h_v)), math.sqrt(v + h_v)
        of["deviation"] = min(width / 2, max(math.sqrt(v) - below, above - math.sqrt(v)))
    return of
