"""A table with the predictions of a common fit for each row, and the 95 % intervals: `fedgossip predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedgossip.base.cells import is_missing
from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.data.columns.table_schema import declared, found_columns, number_of, read_features
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.learning.models.scored_tables import PREDICTED, class_places, with_columns
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.glm.glm_result import Bounds, GlmFit, measured, predictions

BETWEEN = "95 % from", "95 % to"
MARKS = "remarks"


def scored(fit: GlmFit, path: Path) -> tuple[str, Sequence[str]]:
    """Return the rows of a CSV file with their predictions, and the columns that the fit ignores.

    Raises ConfigError for a file without the fitted columns, and for invalid cells.
    """
    table, d = CsvColumns(path), fit.design
    answers = predictions(fit, read_features(table, d.encoding, [d.outcome]))
    known = [answers.mean, answers.low, answers.high]
    if d.family == "logistic":
        chosen = [d.classes[int(one > 0.5)] for one in answers.mean]
        named = f"probability of {d.of}"
        added = {PREDICTED: chosen, f"probability of {d.classes[0]}": cells_of(1 - answers.mean)}
    else:
        named, added = f"{PREDICTED} {d.outcome}", {}
    names = [named, *(f"{named}, {b}" for b in BETWEEN)]
    added |= {name: cells_of(one) for name, one in zip(names, known, strict=True)}
    if answers.record is not None:
        added |= {
            f"{d.outcome} of a record, {b}": cells_of(one) for b, one in zip(BETWEEN, answers.record, strict=True)
        }
    added |= marks_of(table, d.encoding, fit.bounds)
    return with_columns(table, added), unknown_of(table, d.encoding, [d.outcome])


def marks_of(table: CsvColumns, encoding: TableEncoding, bounds: Bounds) -> Mapping[str, list[str]]:
    """Return a column that marks, in each row, numbers outside of the agreed bounds and filled empty cells.

    {} where no row has any.
    """
    table, known = declared(table, encoding), {name: (low, high) for name, low, high in bounds}
    found: list[list[str]] = [[] for _ in range(len(table))]
    for column, place in zip(encoding.columns, found_columns(table, encoding.columns).values(), strict=True):
        for row, cell in enumerate(table.words(place)):
            if is_missing(cell):
                found[row].append(f"{column.name} filled")
            elif column.name in known:
                low, high = known[column.name]
                if not low <= number_of(table, row, place) <= high:
                    found[row].append(f"{column.name} outside {low:g} to {high:g}")
    return {MARKS: ["; ".join(one) for one in found]} if any(found) else {}


def unknown_of(table: CsvColumns, encoding: TableEncoding, outcomes: Sequence[str]) -> Sequence[str]:
    """Return the columns that the fit does not use."""
    known = set(found_columns(table, encoding.columns).values())
    return [name for place, name in enumerate(table.header) if place not in known and name not in outcomes]


def cells_of(values: Values) -> list[str]:
    """Return numbers as cells of a table: empty for NaN."""
    return [f"{one:.9g}" if np.isfinite(one) else "" for one in values.tolist()]


def judged(fit: GlmFit, path: Path) -> tuple[int, Mapping[str, float]]:
    """Return the number of records of a CSV file, and how well the fit predicts their outcomes.

    Raises ConfigError for other columns, and for invalid outcomes.
    """
    d = fit.design
    table = declared(CsvColumns(path), d.encoding)
    features = read_features(table, d.encoding, [d.outcome])
    place = found_columns(table, [EncodedColumn(d.outcome, d.unit)])[d.outcome]
    if d.family == "logistic":
        y = class_places(table, place, d.classes).astype(np.float64)
    else:
        y = np.array([number_of(table, row, place) for row in range(len(features))])
    family = d.of_family
    if len(wrong := np.flatnonzero(~family.outcomes(y))):
        text = f"{path}, {table.where(int(wrong[0]))}, column {d.outcome!r}: not of {family.of}"
        raise ConfigError(text, f"A {family.name} model is of {family.of}.")
    if not len(y):
        raise ConfigError(f"{path}: no records", "Name a table with the columns of the fit, and its outcome.")
    return len(y), measured(fit, features, y)
