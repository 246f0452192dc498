"""Tables with the predictions of a common fit for each row: `fedgossip predict` and `evaluate`.

For generalised linear models with 95 % intervals, and for proportional hazards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from fedgossip.base.cells import is_missing
from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import EncodedColumn, TableEncoding
from fedgossip.data.columns.table_schema import (
    categories_in,
    declared,
    find_columns,
    number_of,
    read_features,
    refused,
)
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.learning.models.scored_tables import PREDICTED, class_places, unknown_of, with_columns
from fedgossip.sites.fits.cox.cox import Whole, concordance, concordance_error
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.glm.glm_result import Bounds, GlmFit, measured, predictions, reach_of, variance_of

BETWEEN = "95 % from", "95 % to"
MARKS = "remarks"


def scored(fit: GlmFit, path: Path) -> tuple[str, Sequence[str]]:
    """Return the rows of a CSV file with their predictions, and the columns that the fit ignores.

    Raises ConfigError for missing fitted columns, and invalid cells.
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
    """Return a column that marks, in each row, numbers outside the agreed bounds and filled empty cells.

    {} if no row has any.
    """
    table, known = declared(table, encoding), {name: (low, high) for name, low, high in bounds}
    found: list[list[str]] = [[] for _ in range(len(table))]
    for column, place in zip(encoding.columns, find_columns(table, encoding.columns).values(), strict=True):
        for row, cell in enumerate(table.words(place)):
            if is_missing(cell):
                found[row].append(f"{column.name} filled")
            elif column.name in known:
                low, high = known[column.name]
                if not low <= number_of(table, row, place) <= high:
                    found[row].append(f"{column.name} outside {low:g} to {high:g}")
    return {MARKS: ["; ".join(one) for one in found]} if any(found) else {}


def cells_of(values: Values) -> list[str]:
    """Return numbers as cells of a table: empty for NaN."""
    return [f"{one:.9g}" if np.isfinite(one) else "" for one in values.tolist()]


def judged(fit: GlmFit, path: Path) -> tuple[int, Mapping[str, float]]:
    """Return the number of records of a CSV file, and measures of the fit's predictions of their outcomes.

    Raises ConfigError for other columns or outcomes.
    """
    d = fit.design
    table = declared(CsvColumns(path), d.encoding)
    features = read_features(table, d.encoding, [d.outcome])
    place = find_columns(table, [EncodedColumn(d.outcome, d.unit)])[d.outcome]
    if d.family == "logistic":
        y = class_places(table, place, d.classes).astype(np.float64)
    else:
        y = np.array([number_of(table, row, place) for row in range(len(features))])
    family = d.of_family
    if len(wrong := np.flatnonzero(~family.outcomes(y))):
        text = f"{path}, {table.where(int(wrong[0]))}, column {d.outcome!r}: not of {family.of}"
        raise ConfigError(text, f"A {family.title} model is of {family.of}.")
    if not len(y):
        raise ConfigError(f"{path}: no records", "Name a table with the columns of the fit, and its outcome.")
    return len(y), measured(fit, features, y)


RELATIVE = "relative hazard"


def scored_hazards(fit: CoxFit, path: Path) -> tuple[str, Sequence[str]]:
    """Return the rows of a CSV file with their predictions, and the columns that the fit ignores.

    A prediction is the hazard relative to a record with the mean of each column and the first category, with its 95 %
    interval; and the survival probability at each reported time, or the incidence if events compete.  Raises
    ConfigError for missing fitted columns, and invalid cells.
    """
    table, d = CsvColumns(path), fit.design
    features = _features(fit, table)
    x, eta = _centred(fit, features)
    reach = reach_of(None) * np.sqrt(variance_of(fit.covariance, x))
    with np.errstate(over="ignore"):
        added = {RELATIVE: cells_of(np.exp(eta))}
        added |= {
            f"{RELATIVE}, {side}": cells_of(np.exp(bound))
            for side, bound in zip(BETWEEN, (eta - reach, eta + reach), strict=True)
        }
        hazards = _cumulative(fit)[_strata(fit, table, features)]  # [m, k]
        survival = np.exp(-hazards * np.exp(eta)[:, None])
    times = [point.time for point in fit.strata[0].points]
    name, shown = ("survival at", survival) if d.competing is msgspec.UNSET else ("incidence until", 1 - survival)
    added |= {f"{name} {time:g}": cells_of(column) for time, column in zip(times, shown.T, strict=True)}
    added |= marks_of(table, d.encoding, fit.bounds)
    return with_columns(table, added), unknown_of(table, d.encoding, [d.time, d.event])


def judged_hazards(fit: CoxFit, path: Path) -> tuple[int, Mapping[str, float]]:
    """Return the number of records of a CSV file, and measures of the predicted order and number of their events.

    With competing events there is no expected number, since it needs the table's own censoring.  Raises ConfigError for
    other columns, times and events.
    """
    table, d = CsvColumns(path), fit.design
    features = _features(fit, table)
    if not len(features):
        raise ConfigError(f"{path}: no records", "Name a table with the columns of the fit, its times and events.")
    places = find_columns(table, [EncodedColumn(d.time, d.unit), EncodedColumn(d.event)])
    times, events = (
        np.array([number_of(table, row, places[name]) for row in range(len(features))]) for name in (d.time, d.event)
    )
    for wrong, name, advice in (
        (times < 0, d.time, "A time is counted from when a record begins."),
        (
            ~np.isin(events, (0, 1, d.competing or 1)),
            d.event,
            "1: the event was seen at that time; 0: it was not seen until then.",
        ),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise refused(table, row, places[name], f"{table.cell(row, places[name])} is none", advice)
    _, eta = _centred(fit, features)
    strata = _strata(fit, table, features)
    until = np.array([point.time for point in fit.strata[0].points])
    index = np.searchsorted(until, times, side="left")
    hazards = np.concatenate([np.zeros((len(fit.strata), 1)), _cumulative(fit)], axis=1)
    expected = hazards[strata, np.minimum(index + 1, len(until))] * np.exp(eta)
    entries = features[:, d.entry.place] if d.entry else None
    if entries is not None:
        expected -= hazards[strata, np.searchsorted(until, entries, side="right")] * np.exp(eta)
    seen = (events == 1) & (index < len(until))
    found = {f"events until {until[-1]:g}": float(seen.sum()), "events of the fit": float(expected.sum())}
    if d.competing is not msgspec.UNSET:
        found.pop("events of the fit")
        times = np.where(events == d.competing, np.inf, times)
    of_strata = (
        concordance(times[rows], events[rows] == 1, eta[rows], None if entries is None else entries[rows])
        for rows in (strata == k for k in range(len(hazards)))
    )
    pairs, right, *squares = np.sum([(one, other, *more) for one, other, more in of_strata], axis=0)
    return len(features), found | (
        {"concordance": float(right / 2 / pairs), "its standard error": concordance_error(pairs, right / 2, squares)}
        if pairs
        else {}
    )


def _features(fit: CoxFit, table: CsvColumns) -> Values:
    return read_features(table, fit.design.encoding, [fit.design.time, fit.design.event])


def _centred(fit: CoxFit, features: Values) -> tuple[Values, Values]:
    """Return the columns of the fit without their mean, [m, p], and eta [m]."""
    x = features[:, list(fit.design.places)] - np.array(fit.design.mean)
    return x, x @ np.array([one.estimate for one in fit.coefficients])


def _strata(fit: CoxFit, table: CsvColumns, features: Values) -> Whole:
    """Return the stratum of each record, [m].  Raises ConfigError for an unknown one."""
    d = fit.design
    if not d.strata_column:
        return np.zeros(len(features), np.int64)
    found = categories_in(features, d.strata_column, d.encoding.columns)
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        place = find_columns(table, d.encoding.columns)[d.strata_column]
        raise refused(table, row, place, "nothing there", "Each stratum has a hazard of its own: fill the cell.")
    return found


def _cumulative(fit: CoxFit) -> Values:
    """Return the cumulative hazard of each stratum at each reported time, [s, k]."""
    return np.array([[point.hazard for point in one.points] for one in fit.strata])
