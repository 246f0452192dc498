"""fit.json: a generalised linear model that sites fitted together, with the usual statistics.

    mean     h(eta), eta = x b        its interval   h(eta -+ z s), s^2 = x S x', S the covariance of the estimates
    of a linear model t in place of z, and for a single new record   eta -+ t sqrt(s^2 + dispersion)

Source: McCullagh and Nelder, Generalized linear models, 2nd edition, 1989, chapters 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable
from fedgossip.sites.fits.few_values import counted_outcomes, few_share, is_coarse, terms_of
from fedgossip.sites.fits.glm.glm import (
    FAMILIES,
    Newton,
    PointSums,
    ScaledColumns,
    Values,
    covariance,
    in_units,
    mean_sums,
    rank_of,
)
from fedgossip.sites.fits.glm.glm_sums import QUASI, GlmDesign, GlmLayout, LastSums
from fedgossip.sites.fits.imputation.rubin import PooledEstimates, Pooling, pooled

FORMAT = 2
INTERCEPT = "(intercept)"
SOFTMAX, RATES = "softmax", "glm:poisson"
"""Model sources of a fit: a linear layer, for classes or for numbers; and the exponential of one."""
SOURCE_OF = {"logistic": SOFTMAX, "linear": SOFTMAX, "poisson": RATES, "gamma": RATES}
LEVEL = 0.95
RATIO = {"logistic": "odds ratio", "poisson": "rate ratio", "gamma": "mean ratio"}
"""Name of exp(estimate), by family."""


class Coefficient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One coefficient, in the column's original unit; None for undetermined or undisclosed values."""

    name: str
    estimate: float
    error: float | None = None
    """Standard error."""
    statistic: float | None = None
    """estimate / error: z, of a linear model t."""
    p: float | None = None
    """Two-sided p-value for a true coefficient of 0."""
    low: float | None = None
    high: float | None = None
    """Upper bound of the 95 % interval."""

    @property
    def ratio(self) -> tuple[float, float | None, float | None]:
        """Return the odds or rate ratio for a column's increase by 1, with its interval."""
        return tuple(None if one is None else _exp(one) for one in (self.estimate, self.low, self.high))  # type: ignore[return-value]


Bounds = tuple[tuple[str, float, float], ...]
"""Agreed bounds of columns: name, low, high."""


class TermTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test that all coefficients of a term are 0: chi squared, of a linear model F."""

    name: str
    """"likelihood ratio", for all columns, or Wald's test of a column of categories, by its name."""
    statistic: float
    freedom: int
    """Number of independent coefficients."""
    p: float
    free: int | float | None = None
    """Second degrees of freedom of F; None for a chi squared."""


class GlmFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="glm"):
    """The contents of fit.json."""

    format: int = FORMAT
    design: GlmDesign
    sites: int
    """Number of sites in the last sums."""
    least: int
    """Minimum number of sites in a sum."""
    records: int
    steps: int
    converged: bool
    deviance: float
    null_deviance: float | None
    """Deviance of the mean only; None if other sites took part then."""
    aic: float | None
    """None if the dispersion is estimated."""
    dispersion: float
    """Residual variance of a linear model, X^2 over degrees of freedom of a gamma one; else 1."""
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float | None, ...], ...]
    """Covariance of the estimates."""
    rank: int
    """Number of determined coefficients: fewer than all if columns depend on each other."""
    silent: tuple[str, ...] = ()
    """Columns that depend on each other: the records do not determine their separate effects."""
    eta: tuple[float, ...] = ()
    """Coefficients of scaled columns."""
    bounds: Bounds = ()
    """Predictions for numbers outside are marked."""
    pearson: float | None = None
    """Pearson's X^2 of a poisson or gamma model, and of one with quasi or robust errors; None if all
    counts are 0 or 1.
    """
    clusters: int | None = None
    """Number of clusters of records, of robust errors by them."""
    tests: tuple[TermTest, ...] = ()
    """Tests of all columns and of each column of several categories; none if errors are rounded."""
    rounded: bool = False
    """Whether deviances, or also estimates, are rounded: exact ones would disclose counts below `data.suppress`."""
    pooling: Pooling | msgspec.UnsetType = msgspec.UNSET
    """Of a fit to several tables with drawn cells, whose deviances, dispersion and X^2 are means over tables."""

    @property
    def free(self) -> int:
        """Residual degrees of freedom."""
        return self.records - self.rank


def fit_of(layout: GlmLayout, vector: Vector, least: int, agreed: AgreedTable) -> GlmFit | None:
    """Return the fit of the sums, as `pooled_fit_of`."""
    return pooled_fit_of(layout, [vector], least, agreed)


def pooled_fit_of(
    layout: GlmLayout, vectors: Sequence[Vector], least: int, agreed: AgreedTable, pooling: Pooling | None = None
) -> GlmFit | None:
    """Return the fit of the sums of one table; with `pooling` of several, pooled.  None after too few complete rounds.

    If few records share two categories, or a category and an outcome (`few_share`), or all columns are of few values
    and further sums of residuals would count these (`is_coarse`), errors have two digits, estimates one more, deviances
    two of their own error sqrt(2 free), and no covariance is reported: exact numbers would disclose how many.

    With an outcome whose exact moments would count few records (`counted_outcome`) deviances and AIC, without columns
    functions of these counts, are multiples of a deviance's error, and a linear model's dispersion of its own.  If some
    of the outcome's counts are published, quantities that disclose the sum of all outcomes are rounded too: a linear
    model's intercept of scaled columns, another model's variance of it.
    """
    design, counted = layout.design, agreed.counted_outcome(layout.design.family)
    tables = [one for one in (_ended(layout, vector) for vector in vectors) if one is not None]
    if len(tables) < len(vectors):
        return None
    sums, last, rank = tables[0].sums, tables[0].last, min(one.rank for one in tables)
    free, turned = sums.records - rank, in_units(design)
    found, several = _pooled(tables)
    if counted:
        found = _without_sum(layout, counted, found, free)
    estimates, spread = turned @ found.best, _turned(turned, found.spread)
    errors = np.sqrt(np.diag(spread))
    best, dispersion = found.best, found.dispersion
    deviance, least_loss = (mean_of([getattr(one.sums, name) for one in tables]) for name in ("deviance", "least"))
    in_turn = several.turned(turned) if several else None
    shares = [_few_share(layout, vector, one.state.first, agreed) for vector, one in zip(vectors, tables, strict=True)]
    if few := any(shares) or (layout.has_last and is_coarse(design, agreed)):
        errors = np.array([rounded_to(one, one, 2) for one in errors.tolist()])
        estimates = np.array([rounded_to(*one, 3) for one in zip(estimates.tolist(), errors.tolist(), strict=True)])
        best, spread = np.asarray(np.linalg.solve(turned, estimates), np.float64), np.diag(errors**2)
        spread[~np.eye(len(errors), dtype=bool)] = math.nan
        dispersion = rounded_to(dispersion, dispersion * math.sqrt(2 / max(free, 1)), 2)
    losses = _Losses(deviance, dispersion * math.sqrt(2 * max(free, 1)), few, counted is not None)
    names, of_t = (INTERCEPT, *design.columns), free if _uses_t(layout) else None
    of_each: Sequence[float | None] = [of_t] * len(names)
    if in_turn is not None:
        of_each = [float(f"{one:.2g}") if few else one for one in in_turn.free(free).tolist()]
    first = tables[0].state.first
    first = first if first is not None and first.records == sums.records else None
    if design.offset and design.family == "logistic":  # its first point ignores the offset
        first = None
    ratio = None if several else _ratio(design, first, sums)
    tests = () if few or (several and counted) else _tests(design, estimates, spread, of_t, ratio, in_turn)
    converged = all(one.state.converged for one in tables)
    if pooling is not None and in_turn is not None and converged and not (few or counted):
        pooling = msgspec.structs.replace(pooling, variances=in_turn.variances(names, free))
    silent = sorted({place for one in tables for place in one.state.silent})
    return GlmFit(
        design=design,
        sites=sums.sites,
        least=least,
        records=sums.records,
        steps=max(one.state.steps for one in tables),
        converged=converged,
        deviance=losses.publish(deviance),
        null_deviance=None if first is None else losses.publish_null(first.deviance),
        aic=None if several or design.of_family.disperses else losses.publish(deviance + least_loss) + 2 * rank,
        dispersion=dispersion,
        coefficients=tuple(coefficient(*one) for one in zip(names, estimates, errors, of_each, strict=True)),
        covariance=tuple(tuple(known(value) for value in row) for row in spread.tolist()),
        rank=rank,
        silent=tuple(names[place] for place in silent),
        eta=tuple(best.tolist()),
        pearson=None if found.pearson is None else losses.round(found.pearson),
        clusters=last.clusters if last is not None and design.cluster else None,
        tests=tuple(tests),
        rounded=few or counted is not None,
        pooling=pooling or msgspec.UNSET,
    )


def rounding(fit: GlmFit) -> str:
    """Return why figures of a fit are rounded, in words; "" if all are exact."""
    if not fit.rounded:
        return ""
    others = [one for k, row in enumerate(fit.covariance) for j, one in enumerate(row) if j != k]
    if any(one is not None for one in others):
        return "deviances are rounded: few records have the largest counts, and exact ones would count them"
    return "rounded: few records share two categories, or one and an outcome, and exact errors would count them"


@dataclass(frozen=True)
class _Solution:
    """A fit's solution in scaled columns."""

    best: Values
    """Estimates, [p]."""
    spread: Values
    """Their covariance, [p, p]; NaN where undetermined."""
    dispersion: float
    pearson: float | None
    """Pearson's statistic; None if unknown or not publishable."""


@dataclass(frozen=True, eq=False)
class _TableEnd:
    """The end of the fit of one table."""

    state: Newton
    sums: PointSums
    last: LastSums | None
    rank: int
    solution: _Solution


def _ended(layout: GlmLayout, vector: Vector) -> _TableEnd | None:
    """Return the end of the fit of a table's sums; None after too few complete rounds."""
    design, state, last = layout.design, layout.reached(vector, layout.rounds), layout.last(vector)
    if state is None or state.sums is None:
        return None
    if layout.has_last and last is None and (design.errors or design.of_family.disperses):
        return None
    rank = rank_of(state.sums.information)
    found = _solution(layout, state, state.sums, last, state.sums.records - rank)
    return _TableEnd(state, state.sums, last, rank, found)


def mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _pooled(tables: Sequence[_TableEnd]) -> tuple[_Solution, PooledEstimates | None]:
    """Return the solution of one table, or that of several with their variances."""
    each = [one.solution for one in tables]
    if len(each) == 1:
        return each[0], None
    several = pooled([one.best for one in each], [one.spread for one in each])
    known = [one.pearson for one in each if one.pearson is not None]
    pearson = mean_of(known) if len(known) == len(each) else None
    return _Solution(several.estimates, several.total, mean_of([one.dispersion for one in each]), pearson), several


def _solution(layout: GlmLayout, state: Newton, sums: PointSums, last: LastSums | None, free: int) -> _Solution:
    """Return the solution with the errors that the design asks for; `free`: degrees of freedom of the residuals."""
    design, disperses = layout.design, layout.design.of_family.disperses
    dispersion = 1.0
    if design.family == "linear":
        dispersion = sums.deviance / free if free > 0 else math.nan
    pearson = None if last is None or last.records != sums.records else last.pearson
    if design.family in ("poisson", "logistic") and design.errors != QUASI:  # quasi errors use it unchanged
        total = float(sums.gradient[0] + sums.information[0, 0])
        pearson = None if design.family == "logistic" or _is_yes_no(sums, total) else pearson
    if pearson is not None and (design.errors == QUASI or disperses) and free > 0:
        dispersion = pearson / free
    spread = covariance(state, dispersion)
    if last is not None and last.meat is not None:
        bread = covariance(state, 1.0)
        spread = np.nan_to_num(bread) @ last.meat @ np.nan_to_num(bread) + 0 * bread  # keeps NaN in its places
        if design.cluster:
            spread *= of_clusters(design.cluster, last.clusters, sums.records, rank_of(sums.information))
    return _Solution(state.last, spread, dispersion, pearson)


def _uses_t(layout: GlmLayout) -> bool:
    """Return whether a coefficient's statistic is t in place of z: its error depends on an estimated dispersion."""
    return layout.design.errors == QUASI or (layout.design.of_family.disperses and not layout.robust)


@dataclass(frozen=True)
class _Losses:
    """Publishes deviances: as they are, with two digits of their error if `few` records share categories, as multiples
    of it if they would count an outcome.
    """

    deviance: float
    error: float
    few: bool
    counted: bool

    def round(self, loss: float) -> float:
        return rounded_to(loss, self.error, 2) if self.few else loss

    def publish(self, loss: float) -> float:
        return multiple_of(loss, self.error) if self.counted else self.round(loss)

    def publish_null(self, loss: float) -> float:
        """Publish the null model's deviance: its difference to the fit's is a function of the columns alone."""
        if not self.counted:
            return self.round(loss)
        return self.publish(self.deviance) + self.round(loss - self.deviance)


def check_enough_clusters(name: str, clusters: int, rank: int) -> None:
    """Raise TrainingError for too few clusters to determine the errors of `rank` coefficients."""
    if clusters <= rank:
        text = f"{clusters} clusters by {name} for {rank} coefficients: they determine no robust errors"
        raise TrainingError(text, "Leave columns out, drop=A,B, or take errors=robust of single records.")


FEW_CLUSTERS = 40
"""Number of clusters below which a line reports that robust errors by them are too small."""


def clusters_in_words(name: str, clusters: int) -> str:
    few = ": few, so these errors are a little small" if clusters < FEW_CLUSTERS else ""
    return f"of {clusters} clusters by {name}{few}"


def of_clusters(name: str, clusters: int, records: int, rank: int) -> float:
    """Return the factor of a covariance by few clusters, as in statsmodels.  Raises TrainingError as
    `check_enough_clusters`.
    """
    check_enough_clusters(name, clusters, rank)
    return clusters / (clusters - 1) * (records - 1) / (records - rank)


def _ratio(design: GlmDesign, first: PointSums | None, sums: PointSums) -> float | None:
    """Return the decrease of the deviance by all columns, or None."""
    other = first is None or design.errors or design.of_family.disperses
    return None if other or first is None else first.deviance - sums.deviance


def _tests(
    design: GlmDesign,
    estimates: Values,
    spread: Values,
    free: int | None,
    ratio: float | None,
    several: PooledEstimates | None,
) -> Iterator[TermTest]:
    """Yield the tests of terms, with `free` degrees of freedom for F; `ratio`: the decrease of the deviance; `several`:
    the estimates of several tables.
    """
    from scipy import special

    if ratio is not None:
        freedom = len(estimates) - 1
        yield TermTest("likelihood ratio", ratio, freedom, float(special.chdtrc(freedom, max(ratio, 0.0))))
    for name, places in terms_of(design):
        mine = [k + 1 for k in places]
        own = spread[np.ix_(mine, mine)]
        if len(mine) < 2 or not np.isfinite(own).all():
            continue
        if several is not None:
            statistic, second = several.test(mine)
            yield TermTest(name, statistic, len(mine), float(special.fdtrc(len(mine), second, statistic)), second)
            continue
        statistic = float(estimates[mine] @ np.linalg.solve(own, estimates[mine]))
        if free is None:
            yield TermTest(name, statistic, len(mine), float(special.chdtrc(len(mine), statistic)))
        else:
            statistic /= len(mine)
            yield TermTest(name, statistic, len(mine), float(special.fdtrc(len(mine), free, statistic)), free)


def _few_share(layout: GlmLayout, vector: Vector, first: PointSums | None, agreed: AgreedTable) -> bool:
    if first is None:
        return False
    design = layout.design
    if (shared := layout.shared(vector)) is not None:
        squares, sums, products = shared
    else:
        products = first.information * (first.records / first.information[0, 0])
        mean = float(design.of_family.mean(np.array(layout.first_point(vector))))
        sums = first.gradient + mean * products[0]
        squares = sums[0]  # of 0 and 1
        if design.family == "linear":
            squares = first.deviance - mean * (first.records * mean - 2 * sums[0])  # its deviance is that from `mean`
        elif design.family == "poisson" and not _is_yes_no(first, sums[0]):
            squares = math.inf
    outcomes = counted_outcomes(agreed, design.family, first.records, squares, products[0], sums)
    return few_share(design, products, first.records, agreed, outcomes)


def _is_yes_no(sums: PointSums, total: float) -> bool:
    """Return whether each outcome of a Poisson model is 0 or 1; `total`: their sum.

    X^2 over degrees of freedom is meaningless for these: it is about (1 - mu) for every model.
    """
    return abs(sums.least - 2 * total) < 1e-6 * sums.records


def rounded_to(value: float, error: float, digits: int) -> float:
    """Return a number rounded to `digits` digits of its error."""
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return value
    return round(value, digits - 1 - math.floor(math.log10(error)))


def multiple_of(value: float, error: float) -> float:
    """Return the whole multiple of a one-digit error nearest to a number."""
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return value
    unit = float(f"{error:.1g}")  # an exact one would determine the number
    return round(round(value / unit) * unit, 1 - math.floor(math.log10(unit)))


def _without_sum(layout: GlmLayout, outcome: AgreedColumn, found: _Solution, free: int) -> _Solution:
    """Return a solution that discloses neither sum nor squares of an outcome."""
    linear, share = layout.design.family == "linear", math.sqrt(2 / max(free, 1))
    best, spread, coarse = np.array(found.best), np.array(found.spread), found.dispersion
    if linear and coarse > 0:
        coarse = multiple_of(found.dispersion, found.dispersion * share)
        spread *= 1.0 if layout.robust else coarse / found.dispersion
    if outcome.counts and linear:
        best[0] = multiple_of(float(best[0]), math.sqrt(spread[0, 0]))
    elif outcome.counts:  # never less than it is
        spread[0, 0] = multiple_of(float(spread[0, 0]) * (1 + share / 2), float(spread[0, 0]) * share)
    return replace(found, dispersion=coarse, best=best, spread=spread)


def _turned(turned: Values, spread: Values) -> Values:
    """Return T S T'; an unknown part of S makes the intercept's row NaN."""
    found = turned @ np.nan_to_num(spread) @ turned.T
    unknown = (np.abs(turned) @ np.isnan(spread).astype(float) @ np.abs(turned).T) > 0
    found[unknown] = math.nan
    return np.asarray(found)


def known(value: float) -> float | None:
    """Return a number for JSON: None for NaN and infinity."""
    return value if math.isfinite(value) else None


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def coefficient(name: str, estimate: float, error: float, free: float | None = None) -> Coefficient:
    """Return an estimate with its statistic, p-value and interval.

    `free`: degrees of freedom of Student's t; None for a normal distribution.
    """
    from scipy import special

    if not (math.isfinite(error) and error > 0):
        return Coefficient(name=name, estimate=float(estimate))
    statistic = float(estimate / error)
    if free is None:
        p, reach = math.erfc(abs(statistic) / math.sqrt(2)), float(special.ndtri((1 + LEVEL) / 2))
    else:
        p, reach = 2 * float(special.stdtr(free, -abs(statistic))), float(special.stdtrit(free, (1 + LEVEL) / 2))
    low, high = float(estimate - reach * error), float(estimate + reach * error)
    return Coefficient(
        name=name, estimate=float(estimate), error=float(error), statistic=statistic, p=p, low=low, high=high
    )


def layer_of(family: str, point: Values) -> Values:
    """Return the rows [outputs, p + 1] of a linear layer by coefficients: of a logistic model a softmax's."""
    return np.stack([0 * point, point]) if family == "logistic" else point[None]  # so the second's are log-odds


def tensors_of(d: ScaledColumns, rows: Values, features: int) -> dict[str, Any]:
    """Return the linear layer of a softmax, a regression or a rate, over all `features` of the table."""
    weights = np.zeros((len(rows), features), np.float64)
    weights[:, list(d.places)] = rows[:, 1:]
    return {"layer1.weight": weights.astype(np.float32), "layer1.bias": rows[:, 0].astype(np.float32)}


@dataclass(frozen=True, eq=False)
class MeanPredictions:
    """Predictions for m records, [m]; NaN if columns depend on each other."""

    mean: Values
    """Mean outcome: a probability, a number or a count."""
    low: Values
    high: Values
    """Upper bound of the 95 % interval of this mean."""
    record: tuple[Values, Values] | None = None
    """For a linear model: the 95 % interval of a single record."""


def reach_of(free: int | None) -> float:
    """Return the half width of a 95 % interval in standard errors; `free` degrees of freedom, None: normal."""
    from scipy import special

    share = (1 + LEVEL) / 2
    return float(special.ndtri(share) if free is None else special.stdtrit(free, share))


def predictions(fit: GlmFit, features: Values) -> MeanPredictions:
    """Return the predictions for features [m, all], in their original units."""
    family = FAMILIES[fit.design.family]
    chosen = features[:, list(fit.design.places)]
    x = np.concatenate([np.ones((len(chosen), 1)), chosen], axis=1)
    eta = x @ np.array([one.estimate for one in fit.coefficients])
    if fit.design.offset:
        eta = eta + features[:, fit.design.offset.place]
    variance = variance_of(fit.covariance, x)
    reach = reach_of(fit.free if family.disperses or fit.design.errors == QUASI else None)
    low, high = (eta + side * reach * np.sqrt(variance) for side in (-1, 1))
    with np.errstate(over="ignore"):
        mean, low, high = (np.asarray(family.mean(one)) for one in (eta, low, high))
    if family.name != "linear":
        return MeanPredictions(mean, low, high)
    wide = reach * np.sqrt(variance + fit.dispersion)
    return MeanPredictions(mean, low, high, (eta - wide, eta + wide))


def variance_of(covariance: Sequence[Sequence[float | None]], x: Values) -> Values:
    """Return x S x' of each record; NaN if it needs an unknown part of S."""
    spread = np.array([[math.nan if one is None else one for one in row] for row in covariance])
    unknown = np.isnan(spread)
    found = np.einsum("mi,ij,mj->m", x, np.where(unknown, 0.0, spread), x)
    there = (x != 0).astype(float)
    lacking = np.einsum("mi,ij,mj->m", there, unknown.astype(float), there) > 0
    return np.where(lacking, math.nan, np.maximum(found, 0.0))


def measured(fit: GlmFit, features: Values, y: Values) -> Mapping[str, float]:
    """Return measures of the predictions of the outcomes y [m]: classes as 0 and 1."""
    answers = predictions(fit, features)
    mean, family = answers.mean, fit.design.family
    if family == "logistic":
        inside = np.clip(mean, 1e-300, 1 - 1e-16)
        loss = float(-np.mean(y * np.log(inside) + (1 - y) * np.log1p(-inside)))
        found = {"accuracy": float(np.mean((mean > 0.5) == (y > 0.5))), "log loss": loss}
        found["Brier score"] = float(np.mean((mean - y) ** 2))
        return found | ({"AUROC": _area(mean, y)} if 0 < y.sum() < len(y) else {})
    found = {"RMSE": float(np.sqrt(np.mean((y - mean) ** 2))), "MAE": float(np.mean(np.abs(y - mean)))}
    if family != "linear":
        deviance, eta = FAMILIES[family].deviance, np.log(mean)
        total = math.fsum(deviance(y, eta))
        offset = features[:, fit.design.offset.place] if fit.design.offset else np.zeros(len(y))
        counted, exposed = mean_sums(FAMILIES[family], y, offset, 1.0)
        null = math.fsum(deviance(y, math.log(counted / exposed) + offset)) if y.any() else 0.0
        found["deviance of a record"] = total / len(y)
        found |= {"share of the deviance explained": 1 - total / null} if null else {}
        found["Pearson's X² of a record"] = float(np.mean((y - mean) ** 2 / FAMILIES[family].variance(eta)))
        return found
    spread = float(((y - y.mean()) ** 2).sum())
    found |= {"R²": 1 - float(((y - mean) ** 2).sum()) / spread} if spread else {}
    assert answers.record is not None
    low, high = answers.record
    if np.isfinite(low).all():
        found["share within their 95 % interval"] = float(np.mean((low <= y) & (y <= high)))
    return found


def _area(mean: Values, y: Values) -> float:
    from scipy.stats import rankdata

    positives = y > 0.5
    count = int(positives.sum())
    total = float(rankdata(mean)[positives].sum()) - count * (count + 1) / 2
    return total / (count * (len(y) - count))
