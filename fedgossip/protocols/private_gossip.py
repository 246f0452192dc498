"""Private gossip: synchronous rounds in which a peer learns the weighted sum of its neighbours' models, and no model.

    joining --all links up, or start timer--> training --Trained--> waiting --all here, or deadline--> training ...
                                                              after the last round --> leaving --all done--> finished

What the neighbours S_j of j send to it is masked in pairs, and only the sum over all of them is not (`neighbourhood`).
Who they are follows from the experiment, which all share: no receiver can choose.  A peer sends nothing to one with
fewer than NEIGHBOURS_MIN neighbours.

A sum is never tried again among others.  Where one vector is missing, j keeps its own model in this round and reports a
`skipped_mix`: the mean of all models moves then, by j's share of the disagreement.  That is the price for one message
per edge and round, as in plain gossip.  A neighbour that is gone for good costs j all its mixes; j still sends, so that
its other neighbours have theirs.

Masks are made with keys of the run (`secure/pairs`): a peer tells its own on every new link, with those of its other
neighbours, and passes a new one of a neighbour on to the others.  It begins when it has those of all that send to a
receiver of its own, or at the start timer; to one of whose senders it lacks a key it sends nothing (`withheld`).

One key masks one vector.  A peer masks at most once in a round, and its rounds only go up: within a life `round` does,
and before anything of round r leaves, a Checkpoint says r + 1, with the vector as it is without this round's mixing.
So a life that takes up the newest checkpoint masks nothing again that may have left; a driver that writes checkpoints
later than it sends must remember the rounds by itself (`rundir/mask_ledger.py`).

Waiting, deadlines and what happens to a peer that is behind are those of `sync_gossip`, with two differences: sums are
added up as they come, for integers have no order, so that a round takes one vector's memory however many neighbours
there are; and a peer goes on to a later round only when two of its neighbours have done so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np

from fedgossip.errors import ProtocolError, TrainingError
from fedgossip.machine import (
    Checkpoint,
    Effect,
    Event,
    Failure,
    Finish,
    Fired,
    NodeId,
    Outgoing,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Stopping,
    Train,
    Trained,
)
from fedgossip.messages import CHECK_WORDS, KEYS_MAX, Leaving, Masked, RunKey, RunKeys
from fedgossip.protocols.carried import Carried
from fedgossip.protocols.deadlines import Deadline
from fedgossip.protocols.failures import nobody_came
from fedgossip.protocols.partner_set import Company
from fedgossip.protocols.sync_gossip import LEAD_ROUNDS, MixingSchedule, SyncSettings, Weights, leads_of
from fedgossip.secure.neighbourhood import Grid, masked, opened, words_of
from fedgossip.secure.pairs import Pairs
from fedgossip.secure.ring import Words
from fedgossip.topology.privacy import NEIGHBOURS_MIN
from fedgossip.vectors import Vector, add, frozen

MODEL = "state/x"
"""The model's name in a checkpoint, the same as in sync_gossip with DSGD."""


class _Sum:
    """What has come of one round, added up."""

    def __init__(self, sender: NodeId, words: Words) -> None:
        # what came over a link is ours; what a simulated peer sent to several may have other readers
        self.total = words if words.flags.writeable else words.copy()
        self.heard = {sender}

    def add(self, sender: NodeId, words: Words) -> None:
        self.total += words
        self.heard.add(sender)


def _times(terms: Sequence[tuple[Words, int]]) -> Words:
    """The sum of words, each so many times; there are as many terms as there are weights."""
    if not terms:
        return np.zeros(0, np.uint32)
    (first, times), *rest = terms
    total = np.multiply(first, np.uint32(times), out=words_of(first.size))
    for words, times in rest:
        total += words * np.uint32(times)
    return total


class PrivateGossip:
    """One peer of a private run.  `schema` is the layout that its neighbours must share.

    `resumed`: go on from there, in a new life.
    """

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
    ) -> None:
        self.node, self.schedule, self.schema, self.settings = node, schedule, schema, settings
        self.grid, self.pairs = grid, pairs
        self.company = Company(node, schedule.partners(node))
        near = (schedule.partners(to) for to in self.company.partners)
        self.fellows = {other for others in near for other in others} - {node}
        """Those that send to a receiver of ours: masks are made with them."""
        self.passed: set[RunKey] = set()
        """Keys of neighbours that the others have been told of."""
        self.lead = max(leads_of(node, schedule, self.company.partners).values(), default=1)
        self.round = resumed.round if resumed else 0
        self.x = resumed.vectors[MODEL] if resumed else initial
        self.eager = resumed is not None  # a new life
        self.carried = Carried(resumed)
        self.phase = "new"
        self.senders: set[NodeId] = set()  # to us, in the round that is being exchanged
        self.waiting_for: set[NodeId] = set()  # whose part of it is not here
        self.given: Words = np.zeros(0, np.uint32)  # what the receivers of our model take of it
        self.sums: dict[int, _Sum] = {}
        self.newest: dict[NodeId, int] = {}  # the latest round that each was heard of in
        self.absent: set[NodeId] = set()  # not waited for
        self.done: set[NodeId] = set()  # have heard our goodbye
        self.deadline = Deadline(settings.deadline_ns, settings.least_deadline_ns)
        self.began_ns = self.heard_ns = 0  # when this round began, and when the last part of it came

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        if self.phase == "finished":
            return []
        match event:
            case Received(sender, message):
                self.company.check(sender, f"a message of kind {type(message).__name__.lower()!r}")
                return self._heard(event, now_ns)
            case Trained(job, update):
                assert self.phase == "training" and job == self.round, f"job {job} was not asked for"
                return self._exchange(update, now_ns)
            case Fired(key):
                return self._fired(key, now_ns)
            case PeerJoined(node, incarnation):
                return self._joined(node, incarnation, now_ns)
            case PeerGone(node):
                return self._gone(node, now_ns)
            case Started():
                self.phase = "joining"
                return self._begin_if_joined(now_ns) or [SetTimer(("start",), self.settings.start_ns)]
            case Stopping():
                return [*self._goodbye(), *self._finish()]
            case Rostered():
                raise ProtocolError(f"node {self.node}: who takes part in a private run is fixed before it begins")

    def _heard(self, event: Received, now_ns: int) -> list[Effect]:
        match event.message:
            case Masked() as message:
                return self._received(event.sender, message, now_ns)
            case Leaving() as leaving:
                return self._left(event.sender, leaving, now_ns)
            case RunKeys(keys):
                return self._told(event.sender, keys, now_ns)
            case message:
                raise ProtocolError(
                    f"node {self.node}: a message of kind {type(message).__name__.lower()!r} from node {event.sender}"
                    " in a private run",
                    "Were the peers started from the same experiment file?",
                    peer=event.sender,
                )

    def _fired(self, key: Hashable, now_ns: int) -> list[Effect]:
        match self.phase, key:
            case "waiting", ("deadline", self.round):
                self.absent.update(self.waiting_for)
                return self._end_round(now_ns)
            case "waiting", ("pace", self.round) if all(map(self._will_not_come, self.waiting_for)):
                return self._end_round(now_ns)
            case "joining", ("start",):
                return self._start_with_those_here(now_ns)
            case "leaving", ("again",):
                return [*self._goodbye(), SetTimer(("again",), self.settings.again_ns)]
            case "leaving", ("drain",):
                return self._finish()
        return []  # a timer that no longer matters

    # --- links ----------------------------------------------------------------------------------------------------

    def _joined(self, node: NodeId, incarnation: int, now_ns: int) -> list[Effect]:
        if self.company.joined(node, incarnation):
            self.newest.pop(node, None)
            self.done.discard(node)
        effects: list[Effect] = [Report("joined", node, self.round)] if node in self.absent else []
        if node in self.company.partners:
            effects += self._tell(node, self.pairs.told(other for other in self.company.partners if other != node))
        return effects + self._begin_if_joined(now_ns)

    def _tell(self, to: NodeId, keys: Sequence[RunKey]) -> list[Effect]:
        return [Send(to, RunKeys(tuple(keys[at : at + KEYS_MAX]))) for at in range(0, len(keys), KEYS_MAX)]

    def _told(self, sender: NodeId, keys: Sequence[RunKey], now_ns: int) -> list[Effect]:
        """Take what is new; what a neighbour says of itself is passed on to all that send to it and to us."""
        try:
            latest = {key.node: key for key in sorted(keys, key=lambda key: key.incarnation)}
            heeded = self.fellows | {sender}
            news = [key for node, key in latest.items() if node in heeded and self.pairs.news(key)]
        except ProtocolError as error:
            text = f"node {self.node}: node {sender} tells {error}"
            raise ProtocolError(text, error.advice, peer=sender) from None
        for key in news:
            self.pairs.take(key)
        # it may have come over another first, who does not tell ours
        own = [key for key in self.pairs.told([sender]) if key.node == sender and key not in self.passed]
        self.passed.update(own)
        others = [other for other in self.company.partners if other != sender and other in self.company.linked]
        effects = [effect for other in others for effect in self._tell(other, own)]
        return effects + self._begin_if_joined(now_ns)

    @property
    def _lacking(self) -> list[NodeId]:
        """Those with whom no masks can be made yet, and who may come."""
        gone = self.absent | self.company.left
        return sorted(other for other in self.fellows - gone if not self.pairs.knows(other))

    def _begin_if_joined(self, now_ns: int) -> list[Effect]:
        company = self.company
        if self.phase != "joining" or not set(company.partners) <= company.linked | self.absent | company.left:
            return []
        if set(company.partners) <= company.left:  # they stopped before it began
            return [*self._goodbye(), *self._finish()]
        if not company.linked or self._lacking:
            return []  # the start timer
        return self._train(now_ns)

    def _start_with_those_here(self, now_ns: int) -> list[Effect]:
        missing = self.company.missing() or self._lacking
        if not (self.company.linked or self.eager):  # to learn alone would be a surprise, not gossip
            return [Report("nobody_came", missing, self.round), *self._finish(nobody_came(missing))]
        self.absent.update(missing)
        return [Report("started_without", missing, self.round), *self._train(now_ns)]

    def _gone(self, node: NodeId, now_ns: int) -> list[Effect]:
        self.company.linked.discard(node)
        if node in self.company.left or node not in self.company.partners:
            return self._finish_if_done()
        self.absent.add(node)
        report = Report("gone", node, self.round)
        return [report, *self._begin_if_joined(now_ns), *self._end_if_complete(now_ns), *self._finish_if_done()]

    def _left(self, sender: NodeId, leaving: Leaving, now_ns: int) -> list[Effect]:
        heard_before = sender in self.company.left
        self.company.left.add(sender)
        if leaving.done:
            self.done.add(sender)
        effects = [*self._begin_if_joined(now_ns), *self._end_if_complete(now_ns)]
        if self.phase == "leaving" and not (heard_before and leaving.done):
            effects.append(Send(sender, self._leaving(sender)))
        return effects + self._finish_if_done()

    # --- a round --------------------------------------------------------------------------------------------------

    def _train(self, now_ns: int) -> list[Effect]:
        if self.round >= self.settings.rounds:
            return self._leave()
        self.phase, self.began_ns, self.heard_ns = "training", now_ns, now_ns
        return [Train(self.round, self.x)]

    def _exchange(self, update: Vector | None, now_ns: int) -> list[Effect]:
        x = self.x if update is None else add(self.x, update)
        self._check_bound(x)
        effects: list[Effect] = []
        if (newest := self._gone_on_to()) > self.round:  # the rounds between are lost
            effects.append(Report("skipped", newest - self.round, newest))
            self._go_to(newest)
        self.x = frozen(x)
        self.phase, self.heard_ns = "waiting", now_ns  # who was here before us was in time
        mixing = self.schedule.mixing(self.round)
        row = self._others(mixing, self.node)
        self.senders = set(row)
        here = self.sums.get(self.round)
        self.waiting_for = self.senders - here.heard if here else set(self.senders)
        effects.append(Outgoing(self.round + 1, self.x))
        self.carried.due(self.senders)
        # first: what leaves is never masked again
        effects.append(Checkpoint(self.round + 1, {MODEL: self.x}, self.carried.saved()))
        effects += self._parts(mixing, row)
        effects.append(SetTimer(("deadline", self.round), self.deadline.now_ns()))
        return effects + self._end_if_complete(now_ns)

    def _others(self, mixing: Weights, node: NodeId) -> dict[NodeId, float]:
        return {other: weight for other, weight in mixing.row(node).items() if other != node}

    def _parts(self, mixing: Weights, row: dict[NodeId, float]) -> list[Effect]:
        """What each neighbour gets of our model; equal weights, as on regular graphs, are rounded once."""
        wholes = {weight: self.grid.whole(self.x, weight) for weight in set(row.values())}
        self.given = _times([(wholes[weight], times) for weight, times in Counter(row.values()).items()])
        effects: list[Effect] = []
        for to, weight in row.items():
            senders = self._others(mixing, to)
            if len(senders) < NEIGHBOURS_MIN:
                effects.append(Report("withheld", {"peer": to, "senders": len(senders)}, self.round))
            elif lacking := [other for other in senders if other != self.node and not self.pairs.knows(other)]:
                effects.append(Report("withheld", {"peer": to, "keys": lacking}, self.round))
            elif to not in self.company.left:
                words = self._under_masks(wholes[weight], to, [other for other in senders if other != self.node])
                effects.append(Send(to, Masked(self.round, self.schema, (frozen(cast(Vector, words)),))))
        return effects

    def _under_masks(self, whole: Words, to: NodeId, others: Sequence[NodeId]) -> Words:
        keys = {other: self.pairs.key(other, to, self.round, whole.size) for other in others}
        added = [key for other, key in keys.items() if other > self.node]
        return masked(whole, added, [key for other, key in keys.items() if other < self.node])

    def _check_bound(self, x: Vector) -> None:
        if (largest := self.grid.beyond(x)) is not None:
            raise TrainingError(
                f"node {self.node}, round {self.round}: a model with a weight of {largest:.6g}, beyond algorithm.bound"
                f" = {self.grid.bound:g}",
                "Raise algorithm.bound, the same on all peers; or lower train.lr, if the training has diverged.",
            )

    def _gone_on_to(self) -> int:
        """The latest round to which two who need our model have gone on without it; one voice moves nobody."""
        ahead = [r for j, r in self.newest.items() if r > self.round and j not in self.absent and self._gave_up(j, r)]
        return sorted(ahead)[-2] if len(ahead) > 1 else self.round

    def _gave_up(self, node: NodeId, round: int) -> bool:
        until = min(round, self.round + (self.schedule.period or LEAD_ROUNDS))
        return any(node in self.schedule.mixing(r).targets(self.node) for r in range(self.round, until))

    def _received(self, sender: NodeId, message: Masked, now_ns: int) -> list[Effect]:
        words, round = self._checked(sender, message), message.round
        self.newest[sender] = max(round, self.newest.get(sender, -1))
        if sender in self.company.linked and (round >= self.round - 1 or self._alone()):
            self.absent.discard(sender)
        if round < self.round:
            return [Report("late", {"peer": sender, "round": round}, self.round)]
        if round <= self.round + self.lead:  # else it has gone on without us, and so shall we
            here = self.sums.get(round)
            if here and sender in here.heard:
                return [Report("repeated", {"peer": sender, "round": round}, self.round)]
            if here:
                here.add(sender, words)
            else:
                self.sums[round] = _Sum(sender, words)
        if round == self.round:
            self.waiting_for.discard(sender)
            self.heard_ns = now_ns
        return self._end_if_complete(now_ns)

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
        if message.schema != self.schema or shapes != [("uint32", self.x.size + CHECK_WORDS)]:
            raise ProtocolError(
                f"{where}: node {sender} sends a model of another layout (schema {message.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )
        return message.vectors[0].view(np.uint32)

    def _end_if_complete(self, now_ns: int) -> list[Effect]:
        if self.phase != "waiting" or not all(map(self._will_not_come, self.waiting_for)):
            return []
        early_ns = self.began_ns + self.deadline.usual_ns() - now_ns
        if early_ns > 0 and self._alone():
            return [SetTimer(("pace", self.round), early_ns)]
        return self._end_round(now_ns)

    def _alone(self) -> bool:
        """Whether nobody takes part in this round but us; it then takes its usual time, or we would run away."""
        return bool(self.waiting_for) and self.waiting_for == self.senders

    def _will_not_come(self, node: NodeId) -> bool:
        """Whether this round's part of `node`, which is not here, is not worth waiting for.

        It has gone on; or it was here before us by more rounds than are kept.
        """
        return node in self.absent or node in self.company.left or self.newest.get(node, -1) >= self.round

    def _end_round(self, now_ns: int) -> list[Effect]:
        missing = sorted(self.waiting_for)
        if len(missing) < len(self.senders):
            self.deadline.saw(self.heard_ns - self.began_ns)
        effects = self._mix(missing)
        self._go_to(self.round + 1)
        self.phase, self.given = "mixed", np.zeros(0, np.uint32)
        effects.append(RoundDone(self.round, self.x))
        effects.append(Checkpoint(self.round, {MODEL: self.x}, self.carried.saved()))
        return effects + self._train(now_ns)

    def _mix(self, missing: Sequence[NodeId]) -> list[Effect]:
        """Take the sum up if all of it is here; else keep our own model."""
        self.carried.heard(self.senders.difference(missing))
        if missing or not self.senders:
            return [Report("skipped_mix", {"missing": missing}, self.round)]
        come = self.sums.pop(self.round)
        total = opened(come.total, len(self.senders))
        if total is None:
            return [Report("skipped_mix", {"garbled": sorted(self.senders)}, self.round)]
        if not self.grid.possible(total, len(self.senders)):
            return [Report("skipped_mix", {"beyond": sorted(self.senders)}, self.round)]
        self.x = self.grid.moved(self.x, total, self.given)
        for sender in self.senders:
            self.carried.came(sender)
        return []

    def _go_to(self, round: int) -> None:
        self.round = round
        for old in [r for r in self.sums if r < round]:
            del self.sums[old]

    # --- the end --------------------------------------------------------------------------------------------------

    def _leave(self) -> list[Effect]:
        self.phase = "leaving"
        timers = [SetTimer(("drain",), self.settings.drain_ns), SetTimer(("again",), self.settings.again_ns)]
        return [*self._goodbye(), *timers, *self._finish_if_done()]

    def _leaving(self, to: NodeId) -> Leaving:
        return Leaving(self.round, done=to in self.company.left)

    def _goodbye(self) -> list[Effect]:
        # also to those who said it first: they stay until they hear it from us
        return [Send(to, self._leaving(to)) for to in self.company.partners if to not in self.done]

    def _finish_if_done(self) -> list[Effect]:
        done = self.company.linked & set(self.company.partners) <= self.done
        return self._finish() if self.phase == "leaving" and done else []

    def _finish(self, failure: Failure | None = None) -> list[Effect]:
        over = self.round >= self.settings.rounds
        lacking = self.carried.told(self.round, self.company.partners) if over else []
        self.phase = "finished"
        self.sums.clear()
        return [*lacking, Finish(self.x, failure)]
