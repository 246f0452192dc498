"""`fedgossip peer`: one peer of a run over several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.run import participant

if TYPE_CHECKING:
    from fedgossip.drivers.participant import FolderCarrier


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--id", "node", type=click.IntRange(min=0), required=True, help="Which node of the graph this is.")
@participant.options
@participant.folder_options
@click.option("--bind", help="Where to listen, e.g. tcp://*:5700.  [default: this peer's address in the endpoints]")
@click.option(
    "--members",
    "open_run",
    is_flag=True,
    help="Peers may join and leave: the endpoints are those at the start.  On all peers.",
)
@click.option("--join", is_flag=True, help="The run has begun: fetch the model from its members.  Implies --members.")
@click.option("--trace", is_flag=True, help="Write a trace of this peer's events, for `fedgossip replay`.")
@click.option(
    "--trace-limit",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="The longest trace; the run goes on without.",
)
def peer(
    experiment: Path,
    node: int,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    open_run: bool,
    join: bool,
    resume: bool,
    trace: bool,
    trace_limit: float,
    carrier: FolderCarrier | None,
) -> int:
    """Be peer K of the run that the file EXPERIMENT describes; every machine needs the same file."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.drivers.members import check_open
    from fedgossip.experiment import load_experiment
    from fedgossip.net.endpoints import load_endpoints, load_members
    from fedgossip.plans import compose
    from fedgossip.plans.gossip.gossip import GossipPlan

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if not isinstance(plan, GossipPlan):
        one = plan.roles.of(node).name if node < plan.n else plan.roles.one
        commands = {"coordinator": "coordinator, and fedgossip client --id K", "parallel": f"{one} --id {node}"}
        advice = f"Use fedgossip {commands.get(plan.experiment.kind, 'run')}."
        raise ConfigError(f"{experiment} is no gossip run: it has a [{plan.experiment.kind}]", advice)
    if node >= plan.n:
        raise ConfigError(f"there is no peer {node}", f"The graph has peers 0 to {plan.n - 1}.")
    if open_run or join:
        check_open(plan)
        if trace:
            advice = "Leave --trace out, or run it without --members and --join."
            raise ConfigError("the events of a member cannot be replayed yet", advice)
    members = load_members(endpoints, node) if open_run or join else None
    if carrier and (members or trace):
        raise ConfigError("--members, --join and --trace do not go with a folder", "Leave them out, or --links.")
    listens = participant.listens(plan, carrier)
    known = dict(members.endpoints if members else load_endpoints(endpoints, plan.n, listens))
    limit = int(trace_limit * 1e9) if trace else 0
    return participant.Participant(
        experiment,
        plan,
        node,
        f"peer {node}",
        key,
        endpoints,
        known,
        out,
        resume,
        bind,
        members,
        join,
        carrier=carrier,
        trace_bytes=limit,
        overrides=overrides,
        seed=seed,
    ).take_part("waiting for its neighbours")
