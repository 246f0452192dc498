"""The work of `fedgossip join`: sends requests with an invite, and stores the replies as the files of a member.

    FOLDER/MARK/peer.key         this member's keys, made here
    FOLDER/MARK/experiment.toml  the proposal, once accepted
    FOLDER/MARK/endpoints.toml   the members at the start of the run
    FOLDER/MARK/proposal.hash    the hash of the proposal, once accepted: the invite is for no other
    FOLDER/MARK/proposed-files   the graph and the common test set of the proposal, once accepted
    FOLDER/MARK/run              the run directory

MARK is the invite's name: a second request with it from the same folder is from the same member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError, PeerError
from fedgossip.base.version import __version__
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import (
    FILE_PART,
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
from fedgossip.drivers.invite_hosting import write_endpoints
from fedgossip.net.endpoints import Endpoint, check_reachable, is_signed, signed
from fedgossip.net.identity import Identity, check_public, verify
from fedgossip.net.invites.invitation import Invitation
from fedgossip.net.invites.invite_admission import Seats
from fedgossip.net.invites.invite_client import AGAIN_SECONDS, ANSWER_SECONDS, ORGANISER, Asking
from fedgossip.protocols.members.membership_updates import admission_of

LOST_SECONDS = 120.0
"""Time without a reply after which an organiser that replied before is given up; it may be restarted meanwhile."""

Kind = TypeVar("Kind")

SAME = "Is it the same release of fedgossip?  Ask the organiser."


@dataclass(frozen=True)
class Joined:
    """The folder of one invite, and the keys used with it, which may lie elsewhere."""

    path: Path
    key: Path
    identity: Identity


def folder_of(base: Path, invitation: Invitation, key: Path | None = None) -> Joined:
    """Make, or find, the folder for an invite, and the keys where none are passed.  Raises ConfigError."""
    given = Identity.load(key) if key else None
    path = base / invitation.mark
    owner_files.made(path)
    key = key or path / run_format.PEER_KEY
    if given is None and not key.exists():
        Identity.new().save(key)
    return Joined(path, key, given or Identity.load(key))


def proposal(client: Asking, seconds: float = ANSWER_SECONDS) -> Proposal:
    """Request the proposed experiment.  Raises NetworkError, PeerError."""
    return _of_kind(client.ask(InviteProof(client.who, __version__), seconds), Proposal)


def test_set(client: Asking, proposed: Proposal) -> bytes:
    """Fetch the common test set, of a size that `experiment_of` has checked.  Raises NetworkError, PeerError."""
    found = bytearray()
    starts = range(0, proposed.test_bytes, FILE_PART)
    for answer in client.ask_all([FileQuery(client.who, start) for start in starts]):
        part = _of_kind(answer, FilePart)
        if part.start != len(found) or len(part.data) != min(FILE_PART, proposed.test_bytes - len(found)):
            raise PeerError("the common test set arrives in another order", SAME, peer=ORGANISER)
        found += part.data
    return bytes(found)


def enrolled(
    client: Asking,
    seats: Seats,
    address: str,
    tell: Callable[[Gathering], None],
    wait: Callable[[float], None],
    lead: NodeId = 0,
    under: NodeId = 0,
) -> Beginning:
    """Request a place, and wait for the start; pass progress to `tell` meanwhile.  Raises NetworkError, PeerError.

    `lead`, `under`: the place in a run with tiers, as in an `Enrol`.
    """
    question = Enrol(client.who, __version__, address, signed(client.identity, address).signature, lead, under)
    while True:
        answer = client.ask(question, LOST_SECONDS)
        if isinstance(answer, Beginning):
            if answer.node not in islice(seats.places(lead, under), seats.count):
                raise PeerError(f"the organiser gives us place {answer.node}, and not the one that was named", SAME,
                                peer=ORGANISER)  # fmt: skip
            return checked(answer, client.identity, seats)
        tell(_of_kind(answer, Gathering))
        wait(AGAIN_SECONDS)


def checked(beginning: Beginning, identity: Identity, seats: Seats) -> Beginning:
    """Return the organiser's list of members, after a check of each admission and of our own entry.

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
        raise PeerError(f"the organiser has changed what member {one.node} says of itself", SAME, peer=ORGANISER)


def _of_kind(answer: Invitations, kind: type[Kind]) -> Kind:
    if not isinstance(answer, kind):
        raise PeerError(f"the organiser answers with a {type(answer).__name__}", SAME, peer=ORGANISER)
    return answer
