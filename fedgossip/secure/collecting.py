"""The common part of the coordinator's steps: the session, and the single reply of each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from fedgossip.base.errors import ProtocolError
from fedgossip.secure import frames
from fedgossip.secure.aborts import Stage, too_few
from fedgossip.secure.primitives import Sign
from fedgossip.secure.session import Descriptor, ParticipantRoster

Answer = TypeVar("Answer")
Wanted = TypeVar("Wanted", bound=frames.Frame)


@dataclass(frozen=True, eq=False, repr=False)
class Session:
    """The facts that are constant over the steps; `sid` is sid0 until the keys are known."""

    roster: ParticipantRoster
    descriptor: Descriptor
    sid: bytes
    words: int
    sign: Sign
    neighbours: Mapping[int, tuple[int, ...]]
    keys: dict[int, frames.Keys] = field(default_factory=dict)

    def group(self, client: int) -> frozenset[int]:
        return frozenset((*self.neighbours[client], client))

    def pack(self, message: frames.Frame) -> bytes:
        return frames.pack(message, frames.COORDINATOR, self.sign)

    def check(self, stage: Stage, there: frozenset[int], what: str) -> None:
        """Raise RoundAbandoned where the session cannot succeed with the clients that are `there`.

        It needs n_min clients until the members of the sum are fixed, and the threshold from then on.
        """
        d = self.descriptor
        able = sum(len(self.group(client) & there) >= d.t for client in there)
        need = d.t if stage > Stage.MASKED else max(d.n_min, d.t)
        if able < need:
            raise too_few(stage, able, need, what)


class Collecting(Generic[Answer]):
    """A stage with one reply due from each client of `waiting`."""

    def __init__(self, session: Session, expected: frozenset[int]) -> None:
        self.session, self.expected = session, expected
        self._answers: dict[int, Answer] = {}
        self._closed = False

    @property
    def waiting(self) -> frozenset[int]:
        """Return the clients without a reply yet."""
        return self.expected - self._answers.keys()

    def _read(self, client: int, frame: bytes, kind: type[Wanted]) -> Wanted:
        """Return the client's message.  Raises ProtocolError where none is due."""
        if self._closed:
            raise frames.refused(client, "a frame for a stage that is over")
        if client not in self.expected:
            raise frames.refused(client, "not one of those that are asked")
        message = frames.from_client(frame, client, self.session.roster.identity(client))
        if not isinstance(message, kind) or message.sid != self.session.sid:
            raise frames.refused(client, f"{message!r} of another session, or where a {frames.name_of(kind)} is due")
        if client in self._answers:
            raise frames.refused(client, f"a second {message!r}")
        return message

    def _end(self) -> dict[int, Answer]:
        """Close the stage.  Raises ProtocolError where it is closed."""
        if self._closed:
            raise ProtocolError(f"{self!r} is over", "Use the step that its close() returned.")
        self._closed = True
        return self._answers

    def __repr__(self) -> str:
        there = f"{len(self._answers)} of {len(self.expected)}"
        return f"<{type(self).__name__} round {self.session.descriptor.round}, {there}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a step of a secure sum is neither copied nor pickled")
