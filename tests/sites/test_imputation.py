"""Empty cells drawn by chained equations on sums, `data.missing = "impute:K"`: beside the same draws, weighted least
squares and Rubin's rules on all records in one place.
"""

from __future__ import annotations

import csv
import html
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, imputed_tables, own_tables, total

from fedgossip import ConfigError, load_experiment
from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.base.errors import TooFewPeersError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector
from fedgossip.cli.sites.fit import describe
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import read
from fedgossip.data.agreed.sums_task import SumsTask, encoded
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.fit_files import fit_in
from fedgossip.sites.fits.glm.glm_result import GlmFit
from fedgossip.sites.fits.imputation.chained_equations import (
    ITERATIONS,
    DrawnModel,
    ImputationLayout,
    SiteCells,
    SiteTables,
    read_cells,
)
from fedgossip.sites.fits.imputation.imputed_sums import ImputedTask
from fedgossip.sites.fits.imputation.rubin import pooled
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.statistics import agreed_from, statistics_plan, statistics_task
from fedgossip.sites.plans.sums import PlannedFit, summed_here
from fedgossip.sites.releases.fitted import section_of

FAMILIES = {"logistic": "ill", "linear": "cost", "poisson": "visits", "gamma": "cost"}
"""The label of each."""
SETS = 3


def experiment_of(family: str, missing: str = f"impute:{SETS}", more: str = "", options: str = "") -> str:
    label = FAMILIES[family]
    drop = ",".join({"ill", "cost", "visits"} - {label})
    kind = "" if family == "logistic" else '[task]\nkind = "regression"\n'
    text = own_tables(
        family,
        f"label={label}&drop={drop}",
        source=f"glm:{family}{options}",
        more=f'missing = "{missing}"\n{more}{kind}',
    )
    return text.replace("site-{peer}", "gaps-{peer}").replace("csv:test.csv", "csv:gaps.csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("gaps")
    imputed_tables(found)
    for family in FAMILIES:
        (found / f"{family}.toml").write_text(experiment_of(family))
        assert typed(["data", "agree", f"{family}.toml"], found).code == 0
    return found


def summed(fit: PlannedFit, lost: Collection[int] = ()) -> tuple[SumsTask, Vector]:
    """Return the task and the state after all rounds, without messages; `lost` and refused ones have no sum."""
    plan, task, _ = fit.of_sites(range(SITES))
    server = plan.federated.server
    state = server.start(task.initial(0))
    for number in range(plan.experiment.rounds):
        (x,) = server.broadcast(state)
        if number not in lost and not any(task.uneven(site, number, x) for site in range(SITES)):
            sums = total([task.sums(Job(site, number, x)) for site in range(SITES)], plan.exact.ring_bits)
            state = server.step(state, Aggregate((sums,), SITES, 1.0, number))
    return task, server.broadcast(state)[0]


@cache
def ended(folder: Path, family: str) -> tuple[PlannedFit, ImputedTask, Any]:
    """Return a fit of all sites' files, its task after the last round, and its result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fit = planned_fit(load_experiment(folder / f"{family}.toml"))
        task, vector = summed(fit)
        assert isinstance(task, ImputedTask)
        return fit, task, fit.result(vector)


# --- beside all records in one place ----------------------------------------------------------------------------------


def rows_of(folder: Path, family: str) -> tuple[list[list[dict[str, float]]], str]:
    """Return the records of each site as numbers, NaN for an empty cell; and the label."""
    words = {"": math.nan, "yes": 1.0, "no": 0.0}
    found = []
    for site in range(SITES):
        with (folder / f"gaps-{site}.csv").open() as file:
            rows = csv.DictReader(file)
            found.append([{k: words[v] if v in words else float(v) for k, v in row.items()} for row in rows])
    return found, FAMILIES[family]


def drawn_in_one_place(  # noqa: PLR0912 the equations in the order of the papers
    folder: Path, family: str, secrets: Sequence[int], seed: int
) -> list[np.ndarray]:
    """Return the K tables of all records, [m, 3] of age, bmi and smoker: least squares, and Newton's method until it
    rests, on the filled records of all sites; with the draws that the sites have.
    """
    sites, label = rows_of(folder, family)
    agreed = {one.name: one for one in read(folder / f"{family}.json").columns}
    scale = [(agreed[name].mean or 0.0, agreed[name].deviation or 1.0) for name in ("age", "bmi")] + [(0.0, 1.0)]
    of_label = (0.0, 1.0) if family == "logistic" else (agreed[label].mean or 0.0, agreed[label].deviation or 1.0)
    raw = np.array([[row[name] for name in ("age", "bmi", "smoker", label)] for rows in sites for row in rows])
    z = (raw - [m for m, _ in (*scale, of_label)]) / [d for _, d in (*scale, of_label)]
    site = np.repeat(np.arange(SITES), [len(rows) for rows in sites])
    counts = agreed["smoker"].counts
    share = (counts[1] or 0) / sum(one or 0 for one in counts)
    low, high = (
        (end - agreed["bmi"].mean) / agreed["bmi"].deviation for end in (agreed["bmi"].low, agreed["bmi"].high)
    )
    ends = min(-6.0, low), max(6.0, high)
    tables = []
    for table in range(SETS):
        x = z.copy()
        for column, place in enumerate((1, 2)):
            for k in range(SITES):
                empty, draw = np.isnan(z[:, place]) & (site == k), stream(secrets[k], "empty cells", table, -1, column)
                if place == 1:
                    x[empty, 1] = np.clip(draw.standard_normal(empty.sum()), *ends)
                else:
                    x[empty, 2] = draw.random(empty.sum()) < share
        for iteration in range(ITERATIONS):
            for column, place in enumerate((1, 2)):
                empty = np.isnan(z[:, place])
                others = np.column_stack([np.ones(len(x)), np.delete(x, place, axis=1)])
                one, y, common = others[~empty], x[~empty, place], stream(seed, "imputation", table, iteration, column)
                b, deviation, information = np.zeros(4), 0.0, one.T @ one
                if place == 1:
                    b, left, *_ = np.linalg.lstsq(one, y)
                    deviation = math.sqrt(left[0] / common.chisquare(len(y) - 4))
                else:
                    for _ in range(25):
                        mean = 1 / (1 + np.exp(-one @ b))
                        information = one.T @ (one * (mean * (1 - mean))[:, None])
                        b = b + np.linalg.solve(information, one.T @ (y - mean))
                root = np.linalg.cholesky(information)
                b = b + (deviation or 1.0) * np.linalg.solve(root.T, common.standard_normal(4))
                for k in range(SITES):
                    here, draw = empty & (site == k), stream(secrets[k], "empty cells", table, iteration, column)
                    at = others[here] @ b
                    if place == 1:
                        x[here, 1] = np.clip(at + deviation * draw.standard_normal(len(at)), *ends)
                    else:
                        x[here, 2] = draw.random(len(at)) < 1 / (1 + np.exp(-at))
        tables.append(x[:, :3] * [d for _, d in scale] + [m for m, _ in scale])
    return tables


def weighted_least_squares(family: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return estimates, their variances and the deviance of one table, by repeated least squares of root weights."""
    ones = np.column_stack([np.ones(len(x)), x])
    if family == "linear":
        b, left, *_ = np.linalg.lstsq(ones, y)
        return b, np.diag(np.linalg.inv(ones.T @ ones)) * left[0] / (len(y) - ones.shape[1]), float(left[0])
    mean = (y + 0.5) / 2 if family == "logistic" else y + 0.5
    eta = np.log(mean / (1 - mean)) if family == "logistic" else np.log(mean)
    for _ in range(60):
        mean = 1 / (1 + np.exp(-eta)) if family == "logistic" else np.exp(eta)
        slope = mean * (1 - mean) if family == "logistic" else mean
        root = slope / np.sqrt({"logistic": slope, "poisson": mean, "gamma": mean**2}[family])
        b = np.linalg.lstsq(ones * root[:, None], (eta + (y - mean) / slope) * root)[0]
        eta = ones @ b
    variances = np.diag(np.linalg.inv((ones * root[:, None]).T @ (ones * root[:, None])))
    log_of = np.log(np.where(y > 0, y, 1) / mean) * (y > 0)
    if family == "gamma":
        dispersion = (((y - mean) / mean) ** 2).sum() / (len(y) - ones.shape[1])
        return b, variances * dispersion, 2 * float(((y - mean) / mean - log_of).sum())
    if family == "poisson":
        return b, variances, 2 * float((y * log_of - (y - mean)).sum())
    return b, variances, -2 * float(np.log(np.where(y > 0, mean, 1 - mean)).sum())


def by_rubin(fits: Sequence[tuple[np.ndarray, np.ndarray, float]], records: int) -> Mapping[str, np.ndarray]:
    """Return pooled estimates, errors and degrees of freedom, formula by formula."""
    k, q = len(fits), np.array([b for b, *_ in fits])
    within = np.mean([variances for _, variances, _ in fits], axis=0)
    between = ((q - q.mean(axis=0)) ** 2).sum(axis=0) / (k - 1)
    total = within + between + between / k
    share, complete = (between + between / k) / total, records - q.shape[1]
    old, observed = (k - 1) / share**2, (complete + 1) / (complete + 3) * complete * (1 - share)
    free = old * observed / (old + observed)
    r = (between + between / k) / within
    return {
        "estimate": q.mean(axis=0), "error": np.sqrt(total), "within": within, "between": between, "free": free,
        "missing_information": (r + 2 / (free + 3)) / (r + 1),
    }  # fmt: skip


VARIANCES = "within", "between", "free", "missing_information"


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_and_errors_are_those_of_the_same_draws_in_one_place(family: str, folder: Path) -> None:
    fit, task, found = ended(folder, family)
    assert isinstance(found, GlmFit) and found.pooling and found.converged
    secrets = [task._sites[site].cells.secret for site in range(SITES)]
    tables = drawn_in_one_place(folder, family, secrets, fit.plan.experiment.seed)
    for k, expected in enumerate(tables):
        here = np.concatenate([task._imputing.tables[site].features(k) for site in range(SITES)])
        assert np.abs(here[:, [0, 1, 3]] - expected).max() < 1e-8 and np.allclose(here[:, 2] + here[:, 3], 1)
    sites, label = rows_of(folder, family)
    y = np.array([row[label] for rows in sites for row in rows])
    models = [weighted_least_squares(family, x, y) for x in tables]
    expected_of = by_rubin(models, len(y))
    exact = slice(1 if found.rounded else 0, None)  # of few largest counts the intercept's error and all that gives it
    for name in ("estimate", "error"):
        got = np.array([getattr(one, name) for one in found.coefficients])
        assert np.allclose(got[exact], expected_of[name][exact], rtol=1e-8, atol=1e-10), name
    assert found.aic is None and found.rounded == (family == "poisson") == (not found.pooling.variances)
    for one, *expected in zip(found.pooling.variances, *(expected_of[name] for name in VARIANCES), strict=False):
        assert [getattr(one, name) for name in VARIANCES] == pytest.approx(expected, rel=1e-8)
        assert one.total == pytest.approx(one.within + (1 + 1 / SETS) * one.between, rel=1e-12)
    if not found.rounded:
        assert found.deviance == pytest.approx(np.mean([one for *_, one in models]), rel=1e-9)


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_pooled_estimates_and_errors_are_those_of_statsmodels(family: str, folder: Path) -> None:
    models = pytest.importorskip("statsmodels.api", reason="compared with statsmodels")
    mice = pytest.importorskip("statsmodels.imputation.mice", reason="compared with statsmodels")
    _, task, found = ended(folder, family)
    sites, label = rows_of(folder, family)
    y = np.array([row[label] for rows in sites for row in rows])
    fits = []
    for k in range(SETS):
        features = np.concatenate([task._imputing.tables[site].features(k) for site in range(SITES)])
        x = models.add_constant(features[:, [0, 1, 3]])
        logistic = models.GLM(y, x, family=models.families.Binomial())
        fits.append(logistic.fit(tol=1e-14) if family == "logistic" else models.OLS(y, x).fit())
    several = object.__new__(mice.MICE)
    several.results_list, several.model_class = fits, type(fits[0].model)
    several.exog_names, several.endog_names = fits[0].model.exog_names, label
    theirs = several.combine()
    assert [one.estimate for one in found.coefficients] == pytest.approx(theirs.params.tolist(), rel=1e-8)
    errors = np.sqrt(np.diag(theirs.cov_params()))
    assert [one.error for one in found.coefficients] == pytest.approx(errors.tolist(), rel=1e-8)


# --- over many tables -------------------------------------------------------------------------------------------------

TRUE = {"age": 1.0, "bmi": 2.0, "smoker=yes": 4.0}


def often_empty(path: Path, seed: int) -> None:
    """Write records whose bmi is empty in half of those of a high cost, and smoker in a quarter of the old."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "bmi", "smoker", "cost"])
        for _ in range(60):
            age = rng.normal()
            smoker = rng.random() < 1 / (1 + math.exp(-age))
            bmi = 0.7 * age + 0.5 * smoker + rng.normal()
            cost = age + 2 * bmi + 4 * smoker + rng.normal(0, 3)
            weight = "" if rng.random() < 0.1 + 0.5 * (cost > 2) else f"{bmi:.4f}"
            smokes = "" if rng.random() < 0.1 + 0.3 * (age > 0) else "yes" if smoker else "no"
            writer.writerow([f"{age:.4f}", weight, smokes, f"{cost:.4f}"])


def fitted_alone(path: Path, missing: str) -> GlmFit:
    """Return the fit of all sites' files in the working folder, after their agreement, without messages."""
    text = own_tables(
        "cover", "label=cost", source="glm:linear", more=f'missing = "{missing}"\n[task]\nkind = "regression"'
    )
    path.write_text(text)
    experiment = load_experiment(path)
    plan, schema = statistics_plan(experiment)
    plan, statistics, refused = statistics_task(plan, schema, range(SITES))
    assert not refused
    vector = summed_here(plan, statistics, range(SITES))
    Path("cover.json").write_bytes(encoded(agreed_from(statistics, vector, schema, experiment.data.suppress)))
    fit = planned_fit(experiment)
    return fit.result(summed(fit)[1])  # type: ignore[no-any-return]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tables", [8, pytest.param(200, marks=pytest.mark.long)])
def test_intervals_cover_in_95_of_100_tables_where_those_of_means_do_not(
    tables: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = {missing: np.zeros(len(TRUE)) for missing in ("impute:5", "mean")}
    for table in range(tables):
        for site in range(SITES):
            often_empty(tmp_path / f"site-{site}.csv", 1000 + SITES * table + site)
        often_empty(tmp_path / "test.csv", 1000 + SITES * table)
        for missing, count in inside.items():
            fit = fitted_alone(tmp_path / "cover.toml", missing)
            count += [one.low <= TRUE[one.name] <= one.high for one in fit.coefficients if one.name in TRUE]
    error = 3 * math.sqrt(0.95 * 0.05 / tables)
    assert (inside["impute:5"] / tables > 0.95 - error).all(), inside
    assert (inside["mean"] / tables < 0.95 - error).any(), inside


# --- what is refused --------------------------------------------------------------------------------------------------

Row = dict[str, str]
LOGISTIC = "logistic"


def changed(folder: Path, change: Callable[[int, int, Row], Row], text: str = "") -> Callable[..., Output]:
    """Write the tables with each row changed, `change(site, place, row)`, and return the command on them."""
    imputed_tables(folder)
    for site in (*range(SITES), 99):
        path = folder / (f"gaps-{site}.csv" if site < SITES else "gaps.csv")
        with path.open() as file:
            rows = [change(site, place, row) for place, row in enumerate(csv.DictReader(file))]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    (folder / f"{LOGISTIC}.toml").write_text(text or experiment_of(LOGISTIC))
    return lambda *words: typed([*words[:-1], f"{LOGISTIC}.toml", *words[-1:]] if words[-1:] == ("--dry-run",) else
                                [*words, f"{LOGISTIC}.toml"], folder)  # fmt: skip


@pytest.mark.parametrize("missing", ["impute:0", "impute:1", "impute:21", "impute:x", "impute:", "impute", "impute:²"])
def test_a_number_of_tables_without_a_variance_between_them_is_refused(missing: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(experiment_of(LOGISTIC, missing))
    with pytest.raises(ConfigError, match=r"data\.missing = 'impute") as refused:
        load_experiment(tmp_path / "a.toml")
    assert "impute:" in refused.value.advice


@pytest.mark.parametrize("source", ["firth", "table1?by=smoker", "trees:3x2", "softmax"])
def test_another_model_of_imputed_tables_is_refused_before_anything_runs(source: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(experiment_of(LOGISTIC).replace("glm:logistic", source))
    with pytest.raises(ConfigError, match=f'data.missing = "impute:3" with model.source = "{re.escape(source)}"'):
        load_experiment(tmp_path / "a.toml")


def test_an_empty_label_is_refused_and_its_site_takes_no_part(tmp_path: Path) -> None:
    on = changed(tmp_path, lambda site, place, row: {**row, "ill": ""} if (site, place) == (2, 7) else row)
    said = on("data", "agree")
    assert said.code == 4 and "site 2 took no part" in said.err and "nothing there" in said.err, said


def test_a_site_without_a_column_takes_no_part_and_the_others_fit(tmp_path: Path) -> None:
    on = changed(tmp_path, lambda site, _place, row: {**row, "bmi": ""} if site == 1 else row)
    assert on("data", "agree").code == 0
    said = on("fit")
    assert said.code == 4, said
    assert "site 1 took no part: column 'bmi': filled in fewer than 5 records of this site" in said.err, said
    assert "of 4 of 5 sites" in said.out, said


def empty_at_two_sites(site: int, place: int, row: Row) -> Row:
    return row | {"bmi": "" if site < 2 and place % 3 else f"{20 + place % 7}"}


def of_three(_site: int, place: int, row: Row) -> Row:
    return row | {"smoker": row["smoker"] and ("yes", "no", "once")[place % 3]}


def never_empty(_site: int, place: int, row: Row) -> Row:
    return row | {"bmi": f"{20 + place / 7:.2f}", "smoker": "yes" if place % 2 else "no"}


def together_empty(site: int, place: int, row: Row) -> Row:
    """Both columns are empty in the same records, but for two or three."""
    return row | {"smoker": "" if not row["bmi"] and (site or place > 9) else row["smoker"] or "yes"}


REFUSED: dict[str, tuple[Callable[[int, int, Row], Row], str]] = {
    "empty everywhere": (lambda site, _, row: row | {"bmi": "" if site < SITES else "25"}, "filled in too few records"),
    "empty at two sites": (empty_at_two_sites, "column 'bmi': empty at too few sites"),
    "three categories": (of_three, "column 'smoker': 3 categories"),
    "no empty cell": (never_empty, "no column has enough empty cells"),
    "together": (together_empty, "columns 'bmi' and 'smoker': fewer than 5 records have a cell of one alone"),
}
"""Tables, and why they are refused."""


@pytest.mark.parametrize("case", REFUSED)
def test_columns_whose_cells_cannot_be_drawn_are_refused_by_name(case: str, tmp_path: Path) -> None:
    change, expected = REFUSED[case]
    on = changed(tmp_path, change)
    said = on("data", "agree")
    assert said.code == 0, said
    said = on("fit")
    assert said.code in (2, 7, 9) and expected in said.err and "Traceback" not in said.err, said
    assert not (tmp_path / "fits/logistic/fit.json").exists()


def test_a_column_made_of_an_incomplete_one_is_refused(tmp_path: Path) -> None:
    more = '[data.columns."age:bmi"]\nproduct = ["age", "bmi"]\n'
    on = changed(tmp_path, lambda _site, _place, row: row, experiment_of(LOGISTIC, more=more))
    assert on("data", "agree").code == 0
    said = on("fit")
    assert said.code == 2 and "column 'age:bmi': made of 'age' and 'bmi', with empty cells" in said.err, said


def test_columns_that_depend_on_each_other_are_named_and_the_others_are_as_without(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def in_wards(_site: int, place: int, row: Row) -> Row:
        return {"ward": "abc"[place % 3], **row}

    once = changed(tmp_path / "one", in_wards)
    twice = changed(tmp_path / "two", lambda *of: {"months": f"{12 * float(of[2]['age']):.4f}", **in_wards(*of)})
    for on in (once, twice):
        assert on("data", "agree").code == 0
        assert on("fit").code == 0
    one, two = (fit_in(tmp_path / name / "fits/logistic") for name in ("one", "two"))
    assert isinstance(one, GlmFit) and isinstance(two, GlmFit) and two.silent == ("months", "age")
    assert [c.error for c in two.coefficients if c.name in two.silent] == [None, None]
    assert two.pooling and one.pooling and len(two.pooling.variances) == len(one.pooling.variances) - 2
    assert two.rank == one.rank
    (test,) = one.tests
    assert (test.name, test.freedom) == ("ward", 2) and test.free and test.free > 4 and 0 < test.p < 1


def test_a_column_that_others_determine_has_no_model_and_is_named(tmp_path: Path) -> None:
    def change(_site: int, _place: int, row: Row) -> Row:
        return row | {"smoker": row["smoker"] and ("yes" if float(row["age"]) > 60 else "no")}

    on = changed(tmp_path, change)
    assert on("data", "agree").code == 0
    said = on("fit")
    assert said.code in (5, 7, 9) and "'smoker'" in said.err and "Traceback" not in said.err, said
    assert not (tmp_path / "fits/logistic/fit.json").exists()


# --- what sums tell ---------------------------------------------------------------------------------------------------


def test_sums_of_two_sets_of_records_never_differ_by_few(folder: Path) -> None:
    """Of all records, and of those with a cell of each column: any difference is of none, or of `suppress` or more."""
    fit, _, _ = ended(folder, LOGISTIC)
    layout, rng = fit.layout.imputation, np.random.default_rng(0)
    found = {True: 0, False: 0}
    for _ in range(1000):
        sites = []
        for _site in range(int(rng.integers(3, 6))):
            first = rng.random(40) < rng.choice([0.0, 0.05, 0.3])
            sites.append((first, np.where(rng.random(40) < rng.choice([0.0, 0.02, 1.0]), rng.random(40) < 0.2, first)))
        numbers = np.sum([counts_of(layout, empty) for empty in sites], axis=0).tolist()
        one, other = (np.concatenate([empty[k] for empty in sites]) for k in range(2))
        at = [sum(empty[k].any() for empty in sites) for k in range(2)]
        differences = (one, other, one & ~other, other & ~one)
        few = any(0 < many.sum() < 5 for many in differences) or min(one.sum(), other.sum()) < 5 or min(at) < 3
        assert bool(layout.disclosed(numbers)) == few
        found[few] += 1
    assert min(found.values()) > 100, found


def counts_of(layout: ImputationLayout, empty: Sequence[np.ndarray]) -> list[int]:
    cells = SiteCells(np.zeros((40, 4)), np.zeros((40, 4)), empty, 0)
    return SiteTables(layout, cells).first_numbers()


def test_draws_of_a_site_are_a_function_of_its_own_cells(folder: Path, tmp_path: Path) -> None:
    """By the plan's seed alone, which all know, nobody computes them; the same file has the same draws."""
    fit, task, _ = ended(folder, LOGISTIC)
    secrets = [one.cells.secret for one in task._sites.values()]
    assert len(set(secrets)) == SITES and fit.plan.experiment.seed not in secrets

    def read_from(path: Path) -> int:
        return read_cells(fit.layout.imputation.design, fit.agreed, TableFile(path)).secret

    text = (folder / "gaps-0.csv").read_text()
    for name, content in (
        ("same.csv", text),
        ("other.csv", text.replace(text.split("\n")[1].split(",")[0], "61.9", 1)),
    ):
        (tmp_path / name).write_text(content)
    assert read_from(tmp_path / "same.csv") == secrets[0] != read_from(tmp_path / "other.csv")


def test_false_sums_draw_no_cell_far_out(folder: Path) -> None:
    """One that is would be most of a column's sum of squares, and products of it would disclose its record."""
    fit, task, _ = ended(folder, LOGISTIC)
    layout, design = fit.layout.imputation, fit.layout.imputation.design
    tables = SiteTables(layout, task._sites[0].cells)
    false = DrawnModel(np.full(design.width, 1e9), 1e9)
    tables.follow([[false] * design.sets] * len(layout.turns))
    bmi, agreed = tables.features(0)[:, 1], next(one for one in fit.agreed.columns if one.name == "bmi")
    assert agreed.mean and agreed.deviation
    far = np.abs(bmi[task._sites[0].cells.empty[0]] - agreed.mean) / agreed.deviation
    assert far.max() == pytest.approx(6.0), "it stands at the end of its range"
    assert set(np.unique(tables.features(0)[:, 2:])) == {0.0, 1.0}


def test_few_that_share_a_category_and_an_outcome_are_counted_by_no_variance(tmp_path: Path) -> None:
    """As of one table: errors have two digits, and there is no other variance from which more follow."""

    def change(site: int, place: int, row: Row) -> Row:
        score = int(site == 0 and place < 3) if row["ill"] == "yes" else place % 3
        return {"score": str(score), **row}

    on = changed(tmp_path, change)
    assert on("data", "agree").code == 0
    said = on("fit")
    written = msgspec.json.decode((tmp_path / "fits/logistic/fit.json").read_bytes(), type=GlmFit)
    assert written.pooling and written.rounded and not written.pooling.variances and not written.tests
    assert all(one.error == float(f"{one.error:.2g}") for one in written.coefficients if one.error)
    assert "rounded: few records share two categories" in said.out


def test_a_site_whose_empty_cells_are_all_that_there_are_takes_no_part(folder: Path) -> None:
    fit, task, _ = ended(folder, LOGISTIC)
    own = int(task._sites[0].cells.empty[0].sum())
    columns = [msgspec.structs.replace(one, missing=own) if one.name == "bmi" else one for one in fit.agreed.columns]
    lied = msgspec.structs.replace(fit.agreed, columns=tuple(columns))
    with pytest.raises(ConfigError, match="column 'bmi': empty in records of no other site"):
        read_cells(fit.layout.imputation.design, lied, TableFile(folder / "gaps-0.csv"))


# --- rounds without a sum ---------------------------------------------------------------------------------------------


def test_a_turn_without_sums_leaves_its_column_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    fit, _, whole = ended(folder, LOGISTIC)
    turns = fit.layout.imputation.turns
    _, vector = summed(fit, {turns[4].first, turns[5].first + 1})
    found = fit.result(vector)
    assert found.converged and found.coefficients != whole.coefficients
    for one, other in zip(found.coefficients, whole.coefficients, strict=True):
        assert abs(one.estimate - other.estimate) < other.error
    task, vector = summed(fit, {turn.first for turn in turns if turn.column == 0})
    assert task.uneven(0, fit.layout.imputation.rounds, vector) == "no sums of column 'bmi' are complete"
    with pytest.raises(TooFewPeersError):
        fit.result(vector)


# --- what is stated ---------------------------------------------------------------------------------------------------


def test_the_plan_the_dry_run_the_fit_and_its_card_state_tables_models_and_counts(folder: Path) -> None:
    fit, _, found = ended(folder, LOGISTIC)
    assert isinstance(found, GlmFit) and found.pooling
    empty = {name: sum(math.isnan(row[name]) for rows in rows_of(folder, LOGISTIC)[0] for row in rows)
             for name in ("bmi", "smoker")}  # fmt: skip
    assert [(one.name, one.model, one.empty) for one in found.pooling.imputed] == [
        ("bmi", "linear", empty["bmi"]), ("smoker", "logistic", empty["smoker"]),
    ]  # fmt: skip
    cells = f"bmi ({empty['bmi']}, linear), smoker ({empty['smoker']}, logistic)"
    stated = f"drawn in {SETS} tables by {ITERATIONS} rounds of chained equations, pooled by Rubin's rules: {cells}"
    card = section_of(found)
    assert stated in "\n".join(describe(found, SITES)) and card and stated in html.unescape(card)
    said = typed(["fit", "logistic.toml", "--dry-run"], folder)
    rounds = fit.layout.imputation.rounds + fit.layout.fit_rounds
    assert f"glm: {rounds} sums of {len(fit.layout.exact.bounds):,} whole numbers" in said.out
    drawn = fit.layout.imputation.rounds - 1
    assert f"then, in {drawn} rounds that draw empty cells of {SETS} tables" in said.out, said
    plan = typed(["plan", "show", "logistic.toml"], folder)
    assert "Empty cells are drawn, 3 times, by models of the other columns" in " ".join(plan.out.split()), plan


def test_variances_and_degrees_of_freedom_of_two_tables_by_hand() -> None:
    """Estimates of 1 and 3 with a variance of 1: B = 2, T = 4, r = 3; v = (1 + 1/3)^2, and 101/103 100 / 4 observed."""
    of = pooled([np.array([1.0]), np.array([3.0])], [np.eye(1), np.eye(1)])
    assert (of.estimates[0], of.between[0, 0], of.total[0, 0]) == (2.0, 2.0, 4.0)
    free = 1 / (9 / 16 + 1 / (101 / 103 * 25))
    assert of.free(100)[0] == pytest.approx(free)
    assert of.missing_information(100)[0] == pytest.approx((3 + 2 / (free + 3)) / 4)
    statistic, second = of.test([0])
    assert statistic == pytest.approx(4 / 4) and second == pytest.approx((1 + 1) * (1 + 1 / 3) ** 2 / 2)
    several = pooled([np.array(q) for q in ([1.0, 2.0], [3.0, 4.0], [2.0, 6.0])], [np.diag([1.0, 4.0])] * 3)
    assert several.test([0, 1]) == pytest.approx((12 / 7, 4 * (1 + 1 / 2) * (1 + 3 / 4) ** 2 / 2)), "r = 4 / 3"
