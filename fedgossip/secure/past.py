"""A client's memory of its sessions, over all its lives: a vector that it masks must stand in one sum only.

Two sums that differ by one client give that client's input away.  Batches and rounding follow from the round, so that
all others' inputs of two sessions of one round are equal to the last bit; therefore a client masks once in a round of
the run, and rounds only go up.  A round that was masked and has no sum is lost: the next one takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.session import Descriptor, round_of

UNFINISHED = 64
"""Maximum number of inputs of sessions without a result that are remembered, so that none is masked again."""


class Past:
    """The memory of one client.  It only grows, by a bit for each client of each new cohort."""

    def __init__(self) -> None:
        self.session = -1
        """The last session that was joined."""
        self.round = -1
        """The last round of the run in which something was masked."""
        self._cohorts: set[int] = set()
        self._unfinished: dict[int, bytes] = {}  # the input masked in each session, the oldest first

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

    def mask(self, descriptor: Descriptor, fingerprint: bytes) -> None:
        """Note that an input is masked in this session.  Raises RoundAbandoned where it must not be."""
        self._check_sum(descriptor, Stage.MASKED)
        if fingerprint in self._unfinished.values():
            what = "this input was masked in a session that had no result; train again"
            raise RoundAbandoned(Reason.TWICE, what, stage=Stage.MASKED)
        self.masked(descriptor.round, descriptor.cohort, fingerprint)

    def masked(self, session: int, cohort: Iterable[int], fingerprint: bytes) -> None:
        self.round = max(self.round, round_of(session))
        self._cohorts.add(_bits(tuple(cohort)))
        self._unfinished[session] = fingerprint
        if len(self._unfinished) > UNFINISHED:
            del self._unfinished[next(iter(self._unfinished))]

    def summed(self, session: int) -> None:
        """Note that the session had a result: its input is in a sum, once."""
        self._unfinished.pop(session, None)

    @property
    def unfinished(self) -> Mapping[int, bytes]:
        """The inputs masked in sessions that had no result here."""
        return self._unfinished


@lru_cache(maxsize=8)
def _bits(cohort: tuple[int, ...]) -> int:
    """Return a cohort as one number, a bit for each member, so that hundreds of cohorts can be remembered."""
    return sum(1 << member for member in cohort)
