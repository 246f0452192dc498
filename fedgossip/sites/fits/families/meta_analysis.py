"""Meta-analysis of the sites' own models, weighted by their errors, without disclosing any site's.

    fixed     t = sum of w t_i / sum of w,   w = 1 / s_i^2;   Q = sum of w t_i^2 - (sum of w t_i)^2 / sum of w
    between   tau^2 = max(0, (Q - k + 1) / (sum of w - sum of w^2 / sum of w))             DerSimonian and Laird
    random    the same with w* = 1 / (s_i^2 + tau^2);  its error by Hartung and Knapp:
              s^2 = (sum of w* t_i^2 - (sum of w* t_i)^2 / sum of w*) / ((k - 1) sum of w*),  Student's t of k - 1

All are sums over sites: seven numbers per coefficient, for two unknowns per site, so without a unique solution from
five sites on; with fewer it is refused.  Without a column of many values these unknowns are functions of some counts,
of which few add up to the sums: it is refused too, except of a measurement.

Sources: DerSimonian and Laird, Controlled Clinical Trials 7 (1986); Hartung and Knapp, Statistics in Medicine 20
(2001); Higgins, Thompson and Spiegelhalter, JRSS A 172 (2009), for the interval of another site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError, nearest
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import RECORDS_EACH, check_undetermined
from fedgossip.sites.fits.families.family import (
    Cell,
    FamilyDesign,
    FamilyResult,
    Numbers,
    PooledRound,
    ResultTable,
    SumBlock,
    read_sample,
    regression_design,
)
from fedgossip.sites.fits.glm.glm import FAMILIES, Values, covariance, moved, residuals, site_sums, start

LEAST = 5
"""Minimum number of sites."""
STEPS = 40
EXACT = 1e-20
"""Share of an outcome's sum of squares below which residuals are only rounding."""
KIND_OF = {name: CLASSIFICATION if name == "logistic" else REGRESSION for name in FAMILIES}
ESTIMATES = ("", "fixed", "fixed from", "fixed to", "random", "random from", "random to", "p")
BETWEEN = ("", "Q", "p", "I²", "tau²", "another site from", "another site to")


@dataclass(frozen=True, eq=False)
class SiteEstimates:
    """One site's own estimates of scaled columns, [p], and their squared errors."""

    records: int
    estimates: Values
    squared: Values


class MetaAnalysis:
    name, kinds, options, predicts = "meta-analysis", (CLASSIFICATION, REGRESSION), ("family",), False

    def design(self, options: Mapping[str, str], agreed: AgreedTable) -> FamilyDesign:
        family = options.get("family", "")
        if family not in KIND_OF:
            raise ConfigError(f"meta-analysis?family={family}", nearest(family, KIND_OF))
        labels = agreed.schema.labels
        if len(labels) != 1 or (KIND_OF[family] == CLASSIFICATION) != (len(labels[0].categories) == 2):
            wanted = "two classes" if family == "logistic" else 'numbers, with task.kind = "regression"'
            raise ConfigError(f"meta-analysis?family={family}: another label", f"It is of one label of {wanted}.")
        if agreed.sites < LEAST:
            text = f"a meta-analysis of {agreed.sites} sites: its sums would disclose each site's own estimates"
            raise ConfigError(text, f"It takes {LEAST} sites or more; glm fits all records of fewer together.")
        d = regression_design(self.name, options, agreed)
        (outcome,) = (one for one in agreed.columns if one.label)
        if family != "linear" or outcome.levels:
            check_undetermined(agreed, d.columns, self.name)
        return d

    def numbers(self, d: FamilyDesign) -> Sequence[Mapping[str, SumBlock]]:
        each, signed = SumBlock(len(d.columns), positive=True), SumBlock(len(d.columns))
        first = {"weights": each, "squared weights": each, "estimates": signed, "squares": each}
        return first, {"weights": each, "estimates": signed, "squares": each}

    def opened(self, d: FamilyDesign) -> tuple[str, ...]:
        text = f"over sites, of each of {len(d.columns)} coefficients of their own models"
        sums = "of weights by estimates, and of weights by squared estimates"
        return f"the number of records; {text} sums of weights, of squared weights, {sums}", f"then {text} three again"

    def read(self, d: FamilyDesign, agreed: AgreedTable, file: TableFile) -> SiteEstimates:
        name = d.options["family"]
        found = read_sample(d, agreed, file, KIND_OF[name])
        y, few = found.y[:, 0], RECORDS_EACH * (len(d.columns) + 1)
        if len(y) < few:
            text = f"{len(y)} records for {len(d.columns) + 1} coefficients of a model of this site's own"
            raise ConfigError(text, f"{few} are needed, or fewer columns: drop=A,B.")
        return SiteEstimates(len(y), *own_model(name, found.x, y))

    def records(self, site: SiteEstimates) -> int:
        return site.records

    def sums(self, d: FamilyDesign, site: SiteEstimates, round: int, pooled: Sequence[PooledRound]) -> Numbers:  # noqa: ARG002
        t, variance = site.estimates, site.squared
        if round == 0:
            w = 1 / variance
            return {"weights": w, "squared weights": w * w, "estimates": w * t, "squares": w * t * t}
        w = 1 / (variance + _fixed(pooled[0])[2])
        return {"weights": w, "estimates": w * t, "squares": w * t * t}

    def uneven(self, d: FamilyDesign, site: SiteEstimates, round: int, pooled: Sequence[PooledRound]) -> str:  # noqa: ARG002
        few = round and 0 < pooled[0].sites < LEAST
        return f"fewer than {LEAST} sites are in the sums, which would disclose each one's estimates" if few else ""

    def result(self, d: FamilyDesign, pooled: Sequence[PooledRound], agreed: AgreedTable) -> FamilyResult | None:  # noqa: ARG002
        from scipy import special

        first, second = pooled
        if not second.sites:
            return None
        k = first.sites
        if k < LEAST:
            text = f"a meta-analysis of {k} sites: its sums would disclose each site's own estimates"
            raise TrainingError(text, f"It takes {LEAST} sites or more.")
        fixed, q, tau2 = _fixed(first)
        w, deviation = second["weights"], np.array(d.deviation)
        random = second["estimates"] / w
        knapp = np.sqrt(np.maximum(second["squares"] - second["estimates"] ** 2 / w, 0) / ((k - 1) * w))
        z, t = special.ndtri(0.975), special.stdtrit(k - 1, 0.975)
        reach = special.stdtrit(k - 2, 0.975) * np.sqrt(tau2 + 1 / w)
        error, chance = 1 / np.sqrt(first["weights"]), 2 * special.stdtr(k - 1, -np.abs(random / knapp))
        inside = (fixed, fixed - z * error, fixed + z * error, random, random - t * knapp, random + t * knapp)
        rows = [(name, *cells, p) for name, *cells, p in zip(d.columns, *(one / deviation for one in inside), chance,
                                                             strict=True)]  # fmt: skip
        share = np.maximum(0, (q - k + 1) / np.maximum(q, 1e-300))
        others = (q, special.chdtrc(k - 1, q), share, tau2 / deviation**2)
        ends = ((random - reach) / deviation, (random + reach) / deviation)
        spread = [(name, *cells) for name, *cells in zip(d.columns, *others, *ends, strict=True)]
        tables = [
            ResultTable("estimates", ESTIMATES, _cells(rows), ("random", "random from", "random to", 0.0)),
            ResultTable("differences between sites", BETWEEN, _cells(spread)),
        ]
        remarks = ["random: DerSimonian and Laird's tau², Hartung and Knapp's errors"]
        remarks += [f"compared with: {', '.join(d.against)}"] if d.against else []
        title = f"meta-analysis of {k} sites' own {d.options['family']} models of {d.outcome}"
        return FamilyResult(title, tables, remarks)


def _cells(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(one if isinstance(one, str) else float(one or 0.0) for one in row) for row in rows)


def _fixed(first: PooledRound) -> tuple[Values, Values, Values]:
    """Return the estimates with fixed effects, Q and tau^2, [p] each."""
    w, wt = first["weights"], first["estimates"]
    q = np.maximum(first["squares"] - wt * wt / w, 0.0)
    room = w - first["squared weights"] / w
    return wt / w, q, np.where(room > 0, np.maximum(0.0, (q - first.sites + 1) / np.maximum(room, 1e-300)), 0.0)


def own_model(name: str, x: Values, y: Values) -> tuple[Values, Values]:
    """Return the estimates of a site's own model without its intercept, and their squared errors.

    Raises ConfigError for dependent columns, separation, or outcomes without residuals, such as equal ones.
    """
    family, advice = FAMILIES[name], "It takes no part: its records alone determine no such model."
    try:
        state = start(family, len(y), math.fsum(y), x.shape[1] - 1)
        for _ in range(STEPS):
            state = moved(state, site_sums(family, x, y, state.point))
            if state.converged:
                break
    except FedgossipError as error:
        raise ConfigError(f"the model of this site's own records: {error}", advice) from None
    if not state.converged or state.silent or state.sums is None:
        raise ConfigError("the model of this site's own records diverges, or its columns depend on each other", advice)
    squares = math.fsum(residuals(family, x, y, state.last)[1])
    if family.disperses and squares <= EXACT * math.fsum((y - y.mean()) ** 2):  # equal outcomes too
        raise ConfigError("the model of this site's own records fits each exactly: its estimates have no error", advice)
    dispersion = squares / (len(y) - x.shape[1]) if family.disperses else 1.0
    return state.last[1:], np.diag(covariance(state, dispersion))[1:]
