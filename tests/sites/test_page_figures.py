"""Figures and sentences of the pages on sites, computed again."""

from __future__ import annotations

import contextlib
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from pages import ROOT
from test_cox import drawn, layout_of, site_of

from fedgossip import load_experiment
from fedgossip.core.task import Job
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.sites.evaluation.evaluation_sums import EvaluationLayout, EvaluationTask, SiteAnswers
from fedgossip.sites.fits.cox.cox_steps import MOMENTS, RISK, FittedHazards, initial, requested_sums
from fedgossip.sites.fits.cox.cox_sums import LAST_FIRST
from fedgossip.sites.fits.tree_sums import GrowingTrees, SiteMargins, grown_alone
from fedgossip.sites.plans.evaluation import evaluated_from
from fedgossip.sites.plans.fits import planned_fit

SITES = 5


def page_on(name: str) -> str:
    """Return the text of a page, its lines as one."""
    return " ".join((ROOT / "docs" / "sites" / f"{name}.md").read_text().split())


def figures(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, pattern
    return [float(one) for one in found.groups()]


def test_ten_records_of_a_person_cost_what_the_page_for_boards_says() -> None:
    """Ten records are one with ten times the length: noise of a tenth, in units of what they add together."""
    text = page_on("for-boards")
    noise, alone = figures(r"with noise (\d+) on each site's: epsilon ([\d.]+) for each record", text)
    (times,) = figures(r"with ten records some (\d+) times the epsilon", text)
    one, ten = (epsilon([Mechanism(noise / records, 1.0, 2)], 1e-5) for records in (1, 10))
    assert one == pytest.approx(alone, abs=0.005) and round(ten / one) == times


def moved(records: int, groups: tuple[str, ...]) -> tuple[float, float]:
    """Return how far noise 2 at five sites moves an accuracy and an AUROC, as evaluations say: means of four."""
    layout = EvaluationLayout(
        model="", kind="classification", classes=("no", "ill"), groups=groups, noise=2.0
    )  # fmt: skip
    found = []
    for seed in range(4):
        rng, sites = np.random.default_rng(seed), dict[int, SiteAnswers]()
        for site in range(SITES):
            y = (rng.random(records // SITES) < 0.4).astype(np.int64)
            said = 1 / (1 + np.exp(-(2.2 * (y - 0.5) + rng.normal(size=len(y)))))
            rows = rng.integers(0, 2, len(y)) if groups else None
            sites[site] = SiteAnswers(np.column_stack([1 - said, said]), y, rows)
        draws = {site: np.random.default_rng(1000 * seed + site).bytes for site in sites}
        task = EvaluationTask(layout, sites, 5, lambda node, _, draws=draws: draws[node])  # type: ignore[misc]
        parts = [integers_of(words_in(task.sums(Job(site, 0, task.initial(site))))) for site in sites]  # type: ignore[arg-type]
        judged = evaluated_from(task, as_vector(words_of([sum(one) for one in zip(*parts, strict=True)])), 5, 3)
        found.append((judged.noise_within["score"], judged.outcomes[0].noise_within["auroc"]))
    accuracy, area = np.mean(found, axis=0).tolist()
    return accuracy, area


def test_noise_moves_an_accuracy_and_an_auroc_as_far_as_the_page_on_judging_says() -> None:
    text = page_on("judging")
    told = figures(
        r"an accuracy and an AUROC are moved by about ([\d.]+) and ([\d.]+) where (\d+) records are judged on, "
        r"by ([\d.]+) and ([\d.]+) with (\d+), by ([\d.]+) and ([\d.]+) with (\d+)",
        text,
    )
    alone = {}
    for accuracy, area, records in zip(told[::3], told[1::3], told[2::3], strict=True):
        alone[records] = moved(int(records), ())
        assert alone[records] == (pytest.approx(accuracy, rel=0.25), pytest.approx(area, rel=0.5)), records
    grouped = moved(5000, ("f", "m"))
    ratios = [one / other for one, other in zip(grouped, alone[5000], strict=True)]
    assert "with two groups by about half as much again" in text and all(1.25 < one < 1.75 for one in ratios), ratios


def test_a_coordinator_sees_of_a_cox_fit_what_the_page_on_survival_says() -> None:
    """By the numbers of each sum: no second moment of a single time, and neighbouring times apart by enough records."""
    text = page_on("survival")
    assert "no second moment of a single time is sent" in text and "at least `events` records at all sites" in text
    layout, whole = layout_of(), drawn(3, 300)
    p, grid, site = layout.width, len(layout.design.grid), site_of(layout, whole)
    state, stages = FittedHazards(layout, initial(layout)), []
    while state.stage < 4:
        numbers = layout.integers(requested_sums(site, state.x))
        used, stage, told = np.flatnonzero(numbers)[-1] + 1, state.stage, len(state.ends)
        most = {
            0: 1 + 2 * grid,
            RISK: 2 + p + told * (2 + p),
            MOMENTS: 1 + p + p * (p + 1) // 2,
            3: LAST_FIRST + 2 * told,
        }
        assert used <= most[stage], stage
        if stage == RISK and not np.any(state["point"]):  # the weights are 1, so S0 counts records
            risk = layout.risk(numbers, told).s0[0]
            assert np.diff(risk).max() <= -layout.design.least
        stages.append(stage)
        state.take(numbers, 1)
    points = stages.count(RISK) + stages.count(3)
    assert stages[0] == 0 and stages[-1] == 3 and stages.count(MOMENTS) == stages.count(RISK) and 4 <= points <= 6
    per_time = {name for name, view in state._views.items() if view.ndim == 2 and view.shape != (p, p)}
    assert per_time == {"at_risk", "events", "hazard"}, "what sites see of each reported time"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_trees_of_breast_cancer_are_as_good_as_their_page_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    small_bins = importlib.import_module("small_bins")
    told = figures(r"accuracy ([\d.]+), ([\d.]+), ([\d.]+) against .*?; AUROC ([\d.]+), ([\d.]+), ([\d.]+) against",
                   page_on("trees"))  # fmt: skip
    small_bins.tables(tmp_path, seed)
    assert typed(["data", "agree", "trees.toml"], tmp_path).code == 0
    with contextlib.chdir(tmp_path):
        fit = planned_fit(load_experiment("trees.toml"))
        growing = GrowingTrees(fit.layout, grown_alone(fit.layout, small_bins.table(fit, "all.csv")))
        test = small_bins.table(fit, "test.csv")
    margins = SiteMargins(fit.layout, test).margins(growing)[:, 0]
    right, area = ((margins > 0) == test.y).mean(), small_bins.roc_auc_score(test.y, margins)
    assert (f"{right:.3f}", f"{area:.3f}") == (f"{told[seed]:.3f}", f"{told[3 + seed]:.3f}")
