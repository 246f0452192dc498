"""The algorithm's state at one peer, which is the only mathematics in a gossip machine; and the check of received
vectors.

    closed --trained(update): outgoing vectors--> open --mixed(the sums)--> closed
                                                       --abandoned--> closed, as before
                      corrected: at once when closed, after the mixing when open

Between training and mixing the state is still that of the last round: a peer that ends then ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from fedgossip.algorithms.gossip.base import GossipAlgorithm, State, Step, Vectors, restored, saved
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import Checkpoint, NodeId
from fedgossip.core.messages import ModelCarrier

PREFIX = "state/"
"""Prefix of the state's entries in a checkpoint: its arrays, and its numbers in the facts."""


class Learner(Generic[State]):
    """One peer's state; after a restart that of the checkpoint `resumed`.

    `outgoing` is empty if and only if no round is open.  Corrections are applied once each, in the order of arrival;
    none while a round is open, as exactly the sent vectors are mixed.
    """

    def __init__(self, algorithm: GossipAlgorithm[State], initial: Vector, resumed: Checkpoint | None = None) -> None:
        self.algorithm = algorithm
        self.state = algorithm.start(initial)
        if resumed:
            self.state = restored(self.state, _select_state(resumed.vectors), _select_state(resumed.facts))
        self.begun = self.state
        self.outgoing: Vectors = ()
        self.corrections: list[Vectors] = []
        self.changes = self.lent = 0  # number of corrections: now, and when the current training began
        self.given: Vector | None = None  # the model given to the current training
        self.staleness = 0
        """Number of corrections received while the last update was trained."""

    @property
    def model(self) -> Vector:
        """The model [d], to train from and to evaluate."""
        return self.algorithm.model(self.state)

    def begin_training(self) -> Vector:
        """Return the model [d] for a training that begins now."""
        self.lent, self.given = self.changes, self.model
        return self.given

    @property
    def seen(self) -> Vector:
        """The model [d] before the mixing of the outgoing vectors, for the records."""
        return self.algorithm.seen(self.begun, self.outgoing)

    @property
    def unmixed(self) -> Vector:
        """The model [d] after an open round without arrivals: from the peer's outgoing vectors."""
        return self.algorithm.model(self.algorithm.mixed(self.begun, self.outgoing))

    def trained(self, update: Vector | None, step: Step) -> Vectors:
        """Open a round: return the outgoing vectors, one per slot, frozen."""
        assert not self.outgoing, "the last round is not mixed"
        self.staleness = self.changes - self.lent
        if self.staleness:
            step = replace(step, given=self.given)
        self.begun, outgoing = self.algorithm.trained(self.state, update, step)
        self.outgoing = tuple([frozen(vector) for vector in outgoing])
        return self.outgoing

    def mixed(self, mixed: Vectors) -> None:
        """Close the round with the weighted sums, one per slot; then apply the pending corrections."""
        self.state = self.algorithm.mixed(self.begun, mixed)
        self._close()

    def abandoned(self) -> None:
        """Close an open round as if nothing had been trained; then apply the pending corrections."""
        self._close()

    def _close(self) -> None:
        self.outgoing, self.begun = (), self.state
        for differences in self.corrections:
            self.state = self.algorithm.corrected(self.state, differences)
        self.corrections.clear()

    def corrected(self, differences: Vectors) -> None:
        """Apply a late difference, one vector per slot; if a round is open, store it until the mixing."""
        self.changes += 1
        if self.outgoing:
            self.corrections.append(differences)
        else:
            self.state = self.algorithm.corrected(self.state, differences)

    def rejoined(self) -> None:
        """Continue with other participants: reset the state that tracks them."""
        assert not self.outgoing, "between rounds alone"
        self.state = self.algorithm.rejoined(self.state, self.model)

    def checkpoint(self, round: int, vectors: Mapping[str, Vector], facts: Mapping[str, object]) -> Checkpoint:
        """Return the checkpoint after `round` rounds: the state, and the machine's entries."""
        arrays, numbers = saved(self.state)
        named = {PREFIX + name: one for name, one in arrays.items()}
        if vectors:
            named.update(vectors)
        return Checkpoint(round, named, {**_add_prefix(numbers), **facts} if numbers else facts)


def _add_prefix(held: Mapping[str, Any]) -> dict[str, Any]:
    return {PREFIX + name: one for name, one in held.items()}


def _select_state(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): one for name, one in held.items() if name.startswith(PREFIX)}


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """`count` vectors [length] of type `kind`, as sent by `node`; `schema` is the hash of a vector's layout."""

    node: NodeId
    schema: str
    kind: np.dtype[Any]
    length: int
    count: int = 1

    def check(self, sender: NodeId, message: ModelCarrier) -> None:
        """Raise ProtocolError if the message's vectors have another layout."""
        vectors, shape = message.vectors, (self.length,)
        ours = message.schema == self.schema and len(vectors) == self.count
        for vector in vectors:
            if vector.shape != shape or vector.dtype != self.kind:
                ours = False
        if not ours:
            raise ProtocolError(
                f"node {self.node}: a model of another layout from node {sender}, round {message.round}"
                f" (schema {message.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )

    def check_values(self, sender: NodeId, message: ModelCarrier) -> None:
        """Raise ProtocolError for values that would destroy the local model."""
        for vector in message.vectors:
            if summable(vector):
                continue
            what = "with values that are not finite, or too large to be mixed"
            raise ProtocolError(
                f"node {self.node}: a model from node {sender} {what}",
                "Its training has diverged: lower train.lr.",
                peer=sender,
            )
