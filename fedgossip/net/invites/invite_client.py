"""Requests with an invite: all its addresses are called at once; only the proof is sent, and only to the
invite's key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq

from fedgossip.base.errors import FedgossipError, NetworkError, PeerError
from fedgossip.base.untrusted_text import line
from fedgossip.base.version import __version__
from fedgossip.core.messages import AnyMessage, Invitations, Invited, TurnedAway
from fedgossip.core.wire import Assembler, frames
from fedgossip.net.connections import Connections
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation
from fedgossip.net.invites.invite_admission import ENDED, EXPIRED, PLACE, UNKNOWN, USED
from fedgossip.net.links.outbox import check_last, frame_error, skip
from fedgossip.net.links.partner_link import call, hang_up
from fedgossip.net.sockets import MORE_NOW, NOW, ZmqSocket

AGAIN_SECONDS = 2.0
"""Delay before an unanswered request is repeated, in seconds."""
ANSWER_SECONDS = 10.0
"""Maximum seconds of silence before the organiser counts as absent."""
TURN_MS = 100
CALLS_MAX = 16
"""Maximum number of addresses called at the same time."""

ORGANISER = 0
"""Number of the organiser's own member."""

ASK = "Ask the organiser for a new one: `fedgossip host` prints it."
REFUSALS: Mapping[str, tuple[str, str]] = {
    UNKNOWN: ("the organiser does not know this invite", ASK),
    USED: ("this invite is used up: as many were let in as it was made for", ASK),
    EXPIRED: ("this invite has expired", ASK),
    PLACE: ("that place is not there, or taken", "Ask the organiser: --coordinator and --under name places of a run."),
    ENDED: ("the run of this invite has ended", ASK),
    "version": ("the organiser runs fedgossip {about}, this is {ours}", "Install the same release on both."),
    "unreadable": ("the organiser, with fedgossip {about}, cannot read what {ours} says", "Install the same release."),
    "address": ("the others cannot call {about}", "Give the address at which they reach this machine: --address."),
    "signature": ("the organiser finds our keys not signed by ourselves", "Install the same release on both."),
    "key": ("the organiser finds that {about} is no key of signatures", "Install the same release on both."),
    "twin": ("another one that was let in signs with the key that we sign with", "Make a key of your own."),
    "disk": ("the organiser's disk is full: it admits no member that it could not record", "Try again later."),
}
"""Reasons of a refusal, in words."""


def refusal_error(answer: TurnedAway) -> PeerError:
    """Return the error for a refusal, with its reason."""
    text, advice = REFUSALS.get(answer.reason, ("the organiser refuses: {reason}", ASK))
    facts = {"about": line(answer.about, 60), "reason": line(answer.reason, 40), "ours": __version__}
    return PeerError(text.format_map(facts), advice, peer=ORGANISER)


class Asking(Protocol):
    """The sender of requests with an invite, by sockets or through a folder."""

    invitation: Invitation
    identity: Identity
    reached: str

    @property
    def who(self) -> Invited: ...

    def ask(self, question: AnyMessage, seconds: float = ANSWER_SECONDS) -> Invitations: ...

    def ask_all(self, questions: Sequence[AnyMessage]) -> Iterator[Invitations]: ...


def who_asks(invitation: Invitation, identity: Identity) -> Invited:
    """Return the common first part of every request."""
    return Invited(invitation.mark, identity.verify, invitation.proof(identity.public, identity.verify))


@dataclass(slots=True)
class _Call:
    address: str
    dealer: ZmqSocket
    asked_at: float = -1e9


class InviteClient:
    """Connects with the keys to be admitted.  `reached`: the answering address, "" before; `way` makes an address
    callable; `more` returns addresses found since.
    """

    def __init__(
        self,
        invitation: Invitation,
        identity: Identity,
        way: Callable[[str], str] = lambda address: address,
        more: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.invitation, self.identity = invitation, identity
        self.reached = ""
        self.context: zmq.Context[ZmqSocket] = zmq.Context(1)
        self._connections = Connections()
        self._poller = zmq.Poller()
        self._calls: list[_Call] = []
        self._way, self._more = way, more
        for address in invitation.addresses:
            self.add(address)

    @property
    def who(self) -> Invited:
        """Common first part of every request."""
        return who_asks(self.invitation, self.identity)

    def add(self, address: str) -> None:
        """Call one more address; an address that cannot be called is ignored."""
        if self.reached or len(self._calls) >= CALLS_MAX or any(one.address == address for one in self._calls):
            return
        about = self.identity, ORGANISER, self._way(address), self.invitation.key
        try:
            dealer = call(self.context, self._connections, -1, *about)
        except FedgossipError:
            return
        self._calls.append(_Call(address, dealer))
        self._poller.register(dealer, zmq.POLLIN)

    def ask(self, question: AnyMessage, seconds: float = ANSWER_SECONDS) -> Invitations:
        """Return the reply.  Raises NetworkError without one, PeerError for a refusal."""
        until = time.monotonic() + seconds
        for one in self._calls:
            one.asked_at = -1e9
        while time.monotonic() < until:
            for address in self._more():
                self.add(address)
            for one in self._calls:
                self._send(one, question)
            for one in self._await_reply(TURN_MS):
                if (answer := self._read_reply(one)) is not None:
                    self._keep(one)
                    if isinstance(answer, TurnedAway):
                        raise refusal_error(answer)
                    return answer
        raise self._nobody()

    def ask_all(self, questions: Sequence[AnyMessage]) -> Iterator[Invitations]:
        """Yield the reply to each.  Raises as `ask`."""
        return map(self.ask, questions)

    def close(self) -> None:
        for one in self._calls:
            hang_up(self._poller, self._connections, one.dealer)
        self._calls.clear()
        self._connections.close()
        self.context.term()

    def _send(self, one: _Call, question: AnyMessage) -> None:
        now = time.monotonic()
        if now - one.asked_at < AGAIN_SECONDS:
            return
        ((mark, body),) = frames(question, 1, ())
        try:
            one.dealer.send(mark, MORE_NOW)
            one.dealer.send(body, NOW)
            one.asked_at = now
        except zmq.Again:  # not connected, or not yet
            return

    def _await_reply(self, timeout_ms: int) -> list[_Call]:
        ready = dict(self._poller.poll(timeout_ms))
        self._connections.take()
        return [one for one in self._calls if one.dealer in ready]

    def _read_reply(self, one: _Call) -> Invitations | None:
        assembler = Assembler(None)
        try:
            mark = one.dealer.recv(NOW, copy=False)
            self._connections.note_message(mark.get(zmq.SRCFD), ORGANISER)
            if not mark.more or assembler.mark(mark.bytes) is not None:
                return None
            body = one.dealer.recv()
            check_last(one.dealer)
            answer = assembler.header(body)
        except zmq.Again:
            return None
        except Exception as error:
            frame_error(error, None)
            return None
        finally:
            skip(one.dealer)
        return answer if isinstance(answer, Invitations) else None

    def _keep(self, one: _Call) -> None:
        self.reached = one.address
        for other in self._calls:
            if other is not one:
                hang_up(self._poller, self._connections, other.dealer)
        self._calls = [one]

    def _nobody(self) -> NetworkError:
        late = " and by this machine's clock the invite has expired" if time.time() > self.invitation.expires else ""
        where = ", ".join(self.invitation.addresses) or "no address"
        text = f"no holder of this invite's key answers at {where}{late}"
        advice = "Is `fedgossip host` running there, and its port open?  An invite ends with its run."
        return NetworkError(text, advice)
