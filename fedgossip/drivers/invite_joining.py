"""The work of `fedgossip join` and `fedgossip host`, and the description of a proposed run for a person.

`join` sends requests with an invite, and stores the replies as the files of a member.

    FOLDER/MARK/owner.mark       the mark of the user whose commands made the folder
    FOLDER/MARK/peer.key         this member's keys, made here
    FOLDER/MARK/experiment.toml  the proposal, once accepted
    FOLDER/MARK/endpoints.toml   the members at the start of the run
    FOLDER/MARK/proposal.hash    the hash of the proposal, once accepted: the invite is for no other
    FOLDER/MARK/proposed-files   the graph and the common test set of the proposal, once accepted
    FOLDER/MARK/run              the run directory

MARK is the invite's name: a second request from the same folder is from the same member.  `host` stores the organiser's
keys and invite and admits people until a run begins; then it is an ordinary member, and its server continues for late
ones.

    FOLDER/organiser.key        signs admissions; its public half is in every invite
    FOLDER/NAME/invite.json     the invite's secret, expiry and admissions: the state that survives a restart
    FOLDER/NAME/peer.key        the keys of the organiser's own member
    FOLDER/NAME/endpoints.toml  the members at the start of the run
    FOLDER/NAME/run             the run directory

A proposed run is described only from its declarations: no graph is built, no file opened, nothing imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedgossip.algorithms.gossip.names import METHODS, GraphFacts, make
from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, PeerError, reason
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import (
    FILE_PART,
    INVITED_MAX,
    Beginning,
    Enrol,
    Entry,
    FilePart,
    FileQuery,
    Gathering,
    Invitations,
    InviteProof,
    Proposal,
)
from fedgossip.core.run_format import ENDPOINTS, INVITE, ORGANISER_KEY, PEER_KEY
from fedgossip.data.custom import code_by_key, code_in, importing_nothing
from fedgossip.drivers.kept_keys import claim
from fedgossip.drivers.members import is_open, is_open_to
from fedgossip.experiment import (
    CoordinatorSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ParallelExperiment,
)
from fedgossip.experiment.run_sections import CODEC_CODE, GRAPH_CODE
from fedgossip.net.endpoints import Endpoint, block, check_reachable, is_signed, organiser_line, signed
from fedgossip.net.identity import Identity, check_public, verify
from fedgossip.net.invites.invitation import Invitation, new_secret
from fedgossip.net.invites.invite_admission import ENDED, Guest, InviteAdmission, Party, Seats
from fedgossip.net.invites.invite_client import AGAIN_SECONDS, ANSWER_SECONDS, ORGANISER, Asking
from fedgossip.net.relays.reachability import Ways
from fedgossip.net.relays.relay_client import RelayClient
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.gossip.gossip_words import terms_of
from fedgossip.plans.plan import JoiningTerms, Plan
from fedgossip.protocols.members.membership_updates import admission_of
from fedgossip.runs.run_directory import write_whole

LOST_SECONDS = 120.0
"""Seconds without a reply before an organiser that replied earlier is given up; it may restart meanwhile."""

Kind = TypeVar("Kind")

SAME = "Is it the same release of fedgossip?  Ask the organiser."


@dataclass(frozen=True)
class Joined:
    """The folder of one invite, and the keys used with it, which may be stored elsewhere."""

    path: Path
    key: Path
    identity: Identity


def folder_of(base: Path, invitation: Invitation, key: Path | None = None) -> Joined:
    """Return the folder and keys of an invite, made if necessary.

    Raises ConfigError, also for a folder prepared by another user.
    """
    given = Identity.load(key) if key else None
    _check_no_run(base)
    path = base / invitation.mark
    claim(path)
    key = key or path / run_format.PEER_KEY
    if given is None and not key.exists():
        Identity.new().save(key)
    return Joined(path, key, given or Identity.load_own(key))


def proposal(client: Asking, seconds: float = ANSWER_SECONDS) -> Proposal:
    """Request the proposed experiment.  Raises NetworkError, PeerError."""
    return _check_kind(client.ask(InviteProof(client.who, __version__), seconds), Proposal)


def test_set(client: Asking, proposed: Proposal) -> bytes:
    """Fetch the common test set, after `experiment_of` has checked its size.  Raises NetworkError, PeerError."""
    found = bytearray()
    starts = range(0, proposed.test_bytes, FILE_PART)
    for answer in client.ask_all([FileQuery(client.who, start) for start in starts]):
        part = _check_kind(answer, FilePart)
        if part.start != len(found) or len(part.data) != min(FILE_PART, proposed.test_bytes - len(found)):
            raise PeerError("the common test set arrives in another order", SAME, peer=ORGANISER)
        found += part.data
    return bytes(found)


def enrolled(
    client: Asking,
    seats: Seats,
    address: str,
    on_gathering: Callable[[Gathering], None],
    wait: Callable[[float], None],
    lead: NodeId = 0,
    under: NodeId = 0,
) -> Beginning:
    """Request a seat, and wait for the start; `on_gathering` receives progress.  `lead`, `under`: as in `Enrol`.

    Raises NetworkError, PeerError.
    """
    question = Enrol(client.who, __version__, address, signed(client.identity, address).signature, lead, under)
    while True:
        answer = client.ask(question, LOST_SECONDS)
        if isinstance(answer, Beginning):
            if answer.node not in islice(seats.places(lead, under), seats.count):
                raise PeerError(f"the organiser gives us place {answer.node}, and not the one that was named", SAME,
                                peer=ORGANISER)  # fmt: skip
            return checked(answer, client.identity, seats)
        on_gathering(_check_kind(answer, Gathering))
        wait(AGAIN_SECONDS)


def checked(beginning: Beginning, identity: Identity, seats: Seats) -> Beginning:
    """Return the organiser's list of members, after a check of each admission and of the local entry.

    Raises PeerError.
    """
    members = {one.node: one for one in beginning.members}
    own = members.get(beginning.node)
    if own is None or (own.key, own.verify) != (identity.public, identity.verify) or beginning.node == seats.own:
        raise PeerError("the organiser has admitted another member with our number", SAME, peer=ORGANISER)
    distinct = min(len({one.key for one in members.values()}), len({one.verify for one in members.values()}))
    if len(members) != len(beginning.members) or distinct != len(members) or seats.own not in members:
        raise PeerError("the organiser's list names a member twice, or not itself", SAME, peer=ORGANISER)
    if seats.fixed and set(members) != set(range(seats.count)):
        raise PeerError(f"the organiser's list has not all {seats.count} that the run is of", SAME, peer=ORGANISER)
    for one in members.values():
        _check(one, beginning.organiser, seats)
    return beginning


def keep_members(folder: Path, beginning: Beginning) -> None:
    """Write the file of the members at the start."""
    write_endpoints(folder, beginning.organiser, beginning.members)


def _check(one: Entry, organiser: str, seats: Seats) -> None:
    try:
        if one.address or seats.addressed(one.node):
            check_reachable(one.address, f"member {one.node}")
        check_public(one.key, f"member {one.node}")
    except ConfigError as error:
        raise PeerError(f"the organiser's list: {error}", SAME, peer=ORGANISER) from None
    times = (0,) if seats.fixed else (0, -1)
    if one.since not in times or not verify(organiser, admission_of(one.node, one.key, one.verify), one.admission):
        raise PeerError(f"the organiser has not signed that member {one.node} is one", SAME, peer=ORGANISER)
    if not is_signed(Endpoint(one.address, one.key, one.verify, signature=one.signature)):
        raise PeerError(f"the organiser has changed what member {one.node} states about itself", SAME, peer=ORGANISER)


def _check_kind(answer: Invitations, kind: type[Kind]) -> Kind:
    if not isinstance(answer, kind):
        raise PeerError(f"the organiser answers with a {type(answer).__name__}", SAME, peer=ORGANISER)
    return answer


class _GuestRow(msgspec.Struct):
    node: int
    key: str
    verify: str
    address: str
    signature: str = ""


class _Invite(msgspec.Struct):
    secret: str
    expires: int
    seats: int
    experiment: str
    ports: tuple[int, int]
    guests: list[_GuestRow] = []
    founders: list[int] = []
    ended: bool = False
    own: int = 0
    fixed: bool = False
    called: bool = True
    folder: bool = False


_DECODER = msgspec.json.Decoder(_Invite)


@dataclass(frozen=True)
class Hosted:
    """One run with an invite.  `ports`: of the invite's server, and of the organiser's own member."""

    folder: Path
    organiser: Identity
    peer: Identity
    party: Party
    experiment: str
    """Hash of the proposal."""
    ports: tuple[int, int]

    def keep(self, party: Party) -> None:
        """Write the party to disk.  Raises NotWrittenError."""
        found, seats = sorted(party.guests.items()), party.seats
        guests = [_GuestRow(node, one.key, one.verify, one.address, one.signature) for node, one in found]
        content = _Invite(
            party.secret.hex(), party.expires, seats.count, self.experiment, self.ports, guests, list(party.founders),
            party.ended, seats.own, seats.fixed, seats.called, seats.folder,
        )  # fmt: skip
        write_whole(self.folder / INVITE, msgspec.json.format(msgspec.json.encode(content), indent=1))

    def invitation(self, addresses: Sequence[str]) -> Invitation:
        """Return the invite to send to people."""
        return Invitation(tuple(addresses), self.organiser.public, self.party.secret, self.party.expires)

    def host(self, address: str) -> Guest:
        """Return the organiser's own member."""
        return Guest(self.peer.public, self.peer.verify, address, signed(self.peer, address).signature)


def seats_of(plan: Plan, *, folder: bool = False) -> Seats:
    """Return the seats of a run; the organiser has the coordinator's, or the first of equal ones.

    With tiers people name their seats, so that the order of arrival does not decide the leaf coordinators.
    """
    own = 0 if plan.roles.leader is None else plan.roles.leader
    groups: dict[NodeId, tuple[NodeId, ...]] = {}
    if isinstance(plan, FederationPlan) and not plan.tree.flat:
        groups = {one.coordinator: tuple(one.members) for one in plan.tree.groups if one.coordinator != own}
    called = not groups and any(plan.roles.listens(node) for node in range(plan.n) if node != own)
    fixed = folder or not is_open(plan)
    return Seats(plan.n, own, fixed=fixed, called=called and not folder, folder=folder, groups=groups)


def ways_of(plan: Plan, agent: RelayClient | None, whereabouts: Callable[[], str] | None) -> Ways:
    """Return an admitted member's routes to the others.

    It publishes its address if members exchange addresses, and searches for a reachable one if nothing can connect to
    it.
    """
    own = whereabouts if is_open(plan) or not seats_of(plan).called else None
    return agent.ways(own) if agent else Ways(whereabouts=own)


def hosted(folder: Path, name: str, experiment: str, seats: Seats, expires: int, ports: tuple[int, int]) -> Hosted:
    """Return the run of this name in `folder`: the unfinished one, or a new one.  Raises ConfigError."""
    if not 2 <= seats.count <= INVITED_MAX:
        text = f"{seats.count} that take part"
        raise ConfigError(text, f"An invite is for 2 to {INVITED_MAX}; more are let in by their keys.")
    _check_no_run(folder)
    owner_files.make_folder(folder)
    organiser = _identity(folder / ORGANISER_KEY)
    number = 1
    while (place := folder / (name if number == 1 else f"{name}-{number}")).exists():
        claim(place)
        invite = _read(place / INVITE)
        if invite and not invite.ended:
            return _reopen(place, organiser, invite, experiment, seats)
        number += 1
    claim(place)
    peer = _identity(place / PEER_KEY)
    made = Hosted(place, organiser, peer, Party(new_secret(), expires, seats), experiment, ports)
    made.keep(made.party)
    return made


def _check_no_run(folder: Path) -> None:
    if any((folder / name).exists() for name in (run_format.SUMMARY, run_format.INCOMPLETE)):
        text = f"{folder}: a run is in this folder, and keys are kept apart from results"
        raise ConfigError(text, "Name another folder with --folder; each invite has its own in it.")


def _reopen(place: Path, organiser: Identity, invite: _Invite, experiment: str, seats: Seats) -> Hosted:
    if (invite.experiment, invite.seats, invite.folder) != (experiment, seats.count, seats.folder):
        advice = f"Resume that one, or remove {place}: its invite is of no use then."
        how = "to another experiment" if invite.folder == seats.folder else "by another carrier than --links names"
        raise ConfigError(f"{place} holds an invite {how}, whose run has not ended", advice)
    party = replace(_party(invite), seats=seats)  # with the groups of the same experiment
    return Hosted(place, organiser, _identity(place / PEER_KEY), party, experiment, invite.ports)


def renewed(hosted: Hosted, now: float, expires: int) -> Hosted:
    """Return the same invite with a later expiry if it has expired before the run began."""
    if hosted.party.founders or hosted.party.expires > now:
        return hosted
    later = replace(hosted, party=replace(hosted.party, expires=expires))
    later.keep(later.party)
    return later


def past_of(folder: Path) -> Mapping[str, str]:
    """Return why each invite of earlier runs is no longer valid, by its name."""
    invites = (_read(path) for path in sorted(folder.glob(f"*/{INVITE}")))
    return {_party(one).mark: ENDED for one in invites if one and one.ended}


def invite_admission(hosted: Hosted, address: str, proposal: Proposal, test: bytes) -> InviteAdmission:
    """Return the admission rule of a run; `address` is the endpoint of the organiser's own member."""
    past = past_of(hosted.folder.parent)
    return InviteAdmission(hosted.organiser, hosted.host(address), hosted.party, proposal, hosted.keep, test, past)


def write_endpoints(folder: Path, organiser: str, members: Sequence[Entry]) -> None:
    """Write the endpoints.toml of a run that begins, or has begun, with these members; see messages.Beginning."""
    lines = [organiser_line(organiser)]
    for one in members:
        admission = "" if one.since == 0 else one.admission
        lines.append(block(one.node, Endpoint(one.address, one.key, one.verify, admission, one.signature)))
    write_whole(folder / ENDPOINTS, "\n".join(lines).encode())


def _identity(path: Path) -> Identity:
    if not path.exists():
        Identity.new().save(path)
    return Identity.load_own(path)


def _read(path: Path) -> _Invite | None:
    """Return the invite of a folder; None without one."""
    if not path.exists():
        return None
    try:
        return from_json(_DECODER, outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: {reason(error)}", "Remove its folder, or name another one with --folder.") from None


def _party(invite: _Invite) -> Party:
    guests: dict[NodeId, Guest] = {}
    for one in invite.guests:
        guests[one.node] = Guest(one.key, one.verify, one.address, one.signature)
    seats = Seats(invite.seats, invite.own, invite.fixed, invite.called, invite.folder)
    return Party(bytes.fromhex(invite.secret), invite.expires, seats, guests, tuple(invite.founders), invite.ended)


@dataclass(frozen=True)
class DeclaredRun:
    """Properties of a proposed run shown before consent: those of a `Plan` that need neither graph nor code."""

    experiment: Experiment
    name: str
    gradients: bool
    terms: Callable[[int, int], JoiningTerms]
    """Function from a model's number of elements and their size in bytes to the terms."""


def declared_run(experiment: Experiment) -> DeclaredRun:
    """Return the declarations of a proposed experiment.  Raises ConfigError for one that cannot run."""
    with importing_nothing("the organiser's experiment"):
        if isinstance(experiment, GossipExperiment):
            return _declare_peers(experiment)
        plan = compose.plan(_without_code(experiment))
        if isinstance(experiment, FederatedExperiment):
            names = [one for key, one in code_by_key(experiment.coordinator) if key not in ("sampling", "available")]
            name = experiment.coordinator.algorithm if names else plan.name
            return DeclaredRun(experiment, name, plan.gradients, _describe_code(names, plan.terms))
        codec = CODEC_CODE.find_name(experiment.parallel.codec) if isinstance(experiment, ParallelExperiment) else ""
        return DeclaredRun(experiment, plan.name, plan.gradients, _describe_code([codec] if codec else [], plan.terms))


def _declare_peers(e: GossipExperiment) -> DeclaredRun:
    n, name = e.topology.n, _graph(e.topology.graph)
    if n is not None and n > INVITED_MAX:
        raise ConfigError(f"the organiser's experiment is of {n:,} peers", f"An invite is for {INVITED_MAX} at most.")
    method = METHODS.get(e.algorithm.name)
    if method is None:  # the contents of its messages depend only on its code
        return DeclaredRun(e, name, False, lambda _numbers, _size: terms_of(e, name, n, 0))
    codes = [one for key, one in code_by_key(e.algorithm) if key == "options"]
    options = {key: value for key, value in e.algorithm.options.items() if value not in codes}
    made = make(e.algorithm.name, method, GraphFacts(n or 2), options)
    vectors = sum(slot.length is None for slot in made.slots)
    come_and_go = "; others may join and leave" if is_open_to(e, made.needs) else ""

    def terms(numbers: int, size: int) -> JoiningTerms:
        terms_ = terms_of(e, name, n, numbers * size * vectors)
        return replace(terms_, how=f"{terms_.how}{come_and_go}")

    return DeclaredRun(e, name, False, _describe_code(codes, terms))


def _graph(graph: str) -> str:
    """Return the name of a graph before it is built."""
    return graph if GRAPH_CODE.find_name(graph) or "/" not in graph else "a graph that the organiser sends"


def _without_code(e: Experiment) -> Experiment:
    """Return an experiment with built-in parts in place of code."""
    usual_steps: dict[str, Any] = {"train.schedule": "constant", "train.optimizer": "sgd"}
    steps = {key.partition(".")[2]: usual_steps[key] for key, _ in code_by_key(e) if key in usual_steps}
    e = msgspec.structs.replace(e, train=dataclasses.replace(e.train, **steps)) if steps else e
    if isinstance(e, FederatedExperiment):
        named = {key for key, _ in code_by_key(e.coordinator)}
        usual: dict[str, Any] = {key: getattr(CoordinatorSection(e.coordinator.clients), key) for key in named}
        usual |= {"options": {}} if "algorithm" in named else {}
        return msgspec.structs.replace(e, coordinator=msgspec.structs.replace(e.coordinator, **usual))
    if not isinstance(e, ParallelExperiment) or not (own := code_in(e.parallel)):
        return e
    server, codec = e.parallel.server, "" if e.parallel.codec in own else e.parallel.codec
    kept = msgspec.structs.replace(server, filters=[one for one in server.filters if one not in own])
    return msgspec.structs.replace(e, parallel=msgspec.structs.replace(e.parallel, server=kept, codec=codec))


def _describe_code(own: Sequence[str], terms: Callable[[int, int], JoiningTerms]) -> Callable[[int, int], JoiningTerms]:
    """Return the terms of a run with user code, in which the processing of a training's result is unknown."""
    names = " and ".join(own)

    def describe(numbers: int, size: int) -> JoiningTerms:
        usual = terms(numbers, size)
        sent = f"what the code of {names} makes of it; without that code: {usual.sent}"
        return replace(usual, how=f"by the code of {names}; without it: {usual.how}", sent=sent)

    return describe if own else terms
