"""`fedgossip pilot`: a whole pilot by one command at the coordinator and one at each site."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.people.host import (
    INVITE_PORT,
    PEER_PORT,
    hold,
    listening_at,
    parse_addresses,
    relay_address,
    relay_option,
    report_unreached,
    show_invite,
    wait_for_members,
)
from fedgossip.cli.people.invited import invite_text, keep_experiment
from fedgossip.cli.people.join import OwnMachine, WaitingLines, calling, explained, show_terms
from fedgossip.cli.people.keys import POLICY
from fedgossip.cli.people.pilot_steps import (
    DECLINED,
    HANDED,
    YES,
    PilotAnswer,
    PilotSite,
    Question,
    Walk,
    answer_to,
    coordinator_steps,
    facts_of,
    read_answers,
    site_steps,
)
from fedgossip.cli.run.participant import web_options
from fedgossip.cli.text import CommandGroup, columns, echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.core.messages import Proposal
    from fedgossip.drivers.invite_joining import Joined
    from fedgossip.drivers.proposals import SharedExperiment
    from fedgossip.experiment import Experiment
    from fedgossip.net.identity import Identity
    from fedgossip.net.invites.invitation import Invitation
    from fedgossip.plans.approvals.plan_statement import StatedModel
    from fedgossip.plans.federated.federation import FederationPlan

BY_INVITE = -1
"""Placeholder in a site's log of decisions for its participant number, which is assigned later."""


@click.group(cls=CommandGroup)
def pilot() -> None:
    """The whole pilot of a federation: describe, agree, plan, approve, train or fit, judge, release.

    `host` at the coordinator and `join` at each site lead through the steps, ask for each decision, and type the
    commands.  The same command resumes after an interruption.
    """


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--answers", type=click.Path(path_type=Path), metavar="FILE",
                     help='Answers in a file, NAME = "text" for each question: for scripts.  The log names it.'),
        click.option("--patience", metavar="HOURS", type=click.FloatRange(min=0, min_open=True, max=10_000),
                     default=72.0, show_default=True,
                     help="Time for which a step waits for the other sites' people."),
    ):  # fmt: skip
        command = option(command)
    return web_options(command)


@pilot.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--expires", "minutes", type=click.FloatRange(0.01, 60 * 24 * 30), default=60.0, show_default=True,
              metavar="MINUTES", help="Time for the sites to join.")  # fmt: skip
@click.option("--address", "addresses", multiple=True, metavar="HOST",
              help="Where the sites reach this machine, several times too.  [default: found out]")  # fmt: skip
@relay_option
@click.option("--invite-port", type=click.IntRange(1, 65535), help=f"For the invite.  [default: {INVITE_PORT}]")
@click.option("--port", type=click.IntRange(1, 65535), help=f"For the steps.  [default: {PEER_PORT}]")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("hosting"), show_default=True,
              help="For keys, the invite and all that is made.")  # fmt: skip
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@_common
def host(
    experiment: Path,
    minutes: float,
    addresses: tuple[str, ...],
    relays: tuple[str, ...],
    invite_port: int | None,
    port: int | None,
    folder: Path,
    overrides: tuple[str, ...],
    answers: Path | None,
    patience: float,
) -> int:
    """Print an invite to the pilot of the file EXPERIMENT, wait for its sites, and lead them through it as their
    coordinator.  Only this machine needs the file.
    """
    from fedgossip.drivers import invite_joining
    from fedgossip.drivers.proposals import experiment_of, hash_of_proposal, keep_test, proposal_of
    from fedgossip.net.endpoints import TCP
    from fedgossip.net.invites.invitation import written
    from fedgossip.net.invites.invite_server import InviteServer
    from fedgossip.net.relays.addresses import Whereabouts, find_own_addresses
    from fedgossip.plans import compose

    given, through = read_answers(answers), [relay_address(one) for one in relays]
    parse_addresses(addresses, PEER_PORT)  # refused before a folder is made
    whole, size = _shared(experiment, overrides)
    plan = _federation(compose.plan(whole.experiment))
    seats = invite_joining.seats_of(plan)
    proposal = replace(proposal_of(whole, None), parameters=size.parameters, dtype=size.type)
    what, expires = hash_of_proposal(proposal), int(time.time() + 60 * minutes)
    with contextlib.ExitStack() as stack:
        ports = hold(stack, invite_port, INVITE_PORT), hold(stack, port, PEER_PORT)
        hosted = invite_joining.hosted(folder, experiment.stem, what, seats, expires, ports)
        hosted = invite_joining.renewed(hosted, time.time(), expires)
        if through:  # each step registers at them separately
            report_unreached(listening_at(stack, hosted.organiser, hosted.ports[0], through, {}), through)
        here = Whereabouts(hosted.ports[1], through, given=parse_addresses(addresses, hosted.ports[1]))
        way = invite_joining.invite_admission(hosted, here.text, proposal, whole.test)
        server = stack.enter_context(contextlib.closing(InviteServer(f"{TCP}*:{hosted.ports[0]}", way)))
        called = parse_addresses(addresses, hosted.ports[0]) or find_own_addresses(hosted.ports[0])
        show_invite(written(hosted.invitation([*called, *through])), command="pilot join")
        if not way.party.founders:
            wait_for_members(server, way, plan)
            way.begin(time.time())
        invite_joining.write_endpoints(hosted.folder, hosted.organiser.verify, way.members())
        server.serve_beside()
        files = hosted.folder / run_format.PROPOSED_FILES
        keep_test(proposal, whole.test, files)
        own = experiment_of(proposal, files, hosted.folder / run_format.OWN_TABLES)
        keep_experiment(_federation(compose.plan(own)), hosted.folder)
        walk = _walk(stack, hosted.folder, hosted.peer, plan.coordinator, "coordinator", what, given)
        bind = ["--bind", f"{TCP}*:{hosted.ports[1]}"]
        code = walk.follow(coordinator_steps(facts_of(own), experiment.stem, [*bind, *_waits(patience)]))
        if code == 0:
            way.end()
            echo(f"\nThe pilot is over; all of it is in {hosted.folder}", err=True)
        return code


def _shared(experiment: Path, overrides: tuple[str, ...]) -> tuple[SharedExperiment, StatedModel]:
    """Return an experiment as sent, and the size of the first message."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.sites.plan import stated_of
    from fedgossip.drivers.proposals import shared_tables
    from fedgossip.experiment import FederatedExperiment, load_experiment

    found = load_experiment(experiment, overrides)
    if not isinstance(found, FederatedExperiment):
        raise ConfigError(f"{experiment} has no [coordinator]", "A pilot is of sites and a coordinator.")
    if found.coordinator.tiers:
        raise ConfigError(f"{experiment}: a pilot has no tiers of coordinators", "Start these by fedgossip host.")
    if found.loops:
        raise ConfigError(f"{experiment}: training loops of the sites' own", "Start these by fedgossip host.")
    return shared_tables(found), stated_of(found, str(experiment))[1].model


def _federation(plan: Any) -> FederationPlan:
    from fedgossip.plans.federated.federation import FederationPlan

    assert isinstance(plan, FederationPlan), "the experiment has a [coordinator]"
    return plan


def _waits(hours: float) -> list[str]:
    seconds = f"{3600 * hours:.0f}"
    return ["--set", f"coordinator.start_timeout={seconds}", "--set", f"coordinator.silence={seconds}"]


def _walk(
    stack: contextlib.ExitStack,
    folder: Path,
    identity: Identity,
    node: int,
    role: str,
    what: str,
    given: Mapping[str, str],
) -> Walk:
    from fedgossip.audit.entries import Owner
    from fedgossip.audit.log import AuditLog
    from fedgossip.base import owner_files
    from fedgossip.base.version import __version__

    path = folder / run_format.DECISIONS / run_format.AUDIT_LOG
    for one in (path.parent, folder / run_format.OWN_TABLES):
        owner_files.make_folder(one)
    owner = Owner(node, role, bytes.fromhex(identity.verify), what, __version__)
    return Walk(folder, stack.enter_context(AuditLog(path, owner, identity.sign_bytes, time.time_ns)), given)


@pilot.command()
@click.argument("invite", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), metavar="FILE",
              help="This site's own table, as data.source names its kind; it stays where it is.")  # fmt: skip
@click.option("--folder", type=click.Path(path_type=Path), default=Path("joined"), show_default=True,
              help="For keys, the experiment and all that is made.")  # fmt: skip
@click.option("--key", type=click.Path(path_type=Path),
              help="One's own key pair, from `fedgossip keys new`.  [default: one for this invite]")  # fmt: skip
@_common
def join(
    invite: tuple[str, ...],
    data: Path | None,
    folder: Path,
    key: Path | None,
    answers: Path | None,
    patience: float,
) -> int:
    """Take part, as a site, in the pilot of INVITE: a text, a file, or "-", as for `fedgossip join`.

    The proposed pilot is shown first; nothing of it runs, or is written, before you agree, and no number of your table
    leaves before you have approved its plan.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.drivers import invite_joining
    from fedgossip.experiment import load_experiment
    from fedgossip.net.invites.invitation import read

    given, invitation = read_answers(answers), read(invite_text(invite))
    if data and not data.is_file():  # refused before the coordinator is called
        raise ConfigError(f"{data}: no such file", "Name this site's own table.")
    place = invite_joining.folder_of(folder, invitation, key)
    with contextlib.ExitStack() as stack:
        if (walk := _joined(stack, invitation, place, data, given)) is None:
            return DECLINED
        node, own = _number(place), load_experiment(place.path / run_format.EXPERIMENT)
        _link(own, node, data)
        facts, ledger = facts_of(own), folder / "keys.spent" if key is None else None
        site = PilotSite(node, _waits(patience), *(os.path.relpath(one, place.path) for one in (
            place.key, ledger or place.key.with_name(f"{place.key.name}.{run_format.SPENT}"))))  # fmt: skip
        code = walk.follow(site_steps(facts, site))
        if code == 0:
            echo(f"\nThe pilot is over; all of it is in {place.path}", err=True)
            if walk.answered("hand-over") == YES:
                echo(f"Hand over: {place.path / walk.last(HANDED[facts.fit])}, under the name site{node}", err=True)
        return code


def _joined(
    stack: contextlib.ExitStack, invitation: Invitation, place: Joined, data: Path | None, given: Mapping[str, str]
) -> Walk | None:
    """Join, unless an earlier process has, and return the walk; None if this person declines."""
    from fedgossip.base.errors import ConfigError, NetworkError
    from fedgossip.drivers import invite_joining, proposals
    from fedgossip.plans import compose

    if (place.path / run_format.ENDPOINTS).exists():
        return _walk(stack, place.path, place.identity, BY_INVITE, "client", proposals.agreed_here(place.path), given)
    if invitation.folder is not None or not invitation.addresses:
        raise ConfigError("a pilot calls its coordinator, and no folder", "Ask for another invite.")
    client, agent = calling(stack, invitation, place)
    try:
        proposal = invite_joining.proposal(client)
    except NetworkError as error:
        raise explained(error, agent) from None
    answer, experiment = _agreed(proposal, invitation, place, data, given)
    if answer is None:
        return None
    proposals.keep_agreed(proposal, place.path)
    walk = _walk(stack, place.path, place.identity, BY_INVITE, "client", proposals.agreed_here(place.path), given)
    walk.note_answer("join", answer)
    proposals.keep_test(proposal, invite_joining.test_set(client, proposal), place.path / run_format.PROPOSED_FILES)
    plan = _federation(compose.plan(experiment))
    keep_experiment(plan, place.path)
    seats = invite_joining.seats_of(plan)
    invite_joining.keep_members(place.path, invite_joining.enrolled(client, seats, "", WaitingLines(plan), time.sleep))
    return walk


TAKE_PART = Question("join", "Take part in this pilot?")


def _agreed(
    proposal: Proposal, invitation: Invitation, place: Joined, data: Path | None, given: Mapping[str, str]
) -> tuple[PilotAnswer | None, Experiment]:
    """Show the proposal, and ask; return the answer, None for a no, and the experiment."""
    from fedgossip.drivers import proposals
    from fedgossip.drivers.invite_joining import declared_run

    proposals.check_agreed(proposal, place.path)
    files, tables = place.path / run_format.PROPOSED_FILES, place.path / run_format.OWN_TABLES
    experiment = proposals.experiment_of(proposal, files, tables)
    code = proposals.check_code(proposal, experiment, place.path.parent)
    _check_table(experiment, data)
    own = OwnMachine(str(data or ""), "", None, None, place.path / POLICY, None, None)
    rows = show_terms(declared_run(experiment), proposal, invitation, own, code)
    left_out = ("Sent", "Rounds", "Method") if facts_of(experiment).fit else ("Sent",)
    rows = [("Model", experiment.model.source) if row[0] == "Model" else row for row in rows if row[0] not in left_out]
    echo(columns([*rows, ("Before it", "the plan is shown word by word, and nothing is sent until it is approved")]),
         err=True)  # fmt: skip
    answer = answer_to(TAKE_PART, given, Path.cwd())
    return answer if answer.text == YES else None, experiment


def _number(place: Joined) -> int:
    from fedgossip.base.errors import ConfigError
    from fedgossip.net.endpoints import load_blocks

    path = place.path / run_format.ENDPOINTS
    found = [node for node, one in load_blocks(path).items() if one.verify == place.identity.verify]
    if len(found) != 1:
        raise ConfigError(f"{path}: not with the key {place.key}", "Name the key that joined: --key.")
    return found[0]


def _check_table(experiment: Experiment, data: Path | None) -> None:
    from fedgossip.base.errors import ConfigError
    from fedgossip.drivers.proposals import find_own_table

    if find_own_table(experiment, 0) is None:
        if data:
            raise ConfigError("the data of this pilot are its own, shared out by its seed", "Leave --data out.")
    elif data is None:
        raise ConfigError("each site brings its own table to this pilot", "Name yours: --data FILE")


def _link(experiment: Experiment, node: int, data: Path | None) -> None:
    """Link the site's table and its declarations to the plan's name."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.data.columns.declarations import OWN
    from fedgossip.drivers.proposals import find_own_table

    if (link := find_own_table(experiment, node)) is None:
        return
    if link.is_symlink():
        if data and data.resolve() != link.resolve():
            advice = f"Leave --data out; to change the table, remove {link}, and approve the plan again."
            raise ConfigError(f"{data}: another table than this pilot has begun with, {link.resolve()}", advice)
    else:
        _check_table(experiment, data)
        assert data is not None, "it was checked just now"
        link.symlink_to(data.resolve())
    table, beside = link.resolve(), link.with_name(link.name + OWN)
    if (declared := table.with_name(table.name + OWN)).is_file() and not os.path.lexists(beside):
        beside.symlink_to(declared)
