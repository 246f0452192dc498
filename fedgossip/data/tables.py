"""Tables: users' CSV files and npz archives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.cells import class_name, is_missing, is_number, like_names, missing_labels, shorten
from fedgossip.base.errors import ConfigError, nearest, reason
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.dataset import OF_COLUMNS, Dataset, Indices, check_classes, from_arrays, group_ids
from fedgossip.data.objectives import CLASSIFICATION, MULTI_LABEL, REGRESSION
from fedgossip.data.table_files import TableFile, file_of_options

Numbers = npt.NDArray[Any]

SCALES = ("none", "standard")
MOST_CATEGORIES = 1000
"""Maximum number of distinct words in a column of categories."""


class Columns(Protocol):
    """A table by its columns, from any kind of file."""

    kind: str
    """The prefix of its source, such as csv."""
    path: Path

    @property
    def header(self) -> Sequence[str]: ...

    @property
    def left_out(self) -> Sequence[str]:
        """The heads of omitted columns, those without a name."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the table."""
        ...

    def where(self, row: int) -> str:
        """Return the name of a row in messages."""
        ...

    def numbers(self, column: int, advice: str) -> Numbers:
        """Return a column as float64 [m], or [m, ...] of cells with several numbers.

        Raises ConfigError, with `advice`, for a cell that float32 cannot represent.
        """
        ...

    def words(self, column: int) -> list[str]:
        """Return a column as texts."""
        ...

    def class_names(self, column: int) -> Sequence[str]:
        """Return the names of the whole numbers of a label column, if the file has names."""
        ...


def read_csv(
    file: Path | TableFile, options: Mapping[str, str], class_names: Sequence[str] = (), task: str = CLASSIFICATION
) -> Dataset:
    """Return a table whose first line names the columns; all except the label, the group and `drop` are features."""
    return from_columns(CsvColumns(file), options, class_names, task)


def read_table(
    kind: str, path: Path, options: Mapping[str, str], class_names: Sequence[str], task: str, server: str
) -> Dataset:
    """Return the examples of a source of OF_TABLES; `server`: the address of a database, "" for a file.

    Raises ConfigError, naming the file and the line.
    """
    return read_csv(file_of_options(kind, path, options, server), options, class_names, task)


def from_columns(table: Columns, options: Mapping[str, str], class_names: Sequence[str], task: str) -> Dataset:
    """Return the examples of a table; all columns except the label, the group and `drop` are features.

    A column of `categories` has a feature for each word, 1 for the row's word.  Labels: classes are their sorted
    values, or `class_names`; of a regression numbers, multi-label 0 and 1, of several columns: label=A,B.  With
    `scale=standard` x is float64, and `split` gives training columns mean 0 and deviation 1.  Raises ConfigError,
    naming the column.
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
    dropped = {_column(path, header, name) for name in _dropped(table, options)}
    features = [c for c in range(len(header)) if c not in dropped | {*labels, group}]
    if not features:
        raise ConfigError(f"{path}: no column is left to learn from", "Drop fewer columns.")
    worded = {_column(path, header, name.strip()) for name in options.get("categories", "").split(",") if name}
    if strangers := sorted(worded - set(features)):
        text = f"{path}: {header[strangers[0]]!r} is among the categories, and no feature"
        raise ConfigError(text, "The label, the group and dropped columns are none; leave it out of one of them.")
    encoded = [EncodedColumn(header[c], categories=_categories(table, c) if c in worded else ()) for c in features]
    parts = zip(features, encoded, strict=True)
    x = _features([_one_hot(table, c, one) if one.categories else table.numbers(c, "") for c, one in parts])
    ids, groups = (None, ()) if group is None else group_ids(np.array(_all_there(table, group, "group")))
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
        notes=table.notes,
    )
    if task in OF_COLUMNS:
        y = np.stack([_one_each(path, header[c], table.numbers(c, LABEL_ADVICE[task])) for c in labels], axis=1)
        kept = y if scale == "standard" and task == REGRESSION else y.astype(np.float32)
        return made(y=kept, classes=0, kind=task, label_names=tuple(header[c] for c in labels))
    known = class_names or table.class_names(labels[0])
    if known and table.class_names(labels[0]):
        which = _check_classes(path, table.numbers(labels[0], ""), known)
        return made(y=which, classes=len(known), class_names=tuple(known), label_names=(header[labels[0]],))
    names, which = _classes(path, _labels(labels_of(table, labels[0], class_names)), class_names)
    return made(y=which, classes=len(names), class_names=names, label_names=(header[labels[0]],))


def _dropped(table: Columns, options: Mapping[str, str]) -> list[str]:
    return [name for name in options.get("drop", "").split(",") if name and name not in table.left_out]


def labels_of(table: Columns, column: int, known: Collection[str] = ()) -> list[str]:
    """Return a column's labels, each by its class's name, `known` ones unchanged; equal numbers are one label.

    Raises ConfigError for a missing label (`missing_labels`), and classes that differ only in capitals.
    """
    words = table.words(column)
    if nothing := missing_labels(set(words), known):
        row = next(row for row, word in enumerate(words) if word in nothing)
        advice = f"Fill it, or leave that row out; if {shorten(words[row])!r} is a class, write it as another word."
        raise ConfigError(f"{_cell(table, row, column)} holds no label{_quoted(words[row])}", advice)
    names = [word if word in known else class_name(word) for word in words]
    if like := like_names(names):
        text = f"{table.path}: column {table.header[column]!r} has labels {like[0]!r} and {like[1]!r}"
        raise ConfigError(text, "Write one class in one way; two classes differ in more than capitals and spaces.")
    return names


def _all_there(table: Columns, column: int, what: str) -> list[str]:
    words = table.words(column)
    if empty := [row for row, word in enumerate(words) if is_missing(word)]:
        name, row = table.header[column], empty[0]
        text = f"{_cell(table, row, column)} holds no {what}{_quoted(words[row])}"
        raise ConfigError(text, f"Fill it with a word, or leave the column out: drop={name}.")
    return words


def _cell(table: Columns, row: int, column: int) -> str:
    return f"{table.path}, {table.where(row)}, column {table.header[column]!r}"


def _quoted(cell: str) -> str:
    return f": {shorten(cell)!r}" if cell else ""


def _categories(table: Columns, column: int) -> tuple[str, ...]:
    """Return the distinct words of a column, sorted."""
    name, found = table.header[column], tuple(sorted(set(_all_there(table, column, "category"))))
    if len(found) > MOST_CATEGORIES:
        text = f"{table.path}: column {name!r} holds {len(found)} different words; at most {MOST_CATEGORIES}"
        raise ConfigError(text, f"It would be as many features; leave it out: drop={name}.")
    return found


def _one_hot(table: Columns, column: int, encoded: EncodedColumn) -> Numbers:
    """Return [m, categories]."""
    same: npt.NDArray[np.bool_] = np.array(table.words(column))[:, None] == np.array(encoded.categories)
    return same.astype(np.float64)


def _features(columns: list[Numbers]) -> Numbers:
    """Return examples [m, features]; a single column of arrays unchanged."""
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)


def _one_each(path: Path, name: str, column: Numbers) -> Numbers:
    if column.ndim > 1:
        raise ConfigError(f"{path}: a label of {name!r} holds several numbers", "Name columns of one number each.")
    return column


def _check_classes(path: Path, labels: Numbers, names: Sequence[str]) -> Indices:
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
    """Return the classes' names and the class of every label: its index in `known`, or in sorted order."""
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
        arrays = outside_files.read_arrays(outside_files.resolve(path), ("x", "y", "groups"))
        for name in ("x", "y"):
            if name not in arrays:
                there = ", ".join(arrays.names)
                raise ConfigError(f"{path}: no array {name!r}, only {there}", "Save x=, y= and groups=.")
        return from_arrays(str(path), arrays["x"], arrays["y"], arrays.get("groups"), task)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: not an npz archive of arrays: {reason(error)}", "Write it with numpy.savez."
        ) from error


def _column(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise ConfigError(f"{path}: no column {name!r}", nearest(name, header))
    return header.index(name)


def _labels(cells: list[str]) -> npt.NDArray[np.float64] | npt.NDArray[np.str_]:
    """Return numbers if all labels are numbers, so 10 sorts after 2; else words."""
    return np.array(cells, np.float64) if all(map(is_number, cells)) else np.array(cells)
