"""CSV files: their text, the mark between their cells, and which of their columns have a name.

    , ; tab |       divide cells, whichever gives every line as many; `sep=;` of a spreadsheet names it
    1,5             is 1.5 in a file without commas between its cells, where no number has a point
    a column without a name, before all others: the row numbers of pandas and R, omitted with a note

One reader for all: training, sites' tables, predictions, judgements and fits.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.cells import is_missing, is_number, number_in, shown, with_point
from fedgossip.base.errors import ConfigError

MARKS = (",", ";", "\t", "|")
"""Marks between cells; of two suitable ones the one with more columns wins, on a tie the first."""
LOOKED_AT = 100
"""Number of lines examined to find the mark."""

UTF8 = "Save it as comma-separated text in UTF-8."
_BEGINNINGS: Mapping[bytes, tuple[str, str]] = {
    b"\xff\xfe": ("is text in UTF-16", UTF8),
    b"\xfe\xff": ("is text in UTF-16", UTF8),
    b"\x1f\x8b": ("is compressed by gzip", "Unpack it: gunzip FILE."),
    b"PK": ("is a zip archive, or a spreadsheet", UTF8),
}
"""First bytes of files that are no plain text."""
_SEPARATOR = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)
_COMMA = re.compile(r"[+-]?\d+,(\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NAMELESS = re.compile(r"(unnamed: ?\d+(\.\d+)*(_level_\d+)?)?", re.IGNORECASE)
"""The head of a column without a name, and the name that pandas writes in its place."""


class CsvColumns:
    """The rows and columns of one CSV file."""

    kind = "csv"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole_header, self._rows, self._lines = _rows(path)
        self._read, self.notes = named_columns(path, self.whole_header, self._column)
        self.header: list[str] = [self.whole_header[place] for place in self._read]

    @property
    def left_out(self) -> Sequence[str]:
        """Return the heads of omitted columns, those without a name."""
        return [head for place, head in enumerate(self.whole_header) if place not in self._read]

    def _column(self, place: int) -> list[str]:
        return [row[place] for row in self._rows]

    def numbers(self, column: int, advice: str) -> npt.NDArray[np.float64]:
        """Return the numbers of a column, [m].  Raises ConfigError for another cell, naming its line."""
        found = np.empty(len(self._rows))
        cells = self.words(column)
        for k, cell in enumerate(cells):
            value = number_in(cell)
            if value is None:
                name = self.header[column]
                what = "nothing there" if not cell else f"{shown(cell)!r} is not a number that float32 can hold"
                raise ConfigError(
                    f"{self.path}, line {self._lines[k]}, column {name!r}: {what}",
                    with_point(cell) or advice or _instead(name, cells),
                )
            found[k] = value
        return found

    def words(self, column: int) -> list[str]:
        return self._column(self._read[column])

    def cell(self, row: int, column: int) -> str:
        return self._rows[row][self._read[column]]

    def whole_row(self, row: int) -> Sequence[str]:
        """Return the cells of a row, including columns without a name."""
        return self._rows[row]

    def where(self, row: int) -> str:
        """Return the name of a row in messages: its line in the file, from 1."""
        return f"line {self._lines[row]}"

    def line(self, row: int) -> int:
        """Return the line of a row in the file, from 1."""
        return self._lines[row]

    def class_names(self, column: int) -> Sequence[str]:  # noqa: ARG002
        return ()


def named_columns(
    path: Path, header: Sequence[str], column: Callable[[int], Sequence[str]]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the places of the columns with a name, and a note on omitted ones.

    Omitted are row numbers and names before all other columns, as pandas' to_csv and R's write.csv write them: whole
    numbers, or words that are all different; and empty columns.  Raises ConfigError for another column without a name.
    """
    nameless = [place for place, head in enumerate(header) if _NAMELESS.fullmatch(head)]
    if len(nameless) == len(header):
        raise ConfigError(f"{path}: no column has a name", "The first line names the columns, examples follow.")
    notes = []
    for place in nameless:
        cells = column(place)
        if all(cell == "" for cell in cells):
            continue
        first = nameless[: place + 1] == list(range(place + 1))
        whole = all(re.fullmatch(r"\d+(\.0)?", cell, re.ASCII) for cell in cells)
        if not first or not (whole or (len(set(cells)) == len(cells) and not any(map(is_number, cells)))):
            raise ConfigError(f"{path}: column {place + 1} has no name", "Name it in the first line, or take it out.")
        text = "row numbers" if whole else "row names"
        notes.append(f"{path.name}: column {place + 1} has no name and holds {text}: nothing is learned from it")
    return [place for place in range(len(header)) if place not in nameless], tuple(notes)


def _instead(name: str, cells: Sequence[str]) -> str:
    """Return advice for a column of features with a cell that is no number."""
    if any(map(is_number, cells)):
        return f"Fill it, or leave the column out with drop={name}."
    return f"A column of words is named as one, categories={name}, or left out, drop={name}."


def _rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    text, mark = _text(path), ""
    if told := _SEPARATOR.match(text):
        mark = told[1]
    mark = mark or _mark(text)
    rows, lines = [], []
    try:
        # an unclosed quote would take the rest of the file into one cell
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=text.count('"') % 2 == 1)
        if told:
            next(reader, [])
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if len(row) != len(header):
                raise ConfigError(
                    f"{path}, line {reader.line_num}: {len(row)} cells; expected {len(header)}",
                    "Every line has one cell per column of the first line, which names them.",
                )
            rows.append(cells)
            lines.append(reader.line_num)
    except csv.Error as error:
        where = f"{path}, line {reader.line_num}"
        raise ConfigError(f"{where}: cannot be read: {error}", "It is comma-separated text in UTF-8.") from error
    if not rows:
        raise ConfigError(f"{path}: no rows", "The first line names the columns, examples follow.")
    if mark != ",":
        _write_points(path, mark, rows, lines)
    return header, rows, lines


def _text(path: Path) -> str:
    try:
        content = outside_files.read_bytes(outside_files.named(path), outside_files.LARGE)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{path}: cannot be read: {why}", "It is comma-separated text in UTF-8.") from error
    for beginning, (what, advice) in _BEGINNINGS.items():
        if content.startswith(beginning):
            raise ConfigError(f"{path}: {what}", advice)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is of no text in UTF-8", UTF8) from error
    text = text.rstrip("\x1a")  # end-of-file mark of DOS files
    if (place := text.find("\0")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise ConfigError(f"{path}, line {line}: a byte 0, which is of no text", "Was the file cut, or is it another?")
    return text


def _mark(text: str) -> str:
    """Return the mark that gives all first lines as many cells, and more than one."""
    widths = {}
    for mark in MARKS:
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
            several = {len(row) for row in islice(reader, LOOKED_AT) if any(cell.strip() for cell in row)}
        except csv.Error:
            continue
        widths[mark] = several.pop() if len(several) == 1 else 1
    if widths and max(widths.values()) > 1:
        return max(widths, key=lambda mark: widths[mark])
    first = text.partition("\n")[0]
    return max(MARKS, key=first.count)  # the error for an uneven line names it


def _write_points(path: Path, mark: str, rows: list[list[str]], lines: Sequence[int]) -> None:
    """Write the numbers of a file with a point where it has commas, in place.

    Raises ConfigError for a file with both, and where every comma could stand between thousands and tabs or bars
    divide the cells: with semicolons, commas are decimal.
    """
    commas: tuple[int, int] | None = None
    points: tuple[int, int] | None = None
    sure = mark == ";"
    for at, row in enumerate(rows):
        for place, cell in enumerate(row):
            if "," in cell and (found := _COMMA.fullmatch(cell)):
                commas = commas or (at, place)
                sure = sure or len(found[1]) != 3
            elif "." in cell and is_number(cell) and not is_missing(cell):
                points = points or (at, place)
    if commas is None:
        return
    one = rows[commas[0]][commas[1]]
    if points is not None:
        other = f"{rows[points[0]][points[1]]!r} in line {lines[points[0]]}"
        text = f"{path}, line {lines[commas[0]]}: {one!r} has a comma, and {other} a point"
        raise ConfigError(text, "Write all numbers with a point, and without marks between thousands.")
    if not sure:
        raise ConfigError(f"{path}, line {lines[commas[0]]}: {one!r} could be {one.replace(',', '.')} or a thousand",
                          with_point(one))  # fmt: skip
    for row in rows:
        for place, cell in enumerate(row):
            if "," in cell and _COMMA.fullmatch(cell):
                row[place] = cell.replace(",", ".")
