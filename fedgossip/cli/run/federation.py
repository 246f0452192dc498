"""`fedgossip coordinator` and `fedgossip client`: the two ends of a federated run over several machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.run import participant
from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.drivers.loops.description import Described
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.plans.federated.federation import FederationPlan


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@participant.options
@click.option("--id", "node", type=click.IntRange(min=0), help="Which one this is, with coordinator.tiers.")
@participant.folder_options
@click.option("--bind", help="Where to listen, e.g. tcp://*:5700.  [default: its address in the endpoints]")
@click.option(
    "--script",
    default="",
    metavar="'FILE ...'",
    help="Where the clients are training loops: such a script, which is run up to its fedgossip.join.",
)
def coordinator(
    experiment: Path,
    endpoints: Path,
    key: Path,
    node: int | None,
    bind: str | None,
    script: str,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: bool,
    carrier: FolderCarrier | None,
) -> int:
    """Be the coordinator of the federated run that the file EXPERIMENT describes; every client needs the same file.

    With coordinator.tiers, the root; with --id the leaf coordinator of that id, which calls the root.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_endpoints

    plan = _plan(experiment, overrides, seed)
    node = plan.coordinator if node is None else node
    if not plan.learners <= node <= plan.coordinator:
        first, last = plan.learners, plan.coordinator
        advice = f"Its id is {last}: leave --id out." if plan.tree.flat else f"Give {first} to {last}, the root."
        raise ConfigError(f"there is no coordinator {node}", advice)
    loop = _first_model(plan, script)
    known = load_endpoints(endpoints, plan.n, participant.listens(plan, carrier))
    return participant.Participant(
        experiment,
        plan,
        node,
        plan.roles.label(node),
        key,
        endpoints,
        known,
        out,
        resume,
        bind,
        learning=loop.learning if loop else None,
        prepare=loop.keep if loop else None,
        carrier=carrier,
        overrides=overrides,
        seed=seed,
    ).take_part("waiting for its clients")


def _first_model(plan: FederationPlan, script: str) -> Described | None:
    """Return the first model of the clients' loops, if they are loops.  Raises ConfigError."""
    from fedgossip.cli.people.invited import script_of

    words = script_of(plan.experiment, script)
    if not words:
        return None
    from fedgossip.drivers.loops.first_model import first_model_of

    return first_model_of(plan, words)


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which client this is.")
@participant.options
@participant.folder_options
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    default=Path("policy.toml"),
    show_default=True,
    help="What this client insists on, from `fedgossip privacy policy`.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    help="Where this site notes what its records have spent.  [default: beside the key]",
)
@click.option("--dry-run", is_flag=True, help="Check all that this site can check alone, and send nothing.")
def client(
    experiment: Path,
    node: int,
    endpoints: Path,
    key: Path,
    policy: Path,
    ledger: Path | None,
    dry_run: bool,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: bool,
    carrier: FolderCarrier | None,
) -> int:
    """Be client K of the federated run that the file EXPERIMENT describes.  It calls the coordinator, and needs no
    open port."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose
    from fedgossip.plans.federated.policy import demands, how_long

    plan = _plan(experiment, overrides, seed)
    if node >= plan.learners:
        raise ConfigError(f"there is no client {node}", f"Clients are 0 to {plan.learners - 1}.")
    if dry_run:
        return _checked(plan, node, key, endpoints, policy, ledger, None if resume else out)
    known = load_endpoints(endpoints, plan.n, participant.listens(plan, carrier))
    learning = compose.task_of(plan.experiment, plan.learners, [node], os.urandom)
    terms = demands(policy, plan, node, known, learning[0] if plan.secure else None)
    where = known[plan.tree.parent(node)].address
    return participant.Participant(
        experiment,
        plan,
        node,
        f"client {node}",
        key,
        endpoints,
        known,
        out,
        resume,
        policy=terms,
        learning=learning,
        limits=how_long(policy),
        spent=ledger,
        carrier=carrier,
        overrides=overrides,
        seed=seed,
    ).take_part(f"calling the coordinator at {where}, which begins when enough clients are there")


def _checked(
    plan: FederationPlan, node: int, key: Path, endpoints: Path, policy: Path, ledger: Path | None, out: Path | None
) -> int:
    """Print the checks that a site can make alone; return the exit code of the first fault that would end its run."""
    import time

    from fedgossip.plans.approvals.site_checks import LATER, NOT_LOOKED_AT, ClientSite, SiteChecks

    code = 0
    for one in SiteChecks(ClientSite(plan, node, key, endpoints, policy, ledger, out, time.time_ns)).all():
        word = "REFUSED" if one.error else "WARNING" if one.advice else "-" if one.said == LATER else "ok"
        echo(f"{word:7}  {one.what:12}  {one.said}")
        if advice := one.error.advice if one.error else one.advice:
            echo(f"{'':23}{advice}")
        code = code or (one.error.exit_code if one.error else 0)
    echo(f"Not looked at: {NOT_LOOKED_AT}.  Nothing was sent.", err=True)
    return code


def _plan(experiment: Path, overrides: tuple[str, ...], seed: int | None) -> FederationPlan:
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose
    from fedgossip.plans.federated.federation import FederationPlan

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if not isinstance(plan, FederationPlan):
        raise ConfigError(f"{experiment} has no [coordinator]", "Use fedgossip peer for peers of a graph.")
    return plan
