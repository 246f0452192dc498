"""Families of statistics by named sums, `fedgossip fit`: beside statsmodels, lifelines and scipy on all records."""

from __future__ import annotations

import csv
import itertools
import math
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, by_hand, fit_on, machines, own_tables, total
from pages import blocks, page

from fedgossip import ConfigError, load_experiment
from fedgossip.base.errors import TrainingError
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import AgreedTable, read, unknown
from fedgossip.data.agreed.suppression import suppressed
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.data.columns.table_schema import SchemaColumn, TableSchema
from fedgossip.sites.fits.families.clustered import ClusteredSample, enough_of_each
from fedgossip.sites.fits.families.family import FamilyDesign, FamilyFit, FamilyLayout, FamilyTask, PooledRound
from fedgossip.sites.fits.families.gee import ClusterSums
from fedgossip.sites.fits.families.likelihoods import SiteSample
from fedgossip.sites.fits.families.meta_analysis import own_model
from fedgossip.sites.fits.families.ranks import rank_test
from fedgossip.sites.fits.families.table_one import fisher, together
from fedgossip.sites.plans.fits import FAMILIES, planned_fit

ROWS = 60
COLUMNS = ("age", "salt", "ward", "ill", "grade", "visits", "days", "died", "cost", "person", "pressure")
GRADES = '[data.columns]\ngrade = { categories = ["low", "middle", "high"] }\n'
NUMBERS = '[task]\nkind = "regression"\n'
LABELS = {
    "table1": "ill", "multinomial": "grade", "ordinal": "grade", "negative-binomial": "visits", "firth": "ill",
    "weibull": "days,died", "correlations": "ill", "meta-analysis": "ill", "elastic-net": "ill",
    "mixed": "pressure", "mixed-logistic": "ill", "gee": "ill",
}  # fmt: skip
MORE = dict.fromkeys(("table1", "correlations"), ("ill", "grade", "cost"))
OF = {"table1": "table1?by=ward", "mixed": "mixed?by=person", "gee": "gee?by=person&family=logistic",
      "meta-analysis": "meta-analysis?family=logistic",
      "elastic-net": "elastic-net?family=logistic&path=4&folds=2"}  # fmt: skip


def patients(path: Path, seed: int) -> None:
    """Write records whose outcomes depend on age, and on the ward, of which one is rare in some columns' categories."""
    rng, of_persons = np.random.default_rng(seed), np.random.default_rng([seed, 7])
    moods = of_persons.normal(0, 9, ROWS)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in range(ROWS):
            person = row // 3 if row < ROWS // 2 else row // 2  # three records each, or two
            age, salt = rng.integers(20, 90), round(float(rng.normal(9e3, 2e2)), 3)
            ward = rng.choice(["north", "south", "east"], p=[0.4, 0.35, 0.25])
            z = (age - 55) / 20 + 0.8 * (ward == "south")
            ill = "yes" if rng.random() < 1 / (1 + math.exp(0.5 - z)) else "no"
            grade = ("low", "middle", "high")[int(z + rng.logistic() > 0) + int(z + rng.logistic() > 1.2)]
            visits = rng.poisson(rng.gamma(1.5, math.exp(0.6 + 0.4 * z) / 1.5))
            time, end = 200 * math.exp(-0.5 * z) * rng.weibull(1.6), rng.uniform(50, 500)
            days, died = max(1, math.ceil(min(time, end))), int(time <= end)
            cost, pressure = 100 + 30 * z + rng.normal(0, 9), 100 + 0.4 * age + moods[person] + of_persons.normal(0, 6)
            writer.writerow(
                [age, salt, ward, ill, grade, visits, days, died, f"{cost:.4f}", f"p{person}", f"{pressure:.2f}"]
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("families")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    for name in FAMILIES:
        label = LABELS[name].split(",")
        used = {"age", "salt", "ward", *label, *MORE.get(name, ())}
        query = f"label={','.join(label)}&drop={','.join(one for one in COLUMNS if one not in used)}"
        kinds = FAMILIES[name].kinds
        more = GRADES * ("grade" in used) + NUMBERS * ("classification" not in kinds)
        (found / f"{name}.toml").write_text(own_tables(name, query, source=OF.get(name, name), more=more))
        assert (said := typed(["data", "agree", f"{name}.toml"], found)).code == 0, said
    text = (found / "firth.toml").read_text()
    (found / "clustered.toml").write_text(
        text.replace('source = "firth"', 'source = "firth?errors=robust&cluster=person"')
    )
    return found


def into(name: str, *more: str) -> str:
    return f"fits/{name}{crc32(repr(more).encode()) if more else 0}"


@cache
def command(folder: Path, name: str, *more: str) -> Output:
    return typed(["fit", f"{name}.toml", "--to", into(name, *more), *more], folder)


def fitted(folder: Path, name: str, *more: str) -> FamilyFit:
    assert (said := command(folder, name, *more)).code == 0, said
    return msgspec.json.decode((folder / into(name, *more) / "tables.json").read_bytes(), type=FamilyFit)


def everybody(folder: Path) -> dict[str, np.ndarray]:
    """Return all sites' columns in one place."""
    rows = [
        row for site in range(SITES) for row in csv.DictReader((folder / f"site-{site}.csv").read_text().splitlines())
    ]
    words = {"ward", "ill", "grade", "person"}
    return {name: np.array([row[name] if name in words else float(row[name]) for row in rows]) for name in COLUMNS}


def design(of: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return ones, age, salt, ward = north, ward = south."""
    wards = [(of["ward"] == ward).astype(float) for ward in ("north", "south")]
    return np.column_stack([np.ones(len(of["age"])), of["age"], of["salt"], *wards])


def standard(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns on a scale of their own, for optimisers that need one, and T by which coefficients go back."""
    mean, deviation = x[:, 1:].mean(0), x[:, 1:].std(0)
    turned = np.diag(np.concatenate([[1.0], 1 / deviation]))
    turned[0, 1:] = -mean / deviation
    return np.column_stack([np.ones(len(x)), (x[:, 1:] - mean) / deviation]), turned


Figures = tuple[np.ndarray, np.ndarray, float]


def multinomial(of: Mapping[str, np.ndarray]) -> Figures:
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    x, turned = standard(design(of))
    y = np.array([("low", "middle", "high").index(one) for one in of["grade"]])
    found = models.MNLogit(y, x).fit(method="newton", disp=0, tol=1e-14, maxiter=100)
    both = np.kron(np.eye(2), turned)
    return both @ found.params.T.ravel(), np.sqrt(np.diag(both @ found.cov_params() @ both.T)), found.llf


def ordinal(of: Mapping[str, np.ndarray]) -> Figures:
    ordered = pytest.importorskip("statsmodels.miscmodels.ordinal_model", reason="compared with statsmodels")
    x, turned = standard(design(of))
    y = np.array([("low", "middle", "high").index(one) for one in of["grade"]])
    found = ordered.OrderedModel(y, x[:, 1:], distr="logit").fit(method="bfgs", disp=0, gtol=1e-4)
    point = np.concatenate([[found.params[-2]], [found.params[-2] + math.exp(found.params[-1])], found.params[:-2]])

    def log_likelihood(at: np.ndarray) -> float:
        return float(ordinal_terms(x, y, at).sum())

    turns = np.eye(6)
    turns[2:, 2:], turns[:2, 2:] = turned[1:, 1:], -turned[0, 1:]
    return maximised(log_likelihood, point, turns)


def ordinal_terms(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the log likelihood of each record, of cuts and columns as they are in x."""
    ends = np.concatenate([[-np.inf], at[:2], [np.inf]])
    share = 1 / (1 + np.exp(-(ends[None] - (x[:, 1:] @ at[2:])[:, None])))
    return np.asarray(np.log(share[np.arange(len(y)), y + 1] - share[np.arange(len(y)), y]))


def maximised(log_likelihood: Callable[[np.ndarray], float], start: np.ndarray, turns: np.ndarray) -> Figures:
    """Return the maximum near another library's optimum, by Newton's method with differences for derivatives."""
    e, point = np.eye(len(start)), start
    for _ in range(4):
        gradient = np.array([log_likelihood(point + 1e-4 * k) - log_likelihood(point - 1e-4 * k) for k in e]) / 2e-4
        hessian = numerical(log_likelihood, point)
        point = point - np.linalg.solve(hessian, gradient)
    spread = np.linalg.inv(-hessian)
    assert np.abs((start - point) / np.sqrt(np.diag(spread))).max() < 1e-2, "the library's optimum is this one"
    return turns @ point, np.sqrt(np.diag(turns @ spread @ turns.T)), log_likelihood(point)


def numerical(f: Callable[[np.ndarray], float], point: np.ndarray, step: float = 1e-3) -> np.ndarray:
    e = np.eye(len(point)) * step
    signs = [(a, b) for a in (1, -1) for b in (1, -1)]
    return np.array([[sum(a * b * f(point + a * i + b * j) for a, b in signs) for j in e] for i in e]) / (4 * step**2)


def negative_binomial(of: Mapping[str, np.ndarray]) -> Figures:
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    x, turned = standard(design(of))
    found = models.NegativeBinomial(of["visits"], x).fit(method="newton", disp=0, tol=1e-14, maxiter=200)
    turns = np.eye(6)
    turns[:5, :5] = turned
    point = np.concatenate([found.params[:5], [math.log(found.params[5])]])
    per = np.diag([1.0] * 5 + [1 / found.params[5]])  # the error of log alpha from that of alpha
    return turns @ point, np.sqrt(np.diag(turns @ per @ found.cov_params() @ per @ turns.T)), found.llf


def weibull(of: Mapping[str, np.ndarray]) -> Figures:
    lifelines = pytest.importorskip("lifelines", reason="compared with lifelines")
    import pandas

    x, turned = standard(design(of))
    table = pandas.DataFrame(x[:, 1:], columns=list("abcd")).assign(days=of["days"], died=of["died"])
    found = lifelines.WeibullAFTFitter().fit(table, "days", "died", fit_options={"tol": 1e-14})
    point = np.array([found.params_["lambda_"][one] for one in ("Intercept", *"abcd")])
    start = np.concatenate([point, [-found.params_["rho_"]["Intercept"]]])  # rho is 1 / scale

    def log_likelihood(at: np.ndarray) -> float:
        return float(weibull_terms(x, of["days"], of["died"], at).sum())

    turns = np.eye(6)
    turns[:5, :5] = turned
    return maximised(log_likelihood, start, turns)


def weibull_terms(x: np.ndarray, days: np.ndarray, died: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the log likelihood of each record, the last of `at` the log of the scale."""
    rho, rate = math.exp(-at[5]), np.exp(-x @ at[:5])
    return np.asarray(died * np.log(rho * rate * (days * rate) ** (rho - 1)) - (days * rate) ** rho)


def firth(of: Mapping[str, np.ndarray]) -> Figures:
    """By hat values h: g = X'(y - p + h (1/2 - p)), as Heinze and Schemper have it."""
    x, turned = standard(design(of))
    y, point = (of["ill"] == "yes").astype(float), np.zeros(5)
    for _ in range(60):
        p = 1 / (1 + np.exp(-x @ point))
        w = p * (1 - p)
        spread = np.linalg.inv(x.T @ (x * w[:, None]))
        h = w * np.einsum("mi,ij,mj->m", x, spread, x)
        point = point + spread @ (x.T @ (y - p + h * (0.5 - p)))
    penalised = float(np.log(np.where(y > 0, p, 1 - p)).sum()) + np.linalg.slogdet(np.linalg.inv(spread))[1] / 2
    return turned @ point, np.sqrt(np.diag(turned @ spread @ turned.T)), penalised


BESIDE: Mapping[str, tuple[Callable[[Mapping[str, np.ndarray]], Figures], float, float]] = {
    "multinomial": (multinomial, 1e-8, 1e-8),
    "ordinal": (ordinal, 1e-7, 1e-5),
    "negative-binomial": (negative_binomial, 1e-8, 1e-7),
    "weibull": (weibull, 1e-7, 1e-5),
    "firth": (firth, 1e-8, 1e-8),
}
"""The pooled fit, and how near estimates, in standard errors, and errors are: 1e-7 and 1e-5 are of the differences in
`maximised`, for those libraries' optimisers stop at 1e-4."""


@pytest.mark.parametrize("name", BESIDE)
def test_a_likelihood_is_that_of_all_records_in_one_place(name: str, folder: Path) -> None:
    beside, near, near_errors = BESIDE[name]
    estimates, errors, likelihood = beside(everybody(folder))
    found = fitted(folder, name)
    ours, theirs = (np.array(found.column(0, what), float) for what in ("estimate", "std. error"))
    assert np.abs((ours - estimates) / errors).max() < near, (ours, estimates)
    assert theirs == pytest.approx(errors, rel=near_errors)
    told = re.match(r"log likelihood (\S+), AIC", found.remarks[0])
    assert told
    if name != "firth":
        assert float(told[1]) == pytest.approx(likelihood, rel=1e-7)


def test_robust_errors_are_those_of_all_records_in_one_place(folder: Path) -> None:
    """Of Firth's model with its penalty's gradient left out, as the sum of squares of scores has it: A^-1 S A^-1."""
    x, turned = standard(design(of := everybody(folder)))
    estimates, _, _ = firth(of)
    p = 1 / (1 + np.exp(-x @ np.linalg.solve(turned, estimates)))
    spread = np.linalg.inv(x.T @ (x * (p * (1 - p))[:, None]))
    scores = x * ((of["ill"] == "yes") - p)[:, None]
    errors = np.sqrt(np.diag(turned @ spread @ scores.T @ scores @ spread @ turned.T))
    found = fitted(folder, "firth", "--set", "model.source=firth?errors=robust")
    assert np.array(found.column(0, "std. error"), float) == pytest.approx(errors, rel=1e-8)


@pytest.mark.parametrize("name", ["multinomial", "negative-binomial", "firth"])
def test_errors_by_clusters_are_those_of_all_records_in_one_place(name: str, folder: Path) -> None:
    """G / (G - 1) (n - 1) / (n - p) A^-1 (sum of u u') A^-1, u a person's gradient."""
    found = fitted(folder, name, "--set", f"model.source={name}?errors=robust&cluster=person")
    x, turned = standard(design(of := everybody(folder)))
    cluster = clusters(of)
    many = len(set(cluster))
    assert any(one.startswith(f"errors are robust, of {many} clusters by person: ") for one in found.remarks)
    if name == "firth":
        estimates, _, _ = firth(of)
        p = 1 / (1 + np.exp(-x @ np.linalg.solve(turned, estimates)))
        spread, u = np.linalg.inv(x.T @ (x * (p * (1 - p))[:, None])), np.zeros((many, 5))
        np.add.at(u, cluster, x * ((of["ill"] == "yes") - p)[:, None])
        factor = many / (many - 1) * (len(x) - 1) / (len(x) - 5)
        errors = np.sqrt(np.diag(turned @ spread @ (factor * u.T @ u) @ spread @ turned.T))
        assert np.array(found.column(0, "std. error"), float) == pytest.approx(errors, rel=1e-8)
        return
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    how = {"cov_type": "cluster", "cov_kwds": {"groups": cluster}, "method": "newton", "disp": 0, "tol": 1e-14}
    if name == "multinomial":
        y = np.array([("low", "middle", "high").index(one) for one in of["grade"]])
        theirs = models.MNLogit(y, x).fit(maxiter=100, **how)
        wanted = np.asarray(theirs.bse).T[:, 1:] * np.diag(turned)[1:]
        ours = np.array(found.column(0, "std. error"), float).reshape(2, 5)[:, 1:]
    else:
        theirs = models.NegativeBinomial(of["visits"], x).fit(maxiter=200, **how)
        wanted, ours = theirs.bse[1:5] * np.diag(turned)[1:], np.array(found.column(0, "std. error")[1:5], float)
    assert ours == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("name", ["ordinal", "weibull"])
def test_errors_by_clusters_are_those_of_differences_of_the_likelihood(name: str, folder: Path) -> None:
    """A and each record's gradient by differences, at the fit's estimates on columns of a scale of their own."""
    found = fitted(folder, name, "--set", f"model.source={name}?errors=robust&cluster=person")
    x, turned = standard(design(of := everybody(folder)))
    cluster, turns = clusters(of), np.eye(6)
    if name == "ordinal":
        turns[2:, 2:], turns[:2, 2:] = turned[1:, 1:], -turned[0, 1:]
        grade = np.array([("low", "middle", "high").index(one) for one in of["grade"]])
    else:
        turns[:5, :5] = turned
    at = np.linalg.solve(turns, np.array(found.column(0, "estimate"), float))

    def terms(point: np.ndarray) -> np.ndarray:
        return ordinal_terms(x, grade, point) if name == "ordinal" else weibull_terms(x, of["days"], of["died"], point)

    scores = np.column_stack([(terms(at + one) - terms(at - one)) / 2e-4 for one in np.eye(6) * 1e-4])
    many, u = len(set(cluster)), np.zeros((len(set(cluster)), 6))
    np.add.at(u, cluster, scores)
    spread = np.linalg.inv(-numerical(lambda point: float(terms(point).sum()), at))
    factor = many / (many - 1) * (len(x) - 1) / (len(x) - 6)
    errors = np.sqrt(np.diag(turns @ spread @ (factor * u.T @ u) @ spread @ turns.T))
    assert found.column(0, "std. error") == pytest.approx(errors.tolist(), rel=1e-5)


def test_errors_by_clusters_are_robust(folder: Path) -> None:
    said = typed(["fit", "firth.toml", "--to", "no", "--set", "model.source=firth?cluster=person"], folder)
    assert said.code == 2 and "firth: clusters beside errors of single records" in said.err, said


# --- table 1 ----------------------------------------------------------------------------------------------------------


def test_table_1_has_the_figures_of_all_records_in_one_place(folder: Path) -> None:
    """Means, deviations, Welch's test and chi squared by scipy; differences by the formulas of Yang and Dalton."""
    from scipy import stats

    of, found = everybody(folder), fitted(folder, "table1")
    groups = [of["age"][of["ward"] == one] for one in ("east", "north", "south")]
    means, deviations = (
        [value for name, value in zip(found.column(1, "column"), found.column(1, what), strict=True) if name == "age"]
        for what in ("mean", "deviation")
    )
    assert means == pytest.approx([one.mean() for one in groups], rel=1e-12)
    assert deviations == pytest.approx([one.std(ddof=1) for one in groups], rel=1e-12)
    tests = {(row[0], row[1]): row for row in found.tables[2].rows}
    counts = np.array([[int(((of["ward"] == w) & (of["ill"] == i)).sum()) for w in ("east", "north", "south")]
                       for i in ("no", "yes")])  # fmt: skip
    squared = stats.chi2_contingency(counts, correction=False)
    _, _, statistic, freedom, p = tests["ill", "chi squared"]
    assert (statistic, p) == pytest.approx((squared.statistic, squared.pvalue), rel=1e-10) and freedom == "2"
    pairs = [(groups[a], groups[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    apart = max(abs(a.mean() - b.mean()) / math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2) for a, b in pairs)
    (row,) = (row for row in found.tables[0].rows if str(row[0]).startswith("age"))
    assert row[-1] == pytest.approx(apart, rel=1e-12) and row[-2] == tests["age", "Welch"][-1]
    welch = stats.f_oneway(*groups, equal_var=False)
    assert tests["age", "Welch"][2] == pytest.approx(welch.statistic, rel=1e-10)
    assert row[-2] == pytest.approx(welch.pvalue, rel=1e-8)


def test_two_groups_have_students_and_fishers_tests(folder: Path) -> None:
    from scipy import stats

    of = everybody(folder)
    found = fitted(folder, "table1", "--set", "model.source=table1?by=ill")
    ill = of["ill"] == "yes"
    p = {(row[0], row[1]): row[-1] for row in found.tables[2].rows}
    assert p["age", "Welch"] == pytest.approx(stats.ttest_ind(of["age"][ill], of["age"][~ill], equal_var=False).pvalue)
    for table in ([[8, 2], [1, 5]], [[30, 12], [11, 30]], [[5, 0], [3, 9]]):
        assert fisher(np.array(table)) == pytest.approx(stats.fisher_exact(table).pvalue, rel=1e-9)


def test_groups_are_compared_by_the_ranks_of_their_bins(folder: Path) -> None:
    """By scipy on values replaced by their bins."""
    from scipy import stats

    of, edges = everybody(folder), {one.name: one.edges for one in read(folder / "table1.json").columns}
    for by, named in (("ward", "Kruskal and Wallis"), ("ill", "Wilcoxon")):
        found = fitted(folder, "table1", "--set", f"model.source=table1?by={by}&tests=ranks")
        tests = {(row[0], row[1]): row[2:] for row in found.tables[2].rows}
        plain = fitted(folder, "table1", "--set", f"model.source=table1?by={by}")
        assert [row for row in found.tables[2].rows if row[1] != named] == list(plain.tables[2].rows)
        for name in ("age", "salt"):
            bins = np.searchsorted(edges[name], of[name], side="right")
            groups = [of[by] == one for one in found.design.classes]
            beside = stats.kruskal(*(bins[rows] for rows in groups))
            statistic, freedom, p = tests[name, named]
            assert (statistic, freedom) == (float(f"{beside.statistic:.2g}"), str(len(groups) - 1))
            assert p == pytest.approx(stats.chi2.sf(float(str(statistic)), len(groups) - 1), rel=1e-10)
        agreed = {one.name: one.quantiles for one in read(folder / "table1.json").columns}
        assert found.tables[-1].rows == tuple((name, *agreed[name].values()) for name in ("age", "salt", "cost"))
        assert found.tables[-1].boxes == found.tables[-1].head[1:] == ("5 %", "25 %", "50 %", "75 %", "95 %")


def possible_counts(counts: np.ndarray, at: int) -> set[int]:
    """Return the numbers of records that the first of two groups can have in a bin, by all that is told: bins of all
    records, sizes of groups and the test; by all sums of ranks that lead to it, one bin after another."""
    of_bins, size, total = counts.sum(axis=0), int(counts[0].sum()), int(counts.sum())
    doubled = 2 * np.cumsum(of_bins) - of_bins + 1  # ranks, twice
    told = rank_test(counts)
    assert told is not None
    ties = 1 - float((of_bins.astype(float) ** 3 - of_bins).sum()) / (float(total) ** 3 - total)
    sums = 0
    for w in range(total * (total + 1) + 1):
        of_both = (w / 2) ** 2 / size + ((total * (total + 1) - w) / 2) ** 2 / (total - size)
        h = (12 / (total * (total + 1)) * of_both - 3 * (total + 1)) / ties
        if float(f"{max(h, 0.0):.2g}") == told.statistic:
            sums |= 1 << w

    def reached(value: int) -> bool:
        ways = {0: 1}  # by the records until now: the sums of ranks, a bit each
        for k, most in enumerate(of_bins.tolist()):
            after = dict[int, int]()
            for until, before in ways.items():
                for here in [value] if k == at else range(most + 1):
                    after[until + here] = after.get(until + here, 0) | before << int(doubled[k]) * here
            ways = after
        return bool(ways.get(size, 0) & sums)

    return {value for value in range(int(of_bins[at]) + 1) if reached(value)}


def test_ranks_tell_no_small_count_of_a_bin(request: pytest.FixtureRequest) -> None:
    seen = 0
    for seed in range(100 if request.config.getoption("--long") else 3):
        rng = np.random.default_rng(seed)
        counts = np.array([np.bincount(rng.binomial(9, share, 40), minlength=10) for share in (0.4, 0.5)])
        for group, at in np.argwhere((counts > 0) & (counts < 5) & (counts.sum(axis=0) >= 5)).tolist():
            seen += 1
            known = possible_counts(counts if group == 0 else counts[::-1], at)
            assert int(counts[group, at]) in known and len(known) > 1, (seed, counts.tolist(), group, at)
    assert seen > 5


def test_ranks_are_of_groups(folder: Path) -> None:
    for source in ("table1?tests=ranks", "table1?by=ward&tests=signs"):
        with pytest.raises(ConfigError, match=r"tests=(ranks without by|signs)"):
            planned_fit(load_experiment(folder / "table1.toml", [f"model.source={source}"]))


def measured(folder: Path, few: int, empty: int) -> Mapping[str, FamilyFit]:
    """Fit table 1 where `few` records of the group new have a number, and `empty` of the others have none."""
    rng = np.random.default_rng(few)
    for site in range(SITES):
        numbers = [f"{one:.2f}" for one in rng.normal(50, 9, 50)]
        new = [numbers[k] if site + SITES * (k // 2) < few else "" for k in range(0, 50, 2)]
        old = ["" if site + SITES * (k // 2) < empty else numbers[k] for k in range(1, 50, 2)]
        rows = [
            f"{group},{lab},{('no', 'yes')[int(rng.integers(2))]}"
            for group, labs in (("new", new), ("old", old))
            for lab in labs
        ]
        (folder / f"site-{site}.csv").write_text("\n".join(["arm,lab,ill", *rows]) + "\n")
    shutil.copy(folder / "site-0.csv", folder / "test.csv")
    (folder / "t.toml").write_text(own_tables("t", "label=ill", source="table1?by=arm", more='missing = "mean"'))
    assert typed(["data", "agree", "t.toml"], folder).code == 0
    return {"fit": fitted(folder, "t")}


@pytest.mark.parametrize(("few", "empty"), [(1, 0), (1, 3), (3, 0), (4, 3)])
def test_no_figures_of_few_numbers_are_shown_or_found_as_a_difference(few: int, empty: int, tmp_path: Path) -> None:
    """By the agreed mean of all: its sum less that of the other group is the sum of few records."""
    found = measured(tmp_path, few, empty)["fit"]
    assert [found.column(1, what) for what in ("mean", "deviation")] == [[None, None]] * 2
    assert not any(row[0] == "lab" for table in found.tables[2:] for row in table.rows)


@pytest.mark.parametrize(("few", "empty", "tested"), [(60, 3, False), (60, 20, True), (125, 3, True)])
def test_a_test_is_by_the_numbers_that_there_are_or_is_left_out(
    few: int, empty: int, tested: bool, tmp_path: Path
) -> None:
    from scipy import stats

    found = measured(tmp_path, few, empty)["fit"]
    rows = [
        line.split(",") for site in range(SITES) for line in (tmp_path / f"site-{site}.csv").read_text().split()[1:]
    ]
    groups = [[float(lab) for arm, lab, _ in rows if arm == one and lab] for one in ("new", "old")]
    p = [row[-1] for row in found.tables[-1].rows if row[0] == "lab"]
    assert None not in found.column(1, "mean") and bool(p) == tested
    if tested:
        assert p[0] == pytest.approx(stats.ttest_ind(*groups, equal_var=False).pvalue, rel=0.1)


@pytest.mark.parametrize("least", [3, 5])
def test_no_small_cell_of_a_table_is_found(least: int, request: pytest.FixtureRequest) -> None:
    """By the bounds of each cell of what was put together, with totals of groups, and of categories as agreed."""
    for seed in range(20_000 if request.config.getoption("--long") else 2_000):
        rng = np.random.default_rng(seed)
        rows, groups = int(rng.integers(2, 6)), int(rng.integers(2, 4))
        table = rng.poisson(rng.gamma(0.7, 12, (rows, 1)) * rng.dirichlet(np.ones(groups) * 2)[None])
        at = np.where(table > 0, rng.integers(1, 6, table.shape), 0)
        of_rows = suppressed(table.sum(axis=1).tolist(), least)
        withheld = [k for k, total in enumerate(of_rows) if total is None]
        names, shown = together([str(k) for k in range(rows)], table, at, least, withheld)
        if (table.sum(axis=0) < least).any():
            continue  # such groups are refused
        told = {name for name in names if " or " not in name}
        kept = [k for k in range(rows) if str(k) in told]
        assert not any(0 < count < least for count in table[kept].ravel().tolist()), (seed, table, names)
        hidden = [k for k in range(rows) if k not in kept and table[k].any()]
        assert len(hidden) != 1 or not ((table[hidden] > 0) & (table[hidden] < least)).any(), (seed, table, names)
        columns, totals = table[hidden].sum(axis=0), table[hidden].sum(axis=1)
        assert (shown[-1] == columns).all() or not hidden
        for k, of_row in zip(hidden, totals.tolist(), strict=True):
            if of_rows[k] is None:
                continue
            for group, column in enumerate(columns.tolist()):
                low, high = max(0, of_row + column - int(totals.sum())), min(of_row, column)
                assert low < high or not 0 < low < least, (seed, table, k, group)


def test_the_page_shows_what_is_printed(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.csv"):
        shutil.copy(path, tmp_path)
    file, commands, shown = blocks(page("statistics"))[:3]
    (tmp_path / "table1.toml").write_text(file.text)
    said = [typed(line.split()[1:], tmp_path) for line in commands.text.splitlines()]
    assert [one.code for one in said] == [0] * 4, said
    assert said[1].out.rstrip() == shown.text.rstrip()
    file, shown = blocks(page("statistics"))[3:5]
    (tmp_path / "mixed.toml").write_text(file.text)
    sites, of_sites, others = blocks(page("statistics"))[5:8]
    again = others.text.replace("'", "").splitlines()
    assert [typed(line.split()[1:], tmp_path).code for line in again] == [0, 0]
    assert typed(["fit", "mixed.toml"], tmp_path).out.rstrip() == shown.text.rstrip()
    assert typed(sites.text.split()[1:], tmp_path).out.rstrip() == of_sites.text.rstrip()


# --- correlations and meta-analysis -----------------------------------------------------------------------------------


def test_correlations_and_components_are_those_of_all_records_in_one_place(folder: Path) -> None:
    from scipy import stats

    of, found = everybody(folder), fitted(folder, "correlations")
    x = np.column_stack([of["age"], of["salt"], of["cost"]])
    r = np.corrcoef(x.T)
    assert found.column(0, "") == ["age, salt", "age, cost", "salt, cost"]
    assert found.column(0, "correlation") == pytest.approx([r[0, 1], r[0, 2], r[1, 2]], rel=1e-9)
    theirs = stats.pearsonr(of["age"], of["cost"])
    _, _, low, high, p = found.tables[0].rows[1]
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-8)
    assert p == pytest.approx(theirs.pvalue, rel=1e-6)
    assert found.column(1, "variance") == pytest.approx(np.linalg.eigvalsh(r)[::-1].tolist(), rel=1e-9)
    loadings = np.array([found.column(1, name) for name in ("age", "salt", "cost")], float)
    assert loadings.T @ r @ loadings == pytest.approx(np.diag(np.linalg.eigvalsh(r)[::-1]), abs=1e-9)


def test_a_meta_analysis_is_that_of_the_sites_own_estimates(folder: Path) -> None:
    """Of statsmodels' own models of each site, by its combine_effects, DerSimonian and Laird's, with and without t."""
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    from scipy import stats
    from statsmodels.stats.meta_analysis import combine_effects

    of = everybody(folder)
    x, turned = standard(design(of))
    y, effects, variances = of["ill"] == "yes", [], []
    for site in range(SITES):
        mine = slice(ROWS * site, ROWS * (site + 1))
        fit = models.GLM(y[mine], x[mine], family=models.families.Binomial()).fit(tol=1e-15, maxiter=100)
        effects.append((turned @ fit.params)[1:])
        variances.append(np.diag(turned @ fit.cov_params() @ turned.T)[1:])
    found, seen = fitted(folder, "meta-analysis"), 0
    for place in range(4):
        t, v = (np.array(one)[:, place] for one in (effects, variances))
        both = combine_effects(t, v, method_re="dl")
        row = dict(zip(found.tables[0].head, found.tables[0].rows[place], strict=True))
        other = dict(zip(found.tables[1].head, found.tables[1].rows[place], strict=True))
        fixed = both.summary_frame().loc["fixed effect"]
        assert row["fixed"] == pytest.approx(fixed["eff"], rel=1e-7)
        error = 1 / math.sqrt((1 / v).sum())
        assert row["fixed to"] == pytest.approx(fixed["eff"] + 1.959963984540054 * error, rel=1e-7)
        assert other["Q"] == pytest.approx(both.q, rel=1e-7)
        assert other["tau²"] == pytest.approx(max(0.0, both.tau2), abs=1e-9), "statsmodels lets it be below 0"
        w = 1 / (v + max(0.0, both.tau2))
        mean = (w * t).sum() / w.sum()
        knapp = math.sqrt((w * (t - mean) ** 2).sum() / ((SITES - 1) * w.sum()))
        if both.tau2 > 0:
            seen += 1
            assert (mean, knapp) == pytest.approx((both.mean_effect_re, both.sd_eff_w_re_hksj), rel=1e-9)
        assert row["random"] == pytest.approx(mean, rel=1e-7)
        assert row["random to"] == pytest.approx(mean + stats.t.ppf(0.975, SITES - 1) * knapp, rel=1e-6)
    assert seen, "some coefficient differs between the sites"


def test_a_meta_analysis_of_four_sites_is_refused(folder: Path) -> None:
    """Seven sums of a coefficient, and two numbers of each site: with four sites they could be solved."""
    source = "model.source=meta-analysis?family=probit"
    said = typed(["fit", "meta-analysis.toml", "--to", "fits/few", "--set", source], folder)
    assert said.code == 2 and "meta-analysis?family=probit" in said.err
    agreed = msgspec.structs.replace(read(folder / "meta-analysis.json"), sites=4)
    with pytest.raises(ConfigError, match="a meta-analysis of 4 sites"):
        FAMILIES["meta-analysis"].design({"family": "logistic"}, agreed)


def test_sums_over_sites_of_categories_alone_tell_each_site_s_counts() -> None:
    """Why they are refused: of two arms with known sizes few events of five sites have three of the seven sums."""
    rng, each, wanted, truth = np.random.default_rng(1), list[np.ndarray](), np.zeros(3), list[tuple[int, int]]()
    for _ in range(SITES):
        first, second = (int(one) for one in rng.integers(15, 30, 2))
        a, c = (one.ravel() for one in np.meshgrid(np.arange(1, first), np.arange(1, second), indexing="ij"))
        t, w = np.log(c * (first - a) / (a * (second - c))), 1 / (1 / a + 1 / (first - a) + 1 / c + 1 / (second - c))
        each.append(np.stack([w, w * t, w * t * t], 1))
        place = int(rng.integers(len(a)))
        truth.append((int(a[place]), int(c[place])))
        x = np.repeat([[1.0, 0], [1, 0], [1, 1], [1, 1]], [a[place], first - a[place], c[place], second - c[place]], 0)
        y = np.repeat([1.0, 0, 1, 0], [a[place], first - a[place], c[place], second - c[place]])
        (estimate,), (variance,) = own_model("logistic", x, y)
        wanted += np.array([1, estimate, estimate**2]) / variance
        assert each[-1][place] == pytest.approx(np.array([1, estimate, estimate**2]) / variance, rel=1e-6)
        if len(truth) == 1:
            wanted -= each[-1][place]  # its own, for an attacker that is a site
    left, right = ((a[:, None] + b).reshape(-1, 3) for a, b in (each[1:3], each[3:5]))
    order = np.argsort(right[:, 0])
    ends = [np.searchsorted(right[order, 0], wanted[0] - left[:, 0] + side * 1e-7) for side in (-1, 1)]
    near = [(i, j) for i in np.flatnonzero(ends[1] > ends[0]) for j in order[ends[0][i] : ends[1][i]]]
    found = {tuple(np.round(left[i], 6)) for i, j in near if np.abs(left[i] + right[j] - wanted).max() < 1e-7}
    assert 1 <= len(found) <= 4, "of 25 000 000 000"


@pytest.mark.parametrize("name", ["meta-analysis?family=logistic", "mixed-logistic"])
def test_sums_over_sites_are_of_a_column_of_many_values(name: str, folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("*.csv"):
        shutil.copy(file, tmp_path)
    (tmp_path / "t.toml").write_text(own_tables("t", "label=ill&keep=ward,grade", source=name))
    assert typed(["data", "agree", "t.toml"], tmp_path).code == 0
    said = typed(["fit", "t.toml"], tmp_path)
    assert said.code == 2, said
    assert f"{name.partition('?')[0]} without a column of many values: its sums would count" in said.err
    (tmp_path / "t.toml").write_text(own_tables("t", "label=ill&keep=ward,age", source=name, agreed="two"))
    assert typed(["data", "agree", "t.toml"], tmp_path).code == 0
    assert typed(["fit", "t.toml"], tmp_path).code == 0


# --- elastic net ------------------------------------------------------------------------------------------------------


def unscaled(folder: Path, found: FamilyFit) -> tuple[np.ndarray, np.ndarray]:
    """Return columns in agreed deviations, without their ones, and the estimates of these."""
    mean, deviation = (np.array(one) for one in (found.design.mean, found.design.deviation))
    return (design(everybody(folder))[:, 1:] - mean) / deviation, np.array(found.column(0, "of a deviation")[1:], float)


@pytest.mark.parametrize("l1", [1.0, 0.3, 0.0])
def test_a_penalised_logistic_model_is_that_of_all_records_in_one_place(folder: Path, l1: float) -> None:
    """By scikit-learn to its own precision, and by the conditions of a minimum to 1e-10 of the largest gradient."""
    from sklearn.linear_model import LogisticRegression

    source = f"model.source=elastic-net?family=logistic&lambda=0.03&l1={l1:g}"
    found = fitted(folder, "elastic-net", "--set", source)
    x, b = unscaled(folder, found)
    y, records = everybody(folder)["ill"] == "yes", SITES * ROWS
    theirs = LogisticRegression(C=1 / (0.03 * records), l1_ratio=l1, solver="saga", tol=1e-10, max_iter=100_000)
    assert b == pytest.approx(theirs.fit(x, y).coef_[0], abs=1e-6)
    raw = design(everybody(folder)) @ np.array(found.column(0, "estimate"), float)
    gradient = x.T @ (y - 1 / (1 + np.exp(-raw))) / records
    assert l1 < 1 or (b == 0).any(), "the lasso leaves some column out"
    used = b != 0
    assert gradient[used] == pytest.approx(0.03 * (l1 * np.sign(b[used]) + (1 - l1) * b[used]), abs=1e-10)
    assert (np.abs(gradient[~used]) <= 0.03 * l1).all()


def test_a_path_of_linear_models_is_judged_as_scikit_learn_judges_it(folder: Path) -> None:
    """Two rounds of sums; the same folds, lambdas and mean squared errors, and the chosen model, to 1e-8."""
    from sklearn.linear_model import Lasso

    more = ("--set", "model.source=elastic-net?family=linear&path=8&folds=3", "--set", "task.kind=regression")
    query = "label=cost&drop=ill,grade,visits,days,died,person,pressure"
    labels = (f"data.source=csv:site-{{peer}}.csv?{query}", f"data.test=csv:test.csv?{query}", "data.agreed=cost.json")
    sets = [word for one in labels for word in ("--set", one)]
    agreed = typed(["data", "agree", "elastic-net.toml", *sets, "--set", "task.kind=regression"], folder)
    assert agreed.code == 0, agreed
    found = fitted(folder, "elastic-net", *more, *sets)
    x, b = unscaled(folder, found)
    y, fold = everybody(folder)["cost"], np.tile(np.arange(ROWS) % 3, SITES)
    sizes = np.array(found.column(1, "lambda"), float)
    assert sizes[0] == pytest.approx(np.abs(x.T @ (y - y.mean())).max() / len(y), rel=1e-12)
    judged = np.zeros((3, 8))
    for k in range(3):
        for place, size in enumerate(sizes):
            model = Lasso(size, tol=1e-14, max_iter=100_000).fit(x[fold != k], y[fold != k])
            judged[k, place] = np.mean((y[fold == k] - model.predict(x[fold == k])) ** 2)
    assert found.column(1, "judged") == pytest.approx(judged.mean(0), rel=1e-8)
    chosen = sizes[judged.mean(0).argmin()]
    assert b == pytest.approx(Lasso(chosen, tol=1e-14, max_iter=100_000).fit(x, y).coef_, rel=1e-8)


@pytest.mark.parametrize("family", ["poisson", "gamma"])
def test_penalised_counts_and_costs_are_at_their_minimum(folder: Path, family: str) -> None:
    """The penalty that is 0 gives the generalised linear model's own estimates."""
    label = {"poisson": "visits", "gamma": "cost"}[family]
    others = ",".join(one for one in COLUMNS[3:] if one != label)
    labels = (f"data.source=csv:site-{{peer}}.csv?label={label}&drop={others}", "task.kind=regression",
              f"data.test=csv:test.csv?label={label}&drop={others}", f"data.agreed={label}.json")  # fmt: skip
    sets = [word for one in labels for word in ("--set", one)]
    if not (folder / f"{label}.json").exists():
        assert typed(["data", "agree", "elastic-net.toml", *sets], folder).code == 0
    found = fitted(folder, "elastic-net", *sets, "--set", f"model.source=elastic-net?family={family}&lambda=0")
    beside = typed(["fit", "elastic-net.toml", "--to", f"fits/{family}", *sets, "--set", f"model.source=glm:{family}"],
                   folder)  # fmt: skip
    assert beside.code == 0, beside
    estimates = [one["estimate"] for one in msgspec.json.decode(
        (folder / f"fits/{family}/fit.json").read_bytes())["coefficients"]]  # fmt: skip
    assert found.column(0, "estimate") == pytest.approx(estimates, rel=1e-8)


@pytest.mark.parametrize("name", [name for name, one in FAMILIES.items() if one.predicts])
def test_a_family_that_predicts_says_of_a_table_what_its_estimates_say(name: str, folder: Path, tmp_path: Path) -> None:
    """Probabilities and mean counts by the printed estimates, in float32 as those of trained models."""
    found = fitted(folder, name)
    said = typed(["predict", into(name), "test.csv", "--out", str(tmp_path / "out.csv")], folder)
    assert said.code == 0, said
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    x = design({one: np.array([row[one] if one == "ward" else float(row[one]) for row in rows])
                for one in ("age", "salt", "ward")})  # fmt: skip
    estimates = np.array(found.column(0, "estimate"), float)
    eta = (
        x @ estimates[: len(estimates) // 5 * 5].reshape(-1, 5).T
    )  # the last of a negative binomial model is log alpha
    if name == "negative-binomial":
        told, named = np.exp(eta[:, 0]), "predicted visits"
    elif name == "mixed":
        told, named = eta[:, 0], "predicted pressure"
    else:
        odds = np.exp(eta)
        told = (odds / (1 + odds.sum(axis=1, keepdims=True)))[:, -1]
        named = f"probability of {found.design.classes[-1]}"
    assert [float(row[named]) for row in rows] == pytest.approx(told, rel=2e-5)
    assert typed(["evaluate", into(name), "test.csv"], folder).code == 0


# --- mixed models -----------------------------------------------------------------------------------------------------


def clusters(of: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the cluster of each record: a person of one site."""
    site = np.repeat(np.arange(SITES), len(of["person"]) // SITES)
    return np.unique([f"{one} {other}" for one, other in zip(site, of["person"], strict=True)], return_inverse=True)[1]


def restricted(
    x: np.ndarray, y: np.ndarray, same: np.ndarray, theta: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return estimates, errors, s^2 and the restricted log likelihood by the covariance of all records, [m, m]."""
    v, free = np.eye(len(y)) + theta * same, len(y) - x.shape[1]
    a = x.T @ np.linalg.solve(v, x)
    b = np.linalg.solve(a, x.T @ np.linalg.solve(v, y))
    s2 = float((y - x @ b) @ np.linalg.solve(v, y - x @ b)) / free
    dets = np.linalg.slogdet(v)[1] + np.linalg.slogdet(a)[1]
    return b, np.sqrt(np.diag(s2 * np.linalg.inv(a))), s2, -(free * (math.log(2 * math.pi * s2) + 1) + dets) / 2


def test_a_mixed_model_is_that_of_all_records_in_one_place(folder: Path) -> None:
    found, of = fitted(folder, "mixed"), everybody(folder)
    x, turned = standard(design(of))
    cluster, y = clusters(of), of["pressure"]
    same = (cluster[:, None] == cluster).astype(float)
    (_, between, _), (_, residual, _) = found.tables[1].rows
    theta = between / residual
    b, errors, s2, likelihood = restricted(x, y, same, theta)
    aside = [restricted(x, y, same, theta * by)[3] for by in (0.9999, 1.0001)]
    assert max(aside) < likelihood and abs(aside[0] - aside[1]) < 1e-9, "theta is at the maximum"
    assert found.column(0, "estimate") == pytest.approx((turned @ b).tolist(), rel=1e-9)
    wanted = np.sqrt(
        np.diag(turned @ (s2 * np.linalg.inv(x.T @ np.linalg.solve(np.eye(len(y)) + theta * same, x))) @ turned.T)
    )
    assert found.column(0, "std. error") == pytest.approx(wanted.tolist(), rel=1e-9)
    assert residual == pytest.approx(s2, rel=1e-9) and len(errors) == 5 and 5 < math.sqrt(between) < 13
    told = {line.split(" ", 1)[0]: line for line in found.remarks}
    in_units = likelihood + np.log(np.diag(turned)).sum()  # of columns as they are
    assert float(told["restricted"].split()[-1]) == pytest.approx(in_units, rel=1e-7)
    ratio = 2 * (likelihood - restricted(x, y, same, 0.0)[3])
    assert f"likelihood ratio {ratio:.4g}," in told["without"]
    share = [float(one) for one in re.findall(r"[\d.]+", told["share"].replace("95 %", ""))]
    for one in share[1:]:  # the profile falls by half of chi squared's 95 %
        assert 2 * (likelihood - restricted(x, y, same, one / (1 - one))[3]) == pytest.approx(3.8415, abs=0.01)


def test_statsmodels_has_the_same_mixed_model(folder: Path) -> None:
    """At our ratio of variances: its own optimiser stops at 1e-5 of it, with a smaller likelihood."""
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    lmm = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    found, of = fitted(folder, "mixed"), everybody(folder)
    x, turned = standard(design(of))
    model = models.MixedLM(of["pressure"], x, groups=clusters(of))
    (_, between, _), (_, residual, _) = found.tables[1].rows
    at = lmm.MixedLMParams.from_components(np.zeros(5), cov_re=np.array([[between / residual]]))
    b = model.get_fe_params(at.cov_re, np.zeros(0))[0]
    at = lmm.MixedLMParams.from_components(b, cov_re=at.cov_re)
    theirs = model.fit(reml=True)
    assert found.column(0, "estimate") == pytest.approx((turned @ b).tolist(), rel=1e-9)
    assert model.get_scale(b, at.cov_re, np.zeros(0)) == pytest.approx(residual, rel=1e-9)
    assert theirs.llf <= model.loglike(at, profile_fe=False) + 1e-9
    assert between == pytest.approx(theirs.cov_re[0, 0], rel=1e-3) and residual == pytest.approx(theirs.scale, rel=1e-3)


def mixed_sums(
    sites: list[ClusteredSample], suppress: int = 5, **options: str
) -> tuple[FamilyDesign, FamilyLayout, list[PooledRound]]:
    d = FamilyDesign(
        family="mixed", options={"by": "person", **options}, outcome="y", columns=("a", "b=yes"), places=(0, 1),
        encoding=TableEncoding((EncodedColumn("a"), EncodedColumn("b", categories=("no", "yes")))),
        mean=(0.0, 0.0), deviation=(1.0, 1.0), suppress=suppress,
    )  # fmt: skip
    layout = FamilyLayout(d, FAMILIES["mixed"])
    task = FamilyTask(layout, dict(enumerate(sites)), suppress)
    pooled = task.initial(0)
    for number in range(layout.rounds):
        pooled = total([pooled, *(task.sums(Job(node, number, pooled)) for node in range(len(sites)))], 256)
    return d, layout, layout.pooled(pooled)


def clustered(seed: int, sizes: list[int], between: float = 1.0) -> ClusteredSample:
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    x = np.column_stack([np.ones(len(cluster)), rng.normal(size=len(cluster)), rng.random(len(cluster)) < 0.5])
    u = rng.normal(0, between, len(sizes))[cluster] if between else 0.0
    return ClusteredSample(x, x @ [1.0, 0.5, -0.5] + u + rng.normal(size=len(cluster)), cluster)


def agreed_on() -> AgreedTable:
    return unknown(TableSchema((SchemaColumn("a"), SchemaColumn("y", label=True))), 5)


def test_clusters_without_a_variance_of_their_own_are_those_of_least_squares() -> None:
    site = clustered(3, [3] * 40, 0.0)
    site = ClusteredSample(site.x, site.x @ [1.0, 0.5, -0.5] + np.tile([1.0, 0.0, -1.0], 40), site.cluster)
    d, _, pooled = mixed_sums([site] * 3)
    found = FAMILIES["mixed"].result(d, pooled, agreed_on())
    assert found is not None and found.tables[1].rows[0][1:] == (0.0, 0.0)
    b = np.linalg.lstsq(site.x, site.y, rcond=None)[0]
    assert [row[1] for row in found.tables[0].rows] == pytest.approx(b.tolist(), rel=1e-9)
    assert "p 1 (" in found.remarks[1] and found.remarks[0].startswith(
        "share of person in the variance 0, 95 % from 0 to"
    )


@pytest.mark.parametrize(
    ("sizes", "why", "advice"),
    [
        ([3] * 20 + [5], "clusters by person of 5 records: fewer than 5", "mixed?by=person&first=3"),
        ([3] * 20 + [5, 6], "of 5, 6 records: fewer than 5", "mixed?by=person&first=5"),
        ([1] * 20, "each cluster by person has one record", "glm:linear"),
        ([2], "of 2 records: fewer than 5", "glm:linear"),
    ],
)
def test_sizes_that_few_clusters_have_are_refused_by_sites_and_in_the_end(
    sizes: list[int], why: str, advice: str
) -> None:
    sites = [clustered(seed, sizes) for seed in range(3)]
    d, layout, pooled = mixed_sums(sites)
    assert why in layout.family.uneven(d, sites[0], 1, pooled[:1])
    with pytest.raises(TrainingError, match=re.escape(why)) as error:
        layout.family.result(d, pooled, agreed_on())
    assert advice in error.value.advice


@pytest.mark.parametrize("seed", range(50))
def test_each_size_of_a_cluster_is_of_none_or_of_enough_at_a_site(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, least = rng.integers(1, 9, rng.integers(5, 60)), int(rng.integers(1, 6))
    found = enough_of_each(sizes, least)
    assert (found <= sizes).all() and (np.unique(found[found > 0], return_counts=True)[1] >= least).all()
    kept = [one for one in np.unique(sizes) if (sizes == one).sum() >= least]
    assert all((found[sizes == one] == one).all() for one in kept) and found.any()


@pytest.mark.parametrize("source", ["mixed?by=person", "gee?by=person&family=linear"])
def test_a_coordinator_that_lies_of_sizes_receives_no_sums_of_few_clusters(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person of one site alone has four visits: T_4 of the site would be those of her record."""
    for site in range(SITES):
        lines, rng = ["age,pressure,person"], np.random.default_rng(site)
        for person in range(20):
            visits = 4 if (site, person) == (0, 3) else 2 + person % 2
            lines += [f"{rng.integers(20, 90)},{rng.normal(120, 9):.2f},p{person}" for _ in range(visits)]
        (tmp_path / f"site-{site}.csv").write_text("\n".join(lines) + "\n")
    shutil.copy(tmp_path / "site-1.csv", tmp_path / "test.csv")
    text = own_tables("t", "label=pressure&keep=age", source=source, more=NUMBERS)
    (tmp_path / "t.toml").write_text(text)
    assert typed(["data", "agree", "t.toml"], tmp_path).code == 0
    monkeypatch.chdir(tmp_path)
    _, task, refused = planned_fit(load_experiment(tmp_path / "t.toml")).of_sites(range(SITES))
    layout, own = task.layout, task.layout.pooled(task.sums(Job(0, 0, task.initial(0))))[0]
    lie = {name: np.full_like(one, 99) for name, one in own.of.items() if name not in ("sites", "records")}
    said = layout.vector(0, 999, lie)
    assert not refused and task.uneven(0, 1, said) == ""
    assert own["clusters"].tolist()[:4] == [0, 10, 10, 0]
    if source.startswith("mixed"):
        between = layout.pooled(task.sums(Job(0, 1, said)))[1]["between"].reshape(50, -1)
        assert [n + 1 for n in np.flatnonzero(between.any(axis=1))] == [2, 3]
    found = typed(["fit", "t.toml"], tmp_path)
    assert found.code == 0 and "records count: where few clusters of a site have as many records" in found.out, found


def test_a_site_sends_no_sums_of_clusters_with_a_category_of_its_own() -> None:
    """Ten clusters of one site have it: a coordinator that claims it to be at three sites received their sums."""
    sites = [clustered(seed, [6] * 20) for seed in range(3)]
    for number, one in enumerate(sites):
        one.x[:, 2] = (number == 0) & (one.cluster < 10)
    d, layout, pooled = mixed_sums(sites)
    told = [layout.family.uneven(d, one, 1, pooled[:1]) for one in sites]
    assert told == ["clusters with b=yes are of no other site", "", ""]


def test_a_category_of_few_clusters_is_refused_though_it_has_many_records() -> None:
    sites = [clustered(seed, [6] * 20) for seed in range(3)]
    for one in sites:
        one.x[:, 2] = one.cluster == 0
    d, _, pooled = mixed_sums(sites)
    with pytest.raises(TrainingError, match=r"column 'b=yes': a value, .* is of fewer than 5 clusters by person"):
        FAMILIES["mixed"].result(d, pooled, agreed_on())


def test_a_mixed_model_is_of_a_column_outside_of_the_model(folder: Path) -> None:
    for source, said in (
        ("mixed", "A random effect of each site would disclose each"),
        ("mixed?by=ward", "it is a column of the model, or its label"),
        ("mixed?by=person&first=1", "It is a number from 2 to 50"),
        ("mixed?by=nobody", "no column 'nobody'"),
        ("gee?family=linear", "gee: no column of clusters"),
        ("gee?by=ward&family=linear", "it is a column of the model, or its label"),
        ("gee?by=person&family=logistic", "another label"),
        ("gee?by=person&family=probit", "gee?family=probit"),
    ):
        found = typed(["fit", "mixed.toml", "--to", "fits/no", "--set", f"model.source={source}"], folder)
        assert found.code and said in found.out + found.err, found
    cut = fitted(folder, "mixed", "--set", "model.source=mixed?by=person&first=2")
    assert cut.records == 250 and "of a larger cluster the first 2 records count" in cut.remarks


# --- estimating equations ---------------------------------------------------------------------------------------------

EQUATIONS = {"logistic": ("gee", "ill"), "poisson": ("negative-binomial", "visits"), "gamma": ("mixed", "pressure"),
             "linear": ("mixed", "pressure")}  # fmt: skip
"""The experiment with such a label, and the label, by the family of estimating equations."""


def gee(folder: Path, family: str) -> tuple[FamilyFit, np.ndarray, float]:
    """Return the fit, its outcomes, and the correlation."""
    name, label = EQUATIONS[family]
    found, of = fitted(folder, name, "--set", f"model.source=gee?by=person&family={family}"), everybody(folder)
    return found, (of["ill"] == "yes").astype(float) if label == "ill" else of[label], float(found.tables[1].rows[0][1])


def test_estimating_equations_are_those_of_all_records_in_one_place(folder: Path) -> None:
    """By the covariance of each cluster's records as Liang and Zeger have it, and the errors of their sandwich."""
    found, y, alpha = gee(folder, "logistic")
    x, turned = standard(design(of := everybody(folder)))
    cluster, b = clusters(of), np.linalg.solve(turned, np.array(found.column(0, "estimate"), float))
    mu = 1 / (1 + np.exp(-x @ b))
    r, u, bread, pairs, tied = (y - mu) / np.sqrt(mu * (1 - mu)), [], np.zeros((5, 5)), 0, 0.0
    for one in range(cluster.max() + 1):
        mine = np.flatnonzero(cluster == one)
        d = x[mine] * (mu * (1 - mu))[mine, None]
        half = np.diag(np.sqrt(mu * (1 - mu))[mine])
        v = half @ (alpha + (1 - alpha) * np.eye(len(mine))) @ half
        u.append(d.T @ np.linalg.solve(v, (y - mu)[mine]))
        bread += d.T @ np.linalg.solve(v, d)
        tied += sum(r[i] * r[j] for i, j in itertools.combinations(mine, 2))
        pairs += len(mine) * (len(mine) - 1) // 2
    spread = np.linalg.inv(bread) @ (np.array(u).T @ np.array(u)) @ np.linalg.inv(bread)
    errors = np.sqrt(np.diag(turned @ spread @ turned.T))
    assert np.abs(np.linalg.solve(bread, sum(u)) / np.sqrt(np.diag(spread))).max() < 1e-8
    assert found.column(0, "std. error") == pytest.approx(errors.tolist(), rel=1e-9)
    assert alpha == pytest.approx(tied / (pairs - 5) / ((r @ r) / (len(y) - 5)), abs=2e-9)
    assert found.records == len(y) and abs(alpha) > 0.01, "it is another fit than that of single records"


@pytest.mark.parametrize("family", EQUATIONS)
def test_statsmodels_has_the_same_estimating_equations(family: str, folder: Path) -> None:
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    families, links = models.families, models.families.links
    of_family = {"logistic": families.Binomial(), "poisson": families.Poisson(), "linear": families.Gaussian(),
                 "gamma": families.Gamma(links.Log())}[family]  # fmt: skip
    found, y, alpha = gee(folder, family)
    x, turned = standard(design(of := everybody(folder)))
    same = models.cov_struct.Exchangeable()
    theirs = models.GEE(y, x, clusters(of), family=of_family, cov_struct=same).fit(maxiter=100, ctol=1e-9)
    errors = np.sqrt(np.diag(turned @ theirs.cov_robust @ turned.T))
    ours = np.array(found.column(0, "estimate"), float)
    rounded = family == "poisson"  # few records have the largest counts: errors have two digits, estimates one more
    assert any(one.startswith("rounded") for one in found.remarks) == rounded
    assert np.abs((ours - turned @ theirs.params) / errors).max() < (5.3e-3 if rounded else 1e-8)
    assert found.column(0, "std. error") == pytest.approx(errors.tolist(), rel=5e-2 if rounded else 1e-8)
    assert alpha == pytest.approx(float(same.dep_params), abs=5e-3 if rounded else 1e-8)


def equations(suppress: int = 5) -> FamilyDesign:
    return FamilyDesign(
        family="gee", options={"by": "person", "family": "linear"}, outcome="y", columns=("a", "b=yes"), places=(0, 1),
        encoding=TableEncoding((EncodedColumn("a"), EncodedColumn("b", categories=("no", "yes")))),
        mean=(0.0, 0.0), deviation=(1.0, 1.0), suppress=suppress,
    )  # fmt: skip


def test_sums_at_several_correlations_are_those_of_each_size_of_a_cluster() -> None:
    """Why each size is of none or of enough clusters: by four correlations the squares of sums of three sizes."""
    site, d = clustered(3, [1] * 8 + [2] * 6 + [4] * 5), equations()
    alphas, own = np.array([0.0, 0.2, 0.4, 0.6]), site.summed(site.x)
    sums = [(1 - a) * ClusterSums.at(d, site, np.zeros(3), a).information for a in alphas]
    shares = np.column_stack([np.ones(4), *(-alphas / (1 - alphas + n * alphas) for n in (1, 2, 4))])
    solved = np.linalg.solve(shares, np.array(sums).reshape(4, -1)).reshape(4, 3, 3)
    for one, n in zip(solved[1:], (1, 2, 4), strict=True):
        assert one == pytest.approx(own[site.sizes == n].T @ own[site.sizes == n], abs=1e-9)


def test_estimating_equations_refuse_a_point_at_which_few_clusters_count() -> None:
    """Though fifteen records do: they are of three persons."""
    d, site = (
        msgspec.structs.replace(equations(), options={"by": "person", "family": "logistic"}),
        clustered(3, [5] * 20),
    )
    site.x[:, 1] = np.where(site.cluster < 3, 0.0, 9.0)
    site = ClusteredSample(site.x, (site.y > 0).astype(float), site.cluster)
    layout = FamilyLayout(d, FAMILIES["gee"])
    task = FamilyTask(layout, {0: site, 1: site, 2: site}, 5)
    pooled = total([task.initial(0), *(task.sums(Job(node, 0, task.initial(0))) for node in range(3))], 256)
    lie = {"gradient": [0.0, 3.0, 0.0], "information": [1.0, 0.0, 0.0, 1.0, 0.0, 1.0], "squares": [1e9], "tied": [1e9]}
    assert task.uneven(0, 1, pooled) == ""
    far = pooled
    for number in range(1, 9):  # the third column's step of a half, eight times
        far = total([far, layout.vector(number, 900, lie)], 256)
    assert "clusters count there" in task.uneven(0, 9, far)


# --- the same file everywhere -----------------------------------------------------------------------------------------


EVERYWHERE = [*FAMILIES, "clustered"]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_command_writes_the_file_of_plain_sums(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round, each site's numbers added without messages."""
    assert command(folder, name).code == 0
    monkeypatch.chdir(folder)
    assert (folder / f"fits/{name}0/tables.json").read_bytes() == by_hand(folder, name, {})


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(300)  # 6 processes
@pytest.mark.parametrize("name", EVERYWHERE)
def test_processes_write_the_file_of_the_simulation(name: str, folder: Path, tmp_path: Path) -> None:
    assert command(folder, name).code == 0
    agreed = "firth.json" if name == "clustered" else f"{name}.json"
    where = machines(folder, tmp_path, [f"{name}.toml", agreed, "test.csv"])
    said = fit_on(where, name)
    assert [one.code for one in said] == [0] * (SITES + 1), said
    written = {(one / "fit/tables.json").read_bytes() for one in where}
    assert written == {(folder / f"fits/{name}0/tables.json").read_bytes()}


SHARING = ("multinomial", "ordinal", "firth", "elastic-net", "mixed-logistic", "negative-binomial", "weibull")


def random_sample(name: str, seed: int) -> tuple[FamilyDesign, SiteSample, bool]:
    """Draw records of two or three columns of few categories, each second time with a column of numbers beside them;
    return whether fewer than 5 share two categories, or a category and an outcome, as counted here."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    m, numbers = int(rng.integers(60, 120)), seed % 2
    shares = [rng.dirichlet(np.ones(k) * (2 if seed % 3 else 99)) for k in rng.integers(2, 4, int(rng.integers(2, 4)))]
    drawn = [rng.choice(len(one), m, p=one) for one in shares]
    encoding = [EncodedColumn(f"c{k}", categories=tuple("abc"[: len(one)])) for k, one in enumerate(shares)]
    named = [(f"c{k}={word}", one == j) for k, one in enumerate(drawn) for j, word in ((1, "b"), (2, "c")) if j in one]
    named += [("age", rng.normal(size=m))] * numbers
    classes = 3 if name in SHARING[:2] else 2
    y = rng.choice(classes, m, p=[0.3, 0.4, 0.3] if classes == 3 else [0.5, 0.5])
    tables = [np.array([[((one == a) & (other == b)).sum() for a in range(3)] for b in range(3)])
              for one, other in itertools.combinations([*drawn, y], 2)]  # fmt: skip
    if name == "negative-binomial" and seed % 2:
        y = y * rng.integers(1, 4, m)  # of counts the sums of categories, which are no records
        pairs = itertools.combinations(drawn, 2)
        tables = [np.array([[((a == i) & (b == j)).sum() for i in range(3)] for j in range(3)]) for a, b in pairs]
        tables += [np.bincount(one, y) for one in drawn]
    few = any(((table > 0) & (table < 5)).any() for table in tables)
    design = FamilyDesign(
        family=name, options={"family": "logistic", "lambda": "0.01"} if name == "elastic-net" else {}, suppress=5,
        classes=tuple("abc"[:classes]) if name in SHARING[:5] else (), outcome="y,z" if name == "weibull" else "y",
        encoding=TableEncoding((*encoding, EncodedColumn("age"))), columns=tuple(one for one, _ in named),
        places=tuple(range(len(named))), mean=(0.0,) * len(named), deviation=(1.0,) * len(named),
    )  # fmt: skip
    outcome = np.column_stack([rng.weibull(1.3, m), y]) if name == "weibull" else y[:, None]
    x = np.column_stack([np.ones(m), *(one for _, one in named)])
    return design, SiteSample(x, outcome.astype(float)), few


@pytest.mark.parametrize("name", SHARING)
def test_a_family_tells_not_how_few_share_two_categories(name: str, request: pytest.FixtureRequest) -> None:
    """Of categories alone there is no fit then; beside a column of numbers errors have two digits, as those of glm."""
    seen, layout = set(), None
    for seed in range(200 if request.config.getoption("--long") else 6):
        d, sample, few = random_sample(name, seed)
        layout = FamilyLayout(d, FAMILIES[name])
        parts = {site: SiteSample(sample.x[site::SITES], sample.y[site::SITES]) for site in range(SITES)}
        task = FamilyTask(layout, parts, 5)
        pooled = task.initial(0)
        for number in range(layout.rounds):
            pooled = total([pooled, *(task.sums(Job(site, number, pooled)) for site in parts)], 256)
        if few and "age" not in d.columns:
            seen.add("refused")
            with pytest.raises(TrainingError, match="no column is of numbers"):
                FAMILIES[name].result(d, layout.pooled(pooled), unknown(TableSchema(()), 5))
            continue
        found = FAMILIES[name].result(d, layout.pooled(pooled), unknown(TableSchema(()), 5))
        assert found is not None and any(one.startswith("rounded") for one in found.remarks) == few, seed
        seen.add("rounded" if few else "exact")
        # elastic nets tell no errors, mixed models two digits always: estimates have three digits of one, some 0.2 here
        of_estimates = name in ("elastic-net", "mixed-logistic")
        told = [row[1 if of_estimates else 2] for row in found.tables[0].rows]
        short = [isinstance(one, float) and one == (round(one, 3) if of_estimates else float(f"{one:.2g}"))
                 for one in told if one is not None]  # fmt: skip
        assert not short or few == all(short), (seed, told)
    assert seen == {"refused", "rounded", "exact"}


# --- an outcome that does not vary ------------------------------------------------------------------------------------

OF_ONE_VALUE = {
    "label=score&drop=kind,died": [
        "glm:linear", "glm:linear?errors=robust", "glm:poisson", "glm:gamma", "negative-binomial",
        "meta-analysis?family=linear", "elastic-net?family=linear&lambda=0.1",
    ],
    "label=kind&drop=score,died": ["glm:logistic", "multinomial", "ordinal", "firth", "trees:3x2"],
    "label=score,died&drop=kind": ["weibull"],
}  # fmt: skip
"""Models by the query of their tables."""


@pytest.mark.parametrize("query", OF_ONE_VALUE)
def test_an_outcome_of_one_value_is_refused_by_every_model(query: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for name in [*(f"site-{site}" for site in range(SITES)), "test"]:
        rows = [f"{age},5,middle,{k % 2}" for k, age in enumerate(rng.integers(20, 90, 60))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,score,kind,died", *rows]) + "\n")
    sources = OF_ONE_VALUE[query]
    more = "" if query.startswith("label=kind") else NUMBERS
    (tmp_path / "e.toml").write_text(own_tables("e", query, source=sources[0], more=more))
    assert (said := typed(["data", "agree", "e.toml"], tmp_path)).code == 0, said
    for source in sources:
        said = typed(["fit", "e.toml", "--to", "fit", "--set", f"model.source={source}"], tmp_path)
        assert said.code == 2 and query[6:].partition("&")[0].split(",")[0] in said.errors[0], (source, said)
        assert "one value" in said.errors[0] or "1 class" in said.errors[0] or "all 300" in said.errors[0], said


def test_a_site_that_its_own_model_fits_exactly_has_no_error_to_weigh_it_by() -> None:
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    for y in (np.full(60, 5.0), 3 * x[:, 1] - 2):
        with pytest.raises(ConfigError, match="fits each exactly"):
            own_model("linear", x, y)
    assert own_model("linear", x, 3 * x[:, 1] + rng.normal(size=60))[1] > 0
