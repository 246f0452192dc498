"""Sites fit a generalised linear model by secure sums: `fedgossip fit`, beside Newton's method in 50 digits on all."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import mpmath
import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, own_tables, total
from pages import blocks, page

from fedgossip import ConfigError, load_experiment, load_model
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.cli.sites.fit import describe
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import unknown
from fedgossip.data.columns.table_schema import TableSchema
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.glm.glm import FAMILIES, moved, site_sums, start
from fedgossip.sites.fits.glm.glm_result import GlmFit, coefficient, fit_of, of_clusters
from fedgossip.sites.fits.glm.glm_sums import GlmDesign, GlmLayout, GlmTask, PriorColumn, SiteRecords
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.releases.fitted import section_of

NOTHING = unknown(TableSchema(()), 1)
"""Agreed statistics of no column."""
LABELS = {"logistic": "ill", "linear": "cost", "poisson": "days", "gamma": "cost"}


def toml(family: str, more: str = "") -> str:
    label = LABELS[family]
    others = ",".join(one for one in dict.fromkeys(LABELS.values()) if one != label)
    query = f"label={label}&drop={others}{more}"
    kind = "" if family == "logistic" else '[task]\nkind = "regression"\n'
    return own_tables(family, query, source=f"glm:{family}", more=kind)


def patients(path: Path, seed: int, rows: int) -> None:
    """Write records with outcomes of each family; two columns of numbers on scales of their own, and one of words."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "salt [mg]", "ward", *dict.fromkeys(LABELS.values())])
        for _ in range(rows):
            age, salt, ward = rng.integers(20, 90), rng.normal(9e5, 2e4), rng.choice(["north", "south", "east"])
            odds = -4 + 0.06 * age + (ward == "south") * 0.8
            ill = "yes" if rng.random() < 1 / (1 + math.exp(-odds)) else "no"
            days = rng.poisson(math.exp(0.2 + 0.01 * age + 0.3 * (ward == "east")))
            writer.writerow([age, f"{salt:.3f}", ward, ill, f"{100 + 3 * age + rng.normal(0, 20):.4f}", days])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fits")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site, 22 + 4 * site)
    patients(found / "test.csv", 99, 30)
    for family in LABELS:
        (found / f"{family}.toml").write_text(toml(family))
        assert typed(["data", "agree", f"{family}.toml"], found).code == 0
    return found


def records(folder: Path, family: str, sites: Sequence[int] = range(SITES)) -> tuple[np.ndarray, np.ndarray]:
    """Return all records in one place: ones, age, salt, ward = north, ward = south; and the outcomes."""
    x, y = [], []
    for site in sites:
        with (folder / f"site-{site}.csv").open() as file:
            for row in csv.DictReader(file):
                wards = [float(row["ward"] == ward) for ward in ("north", "south")]
                x.append([1.0, float(row["age"]), float(row["salt [mg]"]), *wards])
                y.append(float(row["ill"] == "yes") if family == "logistic" else float(row[LABELS[family]]))
    return np.array(x), np.array(y)


def pooled(family: str, x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float], float]:
    """Return estimates, standard errors and the deviance, by Newton's method in numbers of 50 digits."""
    with mpmath.workdps(50):
        rows, outcomes = mpmath.matrix(x.tolist()), [mpmath.mpf(one) for one in y.tolist()]
        mean = mpmath.fsum(outcomes) / len(outcomes)
        point = mpmath.zeros(x.shape[1], 1)
        point[0] = {"linear": mean, "logistic": mpmath.log(mean / (1 - mean)), "poisson": mpmath.log(mean),
                    "gamma": mpmath.log(mean)}[family]  # fmt: skip
        for _ in range(40 if family == "gamma" else 8):
            eta = list(rows * point)
            if family == "linear":
                means, weights = eta, [mpmath.mpf(1)] * len(eta)
            elif family == "logistic":
                means = [1 / (1 + mpmath.exp(-one)) for one in eta]
                weights = [one * (1 - one) for one in means]
            else:
                means = weights = [mpmath.exp(one) for one in eta]
            less = [a / b - 1 if family == "gamma" else a - b for a, b in zip(outcomes, means, strict=True)]
            weights = [mpmath.mpf(1)] * len(eta) if family == "gamma" else weights
            gradient = rows.T * mpmath.matrix(less)
            weighted = mpmath.matrix([[w * one for one in row] for w, row in zip(weights, x.tolist(), strict=True)])
            information = rows.T * weighted
            point += mpmath.lu_solve(information, gradient)
        if family == "linear":
            parts = [(a - b) ** 2 for a, b in zip(outcomes, means, strict=True)]
        elif family == "gamma":
            parts = [2 * (a / b - 1 - mpmath.log(a / b)) for a, b in zip(outcomes, means, strict=True)]
        elif family == "logistic":
            parts = [-2 * mpmath.log(b if a else 1 - b) for a, b in zip(outcomes, means, strict=True)]
        else:
            logs = [a * mpmath.log(a / b) if a else 0 for a, b in zip(outcomes, means, strict=True)]
            parts = [2 * (one - (a - b)) for one, a, b in zip(logs, outcomes, means, strict=True)]
        deviance = mpmath.fsum(parts)
        squares = mpmath.fsum(one**2 for one in less)  # of gamma residuals in units of the mean: Pearson's X^2
        dispersion = squares / (len(y) - x.shape[1]) if family in ("linear", "gamma") else 1
        spread = information**-1
        errors = [float(mpmath.sqrt(dispersion * spread[k, k])) for k in range(x.shape[1])]
        return [float(one) for one in point], errors, float(deviance)


@cache
def command(folder: Path, family: str) -> Output:
    """Fit by the command, once for all tests that look at what it has written."""
    return typed(["fit", f"{family}.toml"], folder)


def fitted(folder: Path, family: str) -> GlmFit:
    assert command(folder, family).code == 0
    return msgspec.json.decode((folder / "fits" / family / "fit.json").read_bytes(), type=GlmFit)


@pytest.mark.parametrize("family", LABELS)
def test_the_fit_is_that_of_all_records_in_one_place(folder: Path, family: str) -> None:
    """To 1e-10 of each number, though salt is 45 deviations from zero."""
    found = fitted(folder, family)
    estimates, errors, deviance = pooled(family, *records(folder, family))
    assert [one.name for one in found.coefficients] == ["(intercept)", "age", "salt", "ward=north", "ward=south"]
    assert found.design.against == ("ward=east",) and found.converged and found.records == 150
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-10)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-10)
    assert found.deviance == pytest.approx(published(family, deviance, 145), rel=1e-12)


def published(family: str, loss: float, free: int) -> float:
    """Return a deviance as fit.json has it: of counts, few of which have the largest, by one digit of its error."""
    unit = float(f"{math.sqrt(2 * free):.1g}")
    return unit * round(loss / unit) if family == "poisson" else loss


def by_newton(family: str, x: np.ndarray, y: np.ndarray, o: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return estimates and errors of all records with an offset and prior weights, as R's glm has them."""
    point = np.zeros(x.shape[1])
    for k in range(60):
        eta = x @ point + o if k else {"linear": y, "logistic": 4 * y - 2}.get(family, np.log(y + 0.5))
        mean = {"linear": eta, "logistic": 1 / (1 + np.exp(-eta))}.get(family, np.exp(eta))
        slope = {"linear": np.ones_like(mean), "logistic": mean * (1 - mean)}.get(family, mean)
        w = v * (np.ones_like(mean) if family == "gamma" else slope)
        point, spread = (x.T * w) @ (eta - o + (y - mean) / slope), np.linalg.inv((x.T * w) @ x)
        point = spread @ point
    squares = v * (y - mean) ** 2 / {"linear": 1, "gamma": mean**2}.get(family, slope)
    dispersion = squares.sum() / (len(y) - len(point)) if family in ("linear", "gamma") else 1.0
    return point, np.sqrt(dispersion * np.diag(spread))


LOGS = """[data.columns.log_salt]
log = "salt"
"""


@pytest.mark.parametrize("family", LABELS)
def test_an_offset_and_weights_count_as_in_all_records_in_one_place(folder: Path, tmp_path: Path, family: str) -> None:
    """The log of a dropped column as offset, its weight 1 in the model too; the records' weights by another."""
    text = toml(family, ",salt").replace(f"glm:{family}", f"glm:{family}?offset=log_salt&weights=age")
    (folder / "prior.toml").write_text(text.replace("[model]", LOGS + "[model]"))
    other = [
        "--set",
        f"data.agreed=prior-{family}.json",
        "--set",
        "data.suppress=2",
    ]  # of 22 records few are in the south
    fit = tmp_path / "fit"
    assert typed(["data", "agree", "prior.toml", *other], folder).code == 0
    asked = typed(["fit", "prior.toml", *other, "--dry-run"], folder).out
    by = "by log_salt and age"
    assert f"the sum of {LABELS[family]} {by}; that of exposures {by}, of its squares" in asked
    assert (said := typed(["fit", "prior.toml", *other, "--to", str(fit)], folder)).code == 0, said
    found = msgspec.json.decode((fit / "fit.json").read_bytes(), type=GlmFit)
    x, y = records(folder, family)
    weights, offset, x = x[:, 1], np.log(x[:, 2]), x[:, [0, 3, 4]]
    estimates, errors = by_newton(family, x, y, offset, weights)
    assert [one.name for one in found.coefficients] == ["(intercept)", "ward=north", "ward=south"]
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-9)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-9)
    alone = by_newton(family, x[:, :1], y, offset, weights)[0]
    null, whole = (FAMILIES[family].deviance(y, eta + offset) @ weights for eta in (alone, x @ estimates))
    null += published(family, whole, found.free) - whole
    assert found.null_deviance == (None if family == "logistic" else pytest.approx(null, rel=1e-9))
    assert "offset: log_salt\nweights: age" in said.out
    out, eta = tmp_path / "o.csv", x @ estimates + offset
    assert typed(["predict", str(fit), "site-0.csv", "--out", str(out)], folder).code == 0
    name = "probability of yes" if family == "logistic" else f"predicted {LABELS[family]}"
    told = [float(row[name]) for row in csv.DictReader(out.read_text().splitlines())]
    mean = FAMILIES[family].mean(eta)[: len(told)]
    assert told == pytest.approx(mean, rel=1e-7)
    if family in ("poisson", "gamma"):  # the mean alone is a rate, beside the offset
        judged, here = json.loads(typed(["evaluate", str(fit), "site-0.csv", "--json"], folder).out), len(told)
        rate = by_newton(family, x[:here, :1], y[:here], offset[:here], np.ones(here))[0]
        left, of = (FAMILIES[family].deviance(y[:here], one[:here]).sum() for one in (eta, rate + offset))
        assert judged["share of the deviance explained"] == pytest.approx(1 - left / of, rel=1e-6)
    ward = np.array([[1 - one[1] - one[2], one[1], one[2]] for one in x[: len(told)]])
    given = np.column_stack([weights[: len(told)], ward, offset[: len(told)]])
    by_layers = load_model(fit)(given)[:, -1]
    assert by_layers == pytest.approx(mean, rel=2e-5)


@pytest.mark.parametrize(
    ("options", "changed", "said"),
    [
        ("weights=height", "", "'height' is no column of numbers"),
        ("offset=ward", "", "'ward' is no column of numbers"),
        ("offset=age&weights=age", "", "one column as offset and weights"),
        ("weight=age", "", "no such option"),
        ("weights=salt", "-3", "weights of 0 or below, in 1 record"),
        ("weights=salt", "1e12", "fewer than 5 of this site's records count there, as a few outweigh them"),
        ("weights=salt", "", "empty in some records"),
    ],
)
def test_an_unsuitable_offset_or_weight_is_refused_in_one_line(
    folder: Path, tmp_path: Path, options: str, changed: str, said: str
) -> None:
    for one in folder.glob("*.csv"):
        shutil.copy(one, tmp_path)
    rows = list(csv.reader((tmp_path / "site-0.csv").read_text().splitlines()))
    rows[3][1] = changed if changed or "salt" not in options else ""
    if "salt" in options:
        (tmp_path / "site-0.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    text = (
        toml("poisson").replace("glm:poisson", f"glm:poisson?{options}").replace("[data]", '[data]\nmissing = "mean"')
    )
    (tmp_path / "prior.toml").write_text(text)
    assert typed(["data", "agree", "prior.toml"], tmp_path).code == 0
    asked = typed(["fit", "prior.toml"], tmp_path)
    assert said in asked.err and asked.code and "Traceback" not in asked.err, asked


def test_interactions_and_splines_are_those_of_all_records_in_one_place(folder: Path, tmp_path: Path) -> None:
    """A plan makes the columns of others; predictions of a new table do too."""
    made = """[data.columns."age:south"]
product = ["age", "ward=south"]
[data.columns."age'"]
spline = "age"
knots = [35, 55, 75]
"""
    (folder / "made.toml").write_text(toml("logistic").replace("[model]", made + "[model]"))
    other = ["--set", "data.agreed=made.json", "--set", "data.suppress=2"]  # of 22 records few are in the south
    assert typed(["data", "agree", "made.toml", *other], folder).code == 0
    assert (said := typed(["fit", "made.toml", *other, "--to", str(tmp_path / "fit")], folder)).code == 0, said
    found = msgspec.json.decode((tmp_path / "fit/fit.json").read_bytes(), type=GlmFit)
    x, y = records(folder, "logistic")
    age = [max(x[:, 1][k] - 35, 0) ** 3 - max(x[:, 1][k] - 55, 0) ** 3 * 2 + max(x[:, 1][k] - 75, 0) ** 3
           for k in range(len(x))]  # fmt: skip
    x = np.column_stack([x, x[:, 1] * x[:, 4], np.array(age) / 40**2])
    estimates, errors, _ = pooled("logistic", x, y)
    assert [one.name for one in found.coefficients][5:] == ["age:south", "age'"]
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates, rel=1e-9)
    assert [one.error for one in found.coefficients] == pytest.approx(errors, rel=1e-9)
    out = tmp_path / "o.csv"
    assert typed(["predict", str(tmp_path / "fit"), "site-0.csv", "--out", str(out)], folder).code == 0
    told = [float(row["probability of yes"]) for row in csv.DictReader(out.read_text().splitlines())]
    assert told == pytest.approx(1 / (1 + np.exp(-x[: len(told)] @ estimates)), rel=1e-6)


def test_all_engines_fit_the_same_bits(folder: Path) -> None:
    fit = planned_fit(load_experiment(folder / "logistic.toml"))
    plan, task, refused = fit.of_sites(range(SITES))
    vector = simulate_plan(plan, task=task, engine="stacked").vectors[plan.coordinator]
    assert not refused and fitted(folder, "logistic") == fit.result(vector)


def test_the_printed_numbers_are_those_of_the_textbook(folder: Path) -> None:
    """z and its p, odds ratios with their interval, t with Student's p, the information criterion, R squared."""
    found = fitted(folder, "logistic")
    age = found.coefficients[1]
    assert age.estimate is not None and age.error is not None and age.low is not None and age.high is not None
    assert age.statistic == pytest.approx(age.estimate / age.error, rel=1e-15)
    assert age.p == pytest.approx(math.erfc(abs(age.estimate / age.error) / math.sqrt(2)), rel=1e-12)
    assert (age.low + age.high) / 2 == pytest.approx(age.estimate) and (
        age.high - age.low
    ) / age.error == pytest.approx(2 * 1.959963984540054)
    assert age.ratio == pytest.approx((math.exp(age.estimate), math.exp(age.low), math.exp(age.high)))
    assert found.aic == pytest.approx(found.deviance + 2 * 5)
    counts, (x, y) = fitted(folder, "poisson"), records(folder, "poisson")
    deviance = pooled("poisson", x, y)[2]
    saturated = sum(2 * (one - (one * math.log(one) if one else 0) + math.lgamma(one + 1)) for one in y)
    assert counts.aic == pytest.approx(published("poisson", deviance + saturated, counts.free) + 2 * 5)
    linear = fitted(folder, "linear")
    _, y = records(folder, "linear")
    assert linear.null_deviance == pytest.approx(((y - y.mean()) ** 2).sum(), rel=1e-12)
    assert linear.coefficients[1].p is not None and linear.coefficients[1].p < 1e-16


# --- from round to round ----------------------------------------------------------------------------------------------


def layout_of(family: str, columns: int, steps: int = 16) -> GlmLayout:
    names = tuple(f"c{k}" for k in range(columns))
    places, zeros, ones = tuple(range(columns)), (0.0,) * columns, (1.0,) * columns
    return GlmLayout(
        GlmDesign(family=family, outcome="y", columns=names, places=places, mean=zeros, deviation=ones, steps=steps)
    )


def rounds(layout: GlmLayout, sites: Sequence[SiteRecords], absent: dict[int, set[int]] | None = None) -> Vector:
    """Return the vector after all rounds, in each of which the sites `absent[round]` are not."""
    task = GlmTask(layout, dict(enumerate(sites)))
    total = task.initial(0)
    for number in range(layout.rounds):
        there = [k for k in range(len(sites)) if k not in (absent or {}).get(number, set())]
        updates = [one.difference for one in task.train([Job(k, number, total) for k in there])]
        values = [integers_of(words) for one in updates if one is not None and (words := words_in(one)) is not None]
        sums = as_vector(words_of([sum(column) for column in zip(*values, strict=True)])) if values else 0 * total
        total = frozen(total + sums)
    return total


def drawn(family: str, seed: int, rows: int = 60) -> SiteRecords:
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.ones((rows, 1)), rng.normal(size=(rows, 2))], axis=1)
    eta = x @ [0.3, 0.8, -0.5]
    if family == "linear":
        return SiteRecords(x, eta + rng.normal(size=rows))
    if family == "gamma":
        return SiteRecords(x, rng.gamma(2, np.exp(eta) / 2))
    y = rng.random(rows) < 1 / (1 + np.exp(-eta)) if family == "logistic" else rng.poisson(np.exp(eta))
    return SiteRecords(x, y.astype(float))


def estimates_of(sites: Sequence[SiteRecords], family: str) -> list[float]:
    return pooled(family, np.concatenate([one.x for one in sites]), np.concatenate([one.y for one in sites]))[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_site_that_leaves_leaves_the_fit_of_the_others(family: str) -> None:
    sites = [drawn(family, seed) for seed in range(4)]
    layout = layout_of(family, 2)
    gone = {number: {3} for number in range(3, layout.rounds)}
    found = fit_of(layout, rounds(layout, sites, gone), 3, NOTHING)
    assert found is not None and (found.sites, found.records, found.converged) == (3, 180, True)
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates_of(sites[:3], family), rel=1e-10)
    assert found.null_deviance is None, "all four were there when the mean alone was asked about"


@pytest.mark.parametrize(("most", "errors"), [(1, ""), (1, "robust"), (1, "quasi"), (2, "")])
def test_pearsons_statistic_is_of_counts_and_not_of_events_by_person_time(most: int, errors: str) -> None:
    """Of events of 0 and 1 it is large by small means alone, so no line may call them too varied."""
    rng = np.random.default_rng(1)
    sites = []
    for _ in range(3):
        x, logs = drawn("poisson", 1).x, rng.uniform(-3, 0, 60)
        y = np.minimum(rng.poisson(np.exp(logs + 0.5 * x[:, 1] + 0.5)), most).astype(float)
        sites.append(SiteRecords(x, y, offset=logs))
    layout = layout_of("poisson", 2)
    layout = replace(
        layout, design=msgspec.structs.replace(layout.design, errors=errors, offset=PriorColumn("logs", 0, 0.0))
    )
    found = fit_of(layout, rounds(layout, sites), 3, NOTHING)
    assert found is not None and found.converged
    assert (found.pearson is None) == (most == 1 and errors != "quasi")


def test_rounds_that_do_not_come_together_are_asked_again() -> None:
    sites = [drawn("logistic", seed) for seed in range(3)]
    layout = layout_of("logistic", 2)
    found = fit_of(layout, rounds(layout, sites, {2: {0, 1, 2}, 3: {0, 1, 2}, 7: {0, 1, 2}}), 3, NOTHING)
    assert found is not None and found.converged
    assert [one.estimate for one in found.coefficients] == pytest.approx(estimates_of(sites, "logistic"), rel=1e-10)


def test_no_fit_without_the_first_round() -> None:
    layout = layout_of("logistic", 2)
    sites = [drawn("logistic", seed) for seed in range(3)]
    with pytest.raises(TrainingError, match="are not complete"):
        rounds(layout, sites, {0: {0, 1, 2}})
    assert fit_of(layout, GlmTask(layout, {}).initial(0), 3, NOTHING) is None


def test_a_step_that_makes_it_worse_is_halved() -> None:
    """One record far out: the first steps of Newton's method alone go beyond all numbers."""
    x = np.concatenate([np.ones((40, 1)), np.linspace(-1, 1, 40)[:, None]], axis=1)
    x[-1, 1] = 30.0
    y = np.where(np.arange(40) == 39, 400.0, 1.0)
    family, asked = FAMILIES["poisson"], []
    state = start(family, 40, float(y.sum()), 1)
    for _ in range(40):
        sums = site_sums(family, x, y, state.point)
        asked.append(sums.deviance)
        state = moved(state, sums)
    assert max(asked) > asked[0] * 1.01, "some step was too long"
    assert state.converged and state.point == pytest.approx(pooled_by_halves(x, y), rel=1e-9)


def pooled_by_halves(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Return the estimates by Newton's method from near the end, where it needs no halving."""
    from scipy.optimize import minimize

    found = minimize(lambda b: (np.exp(x @ b) - y * (x @ b)).sum(), [0.0, 0.2], method="Nelder-Mead", tol=1e-14).x
    for _ in range(10):
        mean = np.exp(x @ found)
        found = found + np.linalg.solve(x.T @ (x * mean[:, None]), x.T @ (y - mean))
    return list(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_that_depend_on_each_other_are_named_and_the_rest_is_as_without(family: str) -> None:
    sites = [drawn(family, seed) for seed in range(3)]
    twice = [SiteRecords(np.concatenate([one.x, 2 * one.x[:, 2:]], axis=1), one.y) for one in sites]
    layout = layout_of(family, 3)
    found = fit_of(layout, rounds(layout, twice), 3, NOTHING)
    assert found is not None and found.silent == ("c1", "c2") and found.converged
    alone = estimates_of(sites, family)
    told = [one.estimate for one in found.coefficients]
    assert told[:2] == pytest.approx(alone[:2], rel=1e-6) and told[2] + 2 * told[3] == pytest.approx(alone[2], rel=1e-6)
    assert found.coefficients[2].error is None and found.coefficients[1].error is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_that_depend_on_each_other_count_once(family: str) -> None:
    """Freedom, criterion, variance and the errors of the others are those of the fit without the one that is twice."""
    sites = [drawn(family, seed, 20) for seed in range(3)]
    twice = [SiteRecords(np.concatenate([one.x, 2 * one.x[:, 2:]], axis=1), one.y) for one in sites]
    alone = fit_of(layout_of(family, 2), rounds(layout_of(family, 2), sites), 3, NOTHING)
    found = fit_of(layout_of(family, 3), rounds(layout_of(family, 3), twice), 3, NOTHING)
    assert alone is not None and found is not None
    assert (found.rank, found.free) == (alone.rank, alone.free) == (3, 57)
    assert found.dispersion == pytest.approx(alone.dispersion, rel=1e-8)
    assert found.aic == (None if alone.aic is None else pytest.approx(alone.aic, rel=1e-8))
    for one, other in zip(found.coefficients[:2], alone.coefficients[:2], strict=True):
        assert (one.error, one.p) == pytest.approx((other.error, other.p), rel=1e-6)


# --- the command ------------------------------------------------------------------------------------------------------


def typed_in(folder: Path, *words: str) -> Output:
    return typed(list(words), folder)


def test_what_is_printed_reads_alone_and_the_model_predicts(folder: Path) -> None:
    said, fit = command(folder, "logistic"), fitted(folder, "logistic")
    assert said.code == 0, said
    assert said.out.startswith("logistic model of ill = yes: 150 records of 5 of 5 sites, at the end after")
    assert "odds ratio" in said.out and "compared with: ward=east" in said.out and "AIC" in said.out
    assert (
        "17 sums of" in said.err and "sums alone, each over at least 5 of 5" in said.err
    ) or "at least 3" in said.err
    x, _ = records(folder, "logistic")
    shares = 1 / (1 + np.exp(-x @ [one.estimate for one in fit.coefficients]))
    given = np.stack([x[:, 1], x[:, 2], 1 - x[:, 3] - x[:, 4], x[:, 3], x[:, 4]], axis=1)
    model = load_model(folder / "fits" / "logistic")
    assert model.facts.columns == ("age", "salt", "ward=east", "ward=north", "ward=south")
    np.testing.assert_allclose(model(given)[:, 1], shares, atol=1e-6)
    asked = typed_in(folder, "fit", "logistic.toml", "--dry-run").out  # an intercept and four columns
    assert "5 sums of columns by residuals, 15 of products of columns" in asked and "in 17 rounds at most" in asked
    again = typed_in(folder, "fit", "logistic.toml")
    assert again.code == 2 and "exists already" in again.err


def test_a_linear_model_predicts_in_the_labels_unit(folder: Path) -> None:
    fit = fitted(folder, "linear")
    x, _ = records(folder, "linear")
    given = np.stack([x[:, 1], x[:, 2], 1 - x[:, 3] - x[:, 4], x[:, 3], x[:, 4]], axis=1)
    told = x @ [one.estimate for one in fit.coefficients]
    np.testing.assert_allclose(load_model(folder / "fits" / "linear")(given)[:, 0], told, rtol=1e-6)


# --- predictions and their intervals ----------------------------------------------------------------------------------


def spread_of(family: str, x: np.ndarray, point: np.ndarray, dispersion: float) -> np.ndarray:
    """Return the covariance of the estimates by the textbook, of records in one place."""
    eta = x @ point
    ones, logistic = np.ones_like(eta), 1 / (2 + np.exp(eta) + np.exp(-eta))
    weights = {"linear": ones, "gamma": ones, "poisson": np.exp(eta)}.get(family, logistic)
    q, r = np.linalg.qr(x * np.sqrt(weights)[:, None])
    assert np.allclose(q.T @ q, np.eye(len(point)))
    root = np.linalg.inv(r)
    return np.asarray(dispersion * root @ root.T)


@pytest.mark.parametrize("family", LABELS)
def test_predictions_come_with_the_intervals_of_the_textbook(folder: Path, tmp_path: Path, family: str) -> None:
    """eta -+ z s, through the link; of a linear model Student's t, and the interval of a single new record."""
    fit = fitted(folder, family)
    said = typed_in(folder, "predict", f"fits/{family}", "site-1.csv", "--out", str(tmp_path / "out.csv"))
    assert said.code == 0, said
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    every, _ = records(folder, family)
    x, _ = records(folder, family, [1])
    point = np.array([one.estimate for one in fit.coefficients])
    errors = np.sqrt(np.einsum("mi,ij,mj->m", x, spread_of(family, every, point, fit.dispersion), x))
    of_t = family in ("linear", "gamma")
    reach = 1.976459563020206 if of_t else 1.959963984540054  # of t with 145 degrees of freedom
    mean = {"linear": np.asarray, "poisson": np.exp, "gamma": np.exp}.get(family, lambda eta: 1 / (1 + np.exp(-eta)))
    name = "probability of yes" if family == "logistic" else f"predicted {LABELS[family]}"
    for side, column in zip((0, -1, 1), (name, f"{name}, 95 % from", f"{name}, 95 % to"), strict=True):
        told = np.array([float(row[column]) for row in rows])
        np.testing.assert_allclose(told, mean(x @ point + side * reach * errors), rtol=1e-7)
    if family == "linear":
        wide = np.sqrt(errors**2 + fit.dispersion)
        told = np.array([float(row["cost of a record, 95 % to"]) for row in rows])
        np.testing.assert_allclose(told, x @ point + reach * wide, rtol=1e-7)


@pytest.mark.parametrize("family", LABELS)
def test_a_fit_is_judged_on_a_table(folder: Path, family: str) -> None:
    assert command(folder, family).code == 0
    said = typed_in(folder, "evaluate", f"fits/{family}", "site-2.csv", "--json")
    assert said.code == 0, said
    told = json.loads(said.out)
    x, y = records(folder, family, [2])
    mean = FAMILIES[family].mean(x @ [one.estimate for one in fitted(folder, family).coefficients])
    assert told["examples"] == len(y) == 30
    if family == "logistic":
        assert told["Brier score"] == pytest.approx(((mean - y) ** 2).mean())
        pairs = [(a > b) + (a == b) / 2 for a in mean[y == 1] for b in mean[y == 0]]
        assert told["AUROC"] == pytest.approx(float(np.mean(pairs)))
        assert told["log loss"] == pytest.approx(-np.log(np.where(y == 1, mean, 1 - mean)).mean())
    else:
        assert told["RMSE"] == pytest.approx(float(np.sqrt(((mean - y) ** 2).mean())))
    if family == "poisson":
        logs = [a * math.log(a / b) if a else 0.0 for a, b in zip(y, mean, strict=True)]
        assert told["deviance of a record"] == pytest.approx(2 * float(np.mean(np.array(logs) - (y - mean))))
        assert told["Pearson's X² of a record"] == pytest.approx(float(((y - mean) ** 2 / mean).mean()))


def test_all_sites_judge_a_model_of_counts(folder: Path) -> None:
    """By the torch module in model/, whose link is the exponential."""
    fit = fitted(folder, "poisson")
    said = typed_in(folder, "evaluate", "fits/poisson", "poisson.toml", "--json")
    assert said.code == 0, said
    x, y = records(folder, "poisson")
    mean = np.exp(x @ [one.estimate for one in fit.coefficients])
    (told,) = json.loads(said.out)["numbers"]
    assert told["rmse"] == pytest.approx(float(np.sqrt(((mean - y) ** 2).mean())), rel=1e-5)


def test_what_no_fit_can_say_is_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    fitted(folder, "poisson")
    (tmp_path / "counts.csv").write_text("age,salt [mg],ward,days\n50,900000,east,2.5\n")
    said = typed_in(folder, "evaluate", "fits/poisson", str(tmp_path / "counts.csv"))
    assert said.code == 2 and "line 2, column 'days': not of whole numbers from 0" in said.err
    (tmp_path / "kg.csv").write_text("age,salt [kg],ward\n50,0.9,east\n")
    said = typed_in(folder, "predict", "fits/poisson", str(tmp_path / "kg.csv"), "--out", str(tmp_path / "o.csv"))
    assert said.code == 2 and "'salt' is in kg; expected mg" in said.err
    whole = json.loads((folder / "fits" / "poisson" / "fit.json").read_text())
    for change, message in (({"format": 1}, "format 1"), ({"converged": False}, "not at the end after 16 steps")):
        (tmp_path / "fit.json").write_text(json.dumps(whole | change))
        said = typed_in(folder, "predict", str(tmp_path), "test.csv", "--out", str(tmp_path / "o.csv"))
        assert said.code == 2 and message in said.err, said


def test_coefficients_that_run_away_are_told_and_the_run_does_not_end_well(folder: Path, tmp_path: Path) -> None:
    for site in [*(f"site-{k}" for k in range(SITES)), "test"]:
        rows = (folder / f"{site}.csv").read_text().splitlines()
        with (tmp_path / f"{site}.csv").open("w") as file:
            file.write(rows[0] + ",tells\n")
            for k, row in enumerate(rows[1:]):
                file.write(f"{row},{(1 if row.split(',')[3] == 'yes' else -1) * (2 + k % 3)}\n")
    (tmp_path / "e.toml").write_text(toml("logistic"))
    assert typed_in(tmp_path, "data", "agree", "e.toml").code == 0
    said = typed_in(tmp_path, "fit", "e.toml", "--to", "fit")
    assert said.code == 9 and "NOT at the end" in said.out and "coefficients diverge" in said.err, said
    assert not (tmp_path / "fit" / "model").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.source=glm:probit"], "not a generalised linear model"),
        (["model.source=softmax"], "not a generalised linear model"),
        (["model.source=glm:linear"], "with task.kind = 'learning'|with task.kind = 'classification'"),
        (["data.scale=source", "data.categories=refuse", "data.agreed=agreed.json"], "the columns that the sites have"),
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
        planned_fit(load_experiment(folder / "logistic.toml", overrides))
    assert refused.value.advice


def test_categories_of_few_records_and_too_many_columns_are_refused(folder: Path, tmp_path: Path) -> None:
    """A coefficient of one record would tell that record."""
    for site in [*(f"site-{k}" for k in range(SITES)), "test"]:
        (tmp_path / f"{site}.csv").write_text((folder / f"{site}.csv").read_text())
    with (tmp_path / "site-0.csv").open("a") as file:
        file.write("55,900000,attic,yes,3,4\n")
    rare = '[data.columns]\nward = { categories = ["east", "north", "south", "attic"] }\n'
    (tmp_path / "e.toml").write_text(toml("logistic") + rare)
    assert typed_in(tmp_path, "data", "agree", "e.toml").code == 0
    said = typed_in(tmp_path, "fit", "e.toml")
    assert said.code == 2 and "attic at too few sites" in said.err and "drop=ward" in said.err, said


def test_a_site_whose_counts_are_none_takes_no_part(folder: Path, tmp_path: Path) -> None:
    for site in [*(f"site-{k}" for k in range(SITES)), "test"]:
        (tmp_path / f"{site}.csv").write_text((folder / f"{site}.csv").read_text())
    with (tmp_path / "site-1.csv").open("a") as file:
        file.write("55,900000,east,yes,3,2.5\n")
    (tmp_path / "e.toml").write_text(toml("poisson"))
    assert typed_in(tmp_path, "data", "agree", "e.toml").code == 0
    said = typed_in(tmp_path, "fit", "e.toml")
    told = "site 1 took no part: column 'days' holds 1 cell other than whole numbers from 0"
    assert said.code == 4 and told in said.err, said
    assert "of 4 of 5 sites" in said.out


def test_running_such_an_experiment_names_the_command(folder: Path) -> None:
    said = typed_in(folder, "run", "logistic.toml", "--no-report")
    assert said.code == 2 and "fedgossip fit" in said.err


def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    for site in range(SITES):
        patients(tmp_path / f"site-{site}.csv", site, 40)
    patients(tmp_path / "test.csv", 99, 30)
    file, commands = blocks(page("glm"))[:2]
    (tmp_path / file.note.removeprefix("file: ")).write_text(file.text)
    said = [typed(line.split("#")[0].split()[1:], tmp_path) for line in commands.text.splitlines()]
    assert all(one.code == 0 for one in said), said


# --- errors and tests -------------------------------------------------------------------------------------------------


def with_errors(folder: Path, family: str, errors: str) -> GlmFit:
    to = f"fits/{family}-{errors}"
    said = typed(["fit", f"{family}.toml", "--set", f"model.source=glm:{family}?errors={errors}", "--to", to], folder)
    assert said.code == 0 and f"errors are {errors}" in said.out, said
    return msgspec.json.decode((folder / to / "fit.json").read_bytes(), type=GlmFit)


@pytest.mark.parametrize("family", LABELS)
def test_robust_and_quasi_errors_are_those_of_all_records_in_one_place(folder: Path, family: str) -> None:
    """A^-1 (sum of r^2 x x') A^-1, and the family's times the square root of X^2 over degrees of freedom, which a
    linear and a gamma model have already; of the latter r is in units of the mean, and w is 1."""
    x, y = records(folder, family)
    estimates, errors, _ = pooled(family, x, y)
    scale = np.diag(np.concatenate([[1.0], 1 / x[:, 1:].std(0)]))  # the errors are of the same records on any scale
    eta, z = x @ np.array(estimates), x @ scale
    mean, weight = {"linear": (eta, np.ones_like(eta)), "poisson": (np.exp(eta), np.exp(eta))}.get(
        family, (1 / (1 + np.exp(-eta)), np.exp(-eta) / (1 + np.exp(-eta)) ** 2)
    )
    if family == "gamma":
        y, mean, weight = y / np.exp(eta), np.ones_like(eta), np.ones_like(eta)
    bread = np.linalg.inv(z.T @ (z * weight[:, None]))
    robust = scale @ bread @ (z.T @ (z * ((y - mean) ** 2)[:, None])) @ bread @ scale
    found = with_errors(folder, family, "robust")
    assert [one.error for one in found.coefficients] == pytest.approx(np.sqrt(np.diag(robust)), rel=1e-7)
    squares, free = float(((y - mean) ** 2 / weight).sum()), len(y) - x.shape[1]
    quasi = with_errors(folder, family, "quasi")
    assert quasi.pearson == pytest.approx(squares, rel=1e-9)
    assert found.pearson == (None if family == "logistic" else quasi.pearson), "of 0 and 1 it has no meaning"
    by = 1.0 if family in ("linear", "gamma") else math.sqrt(squares / free)
    assert [one.error for one in quasi.coefficients] == pytest.approx([one * by for one in errors], rel=1e-8)
    assert [one.estimate for one in quasi.coefficients] == [one.estimate for one in fitted(folder, family).coefficients]


@pytest.fixture(scope="module")
def persons(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables in which each two or three neighbouring records are of one person, at one site."""
    found = tmp_path_factory.mktemp("persons")
    for path in folder.glob("*.csv"):
        head, *rows = path.read_text().splitlines()
        lines = [f"{row},p{place // 5 * 2 + place % 5 // 3}" for place, row in enumerate(rows)]
        (found / path.name).write_text("\n".join([f"{head},person", *lines]) + "\n")
    for family in LABELS:
        (found / f"{family}.toml").write_text(toml(family, ",person"))
        assert typed(["data", "agree", f"{family}.toml"], found).code == 0
    return found


def by_person(folder: Path, family: str, options: str = "errors=robust&cluster=person") -> Output:
    return typed(
        ["fit", f"{family}.toml", "--to", f"fits/{family}&{options}", "--set", f"model.source=glm:{family}?{options}"],
        folder,
    )


@pytest.mark.parametrize("family", LABELS)
def test_errors_by_clusters_are_those_of_all_records_in_one_place(persons: Path, family: str) -> None:
    """G / (G - 1) (n - 1) / (n - p) A^-1 (sum of u u') A^-1, u a person's gradient."""
    said = by_person(persons, family)
    found = msgspec.json.decode(
        (persons / f"fits/{family}&errors=robust&cluster=person/fit.json").read_bytes(), type=GlmFit
    )
    x, y = records(persons, family)
    clusters = [f"{site} {line.rsplit(',', 1)[1]}" for site in range(SITES)
                for line in (persons / f"site-{site}.csv").read_text().splitlines()[1:]]  # fmt: skip
    named, cluster = np.unique(clusters, return_inverse=True)
    assert said.code == 0 and found.clusters == len(named) < len(y), said
    assert f"errors are robust, of {len(named)} clusters by person\n" in said.out
    scale = np.diag(np.concatenate([[1.0], 1 / x[:, 1:].std(0)]))
    estimates, z = np.array([one.estimate for one in found.coefficients]), x @ scale
    eta = x @ estimates
    mean = {"linear": eta, "logistic": 1 / (1 + np.exp(-eta))}.get(family, np.exp(eta))
    weight = {"linear": np.ones_like(eta), "logistic": mean * (1 - mean), "gamma": np.ones_like(eta)}.get(family, mean)
    residual = y / mean - 1 if family == "gamma" else y - mean
    bread, u = np.linalg.inv(z.T @ (z * weight[:, None])), np.zeros((len(named), x.shape[1]))
    np.add.at(u, cluster, z * residual[:, None])
    factor = len(named) / (len(named) - 1) * (len(y) - 1) / (len(y) - x.shape[1])
    robust = np.sqrt(np.diag(factor * scale @ bread @ u.T @ u @ bread @ scale))
    assert [one.error for one in found.coefficients] == pytest.approx(robust.tolist(), rel=1e-7)
    if family == "gamma":  # statsmodels takes the observed information, which is another
        return
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    of = models.families
    kinds = {"linear": of.Gaussian(), "logistic": of.Binomial(), "poisson": of.Poisson()}
    w = np.column_stack([x[:, 0], (x[:, 1:] - x[:, 1:].mean(0)) / x[:, 1:].std(0)])
    theirs = models.GLM(y, w, family=kinds[family]).fit(
        tol=1e-14, maxiter=200, cov_type="cluster", cov_kwds={"groups": cluster}
    )
    ours = [one.error * by for one, by in zip(found.coefficients[1:], x[:, 1:].std(0), strict=True)]
    assert ours == pytest.approx(theirs.bse[1:].tolist(), rel=1e-8)


def test_clusters_are_of_robust_errors_and_of_a_column_outside_of_the_model(persons: Path) -> None:
    for options, code, why in (
        ("cluster=person", 2, "clusters beside errors of single records"),
        ("errors=quasi&cluster=person", 2, "clusters beside errors of single records"),
        ("errors=robust&cluster=ward", 2, "it is a column of the model, or its label"),
        ("errors=robust&cluster=nobody", 7, "no column 'nobody'"),
    ):
        said = by_person(persons, "logistic", options)
        assert said.code == code and why in said.err, said
    asked = typed(["fit", "logistic.toml", "--dry-run", "--to", "no", "--set",
                   "model.source=glm:logistic?errors=robust&cluster=person"], persons)  # fmt: skip
    assert "the number of clusters, and 15 of products of columns by residuals summed by person, squared" in asked.out


def test_a_cluster_that_is_most_of_a_sum_and_too_few_of_them_are_refused(persons: Path, tmp_path: Path) -> None:
    layout = GlmLayout(msgspec.structs.replace(layout_of("linear", 2).design, errors="robust", cluster="person"))
    rng = np.random.default_rng(0)
    x, cluster = np.column_stack([np.ones(90), rng.normal(size=(90, 2))]), np.arange(90) // 3
    y = rng.normal(size=90) + 50 * (cluster == 7)  # no record alone is most of it
    task = GlmTask(layout, {0: SiteRecords(x, y, cluster=cluster)}, 5)
    pooled = task.initial(0)
    for number in range(layout.rounds - 1):
        pooled = total([pooled, task.sums(Job(0, number, pooled))], 256)
    assert "one of this site's clusters is most of the squared residuals of '(intercept)'" in task.uneven(
        0, layout.rounds - 1, pooled
    )
    single = GlmTask(
        GlmLayout(msgspec.structs.replace(layout.design, cluster=msgspec.UNSET)), {0: SiteRecords(x, y)}, 5
    )
    alone = single.initial(0)
    for number in range(layout.rounds - 1):
        alone = total([alone, single.sums(Job(0, number, alone))], 256)
    assert "(intercept)" not in single.uneven(0, layout.rounds - 1, alone)
    for path in persons.glob("*.csv"):
        rows = [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]
        words = [f"{row},p{place % 4}" for place, row in enumerate(rows[1:])]
        (tmp_path / path.name).write_text("\n".join([f"{rows[0]},person", *words]) + "\n")
    for name in ("linear.toml", "linear.json"):
        (tmp_path / name).write_bytes((persons / name).read_bytes())
    said = by_person(tmp_path, "linear")
    assert said.code == 7 and "column 'person' has 4 different values: fewer than 5" in said.err, said
    with pytest.raises(TrainingError, match="5 clusters by person for 5 coefficients"):
        of_clusters("person", 5, 100, 5)


def test_tests_of_terms_are_those_of_statsmodels(folder: Path) -> None:
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    x, y = records(folder, "logistic")
    z = np.column_stack([x[:, 0], (x[:, 1:] - x[:, 1:].mean(0)) / x[:, 1:].std(0)])
    theirs = models.GLM(y, z, family=models.families.Binomial()).fit(tol=1e-14)
    tests = {one.name: one for one in fitted(folder, "logistic").tests}
    ratio = tests["likelihood ratio"]
    assert (ratio.statistic, ratio.freedom) == (pytest.approx(theirs.null_deviance - theirs.deviance, rel=1e-9), 4)
    wald = theirs.wald_test(np.eye(5)[3:], scalar=True)
    ward = tests["ward"]
    assert (ward.statistic, ward.p) == pytest.approx((wald.statistic, wald.pvalue), rel=1e-8) and ward.freedom == 2


def test_counts_that_vary_more_than_a_poisson_model_has_it_are_reported(tmp_path: Path) -> None:
    for site in [*range(SITES), "test"]:
        rng = np.random.default_rng(99 if site == "test" else int(site))
        rows = [f"{a},{rng.poisson(rng.gamma(0.7, 4))}" for a in rng.integers(20, 90, 40)]
        name = tmp_path / ("test.csv" if site == "test" else f"site-{site}.csv")
        name.write_text("\n".join(["age,days", *rows]) + "\n")
    kind = '[task]\nkind = "regression"\n'
    (tmp_path / "counts.toml").write_text(own_tables("counts", "label=days", source="glm:poisson", more=kind))
    assert typed(["data", "agree", "counts.toml"], tmp_path).code == 0
    said = typed(["fit", "counts.toml"], tmp_path)
    fit = msgspec.json.decode((tmp_path / "fits/counts/fit.json").read_bytes(), type=GlmFit)
    assert said.code == 0 and fit.pearson is not None and fit.pearson / fit.free > 1.5
    assert said.out.startswith("Poisson model of days: ")
    assert "these errors are too small" in said.out and "errors=quasi" in said.out


def test_robust_errors_of_one_record_far_out_are_refused_and_the_site_s_reason_is_in_the_error(tmp_path: Path) -> None:
    for site in [*range(SITES), "test"]:
        rng = np.random.default_rng(99 if site == "test" else int(site))
        rows = [f"{a},{a + rng.normal():.3f}" for a in rng.integers(20, 90, 40)]
        name = tmp_path / ("test.csv" if site == "test" else f"site-{site}.csv")
        name.write_text("\n".join(["age,cost", *rows, "50,900" if site == 2 else "50,51"]) + "\n")
    kind = '[task]\nkind = "regression"\n'
    (tmp_path / "c.toml").write_text(own_tables("c", "label=cost", source="glm:linear?errors=robust", more=kind))
    assert typed(["data", "agree", "c.toml"], tmp_path).code == 0
    said = typed(["fit", "c.toml"], tmp_path)
    assert said.code == 7 and "site 2: one of this site's records is most of the squared residuals of" in said.err, said
    assert typed(["fit", "c.toml", "--set", "model.source=glm:linear"], tmp_path).code == 0


def test_rows_outside_of_what_was_agreed_are_marked(folder: Path, tmp_path: Path) -> None:
    """With bounds of age and means for empty cells: a number beyond is predicted, and says so."""
    for path in folder.glob("*.csv"):
        shutil.copy(path, tmp_path)
    bounds = "[data.columns]\nage = { low = 18, high = 95 }\n"
    text = toml("logistic").replace("[model]", f"{bounds}\n[model]").replace("[data]\n", '[data]\nmissing = "mean"\n')
    (tmp_path / "bounded.toml").write_text(text)
    for words in (["data", "agree", "bounded.toml"], ["fit", "bounded.toml", "--to", "fit"]):
        assert (said := typed(words, tmp_path)).code == 0, said
    (tmp_path / "new.csv").write_text("age,salt [mg],ward\n40,900000,north\n140,900000,north\n50,,south\n")
    said = typed(["predict", "fit", "new.csv"], tmp_path)
    assert said.code == 0 and "warning: 2 of 3 rows have numbers outside the agreed bounds" in said.err, said
    rows = list(csv.DictReader((tmp_path / "scored.csv").read_text().splitlines()))
    assert [row["remarks"] for row in rows] == ["", "age outside 18 to 95", "salt filled"]
    (tmp_path / "usual.csv").write_text("age,salt [mg],ward\n40,900000,north\n")
    said = typed(["predict", "fit", "usual.csv", "--out", "usual-scored.csv"], tmp_path)
    assert said.code == 0 and "warning" not in said.err
    assert "remarks" not in (tmp_path / "usual-scored.csv").read_text()


@pytest.mark.parametrize(
    ("rounded", "together", "words"),
    [
        (False, 0.1, ""),
        (True, None, "rounded: few records share two categories"),
        (True, 0.1, "deviances are rounded: few records have the largest counts"),
    ],
)
def test_a_rounded_fit_says_why(rounded: bool, together: float | None, words: str) -> None:
    d = GlmDesign(family="poisson", outcome="y", columns=("a",), places=(0,), mean=(0.0,), deviation=(1.0,), steps=16)
    fit = GlmFit(
        design=d, sites=3, least=3, records=90, steps=3, converged=True, dispersion=1.0, rank=2, deviance=88.0,
        null_deviance=None, aic=None, coefficients=(coefficient("(intercept)", 1.0, 0.5), coefficient("a", 1.0, 0.5)),
        covariance=((0.25, together), (together, 0.25)), rounded=rounded,
    )  # fmt: skip
    card = str(section_of(fit)).lower()
    assert words in "\n".join(describe(fit, 5)) and words in card and ("rounded" in card) == rounded
