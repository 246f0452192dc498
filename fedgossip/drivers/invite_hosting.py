"""The work of `fedgossip host`: keeps the organiser's keys and invite in a folder and admits people until a run begins;
then it is an ordinary member, and its invite server goes on beside it for returning and late members.

    FOLDER/organiser.key        signs admissions; its public half is in every invite
    FOLDER/NAME/invite.json     the invite's secret, expiry and admissions: the state that survives a restart
    FOLDER/NAME/peer.key        the keys of the organiser's own member
    FOLDER/NAME/endpoints.toml  the members at the start of the run
    FOLDER/NAME/run             the run directory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import INVITED_MAX, Entry, Proposal
from fedgossip.core.run_format import ENDPOINTS, INVITE, ORGANISER_KEY, PEER_KEY
from fedgossip.drivers.members import is_open
from fedgossip.net.endpoints import Endpoint, block, organiser_line, signed
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret
from fedgossip.net.invites.invite_admission import ENDED, Guest, InviteAdmission, Party, Seats
from fedgossip.net.relays.reachability import Through
from fedgossip.net.relays.routing import Ways
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.plan import Plan
from fedgossip.runs.run_directory import write_whole


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
    """One run that people are invited to.  `ports`: of the invite's server, and of the organiser's own member."""

    folder: Path
    organiser: Identity
    peer: Identity
    party: Party
    experiment: str
    """The hash of the proposal."""
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
        """Return what to send to people."""
        return Invitation(tuple(addresses), self.organiser.public, self.party.secret, self.party.expires)

    def host(self, address: str) -> Guest:
        """The organiser's own member."""
        return Guest(self.peer.public, self.peer.verify, address, signed(self.peer, address).signature)


def seats_of(plan: Plan, *, folder: bool = False) -> Seats:
    """Return the places of a run, by sockets or through a folder: a coordinator's own is its organiser's, of equals the
    first.

    In a run with tiers people name their places: nobody is made a leaf coordinator by the order of arrival.
    """
    own = 0 if plan.roles.leader is None else plan.roles.leader
    groups: dict[NodeId, tuple[NodeId, ...]] = {}
    if isinstance(plan, FederationPlan) and not plan.tree.flat:
        groups = {one.coordinator: tuple(one.members) for one in plan.tree.groups if one.coordinator != own}
    called = not groups and any(plan.roles.listens(node) for node in range(plan.n) if node != own)
    fixed = folder or not is_open(plan)
    return Seats(plan.n, own, fixed=fixed, called=called and not folder, folder=folder, groups=groups)


def ways_of(plan: Plan, through: Through | None, whereabouts: Callable[[], str] | None) -> Ways:
    """Return how an admitted member reaches the others: it publishes its address where members exchange addresses, and
    looks for a reachable one where nothing can connect to it.
    """
    return Ways(through, whereabouts if is_open(plan) or not seats_of(plan).called else None)


def hosted(folder: Path, name: str, experiment: str, seats: Seats, expires: int, ports: tuple[int, int]) -> Hosted:
    """Return the run of this name in `folder`: the one that has not ended, or a new one.  Raises ConfigError."""
    if not 2 <= seats.count <= INVITED_MAX:
        text = f"{seats.count} that take part"
        raise ConfigError(text, f"An invite is for 2 to {INVITED_MAX}; more are let in by their keys.")
    owner_files.made(folder)
    organiser = _identity(folder / ORGANISER_KEY)
    number = 1
    while (place := folder / (name if number == 1 else f"{name}-{number}")).exists():
        invite = _read(place / INVITE)
        if invite and not invite.ended:
            return _reopen(place, organiser, invite, experiment, seats)
        number += 1
    owner_files.made(place)
    peer = _identity(place / PEER_KEY)
    made = Hosted(place, organiser, peer, Party(new_secret(), expires, seats), experiment, ports)
    made.keep(made.party)
    return made


def _reopen(place: Path, organiser: Identity, invite: _Invite, experiment: str, seats: Seats) -> Hosted:
    if (invite.experiment, invite.seats, invite.folder) != (experiment, seats.count, seats.folder):
        advice = f"Go on with that one, or remove {place}: its invite is of no use then."
        how = "to another experiment" if invite.folder == seats.folder else "by another way than --links says"
        raise ConfigError(f"{place} holds an invite {how}, whose run has not ended", advice)
    party = replace(_party(invite), seats=seats)  # with the groups of the same experiment
    return Hosted(place, organiser, _identity(place / PEER_KEY), party, experiment, invite.ports)


def renewed(hosted: Hosted, now: float, expires: int) -> Hosted:
    """The same invite with a later end, where it has expired and the run has not begun."""
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
    """Write the endpoints.toml of a run that begins, or has begun, with these; see messages.Beginning."""
    lines = [organiser_line(organiser)]
    for one in members:
        admission = "" if one.since == 0 else one.admission
        lines.append(block(one.node, Endpoint(one.address, one.key, one.verify, admission, one.signature)))
    write_whole(folder / ENDPOINTS, "\n".join(lines).encode())


def _identity(path: Path) -> Identity:
    if not path.exists():
        Identity.new().save(path)
    return Identity.load(path)


def _read(path: Path) -> _Invite | None:
    """Return the invite of a folder; None without one.  Raises ConfigError for an unreadable one."""
    if not path.exists():
        return None
    try:
        return from_json(_DECODER, outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: {error}", "Remove its folder, or name another one with --folder.") from None


def _party(invite: _Invite) -> Party:
    guests: dict[NodeId, Guest] = {}
    for one in invite.guests:
        guests[one.node] = Guest(one.key, one.verify, one.address, one.signature)
    seats = Seats(invite.seats, invite.own, invite.fixed, invite.called, invite.folder)
    return Party(bytes.fromhex(invite.secret), invite.expires, seats, guests, tuple(invite.founders), invite.ended)
