"""Tables of real life: what is declared of columns and files is applied, and what is not declared is never guessed.

Every dirty table below is read as the clean one beside it, or refused in one line that names file, column and row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import in_process
from pages import blocks, page

from fedgossip import ConfigError, load_experiment
from fedgossip.data.agreed.agreed_table import AgreedTable, read_examples
from fedgossip.data.columns.declarations import (
    CellRules,
    TableEncoding,
    declared_columns,
    file_declaration,
    restricted_spline,
)
from fedgossip.data.columns.table_schema import BadCell, SiteColumns, TableSchema, read_features, schema_of
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.table_files import TableFile, table_file
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.plans.tasks import schema_of_experiment
from fedgossip.sites.plans.statistics import agreed_from, statistics_plan, statistics_task

SITES = 5


def read(text: str | bytes, folder: Path, own: str = "", query: str = "") -> CsvColumns:
    path = folder / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (folder / "t.csv.toml").unlink(missing_ok=True)
    if own:
        (folder / "t.csv.toml").write_text(own)
    return CsvColumns(table_file(f"csv:{path}?{query}")[0])


def cells(text: str | bytes, folder: Path, own: str = "", query: str = "") -> list[list[str]]:
    table = read(text, folder, own, query)
    return [table.words(place) for place in range(len(table.header))]


def refusal(text: str | bytes, folder: Path, own: str = "", query: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        read(text, folder, own, query)
    assert "\n" not in str(refused.value) and "\n" not in refused.value.advice
    return f"{refused.value} {refused.value.advice}"


# --- the file ---------------------------------------------------------------------------------------------------------

OFFICE = "Größe;Gewicht;krank\r\n1,75;1.072,5;ja\r\n1,8;98;nein\r\n"
"""The export of a German office: semicolons, decimal commas, points between thousands."""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_the_export_of_a_german_office_is_read_at_the_first_try(encoding: str, tmp_path: Path) -> None:
    table = read(OFFICE.encode(encoding), tmp_path)
    assert table.header == ["Größe", "Gewicht", "krank"]
    assert [table.words(place) for place in range(3)] == [["1.75", "1.8"], ["1072.5", "98"], ["ja", "nein"]]
    guessed = ("t.csv: not in UTF-8; read as Windows-1252, as 'Größe' in line 1",)
    assert table.notes == (guessed if encoding == "cp1252" else ())


def test_a_space_without_a_break_alone_is_of_western_letters(tmp_path: Path) -> None:
    """As between thousands in the export of a French office: the only byte beyond ASCII."""
    table = read("ville;cas\nLyon;un\xa0peu\nMetz;non\n".encode("cp1252"), tmp_path)
    assert table.words(0) == ["Lyon", "Metz"]
    assert [note.partition(", as ")[0] for note in table.notes] == ["t.csv: not in UTF-8; read as Windows-1252"]


@pytest.mark.parametrize("titles", ["Klinikum;;\r\nvom 3.2.2025;;\r\n;;\r\n", "sep=;\r\nKlinikum\r\nvom 3.2.2025\r\n"])
def test_titles_above_an_export_are_left_out_with_a_note(titles: str, tmp_path: Path) -> None:
    table = read((titles + OFFICE).encode(), tmp_path)
    assert table.words(1) == ["1072.5", "98"] and table.where(0) == "line 5"
    assert table.notes == ("t.csv: lines 1 to 3 are titles above the table and left out: 'Klinikum'",)


@pytest.mark.parametrize("text", ["a;\nx;y\nu;v\n", "a;;\n1;2;3\n4;5;6\n", "a;;\nx;;z\n4;5;6\n"])
def test_a_first_line_that_lacks_names_is_no_title_where_the_next_does_not_name_three_columns(
    text: str, tmp_path: Path
) -> None:
    assert "has no name" in refusal(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("a;b\n1,002;x\n1,035;y\n", "'1,002' in line 2 is read as 1.002, not 1002: no number decides"),
        ("a;b\n1.002;x\n1.035;y\n", "'1.002' in line 2 is read as 1.002, not 1002: no number decides"),
    ],
)
def test_a_number_that_could_be_a_thousand_is_never_read_without_a_word(text: str, note: str, tmp_path: Path) -> None:
    table = read(text, tmp_path)
    assert table.words(0) == ["1.002", "1.035"] and note in table.notes[0] and "decimal" in table.notes[0]
    for mark, first in ((",", "1.002" if "," in text else "1002"), (".", "1002" if "," in text else "1.002")):
        told = read(text, tmp_path, f'[file]\ndecimal = "{mark}"')
        assert told.words(0)[0] == first and not any("decides" in one for one in told.notes)


@pytest.mark.parametrize("text", ["a\tb\n1,002\tx\n1,035\ty\n", "a|b\n1,002|x\n1,035|y\n"])
def test_the_same_number_between_tabs_and_bars_is_refused_with_what_to_declare(text: str, tmp_path: Path) -> None:
    assert "'1,002' could be 1.002 or a thousand" in (told := refusal(text, tmp_path)) and "decimal" in told


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("a;b\n1.234.567;2,5\n12;3\n", "", [["1234567", "12"], ["2.5", "3"]]),
        ("a;b\n1,234,567;2.5\n12;3\n", "", [["1234567", "12"], ["2.5", "3"]]),
        ("a;b\n1.234;2,5\n1.234,5;3\n", "", [["1234", "1234.5"], ["2.5", "3"]]),
        ("a;b\n0,125;7\n12;3\n", "", [["0.125", "12"], ["7", "3"]]),
        ('a,b\n"1,5",7\n"1.002",3\n', "decimal=,", [["1.5", "1002"], ["7", "3"]]),
        ('a,b\n"1,002",7\n2.5,3\n', "decimal=.", [["1002", "2.5"], ["7", "3"]]),
        ("a b c\n1 2 3\n4 5 6\n", "delimiter= ", [["1", "4"], ["2", "5"], ["3", "6"]]),
        ("a;b,c\n1;2,3\n4;5,6\n", "delimiter=;", [["1", "4"], ["2.3", "5.6"]]),
        ("ł,b\n1,ą\n2,ż\n".encode("cp1250"), "encoding=cp1250", [["1", "2"], ["ą", "ż"]]),
    ],
)
def test_marks_that_numbers_decide_or_the_file_declares(
    text: str | bytes, query: str, expected: list[list[str]], tmp_path: Path
) -> None:
    assert cells(text, tmp_path, query=query) == expected
    own = "[file]\n" + "".join("{} = '{}'\n".format(*one.split("=")) for one in query.split("&") if one)
    assert cells(text, tmp_path, own=own if query else "") == expected


@pytest.mark.parametrize(
    ("text", "own", "said"),
    [
        ("a;b\n1,5;x\n2.5;y\n", "", "line 2: '1,5' has a comma, and '2.5' in line 3 a point"),
        ("a;b\n1,5;x\n1.002;y\n", "", "line 2: '1,5' has a comma, and '1.002' in line 3 a point"),
        ("a;b\n1,5;x\n2.5;y\n", '[file]\ndecimal = ","', "line 3: '2.5' has a point, and the decimal mark is ','"),
        ("a,b\n1,ł\n".encode("cp1250"), "", "line 2: byte 6 is of no text in UTF-8"),
        ("a,b\n1,ü\n".encode("mac_roman"), "", "line 2: byte 6 is of no text in UTF-8"),
        ("a,b\n1,ü\n".encode("cp850"), "", "line 2: byte 6 is of no text in UTF-8"),
        ("a,b\n1,ü\n".encode(), '[file]\nencoding = "ascii"', "line 2: byte 6 is of no text in ascii"),
        ("a,b\n1,2\n", '[file]\nencoding = "klingon"', "t.csv.toml: file: unknown encoding 'klingon'"),
        ("a,b\n1,2\n", '[file]\nencoding = "base64"', "unknown encoding 'base64'"),
        ("a,b\n1,2\n", '[file]\ndecimal = ";"', "file: decimal = ';' It is"),
        ("a,b\n1,2\n", '[file]\ndelimiter = "ab"', "file: delimiter = 'ab'"),
        ("a,b\n1,2\n", '[file]\nsheets = "a"', "file: Object contains unknown field `sheets`"),
        ("a,b\n1,2\n", "file = 3", "file is no table"),
        ("a,b\n1,2\n", "[fil]\n", "unknown key 'fil'"),
        ("a,b\n1,2\n", "[file\n", "t.csv.toml: cannot be read"),
        ("a,b\n1,2\n", "[columns.c]\nfactor = 2", "the table has no column 'c'"),
        ("a,b\n1,2\n", "[columns.a]\nlow = 1\nhigh = 2", "'a' declares bounds or categories"),
        ("a,b\n1,2\n", '[columns.c]\naliases = ["a", "b"]', "columns 'a' and 'b' are both 'c'"),
    ],
)
def test_a_file_that_cannot_be_read_as_declared_is_refused_in_one_line(
    text: str | bytes, own: str, said: str, tmp_path: Path
) -> None:
    assert said in refusal(text, tmp_path, own)


# --- the columns ------------------------------------------------------------------------------------------------------

RULES: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "missing": ({"missing": ["-999", "unknown"]}, {"-999.0": "", "Unknown ": "", "99": "99", "NA": ""}),
    "synonyms": ({"synonyms": {"f": ["w", "female"], "m": ["1"]}}, {"W": "f", " FEMALE": "f", "F": "f", "1.0": "m"}),
    "recode": ({"recode": {"1": "yes", "no": ""}}, {"1.0": "yes", "no": "", "No": "No", "11": "11"}),
    "date": ({"date": "%d.%m.%Y", "since": "2020-01-01"}, {"01.01.2020": "0", "31.12.2019": "-1", "01.03.2020": "60"}),
    "factor": ({"factor": 0.1}, {"253": "25.3", "3": "0.3", "-0.5": "-0.05", "": ""}),
    "order": ({"order": ["no", "mild", "severe"]}, {"no": "0", "severe": "2", "": ""}),
    "cuts": ({"cuts": [18, 65]}, {"17.9": "<18", "18": "18-65", "64.9": "18-65", "65": ">=65", "": ""}),
    "named cuts": ({"cuts": [18], "categories": ["child", "adult"]}, {"17": "child", "18": "adult"}),
    "merge": ({"merge": {"other": ["C", "D"]}}, {"A": "A", "C": "other", "D": "other"}),
    "rest": ({"categories": ["A", "other"], "rest": "other"}, {"A": "A", "Z": "other", "other": "other", "": ""}),
    "in order": (
        {"missing": ["-9"], "synonyms": {"10": ["ten"]}, "factor": 2, "cuts": [15]},
        {"ten": ">=15", "-9": ""},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_brings_cells_into_the_common_form(rule: str) -> None:
    keys, expected = RULES[rule]
    rules = CellRules(declared_columns({"a": keys})["a"])
    assert {cell: rules.read(cell.strip()) for cell in expected} == expected


@pytest.mark.parametrize(
    ("keys", "cell", "said"),
    [
        ({"date": "%d.%m.%Y"}, "2020-01-31", "'2020-01-31' is no date of the form %d.%m.%Y"),
        ({"date": "%d.%m.%Y"}, "31.02.2020", "'31.02.2020' is no date"),
        ({"order": ["a", "b"]}, "c", "'c' is none of the 2 ordered levels"),
        ({"cuts": [1]}, "x", "'x' is no number to cut"),
        ({"factor": 2}, "x", "'x' is not a number"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused_with_its_line(
    keys: dict[str, Any], cell: str, said: str, tmp_path: Path
) -> None:
    good = {"date": "31.01.2020", "order": "a", "cuts": "0", "factor": "1"}[next(iter(keys))]
    (tmp_path / "test.csv").write_text(f"a,y\n{good},0\n{good},1\n")
    (tmp_path / "site.csv").write_text(f"a,y\n{good},0\n{cell},1\n")
    schema = schema_of(f"csv:{tmp_path}/test.csv?label=y", {"a": keys}, "classification", categories="agreed")
    with pytest.raises(ConfigError, match="line 3, column 'a': ") as refused:
        SiteColumns(tmp_path / "site.csv", schema)
    assert said in str(refused.value)
    with pytest.raises(ConfigError, match="line 3, column 'a': "):
        SiteColumns(tmp_path / "test.csv", schema_of(f"csv:{tmp_path}/site.csv?label=y", {"a": keys}, "regression"))


def test_columns_are_made_of_others_in_their_declared_form(tmp_path: Path) -> None:
    """Of age in months, sex in other words, and an empty cell, which makes an empty cell."""
    declared = {
        "age": {"factor": 0.5}, "sex": {"synonyms": {"f": ["w"]}}, "age:f": {"product": ["age", "sex=f"]},
        "age2": {"product": ["age", "age"], "unit": "y2"}, "late": {"spline": "age", "knots": [1, 2, 4]},
    }  # fmt: skip
    (tmp_path / "t.csv").write_text("age,sex,y\n6,w,0\n9,m,1\n,f,1\n")
    schema = schema_of(f"csv:{tmp_path}/t.csv?label=y", declared, "classification", categories="agreed", missing="mean")
    site = SiteColumns(tmp_path / "t.csv", schema)
    assert [one.name for one in schema.features] == ["age", "sex", "age:f", "age2", "late"]
    assert site.cells["age:f"] == [3.0, 0.0, None] and site.cells["age2"] == [9.0, 20.25, None]
    assert site.cells["late"] == pytest.approx([(8 - 1.5) / 9, (3.5**3 - 2.5**3 * 1.5 + 0.5**3 * 0.5) / 9, None])
    for lost, said in (("none", "no column 'none'"), ("y", "is made of 'y'"), ("late", "is made of 'late'")):
        with pytest.raises(ConfigError, match=said):
            wrong = {**declared, "b": {"product": ["age", lost]}}
            schema_of(f"csv:{tmp_path}/t.csv?label=y", wrong, "classification", categories="agreed")
    with pytest.raises(ConfigError, match="a column 'age', which is declared to be made"):
        made = {"age": {"product": ["sex=f", "sex=f"]}}
        schema_of(f"csv:{tmp_path}/t.csv?label=y", made, "classification", categories="agreed")


def test_terms_of_a_spline_have_the_curves_of_patsys_natural_splines() -> None:
    """Both span the cubic splines with these knots that are linear outside: one fits the other without a rest."""
    patsy = pytest.importorskip("patsy")
    x, knots = np.linspace(20, 90, 60), (30.0, 45.0, 60.0, 80.0)
    ours = np.column_stack([np.ones(60), x, *([restricted_spline(v, knots, k) for v in x] for k in (1, 2))])
    theirs = np.asarray(patsy.cr(x, knots=[45.0, 60.0], lower_bound=30.0, upper_bound=80.0))
    inside = (x >= 30) & (x <= 80)  # patsy goes on as a cubic there
    assert np.linalg.matrix_rank(ours[inside]) == theirs.shape[1] == 4
    left = theirs[inside] - ours[inside] @ np.linalg.lstsq(ours[inside], theirs[inside], rcond=None)[0]
    assert np.abs(left).max() < 1e-9
    assert np.abs(np.diff(ours[x > 80], 2, axis=0)).max() < 1e-9 and not ours[x < 30, 2:].any()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"factor": 0}, "'a': factor = 0"),
        ({"factor": float("nan")}, "'a': factor = nan"),
        ({"unit": "cm", "units": {"mm": 0}}, "'a': units: mm = 0"),
        ({"units": {"mm": 0.1}}, "'a': units without unit"),
        ({"low": 5, "high": 1}, "'a': low and high bound it from both sides"),
        ({"synonyms": {"f": ["w"], "m": ["W "]}}, "'a': synonyms: 'W ' stands for 'f' and for 'm'"),
        ({"synonyms": {"f": ["-"]}, "missing": ["-"]}, "'a': synonyms: '-' stands for 'nothing' and for 'f'"),
        ({"merge": {"x": ["C"], "y": ["C"]}}, "'a': merge: 'C' stands for 'x' and for 'y'"),
        ({"cuts": [65, 18]}, "'a': cuts = [65.0, 18.0]"),
        ({"cuts": [18], "categories": ["one"]}, "'a': 1 cuts and 1 categories"),
        ({"order": ["a", "a"]}, "'a': order = ['a', 'a']"),
        ({"order": ["a", "b"], "low": 0, "high": 1}, "'a': order with"),
        ({"rest": "z", "categories": ["x"]}, "'a': rest = 'z' is none"),
        ({"since": "yesterday"}, "'a': since = 'yesterday' is no day"),
        ({"date": "dd.mm.yyyy"}, "'a': date = 'dd.mm.yyyy'"),
        ({"date": "%Y-%Y"}, "'a': date = '%Y-%Y' is no form of a date"),
        ({"date": "%d.%!"}, "'a': date = '%d.%!' is no form of a date"),
        ({"colour": "red"}, "'a': Object contains unknown field"),
        ({"product": ["b"]}, "'a': product = ['b']"),
        ({"product": ["b", "c"], "spline": "b"}, "'a': more than one of product, spline and log"),
        ({"product": ["b", "c"], "factor": 2}, "'a': rules of cells with product, spline or log"),
        ({"knots": [1, 2, 3]}, "'a': knots or term without spline"),
        ({"spline": "b", "knots": [1, 2]}, "'a': knots = [1.0, 2.0]"),
        ({"spline": "b", "knots": [1, 3, 2]}, "'a': knots = [1.0, 3.0, 2.0]"),
        ({"spline": "b", "knots": [1, 2, 3], "term": 2}, "'a': term = 2 of 3 knots"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        declared_columns({"a": keys})
    assert said in f"{refused.value}" and refused.value.advice


@pytest.mark.parametrize("knots", [[-1e308, 0.0, 1e308], [0.0, 5e-324, 1e-323]])
def test_knots_whose_distance_is_no_number_cost_a_cell_and_not_the_command(knots: list[float]) -> None:
    with pytest.raises(ValueError, match="'3e38' has no spline of these knots"):
        declared_columns({"a": {"spline": "b", "knots": knots}})["a"].compute(["3e38"])


@pytest.mark.parametrize(
    "form", ["%d.%m.%Y", "%d-%b-%y", "%Y-%m-%dT%H:%M:%S%z", "%Y-%j", "%G-W%V-%u", "%d.%m.%Y %I:%M %p"]
)
def test_forms_of_dates_are_taken(form: str) -> None:
    assert declared_columns({"a": {"date": form}})["a"].date == form


def test_units_in_the_first_line_are_converted_and_unknown_ones_refused(tmp_path: Path) -> None:
    declared = {"height": {"unit": "cm", "units": {"mm": 0.1, "m": 100}}}
    (tmp_path / "test.csv").write_text("height [cm],y\n170,0\n180,1\n")
    schema = schema_of(f"csv:{tmp_path}/test.csv?label=y", declared, "classification")
    found = {}
    for unit, one in (("cm", "171"), ("mm", "1710"), ("m", "1.71"), ("inch", "67")):
        (tmp_path / f"{unit}.csv").write_text(f"height [{unit}],y\n{one},0\n")
        if unit == "inch":
            with pytest.raises(ConfigError, match="column 'height' is in inch; expected cm"):
                SiteColumns(tmp_path / "inch.csv", schema)
        else:
            found[unit] = SiteColumns(tmp_path / f"{unit}.csv", schema).cells["height"]
    assert set(map(tuple, found.values())) == {(171.0,)}


# --- sites ------------------------------------------------------------------------------------------------------------

TOML = """
name = "federated"
[data]
source = "csv:site-{peer}.csv?label=ill"
test = "csv:test.csv?label=ill"
partition = { kind = "own" }
scale = "federated"
missing = "mean"
categories = "agreed"
[data.columns]
age = { cuts = [40, 60] }
bmi = { unit = "kg/m2", missing = ["-999"] }
sex = { synonyms = { f = ["female", "w"], m = ["male"] } }
ward = { merge = { other = ["X"] }, rest = "other" }
pain = { order = ["little", "some", "much"] }
ill = { recode = { "0" = "no", "1" = "yes" } }
[train]
device = "cpu"
[coordinator]
clients = 5
min_clients = 3
"""
HEAD = ["age", "bmi [kg/m2]", "sex", "ward", "pain", "ill"]


def patients(seed: int, count: int = 40) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [
        [str(rng.integers(20, 90)), f"{rng.uniform(18, 40):.1f}", str(rng.choice(["f", "m"])), str(rng.choice([*"AB"])),
         str(rng.choice(["little", "some", "much"])), str(rng.choice(["no", "yes"]))]
        for _ in range(count)
    ]  # fmt: skip


def written(path: Path, head: list[str], rows: list[list[str]], mark: str = ",", encoding: str = "utf-8") -> None:
    path.write_bytes("".join(mark.join(row) + "\r\n" for row in [head, *rows]).encode(encoding))


def clean(folder: Path) -> list[list[list[str]]]:
    (folder / "t.toml").write_text(TOML)
    tables = [patients(site) for site in range(SITES)]
    for site, rows in enumerate(tables):
        written(folder / f"site-{site}.csv", HEAD, rows)
    written(folder / "test.csv", HEAD, patients(99))
    return tables


def dirty(folder: Path) -> None:
    """Write the same tables as five offices have them."""
    tables = clean(folder)
    gaps = [["-999" if one == "NA" else one for one in row] for row in tables[0]]
    words = {"f": "Female", "m": "MALE", "no": "0", "yes": "1"}
    written(folder / "site-0.csv", HEAD, [[words.get(one, one) for one in row] for row in gaps])
    written(folder / "site-1.csv", HEAD, [[one.replace(".", ",") for one in row] for row in tables[1]], ";")
    german = ["Alter", "BMI", "Geschlecht", "Größe der Station", "Schmerz", "ill"]
    texts = {"little": "keine", "some": "mäßig", "much": "stark", "f": "weiblich", "m": "männlich"}
    rows = [[texts.get(one, one) for one in row] for row in tables[2]]
    for row in rows:
        row[1] = str(int(float(row[1]) * 10 + 0.5))
    written(folder / "site-2.csv", german, rows, "\t", "cp1252")
    (folder / "site-2.csv.toml").write_text(
        """
        [columns.age]
        aliases = ["Alter"]
        [columns.bmi]
        aliases = ["BMI"]
        factor = 0.1
        [columns.sex]
        aliases = ["Geschlecht"]
        synonyms = { f = ["weiblich"], m = ["männlich"] }
        [columns.ward]
        aliases = ["Größe der Station"]
        [columns.pain]
        aliases = ["Schmerz"]
        synonyms = { little = ["keine"], some = ["mäßig"], much = ["stark"] }
        """
    )


def site_cells(folder: Path) -> list[Mapping[str, object]]:
    schema = schema_of_experiment(load_experiment(folder / "t.toml"))
    return [SiteColumns(folder / f"site-{site}.csv", schema).cells for site in range(SITES)]


def test_dirty_tables_agree_on_what_the_clean_ones_agree_on(tmp_path: Path) -> None:
    for name, write in (("clean", clean), ("dirty", dirty)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    assert site_cells(tmp_path / "dirty") == site_cells(tmp_path / "clean")
    found = {}
    for name in ("clean", "dirty"):
        experiment = load_experiment(tmp_path / name / "t.toml")
        plan, schema = statistics_plan(experiment)
        plan, task, refused = statistics_task(plan, schema, range(SITES))
        table = agreed_from(task, simulate_plan(plan, task=task).vectors[plan.coordinator], schema, 5)
        assert not refused and table.records == SITES * 40
        found[name] = table
    assert found["clean"] == found["dirty"]
    agreed = found["clean"]
    age, ward, pain = (next(one for one in agreed.columns if one.name == name) for name in ("age", "ward", "pain"))
    assert age.categories == ("<40", "40-60", ">=60") and ward.categories == ("A", "B", "other")
    assert (pain.edges[0], pain.edges[-1]) == (0, 2)
    own = read_examples(tmp_path / "dirty/site-2.csv", agreed, "classification")
    assert own.x.tolist() == read_examples(tmp_path / "clean/site-2.csv", agreed, "classification").x.tolist()
    # a model's encoding carries the declaration: a new table in the raw form is read by it
    table = CsvColumns(tmp_path / "dirty/site-2.csv")
    assert read_features(table, agreed.encoding).tolist() == own.x.tolist()
    assert isinstance(agreed.encoding, TableEncoding) and agreed.encoding.labels


def test_the_declaration_is_part_of_what_is_agreed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean(tmp_path)
    words = " ".join(in_process(["plan", "show", "t.toml"], tmp_path, monkeypatch, capsys).out.split())
    assert "Cells of age, bmi, sex, ward, pain, ill are first rewritten as data.columns declares." in words
    before = schema_of_experiment(load_experiment(tmp_path / "t.toml"))
    (tmp_path / "t.toml").write_text(TOML.replace('missing = ["-999"]', 'missing = ["-99"]'))
    after = schema_of_experiment(load_experiment(tmp_path / "t.toml"))
    assert before.digest != after.digest and [one.name for one in before.columns] == [one.name for one in after.columns]


def test_a_schema_without_declarations_has_the_digest_of_the_release_before(tmp_path: Path) -> None:
    written(tmp_path / "test.csv", ["a [cm]", "b", "y"], [["1", "u", "0"], ["2", "v", "1"]])
    columns = {"a": {"unit": "cm", "low": 0, "high": 9}, "b": {"categories": ["u", "v"]}}
    schema = schema_of(f"csv:{tmp_path}/test.csv?label=y", columns, "classification", categories="agreed")
    assert schema.digest == DIGEST_BEFORE, schema.digest


DIGEST_BEFORE = "b0cdc37f3abeffdbddf47022e6707e49"


def test_a_level_at_one_site_is_merged_by_agreement(tmp_path: Path) -> None:
    tables = clean(tmp_path)
    tables[3][0][3], tables[3][1][3] = "X", "Q"
    written(tmp_path / "site-3.csv", HEAD, tables[3])
    site = SiteColumns(tmp_path / "site-3.csv", schema_of_experiment(load_experiment(tmp_path / "t.toml")))
    assert site.cells["ward"][:2] == ["other", "other"]
    assert {place: list(cells) for place, cells in site.table.rest.items()} == {3: ["Q"]}, "X is merged by its name"


def test_the_format_of_all_files_is_declared_in_the_plan(tmp_path: Path) -> None:
    clean(tmp_path)
    (tmp_path / "t.toml").write_text(TOML.replace("[data.columns]", '[data.file]\ndecimal = "."\n[data.columns]'))
    experiment = load_experiment(tmp_path / "t.toml")
    assert experiment.data.source.endswith("?label=ill&decimal=.")
    assert load_experiment(tmp_path / "t.toml", ["data.file.decimal=,"]).data.test.endswith("?label=ill&decimal=%2C")
    with pytest.raises(ConfigError, match=r"data\.file: decimal = 'x'"):
        load_experiment(tmp_path / "t.toml", ["data.file.decimal=x"])
    assert file_declaration({}) == TableFile(Path("x")).declared


def test_the_page_on_tables_runs_and_fits_dirty_tables_as_clean_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five offices: codes, other names, German words and marks, a lone level; the fit is that of the clean tables."""
    commands, toml = blocks(page("tables"))[:2]
    head = ["age", "bmi", "ward", "cost", "days", "ill"]
    fits = []
    for kind in ("clean", "dirty"):
        (folder := tmp_path / kind).mkdir()
        (folder / "ward.toml").write_text(toml.text)
        for site in range(SITES + 1):
            rng = np.random.default_rng(site)
            rows = [
                [str(rng.integers(20, 90)) if rng.random() < 0.9 else "", f"{rng.uniform(18, 40):.1f}",
                 str(rng.choice(["north", "south"] if rng.random() < 0.8 else ["other"])), "7", "9",
                 str(rng.choice(["no", "yes"]))] for _ in range(60)
            ]  # fmt: skip
            name, names, mark = f"site-{site}.csv" if site < SITES else "test.csv", head, ","
            if kind == "dirty":
                if site == 0:
                    rows = [
                        [row[0] or "-999", *row[1:2], row[2].replace("other", "Isolierstation"), *row[3:]]
                        for row in rows
                    ]
                if site == 1:
                    names, mark = ["age", "BMI [kg/m2]", *head[2:]], ";"
                    german = {"north": "NORD", "south": "Süd"}
                    rows = [[german.get(cell, cell).replace(".", ",") for cell in row] for row in rows]
            written(folder / name, names, rows, mark, "cp1252")
        monkeypatch.chdir(folder)
        for line in commands.text.splitlines():
            said = in_process(line.split()[1:], folder, monkeypatch, capsys)
            assert said.code == 0, said.err
            if kind == "dirty" and "describe" in line:
                assert "cells are none of its levels and count as the rest: 'Isolierstation'" in said.out
        fits.append(json.loads((folder / "fits/ward/fit.json").read_text()))
    assert fits[0] == fits[1] and fits[0]["records"] == 300


# --- describe ---------------------------------------------------------------------------------------------------------


def described(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], site: int = 0
) -> tuple[int, str, str]:
    said = in_process(["data", "describe", "t.toml", "--id", str(site)], folder, monkeypatch, capsys)
    return said.code, said.out, said.err


def test_all_bad_cells_are_counted_and_the_first_five_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = clean(tmp_path)[0]
    for place in range(7):
        rows[place][1] = f"bad{place}"
    rows[8][4] = "awful"
    written(tmp_path / "site-0.csv", HEAD, rows)
    code, out, err = described(tmp_path, monkeypatch, capsys)
    assert code == 2 and "40 records; 8 cells do not fit" in out
    assert "column 'bmi': 7 cells do not fit; the first:" in out and "column 'pain': 1 cell does not fit" in out
    assert "line 10, column 'pain': 'awful' is none of the 3 ordered levels" in out
    assert [place for place in range(7) if f"'bad{place}' is not a number" in out] == [0, 1, 2, 3, 4]
    (error, _) = err.splitlines()
    assert "line 2, column 'bmi [kg/m2]': 'bad0' is not a number" in error and error.endswith("7 more cells do not fit")


def test_codes_units_and_repeated_rows_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.toml").write_text(
        TOML.replace("age = { cuts = [40, 60] }\n", "").replace(', missing = ["-999"]', "")
    )
    tables = [patients(site) for site in range(SITES)]
    for site, rows in enumerate(tables):
        for row in rows[: 4 if site == 0 else 0]:
            row[0], row[1] = "99", "-999"
        written(tmp_path / f"site-{site}.csv", HEAD, rows)
    written(tmp_path / "site-1.csv", HEAD, [[row[0], str(float(row[1]) * 10), *row[2:]] for row in tables[1]])
    written(tmp_path / "site-2.csv", HEAD, [*tables[2], *tables[2][:3]])
    written(tmp_path / "test.csv", HEAD, patients(99))
    code, out, _ = described(tmp_path, monkeypatch, capsys)
    assert code == 0 and "column 'bmi': -999 in 4 cells, apart from all others: a code for nothing?" in out
    assert "column 'age': 99 in 4 cells, apart from all others" in out
    assert 'Declare it in TABLE.csv.toml next to the table: [columns."age"] missing = ["99"]' in out
    written(tmp_path / "site-0.csv", HEAD, [["50", "-99", *patients(0)[0][2:]], *patients(0)[1:]])
    assert "column 'bmi': -99 in 1 cell, apart from all others" in described(tmp_path, monkeypatch, capsys)[1]
    code, out, _ = described(tmp_path, monkeypatch, capsys, 1)
    assert code == 0 and "column 'bmi': its mean" in out and "is about 10 times that of the common file" in out
    assert "factor = 0.1" in out
    assert (
        "3 rows are the same as an earlier one in all columns, the first in line 42"
        in described(tmp_path, monkeypatch, capsys, 2)[1]
    )
    code, out, _ = described(tmp_path, monkeypatch, capsys, 3)
    assert code == 0 and "median" not in out.partition("pain")[2] and "code for nothing" not in out
    written(tmp_path / "site-0.csv", HEAD, patients(0))
    said = in_process(["data", "agree", "t.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "site 1: column 'bmi': its mean" in said.err, said.err
    assert "is about 10 times that of all others" in said.err and "site 3" not in said.err


def test_bad_cells_are_collected_with_their_rows(tmp_path: Path) -> None:
    clean(tmp_path)
    schema: TableSchema = schema_of_experiment(load_experiment(tmp_path / "t.toml"))
    bad: list[BadCell] = []
    site = SiteColumns(tmp_path / "site-0.csv", schema, bad=bad)
    assert not bad and site.records == 40


# --- missing cells ----------------------------------------------------------------------------------------------------

GAPS = """
name = "gaps"
[data]
source = "csv:site-{peer}.csv?label=ill"
test = "csv:test.csv?label=ill"
partition = { kind = "own" }
scale = "federated"
missing = "%s"
categories = "agreed"
[model]
source = "glm:logistic"
[coordinator]
clients = 5
min_clients = 3
"""


def gaps(folder: Path, missing: str) -> list[list[list[str]]]:
    """Write sites with empty cells: of x at all of them, of ward at two alone, of z at one record."""
    (folder / "t.toml").write_text(GAPS % missing)
    tables = []
    for site in range(SITES + 1):
        rng = np.random.default_rng(site)
        rows = [
            [f"{rng.normal():.2f}", f"{rng.normal():.2f}", str(rng.choice(["a", "b"])), str(rng.choice(["no", "yes"]))]
            for _ in range(60)
        ]
        if site < SITES:
            for row in rows[:7]:
                row[0] = ""
            for row in rows[5:12] if site < 2 else []:
                row[2] = ""
            rows[50][1] = "" if site == 3 else rows[50][1]
        written(folder / (f"site-{site}.csv" if site < SITES else "test.csv"), ["x", "z", "ward", "ill"], rows)
        tables.append(rows)
    return tables[:SITES]


def agreed_table(folder: Path) -> AgreedTable:
    plan, schema = statistics_plan(load_experiment(folder / "t.toml"))
    plan, task, _ = statistics_task(plan, schema, range(SITES))
    return agreed_from(task, simulate_plan(plan, task=task).vectors[plan.coordinator], schema, 5)


def newton(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The maximum of the likelihood of a logistic regression, in plain numpy."""
    design = np.column_stack([np.ones(len(x)), x])
    weights = np.zeros(design.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-design @ weights))
        weights += np.linalg.solve((design.T * (p * (1 - p))) @ design, design.T @ (y - p))
    return weights


def test_records_with_an_empty_cell_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fit is that of the complete records in one place."""
    rows = [row for table in gaps(tmp_path, "drop") for row in table]
    whole = [row for row in rows if "" not in row]
    said = in_process(["data", "describe", "t.toml", "--id", "0"], tmp_path, monkeypatch, capsys)
    assert "site-0.csv: 12 rows of 60 have an empty cell and are left out" in said.out and "48 records" in said.out
    said = in_process(["data", "agree", "t.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and f"{len(whole)} records" in said.out and len(rows) - len(whole) == 46
    assert "46 records with an empty cell are left out of all figures" in said.out
    said = in_process(["plan", "show", "t.toml"], tmp_path, monkeypatch, capsys)
    assert "Records with an empty cell are left out: 46." in " ".join(said.out.split())
    assert in_process(["fit", "t.toml"], tmp_path, monkeypatch, capsys).code == 0
    fit = json.loads((tmp_path / "fits/gaps/fit.json").read_text())
    x = np.array([[float(row[0]), float(row[1]), row[2] == "b"] for row in whole])
    expected = newton(x, np.array([row[3] == "yes" for row in whole], float))
    assert fit["records"] == len(whole)
    assert [one["estimate"] for one in fit["coefficients"]] == pytest.approx(expected.tolist(), rel=1e-8)


def test_an_empty_cell_is_a_feature_where_enough_records_of_enough_sites_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """x: at five sites; ward: at two, so it would disclose their records; z: one record."""
    rows = [row for table in gaps(tmp_path, "indicator") for row in table]
    agreed = agreed_table(tmp_path)
    assert [one.indicated for one in agreed.columns] == [True, False, False, False]
    assert agreed.encoding.features == ("x", "x=(missing)", "z", "ward=a", "ward=b")
    assert len(agreed.scale[0]) == len(agreed.scale[1]) == 5
    said = in_process(["data", "agree", "t.toml"], tmp_path, monkeypatch, capsys)
    assert said.code == 0 and "column 'z': too few empty cells, or too few sites with one, for a feature" in said.err
    assert in_process(["fit", "t.toml"], tmp_path, monkeypatch, capsys).code == 0
    fit = json.loads((tmp_path / "fits/gaps/fit.json").read_text())
    mean = agreed.columns[0].mean
    x = [
        [float(row[0] or mean or 0), not row[0], float(row[1] or agreed.columns[1].mean or 0),
         row[2] == "b" if row[2] else agreed.columns[2].shares[1]] for row in rows
    ]  # fmt: skip
    expected = newton(np.array(x, float), np.array([row[3] == "yes" for row in rows], float))
    assert [one["name"] for one in fit["coefficients"]] == ["(intercept)", "x", "x=(missing)", "z", "ward=b"]
    for one, exact in zip(fit["coefficients"], expected.tolist(), strict=True):  # ward's empty cells are filled
        assert one["error"] == float(f"{one['error']:.2g}") and abs(one["estimate"] - exact) <= one["error"] / 200
    said = in_process(["predict", "fits/gaps", "site-0.csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 0, said.err


def test_too_few_dropped_records_are_not_counted(tmp_path: Path) -> None:
    tables = gaps(tmp_path, "drop")
    for site, rows in enumerate(tables):
        full = [[cell or "a" if place == 2 else cell or "0.5" for place, cell in enumerate(row)] for row in rows]
        full[0][0] = "" if site == 1 else "0.5"
        written(tmp_path / f"site-{site}.csv", ["x", "z", "ward", "ill"], full)
    table = agreed_table(tmp_path)
    assert table.dropped is None and table.records == 299


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["data.missing=impute:1"], "impute:1"),
        (["data.missing=drop", "data.groups=ward"], "data.groups with data.missing"),
    ],
)
def test_what_cannot_be_done_with_empty_cells_is_refused(changed: list[str], said: str, tmp_path: Path) -> None:
    gaps(tmp_path, "mean")
    with pytest.raises(ConfigError, match=said):
        load_experiment(tmp_path / "t.toml", changed)


def test_a_site_with_too_few_complete_records_takes_no_part(tmp_path: Path) -> None:
    gaps(tmp_path, "drop")
    written(tmp_path / "site-0.csv", ["x", "z", "ward", "ill"], [["", "1", "a", "no"]] * 9)
    schema = schema_of_experiment(load_experiment(tmp_path / "t.toml"))
    with pytest.raises(ConfigError, match="fewer than 5 records without an empty cell"):
        SiteColumns(tmp_path / "site-0.csv", schema, 5)
