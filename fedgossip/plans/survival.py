"""Sites estimate together who survives: a federated run of two rounds, of exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import numpy as np

from fedgossip.errors import ConfigError, TooFewPeersError, nearest
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.experiment.sections import ModelSection
from fedgossip.learning.agreed import AgreedTable, read
from fedgossip.learning.federated_tables import check_same, read_examples
from fedgossip.learning.objectives import REGRESSION, SURVIVAL
from fedgossip.learning.survival_fit import CurveFit, fit_of
from fedgossip.learning.survival_sums import ALL, CurveDesign, CurveLayout, SiteTimes
from fedgossip.learning.survival_task import ROUNDS, SurvivalTask
from fedgossip.learning.survival_times import Counts, checked_times, grid_of, places_of
from fedgossip.learning.table_schema import FEDERATED
from fedgossip.machine import NodeId
from fedgossip.plans.federation import FederationPlan
from fedgossip.plans.sums import check_exact, plan_of_sums, sites_that_fit
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.vectors import Vector

KAPLAN_MEIER = "kaplan-meier"
GROUPS = 20
"""Maximum number of groups."""


def is_survival(source: str) -> bool:
    return source.partition("?")[0] == KAPLAN_MEIER


def survival_plan(experiment: Experiment) -> tuple[FederationPlan, CurveLayout, AgreedTable]:
    """Return the plan of the run in which the sites of an experiment count, its numbers, and its columns.

    Raises ConfigError as `glm_plan`, for labels that are not a time and an event, and for a grid that is none.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError("no [coordinator]: survival is counted over clients", advice)
    d = experiment.data
    if d.scale != FEDERATED:
        text = f"data.scale is {d.scale!r}: survival is of the columns that the sites have agreed on"
        raise ConfigError(text, f'Set data.scale = "{FEDERATED}", then  fedgossip data agree EXPERIMENT.')
    if experiment.objective.kind != REGRESSION:
        text = f"{KAPLAN_MEIER} beside task.kind = {experiment.objective.kind!r}"
        raise ConfigError(text, f'Set task.kind = "{REGRESSION}": times and events are numbers.')
    check_exact(experiment, "survival is", "the counts of survival are")
    agreed = read(Path(d.agreed))
    check_same(agreed, schema_of_experiment(experiment), Path(d.agreed))
    layout = CurveLayout(_design(experiment.model.source, agreed))
    plan = plan_of_sums(experiment, SURVIVAL, ROUNDS, layout.exact, model=ModelSection())
    return plan, layout, agreed


def _design(source: str, agreed: AgreedTable) -> CurveDesign:
    labels = agreed.schema.labels
    if len(labels) != 2:
        text = f"{KAPLAN_MEIER}: {len(labels)} label columns, {', '.join(one.name for one in labels)}"
        raise ConfigError(text, "Name two, the time and then the event (1 or 0): label=days,died.")
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    by = options.pop("by", "")
    without = f"{name}?{urlencode(options, safe=',')}" if options else name
    column = next(one for one in agreed.columns if one.name == labels[0].name)
    words = {one.name: one.categories for one in agreed.schema.features if one.categories}
    if by and by not in words:
        text = f"model.source = {source!r}: {by!r} is no column of words"
        raise ConfigError(text, nearest(by, words) if words else "There is none: leave by out.")
    groups = words.get(by, ())
    if len(groups) > GROUPS:
        text = f"model.source = {source!r}: {len(groups)} groups; there are at most {GROUPS}"
        raise ConfigError(text, "Take a column of fewer categories.")
    return CurveDesign(
        time=labels[0].name, event=labels[1].name, unit=labels[0].unit, grid=grid_of(without, column),
        group_column=by, groups=groups, agreed=agreed.digest,
    )  # fmt: skip


def survival_task(
    plan: FederationPlan, layout: CurveLayout, agreed: AgreedTable, held: Sequence[NodeId]
) -> tuple[FederationPlan, SurvivalTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with those that abstain, the task of the sites that are `held`, and why some do not fit."""

    def times(node: NodeId) -> SiteTimes:
        return times_in(site_file(plan.experiment, node), layout.design, agreed)

    plan, sites, refused = sites_that_fit(plan, held, times)
    return plan, SurvivalTask(layout, sites), refused


def times_in(path: Path, d: CurveDesign, agreed: AgreedTable) -> SiteTimes:
    """Return a site's times.  Raises ConfigError for a file that does not fit, and for too few records."""
    found = read_examples(path, agreed, REGRESSION)
    if len(found) < agreed.suppress:
        text = f"fewer than {agreed.suppress} records"
        raise ConfigError(text, "A site with so few would be seen in the sums; it takes no part.")
    y = np.asarray(found.y, "f8")
    checked_times(d.grid, y[:, 0], y[:, 1], (d.time, d.event))
    return SiteTimes(places_of(d.grid, y[:, 0]), y[:, 1] == 1, _groups(np.asarray(found.x), d, agreed))


def _groups(x: np.ndarray, d: CurveDesign, agreed: AgreedTable) -> Counts | None:
    """Return the place of each record's group, [m]; -1 where its cell is empty."""
    place = 0
    for one in agreed.schema.features:
        if one.name == d.group_column:
            known = x[:, place : place + len(d.groups)] == 1
            return np.where(known.any(1), known.argmax(1), -1).astype(np.int64)
        place += len(one.categories) or 1
    return None


def curves_from(plan: FederationPlan, layout: CurveLayout, agreed: AgreedTable, vector: Vector | None) -> CurveFit:
    """Return what the sums say.  Raises TooFewPeersError where the rounds have not come together."""
    numbers = None if vector is None else layout.numbers(vector)
    if numbers is None or numbers["sites",] < plan.least or not numbers["of", ALL]:
        text = "too few sites came together for the counts of survival"
        raise TooFewPeersError(text, "Fit again when they are there: coordinator.min_clients are needed.")
    return fit_of(layout, numbers, agreed.suppress, plan.least)
