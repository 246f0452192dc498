"""A peer that sends its neighbours one fragment of its model in each round (`algorithms/gossip/fragmented_diloco`).

Wraps the machine of synchronous gossip, which sends and receives vectors that are 0 outside the fragment of their
round, with its accounts of edges: a round counts at both ends of an edge or at neither.  Links carry the fragment
alone:

    sent      of a model of round r the elements of fragment r
    received  those, in their places; a fragment of another size, or a whole model, is refused
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.algorithms.gossip.fragmented_diloco import FragmentedDiLoCo, Unsent
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Effect, Event, NodeId, Received, Send
from fedgossip.core.messages import Model, ModelFragment
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.sync_gossip import SyncGossip
from fedgossip.protocols.gossip.vector_check import VectorCheck


class FragmentGossip:
    """Wrap `machine`, which mixes by `algorithm`.  Raises ConfigError for fewer elements than fragments."""

    def __init__(self, machine: SyncGossip[Unsent], algorithm: FragmentedDiLoCo, initial: Vector, schema: str) -> None:
        self.machine, self.kind, self.length = machine, initial.dtype, initial.size
        self.fragments = algorithm.fragments(initial.size)
        sizes = {part.stop - part.start for part in map(self.fragments.part, range(self.fragments.count))}
        self.layouts = {size: VectorCheck(machine.node, schema, initial.dtype, size) for size in sizes}
        # reused objects: links recognise a waiting message by its identity, and encrypt it once for all targets
        # targets
        self.told: tuple[Model, ModelFragment] | None = None
        self.cut: tuple[Vectors, Vectors] | None = None

    @property
    def learner(self) -> Learner[Unsent]:
        """The state of the peer."""
        return self.machine.learner

    @property
    def eager(self) -> bool:
        """See `Lifecycle`."""
        return self.machine.eager

    @eager.setter
    def eager(self, value: bool) -> None:
        self.machine.eager = value

    @property
    def summed(self) -> int:
        """See `machine.AddingMachine`."""
        return self.machine.summed // self.fragments.count

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        match event:
            case Received(sender, ModelFragment() as told):
                self.machine.company.check(sender, "a fragment of a model")
                event = Received(sender, self._whole(sender, told))
            case Received(sender, Model() as model):
                raise self.machine.misplaced(sender, model, "a run of fragments")
        return [self._fragment(effect) for effect in self.machine.handle(event, now_ns)]

    def _whole(self, sender: NodeId, told: ModelFragment) -> Model:
        """Return the model that holds a fragment in its place.  Raises ProtocolError for another layout."""
        part = self.fragments.part(told.round)
        self.layouts[part.stop - part.start].check(sender, told)
        vector = np.zeros(self.length, self.kind)
        vector[part] = told.vectors[0]
        return Model(told.round, told.schema, (vector,), told.used, told.missing, told.view)

    def _fragment(self, effect: Effect) -> Effect:
        match effect:
            case Send(to, Model() as model):
                if self.told is None or self.told[0] is not model:
                    self.told = model, self._part(model)
                return Send(to, self.told[1])
        return effect

    def _part(self, model: Model) -> ModelFragment:
        """Return the fragment of a model; the same vector object for the same model object."""
        if self.cut is None or self.cut[0] is not model.vectors:
            self.cut = model.vectors, (frozen(model.vectors[0][self.fragments.part(model.round)]),)
        vectors, account = self.cut[1], (model.used, model.missing, model.view)
        return ModelFragment(model.round, vectors[0].size, model.schema, vectors, *account)
