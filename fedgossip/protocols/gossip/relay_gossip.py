"""RelaySGD: synchronous rounds on a tree with a different sum for each neighbour (`algorithms/gossip/relaysgd`).

    phase      event                            next phase
    joining    RelaySum                         training
    training   Trained                          waiting end
    training   Stopping                         end
    waiting    RelaySum Leaving PeerGone        training end
    waiting    deadline pace                    training end
    waiting    Stopping                         end

A peer sends to j the sum of its model and of the sums from its other neighbours in the previous round, with the number
of models.  A sum contains each model at most once, and only models from one side of its edge, so it needs no accounts:

    a sum is lost               it is requested; after a later round's message from its sender, the last one is used
    a neighbour is silent       after the deadline it and the peers behind it do not count, until its next message
    a neighbour is gone         the same; on either side of the gap the mean is over the peers of that side

A peer that lacks a model uses its own instead and reports it (`counted_fewer`), one round later per link of distance.
The rest is as in `lifecycle` and `sync_gossip`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.relaysgd import RelaySGD, RelayState, relay_sums
from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Outgoing, Report, RoundDone, Send, Trained
from fedgossip.core.messages import Account, Leaving, Message, RelaySum
from fedgossip.protocols.gossip.awaited_round import RoundWithoutAccounts, SyncSettings
from fedgossip.protocols.gossip.learner import Learner, VectorCheck
from fedgossip.protocols.gossip.mailbox import Mailbox, MixingSchedule, Sources, leads_of

KEPT_ROUNDS = 2
"""Number of rounds of sums stored for requests of a neighbour: the open round, and the previous one."""


class RelayGossip(RoundWithoutAccounts[RelayState]):
    """One peer of a tree.  `schema` is the layout that its neighbours must share.

    `resumed`: continue from this checkpoint, after a restart.
    """

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        algorithm: RelaySGD,
        initial: Vector,
        schema: str,
        settings: SyncSettings,
        resumed: Checkpoint | None = None,
    ) -> None:
        super().__init__(node, schedule, Learner(algorithm, initial, resumed), settings, resumed)
        self.neighbours = schedule.partners(node)
        self.algorithm = algorithm
        self.layout = VectorCheck(node, schema, initial.dtype, initial.size)
        self.mailbox = Mailbox(leads_of(node, schedule, self.neighbours))
        self.sources = Sources()  # of the open round
        self.said: dict[int, dict[NodeId, RelaySum]] = {}  # sent sums, by round and target
        self.said_again: dict[NodeId, tuple[int, int]] = {}  # last repeated sum: (round, time in nanoseconds)
        self.counted = 0  # models in the mean of the last round
        self.summed = 0  # elements

    def rostered(self, schedule: object) -> None:  # noqa: ARG002
        raise ProtocolError(f"node {self.node}: who takes part in a run on a tree is fixed before it begins")

    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case RelaySum():
                return self._sum(sender, message, now_ns)
            case Account(round, asks=asks):
                self.mailbox.note_round(sender, round)
                return (self._repeat(sender, round, now_ns) if asks else []) + self.end_if_complete(now_ns)
        raise self.misplaced(sender, message, "a run of relaysgd")

    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:  # noqa: ARG002
        if reborn:
            self.mailbox.reborn(node, self.round if self.phase == "waiting" else None)
        return []

    # --- a round --------------------------------------------------------------------------------------------------

    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        effects = self._catch_up()
        self.learner.trained(event.update, Step.of(self.round, event.metrics))
        self.phase = "waiting"
        self.clock.note_arrival(now_ns)  # sums received before this were in time
        self.sources = Sources.from_nodes(self.neighbours, lambda j: self.mailbox.has(j, self.round))
        self.company.meets(self.neighbours, self.round)
        self.carried.expect(self.neighbours)
        effects.append(Outgoing(self.round + 1, self.learner.seen))
        sums = self._sums()
        effects += [Send(to, one) for to, one in sums.items() if to not in self.company.left]
        self.said = {round: one for round, one in self.said.items() if round > self.round - KEPT_ROUNDS}
        self.said[self.round] = sums
        return [*effects, self.until_the_deadline(), self.until_asked(0), *self.end_if_complete(now_ns)]

    def _sums(self) -> dict[NodeId, RelaySum]:
        sums, counts = relay_sums(self.learner.outgoing[0], *self._get_previous())
        self.summed += 3 * sums.size
        schema = self.layout.schema
        terms = zip(self.neighbours, sums, counts, strict=True)
        return {to: RelaySum(self.round, schema, (frozen(one),), int(count)) for to, one, count in terms}

    def _catch_up(self) -> list[Effect]:
        """Skip to the latest round of the neighbours that advanced without this peer."""
        listening = [j for j in self.neighbours if j in self.company.linked - self.company.absent]
        unbelieved = self.mailbox.unbelieved(listening, self.round)
        effects: list[Effect] = [Report("far_ahead", {"peer": j, "round": r}, self.round) for j, r in unbelieved]
        newest = max((r for _, r in self.mailbox.ahead(self.round)), default=self.round)
        if newest > self.round:
            effects.append(Report("skipped", newest - self.round, newest))
            self._go_to(newest)
        return effects

    def ask(self, times: int) -> list[Effect]:
        late = [j for j in sorted(self.sources.missing) if j in self.company.linked - self.company.absent]
        asks = [Send(j, Account(self.round, asks=True)) for j in late]
        return [*asks, self.until_asked(times + 1)]

    def _repeat(self, sender: NodeId, round: int, now_ns: int) -> list[Effect]:
        sum_of_then = self.said.get(round, {}).get(sender)
        last, at_ns = self.said_again.get(sender, (-1, 0))
        if sum_of_then is None or (last == round and now_ns < at_ns + self.clock.patience_ns(0)):
            return []
        self.said_again[sender] = round, now_ns
        return [Send(sender, sum_of_then)]

    def _sum(self, sender: NodeId, message: RelaySum, now_ns: int) -> list[Effect]:
        self._check(sender, message)
        round = message.round
        self.mailbox.note_round(sender, round)
        if sender in self.company.linked and (round >= self.round - 1 or self.sources.alone):
            self.company.absent.discard(sender)
        if round < self.round:
            return [Report("late", {"peer": sender, "round": round}, self.round), *self.end_if_complete(now_ns)]
        if not self.mailbox.keep(sender, message, self.round):
            return [Report("repeated", {"peer": sender, "round": round}, self.round)]
        if round == self.round:
            self.sources.missing.discard(sender)
            self.clock.note_arrival(now_ns)
        return self.end_if_complete(now_ns)

    def _check(self, sender: NodeId, message: RelaySum) -> None:
        if not (0 <= message.round < self.settings.rounds and 1 <= message.count < self.algorithm.n):
            raise ProtocolError(
                f"node {self.node}, round {self.round}: a sum of {message.count} models of round {message.round} from"
                f" node {sender}; the run has {self.algorithm.n} peers and {self.settings.rounds} rounds",
                "Were the peers started from the same experiment file?",
                peer=sender,
            )
        self.layout.check(sender, message)
        self.layout.check_values(sender, message)

    @property
    def awaited(self) -> Sources:
        return self.sources

    def has_advanced(self, node: NodeId) -> bool:
        return self.mailbox.newest.get(node, -1) > self.round

    def end_round(self, now_ns: int) -> list[Effect]:
        missing = sorted(self.sources.missing)
        effects = self.company.missed(missing, self.round)
        if len(missing) < len(self.neighbours):
            self.clock.note_round(self.began_ns)
        received, counts = self._gather()
        effects += self._report_count(1 + int(counts.sum()))
        self.learner.mixed((self.algorithm.averaged(self.learner.outgoing[0], received, counts), received, counts))
        self.summed += received.size + self.learner.model.size
        self._go_to(self.round + 1)
        effects.append(RoundDone(self.round, self.learner.model))
        effects.append(self.learner.checkpoint(self.round, {}, self.carried.saved()))
        return effects + self.go_on(now_ns)

    def _gather(self) -> tuple[Vector, Vector]:
        """Return the neighbours' messages of this round, ascending: (sums [k, d], number of models in each)."""
        received, counts = (np.zeros_like(one) for one in self._get_previous())
        for place, j in enumerate(self.neighbours):
            if self.mailbox.has(j, self.round):
                message = self.mailbox.get_received(self.round)[j]
                assert isinstance(message, RelaySum)
                received[place], counts[place] = message.vectors[0], message.count
                self.carried.mark_mixed(j)
            elif self.mailbox.newest.get(j, -1) > self.round:  # lost
                received[place], counts[place] = (one[place] for one in self._get_previous())
        return frozen(received), frozen(counts)

    def _get_previous(self) -> Sequence[Vector]:
        own, *before = self.learner.outgoing
        return before or (np.zeros((len(self.neighbours), own.size), own.dtype), np.zeros(len(self.neighbours)))

    def _report_count(self, counted: int) -> list[Effect]:
        before, self.counted = self.counted, counted
        return [Report("counted_fewer", {"models": counted, "before": before}, self.round)] if counted < before else []

    def _go_to(self, round: int) -> None:
        self.round = round
        self.mailbox.go_to(round)

    # --- the end --------------------------------------------------------------------------------------------------

    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:  # noqa: ARG002
        self.mailbox.note_round(sender, leaving.round)
        if leaving.done:
            self.company.done.add(sender)
        return []

    def close(self) -> list[Effect]:
        self.learner.abandoned()
        return []

    def unsettled(self) -> list[Effect]:
        self.mailbox.clear()
        self.said.clear()
        return []
