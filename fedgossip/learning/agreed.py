"""agreed.json: the columns and statistics that the sites have agreed on, the same bytes at all of them.

It is made of the sums over all sites alone.  Counts below `suppress` are left out, and a second one where one alone
could be found by subtraction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from fedgossip.learning.column_sums import SITES, Numbers, edges_of, moments_of
from fedgossip.learning.encodings import EncodedColumn, TableEncoding
from fedgossip.learning.table_schema import MEAN, SchemaColumn, TableSchema
from fedgossip.learning.told_files import encoded, read_told

FORMAT = 1
COUNTS = (("missing",), ("bin",), ("of",))
"""What of a column's numbers is counts."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class AgreedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One column, of all sites together; `counts` and `sites` are None where they are too small to be told."""

    name: str
    unit: str = ""
    label: bool = False
    count: int
    """Of cells that are not empty."""
    missing: int = 0
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    """Edges of the histogram beyond which there are fewer numbers than are told."""
    quantiles: Mapping[str, float] = {}
    """By the share that lies below, as the histogram gives them."""
    edges: tuple[float, ...] = ()
    counts: tuple[int | None, ...] = ()
    """Of the categories; or of the histogram: below its edges, each bin, above."""
    categories: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    """What an empty cell of a column of categories counts as."""
    uncounted: tuple[str, ...] = ()
    """Categories that so few sites have that they were not counted."""


class AgreedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file."""

    format: int = FORMAT
    schema: TableSchema
    suppress: int
    sites: int
    records: int
    columns: tuple[AgreedColumn, ...]
    noise: float = 0.0
    """On each site's sums, in units of what one record can add to them; 0: they are exact."""

    @property
    def digest(self) -> str:
        """A hash, by which participants that have other statistics refuse each other."""
        return hashlib.sha256(encoded(self)).hexdigest()

    @property
    def encoding(self) -> TableEncoding:
        """How a table becomes numbers, before they are scaled."""
        known = {one.name: one for one in self.columns}
        return TableEncoding(tuple(self._encoded(one, known[one.name]) for one in self.schema.features))

    def _encoded(self, column: SchemaColumn, agreed: AgreedColumn) -> EncodedColumn:
        fill = agreed.shares if column.categories else (agreed.mean or 0.0,)
        filled = fill if self.schema.missing == MEAN else ()
        return EncodedColumn(column.name, column.unit, column.categories, filled)

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each feature; a constant one is divided by 1, one of a category not scaled."""
        mean: list[float] = []
        deviation: list[float] = []
        for one in (column for column in self.columns if not column.label):
            mean += [0.0] * len(one.categories) or [one.mean or 0.0]
            deviation += [1.0] * len(one.categories) or [one.deviation or 1.0]
        return tuple(mean), tuple(deviation)

    @property
    def label_scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each label column of numbers."""
        labels = [one for one in self.columns if one.label]
        return tuple(one.mean or 0.0 for one in labels), tuple(one.deviation or 1.0 for one in labels)

    @property
    def constant(self) -> Sequence[str]:
        """The columns of numbers that have one value at every site."""
        return [one.name for one in self.columns if not one.label and one.deviation == 0.0]


def agreed_of(schema: TableSchema, numbers: Numbers, suppress: int, noise: float = 0.0) -> AgreedTable:
    """Return what the sums over the sites say; with `noise` counts below 0 are 0, and no category is left out."""
    sites, records = numbers["sites",], max(0, numbers["records",])
    if noise:
        numbers = {name: max(0, value) if name[1:2] in COUNTS else value for name, value in numbers.items()}
        numbers = {name: SITES if name[1:2] == ("at",) else value for name, value in numbers.items()}
    columns = tuple(_column(one, numbers, suppress, noisy=bool(noise)) for one in schema.columns)
    return AgreedTable(schema=schema, suppress=suppress, sites=sites, records=records, columns=columns, noise=noise)


def _column(column: SchemaColumn, numbers: Numbers, suppress: int, *, noisy: bool) -> AgreedColumn:
    missing = numbers[column.name, "missing"]
    count = numbers["records",] - missing
    if not column.categories:
        return _of_numbers(column, numbers, suppress, noisy=noisy)
    counts = [numbers[column.name, "of", category] for category in column.categories]
    total = sum(counts)
    few = tuple(one for one in column.categories if 0 < numbers[column.name, "at", one] < SITES)
    told = suppressed(counts, suppress, {column.categories.index(one) for one in few})
    return AgreedColumn(
        name=column.name,
        unit=column.unit,
        label=column.label,
        count=count,
        missing=missing,
        categories=column.categories,
        counts=told,
        shares=() if column.label else tuple(one / max(1, total) for one in spread(told, total)),
        uncounted=few,
    )


def _of_numbers(column: SchemaColumn, numbers: Numbers, suppress: int, *, noisy: bool) -> AgreedColumn:
    moments = moments_of(column, numbers, noisy=noisy)
    edges = edges_of(column, moments)
    counts = [numbers[column.name, "bin", str(place)] for place in range(len(edges) + 1)]
    ends = np.array([edges[0], *edges, edges[-1]])
    told = suppressed(counts, suppress)
    below = np.cumsum(counts)
    known = np.cumsum(spread(told, sum(counts)))
    enough = [place for place in range(len(counts)) if below[place] >= suppress]
    above = [place for place in range(len(counts)) if sum(counts[place:]) >= suppress]
    return AgreedColumn(
        name=column.name,
        unit=column.unit,
        label=column.label,
        count=moments.count,
        missing=numbers[column.name, "missing"],
        mean=moments.mean,
        deviation=moments.deviation,
        low=float(ends[enough[0]]) if enough else None,
        high=float(ends[above[-1] + 1]) if above else None,
        quantiles={f"{share:g}": _quantile(share, known, ends) for share in QUANTILES if moments.count >= suppress},
        edges=tuple(edges.tolist()),
        counts=told,
    )


def spread(told: Sequence[int | None], total: int) -> Sequence[float]:
    """Return the counts, with what is left of the total in equal parts where none is told: nothing else is used."""
    hidden = sum(one is None for one in told)
    left = (total - sum(one or 0 for one in told)) / max(1, hidden)
    return [left if one is None else float(one) for one in told]


def _quantile(share: float, below: np.ndarray, ends: np.ndarray) -> float:
    """Return the number below which this share lies, as if each bin were filled evenly."""
    wanted = share * below[-1]
    place = min(int(np.searchsorted(below, wanted)), len(below) - 1)
    before = below[place - 1] if place else 0
    inside = (wanted - before) / max(below[place] - before, 1e-300)
    return float(ends[place] + inside * (ends[place + 1] - ends[place]))


def suppressed(counts: Sequence[int], least: int, never: set[int] | None = None) -> tuple[int | None, ...]:
    """Return the counts without those from 1 to `least` - 1, and without `never`.

    Where that leaves out one alone, the next smallest goes too: the total is told elsewhere.
    """
    hidden = {place for place, count in enumerate(counts) if 0 < count < least} | (never or set())
    others = [place for place, count in enumerate(counts) if place not in hidden and count]
    if len(hidden) == 1 and others:
        hidden.add(min(others, key=lambda place: counts[place]))
    return tuple(None if place in hidden else count for place, count in enumerate(counts))


def read(path: Path) -> AgreedTable:
    """Read the file.  Raises ConfigError where it is not there, or none."""
    advice = "The sites make it together: fedgossip data agree EXPERIMENT."
    return read_told(AgreedTable, path, FORMAT, "statistics agreed", advice)
