"""The commands of participants: `peer`, `coordinator`, `client`, `worker`, `server`, `manager`, and `step` of a run by
folder.

    peer                       one peer of a gossip run over several machines
    coordinator, client        the two ends of a federated run
    worker, server, manager    one participant of a parallel run
    step                       a run by folder, continued as far as possible now
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import line
from fedgossip.cli.ids import read_ids
from fedgossip.cli.people.keys import key_of, policy_option
from fedgossip.cli.run import gateway, participant
from fedgossip.cli.run.participant import SUMMING, is_over, step_content
from fedgossip.cli.text import echo
from fedgossip.core.run_format import STEP

if TYPE_CHECKING:
    from fedgossip.drivers.loops.description import Described
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.plan import Plan


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
@participant.trace_limit_option
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
    """Be peer K of the run of the file EXPERIMENT; every machine needs the same file."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.drivers.members import check_open
    from fedgossip.experiment import load_experiment
    from fedgossip.net.endpoints import load_endpoints, load_members
    from fedgossip.plans import compose
    from fedgossip.plans.gossip.gossip import GossipPlan

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if not isinstance(plan, GossipPlan):
        one = plan.roles.get_role(node).name if node < plan.n else plan.roles.one
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
    """Be the coordinator of the federated run of the file EXPERIMENT; every client needs the same file.

    With coordinator.tiers, the root; with --id the leaf coordinator of that id, which connects to the root.
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
    """Return the first model of the clients' loops; None without loops."""
    from fedgossip.cli.people.invited import script_of

    words = script_of(plan.experiment, script)
    if not words:
        return None
    from fedgossip.drivers.loops.first_model import first_model_of

    return first_model_of(plan, words)


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--id",
    "nodes",
    metavar="K",
    callback=read_ids,
    required=True,
    help="Which client this is; or several, as 0-99, in one process: --key is then the folder with their keys, 0.key "
    "to 99.key, and --out gets a folder for each.",
)
@participant.options
@participant.folder_options
@policy_option("Requirements of this client, from `fedgossip privacy policy`.")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    help="Ledger of the budget spent by this site's records.  [default: next to the key]",
)
@click.option("--dry-run", is_flag=True, help="Check all that this site can check alone, and send nothing.")
def client(
    experiment: Path,
    nodes: tuple[int, ...],
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
    """Be client K of the federated run of the file EXPERIMENT.  It connects to the coordinator, and
    needs no open port.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose
    from fedgossip.plans.federated.policy import demands, how_long

    plan = _plan(experiment, overrides, seed)
    if nodes[-1] >= plan.learners:
        raise ConfigError(f"there is no client {nodes[-1]}", f"Clients are 0 to {plan.learners - 1}.")
    many = len(nodes) > 1
    if many:
        out = _folder_of_many(plan, nodes, key, ledger, out, carrier)
    keys = {node: key_of(key, node) if many else key for node in nodes}
    outs = {node: out / f"client{node}" if many and out else out for node in nodes}
    if dry_run:
        codes = []
        for node in nodes:
            if many:
                echo(f"client {node}")
            place = None if resume else outs[node]
            codes.append(_checked(plan, node, keys[node], endpoints, policy, ledger, place))
        return next(filter(None, codes), 0)
    known = load_endpoints(endpoints, plan.n, participant.listens(plan, carrier))
    learning = compose.task_of(plan.experiment, plan.learners, nodes, os.urandom)
    limits = how_long(policy)
    seats = [
        participant.Participant(
            experiment,
            plan,
            node,
            f"client {node}",
            keys[node],
            endpoints,
            known,
            outs[node],
            resume,
            policy=demands(policy, plan, node, known, learning[0] if plan.secure else None),
            learning=learning,
            limits=limits,
            spent=ledger,
            carrier=carrier,
            overrides=overrides,
            seed=seed,
        )
        for node in nodes
    ]
    where = known[plan.tree.parent(nodes[0])].address
    waiting = f"calling the coordinator at {where}, which begins when enough clients have joined"
    return gateway.take_part(seats, waiting) if many else seats[0].take_part(waiting)


def _folder_of_many(
    plan: FederationPlan,
    nodes: tuple[int, ...],
    keys: Path,
    ledger: Path | None,
    out: Path | None,
    carrier: FolderCarrier | None,
) -> Path:
    """Return the folder for those of several clients in one process.  Raises ConfigError for options of one client."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.runs.run_directory import new_path

    if ledger or carrier:
        text = f"{'--ledger' if ledger else '--links'} with {len(nodes)} clients: it is of one client"
        raise ConfigError(text, "Leave it out, or start that client by itself.")
    if not keys.is_dir():
        names = f"{key_of(Path('KEYS'), nodes[0])} to {key_of(Path('KEYS'), nodes[-1])}"
        raise ConfigError(f"{keys} is no folder with the keys of {len(nodes)} clients", f"Give --key KEYS: {names}.")
    return out or new_path(plan, f"clients{nodes[0]}-{nodes[-1]}", Path("runs"))


def _checked(
    plan: FederationPlan, node: int, key: Path, endpoints: Path, policy: Path, ledger: Path | None, out: Path | None
) -> int:
    """Print the checks of this site; return the exit code of the first fatal fault."""
    import time

    from fedgossip.plans.approvals.site_checks import LATER, NOT_LOOKED_AT, ClientSite, SiteChecks

    code = 0
    for one in SiteChecks(ClientSite(plan, node, key, endpoints, policy, ledger, out, time.time_ns)).all():
        word = "REFUSED" if one.error else "WARNING" if one.advice else "-" if one.finding == LATER else "ok"
        echo(f"{word:7}  {one.what:12}  {one.finding}")
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


EXPERIMENT = click.argument("experiment", type=click.Path(path_type=Path))
NODE = click.IntRange(min=0)
BIND = click.option(
    "--bind", help="Where to listen, e.g. tcp://*:5700.  [default: this participant's address in the endpoints]"
)


@click.command()
@EXPERIMENT
@click.option("--id", "node", type=NODE, required=True, help="Which of the workers this is.")
@participant.options
@BIND
def worker(experiment: Path, node: int, **given: Any) -> int:
    """Be worker K of the parallel run of the file EXPERIMENT; every machine needs the same file."""
    return _take_part("worker", experiment, node, **given)


@click.command()
@EXPERIMENT
@click.option(
    "--id", "node", type=NODE, help="Its id in the run, after the workers' ids.  [default: that of the only one]"
)
@participant.options
@BIND
def server(experiment: Path, node: int | None, **given: Any) -> int:
    """Be a server of the parallel run of the file EXPERIMENT: mapreduce, or a parameter server.

    Ids are counted through the run: with 4 workers, 0 to 3, servers are 4, 5, ...
    """
    return _take_part("server", experiment, node, **given)


@click.command()
@EXPERIMENT
@participant.options
@BIND
def manager(experiment: Path, **given: Any) -> int:
    """Be the manager of a parameter server with copies, of the run of the file EXPERIMENT.

    Its id is the last of the run.
    """
    return _take_part("manager", experiment, None, **given)


def _take_part(
    role: str,
    experiment: Path,
    node: int | None,
    *,
    endpoints: Path,
    key: Path,
    bind: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    resume: bool,
) -> int:
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.net.endpoints import load_endpoints
    from fedgossip.plans import compose

    plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    if plan.experiment.kind != "parallel":
        advice = "Use fedgossip peer for peers of a graph, fedgossip coordinator and client for a federated run."
        raise ConfigError(f"{experiment} has no [parallel]", advice)
    node = _id_of(role, node, plan)
    known = load_endpoints(endpoints, plan.n, plan.roles.listens)
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
        overrides=overrides,
        seed=seed,
    ).take_part(f"waiting for the {'other ' if role == 'worker' else ''}workers")


def _id_of(role: str, node: int | None, plan: Plan) -> int:
    from fedgossip.base.errors import ConfigError

    ids = next((one.ids for one in plan.roles.all if one.name == role), range(0))
    if not ids:
        raise ConfigError(f"the run has no {role}: {plan.name} is {plan.roles.wording}", _commands(plan))
    if node is None and len(ids) > 1:
        raise ConfigError(f"the run has {len(ids)} {role}s", f"Name one with --id, {_range(ids)}.")
    if node is None or node in ids:
        return ids[0] if node is None else node
    if node < plan.n:
        raise ConfigError(f"participant {node} is {plan.roles.label(node)}, and no {role}", _commands(plan))
    raise ConfigError(f"there is no {role} {node}", f"The run has {_range(ids)}.")


def _range(ids: range) -> str:
    return f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else f"{ids[0]}"


def _commands(plan: Plan) -> str:
    known = [
        f"fedgossip {one.name}" + ("" if one.name == "manager" else f" --id {_range(one.ids)}")
        for one in plan.roles.all
    ]
    return f"Start {', '.join(known)}."


_COMMANDS = "peer", "coordinator", "client", *SUMMING, "host", "join"
"""The commands with --links folder:DIR."""

_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    if not (found := re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text)) or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is no time: write 30s, 10m, 2h or 1d")
    return float(found[1]) * _TIMES[found[2]]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--every", metavar="TIME", callback=_seconds, help="Stay, and repeat at this interval: 30s, 10m, 2h, 1d.")
def step(run: Path, every: float | None) -> int:
    """Process the messages in the folder of participant RUN as far as possible, and end: for cron, or a USB stick.

    RUN is the folder that a participant's command made with --links folder:DIR (--out), or the folder run in that of
    `host` or `join`.  The exit code is 0 while the run continues, and the participant's when it has ended.
    """
    from fedgossip.base.errors import NetworkError

    words, place = _command_in(run)
    if is_over(run):
        echo(f"The run is over, and all that this participant sent was fetched: {run}", err=True)
        return 0
    while True:
        try:
            code = _go_on(words, place)
        except NetworkError as error:  # the folder is not mounted now
            if every is None:
                raise
            code = 0
            echo(f"{error}\n{error.advice}", err=True)
        if every is None or code or is_over(run):
            return code
        time.sleep(every)


def _command_in(run: Path) -> tuple[list[str], str]:
    """Return the command that resumes, and its folder.  Raises ConfigError for a command that this user has not
    written.
    """
    import shlex

    from fedgossip.base import outside_files
    from fedgossip.base.decoding import UnreadableError, json_value
    from fedgossip.base.errors import ConfigError, reason
    from fedgossip.base.owner_files import is_mark

    try:
        content = json_value(outside_files.read_text(run / STEP))
        words, place = [str(word) for word in content["words"]], str(content["in"])
        mark = str(content.get("mark", ""))
    except (OSError, UnreadableError, ValueError, KeyError, TypeError) as error:
        text = f"{run}: no participant of a run by folder ({reason(error)})"
        raise ConfigError(text, "Name the folder that --out gave, of a command with --links folder:DIR.") from None
    if words[:1] not in ([one] for one in _COMMANDS):
        raise ConfigError(f"{run / STEP}: {' '.join(words[:1])!r} is no participant", "Put a good copy there.")
    if not is_mark(mark, step_content(words, place)):
        text = f"{run / STEP}: no command of yours on this machine: fedgossip {line(shlex.join(words), 2000)}"
        raise ConfigError(text, f"If it is yours, type it with --once, in {line(place, 2000)}.")
    return [*words, *([] if "--once" in words else ["--once"])], place


def _go_on(words: Sequence[str], place: str) -> int:
    from fedgossip.cli import cli

    before = Path.cwd()
    os.chdir(place)
    try:
        return int(cli.main(list(words), prog_name="fedgossip", standalone_mode=False) or 0)
    finally:
        os.chdir(before)
