"""A linear mixed model by restricted likelihood: a random intercept per cluster of records, such as a patient's visits.

    y = x b + u + e     u: of each cluster, variance theta s^2;  e: of each record, variance s^2;  z = (1, x, y)
    W = sum over records of (z - its cluster's mean)(z - its cluster's mean)'
    T_n = sum of t t' over the clusters of n records, t the sum of a cluster's z
    Z'V^-1 Z = W + sum over n of T_n / (n + n^2 theta),     which gives b, its covariance s^2 (X'V^-1 X)^-1, and s^2
    -2 log L = (N - p)(log s^2 + 1 + log 2 pi) + sum over clusters of log(1 + n theta) + log det X'V^-1 X

    round 0     the number of clusters of each size
    round 1     W, and T_n of each size

These sums are sufficient, so theta is found without another sum.  A search with sums at one theta after another would
disclose the same (`clustered`, which has the rule of sizes).  A random effect of the site, whose cluster is the only
one of its size, is therefore refused; `mixed_logistic` has it for two classes.

Sources: Laird and Ware, Biometrics 38 (1982); Patterson and Thompson, Biometrika 58 (1971); Self and Liang, JASA 82
(1987), for the test at the bound; Luo et al., Nature Communications 13 (2022), for sufficient sums of sites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import REGRESSION
from fedgossip.data.table_files import TableFile
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
from fedgossip.sites.fits.few_values import counted_outcomes, few_share
from fedgossip.sites.fits.glm.glm import Values, in_units, rank_of
from fedgossip.sites.fits.glm.glm_result import INTERCEPT, SOURCE_OF, coefficient, layer_of, rounded_to

THETAS = [0.0, *np.geomspace(1e-6, 1e6, 241).tolist()]
"""Ratios of variances in the search for the likelihood's maximum."""
REACH = 3.841458820694124
"""Increase of -2 log L at the bounds of a 95 % interval."""


@dataclass(frozen=True, eq=False)
class MixedPoint:
    """All estimates at one theta, of columns as summed."""

    theta: float
    deviance: float
    """-2 log L."""
    slope: float
    """Its derivative by theta."""
    estimates: Values
    residual: float
    """s^2."""
    spread: Values
    """Covariance of the estimates."""


@dataclass(frozen=True, eq=False)
class MixedSums:
    """The sufficient sums: W [q, q], T_n [k, q, q], the sizes n with their numbers of clusters, [k]; and log det of the
    scale of the columns.
    """

    within: Values
    between: Values
    sizes: npt.NDArray[np.int64]
    clusters: npt.NDArray[np.int64]
    scale: float

    def at(self, theta: float) -> MixedPoint:
        n, free = self.sizes, int(self.sizes @ self.clusters) - len(self.within) + 1
        whole = self.within + np.einsum("k,kab->ab", 1 / (n * (1 + n * theta)), self.between)
        turned = -np.einsum("k,kab->ab", 1 / (1 + n * theta) ** 2, self.between)
        inverse = np.linalg.inv(whole[:-1, :-1])
        b = inverse @ whole[:-1, -1]
        along = np.concatenate([-b, [1.0]])
        squares = float(along @ whole @ along)
        deviance = free * (math.log(squares / free) + 1 + math.log(2 * math.pi)) + float(
            self.clusters @ np.log1p(n * theta)
        )
        slope = free * float(along @ turned @ along) / squares + float(self.clusters @ (n / (1 + n * theta)))
        return MixedPoint(
            theta,
            deviance + float(np.linalg.slogdet(whole[:-1, :-1])[1]) + 2 * self.scale,
            slope + float(np.trace(inverse @ turned[:-1, :-1])),
            b,
            squares / free,
            inverse * (squares / free),
        )

    def best(self) -> MixedPoint:
        """Return the point of the largest likelihood.  Raises TrainingError if theta grows without end."""
        place = int(np.argmin([self.at(theta).deviance for theta in THETAS]))
        if place == len(THETAS) - 1:
            text = "the records of each cluster agree: no variance is left within them"
            raise TrainingError(text, "Look at the label: it is of clusters, not of records.")
        low, high = THETAS[max(0, place - 1)], THETAS[place + 1]
        if not self.at(low).slope < 0 < self.at(high).slope:  # at 0
            return self.at(THETAS[place])
        return self.at(root(lambda theta: self.at(theta).slope, low, high))

    def interval(self, best: MixedPoint) -> tuple[float, float]:
        """Return the bounds of theta with the profile of -2 log L within REACH of its minimum."""

        def above(theta: float) -> float:
            return self.at(theta).deviance - best.deviance - REACH

        low = 0.0 if above(0.0) <= 0 else root(above, 0.0, best.theta)
        return low, math.inf if above(THETAS[-1]) <= 0 else root(above, best.theta, float(THETAS[-1]))


def root(of: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(of, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


class Mixed:
    name, kinds, options, predicts = "mixed", (REGRESSION,), ("by", "first"), True

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        by = options.get("by", "")
        if not by:
            text = "mixed: no column of clusters.  A random effect of each site would disclose each"
            raise ConfigError(text, "Write mixed?by=COLUMN, a column within sites; or meta-analysis?family=linear.")
        check_by(options, agreed, self.name)
        if len(agreed.schema.labels) != 1:
            raise ConfigError(f"mixed: {len(agreed.schema.labels)} label columns", "It is of one: label=ONE.")
        if any(one.is_coded for one in agreed.columns if one.label):
            text = f"mixed: {agreed.schema.labels[0].name!r} has few different values"
            raise ConfigError(text, "Its errors are normal ones, of a measurement: take glm, or ordinal.")
        return regression_design(self.name, options, agreed)

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        width = len(d.columns) + 2
        half = width * (width + 1) // 2
        return cluster_blocks(d), {"within": SumBlock(half), "between": SumBlock(half * most_of(d))}

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        width = len(d.columns) + 2
        return (
            opened_counts(d),
            f"then {width * (width + 1) // 2} sums of products of columns within clusters, and for each size of a "
            "cluster as many of products of their sums",
        )

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> ClusteredSample:
        found = read_clustered(d, agreed, file, REGRESSION)
        return replace(found, y=found.y - agreed.label_scale[0][0])

    def records(self, site: ClusteredSample) -> int:
        return len(site.y)

    def sums(self, d: FamilyDesign, site: ClusteredSample, round: int, pooled: Sequence[PooledRound]) -> Numbers:  # noqa: ARG002
        if round == 0:
            return cluster_counts(d, site)
        z, sizes = np.column_stack([site.x, site.y]), site.sizes
        rows, whole = upper(z.shape[1]), site.summed(z)
        apart = z - (whole / sizes[:, None])[site.cluster]
        each = (whole[sizes == n] for n in range(1, most_of(d) + 1))
        return {"within": (apart.T @ apart)[rows], "between": np.stack([(one.T @ one)[rows] for one in each])}

    def uneven(self, d: FamilyDesign, site: ClusteredSample, round: int, pooled: Sequence[PooledRound]) -> str:
        return alone_or_few(d, site, pooled[0]) if round else ""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:
        if pooled[0].sites and (few := few_clusters(d, pooled[0]))[0]:
            raise TrainingError(*few)
        if (found := self._found(d, pooled, agreed)) is None:
            return None
        sums, best, estimates, errors, few_cells = found
        by, many, records = d.options["by"], int(sums.clusters.sum()), int(sums.sizes @ sums.clusters)
        residual, between = best.residual, best.theta * best.residual
        share = [one / (1 + one) if math.isfinite(one) else 1.0 for one in (best.theta, *sums.interval(best))]
        deviance, ratio = best.deviance, max(0.0, sums.at(0.0).deviance - best.deviance)
        if few_cells:
            relative = math.sqrt(2 / many)
            residual, between, *share = (rounded_to(one, one * relative, 2) for one in (residual, between, *share))
            deviance, ratio = rounded_to(deviance, math.sqrt(2 * records), 2), rounded_to(ratio, math.sqrt(2), 2)
        rows: list[tuple[Cell, ...]] = []
        for name, *values in zip((INTERCEPT, *d.columns), estimates, errors, strict=True):
            one = coefficient(name, *values)
            rows.append((one.name, one.estimate, one.error, one.statistic, one.p, one.low, one.high))
        head = ("", "estimate", "std. error", "z", "p", "95 % from", "to")
        spread = ((by, between, math.sqrt(between)), ("residual", residual, math.sqrt(residual)))
        chance = math.erfc(math.sqrt(ratio / 2)) / 2 if best.theta else 1.0
        remarks = [
            f"share of {by} in the variance {share[0]:.4g}, 95 % from {share[1]:.4g} to {share[2]:.4g} by the profile "
            "of the likelihood",
            f"without it: likelihood ratio {ratio:.4g}, p {chance:.2g} (half of chi squared of 1 degree of freedom)",
            f"restricted log likelihood {-deviance / 2:.8g}",
            *([f"compared with: {', '.join(d.against)}"] if d.against else []),
            *([FEW.format(d.suppress)] if few_cells else []),
            *([f"of a larger cluster the first {most_of(d)} records count"] if "first" in d.options else []),
            *(
                [LAST.format(records, agreed.records)]
                if pooled[0].sites == agreed.sites and records < agreed.records
                else []
            ),
        ]
        title = f"linear mixed model of {d.outcome}, random intercept of {many} clusters by {by}"
        tables = (
            ResultTable("estimates", head, tuple(rows)),
            ResultTable("variances", ("", "variance", "std. deviation"), spread),
        )
        return FamilyResult(title, tables, remarks)

    def _found(
        self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable
    ) -> tuple[MixedSums, MixedPoint, Values, Values, bool] | None:
        """Return the sums, the best point, its estimates and errors in units, and whether these are rounded."""
        first, second = pooled
        if not second.sites:
            return None
        width, there = len(d.columns) + 2, np.flatnonzero(first["clusters"])
        between = second["between"].reshape(-1, width * (width + 1) // 2)[there]
        sizes = there + 1
        sums = MixedSums(
            symmetric(second["within"], width),
            np.stack([symmetric(one, width) for one in between]),
            sizes,
            first["clusters"][there],
            float(np.log(d.deviation).sum()),
        )
        every = sums.within + np.einsum("k,kab->ab", 1 / sizes, sums.between)
        products = every[:-1, :-1]
        if rank_of(products) < len(products):
            text = "columns depend on each other, so no effect is that of one alone"
            raise TrainingError(text, "Leave one of them out, drop=COLUMN; glm:linear names them.")
        best, turned = sums.best(), in_units(d)
        estimates, errors = turned @ best.estimates, np.sqrt(np.diag(turned @ best.spread @ turned.T))
        estimates[0] += agreed.label_scale[0][0]
        sums_of = every[-1, :-1] + agreed.label_scale[0][0] * products[0]
        outcomes = counted_outcomes(agreed, "linear", first.records, math.inf, products[0], sums_of)
        if few := few_share(d, products, first.records, agreed, outcomes):
            errors = np.array([rounded_to(one, one, 2) for one in errors.tolist()])
            both = zip(estimates.tolist(), errors.tolist(), strict=True)
            estimates = np.array([rounded_to(one, error, 3) for one, error in both])
        return sums, best, estimates, errors, few

    def model(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyModel | None:
        found = self._found(d, pooled, agreed)
        if found is None:
            return None
        return FamilyModel(
            SOURCE_OF["linear"], layer_of("linear", np.asarray(np.linalg.solve(in_units(d), found[2]), np.float64))
        )
