"""Multiple imputation by chained equations, whose models are fitted to sums over sites.

    first            how many cells of each incomplete column are empty, and of each two columns one alone
    each iteration   for each incomplete column y, in each of K tables, with x: ones, all other columns, and the outcome
        numbers      A = sum of x x' and c = sum of x y over the records with y;  b = A^-1 c,  s^2 = |y - x b|^2 / chi^2
        two values   b and A of a logistic model by Newton's method, a round for each step; s = 1
                     b* = b + s A^-1/2 z, z and chi^2 drawn from the plan's seed, the same at all sites
        at a site    each empty cell: y = x b* + s e, or one of two values with P = 1 / (1 + exp(-x b*))

The cells of a table start with the column's mean and deviation, or share.  A site draws e from a stream of its own
cells and the seed: nobody else can compute it, and a repeated request has the same reply.  With e known to others, the
sums of K tables would be as many equations of the records with an empty cell.

Sums over the records with y differ from those of all records by the others: so there are enough of these, at three
sites or more, and not almost the same ones for two columns (`disclosed`).

Sources: van Buuren and Groothuis-Oudshoorn, mice, Journal of Statistical Software 45 (2011); Rubin, Multiple imputation
for nonresponse in surveys, 1987, pages 167 and 169, for both draws.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.seeds import stream
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.data.columns.table_schema import SiteColumns, read_features
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import RECORDS_EACH, design_columns, too_few
from fedgossip.sites.fits.families.family import symmetric, upper
from fedgossip.sites.fits.glm.glm import (
    FAMILIES,
    RIDGE,
    SINGULAR,
    Newton,
    PointSums,
    Values,
    influences,
    moved,
    site_sums,
)
from fedgossip.sites.fits.glm.glm_sums import LARGEST, RECORDS, SHIFT, real_of, whole_of

ITERATIONS = 5
"""Rounds of chained equations; one if a single column is incomplete, as its model has no drawn cells."""
STEPS = 8, 5
"""Newton steps of a logistic model: from its mean, and from its estimates of the last iteration."""
LEFT = 1e-4
"""Newton's g' A^-1 g before the last step, below which a model of two values has converged: the step's square is left,
1e-4 standard errors.
"""
REACH = 6.0
"""Maximum distance of a drawn number from its column's mean, in deviations, or as far as the agreed range: a record
whose cell is drawn far out would be most of a sum of squares.
"""
LINEAR, LOGISTIC = "linear", "logistic"
Whole = Sequence[int]


class ImputedColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An incomplete column, with scaled numbers."""

    name: str
    place: int
    """Index in the regressors."""
    features: tuple[int, ...]
    """Indices in the features of a table: of a number, or of both categories."""
    low: float
    high: float
    """Range of drawn numbers."""
    values: tuple[float, float] | None = None
    """Both values of a column that has no others."""
    share: float = 0.5
    """Share of the second value."""

    @property
    def model(self) -> str:
        return LOGISTIC if self.values else LINEAR


class ImputationDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The columns of the models of empty cells; the same at all sites."""

    sets: int
    iterations: int
    seed: int
    columns: tuple[str, ...]
    """Names of the regressors, without the labels, which follow them, and the ones before."""
    places: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    labels: tuple[str, ...]
    label_mean: tuple[float, ...]
    label_deviation: tuple[float, ...]
    """Scale of the labels; that of a class 0 and 1."""
    classes: tuple[str, ...] = ()
    imputed: tuple[ImputedColumn, ...]
    filled: tuple[str, ...] = ()
    """Columns whose few empty cells count as the mean."""
    suppress: int
    agreed: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"imputation" + msgspec.json.encode(self)).hexdigest()

    @property
    def width(self) -> int:
        """Number of coefficients of a model."""
        return len(self.columns) + len(self.labels)


def imputation_design(agreed: AgreedTable, seed: int, kind: str) -> ImputationDesign:
    """Return the models of the empty cells of agreed columns; `kind` of the task.

    Raises ConfigError for columns that no model here draws, and for those whose sums would disclose records.
    """
    for one in agreed.columns:
        _check_imputable(one, agreed)
    labels, known = agreed.schema.labels, {one.name: one for one in agreed.columns}
    c = design_columns(agreed, "an imputation", len(labels))
    found = list[ImputedColumn]()
    for encoded, first in zip(agreed.encoding.columns, _starts(agreed), strict=True):
        features = tuple(range(first, first + len(encoded.features)))
        place = next((k for k, at in enumerate(c.places) if at in features), None)
        if known[encoded.name].imputed and place is not None:
            found.append(_imputed(known[encoded.name], place, features, c.mean[place], c.deviation[place]))
    if not found:
        text = f"data.missing = {agreed.schema.missing!r}, and no column has enough empty cells to draw them"
        raise ConfigError(text, 'Set data.missing = "mean": few empty cells count as the mean of their column.')
    number = kind != CLASSIFICATION
    mean, deviation = agreed.label_scale if number else ((0.0,) * len(labels), (1.0,) * len(labels))
    design = ImputationDesign(
        sets=agreed.schema.sets, iterations=ITERATIONS if len(found) > 1 else 1, seed=seed,
        columns=c.names, places=c.places, mean=c.mean, deviation=c.deviation,
        labels=tuple(one.name for one in labels), label_mean=mean, label_deviation=deviation,
        classes=() if number else labels[0].categories, imputed=tuple(found),
        filled=tuple(one.name for one in agreed.columns if not one.label and not one.imputed and one.missing != 0),
        suppress=agreed.suppress, agreed=agreed.digest,
    )  # fmt: skip
    for few in (one for one in design.imputed if known[one.name].count < RECORDS_EACH * design.width):
        text = f"column {few.name!r}: filled in {known[few.name].count} records, for {design.width} coefficients"
        raise ConfigError(text, f"{RECORDS_EACH} records for each are needed: leave columns out, drop=A,B.")
    return design


def _starts(agreed: AgreedTable) -> Iterator[int]:
    at = 0
    for one in agreed.encoding.columns:
        yield at
        at += len(one.features)


def _check_imputable(column: AgreedColumn, agreed: AgreedTable) -> None:
    """Raise ConfigError for an incomplete column whose cells cannot be drawn, or must not."""
    drop = f'Leave it out, drop={column.name}, or set data.missing = "mean".'
    if column.missing and not column.imputed and not column.label:
        few = "filled in too few records" if column.count < agreed.suppress else "empty at too few sites"
        text = f"column {column.name!r}: {few}, and sums over the records with it would disclose the others"
        raise ConfigError(text, drop)
    if not column.imputed:
        return
    if len(column.categories) > 2:
        text = f"column {column.name!r}: {len(column.categories)} categories, and cells are drawn of two, or numbers"
        raise ConfigError(text, f"Merge its levels into two in [data.columns]. {drop}")
    names = {one.name for one in agreed.schema.features}
    (one,) = (one for one in agreed.schema.features if one.name == column.name)
    made = one.declared.made_of if one.declared else ()
    if made and not (one.declared and one.declared.log and made[0] not in names):
        text = f"column {column.name!r}: made of {' and '.join(map(repr, dict.fromkeys(made)))}, with empty cells"
        raise ConfigError(text, f"Cells of both would be drawn apart. {drop}")


def _imputed(
    column: AgreedColumn, place: int, features: tuple[int, ...], mean: float, deviation: float
) -> ImputedColumn:
    if column.categories:
        counted = [one or 0 for one in column.counts]
        return ImputedColumn(column.name, place, features, 0.0, 1.0, (0.0, 1.0), counted[1] / max(1, sum(counted)))
    if column.is_two_valued:
        low, high = ((one - mean) / deviation for one in column.codes[:2])
        share = min(max(-low / (high - low), 0.0), 1.0) if high > low else 0.5
        return ImputedColumn(column.name, place, features, low, high, (low, high), share)
    ends = [(one - mean) / deviation for one in (column.low, column.high) if one is not None]
    return ImputedColumn(column.name, place, features, min([-REACH, *ends]), max([REACH, *ends]))


class ColumnTurn(NamedTuple):
    """The rounds in which a column is imputed once."""

    first: int
    steps: int
    iteration: int
    column: int


@dataclass(frozen=True)
class ImputationLayout:
    """The numbers of each round of an imputation, in the order of a vector."""

    design: ImputationDesign

    @cached_property
    def turns(self) -> Sequence[ColumnTurn]:
        found, first = list[ColumnTurn](), 1
        for iteration in range(self.design.iterations):
            for column, one in enumerate(self.design.imputed):
                steps = STEPS[iteration > 0] if one.values else 1
                found.append(ColumnTurn(first, steps, iteration, column))
                first += steps
        return found

    @cached_property
    def by_round(self) -> Sequence[ColumnTurn]:
        """The turn of each round after the first."""
        return [turn for turn in self.turns for _ in range(turn.steps)]

    @property
    def rounds(self) -> int:
        return 1 + len(self.by_round)

    @cached_property
    def ends(self) -> Sequence[int]:
        """The end of each round's numbers in a vector."""
        columns = len(self.design.imputed)
        sizes = [2 + 2 * columns + columns * (columns - 1)]
        sizes += [2 + self.design.sets * len(self._of_table(one)) for one in self.by_round]
        return list(itertools.accumulate(sizes))

    def of_round(self, round: int) -> slice:
        """Return the indices of the numbers of a round."""
        return slice(self.ends[round - 1] if round else 0, self.ends[round])

    def _of_table(self, turn: ColumnTurn) -> npt.NDArray[np.bool_]:
        """Return which numbers of a table in a round are never negative."""
        w, two_values = self.design.width, self.design.imputed[turn.column].values
        rows, columns = upper(w if two_values else w + 1)
        return np.concatenate([[True], np.zeros(w, bool), rows == columns]) if two_values else rows == columns

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        real = RECORDS << LARGEST + SHIFT
        found = [1, *[RECORDS] * (self.ends[0] - 1)]
        for turn in self.by_round:
            found += [1, RECORDS, *[real] * (self.design.sets * len(self._of_table(turn)))]
        return tuple(found)

    @cached_property
    def counts(self) -> npt.NDArray[np.bool_]:
        """Which numbers are never negative."""
        found = [np.ones(self.ends[0], bool)]
        for turn in self.by_round:
            found += [np.ones(2, bool), *[self._of_table(turn)] * self.design.sets]
        return np.concatenate(found)

    @property
    def opened(self) -> tuple[str, ...]:
        """Sums over all sites that the coordinator receives, in words."""
        d = self.design
        names = ", ".join(one.name for one in d.imputed)
        points = " (of two values at a point)" if any(one.values for one in d.imputed) else ""
        of = f"{d.width * (d.width + 1) // 2} or more of products of all columns and {' and '.join(d.labels)}"
        return (
            f"first the number of records, and of those with an empty cell of {names}, and of one of two of them alone",
            f"then, in {self.rounds - 1} rounds that draw empty cells of {d.sets} tables, of each table {of}, over the "
            f"records with a filled cell{points}",
        )

    def disclosed(self, numbers: Whole) -> str:
        """Return why sums over the records with a column would disclose others, by the first round; "" if not."""
        d, counts = self.design, iter(numbers[2:])
        for one in d.imputed:
            empty, sites = next(counts), next(counts)
            if empty < d.suppress or sites < SITES:
                return f"column {one.name!r}: fewer than {d.suppress} empty cells, or at fewer than {SITES} sites"
        for k, one in enumerate(d.imputed):
            for other in (other for j, other in enumerate(d.imputed) if j != k):
                if 0 < next(counts) < d.suppress:
                    few = f"fewer than {d.suppress} records have a cell of one alone"
                    return f"columns {one.name!r} and {other.name!r}: {few}"
        return ""


# --- the models, the same at all sites ------------------------------------------------------------------------------


class DrawnModel(NamedTuple):
    """A drawn model of a column: its coefficients [w], and the deviation of a number."""

    coefficients: Values
    deviation: float = 0.0


class Models:
    """The drawn models after some rounds, from their sums; of each turn those of all tables.

    A turn whose sums are not complete draws no cells (`()`): they keep those of the last iteration.
    """

    def __init__(self, layout: ImputationLayout) -> None:
        self.layout, self.round, self.drawn = layout, 1, list[Sequence[DrawnModel]]()
        self.lost: tuple[ColumnTurn, Sequence[Newton]] | None = None
        """The last round without sums."""
        self._taken = 0
        """Number of complete rounds of the turn."""
        self._ends: dict[int, Sequence[Values]] = {}
        """Estimates of the last iteration, by column."""
        self.newtons: Sequence[Newton] = self._begin()
        """Of the column whose turn it is, if it has two values; else none."""

    def _begin(self) -> Sequence[Newton]:
        d = self.layout.design
        if self.round >= self.layout.rounds:
            return ()
        turn = self.layout.by_round[self.round - 1]
        column = d.imputed[turn.column]
        if not column.values:
            return ()
        start = np.zeros(d.width)
        start[0] = _first_eta(column)
        return [Newton(one, one) for one in self._ends.get(turn.column, [start] * d.sets)]

    @property
    def undrawn(self) -> str:
        """A column without a single complete turn; "" without one."""
        there = {turn.column for turn, models in zip(self.layout.turns, self.drawn, strict=False) if models}
        return next((one.name for k, one in enumerate(self.layout.design.imputed) if k not in there), "")

    def take(self, numbers: Whole) -> None:
        """Apply the sums of the next round.  Raises TrainingError for a model of complete rounds without an end."""
        layout, d = self.layout, self.layout.design
        turn, (sites, records, *whole) = layout.by_round[self.round - 1], numbers
        column, reals = d.imputed[turn.column], np.array([real_of(one) for one in whole]).reshape(d.sets, -1)
        if not sites:
            self.lost = turn, self.newtons
        elif column.values:
            sums = (PointSums(sites, records, of[0], 0.0, of[1 : d.width + 1], symmetric(of[d.width + 1 :], d.width))
                    for of in reals)  # fmt: skip
            self.newtons = [moved(one, of) for one, of in zip(self.newtons, sums, strict=True)]
        self.round, self._taken = self.round + 1, self._taken + bool(sites)
        if self.round < turn.first + turn.steps:
            return
        draws = [stream(d.seed, "imputation", table, turn.iteration, turn.column) for table in range(d.sets)]
        if self._taken < turn.steps:
            self.drawn.append(())
        elif column.values:
            self._ends[turn.column] = [one.point for one in self.newtons]
            self.drawn.append([_draw_logistic(column.name, *one) for one in zip(self.newtons, draws, strict=True)])
        else:
            tables = (symmetric(of, d.width + 1) for of in reals)
            self.drawn.append([_draw_linear(of, records, draw) for of, draw in zip(tables, draws, strict=True)])
        self.newtons, self._taken = self._begin(), 0


def _first_eta(column: ImputedColumn) -> float:
    share = min(max(column.share, 1e-3), 1 - 1e-3)
    return math.log(share / (1 - share))


def _draw_linear(products: Values, records: int, draw: np.random.Generator) -> DrawnModel:
    """Return a drawn model by the products [w + 1, w + 1] of regressors and the column."""
    a, c, squares = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])
    root = _Root.of(a)
    b = root.solve(c)
    left = max(squares - 2 * float(b @ c) + float(b @ a @ b), 0.0)
    free = max(records - root.rank, 1)
    deviation = math.sqrt(left / float(draw.chisquare(free)))
    return DrawnModel(b + deviation * root.spread(draw.standard_normal(len(b))), deviation)


def _draw_logistic(name: str, newton: Newton, draw: np.random.Generator) -> DrawnModel:
    if not newton.left <= LEFT or newton.sums is None:
        text = f"the model of the empty cells of column {name!r} has not converged: others nearly determine it"
        raise TrainingError(text, f"Leave it out, drop={name}, or those that it depends on.")
    root = _Root.of(newton.sums.information)
    return DrawnModel(newton.point + root.spread(draw.standard_normal(len(newton.point))))


@dataclass(frozen=True, eq=False)
class _Root:
    """A = L L', scaled to a diagonal of ones; with a ridge if columns depend on each other, whose models then predict
    the same.  Cholesky's L is unique: two machines draw the same.
    """

    scale: Values
    lower: Values
    rank: int

    @classmethod
    def of(cls, a: Values) -> _Root:
        scale = np.asarray(1 / np.sqrt(np.maximum(np.diag(a), np.finfo(float).tiny)), np.float64)
        scaled = a * scale[:, None] * scale
        if not np.isfinite(scaled).all():
            raise np.linalg.LinAlgError("products of columns that are no numbers")
        dark = int((np.linalg.eigvalsh(scaled) < SINGULAR).sum())
        lower = np.asarray(np.linalg.cholesky(scaled + RIDGE * bool(dark) * np.eye(len(a))), np.float64)
        return cls(scale, lower, len(a) - dark)

    def solve(self, c: Values) -> Values:
        """Return A^-1 c."""
        return self.spread(np.asarray(np.linalg.solve(self.lower, self.scale * c), np.float64))

    def spread(self, z: Values) -> Values:
        """Return z with the covariance A^-1."""
        return np.asarray(self.scale * np.linalg.solve(self.lower.T, z))


# --- the tables of a site ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteCells:
    """One site's records: features [m, all] in their own units, regressors [m, w] scaled, with the labels, the empty
    cells of each imputed column [m], and the secret of its draws.
    """

    features: Values
    regressors: Values
    empty: Sequence[npt.NDArray[np.bool_]]
    secret: int


def read_cells(d: ImputationDesign, agreed: AgreedTable, file: TableFile) -> SiteCells:
    """Return a site's records.  Raises ConfigError for a column that is filled in too few of them, or empty in those of
    no other site.
    """
    site, known = SiteColumns(file, agreed.schema), {one.name: one.missing for one in agreed.columns}
    empty = [np.array([cell is None for cell in site.cells[one.name]]) for one in d.imputed]
    for one, gaps in zip(d.imputed, empty, strict=True):
        if (~gaps).sum() < d.suppress:
            text = f"column {one.name!r}: filled in fewer than {d.suppress} records of this site"
            raise ConfigError(text, f"It takes no part; or all leave the column out, drop={one.name}.")
        if gaps.sum() >= (known[one.name] or 0):
            text = f"column {one.name!r}: empty in records of no other site, as the agreed counts have it"
            raise ConfigError(text, f"Sums would disclose them: leave the column out, drop={one.name}.")
    features = read_features(site.table, agreed.encoding)
    scaled = (features[:, list(d.places)] - np.array(d.mean)) / np.array(d.deviation)
    labels = [
        [d.classes.index(str(cell)) for cell in site.cells[name]] if d.classes else site.numbers(name)
        for name in d.labels
    ]
    y = (np.array(labels, np.float64).T - np.array(d.label_mean)) / np.array(d.label_deviation)
    words = f"{d.seed}/{list(site.cells.items())!r}"
    secret = int.from_bytes(hashlib.sha256(words.encode()).digest(), "little")
    return SiteCells(features, np.concatenate([scaled, y], axis=1), empty, secret)


class SiteTables:
    """The K tables of a site, with cells drawn by the models so far."""

    def __init__(self, layout: ImputationLayout, cells: SiteCells) -> None:
        self.layout, self.cells, self._turns = layout, cells, 0
        self._tables = [cells.regressors.copy() for _ in range(layout.design.sets)]
        for table, values in enumerate(self._tables):
            for column, (one, empty) in enumerate(zip(layout.design.imputed, cells.empty, strict=True)):
                draw = stream(cells.secret, "empty cells", table, -1, column)
                many = int(empty.sum())
                if one.values:
                    values[empty, one.place] = np.where(draw.random(many) < one.share, one.values[1], one.values[0])
                else:
                    values[empty, one.place] = np.clip(draw.standard_normal(many), one.low, one.high)

    def follow(self, drawn: Sequence[Sequence[DrawnModel]]) -> None:
        """Draw the empty cells by each further model."""
        for turn in self.layout.turns[self._turns : len(drawn)]:
            one, empty = self.layout.design.imputed[turn.column], self.cells.empty[turn.column]
            for table, model in enumerate(drawn[self._turns]):
                draw = stream(self.cells.secret, "empty cells", table, turn.iteration, turn.column)
                at = self._regressors(table, one)[empty] @ model.coefficients
                if one.values:
                    second = draw.random(len(at)) < 1 / (1 + np.exp(-np.clip(at, -40, 40)))
                    found = np.where(second, one.values[1], one.values[0])
                else:
                    found = np.clip(at + model.deviation * draw.standard_normal(len(at)), one.low, one.high)
                self._tables[table][empty, one.place] = found
            self._turns += 1

    def _regressors(self, table: int, column: ImputedColumn) -> Values:
        """Return the ones, all other columns and the labels, [m, w]."""
        others = np.delete(self._tables[table], column.place, axis=1)
        return np.concatenate([np.ones((len(others), 1)), others], axis=1)

    def first_numbers(self) -> list[int]:
        """Return the counts of the first round."""
        found, empty = [1, len(self.cells.features)], self.cells.empty
        for one in empty:
            found += [int(one.sum()), int(one.any())]
        return found + [int((a & ~b).sum()) for k, a in enumerate(empty) for j, b in enumerate(empty) if j != k]

    def numbers(self, turn: ColumnTurn, newtons: Sequence[Newton]) -> list[int]:
        """Return the numbers of a round of a turn.  Raises ConfigError for a record too far from all others."""
        one, there = self.layout.design.imputed[turn.column], ~self.cells.empty[turn.column]
        reals = list[float]()
        for table, values in enumerate(self._tables):
            x, y = self._regressors(table, one)[there], values[there, one.place]
            if one.values:
                second = (y > sum(one.values) / 2).astype(np.float64)
                found = site_sums(FAMILIES[LOGISTIC], x, second, newtons[table].point)
                reals += [found.deviance, *found.gradient, *found.information[upper(x.shape[1])]]
            else:
                every = np.concatenate([x, y[:, None]], axis=1)
                reals += (every.T @ every)[upper(every.shape[1])].tolist()
        return [1, int(there.sum()), *(whole_of(float(number)) for number in reals)]

    def uneven(self, turn: ColumnTurn, newtons: Sequence[Newton]) -> str:
        """Return, as `too_few`, why the sums of a round would disclose few records."""
        d = self.layout.design
        one, there = d.imputed[turn.column], ~self.cells.empty[turn.column]
        names = ["(intercept)", *(name for k, name in enumerate(d.columns) if k != one.place), *d.labels]
        for table in range(d.sets):
            x = self._regressors(table, one)[there]
            weights, unit = np.ones(len(x)), 1.0
            if one.values:
                logistic, first = FAMILIES[LOGISTIC], np.array([_first_eta(one)])
                weights = influences(logistic, x, newtons[table].point)
                unit = float(influences(logistic, np.ones((1, 1)), first)[0])
            if few := too_few(weights, unit, list(zip(names, x.T, strict=True)), d.suppress):
                return f"the empty cells of {one.name!r}: {few}"
        return ""

    def features(self, table: int) -> Values:
        """Return the features of a completed table in their own units, [m, all]."""
        d, found = self.layout.design, self.cells.features.copy()
        for one, empty in zip(d.imputed, self.cells.empty, strict=True):
            own = self._tables[table][empty, one.place] * d.deviation[one.place] + d.mean[one.place]
            others = [at for at in one.features if at != d.places[one.place]]
            found[empty, d.places[one.place]] = own
            for at in others:
                found[empty, at] = 1 - own
        return found
