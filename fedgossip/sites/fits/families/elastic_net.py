"""Ridge, lasso and elastic net: a generalised linear model with a penalty, chosen by cross-validation.

    minimises   deviance / 2N + lambda (l1 |b|_1 + (1 - l1) |b|^2 / 2)       b: of scaled columns, without the intercept
    path        lambda from the least one with all b = 0, down to a thousandth of it
    folds       record k of a site is of fold k mod F; a model of each fold is fitted without it and evaluated on it

    round 0     sums of outcomes, products of columns
    round r     deviance, g and A of each model at its point, which determine the next points: b minimises
                -g'(b - b0) + (b - b0)' A (b - b0) / 2 + N lambda (...), by coordinate descent (a proximal Newton step)

A linear model's g, A and deviance at one point determine all others, so it has two rounds.  Paths with more numbers
than records are refused.

Source: Friedman, Hastie and Tibshirani, Regularization paths for generalized linear models via coordinate descent,
Journal of Statistical Software 33 (2010).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, nearest, plural
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import CUT_SHORT, LOOK, too_few
from fedgossip.sites.fits.families.family import (
    FEW,
    Cell,
    FamilyDesign,
    FamilyModel,
    FamilyResult,
    Numbers,
    PooledRound,
    ResultTable,
    SiteSample,
    SumBlock,
    option_number,
    read_sample,
    regression_design,
    symmetric,
    upper,
)
from fedgossip.sites.fits.few_values import counted_outcomes, few_share
from fedgossip.sites.fits.glm.glm import FAMILIES, Values, in_units, influences, site_sums, start
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, RATIO, SOURCE_OF, layer_of, multiple_of, rounded_to

KIND_OF = {name: CLASSIFICATION if name == "logistic" else REGRESSION for name in FAMILIES}
SMALLEST = 1e-3
"""Last lambda of a path, in units of the first."""
STEPS = 12
"""Maximum number of steps to the end at the chosen lambda."""
EACH = 2
"""Maximum mean number of steps at each other lambda."""
NEAR, CONVERGED = 1e-6, 1e-16
"""Decrease of deviance / 2 by a step, below which a path continues, or the chosen model ends."""
SWEEPS = 2_000
"""Maximum number of sweeps of coordinate descent."""
MOST = 50
"""Maximum number of lambdas; the maximum number of folds is a fifth of it."""
SHOWN = 1.0
"""Standard errors of the cross-validated deviance within which a larger lambda is preferred."""


@dataclass(frozen=True)
class NetOptions:
    family: str
    l1: float
    """Share of the absolute values in the penalty: 1 is the lasso, 0 ridge."""
    fixed: float | None
    """The lambda; None: one of a path."""
    path: int
    folds: int


def options_of(options: Mapping[str, str]) -> NetOptions:
    """Return the options, checked.  Raises ConfigError."""
    family, of = options.get("family", ""), "elastic-net?"
    if family not in KIND_OF:
        raise ConfigError(f"elastic-net?family={family}", nearest(family, KIND_OF))
    l1 = option_number(of, "l1", options.get("l1", "1"), 0.0, 1.0)
    if "lambda" in options:
        if extra := {"path", "folds"} & options.keys():
            raise ConfigError(f"elastic-net: {min(extra)} with lambda", "Fit that lambda, or choose one of a path.")
        return NetOptions(family, l1, option_number(of, "lambda", options["lambda"], 0.0, 1e6), 1, 0)
    path, folds = (round(option_number(of, name, options.get(name, many), 2, most)) for name, many, most in (
        ("path", "10", MOST), ("folds", "5", MOST // 5)
    ))  # fmt: skip
    return NetOptions(family, l1, None, path, folds)


def check_label(name: str, family: str, agreed: AgreedTable) -> None:
    """Raise ConfigError for a label that is not of the family."""
    labels = agreed.schema.labels
    if len(labels) != 1 or (KIND_OF[family] == CLASSIFICATION) != (len(labels[0].categories) == 2):
        wanted = "two classes" if family == "logistic" else 'numbers, with task.kind = "regression"'
        raise ConfigError(f"{name}?family={family}: another label", f"It is of one label of {wanted}.")


def check_outcomes(d: FamilyDesign, family: str, y: Values) -> None:
    """Raise ConfigError for outcomes [m] outside the family."""
    of = FAMILIES[family]
    if wrong := int((~of.outcomes(y)).sum()):
        text = f"column {d.outcome!r} holds {plural(wrong, 'cell')} other than {of.of}"
        raise ConfigError(text, f"A {of.title} model is of {of.of}; family=linear is of any.")


@dataclass(frozen=True, eq=False)
class NetSums:
    """The sums of one model at a point: of the records of its fit, and of those left out."""

    records: int
    deviance: float
    gradient: Values
    information: Values
    left_out: float = 0.0
    """Deviance of the records left out."""

    def outside(self, whole: NetSums) -> NetSums:
        """Return the sums of the records left out, by those of all at the same point."""
        gradient, information = whole.gradient - self.gradient, whole.information - self.information
        return NetSums(whole.records - self.records, self.left_out, gradient, information)

    def away(self, step: Values) -> NetSums:
        """Return the sums of a linear model a step from their point."""
        turned = self.information @ step
        deviance = self.deviance - 2 * float(self.gradient @ step) + float(step @ turned)
        return replace(self, deviance=deviance, gradient=self.gradient - turned)


def penalty(b: Values, l1: float) -> float:
    """Return the penalty of coefficients after their intercept, [p + 1], for a lambda of 1."""
    return float(l1 * np.abs(b[1:]).sum() + (1 - l1) / 2 * (b[1:] ** 2).sum())


def descended(sums: NetSums, begin: Values, size: float, l1: float) -> Values:
    """Return the minimum of the penalised quadratic around `begin`, [p + 1], at lambda `size`: sweeps find zeros and
    signs, then linear equations the values.
    """
    a, b = sums.information, begin.copy()
    pull = sums.gradient + a @ begin
    soft = np.full(len(b), sums.records * size * l1)
    ridge = np.full(len(b), sums.records * size * (1 - l1))
    soft[0] = ridge[0] = 0.0
    diagonal = np.diag(a)
    there = diagonal > 0
    for sweep in range(SWEEPS):
        if sweep % 8 == 0:
            active = (b != 0) & there
            active[0] = there[0]
            inside = np.flatnonzero(active)
            try:
                exact = np.linalg.solve(
                    a[np.ix_(inside, inside)] + np.diag(ridge[inside]), (pull - soft * np.sign(b))[inside]
                )
            except np.linalg.LinAlgError:
                exact = b[inside]
            whole = np.zeros(len(b))
            whole[inside] = exact
            signs = (np.sign(exact) == np.sign(b[inside])) | (inside == 0)
            rest = np.abs(pull - a @ whole)[~active & there]
            if signs.all() and (rest <= soft[~active & there] * (1 + 1e-12)).all():
                return whole
        for k in np.flatnonzero(there).tolist():
            toward = pull[k] - a[k] @ b + a[k, k] * b[k]
            b[k] = math.copysign(max(abs(toward) - soft[k], 0.0), toward) / (a[k, k] + ridge[k])
    return b


@dataclass(frozen=True, eq=False)
class NetPoint:
    """One model during the fit: its best point with the sums there, and the point to evaluate next, [p + 1]."""

    point: Values
    best: Values
    sums: NetSums | None = None
    fall: float = math.inf
    """Predicted decrease of the penalised deviance / 2 by the step."""

    def stepped(self, size: float, l1: float) -> NetPoint:
        """Return the model with the step from its best point at lambda `size`."""
        assert self.sums is not None
        new, weight = descended(self.sums, self.best, size, l1), self.sums.records * size
        fall = float(self.sums.gradient @ (new - self.best)) - weight * (penalty(new, l1) - penalty(self.best, l1))
        return replace(self, point=new, fall=max(fall, 0.0))

    def moved(self, sums: NetSums, size: float, l1: float) -> NetPoint:
        """Return the model after its sums at `point`: with its next step, or with half of a step that was too long."""
        if self.sums is not None:
            before, now = (
                one.deviance / 2 + one.records * size * penalty(at, l1)
                for one, at in ((self.sums, self.best), (sums, self.point))
            )
            if not now <= before + 1e-9 * (1 + abs(before)):
                return replace(self, point=self.best + (self.point - self.best) / 2)
        return replace(self, best=self.point, sums=sums).stepped(size, l1)

    def is_near(self, near: float) -> bool:
        return self.sums is not None and self.fall <= near * (1 + self.sums.deviance)


@dataclass(frozen=True, eq=False)
class PathPoint:
    """The result at one lambda."""

    size: float
    model: NetPoint
    judged: Values
    """Mean deviance of a record of each fold, by the model without it, [F]."""


class NetPath:
    """The fits of all models, the first on all records, through the lambdas and to the chosen one."""

    def __init__(self, options: NetOptions, begin: Values) -> None:
        self.options, self.begin = options, begin
        self.null = math.nan
        """Deviance of the mean only."""
        self.models = [NetPoint(begin, begin)] * (1 + options.folds)
        self.sizes: list[float] = []
        self.found: list[PathPoint] = []
        self.chosen: int | None = None

    @property
    def is_over(self) -> bool:
        return self.chosen is not None and self.models[0].is_near(CONVERGED)

    @property
    def size(self) -> float:
        return self.sizes[len(self.found) if self.chosen is None else self.chosen]

    def take(self, sums: Sequence[NetSums]) -> None:
        """Advance by the sums of each model at its point."""
        o = self.options
        if not self.sizes:
            self.null = sums[0].deviance
            steepest = float(np.abs(sums[0].gradient[1:]).max()) / (sums[0].records * max(o.l1, SMALLEST))
            self.sizes = [o.fixed] if o.fixed is not None else np.geomspace(1, SMALLEST, o.path).tolist()
            self.sizes = [one * (1 if o.fixed is not None else steepest) for one in self.sizes]
        self.models = [one.moved(these, self.size, o.l1) for one, these in zip(self.models, sums, strict=False)]
        while self.chosen is None and all(one.is_near(NEAR) for one in self.models):
            self._note()
            for_next = self.models if self.chosen is None else [self.found[self.chosen].model]
            self.models = [one.stepped(self.size, o.l1) for one in for_next]

    def _note(self) -> None:
        whole, *folds = (one.sums for one in self.models)
        assert whole is not None
        shares = [one.left_out / (whole.records - one.records) for one in folds if one is not None]
        self.found.append(PathPoint(self.size, self.models[0], np.array(shares)))
        if len(self.found) == len(self.sizes):
            self.chosen = best_of(self.found)[0]


def best_of(found: Sequence[PathPoint]) -> tuple[int, int]:
    """Return the index of the lambda with the least cross-validated deviance, and of the largest within its error."""
    if not len(found[0].judged):
        return 0, 0
    means = [float(one.judged.mean()) for one in found]
    least = int(np.argmin(means))
    return least, next(k for k, mean in enumerate(means) if mean <= means[least] + SHOWN * error_of(found[least]))


def error_of(one: PathPoint) -> float:
    """Return the standard error of the mean cross-validated deviance, by its spread over folds."""
    return float(one.judged.std(ddof=1)) / math.sqrt(len(one.judged))


class ElasticNet:
    name, kinds, predicts = "elastic-net", (CLASSIFICATION, REGRESSION), True
    options = "family", "l1", "lambda", "path", "folds"

    def __init__(self) -> None:
        self._kept: tuple[FamilyDesign, PooledRound, NetPath] | None = None
        """The last path, which all local sites of a round share."""

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        check_label(self.name, options_of(options).family, agreed)
        d = regression_design(self.name, options, agreed)
        opened = sum(block.size for one in self.numbers(d) for block in one.values())
        if opened > (held := agreed.records * (len(d.columns) + 1)):
            text = f"up to {opened:,} numbers of sums, of {agreed.records} records with {held:,}"
            raise ConfigError(
                text, "They would disclose single records: path=5, folds=3, lambda=0.1, or fewer columns."
            )
        return d

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        o, k = options_of(d.options), len(d.columns) + 1
        half = k * (k + 1) // 2

        def each(m: int) -> Mapping[str, SumBlock]:
            found = {"of": SumBlock(m, counts=True)}
            found |= dict.fromkeys(("deviance", "left out"), SumBlock(m, positive=True))
            return found | {"gradient": SumBlock(m * k), "information": SumBlock(m * half)}

        begin = {"first": SumBlock(2), "products": SumBlock(half), "outcomes": SumBlock(k)}
        if o.family == "linear":
            return [begin, each(1 + o.folds)]
        return [begin, *[each(1 + o.folds)] * (EACH * o.path + 1), *[each(1)] * STEPS]

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        o, k = options_of(d.options), len(d.columns) + 1
        of = f"of {1 + o.folds} models, each but the first without a fold of the records, " if o.folds else ""
        text = f"{of}the deviance, {k} sums of columns by residuals, {k * (k + 1) // 2} of products of columns"
        rounds = 1 if o.family == "linear" else EACH * o.path + 1
        last = () if o.family == "linear" else (f"then, in each of at most {STEPS} steps, the same of one model",)
        first = f"first the number of records, sums of {d.outcome}, and of products of columns"
        return first, f"then, in each of at most {rounds} steps, {text}", *last

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> SiteSample:
        o = options_of(d.options)
        found = read_sample(d, agreed, file, KIND_OF[o.family])
        check_outcomes(d, o.family, found.y[:, 0])
        if len(found.x) < (few := d.suppress * max(1, o.folds)):
            text = f"{len(found.x)} records for {o.folds} folds: sums of each would disclose few"
            raise ConfigError(text, f"{few} are needed here, or fewer folds=.")
        return found

    def records(self, site: SiteSample) -> int:
        return len(site.x)

    def path(self, d: FamilyDesign, pooled: Sequence[PooledRound]) -> NetPath:
        """Return the path after these rounds, the first of which is complete.  Raises TrainingError as `start`."""
        if self._kept is not None and self._kept[0] is d and self._kept[1] is pooled[-1]:
            return self._kept[2]
        o, k = options_of(d.options), len(d.columns) + 1
        first, begin = pooled[0], start(FAMILIES[o.family], pooled[0].records, float(pooled[0]["first"][0]), k - 1)
        found = NetPath(o, begin.point)
        for one in pooled[1:]:
            if one.sites and not found.is_over and len(one["of"]) >= len(found.models):
                found.take(_sums_of(one, k))
        if o.family == "linear" and found.sizes:
            _extrapolate(found, _sums_of(pooled[1], k), begin.point)
        self._kept = d, pooled[-1] if len(pooled) > 1 else first, found
        return found

    def sums(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> Numbers:
        y = site.y[:, 0]
        if round == 0:
            products = (site.x.T @ site.x)[upper(len(d.columns) + 1)]
            return {"first": [math.fsum(y), math.fsum(y * y)], "products": products, "outcomes": y @ site.x}
        found, blocks = self.path(d, pooled), self.numbers(d)[round]
        numbers = {name: np.zeros(block.size) for name, block in blocks.items()}
        m, family = blocks["of"].size, FAMILIES[found.options.family]
        if found.is_over or len(found.models) > m:
            return numbers
        for place, (model, mine) in enumerate(zip(found.models, _models_of(found, len(y)), strict=True)):
            inside, outside = (site_sums(family, site.x[rows], y[rows], model.point) for rows in (mine, ~mine))
            numbers["of"][place], numbers["deviance"][place] = inside.records, inside.deviance
            numbers["left out"][place] = outside.deviance
            numbers["gradient"].reshape(m, -1)[place] = inside.gradient
            numbers["information"].reshape(m, -1)[place] = inside.information[upper(len(d.columns) + 1)]
        return numbers

    def uneven(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> str:
        if round == 0:
            return ""
        found = self.path(d, pooled)
        family, begin = FAMILIES[found.options.family], found.begin
        unit = float(family.influence(begin[:1])[0])
        for model, mine in zip(found.models, _models_of(found, len(site.x)), strict=True):
            if not np.isfinite(model.point).all():
                return "its sums lead to no point"
            x = site.x[mine]
            named = list(zip((INTERCEPT, *d.columns), x.T, strict=True))
            if reason := too_few(influences(family, x, model.point), unit, named, d.suppress):
                return reason
        return ""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        found = self._found(d, pooled, agreed)
        if found is None:
            return None
        path, estimates, loss_error = found
        o, sums = path.options, path.models[0].sums
        assert sums is not None

        counted = agreed.counted_outcome(o.family)
        dispersion = sums.deviance / sums.records if o.family == "linear" else 1.0

        def published(loss: float, records: int = 1) -> float:
            if counted:
                return multiple_of(loss, math.sqrt(2 * sums.records) * dispersion / records)
            return rounded_to(loss, loss_error * dispersion / records, 2)

        ratio = RATIO.get(o.family)
        head = ("", "estimate", "of a deviation", *([ratio] if ratio else []))
        rows: list[tuple[Cell, ...]] = []
        for name, value, scale in zip((INTERCEPT, *d.columns), estimates.tolist(), (1.0, *d.deviation), strict=True):
            exp = (None if name == INTERCEPT else math.exp(min(value, 700.0)),) if ratio else ()
            rows.append((name, value, None if name == INTERCEPT else value * scale, *exp))
        tables = [ResultTable("estimates", head, tuple(rows))]
        remarks = [f"deviance {published(sums.deviance):.8g} ({published(path.null):.8g} of the mean alone)"]
        if o.folds and path.chosen is not None:
            points: list[tuple[Cell, ...]] = []
            for one in path.found:
                assert one.model.sums is not None
                judged = (published(value, sums.records) for value in (float(one.judged.mean()), error_of(one)))
                used = int((one.model.best[1:] != 0).sum())
                points.append((one.size, used, published(one.model.sums.deviance), *judged))
            tables.append(ResultTable("path", ("lambda", "columns", "deviance", "judged", "std. error"), tuple(points)))
            text = f"judged: mean deviance of a record of {o.folds} folds, each by the model without it; lambda "
            remarks.append(f"{text}{path.found[best_of(path.found)[1]].size:.6g} is as good, to one standard error")
        used = int((estimates[1:] != 0).sum())
        what = {1.0: "lasso", 0.0: "ridge"}.get(o.l1, f"elastic net of l1 {o.l1:g}")
        of = f"{d.outcome} = {d.classes[1]}" if d.classes else d.outcome
        remarks.append("estimates are drawn to 0, and have no errors: those of the columns chosen would be too small")
        remarks += [f"compared with: {', '.join(d.against)}"] if d.against else []
        if loss_error:
            remarks.append(FEW.format(d.suppress))
        problem = "" if path.is_over else f"not at the end: {CUT_SHORT}.  {LOOK}"
        size = f", lambda {path.size:.6g}" if path.chosen is not None else ""
        title = f"{what}, {FAMILIES[o.family].title} model of {of}{size}, {used} of {len(d.columns)} columns"
        return FamilyResult(title, tables, remarks, problem)

    def _found(
        self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable
    ) -> tuple[NetPath, Values, float] | None:
        """Return the path, the estimates in units, and a rounded deviance's error, else 0."""
        if not pooled[0].sites:
            return None
        path = self.path(d, pooled)
        sums = path.models[0].sums
        if sums is None:
            return None
        products, records = symmetric(pooled[0]["products"], len(d.columns) + 1), pooled[0].records
        _, squares = pooled[0]["first"].tolist()
        family, sums_of = path.options.family, pooled[0]["outcomes"]
        outcomes = counted_outcomes(agreed, family, records, squares, products[0], sums_of)
        point = np.array(path.models[0].point if path.is_over else path.models[0].best)
        if path.options.family == "linear" and (counted := agreed.counted_outcome("linear")) and counted.counts:
            point[0] = multiple_of(float(point[0]), math.sqrt(sums.deviance) / records)  # as of glm
        estimates = in_units(d) @ point
        if not few_share(d, products, records, agreed, outcomes):
            return path, estimates, 0.0
        errors = np.sqrt(np.diag(in_units(d) @ np.linalg.pinv(sums.information) @ in_units(d).T))
        both = zip(estimates.tolist(), errors.tolist(), strict=True)
        return path, np.array([rounded_to(one, error, 3) for one, error in both]), math.sqrt(2 * records)

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        found = self._found(d, pooled, agreed)
        if found is None or not found[0].is_over:
            return None
        family, point = found[0].options.family, np.linalg.solve(in_units(d), found[1])
        return FamilyModel(SOURCE_OF[family], layer_of(family, np.asarray(point, np.float64)))


def _sums_of(one: PooledRound, k: int) -> list[NetSums]:
    m = len(one["of"])
    rows = zip(one["of"], one["deviance"], one["gradient"].reshape(m, -1), one["information"].reshape(m, -1),
               one["left out"], strict=True)  # fmt: skip
    return [NetSums(int(n), float(dev), g, symmetric(a, k), float(out)) for n, dev, g, a, out in rows]


def _extrapolate(path: NetPath, sums: Sequence[NetSums], begin: Values) -> None:
    whole = sums[0]
    for _ in range((EACH + 1) * len(path.sizes) + STEPS):
        if path.is_over:
            return
        steps = [model.point - begin for model in path.models]
        inside = [one.away(step) for one, step in zip(sums, steps, strict=False)]
        left_out = [one.outside(whole).away(step).deviance for one, step in zip(sums, steps, strict=False)]
        path.take([replace(one, left_out=value) for one, value in zip(inside, left_out, strict=True)])


def _models_of(path: NetPath, records: int) -> Sequence[npt.NDArray[np.bool_]]:
    """Return the records of each model's fit, [m] each."""
    fold = np.arange(records) % max(1, path.options.folds)
    return [np.ones(records, bool), *(fold != k for k in range(len(path.models) - 1))]
