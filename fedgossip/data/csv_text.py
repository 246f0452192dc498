"""The text of a CSV file: its encoding, the mark between its cells, and the decimal mark of its numbers.

    , ; tab |           divide cells: the one with equal numbers of cells per line; `sep=;` of a spreadsheet names it
    1,5   1.234,5       are 1.5 and 1234.5 in a file without commas between its cells, if no number contradicts
    1,002   1.002       could be either: with semicolons read as 1.002 and reported in a note, else refused
    not UTF-8           UTF-16 by its mark; else Windows-1252, in a note, if all its characters are of western languages

Declared formats (`FileDeclaration`) are not guessed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from fedgossip.base import outside_files
from fedgossip.base.cells import advise_point, is_missing, is_number
from fedgossip.base.errors import ConfigError, plural
from fedgossip.data.columns.declarations import FileDeclaration

MARKS = (",", ";", "\t", "|")
"""Marks between cells; of two suitable ones the one with more columns is used, on a tie the first."""
LOOKED_AT = 100
"""Number of lines examined to find the mark."""
TITLES = 20
"""Maximum number of lines of titles above a table."""

UTF8 = "Save it as comma-separated text in UTF-8."
_BEGINNINGS: Mapping[bytes, tuple[str, str]] = {
    b"\x1f\x8b": ("is compressed by gzip", "Unpack it: gunzip FILE."),
    b"PK": ("is a zip archive, or a spreadsheet", f"A spreadsheet has the ending .xlsx.  {UTF8}"),
    b"\xd0\xcf\x11\xe0": ("is a spreadsheet in the format before 2007", f"Save it as .xlsx.  {UTF8}"),
}
"""First bytes of files that are no plain text."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_WESTERN = re.compile("[À-ÖØ-öø-ÿ°²µ§€–\u00a0]+")
"""Characters beyond ASCII by which Windows-1252 is accepted: others point to another encoding."""
_SEPARATOR = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)

_SIGN, _EXPONENT = r"[+-]?", r"(?:[eE][+-]?\d+)?"
_COMMA = re.compile(rf"{_SIGN}\d+,\d+{_EXPONENT}", re.ASCII)
_EITHER = re.compile(rf"{_SIGN}[1-9]\d{{0,2}}[.,]\d{{3}}", re.ASCII)
"""A number with a single mark that may separate thousands."""
_GROUPS = {
    ",": re.compile(rf"{_SIGN}\d{{1,3}}(?:\.\d{{3}}(?:\.\d{{3}})+|(?:\.\d{{3}})+,\d+)", re.ASCII),
    ".": re.compile(rf"{_SIGN}\d{{1,3}}(?:,\d{{3}}(?:,\d{{3}})+|(?:,\d{{3}})+\.\d+)", re.ASCII),
}
"""Numbers that certainly have marks between thousands, by the decimal mark that follows from it."""


def read_csv_rows(
    path: Path, declared: FileDeclaration
) -> tuple[list[str], list[list[str]], list[int], tuple[str, ...]]:
    """Return the header of a CSV file, its rows, their lines from 1, and notes on how it was read.

    Numbers have a point.  Raises ConfigError, with the line, for an unreadable or ambiguous file.
    """
    text, notes = _decoded(path, declared.encoding)
    mark = declared.delimiter
    named = _SEPARATOR.match(text)
    mark = mark or (named[1] if named else "") or _mark(text)
    rows, lines = [], []
    try:
        # an unclosed quote would put the rest of the file into one cell
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=text.count('"') % 2 == 1)
        if named:
            next(reader, [])
        first = [(reader.line_num, row) for row in islice(reader, TITLES + 1)]
        above = titles_above([row for _, row in first])
        notes += [title_note(path, "line", first[:above])] if above else []
        header = [name.strip() for name in first[above][1]] if first else []
        for line, row in chain(first[above + 1 :], ((reader.line_num, row) for row in reader)):
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(row) != len(header):
                raise ConfigError(
                    f"{path}, line {line}: {plural(len(row), 'cell')}; expected {len(header)}",
                    "Every line has one cell per column of the first line, which names them.",
                )
            rows.append(cells)
            lines.append(line)
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise ConfigError(f"{where}: cannot be read: {error}", "It is comma-separated text in UTF-8.") from error
    if not rows:
        raise ConfigError(f"{path}: no rows", "The first line names the columns, examples follow.")
    notes += write_points(path, declared.decimal, mark, rows, lines)
    return header, rows, lines, tuple(notes)


def titles_above(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of first rows that are titles above a table: rows with one cell at most, before three columns
    or more named by words.
    """
    for place, row in enumerate(rows[: TITLES + 1]):
        cells = [cell.strip() for cell in row]
        if any(cells[1:]):
            return place if len(cells) >= 3 and all(cells) and not any(map(is_number, cells)) else 0
    return 0


def title_note(path: Path, unit: str, above: Sequence[tuple[int, Sequence[str]]]) -> str:
    word = next((row[0].strip() for _, row in above if row and row[0].strip()), "")
    last = above[-1][0]
    which = f"{unit}s 1 to {last} are titles" if last > 1 else f"{unit} 1 is a title"
    return f"{path.name}: {which} above the table and left out: {word[:60]!r}"


def _decoded(path: Path, encoding: str) -> tuple[str, list[str]]:
    try:
        content = outside_files.read_bytes(outside_files.resolve(path), outside_files.LARGE)
    except OSError as error:
        why = error.strerror or error
        advice = "Is it in another folder?" if isinstance(error, FileNotFoundError) else UTF8
        raise ConfigError(f"{path}: cannot be read: {why}", advice) from error
    for beginning, (what, advice) in _BEGINNINGS.items():
        if content.startswith(beginning):
            raise ConfigError(f"{path}: {what}", advice)
    notes: list[str] = []
    if encoding:
        text = _as_encoded(path, content, encoding)
    elif content.startswith(_UTF16):
        text = _as_encoded(path, content, "utf-16")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            text, notes = _western(path, content, error.start)
    text = text.rstrip("\x1a")  # end-of-file mark of DOS files
    if (place := text.find("\0")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise ConfigError(f"{path}, line {line}: a byte 0, which is of no text", "Was the file cut, or is it another?")
    return text, notes


def _as_encoded(path: Path, content: bytes, encoding: str) -> str:
    try:
        return content.decode("utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"{path}, line {line}: byte {error.start} is of no text in {encoding}"
        raise ConfigError(
            text, "Declare the encoding that the file has: encoding = ... (docs/sites/tables.md)."
        ) from error


def _western(path: Path, content: bytes, at: int) -> tuple[str, list[str]]:
    """Return text in a western encoding."""
    line, strange = content.count(b"\n", 0, at) + 1, False
    try:
        text = content.decode("cp1252")
        strange = any(not _WESTERN.fullmatch(one) for one in set(text) if not one.isascii())
    except UnicodeDecodeError:
        strange = True
    if strange:
        advice = f'{UTF8}  Or declare it: encoding = "cp1250" (docs/sites/tables.md).'
        raise ConfigError(f"{path}, line {line}: byte {at} is of no text in UTF-8", advice)
    word = next(one for one in re.findall(r"[^\s,;|\"]+", text, re.ASCII) if not one.isascii())  # 0xa0 is a space
    return text, [f"{path.name}: not in UTF-8; read as Windows-1252, as {word[:40]!r} in line {line}"]


def _mark(text: str) -> str:
    widths = {}
    for mark in (one for one in MARKS if one in text):
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
            rows = list(islice(reader, LOOKED_AT))
            several = {len(row) for row in rows[titles_above(rows) :] if any(cell.strip() for cell in row)}
        except csv.Error:
            continue
        widths[mark] = several.pop() if len(several) == 1 else 1
    if widths and max(widths.values()) > 1:
        return max(widths, key=lambda mark: widths[mark])
    first = text.partition("\n")[0]
    return max(MARKS, key=first.count)  # the error for an uneven line names it


def _pointed(cell: str, decimal: str) -> str:
    return cell.replace(".", "").replace(",", ".") if decimal == "," else cell.replace(",", "")


def write_points(
    path: Path, decimal: str, mark: str, rows: list[list[str]], lines: Sequence[int], unit: str = "line"
) -> list[str]:
    """Rewrite the numbers of texts with points, in place: by the declared `decimal` mark, or as the numbers decide.

    `mark`: between cells.  Returns a note if no number decides.  Raises ConfigError, naming the `unit` of a row.
    """
    if decimal:
        _as_declared(path, decimal, rows, lines, unit)
        return []
    return [] if mark == "," else _write_points(path, mark, rows, lines, unit)


def _as_declared(path: Path, decimal: str, rows: list[list[str]], lines: Sequence[int], unit: str) -> None:
    """Write the numbers with the declared decimal mark as floats, in place.  Raises ConfigError."""
    other = "." if decimal == "," else ","
    for at, row in enumerate(rows):
        for place, cell in enumerate(row):
            if other in cell and (_GROUPS[decimal].fullmatch(cell) or _EITHER.fullmatch(cell)):
                row[place] = _pointed(cell, decimal)
            elif other in cell and (_COMMA.fullmatch(cell) or (is_number(cell) and not is_missing(cell))):
                text = (
                    f"{path}, {unit} {lines[at]}: {cell!r} has a {_NAMES[other]}, and the decimal mark is {decimal!r}"
                )
                raise ConfigError(text, "Correct the cell, or the declaration of the file.")
            elif decimal == "," and _COMMA.fullmatch(cell):
                row[place] = _pointed(cell, decimal)


_NAMES = {",": "comma", ".": "point"}
_DECLARE = 'declare the decimal mark: decimal = "," or "." (docs/sites/tables.md)'


def _write_points(path: Path, mark: str, rows: list[list[str]], lines: Sequence[int], unit: str) -> list[str]:
    """Rewrite the numbers of a file with decimal commas with points, in place; return a note if no number decides.
    Raises ConfigError for ambiguous marks.
    """
    first: dict[tuple[str, bool], tuple[int, str]] = {}
    """By the mark of a number, and whether it can only be decimal: the first one, and its line."""
    grouped: dict[str, tuple[int, str]] = {}
    for at, row in enumerate(rows):
        for cell in row:
            if "," not in cell and "." not in cell:
                continue
            if found := [decimal for decimal in _GROUPS if _GROUPS[decimal].fullmatch(cell)]:
                grouped.setdefault(found[0], (at, cell))
            elif _COMMA.fullmatch(cell):
                first.setdefault((",", not _EITHER.fullmatch(cell)), (at, cell))
            elif "." in cell and is_number(cell) and not is_missing(cell):
                first.setdefault((".", not _EITHER.fullmatch(cell)), (at, cell))
    commas, points = ([one for (which, _), one in first.items() if which == mark] for mark in (",", "."))
    sure = {which for which, certain in first if certain} | grouped.keys()
    if len(sure) > 1 or (commas and points and not any(decimal in sure for decimal in grouped)):
        one = min([*commas, *([grouped[","]] if "," in grouped else [])], default=(0, ""))
        two = min([*points, *([grouped["."]] if "." in grouped else [])], default=(0, ""))
        where, other = (f"{unit} {lines[at]}" for at in (one[0], two[0]))
        text = f"{path}, {where}: {one[1]!r} has a comma, and {two[1]!r} in {other} a point"
        advice = "Write all numbers with a point, and without marks between thousands; or "
        raise ConfigError(text, f"{advice}{_DECLARE}.")
    if sure or not (commas or (points and mark == ";")):
        decimal = next(iter(sure), ".")
        if decimal == "," or decimal in grouped:
            _as_declared(path, decimal, rows, lines, unit)
        return []
    at, cell = min(commas or points)
    if mark != ";":
        text = f"{path}, {unit} {lines[at]}: {cell!r} could be {cell.replace(',', '.')} or a thousand"
        raise ConfigError(text, f"{advise_point(cell)}  Or {_DECLARE}.")
    if commas:
        _as_declared(path, ",", rows, lines, unit)
    read, other = cell.replace(",", "."), re.sub("[.,]", "", cell)
    return [
        f"{path.name}: {cell!r} in {unit} {lines[at]} is read as {read}, not {other}: no number decides; {_DECLARE}"
    ]
