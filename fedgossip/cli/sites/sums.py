"""Commands that compute sums over all sites: from files on one machine, or with others on theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli import STOPPED
from fedgossip.cli.people.keys import key_option, policy_option
from fedgossip.cli.run.participant import folder_options, web_options
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.sites.approval import Gate
    from fedgossip.core.task import LocalTask
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.plans.approvals.approvals import ApprovalRequest
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.tasks import DataShares
    from fedgossip.runs.peer_files import PeerEnded
    from fedgossip.runs.run_directory import Run

EXPERIMENT = click.argument("experiment", type=click.Path(path_type=Path))
Record = Callable[[Path], None]
"""Makes a folder, and writes the run of the sums there; at a site, which has only its own part, does nothing."""
Write = Callable[[Any, Record], None]
"""Called with the sums."""
BEGIN_AGAIN = "Start again, all together and in new folders (--out), when coordinator.min_clients are present."
"""Advice after a stopped run of sums: its rounds are few, and `--resume` is only for training runs."""
TOOK_NO_PART = 4
"""The exit code if a site's records do not fit: of the site, or of the command if all sites are on one machine."""
SET = click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")


def check_site(plan: FederationPlan, node: int) -> None:
    """Raise ConfigError for a site that does not exist."""
    from fedgossip.base.errors import ConfigError

    if node >= plan.learners:
        raise ConfigError(f"there is no site {node}", f"Sites are the clients 0 to {plan.learners - 1}.")


def over_machines(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that computes sums with others on their own machines."""
    command = web_options(folder_options(command))
    for option in (
        click.option("--out", type=click.Path(path_type=Path), help="Folder to make for the log.  [default: runs/...]"),
        click.option("--bind", help="Where the coordinator listens, e.g. tcp://*:5700."),
        click.option("--dry-run", is_flag=True,
                     help="List the values to be opened, their receivers and the epsilon; send nothing."),
        policy_option("Requirements of this site, from `fedgossip privacy policy`: an approval, and for how long."),
        click.option("--ledger", type=click.Path(path_type=Path),
                     help="Ledger of the budget spent by the site's records.  [default: next to the key]"),
        key_option("One's own key pair, from `fedgossip keys new`."),
        click.option("--endpoints", type=click.Path(path_type=Path),
                     help="With others on their own machines: all participants' ids, addresses and public keys."),
        click.option("--id", "site", type=click.IntRange(min=0),
                     help="Which site or leaf coordinator this is; without it, and with --endpoints, the coordinator."),
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True)
class OtherMachines:
    """Options of the command line for a participant among others."""

    experiment: Path
    endpoints: Path | None
    key: Path
    ledger: Path | None
    bind: str | None
    out: Path | None
    overrides: tuple[str, ...]
    policy: Path
    dry_run: bool
    """Whether to list only the opened values."""
    carrier: FolderCarrier | None = None

    @property
    def goes_on(self) -> bool:
        """Whether an earlier process has begun this run over a folder."""
        return self.carrier is not None and self.out is not None and (self.out / run_format.STEP).exists()

    def is_written(self, result: Path) -> bool:
        """Whether the previous step has written the result."""
        return self.goes_on and result.exists()


def sum_with_others(
    plan: FederationPlan,
    task: LocalTask,
    digest: str,
    refused: Mapping[int, ConfigError],
    node: int,
    known: OtherMachines,
    write: Write,
    opened: Sequence[str],
    gate: Gate | None = None,
) -> int:
    """Take part in a run of sums with others on their own machines; `digest`: of all inputs that must be equal
    everywhere.

    `write` is called with the sums.  `opened`: their content, in words, for the plan of this run; `gate`: the site's
    approval of another plan, if this run is a step of that plan.  A site whose records do not fit reports that to the
    others and here, and takes no part.  Raises ConfigError if this site has not approved the plan.
    """
    from fedgossip.base.errors import ConfigError, FedgossipError
    from fedgossip.cli.run.participant import Participant, listens
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans.approvals.approvals import request_of
    from fedgossip.plans.approvals.plan_statement import statement_of
    from fedgossip.plans.federated.policy import how_long
    from fedgossip.plans.tasks import DataShares

    assert known.endpoints is not None, "others are found by them"
    plan, refused = _heeding_ledger(plan, refused, node, known)
    shares = DataShares(plan.experiment.data.source, digest=digest)
    if known.carrier and known.out is None:
        raise ConfigError("--links without --out", "Name the folder of this site's log, for `fedgossip step`.")
    everybody = load_endpoints(known.endpoints, plan.n, listens(plan, known.carrier))

    def wanted() -> ApprovalRequest:
        return request_of(plan, statement_of(plan, task, opened), node, everybody)

    participant = Participant(
        known.experiment,
        plan,
        node,
        f"site {node}" if node < plan.learners else plan.roles.label(node),
        known.key,
        known.endpoints,
        everybody,
        known.out,
        resume=known.goes_on,
        limits=how_long(known.policy),
        request=wanted,
        gate=gate,
        bind=known.bind,
        spent=known.ledger,
        learning=(task, shares),
        carrier=known.carrier,
        overrides=known.overrides,
        concluded=_writing(plan, node, (task, shares), opened, write if node not in refused else None),
    )
    try:
        code = participant.take_part("calling the coordinator" if node < plan.learners else "waiting for the sites")
    except FedgossipError as stopped:
        if "--resume" in stopped.advice:
            stopped.advice = BEGIN_AGAIN
        raise
    print_refusals(refused)
    return TOOK_NO_PART if refused and code != STOPPED else code  # a refused site sent no records


def _heeding_ledger(
    plan: FederationPlan, refused: Mapping[int, ConfigError], node: int, known: OtherMachines
) -> tuple[FederationPlan, Mapping[int, ConfigError]]:
    """Return the plan and the refusals with this site abstaining if its ledger forbids a release of these records."""
    from fedgossip.base.errors import BudgetError, ConfigError
    from fedgossip.data.partitions import PLACE
    from fedgossip.data.record_groups import source_digest
    from fedgossip.plans.federated.ledger import SpentLedger, data_of
    from fedgossip.plans.tasks import released_rows

    e = plan.experiment
    path = _ledger_of(known)
    if node >= plan.learners or node in refused or e.budget or not path.exists():
        return plan, refused
    source = e.data.source.replace(PLACE, str(node))
    with contextlib.closing(SpentLedger(path, "none", data_of(source, node), source_digest(source))) as ledger:
        try:
            ledger.check_rows(e.task.kind, released_rows(e, source), e.data.suppress)
        except BudgetError as error:
            why = ConfigError(str(error), error.advice)
            return replace(plan, abstaining=plan.abstaining | {node}), {**refused, node: why}
    return plan, refused


def _ledger_of(known: OtherMachines) -> Path:
    return known.ledger or known.key.with_name(f"{known.key.name}.{run_format.SPENT}")


def _writing(
    plan: FederationPlan,
    node: int,
    learning: tuple[LocalTask, DataShares],
    opened: Sequence[str],
    write: Write | None,
) -> Callable[[Path, PeerEnded], None]:
    """Return the function to call at the end: it passes the sums to `write`."""

    def concluded(folder: Path, ended: PeerEnded) -> None:
        from fedgossip.base.errors import TooFewPeersError
        from fedgossip.base.owner_files import make_folder
        from fedgossip.runs.collect import collect_peers, final_vector

        def record(to: Path) -> None:
            if node != plan.coordinator:
                make_folder(to)
                return
            collect_peers(plan, [folder], to, learning, report=False)
            _state(to, plan, learning[0], opened)

        if ended.counts.get("ended_early"):
            text = f"the coordinator has ended the run after {ended.rounds} rounds: too few sites were left"
            raise TooFewPeersError(text, BEGIN_AGAIN)
        if write and ended.status in ("finished", "partial"):
            write(final_vector(folder), record)

    return concluded


def find_held(plan: FederationPlan, known: OtherMachines, site: int | None) -> Sequence[int]:
    """Return the sites with files on this machine.  Raises ConfigError for a site that does not exist."""
    from fedgossip.base.errors import ConfigError

    if known.endpoints is None and site is not None:
        raise ConfigError("--id without --endpoints", "Name the file with all participants' keys; or leave --id out.")
    if site is None:
        return range(plan.learners) if known.endpoints is None else []
    if plan.learners <= site < plan.coordinator:  # a leaf coordinator
        return []
    check_site(plan, site)
    return [site]


def sum_at_one_desk(plan: FederationPlan, task: LocalTask) -> Run:
    """Compute the sums of files that are all on this machine."""
    from fedgossip.drivers.simulate import simulate_plan

    for line in plan.banner:
        echo(line, err=True)
    return simulate_plan(plan, task=task)


def print_refusals(refused: Mapping[int, ConfigError]) -> None:
    for site, error in refused.items():
        echo(f"site {site} took no part: {error}  {error.advice}", err=True)


def check_enough(plan: FederationPlan, refused: Mapping[int, ConfigError]) -> None:
    """Report absent sites.  Raises TooFewPeersError if too few are left for a sum: nothing is spent."""
    from fedgossip.base.errors import TooFewPeersError

    print_refusals(refused)
    left = set(range(plan.learners)) - set(refused)
    if not plan.tree.sums_up(plan.coordinator, left, plan.least):
        needed = f"{plan.least} are needed" if plan.tree.flat else f"each leaf coordinator needs {plan.least}"
        text = f"too few sites are left: {len(left)} of {plan.learners}, and {needed}"
        advice = "Mend the files named above; coordinator.min_clients is the number of sites needed."
        raise TooFewPeersError(text, advice)


def summed(
    plan: FederationPlan,
    task: LocalTask,
    digest: str,
    refused: Mapping[int, ConfigError],
    site: int | None,
    known: OtherMachines,
    write: Write,
    opened: Sequence[str],
) -> int:
    """Compute the sums, here or with others, and call `write` with them; return the exit code.

    `opened`: the values that the coordinator can read, in words, for a dry run and the plan.
    """
    from fedgossip.runs.run_directory import keep
    from fedgossip.sites.plans.sums import spend_at_one_desk

    if known.dry_run:
        return print_dry_run(plan, task, refused, opened, site, known)
    if known.endpoints is not None:
        who = plan.coordinator if site is None else site
        return sum_with_others(plan, task, digest, refused, who, known, write, opened)
    check_enough(plan, refused)
    agreed = Path(plan.experiment.data.agreed)
    for line in spend_at_one_desk(plan, known.ledger or agreed.with_name(f"{agreed.name}.{run_format.SPENT}")):
        echo(line, err=True)
    run = sum_at_one_desk(plan, task)

    def record(to: Path) -> None:
        keep(to, plan, run)
        _state(to, plan, task, opened)

    write(run.vectors[plan.coordinator], record)
    return TOOK_NO_PART if refused else 0


def _state(folder: Path, plan: FederationPlan, task: LocalTask, opened: Sequence[str]) -> None:
    from fedgossip.plans.approvals import plan_statement

    plan_statement.write(folder / run_format.PLAN, plan_statement.statement_of(plan, task, opened))


def print_dry_run(
    plan: FederationPlan,
    task: LocalTask,
    refused: Mapping[int, ConfigError],
    opened: Sequence[str],
    site: int | None,
    known: OtherMachines,
) -> int:
    """Print the content, receivers and costs of the sums, and which local files fit; return the exit code.

    Raises BudgetError if the budget does not allow them.
    """
    rounds = plan.experiment.rounds
    up, down = plan.count_upload_bytes(task.length, task.dtype), task.length * task.dtype.itemsize
    for line in [*plan.banner, *(f"opened: {line}" for line in opened), *_cost(plan, site, known)]:
        echo(line)
    each = f"a site and round: {up:,} bytes up and {down:,} down, without the keys of its sum"
    echo(f"{each}; in {rounds} rounds at most {rounds * (up + down):,}")
    print_refusals(refused)
    echo("Nothing was sent, and nothing written down: this was a dry run.", err=True)
    return TOOK_NO_PART if refused else 0


def _cost(plan: FederationPlan, site: int | None, known: OtherMachines) -> list[str]:
    """Return the sums' costs in budget, at a site with its ledger's entries for the same records."""
    from fedgossip.base.errors import BudgetError
    from fedgossip.data.partitions import PLACE
    from fedgossip.data.record_groups import source_digest
    from fedgossip.plans.federated.ledger import data_of, read_releases
    from fedgossip.privacy.accounting import Mechanism, epsilon

    budget, rounds = plan.experiment.budget, plan.experiment.rounds
    if budget is None:
        return ["epsilon: none covers them, for they have no noise"]
    cost, before = Mechanism(budget.noise, 1.0, rounds), list[Mechanism]()
    if site is not None and site < plan.learners:
        source = plan.experiment.data.source
        before = read_releases(
            _ledger_of(known), budget.unit, data_of(source, site), source_digest(source.replace(PLACE, str(site)))
        )
    alone, total = epsilon([cost], budget.delta), epsilon([cost, *before], budget.delta)
    most = f"of at most {budget.max_epsilon:g} for each {budget.unit} at delta {budget.delta:g}"
    if total > budget.max_epsilon:
        earlier = f", {total:.3g} with what this site's ledger holds" if before else ""
        text = f"epsilon {alone:.3g}{earlier}, {most}"
        raise BudgetError(text, "Raise coordinator.privacy.noise, or max_epsilon if the sites allow it.")
    sentence = f"; {total:.3g} with what this site's ledger holds" if before else ""
    return [f"epsilon: {alone:.3g} {most}{sentence}"]
