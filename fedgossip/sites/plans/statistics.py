"""The two rounds of sums by which sites agree on statistics; it imports no kind of fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from fedgossip.base.errors import ConfigError, TooFewPeersError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.data.agreed.agreed_table import (
    ROUNDS,
    AgreedTable,
    StatisticsTask,
    agreed_of,
    common_moments,
    lone_subset,
)
from fedgossip.data.agreed.column_sums import SumLayout, check_bounded
from fedgossip.data.agreed.sums_task import Draw, draw_system_entropy
from fedgossip.data.columns.table_schema import DROP, FEDERATED, SiteColumns, TableSchema
from fedgossip.data.objectives import STATISTICS
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.plans.approvals.plan_statement import PlanStatement, statement_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.sites.plans.sums import asking, noise_of, plan_of_sums, sites_that_fit


def statistics_plan(experiment: Experiment) -> tuple[FederationPlan, TableSchema]:
    """Return the plan of the run that computes the statistics of an experiment, and their schema.

    Raises ConfigError without secure sums, columns or bounds, and with a budget that hides clients.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError("no [coordinator]: statistics are sums over clients", advice)
    if experiment.data.scale != FEDERATED:
        raise ConfigError('data.scale is "source": there is nothing to agree on', f'Set data.scale = "{FEDERATED}".')
    c = experiment.coordinator
    if not c.secure.on:
        raise ConfigError("coordinator.secure.on = false: statistics are secure sums", "Leave it out.")
    if c.privacy.unit == "client":
        text = "coordinator.privacy.unit = client: whole tables are hidden, and statistics would disclose them"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")
    schema = schema_of_experiment(experiment)
    if experiment.budget is not None:
        check_bounded(schema)
    noise = noise_of(experiment)
    layout = SumLayout(schema, noise)
    return plan_of_sums(experiment, STATISTICS, ROUNDS + layout.asks_before, layout.exact), schema


def stated_statistics(experiment: Experiment) -> tuple[FederationPlan, PlanStatement]:
    """Return the run that computes the statistics of an experiment, and its plan as a separate run."""
    plan, schema = statistics_plan(experiment)
    plan, task, _ = statistics_task(plan, schema, [])
    return plan, statement_of(plan, task, opened_by(task), schema)


def opened_by(task: StatisticsTask) -> tuple[str, ...]:
    """Return the sums over all sites that the coordinator receives, in words."""
    columns = task.layout.schema.columns
    categories = sum(bool(one.categories) for one in columns)
    parts = ["how many records"]
    if numbers := len(columns) - categories:
        parts.append(f"of columns of numbers ({numbers}) the sum, the sum of squares, and a histogram")
    if categories:
        parts.append(f"of columns of categories ({categories}) how many records and sites have each")
    if task.layout.schema.missing == DROP:
        parts.append("how many records are left out for an empty cell")
    if task.layout.schema.counts_empty:
        parts.append("how many sites have empty cells in each")
    first = ("first at how many sites data.where leaves out records",) if task.layout.asks_before else ()
    return (*first, ", ".join([*parts, "and how many cells are empty"]))


def statistics_task(
    plan: FederationPlan, schema: TableSchema, held: Sequence[NodeId], draw: Draw = draw_system_entropy
) -> tuple[FederationPlan, StatisticsTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit."""

    def read(node: NodeId) -> SiteColumns:
        site = SiteColumns(site_file(plan.experiment, node), schema, plan.experiment.data.suppress)
        StatisticsTask(schema, {node: site})
        return site

    plan, sites, refused = sites_that_fit(plan, held, read)
    common = partial(common_moments, str(plan.experiment.data.test))
    levels = plan.experiment.data.levels
    return asking(plan, StatisticsTask(schema, sites, noise_of(plan.experiment), draw, common, levels), refused)


def agreed_from(task: StatisticsTask, vector: Vector | None, schema: TableSchema, suppress: int) -> AgreedTable:
    """Return the statistics of the sums.  Raises TooFewPeersError after an incomplete round."""
    numbers = task.layout.numbers(vector) if vector is not None else {}
    if why := lone_subset(numbers):
        raise ConfigError(why, "Select records by what three sites have, or more; or all of them.")
    counted = [place for place, count in numbers.items() if place[1:2] in (("bin",), ("of",)) and count]
    if not numbers.get(("sites",)) or not counted:
        text = "too few sites took part in both rounds of sums"
        raise TooFewPeersError(text, "Agree again when more are present: coordinator.min_clients are needed.")
    return agreed_of(schema, numbers, suppress, task.layout.noise, task.common, task.levels)
