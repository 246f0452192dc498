"""The state of the descent at one worker: the rounds that are behind it, and what others are given of it, or give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedgossip.algorithms.descent.base import Descent, DescentState, stepped, stepped_by_momentum
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Report, RoundDone
from fedgossip.core.messages import StatePiece, StateQuery
from fedgossip.protocols.allreduce.coded_fragments import RoundCoding
from fedgossip.protocols.allreduce.coded_gradients import LEFT_OUT
from fedgossip.protocols.allreduce.unsent_updates import UNSENT, UnsentUpdates
from fedgossip.protocols.transfer.state_fetch import StateDonor, StateFetch

GROUP = "group"
"""In the facts of a checkpoint: the view."""


class WorkerState:
    """`rate` gives that of each round's step; `unsent`: what this worker has trained that goes out later; `coded`: how
    what goes out does so by a codec.

    Invariant: a round is told to the record once, whatever comes of it.
    """

    def __init__(
        self,
        descent: Descent[Any],
        initial: Vector,
        rate: Callable[[int], float],
        fetch: StateFetch,
        unsent: UnsentUpdates,
        coded: RoundCoding | None = None,
    ) -> None:
        self.descent, self.rate, self.fetch, self.unsent, self.coded = descent, rate, fetch, unsent, coded
        self.donor = StateDonor(fetch.schema)
        self.round, self.state = 0, descent.start(initial)
        self.told = 0  # the last round that the record has

    @property
    def model(self) -> Vector:
        state: DescentState = self.state
        return state.x

    @property
    def start(self) -> Vector:
        """What this worker trains from, [d]."""
        return self.unsent.start(self.model)

    @property
    def digest(self) -> str:
        return digest([self.model])

    def resume(self, checkpoint: Checkpoint) -> Any:
        """Go on from a life before; return what it had written of the group."""
        facts = dict(checkpoint.facts)
        group = facts.pop(GROUP)
        self.round = self.told = checkpoint.round
        shared = {name: one for name, one in checkpoint.vectors.items() if not name.startswith((LEFT_OUT, UNSENT))}
        self.state = restored(self.state, shared, facts)
        self.unsent.resume(checkpoint.vectors)
        if self.coded:
            self.coded.resume(checkpoint.vectors)
        return group

    @property
    def ahead(self) -> Vector:
        """What this worker trains from for the next round while the mean of this one is under way, [d].

        Where it is, moved as the momentum moves the model by itself.
        """
        part = self.unsent.fragments.part(self.round)
        state: DescentState = stepped_by_momentum(self.descent, self.state, part, self.rate(self.round))
        return self.unsent.ahead(state.x)

    def step(self, mean: Vector, waiting_bytes: int) -> list[Effect]:
        """Take the step of this round along its mean, [fragment], for which so many bytes have still to leave."""
        part = self.unsent.fragments.part(self.round)
        after = stepped(self.descent, self.state, part, mean, self.rate(self.round))
        return self._stands(self.round + 1, after, waiting_bytes)

    def _stands(self, round: int, state: Any, waiting_bytes: int = 0) -> list[Effect]:
        """The state after so many rounds is here; one of a view that came to nothing may have been told before."""
        self.round, self.state = round, state
        self.donor.forget()
        self.unsent.settled(round)
        if self.coded:
            self.coded.settled(round)
        new, self.told = round > self.told, max(self.told, round)
        return [RoundDone(round, self.model, waiting_bytes=waiting_bytes)] if new else []

    def checkpoint(self, group: Mapping[str, object], *, durable: bool = False) -> Checkpoint:
        """Return all that a next life needs; `group`: the view."""
        arrays, numbers = saved(self.state)
        left_out = self.coded.saved if self.coded else {}
        return Checkpoint(self.round, {**arrays, **left_out, **self.unsent.saved}, {**numbers, GROUP: group}, durable)

    def give(self, sender: NodeId, asked: StateQuery) -> list[Effect]:
        """Answer one that is behind."""
        return self.donor.answer(sender, asked, self.round, self.state)

    def take(self, sender: NodeId, piece: StatePiece) -> tuple[bool, list[Effect]]:
        """(whether the state is whole, what to do).  Raises ProtocolError for a piece of no such state."""
        state, effects = self.fetch.take(sender, piece)
        if state is None:
            return False, effects
        fetched = Report("fetched", {"from": sender, "model_of_round": piece.rounds}, piece.rounds)
        return True, [fetched, *self._stands(piece.rounds, state)]
