"""What one worker has trained and not brought to any mean yet: the fragments whose round has not come.

    closed --opened(update): the fragment of this round goes out--> open --settled(later round)--> closed

A worker trains from the model plus what it has not sent, so that it never forgets what it has learned; and, while the
mean of a round is under way, plus what it has sent for that.  A round that the others did without this worker takes its
training with it, as without fragments; what it had not sent before stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedgossip.algorithms.gossip.fragments import Fragments
from fedgossip.algorithms.gossip.running_statistics import counted, joined
from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import Vector, add, frozen

UNSENT = "unsent"
"""The name of this vector in a checkpoint."""


class UnsentUpdates:
    """Invariant: `rest` [d] is what a next life begins with; None: all was sent."""

    def __init__(self, fragments: Fragments, statistics: int = 0) -> None:
        """`statistics`: elements at the end of a model that are averaged as they are; of one fragment alone."""
        assert not statistics or fragments.count == 1, "a statistic that waits for its round is no sum"
        self.fragments, self._statistics = fragments, statistics
        self._model: Vector | None = None  # what the last training began with
        self.rest: Vector | None = None
        self._round = -1
        self._next: Vector | None = None
        self._grown: Vector | None = None  # in the round that was opened last: what goes out of it, and what does not

    def start(self, model: Vector) -> Vector:
        """Return what this worker trains from."""
        self._model = model
        return model if self.rest is None else add(model, self.rest)

    def ahead(self, model: Vector) -> Vector:
        """Return the same for the round after the one that is open, whose mean is under way."""
        assert self._grown is not None, "a round is open"
        return add(model, self._grown)

    def opened(self, update: Vector | None, round: int) -> Vector:
        """Add what was trained in a round; return what goes out of all that, [fragment]."""
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
        """So many rounds are behind the worker: the last of them was its own, or it was not there."""
        if self._round == rounds - 1:
            self.rest = self._next
        self._round, self._next = -1, self.rest

    @property
    def saved(self) -> Mapping[str, Vector]:
        """What a checkpoint holds."""
        return {} if self.rest is None else {UNSENT: self.rest}

    def resume(self, vectors: Mapping[str, Vector]) -> None:
        """Go on from what a checkpoint holds.  Raises ResumeError for what cannot be of these fragments."""
        rest = vectors.get(UNSENT)
        if rest is not None and (self.fragments.count == 1 or rest.size != self.fragments.cuts[-1]):
            text = f"the checkpoint holds {rest.size} elements that were trained and not sent"
            raise ResumeError(text, "Go on with parallel.outer.fragments as it was.")
        self.rest = self._next = rest
