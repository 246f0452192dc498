"""The tables of phases in the docstrings are what the machines do: nothing else happens, and nothing in them is idle.

    phase      event                      next phase
    training   Trained Leaving            waiting finished

A row promises that after each of its events one of the next phases follows somewhere, and that each of these does.  An
event is told by its name; a message by its own, a timer by the first part of its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import fault_seeds
import pytest
from by_hand import Hand
from gossip_kinds import KINDS, SCHEMA, N, resume_point, start

from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Event, Fired, PeerGone, PeerJoined, Received, Rostered, Started, Stopping, Trained
from fedgossip.core.messages import Accepted, Account, Ack, Leaving, Model, Offer, RunKeys
from fedgossip.protocols import private_gossip
from fedgossip.protocols.gossip import async_gossip, lifecycle, sync_gossip
from fedgossip.protocols.gossip.lifecycle import Lifecycle
from fedgossip.protocols.push_sum import push_sum
from fedgossip.topology import build, resolve

Step = tuple[str, str, str]
"""(phase, event, next phase)."""

MODULES = {
    "sync": sync_gossip,
    "private": private_gossip,
    "async": async_gossip,
    "push-sum": push_sum,
    "async push-sum": push_sum,
}
END = {"closing", "leaving", "finished"}
SEEDS = 40


def rows(text: str, at: int = 0, of: int = 1) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each row of table `at` of a docstring, which has `of` of them: phase, events, next phases."""
    tables = re.findall(r"    phase +event +next phase\n((?:    \w.*\n)+)", text)
    assert len(tables) == of
    for line in tables[at].splitlines():
        phase, events, following = re.split(r" {2,}", line.strip())
        yield phase, events.split(), following.split()


def table_of(kind: str) -> list[tuple[str, list[str], list[str]]]:
    common, own = lifecycle.__doc__, MODULES[kind].__doc__
    assert common and own
    place = (int(kind.startswith("async")), 2) if MODULES[kind] is push_sum else (0, 1)
    return [*rows(common), *rows(own, *place)]


def name_of(event: Event) -> str:
    match event:
        case Received(_, message):
            return type(message).__name__
        case Fired((str(first), *_)):
            return first
    return type(event).__name__


# --- what machines do -------------------------------------------------------------------------------------------------


def kind_of(machine: Lifecycle[Any]) -> str:
    if isinstance(machine, push_sum.AsyncPushSum):
        return "async push-sum"
    return next(kind for kind, module in MODULES.items() if type(machine).__module__ == module.__name__)


@cache
def observed() -> dict[str, set[Step]]:
    """Every change of phase in fault simulations, in schedules drawn from a seed, and in some that are written here."""
    found: dict[str, set[Step]] = {kind: set() for kind in KINDS}
    handle = Lifecycle.handle

    def watched(self: Lifecycle[Any], event: Event, now_ns: int) -> Any:
        before = self.phase
        effects = handle(self, event, now_ns)
        if self.phase != before:
            found[kind_of(self)].add((before, name_of(event), self.phase))
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lifecycle, "handle", watched)
        for play in (in_fault_simulations, under_drawn_schedules, by_script):
            play()
    return found


def in_fault_simulations() -> None:
    for seed in range(SEEDS):
        fault_seeds.run(seed)


def under_drawn_schedules() -> None:
    for kind, make in KINDS.items():
        for seed in range(SEEDS):
            later = resume_point(kind, 0, start(0)) if seed % 3 == 0 else None
            hand = Drawn([make(i, (0, 1, 5)[seed % 3], later if i == 0 else None) for i in range(N)], seed)
            hand.begin()
            hand.run()


class Drawn(Hand):
    """Anything may happen: links break, messages are lost, people stop peers, and timers fire whenever they like."""

    calm = 500

    def __init__(self, machines: Any, seed: int) -> None:
        super().__init__(machines, [[j for j in range(N) if j != i] for i in range(N)], seed, wild=(60, 400)[seed % 2])
        self.loss, self.twice, self.breaks = (0.0, 0.3)[seed // 2 % 2], 0.1, (0.0, 0.05)[seed // 4 % 2]
        self.updates = {i: frozen(start(i) * 0) for i in range(N)}
        self.stops = 0.01 * (seed % 5 == 0)

    def begin(self) -> None:
        """All start; links come up in an order that is drawn."""
        links = [(i, j) for i in range(N) for j in range(N) if i != j]
        for node in range(N):
            self.tell(node, Started())
        for place in self.random.permutation(len(links)):
            node, other = links[place]
            self.tell(node, PeerJoined(other))
            self.step()

    def step(self) -> bool:
        if self.wild > 0 and self.random.random() < self.stops:
            self.tell(int(self.random.integers(N)), Stopping())
        if self.wild > 0 and self.random.random() < 0.02:
            some = [(i, key) for i, keys in self.timers.items() for key in sorted(keys, key=str)]
            if some:
                node, key = some[int(self.random.integers(len(some)))]
                self.timers[node].discard(key)
                self.tell(node, Fired(key))
        return super().step()


def by_script() -> None:
    """What chance meets seldom."""
    for kind in KINDS:
        at_the_beginning(kind)
        at_the_end(kind)
        alone(kind)
    after_a_loss()
    with_a_last_word()


def made(kind: str, *links: int, rounds: int = 3) -> Any:
    machine = KINDS[kind](0, rounds, None)
    tell(machine, Started(), *(PeerJoined(node) for node in links))
    return machine


def tell(machine: Any, *events: Event) -> None:
    for event in events:
        machine.handle(event, 0)


def at_the_beginning(kind: str) -> None:
    tell(KINDS[kind](0, 3, None), Stopping())
    lonely: Any = KINDS[kind](0, 3, None)
    lonely.company.change(())
    tell(lonely, Started())
    tell(made(kind, 1, 2), Received(3, Leaving(0)))
    tell(made(kind, 1, 2), PeerGone(3))
    if kind == "private":
        keyless = KINDS[kind](0, 3, None)
        keyless.company.keyless = frozenset({2})
        tell(keyless, Started(), *map(PeerJoined, (1, 2, 3)), Received(1, RunKeys(())))
    else:
        tell(made(kind, 1, 2), Rostered(build(resolve("complete", 3), "push")))


def at_the_end(kind: str) -> None:
    """Somebody stops a peer, or all others leave, wherever it is."""
    left = [Received(1, Leaving(1)), Received(2, Leaving(1))]
    for last in (Stopping(), Received(3, Leaving(1)), PeerGone(3)):
        for later, timed, early in product(range(3), (False, True), (False, True)):
            machine, most = made(kind, 1, 2, 3, rounds=9), [] if isinstance(last, Stopping) else left
            tell(machine, *(most if early else []))
            for round in range(later):
                tell(machine, *jobs(machine))
                tell(machine, *(timers_of(machine, round) if timed else []))
            tell(machine, *([] if early else most), last)
    for timed in (False, True):
        closing = made(kind, 1, 2, 3, rounds=1)
        tell(closing, *jobs(closing))
        tell(closing, *(timers_of(closing, 0) if timed else []), Stopping())
    tell(made(kind, 1, 2, 3, rounds=0), Stopping())


def jobs(machine: Any) -> list[Event]:
    return [Trained(machine.round, None)] if machine.phase == "training" else []


def timers_of(machine: Any, round: int) -> list[Event]:
    keys = [("deadline", round), ("blocked", machine.round), ("pause", machine.round)]
    keys += [("offer", machine.pairing.count)] if hasattr(machine, "pairing") else []
    return [Fired(key) for key in keys]


def alone(kind: str) -> None:
    """All links are down: rounds take their usual time."""
    machine = made(kind, 1, 2, 3, rounds=9)
    for _ in range(10):
        machine.deadline.record(10**9)
    tell(machine, PeerGone(1), PeerGone(2), PeerGone(3))
    for _ in range(2):
        tell(machine, *jobs(machine), Fired(("pace", machine.round)))


def after_a_loss() -> None:
    """A synchronous peer that missed a round hears at the very end that another had mixed it, or that none had."""
    missed = [Trained(0, None), Fired(("deadline", 0))]
    machine = made("sync", 1, 2, 3, rounds=1)
    tell(machine, *missed, *(Received(node, Leaving(1, done=True)) for node in (2, 3)))
    tell(machine, Received(1, Leaving(1, 0, done=True)), Received(1, Model(0, SCHEMA, (start(1),), used=0)))
    tell(made("sync", 1, 2, 3), *missed, Stopping(), *(Received(node, Account(2)) for node in (1, 2, 3)))


def with_a_last_word() -> None:
    """What was open is settled when nobody is waited for but for that."""
    busy = made("async", 1, 2, 3)
    tell(busy, Received(1, Offer(0, 0, SCHEMA, (start(1),))), Stopping(), Received(1, Ack(0)))
    for kind in ("push-sum", "async push-sum"):
        lost = made(kind, 1, 2, 3, rounds=1)
        tell(lost, *jobs(lost))
        tell(lost, *timers_of(lost, 0), PeerGone(1))
        tell(lost, *(Received(node, Leaving(1)) for node in (2, 3)), Received(1, Accepted(0)))


# --- the tables against that ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_happens_that_is_in_no_table(kind: str) -> None:
    allowed = {(a, event, b) for a, events, following in table_of(kind) for event in events for b in phases(following)}
    assert sorted(observed()[kind] - allowed) == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_event_and_each_next_phase_of_a_row_is_met(kind: str) -> None:
    idle = []
    for phase, events, following in table_of(kind):
        met = {(event, b) for a, event, b in observed()[kind] if a == phase and b in phases(following)}
        idle += [(phase, event) for event in events if not any(event == one for one, _ in met)]
        for after in following:
            idle += [] if any(event in events and b in phases([after]) for event, b in met) else [(phase, after)]
    assert idle == []


def phases(following: list[str]) -> set[str]:
    return {phase for after in following for phase in (END if after == "end" else {after})}
