"""A table with the predictions of a proportional hazards fit for each row: `fedgossip predict` and `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.data.columns.declarations import EncodedColumn
from fedgossip.data.columns.table_schema import categories_in, found_columns, number_of, read_features, refused
from fedgossip.data.csv_columns import CsvColumns
from fedgossip.learning.models.scored_tables import with_columns
from fedgossip.sites.fits.cox.cox import Whole, concordance
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.fitted_tables import BETWEEN, cells_of, marks_of, unknown_of
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.glm.glm_result import reach_of, variance_of

RELATIVE = "relative hazard"


def scored(fit: CoxFit, path: Path) -> tuple[str, Sequence[str]]:
    """Return the rows of a CSV file with their predictions, and the columns that the fit ignores.

    A prediction is the hazard relative to a record with the mean of each column and the first category of each column
    of words, with its 95 % interval; and the survival probability at each reported time.  Raises ConfigError for a file
    without the fitted columns, and for invalid cells.
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
    added |= {f"survival at {time:g}": cells_of(column) for time, column in zip(times, survival.T, strict=True)}
    added |= marks_of(table, d.encoding, fit.bounds)
    return with_columns(table, added), unknown_of(table, d.encoding, [d.time, d.event])


def judged(fit: CoxFit, path: Path) -> tuple[int, Mapping[str, float]]:
    """Return the number of records of a CSV file, and how well the fit predicts the order and number of their events.

    Raises ConfigError for other columns, and for invalid times and events.
    """
    table, d = CsvColumns(path), fit.design
    features = _features(fit, table)
    if not len(features):
        raise ConfigError(f"{path}: no records", "Name a table with the columns of the fit, its times and events.")
    places = found_columns(table, [EncodedColumn(d.time, d.unit), EncodedColumn(d.event)])
    times, events = (
        np.array([number_of(table, row, places[name]) for row in range(len(features))]) for name in (d.time, d.event)
    )
    for wrong, name, advice in (
        (times < 0, d.time, "A time is counted from when a record begins."),
        (~np.isin(events, (0, 1)), d.event, "1: the event was seen at that time; 0: it was not seen until then."),
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
    seen = (events == 1) & (index < len(until))
    found = {f"events until {until[-1]:g}": float(seen.sum()), "events that the fit says": float(expected.sum())}
    pairs, right = np.sum(
        [concordance(times[rows], events[rows] == 1, eta[rows]) for rows in (strata == k for k in range(len(hazards)))],
        axis=0,
    )
    return len(features), found | ({"concordance": float(right / 2 / pairs)} if pairs else {})


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
        place = found_columns(table, d.encoding.columns)[d.strata_column]
        raise refused(table, row, place, "nothing there", "Each stratum has a hazard of its own: fill the cell.")
    return found


def _cumulative(fit: CoxFit) -> Values:
    """Return the cumulative hazard of each stratum at each reported time, [s, k]."""
    return np.array([[point.hazard for point in one.points] for one in fit.strata])
