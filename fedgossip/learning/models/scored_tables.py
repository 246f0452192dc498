"""A table with a model's predictions for each of its rows: `fedgossip predict`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedgossip.base.cells import class_name, shorten
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.untrusted_text import cell_text
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding, parted, plain
from fedgossip.data.columns.table_schema import declared, find_columns, number_of, read_features
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.data.data import load
from fedgossip.data.dataset import OF_COLUMNS, Dataset
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.table_files import is_table
from fedgossip.learning.measuring import DescribedModel

if TYPE_CHECKING:
    from fedgossip.learning.models.loaded_model import LoadedModel

PREDICTED = "predicted"


def scored(model: LoadedModel, path: Path) -> tuple[str, Sequence[str]]:
    """Return the rows of a CSV file with the model's predictions appended, and the columns that it ignores.

    For classes: `predicted` and each probability; else `predicted LABEL` each.  Raises ConfigError for missing columns
    and invalid cells, TrainingError for predictions that are not finite.
    """
    table, f = CsvColumns(path), model.facts
    features = read_features(table, _encoding_of(model), f.labels)
    answers = model(features.reshape(len(features), *f.shape))
    if wrong := int((~np.isfinite(answers)).reshape(len(answers), -1).any(axis=1).sum()):
        text = (
            f"the model answers {wrong} of {len(answers)} records with numbers that are not finite: nothing is written"
        )
        raise TrainingError(text, "Look at its weights: a training that diverged leaves such a model.")
    if f.kind == CLASSIFICATION:
        answers = answers[:, : len(f.classes)]  # a model may have more outputs than its data have classes
        added = {PREDICTED: [f.classes[int(one.argmax())] for one in answers]}
        names = [f"probability of {name}" for name in f.classes]
    else:
        added, names = {}, [f"{PREDICTED} {name}" for name in f.labels or map(str, range(f.outputs))]
    added |= {name: list(map(_format, column)) for name, column in zip(names, answers.T, strict=True)}
    return with_columns(table, added), unknown_of(table, _encoding_of(model), model.facts.labels)


def with_columns(table: CsvColumns, added: Mapping[str, Sequence[str]]) -> str:
    """Return a table as CSV with additional columns of untrusted names and texts.  Raises ConfigError for an existing
    column name.
    """
    added = {cell_text(name): list(map(cell_text, column)) for name, column in added.items()}
    if taken := [name for name in added if name in table.whole_header]:
        raise ConfigError(f"{table.path}: there is a column {taken[0]!r} already", "Give the file as it was before.")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.whole_header, *added])
    for row, more in enumerate(zip(*added.values(), strict=True)):
        writer.writerow([*table.get_whole_row(row), *more])
    return text.getvalue()


def _format(value: float) -> str:
    return f"{value:.9g}"


def _encoding_of(model: DescribedModel) -> TableEncoding:
    """Return the encoding of the model's table."""
    f = model.facts
    if f.encoding is None and not f.columns:
        text = f"a model of {f.kind}, of examples of shape {f.shape}, that learned from no table with named columns"
        raise ConfigError(text, "Call it in Python: fedgossip.load_model(PATH)(x).")
    return f.encoding or plain(f.columns)


def unknown_of(table: CsvColumns, encoding: TableEncoding, labels: Sequence[str]) -> Sequence[str]:
    """Return the columns of a table that a model neither reads nor predicts."""
    known = set(find_columns(table, encoding.columns).values())
    read = {*labels, *(of for one in encoding.columns if one.declared for of in one.declared.made_of)}
    return [name for place, name in enumerate(table.header) if place not in known and parted(name)[0] not in read]


def examples_of(model: DescribedModel, source: str, base: Path | None = None) -> Dataset:
    """Return the unscaled examples in `source`: a CSV file by its path, or a `data.source`.

    CSV columns are found by name, in any order.  Raises ConfigError for other columns or labels.
    """
    like = model.like
    path = (base or Path.cwd()) / source
    if not is_table(path) or not path.is_file():
        if is_table(path) and ":" not in source:
            raise ConfigError(f"there is no file {source}", "Give its path from here.")
        if like.columns and source.startswith("csv:"):
            raise ConfigError(f"{source}: a source, where a file is meant", "Write the path of the CSV file alone.")
        return load(source, base=base, like=like, kind=model.facts.kind)
    table = declared(CsvColumns(path), _encoding_of(model))
    x = read_features(table, _encoding_of(model), model.facts.labels)
    labels = find_columns(table, [EncodedColumn(name) for name in model.facts.labels])
    if not labels:
        raise ConfigError(f"{path}: the model does not name its labels", "Use a source with labels.")
    places = [labels[name] for name in model.facts.labels]
    if model.facts.kind in OF_COLUMNS:
        y = np.array([[number_of(table, row, place) for place in places] for row in range(len(x))])
        y = y if model.facts.kind == REGRESSION else y.astype(np.float32)
    else:
        y = class_places(table, places[0], model.facts.classes)
    return Dataset(
        path.stem,
        x if like.mean else x.astype(np.float32),
        y,
        like.classes,
        columns=like.columns,
        class_names=like.class_names,
        kind=like.kind,
        label_names=like.label_names,
    )


def class_places(table: CsvColumns, place: int, classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the index of each row's class, [m].  Raises ConfigError for an unknown label."""
    return np.array([_class_of(table, row, place, classes) for row in range(len(table.words(place)))], np.int64)


def _class_of(table: CsvColumns, row: int, place: int, classes: Sequence[str]) -> int:
    cell = table.cell(row, place)
    for name in (cell, class_name(cell)):
        if name in classes:
            return classes.index(name)
    text = f"{table.path}, {table.where(row)}: unknown label {shorten(cell)!r}"
    raise ConfigError(text, f"The model knows {', '.join(classes[:20])}.")
