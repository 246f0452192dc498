"""model.formula is a short way of writing keys: the same experiment, and statsmodels' figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from commands import typed

from fedgossip import ConfigError, load_experiment
from fedgossip.data.columns.formula import parsed

SITES = 5
KEYS = """
name = "whole"
[data]
source = "csv:site-{peer}.csv%s"
test = "csv:test.csv%s"
partition = { kind = "own" }
scale = "federated"
categories = "agreed"
agreed = "agreed.json"
[data.columns]
sex = { categories = ["0", "1"] }
%s
[model]
source = "glm:logistic%s"
%s
[coordinator]
clients = 5
"""
LEVELS = {"sex": ("0", "1"), "grade": ("a", "b", "c"), **dict.fromkeys("xzu", tuple(map(str, range(100))))}


def written(folder: Path, formula: str = "", query: str = "", made: str = "", options: str = "") -> Path:
    path = folder / ("short.toml" if formula else "long.toml")
    path.write_text(KEYS % (query, query, made, options, f'formula = "{formula}"' if formula else ""))
    return path


@pytest.mark.parametrize(
    ("formula", "query", "made", "options"),
    [
        ("ill ~ age + sex", "?label=ill&keep=age,sex", "", ""),
        (
            "ill ~ 1 + age*C(sex)",
            "?label=ill&keep=age%3Asex%3D1,age,sex",
            '"age:sex=1" = { product = ["age", "sex=1"] }',
            "",
        ),
        (
            "ill ~ `body mass` + age + age:age + `body mass`:age:ward=north + ward",
            "?label=ill&keep=body%20mass,age,age%3Aage,body%20mass%3Aage%3Award%3Dnorth,ward",
            '"age:age" = { product = ["age", "age"] }\n'
            '"body mass:age:ward=north" = { product = ["body mass", "age", "ward=north"] }',
            "",
        ),
        (
            "days ~ spline(age, 30, 50.5, 70, 80) + offset(log(years))",
            "?label=days&keep=age,age%20spline%201,age%20spline%202,log%28years%29",
            '"age spline 1" = { spline = "age", knots = [30.0, 50.5, 70.0, 80.0], term = 1 }\n'
            '"age spline 2" = { spline = "age", knots = [30.0, 50.5, 70.0, 80.0], term = 2 }\n'
            '"log(years)" = { log = "years" }',
            "?offset=log%28years%29",
        ),
        ("Surv(days, died) ~ age + strata(ward)", "?label=days,died&keep=age,ward", "", "?strata=ward"),
    ],
)
def test_an_experiment_with_a_formula_is_the_one_with_the_keys_that_it_stands_for(
    formula: str, query: str, made: str, options: str, tmp_path: Path
) -> None:
    short, long = written(tmp_path, formula), written(tmp_path, "", query, made, options)
    assert load_experiment(short) == load_experiment(long)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ I(age^2)", "letter 5, 'I': I is no function of a formula, and nothing in it is run"),
        ("y ~ __import__('os').system('x')", "letter 5, '__import__': __import__ is no function"),
        ("y ~ age ^ 2", "letter 9, '^': expected is '+' or the end"),
        ("y ~", "at its end: expected is a column"),
        ("y", "at its end: expected is '~'"),
        ("y ~ a - 1", "letter 7, '-'"),
        ("y ~ a + 0", "letter 9, '0': each model has its intercept"),
        ("y ~ C(ward)", "letter 5, 'C': C(ward): its levels are not declared"),
        ("y ~ a:C(ward)", "letter 7, 'C': C(ward): its levels are not declared"),
        ("y ~ y + a", "letter 5, 'y': 'y' is the outcome"),
        ("y ~ a:b + a", "letter 5, 'a': 'a:b' without 'b'"),
        ("y ~ C(sex):a + a", "letter 5, 'C': 'sex=1:a' without 'sex'"),
        ("y ~ a:b:c:d", "letter 5, 'a': a product is of two columns, or of three"),
        ("y ~ a:log(b)", "letter 7, 'log': in a product"),
        ("y ~ spline(a, 1, 2, 3):b", "letter 5, 'spline': in a product"),
        ("y ~ spline(a, 1, 2)", "letter 5, 'spline': a spline of 2 knots"),
        ("y ~ a + ward=north", "letter 9, 'ward': a level alone"),
        ("y ~ offset(a) + offset(b)", "letter 17, 'offset': offset twice"),
        ("y ~ `a,b`", "letter 5, 'a,b': 'a,b' is no name of a column here"),
        ("Surv(a) ~ b", "letter 7, ')': expected is ','"),
        ("y ~ a" + " + a" * 3000, "at its end: a formula has at most 10,000 letters"),
        ("`a,b` ~ c", "letter 1, 'a,b': 'a,b' is no name of a column here"),
        ("Surv(days, ``) ~ c", "'' is no name of a column here"),
        ("y ~ C(x) + C(z) + C(u) + C(x):C(z):C(u)", "letter 26, 'C': more than 1,000 columns"),
        ("y ~ spline(a, " + ", ".join(map(str, range(1500))) + ")", "letter 5, 'spline': more than 1,000 columns"),
    ],
)
def test_a_token_that_is_none_is_named_with_its_place(formula: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(formula, LEVELS)
    assert message in str(refused.value) and refused.value.advice and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("csv:test.csv", "csv:test.csv?label=ill"), "label, drop or keep in data.test with model.formula"),
        (('scale = "federated"', ""), "model.formula is of columns that sites agree on"),
        (("sex = {", '"age:sex" = { product = ["age", "sex=1"] }\nsex = {'), "which [data.columns] declares too"),
        (('formula = "ill ~ age*sex"', "formula = 3"), "model.formula is of columns that sites agree on"),
    ],
)
def test_keys_that_a_formula_writes_are_refused_beside_it(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "ill ~ age*sex")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError) as refused:
        load_experiment(path)
    assert message in str(refused.value)


def records(folder: Path) -> None:
    """Write 300 records to five sites; the test file has the header and all levels."""
    found = list[str]()
    for i in range(300):
        age, sex, bmi, ward = 30 + 37 * i % 61, i * 7 // 3 % 2, 18 + 53 * i % 160 / 10, i * 5 // 2 % 3
        eta = -4 + 0.06 * age + 0.8 * sex - 0.01 * age * sex + 0.7 * (ward == 2)
        ill = i * 2654435761 % 2**32 / 2**32 < 1 / (1 + math.exp(-eta))
        found.append(f"{age},{sex},{bmi:.1f},{('east', 'north', 'south')[ward]},{'yes' if ill else 'no'},{i}")
    for site in range(SITES):
        rows = ["age,sex,bmi,ward,ill,number", *found[site::SITES]]
        (folder / f"site-{site}.csv").write_text("\n".join(rows) + "\n")
    (folder / "test.csv").write_text("\n".join(["age,sex,bmi,ward,ill,number", *found[:60]]) + "\n")


THEIRS = {
    "(intercept)": (-1.5705797561684514, 2.706496497220726),
    "sex=1": (-0.12626208305814546, 1.1195891775756404),
    "ward=north": (0.07916683306101994, 0.4058766442633892),
    "ward=south": (0.7400521182848765, 0.4130302653615021),
    "age": (0.05290059801629048, 0.011237195124418797),
    "age:sex=1": (0.007207725241824364, 0.016146754853744463),
    "log(bmi)": (-0.6757854581433793, 0.7836384744591162),
}
"""statsmodels 0.15.0 with patsy 1.0.3, smf.logit("ill ~ age * C(sex) + C(ward) + np.log(bmi)"): params, bse."""
ROBUST = {
    "(intercept)": 2.8771273638090733,
    "sex=1": 1.1451813172914103,
    "ward=north": 0.4090416332739695,
    "ward=south": 0.42948391331216595,
    "age": 0.011081155534895073,
    "age:sex=1": 0.016140745585951844,
    "log(bmi)": 0.809661642089618,
}
"""The bse of the same with cov_type="HC0"."""


def test_a_formula_is_fitted_as_statsmodels_fits_it(tmp_path: Path) -> None:
    """The column of record numbers, which the formula does not name, is not in the model."""
    records(tmp_path)
    written(tmp_path, "ill ~ age * C(sex) + ward + log(bmi)")
    robust = ["fit", "short.toml", "--to", "robust", "--set", "model.source=glm:logistic?errors=robust"]
    for words in (["data", "agree", "short.toml"], ["fit", "short.toml"], robust):
        assert (said := typed(words, tmp_path)).code == 0, said
    read = [json.loads((tmp_path / one / "fit.json").read_text())["coefficients"] for one in ("fits/whole", "robust")]
    found = {one["name"]: (one["estimate"], one["error"]) for one in read[0]}
    assert {one["name"]: one["error"] for one in read[1]} == pytest.approx(ROBUST, rel=1e-8)
    assert found.keys() == THEIRS.keys()
    predicted = typed(["predict", "robust", "site-0.csv"], tmp_path)
    assert predicted.code == 0 and "not read: number\n" in predicted.err, predicted
    for name, theirs in THEIRS.items():
        assert found[name] == pytest.approx(theirs, rel=1e-8), name
