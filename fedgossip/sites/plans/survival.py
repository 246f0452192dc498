"""Sites estimate survival together: a federated run of two rounds, of exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, TooFewPeersError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.data.agreed.agreed_table import AgreedTable, read
from fedgossip.data.agreed.federated_tables import check_same, read_for_fit
from fedgossip.data.columns.encoded_tables import categories_in
from fedgossip.data.columns.table_schema import FEDERATED, SchemaColumn
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import REGRESSION, SURVIVAL
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.sites.fits.survival.survival_result import CurveFit, fit_of
from fedgossip.sites.fits.survival.survival_sums import ALL, CurveDesign, CurveLayout, SiteTimes
from fedgossip.sites.fits.survival.survival_task import ROUNDS, SurvivalTask
from fedgossip.sites.fits.survival.survival_times import checked_times, grid_of, places_of
from fedgossip.sites.plans.sums import asking, check_exact, plan_of_sums, sites_that_fit

KAPLAN_MEIER = "kaplan-meier"
GROUPS = 20
"""Maximum number of groups."""


def is_survival(source: str) -> bool:
    return source.partition("?")[0] == KAPLAN_MEIER


def survival_plan(experiment: Experiment) -> tuple[FederationPlan, CurveLayout, AgreedTable]:
    """Return the plan of the run in which the sites of an experiment count, its numbers, and its columns.

    Raises ConfigError as `glm_plan`, for labels other than a time and an event, and for an invalid grid.
    """
    whole, agreed = agreed_times(experiment, KAPLAN_MEIER, "survival is", "the counts of survival are")
    layout = CurveLayout(_design(whole.model.source, agreed))
    plan = plan_of_sums(whole, SURVIVAL, ROUNDS, layout.exact)
    return plan, layout, agreed


def agreed_times(experiment: Experiment, name: str, are: str, told: str) -> tuple[FederatedExperiment, AgreedTable]:
    """Return the experiment and its agreed statistics, where sums may report times.

    `name` of the model, `are` and `told` as in `check_exact`.  Raises ConfigError without secure sums, beside a budget,
    before statistics are agreed, and for labels other than numbers.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError(f"no [coordinator]: {name} is of sums over clients", advice)
    d = experiment.data
    if d.scale != FEDERATED:
        text = f"data.scale is {d.scale!r}: {name} is of the columns that the sites have agreed on"
        raise ConfigError(text, f'Set data.scale = "{FEDERATED}", then  fedgossip data agree EXPERIMENT.')
    if experiment.objective.kind != REGRESSION:
        text = f"{name} beside task.kind = {experiment.objective.kind!r}"
        raise ConfigError(text, f'Set task.kind = "{REGRESSION}": times and events are numbers.')
    check_exact(experiment, are, told)
    agreed = read(Path(d.agreed))
    check_same(agreed, schema_of_experiment(experiment), Path(d.agreed))
    return experiment, agreed


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


def survival_task(
    plan: FederationPlan, layout: CurveLayout, agreed: AgreedTable, held: Sequence[NodeId]
) -> tuple[FederationPlan, SurvivalTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit."""

    def times(node: NodeId) -> SiteTimes:
        return times_in(site_file(plan.experiment, node), layout.design, agreed)

    plan, sites, refused = sites_that_fit(plan, held, times)
    return asking(plan, SurvivalTask(layout, sites), refused)


def times_in(path: Path, d: CurveDesign, agreed: AgreedTable) -> SiteTimes:
    """Return a site's times.  Raises ConfigError for an unsuitable file, and for too few records."""
    found = read_for_fit(path, agreed, REGRESSION, [one.name for one in agreed.columns])  # no column is summed
    times, events = checked_site(found, d.grid, (d.time, d.event))
    groups = categories_in(found.x, d.group_column, agreed.schema.features) if d.group_column else None
    return SiteTimes(places_of(d.grid, times), events, groups)


def checked_site(
    found: Dataset, grid: Sequence[float], names: Sequence[str]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return times and events of a site's records, [m].  Raises ConfigError as `checked_times`."""
    y = np.asarray(found.y, "f8")
    checked_times(grid, y[:, 0], y[:, 1], names)
    return np.ascontiguousarray(y[:, 0]), y[:, 1] == 1


def curves_from(plan: FederationPlan, layout: CurveLayout, agreed: AgreedTable, vector: Vector | None) -> CurveFit:
    """Return the curves of the sums.  Raises TooFewPeersError after incomplete rounds."""
    numbers = None if vector is None else layout.numbers(vector)
    if numbers is None or numbers["sites",] < plan.least or not numbers["of", ALL]:
        text = "too few sites came together for the counts of survival"
        raise TooFewPeersError(text, "Fit again when they are there: coordinator.min_clients are needed.")
    return fit_of(layout, numbers, agreed.suppress, plan.least)
