"""The account of one edge of synchronous gossip: in every round both ends mix each other's model, or neither does.

A mixing keeps the mean because what i takes of j, j takes of i.  Where a message is late or lost, one end may have
mixed and the other not.  Nothing is asked while nothing is lost: every model carries two numbers of its edge,

    used      the last round in which the sender mixed a model of the receiver
    missing   the round that the sender had to mix without one, and for which this is not settled yet

    i mixed round s without j's model, and had sent its own: it may have been mixed at j.   i: open(s)
    from now on i says missing = s, and neither end mixes over this edge until it is settled:
      j says used = s:                     j has mixed.  i adds w (x_j - x_i), both of round s, when x_j is there;
                                           j sends it again to who misses it
      j says used < s, in a later round:   j has not.  The edge did not count in round s
      j leaves with used < s:              neither will it

What j mixed in round s is settled when j has that round behind it, so each saying is true for ever: it may be repeated,
reordered and lost.  At most one round per edge is open, so memory is bounded.

Source: none; the idea of compensating lost mass is that of running-sum ratio consensus (Hadjicostis, Vaidya and
Dominguez-Garcia 2016), turned around: there every edge keeps sums for ever, here only one that has lost a message does.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.base.vectors import Vector
from fedgossip.core.messages import Model


@dataclass(slots=True)
class Open:
    """Round `round` was mixed without the partner's model, which may have mixed ours."""

    round: int
    weight: float
    own: tuple[Vector, ...]
    theirs: tuple[Vector, ...] | None = None
    counted: bool = False


@dataclass(slots=True)
class Edge:
    """One end's account with one partner."""

    used: int = -1
    offered: int = -1
    """The last round in which our model went out while nothing was open: the partner may mix it."""
    confirmed: bool = True
    """Whether the partner is known to have our model of round `used`: it may ask for it until then."""
    open: Open | None = None
    helped: tuple[int, int, int] = (-1, 0, 0)
    """The round for which the partner got our model again, how often, and when."""

    def may_help(self, round: int, now_ns: int, again_ns: int) -> bool:
        """Whether to send our model of `round` again now: at once, then after longer and longer waits."""
        of, times, at_ns = self.helped
        if of != round:
            times = 0
        elif now_ns < at_ns + again_ns * 2 ** min(times - 1, 3):
            return False
        self.helped = round, times + 1, now_ns
        return True

    @property
    def missing(self) -> int:
        return -1 if self.open is None else self.open.round

    def offer(self, round: int) -> None:
        """Our model of `round` goes out with this account."""
        if self.open is None:
            self.offered = round

    def missed(self, round: int, weight: float, own: tuple[Vector, ...]) -> None:
        """`round` is mixed without the partner's model; it may have mixed ours if we offered it."""
        if self.offered == round:
            self.open = Open(round, weight, own)

    def heard(self, round: int, used: int, missing: int) -> None:
        """The partner, in `round`, says this of its own account."""
        if self.open is not None:
            if used == self.open.round:
                self.open.counted = True
            elif round > self.open.round:
                self.open = None
        if round > self.used != missing:
            self.confirmed = True

    def parted(self, rounds: int) -> None:
        """The partner has said what it mixed in its `rounds`, and mixes in no later one, whatever went out to it."""
        if self.offered >= rounds:
            self.offered = -1
        if self.open is not None and not self.open.counted:
            self.open = None

    def late(self, model: Model) -> None:
        """A model of a round that is behind us: it may be the one that is missing."""
        if self.open and model.round == self.open.round and self.open.theirs is None:
            self.open.theirs = model.vectors

    def repair(self) -> Open | None:
        """Return what has to be added now, and close it; None where there is nothing, or not all of it is here."""
        if self.open is None or not self.open.counted or self.open.theirs is None:
            return None
        repaired, self.open = self.open, None
        return repaired

    @property
    def settled(self) -> bool:
        return self.open is None and self.confirmed
