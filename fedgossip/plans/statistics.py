"""Statistics that sites agree on before they train: a federated run of two rounds whose sums are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from fedgossip.errors import ConfigError, TooFewPeersError
from fedgossip.experiment import Experiment, FederatedExperiment
from fedgossip.experiment.coordinator_sections import PrivacySection
from fedgossip.experiment.sections import EvalSection, TaskSection, TrackSection
from fedgossip.learning.agreed import AgreedTable, agreed_of
from fedgossip.learning.column_sums import SITES
from fedgossip.learning.objectives import STATISTICS
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.statistics_task import ROUNDS, StatisticsTask
from fedgossip.learning.table_schema import FEDERATED, SiteColumns, TableSchema
from fedgossip.machine import NodeId
from fedgossip.plans import compose
from fedgossip.plans.federation import FederationPlan
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.vectors import Vector


def statistics_plan(experiment: Experiment) -> tuple[FederationPlan, TableSchema]:
    """Return the plan of the run that makes the statistics of an experiment, and the schema that they are of.

    Raises ConfigError where there is no secure sum, where nothing is to be agreed on, and beside a budget.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError("no [coordinator]: statistics are sums over clients", advice)
    if experiment.data.scale != FEDERATED:
        raise ConfigError('data.scale is "source": there is nothing to agree on', f'Set data.scale = "{FEDERATED}".')
    c = experiment.coordinator
    if not c.secure.on:
        raise ConfigError("coordinator.secure.on = false: statistics are secure sums", "Leave it out.")
    if experiment.budget is not None:
        text = "a budget of privacy is set, and statistics are exact: they have no noise, and are not accounted"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")
    schema = schema_of_experiment(experiment)
    alone = msgspec.structs.replace(
        experiment,
        rounds=ROUNDS,
        task=TaskSection(kind=STATISTICS),
        train=TrainSettings(device="cpu"),
        eval=EvalSection(every=ROUNDS),
        track=TrackSection(),
        data=msgspec.structs.replace(experiment.data, local_test=0.0),
        coordinator=msgspec.structs.replace(
            c, algorithm="fedavg", options={}, participation=1.0, cohort=None, over_selection=1.0, sampling="uniform",
            min_clients=max(SITES, c.min_clients or min(5, c.clients)), privacy=PrivacySection(),
        ),
    )  # fmt: skip
    plan = compose.plan(alone)
    assert isinstance(plan, FederationPlan), "it has a [coordinator]"
    return replace(plan, exact=StatisticsTask(schema, {}).layout.exact), schema


def statistics_task(
    plan: FederationPlan, schema: TableSchema, held: Sequence[NodeId]
) -> tuple[FederationPlan, StatisticsTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with those that abstain, the task of the sites that are `held`, and why some do not fit."""
    sites, refused = {}, {}
    for node in held:
        try:
            site = SiteColumns(site_file(plan.experiment, node), schema, plan.experiment.data.suppress)
            StatisticsTask(schema, {node: site})
            sites[node] = site
        except ConfigError as error:
            refused[node] = error
    return replace(plan, abstaining=frozenset(refused)), StatisticsTask(schema, sites), refused


def agreed_from(task: StatisticsTask, vector: Vector | None, schema: TableSchema, suppress: int) -> AgreedTable:
    """Return what the sums say.  Raises TooFewPeersError where a round has not come together."""
    numbers = task.layout.numbers(vector) if vector is not None else {}
    counted = [place for place, count in numbers.items() if place[1:2] in (("bin",), ("of",)) and count]
    if not numbers.get(("sites",)) or not counted:
        text = "too few sites came together for both rounds of sums"
        raise TooFewPeersError(text, "Agree again when they are there: coordinator.min_clients are needed.")
    return agreed_of(schema, numbers, suppress)
