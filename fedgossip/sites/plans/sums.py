"""Runs of sums over all sites of an experiment: the common part of statistics, evaluations and fits."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedgossip.base.errors import BudgetError, ConfigError
from fedgossip.base.seeds import stream
from fedgossip.core.machine import NodeId
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.data.agreed.sums_task import Draw, SumsTask
from fedgossip.data.per_peer import PLACE
from fedgossip.data.record_digests import source_digest
from fedgossip.experiment import Experiment, FederatedExperiment, PrivacySection
from fedgossip.experiment.sections import EvalSection, StopSection, TrackSection
from fedgossip.experiment.task_section import TaskSection
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.ledger import SpentLedger, counted, data_of
from fedgossip.plans.federated.privacy_budget import purse_of
from fedgossip.secure.exact_sums import ExactSums

Site = TypeVar("Site")
Task = TypeVar("Task", bound=SumsTask)

SUMS = {1: "one round", 2: "two rounds"}


def noise_of(experiment: Experiment) -> float:
    """Return the noise on each site's sums, in units of one record's maximum contribution; 0 without a budget."""
    return 0.0 if experiment.budget is None else experiment.budget.noise


def check_exact(experiment: FederatedExperiment, are: str, told: str) -> None:
    """Raise ConfigError without secure sums, and beside a budget; `are`: "a fit is", `told`: the exact results."""
    check_secure(experiment, are)
    if (unit := experiment.coordinator.privacy.unit) != "none":
        text = f"coordinator.privacy.unit = {unit}: {told} exact, beside a budget"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")


def check_secure(experiment: FederatedExperiment, are: str) -> None:
    """Raise ConfigError without secure sums; `are`: names the result, as in `check_exact`."""
    if not experiment.coordinator.secure.on:
        raise ConfigError(f"coordinator.secure.on = false: {are} of secure sums", "Leave it out.")


def plan_of_sums(
    experiment: FederatedExperiment, kind: str, rounds: int, exact: ExactSums, **others: Any
) -> FederationPlan:
    """Return the plan of the run that computes the sums of an experiment; `others`: further keys to replace.

    All sites take part in every round, without training or measuring, and no sum is over fewer than SITES.
    """
    c = experiment.coordinator
    alone = msgspec.structs.replace(
        experiment,
        rounds=rounds,
        task=TaskSection(kind=kind),
        train=TrainSettings(device="cpu"),
        eval=EvalSection(every=rounds),
        stop=StopSection(),
        track=TrackSection(),
        data=msgspec.structs.replace(experiment.data, local_test=0.0),
        coordinator=msgspec.structs.replace(
            c, algorithm="fedavg", options={}, codec="", participation=1.0, cohort=None, over_selection=1.0,
            sampling="uniform",
            min_clients=max(SITES, c.min_clients or min(5, c.clients)),
            privacy=msgspec.structs.replace(c.privacy, test_noise=0.0),
        ),
        **others,
    )  # fmt: skip
    plan = compose.plan(alone)
    assert isinstance(plan, FederationPlan), "it has a [coordinator]"
    return replace(plan, exact=exact)


def sites_that_fit(
    plan: FederationPlan, held: Sequence[NodeId], read: Callable[[NodeId], Site]
) -> tuple[FederationPlan, Mapping[NodeId, Site], Mapping[NodeId, ConfigError]]:
    """Return the plan with the abstaining sites, the `read` data of each `held` site, and why some do not fit."""
    sites, refused = dict[NodeId, Site](), dict[NodeId, ConfigError]()
    for node in held:
        try:
            sites[node] = read(node)
        except ConfigError as error:
            refused[node] = error
    return replace(plan, abstaining=frozenset(refused)), sites, refused


def asking(
    plan: FederationPlan, task: Task, refused: Mapping[NodeId, ConfigError]
) -> tuple[FederationPlan, Task, Mapping[NodeId, ConfigError]]:
    """Return the arguments, with the plan of a run whose sites check requests as their task does."""
    return replace(plan, questions=task), task, refused


def spend_at_one_desk(plan: FederationPlan, path: Path) -> list[str]:
    """Charge the rounds of sums to each site's budget in a ledger, before they run.

    Returns lines about earlier releases.  Raises BudgetError where the budget or the ledger's limit is exceeded.
    """
    said, run = [], secrets.token_hex(16)
    for node in (one for one in range(plan.learners) if not plan.abstains(one)):
        source = plan.experiment.data.source.replace(PLACE, str(node))
        budget = plan.experiment.budget
        unit, records = budget.unit if budget else "none", source_digest(source)
        with contextlib.closing(SpentLedger(path, unit, data_of(source, node), records)) as ledger:
            if budget is None:
                before = ledger.exact_before()
                said += [f"site {node}: {_again(before, plan.experiment.task.kind)}"] if before else []
                ledger.note_exact(plan.experiment.task.kind, run)
            else:
                _pay(ledger, budget, node, run, plan.experiment.rounds)
    return said


def _again(before: Mapping[str, int], kind: str) -> str:
    told = f"released before without noise, of the same records: {counted(before)}"
    return f"{told}; two sums of a kind tell of the sites that differ" if kind in before else told


def _pay(ledger: SpentLedger, budget: PrivacySection, node: NodeId, run: str, rounds: int) -> None:
    before = ledger.take_up(run, [])
    purse = purse_of(budget, 1.0, 1, (), before, total=ledger.total())
    try:
        spends = [one for round in range(rounds) for one in purse.pay(round)]
    except BudgetError as error:
        advice = "Raise coordinator.privacy.noise, or what is allowed if the site agrees."
        raise BudgetError(f"site {node}, {SUMS.get(rounds, str(rounds))} of sums: {error}", advice) from None
    for spend in spends:
        ledger.add(spend)


def from_seed(plan: FederationPlan) -> Draw:
    """Return draws from the seed, for simulations, which keep no secrets."""
    return lambda node, round: stream(plan.experiment.seed, f"{plan.experiment.task.kind} noise", node, round).bytes
