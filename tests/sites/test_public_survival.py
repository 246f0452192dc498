"""Survival of two public tables beside lifelines: every event is used, and each point lies within its bounds.

Waltons' fruit flies and the lung cancer of the North Central Cancer Treatment Group (Loprinzi et al., Journal of
Clinical Oncology 12, 1994), as lifelines 0.30.3 has them in lifelines.datasets; its KaplanMeierFitter on times rounded
up to the grid, and its CoxPHFitter on the exact ones, gave the figures.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from fedgossip.sites.fits.cox.cox_result import cox_fit
from fedgossip.sites.fits.cox.cox_steps import OVER, FittedHazards, initial, requested_sums, stepped
from fedgossip.sites.fits.cox.cox_sums import CoxDesign, CoxLayout, SiteHazards, TimedRecords
from fedgossip.sites.fits.survival.survival_curves import curve_of, limits_of, median_between, restricted_mean
from fedgossip.sites.fits.survival.survival_times import (
    TimeCounts,
    censored_runs,
    choose_report_times,
    ends_of_risk_sets,
    places_of,
    report_counts,
)

WALTONS = (
    163,
    [0, 5, 5, 4, 4, 10, 4, 4, 17, 9, 12, 37, 20, 24, 1],
    [0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 2, 0],
    [
        1.0, 0.969325, 0.938455, 0.913759, 0.889063, 0.827322, 0.802626, 0.77793, 0.672971, 0.61689, 0.542116, 0.311561,
        0.184393, 0.020488, 0.0,
    ],
)  # fmt: skip
"""Records; events and censorings at 5, 10 .. 75 days; S there."""

LUNG = (
    228,
    [11, 20, 16, 25, 17, 12, 13, 12, 7, 5, 6, 4, 4, 4, 5, 2, 1, 1, 0, 0, 0],
    [0, 1, 1, 10, 12, 12, 4, 5, 3, 1, 4, 3, 0, 0, 1, 0, 3, 0, 0, 1, 2],
    [
        0.951754, 0.864035, 0.793502, 0.682677, 0.602084, 0.539257, 0.462221, 0.387266, 0.339707, 0.303568, 0.259143,
        0.225705, 0.188088, 0.15047, 0.103448, 0.082759, 0.072414, 0.05431, 0.05431, 0.05431, 0.05431,
    ],
)  # fmt: skip
"""The same at 50, 100 .. 1050 days."""

PATIENTS = """
306,1,74,1 455,1,68,1 1010,0,56,1 210,1,57,1 883,1,60,1 1022,0,74,1 310,1,68,2 361,1,71,2 218,1,53,1 166,1,61,1
170,1,57,1 654,1,68,2 728,1,68,2 71,1,60,1 567,1,57,1 144,1,67,1 613,1,70,1 707,1,63,1 61,1,56,2 88,1,57,1
301,1,67,1 81,1,49,2 624,1,50,1 371,1,58,1 394,1,72,1 520,1,70,2 574,1,60,1 118,1,70,1 390,1,53,1 12,1,74,1
473,1,69,2 26,1,73,1 533,1,48,1 107,1,60,2 53,1,61,1 122,1,62,2 814,1,65,1 965,0,66,2 93,1,74,1 731,1,64,2
460,1,70,1 153,1,73,2 433,1,59,2 145,1,60,2 583,1,68,1 95,1,76,2 303,1,74,1 519,1,63,1 643,1,74,1 765,1,50,2
735,1,72,2 189,1,63,1 53,1,68,1 246,1,58,1 689,1,59,1 65,1,62,1 5,1,65,2 132,1,57,1 687,1,58,2 345,1,64,2
444,1,75,2 223,1,48,1 175,1,73,1 60,1,65,2 163,1,69,1 65,1,68,1 208,1,67,2 821,0,64,2 428,1,68,1 230,1,67,1
840,0,63,1 305,1,48,2 11,1,74,1 132,1,40,1 226,1,53,2 426,1,71,2 705,1,51,2 363,1,56,2 11,1,81,1 176,1,73,1
791,1,59,1 95,1,55,1 196,0,42,1 167,1,44,2 806,0,44,1 284,1,71,1 641,1,62,2 147,1,61,1 740,0,44,2 163,1,72,1
655,1,63,1 239,1,70,1 88,1,66,1 245,1,57,2 588,0,69,2 30,1,72,1 179,1,69,1 310,1,71,1 477,1,64,1 166,1,70,2
559,0,58,2 450,1,69,2 364,1,56,1 107,1,63,1 177,1,59,1 156,1,66,1 529,0,54,2 11,1,67,1 429,1,55,1 351,1,75,2
15,1,69,1 181,1,44,1 283,1,80,1 201,1,75,2 524,1,54,2 13,1,76,1 212,1,49,1 524,1,68,1 288,1,66,1 363,1,80,1
442,1,75,1 199,1,60,2 550,1,69,2 54,1,72,1 558,1,70,1 207,1,66,1 92,1,50,1 60,1,64,1 551,0,77,2 543,0,48,2
293,1,59,2 202,1,53,1 353,1,47,1 511,0,55,2 267,1,67,1 511,0,74,2 371,1,58,2 387,1,56,1 457,1,54,1 337,1,56,1
201,1,73,2 404,0,74,1 222,1,76,1 62,1,65,2 458,0,57,1 356,0,53,2 353,1,71,1 163,1,54,1 31,1,82,1 340,1,59,2
229,1,70,1 444,0,60,1 315,0,62,2 182,1,53,2 156,1,55,1 329,1,69,1 364,0,68,2 291,1,62,1 179,1,63,1 376,0,56,2
384,0,62,2 268,1,44,2 292,0,69,1 142,1,63,1 413,0,64,1 266,0,57,2 194,1,60,2 320,1,46,1 181,1,61,1 285,1,65,1
301,0,61,1 348,1,58,2 197,1,56,1 382,0,43,2 303,0,53,1 296,0,59,2 180,1,56,1 186,1,55,2 145,1,53,2 269,0,74,2
300,0,60,1 284,0,39,1 350,1,66,2 272,0,65,2 292,0,51,2 332,0,45,2 285,1,72,2 259,0,58,1 110,1,64,1 286,1,53,1
270,1,72,1 81,1,52,1 131,1,50,1 225,0,64,1 269,1,71,1 225,0,70,1 243,0,63,2 279,0,64,1 276,0,52,2 135,1,60,1
79,1,64,2 59,1,73,1 240,0,63,2 202,0,50,2 235,0,63,2 105,1,62,1 224,0,55,2 239,1,50,2 237,0,69,1 173,0,59,2
252,0,60,2 221,0,67,1 185,0,69,1 92,0,64,2 13,1,65,1 222,0,65,1 192,0,41,2 183,1,76,1 211,0,70,2 175,0,57,2
197,0,67,1 203,0,71,2 116,1,76,1 188,0,77,1 191,0,39,1 105,0,75,2 174,0,66,1 177,0,58,2
"""
"""Of LUNG: time, status (1: died), age, sex (1: male)."""

TABLES = pytest.mark.parametrize("table", [WALTONS, LUNG], ids=["waltons", "lung"])


def counts_of(table: tuple[int, list[int], list[int], list[float]]) -> TimeCounts:
    return TimeCounts(table[0], np.array(table[1]), np.array(table[2]))


@TABLES
@pytest.mark.parametrize("least", [1, 3, 5, 10])
def test_the_estimate_of_lifelines_lies_between_the_bounds_of_each_told_time(
    table: tuple[int, list[int], list[int], list[float]], least: int
) -> None:
    counts, there = counts_of(table), np.array(table[3])
    ends = choose_report_times([counts], least)
    told = report_counts(counts, ends, least)
    low, high = limits_of(told)
    assert (low <= there[ends] + 1e-6).all() and (there[ends] <= high + 1e-6).all()
    if counts.records - counts.events.sum() >= least:  # else those who have no event are too few to be told
        assert told.events.sum() == counts.events.sum()
    assert (low <= curve_of(told).survival + 1e-12).all() and (curve_of(told).survival <= high + 1e-12).all()


@TABLES
@pytest.mark.parametrize("least", [1, 3, 5, 10])
def test_the_median_of_lifelines_lies_in_the_interval_of_the_report(
    table: tuple[int, list[int], list[int], list[float]], least: int
) -> None:
    counts, there = counts_of(table), np.array(table[3])
    ends = choose_report_times([counts], least)
    above, until = median_between([float(one + 1) for one in ends], limits_of(report_counts(counts, ends, least)))
    below = np.flatnonzero(there <= 0.5 + 1e-9)
    median = float(below[0] + 1) if len(below) else math.inf
    assert above is not None and above < median and (until is None or median <= until), (above, median, until)


@TABLES
def test_where_no_count_is_hidden_the_estimate_is_that_of_lifelines(
    table: tuple[int, list[int], list[int], list[float]],
) -> None:
    counts = counts_of(table)
    ends = choose_report_times([counts], 1)
    assert curve_of(report_counts(counts, ends, 1)).survival == pytest.approx(np.array(table[3])[ends], abs=1e-6)


@TABLES
@pytest.mark.parametrize("least", [1, 5])
def test_the_restricted_mean_of_lifelines_lies_in_its_bounds_and_is_it_where_no_count_is_hidden(
    table: tuple[int, list[int], list[int], list[float]], least: int
) -> None:
    """The area below the steps of KaplanMeierFitter; its error by the slopes in each time's hazard, by differences."""
    counts = counts_of(table)
    ends = choose_report_times([counts], least)
    times, told = [float(one + 1) for one in ends], report_counts(counts, ends, least)
    found = restricted_mean(times, [float(one + 1) for one in range(len(table[1]))], told, curve_of(told))
    area = sum([1.0, *table[3]][: ends[-1] + 1])
    assert found.least - 1e-5 <= area <= found.most + 1e-5
    if least == 1:
        assert found.mean == pytest.approx(area, abs=1e-5)
    share = told.events / told.risk

    def mean(hazards: np.ndarray) -> float:
        return float(np.diff([0.0, *times]) @ np.concatenate([[1.0], np.cumprod(1 - hazards)[:-1]]))

    slopes = [(mean(share + 1e-6 * e) - mean(share - 1e-6 * e)) / 2e-6 for e in np.eye(len(share))]
    error = math.sqrt(sum(s * s * h * (1 - h) / n for s, h, n in zip(slopes, share, told.risk, strict=True)))
    assert found.error == pytest.approx(error, rel=1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_and_small_counts_do_not_stand_in_what_is_told(seed: int) -> None:
    """Of random tables: the product-limit estimate by its definition lies between, and who leaves are five or more."""
    stream = np.random.default_rng(seed)
    counts = TimeCounts(int(stream.integers(150, 200)), stream.poisson(4, 12), stream.poisson(1.5, 12))
    ends = choose_report_times([counts], 5)
    told = report_counts(counts, ends, 5)
    gone = np.concatenate([[0], np.cumsum(counts.events + counts.censored)[:-1]])
    exact = np.cumprod(1 - counts.events / (counts.records - gone))[ends]
    low, high = limits_of(told)
    assert (low <= exact + 1e-12).all() and (exact <= high + 1e-12).all()
    left = told.risk - told.events - np.append(told.risk[1:], 0)
    assert all(count == 0 or count >= 5 for count in left.tolist())
    assert sum(one.count for one in censored_runs(counts, 5)) == counts.records - counts.events.sum()


def test_censorings_leave_as_often_too_early_as_too_late() -> None:
    """Over many tables the estimate is no more above the product-limit estimate than below; it was always above."""
    above = 0.0
    for seed in range(200):
        stream = np.random.default_rng(seed)
        counts = TimeCounts(160, stream.poisson(6, 12), stream.poisson(2, 12))
        ends = choose_report_times([counts], 5)[:-1]  # at the last, fewer may be left than are told
        gone = np.concatenate([[0], np.cumsum(counts.events + counts.censored)[:-1]])
        exact = np.cumprod(1 - counts.events / (counts.records - gone))[ends]
        above += float(np.mean(curve_of(report_counts(counts, ends, 5)).survival - exact))
    assert abs(above / 200) < 0.001


@pytest.mark.parametrize("ties", ["breslow", "efron"])
@pytest.mark.parametrize("seed", range(6))
def test_no_event_is_lost_between_told_times_of_risk_sets(ties: str, seed: int) -> None:
    stream = np.random.default_rng(seed)
    groups = [TimeCounts(120, stream.poisson(1.5, 40), stream.poisson(0.7, 40)) for _ in range(2)]
    ends = ends_of_risk_sets(groups, 5, apart=ties == "efron")
    for one in groups:
        cuts = [-1, *ends]
        events = [int(one.events[a + 1 : b + 1].sum()) for a, b in pairwise(cuts)]
        assert sum(events) == one.events.sum() and all(count == 0 or count >= 5 for count in events)
        left = one.records - one.events.sum() - one.censored[: cuts[-2] + 1].sum()
        assert left == 0 or left >= 5


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_lung_by_five_sites_uses_all_of_its_165_deaths(ties: str) -> None:
    """126 were used.  lifelines has of exact times: age .017045 (error .009223), sex -.513217 (.167458)."""
    rows = np.array([[float(cell) for cell in one.split(",")] for one in PATIENTS.split()])
    times, died, x = rows[:, 0], rows[:, 1] == 1, rows[:, 2:]
    grid = tuple(float(time) for time in range(10, 1031, 10))
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    design = CoxDesign(
        ties=ties, time="time", event="status", grid=grid, least=10, columns=("age", "sex"), places=(0, 1),
        mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()), steps=16,
    )  # fmt: skip
    layout, z = CoxLayout(design), (x - mean) / deviation
    sites = []
    for rows_of in np.array_split(np.random.default_rng(1).permutation(len(rows)), [8, 40, 90, 150]):
        columns = [np.ascontiguousarray(column[rows_of]) for column in z.T]
        places = places_of(grid, times[rows_of])
        records = TimedRecords(columns, times[rows_of], places, died[rows_of], np.zeros(len(rows_of), np.int64))
        sites.append(SiteHazards(layout, records))
    state = initial(layout)
    while FittedHazards(layout, state).stage != OVER:
        told = [layout.integers(requested_sums(site, state)) for site in sites]
        state = stepped(layout, state, layout.vector([sum(one) for one in zip(*told, strict=True)]), len(sites))
    found = cox_fit(layout, state, 3)
    assert found is not None and found.events == 165 and found.unused == 0
    for one, (estimate, error) in zip(found.coefficients, [(0.017045, 0.009223), (-0.513217, 0.167458)], strict=True):
        assert abs(one.estimate - estimate) < 0.5 * error, one
