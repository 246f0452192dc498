"""One reader of tables: what is missing, what is a number, what is a name, whoever wrote the file.

The numbers of the German table are those of the English one; what pandas calls missing is its documented `na_values`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedgossip.base.cells import MISSING, is_missing, missing_labels, number_in
from fedgossip.base.errors import ConfigError
from fedgossip.data import data
from fedgossip.data.agreed.agreed_table import read_examples
from fedgossip.data.columns.declarations import plain
from fedgossip.data.columns.table_schema import SiteColumns, read_features, schema_of
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.record_groups import table_digest
from fedgossip.data.tables import labels_of

PANDAS = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
]  # fmt: skip
"""The default of pandas.read_csv(na_values=), as its page has it."""

NO_NUMBERS = [
    "1_000", "１２", "٣", "0x10", "Infinity", "-inf", "nan", "1e400", "1e39", "1,5", "1.000,5", "12%", "2024-03-01",
    "1d3", "−5", "--", "1e3L", "TRUE", "12:30", "1 000", "e5", ".", "+", "12345678901234567",
]  # fmt: skip
NUMBERS = {"+5": 5.0, "1.": 1.0, ".5": 0.5, "1.5e3": 1500.0, "-2E-2": -0.02, "1e-50": 1e-50, "007": 7.0}

ENGLISH = "a,b,y\n" + "".join(f"{k}.5,-{k / 4},{k % 2}\n" for k in range(8))
GERMAN = ENGLISH.replace(",", ";").replace(".", ",")


def of(text: str | bytes, folder: Path, query: str = "?label=y", task: str = "classification") -> data.Dataset:
    path = folder / "t.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return data.load(f"csv:{path}{query}", kind=task)


def refusal(text: str | bytes, folder: Path, query: str = "?label=y") -> str:
    with pytest.raises(ConfigError) as refused:
        of(text, folder, query)
    return f"{refused.value} {refused.value.advice}"


@pytest.mark.parametrize("cell", [*PANDAS, "?", ".", "#VALUE!"])
def test_what_other_programs_call_missing_is_never_a_class(cell: str, tmp_path: Path) -> None:
    rows = "".join(f"{k},{'yn'[k % 2]}\n" for k in range(6))
    assert is_missing(cell) and "line 8, column 'y' holds no label" in refusal(f"a,y\n{rows}1,{cell}\n", tmp_path)


@pytest.mark.parametrize("cell", [*PANDAS, "?"])
def test_a_site_learns_of_no_missing_label_either(cell: str, tmp_path: Path) -> None:
    text = "a,y\n1,yes\n2,no\n"
    (tmp_path / "test.csv").write_text(text)
    (tmp_path / "site.csv").write_text(f"{text}3,{cell}\n")
    schema = schema_of(f"csv:{tmp_path}/test.csv?label=y", {}, "classification")
    with pytest.raises(ConfigError, match="line 4, column 'y': nothing there"):
        SiteColumns(tmp_path / "site.csv", schema)
    with pytest.raises(ConfigError, match="line 4, column 'y' holds no label"):
        schema_of(f"csv:{tmp_path}/site.csv?label=y", {}, "classification")


@pytest.mark.parametrize(
    ("cells", "none"),
    [
        ({"yes", "no", "-"}, {"-"}),
        ({"+", "-"}, set()),
        ({"0", "1", "-9"}, {"-9"}),
        ({"0", "1", "-999"}, {"-999"}),
        ({"-1", "1"}, set()),
        ({"-9", "-3", "3"}, set()),
    ],
)
def test_a_code_for_nothing_is_told_from_a_class_by_the_labels_beside_it(cells: set[str], none: set[str]) -> None:
    assert missing_labels(cells) == none


@pytest.mark.parametrize("classes", [("+", "-"), ("-9", "-8", "3")])
def test_a_class_that_is_known_is_one_in_a_table_that_has_no_other(classes: tuple[str, ...]) -> None:
    """As all records of one site may be: of the class "-", or of -9."""
    for cell in classes:
        assert missing_labels({cell}, classes) == set()
    assert missing_labels({"NA", "", *classes}, classes) == {"NA", ""}
    assert missing_labels({"-99"}, ("-9",)) == {"-99"}


def test_all_records_of_a_table_may_be_of_one_known_class(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,y\n1,-\n2,-\n")
    with pytest.raises(ConfigError, match="holds no label: '-'"):
        labels_of(CsvColumns(tmp_path / "one.csv"), 1)
    assert labels_of(CsvColumns(tmp_path / "one.csv"), 1, ("+", "-")) == ["-", "-"]


def test_classes_that_differ_in_capitals_alone_are_refused(tmp_path: Path) -> None:
    assert "has labels 'Yes' and 'yes'" in refusal("a,y\n1,Yes\n2,yes\n3,no\n", tmp_path)


def test_a_group_without_a_name_is_nobodys(tmp_path: Path) -> None:
    assert "line 3, column 'g' holds no group: 'NA'" in refusal("a,g,y\n1,u,0\n2,NA,1\n", tmp_path, "?label=y&group=g")


@pytest.mark.parametrize("cell", NO_NUMBERS)
def test_what_is_a_number_to_python_alone_is_refused_by_its_line(cell: str, tmp_path: Path) -> None:
    assert number_in(cell) is None
    assert "line 3, column 'a'" in refusal(f'a,y\n1,0\n"{cell}",1\n3,0\n', tmp_path)


@pytest.mark.parametrize("cell", NUMBERS)
def test_what_a_spreadsheet_reads_as_a_number_is_that_number(cell: str, tmp_path: Path) -> None:
    assert of(f"a,y\n{cell},0\n 5 ,1\n", tmp_path).x[:, 0].tolist() == [np.float32(NUMBERS[cell]), 5.0]


READERS: dict[str, Callable[[Path], object]] = {
    "training": lambda path: data.load(f"csv:{path}?label=y").x.tolist(),
    "a site's table": lambda path: SiteColumns(path, schema_of(f"csv:{path}?label=y", {}, "classification")).cells,
    "predictions": lambda path: read_features(CsvColumns(path), plain(["a", "b"])).tolist(),
    "the ledger of records": lambda path: table_digest(CsvColumns(path)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text",
    [
        GERMAN,
        f"sep=;\n{GERMAN}",
        ENGLISH.replace(",", "\t"),
        ENGLISH.replace(",", "|"),
        GERMAN.replace(";", "\t"),
        "\ufeff" + ENGLISH.replace("\n", "\r\n"),
        ENGLISH.replace("\n", "\n\n") + "   \n,,\n\x1a",
        "".join(f"{place - 1 if place else ''},{line}\n" for place, line in enumerate(ENGLISH.splitlines())),
        "".join(f"{place - 1 if place else 'Unnamed: 0'},{line}\n" for place, line in enumerate(ENGLISH.splitlines())),
        "".join(f'"{f"row {place}" if place else ""}",{line}\n' for place, line in enumerate(ENGLISH.splitlines())),
        ENGLISH.replace("\n", ",\n"),
    ],
    ids=["German", "sep=", "tabs", "bars", "German tabs", "BOM", "blank", "pandas", "twice", "R", "trailing"],
)
def test_every_reader_reads_what_another_program_wrote_as_the_plain_table(
    reader: str, text: str, tmp_path: Path
) -> None:
    one, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    one.write_text(ENGLISH)
    other.write_bytes(text.encode())
    assert READERS[reader](other) == READERS[reader](one)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;y\n1,5;0\n2.5;1\n", "'1,5' has a comma, and '2.5' in line 3 a point"),
        ("a\ty\n1,500\t0\n2,250\t1\n", "could be 1.500 or a thousand"),
        ('a,y\n"1,002",0\n2,1\n', "Write numbers with a point: 1.002; 1002 if the comma stands between thousands."),
        ('a,y\n"1,5",0\n2,1\n', "Write numbers with a point: 1.5."),
        ("a,y\n12%,0\n2,1\n", "Write a share as a number"),
        ('a,"b,y\n1,2,0\n3,4,1\n', "cannot be read"),
        ("a,y\n1,\0\n3,1\n", "line 2: a byte 0"),
        ("a,,y\n1,2.5,0\n2,3.5,1\n", "column 2 has no name"),
        (",a,y\n0.5,2.5,0\n0.7,3.5,1\n", "column 1 has no name"),
        ("# export 2024\na,y\n1,0\n", "line 2: 2 cells; expected 1"),
        (b"PK\x03\x04", "is a zip archive, or a spreadsheet"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    assert said in refusal(text, tmp_path)


def test_row_numbers_of_pandas_are_left_out_with_a_line(tmp_path: Path) -> None:
    found = of(",a,y\n0,1.5,0\n1,2.5,1\n", tmp_path, "?label=y&drop=")
    assert found.columns == ("a",)
    assert found.notes == ("t.csv: column 1 has no name and holds row numbers: nothing is learned from it",)


def test_one_who_drops_the_row_numbers_by_name_may(tmp_path: Path) -> None:
    assert of("Unnamed: 0,a,y\n0,1.5,0\n1,2.5,1\n", tmp_path, "?label=y&drop=Unnamed: 0").columns == ("a",)


@pytest.mark.parametrize("label", [[None, "n", "y"], [float("nan"), 0.0, 1.0], [None, 0, 1], [None, True, False]])
def test_a_null_of_parquet_is_no_class(label: list[object], tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "y": label}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="row 1, column 'y' holds no label"):
        data.load(f"parquet:{tmp_path / 't.parquet'}?label=y")


def test_parquet_and_csv_are_read_by_one_rule(tmp_path: Path) -> None:
    """Decimals are numbers, an index without a name is left out, a name of many digits is no number."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    dollars = pa.array([1, 2, 3, 4]).cast(pa.decimal128(21, 2))
    columns = {"a": dollars, "y": [0, 1, 0, 1], "__index_level_0__": [7, 3, 9, 1]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = data.load(f"parquet:{tmp_path / 't.parquet'}?label=y")
    assert found.x.tolist() == [[1.0], [2.0], [3.0], [4.0]] and found.columns == ("a",) and len(found.notes) == 1
    pq.write_table(pa.table({"a": [2**60 + k for k in range(4)], "y": [0, 1, 0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="more digits than float64 holds"):
        data.load(f"parquet:{tmp_path / 't.parquet'}?label=y")


def test_the_words_for_nothing_are_in_small_letters() -> None:
    assert {word.lower() for word in MISSING} == MISSING


def test_agreed_examples_keep_the_note(tmp_path: Path) -> None:
    from fedgossip.data.agreed.agreed_table import AgreedColumn, AgreedTable

    (tmp_path / "t.csv").write_text(",a,y\n0,1.5,0\n1,2.5,1\n")
    schema = schema_of(f"csv:{tmp_path}/t.csv?label=y", {}, "classification")
    columns = (
        AgreedColumn(name="a", count=2, mean=2.0, deviation=0.5),
        AgreedColumn(name="y", count=2, label=True, categories=("0", "1")),
    )
    agreed = AgreedTable(schema=schema, suppress=1, sites=1, records=2, columns=columns)
    assert len(read_examples(tmp_path / "t.csv", agreed, "classification").notes) == 1
