"""The state of the descent at one worker: its completed rounds, and the transfer of its state to and from others."""

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
"""The entry of the view among the facts of a checkpoint."""


class WorkerState:
    """`rate`: step size by round; `unsent`: updates to be sent later; `coded`: the codec of the contributions.

    Invariant: a round is recorded once, also when it is repeated.
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
        self.told = 0  # the last recorded round

    @property
    def model(self) -> Vector:
        state: DescentState = self.state
        return state.x

    @property
    def start(self) -> Vector:
        """The vector that this worker trains from, [d]."""
        return self.unsent.start(self.model)

    @property
    def digest(self) -> str:
        return digest([self.model])

    def resume(self, checkpoint: Checkpoint) -> Any:
        """Restore a checkpoint; return its facts of the group."""
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
        """The vector that this worker trains from for the next round while the mean of this one is computed, [d].

        Its present point, moved by the momentum alone.
        """
        part = self.unsent.fragments.part(self.round)
        state: DescentState = stepped_by_momentum(self.descent, self.state, part, self.rate(self.round))
        return self.unsent.ahead(state.x)

    def step(self, mean: Vector, waiting_bytes: int) -> list[Effect]:
        """Take the step of this round along its mean, [fragment], with so many bytes still to be sent."""
        part = self.unsent.fragments.part(self.round)
        after = stepped(self.descent, self.state, part, mean, self.rate(self.round))
        return self._stands(self.round + 1, after, waiting_bytes)

    def _stands(self, round: int, state: Any, waiting_bytes: int = 0) -> list[Effect]:
        """Store the state after so many rounds; an earlier view may have recorded that round before."""
        self.round, self.state = round, state
        self.donor.forget()
        self.unsent.settled(round)
        if self.coded:
            self.coded.settled(round)
        new, self.told = round > self.told, max(self.told, round)
        return [RoundDone(round, self.model, waiting_bytes=waiting_bytes)] if new else []

    def checkpoint(self, group: Mapping[str, object], *, durable: bool = False) -> Checkpoint:
        """Return the checkpoint for a next life; `group`: the view."""
        arrays, numbers = saved(self.state)
        left_out = self.coded.saved if self.coded else {}
        return Checkpoint(self.round, {**arrays, **left_out, **self.unsent.saved}, {**numbers, GROUP: group}, durable)

    def give(self, sender: NodeId, asked: StateQuery) -> list[Effect]:
        """Reply to a worker that is behind."""
        return self.donor.answer(sender, asked, self.round, self.state)

    def take(self, sender: NodeId, piece: StatePiece) -> tuple[bool, list[Effect]]:
        """Return (whether the state is complete, effects).  Raises ProtocolError for a piece of another layout."""
        state, effects = self.fetch.take(sender, piece)
        if state is None:
            return False, effects
        fetched = Report("fetched", {"from": sender, "model_of_round": piece.rounds}, piece.rounds)
        return True, [fetched, *self._stands(piece.rounds, state)]
