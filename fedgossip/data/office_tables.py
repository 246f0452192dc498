"""Tables in files of other programs: Excel, SPSS, Stata, SAS, and the result of a query of a SQLite database.

    excel:ward.xlsx?label=ill&sheet=Data        one sheet, its first row with cells names the columns; by openpyxl
    spss:ward.sav   stata:ward.dta   sas:ward.sas7bdat (or .xpt)        by pyreadstat

Nothing in a file is executed: for a formula the stored value is read.

    sql:hospital.db?query=cohort.sql&label=ill

The database is opened for reading, and an authorizer refuses every statement except a SELECT.  The query's text is part
of the plan.  `postgresql` reads those of a server.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, nearest, needed, plural
from fedgossip.data.csv_text import TITLES, title_note, titles_above, write_points
from fedgossip.data.table_files import CELLS_MOST, TableFile, TableRows

STATISTICAL = {
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".dta": "read_dta",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}
"""The functions of pyreadstat by file suffix."""


def text_of(value: object) -> str:
    """Return the text of a value: "" for none, whole numbers without a point, dates as 2024-01-31."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time() else value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(value).strip()


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


TEXT = str, bytes
EACH_CELL, EACH_TAG = 64, 32
"""Bytes of memory of a cell in addition to its text; and of a tag of a workbook."""


class CellMemory:
    """The memory that the cells of one file may take, by its size: a small file may claim or inflate to any number."""

    def __init__(self, name: object, size: int) -> None:
        self._name, self._left = name, outside_files.inflated_limit(size)

    def take(self, cells: Sequence[object]) -> None:
        """Raise ConfigError if these cells, added to the earlier ones, exceed the limit."""
        self._left -= EACH_CELL * len(cells) + sum(
            len(one) for one in cells if one is not None and isinstance(one, TEXT)
        )
        if self._left < 0:
            raise self.refused()

    def refused(self) -> ConfigError:
        text = f"{self._name}: too many cells, or too long ones, for a file of its size"
        return ConfigError(text, "Take a part of it, or save it as comma-separated text in UTF-8.")


# --- Excel ------------------------------------------------------------------------------------------------------------


def read_workbook(file: TableFile) -> TableRows:
    """Return the cells of one sheet of a workbook.

    Raises ConfigError for an unreadable file, a missing or undeclared sheet, a formula without a stored value, and a
    cell outside the named columns.
    """
    path = file.path
    advice = "Save it as .xlsx, without a password; or as comma-separated text in UTF-8."
    try:
        with (
            outside_files.open_file(outside_files.resolve(path), outside_files.LARGE) as raw,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of extensions that openpyxl leaves out
            size = os.fstat(raw.fileno()).st_size
            _check_size(path, raw, size)
            sheet = _sheet(path, _book(raw, values=True), file.declared.sheet)
            memory, cells = CellMemory(path, size), list[tuple[int, Sequence[object]]]()
            for number, row in _cells(path, sheet):
                memory.take(row)
                cells.append((number, row))
            if any(None in row for _, row in cells):
                _check_formulas(path, _book(raw, values=False)[sheet.title], dict(cells))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", advice) from None
    except Exception as error:  # a damaged file raises any error of its decoder
        raise ConfigError(f"{path}: no workbook that can be read: {_line(error)}", advice) from error
    if not cells:
        raise ConfigError(
            f"{path}: sheet {sheet.title!r} is empty", "Its first row names the columns, examples follow."
        )
    texts = [(number, [text_of(one) for one in row]) for number, row in cells[: TITLES + 1]]
    above = titles_above([_trimmed(row) for _, row in texts])
    (first, _), *rest = cells[above:]
    header = texts[above][1]
    header = _trimmed(header)
    rows = [[text_of(one) for one in row] for _, row in rest]
    for (number, _), row in zip(rest, rows, strict=True):
        if extra := [place for place in range(len(header), len(row)) if row[place]]:
            named = f"row {first} names {plural(len(header), 'column')}"
            text = f"{path}, row {number}: a cell in column {extra[0] + 1}; {named}"
            raise ConfigError(text, "The first row with cells names the columns; titles above it have one cell.")
    if not rows:
        raise ConfigError(f"{path}: no rows", "The first row names the columns, examples follow.")
    wide = [[*row, *[""] * len(header)][: len(header)] for row in rows]
    notes = [title_note(path, "row", texts[:above])] if above else []
    numbers = [number for number, _ in rest]
    notes += _point_texts(path, file.declared.decimal, [row for _, row in rest], wide, numbers)
    return TableRows(header, wide, numbers, tuple(notes), unit="row")


def _point_texts(
    path: Path, decimal: str, cells: Sequence[Sequence[object]], rows: list[list[str]], lines: Sequence[int]
) -> list[str]:
    """Rewrite the numbers in cells of text with points, in place, as between tabs; return notes.

    Raises ConfigError for numbers of which none decides, and of which two contradict each other.
    """
    texts = [[text if isinstance(one, str) else "" for one, text in zip(of, row, strict=False)]
             for of, row in zip(cells, rows, strict=True)]  # fmt: skip
    notes = write_points(path, decimal, "\t", texts, lines, "row")
    for row, of in zip(rows, texts, strict=True):
        row[: len(of)] = [text or cell for text, cell in zip(of, row, strict=False)]
    return notes


def _trimmed(row: Sequence[str]) -> list[str]:
    found = list(row)
    while found and not found[-1]:
        found.pop()
    return found


PART_MOST, PART_TAGS = 16 << 20, 1 << 20
"""Maximum number of bytes, and of tags, of a part that is no sheet: each tag of styles becomes an object."""


class _Parts(zipfile.ZipFile):
    """The archive of a workbook; `read` is for the parts that openpyxl parses at once."""

    def read(self, name: str | zipfile.ZipInfo, pwd: bytes | None = None) -> bytes:
        with self.open(name, pwd=pwd) as part:
            content = part.read(PART_MOST + 1)
        if len(content) > PART_MOST or content.count(b"<") > PART_TAGS:
            raise ConfigError(f"{self.filename}: its part {name!r} is too large", "Save the sheet alone.")
        return content


def _book(raw: Any, *, values: bool) -> Any:
    """Return a workbook with the stored values of its formulas, or with these."""
    excel = needed("openpyxl.reader.excel", "excel", "a workbook")
    reader = excel.ExcelReader(raw, read_only=True, data_only=values, keep_links=False)
    reader.archive = _Parts(raw)
    reader.read()
    return reader.wb


def _check_size(path: Path, raw: Any, size: int) -> None:
    most = outside_files.inflated_limit(size)
    with zipfile.ZipFile(raw) as archive:
        total = sum(one.file_size for one in archive.infolist())
        if total <= most:  # a tag of four bytes is an object of a hundred
            for one in archive.infolist():
                with archive.open(one) as part:
                    total += sum(EACH_TAG * piece.count(b"<") for piece in iter(lambda: part.read(1 << 20), b""))
    if total > most:
        raise ConfigError(f"{path}: {total:,} bytes when unpacked; at most {most:,}", "Save the sheet alone.")


def _sheet(path: Path, book: Any, declared: str) -> Any:
    names = [sheet.title for sheet in book.worksheets]
    if declared:
        if declared not in names:
            raise ConfigError(f"{path}: no sheet {declared!r}", nearest(declared, names))
        return book[declared]
    filled = [sheet for sheet in book.worksheets if next(_cells(path, sheet), None)]
    if len(filled) > 1:
        titles = ", ".join(repr(sheet.title) for sheet in filled[:5])
        raise ConfigError(f"{path}: {len(filled)} sheets: {titles}", f"Declare which one: sheet = {filled[0].title!r}.")
    return filled[0] if filled else book.worksheets[0]


def _cells(path: Path, sheet: Any) -> Iterator[tuple[int, Sequence[object]]]:
    total = 0
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        total += len(row)
        if total > CELLS_MOST:
            raise ConfigError(f"{path}: more than {CELLS_MOST} cells", "Divide it.")
        if any(one is not None and one != "" for one in row):
            yield number, row


def _check_formulas(path: Path, sheet: Any, values: dict[int, Sequence[object]]) -> None:
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        for place, formula in enumerate(row):
            known = values.get(number, ())
            if isinstance(formula, str) and formula.startswith("=") and (place >= len(known) or known[place] is None):
                text = f"{path}, row {number}, column {place + 1}: a formula without a stored value"
                raise ConfigError(text, "Open the file in a spreadsheet program and save it again.")


# --- statistical packages ---------------------------------------------------------------------------------------------


PIECE = 1 << 30
"""Maximum number of bytes of rows read at once, by the widths that the file declares: a compressed one may hold any."""


def read_statistical_here(file: TableFile) -> TableRows:
    """Return the cells of a file of SPSS, Stata or SAS, declared missing values empty.

    If all numbers of a column have a label, their labels are read, with a note.  Raises ConfigError.
    """
    reader, path = needed("pyreadstat", "readstat", "a file of a statistical package"), file.path
    options = {"encoding": file.declared.encoding} if file.declared.encoding else {}
    try:
        read = getattr(reader, STATISTICAL[path.suffix.lower()])
        with outside_files.open_by_name(outside_files.resolve(path)) as name:
            _, about = read(name, metadataonly=True, output_format="dict", **options)
            size = Path(name).stat().st_size
            memory, columns = CellMemory(path, size), dict[str, list[Any]]((one, []) for one in about.column_names)
            # a text without a width is stored once for any number of rows
            row = sum(EACH_CELL + (about.variable_storage_width[one] or size) for one in columns)
            most, rows = max(1, PIECE // row), 0
            while rows % most == 0:
                piece, about = read(name, output_format="dict", row_limit=most, row_offset=rows, **options)
                for one, values in piece.items():
                    memory.take(values)
                    columns[one].extend(values)
                if not (length := max(map(len, piece.values()), default=0)):
                    break
                rows += length
                if rows * len(columns) > CELLS_MOST:
                    raise memory.refused()
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", "Is it there, and a file?") from None
    except Exception as error:  # a damaged file raises any error of its decoder
        text = f"{path}: not a file of SPSS, Stata or SAS that can be read: {_line(error)}"
        raise ConfigError(text, "Save it again, or as comma-separated text in UTF-8.") from error
    header = [str(name) for name in columns]
    if not rows:
        raise ConfigError(f"{path}: no rows", "A table has a row for every example.")
    texts, labelled = [], []
    for name, values in columns.items():
        found = [text_of(value.item() if hasattr(value, "item") else value) for value in values]
        known = {text_of(code): str(label).strip() for code, label in about.variable_value_labels.get(name, {}).items()}
        if known and {one for one in found if one} <= known.keys():
            found = [known[one] if one else "" for one in found]
            labelled.append(str(name))
        texts.append(found)
    notes = (f"{path.name}: read by the labels of their values: {', '.join(labelled)}",) if labelled else ()
    return TableRows(header, [list(row) for row in zip(*texts, strict=True)], range(1, rows + 1), notes, "row")


ONE_SELECT = "A query is one SELECT of the wanted columns."
QUERY_MOST = 1 << 20
"""Maximum number of bytes of a query."""
CELL_MOST = 1 << 20
"""Maximum bytes of a cell of a database, or a query's text."""
QUERY_SECONDS, STEPS_AT_ONCE, PATTERN_MOST = 300.0, 10_000, 1000
"""Maximum time of a query; number of steps of SQLite's machine between two looks at it; and maximum letters of a
pattern, as one comparison is one step.
"""
WAL = b"\x02\x02"
"""Bytes 18 and 19 of a database with a write-ahead log."""


def query_text(query: Path) -> str:
    """Return the text of a query.  Raises ConfigError for a file that cannot be read."""
    try:
        return outside_files.read_bytes(outside_files.resolve(query), QUERY_MOST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{query}: no query: {why}", "It is one SELECT, as text in UTF-8; all sites have it."
        ) from None


def query_digest(query: Path) -> str:
    """Return 32 hex digits of a hash of a query's text."""
    return hashlib.sha256(query_text(query).encode()).hexdigest()[:32]


def read_query(file: TableFile) -> TableRows:
    """Return the rows of a query.  Raises ConfigError for a query that fails, writes, takes too long or has no rows."""
    import sqlite3

    assert file.query is not None, "a source sql: has a query"
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    text, path, until = query_text(file.query), file.path, monotonic() + QUERY_SECONDS
    try:
        address = _address(outside_files.resolve(path))
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.setlimit(
                sqlite3.SQLITE_LIMIT_LENGTH, CELL_MOST
            )  # zeroblob(1e9) is one step of a query, or of a view
            database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
            database.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN_MOST)
            database.set_progress_handler(lambda: int(monotonic() > until), STEPS_AT_ONCE)
            answer = database.execute(text)
            header = [str(column[0]).strip() for column in answer.description or ()]
            memory, found = CellMemory(f"{file.query} on {path}", path.stat().st_size), list[tuple[object, ...]]()
            for row in answer:
                memory.take(row)
                found.append(row)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", "Is it there, and a file?") from None
    except (sqlite3.Error, sqlite3.Warning) as error:
        what = {"not authorized": "only a SELECT is allowed, and this does more", "interrupted": "it takes too long"}
        why = what.get(str(error), str(error))
        raise ConfigError(f"{file.query} on {path}: {why}", ONE_SELECT) from None
    if not found:
        raise ConfigError(f"{file.query} on {path}: no rows", ONE_SELECT)
    for number, row in enumerate(found, 1):
        if raw := [header[place] for place, value in enumerate(row) if isinstance(value, bytes)]:
            raise ConfigError(f"{path}, row {number}, column {raw[0]!r}: bytes, which are no cell", "Leave it out.")
    return TableRows(header, [[text_of(one) for one in row] for row in found], range(1, len(found) + 1), unit="row")


def _address(path: Path) -> str:
    """Return the address of a checked database for reading.  Raises OSError.

    SQLite makes two files beside one with a write-ahead log; while nobody has it open, it is read without.
    """
    with outside_files.open_file(path) as file:
        logged = file.read(20)[18:] == WAL
    log = path.with_name(f"{path.name}-wal")
    alone = logged and not (log.exists() and log.stat().st_size)
    return f"file:{quote(str(path))}?mode=ro{'&immutable=1' if alone else ''}"
