"""Sites fit proportional hazards by secure sums: `fedgossip fit`, beside the textbook's on all records in one place."""

from __future__ import annotations

import csv
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, fit_on, machines, own_tables
from pages import blocks, page

from fedgossip import ConfigError, load_experiment
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.columns.table_schema import SchemaColumn, TableSchema
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.sites.fits.cox.cox import concordance, concordance_error, exact_totals, real
from fedgossip.sites.fits.cox.cox_result import CoxFit, attenuation, cox_fit
from fedgossip.sites.fits.cox.cox_steps import (
    LAST,
    MOMENTS,
    OVER,
    PAIRS,
    RISK,
    SQUARES,
    CoxTask,
    FittedHazards,
    fitted_alone,
    initial,
    requested_sums,
    rounds_of,
    stepped,
)
from fedgossip.sites.fits.cox.cox_sums import REPORTED_TIMES, CoxDesign, CoxLayout, SiteHazards, TimedRecords
from fedgossip.sites.fits.glm.glm_sums import PriorColumn
from fedgossip.sites.fits.survival.survival_times import places_of, reported_risk
from fedgossip.sites.plans.fits import planned_fit, time_and_event
from fedgossip.sites.releases.checking import check
from fedgossip.sites.releases.fitted import section_of

GRID = tuple(float(time) for time in range(20, 401, 20))

Pooled = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Columns [m, p], times, events, strata."""


def drawn(seed: int, rows: int = 80, strata: int = 1) -> Pooled:
    rng = np.random.default_rng(seed)
    x, stratum = rng.normal(size=(rows, 3)), rng.integers(0, strata, rows)
    time, end = rng.exponential(200 * np.exp(-x @ [0.5, -0.3, 0.1]) * (1 + stratum)), rng.uniform(50, 500, rows)
    return x, np.ceil(np.minimum(time, end)), time <= end, stratum


def layout_of(
    strata: int = 1, ridge: float = 0.0, least: int = 10, steps: int = 16, ties: str = "breslow"
) -> CoxLayout:
    return CoxLayout(
        CoxDesign(
            ties=ties,
            time="days",
            event="died",
            grid=GRID,
            least=least,
            ridge=ridge,
            strata=tuple(map(str, range(strata))),
            columns=("a", "b", "c"),
            places=(0, 1, 2),
            mean=(0.0,) * 3,
            deviation=(1.0,) * 3,
            steps=steps,
        )
    )


def site_of(layout: CoxLayout, records: Pooled) -> SiteHazards:
    x, times, events, strata = records
    columns = [np.ascontiguousarray(column) for column in x.T]
    return SiteHazards(layout, TimedRecords(columns, times, places_of(GRID, times), events, strata))


def together(sites: Sequence[Pooled]) -> Pooled:
    x, times, events, strata = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    return x, times, events, strata


def rounds(
    layout: CoxLayout, sites: Sequence[Pooled], there: Callable[[int], Sequence[int]] = lambda _: range(9)
) -> Vector:
    """Return the state after all rounds, in each of which the sites `there(round)` are."""
    x, machines = initial(layout), [site_of(layout, one) for one in sites]
    for number in range(rounds_of(layout)):
        present = [k for k in there(number) if k < len(machines)]
        if FittedHazards(layout, x).stage == OVER:
            break
        if present:
            told = [layout.integers(requested_sums(machines[k], x)) for k in present]
            x = stepped(layout, x, layout.vector([sum(one) for one in zip(*told, strict=True)]), len(present))
    return x


def fit_of(layout: CoxLayout, x: Vector) -> CoxFit:
    found = cox_fit(layout, x, 3)
    assert found is not None
    return found


def rounded(records: Pooled, ends: Sequence[float]) -> Pooled:
    """Return records with times rounded up to reported times; behind the last nothing is seen."""
    x, times, events, strata = records
    index = np.searchsorted(ends, times)
    return x, index, events & (index < len(ends)), strata


def by_hand(
    records: Pooled, ridge: float = 0.0, ties: str = "breslow", first: np.ndarray | int = 0
) -> tuple[list[float], list[float], float]:
    """Return estimates, errors and log likelihood by the textbook, in long floats; `first`: reported times at risk."""
    x, index, events, strata = records
    x, point, total = x.astype(np.longdouble), np.zeros(x.shape[1], np.longdouble), np.longdouble(0)
    for _ in range(9):
        g, a, total = -ridge * point, ridge * np.eye(x.shape[1], dtype=np.longdouble), np.longdouble(0)
        w = np.exp(x @ point)
        for stratum, time in sorted(set(zip(strata[events].tolist(), index[events].tolist(), strict=True))):
            risk = (strata == stratum) & (index >= time) & (first <= time)
            died = risk & events & (index == time)
            g, total = g + x[died].sum(0), total + (x[died] @ point).sum()
            for before in range(died.sum()):  # Efron: those that came before weigh less by their share
                share = np.longdouble(before) / died.sum() if ties == "efron" else 0
                v = np.where(died, w * (1 - share), w)[risk]
                s0, s1, s2 = v.sum(), v @ x[risk], (x[risk] * v[:, None]).T @ x[risk]
                g, total = g - s1 / s0, total - np.log(s0)
                a = a + s2 / s0 - np.outer(s1, s1) / s0**2
        point = point + np.linalg.solve(a.astype(float), g.astype(float))
    return [*map(float, point)], [*np.sqrt(np.diag(np.linalg.inv(a.astype(float))))], float(total)


# --- the fit ----------------------------------------------------------------------------------------------------------


TIES = pytest.mark.parametrize("ties", ["breslow", "efron"])


@TIES
@pytest.mark.parametrize(("strata", "ridge"), [(1, 0.0), (2, 0.0), (1, 4.0)])
def test_the_fit_is_that_of_all_records_in_one_place(strata: int, ridge: float, ties: str) -> None:
    layout, sites = layout_of(strata, ridge, ties=ties), [drawn(seed, 60, strata) for seed in range(4)]
    found = fit_of(layout, rounds(layout, sites))
    ends = [point.time for point in found.strata[0].points]
    estimates, errors, likelihood = by_hand(rounded(together(sites), ends), ridge, ties)
    assert found.converged and found.records == 240 and len(ends) >= 2
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-10)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-10)
    assert found.log_likelihood == pytest.approx(published(likelihood, ties), rel=1e-12)
    if ties == "breslow" and strata == 1 and not ridge:
        index, had = np.searchsorted(ends, together(sites)[1]), [point.events for point in found.strata[0].points]
        null = -sum(many * math.log((index >= k).sum()) for k, many in enumerate(had))
        assert found.ratio == pytest.approx(2 * (likelihood - null), rel=1e-10)
        assert found.null_log_likelihood == published(null, ties)


def published(likelihood: float, ties: str) -> float:
    """Return a log likelihood as fit.json has it, of reported times of ten events."""
    return 10.0 * round(likelihood / 10) if ties == "breslow" else likelihood


THEIRS = {
    1: (
        [0.01702691642847649, -0.026206205473154106, 0.39400660897544143],
        [0.002831466543350974, 0.010377658805878716, 0.09797899480126838],
    ),
    2: (
        [0.017009997937808722, -0.026280305475738612],
        [0.0028311334901319077, 0.010378730472733836],
    ),
}
"""statsmodels 0.15.0, PHReg(times, x, status, ties="breslow", strata).fit(groups=range(500)): params, bse."""


def counted_patients() -> Pooled:
    """Return 500 records that no generator draws: age, dose, arm; rounded to a grid every 30 until 150."""
    found = []
    for i in range(500):
        age, dose, arm = 30 + 37 * i % 61, 53 * i % 160 / 10, i * 7 // 3 % 2
        chance, other = ((i + 1) * factor % 2**32 / 2**32 for factor in (2654435761, 2246822519))
        time = -math.log(chance) * 120 * math.exp(-0.02 * (age - 60) - 0.5 * arm + 0.03 * dose)
        end = 40 + 300 * other
        found.append((age, dose, arm, math.ceil(min(time, end)), time <= end))
    every = np.array(found, float)
    return every[:, :3], every[:, 3], every[:, 4] == 1, every[:, 2].astype(int)


@pytest.mark.parametrize("strata", [1, 2])
def test_robust_errors_are_those_of_statsmodels(strata: int) -> None:
    x, times, events, arm = counted_patients()
    x, p = x[:, : 4 - strata] - [60.0, 8.0, 0.0][: 4 - strata], 4 - strata  # of arms with a hazard each no coefficient
    d = msgspec.structs.replace(
        layout_of(strata).design, grid=tuple(range(30, 151, 30)), columns=("age", "dose", "arm")[:p], errors="robust",
        places=tuple(range(p)), mean=(0.0,) * p, deviation=(20.0, 4.0, 1.0)[:p],
    )  # fmt: skip
    layout, machines = CoxLayout(d), list[SiteHazards]()
    for site in range(SITES):
        of = slice(site, None, SITES)
        columns = [np.ascontiguousarray(one[of] / by) for one, by in zip(x.T, d.deviation, strict=True)]
        stratum = arm[of] * (strata - 1)
        machines.append(
            SiteHazards(layout, TimedRecords(columns, times[of], places_of(d.grid, times[of]), events[of], stratum))
        )
    state = initial(layout)
    for _ in range(rounds_of(layout)):
        told = [layout.integers(requested_sums(one, state)) for one in machines]
        state = stepped(layout, state, layout.vector([sum(one) for one in zip(*told, strict=True)]), SITES)
    fit = fit_of(layout, state)
    estimates, errors = THEIRS[strata]
    assert fit.converged and [point.time for point in fit.strata[0].points] == list(d.grid)
    assert [one.estimate for one in fit.coefficients] == pytest.approx(estimates, rel=1e-8)
    assert [one.error for one in fit.coefficients] == pytest.approx(errors, rel=1e-8)


def test_robust_errors_change_no_estimate_and_hardly_what_the_grid_costs() -> None:
    sites = [drawn(seed, 60) for seed in range(3)]
    robust = CoxLayout(msgspec.structs.replace(layout_of().design, errors="robust"))
    found, plain = fit_of(robust, rounds(robust, sites)), fit_of(layout_of(), rounds(layout_of(), sites))
    assert [one.estimate for one in found.coefficients] == [one.estimate for one in plain.coefficients]
    assert found.ratio == plain.ratio and found.points == plain.points + 1  # S1 is opened once more
    assert attenuation(found) == pytest.approx(attenuation(plain), rel=0.1)


def test_means_that_no_honest_coordinator_sends_are_refused() -> None:
    """By false means of those at risk the squares would be those of the events of one reported time."""
    layout = CoxLayout(msgspec.structs.replace(layout_of().design, errors="robust"))
    sites = [drawn(seed) for seed in range(SITES)]
    whole, before = site_of(layout, together(sites)), initial(layout)
    while FittedHazards(layout, before).stage != LAST:
        before = stepped(layout, before, requested_sums(whole, before), SITES)
    after = FittedHazards(layout, stepped(layout, before, requested_sums(whole, before), SITES))
    told = FittedHazards(layout, before)
    assert after.stage == SQUARES and not told.broken(after)
    assert not any(CoxTask(layout, {0: site_of(layout, one).records}, 5).uneven(0, 0, after.x) for one in sites)
    after["means"][0, 1] += 1e3
    assert "the point is not that of the step" in told.broken(after)
    events = after["events"][0]
    after["means"][0, 2] -= 1e3 * events[1] / events[2]  # without a gradient, so only a site's own records show it
    assert not told.broken(after)
    few = drawn(0)
    few[2][(few[1] > GRID[0]) & (few[1] <= GRID[4])] = False
    few[1][:1], few[2][:1] = (after.layout.design.grid[int(after.ends[1])], True)
    machine = site_of(layout, few)
    x = FittedHazards(layout, after.x).x
    refused = CoxTask(layout, {0: machine.records}, 5).uneven(0, 0, x)
    assert "one of this site's records is most of the squared residuals of 'a', 'b', 'c'" in refused


@TIES
@pytest.mark.parametrize("strata", [1, 3])
def test_statsmodels_says_the_same(strata: int, ties: str) -> None:
    pytest.importorskip("pandas", reason="statsmodels needs it")
    hazards = pytest.importorskip("statsmodels.duration.hazard_regression")
    layout, sites = layout_of(strata, ties=ties), [drawn(seed, 200, strata) for seed in range(5)]
    found = fit_of(layout, rounds(layout, sites))
    x, index, events, stratum = rounded(together(sites), [point.time for point in found.strata[0].points])
    groups = stratum if strata > 1 else None
    model = hazards.PHReg(index, x, status=events.astype(int), ties=ties, strata=groups)
    theirs, null = model.fit(), model.loglike(np.zeros(x.shape[1]))
    assert [one.estimate for one in found.coefficients] == pytest.approx(list(theirs.params), rel=1e-10)
    assert [one.error for one in found.coefficients] == pytest.approx(list(theirs.bse), rel=1e-10)
    assert found.log_likelihood == pytest.approx(published(theirs.llf, ties), rel=1e-12)
    assert found.null_log_likelihood == pytest.approx(published(null, ties), rel=1e-12)
    assert found.ratio == pytest.approx(2 * (theirs.llf - null), rel=1e-10)
    if strata == 1 and ties == "breslow":
        relative = np.exp(x @ theirs.params)
        many = np.array([(events & (index == k)).sum() for k in range(index.max())])
        risen = many / [relative[index >= k].sum() for k in range(index.max())]
        off = np.array([point.hazard for point in found.strata[0].points]) - np.cumsum(risen)
        assert (np.abs(off) <= np.sqrt(np.cumsum(risen**2 / many)) / 20).all(), "two digits of an error"


def changing(seed: int, strata: int) -> Pooled:
    """Return records of which the effect of the first column is reversed after time 60."""
    x, times, events, stratum = drawn(seed, 200, strata)
    later = np.random.default_rng(seed + 100).exponential(100 * np.exp(0.8 * x[:, 0]))
    return x, np.where(times > 60, np.ceil(60 + later), times), events, stratum


def by_residuals(
    records: Pooled, estimates: Sequence[float], errors: np.ndarray, first: np.ndarray | int = 0
) -> list[float]:
    """Return Grambsch and Therneau's statistics of each column and of all, from a residual of each event."""
    x, index, events, strata = records
    w, residuals, times = np.exp(x @ np.array(estimates)), list[np.ndarray](), list[int]()
    for stratum, time in sorted(set(zip(strata[events].tolist(), index[events].tolist(), strict=True))):
        risk = (strata == stratum) & (index >= time) & (first <= time)
        died = risk & events & (index == time)
        weights = [np.where(died, w * (1 - k / died.sum()), w) * risk for k in range(died.sum())]
        mean = np.mean([v @ x / v.sum() for v in weights], axis=0)
        residuals += [one - mean for one in x[died]]
        times += [time] * int(died.sum())
    there = [(index >= k) & (first <= k) for k in range(max(times) + 1)]
    alive = np.cumprod([1 - (events & (index == k)).sum() / there[k].sum() for k in range(len(there))])
    g = np.array([1.0 if k == 0 else alive[k - 1] for k in times])
    g = g - g.mean()
    moved = errors @ (g @ np.array(residuals)) * len(g)
    each = moved**2 / np.diag(errors)
    return [float(one) / (len(g) * (g @ g)) for one in (*each, moved @ np.linalg.solve(errors, moved))]


@pytest.mark.parametrize("strata", [1, 2])
def test_hazards_that_are_not_proportional_are_found_as_by_a_residual_of_each_event(strata: int) -> None:
    layout, sites = layout_of(strata, ties="efron"), [changing(seed, strata) for seed in range(5)]
    found = fit_of(layout, rounds(layout, sites))
    pooled = rounded(together(sites), [point.time for point in found.strata[0].points])
    wanted = by_residuals(pooled, [one.estimate for one in found.coefficients], np.array(found.covariance, float))
    assert [one.statistic for one in found.proportional] == pytest.approx(wanted, rel=1e-8)
    terms = [("a", 1), ("b", 1), ("c", 1), ("all columns", 3)]
    assert [(one.name, one.freedom) for one in found.proportional] == terms
    assert found.proportional[0].p < 1e-4
    assert found.proportional[2].p > 0.01


def test_lifelines_finds_the_same_hazards_that_are_not_proportional() -> None:
    lifelines = pytest.importorskip("lifelines", reason="compared with lifelines")
    import pandas

    layout, sites = layout_of(ties="efron"), [changing(seed, 1) for seed in range(5)]
    found = fit_of(layout, rounds(layout, sites))
    x, index, events, _ = rounded(together(sites), [point.time for point in found.strata[0].points])
    frame = pandas.DataFrame(x, columns=list("abc")).assign(days=index + 1.0, died=events)
    model = lifelines.CoxPHFitter().fit(frame, "days", "died", fit_options={"precision": 1e-12})
    alive = np.cumprod([1 - (events & (index == k)).sum() / (index >= k).sum() for k in range(index.max() + 1)])
    before = np.concatenate([[1.0], alive])
    tested = lifelines.statistics.proportional_hazard_test(
        model,
        frame,
        time_transform=lambda days, _events, _weights: pandas.Series(before[days.astype(int) - 1], days.index),
    )
    assert [one.statistic for one in found.proportional[:3]] == pytest.approx(list(tested.test_statistic), rel=1e-6)


# --- clusters ---------------------------------------------------------------------------------------------------------


def by_clusters(sites: Sequence[Pooled], clusters: Sequence[np.ndarray | None]) -> CoxFit:
    more = {"cluster": "person"} if clusters[0] is not None else {}
    layout = CoxLayout(msgspec.structs.replace(layout_of().design, errors="robust", **more))
    machines = [SiteHazards(layout, replace(site_of(layout, one).records, cluster=of))
                for one, of in zip(sites, clusters, strict=True)]  # fmt: skip
    state = initial(layout)
    for _ in range(rounds_of(layout)):
        told = [layout.integers(requested_sums(one, state)) for one in machines]
        state = stepped(layout, state, layout.vector([sum(one) for one in zip(*told, strict=True)]), SITES)
    return fit_of(layout, state)


def test_errors_by_clusters_of_equal_records_are_larger_by_the_root_of_two() -> None:
    """Each record twice: a cluster's gradient is twice a record's, and there are half as many of them."""
    sites = [tuple(np.repeat(one, 2, axis=0) for one in drawn(seed, 100)) for seed in range(SITES)]
    together, alone = by_clusters(sites, [np.arange(200) // 2] * SITES), by_clusters(sites, [None] * SITES)  # type: ignore[arg-type]
    assert together.clusters == 500 and alone.clusters is None and together.converged
    wanted = [math.sqrt(2) * one.error for one in alone.coefficients if one.error]
    assert [one.error for one in together.coefficients] == pytest.approx(wanted, rel=1e-10)


def test_statsmodels_has_the_same_errors_by_clusters() -> None:
    pytest.importorskip("pandas", reason="statsmodels needs it")
    hazards = pytest.importorskip("statsmodels.duration.hazard_regression")
    sites = [drawn(seed, 200) for seed in range(SITES)]
    found = by_clusters(sites, [np.arange(200) // 3] * SITES)
    x, index, events, _ = rounded(together(sites), [point.time for point in found.strata[0].points])
    groups = np.concatenate([np.arange(200) // 3 + 100 * site for site in range(SITES)])
    theirs = hazards.PHReg(index, x, status=events.astype(int), ties="breslow").fit(groups=groups)
    assert [one.error for one in found.coefficients] == pytest.approx(list(theirs.bse), rel=1e-8)


def test_clusters_are_of_robust_errors(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.csv"):
        head, *rows = path.read_text().splitlines()
        lines = [f"{row},p{place // 2}" for place, row in enumerate(rows)]
        (tmp_path / path.name).write_text("\n".join([f"{head},person", *lines]) + "\n")
    text = (folder / "hazards.toml").read_text().replace("label=days,died", "label=days,died&drop=person")
    (tmp_path / "hazards.toml").write_text(text.replace("cox?", "cox?errors=robust&cluster=person&"))
    assert (said := typed(["data", "agree", "hazards.toml"], tmp_path)).code == 0, said
    asked = typed(["fit", "hazards.toml", "--dry-run", "--to", "no"], tmp_path)
    assert "of products of gradients summed by person, and their number" in asked.out, asked
    said = typed(["fit", "hazards.toml"], tmp_path)
    assert said.code == 0 and "errors are robust, of 500 clusters by person" in said.out, said
    found = msgspec.json.decode((tmp_path / "fits/hazards/fit.json").read_bytes(), type=CoxFit)
    assert "errors are robust, of 500 clusters by person" in str(section_of(found))
    for options, why in (
        ("cluster=person", "clusters beside errors of single records"),
        ("errors=robust&cluster=arm", "it is a column of the model, or its label"),
    ):
        source = f"model.source=cox?every=30&until=600&{options}"
        said = typed(["fit", "hazards.toml", "--to", "no", "--set", source], tmp_path)
        assert said.code == 2 and why in said.err, said


def test_a_competing_event_is_the_end_of_observation_where_it_is_recoded(folder: Path, tmp_path: Path) -> None:
    """Hazards of one cause: every other record without the event has another one, 2."""
    for path in folder.glob("*.csv"):
        head, *rows = path.read_text().splitlines()
        place = head.split(",").index("died")
        cells = [row.split(",") for row in rows]
        for one in cells[::2]:
            one[place] = "2" if one[place] == "0" else one[place]
        (tmp_path / path.name).write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    text = (folder / "hazards.toml").read_text()
    (tmp_path / "hazards.toml").write_text(f'{text}\n[data.columns.died]\nrecode = {{ "2" = "0" }}\n')
    assert (said := typed(["data", "agree", "hazards.toml"], tmp_path)).code == 0, said
    assert (said := typed(["fit", "hazards.toml"], tmp_path)).code == 0, said
    found = msgspec.json.decode((tmp_path / "fits/hazards/fit.json").read_bytes(), type=CoxFit)
    assert found.coefficients == fitted(folder).coefficients


# --- delayed entry ----------------------------------------------------------------------------------------------------


def drawn_late(seed: int, rows: int = 200, strata: int = 1) -> tuple[Pooled, np.ndarray]:
    """Return those whose time is after their entry, which is 0 for a third, of twice as many records."""
    x, times, events, stratum = drawn(seed, 2 * rows, strata)
    entries = np.maximum(0, np.random.default_rng([seed, 1]).uniform(-60, 120, 2 * rows).round(2))
    seen = np.flatnonzero(entries < times)[:rows]
    return (x[seen], times[seen], events[seen], stratum[seen]), entries[seen]


def late_layout(**options: object) -> CoxLayout:
    d = layout_of(int(options.pop("strata", 1))).design
    return CoxLayout(msgspec.structs.replace(d, entry=PriorColumn("start", 3, 0.0), **options))


def late_site(layout: CoxLayout, records: Pooled, entries: np.ndarray) -> SiteHazards:
    site = site_of(layout, records).records
    return SiteHazards(layout, replace(site, entries=entries, entered=np.searchsorted(GRID, entries, side="right")))


def late_fit(layout: CoxLayout, sites: Sequence[tuple[Pooled, np.ndarray]]) -> tuple[CoxFit, FittedHazards]:
    x, machines = initial(layout), [late_site(layout, *one) for one in sites]
    for _ in range(rounds_of(layout)):
        told = [layout.integers(requested_sums(one, x)) for one in machines]
        x = stepped(layout, x, layout.vector([sum(one) for one in zip(*told, strict=True)]), len(machines))
    return fit_of(layout, x), FittedHazards(layout, x)


@TIES
@pytest.mark.parametrize("strata", [1, 2])
def test_a_record_is_at_risk_after_its_entry(strata: int, ties: str) -> None:
    layout, sites = late_layout(strata=strata, ties=ties), [drawn_late(seed, 200, strata) for seed in range(5)]
    found, _ = late_fit(layout, sites)
    ends = [point.time for point in found.strata[0].points]
    records, entries = together([one for one, _ in sites]), np.concatenate([one for _, one in sites])
    first = np.searchsorted(ends, entries, side="right")
    estimates, errors, likelihood = by_hand(rounded(records, ends), 0.0, ties, first)
    assert found.converged and len(ends) >= 3 and (first > 0).mean() > 0.3
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-10)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-10)
    assert found.log_likelihood == pytest.approx(published(likelihood, ties), rel=1e-12)
    if ties == "efron":
        wanted = by_residuals(rounded(records, ends), estimates, np.array(found.covariance, float), first)
        assert [one.statistic for one in found.proportional] == pytest.approx(wanted, rel=1e-8)
    without, *_ = by_hand(rounded(records, ends), 0.0, ties)
    assert np.abs(np.array(without) - estimates).max() > 0.005, "the entry matters"


@pytest.mark.parametrize(("ties", "errors"), [("breslow", "model"), ("efron", "model"), ("breslow", "robust")])
def test_statsmodels_has_the_same_delayed_entry(ties: str, errors: str) -> None:
    pytest.importorskip("pandas", reason="statsmodels needs it")
    hazards = pytest.importorskip("statsmodels.duration.hazard_regression")
    more = {"errors": errors} if errors == "robust" else {}
    layout, sites = late_layout(ties=ties, **more), [drawn_late(seed) for seed in range(5)]
    found, _ = late_fit(layout, sites)
    records, entries = together([one for one, _ in sites]), np.concatenate([one for _, one in sites])
    ends = [point.time for point in found.strata[0].points]
    x, index, events, _ = rounded(records, ends)
    first = np.searchsorted(ends, entries, side="right")
    there = first < len(ends)
    model = hazards.PHReg(
        index[there] + 1.0, x[there], status=events[there].astype(int), ties=ties, entry=first[there] + 0.5
    )
    theirs = model.fit(groups=np.arange(there.sum())) if errors == "robust" else model.fit()
    assert [one.estimate for one in found.coefficients] == pytest.approx(list(theirs.params), rel=1e-8)
    assert [one.error for one in found.coefficients] == pytest.approx(list(theirs.bse), rel=1e-8)


@TIES
@pytest.mark.parametrize("seed", range(4))
def test_no_few_that_enter_are_told_apart(seed: int, ties: str) -> None:
    """Not at risk at the first reported time are ten, or none; with Efron's ties so many enter between two, or none."""
    layout, (records, entries) = late_layout(ties=ties), drawn_late(seed, 600)
    found, state = late_fit(layout, [(records, entries)])
    _, times, events, _ = records
    ends = [point.time for point in found.strata[0].points]
    assert len(ends) >= 2 and found.smallest >= 10
    risk = [int(((entries < end) & (times > begin)).sum()) for begin, end in pairwise([-1.0, *ends])]
    assert state["at_risk"][0, : len(ends)].tolist() == risk
    for begin, end in pairwise([*ends, np.inf]):
        come = int(((entries >= begin) & (entries < end)).sum())
        left = int(
            (~events & (times > ends[ends.index(begin) - 1 if ends.index(begin) else 0]) & (times <= begin)).sum()
        )
        assert ties == "breslow" or come == 0 or come >= 10, (begin, come, left)
    late = int((entries >= ends[0]).sum())
    assert late == 0 or late >= 10


@pytest.mark.parametrize("seed", range(20))
def test_the_told_numbers_at_risk_count_no_few_that_enter_or_leave(seed: int) -> None:
    rng = np.random.default_rng(seed)
    events, gone, entered = rng.integers(10, 15, 8), rng.integers(0, 7, 8), rng.integers(0, 7, 8)
    entered[0] = 200
    gone[-1] = 200 + entered.sum() - events.sum() - gone[:-1].sum()
    risk = np.cumsum(entered) - np.concatenate([[0], np.cumsum(events + gone)[:-1]])
    told = np.array(reported_risk(risk.tolist(), events.tolist(), 10, entered.tolist()))
    moved = told[1:] - told[:-1] + events[:-1]  # those who come, less those who go without an event
    plain = np.array(
        reported_risk((risk + entered[1:].sum() - np.cumsum([0, *entered[1:]])).tolist(), events.tolist(), 10)
    )
    left = plain[1:] - plain[:-1] + events[:-1]
    come = moved - left
    assert (told >= risk).all() and ((come == 0) | (come >= 10)).all() and ((left == 0) | (left <= -10)).all()
    assert told[0] + come.sum() == entered.sum(), "all are counted in the end"


def test_concordance_compares_no_event_with_one_that_enters_later() -> None:
    rng = np.random.default_rng(0)
    times, events, eta = (
        rng.integers(1, 20, 80).astype(float),
        rng.random(80) < 0.6,
        rng.integers(0, 9, 80).astype(float),
    )
    entries = np.where(rng.random(80) < 0.5, 0.0, np.floor(times * rng.random(80)))
    pairs, right, own = 0, 0.0, np.zeros((2, 80))
    for i, j in np.argwhere(events[:, None] & (entries[None] < times[:, None])).tolist():
        if times[j] > times[i] or (times[j] == times[i] and not events[j]):
            said = (eta[i] > eta[j]) + (eta[i] == eta[j]) / 2
            pairs, right = pairs + 1, right + said
            own[:, [i, j]] += [[1], [2 * said]]
    squares = (own[0] @ own[0], own[0] @ own[1], own[1] @ own[1])
    assert concordance(times, events, eta, entries) == (pairs, 2 * right, squares)


def agree_on_entries(folder: Path, to: Path, ties: str = "breslow") -> None:
    """Write the tables with a column of entries, and an experiment with it, and agree."""
    rng = np.random.default_rng(9)
    for path in sorted(folder.glob("*.csv")):
        rows = rows_of(path)
        lines = [f"{','.join(row.values())},{max(0, int(int(row['days']) * rng.uniform(-0.8, 0.8)))}" for row in rows]
        (to / path.name).write_text("\n".join([f"{','.join(rows[0])},start", *lines]) + "\n")
    text = (folder / "hazards.toml").read_text().replace("cox?every=30", f"cox?entry=start&ties={ties}&every=30")
    (to / "hazards.toml").write_text(text)
    assert (said := typed(["data", "agree", "hazards.toml"], to)).code == 0, said


@pytest.mark.long  # 6 processes
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_processes_fit_delayed_entry_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    agree_on_entries(folder, tmp_path, "efron")
    assert (alone := typed(["fit", "hazards.toml"], tmp_path)).code == 0, alone
    where = machines(tmp_path, tmp_path, FILES)
    said = fit_on(where, "hazards")
    assert [one.code for one in said] == [0] * (SITES + 1), said
    written = {(one / "fit/fit.json").read_bytes() for one in where}
    assert written == {(tmp_path / "fits/hazards/fit.json").read_bytes()}
    assert b'"proportional"' in written.pop()


def test_delayed_entry_is_a_column_of_the_table(folder: Path, tmp_path: Path) -> None:
    agree_on_entries(folder, tmp_path)
    asked = typed(["fit", "hazards.toml", "--dry-run", "--to", "no"], tmp_path)
    assert "those of events and censorings, and of entries by start" in asked.out, asked
    said = typed(["fit", "hazards.toml"], tmp_path)
    assert said.code == 0 and "records are at risk after start" in said.out, said
    found = msgspec.json.decode((tmp_path / "fits/hazards/fit.json").read_bytes(), type=CoxFit)
    assert [one.name for one in found.coefficients] == ["age", "bmi", "arm=old"]
    assert "records are at risk after start" in str(section_of(found))
    lines = [(tmp_path / f"site-{site}.csv").read_text().splitlines() for site in range(SITES)]
    (tmp_path / "all.csv").write_text("\n".join([lines[0][0], *(row for one in lines for row in one[1:])]) + "\n")
    judged = json.loads(typed(["evaluate", "fits/hazards", "all.csv", "--json"], tmp_path).out)
    assert judged["events until 600"] == found.events
    assert judged["events of the fit"] == pytest.approx(found.events, abs=found.events**0.5 / 50)
    (tmp_path / "site-0.csv").write_text((tmp_path / "site-0.csv").read_text() + "60,25,new,100,1,100\n")
    refused = typed(["fit", "hazards.toml", "--to", "again"], tmp_path)
    assert refused.code == 7 and "column 'start': not before 'days' in 1 record" in refused.err, refused
    for option, why in (
        ("entry=days", "'days' is no column of numbers"),
        ("entry=arm", "'arm' is no column of numbers"),
    ):
        source = f"model.source=cox?every=30&until=600&{option}"
        said = typed(["fit", "hazards.toml", "--to", "no", "--set", source], tmp_path)
        assert said.code == 2 and why in said.err, said


def test_no_hazards_are_tested_where_their_sums_are_not_there() -> None:
    """Breslow's ties have no sums over the events of a time, and a ridge leaves a gradient."""
    sites = [drawn(seed, 200) for seed in range(5)]
    for layout in (layout_of(), layout_of(ties="efron", ridge=1.0)):
        assert not fit_of(layout, rounds(layout, sites)).proportional


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strata", [1, 2])
def test_no_few_records_are_told_apart_by_efron_s_ties(seed: int, strata: int) -> None:
    """Those with their event at a reported time, and those who leave without one until the next, are ten, or none.

    After the last they are together with those who are there after it.
    """
    layout, whole = layout_of(strata, ties="efron"), drawn(seed, 400, strata)
    found = fit_of(layout, rounds(layout, [whole]))
    ends, apart = [point.time for point in found.strata[0].points], []
    _, times, events, stratum = whole
    for one in range(strata):
        for begin, end in pairwise([0.0, *ends]):
            inside = (stratum == one) & (times > begin) & (times <= end)
            after = (stratum == one) & (times > end) & (end == ends[-1])  # whom no further sum leaves out
            apart += [int((inside & events).sum()), int((inside & ~events).sum() + after.sum())]
    assert len(ends) >= 3 and min(count for count in apart if count) >= 10, apart
    assert found.smallest >= 10


def test_a_stratum_is_summed_at_the_told_times_of_its_own_events_alone() -> None:
    """Else its sums at two times would differ by the one record that leaves between them without an event."""
    ends = {0: [20] * 12 + [40] + [60] * 12 + [500] * 75, 1: [20] * 15 + [40] * 15 + [60] * 15 + [500] * 55}
    x, times, strata = (
        np.random.default_rng(5).normal(size=(200, 3)),
        np.array(ends[0] + ends[1], float),
        np.arange(200) // 100,
    )
    events, layout = (times < 100) & ~((strata == 0) & (times == 40)), layout_of(2)
    site, state = site_of(layout, (x, times, events, strata)), initial(layout)
    state = stepped(layout, state, requested_sums(site, state), SITES)
    told = FittedHazards(layout, state)
    assert told["events"][:, :3].tolist() == [[12, 0, 12], [15, 15, 15]] and told.number("smallest") == 12
    found = layout.risk(layout.integers(requested_sums(site, state)), 3)
    assert not found.s0[0, 1] and not found.s1[0, 1].any()
    leave = (strata == 0) & (times < 60)
    assert found.s1[0, 0] - found.s1[0, 2] == pytest.approx(x[leave].sum(0)) and leave.sum() == 13


@TIES
@pytest.mark.parametrize("strata", [1, 2])
def test_the_bytes_do_not_depend_on_who_has_which_record(strata: int, ties: str) -> None:
    """But of concordance, which is of pairs at one site."""
    layout, whole = layout_of(strata, ties=ties), drawn(3, 300, strata)
    order = np.random.default_rng(1).permutation(300)
    parts = [tuple(column[rows] for column in whole) for rows in np.split(order, [40, 150, 160])]
    alone = FittedHazards(layout, fitted_alone(layout, site_of(layout, whole)))
    several = FittedHazards(layout, rounds(layout, parts))  # type: ignore[arg-type]
    for state in (alone, several):
        for name in ("sites", "fewest", "asked_sites", *PAIRS):
            state[name][...] = 0
    assert alone.x.tobytes() == several.x.tobytes()


def test_a_site_without_an_event_counts_among_those_at_risk() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(4)]
    x, times, events, strata = sites[3]
    sites[3] = (x, times, np.zeros_like(events), strata)
    found = fit_of(layout, rounds(layout, sites))
    ends = [point.time for point in found.strata[0].points]
    assert [one.estimate for one in found.coefficients] == pytest.approx(
        by_hand(rounded(together(sites), ends))[0], rel=1e-10
    )


def test_told_times_have_enough_events_and_are_not_too_many() -> None:
    layout, sites = layout_of(2, least=15), [drawn(seed, 120, 2) for seed in range(4)]
    found = fit_of(layout, rounds(layout, sites))
    assert all(point.events == 0 or point.events >= 15 for one in found.strata for point in one.points)
    assert found.smallest >= 15 and len(found.strata[0].points) <= REPORTED_TIMES
    risk = [[point.risk for point in one.points] for one in found.strata]
    assert found.smallest <= min(a - b for one in risk for a, b in pairwise(one) if a > b)


# --- from round to round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", range(1, 9, 2))
def test_a_site_that_leaves_leaves_the_fit_of_the_others(leaves: int) -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(4)]
    found = fit_of(layout, rounds(layout, sites, lambda number: range(4 if number < leaves else 3)))
    ends = [point.time for point in found.strata[0].points]
    assert (found.sites, found.records, found.fewest, found.converged) == (3, 240, 3, True)
    assert [one.estimate for one in found.coefficients] == pytest.approx(
        by_hand(rounded(together(sites[:3]), ends))[0], rel=1e-9
    )


def test_rounds_that_do_not_come_together_are_asked_again() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(3)]
    lost = rounds(layout, sites, lambda number: [] if number % 3 == 1 else range(3))
    assert lost.tobytes() == rounds(layout, sites).tobytes()


def test_nothing_is_told_where_no_step_has_come_together() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(3)]
    for lasts in range(3):
        x = rounds(layout, sites, lambda number, lasts=lasts: range(3) if number < lasts else [])  # type: ignore[misc]
        assert FittedHazards(layout, x).stage == (0, RISK, MOMENTS)[lasts]
        assert cox_fit(layout, x, 3) is None


def test_a_fit_that_lacks_its_last_sums_is_not_called_one() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(3)]
    x = initial(layout)
    machines = [site_of(layout, one) for one in sites]
    while FittedHazards(layout, x).stage != LAST:
        told = [layout.integers(requested_sums(one, x)) for one in machines]
        x = stepped(layout, x, layout.vector([sum(one) for one in zip(*told, strict=True)]), 3)
    assert not fit_of(layout, x).converged


def test_no_events_are_said() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(3)]
    never = [(x, times, np.zeros_like(events), strata) for x, times, events, strata in sites]
    with pytest.raises(TrainingError, match="no 10 records have their event, died = 1") as refused:
        cox_fit(layout, rounds(layout, never), 3)
    assert refused.value.advice


def test_an_estimate_without_end_is_no_fit_and_a_ridge_keeps_it() -> None:
    """Those with a = 1 die first, one and all: the likelihood grows with the estimate of a."""
    sites = [drawn(seed) for seed in range(3)]
    split = []
    for x, times, _, strata in sites:
        first = x[:, 0] > 0
        told = np.stack([np.where(first, 1.0, -1.0), x[:, 1], x[:, 2]], axis=1)
        split.append((told, np.where(first, np.ceil(times / 5), times + 200), first, strata))
    assert not fit_of(layout_of(), rounds(layout_of(), split)).converged
    kept = fit_of(layout_of(ridge=1.0), rounds(layout_of(ridge=1.0), split))
    ends = [point.time for point in kept.strata[0].points]
    assert kept.converged and kept.ratio is None
    assert [one.estimate for one in kept.coefficients] == pytest.approx(
        by_hand(rounded(together(split), ends), 1.0)[0], rel=1e-8
    )


def test_columns_that_depend_on_each_other_are_named() -> None:
    layout, sites = layout_of(), [drawn(seed) for seed in range(3)]
    twice = [(np.stack([x[:, 0], x[:, 1], 2 * x[:, 1]], axis=1), *others) for x, *others in sites]
    found = fit_of(layout, rounds(layout, twice))  # type: ignore[arg-type]
    assert found.silent == ("b", "c") and found.converged and found.freedom == 2
    ends = [point.time for point in found.strata[0].points]
    _, errors, _ = by_hand(rounded(together([(x[:, :2], *others) for x, *others in sites]), ends))  # type: ignore[misc]
    assert found.coefficients[0].error == pytest.approx(errors[0], rel=1e-6), "beside b, which 2 b is no more than"
    assert found.coefficients[1].error is None


def test_a_sum_is_the_same_in_any_order_and_exact() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=1000) * 10.0 ** rng.integers(-12, 9, 1000)
    cells = rng.integers(0, 3, 1000)
    order = rng.permutation(1000)
    told = exact_totals(values, cells, 3)
    assert told == exact_totals(values[order], cells[order], 3)
    parts = [exact_totals(values[rows], cells[rows], 3) for rows in np.split(order, [10, 400])]
    assert told == [sum(one) for one in zip(*parts, strict=True)]
    for cell in range(3):
        assert real(told[cell]) == pytest.approx(math.fsum(values[cells == cell]), rel=1e-15, abs=1e-15)


def test_a_record_that_no_sum_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="so far from the mean") as refused:
        exact_totals(np.array([1e16]), np.zeros(1, np.int64), 1)
    assert refused.value.advice


def test_concordance_is_that_of_all_pairs() -> None:
    """Harrell's: who has the event first is to have the larger eta; ties of it count a half."""
    rng = np.random.default_rng(2)
    times, events = rng.integers(0, 12, 60).astype(float), rng.random(60) < 0.6
    eta = rng.integers(0, 8, 60).astype(float)
    pairs = right = 0.0
    own, among = np.zeros(60), np.zeros(60)
    for i, j in combinations(range(60), 2):
        a, b = (i, j) if (times[i], not events[i]) < (times[j], not events[j]) else (j, i)
        if events[a] and (times[a] < times[b] or not events[b]):
            pairs += 1
            right += (as_said := (eta[a] > eta[b]) + (eta[a] == eta[b]) / 2)
            among[[a, b]] += 1
            own[[a, b]] += as_said
    squares = (among @ among, among @ (2 * own), (2 * own) @ (2 * own))
    assert concordance(times, events, eta) == (pairs, 2 * right, squares)
    error = np.sqrt((((own - right / pairs * among) / pairs) ** 2).sum())  # of dC / dw of each record
    assert concordance_error(pairs, right, squares) == pytest.approx(error, rel=1e-12)


# --- the command ------------------------------------------------------------------------------------------------------


def patients(path: Path, seed: int, rows: int = 200) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "bmi", "arm", "days", "died"])
        for _ in range(rows):
            age, bmi, arm = rng.integers(30, 90), rng.normal(26, 4), rng.choice(["new", "old"])
            time, end = rng.exponential(400 * np.exp(-0.04 * (age - 60) - 0.6 * (arm == "old"))), rng.uniform(100, 700)
            writer.writerow([age, f"{bmi:.1f}", arm, int(np.ceil(min(time, end))), int(time <= end)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hazards")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    text = next(one.text for one in blocks(page("survival")) if one.note == "file: hazards.toml")
    (found / "hazards.toml").write_text(text)
    assert typed(["data", "agree", "hazards.toml"], found).code == 0
    return found


@cache
def command(folder: Path) -> Output:
    """Fit by the command, once for all tests that look at what it has written."""
    return typed(["fit", "hazards.toml"], folder)


def fitted(folder: Path) -> CoxFit:
    assert command(folder).code == 0, command(folder)
    return msgspec.json.decode((folder / "fits" / "hazards" / "fit.json").read_bytes(), type=CoxFit)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def read(folder: Path, names: Sequence[str]) -> Pooled:
    rows = [row for name in names for row in rows_of(folder / name)]
    x = np.array([[float(row["age"]), float(row["bmi"]), float(row["arm"] == "old")] for row in rows])
    times, events = (np.array([float(row[name]) for row in rows]) for name in ("days", "died"))
    return x, times, events == 1, np.zeros(len(rows), np.int64)


def test_what_the_page_shows_is_what_the_command_prints(folder: Path) -> None:
    said, found = command(folder), fitted(folder)
    shown = next(one.text for one in blocks(page("survival")) if one.kind == "text")
    assert [line.split() for line in said.out.splitlines()] == [line.split() for line in shown.splitlines()]
    x, times, events, strata = read(folder, [f"site-{site}.csv" for site in range(SITES)])
    mean, deviation = x.mean(0), x.std(0)
    ends = [point.time for point in found.strata[0].points]
    estimates, errors, _ = by_hand(rounded(((x - mean) / deviation, times, events, strata), ends))
    assert [one.name for one in found.coefficients] == ["age", "bmi", "arm=old"]
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates / deviation, rel=1e-9)
    assert [one.error for one in found.coefficients] == pytest.approx(errors / deviation, rel=1e-9)
    assert sum(point.events for point in found.strata[0].points) == found.events == 652
    assert "sums alone, each over at least 5 of 5 clients" in said.err


def test_a_dry_run_says_what_would_be_seen(folder: Path, tmp_path: Path) -> None:
    said = typed(["fit", "hazards.toml", "--dry-run", "--to", str(tmp_path / "fit")], folder)
    opened = [line for line in said.out.splitlines() if line.startswith("opened: ")]
    assert said.code == 0 and len(opened) == 3 and "at 20 times of days" in opened[0], said
    assert "4 sums over all at risk then; 6 of products of columns" in opened[1] and "pairs of records" in opened[2]
    assert not (tmp_path / "fit").exists()


def test_simulator_and_stacked_arrays_write_the_same_bytes(folder: Path) -> None:
    fit = planned_fit(load_experiment(folder / "hazards.toml"))
    plan, task, refused = fit.of_sites(range(SITES))
    vector = simulate_plan(plan, task=task, engine="stacked").vectors[plan.coordinator]
    fitted(folder)
    assert not refused
    written = (folder / "fits" / "hazards" / "fit.json").read_bytes()
    assert encoded(fit.result(vector)) == written


def test_predictions_are_those_of_the_textbook(folder: Path, tmp_path: Path) -> None:
    found = fitted(folder)
    said = typed(["predict", "fits/hazards", "test.csv", "--out", str(tmp_path / "out.csv")], folder)
    assert said.code == 0, said
    rows = rows_of(tmp_path / "out.csv")
    x, *_ = read(folder, ["test.csv"])
    whole, *_ = read(folder, [f"site-{site}.csv" for site in range(SITES)])
    centred = x - np.array([*whole.mean(0)[:2], 0.0])
    relative = np.exp(centred @ [one.estimate for one in found.coefficients])
    told = np.array([float(row["relative hazard"]) for row in rows])
    np.testing.assert_allclose(told, relative, rtol=1e-7)
    spread = np.sqrt(np.einsum("mi,ij,mj->m", centred, np.array(found.covariance, float), centred))
    low = np.array([float(row["relative hazard, 95 % from"]) for row in rows])
    np.testing.assert_allclose(low, relative * np.exp(-1.959963984540054 * spread), rtol=1e-7)
    last = found.strata[0].points[-1]
    survival = np.array([float(row[f"survival at {last.time:g}"]) for row in rows])
    np.testing.assert_allclose(survival, np.exp(-last.hazard * relative), rtol=1e-6)


def test_the_fit_is_judged_on_a_table(folder: Path) -> None:
    """Of the records that it was fitted to it says as many events as there were, which is Breslow's."""
    fitted(folder)
    said = typed(["evaluate", "fits/hazards", "test.csv", "--json"], folder)
    assert said.code == 0, said
    told = json.loads(said.out)
    assert told["examples"] == 200 and 0.6 < told["concordance"] < 0.8
    lines = [(folder / f"site-{site}.csv").read_text().splitlines() for site in range(SITES)]
    (folder / "all.csv").write_text("\n".join([lines[0][0], *(row for one in lines for row in one[1:])]) + "\n")
    again = json.loads(typed(["evaluate", "fits/hazards", "all.csv", "--json"], folder).out)
    assert again["events until 600"] == 652
    assert again["events of the fit"] == pytest.approx(652, abs=652**0.5 / 100), "rounded hazards"
    refused = typed(["evaluate", "fits/hazards", "hazards.toml"], folder)
    assert refused.code == 2 and "which are judged on a table" in refused.err
    (folder / "bad.csv").write_text("age,bmi,arm,days,died\n50,25,new,10,2\n")
    refused = typed(["evaluate", "fits/hazards", "bad.csv"], folder)
    assert refused.code == 2 and "line 2, column 'died': 2 is none" in refused.err


def test_efron_s_ties_are_chosen_by_a_word_and_the_plan_says_what_they_open(folder: Path, tmp_path: Path) -> None:
    words = [
        "fit",
        "hazards.toml",
        "--to",
        str(tmp_path / "fit"),
        "--set",
        "model.source=cox?every=30&until=600&ties=efron",
    ]
    asked = typed([*words, "--dry-run"], folder)
    assert "and as many over those with their event then" in asked.out
    said = typed(words, folder)
    assert said.code == 0 and "ties are Efron's" in said.out, said
    assert "4 sums over those at risk and as many over those with their event at each reported time" in said.out
    tested = next(one.text for one in blocks(page("survival")) if one.text.startswith("effect changes with time"))
    assert set(tested.splitlines()) <= set(said.out.splitlines())
    found = msgspec.json.decode((tmp_path / "fit" / "fit.json").read_bytes(), type=CoxFit)
    x, times, events, strata = read(folder, [f"site-{site}.csv" for site in range(SITES)])
    deviation, ends = np.array(found.design.deviation), [point.time for point in found.strata[0].points]
    pooled = (x - np.array(found.design.mean)) / deviation, times, events, strata
    estimates, _, _ = by_hand(rounded(pooled, ends), ties="efron")
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates / deviation, rel=1e-8)
    card = str(section_of(found))
    assert "Effect changes with time" in card and "all columns" in card


def test_strata_have_no_coefficient_and_a_hazard_each(folder: Path, tmp_path: Path) -> None:
    words = ["fit", "hazards.toml", "--to", str(tmp_path / "fit"), "--set"]
    said = typed([*words, "model.source=cox?every=30&until=600&strata=arm&events=20", "--json"], folder)
    assert said.code == 0, said
    found = msgspec.json.decode(said.out.encode(), type=CoxFit)
    assert [one.name for one in found.coefficients] == ["age", "bmi"]
    assert [one.name for one in found.strata] == ["new", "old"]
    assert typed(["predict", str(tmp_path / "fit"), "test.csv", "--out", str(tmp_path / "o.csv")], folder).code == 0
    row = next(row for row in rows_of(tmp_path / "o.csv") if row["arm"] == "old")
    last = found.strata[1].points[-1]
    survival = float(row[f"survival at {last.time:g}"])
    assert -math.log(survival) / last.hazard == pytest.approx(float(row["relative hazard"]), rel=1e-6)


def test_declared_columns_are_fitted(folder: Path, tmp_path: Path) -> None:
    sets = ["--set", "data.columns.age={cuts=[60]}", "--set", f"data.agreed={tmp_path / 'cut.json'}"]
    assert (said := typed(["data", "agree", "hazards.toml", *sets], folder)).code == 0, said
    said = typed(["fit", "hazards.toml", "--to", str(tmp_path / "fit"), "--json", *sets], folder)
    assert said.code == 0, said
    found = msgspec.json.decode(said.out.encode(), type=CoxFit)
    assert [one.name for one in found.coefficients] == ["age=>=60", "bmi", "arm=old"]


@pytest.mark.parametrize(("bmi", "code"), [("[25]", 0), ("[19, 22, 24, 26, 28, 30, 33]", 5)])
def test_categories_alone_are_fitted_where_no_combination_leaves_few(
    bmi: str, code: int, folder: Path, tmp_path: Path
) -> None:
    sets = ["--set", "data.columns.age={cuts=[60]}", "--set", f"data.columns.bmi={{cuts={bmi}}}"]
    sets += ["--set", f"data.agreed={tmp_path / 'cut.json'}"]
    assert (said := typed(["data", "agree", "hazards.toml", *sets], folder)).code == 0, said
    said = typed(["fit", "hazards.toml", "--to", str(tmp_path / "fit"), *sets], folder)
    assert said.code == code and (tmp_path / "fit/fit.json").exists() == (code == 0), said
    assert ("fewer than 5 of either share their categories, and no column is of numbers" in said.err) == (code == 5)


def test_a_fit_that_sites_end_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    """Of 60 records a site, few carry the sum of a column with a hazard ratio of e for each deviation.

    With the columns that the error declares it is fitted.
    """
    for site in range(SITES + 1):
        x, times, died, _ = strong(site)
        rows = [f"{row[0]:.3f},{row[1]:.3f},{time:.0f},{had:d}" for row, time, had in zip(x, times, died, strict=True)]
        name = f"site-{site}.csv" if site < SITES else "test.csv"
        (tmp_path / name).write_text("\n".join(["a,b,days,died", *rows]))
    text = own_tables("h", "label=days,died", source="cox?every=20&until=400")
    (tmp_path / "h.toml").write_text(text.replace("[data]", '[task]\nkind = "regression"\n[data]'))
    assert typed(["data", "agree", "h.toml"], tmp_path).code == 0
    said = typed(["fit", "h.toml"], tmp_path)
    assert said.code == 9 and "sites refused a point at which few of their records count" in said.err, said
    assert "The command of the site that refused prints the column" in said.err  # over machines others have no reason
    assert "cox?ridge=1" in said.err and "largest estimate" not in said.err
    assert "records count there" in (tmp_path / "fits/h/metrics.jsonl").read_text()
    assert "Tried: with these columns cut at their agreed quartiles no site refuses." in said.err, said.err
    with (tmp_path / "h.toml").open("a") as file:
        file.write(said.err[said.err.index("\n[data.columns]\n") :])
    (tmp_path / "h.json").unlink()
    assert typed(["data", "agree", "h.toml"], tmp_path).code == 0
    again = typed(["fit", "h.toml", "--to", "cut"], tmp_path)
    assert again.code == 0, again


def strong(seed: int) -> Pooled:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 2))
    time, end = rng.exponential(200 * np.exp(-x @ [1.0, -0.5])), rng.uniform(50, 500, 60)
    return x, np.ceil(np.minimum(time, end)), time <= end, np.zeros(60, int)


@pytest.mark.parametrize(("suppress", "events"), [(3, 10), (10, 10), (11, 11), (20, 20)])
def test_a_told_time_has_as_many_events_as_any_count_must(
    suppress: int, events: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    agreed = json.loads((folder / "hazards-agreed.json").read_text())
    (tmp_path / "agreed.json").write_text(json.dumps({**agreed, "suppress": suppress}))
    at = [f"data.agreed={tmp_path / 'agreed.json'}", f"data.suppress={suppress}"]
    assert planned_fit(load_experiment(folder / "hazards.toml", at)).layout.design.least == events


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.source=cox?every=30&until=600&events=3"], "events=3; data.suppress is 5"),
        (["model.source=cox?events=many"], "events=many"),
        (["model.source=cox?ridge=-1"], "ridge=-1"),
        (["model.source=cox?ties=exact"], "ties=exact"),
        (["model.source=cox?errors=quasi"], "errors=quasi"),
        (["model.source=cox?errors=robust&ties=efron"], "errors=robust with ties=efron"),
        (["model.source=cox?strata=age"], "'age' is no column of words"),
        (["model.source=cox?evry=30"], "unknown option 'evry'"),
        (["model.source=cox?every=0&until=9"], "every 0"),
        (["task.kind=classification"], "cox with task.kind"),
        (["coordinator.secure.on=false"], "a fit is of secure sums"),
        (["coordinator.privacy.unit=client", "coordinator.privacy.noise=1"], "exact, with a budget"),
        (["data.agreed=none.json"], "none.json"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_cannot_be_fitted_is_refused(
    folder: Path, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=message) as refused:
        planned_fit(load_experiment(folder / "hazards.toml", overrides))
    assert refused.value.advice
    if "strata=" in overrides[0]:
        assert '[data.columns."age"] categories = ["0", "1"], and agree again' in refused.value.advice


def test_three_labels_as_of_delayed_entry_are_refused() -> None:
    labels = [SchemaColumn(name, label=True) for name in ("start", "stop", "died")]
    with pytest.raises(ConfigError, match="cox: 3 label columns, start, stop, died") as refused:
        time_and_event("cox", SimpleNamespace(schema=TableSchema(tuple(labels))))  # type: ignore[arg-type]
    assert refused.value.advice.endswith("cox?entry=COLUMN has delayed entry.")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("50,25,new,-3,1", "times below 0, in 1 record"),
        ("50,25,new,30,2", "something else than 0 and 1"),
        ("50,25,new,,1", "nothing there"),
        ("50,,new,30,1", "nothing there"),
    ],
)
def test_a_site_with_records_that_are_none_takes_no_part(folder: Path, tmp_path: Path, row: str, message: str) -> None:
    for path in [*folder.glob("site-*.csv"), folder / "test.csv", *folder.glob("hazards*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "site-1.csv").open("a") as file:
        file.write(row + "\n")
    said = typed(["fit", "hazards.toml", "--set", "coordinator.min_clients=3"], tmp_path)
    assert said.code == 4 and "of 4 of 5 sites" in said.out, said
    assert "site 1 took no part" in said.err and message in said.err


def test_running_such_an_experiment_names_the_command(folder: Path) -> None:
    said = typed(["run", "hazards.toml", "--no-report"], folder)
    assert said.code == 2 and "fedgossip fit" in said.err


# --- over links -------------------------------------------------------------------------------------------------------


FILES = ("hazards.toml", "hazards-agreed.json", "test.csv")


@pytest.mark.long  # 6 processes; of all kinds of fits see tests/sites/test_fits_over_links.py
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_a_fit_over_encrypted_links_is_released_by_its_coordinator(folder: Path, tmp_path: Path) -> None:
    said = fit_on(machines(folder, tmp_path, FILES), "hazards")
    assert [one.code for one in said] == [0] * (SITES + 1), said
    written = {(tmp_path / f"machine{node}" / "fit" / "fit.json").read_bytes() for node in range(SITES + 1)}
    assert written == {encoded(fitted(folder))}
    hub = tmp_path / f"machine{SITES}"
    (hub / "use.txt").write_text("To tell doctors who is in danger, and nobody anything by itself.")
    told = typed(["release", "fit", "--logs", "log", "--endpoints", "endpoints.toml", "--out", "fit.zip"], hub)
    assert told.code == 0, told
    found = check(hub / "fit.zip", hub / "endpoints.toml")
    assert not found.faults and found.whose == "the coordinator's, by your own list"
    summed = [one for one in found.logs if one.told == "summed, 5 of 5 in the sum"]
    assert len(summed) == found.release.rounds >= 6 and found.release.model.file == "fit.json", found.logs
    told = typed(["release", "withdraw", "fit.zip", "--site", "3"], hub)
    rounds = found.release.rounds
    assert found.release.counted == (tuple(range(1, rounds + 1)),) * SITES, "by the coordinator's record alone"
    assert (
        told.code == 0 and f"counted in rounds: 1 to {rounds}, of {rounds}" in told.out and "K = 0, 1, 2, 4" in told.out
    )


@pytest.mark.long  # 6 processes, and deadlines
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_too_few_that_are_left_end_with_an_error(folder: Path, tmp_path: Path) -> None:
    """No sum is over fewer than four, and three of five are killed: nothing is called a fit, and all end."""
    bounds = {
        "min_clients": 4,
        "deadline": 5,
        "least_deadline": 1,
        "start_timeout": 60,
        "return_timeout": 12,
        "silence": 15,
    }
    words = [word for name, bound in bounds.items() for word in ("--set", f"coordinator.{name}={bound}")]
    said = fit_on(machines(folder, tmp_path, FILES), "hazards", *words, dies={1: 3, 2: 3, 3: 3})
    assert [said[node].code for node in (1, 2, 3)] == [-signal.SIGKILL] * 3
    errors = [re.findall("^error: .*", said[node].err, re.M) for node in (0, 4, 5)]
    ended = ["error: the coordinator has ended the run after 4 rounds: too few sites were left"]
    assert errors == [ended, ended, ["error: 2 clients are there, and a round needs 4: it ended before round 5"]], said
    assert [said[node].code for node in (0, 4, 5)] == [7] * 3 and "drop=" not in said[0].err, said
    assert not list(tmp_path.glob("machine*/fit"))


def test_the_table_of_the_docs_is_that_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.delitem(sys.modules, "cox_ties", raising=False)
    from cox_ties import shrunken

    every = list(shrunken(10))
    found = {(points, ties): f"{told:.0f}, {100 * less:.1f} %" for points, ties, told, less, _ in every}
    stated = {points: f"{100 * drawn:.1f} %" for points, ties, _, _, drawn in every if ties == "breslow"}
    text = (Path(__file__).parents[2] / "docs" / "sites" / "survival.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+, [\d.]+ %) \| ([\d.]+ %) \| (\d+, [\d.]+ %) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for points, breslow, told, efron in rows:
        assert (breslow, efron) == (found[int(points), "breslow"], found[int(points), "efron"])
        assert told == stated[int(points)]
