"""Statistics that sites agree on before they train: a federated run of two rounds whose sums are exact."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgossip.errors import BudgetError, ConfigError, TooFewPeersError
from fedgossip.experiment import Experiment, FederatedExperiment, PrivacySection
from fedgossip.learning.agreed import AgreedTable, agreed_of
from fedgossip.learning.column_sums import SumLayout
from fedgossip.learning.noisy_sums import check_bounded
from fedgossip.learning.objectives import STATISTICS
from fedgossip.learning.per_peer import PLACE
from fedgossip.learning.record_digests import source_digest
from fedgossip.learning.statistics_task import ROUNDS, Draw, StatisticsTask, from_system
from fedgossip.learning.table_schema import FEDERATED, SiteColumns, TableSchema
from fedgossip.machine import NodeId
from fedgossip.plans.federation import FederationPlan
from fedgossip.plans.ledger import SpentLedger, data_of
from fedgossip.plans.privacy_budget import purse_of
from fedgossip.plans.sums import plan_of_sums, sites_that_fit
from fedgossip.plans.tasks import schema_of_experiment, site_file
from fedgossip.seeds import stream
from fedgossip.vectors import Vector


def statistics_plan(experiment: Experiment) -> tuple[FederationPlan, TableSchema]:
    """Return the plan of the run that makes the statistics of an experiment, and the schema that they are of.

    Raises ConfigError where there is no secure sum, where nothing is to be agreed on, and beside a budget that
    hides clients, or without bounds.
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
        text = "coordinator.privacy.unit = client: whole tables are hidden, and statistics tell of them"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")
    schema = schema_of_experiment(experiment)
    if experiment.budget is not None:
        check_bounded(schema)
    noise = _noise_of(experiment)
    return plan_of_sums(experiment, STATISTICS, ROUNDS, SumLayout(schema, noise).exact), schema


def _noise_of(experiment: Experiment) -> float:
    """Return the noise on each site's sums, in units of what one record can add; 0 without a budget."""
    return 0.0 if experiment.budget is None else experiment.budget.noise


def statistics_task(
    plan: FederationPlan, schema: TableSchema, held: Sequence[NodeId], draw: Draw = from_system
) -> tuple[FederationPlan, StatisticsTask, Mapping[NodeId, ConfigError]]:
    """Return the plan with those that abstain, the task of the sites that are `held`, and why some do not fit."""

    def read(node: NodeId) -> SiteColumns:
        site = SiteColumns(site_file(plan.experiment, node), schema, plan.experiment.data.suppress)
        StatisticsTask(schema, {node: site})
        return site

    plan, sites, refused = sites_that_fit(plan, held, read)
    return plan, StatisticsTask(schema, sites, _noise_of(plan.experiment), draw), refused


def spend_at_one_desk(plan: FederationPlan, path: Path) -> list[str]:
    """Write into a ledger what the two rounds of sums spend of each site's records, before they are made.

    Returns lines of what was released before.  Raises BudgetError where the budget, or the limit of that ledger, does
    not allow it.
    """
    said, run = [], secrets.token_hex(16)
    for node in (one for one in range(plan.learners) if not plan.abstains(one)):
        source = plan.experiment.data.source.replace(PLACE, str(node))
        budget = plan.experiment.budget
        unit, records = budget.unit if budget else "none", source_digest(source)
        with contextlib.closing(SpentLedger(path, unit, data_of(source, node), records)) as ledger:
            if budget is None:
                said += [f"site {node}: {_again(ledger.exact)}"] if ledger.exact else []
                ledger.note_exact(STATISTICS, run)
            else:
                _pay(ledger, budget, node, run)
    return said


def _again(times: int) -> str:
    told = "once" if times == 1 else f"{times} times"
    return f"released without noise {told} before, of the same records; two agreements tell of the sites that differ"


def _pay(ledger: SpentLedger, budget: PrivacySection, node: NodeId, run: str) -> None:
    before = ledger.take_up(run, [])
    purse = purse_of(budget, 1.0, 1, (), before, total=ledger.total())
    try:
        spends = [one for round in range(ROUNDS) for one in purse.pay(round)]
    except BudgetError as error:
        advice = "Raise coordinator.privacy.noise, or what is allowed if the site agrees."
        raise BudgetError(f"site {node}, two rounds of sums: {error}", advice) from None
    for spend in spends:
        ledger.add(spend)


def from_seed(plan: FederationPlan) -> Draw:
    """Draw from the seed, for simulations, which keep no secrets."""
    return lambda node, round: stream(plan.experiment.seed, "statistics noise", node, round).bytes


def agreed_from(task: StatisticsTask, vector: Vector | None, schema: TableSchema, suppress: int) -> AgreedTable:
    """Return what the sums say.  Raises TooFewPeersError where a round has not come together."""
    numbers = task.layout.numbers(vector) if vector is not None else {}
    counted = [place for place, count in numbers.items() if place[1:2] in (("bin",), ("of",)) and count]
    if not numbers.get(("sites",)) or not counted:
        text = "too few sites came together for both rounds of sums"
        raise TooFewPeersError(text, "Agree again when they are there: coordinator.min_clients are needed.")
    return agreed_of(schema, numbers, suppress, task.layout.noise)
