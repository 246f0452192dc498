"""A Byzantine peer: wraps an honest machine and replaces its sent models by those of an attack.

    inner machine sends its model of round r          held until all honest neighbours' models of r arrive
    last of them received, or inner round ends        each held message is sent with the attack's model

A rushing attacker: it sends once it has all honest models of the round, or when its machine ends the round.  Accounts
and `Leaving` messages are honest; its models depend only on received ones, so the bits are those of stacked arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedgossip.algorithms.robust.attacks import Attack, ObservedModels, lies
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Effect, Event, Finish, Machine, NodeId, Received, RoundDone, Send
from fedgossip.core.messages import Model
from fedgossip.protocols.gossip.mailbox import MixingSchedule

ROUNDS_KEPT = 16
"""Maximum number of rounds of stored models, honest and forged: a neighbour may request a past round again."""


class Attacker:
    """Wrap `machine`, peer `node`; `attackers`: all attackers, including this one.

    Stores at most ROUNDS_KEPT rounds of received and of forged models; held messages belong to one round.
    """

    def __init__(
        self,
        node: NodeId,
        machine: Machine,
        attack: Attack,
        attackers: frozenset[NodeId],
        schedule: MixingSchedule,
        seed: int,
    ) -> None:
        self.node, self.machine, self.attack = node, machine, attack
        self.attackers, self.schedule, self.seed = attackers, schedule, seed
        self.heard: dict[int, dict[NodeId, Vector]] = {}
        self.told: dict[int, dict[NodeId, Vector]] = {}
        self.held: dict[int, dict[NodeId, Model]] = {}

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        """Handle one event; see machine.Machine.  Messages refused by the honest machine are ignored."""
        if isinstance(event, Received) and isinstance(event.message, Model):
            for vector in event.message.vectors:
                frozen(vector)  # else the machine would make the sum of the round in its memory
        effects = self.machine.handle(event, now_ns)
        match event:
            case Received(sender, Model() as model) if sender not in self.attackers:
                self.heard.setdefault(model.round, {}).setdefault(sender, model.vectors[0])
        out = [send for round in sorted(self.held) if self._has_all(round) for send in self._released(round)]
        for effect in effects:
            match effect:
                case Send(to, Model() as model):
                    self.held.setdefault(model.round, {})[to] = model
                    out += self._released(model.round) if self._ready(model.round) else []
                    continue
                case RoundDone() | Finish():
                    out += [send for round in sorted(self.held) for send in self._released(round)]
            out.append(effect)
        for kept in (self.heard, self.told):
            for old in sorted(kept)[:-ROUNDS_KEPT]:
                del kept[old]
        return out

    def _ready(self, round: int) -> bool:
        return round in self.told or self._has_all(round)

    def _has_all(self, round: int) -> bool:
        sources = self.schedule.mixing(round).row(self.node).keys() - self.attackers
        return self.heard.get(round, {}).keys() >= sources

    def _released(self, round: int) -> list[Effect]:
        held = self.held.pop(round)
        if round not in self.told:
            (own, *_) = (model.vectors[0] for model in held.values())
            mixing, good = self.schedule.mixing(round), self.heard.get(round, {})
            sources = [j for j in mixing.row(self.node) if j in good]
            seen = ObservedModels(
                self.node, round, self.seed, own, {j: good[j] for j in sources}, mixing.row, self.attackers
            )
            self.told[round] = lies(self.attack, seen, mixing.targets(self.node))
        lies_of_round = self.told[round]
        return [
            Send(to, replace(model, vectors=(lies_of_round.get(to, model.vectors[0]),))) for to, model in held.items()
        ]
