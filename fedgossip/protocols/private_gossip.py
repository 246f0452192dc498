"""Private gossip: synchronous rounds that reveal to a peer the weighted sum of its neighbours' models, and no single
model.

    phase      event                                next phase
    joining    RunKeys                              training
    training   Trained                              waiting end
    training   Stopping                             end
    waiting    Masked Leaving PeerGone              training end
    waiting    deadline pace                        training end
    waiting    Stopping                             end

The vectors that the neighbours S_j of j send to it are masked in pairs, and only their sum is unmasked
(`secure.pairs`).  The neighbours follow from the experiment, which all share: no receiver can choose them.  A peer
sends nothing to one with fewer than NEIGHBOURS_MIN neighbours.

A sum is never repeated over other senders.  If one vector is missing, j keeps its model and reports a `skipped_mix`:
the mean then moves by j's share of the disagreement, the price of one message per edge and round.  If a neighbour is
permanently gone, j skips all its mixes; it still sends.

Masks are made with keys of the run, which peers sign, send on every new link and forward.  A peer begins when it has
the keys of all senders to its receivers, or at the start timer; it sends nothing to a receiver if the key of one of its
senders is unknown (`withheld`).

One key masks one vector.  Before anything of round r is sent, a Checkpoint stores r + 1, with the vector without this
round's mixing: a resumed peer masks no round again.  A driver that sends before it writes checkpoints must store the
rounds itself (`runs/mask_ledger.py`).

Otherwise as `lifecycle` and `sync_gossip`, except that vectors are summed on arrival (`MaskedSums`), and a peer skips
to a later round only when two of its neighbours have done so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import numpy as np

from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.dsgd import DSGD, CombineThenAdapt
from fedgossip.base.errors import ProtocolError, TrainingError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.machine import Checkpoint, Effect, NodeId, Outgoing, Report, RoundDone, Send, Trained
from fedgossip.core.messages import CHECK_WORDS, KEYS_MAX, Leaving, Masked, Message, RunKey, RunKeys
from fedgossip.protocols.gossip.awaited_round import RoundWithoutAccounts, SyncSettings
from fedgossip.protocols.gossip.learner import Learner
from fedgossip.protocols.gossip.mailbox import MixingSchedule, RoundWeights, Sources, has_skipped, leads_of
from fedgossip.secure.fixed_point import Words
from fedgossip.secure.pairs import Grid, Pairs, masked, opened, words_of
from fedgossip.topology.exposure import NEIGHBOURS_MIN

# The public keys of a private run at one peer: masks need those of all senders to its receivers.


class KeyBook:
    """One peer's keys; `fellows` send to a receiver of this peer, and masks are made with their keys.

    A key of a neighbour is forwarded once; a refused message changes nothing.
    """

    def __init__(self, node: NodeId, pairs: Pairs, partners: Sequence[NodeId], fellows: Iterable[NodeId]) -> None:
        self.node, self.pairs, self.partners = node, pairs, partners
        self.fellows = frozenset(fellows) - {node}
        self.passed: set[RunKey] = set()  # neighbours' keys forwarded to the others

    @property
    def lacking(self) -> frozenset[NodeId]:
        """The fellows with unknown keys: no masks can be made with them so far."""
        return frozenset(other for other in self.fellows if not self.pairs.knows(other))

    def introduction(self, to: NodeId) -> list[Send]:
        """Return the messages for a new link: this peer's key, and those of the other neighbours."""
        return self._pack(to, self.pairs.keys_for(other for other in self.partners if other != to))

    def take(self, sender: NodeId, keys: Sequence[RunKey], linked: Collection[NodeId]) -> list[Send]:
        """Store new keys; forward a neighbour's key to all linked partners.

        Raises ProtocolError for a key without its owner's signature; nothing is changed then.
        """
        try:
            latest = {key.node: key for key in sorted(keys, key=lambda key: key.incarnation)}
            heeded = self.fellows | {sender}
            news = [key for node, key in latest.items() if node in heeded and self.pairs.news(key)]
        except ProtocolError as error:
            text = f"node {self.node}: node {sender} sends {error}"
            raise ProtocolError(text, error.advice, peer=sender) from None
        for key in news:
            self.pairs.take(key)
        # Another neighbour may have forwarded it first, to this peer alone.
        own = [key for key in self.pairs.keys_for([sender]) if key.node == sender and key not in self.passed]
        self.passed.update(own)
        others = [other for other in self.partners if other != sender and other in linked]
        return [send for other in others for send in self._pack(other, own)]

    def _pack(self, to: NodeId, keys: Sequence[RunKey]) -> list[Send]:
        return [Send(to, RunKeys(tuple(keys[at : at + KEYS_MAX]))) for at in range(0, len(keys), KEYS_MAX)]


# Received masked vectors, summed by round: one vector's memory per round, for any number of neighbours.


class PartialSum:
    """The sum of the received vectors of one round."""

    def __init__(self, sender: NodeId, words: Words) -> None:
        # A vector received over a link belongs to this peer; one that a simulated peer sent to several may have other
        # readers.
        self.total = words if words.flags.writeable else words.copy()
        self.heard = {sender}

    def add(self, sender: NodeId, words: Words) -> None:
        self.total += words
        self.heard.add(sender)


class MaskedSums:
    """One peer's sums, of the current round and at most `lead` after it.

    A sender counts once in a round; integer sums do not depend on the order of arrival.
    """

    def __init__(self, lead: int) -> None:
        self.lead = lead
        self.of: dict[int, PartialSum] = {}

    def senders(self, round: int) -> frozenset[NodeId]:
        return frozenset(self.of[round].heard) if round in self.of else frozenset()

    def add(self, sender: NodeId, round: int, words: Words, current: int) -> bool:
        """Add a vector of round `current` or later; return False for a repetition."""
        if round > current + self.lead:  # it went on without us, so this will not be used
            return True
        here = self.of.get(round)
        if here and sender in here.heard:
            return False
        if here:
            here.add(sender, words)
        else:
            self.of[round] = PartialSum(sender, words)
        return True

    def take(self, round: int) -> Words:
        """Return the sum of a round with at least one received vector."""
        return self.of.pop(round).total

    def go_to(self, round: int) -> None:
        """Drop the rounds before `round`."""
        for old in [r for r in self.of if r < round]:
            del self.of[old]


def times(terms: Sequence[tuple[Words, int]]) -> Words:
    """Return the sum of the words, each multiplied by its count."""
    if not terms:
        return np.zeros(0, np.uint32)
    (first, count), *rest = terms
    total = np.multiply(first, np.uint32(count), out=words_of(first.size))
    for words, count in rest:
        total += words * np.uint32(count)
    return total


MODEL = "state/x"
"""The model's key in a checkpoint, the same as in sync_gossip with DSGD."""

SENT_AS_TRAINED = DSGD()


class PrivateGossip(RoundWithoutAccounts[Any]):
    """One peer of a private run.  `schema`: the layout of all neighbours; `resumed`: continue from this checkpoint."""

    def __init__(
        self,
        node: NodeId,
        schedule: MixingSchedule,
        initial: Vector,
        schema: str,
        settings: SyncSettings,
        grid: Grid,
        pairs: Pairs,
        resumed: Checkpoint | None = None,
        algorithm: DSGD | CombineThenAdapt = SENT_AS_TRAINED,
    ) -> None:
        learner: Learner[Any] = Learner(algorithm, initial, resumed)  # not Learner[Any](): no image holds that
        super().__init__(node, schedule, learner, settings, resumed)
        partners = schedule.partners(node)
        self.schedule, self.schema, self.grid = schedule, schema, grid
        self.book = KeyBook(node, pairs, partners, (one for to in partners for one in schedule.partners(to)))
        self.company.keyless = self.book.lacking
        self.sums = MaskedSums(max(leads_of(node, schedule, partners).values(), default=1))
        self.sources = Sources()  # of the open round
        self.given: Words = np.zeros(0, np.uint32)  # sum of our weighted models sent to the receivers
        self.newest: dict[NodeId, int] = {}  # latest round seen of each neighbour

    def rostered(self, schedule: object) -> None:  # noqa: ARG002
        raise ProtocolError(f"node {self.node}: who takes part in a private run is fixed before it begins")

    def received(self, sender: NodeId, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Masked():
                return self._part(sender, message, now_ns)
            case RunKeys(keys):
                passed = self.book.take(sender, keys, self.company.linked)
                self.company.keyless = self.book.lacking
                return [*passed, *self.begin_if_gathered(now_ns)]
        raise self.misplaced(sender, message, "a private run")

    def greet(self, node: NodeId, now_ns: int, *, reborn: bool) -> list[Effect]:  # noqa: ARG002
        if reborn:
            self.newest.pop(node, None)
        return list(self.book.introduction(node)) if node in self.company.partners else []

    # --- a round --------------------------------------------------------------------------------------------------

    def trained(self, event: Trained, now_ns: int) -> list[Effect]:
        (x,) = self.learner.trained(event.update, Step.of(self.round, event.metrics))
        self._check_bound(x)
        effects: list[Effect] = []
        if (newest := self._find_skip_target()) > self.round:  # the rounds between are skipped
            effects.append(Report("skipped", newest - self.round, newest))
            self._go_to(newest)
        self.phase = "waiting"
        self.clock.note_arrival(now_ns)  # vectors received before this were in time
        mixing = self.schedule.mixing(self.round)
        row = self._weigh_partners(mixing, self.node)
        here = self.sums.senders(self.round)
        self.sources = Sources.from_nodes(row, lambda j: j in here)
        effects.append(Outgoing(self.round + 1, x))
        self.carried.expect(row)
        # First, so that a sent vector is never masked again.
        effects.append(Checkpoint(self.round + 1, {MODEL: self.learner.unmixed}, self.carried.saved()))
        effects += self._parts(x, mixing, row)
        return [*effects, self.until_the_deadline(), *self.end_if_complete(now_ns)]

    def _weigh_partners(self, mixing: RoundWeights, node: NodeId) -> dict[NodeId, float]:
        return {other: weight for other, weight in mixing.row(node).items() if other != node}

    def _parts(self, x: Vector, mixing: RoundWeights, row: dict[NodeId, float]) -> list[Effect]:
        """Return the masked model for each neighbour; equal weights are rounded once."""
        wholes = {weight: self.grid.quantise(x, weight) for weight in set(row.values())}
        self.given = times([(wholes[weight], count) for weight, count in Counter(row.values()).items()])
        lacking = self.book.lacking
        effects: list[Effect] = []
        for to, weight in row.items():
            senders = self._weigh_partners(mixing, to)
            if len(senders) < NEIGHBOURS_MIN:
                effects.append(Report("withheld", {"peer": to, "senders": len(senders)}, self.round))
            elif keys := [other for other in senders if other in lacking]:
                effects.append(Report("withheld", {"peer": to, "keys": keys}, self.round))
            elif to not in self.company.left:
                words = self._under_masks(wholes[weight], to, [other for other in senders if other != self.node])
                effects.append(Send(to, Masked(self.round, self.schema, (frozen(cast(Vector, words)),))))
        return effects

    def _under_masks(self, whole: Words, to: NodeId, others: Sequence[NodeId]) -> Words:
        keys = {other: self.book.pairs.key(other, to, self.round, whole.size) for other in others}
        added = [key for other, key in keys.items() if other > self.node]
        return masked(whole, added, [key for other, key in keys.items() if other < self.node])

    def _check_bound(self, x: Vector) -> None:
        if (largest := self.grid.find_excess(x)) is not None:
            raise TrainingError(
                f"node {self.node}, round {self.round}: a model with a weight of {largest:.6g}, beyond algorithm.bound"
                f" = {self.grid.bound:g}",
                "Raise algorithm.bound, the same on all peers; or lower train.lr, if the training has diverged.",
            )

    def _find_skip_target(self) -> int:
        """Return the latest round to which two receivers of this peer's model have advanced without it."""
        heard = [(j, r) for j, r in self.newest.items() if r > self.round and j not in self.company.absent]
        ahead = [r for j, r in heard if has_skipped(self.schedule, j, r, self.node, self.round)]
        return sorted(ahead)[-2] if len(ahead) > 1 else self.round

    def _part(self, sender: NodeId, message: Masked, now_ns: int) -> list[Effect]:
        words, round = self._checked(sender, message), message.round
        self.newest[sender] = max(round, self.newest.get(sender, -1))
        if sender in self.company.linked and (round >= self.round - 1 or self.sources.alone):
            self.company.absent.discard(sender)
        if round < self.round:
            return [Report("late", {"peer": sender, "round": round}, self.round)]
        if not self.sums.add(sender, round, words, self.round):
            return [Report("repeated", {"peer": sender, "round": round}, self.round)]
        if round == self.round:
            self.sources.missing.discard(sender)
            self.clock.note_arrival(now_ns)
        return self.end_if_complete(now_ns)

    def _checked(self, sender: NodeId, message: Masked) -> Words:
        where = f"node {self.node}, round {self.round}"
        senders = self.schedule.mixing(message.round).row(self.node) if message.round < self.settings.rounds else ()
        if sender not in senders or message.round < 0:
            raise ProtocolError(
                f"{where}: a masked model of round {message.round} from node {sender}, which has none to send then",
                "Were the peers started from the same experiment file?",
                peer=sender,
            )
        shapes = [(v.dtype.name, v.size) for v in message.vectors]
        if message.schema != self.schema or shapes != [("uint32", self.learner.model.size + CHECK_WORDS)]:
            raise ProtocolError(
                f"{where}: node {sender} sends a model of another layout (schema {message.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )
        return message.vectors[0].view(np.uint32)

    @property
    def awaited(self) -> Sources:
        return self.sources

    def has_advanced(self, node: NodeId) -> bool:
        """Return whether it has completed this round, or was ahead by more rounds than are stored."""
        return self.newest.get(node, -1) >= self.round

    def ask(self, times: int) -> list[Effect]:  # noqa: ARG002
        return []  # a vector is masked once, and never sent again

    def end_round(self, now_ns: int) -> list[Effect]:
        if len(self.sources.missing) < len(self.sources.all):
            self.clock.note_round(self.began_ns)
        effects = self._mix(sorted(self.sources.missing))
        self._go_to(self.round + 1)
        self.given = np.zeros(0, np.uint32)
        effects.append(RoundDone(self.round, self.learner.model))
        effects.append(self.learner.checkpoint(self.round, {}, self.carried.saved()))
        return effects + self.go_on(now_ns)

    def _mix(self, missing: Sequence[NodeId]) -> list[Effect]:
        """Add the sum if it is complete; else keep this peer's model."""
        (x,), senders = self.learner.outgoing, self.sources.all
        self.carried.mark_received(senders.difference(missing))
        wrong: dict[str, object] = {}
        total = None if missing or not senders else opened(self.sums.take(self.round), len(senders))
        if total is None:
            wrong = {"missing": missing} if missing or not senders else {"garbled": sorted(senders)}
        elif not self.grid.possible(total, len(senders)):
            wrong = {"beyond": sorted(senders)}
        if total is None or wrong:
            self.learner.mixed((x,))
            return [Report("skipped_mix", wrong, self.round)]
        self.learner.mixed((self.grid.moved(x, total, self.given),))
        for sender in senders:
            self.carried.mark_mixed(sender)
        return []

    def _go_to(self, round: int) -> None:
        self.round = round
        self.sums.go_to(round)

    # --- the end --------------------------------------------------------------------------------------------------

    def handle_leaving(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:  # noqa: ARG002
        if leaving.done:
            self.company.done.add(sender)
        return []

    def close(self) -> list[Effect]:
        """Keep the trained model: its round is masked, and is not masked again."""
        if self.learner.outgoing:
            self.learner.mixed(self.learner.outgoing)
        return []

    def unsettled(self) -> list[Effect]:
        self.sums.of.clear()
        return []
