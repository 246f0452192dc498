"""A logistic model with a random intercept of each site, by its marginal likelihood, which a site integrates alone.

    P(y = 1 | z) = F(x b + s z),  z of each site normal, of variance 1;  F(u) = 1 / (1 + exp(-u))
    L_i(b, s) = log of the integral of  product over records of P(y | z)  times  phi(z) dz;   L = sum over sites of L_i
    g = E l',  A = -E l'' - Cov l'   over z given the site's records, l' and l'' by (b, s) of the log likelihood at z

The integrals are adaptive Gauss-Hermite quadratures around the largest integrand.  L is even in s, so an s of 0, no
difference between sites, is a usual maximum.

    round 0      numbers of records, sums of outcomes, products of columns
    round r      g and A at the point computed from all earlier rounds, rounded at each site
    last round   A and L at the last point, rounded

Sums of exact numbers would disclose each site's: L_i differ in shape, so sums at a few points determine the number of
events of every site (of 8 sites to 0.03 of an event), as those of sizes do in `mixed`.  So a site rounds: A_ab to
SHARE of sqrt(A_aa A_bb), its own; g_a to sqrt(A_aa) in stage 0, with steps up to STRIDE; in stage k, with steps up to
4^(1 - k) / max(1, sqrt(sum of x_b^2 / 4 sites)), to SHARE 4^(1 - k) sqrt(A_aa).  Differences of g between two points
then disclose A no better than A itself does, and only where g is 0 is it precise: the estimates.

Each number is rounded up or down at random, unbiased, by draws that only the site's records determine.  Numbers to the
nearest unit are functions of them: where b is 0, as at the start, of a site's records and events alone, and one sum of
five sites of known sizes has one solution.  For the same reason a point with fine sums, of a stage above 0, is refused
by a site with an x b of deviation below SPREAD: there its numbers follow from few counts.

Sources: Pinheiro and Bates, Journal of Computational and Graphical Statistics 4 (1995); Breslow and Clayton, JASA 88
(1993); Larsen and Merlo, American Journal of Epidemiology 161 (2005), for the median odds ratio.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import CLASSIFICATION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import CUT_SHORT, LOOK, RECORDS_EACH, check_undetermined, too_few
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
from fedgossip.sites.fits.few_values import few_share, is_coarse
from fedgossip.sites.fits.glm.glm import FAMILIES, Values, in_units, rank_of, start
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, SOURCE_OF, coefficient, known, layer_of, rounded_to

LEAST = 5
"""Minimum number of sites: estimates and errors are four numbers of intercept and deviation, of two of each site."""
STEPS = 26
"""Maximum number of steps; eleven to sixteen are usual."""
STAGES = 7
"""Number of stages of shrinking steps: the last gradient is rounded to 1e-4 of a site's standard error."""
STRIDE = 0.5
"""Maximum step of a parameter of scaled columns in stage 0."""
SHARE, LAST_SHARE = 2.0**-1, 2.0**-5
"""Rounding unit of A_ab as a share of sqrt(A_aa A_bb): in the steps, and at the last point."""
SPREAD = 0.25
"""Minimum deviation of x b of a site's records at a point with fine sums."""
FLATTEST = 2.0**-4
"""Minimum A_aa in these units."""
WHOLE = 1.0
"""Rounding unit of g_a in stage 0, as a share of sqrt(A_aa); and of a site's L at the last point."""
BEGIN, WIDEST = 0.7, 4.0
"""The deviation s at the start, and the largest one in a sum: beyond it only sites of one outcome differ."""
NONE = 2e-3
"""Deviation below which it is 0."""
DARK = 0.02
"""Minimum |eigenvalue| of A, scaled to a diagonal of ones, in a step: smaller ones are of its rounding."""
ACROSS = 8.0
"""Divisor of s in place of a step across 0, where the likelihood is the same again; larger than that of a stage."""
NODES = 61
"""Number of nodes of a quadrature: for a site of one outcome, at the largest deviation, 25 leave an error of 4e-5,
61 one of 5e-8.
"""


@dataclass(frozen=True, eq=False)
class Marginal:
    """A site's marginal log likelihood at a point (b, s), with g [k] and A [k, k]; weights: E p (1 - p), [m]."""

    likelihood: float
    gradient: Values
    information: Values
    weights: Values
    draws: np.random.Generator
    """Of the rounding: unknown to all without the records, and the same whenever the point is asked again."""

    def rounded(self, gradient: float, information: float) -> tuple[Values, Values]:
        """Return g and the upper triangle of A in units of these shares of their scale, powers of two."""
        scale = np.sqrt(np.maximum(np.abs(np.diag(self.information)), FLATTEST))
        half = upper(len(scale))
        each = self._in_units_of(self.information[half], information * np.outer(scale, scale)[half])
        return self._in_units_of(self.gradient, gradient * scale), each

    def rounded_likelihood(self) -> float:
        return float(self._in_units_of(np.array([self.likelihood]), np.array([WHOLE]))[0])

    def _in_units_of(self, values: Values, largest: Values) -> Values:
        """Return multiples of the powers of two up to `largest`: others would show a scale, which is the site's."""
        units = np.exp2(np.floor(np.log2(largest)))
        return np.asarray(np.floor(values / units + self.draws.random(len(values))) * units)


@cache
def _nodes() -> tuple[Values, Values]:
    """Return nodes x and the logarithms of their weights times exp(x^2)."""
    x, w = np.polynomial.hermite.hermgauss(NODES)
    return x, np.log(w) + x * x


def marginal(x: Values, y: Values, point: Values) -> Marginal:
    """Return the marginal likelihood of a site's records x [m, p + 1], y [m] of 0 and 1."""
    from scipy.special import expit

    eta, s = x @ point[:-1], float(point[-1])
    z = 0.0
    for _ in range(100):  # to the largest integrand: concave, its curvature at least 1
        p = expit(eta + s * z)
        curvature = 1 + s * s * float((p * (1 - p)).sum())
        step = (s * float((y - p).sum()) - z) / curvature
        z += max(-1.0, min(1.0, step))
        if abs(step) < 1e-12:
            break
    nodes, logs = _nodes()
    at = z + nodes * math.sqrt(2 / curvature)
    there = eta[:, None] + s * at
    p = expit(there)
    terms = y @ there - np.logaddexp(0, there).sum(axis=0) - at * at / 2 + logs
    top = float(terms.max())
    chances = np.exp(terms - top)
    whole = float(chances.sum())
    chances /= whole
    likelihood = top + math.log(whole) - math.log(math.pi * curvature) / 2
    residuals, w = y[:, None] - p, p * (1 - p)
    scores = np.vstack([x.T @ residuals, at * residuals.sum(axis=0)])  # [k, nodes]
    mean = scores @ chances
    apart = scores - mean[:, None]
    weights, by_z, by_z2 = w @ chances, w @ (chances * at), float((w @ (chances * at * at)).sum())
    expected = np.empty((len(point), len(point)))
    expected[:-1, :-1] = x.T @ (x * weights[:, None])
    expected[-1, :-1] = expected[:-1, -1] = x.T @ by_z
    expected[-1, -1] = by_z2
    seed = hashlib.sha256(b"".join(one.tobytes() for one in (x, y, point))).digest()
    draws = np.random.default_rng(int.from_bytes(seed))
    return Marginal(likelihood, mean, expected - (apart * chances) @ apart.T, weights, draws)


@dataclass(frozen=True, eq=False)
class MixedSearch:
    """The state of the steps: the next point, and the stage of its sums."""

    point: Values
    stage: int = 0
    steps: int = 0
    stride: float = STRIDE
    """Largest step of s: half after each change of direction."""
    side: float = 0.0
    """1 if the likelihood grew with |s| at the last point, -1 if it fell."""
    informations: tuple[Values, ...] = ()
    """The sums of A since stage 1, at points near each other: their mean has less of the rounding."""

    @property
    def is_over(self) -> bool:
        return self.stage > STAGES

    @property
    def reach(self) -> float:
        """Largest step of the intercept and of s."""
        return 4.0 ** (1 - self.stage) if self.stage else STRIDE

    @property
    def share(self) -> float:
        """Rounding unit of g_a as a share of sqrt(A_aa)."""
        return SHARE * self.reach if self.stage else WHOLE

    def moved(self, gradient: Values, information: Values, spread: Values) -> MixedSearch:
        """Return the state after the sums at `point`; spread: the scale of each parameter in the steps, [k]."""
        seen = (*self.informations, information)[: None if self.stage else 0]
        information = np.mean(seen, axis=0) if seen else information
        scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(information)), FLATTEST))
        values, directions = np.linalg.eigh(information * scale[:, None] * scale)
        lengths = directions.T @ (scale * gradient) / np.maximum(np.abs(values), DARK)
        step = scale * (directions @ lengths)  # uphill, also where the likelihood is not concave
        own = spread if self.stage else np.ones(len(step))
        longest = float((np.abs(step) * own).max()) / self.reach
        ahead = float((np.abs(step) * spread).max()) <= (1.0 if not self.stage else self.reach)
        done = bool(values.min() > 0) and ahead
        point, before = self.point + step / max(1.0, longest), float(self.point[-1])
        convex = information[-1, -1] <= 0
        side = float(np.sign(gradient[-1] * before)) or (1.0 if convex else self.side)
        stride = min(self.stride / 2 if side * self.side < 0 else self.stride, self.reach)
        if convex:  # near 0, or far beyond the maximum: a step by curvature is of any length
            point[-1] = before + math.copysign(stride, side * before)
        else:
            point[-1] = before + max(-stride, min(stride, point[-1] - before))
        if point[-1] * before < 0:
            point[-1] = before / ACROSS
        return MixedSearch(point, self.stage + done, self.steps + 1, stride, side, seen)


class MixedLogistic:
    name, kinds, options, predicts = "mixed-logistic", (CLASSIFICATION,), (), True

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        labels = agreed.schema.labels
        if len(labels) != 1 or len(labels[0].categories) != 2:
            raise ConfigError(f"{self.name}: another label", "It is of one label of two classes.")
        if agreed.sites < LEAST:
            raise ConfigError(*_few_sites(agreed.sites))
        d = regression_design(self.name, options, agreed)
        if agreed.records < RECORDS_EACH * (many := len(d.columns) + 2):
            text = f"{agreed.records} records for {many} parameters: sums of products would disclose single ones"
            raise ConfigError(text, f"Leave columns out, drop=A,B: {RECORDS_EACH} records for each are needed.")
        check_undetermined(agreed, d.columns, self.name)
        return d

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        width = len(d.columns) + 1
        half = SumBlock((width + 1) * (width + 2) // 2)
        begin = {
            "events": SumBlock(1, counts=True), "squares": SumBlock(width, positive=True),
            "products": SumBlock(width * (width + 1) // 2), "outcomes": SumBlock(2 * width),
        }  # fmt: skip
        one = {"gradient": SumBlock(width + 1), "information": half}
        return [begin, *[one] * STEPS, {"likelihood": SumBlock(1), "information": half}]

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        k = len(d.columns) + 2
        half = k * (k + 1) // 2
        return (
            f"first the number of records, sums of {d.outcome}, and of products of columns and classes",
            f"then, in each of at most {STEPS} steps, {k} sums over sites of the gradient of each site's likelihood "
            f"and {half} of its information, which each site rounds at random: a gradient to its own standard error, "
            f"less as the steps shrink, an information to {SHARE:.2g} of it",
            f"at last the sum of log likelihoods, each rounded to {WHOLE:g}, and {half} of informations, to "
            f"{LAST_SHARE:.2g}",
        )

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> SiteSample:
        return read_sample(d, agreed, file, CLASSIFICATION)

    def records(self, site: SiteSample) -> int:
        return len(site.y)

    def state(self, d: FamilyDesign, pooled: Sequence[PooledRound]) -> MixedSearch:
        """Return the state after these rounds, the first of which is complete.  Raises TrainingError as `start`."""
        first, k = pooled[0], len(d.columns) + 2
        begin = start(FAMILIES["logistic"], first.records, float(first["events"][0]), k - 2).point
        found = MixedSearch(np.append(begin, BEGIN))
        own = np.maximum(1.0, np.sqrt(first["squares"] / (4 * max(1, first.sites))))
        spread = np.concatenate([[1.0], own[1:], [1.0]])
        for one in pooled[1 : STEPS + 1]:
            if one.sites and not found.is_over:
                found = found.moved(one["gradient"], symmetric(one["information"], k), spread)
        return found

    def sums(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> Numbers:
        x, y = site.x, site.y[:, 0]
        if round == 0:
            return {
                "events": [y.sum()], "squares": (x * x).sum(axis=0), "products": (x.T @ x)[upper(x.shape[1])],
                "outcomes": np.vstack([x.T @ (1 - y), x.T @ y]),
            }  # fmt: skip
        found, last = self.state(d, pooled), round > STEPS
        if found.is_over != last:  # a step after the end, or the last round without an end
            return {name: np.zeros(block.size) for name, block in self.numbers(d)[round].items()}
        here = marginal(x, y, found.point)
        gradient, information = here.rounded(found.share, LAST_SHARE if last else SHARE)
        if last:
            return {"likelihood": [here.rounded_likelihood()], "information": information}
        return {"gradient": gradient, "information": information}

    def uneven(self, d: FamilyDesign, site: SiteSample, round: int, pooled: Sequence[PooledRound]) -> str:
        if round == 0:
            return ""
        if pooled[0].sites < LEAST:
            return _few_sites(pooled[0].sites)[0]
        found, last = self.state(d, pooled), round > STEPS
        if found.is_over != last:
            return ""
        if not np.isfinite(found.point).all() or abs(found.point[-1]) > WIDEST:
            return "its sums lead to no point"
        if found.stage and float((site.x @ found.point[:-1]).std()) < SPREAD:
            return "the columns move this site's records too little for fine sums, which would count its outcomes"
        weights = marginal(site.x, site.y[:, 0], found.point).weights
        mean = float(pooled[0]["events"][0]) / pooled[0].records
        named = list(zip((INTERCEPT, *d.columns), site.x.T, strict=True))
        return too_few(weights, mean * (1 - mean), named, d.suppress)

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        first = pooled[0]
        if not first.sites:
            return None
        if first.sites < LEAST:
            raise TrainingError(*_few_sites(first.sites))
        width, state = len(d.columns) + 1, self.state(d, pooled)
        products = symmetric(first["products"], width)
        if rank_of(products) < width:
            text = "columns depend on each other, so no effect is that of one alone"
            raise TrainingError(text, "Leave one of them out, drop=COLUMN; glm:logistic names them.")
        if not state.steps or (state.is_over and not pooled[-1].sites):
            return None
        s, turned = abs(float(state.point[-1])), in_units(d)
        s = 0.0 if s < NONE else s
        estimates = turned @ state.point[:-1]
        errors, error = np.full(width, math.nan), math.nan
        last = pooled[-1] if state.is_over else next(one for one in pooled[STEPS:0:-1] if one.sites)
        information = symmetric(last["information"], width + 1)
        sizes = (width + 1, width) if s else (width,)
        kept = next((k for k in sizes if np.linalg.eigvalsh(information[:k, :k]).min() > 0), 0)
        if kept:
            spread = np.linalg.inv(information[:kept, :kept])
            errors = np.sqrt(np.diag(turned @ spread[:width, :width] @ turned.T))
            error = math.sqrt(spread[-1, -1]) if kept > width else math.nan
        few = few_share(d, products, first.records, agreed, first["outcomes"].reshape(2, -1)) or is_coarse(d, agreed)
        errors = np.array([rounded_to(one, one, 2) for one in errors.tolist()])
        if few:
            both = zip([*estimates.tolist(), s], [*errors.tolist(), error if s else 0.0], strict=True)
            *shown, s = (rounded_to(one, one_of, 3) if math.isfinite(one_of) else math.nan for one, one_of in both)
            estimates = np.array(shown)
        rows: list[tuple[Cell, ...]] = []
        for name, *values in zip((INTERCEPT, *d.columns), estimates.tolist(), errors.tolist(), strict=True):
            one = coefficient(name, *values)
            ratio: tuple[Cell, ...] = (None, None, None) if name == INTERCEPT else one.ratio
            rows.append((name, known(one.estimate), one.error, one.statistic, one.p, one.low, one.high, *ratio))
        head = ("", "estimate", "std. error", "z", "p", "95 % from", "to", "odds ratio", "ratio from", "ratio to")
        remarks = ["errors have two digits: each site rounds its sums, which exact would disclose its own"]
        if state.is_over:
            free = first.records - width - 1
            likelihood = rounded_to(float(pooled[-1]["likelihood"][0]), math.sqrt(free / 2), 2)
            remarks.append(f"log likelihood {likelihood:.8g}: that of glm:logistic is half of its deviance, below 0")
        if state.is_over and not s:
            remarks.append("the deviation of sites is 0, its bound: estimates are those of glm:logistic")
        remarks += [f"compared with: {', '.join(d.against)}"] if d.against else []
        remarks += [FEW.format(d.suppress)] if few else []
        tables = (
            ResultTable("estimates", head, tuple(rows), ("odds ratio", "ratio from", "ratio to", 1.0)),
            ResultTable("between sites", ("", "value", "95 % from", "to"), between(s, error)),
        )
        problem = "" if state.is_over and kept else f"not at the end: an estimate diverges, or {CUT_SHORT}.  {LOOK}"
        of = f"{d.outcome} = {d.classes[1]}"
        return FamilyResult(
            f"logistic mixed model of {of}, random intercept of {first.sites} sites", tables, remarks, problem
        )

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        found = self.result(d, pooled, agreed)
        if found is None or found.problem:
            return None
        estimates = np.array([row[1] for row in found.tables[0].rows], np.float64)  # rounded if few share categories
        point = np.asarray(np.linalg.solve(in_units(d), estimates), np.float64)
        return FamilyModel(SOURCE_OF["logistic"], layer_of("logistic", point))


def between(s: float, error: float) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows of the deviation of sites, with intervals that begin at 0 or above."""
    reach = 1.959963984540054 * error
    ends = [known(s), *([max(0.0, s - reach), s + reach] if math.isfinite(reach) else [None, None])]

    def row(name: str, of: Callable[[float], float]) -> tuple[Cell, ...]:
        return (name, *(None if one is None else of(one) for one in ends))

    return (
        row("std. deviation", float),
        row("variance", lambda one: one * one),
        row("share of the variance", lambda one: one * one / (one * one + math.pi**2 / 3)),
        row("median odds ratio", lambda one: math.exp(0.6744897501960817 * math.sqrt(2) * one)),
    )


def _few_sites(sites: int) -> tuple[str, str]:
    text = f"a random intercept of {sites} sites: the sums would disclose each site's own"
    return text, f"It takes {LEAST} sites or more; glm:logistic fits all records of fewer together."
