"""The columns and statistics that sites agree on, the two rounds of sums that compute them, and examples in that form.

agreed.json, the same bytes at all sites, neither contains nor discloses a count below `suppress` (`suppression`);
disclosing means and deviations are replaced by the common test file's.  An example has its columns by name, categories
as features, and one scale.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import is_missing
from fedgossip.base.errors import ConfigError, plural
from fedgossip.base.untrusted_text import line
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job
from fedgossip.data.agreed.column_sums import (
    NOBODY,
    OUTSIDE,
    SITES,
    ColumnMoments,
    Numbers,
    SumLayout,
    column_sums,
    edges_of,
    first_sums,
    margins_of,
    moments_of,
    second_sums,
)
from fedgossip.data.agreed.sums_task import (
    Draw,
    PooledSumsTask,
    draw_system_entropy,
    encoded,
    find_places,
    read_sums_file,
)
from fedgossip.data.agreed.suppression import PublishedMoments, hidden_places, is_small, round_moments
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding, parted
from fedgossip.data.columns.table_schema import (
    DROP,
    INDICATOR,
    LEVELS,
    MEAN,
    SchemaColumn,
    SiteColumns,
    TableSchema,
    find_columns,
    number_of,
    options_of,
    read_features,
    refused,
    unlike,
)
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.data import standardised
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile

FORMAT = 1
COUNTS = (("missing",), ("bin",), ("of",))
"""Name parts, after the column, of the sums that are counts."""
ROUNDING = 1e-9
"""Share of a column's step by which a bin's end may miss a multiple of it."""
FARTHEST = 1e30
"""Bound of means, deviations and edges, and of 1 / deviation: float32 holds no larger numbers."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class AgreedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One column over all sites; `counts` and `sites` are None if they are too small to publish."""

    name: str
    unit: str = ""
    label: bool = False
    count: int
    """Number of nonempty cells; of all cells if the number of empty ones is withheld."""
    missing: int | None = 0
    """Number of empty cells."""
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    """Edges of the histogram; too few numbers to publish are beyond them."""
    quantiles: Mapping[str, float] = {}
    """Quantiles from the histogram, by the share below."""
    edges: tuple[float, ...] = ()
    counts: tuple[int | None, ...] = ()
    """Counts of the categories; or of the histogram: below its edges, each bin, above."""
    categories: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    """Encoding of an empty cell of a column of categories."""
    uncounted: tuple[str, ...] = ()
    """Categories at too few sites for a count."""
    common: bool = False
    """Whether mean and deviation are those of the common test file, because those of the sites would disclose few
    records."""
    precision: int = 0
    """Moments are rounded to between one and a half of this fraction (1 / precision) of the deviation; 0: they are
    exact.
    """

    margins: Mapping[str, float] = {}
    """Under noise: maximum shift of count, missing, mean and deviation, and of each bin or category, at 95 %
    confidence."""

    levels: int = 0
    """Maximum number of distinct values of a column of numbers; 0: possibly more than `data.levels`."""
    codes: tuple[float, ...] = ()
    """Least and greatest of `levels` evenly spaced values, and their spacing or more; () if unknown."""
    indicated: bool = False
    """Whether an empty cell is a separate feature: with enough records, at enough sites."""
    rare: bool = False
    """Whether one of these values has fewer than `suppress` records, at the histogram's resolution."""
    imputed: bool = False
    """Whether empty cells are drawn: with enough records, at enough sites."""

    @property
    def spectrum(self) -> tuple[int, ...]:
        """How many records have each of `codes`, in ascending order; () if unknown."""
        found = tuple(one for one in self.counts if one)
        return found if self.codes and len(found) == self.levels and sum(found) == self.count else ()

    @property
    def is_two_valued(self) -> bool:
        """Whether its filled cells have one of two known values."""
        return len(self.categories) == 2 or (self.levels == 2 and bool(self.codes))

    @property
    def is_coded(self) -> bool:
        """Whether its numbers count as categories in a fit; sums over an outcome do not separate three values."""
        return 0 < self.levels <= 2 or (self.levels > 0 and not self.label)


class AgreedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of agreed.json."""

    format: int = FORMAT
    schema: TableSchema
    suppress: int
    sites: int
    records: int
    columns: tuple[AgreedColumn, ...]
    noise: float = 0.0
    """Noise on each site's sums, in units of one record's maximum contribution; 0: exact sums."""
    records_margin: float | msgspec.UnsetType = msgspec.UNSET
    """Under noise: maximum shift of the number of records, at 95 % confidence."""
    dropped: int | msgspec.UnsetType | None = msgspec.UNSET
    """Number of rows omitted for an empty cell, if such rows are omitted; None if too few to publish."""

    def counted_outcome(self, family: str) -> AgreedColumn | None:
        """Return the outcome if its exact moments would disclose counts of few records; for a linear model only if it
        has few distinct values.
        """
        labels = (one for one in self.columns if one.label and not one.categories and (one.common or one.precision))
        return next((one for one in labels if one.levels or family == "poisson"), None)

    @property
    def fills(self) -> bool:
        """Whether empty cells have a number in a fit."""
        return self.schema.missing == MEAN or self.schema.counts_empty

    @property
    def digest(self) -> str:
        """Return a hash; participants with different statistics refuse each other by it."""
        return hashlib.sha256(encoded(self)).hexdigest()

    @property
    def encoding(self) -> TableEncoding:
        """The encoding of a table as numbers, before scaling."""
        known = {one.name: one for one in self.columns}
        labels = tuple(
            EncodedColumn(one.name, one.unit, one.categories, declared=one.declared)
            for one in self.schema.labels if one.declared
        )  # fmt: skip
        columns = tuple(self._encoded(one, known[one.name]) for one in self.schema.features)
        return TableEncoding(columns, labels or msgspec.UNSET)

    def _encoded(self, column: SchemaColumn, agreed: AgreedColumn) -> EncodedColumn:
        fill = agreed.shares if column.categories else (agreed.mean or 0.0,)
        if agreed.indicated:
            fill = (*((0.0,) * len(fill) if column.categories else fill), 1.0)
        filled = fill if self.fills else ()
        return EncodedColumn(
            column.name, column.unit, column.categories, filled, column.declared, indicator=agreed.indicated
        )

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each feature; the scale is 1 for a constant, a category is not scaled."""
        mean: list[float] = []
        deviation: list[float] = []
        for one in (column for column in self.columns if not column.label):
            mean += [0.0] * len(one.categories) or [one.mean or 0.0]
            deviation += [1.0] * len(one.categories) or [one.deviation or 1.0]
            mean += [0.0] * one.indicated
            deviation += [1.0] * one.indicated
        return tuple(mean), tuple(deviation)

    @property
    def label_scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and deviation of each label column of numbers."""
        labels = [one for one in self.columns if one.label]
        return tuple(one.mean or 0.0 for one in labels), tuple(one.deviation or 1.0 for one in labels)

    @property
    def drowned(self) -> Sequence[str]:
        """Return the columns of numbers with noise as large as their deviation: their scale is uncertain."""
        return [one.name for one in self.columns if one.margins.get("deviation", 0.0) >= (one.deviation or math.inf)]

    @property
    def constant(self) -> Sequence[str]:
        """Return the columns of numbers with one value at every site."""
        return [one.name for one in self.columns if not one.label and one.deviation == 0.0]


Common = Callable[[SchemaColumn], ColumnMoments]
"""Returns the moments of a column of the common test file."""


def agreed_of(
    schema: TableSchema,
    numbers: Numbers,
    suppress: int,
    noise: float = 0.0,
    common: Common | None = None,
    levels: int = LEVELS,
) -> AgreedTable:
    """Return the statistics from the sums over sites; with `noise` negative counts become 0, and no category is
    omitted.
    """
    sites, records = numbers["sites",], max(0, numbers["records",])
    if noise:
        numbers = {name: max(0, value) if name[1:2] in COUNTS else value for name, value in numbers.items()}
        numbers = {name: SITES if name[1:2] == ("at",) else value for name, value in numbers.items()}
    layout = SumLayout(schema, noise)
    columns = tuple(
        _agree_categories(one, numbers, suppress) if one.categories
        else _noisy_numbers(one, numbers, suppress) if noise
        else _agree_numbers(one, numbers, suppress, common, levels)
        for one in schema.columns
    )  # fmt: skip
    if schema.counts_empty:
        what = "indicated" if schema.missing == INDICATOR else "imputed"
        columns = tuple(_often_empty(one, numbers, suppress, what) for one in columns)
    margin: float | msgspec.UnsetType = msgspec.UNSET
    if noise:
        margins = [margins_of(one, numbers, layout) for one in schema.columns]
        columns = tuple(msgspec.structs.replace(one, margins=of) for one, of in zip(columns, margins, strict=True))
        margin = layout.margin(("records",), sites)
    return AgreedTable(
        schema=schema, suppress=suppress, sites=sites, records=records, columns=columns, noise=noise,
        records_margin=margin, dropped=_dropped(schema, numbers, suppress),
    )  # fmt: skip


def _dropped(schema: TableSchema, numbers: Numbers, suppress: int) -> int | msgspec.UnsetType | None:
    if schema.missing != DROP:
        return msgspec.UNSET
    dropped = max(0, numbers["dropped",])
    return None if is_small(dropped, suppress) else dropped


def _often_empty(column: AgreedColumn, numbers: Numbers, suppress: int, what: str) -> AgreedColumn:
    """Return a column with the flag `what`, if enough records at enough sites are empty: sums may differ by them."""
    enough = not column.label and numbers[column.name, "at", NOBODY] >= SITES
    there = column.missing is not None and column.missing >= suppress and column.count >= suppress
    return msgspec.structs.replace(column, **{what: True}) if enough and there else column


def _agree_categories(column: SchemaColumn, numbers: Numbers, suppress: int) -> AgreedColumn:
    missing, records = numbers[column.name, "missing"], max(0, numbers["records",])
    counts = [numbers[column.name, "of", category] for category in column.categories]
    few = tuple(one for one in column.categories if 0 < numbers[column.name, "at", one] < SITES)
    apart = {column.categories.index(one) for one in few}
    hidden = hidden_places([*counts, missing], suppress, apart, records - missing - sum(counts))
    *published, empty = _without([*counts, missing], hidden)
    shares = spread([*published, empty], records)[:-1]
    return AgreedColumn(
        name=column.name,
        unit=column.unit,
        label=column.label,
        count=records - (empty or 0),
        missing=empty,
        categories=column.categories,
        counts=tuple(published),
        shares=() if column.label else tuple(one / max(1, sum(shares)) for one in shares),
        uncounted=few,
    )


def _without(cells: Sequence[int], hidden: Collection[int]) -> list[int | None]:
    return [None if place in hidden else count for place, count in enumerate(cells)]


def _agree_numbers(
    column: SchemaColumn, numbers: Numbers, suppress: int, common: Common | None, levels: int
) -> AgreedColumn:
    edges = edges_of(column, numbers)
    missing = numbers[column.name, "missing"]
    counts = [numbers[column.name, "bin", str(place)] for place in range(len(edges) + 1)]
    if not sum(counts):
        published = PublishedMoments(frozenset(), (0.0, 0.0))
    else:
        sums = column_sums(column, numbers)
        published = round_moments(sums, counts, missing, edges, suppress, own=not column.bounded)
    moments = published.moments or _common_moments(column, common)
    *shown, empty = _without([*counts, missing], published.hidden)
    found = AgreedColumn(
        name=column.name, unit=column.unit, label=column.label,
        count=numbers["records",] - (empty or 0), missing=empty,
        mean=moments[0], deviation=moments[1], common=published.moments is None, precision=published.precision,
    )  # fmt: skip
    if 0 < published.values <= levels:
        rare = any(is_small(count, suppress) for count in (*counts, published.beyond))
        found = msgspec.structs.replace(found, levels=published.values, rare=rare)
    if not published.edges:
        return found
    if found.levels and not found.rare:
        found = msgspec.structs.replace(found, codes=published.codes)
    return _add_histogram(found, shown, numbers["records",], edges, suppress, published.step)


def common_moments(test: str, column: SchemaColumn) -> ColumnMoments:
    """Return the moments of a column of the common test file, which all sites have."""
    table = CsvColumns(options_of(test)[0]).declared({column.name: column.declared})
    place = find_columns(table, [EncodedColumn(column.name, column.unit)])[column.name]
    there = [row for row, cell in enumerate(table.words(place)) if not is_missing(cell)]
    values = np.array([number_of(table, row, place) for row in there])
    if not len(values):
        return ColumnMoments(0, 0.0, 0.0)
    return ColumnMoments(len(values), float(np.mean(values)), float(np.std(values)))


def _common_moments(column: SchemaColumn, common: Common | None) -> tuple[float, float]:
    if common is None:
        return 0.0, 1.0
    found = common(column)
    return found.mean, found.deviation or 1.0


def _add_histogram(
    column: AgreedColumn,
    published: Sequence[int | None],
    records: int,
    edges: np.ndarray,
    suppress: int,
    step: Fraction | None = None,
) -> AgreedColumn:
    ends = np.array([edges[0], *edges, edges[-1]])
    known = np.cumsum(spread([*published, column.missing], records)[:-1])
    there = [one or 0 for one in published]
    enough = [place for place in range(len(there)) if sum(there[: place + 1]) >= suppress]
    above = [place for place in range(len(there)) if sum(there[place:]) >= suppress]
    shares = QUANTILES if known[-1] >= suppress else ()
    return msgspec.structs.replace(
        column,
        low=float(ends[enough[0]]) if enough else None,
        high=float(ends[above[-1] + 1]) if above else None,
        quantiles={f"{share:g}": _quantile(share, known, ends, step) for share in shares},
        edges=tuple(edges.tolist()),
        counts=tuple(published),
    )


def _noisy_numbers(column: SchemaColumn, numbers: Numbers, suppress: int) -> AgreedColumn:
    """Return a column of noisy sums."""
    moments = moments_of(column, numbers, noisy=True)
    edges, missing = edges_of(column, numbers, noisy=True), numbers[column.name, "missing"]
    counts = [numbers[column.name, "bin", str(place)] for place in range(len(edges) + 1)]
    found = AgreedColumn(
        name=column.name, unit=column.unit, label=column.label, count=moments.count, missing=missing,
        mean=moments.mean, deviation=moments.deviation,
    )  # fmt: skip
    published = _without(counts, hidden_places(counts, suppress))
    return _add_histogram(found, published, sum(counts) + missing, edges, suppress)


def unknown(schema: TableSchema, suppress: int) -> AgreedTable:
    """Return a table with the columns only, for use before the sites agree, when statistics do not matter."""
    columns = tuple(
        AgreedColumn(
            name=one.name,
            unit=one.unit,
            label=one.label,
            count=0,
            categories=one.categories,
            shares=() if one.label else (0.0,) * len(one.categories),
        )
        for one in schema.columns
    )
    return AgreedTable(schema=schema, suppress=suppress, sites=0, records=0, columns=columns)


def spread(published: Sequence[int | None], total: int) -> Sequence[float]:
    """Return the counts, with the rest of the total spread evenly over the withheld ones: it uses nothing else."""
    hidden = sum(one is None for one in published)
    left = max(0, total - sum(one or 0 for one in published)) / max(1, hidden)
    return [left if one is None else float(one) for one in published]


def spread_bins(column: AgreedColumn) -> Sequence[float]:
    """Return the counts of a column's histogram, with the total of the withheld ones spread evenly."""
    return spread([*column.counts, column.missing], column.count + (column.missing or 0))[:-1]


def _quantile(share: float, below: np.ndarray, ends: np.ndarray, step: Fraction | None) -> float:
    """Return a quantile between the ends of its bin; with `step` the nearest of the bin's multiples."""
    wanted = share * below[-1]
    place = min(int(np.searchsorted(below, wanted)), len(below) - 1)
    before = below[place - 1] if place else 0
    inside = (wanted - before) / max(below[place] - before, 1e-300)
    value = float(ends[place] + inside * (ends[place + 1] - ends[place]))
    if step is None:
        return value
    of = float(step)
    last_ends = place == len(below) - 2  # the last bin includes its upper edge
    first = math.ceil(ends[place] / of - ROUNDING)
    last = math.ceil(ends[place + 1] / of + (ROUNDING if last_ends else -ROUNDING)) - 1
    return float(max(first, min(round(value / of), last)) * step)


def read(path: Path) -> AgreedTable:
    """Read the file.  Raises ConfigError if it is missing, invalid, or contradicts itself."""
    advice = "The sites make it together: fedgossip data agree EXPERIMENT."
    found = read_sums_file(AgreedTable, path, FORMAT, "statistics agreed", advice)
    of_schema = [(one.name, one.unit, one.label, one.categories) for one in found.schema.columns]
    if of_schema != [(one.name, one.unit, one.label, one.categories) for one in found.columns]:
        raise ConfigError(f"{path}: its statistics are of other columns than its schema", advice)
    if wrong := [
        one.name for one in found.columns if not _is_consistent(one, math.inf if found.noise else found.records)
    ]:
        raise ConfigError(f"{path}: column {line(wrong[0])!r}: its statistics contradict each other", advice)
    return found


def _is_consistent(one: AgreedColumn, records: float) -> bool:
    """Return whether lists have their lengths, counts are of records, edges ascend, and codes are spaced."""
    cells = len(one.categories) or (len(one.edges) + 1 if one.edges else 0)
    lengths = len(one.counts) == cells and len(one.shares) == len(one.categories) * (not one.label)
    counted = all(0 <= count <= records for count in (one.count, one.missing or 0, *(many or 0 for many in one.counts)))
    ascend = all(a < b for a, b in pairwise(one.edges)) and not 0 != (one.deviation or 0.0) < 1 / FARTHEST
    near = max(map(abs, (one.mean or 0.0, one.deviation or 0.0, *one.edges))) <= FARTHEST
    codes = not one.codes or (len(one.codes) == 3 and one.codes[0] <= one.codes[1] and one.codes[2] > 0)
    return lengths and counted and ascend and near and codes


def read_examples(path: Path | TableFile, agreed: AgreedTable, kind: str) -> Dataset:
    """Return a table's unscaled examples, with their agreed scale; `kind` of the task.  Raises ConfigError if the table
    does not fit.
    """
    return _examples(SiteColumns(path, agreed.schema), agreed, kind)


def read_for_fit(path: Path | TableFile, agreed: AgreedTable, kind: str, without: Sequence[str] = ()) -> Dataset:
    """Return a site's examples for exact sums, `without` some columns.

    Raises ConfigError as `read_examples`, for too few records, and disclosing values.
    """
    site = SiteColumns(path, agreed.schema)
    site.check_left_out(agreed.suppress)
    if site.records < agreed.suppress:
        text = f"fewer than {agreed.suppress} records"
        raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
    for one in agreed.columns:
        if one.name in without or agreed.noise:
            continue
        if one.categories:
            _check_categories(site, one)
        elif one.is_coded:
            _check_levels(site, one, agreed.suppress)
    return _examples(site, agreed, kind)


def read_clusters(path: Path | TableFile, agreed: AgreedTable, name: str) -> npt.NDArray[np.int64]:
    """Return the cluster of each record of `read_for_fit`, [m], from 0, by the words of a column outside the schema.

    Raises ConfigError for a missing column, an empty cell, and too few clusters.
    """
    table = SiteColumns(path, agreed.schema).table
    unit = next((unit for one, unit in map(parted, table.header) if one == name), "")
    place = find_columns(table, [EncodedColumn(name, unit)])[name]
    cells = list(table.words(place))
    if empty := [row for row, cell in enumerate(cells) if is_missing(cell)]:
        raise refused(table, empty[0], place, "nothing there", "Fill the cell, or leave the row out.")
    known, cluster = np.unique(cells, return_inverse=True)
    if len(known) < agreed.suppress:
        text = f"column {name!r} has {plural(len(known), 'different value')}: fewer than {agreed.suppress}"
        raise ConfigError(text, "The sums would disclose each; this site takes no part.")
    return np.asarray(cluster, np.int64)


def _check_categories(site: SiteColumns, column: AgreedColumn) -> None:
    """Raise ConfigError for a category of this site alone: honest statistics count none of fewer than SITES sites."""
    cells = site.cells[column.name]
    own = {name: cells.count(name) for name in column.categories}
    if alone := [name for name, pooled in zip(own, column.counts, strict=True) if pooled and own[name] == pooled]:
        text = f"column {column.name!r}: {alone[0]} is of records of no other site, as the agreed counts have it"
        raise ConfigError(text, f"Sums of it would disclose them: leave the column out, drop={column.name}.")


def _check_levels(site: SiteColumns, column: AgreedColumn, suppress: int) -> None:
    """Raise ConfigError if a value has few records, or occurs only at this site, in a column with few values."""
    values, own = np.unique(site.numbers(column.name), return_counts=True)
    if len(values) < 2:
        return
    edges = np.array(column.edges or (np.inf,))
    bins = np.where(values == edges[-1], len(edges) - 1, np.searchsorted(edges, values, side="right"))
    for value, count, bin in zip(values.tolist(), own.tolist(), bins.tolist(), strict=True):
        pooled = column.counts[bin] if column.edges and (bins == bin).sum() == 1 else None
        if (pooled is None and count < suppress) or pooled == count:
            few = f"under {suppress} records" if pooled is None else "records of no other site"
            text = f"column {column.name!r}: {value:g} is of {few}, so it counts as a rare category"
            raise ConfigError(text, f"Sums of it would disclose them: leave the column out, drop={column.name}.")


def _examples(site: SiteColumns, agreed: AgreedTable, kind: str) -> Dataset:
    schema, encoding, path = agreed.schema, agreed.encoding, site.table.path
    x = read_features(site.table, encoding)
    names = [one.name for one in schema.labels]
    mean, deviation = agreed.scale
    labels = agreed.label_scale if kind == REGRESSION else ((), ())
    if kind == CLASSIFICATION:
        classes = schema.labels[0].categories
        y = np.array([classes.index(str(cell)) for cell in site.cells[names[0]]], np.int64)
    else:
        y = np.stack([site.numbers(name) for name in names], axis=1)
        y = y if kind == REGRESSION else y.astype(np.float32)
        classes = ()
    return Dataset(
        path.stem,
        x,
        y,
        len(classes),
        columns=encoding.features,
        class_names=classes,
        kind=kind,
        label_names=tuple(names),
        encoding=encoding,
        mean=mean,
        deviation=deviation,
        label_mean=labels[0],
        label_deviation=labels[1],
        notes=site.table.notes,
    )


def scaled(examples: Dataset) -> Dataset:
    return standardised(examples, examples)


def check_same(agreed: AgreedTable, schema: object, path: Path) -> None:
    """Raise ConfigError if the statistics in the file at `path` have another schema."""
    if agreed.schema != schema:
        text = f"{path}: agreed on for other columns, categories, bounds or records than the experiment has now"
        raise ConfigError(
            text, "Agree again, fedgossip data agree EXPERIMENT; beside this file by another name in data.agreed."
        )


ROUNDS = 2


def lone_subset(numbers: Numbers) -> str:
    """Return why sums over a subset would be those of one or two sites, by their difference to all; "" if not."""
    sites = numbers.get(OUTSIDE, 0)
    text = f"data.where leaves out records at {plural(sites, 'site')} alone, whose sums would be disclosed"
    return text if 0 < sites < SITES else ""


class StatisticsTask(PooledSumsTask):
    """The records of the local sites, by their ids; other sites run elsewhere."""

    again = "fedgossip data agree"

    def __init__(
        self,
        schema: TableSchema,
        sites: Mapping[NodeId, SiteColumns],
        noise: float = 0.0,
        draw: Draw = draw_system_entropy,
        common: Common | None = None,
        levels: int = LEVELS,
    ) -> None:
        """`common`: moments of the common test file, used if those of the sites may not be published."""
        self.common, self.levels = common, levels
        self.layout, self.sites, self._draw = SumLayout(schema, noise), sites, draw
        self._sent: dict[tuple[NodeId, int], Vector] = {}
        """Noisy sums are drawn once per site and round; a repeated request returns the same numbers."""
        super().__init__(self.layout.exact, schema.digest)
        for node, site in sites.items():
            try:
                first_sums(site)
            except ConfigError as error:
                raise ConfigError(f"site {node}: {error}", error.advice) from None

    @property
    def notes(self) -> list[str]:
        """Return notes on the tables of the local sites."""
        return [note for site in self.sites.values() for note in site.table.notes]

    def units_unlike(self, table: AgreedTable) -> Iterator[str]:
        """Yield local columns whose mean differs from the other sites' by the factor of a unit; the site computes the
        others' mean from the agreed one and its own.
        """
        for one in () if table.noise else table.columns:
            if one.categories or one.common or one.mean is None or one.deviation is None:
                continue
            for node, site in sorted(self.sites.items()):
                own = site.numbers(one.name)
                others = one.count - len(own)
                if others < 1 or not len(own):
                    continue
                mean = (one.mean * one.count - float(own.sum())) / others
                squares = (one.deviation**2 + one.mean**2) * one.count - float((own**2).sum())
                deviation = math.sqrt(max(0.0, squares / others - mean**2))
                yield from (f"site {node}: {line}" for line in unlike(one.name, own, mean, deviation, "all others"))

    def sums(self, job: Job) -> Vector:
        named = job.node, job.round
        if named not in self._sent:
            numbers = self.layout.hidden(self._numbers(job), job.round, self._draw(*named))
            self._sent[named] = self.layout.vector(numbers)
        return self._sent[named]

    def _numbers(self, job: Job) -> Numbers:
        site, before = self.sites[job.node], self.layout.asks_before
        if job.round == 0 and before:
            return {("sites",): 1, OUTSIDE: int(site.left_out > 0)}
        if job.round == before:
            found = first_sums(site)
            return {name: one for name, one in found.items() if not (before and name == ("sites",))}
        pooled = self.layout.numbers(job.vector)
        if not pooled["sites",]:
            raise self.nothing_there(job.node)
        return second_sums(site, pooled, noisy=self.layout.noise > 0)

    def places(self, round: int) -> npt.NDArray[np.bool_]:
        before = self.layout.asks_before

        def of(name: tuple[str, ...]) -> int:
            return 1 + before if name[1:2] in (("bin",), ("of",)) else 0 if name in (("sites",), OUTSIDE) else before

        return find_places(self.layout.bounds, lambda name: of(name) == round)

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:  # noqa: ARG002
        return lone_subset(self.layout.numbers(model)) if round and self.layout.asks_before else ""

    def counts(self) -> npt.NDArray[np.bool_]:
        return find_places(self.layout.bounds, lambda name: not self.layout.noise and name[1:2] != ("sum",))
