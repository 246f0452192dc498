"""Subdistribution hazards by sums, `cox?competing=2`: Fine and Gray's fit of all records in one place."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from commands import typed
from fit_sites import SITES, by_hand, own_tables
from test_cox import GRID, layout_of

from fedgossip import ConfigError, load_experiment
from fedgossip.sites.fits.cox.cox_result import CoxFit, cox_fit
from fedgossip.sites.fits.cox.cox_steps import FittedHazards, fitted_alone, initial, requested_sums, rounds_of, stepped
from fedgossip.sites.fits.cox.cox_sums import CoxLayout, SiteHazards, TimedRecords
from fedgossip.sites.fits.survival.survival_times import places_of
from fedgossip.sites.plans.fits import planned_fit

Records = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Columns, times, and kinds: 0 censored, 1 the event, 2 the competing one."""


def drawn(seed: int, rows: int = 120, *, censored: bool = True) -> Records:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    times = rng.exponential(200 * np.exp(-x @ np.array([[0.5, -0.2], [-0.3, 0.4], [0.1, 0.0]])).T)  # of both events
    end = rng.uniform(50, 500, rows) if censored else np.full(rows, 1e9)
    first = np.minimum(times[0], times[1])
    kinds = np.where(end < first, 0, np.where(times[0] < times[1], 1, 2))
    return x, np.ceil(np.minimum(first, end)), kinds


def layout(**options: object) -> CoxLayout:
    design = layout_of().design
    return CoxLayout(msgspec.structs.replace(design, **({"competing": 2.0, "errors": "robust"} | options)))


def site(of: CoxLayout, records: Records) -> SiteHazards:
    x, times, kinds = records
    columns, strata = [np.ascontiguousarray(column) for column in x.T], np.zeros(len(x), np.int64)
    competing = kinds == 2 if of.competes else None
    found = TimedRecords(columns, times, places_of(GRID, times), kinds == 1, strata, competing=competing)
    return SiteHazards(of, found)


def fit_of(of: CoxLayout, sites: Sequence[Records]) -> tuple[CoxFit, FittedHazards]:
    machines, x = [site(of, one) for one in sites], initial(of)
    for _ in range(rounds_of(of)):
        told = [of.integers(requested_sums(one, x)) for one in machines]
        x = stepped(of, x, of.vector([sum(one) for one in zip(*told, strict=True)]), len(machines))
    found = cox_fit(of, x, 3)
    assert found is not None and found.converged
    return found, FittedHazards(of, x)


def together(sites: Sequence[Records]) -> Records:
    x, times, kinds = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    return x, times, kinds


def plainly(records: Records, ends: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return Fine and Gray's estimates, and Lin and Wei's errors, on times rounded up; record by record, from their
    paper: section 3 (weights by Kaplan and Meier's survival of censoring) and the sandwich of weighted residuals."""
    x, times, kinds = records
    index = np.searchsorted(ends, times)
    before, g = [1.0], 1.0
    for time in range(len(ends)):
        left = (index > time).sum() + ((index == time) & (kinds == 0)).sum()
        g *= 1 - ((index == time) & (kinds == 0)).sum() / left if left else 1
        before.append(g)
    survival = np.array(before)

    def weights(time: int) -> np.ndarray:
        return np.where(index >= time, 1.0, np.where(kinds == 2, survival[time] / survival[index], 0.0))

    events = [int(i) for i in np.flatnonzero((kinds == 1) & (index < len(ends)))]
    point = np.zeros(x.shape[1])
    for _ in range(12):
        g1, a = np.zeros(x.shape[1]), np.zeros((x.shape[1],) * 2)
        residual = np.zeros(x.shape)
        for i in events:
            v = weights(index[i]) * np.exp(x @ point)
            mean = v @ x / v.sum()
            g1, a = g1 + x[i] - mean, a + (x.T * v) @ x / v.sum() - np.outer(mean, mean)
            residual[i] += x[i] - mean
            residual -= (v / v.sum())[:, None] * (x - mean)
        point = point + np.linalg.solve(a, g1)
    spread = np.linalg.inv(a) @ residual.T @ residual @ np.linalg.inv(a)
    return point, np.sqrt(np.diag(spread))


@pytest.mark.parametrize("seed", range(3))
def test_estimates_and_errors_are_fine_and_gray_s_on_all_records(seed: int) -> None:
    sites = [drawn(10 * seed + k) for k in range(4)]
    found, _ = fit_of(layout(), sites)
    ends = [point.time for point in found.strata[0].points]
    estimates, errors = plainly(together(sites), ends)
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-8)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-8)
    assert len(ends) > 5 and found.events == ((together(sites)[2] == 1) & (together(sites)[1] <= GRID[-1])).sum()


def test_without_censoring_it_is_cox_s_fit_of_records_that_stay_for_ever() -> None:
    """A record with the competing event is never at the event: its time is infinite, so it is at risk to the end."""
    sites = [drawn(k, censored=False) for k in range(4)]
    stays = [(x, np.where(kinds == 2, 1e9, times), kinds % 2) for x, times, kinds in sites]
    found, _ = fit_of(layout(), sites)
    plain, _ = fit_of(layout(competing=msgspec.UNSET), stays)
    assert [one.estimate for one in found.coefficients] == pytest.approx(
        [one.estimate for one in plain.coefficients], rel=1e-10
    )
    assert found.concordance == plain.concordance and found.concordance_error == plain.concordance_error


def test_the_bytes_do_not_depend_on_who_has_which_record() -> None:
    whole = together([drawn(k) for k in range(4)])
    parts = [tuple(one[k::3] for one in whole) for k in range(3)]
    one, several = (fit_of(layout(), of)[0] for of in ([whole], parts))  # type: ignore[list-item]
    assert (several.coefficients, several.covariance, several.strata) == (one.coefficients, one.covariance, one.strata)


def test_no_combination_of_sums_is_over_fewer_records_than_the_events_of_a_time() -> None:
    """Each record's weight in the sum of each reported time, W.  Those with their event at time k are alike: in the
    sums up to k, and in no later one.  So a combination a W that leaves out all events is a = 0."""
    of, records = layout(), together([drawn(k, 60) for k in range(3)])
    state = FittedHazards(of, fitted_alone(of, site(of, records)))
    ends, had = state.ends, state["events"][:, : len(state.ends)] > 0
    each = [site(of, tuple(one[i : i + 1] for one in records)) for i in range(len(records[0]))]  # type: ignore[arg-type]
    weights = np.array([of.risk(one.risk(ends, np.zeros(3), had, state.uncensored), len(ends)).s0[0] for one in each])
    alike, first, counts = np.unique(weights[records[2] == 1], axis=0, return_index=True, return_counts=True)
    reported = alike.any(axis=1) if len(alike) else first > 0
    assert (counts[reported] >= of.design.least).all() and len(ends) > 3
    assert np.linalg.matrix_rank(alike[reported]) == len(ends)
    assert ((weights > 0) & (weights < 1)).any() and weights.max() == 1


def test_a_survival_of_censoring_that_grows_is_refused() -> None:
    of, records = layout(), drawn(1, 200)
    before = FittedHazards(of, initial(of))
    honest = FittedHazards(of, stepped(of, before.x, requested_sums(site(of, records), before.x), 1))
    assert before.broken(honest) == ""
    for lie in (lambda g: g * 0.5, lambda g: np.concatenate([[1.0, 0.1], g[2:]]), np.zeros_like):
        lying = FittedHazards(of, honest.x)
        lying["uncensored"][: len(lying.ends)] = lie(honest.uncensored)
        assert "fixed values have changed" in before.broken(lying)


# --- by commands ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("competing")
    for name in [*(f"site-{k}" for k in range(SITES)), "test"]:
        x, times, kinds = drawn(99 if name == "test" else int(name[-1]))
        with (found / f"{name}.csv").open("w", newline="") as file:
            rows = [
                [f"{a:.4f}", "new" if b < 0 else "old", int(t), k]
                for (a, b, _), t, k in zip(x, times, kinds, strict=True)
            ]
            csv.writer(file).writerows([["age", "arm", "days", "died"], *rows])
    text = own_tables("fg", "label=days,died", source="cox?competing=2&every=20&until=480",
                      more='[task]\nkind = "regression"\n')  # fmt: skip
    (found / "fg.toml").write_text(text)
    assert (said := typed(["data", "agree", "fg.toml"], found)).code == 0, said
    return found


def test_the_command_says_whose_hazards_they_are_and_a_table_is_predicted_and_judged(folder: Path) -> None:
    said = typed(["fit", "fg.toml"], folder)
    assert said.code == 0 and "subdistribution hazards (Fine and Gray), days until died = 1, 2 competing" in said.out
    assert "errors are robust" in said.out and "draw these estimates" not in said.out
    assert (folder / "fits/fg/fit.json").read_bytes() == by_hand(folder, "fg", {})
    assert typed(["predict", "fits/fg", "test.csv", "--out", "scored.csv"], folder).code == 0
    rows = list(csv.DictReader((folder / "scored.csv").read_text().splitlines()))
    incidence = [float(rows[0][name]) for name in rows[0] if name.startswith("incidence until")]
    assert incidence == sorted(incidence) and 0 < incidence[-1] < 1 and not any("survival" in name for name in rows[0])
    judged = typed(["evaluate", "fits/fg", "test.csv"], folder)
    assert judged.code == 0 and "concordance" in judged.out and "events of the fit" not in judged.out


def test_the_dry_run_and_the_plan_name_the_competing_event(folder: Path) -> None:
    said = typed(["fit", "fg.toml", "--dry-run", "--to", "nowhere"], folder)
    assert said.code == 0 and "those of events and censorings, and of died = 2" in said.out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cox?competing=1", "competing=1"),
        ("cox?competing=other", "competing=other"),
        ("cox?competing=2&ties=efron", "competing with strata, entry or ties=efron"),
        ("cox?competing=2&strata=arm", "competing with strata, entry or ties=efron"),
    ],
)
def test_what_subdistribution_hazards_lack_is_refused(source: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        planned_fit(load_experiment(folder / "fg.toml", [f"model.source={source}"]))
    assert message in str(refused.value) and refused.value.advice


def test_a_code_that_is_neither_event_is_named_at_its_site(folder: Path) -> None:
    fit = planned_fit(load_experiment(folder / "fg.toml", ["model.source=cox?competing=3&every=20&until=480"]))
    _, _, refused = fit.of_sites(range(SITES))
    assert len(refused) == SITES and "holds something else than 0, 1 and 3" in str(refused[0])
