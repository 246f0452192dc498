"""Sites fit proportional hazards together: a federated run of two rounds for each step, of exact sums."""

from __future__ import annotations

import math
from urllib.parse import parse_qsl, urlencode

import msgspec
import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.run_format import FIT
from fedgossip.data.agreed.agreed_table import AgreedTable, read_for_fit
from fedgossip.data.columns.encoded_tables import categories_in
from fedgossip.data.objectives import COX, REGRESSION
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import FederatedExperiment
from fedgossip.sites.fits.cox.cox_result import CoxFit, cox_fit
from fedgossip.sites.fits.cox.cox_steps import CoxServer, CoxTask, rounds_of
from fedgossip.sites.fits.cox.cox_sums import BRESLOW, EFRON, CoxDesign, CoxLayout, TimedRecords
from fedgossip.sites.fits.design_columns import bounds_of, design_columns
from fedgossip.sites.fits.survival.survival_times import grid_of, places_of
from fedgossip.sites.plans.sums import SumsRun
from fedgossip.sites.plans.survival import checked_site, column_of_words, time_and_event

STEPS = 16
"""Maximum number of Newton steps; four to seven are usual."""
LEAST = 10
"""Minimum number of events of a reported time where no other is set; data.suppress where that is more."""
NUMBERS = 1 << 16
"""Maximum number of whole numbers in a sum: 2 MiB."""
RIDGES = 1e9


def _layout(experiment: FederatedExperiment, agreed: AgreedTable) -> CoxLayout:
    layout = CoxLayout(_design(experiment.model.source, agreed))
    if layout.numbers > NUMBERS:
        text = f"{layout.numbers:,} numbers in a sum; there are at most {NUMBERS:,}"
        raise ConfigError(text, "Leave columns out, drop=A,B, or take fewer times or strata.")
    return layout


def _design(source: str, agreed: AgreedTable) -> CoxDesign:
    time, event = time_and_event(COX, agreed)
    options = dict(parse_qsl(source.partition("?")[2], keep_blank_values=True))
    strata_column = options.pop("strata", "")
    ties = options.pop("ties", BRESLOW)
    if ties not in (BRESLOW, EFRON):
        raise ConfigError(f"model.source = {source!r}: ties={ties}", f"It is {BRESLOW} or {EFRON}.")
    least = _number(source, "events", options.pop("events", str(max(LEAST, agreed.suppress))), 1, 1 << 30)
    ridge = _number(source, "ridge", options.pop("ridge", "0"), 0, RIDGES)
    if least != math.floor(least) or least < agreed.suppress:
        text = f"model.source = {source!r}: events={least:g}; data.suppress is {agreed.suppress}"
        raise ConfigError(text, f"A told time has a whole number of events, {agreed.suppress} or more.")
    without = f"{COX}?{urlencode(options, safe=',')}" if options else COX
    strata = column_of_words(source, strata_column, agreed)
    column = next(one for one in agreed.columns if one.name == time.name)
    c = design_columns(agreed, COX, 0, [strata_column])
    return CoxDesign(
        time=time.name, event=event.name, unit=time.unit, grid=grid_of(without, column), least=int(least), ties=ties,
        ridge=ridge,
        strata_column=strata_column, strata=strata or ("",), encoding=agreed.encoding, columns=c.names,
        places=c.places, mean=c.mean, deviation=c.deviation, against=c.against, constant=c.constant,
        agreed=agreed.digest, steps=STEPS,
    )  # fmt: skip


def _number(source: str, name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"model.source = {source!r}: {name}={text}", f"It is a number from {low:g} to {high:g}.")
    return value


def _records(layout: CoxLayout, agreed: AgreedTable, file: TableFile) -> TimedRecords:
    d = layout.design
    found = read_for_fit(file, agreed, REGRESSION, (d.time, d.event))
    times, events = checked_site(found, d.grid, (d.time, d.event))
    strata = np.zeros(len(found), np.int64)
    if d.strata_column:
        strata = categories_in(found.x, d.strata_column, agreed.encoding.columns)
    if (strata < 0).any():
        text = f"column {d.strata_column!r}: empty in {int((strata < 0).sum())} records"
        raise ConfigError(text, "A stratum has to be known: fill the cells, or leave the rows out.")
    scale = zip(d.places, d.mean, d.deviation, strict=True)
    columns = [np.ascontiguousarray((found.x[:, place] - mean) / deviation) for place, mean, deviation in scale]
    return TimedRecords(columns, times, places_of(d.grid, times), events, strata)


def _fit(layout: CoxLayout, agreed: AgreedTable, vector: Vector, least: int) -> CoxFit | None:
    found = cox_fit(layout, vector, least)
    return None if found is None else msgspec.structs.replace(found, bounds=bounds_of(agreed))


COX_RUN = SumsRun(
    COX, COX, FIT, lambda _: (REGRESSION,), _layout, rounds_of, _records, CoxTask,
    _fit, server=CoxServer,
)  # fmt: skip
