"""Generalised estimating equations: a generalised linear model of clustered records, all pairs of a cluster equally
correlated.

    r = (y - mu) / sqrt(V(mu)),   z = x h'(eta) / sqrt(V(mu));   R, T: sums of z and of r over a cluster of n records
    a = 1 / (1 - alpha),   c = alpha a / (1 - alpha + n alpha)
    u = a (sum of z r) - c R T  of a cluster,   U = sum of u,   B = a (sum of z z') - sum over clusters of c R R'
    b    <-  b + B^-1 U
    phi   =  sum of r^2 / (N - p),    alpha  <-  sum over clusters of (T^2 - sum of r^2) / 2 phi (pairs - p)
    covariance of b   B^-1 (sum over clusters of u u') B^-1

    round 0      clusters of each size, and with each value (`clustered`); sums of outcomes, products of columns
    round r      U, B, the sum of r^2 and that of T^2, at b and alpha computed from all earlier rounds
    last round   the sum of u u' at the last point

b and alpha end together, where U is 0 with the alpha of its own residuals.

Sources: Liang and Zeger, Biometrika 73 (1986); Zeger and Liang, Biometrics 42 (1986).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgossip.base.errors import ConfigError, TrainingError, nearest
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import CUT_SHORT, LOOK, carried_by_one, too_few
from fedgossip.sites.fits.families.clustered import (
    LAST,
    ClusteredSample,
    alone_or_few,
    check_by,
    cluster_blocks,
    cluster_counts,
    few_clusters,
    most_of,
    opened_counts,
    read_clustered,
)
from fedgossip.sites.fits.families.elastic_net import KIND_OF, check_label, check_outcomes
from fedgossip.sites.fits.families.family import (
    FEW,
    Cell,
    FamilyDesign,
    FamilyModel,
    FamilyResult,
    Numbers,
    PooledRound,
    ResultTable,
    SumBlock,
    regression_design,
    symmetric,
    upper,
)
from fedgossip.sites.fits.families.likelihoods import shortened
from fedgossip.sites.fits.few_values import counted_outcomes, few_share, is_coarse
from fedgossip.sites.fits.glm.glm import (
    FAMILIES,
    Newton,
    PointSums,
    Values,
    in_units,
    influences,
    moved,
    predictor,
    rank_of,
    start,
)
from fedgossip.sites.fits.glm.glm_result import (
    INTERCEPT,
    RATIO,
    SOURCE_OF,
    check_enough_clusters,
    clusters_in_words,
    coefficient,
    layer_of,
    rounded_to,
)

STEPS = 24
"""Maximum number of steps; six to twelve are usual."""
NEAR, STILL = 1e-18, 1e-9
"""Bounds of U' B^-1 U / phi, the squared step in standard errors, and of alpha's change, at the end."""
TIED = 0.95
"""Largest correlation, and the share of the least possible one, in the sums."""


@dataclass(frozen=True, eq=False)
class GeePoint:
    """The state of the steps: the best point with its sums, the next one, and the correlation to use there."""

    newton: Newton
    alpha: float
    """Correlation of the next point; at the end that of the last sums."""
    phi: float = 1.0
    change: float = math.inf
    """Change of alpha by the last step."""

    @property
    def is_over(self) -> bool:
        return self.newton.left <= NEAR * self.phi and self.change <= STILL


class Gee:
    name, kinds, predicts = "gee", (CLASSIFICATION, REGRESSION), True
    options = "by", "family", "first"

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        if not options.get("by"):
            text = "gee: no column of clusters"
            raise ConfigError(text, "Write gee?by=COLUMN&family=logistic, a column within sites; without one, glm.")
        if (family := options.get("family", "")) not in FAMILIES:
            raise ConfigError(f"gee?family={family}", nearest(family, FAMILIES))
        check_by(options, agreed, self.name)
        check_label(self.name, family, agreed)
        if family in ("linear", "gamma") and any(one.is_coded for one in agreed.columns if one.label):
            text = f"gee?family={family}: {agreed.schema.labels[0].name!r} has few different values"
            raise ConfigError(text, "It is of a measurement; of counts take family=poisson.")
        return regression_design(self.name, options, agreed)

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        k = len(d.columns) + 1
        half = SumBlock(k * (k + 1) // 2)
        begin = {**cluster_blocks(d), "first": SumBlock(2), "products": half, "outcomes": SumBlock(k)}
        squares = dict.fromkeys(("squares", "tied"), SumBlock(1, positive=True))
        return [begin, *[{"gradient": SumBlock(k), "information": half, **squares}] * STEPS, {"meat": half}]

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        k = len(d.columns) + 1
        half = k * (k + 1) // 2
        return (
            f"{opened_counts(d)}, sums of {d.outcome}, of its squares, and of products of columns",
            f"then, in each of at most {STEPS} steps, {k} sums of columns by residuals, {half} of products of columns, "
            f"less a share of those of each cluster's sums, and the sums of squared residuals and of clusters' squared",
            f"at last {half} sums of products of residuals by columns, summed by {d.options['by']}",
        )

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> ClusteredSample:
        family = d.options["family"]
        found = read_clustered(d, agreed, file, KIND_OF[family])
        check_outcomes(d, family, found.y)
        return found

    def records(self, site: ClusteredSample) -> int:
        return len(site.y)

    def state(self, d: FamilyDesign, pooled: Sequence[PooledRound]) -> GeePoint:
        """Return the state after these rounds, the first of which is complete.  Raises TrainingError as `start`."""
        family, first, k = FAMILIES[d.options["family"]], pooled[0], len(d.columns) + 1
        found = GeePoint(start(family, first.records, float(first["first"][0]), k - 1), 0.0)
        sizes = np.arange(1, most_of(d) + 1)
        pairs = int(first["clusters"] @ (sizes * (sizes - 1) // 2))
        least = -TIED / max(1, int(sizes[first["clusters"] > 0].max()) - 1)
        for one in pooled[1 : STEPS + 1]:
            if not one.sites or found.is_over:
                continue
            squares, tied = float(one["squares"][0]), float(one["tied"][0])
            phi = squares / max(1, one.records - k)
            alpha = (tied - squares) / (2 * phi * max(1, pairs - k)) if phi > 0 else 0.0
            alpha = min(max(alpha, least), TIED)
            sums = PointSums(one.sites, one.records, 0.0, 0.0, one["gradient"], symmetric(one["information"], k))
            newton = moved(found.newton, sums)
            newton = newton if family.name == "linear" else shortened(newton)
            now = GeePoint(newton, alpha, phi, abs(alpha - found.alpha))
            found = replace(now, alpha=found.alpha) if now.is_over else now
        return found

    def sums(self, d: FamilyDesign, site: ClusteredSample, round: int, pooled: Sequence[PooledRound]) -> Numbers:
        if round == 0:
            products = (site.x.T @ site.x)[upper(site.x.shape[1])]
            first = [math.fsum(site.y), math.fsum(site.y**2)]
            return {
                **cluster_counts(d, site), "first": first, "products": products, "outcomes": site.y @ site.x
            }  # fmt: skip
        found, last = self.state(d, pooled), round > STEPS
        if found.is_over != last:  # a step after the end, or the last round without an end
            return {name: np.zeros(block.size) for name, block in self.numbers(d)[round].items()}
        at = ClusterSums.at(d, site, found.newton.best if last else found.newton.point, found.alpha)
        rows = upper(site.x.shape[1])
        if last:
            return {"meat": (at.scores.T @ at.scores)[rows]}
        return {
            "gradient": at.scores.sum(axis=0),
            "information": at.information[rows],
            "squares": [at.squares],
            "tied": [math.fsum(at.residuals**2)],
        }

    def uneven(self, d: FamilyDesign, site: ClusteredSample, round: int, pooled: Sequence[PooledRound]) -> str:
        if not round:
            return ""
        if reason := alone_or_few(d, site, pooled[0]):
            return reason
        found, last = self.state(d, pooled), round > STEPS
        if found.is_over != last:
            return ""
        point = found.newton.best if last else found.newton.point
        if not np.isfinite(point).all():
            return "its sums lead to no point"
        family = FAMILIES[d.options["family"]]
        begin = start(family, pooled[0].records, float(pooled[0]["first"][0]), len(d.columns)).point
        names, influence = (INTERCEPT, *d.columns), influences(family, site.x, point)[:, None]
        weights, squares = site.summed(influence), site.summed(influence * site.x**2)
        unit = float(influences(family, np.ones((1, 1)), begin[:1])[0]) * float(site.sizes.mean())
        named = list(zip(names, np.sqrt(squares / np.maximum(weights, 1e-300)).T, strict=True))
        few = too_few(weights[:, 0], unit, named, d.suppress, of="clusters")
        if few or not last:
            return few
        scores = ClusterSums.at(d, site, point, found.alpha).scores
        return carried_by_one(list(zip(names, scores.T**2, strict=True)), "clusters")

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        first = pooled[0]
        if not first.sites:
            return None
        if (few := few_clusters(d, first))[0]:
            raise TrainingError(*few)
        state, by, k = self.state(d, pooled), d.options["by"], len(d.columns) + 1
        sums, many, family = state.newton.sums, int(first["clusters"].sum()), FAMILIES[d.options["family"]]
        if sums is None or (state.is_over and not pooled[-1].sites):
            return None
        if rank_of(sums.information) < k:
            text = "columns depend on each other, so no effect is that of one alone"
            raise TrainingError(text, f"Leave one of them out, drop=COLUMN; glm:{family.name} names them.")
        check_enough_clusters(by, many, k)
        turned, bread = in_units(d), np.linalg.inv(sums.information)
        estimates = turned @ state.newton.best
        spread = bread @ symmetric(pooled[-1]["meat"], k) @ bread if state.is_over else np.full((k, k), math.nan)
        errors = np.sqrt(np.diag(turned @ spread @ turned.T))
        products = symmetric(first["products"], k)
        squares, sums_of = float(first["first"][1]), first["outcomes"]
        outcomes = counted_outcomes(agreed, family.name, first.records, squares, products[0], sums_of)
        shared = few_share(d, products, first.records, agreed, outcomes) or is_coarse(d, agreed)
        counted = agreed.counted_outcome(family.name) is not None
        alpha, phi = state.alpha, state.phi
        if shared or counted:
            errors = np.array([rounded_to(one, one, 2) for one in errors.tolist()])
            both = zip(estimates.tolist(), errors.tolist(), strict=True)
            estimates = np.array([rounded_to(one, error, 3) for one, error in both])
            share = math.sqrt(2 / many)
            alpha, phi = rounded_to(alpha, share, 2), rounded_to(phi, phi * share, 2)
        ratio = RATIO.get(family.name)
        ratios = (ratio, "ratio from", "ratio to") if ratio else ()
        head = ("", "estimate", "std. error", "z", "p", "95 % from", "to", *ratios)
        rows: list[tuple[Cell, ...]] = []
        for name, *values in zip((INTERCEPT, *d.columns), estimates.tolist(), errors.tolist(), strict=True):
            one = coefficient(name, *values)
            exp: tuple[Cell, ...] = (None, None, None) if name == INTERCEPT else one.ratio
            own = one.estimate, one.error, one.statistic, one.p, one.low, one.high
            rows.append((name, *own, *(exp if ratio else ())))
        pair = f"correlation of two records of one {by}"
        more: tuple[tuple[Cell, ...], ...] = ((pair, alpha), ("dispersion", phi))
        remarks = [
            f"errors are robust, {clusters_in_words(by, many)}: they hold for other correlations too",
            *([f"compared with: {', '.join(d.against)}"] if d.against else []),
            *([FEW.format(d.suppress)] if shared else ["rounded: few records have the largest counts"] * counted),
            *([f"of a larger cluster the first {most_of(d)} records count"] if "first" in d.options else []),
            *([LAST.format(first.records, agreed.records)] if first.records < agreed.records else []),
        ]
        problem = "" if state.is_over else f"not at the end: an estimate diverges, or {CUT_SHORT}.  {LOOK}"
        of = f"{d.outcome} = {d.classes[1]}" if d.classes else d.outcome
        title = f"{family.title} model of {of} by generalised estimating equations, {many} clusters by {by}"
        forest = (ratio, "ratio from", "ratio to", 1.0) if ratio else ("estimate", "95 % from", "to", 0.0)
        tables = (
            ResultTable("estimates", head, tuple(rows), forest),
            ResultTable("working variance", ("", "value"), more),
        )
        return FamilyResult(title, tables, remarks, problem)

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        found, family = self.result(d, pooled, agreed), d.options["family"]
        if found is None or found.problem:
            return None
        estimates = np.array([row[1] for row in found.tables[0].rows], np.float64)  # rounded if few share categories
        point = np.asarray(np.linalg.solve(in_units(d), estimates), np.float64)
        return FamilyModel(SOURCE_OF[family], layer_of(family, point))


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """A site's sums at a point: u of each cluster [c, k], B [k, k], T of each cluster [c], and the sum of r^2."""

    scores: Values
    information: Values
    residuals: Values
    squares: float

    @classmethod
    def at(cls, d: FamilyDesign, site: ClusteredSample, point: Values, alpha: float) -> ClusterSums:
        family = FAMILIES[d.options["family"]]
        eta = predictor(family, site.x, point)
        slope = np.sqrt(family.weight(eta))
        z, r = site.x * slope[:, None], family.residual(site.y, eta) / slope
        own, residuals = site.summed(z), site.summed(r[:, None])[:, 0]
        a = 1 / (1 - alpha)
        c = alpha * a / (1 - alpha + site.sizes * alpha)
        scores = a * site.summed(z * r[:, None]) - own * (c * residuals)[:, None]
        information = a * (z.T @ z) - own.T @ (own * c[:, None])
        return cls(scores, information, residuals, math.fsum(r * r))
