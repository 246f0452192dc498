"""A client's memory of its sessions, over all restarts: a masked vector must be in one sum only.

Two sums that differ by one client disclose that client's input, and batches and rounding follow from the round:
therefore a client masks once in a round of the run, and rounds only increase.  A masked round without a sum is lost.

Training on all examples repeats its update at the same model.  Such an input is masked again, but the client consents
to one set of survivors for it, over sessions and lives, until one has a result: two sums that differ by one client
would need an honest client's consent to both.

Exact sums have no randomness; all of them, in later runs of the same numbers too, are over the first sum's clients
(`RingEncoding.together`), and more than two thirds consent to these.  The same input may be masked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec

from fedgossip.base.decoding import from_msgpack
from fedgossip.base.vectors import Vector
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.session import Descriptor, round_of

UNFINISHED = 64
"""Maximum number of stored inputs of sessions without a result."""

UNRECORDED = "?"
"""The survivors of a consent in the log of the release before, which had their number alone."""


@dataclass(frozen=True, eq=False)
class AskedBefore:
    """A client's last request: the round, and the received vector, [d].

    `clients`: of its sum; `sum_digest`: its signed hash; 0 and b"" for a session that ended earlier.  `whole`: the next
    vector has that sum; otherwise it has one of more clients, of which this was a leaf coordinator's part.
    """

    round: int
    model: Vector
    clients: int = 0
    sum_digest: bytes = b""
    whole: bool = True

    def miscounted(self, clients: int) -> str:
        """Return why the next vector cannot have sums over this number of clients; "" if it can."""
        if self.whole and self.clients and clients != self.clients:
            return f"sums of {clients} sites, where {self.clients} were signed"
        if clients < self.clients:
            return f"sums of {clients} sites, and its own leaf coordinator has signed {self.clients}"
        return ""


class Questions(Protocol):
    """A client's check of a request before its reply."""

    def check(self, node: int, round: int, model: Vector, before: AskedBefore | None) -> None:
        """Raise RoundAbandoned (POINT) for a request to refuse; `before`: None for the first one."""


class Past:
    """The memory of one client.  It only grows, by a bit for each client of each new cohort."""

    def __init__(self) -> None:
        self.session = -1
        """The last joined session."""
        self.round = -1
        """The last round of the run with a masked input."""
        self.company = ""
        """The hash of the clients of the sums that this one consented to, in hex; "" before."""
        self.members = ""
        """Their ids, as text; "" for another run."""
        self._cohorts: set[int] = set()
        self._unfinished: dict[int, bytes] = {}  # the input masked in each session without a result, the oldest first
        self._agreed: dict[bytes, str] = {}  # the survivors consented to with it; "" before a consent, the oldest first

    def check(self, descriptor: Descriptor) -> None:
        """Raise RoundAbandoned for a session that must not be joined."""
        d = descriptor
        if d.round <= self.session:
            raise RoundAbandoned(Reason.REPLAY, f"session {d.round} after session {self.session}", stage=Stage.KEYS)
        self._check_sum(d, Stage.KEYS)

    def _check_sum(self, d: Descriptor, stage: Stage) -> None:
        if round_of(d.round) <= self.round:
            what = f"round {round_of(d.round)}, and this client has masked what it learned in round {self.round}"
            raise RoundAbandoned(Reason.REPLAY, what, stage=stage)
        bits = _bits(tuple(d.cohort))
        if any((bits ^ before).bit_count() == 1 for before in self._cohorts):
            what = "one client more or less than in an earlier sum: their difference would be its input"
            raise RoundAbandoned(Reason.POLICY, what, stage=stage)

    def joined(self, session: int) -> None:
        self.session = max(self.session, session)

    def mask(self, descriptor: Descriptor, fingerprint: bytes, *, together: bool = False) -> None:
        """Record a masked input of this session.  Raises RoundAbandoned if masking is not allowed.

        `together`: all sums are over the same clients.
        """
        self._check_sum(descriptor, Stage.MASKED)
        if not together and self._agreed.get(fingerprint) == UNRECORDED:
            what = "this input may be in a sum already, of clients that the log of an earlier release does not name"
            raise RoundAbandoned(Reason.TWICE, what, stage=Stage.MASKED)
        self.masked(descriptor.round, descriptor.cohort, fingerprint)

    def masked(self, session: int, cohort: Iterable[int], fingerprint: bytes) -> None:
        self.round = max(self.round, round_of(session))
        self._cohorts.add(_bits(tuple(cohort)))
        self._unfinished[session] = fingerprint
        self._agreed.setdefault(fingerprint, "")
        if len(self._agreed) > UNFINISHED:
            self._forget(next(iter(self._agreed)))

    def _forget(self, fingerprint: bytes) -> None:
        self._agreed.pop(fingerprint, None)
        self._unfinished = {session: other for session, other in self._unfinished.items() if other != fingerprint}

    def agree(self, session: int, survivors: str) -> None:
        """Record the survivors of a sum, as text.  Raises RoundAbandoned (TWICE) if this input had others."""
        if (fingerprint := self._unfinished.get(session)) is None:
            return
        if (before := self._agreed.get(fingerprint, "")) and survivors != before:
            what = (
                f"this update was put into a sum of clients {before}, whose result never arrived here, and is to be put"
            )
            difference = "their difference would disclose who differs; bring the same clients back, or begin a new run"
            raise RoundAbandoned(Reason.TWICE, f"{what} into one of {survivors}: {difference}", stage=Stage.CONSIST)
        self._agreed[fingerprint] = survivors

    def consent(self, session: int, company: str, members: str) -> None:
        """Record the clients of an exact sum.  Raises RoundAbandoned if earlier ones were others."""
        if self.company and company != self.company:
            others = f"of {self.members}" if self.members else "of others, in a run before"
            what = (
                f"the coordinator asks in round {round_of(session)} for a sum of clients {members}; this client's are"
            )
            difference = "their difference would disclose the client that differs"
            raise RoundAbandoned(Reason.COMPANY, f"{what} {others}: {difference}", stage=Stage.CONSIST)
        self.company, self.members = company, members

    def summed(self, session: int) -> None:
        """Record the session's result: its input is in a sum, once."""
        if (fingerprint := self._unfinished.get(session)) is not None:
            self._forget(fingerprint)

    def state(self) -> bytes:
        """Return the whole memory as bytes, for `Past.from_state`."""
        cohorts = [bits.to_bytes(-(-bits.bit_length() // 8), "little") for bits in sorted(self._cohorts)]
        saved = _Saved(
            self.session, self.round, self.company, self.members, cohorts, self._unfinished, list(self._agreed.items())
        )
        return msgspec.msgpack.encode(saved)

    @classmethod
    def from_state(cls, state: bytes) -> Past:
        """Return the memory in the bytes of `state`.  Raises UnreadableError."""
        saved, past = from_msgpack(_SAVED, state), cls()
        past.session, past.round, past.company, past.members = saved.session, saved.round, saved.company, saved.members
        past._cohorts = {int.from_bytes(bits, "little") for bits in saved.cohorts}
        past._unfinished, past._agreed = saved.unfinished, dict(saved.agreed)
        return past

    @property
    def unfinished(self) -> Mapping[int, bytes]:
        """Return the inputs masked in sessions without a result here."""
        return self._unfinished


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A `Past` on disk."""

    session: int
    round: int
    company: str
    members: str
    cohorts: list[bytes]
    unfinished: dict[int, bytes]
    agreed: list[tuple[bytes, str]]


_SAVED = msgspec.msgpack.Decoder(_Saved)


@lru_cache(maxsize=8)
def _bits(cohort: tuple[int, ...]) -> int:
    """Return a cohort as one number, a bit for each member: compact for hundreds of cohorts."""
    return sum(1 << member for member in cohort)
