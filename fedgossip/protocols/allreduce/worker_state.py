"""The state of the descent at one worker: its completed rounds, and the transfer of its state to and from others.

Trained updates that are in no mean so far, with fragments:

    closed --opened(update): the fragment of this round is sent--> open --settled(later round)--> closed

A worker trains from the model plus its unsent updates, so that none are lost; and, while the mean of a round is
computed, plus those sent for it.  If the others complete a round without this worker, its training of that round is
lost; older unsent updates stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedgossip.algorithms.descent.base import Descent, DescentState, stepped, stepped_by_momentum
from fedgossip.algorithms.gossip.base import restored, saved
from fedgossip.algorithms.gossip.fragments import Fragments
from fedgossip.algorithms.gossip.running_statistics import counted, joined
from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import Vector, add, digest, frozen
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Report, RoundDone
from fedgossip.core.messages import StatePiece, StateQuery
from fedgossip.protocols.allreduce.coded_fragments import LEFT_OUT, RoundCoding
from fedgossip.protocols.state_transfer import StateDonor, StateFetch

GROUP = "group"
"""Key of the view in the facts of a checkpoint."""


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
        """The start of this worker's training, [d]."""
        return self.unsent.start(self.model)

    @property
    def digest(self) -> str:
        return digest([self.model])

    def resume(self, checkpoint: Checkpoint) -> Any:
        """Restore a checkpoint; return the facts of the group."""
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
        """The point moved by the momentum alone, [d]: the start of the next training while this round is summed."""
        part = self.unsent.fragments.part(self.round)
        state: DescentState = stepped_by_momentum(self.descent, self.state, part, self.rate(self.round))
        return self.unsent.ahead(state.x)

    def step(self, mean: Vector, waiting_bytes: int) -> list[Effect]:
        """Take the step of this round along its mean, [fragment], with `waiting_bytes` still to be sent."""
        part = self.unsent.fragments.part(self.round)
        after = stepped(self.descent, self.state, part, mean, self.rate(self.round))
        return self._stands(self.round + 1, after, waiting_bytes)

    def _stands(self, round: int, state: Any, waiting_bytes: int = 0) -> list[Effect]:
        """Store the state after `round` rounds; an earlier view may have recorded that round before."""
        self.round, self.state = round, state
        self.donor.forget()
        self.unsent.settled(round)
        if self.coded:
            self.coded.settled(round)
        new, self.told = round > self.told, max(self.told, round)
        return [RoundDone(round, self.model, waiting_bytes=waiting_bytes)] if new else []

    def checkpoint(self, group: Mapping[str, object], *, durable: bool = False) -> Checkpoint:
        """Return the checkpoint for a later incarnation; `group`: the view."""
        arrays, numbers = saved(self.state)
        left_out = self.coded.saved if self.coded else {}
        return Checkpoint(self.round, {**arrays, **left_out, **self.unsent.saved}, {**numbers, GROUP: group}, durable)

    def give(self, sender: NodeId, asked: StateQuery) -> list[Effect]:
        """Reply to a worker behind this one."""
        return self.donor.answer(sender, asked, self.round, self.state)

    def take(self, sender: NodeId, piece: StatePiece) -> tuple[bool, list[Effect]]:
        """Return (whether the state is complete, effects).  Raises ProtocolError for a piece of another layout."""
        state, effects = self.fetch.take(sender, piece)
        if state is None:
            return False, effects
        fetched = Report("fetched", {"from": sender, "model_of_round": piece.rounds}, piece.rounds)
        return True, [fetched, *self._stands(piece.rounds, state)]


UNSENT = "unsent"
"""The name of this vector in a checkpoint."""


class UnsentUpdates:
    """Invariant: `rest` [d] covers all completed rounds, for a later incarnation; None: everything was sent."""

    def __init__(self, fragments: Fragments, statistics: int = 0) -> None:
        """`statistics`: number of averaged elements at the end of a model; with a single fragment only."""
        assert not statistics or fragments.count == 1, "a statistic that waits for its round is no sum"
        self.fragments, self._statistics = fragments, statistics
        self._model: Vector | None = None  # the model of the last training
        self.rest: Vector | None = None
        self._round = -1
        self._next: Vector | None = None
        self._grown: Vector | None = None  # of the last opened round: the sent and the unsent part together

    def start(self, model: Vector) -> Vector:
        """Return the start of this worker's training."""
        self._model = model
        return model if self.rest is None else add(model, self.rest)

    def ahead(self, model: Vector) -> Vector:
        """Return the same for the round after the open one, while its mean is computed."""
        assert self._grown is not None, "a round is open"
        return add(model, self._grown)

    def opened(self, update: Vector | None, round: int) -> Vector:
        """Add the update of a round; return the fragment of all unsent updates to send, [fragment]."""
        assert update is not None, "an update was asked for"
        if self._statistics:
            assert self._model is not None, "a training has begun"
            update = joined(update, counted(self._model, update, update.size - self._statistics))
        self._round, self._next = round, None
        self._grown = grown = update if self.rest is None else add(self.rest, update)
        if self.fragments.count == 1:
            return grown
        part, left = self.fragments.part(round), grown.copy()
        left[part] = 0
        self._next = frozen(left)
        return grown[part]

    def settled(self, rounds: int) -> None:
        """Close the round after this number of completed rounds: with or without this worker in the last one."""
        if self._round == rounds - 1:
            self.rest = self._next
        self._round, self._next = -1, self.rest

    @property
    def saved(self) -> Mapping[str, Vector]:
        """The vectors of a checkpoint."""
        return {} if self.rest is None else {UNSENT: self.rest}

    def resume(self, vectors: Mapping[str, Vector]) -> None:
        """Restore the vectors of a checkpoint.  Raises ResumeError for those of other fragments."""
        rest = vectors.get(UNSENT)
        if rest is not None and (self.fragments.count == 1 or rest.size != self.fragments.cuts[-1]):
            text = f"the checkpoint holds {rest.size} elements that were trained and not sent"
            raise ResumeError(text, "Go on with parallel.outer.fragments as it was.")
        self.rest = self._next = rest
