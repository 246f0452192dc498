"""A peer of CHOCO-SGD: synchronous gossip of replicas (`algorithms/gossip/choco`); only changes are sent.

Wraps the machine of synchronous gossip, with its accounts of edges; each vector is sent as the change since the
partner's version, and rebuilt on arrival:

    sent      the change from version `base` to version `round`, to a partner at `base`; else, or on request, all of it
    received  base is the stored version            apply it now; then the changes that waited for it
              base is later than that version       it waits, and the version of this peer's round is requested, once
              round is not later                    only its account is used

A version is identified by its round; all begin with version -1, all zeros.  To and from a restarted partner the next
model is sent whole.  A forged change has the effect of a forged model.

    bound    for each partner one replica, and at most WAITING changes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.codecs.base import CodecTurn, VectorLayout
from fedgossip.algorithms.gossip.choco import KNOWN_TO_ALL, Choco, Replicated
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, add, frozen
from fedgossip.core.machine import Effect, Event, NodeId, PeerGone, PeerJoined, Received, Report, Send
from fedgossip.core.messages import Account, CodedModel, Model
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.sync_gossip import SyncGossip

WAITING = 8
"""Maximum number of changes from one partner that wait for an earlier one."""

Version = tuple[int, Vector]
"""(round of its creation, vector [d], frozen)"""


class ReplicaGossip:
    """Wrap `machine`, which mixes by `algorithm`; `fresh`: its first incarnation, whose version -1 all others have.

    Invariant: `replicas[j]` is the version of that round at the other end of the link to j.
    """

    def __init__(
        self, machine: SyncGossip[Replicated], algorithm: Choco, initial: Vector, schema: str, *, fresh: bool
    ) -> None:
        self.machine, self.algorithm, self.schema = machine, algorithm, schema
        self.layout = VectorLayout.of_length(initial.size, initial.dtype)
        self.first = frozen(np.zeros_like(initial))
        partners = machine.company.partners if fresh else ()
        self.replicas: dict[NodeId, Version] = dict.fromkeys(partners, (KNOWN_TO_ALL, self.first))
        self.sent: dict[NodeId, int] = dict.fromkeys(partners, KNOWN_TO_ALL)
        self.waiting: dict[NodeId, dict[int, CodedModel]] = {}  # by round
        self.asked: dict[NodeId, int] = {}  # the round of the last requested version
        self.lives: dict[NodeId, int] = {}

    @property
    def learner(self) -> Learner[Replicated]:
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
        return self.machine.summed

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine."""
        effects: list[Effect] = []
        match event:
            case PeerJoined(node, incarnation):
                self._linked(node, incarnation)
            case PeerGone(node):
                self.sent.pop(node, None)  # a message in flight may be lost
            case Received(sender, CodedModel() as coded):
                return self._code(self._changed(sender, coded, now_ns))
            case Received(sender, Model() as model):
                # Read-only: else the sum of the round would overwrite it; a model without vectors is refused below.
                known = frozen(model.vectors[0]) if model.vectors else self.first
                effects += self.machine.handle(event, now_ns)  # raises for a model that does not fit
                return self._code([*effects, *self._store_version(sender, model.round, known, now_ns)])
        return self._code([*self.machine.handle(event, now_ns), *self._asks()])

    def _linked(self, node: NodeId, incarnation: int) -> None:
        self.sent.pop(node, None) if node in self.lives else None
        if incarnation != self.lives.get(node, 0):
            self.replicas.pop(node, None)
            self.waiting.pop(node, None)
            self.sent.pop(node, None)
        self.lives[node] = incarnation

    # --- received changes ---------------------------------------------------------------------------------------------

    def _changed(self, sender: NodeId, coded: CodedModel, now_ns: int) -> list[Effect]:
        """Apply a change to the sender's replica, or store it until its base arrives."""
        self.machine.company.check(sender, "a change of a model")
        self._check(sender, coded)
        version, _ = self.replicas.get(sender, (KNOWN_TO_ALL - 1, self.first))
        if coded.base == version:
            return self._applied(sender, coded, now_ns)
        if coded.round > version:
            waiting = self.waiting.setdefault(sender, {})
            waiting[coded.round] = coded
            for old in sorted(waiting)[:-WAITING]:
                del waiting[old]
        account = Account(coded.round, coded.used, coded.missing)
        return [*self.machine.handle(Received(sender, account), now_ns), *self._asks()]

    def _check(self, sender: NodeId, coded: CodedModel) -> None:
        rounds, where = self.machine.settings.rounds, f"node {self.machine.node}, round {self.machine.round}"
        if coded.schema != self.schema or not KNOWN_TO_ALL <= coded.base < coded.round < rounds:
            what = f"a change from version {coded.base} to {coded.round} from node {sender}, of {rounds} rounds"
            advice = "Were the peers started from the same experiment file?"
            raise ProtocolError(f"{where}: {what}", advice, peer=sender)
        if len(coded.vectors) != 1:
            what = f"a change of {len(coded.vectors)} vectors from node {sender}, where one is due"
            raise ProtocolError(f"{where}: {what}", peer=sender)
        try:
            self._decoded(coded)
        except ProtocolError as error:
            raise ProtocolError(f"{where}, from node {sender}: {error}", error.advice, peer=sender) from None

    def _decoded(self, coded: CodedModel) -> Vector:
        return self.algorithm.codec.decode(coded.vectors[0], self.layout, CodecTurn(0, 0, coded.round))

    def _applied(self, sender: NodeId, coded: CodedModel, now_ns: int) -> list[Effect]:
        known = add(self.replicas[sender][1], self._decoded(coded))
        model = Model(coded.round, coded.schema, (known,), coded.used, coded.missing, coded.view)
        effects = list(self.machine.handle(Received(sender, model), now_ns))
        return [*effects, *self._store_version(sender, coded.round, known, now_ns)]

    def _store_version(self, sender: NodeId, round: int, known: Vector, now_ns: int) -> list[Effect]:
        """Store a version as the replica if none is later; apply the change that waited for it."""
        if round <= self.replicas.get(sender, (KNOWN_TO_ALL - 1, known))[0]:
            return []
        self.replicas[sender] = round, known
        waiting = self.waiting.get(sender, {})
        for old in [r for r in waiting if r <= round]:
            del waiting[old]
        after = next((one for one in waiting.values() if one.base == round), None)
        return self._applied(sender, waiting.pop(after.round), now_ns) if after else []

    def _asks(self) -> list[Effect]:
        round, out = self.machine.round, []
        if self.machine.phase not in ("training", "waiting"):
            return []
        for j in sorted(self.waiting):
            if round in self.waiting[j] and self.asked.get(j) != round and j in self.machine.company.linked:
                self.asked[j] = round
                out.append(Send(j, self.machine.ledger.account(j, round, asks=True)))
        return [*out, *(Report("change_missed", {"peer": one.to}, round) for one in out)]

    # --- sent changes -------------------------------------------------------------------------------------------------

    def _code(self, effects: Sequence[Effect]) -> list[Effect]:
        return [self._coded(effect) for effect in effects]

    def _coded(self, effect: Effect) -> Effect:
        match effect:
            case Send(to, Model() as model):
                state, sent = self.machine.learner.begun, self.sent.get(to, KNOWN_TO_ALL - 1)
                self.sent[to] = max(model.round, sent)
                if state.coded is None or model.round != state.version or sent != state.base:
                    return effect
                payload = state.coded
                place = model.round, state.base, payload.size, model.schema, (payload,)
                return Send(to, CodedModel(*place, model.used, model.missing, model.view))
        return effect
