"""Workbooks, files of statistical packages and databases: each is read as the CSV file beside it, or refused."""

from __future__ import annotations

import base64
import contextlib
import sqlite3
import sys
import zipfile
import zlib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from commands import in_process

from fedgossip import ConfigError, load_experiment
from fedgossip.base import outside_files
from fedgossip.base.errors import plural
from fedgossip.core.messages import Hello
from fedgossip.data import data, office_tables, statistical_reader
from fedgossip.data.agreed.agreed_table import read_clusters, unknown
from fedgossip.data.columns.table_schema import SchemaColumn, TableSchema
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.record_groups import groups_of, source_digest
from fedgossip.data.table_files import table_file
from fedgossip.net import transport
from fedgossip.plans.compose import hello_of, likeness_of
from fedgossip.plans.tasks import schema_of_experiment
from fedgossip.sites.plans.fits import FAMILIES
from fedgossip.sites.plans.statistics import stated_statistics, statistics_plan, statistics_task

HEAD = ["age", "bmi", "ward", "seen", "ill"]
ROWS: list[list[Any]] = [
    [31, 25.3, "north", date(2024, 1, 31), "no"],
    [44, None, "south", date(2024, 2, 1), "yes"],
    [58, 30.125, "north", date(2023, 12, 24), "yes"],
    [60, 22.0, "Süd", date(2024, 2, 29), "no"],
]
CSV = "age,bmi,ward,seen,ill\n31,25.3,north,2024-01-31,no\n44,,south,2024-02-01,yes\n"
CSV += "58,30.125,north,2023-12-24,yes\n60,22,Süd,2024-02-29,no\n"


def table(source: str) -> CsvColumns:
    return CsvColumns(table_file(source)[0])


def cells(found: CsvColumns) -> dict[str, list[str]]:
    return {name: found.words(place) for place, name in enumerate(found.header)}


def plain(folder: Path) -> dict[str, list[str]]:
    (folder / "plain.csv").write_text(CSV)
    return cells(table(f"csv:{folder}/plain.csv"))


def refusal(source: str) -> str:
    with pytest.raises(ConfigError) as refused:
        table(source)
    assert "\n" not in str(refused.value) and "\n" not in refused.value.advice
    return f"{refused.value} {refused.value.advice}"


# --- Excel ------------------------------------------------------------------------------------------------------------


def workbook(path: Path, **sheets: list[list[Any]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_a_workbook_is_read_as_the_csv_file_beside_it(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", Data=[HEAD, *ROWS, [None] * 5], Empty=[])
    assert cells(table(f"excel:{path}")) == cells(CsvColumns(path)) == plain(tmp_path)
    assert source_digest(f"excel:{path}") == source_digest(f"csv:{tmp_path}/plain.csv")
    query = "?label=ill&drop=bmi,seen&categories=ward"
    one, other = data.load(f"excel:{path}{query}"), data.load(f"csv:{tmp_path}/plain.csv{query}")
    assert one.x.tolist() == other.x.tolist() and one.columns == other.columns


def test_titles_above_a_sheet_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", Data=[["Klinikum"], ["vom", None], [], HEAD, *ROWS])
    found = CsvColumns(path)
    assert cells(found) == plain(tmp_path) and found.where(0) == "row 5"
    assert found.notes == ("t.xlsx: rows 1 to 2 are titles above the table and left out: 'Klinikum'",)


def test_numbers_that_a_workbook_holds_as_texts_are_read_as_of_an_office(tmp_path: Path) -> None:
    """The export of a laboratory is of texts; cells with numbers have no decimal mark, and stay as they are."""
    rows = [["alt", "wert", "art"], [81.5, "1.072,5", "a"], ["40,25", "0,125", "b"], [1.002, "7", "c"]]
    found = cells(CsvColumns(workbook(tmp_path / "t.xlsx", Data=rows)))
    assert found == {"alt": ["81.5", "40.25", "1.002"], "wert": ["1072.5", "0.125", "7"], "art": ["a", "b", "c"]}
    path = workbook(tmp_path / "t.xlsx", Data=[["a", "b"], ["1,002", 1.5], ["1,035", 2]])
    assert "row 2: '1,002' could be 1.002 or a thousand" in refusal(f"excel:{path}")
    assert cells(table(f"excel:{path}?decimal=,")) == {"a": ["1.002", "1.035"], "b": ["1.5", "2"]}
    path = workbook(tmp_path / "t.xlsx", Data=[["a"], ["1,5"], ["2.5"]])
    assert "row 2: '1,5' has a comma, and '2.5' in row 3 a point" in refusal(f"excel:{path}")


def test_of_several_sheets_one_is_declared(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", Data=[HEAD, *ROWS], Notes=[["checked by", "K."], ["x", "y"]])
    assert "2 sheets: 'Data', 'Notes' Declare which one: sheet = 'Data'" in refusal(f"excel:{path}")
    assert "no sheet 'data'" in refusal(f"excel:{path}?sheet=data")
    assert cells(table(f"excel:{path}?sheet=Data")) == plain(tmp_path)
    (tmp_path / "t.xlsx.toml").write_text(
        '[file]\nsheet = "Data"\n[columns.seen]\ndate = "%Y-%m-%d"\nsince = "2024-01-01"'
    )
    assert cells(table(f"excel:{path}"))["seen"] == ["30", "31", "-8", "59"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([["a", "b"], [1, 2], [3, 4, 5]], "row 3: a cell in column 3; row 1 names 2 columns"),
        ([["Export 2024"], ["a", "b"], [1, 2]], "row 2: a cell in column 2; row 1 names 1 column"),
        ([["a", "b"], [1, "=1+1"]], "row 2, column 2: a formula without a stored value"),
        ([["a", "b"]], "no rows"),
        ([], "sheet 'S' is empty"),
    ],
)
def test_a_sheet_that_is_no_table_is_refused_by_its_row(rows: list[list[Any]], said: str, tmp_path: Path) -> None:
    assert said in refusal(f"excel:{workbook(tmp_path / 't.xlsx', S=rows)}")


def test_what_is_no_workbook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04 and no more")
    assert "t.xlsx: no workbook that can be read" in refusal(f"excel:{tmp_path}/t.xlsx")
    (tmp_path / "t.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    assert "a file of excel ends in .xlsx" in refusal(f"excel:{tmp_path}/t.xls")
    assert "spreadsheet in the format before 2007" in refusal(f"csv:{tmp_path}/t.xls")
    path = workbook(tmp_path / "good.xlsx", S=[["a"], [1]])
    assert "delimiter is declared of a table of excel Leave it out; it has sheet, decimal." in refusal(
        f"excel:{path}?delimiter=;"
    )
    assert "cannot be read" in refusal(f"excel:{tmp_path}/nowhere.xlsx")


def crafted(path: Path, part: str, content: str) -> Path:
    """A workbook with another part of this content."""
    with zipfile.ZipFile(workbook(path.with_name("good.xlsx"), S=[["a", "y"], [1, 0]])) as good:
        parts = {one: good.read(one) for one in good.namelist()} | {part: content.encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)
STYLES = (
    '<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><cellXfs>{}</cellXfs></styleSheet>'
)


@pytest.mark.parametrize(
    ("part", "content", "said"),
    [
        ("xl/worksheets/sheet1.xml", SHEET.format(  # the last of 16 384 columns in every row
            "".join(f'<row r="{k}"><c r="A{k}"><v>1</v></c><c r="XFD{k}"><v>1</v></c></row>' for k in range(1, 1101))
        ), "too many cells, or too long ones, for a file of its size"),
        ("xl/worksheets/sheet1.xml", SHEET.format("<row>" + "<c/>" * 200_000 + "</row>"), "bytes when unpacked"),
        ("xl/styles.xml", STYLES.format("<xf/>" * 1_100_000), "its part 'xl/styles.xml' is too large"),
        ("[Content_Types].xml", "<Types>" + " " * (17 << 20) + "</Types>", "'[Content_Types].xml' is too large"),
    ],
    ids=["wide", "tags", "styles", "types"],
)  # fmt: skip
def test_a_small_workbook_that_would_take_all_memory_is_refused(
    part: str, content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "<c/>" in content:
        monkeypatch.setattr(outside_files, "INFLATED_LEAST", 1 << 20)
    path = crafted(tmp_path / "t.xlsx", part, content)
    assert path.stat().st_size < 100_000 and said in refusal(f"excel:{path}")


def test_a_cell_that_does_not_fit_names_its_row(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", S=[["a", "y"], [1, 0], [], ["x", 1]])
    with pytest.raises(ConfigError, match="row 4, column 'a': 'x' is not a number"):
        data.load(f"excel:{path}?label=y")


# --- SPSS, Stata, SAS -------------------------------------------------------------------------------------------------


STORED = {
    "sav": (
        "c-m8O^D%PJP}Wok4hRlbaB&QARB-"
        "e3aaGV&$S5f(D7MnqPtPpLC{5B!&d=2k&#X!;O7Trh)(=WeObISYEKy)$U|?WlKmZmvE7HNpLcuS;Ou@*^z|_jn$jZ=6fkFT@m5BirFmb"
        "Sgv7@^ySP8N`Ba*z6uP4k1AW%90QpbvH5Gx}XhdTzjpqm2*+#+Bc?CR<VlV?VjXJ!OrPahuzZ2DpD2zHGC%QHjW2L=Zs9N0_qvh(uG^H`"
        "wbj8O9t=6tYc$xX~jh5LcQfh{c+ECSO5iU)S6K9Cp(5Q`wW;Xe?-%m$hJ@-IX^Of551&Hw-"
        "J|3m5ee^5R<)GS75xP^we=~{pUxuFIKK`r4x@)$asfk<(Xxx7%eF%SbI*ETUdl@l0=wn@2}oS;auEe9q=PEd5%7N@4>aRLM0HZvy&C=vk"
        "_r~nxu05y^c$vRm2e2x-%_6}#y0D+ICLtcJSNd_d0?-"
        "YOFbjr(DKuR|s>>;$911y}1^GjjsGwOiqD^rV+)H66hC|?MzV25nJ$m4go)cZkcGl$^Ads3kCJC=S#xCdrG0MhoFZ2"
    ),
    "dta": (
        "c-"
        "rk)zi!kp7&m_o6~sW*1&QSbSdfAfw^Rgua&MtRYPqEkaB>p27vUr)+t+eaUxEkd&Kn>$R+xB!J_6Hi=x}1^j<yoRE$)z?6#Z=Hv%jAm`O"
        "9a6(oC~arWu7XXBn3iBo~}1PNOIW+*Tl&X<o_N;P7Z4@Tv+2^Z`N$@BxJ(y^kya4=D(ia6#*eErHGpZafwfx=G&jht+AHgk-lLzJ41Kz^"
        "k`_TQLQjP&XvHaQy6!<@b(L=k&AVKRwGYA6owP#PZznmrcuG9miXi-)*(pYp-z1WX=-"
        "7M|w8liq04FMGrkf_t1O+_}a_bxMW5?WhWeYMN;H`1)MRNc@>~IFTD!Lg+QKH;FDhg%?7a>0#qfn$d#u5@31t3<4P7xEBYb|Uxg=YcwfI"
        "`5UaK3>!IVia|GP3uL)XW%12FX9xbC+h&pue9K9m%(d+uoSfv9^tD@a^>d>J>hYlUQ9yG4}mmwW9$x_XwIZWiKX}~vHGNzgPf$t4|{xCR"
        "<2c<cHj7dm#f-nlUqq1@?e(zb{A6ULTSJkw&B*u8g+Z5hee6ZZ7%Q3fuhy-NkhUL)l?%?SAw+yvol6dL;@*Hp@7nGLu^swW9QWR4YiJ(u"
        "7`E5wx>uZ?}S5D0{EkBmkSy^8L8I_IH=eHrvGq`J>$FAIS((AT@3673=Lrylny5M+qbM_Y&o9(m"
    ),
    "xpt": (
        "c-qC3(My9+6vpqi7Ne)V6!g+gJw}S&nJnq$I)w$>4DZ<c#-"
        "s*IVK%D&t+!t5f9l%Ra7}k>3Vk5QtH<B{zJuDciDkRs+Fi%B&bj(G=C}g@z4X0PE@i6#D4`H3RT&OImlZu)Ps5oeW5^Zm44pC74dv2Mv7"
        "zce*HBQsjJyMT@D=!1c~$-UOjELX7VX}S7_i9vEHWb09_8j>eNoHCT>oQ!Lo%Skyn1$CR6z(eP-"
        "SxG?c@hVVvMyllZc11#JyCf5A!m;G(@~iFI9HbQSE86obBudZFp&lc)4B<&|c_yeu-WVMZ8=uHB_H37Eq#>mWa3Iec2Da=Q7`yGZ8P#N|"
        "Eo^F=_7qe*I}}gJ-t*{^oK2o$135mXG&X!J4F~Qd{){AkDbrf>$|q90seT6SL+QFC=j?(}?Q{zmPE7l8Pm)r8}?Vdc-"
        "Szd!0eT#8+&0`H%Av=@ZQX31t"
    ),
}
"""ROWS with a column sex of 1, 2, 2 and nothing, as pyreadstat wrote them with labels of sex (1: male, 2: female) and
of age (99: unknown), which the format of SAS leaves out: zlib, in base 85.
"""


@pytest.mark.sockets  # a process
@pytest.mark.parametrize("kind", ["spss:t.sav", "stata:t.dta", "sas:t.xpt"])
def test_a_file_of_a_statistical_package_is_read_as_the_csv_file_beside_it(kind: str, tmp_path: Path) -> None:
    """By its labels where every value has one: sex, and not age."""
    pytest.importorskip("pyreadstat")
    name, _, file = kind.partition(":")
    (tmp_path / file).write_bytes(zlib.decompress(base64.b85decode(STORED[file[2:]])))
    found = table(f"{name}:{tmp_path / file}")
    sex = ["1", "2", "2", ""] if name == "sas" else ["male", "female", "female", ""]
    assert cells(found) == {**plain(tmp_path), "sex": sex}
    assert found.notes == (() if name == "sas" else (f"{file}: read by the labels of their values: sex",))


@pytest.mark.sockets  # a process
@pytest.mark.parametrize("kind", ["spss:t.sav", "stata:t.dta", "sas:t.xpt"])
def test_a_file_of_a_statistical_package_holds_no_more_cells_than_its_size_allows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyreadstat")
    name, _, file = kind.partition(":")
    (tmp_path / file).write_bytes(zlib.decompress(base64.b85decode(STORED[file[2:]])))
    whole = cells(table(f"{name}:{tmp_path / file}"))
    monkeypatch.setattr(statistical_reader, "read_statistical", office_tables.read_statistical_here)
    monkeypatch.setattr(office_tables, "PIECE", 1)  # a row at a time, so a row's texts are the most beyond the limit
    assert cells(table(f"{name}:{tmp_path / file}")) == whole
    for least in (64, 1540):  # fewer cells than there are, fewer than there are with their texts
        monkeypatch.setattr(outside_files, "inflated_limit", lambda _, most=least: most)
        assert "too many cells, or too long ones" in refusal(f"{name}:{tmp_path / file}")


CRASHING = (
    "c-m8O^D%PJP}Wok4hRlbaB&QARB-e3aaGV&$S5f(D7MnqPtPpLC{5B!&d=2k&#X!;O7Trh)(=WeObISYEKy)$U|?WlKmZmvE7HNpLcuS;Ou@"
    "*^z|_jn$jZ=6fkFT@m5BirFmbSgv7@^ySP8N`Ba*z6uP4k1AW%90QpbvH5Gx}XhdTzjpqm2*+#+Bc?CR<VlV?VjXJ!OrPahuzZ2DpD2zHGC%"
    "QHjW2L=Zs9N0_qvh(uG^H`wbj8O9t=6tYc$xX~jh5LcQfh{c+ECSPW9f;YX`aohFKrDjfhW|jo$RGd-7a)H57or}fmKmz%|Nr;@p>+K}D4!i"
    "_79%v=LPOkiEkJ_YPy>XZmT(|>44utDq&Uc2UMSlbh=Gx7o0y);35-PBq})tSP$b!w1Ct^rC^~G5Q&aOefdOxunUez)i2w>zfQ%4;8p(uY9V"
    "~r5M~OUphqGsZz{k=dFTbcH0}{q}ia&5V<>f0NrJE1-5ZcWF7EZ<ar7-mwbwKr%sl`a@85|&#FN9XGLpERJ@jG1V{h+j&L-64}DNy+xOFtsq"
    "1G66hh$x#*"
)
"""A file of SPSS with some bytes changed, on which the decoder ended the process: zlib, in base 85."""


@pytest.mark.sockets  # a process
def test_a_file_on_which_the_decoder_crashes_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyreadstat")
    (tmp_path / "t.sav").write_bytes(zlib.decompress(base64.b85decode(CRASHING)))
    assert "t.sav: not a file of SPSS, Stata or SAS that can be read" in refusal(f"spss:{tmp_path / 't.sav'}")


@pytest.mark.sockets  # a process
def test_a_reader_that_fails_beside_its_decoder_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that cannot be imported: that is no fault of the file, and no crash."""
    pytest.importorskip("pyreadstat")
    (tmp_path / "t.sav").write_bytes(zlib.decompress(base64.b85decode(STORED["sav"])))
    monkeypatch.setattr(statistical_reader, "PYTHON", (sys.executable, "-c", "raise SystemExit('no such library')"))
    assert "can be read: no such library" in refusal(f"spss:{tmp_path}/t.sav")


@pytest.mark.sockets  # a process
def test_what_is_no_file_of_a_statistical_package_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyreadstat")
    for kind, file in (("spss", "t.sav"), ("stata", "t.dta"), ("sas", "t.sas7bdat"), ("sas", "t.xpt")):
        (tmp_path / file).write_bytes(b"no such file" * 40)
        assert "not a file of SPSS, Stata or SAS that can be read" in refusal(f"{kind}:{tmp_path / file}")
        assert "a file of stata ends in .dta" in refusal(f"stata:{tmp_path}/t.csv")


# --- SQL --------------------------------------------------------------------------------------------------------------

QUERY = "SELECT age, bmi, ward, seen, ill FROM patients JOIN stays USING (id) ORDER BY id"


def database(path: Path, rows: list[list[Any]] = ROWS) -> Path:
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE patients (id INTEGER, age INTEGER, bmi REAL, ill TEXT)")
        base.execute("CREATE TABLE stays (id INTEGER, ward TEXT, seen TEXT)")
        for k, (age, bmi, ward, seen, ill) in enumerate(rows):
            base.execute("INSERT INTO patients VALUES (?, ?, ?, ?)", (k, age, bmi, ill))
            base.execute("INSERT INTO stays VALUES (?, ?, ?)", (k, ward, str(seen)))
    base.close()
    return path


def asked(folder: Path, query: str) -> str:
    database(folder / "t.db") if not (folder / "t.db").exists() else None
    (folder / "q.sql").write_text(query)
    return f"sql:{folder}/t.db?query={folder}/q.sql&label=ill"


def test_the_answer_to_a_query_is_read_as_the_csv_file_beside_it(tmp_path: Path) -> None:
    source = asked(tmp_path, QUERY)
    assert cells(table(source)) == plain(tmp_path)
    assert data.load(f"{source}&drop=bmi,seen,ward").x.tolist() == [[31], [44], [58], [60]]
    assert source_digest(source) == source_digest(f"csv:{tmp_path}/plain.csv")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM patients", "only a SELECT is allowed, and this does more"),
        ("DROP TABLE patients", "only a SELECT is allowed"),
        ("CREATE TEMP TABLE x AS SELECT 1", "only a SELECT is allowed"),
        ("ATTACH 'other.db' AS other", "only a SELECT is allowed"),
        ("PRAGMA user_version = 7", "only a SELECT is allowed"),
        ("SELECT load_extension('x')", "only a SELECT is allowed"),
        ("SELECT 1; DELETE FROM patients", "one statement at a time"),
        ("INSERT INTO patients SELECT * FROM patients", "only a SELECT is allowed"),
        ("SELECT age FROM nowhere", "no such table: nowhere"),
        ("SELEKT 1", "syntax error"),
        ("", "no rows"),
        ("SELECT age FROM patients WHERE age > 1000", "no rows"),
        ("SELECT x'00' AS picture", "row 1, column 'picture': bytes"),
        ("WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT sum(k) FROM n", "it takes too long"),
        (
            "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k FROM n",
            "too many cells, or too long",
        ),
        ("SELECT hex(zeroblob(600000)) AS one_step FROM patients", "too big"),
    ],
)
def test_a_query_that_is_no_select_of_cells_is_refused_and_nothing_changes(
    query: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "it takes too long":
        monkeypatch.setattr(office_tables, "QUERY_SECONDS", 0.0)
    monkeypatch.setattr(outside_files, "INFLATED_LEAST", 1)
    source = asked(tmp_path, query)
    before = (tmp_path / "t.db").read_bytes()
    assert said in (told := refusal(source)) and "t.db" in told
    assert (tmp_path / "t.db").read_bytes() == before and sorted(one.name for one in tmp_path.iterdir()) == [
        "q.sql",
        "t.db",
    ]


def test_a_database_with_a_write_ahead_log_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    source = asked(tmp_path, QUERY)
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as base:
        base.execute("PRAGMA journal_mode = WAL")
    assert cells(table(source)) == plain(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"plain.csv", "q.sql", "t.db"}
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as base:  # rows that are in the log alone
        base.execute("UPDATE patients SET age = age + 1")
        base.commit()
        assert cells(table(source))["age"] != cells(table(f"csv:{tmp_path}/plain.csv?label=ill"))["age"]


def test_sources_of_other_databases_are_refused_by_name(tmp_path: Path) -> None:
    source = asked(tmp_path, QUERY)
    assert "no query Write sql:DATABASE?query=FILE" in refusal(f"sql:{tmp_path}/t.db")
    assert "a query with a file that is no database" in refusal(f"csv:{tmp_path}/t.csv?query=q.sql")
    (tmp_path / "q.sql").unlink()
    assert "q.sql: no query: No such file" in refusal(source)
    (tmp_path / "t.db").write_bytes(b"no database" * 100)
    assert "file is not a database" in refusal(asked(tmp_path, QUERY))
    with pytest.raises(ConfigError, match="mysql is not supported"):
        data.load("sql:mysql://host/db?query=q.sql&label=ill")


TOML = """
name = "asked"
[data]
source = "sql:sqlite:///site-{peer}.db?query=q.sql&label=ill&drop=seen"
test = "csv:test.csv?label=ill&drop=seen"
partition = { kind = "own" }
scale = "federated"
categories = "agreed"
missing = "mean"
[coordinator]
clients = 3
min_clients = 3
"""


def asked_sites(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "t.toml").write_text(TOML)
    (folder / "q.sql").write_text(QUERY)
    (folder / "test.csv").write_text(CSV)
    for site in range(3):
        database(folder / f"site-{site}.db", ROWS * 5)


def test_sites_agree_on_what_one_query_selects_from_their_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_sites(tmp_path)
    for words in (["data", "describe", "t.toml", "--id", "1"], ["data", "agree", "t.toml"]):
        said = in_process(words, tmp_path, monkeypatch, capsys)
        assert said.code == 0, said.err
    assert "3 of 3 sites, 60 records" in said.out


def test_a_query_that_differs_between_sites_makes_another_plan_and_another_agreement(tmp_path: Path) -> None:
    hashes, digests = set(), set()
    for name, query in (("one", QUERY), ("same", QUERY), ("other", f"{QUERY} -- of 2024")):
        asked_sites(tmp_path / name)
        (tmp_path / name / "q.sql").write_text(query)
        experiment = load_experiment(tmp_path / name / "t.toml")
        _, statement = stated_statistics(experiment)
        hashes.add(statement.files["q.sql"])
        digests.add(schema_of_experiment(experiment).digest)
        assert schema_of_experiment(experiment).digest.startswith(statement.model.layout), "with another sites refuse"
    assert len(hashes) == len(digests) == 2


def test_the_refusal_of_a_site_with_another_query_names_the_query(tmp_path: Path) -> None:
    hellos = list[Hello]()
    for name, query in (("one", QUERY), ("other", f"{QUERY} -- of 2024")):
        asked_sites(tmp_path / name)
        (tmp_path / name / "q.sql").write_text(query)
        plan, schema = statistics_plan(load_experiment(tmp_path / name / "t.toml"))
        plan, task, refused = statistics_task(plan, schema, [0])
        assert not refused
        hellos.append(hello_of(plan, task.schema, likeness=likeness_of(plan, task)))
    rejected = transport.refused(1, hellos[1], hellos[0])
    assert rejected and rejected.text.endswith("or other columns, classes or common examples, behind q.sql")
    assert transport.refused(1, hellos[0], hellos[0]) is None


def test_a_refusal_of_one_is_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n1\n")
    assert "line 3: 1 cell; expected 3" in refusal(f"csv:{tmp_path}/t.csv")
    (tmp_path / "t.csv").write_text("a,b,y\n1,x,1\n2,x,3\n")
    with pytest.raises(ConfigError, match=r"column 'b' has 1 different value; groups are 2 to"):
        groups_of(table_file(f"csv:{tmp_path}/t.csv")[0], "b", {})
    agreed = unknown(TableSchema((SchemaColumn("a"), SchemaColumn("y", label=True))), 5)
    with pytest.raises(ConfigError, match=r"column 'b' has 1 different value: fewer than 5"):
        read_clusters(tmp_path / "t.csv", agreed, "b")
    with pytest.raises(ConfigError, match="weibull: 1 label column, y"):
        FAMILIES["weibull"].design({}, agreed)
    assert [plural(*one) for one in ((1, "class"), (2, "class"), (0, "site"))] == ["1 class", "2 classes", "0 sites"]
