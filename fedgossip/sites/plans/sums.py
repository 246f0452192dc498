"""Runs of sums over all sites of an experiment: the common part of statistics, evaluations and fits.

A kind of fit is a `SumsRun`, and a line in `fits.FITS`; `planned` makes its run.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedgossip.algorithms.federated.base import Aggregate, is_over
from fedgossip.base.errors import BudgetError, ConfigError, TooFewPeersError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, WholeModel
from fedgossip.data.agreed.agreed_table import AgreedTable, check_same, read
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.data.agreed.sums_task import Draw, SumsTask
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.data.objectives import CLASSIFICATION, REGRESSION
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import source_digest
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import Experiment, FederatedExperiment, PrivacySection
from fedgossip.experiment.sections import EvalSection, StopSection, TaskSection, TrackSection
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.ledger import SpentLedger, counted, data_of
from fedgossip.plans.federated.privacy_budget import purse_of
from fedgossip.plans.federated.tree import tree_of
from fedgossip.plans.tasks import released_rows, schema_of_experiment, site_file
from fedgossip.secure.encoding import ExactSums, as_vector, integers_of, words_in, words_of
from fedgossip.sites.fits.glm.glm import Values
from fedgossip.sites.fits.glm.glm_result import tensors_of
from fedgossip.sites.fits.imputation.rubin import Pooling

Site = TypeVar("Site")
Task = TypeVar("Task", bound=SumsTask)

SUMS = {1: "one round", 2: "two rounds"}


def noise_of(experiment: Experiment) -> float:
    """Return the noise on each site's sums, in units of one record's maximum contribution; 0 without a budget."""
    return 0.0 if experiment.budget is None else experiment.budget.noise


def check_exact(experiment: FederatedExperiment, are: str, disclosed: str) -> None:
    """Raise ConfigError without secure sums, and with a budget; `are`: "a fit is", `disclosed`: the exact results."""
    check_secure(experiment, are)
    if (unit := experiment.coordinator.privacy.unit) != "none":
        text = f"coordinator.privacy.unit = {unit}: {disclosed} exact, with a budget"
        raise ConfigError(text, "If the sites allow that:  --set coordinator.privacy.unit=none")


def check_secure(experiment: FederatedExperiment, are: str) -> None:
    """Raise ConfigError without secure sums; `are`: names the result, as in `check_exact`."""
    if not experiment.coordinator.secure.on:
        raise ConfigError(f"coordinator.secure.on = false: {are} of secure sums", "Leave it out.")


def plan_of_sums(
    experiment: FederatedExperiment, kind: str, rounds: int, exact: ExactSums, **others: Any
) -> FederationPlan:
    """Return the plan of an experiment's sums; `others`: further keys to replace.

    All sites take part in every round; no sum is over fewer than SITES.
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
            min_clients=max(SITES, c.min_clients or min(5, tree_of(c).smallest_leaf)),
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
    """Return the arguments, with the plan of a run whose sites check requests by their task."""
    return replace(plan, questions=task), task, refused


def summed_here(plan: FederationPlan, task: SumsTask, held: Sequence[NodeId]) -> Vector | None:
    """Return the vector after all rounds of the `held` sites' sums, without messages; None after a refused point."""
    server, bits = plan.federated.server, task.exact.ring_bits
    state = server.start(task.initial(0))
    for number in range(plan.experiment.rounds):
        (x,) = server.broadcast(state)
        if is_over(server, x):
            break
        if any(task.uneven(node, number, x) for node in held):
            return None
        words = [words_in(task.sums(Job(node, number, x))) for node in held]
        numbers = zip(*(integers_of(one, bits) for one in words if one is not None), strict=True)
        total = as_vector(words_of([sum(one) for one in numbers], bits))
        state = server.step(state, Aggregate((total,), len(held), 1.0, number))
    return server.broadcast(state)[0]


# --- a kind of fit ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImputedFits:
    """How a kind of fit is fitted to K tables, whose empty cells are drawn (`sites.plans.imputed`)."""

    records: Callable[[Any, Any, Values], Any]
    """Returns a site's records of a layout with these features, [m, all], in their own units."""
    result: Callable[[Any, AgreedTable, Sequence[Vector], int, Pooling], Any]
    """Returns the file's contents by the layout, pooled over the sums of each table, [K]; as `SumsRun.result`."""
    model: Callable[[Any, AgreedTable], WholeModel | None]
    """Returns the model of a result."""


@dataclass(frozen=True)
class SumsRun:
    """One kind of fit by sums.  A layout has `design` (with a `digest`), `exact`, and `opened`: the sums, in words."""

    name: str
    """First word of model.source."""
    kind: str
    """Kind of its run, of `data.objectives.SUMS`."""
    file: str
    """File of its result."""
    kinds: Callable[[str], Sequence[str]]
    """Returns the kinds of task for a model.source.  Raises ConfigError for an invalid one."""
    layout: Callable[[FederatedExperiment, AgreedTable], Any]
    """Returns the position of each number in a vector.  Raises ConfigError for columns that may not be summed."""
    rounds: Callable[[Any], int]
    """Returns the maximum number of rounds of a layout."""
    read: Callable[[Any, AgreedTable, TableFile], Any]
    """Returns a site's records for a layout.  Raises ConfigError for an unsuitable file, and for too few records."""
    task: Callable[[Any, Mapping[NodeId, Any], int], SumsTask]
    """Returns the task of a layout with the records of these sites; `suppress` or more of them count in each sum."""
    result: Callable[[Any, AgreedTable, Vector, int], Any]
    """Returns the file's contents by the layout, from sums over the given number of sites; None after
    too few rounds.
    """
    server: Callable[[Any], Any] | None = None
    """Returns the coordinator's rule for the next model; without it sums are added at their positions."""
    model: Callable[[Any, AgreedTable, Vector], WholeModel | None] | None = None
    """Returns the model for `fedgossip predict` and `evaluate`; without it the result is no model."""
    imputed: ImputedFits | None = None
    """Without it there is no fit of drawn cells."""


@dataclass(frozen=True)
class PlannedFit:
    """A fit of an experiment: its kind, the run that computes its sums, their layout, and the agreed statistics."""

    run: SumsRun
    plan: FederationPlan
    layout: Any
    agreed: AgreedTable

    def of_sites(self, held: Sequence[NodeId]) -> tuple[FederationPlan, SumsTask, Mapping[NodeId, ConfigError]]:
        """Return the plan with the abstaining sites, the task of the `held` sites, and why some do not fit."""

        def records(node: NodeId) -> Any:
            return self.run.read(self.layout, self.agreed, site_file(self.plan.experiment, node))

        plan, sites, refused = sites_that_fit(self.plan, held, records)
        return asking(plan, self.run.task(self.layout, sites, self.agreed.suppress), refused)

    def accepted(self, held: Sequence[NodeId], least: int) -> bool:
        """Return whether the `held` sites alone finish the fit with `least` as the minimum number of counting records.

        Raises TrainingError as the fit itself does.
        """
        sites = {node: self.run.read(self.layout, self.agreed, site_file(self.plan.experiment, node)) for node in held}
        vector = summed_here(self.plan, self.run.task(self.layout, sites, least), held)
        return vector is not None and bool(getattr(self.result(vector), "converged", True))

    def result(self, vector: Vector | None) -> Any:
        """Return the contents of the file.  Raises TooFewPeersError after incomplete rounds."""
        found = None if vector is None else self.run.result(self.layout, self.agreed, vector, self.plan.least)
        if found is None:
            text = "too few sites took part in the sums of a fit"
            raise TooFewPeersError(text, "Fit again when more are present: coordinator.min_clients are needed.")
        return found


def planned(run: SumsRun, experiment: Experiment) -> PlannedFit:
    """Return the run of a fit's sums.

    Raises ConfigError without secure sums, with a budget, before the agreement, for other labels, and as the fit does.
    """
    if not isinstance(experiment, FederatedExperiment):
        advice = "Give at least:  [coordinator]  clients = 5"
        raise ConfigError(f"no [coordinator]: {run.name} is of sums over clients", advice)
    d, source = experiment.data, experiment.model.source
    if experiment.objective.kind not in (kinds := run.kinds(source)):
        text = f"{source.partition('?')[0]} with task.kind = {experiment.objective.kind!r}"
        raise ConfigError(text, "Set task.kind = " + " or ".join(f'"{kind}"' for kind in kinds) + ".")
    if d.scale != FEDERATED:
        text = f"data.scale is {d.scale!r}: {run.name} is of the columns that the sites have agreed on"
        raise ConfigError(text, f'Set data.scale = "{FEDERATED}", then  fedgossip data agree EXPERIMENT.')
    check_exact(experiment, "a fit is", "the sums of a fit are")
    agreed = read(Path(d.agreed))
    check_same(agreed, schema_of_experiment(experiment), Path(d.agreed))
    layout = run.layout(experiment, agreed)
    plan = plan_of_sums(experiment, run.kind, run.rounds(layout), layout.exact)
    if run.server is not None:
        plan = replace(plan, federated=replace(plan.federated, server=run.server(layout)))
    return PlannedFit(run, plan, layout, agreed)


def layer_model(d: Any, source: str, rows: Values, agreed: AgreedTable) -> WholeModel:
    """Return a fit as a model for `fedgossip.load_model`: `rows` of a linear layer, of the columns of `d`."""
    encoding, (mean, deviation) = agreed.encoding, agreed.scale
    label = agreed.schema.labels[0]
    facts: dict[str, Any] = {
        "source": source, "kind": CLASSIFICATION if label.categories else REGRESSION,
        "loss": "cross-entropy" if label.categories else "mse",
        "metrics": ("accuracy",) if label.categories else ("rmse", "mae"), "shape": (len(encoding.features),),
        "outputs": len(rows), "classes": label.categories, "columns": encoding.features,
        "encoding": encoding, "labels": (label.name,), "scale": {"mean": mean, "deviation": deviation},
        "schema": d.digest[:16], "versions": compose.versions(),
    }  # fmt: skip
    return WholeModel(tensors_of(d, rows, len(encoding.features)), facts)


# --- ledgers ----------------------------------------------------------------------------------------------------------


def spend_at_one_desk(plan: FederationPlan, path: Path) -> list[str]:
    """Charge the rounds of sums to each site's budget in a ledger first; return lines about earlier releases.

    Raises BudgetError.
    """
    e, lines, run = plan.experiment, list[str](), secrets.token_hex(16)
    budget, kind = e.budget, e.task.kind
    here = [node for node in range(plan.learners) if not plan.abstains(node)]
    sources = {node: e.data.source.replace(PLACE, str(node)) for node in here}
    rows = {node: "" if budget else released_rows(e, source) for node, source in sources.items()}

    def opened(node: NodeId) -> contextlib.closing[SpentLedger]:
        source, unit = sources[node], budget.unit if budget else "none"
        return contextlib.closing(SpentLedger(path, unit, data_of(source, node), source_digest(source)))

    for node in here if budget is None else ():  # all before the first line is written
        with opened(node) as ledger:
            try:
                ledger.check_rows(kind, rows[node], e.data.suppress)
            except BudgetError as error:
                raise BudgetError(f"site {node}: {error}", error.advice) from None
    for node in here:
        with opened(node) as ledger:
            if budget is None:
                before = ledger.exact_before()
                lines += [f"site {node}: {_again(before, kind)}"] if before else []
                ledger.note_exact(kind, run, rows[node], e.data.suppress)
            else:
                _pay(ledger, budget, node, run, e.rounds)
    return lines


def _again(before: Mapping[str, int], kind: str) -> str:
    text = f"released before without noise, of the same records: {counted(before)}"
    return f"{text}; two sums of a kind disclose the sites that differ" if kind in before else text


def _pay(ledger: SpentLedger, budget: PrivacySection, node: NodeId, run: str, rounds: int) -> None:
    before = ledger.take_up(run, [])
    purse = purse_of(budget, 1.0, 1, (), before, total=ledger.total())
    try:
        spends = [one for round in range(rounds) for one in purse.pay(round)]
    except BudgetError as error:
        advice = "Raise coordinator.privacy.noise, or the limit if the site agrees."
        raise BudgetError(f"site {node}, {SUMS.get(rounds, str(rounds))} of sums: {error}", advice) from None
    for spend in spends:
        ledger.add(spend)


def from_seed(plan: FederationPlan) -> Draw:
    """Return draws from the seed, for simulations, which have no secrets."""
    return lambda node, round: stream(plan.experiment.seed, f"{plan.experiment.task.kind} noise", node, round).bytes
