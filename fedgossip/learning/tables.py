"""Tables: CSV files and npz archives of people's own."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.errors import ConfigError, nearest
from fedgossip.learning.dataset import OF_COLUMNS, Dataset, Indices, check_classes, from_arrays, group_ids
from fedgossip.learning.encodings import EncodedColumn, TableEncoding, is_missing
from fedgossip.learning.objectives import CLASSIFICATION, MULTI_LABEL, REGRESSION

Numbers = npt.NDArray[Any]

SCALES = ("none", "standard")
MOST_CATEGORIES = 1000
"""So many different words may a column of categories hold."""
OTHER_MARKS = (";", "\t", "|")
"""Marks by which other programs divide cells."""
SHOWN = 60
"""Maximum number of letters of a cell in a message."""
NO_LABEL = ("", "nan")
"""Cells of a label that hold none; other words for it, like none, are classes of some tables."""
LARGEST = float(np.finfo(np.float32).max)


class Columns(Protocol):
    """A table by its columns, whatever file it comes from."""

    kind: str
    """As a source begins: csv."""
    path: Path

    @property
    def header(self) -> Sequence[str]: ...

    def numbers(self, column: int, advice: str) -> Numbers:
        """Return a column as float64 [m], or [m, ...] where a cell holds several numbers.

        Raises ConfigError, with `advice` where there is some, for a cell that is no number float32 can hold.
        """
        ...

    def words(self, column: int) -> list[str]:
        """Return a column as texts."""
        ...

    def class_names(self, column: int) -> Sequence[str]:
        """Return what the whole numbers of a label column are called, where the file says so."""
        ...


def read_csv(
    path: Path, options: Mapping[str, str], class_names: Sequence[str] = (), task: str = CLASSIFICATION
) -> Dataset:
    """Return a table whose first line names the columns; all but the label, the group and `drop` are features."""
    return of_columns(CsvColumns(path), options, class_names, task)


def of_columns(table: Columns, options: Mapping[str, str], class_names: Sequence[str], task: str) -> Dataset:
    """Return the examples of a table; all columns but the label, the group and `drop` are features.

    Features are numbers; a column of `categories` has one for each different word in it, 1 where it is that one.
    Labels may be words or numbers: the classes are their sorted values, or `class_names`.  Of a regression they are
    numbers, of a multi-label task 0 and 1, of several columns: label=A,B.  With `scale=standard` x is float64, and
    `split` gives every column mean 0 and deviation 1 over the training examples.  Raises ConfigError for options and
    cells that do not fit the task, naming the column.
    """
    path, header = table.path, table.header
    if "label" not in options:
        advice = f"Write {table.kind}:{path.name}?label={header[-1]}."
        raise ConfigError(f"{path}: which column is the label?", advice)
    labels = [_column(path, header, name.strip()) for name in options["label"].split(",")]
    if twice := [head for place, head in enumerate(header) if head in header[:place]]:
        raise ConfigError(f"{path}: two columns are called {twice[0]!r}", "Give each a name of its own.")
    if task not in OF_COLUMNS and len(labels) > 1:
        advice = 'Several are for task.kind = "regression" or "multi-label"; name one.'
        raise ConfigError(f"{path}: {len(labels)} label columns, and the task is {task}", advice)
    group = _column(path, header, options["group"]) if "group" in options else None
    dropped = {_column(path, header, name) for name in options.get("drop", "").split(",") if name}
    features = [c for c in range(len(header)) if c not in dropped | {*labels, group}]
    if not features:
        raise ConfigError(f"{path}: no column is left to learn from", "Drop fewer columns.")
    worded = {_column(path, header, name.strip()) for name in options.get("categories", "").split(",") if name}
    if strangers := sorted(worded - set(features)):
        text = f"{path}: {header[strangers[0]]!r} is among the categories, and no feature"
        raise ConfigError(text, "The label, the group and what is dropped are none; leave it out of one of them.")
    encoded = [EncodedColumn(header[c], categories=_categories(table, c) if c in worded else ()) for c in features]
    parts = zip(features, encoded, strict=True)
    x = _features([_one_hot(table, c, one) if one.categories else table.numbers(c, "") for c, one in parts])
    ids, groups = (None, ()) if group is None else group_ids(np.array(table.words(group)))
    scale = options.get("scale", "none")
    if scale not in SCALES:
        raise ConfigError(f"{path}: unknown scale {scale!r}", nearest(scale, SCALES))
    values = x if scale == "standard" else x.astype(np.float32)
    encoding = TableEncoding(tuple(encoded))
    made = partial(
        Dataset,
        path.stem,
        values,
        groups=ids,
        group_names=groups,
        scale=scale,
        columns=encoding.features,
        encoding=encoding if worded else None,
    )
    if task in OF_COLUMNS:
        y = np.stack([_one_each(path, header[c], table.numbers(c, LABEL_ADVICE[task])) for c in labels], axis=1)
        kept = y if scale == "standard" and task == REGRESSION else y.astype(np.float32)
        return made(y=kept, classes=0, kind=task, label_names=tuple(header[c] for c in labels))
    known = class_names or table.class_names(labels[0])
    if known and table.class_names(labels[0]):
        which = _named_classes(path, table.numbers(labels[0], ""), known)
        return made(y=which, classes=len(known), class_names=tuple(known), label_names=(header[labels[0]],))
    names, which = _classes(path, _labels(_known(table, labels[0])), class_names)
    return made(y=which, classes=len(names), class_names=names, label_names=(header[labels[0]],))


def _known(table: Columns, column: int) -> list[str]:
    """Return the labels of a column.  Raises ConfigError for a cell that holds nothing: that is no class."""
    words = table.words(column)
    if empty := [row for row, word in enumerate(words) if word.lower() in NO_LABEL]:
        text = f"{table.path}: column {table.header[column]!r} holds no label in row {empty[0] + 1} of {len(words)}"
        raise ConfigError(text, "Fill it, or leave that row out.")
    return words


def _categories(table: Columns, column: int) -> tuple[str, ...]:
    """Return the different words of a column, sorted.  Raises ConfigError for a cell without one, and for too many."""
    words = table.words(column)
    name = table.header[column]
    if empty := [row for row, word in enumerate(words) if is_missing(word)]:
        text = f"{table.path}: column {name!r} holds nothing in row {empty[0] + 1} of {len(words)}"
        raise ConfigError(text, f"Fill it with a word, or leave the column out: drop={name}.")
    found = tuple(sorted(set(words)))
    if len(found) > MOST_CATEGORIES:
        text = f"{table.path}: column {name!r} holds {len(found)} different words; at most {MOST_CATEGORIES}"
        raise ConfigError(text, f"It would be as many features; leave it out: drop={name}.")
    return found


def _one_hot(table: Columns, column: int, encoded: EncodedColumn) -> Numbers:
    """Return [m, categories]: 1 where a cell is that category."""
    same: npt.NDArray[np.bool_] = np.array(table.words(column))[:, None] == np.array(encoded.categories)
    return same.astype(np.float64)


def _features(columns: list[Numbers]) -> Numbers:
    """Return examples [m, features]; of one column whose cells are arrays, those as they are."""
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)


def _one_each(path: Path, name: str, column: Numbers) -> Numbers:
    if column.ndim > 1:
        raise ConfigError(f"{path}: a label of {name!r} holds several numbers", "Name columns of one number each.")
    return column


def _named_classes(path: Path, labels: Numbers, names: Sequence[str]) -> Indices:
    if not ((labels >= 0) & (labels < len(names)) & (labels == np.floor(labels))).all():
        advice = f"There are {len(names)} classes: {', '.join(names[:20])}."
        raise ConfigError(f"{path}: a label is none of the classes that the file names", advice)
    return labels.astype(np.int64)


LABEL_ADVICE = {
    REGRESSION: 'A regression predicts numbers; for words set task.kind = "classification".',
    MULTI_LABEL: "A multi-label column holds 0 or 1.",
}


def _classes(
    path: Path, labels: npt.NDArray[np.float64] | npt.NDArray[np.str_], known: Sequence[str]
) -> tuple[tuple[str, ...], Indices]:
    """Return the classes' names and the class of every label: its place in `known`, or where none are, in order."""
    if labels.dtype.kind == "f" and not known:
        check_classes(str(path), labels)
    values, which = np.unique(labels, return_inverse=True)
    found = [str(v) if isinstance(v, str) else f"{v:.17g}" for v in values]
    names = tuple(known or found)
    if len(names) < 2:
        raise ConfigError(f"{path}: every label is {names[0]}", "Classes are at least two.")
    if strangers := [name for name in found if name not in names]:
        raise ConfigError(f"{path}: unknown label {strangers[0]!r}", f"The test set has {', '.join(names[:20])}.")
    return names, np.array([names.index(name) for name in found], np.int64)[which]


def read_npz(path: Path, task: str = CLASSIFICATION) -> Dataset:
    """Return the arrays x, y and (optional) groups of an npz archive; nothing in it is unpickled.

    Raises ConfigError for a file without these arrays.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in ("x", "y"):
                if name not in archive.files:
                    raise ConfigError(
                        f"{path}: no array {name!r}, only {', '.join(archive.files)}", "Save x=, y= and groups=."
                    )
            groups = archive["groups"] if "groups" in archive.files else None
            return from_arrays(str(path), archive["x"], archive["y"], groups, task)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: not an npz archive of arrays: {error}", "Write it with numpy.savez.") from error


class CsvColumns:
    """A CSV file."""

    kind = "csv"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header, self._rows, self._lines = _rows(path)

    def numbers(self, column: int, advice: str) -> Numbers:
        """Return the numbers of a column, [m].  Raises ConfigError for a cell that is none, naming its line."""
        found = np.empty(len(self._rows))
        for k, row in enumerate(self._rows):
            if not is_number(row[column]):
                name = self.header[column]
                raise ConfigError(
                    f"{self.path}, line {self._lines[k]}, column {name!r}: {shown(row[column])!r} is not a number that "
                    "float32 can hold",
                    with_point(row[column]) or advice or _instead(name, [row[column] for row in self._rows]),
                )
            found[k] = float(row[column])
        return found

    def words(self, column: int) -> list[str]:
        return [row[column] for row in self._rows]

    def cell(self, row: int, column: int) -> str:
        return self._rows[row][column]

    def line(self, row: int) -> int:
        """Return in which line of the file a row stands, from 1."""
        return self._lines[row]

    def class_names(self, column: int) -> Sequence[str]:  # noqa: ARG002
        return ()


def shown(cell: str) -> str:
    """Return a cell as a message shows it: its beginning, where it is long."""
    return cell if len(cell) <= SHOWN else f"{cell[: SHOWN - 3]}..."


def with_point(cell: str) -> str:
    """Return the advice for a number that is written with a comma; "" for another cell."""
    number = cell.replace(",", ".")
    return f"Write numbers with a point: {number}." if cell.count(",") == 1 and is_number(number) else ""


def _instead(name: str, cells: Sequence[str]) -> str:
    """Return what to do about a column of features with a cell that is no number."""
    if any(map(is_number, cells)):
        return f"Fill it, or leave the column out with drop={name}."
    return f"A column of words is named as one, categories={name}, or left out, drop={name}."


def _rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    rows, lines = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ConfigError(
                        f"{path}, line {reader.line_num}: {len(row)} cells; expected {len(header)}",
                        "Every line has one cell per column of the first line.",
                    )
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        advice = "Save it as comma-separated text in UTF-8."
        raise ConfigError(f"{path}: byte {error.start} is of no text in UTF-8", advice) from error
    except (OSError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {why}", "It is comma-separated text in UTF-8.") from error
    if len(header) == 1 and any(mark in header[0] for mark in OTHER_MARKS):
        advice = "Save it with commas between the cells, and with a point in numbers."
        raise ConfigError(f"{path}: the first line has no comma: {shown(header[0])!r}", advice)
    if not rows:
        raise ConfigError(f"{path}: no rows", "The first line names the columns, examples follow.")
    return header, rows, lines


def _column(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise ConfigError(f"{path}: no column {name!r}", nearest(name, header))
    return header.index(name)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number that float32 can hold."""
    try:
        return abs(float(cell)) <= LARGEST
    except ValueError:
        return False


def _labels(cells: list[str]) -> npt.NDArray[np.float64] | npt.NDArray[np.str_]:
    """Return numbers where all labels are, so that 10 sorts after 2; words otherwise."""
    return np.array(cells, np.float64) if all(map(is_number, cells)) else np.array(cells)
