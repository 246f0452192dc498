"""Table 1: all columns by group, with standardised differences and tests, from counts, sums and sums of squares.

    numbers      mean (deviation) of each group;  Welch's test of equal means, for two groups his t test
    categories   records of each group;  Pearson's chi squared, uncorrected; for two by two also Fisher's exact test
    ranks        (tests=ranks) a test by the agreed histogram, see `ranks`
    difference   the largest of two groups:  |m1 - m2| / sqrt((s1^2 + s2^2) / 2);  of categories, with p the shares of
                 all except the first,  sqrt((p1 - p2)' S^-1 (p1 - p2)),  S the mean of the groups' diag(p) - p p'

Categories with a cell of fewer than `suppress` records, or at too few sites, are joined with others until no cell is
small, since totals are published.  A column with few distinct values is omitted, because its mean would count them.  A
column with a group of 1 to `suppress` - 1 numbers has no figures, because the agreed statistics publish those of all
records.

Sources: Welch, Biometrika 38 (1951); Yang and Dalton, SAS Global Forum 335 (2012); Fisher, JRSS 85 (1922).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError, plural
from fedgossip.data.agreed.agreed_table import QUANTILES, AgreedColumn, AgreedTable
from fedgossip.data.agreed.column_sums import BINS, SITES, histogram
from fedgossip.data.agreed.suppression import hidden_rows
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.data.columns.table_schema import SiteColumns
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import words_instead
from fedgossip.sites.fits.families.family import (
    Cell,
    FamilyDesign,
    FamilyResult,
    Numbers,
    PooledRound,
    ResultTable,
    SumBlock,
)
from fedgossip.sites.fits.families.ranks import rank_test
from fedgossip.sites.fits.glm.glm import Values

GROUPS = 12
"""Maximum number of groups."""
EMPTY = "(empty)"
FINE = 64
"""Fraction (1 / FINE) of a deviation to which moments are rounded if the number of empty cells is withheld."""
HEAD = ("p", "difference")
TESTS = ("column", "test", "statistic", "degrees of freedom", "p")
RANKS = "ranks"
SHARES = ("5 %", "25 %", "50 %", "75 %", "95 %")
"""Names of the agreed QUANTILES."""


@dataclass(frozen=True, eq=False)
class GroupedColumns:
    """One site's columns, and the index of each record's group, [m]."""

    columns: SiteColumns
    groups: npt.NDArray[np.int64]
    edges: Mapping[str, Sequence[float]]
    """Edges of the agreed histogram of each column of numbers."""


class TableOne:
    name = "table1"
    kinds = (CLASSIFICATION, REGRESSION)
    options = ("by", "tests")
    predicts = False

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        by = options.get("by", "")
        if options.get("tests", RANKS) != RANKS or ("tests" in options and not by):
            text = f"tests={options['tests']}" + ("" if by else " without by")
            raise ConfigError(text, f"Groups are compared by ranks too with  table1?by=COLUMN&tests={RANKS}.")
        words = {one.name: one for one in agreed.columns if one.categories}
        if by and by not in words:
            text = f"by={by}: no column of words"
            raise ConfigError(text, words_instead(by, agreed))
        groups = words[by].categories if by else ("all",)
        if len(groups) > GROUPS:
            text = f"by={by}: {len(groups)} groups; there are at most {GROUPS}"
            raise ConfigError(text, "Take a column of fewer categories.")
        if by and (few := [name for name, count in zip(groups, words[by].counts, strict=True) if count is None]):
            text = f"by={by}: {', '.join(few[:5])} of under {agreed.suppress} records, or at too few sites"
            raise ConfigError(text, "Figures of such a group would disclose its records: merge categories.")
        shown = [one for one in agreed.columns if one.name != by and (one.categories or one.deviation)]
        plain = [one for one in shown if not one.is_coded]
        return FamilyDesign(
            family=self.name, options=options, outcome=by, classes=groups, columns=tuple(one.name for one in plain),
            mean=tuple(one.mean or 0.0 for one in plain), deviation=tuple(one.deviation or 1.0 for one in plain),
            constant=tuple(one.name for one in shown if one.is_coded), suppress=agreed.suppress, agreed=agreed.digest,
            encoding=TableEncoding(tuple(EncodedColumn(one.name, one.unit, one.categories) for one in agreed.columns)),
        )  # fmt: skip

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        groups = len(d.classes)
        found: dict[str, SumBlock] = {"groups": SumBlock(groups, counts=True)}
        for name, levels in _levels(d):
            if levels:
                found |= {f"{what} {name}": SumBlock(groups * (levels + 1), counts=True) for what in ("of", "at")}
            else:
                found |= {f"empty {name}": SumBlock(groups, counts=True), f"sum {name}": SumBlock(groups)}
                found[f"squares {name}"] = SumBlock(groups, positive=True)
                if "tests" in d.options:
                    found[f"bins {name}"] = SumBlock(groups * (BINS + 2), counts=True)
        return (found,)

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        each = f", in each of {len(d.classes)} groups of {d.outcome}" if d.outcome else ""
        counts = "the records of each category and at how many sites they are"
        bins = f", their histograms of {BINS} bins" if "tests" in d.options else ""
        sums = f"sums and sums of squares{bins}"
        return (f"the number of records, and of {len(d.columns)} columns {sums}, or {counts}{each}",)

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> GroupedColumns:
        site = SiteColumns(file, agreed.schema, agreed.suppress)
        edges = {one.name: one.edges for one in agreed.columns}
        if not d.outcome:
            return GroupedColumns(site, np.zeros(site.records, np.int64), edges)
        if (empty := sum(one is None for one in site.cells[d.outcome])) > 0:
            text = f"column {d.outcome!r}: empty in {plural(empty, 'record')}"
            raise ConfigError(text, "A group has to be known: fill the cells, or leave the rows out.")
        return GroupedColumns(site, np.array([d.classes.index(str(one)) for one in site.cells[d.outcome]]), edges)

    def records(self, site: GroupedColumns) -> int:
        return site.columns.records

    def sums(self, d: FamilyDesign, site: GroupedColumns, round: int, pooled: Sequence[PooledRound]) -> Numbers:  # noqa: ARG002
        groups = len(d.classes)
        found: dict[str, npt.ArrayLike] = {"groups": np.bincount(site.groups, minlength=groups)}
        categories = {one.name: one.categories for one in site.columns.schema.columns}
        for (name, levels), mean, deviation in zip(_levels(d), d.mean, d.deviation, strict=True):
            cells = site.columns.cells[name]
            if levels:
                place = {None: levels} | {one: k for k, one in enumerate(categories[name])}
                table = np.zeros((groups, levels + 1), np.int64)
                np.add.at(table, (site.groups, np.array([place[one] for one in cells])), 1)  # type: ignore[index]
                found |= {f"of {name}": table, f"at {name}": table > 0}
                continue
            there = np.array([one is not None for one in cells])
            values = np.array([one if one is not None else mean for one in cells], float)
            z = (values - mean) / deviation
            for what, each in (("empty", ~there), ("sum", z * there), ("squares", z * z * there)):
                found[f"{what} {name}"] = np.bincount(site.groups, each.astype(float), minlength=groups)
            if "tests" in d.options:
                edges = np.array(site.edges[name])
                of_groups = (values[there & (site.groups == group)] for group in range(groups))
                none = [0] * (BINS + 2)
                found[f"bins {name}"] = [histogram(one, edges) if len(edges) else none for one in of_groups]
        return found

    def uneven(self, d: FamilyDesign, site: GroupedColumns, round: int, pooled: Sequence[PooledRound]) -> str:  # noqa: ARG002
        return ""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        (of,) = pooled
        if not of.sites:
            return None
        sizes = [int(one) for one in of["groups"]]
        if any(0 < one < d.suppress for one in sizes):
            text = f"a group of {d.outcome} has fewer than {d.suppress} records at the sites that took part"
            raise TrainingError(text, "Its figures would disclose them: agree again with these sites.")
        rows: list[list[Cell]] = [["records", *map(str, sizes), None, None]]
        tests, means = list[tuple[Cell, ...]](), list[tuple[Cell, ...]]()
        known_columns = {one.name: one for one in agreed.columns}
        for (name, levels), mean, deviation in zip(_levels(d), d.mean, d.deviation, strict=True):
            if levels:
                shown, test = _categories(d, known_columns[name], of)
                rows += shown
                tests += test
                continue
            found = _of_numbers(d, known_columns[name], of, mean, deviation)
            rows.append([f"{name}, mean (deviation)", *found.cells, found.p, found.difference])
            means += [(name, *one) for one in zip(d.classes, found.means, found.deviations, strict=True)]
            if found.statistic is not None:
                tests.append((name, "Welch", found.statistic, f"{len(sizes) - 1}, {found.freedom:.4g}", found.p))
            if "tests" in d.options and (ranked := _of_ranks(d, known_columns[name], of)):
                tests.append(ranked)
        head = ("", *(f"{d.outcome} = {one}" if d.outcome else one for one in d.classes), *HEAD)
        tables = [ResultTable("table 1", head, tuple(map(tuple, rows)))]
        if means:
            tables.append(ResultTable("means", ("column", "group", "mean", "deviation"), tuple(means)))
        if tests:
            tables.append(ResultTable("tests", TESTS, tuple(tests)))
        if "tests" in d.options and (quantiles := _quantiles(d, known_columns)):
            tables.append(quantiles)
        remarks = ["differences are standardised: in deviations, the largest of two groups"] if len(sizes) > 1 else []
        if d.constant:
            why = "left out, for they have few different values and a mean would count them"
            remarks.append(f"{why}: {', '.join(d.constant)}; declare their categories in [data.columns]")
        return FamilyResult(f"table 1 by {d.outcome}" if d.outcome else "table 1", tables, remarks)


def _levels(d: FamilyDesign) -> Sequence[tuple[str, int]]:
    """Return each column with its number of categories, 0 for numbers."""
    known_columns = {one.name: len(one.categories) for one in d.encoding.columns}
    return [(name, known_columns.get(name, 0)) for name in d.columns]


# --- numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NumberRow:
    means: Sequence[float | None]
    deviations: Sequence[float | None]
    """None for a group without numbers, and for all groups if one has too few."""
    statistic: float | None
    freedom: float
    p: float | None
    difference: float | None

    @property
    def cells(self) -> Sequence[str]:
        both = zip(self.means, self.deviations, strict=True)
        return ["-" if mean is None else f"{mean:.6g} ({deviation:.6g})" for mean, deviation in both]


def _of_numbers(d: FamilyDesign, column: AgreedColumn, of: PooledRound, mean: float, deviation: float) -> _NumberRow:
    empty = of[f"empty {column.name}"]
    n = (of["groups"] - empty).astype(float)
    z = of[f"sum {column.name}"] / np.maximum(n, 1)
    variance = np.maximum(of[f"squares {column.name}"] - n * z * z, 0.0) / np.maximum(n - 1, 1)
    # few empty cells, or moments that the statistics round: an exact mean would disclose its number of records
    is_rounded = bool(((empty > 0) & (empty < d.suppress)).any() or column.precision or column.common)
    if is_rounded:
        z, variance = np.round(z * FINE) / FINE, (np.maximum(np.round(np.sqrt(variance) * FINE), 1) / FINE) ** 2
    # a group with few numbers is the difference of all, published in the statistics, and the others: none is shown
    hidden = (n == 0) | bool(((n > 0) & (n < d.suppress)).any())
    means, deviations = (
        [None if hide else float(value) for hide, value in zip(hidden, values, strict=True)]
        for values in (mean + deviation * z, deviation * np.sqrt(variance))
    )
    # a test with the true numbers would disclose the few empty cells; with all records it is wrong if many are empty
    untold = is_rounded and bool((empty >= d.suppress).any())
    if len(n) < 2 or hidden.any() or untold or not (variance > 0).all():
        return _NumberRow(means, deviations, None, 0.0, None, None)
    n = of["groups"].astype(float) if is_rounded else n
    f, freedom, p = welch(n, z, variance)
    pairs = itertools.combinations(range(len(n)), 2)
    difference = max(abs(z[a] - z[b]) / math.sqrt((variance[a] + variance[b]) / 2) for a, b in pairs)
    return _NumberRow(means, deviations, f, freedom, p, float(difference))


def welch(n: Values, mean: Values, variance: Values) -> tuple[float, float, float]:
    """Return F, its second degrees of freedom and p of Welch's test that k means are equal; for two, F is t squared."""
    from scipy import special

    k, w = len(n), n / variance
    centre = float((w * mean).sum() / w.sum())
    spread = float(((1 - w / w.sum()) ** 2 / (n - 1)).sum())
    f = float((w * (mean - centre) ** 2).sum() / (k - 1)) / (1 + 2 * (k - 2) / (k * k - 1) * spread)
    freedom = (k * k - 1) / (3 * spread)
    return f, freedom, float(special.fdtrc(k - 1, freedom, f))


def _of_ranks(d: FamilyDesign, column: AgreedColumn, of: PooledRound) -> tuple[Cell, ...] | None:
    """Return the test by ranks of a column; None if a group has few numbers."""
    counts = of[f"bins {column.name}"].reshape(len(d.classes), BINS + 2)
    numbers = counts.sum(axis=1)
    found = None if ((numbers > 0) & (numbers < d.suppress)).any() else rank_test(counts)
    if found is None:
        return None
    name = "Wilcoxon" if len(counts) == 2 else "Kruskal and Wallis"
    return column.name, name, found.statistic, str(found.freedom), found.p


def _quantiles(d: FamilyDesign, columns: Mapping[str, AgreedColumn]) -> ResultTable | None:
    """Return the agreed quantiles of the columns of numbers, of all records; None without any."""
    shown = [columns[name] for name in d.columns if columns[name].quantiles]
    rows = tuple((one.name, *(one.quantiles.get(f"{share:g}") for share in QUANTILES)) for one in shown)
    return ResultTable("quantiles of all", ("column", *SHARES), rows, boxes=SHARES) if rows else None


# --- categories -------------------------------------------------------------------------------------------------------


def _categories(
    d: FamilyDesign, column: AgreedColumn, of: PooledRound
) -> tuple[list[list[Cell]], list[tuple[Cell, ...]]]:
    name, names = column.name, column.categories
    withheld = [k for k, one in enumerate([*column.counts, column.missing]) if one is None]
    shape = len(d.classes), len(names) + 1
    table, at = (of[f"{what} {name}"].reshape(shape).T for what in ("of", "at"))
    named, shown = together([*names, EMPTY], table, at, d.suppress, withheld)
    total = shown.sum(axis=0)
    share = shown / np.maximum(total, 1)
    there = shown.sum(axis=1) > 0
    kept = shown[there]
    whole = kept.shape[0] > 1 and kept.shape[1] > 1 and bool(kept.sum(axis=0).all())
    difference = standardised(kept) if whole else None
    rows: list[list[Cell]] = []
    tests = list[tuple[Cell, ...]]()
    p: float | None = None
    if whole:
        statistic, freedom, p = chi_squared(kept)
        tests.append((name, "chi squared", statistic, str(freedom), p))
        if kept.shape == (2, 2):
            tests.append((name, "Fisher's exact", None, "", fisher(kept)))
    for place, one in enumerate(named):
        if there[place]:
            cells = [f"{count} ({100 * part:.1f} %)" for count, part in zip(shown[place], share[place], strict=True)]
            first = not rows
            rows.append([f"{name} = {one}", *cells, p if first else None, difference if first else None])
    return rows, tests


def together(
    names: Sequence[str],
    table: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64],
    least: int,
    withheld: Sequence[int] = (),
) -> tuple[Sequence[str], npt.NDArray[np.int64]]:
    """Return categories [r] and counts [r, groups], with disclosing ones joined until no cell is small, or one category
    remains.

    A cell at fewer than SITES sites, and a `withheld` category, count as small.
    """
    lone = (at > 0) & (at < SITES)
    lone[list(withheld)] |= table[list(withheld)] > 0
    careful = np.where(lone, np.minimum(table, max(1, least - 1)), table)
    hidden = sorted(hidden_rows(careful.tolist(), least))
    union = table[hidden].sum(axis=0)
    while hidden and ((union > 0) & (union < least)).any() and len(hidden) < len(names):
        rest = [k for k in range(len(names)) if k not in hidden and table[k].any()]
        if not rest:
            break
        hidden = sorted([*hidden, min(rest, key=lambda k: int(table[k].sum()))])
        union = table[hidden].sum(axis=0)
    if not hidden:
        return names, table
    kept = [k for k in range(len(names)) if k not in hidden]
    union_name = " or ".join(names[k] for k in hidden if table[k].any())
    return [*(names[k] for k in kept), union_name], np.concatenate([table[kept], union[None]])


def chi_squared(table: npt.NDArray[np.int64]) -> tuple[float, int, float]:
    """Return Pearson's statistic, its degrees of freedom and p."""
    from scipy import special

    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    statistic = float(((table - expected) ** 2 / expected).sum())
    return statistic, freedom, float(special.chdtrc(freedom, statistic))


def fisher(table: npt.NDArray[np.int64]) -> float:
    """Return the two-sided p of Fisher's test of a table of two by two: all tables at most as likely as this one."""
    (a, b), (c, _) = table.tolist()
    first, left, total = a + b, a + c, int(table.sum())

    def log_choose(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    def log_chance(k: int) -> float:
        return log_choose(left, k) + log_choose(total - left, first - k) - log_choose(total, first)

    own = log_chance(a)
    every = map(log_chance, range(max(0, first + left - total), min(first, left) + 1))
    return min(1.0, math.fsum(math.exp(one) for one in every if one <= own + 1e-7))


def standardised(table: npt.NDArray[np.int64]) -> float | None:
    """Return the largest standardised difference of two groups, the columns of a table; None if S is singular."""
    shares = (table / table.sum(axis=0))[1:]
    found = list[float]()
    for one, other in itertools.combinations(shares.T, 2):
        spread = np.diag(one + other) / 2 - (np.outer(one, one) + np.outer(other, other)) / 2
        values = np.linalg.eigvalsh(spread)
        if values[0] <= 1e-12 * max(values[-1], 1e-300):
            return None
        gap = one - other
        found.append(math.sqrt(float(gap @ np.linalg.solve(spread, gap))))
    return max(found)
