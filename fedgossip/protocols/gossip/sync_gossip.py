"""Synchronous gossip: train, send to the neighbours, wait for theirs, mix; round after round.

    phase      event                                  next phase
    joining    Rostered                               training
    training   Trained                                waiting end
    training   Stopping                               end
    waiting    Model Account Leaving PeerGone         training end
    waiting    deadline pace                          training end
    waiting    Stopping                               end
    leaving    Model Account                          finished

Beginning and end are in `lifecycle`, the accounts of edges in `edge_ledger`, the bound on stored rounds in `mailbox`.
Every wait has a timer.

Difference from the paper's lockstep (Lian et al. 2017): a neighbour that is gone or misses the deadline is left out,
and its weight is added to the peer's, until it sends a model of this round or the last.  Links keep the order of
messages, so a later round's message ends the wait for this round's.  If a peer learns before sending that a neighbour
has advanced without its model, it skips to that neighbour's round.  Without these two rules neighbours stay out of step
after one delay.

An arc without its reverse has no account: a round without it moves the mean, and is reported as `one_sided`; use
push-sum for such graphs.

`FragmentGossip` wraps the machine and sends one fragment of the model in each round (`algorithms/gossip/fragments`); a
fragment of another size, or a whole model, is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, GossipAlgorithm, State, Step, Vectors
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo, Unsent
from fedgossip.algorithms.robust.robust_mixing import LINEAR, Combination
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen, ordered_mix, scaled_difference, subtract
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    NodeId,
    Outgoing,
    Received,
    Report,
    RoundDone,
    Send,
    Trained,
)
from fedgossip.core.messages import Account, Leaving, Message, Model, ModelFragment
from fedgossip.protocols.gossip.awaited_round import AwaitedRound, SyncSettings
from fedgossip.protocols.gossip.edge_ledger import EdgeLedger
from fedgossip.protocols.gossip.learner import Learner, VectorCheck
from fedgossip.protocols.gossip.lifecycle import FRESH
from fedgossip.protocols.gossip.mailbox import (
    ExchangedRound,
    Mailbox,
    MixingSchedule,
    OwnWeights,
    Sources,
    has_skipped,
    is_constant,
    leads_of,
    view_of,
)
from fedgossip.protocols.gossip.partner_set import LATELY_ROUNDS


class SyncGossip(AwaitedRound[State]):
    """One peer of a synchronous run.  `schema`: the layout that its neighbours must share.

    `resumed`: continue from this checkpoint; edges have no history.
    """

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        algorithm: GossipAlgorithm[State],
        initial: Vector,
        schema: str,
        settings: SyncSettings,
        resumed: Checkpoint | None = None,
        combine: Combination = LINEAR,
    ) -> None:
        self.combine = combine
        super().__init__(node, schedule, Learner(algorithm, initial, resumed), settings, resumed)
        self.layout = VectorCheck(node, schema, initial.dtype, initial.size, len(algorithm.slots))
        self.schedule = schedule
        self.ledger = EdgeLedger(schema)
        self.mailbox = Mailbox(leads_of(node, schedule, self.company.partners))
        self.open = ExchangedRound()
        self.own = OwnWeights()  # of the current round
        self.summed = 0  # number of elements

    def rostered(self, schedule: object) -> None:
        self.schedule, self.own = schedule, OwnWeights()  # type: ignore[assignment]
        self.company.change(self.schedule.partners(self.node))
        self.mailbox.leads = leads_of(self.node, self.schedule, self.company.partners)

    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Model():
                return self._model(sender, message, now_ns)
            case Account(round, used, missing, asks):
                effects = self._account(sender, round, used, missing, now_ns)
                effects += self._repeat(sender, round, now_ns) if asks else []
                return effects + self.end_if_complete(now_ns) + self.end_if_settled()
        raise self.misplaced(sender, message, "a synchronous run")

    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:  # noqa: ARG002
        if not reborn:
            return []
        waits = self.phase == "waiting"
        asked = waits and self.ledger.edge(node).offered == self.round
        self.mailbox.reborn(node, self.round if waits else None)
        if not self.ledger.reborn(node, asked=asked):
            return []
        return [Report("unsettled", {"peer": node, "round": self.round}, self.round)]

    # --- a round --------------------------------------------------------------------------------------------------

    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        effects = self._catch_up()
        if self.ledger.opens(self.round, view_of(self.schedule, self.round)):  # tracked sums of others
            self.learner.rejoined()
        outgoing = self.learner.trained(event.update, Step.of(self.round, event.metrics))
        self.phase = "waiting"
        self.clock.note_arrival(now_ns)  # models received before this were in time
        if not (self.own.row and is_constant(self.schedule)):
            self.own = OwnWeights.from_mixing(self.node, self.schedule.mixing(self.round))
        targets = self.own.targets
        self.open = ExchangedRound.from_weights(self.own, self.mailbox.get_received(self.round))
        self.company.meets(self.own.met, self.round)
        self.carried.expect(self.open.sources.all)
        effects.append(Outgoing(self.round + 1, self.learner.seen))
        receivers = [to for to in targets if to not in self.company.left] if self.company.left else targets
        effects += self.ledger.models(self.round, outgoing, receivers)
        effects += [Send(j, self.ledger.account(j, self.round)) for j in self._open_beside(targets)]
        return [*effects, self.until_the_deadline(), self.until_asked(0), *self.end_if_complete(now_ns)]

    def _open_beside(self, targets: Collection[NodeId]) -> list[NodeId]:
        opened = [j for j, edge in self.ledger.edges.items() if edge.open is not None]
        return [j for j in opened if j not in targets and j not in self.company.done]

    def _catch_up(self) -> list[Effect]:
        """Skip to the latest round to which a receiver of this peer's model has advanced without it."""
        if not self.mailbox.ahead(self.round):
            return []
        reachable = self.company.linked - self.company.absent
        listening = [j for j in self.company.partners if j in reachable]
        unbelieved = self.mailbox.unbelieved(listening, self.round)
        effects: list[Effect] = [Report("far_ahead", {"peer": j, "round": r}, self.round) for j, r in unbelieved]
        gone_on = [r for j, r in self.mailbox.ahead(self.round) if self._is_skipped_by(j, r)]
        if gone_on:
            effects.append(Report("skipped", max(gone_on) - self.round, max(gone_on)))
            self._go_to(max(gone_on))
        return effects

    def _is_skipped_by(self, node: NodeId, round: int) -> bool:
        return has_skipped(self.schedule, node, round, self.node, self.round)

    def ask(self, times: int) -> list[Effect]:
        silent = self.open.one_way | self.company.absent
        late = [j for j in sorted(self.open.sources.missing) if j in self.company.linked and j not in silent]
        asks = [Send(j, self.ledger.account(j, self.round, asks=True)) for j in late]
        return [*asks, self.until_asked(times + 1)]

    def _model(self, sender: NodeId, model: Model, now_ns: int) -> list[Effect]:
        round = model.round
        if not 0 <= round < self.settings.rounds:
            raise self._refuse_round(sender, round)
        self.layout.check(sender, model)
        self.layout.check_values(sender, model)
        effects = self._account(sender, round, model.used, model.missing, now_ns)
        absent, sources = self.company.absent, self.open.sources
        if sender in absent and sender in self.company.linked and (round >= self.round - 1 or sources.alone):
            absent.discard(sender)
        if round < self.round:
            self.ledger.edge(sender).late(model)
            effects.append(Report("late", {"peer": sender, "round": round}, self.round))
            return [*effects, *self._repair(sender), *self.end_if_settled()]
        if not self.mailbox.keep(sender, model, self.round):
            return [*effects, Report("repeated", {"peer": sender, "round": round}, self.round)]
        if round == self.round:
            sources.missing.discard(sender)
            self.clock.note_arrival(now_ns)
        return effects + self.end_if_complete(now_ns)

    def _refuse_round(self, sender: NodeId, round: int) -> ProtocolError:
        return ProtocolError(
            f"node {self.node}, round {self.round}: model of round {round} from node {sender};"
            f" the run has {self.settings.rounds} rounds",
            "Were the peers started from the same experiment file?",
            peer=sender,
        )

    @property
    def awaited(self) -> Sources:
        return self.open.sources

    def has_advanced(self, node: NodeId) -> bool:
        return self.mailbox.newest.get(node, -1) > self.round

    def end_round(self, now_ns: int) -> list[Effect]:
        sources, round = self.open.sources, self.round
        missing = sorted(sources.missing)
        effects = self.company.missed(missing, round)
        if one_sided := [j for j in missing if j in self.open.one_way]:
            effects.append(Report("one_sided", one_sided, round))
        if len(missing) < len(sources.all):
            self.clock.note_round(self.began_ns)
        row, outgoing = self._agreed(), self.learner.outgoing
        if len(row) < len(self.open.row) and (held := sorted(self.open.row.keys() - row.keys() - set(missing))):
            effects.append(Report("held", held, round))
        self.summed += (len(row) - 1) * sum([vector.size for vector in outgoing])
        self.learner.mixed(self._combined(row, outgoing))
        self.ledger.closes(round, outgoing)
        self._go_to(round + 1)
        effects.append(RoundDone(self.round, self.learner.model))
        effects.append(self.learner.checkpoint(self.round, {}, self.carried.saved()))
        return effects + self.go_on(now_ns)

    def _combined(self, row: Mapping[NodeId, float], own: Vectors) -> Vectors:
        here, node = self.mailbox.get_received(self.round), self.node
        inputs = [own if j == node else here[j].vectors for j in row]
        if self.combine.linear:
            return tuple([_mixed(list(zip(row.values(), of, strict=True))) for of in zip(*inputs, strict=True)])
        of_slots = [dict(zip(row, of, strict=True)) for of in zip(*inputs, strict=True)]
        return tuple([self.combine.combine(node, row, of_slot) for of_slot in of_slots])

    def _agreed(self) -> Mapping[NodeId, float]:
        """Return this round's weights, with those of uncounted edges added to the peer's; update the accounts."""
        row, one_way, sources, round = self.open.row, self.open.one_way, self.open.sources, self.round
        for j in sources.missing:
            self.ledger.edge(j).missed(round, row[j], self.learner.outgoing)
        here = sources.all.difference(sources.missing) if sources.missing else sources.all
        mixed = self.ledger.counted(
            round, here.difference(one_way) if one_way else here, self.mailbox.get_received(round)
        )
        mixed += here.intersection(one_way) if one_way else ()
        self.carried.mark_mixed(*mixed)
        if len(mixed) == len(sources.all):
            return row
        own = row[self.node]
        for j, weight in row.items():
            if j != self.node and j not in mixed:
                own += weight
        return {j: own if j == self.node else weight for j, weight in row.items() if j == self.node or j in mixed}

    def _go_to(self, round: int) -> None:
        self.round = round
        self.mailbox.go_to(round)

    # --- accounts -------------------------------------------------------------------------------------------------

    def _account(self, sender: NodeId, round: int, used: int, missing: int, now_ns: int) -> list[Effect]:
        """Handle an account of an edge: correct this peer's round, send a missed model, drop received ones."""
        edge = self.ledger.update(sender, round, used, missing)
        self.mailbox.note_round(sender, round)
        effects = self._repair(sender) if edge.open is not None else []
        if 0 <= missing < self.round:
            effects += self.ledger.help(sender, missing, self.round, now_ns, self.clock.patience_ns(0))
        return effects

    def _repeat(self, sender: NodeId, asked: int, now_ns: int) -> list[Effect]:
        outgoing, again_ns = self.learner.outgoing, self.clock.patience_ns(0)
        return self.ledger.repeat(sender, asked, self.round, outgoing, now_ns, again_ns)

    def _repair(self, node: NodeId) -> list[Effect]:
        repaired = self.ledger.repair(node)
        if repaired is None or not self.combine.linear:  # a nonlinear rule's result cannot be corrected afterwards
            return []
        assert repaired.theirs is not None
        self.carried.mark_mixed(node)
        differences = tuple(
            scaled_difference(repaired.weight, theirs, own)
            for theirs, own in zip(repaired.theirs, repaired.own, strict=True)
        )
        if repaired.round < self.ledger.since:  # tracking state was reset since; models were not
            slots = zip(self.learner.algorithm.slots, differences, strict=True)
            differences = tuple(one if slot == MODEL else subtract(one, one) for slot, one in slots)
        self.learner.corrected(differences)
        mixed = bool(self.learner.outgoing)  # the open round is mixed as it was sent
        return [Report("repaired", {"peer": node, "round": repaired.round, "mixed": mixed}, self.round)]

    # --- the end --------------------------------------------------------------------------------------------------

    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        if leaving.done:
            self.company.done.add(sender)
        effects = self._account(sender, leaving.round, leaving.used, leaving.missing, now_ns)
        self.ledger.edge(sender).parted(leaving.round)
        return effects

    def close(self) -> list[Effect]:
        self.learner.abandoned()
        return []

    def may_leave(self) -> bool:
        return True

    def leaving(self, to: NodeId) -> Leaving:
        edge = self.ledger.edge(to)
        return Leaving(self.round, edge.used, edge.missing, done=to in self.company.left and edge.settled)

    def open_with(self, node: NodeId) -> bool:
        edge = self.ledger.edges.get(node)
        return edge is not None and edge.open is not None and edge.missing >= self.round - LATELY_ROUNDS

    def done_with(self, node: NodeId) -> bool:
        return node in self.company.done and self.ledger.edge(node).settled

    def unsettled(self) -> list[Effect]:
        company = self.company
        open_with = self.ledger.unsettled(company.absent | (company.left - company.linked))
        self.mailbox.clear()
        self.ledger.sent.clear()
        return [Report("unsettled", {"peer": j, "round": round}, self.round) for j, round in open_with]

    def expected(self) -> Collection[NodeId]:
        """Return the partners; without a fixed graph a pair may meet once: any message is enough."""
        fixed = self.schedule.period > 0
        return [j for j in self.company.partners if fixed or j not in self.mailbox.newest]


def _mixed(terms: Sequence[tuple[float, Vector]]) -> Vector:
    """Return the sum, in the memory of a received term if one exists."""
    for _, vector in terms:
        if vector.flags.writeable:
            return ordered_mix(terms, vector)
    return ordered_mix(terms)


def resume_point(algorithm: GossipAlgorithm[Any], round: int, model: Vector) -> Checkpoint:
    """Return the checkpoint of a peer that adopts another peer's `model` after `round` rounds."""
    return Learner(algorithm, model).checkpoint(round, {}, FRESH)


class FragmentGossip:
    """Wrap `machine`, which mixes by `algorithm`.  Raises ConfigError for fewer elements than fragments."""

    def __init__(self, machine: SyncGossip[Unsent], algorithm: FragmentedDiLoCo, initial: Vector, schema: str) -> None:
        self.machine, self.kind, self.length = machine, initial.dtype, initial.size
        self.fragments = algorithm.fragments(initial.size)
        sizes = {part.stop - part.start for part in map(self.fragments.part, range(self.fragments.count))}
        self.layouts = {size: VectorCheck(machine.node, schema, initial.dtype, size) for size in sizes}
        # Reused objects: links recognise a waiting message by its identity, and encrypt it once for all targets.
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
            case Received(sender, ModelFragment() as fragment):
                self.machine.company.check(sender, "a fragment of a model")
                event = Received(sender, self._embed_fragment(sender, fragment))
            case Received(sender, Model() as model):
                raise self.machine.misplaced(sender, model, "a run of fragments")
        return [self._fragment(effect) for effect in self.machine.handle(event, now_ns)]

    def _embed_fragment(self, sender: NodeId, fragment: ModelFragment) -> Model:
        """Return the model with a fragment in its place.  Raises ProtocolError for another layout."""
        part = self.fragments.part(fragment.round)
        self.layouts[part.stop - part.start].check(sender, fragment)
        vector = np.zeros(self.length, self.kind)
        vector[part] = fragment.vectors[0]
        return Model(fragment.round, fragment.schema, (vector,), fragment.used, fragment.missing, fragment.view)

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
