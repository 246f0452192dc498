"""Moves the messages of a few machines by hand, in an order drawn from a seed: lost, repeated, overtaken, late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedgossip.base import seeds
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import (
    Aggregated,
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    LocalWork,
    Outgoing,
    PeerGone,
    PeerJoined,
    Received,
    Refused,
    Report,
    RoundDone,
    Send,
    SetTimer,
    Started,
    Train,
    Trained,
)

STEPS = 20_000
PATIENT = ("drain", "start", "hung")
"""Timers that fire when nothing else is left to do, or when nothing has helped for CALM steps."""
CALM = 5_000


def reported(effect: Effect | Event) -> Report | None:
    """Return what a machine tells, whatever its type, as a report; None of what is to be done."""
    match effect:
        case Report():
            return effect
        case Refused(sender, reason, text, round, advice):
            return Report("refused", {"from": sender, "reason": reason, "text": text, "advice": advice}, round)
        case Outgoing(round, vector):
            return Report("outgoing", vector, round)
        case RoundDone(round, model):
            return Report("round_done", model, round)
        case Aggregated(round, facts):
            return Report("aggregated", facts, round)
        case LocalWork(round):
            return Report("local_work", effect, round)
    return None


def reports(effects: Sequence[Effect]) -> dict[str, Any]:
    """Return the values of what a machine tells, by name."""
    return {report.name: report.value for report in map(reported, effects) if report}


class Hand:
    """`links[i]` are the partners of machine i.  For `wild` steps anything may happen; after that nothing is lost."""

    calm = CALM

    def __init__(self, machines: Sequence[Any], links: Sequence[Sequence[int]], seed: int, wild: int = 0) -> None:
        self.random = seeds.stream(seed, "hand")
        self.machines, self.links, self.wild = list(machines), links, wild
        self.loss = self.twice = self.breaks = 0.0
        self.mail: list[tuple[int, int, Any]] = []
        self.jobs: dict[int, tuple[int, Vector]] = {}
        self.updates: dict[int, Vector] = {}
        """What a training gives; nothing where it is not said."""
        self.timers: dict[int, set[Any]] = {i: set() for i in range(len(machines))}
        self.results: dict[int, Vector] = {}
        self.reports: Counter[str] = Counter()
        self.checkpoints: dict[int, Checkpoint] = {}
        self.broken: set[tuple[int, int]] = set()
        self.now_ns = 0

    def begin(self) -> None:
        for node in range(len(self.machines)):
            self.tell(node, Started())
            for other in self.links[node]:
                self.tell(node, PeerJoined(other))

    def tell(self, node: int, event: Event) -> list[Effect]:
        effects = list(self.machines[node].handle(event, self.now_ns))
        for effect in effects:
            self.perform(node, effect)
        return effects

    def perform(self, node: int, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                lost = self.wild > 0 and self.random.random() < self.loss
                twice = self.wild > 0 and self.random.random() < self.twice
                if not lost and (min(node, to), max(node, to)) not in self.broken:
                    self.mail += [(node, to, message)] * (1 + twice)
            case Train(job, vector):
                self.jobs[node] = job, vector
            case SetTimer(key, _):
                self.timers[node].add(key)
            case Checkpoint():
                self.checkpoints[node] = effect
            case Finish(result):
                self.results[node] = result
            case _:
                if report := reported(effect):
                    self.reports[report.name] += 1

    def step(self) -> bool:
        """Do one thing that can be done; false when all have finished or there is nothing to do."""
        self.wild -= 1
        self.now_ns += 1_000_000
        if self.wild > 0 and self.random.random() < self.breaks:
            self._break_or_mend()
        if self.wild == 0:
            for link in sorted(self.broken):
                self._mend(link)
        ready: list[tuple[str, Any]] = [("mail", place) for place in range(len(self.mail))]
        ready += [("job", node) for node in sorted(self.jobs)]
        soon = [(n, k) for n, keys in self.timers.items() for k in sorted(keys, key=str) if k[0] not in PATIENT]
        if self.wild > 0 or not ready:
            ready += [("timer", one) for one in soon]
        if not ready or self.wild < -self.calm:
            late = [(node, key) for node, keys in self.timers.items() for key in sorted(keys, key=str)]
            ready = [("timer", one) for one in late]
        if not ready or len(self.results) == len(self.machines):
            return False
        self._do(*ready[int(self.random.integers(len(ready)))])
        return True

    def _do(self, what: str, which: Any) -> None:
        if what == "mail":
            first = which if self.wild > 0 else 0  # wild: any message may overtake any other
            sender, to, message = self.mail.pop(first)
            self.tell(to, Received(sender, message))
        elif what == "job":
            job, _ = self.jobs.pop(which)
            self.tell(which, Trained(job, self.updates.get(which)))
        else:
            node, key = which
            self.timers[node].discard(key)
            self.tell(node, Fired(key))

    def _break_or_mend(self) -> None:
        links = sorted({(min(i, j), max(i, j)) for i, others in enumerate(self.links) for j in others})
        link = links[int(self.random.integers(len(links)))]
        if link in self.broken:
            self._mend(link)
        else:
            self.broken.add(link)
            self.mail = [one for one in self.mail if {one[0], one[1]} != set(link)]
            for node, other in (link, link[::-1]):
                self.tell(node, PeerGone(other))

    def _mend(self, link: tuple[int, int]) -> None:
        self.broken.discard(link)
        for node, other in (link, link[::-1]):
            self.tell(node, PeerJoined(other))

    def run(self) -> None:
        for _ in range(STEPS):
            if not self.step():
                return
        raise AssertionError("it does not end")
