"""Families with a likelihood, fitted only to sums by Newton's method: each is a `Likelihood` with its own formula.

    round 0        sums that determine the first point
    round r        log likelihood, gradient and information at the point computed from all earlier rounds
    last round     with errors=robust: the sum of s s' over records, s a record's gradient, at the last point; with
                   cluster=COLUMN over clusters of records, s the gradient of one

Steps as `glm.moved`, with -2 log likelihood as deviance.  Robust errors: A^-1 (sum of s s') A^-1 (Huber, Fifth Berkeley
Symposium, 1967).

**Negative binomial counts**, with a larger variance than a Poisson one's:

    mu = exp(x b),   variance  mu + alpha mu^2,   r = 1 / alpha
    log likelihood of a record   log G(y + r) - log G(r) - log y! + r log(r / (r + mu)) + y log(mu / (r + mu))

alpha is estimated by its logarithm, with the observed information.

Source: Cameron and Trivedi, Regression analysis of count data, 2nd edition, 2013, section 3.3 (NB2).

**Weibull accelerated failure times**: a column stretches all times by one factor.

    log T = x b + s W,  W of the smallest extreme value;   z = (log t - x b) / s
    log likelihood of a record   d (z - log s - log t) - exp(z),   d: whether its event was observed

exp(-x b) is the rate of a Weibull distribution of shape 1 / s.  Observed information.

Source: Kalbfleisch and Prentice, The statistical analysis of failure time data, 2nd edition, 2002, section 3.2.

**Firth's logistic regression**: finite estimates even if a column separates the outcomes, and less small-sample bias.

    maximises   l(b) + log det A(b) / 2,   A = X' W X
    gradient    g_c + sum over a, b of (A^-1)_ab T_abc / 2,   T_abc = sum of w (1 - 2 p) x_a x_b x_c

T, of products of three columns, is a sum over records, so sums over sites give the same steps as all records.

Sources: Firth, Biometrika 80 (1993); Heinze and Schemper, Statistics in Medicine 21 (2002).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError, plural
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import (
    CUT_SHORT,
    LOOK,
    RECORDS_EACH,
    carried_by_one,
    check_clusters,
    effective,
    too_few,
)
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
    read_sample,
    regression_design,
    symmetric,
    upper,
)
from fedgossip.sites.fits.few_values import counted_outcomes, few_share, is_coarse
from fedgossip.sites.fits.glm.glm import Newton, PointSums, Values, covariance, in_units, moved, rank_of
from fedgossip.sites.fits.glm.glm_result import (
    INTERCEPT,
    RATES,
    SOFTMAX,
    clusters_in_words,
    coefficient,
    layer_of,
    of_clusters,
    rounded_to,
)
from fedgossip.sites.fits.glm.glm_sums import summed_by

STEPS = 16
"""Maximum number of Newton steps."""
ROBUST, MODEL = "robust", "model"
STRIDE = 0.5
"""Maximum step of a parameter of scaled columns: longer ones reach points at which few records count."""
FARTHEST = 1e4
"""Bound of |parameter| of a point: beyond it the likelihood grows without end."""


class LikelihoodTerms(NamedTuple):
    """A site's terms at a point of k parameters."""

    likelihood: Values
    """Of each record, [m]."""
    scores: Values
    """The gradient of each record's log likelihood, [m, k]."""
    information: Values
    """Minus its second derivatives, or their expectation, summed over records: [k, k]."""
    weights: Sequence[Values]
    """Weights of the records in the information, [m], of each set of coefficients of all columns, and
    of each two sets.
    """
    more: Values = np.zeros(0)
    """Further sums."""
    whole: Values = np.zeros(0)
    """Weights of the records in the information if they also depend on outcomes, [m]."""


class Likelihood(ABC):
    """The likelihood of one family, of k parameters."""

    name: str
    """First word of model.source."""
    kinds: tuple[str, ...]
    """Kinds of task with suitable labels."""
    labels = 1
    """Number of label columns."""
    predicts = False
    """Whether `model` is implemented."""
    counts = False
    """Whether outcomes are counts; `first` begins with their sum and that of their squares."""
    ratio = "odds ratio"
    """Meaning of exp(estimate) of a column."""

    @abstractmethod
    def title(self, d: FamilyDesign) -> str:
        """Return the description of the fit, in words."""

    @abstractmethod
    def names(self, d: FamilyDesign) -> Sequence[str]:
        """Return the names of all parameters, [k].  Raises ConfigError for columns that the family does not support."""

    @abstractmethod
    def first(self, d: FamilyDesign, y: Values) -> Values:
        """Return the sums over outcomes [m, labels] that determine the first point."""

    @abstractmethod
    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:
        """Return the first point, [k].  Raises TrainingError if all outcomes are equal."""

    @abstractmethod
    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:
        """Return the terms of a site's records at a point."""

    @abstractmethod
    def in_units(self, d: FamilyDesign) -> Values:
        """Return T [k, k]: T times the parameters are those of unscaled columns."""

    def check(self, d: FamilyDesign, y: Values) -> None:  # noqa: B027
        """Raise ConfigError for outcomes [m, labels] outside the family; classes are the agreed ones."""

    def outcomes(self, d: FamilyDesign, y: Values) -> Values:
        """Return which records [m, k] have each outcome that a category's cells count, or the counts [m, 1] of each."""
        return np.asarray(y[:, :1] == np.arange(len(d.classes)), np.float64)

    def more(self, d: FamilyDesign) -> int:  # noqa: ARG002
        """Return the number of further sums of `LikelihoodTerms`."""
        return 0

    def adjusted(self, d: FamilyDesign, sums: PointSums, more: Values) -> PointSums:  # noqa: ARG002
        """Return the sums over all sites as used in the steps."""
        return sums

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        """Return further results from the estimates, in words."""
        return []

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:
        """Return the predicting model, by the parameters of scaled columns [k], if `predicts`."""
        raise NotImplementedError


class LikelihoodFamily:
    """The `SumsFamily` of a likelihood."""

    options = "errors", "cluster"

    def __init__(self, of: Likelihood) -> None:
        self.of = of

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.of.kinds

    @property
    def predicts(self) -> bool:
        return self.of.predicts

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        if options.get("errors", MODEL) not in (MODEL, ROBUST):
            raise ConfigError(f"errors={options['errors']}", f"It is {MODEL} or {ROBUST}.")
        check_clusters(agreed, options, self.name)
        labels = agreed.schema.labels
        if len(labels) != self.of.labels:
            text = f"{self.name}: {plural(len(labels), 'label column')}, {', '.join(one.name for one in labels)}"
            raise ConfigError(
                text, f"It is of {self.of.labels}: label=" + ("time,event." if len(labels) == 1 else "ONE.")
            )
        d = regression_design(self.name, options, agreed)
        if agreed.records < RECORDS_EACH * (many := len(self.of.names(d))):
            text = f"{agreed.records} records for {many} parameters: sums of products would disclose single ones"
            raise ConfigError(text, f"Leave columns out, drop=A,B: {RECORDS_EACH} records for each are needed.")
        return d

    def _robust(self, d: FamilyDesign) -> bool:
        return d.options.get("errors") == ROBUST

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        k = len(self.of.names(d))
        first = len(self.of.first(d, np.ones((1, self.of.labels))))
        one = {"likelihood": SumBlock(1), "gradient": SumBlock(k), "information": SumBlock(k * (k + 1) // 2)}
        if more := self.of.more(d):
            one["more"] = SumBlock(more)
        clusters = {"clusters": SumBlock(1, counts=True)} if "cluster" in d.options else {}
        last = [clusters | {"squares": SumBlock(k * (k + 1) // 2)}] if self._robust(d) else []
        width = len(d.columns) + 1
        start = {"first": SumBlock(first), "products": SumBlock(width * (width + 1) // 2)}
        if outcomes := self.of.outcomes(d, np.ones((1, self.of.labels))).shape[1]:
            start["outcomes"] = SumBlock(outcomes * width)
        return [start, *[one] * STEPS, *last]

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        k = len(self.of.names(d))
        more = f", {self.of.more(d)} of products of three columns" if self.of.more(d) else ""
        each = f"the log likelihood, {k} sums of columns by residuals, {k * (k + 1) // 2} of products of columns{more}"
        by = f", summed by {d.options['cluster']}, and the number of these" if "cluster" in d.options else ""
        last = (f"at last as many sums of products of residuals by columns{by}",) if self._robust(d) else ()
        first = f"first the number of records, sums of {d.outcome}, and of products of columns and classes"
        return first, f"then, in each of at most {STEPS} steps, {each}", *last

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> SiteSample:
        found = read_sample(d, agreed, file, self.kinds[0])
        self.of.check(d, found.y)
        return found

    def records(self, site: SiteSample) -> int:
        return len(site.x)

    def state(self, d: FamilyDesign, pooled: Sequence[PooledRound]) -> Newton:
        """Return the state after these rounds, the first of which is complete."""
        point = self.of.start(d, pooled[0]["first"], pooled[0].records)
        state, k = Newton(point, point), len(point)
        for one in pooled[1 : STEPS + 1]:
            if not one.sites:
                continue
            information = symmetric(one["information"], k)
            deviance = -2 * float(one["likelihood"][0])
            sums = PointSums(one.sites, one.records, deviance, 0.0, one["gradient"], information)
            state = moved(state, self.of.adjusted(d, sums, one.of.get("more", np.zeros(0))))
            state = shortened(state)
        return state

    def sums(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> Numbers:
        if round == 0:
            products = (site.x.T @ site.x)[upper(len(d.columns) + 1)]
            start: dict[str, npt.ArrayLike] = {"first": self.of.first(d, site.y), "products": products}
            if (outcomes := self.of.outcomes(d, site.y)).size:
                start["outcomes"] = outcomes.T @ site.x
            return start
        state, rows = self.state(d, pooled), upper(len(self.of.names(d)))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if round > STEPS:
                scores = summed_by(self.of.terms(d, site, _last(state)).scores, site.cluster)
                return {"clusters": [len(scores)], "squares": (scores.T @ scores)[rows]}
            found = self.of.terms(d, site, state.point)
        gradient, likelihood = found.scores.sum(axis=0), math.fsum(found.likelihood)
        numbers = {"likelihood": [likelihood], "gradient": gradient, "information": found.information[rows]}
        if len(found.more):
            numbers["more"] = found.more
        if not all(np.isfinite(one).all() for one in numbers.values()) or abs(likelihood) > 1e25:
            worst = {name: np.zeros_like(one) for name, one in numbers.items()}
            return worst | {"likelihood": [-1e25]}  # too far out for a number: the step is halved
        return numbers

    def uneven(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> str:
        if round == 0:
            return ""
        state = self.state(d, pooled)
        point = _last(state) if round > STEPS else state.point
        if not np.isfinite(point).all() or np.abs(point).max() > FARTHEST:
            return "its sums lead to no point"
        start = self.of.start(d, pooled[0]["first"], pooled[0].records)
        named = list(zip(("(intercept)", *d.columns), site.x.T, strict=True))
        there, begin = self.of.terms(d, site, point), self.of.terms(d, site, start)
        both = zip(there.weights, begin.weights, strict=True)
        few = next(filter(None, (too_few(w, float(unit.mean()), named, d.suppress) for w, unit in both)), "")
        if not few and round > STEPS:
            squares = zip(self.of.names(d), (summed_by(there.scores, site.cluster) ** 2).T, strict=True)
            few = carried_by_one(list(squares), "records" if site.cluster is None else "clusters")
        if few or not len(there.whole):
            return few
        least = min(d.suppress, effective(begin.whole) / 2)
        return too_few(there.whole, float(begin.whole.mean()), named, least, begin.whole)

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        if not pooled[0].sites:
            return None
        state = self.state(d, pooled)
        if state.sums is None or (self._robust(d) and not pooled[-1].sites):
            return None
        names, turned = self.of.names(d), self.of.in_units(d)
        spread = covariance(state, 1.0)
        if self._robust(d):
            spread = spread @ symmetric(pooled[-1]["squares"], len(names)) @ spread
        clusters = pooled[-1].of.get("clusters")
        if clusters is not None:
            rank = rank_of(state.sums.information)
            spread = spread * of_clusters(d.options["cluster"], int(clusters[0]), state.sums.records, rank)
        estimates = turned @ _last(state)
        errors = np.sqrt(np.diag(turned @ spread @ turned.T))
        likelihood, free = -state.sums.deviance / 2, max(1, state.sums.records - rank_of(state.sums.information))
        products = symmetric(pooled[0]["products"], len(d.columns) + 1)
        outcomes = pooled[0].of.get("outcomes", np.zeros(0)).reshape(-1, len(products))
        if self.of.counts:
            squares, family = float(pooled[0]["first"][1]), "poisson"
            outcomes = counted_outcomes(agreed, family, pooled[0].records, squares, products[0], outcomes[0])
        if few := few_share(d, products, pooled[0].records, agreed, outcomes) or is_coarse(d, agreed):  # as of glm
            errors = np.array([rounded_to(one, one, 2) for one in errors.tolist()])
            both = zip(estimates.tolist(), errors.tolist(), strict=True)
            estimates = np.array([rounded_to(one, error, 3) for one, error in both])
            likelihood = rounded_to(likelihood, math.sqrt(free / 2), 2)
        found = [coefficient(*one) for one in zip(names, estimates, errors, strict=True)]
        head = ("", "estimate", "std. error", "z", "p", "95 % from", "to", self.of.ratio, "ratio from", "ratio to")
        rows: list[tuple[Cell, ...]] = []
        for one in found:
            ratio: tuple[Cell, ...] = (None, None, None) if "(" in one.name else one.ratio
            rows.append((one.name, one.estimate, one.error, one.statistic, one.p, one.low, one.high, *ratio))
        aic = -2 * likelihood + 2 * rank_of(state.sums.information)
        remarks = [f"log likelihood {likelihood:.8g}, AIC {aic:.8g}", *self.of.remarks(d, estimates)]
        if self._robust(d):
            of = "" if clusters is None else f", {clusters_in_words(d.options['cluster'], int(clusters[0]))}"
            remarks.append(f"errors are robust{of}: they hold where the family's variance does not")
        remarks += [f"compared with: {', '.join(d.against)}"] if d.against else []
        if few:
            remarks.append(FEW.format(d.suppress))
        silent = [names[k] for k in state.silent]
        remarks += [f"depend on each other, so have no errors: {', '.join(silent)}"] if silent else []
        why = "an estimate diverges" if state.steps >= STEPS else f"{CUT_SHORT}.  {LOOK}"
        problem = "" if state.converged else f"not at the end after {state.steps} steps: {why}"
        forest = (self.of.ratio, "ratio from", "ratio to", 1.0)
        table = ResultTable("estimates", head, tuple(rows), forest)
        title = f"{self.of.title(d)}, at the end after {state.steps} steps" if not problem else self.of.title(d)
        return FamilyResult(title, (table,), remarks, problem)

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        found = self.result(d, pooled, agreed)
        if found is None or found.problem or not self.predicts:
            return None
        estimates = np.array([row[1] for row in found.tables[0].rows], np.float64)  # rounded if few share categories
        return self.of.model(d, np.asarray(np.linalg.solve(self.of.in_units(d), estimates), np.float64))


def shortened(state: Newton) -> Newton:
    """Return the state with a step of at most STRIDE in each parameter."""
    step = state.point - state.best
    longest = float(np.abs(step).max())
    return state if longest <= STRIDE else replace(state, point=state.best + step * (STRIDE / longest))


def _last(state: Newton) -> Values:
    return state.point if state.converged else state.best


def with_more(turned: Values, more: int) -> Values:
    """Return T extended by `more` parameters that no unit changes."""
    found = np.eye(len(turned) + more)
    found[: len(turned), : len(turned)] = turned
    return found


FLATTEST = 0.02
"""Minimum alpha of the first point."""


class NegativeBinomial(Likelihood):
    name, kinds, ratio, predicts, counts = "negative-binomial", (REGRESSION,), "rate ratio", True, True

    def title(self, d: FamilyDesign) -> str:
        return f"negative binomial model of {d.outcome}"

    def check(self, d: FamilyDesign, y: Values) -> None:
        if not ((y >= 0) & (y == np.floor(y))).all():
            text = f"column {d.outcome!r} holds numbers that are no counts"
            raise ConfigError(text, "A negative binomial model is of whole numbers from 0; glm:linear is of any.")

    def names(self, d: FamilyDesign) -> Sequence[str]:
        return [INTERCEPT, *d.columns, "(log alpha)"]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.array([y.sum(), (y * y).sum()])

    def outcomes(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return y

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:
        mean = first[0] / records
        if mean <= 0:
            raise TrainingError(f"all {records} records have the count 0", "Look at the label.")
        alpha = max(FLATTEST, (first[1] / records - mean * mean - mean) / (mean * mean))
        return np.concatenate([[math.log(mean)], np.zeros(len(d.columns)), [math.log(alpha)]])

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:  # noqa: ARG002
        from scipy.special import gammaln, polygamma, psi

        y, mu, r = site.y[:, 0], np.exp(site.x @ point[:-1]), math.exp(-point[-1])
        whole = r + mu
        likelihood = gammaln(y + r) - gammaln(r) - gammaln(y + 1) + r * np.log(r / whole) + y * np.log(mu / whole)
        by_r = psi(y + r) - psi(r) + np.log(r / whole) + 1 - (y + r) / whole
        by_r2 = polygamma(1, y + r) - polygamma(1, r) + 1 / r - 2 / whole + (y + r) / whole**2
        scores = np.concatenate([site.x * ((y - mu) * r / whole)[:, None], (-r * by_r)[:, None]], axis=1)
        w = mu * r * (r + y) / whole**2
        information = np.empty((len(point), len(point)))
        information[:-1, :-1] = site.x.T @ (site.x * w[:, None])
        information[-1, :-1] = information[:-1, -1] = site.x.T @ ((y - mu) * mu * r / whole**2)
        information[-1, -1] = -(r * r * by_r2 + r * by_r).sum()
        expected = mu * r / whole  # independent of the counts
        return LikelihoodTerms(likelihood, scores, information, [expected], whole=w)

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:  # noqa: ARG002
        return FamilyModel(RATES, point[None, :-1])

    def in_units(self, d: FamilyDesign) -> Values:
        return with_more(in_units(d), 1)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return [f"alpha {math.exp(estimates[-1]):.6g}: the variance is mu + alpha mu²; with 0 a Poisson model's"]


class Weibull(Likelihood):
    name, kinds, labels, ratio = "weibull", (REGRESSION,), 2, "time ratio"

    def title(self, d: FamilyDesign) -> str:
        time, event = d.outcome.split(",")
        return f"Weibull accelerated failure times, {time} until {event} = 1"

    def check(self, d: FamilyDesign, y: Values) -> None:
        time, event = d.outcome.split(",")
        if (y[:, 0] <= 0).any():
            text = f"column {time!r} holds times of 0 or below, in {plural(int((y[:, 0] <= 0).sum()), 'record')}"
            raise ConfigError(text, "The logarithm of a time is taken: correct it, or leave the row out.")
        if not np.isin(y[:, 1], (0, 1)).all():
            text = f"column {event!r} holds something else than 0 and 1"
            raise ConfigError(text, "1: the event was seen at that time; 0: it was not seen until then.")

    def names(self, d: FamilyDesign) -> Sequence[str]:
        return [INTERCEPT, *d.columns, "(log scale)"]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.asarray(y.sum(axis=0))

    def outcomes(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.column_stack([1 - y[:, 1], y[:, 1]])  # errors follow from the number of events

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:  # noqa: ARG002
        if first[1] < 0.5:
            raise TrainingError("no record has its event", "Look at the label.")
        return np.concatenate([[math.log(first[0] / first[1])], np.zeros(len(d.columns) + 1)])  # an exponential one

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:  # noqa: ARG002
        log_t, had, s = np.log(site.y[:, 0]), site.y[:, 1], math.exp(point[-1])
        z = (log_t - site.x @ point[:-1]) / s
        e = np.exp(z)
        scores = np.concatenate([site.x * ((e - had) / s)[:, None], (-had + (e - had) * z)[:, None]], axis=1)
        along = np.concatenate([site.x / s, z[:, None]], axis=1)
        information = along.T @ (along * e[:, None])
        information[-1, -1] += had.sum()  # equals the observed information at a gradient of 0
        return LikelihoodTerms(had * (z - point[-1] - log_t) - e, scores, information, [], whole=e)

    def in_units(self, d: FamilyDesign) -> Values:
        return with_more(in_units(d), 1)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return [f"shape {math.exp(-estimates[-1]):.6g}: above 1 the hazard grows with time"]


WIDEST = 24
"""Maximum number of coefficients n: products of three are about n^3 / 6."""


class Firth(Likelihood):
    name, kinds, predicts = "firth", (CLASSIFICATION,), True

    def title(self, d: FamilyDesign) -> str:
        return f"Firth's logistic model of {d.outcome} = {d.classes[1]}"

    def names(self, d: FamilyDesign) -> Sequence[str]:
        if len(d.classes) != 2:
            text = f"firth: {d.outcome!r} has {plural(len(d.classes), 'class')}"
            raise ConfigError(text, "It is of two: yes and no.")
        if len(d.columns) >= WIDEST:
            text = f"firth of {len(d.columns)} columns: sums of products of three columns are too many"
            raise ConfigError(text, f"Leave columns out, drop=A,B: at most {WIDEST - 1}.")
        return [INTERCEPT, *d.columns]

    def first(self, d: FamilyDesign, y: Values) -> Values:  # noqa: ARG002
        return np.asarray(y.sum(axis=0))

    def start(self, d: FamilyDesign, first: Values, records: int) -> Values:
        mean = first[0] / records
        if not 0 < mean < 1:
            raise TrainingError(f"all {records} records have the same outcome", "Look at the label.")
        return np.concatenate([[math.log(mean / (1 - mean))], np.zeros(len(d.columns))])

    def terms(self, d: FamilyDesign, site: SiteSample, point: Values) -> LikelihoodTerms:
        from scipy.special import expit

        x, y, eta = site.x, site.y[:, 0], site.x @ point
        p = expit(eta)
        w = p * (1 - p)
        a, b, c = _triples(len(d.columns) + 1)
        more = np.array(
            [math.fsum(w * (1 - 2 * p) * x[:, i] * x[:, j] * x[:, k]) for i, j, k in zip(a, b, c, strict=True)]
        )
        likelihood = y * eta - np.logaddexp(0, eta)
        return LikelihoodTerms(likelihood, x * (y - p)[:, None], x.T @ (x * w[:, None]), [w], np.array(more))

    def more(self, d: FamilyDesign) -> int:
        return len(_triples(len(d.columns) + 1)[0])

    def adjusted(self, d: FamilyDesign, sums: PointSums, more: Values) -> PointSums:
        """Return the sums of the penalised likelihood; if A is singular, those of a likelihood of 0."""
        k = len(d.columns) + 1
        sign, log_det = np.linalg.slogdet(sums.information)
        if sign <= 0:
            return replace(sums, deviance=math.inf)
        whole = np.zeros((k, k, k))
        triples = _triples(k)
        for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
            whole[tuple(triples[one] for one in order)] = more
        shift = np.einsum("ab,abc->c", np.linalg.inv(sums.information), whole) / 2
        return replace(sums, gradient=sums.gradient + shift, deviance=sums.deviance - float(log_det))

    def model(self, d: FamilyDesign, point: Values) -> FamilyModel:  # noqa: ARG002
        return FamilyModel(SOFTMAX, layer_of("logistic", point))

    def in_units(self, d: FamilyDesign) -> Values:
        return in_units(d)

    def remarks(self, d: FamilyDesign, estimates: Values) -> Sequence[str]:  # noqa: ARG002
        return ["log likelihood and AIC are penalised, of scaled columns; intervals are Wald's"]


def _triples(width: int) -> npt.NDArray[np.int64]:
    """Return the indices a <= b <= c of all products of three columns, [3, numbers]."""
    return np.array(list(combinations_with_replacement(range(width), 3))).T
