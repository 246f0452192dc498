"""Requests with an invite as sealed files of a shared folder, for machines that cannot call each other.

    DIR/invite-1a2b3c4d5e6f7a8b/            the invite, by its mark
        guest-KEY/                          a guest, by its public key, 64 hex digits
            from-000001-to-000000/N.fgm     its requests
            from-000000-to-000001/N.fgm     the organiser's replies

Each file is sealed between the organiser's key, in the invite, and the guest's; N is a hash of the request, equal in
every incarnation.  A reply stays as long as its request, which its guest removes once it has stored the reply.
Requests to take part are answered again and again until the run begins.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from zmq.utils import z85

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, NotWrittenError, reason
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.core.messages import FILE_PART, AnyMessage, Enrol, Gathering, Invitations, Invited, TurnedAway
from fedgossip.core.wire import HEADER_BYTES_MAX, Assembler, FrameError
from fedgossip.net.identity import Identity, raw
from fedgossip.net.invites.invitation import ASK_ANEW, Invitation
from fedgossip.net.invites.invite_admission import InviteAdmission
from fedgossip.net.invites.invite_client import ANSWER_SECONDS, refusal_error, who_asks
from fedgossip.net.invites.invite_server import QUESTION_BYTES, QUESTIONS, WRONG_MAX
from fedgossip.net.pair_folder import (
    LISTED,
    MESSAGE,
    Direction,
    PairReader,
    PairSecrets,
    PairWriter,
    agreed,
    content_of,
    message_in,
    names_in,
    parsed,
)

GUESTS_MAX = 256
"""Maximum number of guests read at one look, in addition to admitted ones."""
REFUSALS_MAX = 1000
"""Maximum number of refusals of one request that a guest stores."""
BUSY_SECONDS, GROWTH = 0.02, 1.5
"""Initial delay between two looks of a guest, in seconds, and its growth factor without a reply."""

_INVITE, _GUEST = "invite-", "guest-"
_KEY, _NUMBER = re.compile(r"guest-([0-9a-f]{64})"), re.compile(r"\d{10,20}")


class AwaitedError(FedgossipError):
    """No further progress is possible before another machine has used the folder."""

    exit_code = 0


def _ways(mark: str) -> tuple[Direction, Direction]:
    run = hashlib.sha256(b"fedgossip 1 invite through a folder " + mark.encode()).digest()[:16]
    return Direction(run, 1, 0), Direction(run, 0, 1)


@dataclass(slots=True)
class _Guest:
    key: str
    reader: PairReader
    writer: PairWriter
    asked: dict[int, AnyMessage | None]
    """Requests in the folder, by number; None: unreadable."""
    replied: dict[int, bytes]
    """Hashes of the replies."""
    wrong: int = 0


class InviteFolder:
    """The organiser's end, like an `InviteServer`.  `poll_seconds` between two looks; 0: `serve` raises AwaitedError
    instead of looking a second time.
    """

    def __init__(self, root: Path, admission: InviteAdmission, poll_seconds: float) -> None:
        """Raises ConfigError if the folder does not exist."""
        check_folder(root)
        self.root, self.admission, self.poll_seconds = root, admission, poll_seconds
        self.refused = 0
        self.fault = ""
        """Reason why the last reply was not written."""
        self._folder = root / f"{_INVITE}{admission.party.mark}"
        self._guests: dict[str, _Guest] = {}
        self._beside: threading.Thread | None = None
        self._closing = threading.Event()

    def serve(self, seconds: float) -> None:
        """Answer for at most `seconds`.  Raises AwaitedError if the folder is looked at only once."""
        if not self.poll_seconds:
            raise AwaitedError("waiting for the others")
        self._closing.wait(min(seconds, self.poll_seconds))
        self.look()

    def announce(self) -> None:
        """Answer the waiting guests that the run begins."""
        self.look()

    def serve_beside(self) -> None:
        """Answer in a separate thread until `close`; with a single look, answer all now."""
        if self.poll_seconds:
            self._beside = guarded_thread(self._serve_on, "invites")
            self._beside.start()

    def close(self) -> None:
        """Stop answering; the replies stay in the folder."""
        self._closing.set()
        if self._beside:
            self._beside.join()

    def _serve_on(self) -> None:
        while not self._closing.wait(self.poll_seconds):
            self.look()

    def look(self) -> None:
        """Answer all requests in the folder now."""
        self.fault = ""
        known = [f"{_GUEST}{raw(one.key).hex()}" for one in self.admission.party.guests.values()]
        others = (name for name in names_in(self._folder, _GUEST) if name not in known)
        present = {name: self._guests.get(name) or self._guest(name) for name in [*known, *islice(others, GUESTS_MAX)]}
        self._guests = {name: one for name, one in present.items() if one}
        for guest in self._guests.values():
            self._answer_all(guest)

    def _guest(self, name: str) -> _Guest | None:
        """Return a folder's guest; None if its name is not a key."""
        if not (found := _KEY.fullmatch(name)):
            return None
        key, own = bytes.fromhex(found[1]), self.admission.organiser
        asks, replies = _ways(self.admission.party.mark)
        try:
            secrets = PairSecrets(agreed(raw(own.secret), key))
        except ValueError:  # of low order
            return None
        reader = PairReader(self.root, self._folder / name, asks, QUESTION_BYTES, secrets)
        writer = PairWriter(self.root, self._folder / name, replies, raw(own.public), secrets)
        return _Guest(z85.encode(key).decode(), reader, writer, {}, {})

    def _answer_all(self, guest: _Guest) -> None:
        names = islice(names_in(guest.reader.folder), LISTED)
        found = {int(one[0]) for name in names if (one := _NUMBER.match(name))}
        numbers = sorted(found)[:QUESTIONS]
        guest.asked = {number: guest.asked[number] for number in numbers if number in guest.asked}
        for number in numbers:
            if guest.wrong >= WRONG_MAX:
                break
            if number in guest.asked or self._read(guest, number):
                self._answer(guest, number)
        left = {int(one[0]) for name in names_in(guest.writer.folder) if (one := _NUMBER.match(name))}
        for number in left - found:  # its guest has the reply
            guest.writer.drop(number, number)
            guest.replied.pop(number, None)

    def _read(self, guest: _Guest, number: int) -> bool:
        try:
            taken = guest.reader.take(MESSAGE, number)
            if taken is None:
                return False
        except (FrameError, OSError):  # it may be complete at the next look
            self.refused += 1
            return False
        try:
            guest.asked[number] = message_in(taken[1], Assembler(None))
        except FrameError:
            guest.asked[number] = None
        return True

    def _answer(self, guest: _Guest, number: int) -> None:
        """Write the reply, if it is new."""
        message = guest.asked[number]
        there = guest.writer.size(MESSAGE, number) is not None
        if there and not isinstance(message, Enrol):
            return
        try:
            answer: AnyMessage = self.admission.answer(guest.key, message, time.time())
        except NotWrittenError:  # no admission of a key that would be forgotten
            answer = TurnedAway("disk")
        content = content_of(answer)
        digest = hashlib.sha256(_lasting(answer)).digest()
        if there and guest.replied.get(number) == digest:
            return
        try:
            guest.writer.put(MESSAGE, number, content)
        except OSError as error:
            self.fault = f"{self.root} cannot be written: {error.strerror or error}; it is tried again"
            return
        guest.wrong += isinstance(answer, TurnedAway)
        guest.replied[number] = digest


def _lasting(answer: AnyMessage) -> bytes:
    """Return a reply without the number of seconds left."""
    return repr(answer.here).encode() if isinstance(answer, Gathering) else content_of(answer)


class FolderClient:
    """A guest's end, like an `InviteClient`.  `own`: a private folder, for the replies.

    `poll_seconds`: maximum time between two looks; 0: `ask` raises AwaitedError without a reply.  `patience`: maximum
    wait, in seconds.
    """

    def __init__(
        self, invitation: Invitation, identity: Identity, root: Path, own: Path, poll_seconds: float, patience: float
    ) -> None:
        """Raises ConfigError if the folder does not exist."""
        check_folder(root)
        self.invitation, self.identity, self.root, self.reached = invitation, identity, root, ""
        self._own, self._poll_seconds, self._patience = own, poll_seconds, patience
        mine = raw(identity.public)
        place = root / f"{_INVITE}{invitation.mark}" / f"{_GUEST}{mine.hex()}"
        asks, replies = _ways(invitation.mark)
        try:
            secrets = PairSecrets(agreed(raw(identity.secret), raw(invitation.key)))
        except ValueError:  # of low order
            raise ConfigError("the invite names a key that is none", ASK_ANEW) from None
        self._writer = PairWriter(root, place, asks, mine, secrets)
        self._reader = PairReader(root, place, replies, HEADER_BYTES_MAX + 2 * FILE_PART, secrets)
        self._reader.process = raw(invitation.key)

    @property
    def who(self) -> Invited:
        """Common first part of every request."""
        return who_asks(self.invitation, self.identity)

    def ask(self, question: AnyMessage, seconds: float = ANSWER_SECONDS) -> Invitations:  # noqa: ARG002
        """Return the reply; for a request to take part, the newest one.

        Raises AwaitedError without one at a single look, NetworkError without one in time, PeerError for a refusal.
        """
        (answer,) = self.ask_all([question])
        return answer

    def ask_all(self, questions: Sequence[AnyMessage]) -> Iterator[Invitations]:
        """Yield the reply to each; all requests are written before the first wait.  Raises as `ask`."""
        for number, content in (asked := [self._numbered(one) for one in questions]):
            if self._load_reply(number) is None and self._writer.size(MESSAGE, number) is None:
                self._put(number, content)
        for number, _ in asked:
            yield self._reply(number)

    def _numbered(self, question: AnyMessage) -> tuple[int, bytes]:
        """Return a request's number and content; the number is new after a refusal."""
        content = content_of(question)
        for attempt in count():
            about = hashlib.sha256(content + attempt.to_bytes(4, "big")).digest()
            number = int.from_bytes(about[:8], "big") | 1 << 63  # as many digits for each
            if attempt >= REFUSALS_MAX or not isinstance(self._load_reply(number), TurnedAway):
                return number, content
        raise AssertionError

    def _path(self, number: int) -> Path:
        return self._own / f"{number}.fgm"

    def _load_reply(self, number: int) -> Invitations | None:
        try:
            sealed = parsed(outside_files.read_bytes(self._path(number), self._reader.limit))
            return _reply_in(sealed.content(self._reader.secrets))
        except (OSError, FrameError):
            return None

    def _put(self, number: int, content: bytes) -> None:
        try:
            self._writer.put(MESSAGE, number, content)
        except OSError as error:
            text = f"{self.root} cannot be written: {error.strerror or error}"
            raise NetworkError(text, "Make room there, or let this user write; then type the same again.") from None

    def _reply(self, number: int) -> Invitations:
        until, rest, cause = time.monotonic() + self._patience, BUSY_SECONDS, ""
        while True:
            if (kept := self._load_reply(number)) is not None:
                return _accepted(kept)
            try:
                if found := self._reader.take(MESSAGE, number):
                    return self._took(number, found[0].data, _reply_in(found[1]))
            except (OSError, FrameError) as error:
                cause = f": {reason(error)}"
            if not self._poll_seconds:
                raise AwaitedError(f"waiting for the organiser to be at {self.root}{cause}")
            if time.monotonic() > until:
                text = f"the organiser has not answered in {self.root}{cause}"
                raise NetworkError(text, "Is it the folder that the organiser sees, and does `fedgossip host` look?")
            time.sleep(rest)
            rest = min(rest * GROWTH, self._poll_seconds)

    def _took(self, number: int, data: bytes, reply: Invitations) -> Invitations:
        if not isinstance(reply, Gathering):
            try:
                owner_files.make_folder(self._own)
                owner_files.placed(self._path(number), data)
            except OSError as error:
                raise NotWrittenError(self._path(number), error) from None
            self._writer.drop(number, number)
        return _accepted(reply)


def _reply_in(content: bytes) -> Invitations:
    """Return the reply of a file.  Raises FrameError."""
    message = message_in(content, Assembler(None))
    if not isinstance(message, Invitations):
        raise FrameError("message", f"a {type(message).__name__} in the place of a reply")
    return message


def _accepted(reply: Invitations) -> Invitations:
    """Return a reply.  Raises PeerError for a refusal."""
    if isinstance(reply, TurnedAway):
        raise refusal_error(reply)
    return reply


def check_folder(root: Path) -> None:
    """Raise ConfigError if the folder does not exist."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder", "Make it, or mount it; a run makes only folders inside.")
