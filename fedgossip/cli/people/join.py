"""`fedgossip join`: take part in a run by an invite."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.base import outside_files
from fedgossip.base.untrusted_text import line
from fedgossip.cli.people.invited import InvitedSeat, check_script, invite_text, keep_experiment, script_of
from fedgossip.cli.people.keys import POLICY
from fedgossip.cli.run.participant import folder_options, web_options
from fedgossip.cli.sites.approval import approved_to_join
from fedgossip.cli.text import columns, echo, moment
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.base.errors import NetworkError
    from fedgossip.core.messages import Beginning, Gathering, Proposal
    from fedgossip.drivers.invite_joining import DeclaredRun, Joined
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.experiment import Experiment
    from fedgossip.net.invites.invitation import Invitation
    from fedgossip.net.invites.invite_client import Asking
    from fedgossip.net.relays.reachability import Through, Ways
    from fedgossip.net.relays.relay_client import RelayClient
    from fedgossip.plans.approvals.approvals import HowLong
    from fedgossip.plans.plan import Plan

INVITE_PORT, PEER_PORT = 5699, 5700
SEARCH_SECONDS = 3.0
"""Seconds to wait for announcements."""


@click.command()
@click.argument("invite", nargs=-1)
@click.option("--data", default="", help="One's own data, where each brings its own: csv:FILE?label=COLUMN.")
@click.option("--model", default="", metavar="SOURCE", help="One's own model, where answers are exchanged: cnn:small.")
@click.option(
    "--script",
    default="",
    metavar="'FILE ...'",
    help="One's own training loop, with its arguments, where the run is of loops: it never travels.",
)
@click.option("--yes", is_flag=True, help="Take part without asking: for scripts.")
@click.option("--address", metavar="HOST", help="Where the others reach this machine.  [default: found out]")
@click.option("--port", type=click.IntRange(1, 65535), help=f"TCP port, where others call.  [default: {PEER_PORT}]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("joined"),
    show_default=True,
    help="For keys, the experiment and the run.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="One's own key pair, from `fedgossip keys new`.  [default: one for this invite]",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="As a client: its requirements; written at the first start.  [default: policy.toml in the invite's folder]",
)
@click.option(
    "--approval-days",
    type=click.FloatRange(min=0),
    default=0.0,
    help="As a client: require `fedgossip plan approve`, valid for so many days at most; the policy records it.",
)
@click.option(
    "--coordinator",
    "lead",
    type=click.IntRange(min=0),
    default=0,
    metavar="K",
    help="In a run with tiers: be coordinator K, and pass the requests of those below on to the organiser.",
)
@click.option(
    "--under", type=click.IntRange(min=0), default=0, metavar="K", help="There: be a client of coordinator K."
)
@click.option(
    "--invite-port",
    type=click.IntRange(1, 65535),
    default=INVITE_PORT,
    show_default=True,
    help="As a coordinator: TCP port for the requests of those below.",
)
@folder_options
@web_options
def join(
    invite: tuple[str, ...],
    data: str,
    model: str,
    script: str,
    yes: bool,
    address: str | None,
    port: int | None,
    folder: Path,
    key: Path | None,
    policy: Path | None,
    approval_days: float,
    lead: int,
    under: int,
    invite_port: int,
    carrier: FolderCarrier | None,
) -> int:
    """Take part in the run of INVITE; without it, list the organisers announced here.

    INVITE is a text that begins with fg1-, a file with this text, or "-": then it is read from a prompt, or from
    standard input.  As a text it is in the list of processes, where every user of this machine can read it.

    The proposed run is shown first; nothing of it runs, or is written, before you agree.  The same command resumes
    after an interruption.  An invite to a folder needs --links folder:DIR, with the folder's path on this machine.
    """
    from fedgossip.base.errors import NetworkError
    from fedgossip.data.data import check_there
    from fedgossip.drivers import invite_joining, proposals
    from fedgossip.net.endpoints import address_at
    from fedgossip.net.invites.invitation import read
    from fedgossip.net.invites.invite_folder import AwaitedError
    from fedgossip.plans.approvals.approvals import HowLong

    if not invite:
        return _list()
    check_script(script)  # faults on this machine are refused before the organiser is called
    if data:
        check_there(data)
    if address:
        address_at(address, port or PEER_PORT)
    invitation = read(invite_text(invite))
    _check_carrier(invitation, carrier, address, port)
    place = invite_joining.folder_of(folder, invitation, key)
    model = proposals.check_own_model(place.path, model)
    with contextlib.ExitStack() as stack:
        client, agent = _ask_at_folder(carrier, invitation, place) if carrier else calling(stack, invitation, place)
        spent, held = folder / "keys.spent" if key is None else None, HowLong(approval_days) if approval_days else None
        own = OwnMachine(data, script, address, port, policy or place.path / POLICY, held, spent, carrier, lead, under,
                   invite_port, model)  # fmt: skip
        try:
            try:
                proposal = invite_joining.proposal(client)
            except NetworkError as error:
                raise explained(error, agent) from None
            plan = _agreed(proposal, invitation, place, own, yes=yes)
            return _take_part(client, proposal, plan, place, own, agent, _command(invite, place))
        except AwaitedError as awaited:
            echo(f"{awaited}; to resume, type the same command again", err=True)
            return 0


def _check_carrier(
    invitation: Invitation, carrier: FolderCarrier | None, address: str | None, port: int | None
) -> None:
    from fedgossip.base.errors import ConfigError

    if invitation.folder is not None and carrier is None:
        text = f"this invite is to a shared folder, {line(invitation.folder, 60)!r} at the organiser's"
        raise ConfigError(text, "Name the same folder as this machine sees it: --links folder:DIR")
    if invitation.folder is None and carrier:
        advice = "Leave --links out; for a folder the organiser types `fedgossip host --links folder:DIR`."
        raise ConfigError("this invite names addresses, and no folder", advice)
    if carrier and (address or port):
        raise ConfigError("--address and --port are of sockets, and --links is a folder", "Leave them out.")


def _ask_at_folder(carrier: FolderCarrier, invitation: Invitation, place: Joined) -> tuple[Asking, None]:
    from fedgossip.net.invites.invite_folder import FolderClient

    poll_seconds = 0.0 if carrier.once else carrier.poll_seconds
    about = invitation, place.identity, carrier.root, place.path / run_format.REPLIES
    echo(f"Asking the organiser through the folder {carrier.root}", err=True)
    return FolderClient(*about, poll_seconds, carrier.patience_seconds), None


def calling(stack: contextlib.ExitStack, invitation: Invitation, place: Joined) -> tuple[Asking, RelayClient | None]:
    from fedgossip.net.invites.invite_client import InviteClient

    more, agent = _searched(stack, invitation.key), _agent(stack, invitation, place)
    through = agent.way if agent else None
    client = InviteClient(invitation, place.identity, _way_to(invitation, through), more)
    stack.callback(client.close)
    echo(f"Calling the organiser at {', '.join(invitation.addresses)}", err=True)
    return client, agent


def _command(invite: tuple[str, ...], place: Joined) -> str:
    """Return the command that resumes after the consent."""
    words = [word for word in sys.argv[1:] if word not in (*invite, "--yes")]
    return shlex.join(["fedgossip", *words, str((place.path / run_format.INVITE_TEXT).resolve()), "--yes"])


@dataclass(frozen=True)
class OwnMachine:
    """This person's options for this machine."""

    data: str
    script: str
    address: str | None
    port: int | None
    policy: Path
    approvals: HowLong | None
    spent: Path | None
    carrier: FolderCarrier | None = None
    lead: int = 0
    under: int = 0
    invite_port: int = INVITE_PORT
    model: str = ""

    def check_place(self, experiment: Experiment) -> None:
        """Raise ConfigError for a missing or wrong place in a run with tiers, and for a place in another run."""
        from fedgossip.base.errors import ConfigError
        from fedgossip.experiment import FederatedExperiment

        tiers = isinstance(experiment, FederatedExperiment) and bool(experiment.coordinator.tiers)
        if tiers and bool(self.lead) == bool(self.under):
            text = "this run has tiers of coordinators, which the order of arrival does not assign"
            raise ConfigError(text, "Name your place, as its organiser does: --coordinator K, or --under K.")
        if not tiers and (self.lead or self.under):
            raise ConfigError("--coordinator and --under are of runs with tiers", "Leave them out.")
        if self.lead and (self.data or self.model or self.script):
            raise ConfigError("a coordinator trains nothing", "Leave --data, --model and --script out.")


def _agent(stack: contextlib.ExitStack, invitation: Invitation, place: Joined) -> RelayClient | None:
    from fedgossip.net.relays.relay_client import RelayClient
    from fedgossip.net.relays.web_way import without_tls

    if not _relays(invitation):
        return None
    agent = RelayClient(place.identity)
    stack.callback(agent.close)
    for one in _relays(invitation):
        if note := without_tls(one):
            echo(note, err=True)
    return agent


def explained(error: NetworkError, agent: RelayClient | None) -> NetworkError:
    from fedgossip.base.errors import NetworkError

    faults = list(agent.faults.values()) if agent else []
    if not faults:
        return error
    return NetworkError("; ".join(map(str, [error, *faults])), faults[0].advice)


def _relays(invitation: Invitation) -> list[str]:
    from fedgossip.net.endpoints import is_relay

    return [one for one in invitation.addresses if is_relay(one)]


def _way_to(invitation: Invitation, through: Through | None) -> Callable[[str], str]:
    def way(address: str) -> str:
        return through(address, invitation.key) if through and address in _relays(invitation) else address

    return way


def _list() -> int:
    from fedgossip.base.errors import NetworkError
    from fedgossip.net.invites.discovery import Search

    with contextlib.closing(Search()) as search:
        until = time.monotonic() + SEARCH_SECONDS
        while time.monotonic() < until:
            time.sleep(0.1)
        found = sorted(search.list_found(), key=lambda one: one.name)
    if not found:
        raise NetworkError("no run is announced on this network", "Ask for an invite: `fedgossip host` prints it.")
    echo(columns([("run", "at", "key"), *((one.name, one.addresses[0], one.key) for one in found)]))
    echo("To take part: ask its organiser for the invite, then fedgossip join INVITE", err=True)
    return 0


def _searched(stack: contextlib.ExitStack, key: str) -> Callable[[], Sequence[str]]:
    from fedgossip.base.errors import FedgossipError
    from fedgossip.net.invites.discovery import Search

    try:
        search = Search(key)
    except FedgossipError:
        return tuple
    stack.callback(search.close)
    return search.addresses


def _agreed(proposal: Proposal, invitation: Invitation, place: Joined, own: OwnMachine, *, yes: bool) -> Plan:
    """Show the plan; return it if this person consents."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.drivers import proposals
    from fedgossip.drivers.invite_joining import declared_run
    from fedgossip.plans import compose

    files = place.path / run_format.PROPOSED_FILES
    proposals.check_agreed(proposal, place.path)
    experiment = proposals.experiment_of(proposal, files)
    code = proposals.check_code(proposal, experiment, place.path.parent)
    own.check_place(experiment)
    if not own.lead:
        proposals.check_data(experiment, own.data)
        proposals.check_model(experiment, own.model)
        script_of(experiment, own.script)
    echo(columns(show_terms(declared_run(experiment), proposal, invitation, own, code)), err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to confirm at", "Read the above, and add --yes if you agree.")
        if not click.confirm("Take part?", default=False, err=True):
            raise click.Abort
    proposals.keep_agreed(proposal, place.path)
    proposals.keep_graph(proposal, files)
    return compose.plan(experiment)


def show_terms(
    run: DeclaredRun | Plan, proposal: Proposal, invitation: Invitation, own: OwnMachine, code: list[str]
) -> list[tuple[str, str]]:
    """Print the facts for a person's consent before anything runs."""
    import msgspec

    from fedgossip.drivers import proposals
    from fedgossip.experiment.sections import ENDLESS
    from fedgossip.plans.approvals.plan_statement import study_lines

    e, terms = run.experiment, run.terms(proposal.parameters, proposals.ITEM_BYTES.get(proposal.dtype, 4))
    epochs = f"{'at most ' if e.train.fewest_epochs else ''}{e.train.local_epochs} epochs"
    steps = f"{e.train.local_steps} steps" if e.train.local_steps else epochs
    each = "one gradient" if run.gradients else f"{steps}, {e.train.optimizer}"
    trained = f", each of {each} with lr {e.train.lr:g}" if e.learns else ""
    rounds = "as many as the loops make" if e.rounds == ENDLESS else str(e.rounds)
    rows = [
        ("Experiment", line(e.name or run.name)),
        ("Organiser", f"key {invitation.key}"),
        *((what.capitalize(), text) for what, text in study_lines(msgspec.to_builtins(e.study))),
        *_learned(e, proposal, own),
        ("Rounds", f"{rounds}{trained}"),
        ("Method", terms.how),
        ("Sent", terms.sent),
        ("Seen", terms.seen),
        ("Budget", terms.budget),
        ("Code", _whose_code(code, own.script)),
        *_list_machine_settings(e),
    ]
    if own.carrier:
        rows.append(
            ("Links", f"sealed files in {own.carrier.root}: its owner sees senders, receivers, times and sizes")
        )
    if proposal.test:
        rows.insert(4, ("Test set", f"{proposal.test}, {proposal.test_bytes:,} bytes, from the organiser"))
    return rows


def _list_machine_settings(e: Experiment) -> list[tuple[str, str]]:
    from fedgossip.learning.settings import OF_THE_MACHINE, TrainSettings

    usual = TrainSettings()
    chosen = [(key, getattr(e.train, key)) for key in OF_THE_MACHINE if getattr(e.train, key) != getattr(usual, key)]
    return [("Machine", ", ".join(f"{key} = {value}" for key, value in chosen))] if chosen else []


def _learned(e: Experiment, proposal: Proposal, own: OwnMachine) -> list[tuple[str, str]]:
    if e.loops:
        yours = f"that of {own.script}: its parameters must have the names and shapes of the others'"
        return [("Model", yours), ("Data", f"what {own.script} reads; it stays on this machine")]
    source = own.data or e.data.source
    stays = "yours; it stays on this machine" if own.data else "shared out by the experiment's seed"
    model = f"{e.model.source if e.learns else e.task.kind}, {proposal.parameters:,} numbers of {proposal.dtype}"
    if e.exchanges_logits:
        whose = own.model or "as the experiment names it"
        model = f"{whose}; it stays on this machine, its answers are exchanged, {proposal.parameters:,} numbers"
    rows = [("Model", model), ("Data", f"{source}: {stays}" if e.learns else "none")]
    if own.data and e.data.by_test:
        rows.append(("Scale", "columns by their mean and deviation in the common test set"))
    return rows


def _whose_code(code: list[str], script: str) -> str:
    if script:
        return f"{script}: your own, not shown to others"
    if not code:
        return "none but fedgossip's own"
    files = dict.fromkeys(f"{name.partition(':')[0].replace('.', '/')}.py" for name in code)
    return f"{', '.join(code)}, from your {', '.join(files)}: the same as the organiser's"


def _take_part(
    client: Asking,
    proposal: Proposal,
    plan: Plan,
    place: Joined,
    own: OwnMachine,
    agent: RelayClient | None,
    command: str,
) -> int:
    from fedgossip.drivers import invite_joining, proposals
    from fedgossip.drivers.participant import check_journalled, check_open_files
    from fedgossip.net.invites.invitation import written
    from fedgossip.net.relays.reachability import DIRECT
    from fedgossip.plans.federated.policy import how_long
    from fedgossip.runs.run_directory import write_whole

    if own.carrier:
        check_journalled(plan)
        write_whole(place.path / run_format.INVITE_TEXT, written(client.invitation).encode())

    test = invite_joining.test_set(client, proposal)
    proposals.keep_test(proposal, test, place.path / run_format.PROPOSED_FILES)
    seats = invite_joining.seats_of(plan, folder=own.carrier is not None)
    experiment = keep_experiment(plan, place.path)
    check_open_files(plan, (node for node in range(plan.n) if node != seats.own))  # for every possible seat
    with contextlib.ExitStack() as stack:
        listens = seats.called or bool(own.lead and not own.carrier)
        port = _reserve_port(stack, place, own.port) if listens else None
        address, ways = ("", DIRECT) if own.carrier else _whereabouts(client, plan, own, port, agent)
        first = next(node for node in range(plan.n) if node != seats.own)
        # an unreadable file or an impossible model is reported before the wait
        learning = proposals.learning_of(plan, first, own.data, own.model)
        proposals.keep_model(plan.experiment, place.path, own.model)
        held, task = how_long(own.policy) or own.approvals, learning[0] if learning else None
        about = client.invitation, place, experiment, held, own.data
        gate = None if own.lead else approved_to_join(plan, task, *about)
        if own.lead and not own.carrier:
            _pass_on(stack, client, own, agent)
        elif own.lead:
            line = f"fedgossip join - --links folder:DIR --under {own.lead}"
            echo(f"Its clients join with the same invite: {line}", err=True)
        waiting_lines, pause = WaitingLines(plan), _pause(own.carrier)
        address = address if listens else ""
        beginning = invite_joining.enrolled(client, seats, address, waiting_lines, pause, own.lead, own.under)
        invite_joining.keep_members(place.path, beginning)
        node = beginning.node
        if learning and node != first:
            learning = proposals.learning_of(plan, node, own.data, own.model)
        return InvitedSeat(
            plan, node, place.path, place.key, ways, port, _is_late(beginning), learning, own.data, own.policy,
            own.spent, () if own.lead else script_of(plan.experiment, own.script), held, gate=gate, carrier=own.carrier,
            command=command if own.carrier else "",
        ).take_part()  # fmt: skip


def _pass_on(stack: contextlib.ExitStack, client: Asking, own: OwnMachine, agent: RelayClient | None) -> None:
    """Forward requests of members below to the organiser; print their invite."""
    from dataclasses import replace

    from fedgossip.net.endpoints import address_at
    from fedgossip.net.invites.invitation import written
    from fedgossip.net.invites.invite_server import InvitePort
    from fedgossip.net.relays.addresses import find_own_addresses

    way = _way_to(client.invitation, agent.way if agent else None)
    passing = InvitePort(own.invite_port, lambda: way(client.reached))
    stack.callback(passing.close)
    addresses = [address_at(own.address, passing.port)] if own.address else find_own_addresses(passing.port)
    echo(f"fedgossip join {written(replace(client.invitation, addresses=tuple(addresses)))} --under {own.lead}")
    echo("That line is for the clients of this coordinator.", err=True)


def _pause(carrier: FolderCarrier | None) -> Callable[[float], None]:
    from fedgossip.net.invites.invite_folder import AwaitedError

    def pause(seconds: float) -> None:
        if carrier and carrier.once:
            raise AwaitedError("waiting for the others")
        time.sleep(carrier.poll_seconds if carrier else seconds)

    return pause


def _reserve_port(stack: contextlib.ExitStack, place: Joined, wanted: int | None) -> int:
    """Reserve the port of this member, the same in every process; return its number."""
    from fedgossip.net.relays.addresses import hold_port, port_of
    from fedgossip.runs.run_directory import write_whole

    before = _port_of(place)
    port = port_of(stack.enter_context(hold_port(before or wanted or PEER_PORT, exactly=bool(before or wanted))))
    write_whole(place.path / "port", str(port).encode())
    return port


def _whereabouts(
    client: Asking, plan: Plan, own: OwnMachine, port: int | None, agent: RelayClient | None
) -> tuple[str, Ways]:
    """Return the member's address for others, and the routes to them."""
    from fedgossip.drivers.invite_joining import ways_of
    from fedgossip.net.endpoints import address_at, check_reachable
    from fedgossip.net.relays.addresses import Whereabouts

    relays = _relays(client.invitation) if agent else []
    for relay in relays:
        if agent and port:
            agent.listen(relay, port)
    given = [address_at(own.address, port)] if own.address and port else []
    if own.address and not port:
        echo("--address is not needed: a client connects to its coordinator, not the other way.", err=True)
    here = Whereabouts(port or PEER_PORT, relays, client.reached, given)
    check_reachable(here.text, "--address")
    return here.text, ways_of(plan, agent, None if given else here)


def _is_late(beginning: Beginning) -> bool:
    return any(one.node == beginning.node and one.since < 0 for one in beginning.members)


def _port_of(place: Joined) -> int | None:
    path = place.path / "port"
    text = outside_files.read_text(path) if path.exists() else ""
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None


class WaitingLines:
    """Prints the present members, at every change."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last_line = ""

    def __call__(self, known: Gathering) -> None:
        until = moment(time.time() + known.seconds)
        label = self._plan.roles.label
        here = ", ".join(label(node) + (" (this one)" if node == known.node else "") for node in known.here)
        missing = known.wanted - len(known.here)
        waits = f"Waiting for {missing} more of {known.wanted}" if missing else "All are here"
        text = f"Here: {here}.  {waits}"
        if text != self._last_line:
            echo(f"{text}, until {until}." if missing else f"{text}.", err=True)
        self._last_line = text
