"""`fedgossip host`: invite others to a run by a line of text, and be one of its peers, or its coordinator."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.base.errors import needed
from fedgossip.cli.people.invited import InvitedSeat, script_of
from fedgossip.cli.run.participant import folder_options, portable_option, web_options
from fedgossip.cli.text import echo, moment
from fedgossip.core import run_format

if TYPE_CHECKING:
    import ssl

    from fedgossip.base.errors import TooFewPeersError
    from fedgossip.core.messages import Proposal
    from fedgossip.drivers.invite_joining import Hosted
    from fedgossip.drivers.loops.description import Described
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.drivers.proposals import Learning, SharedExperiment
    from fedgossip.net.identity import Identity
    from fedgossip.net.invites.invite_admission import InviteAdmission
    from fedgossip.net.invites.invite_folder import InviteFolder
    from fedgossip.net.invites.invite_server import InviteServer
    from fedgossip.net.relays.reachability import Ways
    from fedgossip.net.relays.relay import Door
    from fedgossip.net.relays.relay_client import RelayClient
    from fedgossip.plans.plan import Plan

INVITE_PORT, PEER_PORT = 5699, 5700
LOOK_SECONDS = 1.0
"""Seconds between two checks of the present members."""
MINUTES, FOLDER_MINUTES = 60.0, 7 * 24 * 60.0
"""Default time to join in minutes, by sockets, and through a folder, which a person may carry."""


relay_option = click.option(
    "--relay",
    "relays",
    multiple=True,
    metavar="HOST:PORT",
    help="A relay through which this machine is reached, or wss://HOST/PATH for one by the web: see `fedgossip relay`.",
)


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "-n",
    "--n",
    "--peers",
    "peers",
    type=click.IntRange(1, 128),
    help="Number of learners: peers or workers, this one included; or clients.  [default: as in the file]",
)
@click.option("--data", default="", help="This machine's own data, where each brings its own: csv:FILE?label=COLUMN.")
@click.option(
    "--script",
    default="",
    metavar="'FILE ...'",
    help="One's own training loop, with its arguments, where the run is of loops; to lead them, one of them.",
)
@click.option(
    "--expires",
    "minutes",
    type=click.FloatRange(0.01, 60 * 24 * 30),
    metavar="MINUTES",
    help="Time for people to join; then the run begins with those present, if it can.  [default: "
    f"{MINUTES:g}; through a folder {FOLDER_MINUTES:g}, a week]",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST",
    help="Where others reach this machine.  [default: found out]  May be given several times.",
)
@relay_option
@click.option(
    "--web",
    metavar="URL",
    help="wss://HOST/PATH: be reached there by the web, through a relay in this process, for this run's members.",
)
@click.option(
    "--web-listen",
    metavar="ADDRESS",
    help="With --web: wss://HOST:PORT, or ws://127.0.0.1:8080 behind nginx or Caddy.  [default: the port of --web]",
)
@click.option("--cert", type=click.Path(path_type=Path), help="For wss://: the certificate, with its chain, in PEM.")
@click.option("--cert-key", type=click.Path(path_type=Path), help="For wss://: the key of the certificate, in PEM.")
@click.option(
    "--invite-port", type=click.IntRange(1, 65535), help=f"TCP port for joining members.  [default: {INVITE_PORT}]"
)
@click.option("--port", type=click.IntRange(1, 65535), help=f"TCP port of the run.  [default: {PEER_PORT}]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("hosting"),
    show_default=True,
    help="For keys, the invite and the run.",
)
@click.option("--qr", is_flag=True, help="Show the invite as a QR code too.")
@click.option(
    "--announce/--no-announce",
    default=True,
    show_default=True,
    help="Let others on this network see that there is a run (needs the extra lan).",
)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@folder_options
@portable_option
@web_options
@click.option("--seed", type=int, help="Replace the file's seed.")
def host(
    experiment: Path,
    peers: int | None,
    data: str,
    script: str,
    minutes: float | None,
    addresses: tuple[str, ...],
    relays: tuple[str, ...],
    web: str | None,
    web_listen: str | None,
    cert: Path | None,
    cert_key: Path | None,
    invite_port: int | None,
    port: int | None,
    folder: Path,
    qr: bool,
    announce: bool,
    overrides: tuple[str, ...],
    seed: int | None,
    carrier: FolderCarrier | None,
) -> int:
    """Print an invite to the run of the file EXPERIMENT, wait for others to join, and take part: as a peer of a graph,
    a worker of a parallel run, or the coordinator of clients.

    Only this machine needs the file.  The same command resumes after an interruption, with the same invite.  With
    --links folder:DIR no participant needs an address: all use the same folder, under its path on their machine.
    """
    from fedgossip.drivers import invite_joining
    from fedgossip.drivers.participant import check_journalled, check_open_files
    from fedgossip.drivers.proposals import hash_of_proposal, learning_of, proposal_of
    from fedgossip.net.invites.invite_folder import AwaitedError, check_folder

    called = [relay_address(one) for one in relays]
    parse_addresses(addresses, PEER_PORT)  # refused before a folder is made
    calls = _Calls(addresses, tuple(called), _front(web, web_listen, cert, cert_key), invite_port, port, announce)
    whole, plan = _plan(experiment, peers, data, overrides, seed)
    seats = invite_joining.seats_of(plan, folder=carrier is not None)
    if carrier:
        calls.check_none()
        check_folder(carrier.root)
        check_journalled(plan)
    check_open_files(plan, [seats.own])  # before anyone is invited
    loop = script_of(plan.experiment, script)
    led = _first_model(plan, loop)
    own = led.learning if led else learning_of(plan, seats.own, whole.data)
    proposal = proposal_of(whole, None if loop and not led else (own or _task(plan, seats.own))[0])
    expires = int(time.time() + 60 * (minutes or (FOLDER_MINUTES if carrier else MINUTES)))
    what = hash_of_proposal(proposal)
    with contextlib.ExitStack() as stack:
        ports = (0, 0) if carrier else (hold(stack, invite_port, INVITE_PORT), hold(stack, port, PEER_PORT))
        hosted = invite_joining.hosted(folder, experiment.stem, what, seats, expires, ports)
        hosted = invite_joining.renewed(hosted, time.time(), expires)
        if carrier:
            opened = _open_folder(stack, carrier, hosted, proposal, whole.test)
        else:
            opened = _open_sockets(stack, calls, plan, hosted, proposal, whole.test, experiment.stem)
        show_invite(opened.invite, qr=qr)
        if carrier:
            echo("Joiners give their own path to the folder: fedgossip join - --links folder:DIR", err=True)
        for node, members in seats.groups.items():
            echo(f"{plan.roles.label(node)}, of {len(members)}: fedgossip join - --coordinator {node}", err=True)
        server, way = opened.server, opened.server.admission
        try:
            if not way.party.founders:
                wait_for_members(server, way, plan)
        except AwaitedError as awaited:
            echo(f"{awaited}; to resume, type the same command again", err=True)
            return 0
        seat = InvitedSeat(plan, seats.own, hosted.folder, hosted.folder / run_format.PEER_KEY, opened.ways,
                           hosted.ports[1] or None, learning=own, data=whole.data, script=() if led else loop,
                           prepare=led.keep if led else None, whole=lambda run: _write_report(plan, run),
                           carrier=carrier)  # fmt: skip
        return _take_part(seat, hosted, server, way)


@dataclass(frozen=True)
class _Calls:
    """This person's options for the addresses of this machine."""

    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    """The relays' addresses, checked."""
    front: _Front | None
    invite_port: int | None
    port: int | None
    announce: bool

    def check_none(self) -> None:
        """Raise ConfigError if addresses are given for a run through a folder."""
        from fedgossip.base.errors import ConfigError

        if self.addresses or self.relays or self.front or self.invite_port or self.port:
            text = "--address, --relay, --web and ports are of sockets, and --links is a folder"
            raise ConfigError(text, "Leave them out, or --links.")


@dataclass(frozen=True)
class _Opened:
    """The objects that joining members use: the text of the invite, its server, and the addresses of the others."""

    invite: str
    server: InviteServer | InviteFolder
    ways: Ways


def _open_folder(
    stack: contextlib.ExitStack, carrier: FolderCarrier, hosted: Hosted, proposal: Proposal, test: bytes
) -> _Opened:
    from fedgossip.drivers import invite_joining
    from fedgossip.net.invites.invitation import FOLDER, written
    from fedgossip.net.invites.invite_folder import InviteFolder
    from fedgossip.net.relays.reachability import DIRECT

    way = invite_joining.invite_admission(hosted, "", proposal, test)
    desk = InviteFolder(carrier.root, way, 0.0 if carrier.once else carrier.poll_seconds)
    server = stack.enter_context(contextlib.closing(desk))
    server.look()
    return _Opened(written(hosted.invitation([f"{FOLDER}{carrier.root.resolve().name}"])), server, DIRECT)


def _open_sockets(
    stack: contextlib.ExitStack, calls: _Calls, plan: Plan, hosted: Hosted, proposal: Proposal, test: bytes, name: str
) -> _Opened:
    from fedgossip.drivers import invite_joining
    from fedgossip.net.endpoints import TCP
    from fedgossip.net.invites.invitation import written
    from fedgossip.net.invites.invite_server import InviteServer
    from fedgossip.net.relays.addresses import Whereabouts, find_own_addresses

    through, front = list(calls.relays), calls.front
    inside = {front.url: _open_front(stack, front, hosted)} if front else {}
    through += inside
    agent = None
    if through:
        report_unreached(listening_at(stack, hosted.organiser, hosted.ports[0], through, inside), through)
        agent = listening_at(stack, hosted.peer, hosted.ports[1], through, inside)
    here = Whereabouts(hosted.ports[1], through, given=parse_addresses(calls.addresses, hosted.ports[1]))
    way = invite_joining.invite_admission(hosted, here.text, proposal, test)
    server = stack.enter_context(contextlib.closing(InviteServer(f"{TCP}*:{hosted.ports[0]}", way)))
    called = parse_addresses(calls.addresses, hosted.ports[0]) or find_own_addresses(hosted.ports[0])
    if calls.announce:
        _announce(stack, name, hosted, called)
    ways = invite_joining.ways_of(plan, agent, None if calls.addresses else here)
    return _Opened(written(hosted.invitation([*called, *through])), server, ways)


def _first_model(plan: Plan, script: tuple[str, ...]) -> Described | None:
    """Return the first model of loops with a coordinator, from their script; else None."""
    if not script or plan.roles.leader is None:
        return None
    from fedgossip.drivers.loops.first_model import first_model_of

    return first_model_of(plan, script)


def _task(plan: Plan, node: int) -> Learning:
    from fedgossip.plans import compose

    return compose.task_of(plan.experiment, plan.learners, [node] if node < plan.learners else [])


def relay_address(text: str) -> str:
    from fedgossip.net.endpoints import RELAY, check_reachable, is_web

    address = text if is_web(text) else f"{RELAY}{text.removeprefix(RELAY)}"
    check_reachable(address, "--relay")
    return address


@dataclass(frozen=True)
class _Front:
    """The relay in this process: its URL for others, and its listening address."""

    url: str
    door: Door
    tls: ssl.SSLContext | None


def _front(url: str | None, listen: str | None, cert: Path | None, key: Path | None) -> _Front | None:
    import urllib.parse

    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import check_reachable, is_web
    from fedgossip.net.relays.relay import Door, tls_of

    if url is None:
        if listen or cert or key:
            raise ConfigError(
                "--web-listen, --cert and --cert-key are for --web", "Name the URL: --web wss://HOST/PATH."
            )
        return None
    if not is_web(url):
        raise ConfigError(f"--web {url}: no address of the web", "Write wss://HOST/PATH, at which others call.")
    check_reachable(url, "--web")
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    door = Door.parse(listen, "--web-listen") if listen else Door(parts.scheme, "0.0.0.0", port)
    if door.scheme not in ("ws", "wss"):
        raise ConfigError(f"--web-listen {listen}: no address of the web", "For example ws://127.0.0.1:8080.")
    return _Front(url, door, tls_of([door.scheme], cert, key))


def _open_front(stack: contextlib.ExitStack, front: _Front, hosted: Hosted) -> str:
    """Open the relay in this process to the run's members; return its address here."""
    from fedgossip.net.relays.relay import RelayThread
    from fedgossip.net.relays.roster_file import Roll
    from fedgossip.net.relays.web_way import without_tls

    beside = RelayThread(Roll(hosted.folder).allowed)
    stack.callback(beside.close)
    echo(f"By the web: {front.url}, here at {beside.listen(front.door, front.tls)}", err=True)
    if note := without_tls(front.url):
        echo(note, err=True)
    return beside.inside


def listening_at(
    stack: contextlib.ExitStack, identity: Identity, port: int, relays: Sequence[str], inside: Mapping[str, str]
) -> RelayClient:
    """Accept connections for the holder of a key through relays, at a port of this machine."""
    from fedgossip.net.relays.relay_client import RelayClient

    agent = RelayClient(identity, inside)
    stack.callback(agent.close)
    for one in relays:
        agent.listen(one, port)
    return agent


def report_unreached(agent: RelayClient, relays: Sequence[str]) -> None:
    """Print why relays do not forward connections to this machine."""
    for fault in agent.unreached(relays):
        echo(f"{fault}  {fault.advice}", err=True)


def hold(stack: contextlib.ExitStack, wanted: int | None, usual: int) -> int:
    """Reserve a port until the end; return its number.  Raises NetworkError for a requested port that is in use."""
    from fedgossip.net.relays.addresses import hold_port, port_of

    return port_of(stack.enter_context(hold_port(wanted or usual, exactly=bool(wanted))))


def _announce(stack: contextlib.ExitStack, name: str, hosted: Hosted, addresses: Sequence[str]) -> None:
    """Announce the invite's server on this network, if possible."""
    import ipaddress

    from fedgossip.base.errors import FedgossipError
    from fedgossip.net.invites.discovery import Announcer, is_installed

    hosts = []
    for address in addresses:
        with contextlib.suppress(ValueError):
            hosts.append(str(ipaddress.ip_address(address.partition("://")[2].rpartition(":")[0].strip("[]"))))
    if not hosts or not is_installed():
        return
    try:
        announcer = Announcer(name, hosted.organiser.public, hosted.ports[0], hosts)
    except FedgossipError as error:
        echo(f"Not announced on this network: {error}", err=True)
        return
    stack.callback(announcer.close)


def show_invite(invite: str, command: str = "join", *, qr: bool = False) -> None:
    """Print the command that joins by an invite."""
    echo(f"fedgossip {command} {invite}")
    echo(f"`fedgossip {command} -` asks for the invite: there it stands in no list of processes.", err=True)
    if qr:
        _show_code(invite)


def _plan(
    experiment: Path, peers: int | None, data: str, overrides: tuple[str, ...], seed: int | None
) -> tuple[SharedExperiment, Plan]:
    from fedgossip.drivers.proposals import shared
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose

    found = load_experiment(experiment, overrides, size=peers, seed=seed)
    whole = shared(found, data, compose.plan(found).roles.leader)
    return whole, compose.plan(whole.experiment)


def parse_addresses(given: tuple[str, ...], port: int) -> list[str]:
    """Return the addresses that a person has given.  Raises ConfigError."""
    from fedgossip.net.endpoints import address_at

    return [address_at(host, port) for host in given]


def wait_for_members(server: InviteServer | InviteFolder, admission: InviteAdmission, plan: Plan) -> None:
    """Admit people until all are present, or the time is over.  Raises TooFewPeersError."""
    shown, count, fault = "", 0, ""
    while not admission.is_ready(now := time.time()):
        if now >= admission.party.expires:
            raise _too_few(admission, now)
        line = _who(admission, now, plan)
        if line != shown:
            echo(line, err=True)
        shown = line
        server.serve(LOOK_SECONDS)
        for key, why in [*admission.unfit.items()][count:]:
            echo(f"Not let in: the holder of the key {key}: {why}", err=True)
        count = len(admission.unfit)
        if server.fault and server.fault != fault:
            echo(server.fault, err=True)
        fault = server.fault
    here = ", ".join(_label_guest(admission, node, plan) for node in sorted(admission.list_present(time.time())))
    echo(f"Here: {here}.  It begins.", err=True)


def _too_few(admission: InviteAdmission, now: float) -> TooFewPeersError:
    from fedgossip.base.errors import TooFewPeersError

    here, seats = len(admission.list_present(now)), admission.party.seats
    advice = "Start it again with a later --expires; the invite stays the same."
    if here == 1:
        return TooFewPeersError("no participant joined before the invite expired", advice)
    text = f"{here} of {seats.count} were here when the invite expired, and this run begins with all of them"
    return TooFewPeersError(text, f"{advice}  Or give fewer --peers, and another --folder.")


def _who(admission: InviteAdmission, now: float, plan: Plan) -> str:
    here, party = admission.list_present(now), admission.party
    names = [_name(admission, node, plan) for node in here]
    away = [_name(admission, node, plan) for node in party.guests if node not in here]
    until = moment(party.expires)
    missing = party.seats.count - len(here)
    gone = f"; {', '.join(away)} was here and is away" if away else ""
    return f"Here: {', '.join(names)}{gone}.  Waiting for {missing} more of {party.seats.count}, until {until}."


def _name(admission: InviteAdmission, node: int, plan: Plan) -> str:
    if node == admission.party.seats.own:
        return f"{plan.roles.label(node)} (this one)"
    return _label_guest(admission, node, plan)


def _label_guest(admission: InviteAdmission, node: int, plan: Plan) -> str:
    label = plan.roles.label(node)
    if node == admission.party.seats.own:
        return label
    host = admission.party.guests[node].address.partition("://")[2].partition(",")[0].rpartition(":")[0]
    return f"{label} ({host})" if host else label


def _take_part(
    seat: InvitedSeat, hosted: Hosted, server: InviteServer | InviteFolder, admission: InviteAdmission
) -> int:
    from fedgossip.drivers.invite_joining import write_endpoints

    if not seat.again:
        admission.begin(time.time())
        write_endpoints(hosted.folder, hosted.organiser.verify, admission.members())
        server.announce()
    server.serve_beside()
    code = seat.take_part()
    if seat.is_over(code):
        admission.end()
    return code


def _write_report(plan: Plan, folder: Path) -> None:
    from fedgossip.base.errors import FedgossipError
    from fedgossip.runs.collect import collect_peers
    from fedgossip.runs.run_directory import new_path

    whole = new_path(plan, "peers", Path("runs"))
    try:
        collect_peers(plan, [folder], whole)
    except FedgossipError as error:
        echo(f"No report of the whole run: {error}  {error.advice}".rstrip(), err=True)
        return
    echo(f"The report of the whole run: open {whole / run_format.REPORT}", err=True)


def _show_code(text: str) -> None:
    segno = needed("segno", "lan", "a QR code", "or send the text.")
    segno.make(text.upper()).terminal(compact=True)
