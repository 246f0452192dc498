"""Sites estimate survival together: a federated run of two rounds, of exact counts."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core.run_format import CURVES
from fedgossip.data.agreed.agreed_table import AgreedTable, read_for_fit
from fedgossip.data.columns.encoded_tables import categories_in
from fedgossip.data.columns.table_schema import SchemaColumn
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import REGRESSION, SURVIVAL
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.survival.survival_result import CurveFit, fit_of
from fedgossip.sites.fits.survival.survival_sums import ALL, ROUNDS, CurveDesign, CurveLayout, SiteTimes, SurvivalTask
from fedgossip.sites.fits.survival.survival_times import checked_times, grid_of, places_of
from fedgossip.sites.plans.sums import SumsRun

KAPLAN_MEIER = "kaplan-meier"
GROUPS = 20
"""Maximum number of groups."""


def time_and_event(name: str, agreed: AgreedTable) -> tuple[SchemaColumn, SchemaColumn]:
    """Return both label columns.  Raises ConfigError for another number of them."""
    labels = agreed.schema.labels
    if len(labels) != 2:
        text = f"{name}: {len(labels)} label columns, {', '.join(one.name for one in labels)}"
        raise ConfigError(text, "Name two, the time and then the event (1 or 0): label=days,died.")
    return labels[0], labels[1]


def column_of_words(source: str, name: str, agreed: AgreedTable) -> tuple[str, ...]:
    """Return the categories of the grouping column, () for "".  Raises ConfigError."""
    words = {one.name: one.categories for one in agreed.schema.features if one.categories}
    if name and name not in words:
        text = f"model.source = {source!r}: {name!r} is no column of words"
        raise ConfigError(text, nearest(name, words) if words else "There is none: leave it out.")
    groups = words.get(name, ())
    if len(groups) > GROUPS:
        text = f"model.source = {source!r}: {len(groups)} groups; there are at most {GROUPS}"
        raise ConfigError(text, "Take a column of fewer categories.")
    return groups


def _design(source: str, agreed: AgreedTable) -> CurveDesign:
    time, event = time_and_event(KAPLAN_MEIER, agreed)
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    by = options.pop("by", "")
    without = f"{name}?{urlencode(options, safe=',')}" if options else name
    column = next(one for one in agreed.columns if one.name == time.name)
    return CurveDesign(
        time=time.name, event=event.name, unit=time.unit, grid=grid_of(without, column),
        group_column=by, groups=column_of_words(source, by, agreed), agreed=agreed.digest,
    )  # fmt: skip


def _times(layout: CurveLayout, agreed: AgreedTable, file: TableFile) -> SiteTimes:
    d = layout.design
    found = read_for_fit(file, agreed, REGRESSION, [one.name for one in agreed.columns])  # no column is summed
    times, events = checked_site(found, d.grid, (d.time, d.event))
    groups = categories_in(found.x, d.group_column, agreed.encoding.columns) if d.group_column else None
    return SiteTimes(places_of(d.grid, times), events, groups)


def checked_site(
    found: Dataset, grid: Sequence[float], names: Sequence[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return times and events of a site's records, [m].  Raises ConfigError as `checked_times`."""
    y = np.asarray(found.y, "f8")
    checked_times(grid, y[:, 0], y[:, 1], names)
    return np.ascontiguousarray(y[:, 0]), y[:, 1] == 1


def _curves(layout: CurveLayout, agreed: AgreedTable, vector: Vector, least: int) -> CurveFit | None:
    numbers = layout.numbers(vector)
    there = numbers["sites",] >= least and numbers["of", ALL]
    return fit_of(layout, numbers, agreed.suppress, least) if there else None


SURVIVAL_RUN = SumsRun(
    KAPLAN_MEIER, SURVIVAL, CURVES, lambda _: (REGRESSION,),
    lambda experiment, agreed: CurveLayout(_design(experiment.model.source, agreed)), lambda _: ROUNDS, _times,
    lambda layout, sites, _: SurvivalTask(layout, sites), _curves,
)  # fmt: skip
