"""The cells of a table from any file, by column names, in their declared form; one reader for training, sites,
predictions, fits.

    a column without a name, before all others: the row numbers of pandas and R, omitted with a note
    TABLE.csv.toml, next to the file: declarations of this file only (`columns.declarations`)
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import advise_point, is_number, number_in, shorten
from fedgossip.base.errors import ConfigError
from fedgossip.data import csv_text, office_tables, postgresql, statistical_reader
from fedgossip.data.columns.declarations import OWN, CellRules, DeclaredColumn, parted, read_declaration
from fedgossip.data.table_files import CSV, EXCEL, OF_FILE, OF_KIND, SQL, TableFile, TableRows, kind_of

_NAMELESS = re.compile(r"(unnamed: ?\d+(\.\d+)*(_level_\d+)?)?", re.IGNORECASE)
"""The head of a column without a name, and pandas' replacement for it."""


class CsvColumns:
    """The rows and columns of one table, all cells as texts."""

    def __init__(self, source: Path | TableFile) -> None:
        file = source if isinstance(source, TableFile) else TableFile(source)
        self.path, self.kind = file.path, file.kind or CSV
        own, columns = read_declaration(file.path)
        rows = _rows(file.declared_also(own))
        self.whole_header, self._rows, self._lines, self._unit = rows.header, rows.rows, rows.lines, rows.unit
        self._read, notes = find_named_columns(self.path, self.whole_header, self._column)
        self.header: list[str] = [self.whole_header[place] for place in self._read]
        self.notes: tuple[str, ...] = (*rows.notes, *notes)
        self.unread: dict[tuple[int, int], str] = {}
        """By row and column: why a cell does not fit its declaration."""
        self.rest: dict[int, list[str]] = {}
        """By column: the cells that count as the rest, which no declaration names."""
        self._declared: frozenset[str] = frozenset()
        if columns:
            names = {parted(head)[0] for head in self.header}
            for name, one in columns.items():
                if not names & {name, *one.aliases}:
                    text = f"{self.path}{OWN}: columns: the table has no column {name!r}"
                    raise ConfigError(text, "Name columns as the first line of the table does, or give aliases.")
            self._apply(columns)
            self._declared = frozenset()  # those of the plan follow
            self.notes = (*self.notes, f"{self.path.name}: read as {self.path.name}{OWN} declares")

    def declared(self, columns: Mapping[str, DeclaredColumn | None]) -> CsvColumns:
        """Return the table with these columns' cells in their declared form, misfits in `unread`; once for each column.

        Raises ConfigError for two columns with one declared name.
        """
        waiting = {name: one for name, one in columns.items() if one is not None and name not in self._declared}
        if not waiting:
            return self
        found = copy.copy(self)
        found._rows = [list(row) for row in self._rows]
        found.header, found.whole_header = list(self.header), list(self.whole_header)
        found._read = list(self._read)
        found.unread, found.rest = dict(self.unread), dict(self.rest)
        found._apply(waiting)
        return found

    def _apply(self, columns: Mapping[str, DeclaredColumn]) -> None:
        for name, one in columns.items():
            if one.made_of:
                continue
            names = {name, *one.aliases}
            places = [place for place, head in enumerate(self.header) if head in names or parted(head)[0] in names]
            if len(places) > 1:
                heads = " and ".join(repr(self.header[place]) for place in places[:2])
                text = f"{self.path}: columns {heads} are both {name!r}, as is declared"
                raise ConfigError(text, "Leave one of the aliases out, or the column.")
            if not places:
                continue  # an error names it if the column is required
            (place,) = places
            unit = parted(self.header[place])[1] if self.header[place] != name else ""
            rules = CellRules(one, unit)
            for row in range(len(self._rows)):
                self._read_cell(rules, row, place)
            known = one.unit if unit in (*one.units, "") or one.factor is not None else unit
            self.header[place] = f"{name} [{known}]" if known else name
            self.whole_header[self._read[place]] = self.header[place]
        for name, one in columns.items():
            if one.made_of:
                self._make(name, one)
        self._declared |= columns.keys()

    def _make(self, name: str, declared: DeclaredColumn) -> None:
        """Append a column computed from others."""
        heads = {parted(head)[0]: place for place, head in enumerate(self.header)}
        if name in heads:
            text = f"{self.path}: a column {name!r}, which is declared to be made of others"
            raise ConfigError(text, "Give the made one another name.")
        if lost := [one for one in declared.made_of if one not in heads]:
            text = f"{self.path}: no column {lost[0]!r}, of which {name!r} is made"
            raise ConfigError(text, "Name columns as the table does.")
        made, places = len(self.header), [heads[one] for one in declared.made_of]
        for row in range(len(self._rows)):
            try:
                cell = declared.compute([self.cell(row, place) for place in places])
            except ValueError as error:
                self.unread[row, made], cell = str(error), ""
            self._rows[row].append(cell)
        self._read.append(len(self.whole_header))
        for heads_of in (self.header, self.whole_header):
            heads_of.append(f"{name} [{declared.unit}]" if declared.unit else name)

    def _read_cell(self, rules: CellRules, row: int, place: int) -> None:
        cell = self._rows[row][self._read[place]]
        try:
            read = rules.read(cell)
        except ValueError as error:
            self.unread[row, place] = str(error)
            return
        if rules.is_rest(cell, read):
            self.rest.setdefault(place, []).append(cell)
        self._rows[row][self._read[place]] = read

    @property
    def left_out(self) -> Sequence[str]:
        """Return the heads of omitted columns, those without a name."""
        return [head for place, head in enumerate(self.whole_header) if place not in self._read]

    def only(self, rows: Sequence[int], note: str) -> CsvColumns:
        """Return the table of some rows, with an additional note."""
        found = copy.copy(self)
        found._rows, found._lines = [self._rows[row] for row in rows], [self._lines[row] for row in rows]
        places = {row: place for place, row in enumerate(rows)}
        found.unread = {(places[row], place): text for (row, place), text in self.unread.items() if row in places}
        found.notes = (*self.notes, f"{self.path.name}: {note}")
        return found

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

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
                what = "nothing there" if not cell else f"{shorten(cell)!r} is not a number that float32 can hold"
                raise ConfigError(
                    f"{self.path}, {self.where(k)}, column {name!r}: {what}",
                    advise_point(cell) or advice or _instead(name, cells),
                )
            found[k] = value
        return found

    def words(self, column: int) -> list[str]:
        return self._column(self._read[column])

    def cell(self, row: int, column: int) -> str:
        return self._rows[row][self._read[column]]

    def get_whole_row(self, row: int) -> Sequence[str]:
        """Return the cells of a row, including columns without a name."""
        return self._rows[row]

    def where(self, row: int) -> str:
        """Return the name of a row in messages: its line in the file, from 1."""
        return f"{self._unit} {self._lines[row]}"

    def class_names(self, column: int) -> Sequence[str]:  # noqa: ARG002
        return ()

    def repeated(self) -> Sequence[int]:
        """Return the rows that equal an earlier one cell by cell."""
        seen: set[tuple[str, ...]] = set()
        return [row for row, cells in enumerate(map(tuple, self._rows)) if cells in seen or seen.add(cells)]  # type: ignore[func-returns-value]


def _rows(file: TableFile) -> TableRows:
    """Return the cells of a table.  Raises ConfigError, naming file and row."""
    kind = file.kind or kind_of(file.path.name) or CSV
    allowed = OF_KIND.get(kind, ("encoding",))
    if given := [name for name in OF_FILE if getattr(file.declared, name) and name not in allowed]:
        advice = f"Leave it out; it has {', '.join(allowed)}." if allowed else "Leave it out."
        raise ConfigError(f"{file.path}: {given[0]} is declared of a table of {kind}", advice)
    if kind == CSV:
        return TableRows(*csv_text.read_csv_rows(file.path, file.declared))
    if kind == EXCEL:
        return office_tables.read_workbook(file)
    if file.server:
        return postgresql.read_query(file)
    return office_tables.read_query(file) if kind == SQL else statistical_reader.read_statistical(file)


def find_named_columns(
    path: Path, header: Sequence[str], column: Callable[[int], Sequence[str]]
) -> tuple[list[int], tuple[str, ...]]:
    """Return the indices of the columns with a name, and a note on omitted ones.

    Omitted are row numbers and names before all other columns, as of pandas' to_csv and R's write.csv, and empty
    columns.  Raises ConfigError for another column without a name.
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
    if any(map(is_number, cells)):
        return f"Fill it, or leave the column out with drop={name}."
    return f"A column of words is named as one, categories={name}, or left out, drop={name}."
