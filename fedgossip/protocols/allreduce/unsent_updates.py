"""One worker's trained updates that no mean contains yet: the fragments that await their round.

    closed --opened(update): the fragment of this round goes out--> open --settled(later round)--> closed

A worker trains from the model plus its unsent updates, so that none are lost; and, while the mean of a round is
computed, plus those sent for it.  If the others complete a round without this worker, its training of that round is
lost, as without fragments; older unsent updates stay.
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
    """Invariant: `rest` [d] is that of all completed rounds, for a next life; None: all was sent."""

    def __init__(self, fragments: Fragments, statistics: int = 0) -> None:
        """`statistics`: elements at the end of a model that are averaged as they are; of one fragment alone."""
        assert not statistics or fragments.count == 1, "a statistic that waits for its round is no sum"
        self.fragments, self._statistics = fragments, statistics
        self._model: Vector | None = None  # the model of the last training
        self.rest: Vector | None = None
        self._round = -1
        self._next: Vector | None = None
        self._grown: Vector | None = None  # of the last opened round: the sent and the unsent part together

    def start(self, model: Vector) -> Vector:
        """Return the vector that this worker trains from."""
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
