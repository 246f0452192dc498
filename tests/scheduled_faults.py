"""A schedule of the explorer as a fault script, and the simulator under it: what is broken here is broken there.

The machines pass through the schedule once more, now by a clock that advances by STEP before every step; a timer fires
at its own time.  The times give the delays of messages, the durations of trainings, the seconds of crashes, and sleeps
where a timer is late.  Notices of ends and crashes take the simulator's time, and machines measure other times, so the
script is tried in the simulator, and reduced there to the necessary faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomli_w
from exploring import (
    LONGEST,
    Action,
    Budget,
    Explorer,
    Participant,
    Schedule,
    View,
    World,
    WrongError,
    kind_of,
    shortest,
)

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Effect, Event, Finish, Machine, NodeId, Train
from fedgossip.core.metrics import Network
from fedgossip.core.task import Job, Update
from fedgossip.faults import Fault, FaultScript
from fedgossip.simulation.network import NetworkSettings, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator

NS = 1_000_000_000
STEP, LATENCY = 10_000, 1_000
"""Time between two steps of a schedule, and of every message without a fault, in nanoseconds."""
SETTINGS = {"latency": LATENCY / NS, "training": STEP / NS, "jitter": 0.0}
SOON = 1e-9
"""Seconds in which one training begins, and no other."""

Scripted = tuple[tuple[Any, ...], dict[str, Any]]
"""One strike: (a message, or nothing), and the other keys of its fault."""


class NoScriptError(Exception):
    """A schedule that no fault script has; the message has the step."""


# --- from steps to times ----------------------------------------------------------------------------------------------


@dataclass
class Scripter:
    """Passes through a schedule by STEP, and keeps what must happen to messages, trainings and participants."""

    explorer: Explorer
    strikes: list[Scripted] = field(default_factory=list)
    _under_way: dict[tuple[NodeId, NodeId], list[tuple[int | None, int, int | None]]] = field(default_factory=dict)
    """Of each message on a link: its number, when it was sent, and when its first copy arrived."""
    _sent: dict[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    _began: dict[NodeId, list[int]] = field(default_factory=dict)
    """When the trainings of a node began that have not ended."""
    _crashed: dict[NodeId, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def script(self, actions: Schedule) -> list[Scripted]:
        """Return the strikes of a schedule that breaks something with its last step.  Raises NoScriptError."""
        state = self.explorer.start()
        self._record(state)
        now_ns = 0
        for action in actions:
            if not self._is_possible(state, action):
                continue  # a measured time is no longer nothing, so a timer differs
            now_ns = self._time(state, action)
            self._before(action, now_ns)
            try:
                state = self.explorer.after(state._replace(now_ns=now_ns), action)
            except WrongError:
                break
            self._record(state)
        self._to_the_end(now_ns + LONGEST * STEP)
        return self.strikes

    def _is_possible(self, state: Any, action: Action) -> bool:
        if action.what in ("fire", "hurry"):
            return bool(self.explorer.nodes.of[state.nodes[action.at]].timers)
        return action.what == "cut" or action in self.explorer.actions(state)

    def _time(self, state: Any, action: Action) -> int:
        if action.what == "cut":
            raise NoScriptError(f"{action}: a crash within a step")
        now_ns: int = state.now_ns
        if action.what not in ("fire", "hurry"):
            return now_ns if action.what == "drop" else now_ns + STEP
        due_ns, _ = self.explorer.nodes.of[state.nodes[action.at]].timers[0]
        if due_ns >= now_ns:
            return int(due_ns)
        late_ns = now_ns + STEP
        self._strike((), kind="sleep", peers=[action.at], start=due_ns / NS, seconds=(late_ns - due_ns) / NS)
        return late_ns

    def _before(self, action: Action, now_ns: int) -> None:
        what, node, detail = action
        if what in ("deliver", "drop", "repeat"):
            number, sent_ns, first_ns = self._under_way[detail, node].pop(0)
            if what == "repeat":
                self._under_way[detail, node].append((number, sent_ns, now_ns))
            if what == "drop":
                self._strike((detail, node, number), kind="drop")
            else:
                self._arrives((detail, node, number), sent_ns, first_ns, now_ns)
        elif what == "trained":
            self._trains(node, self._began[node].pop(detail), now_ns)
        elif what == "crash":
            for (sender, to), queue in self._under_way.items():
                for number, _, first_ns in queue if to == node else ():
                    if number is not None and first_ns is None:
                        self._strike((sender, to, number), kind="drop")
            self._began[node] = []
            self._crashed[node] = now_ns, self._strike((), kind="crash", peers=[node], start=now_ns / NS)
        elif what == "return":
            crashed_ns, crash = self._crashed[node]
            crash["after"] = (now_ns - crashed_ns) / NS

    def _arrives(self, message: Any, sent_ns: int, first_ns: int | None, now_ns: int) -> None:
        if message[2] is None:
            return  # a notice
        if first_ns is not None:
            self._strike(message, kind="duplicate", seconds=(now_ns - first_ns) / NS)
        elif now_ns > sent_ns + LATENCY:
            self._strike(message, kind="delay", seconds=(now_ns - sent_ns - LATENCY) / NS)

    def _trains(self, node: NodeId, began_ns: int, now_ns: int) -> None:
        if now_ns > began_ns + STEP:
            when = {"start": began_ns / NS, "stop": began_ns / NS + SOON}
            self._strike((), kind="slow", peers=[node], factor=(now_ns - began_ns) / STEP, **when)

    def _to_the_end(self, end_ns: int) -> None:
        """What has not arrived or ended by then does so later."""
        for link, queue in self._under_way.items():
            for number, sent_ns, first_ns in queue:
                self._arrives((*link, number), sent_ns, first_ns, end_ns)
        for node, began in self._began.items():
            for began_ns in began:
                self._trains(node, began_ns, end_ns)

    def _strike(self, message: tuple[Any, ...], **keys: Any) -> dict[str, Any]:
        self.strikes.append((message, keys))
        return keys

    def _record(self, state: Any) -> None:
        """Number what has been sent, and forget what was lost with a participant."""
        mail = dict(state.mail)
        for link in {*mail, *self._under_way}:
            queue, known = mail.get(link, ()), self._under_way.setdefault(link, [])
            if len(queue) < len(known):
                known.clear()
            for message in queue[len(known) :]:
                notice = not self.explorer.is_message(message)
                if not notice:
                    self._sent[link] = self._sent.get(link, -1) + 1
                known.append((None if notice else self._sent[link], state.now_ns, None))
        for node, number in enumerate(state.nodes):
            began = self._began.setdefault(node, [])
            began += [state.now_ns] * (len(self.explorer.nodes.of[number].jobs) - len(began))


def faults_of(strikes: Sequence[Scripted]) -> list[dict[str, Any]]:
    """Return [[faults]] blocks, one for all messages with the same fate."""

    def by_fate(one: Scripted) -> str:
        return repr((bool(one[0]), sorted(one[1].items())))

    blocks = []
    for _, group in groupby(sorted(strikes, key=by_fate), by_fate):
        each = list(group)
        messages = sorted(list(message) for message, _ in each if message)
        blocks += [keys | {"messages": messages} for _, keys in each[:1]] if messages else [keys for _, keys in each]
    return blocks


# --- the simulator under a script -------------------------------------------------------------------------------------


class Watched:
    """A machine of the simulator, judged after each event."""

    def __init__(self, run: WatchedRun, node: NodeId, machine: Machine) -> None:
        self.run, self.node, self.machine = run, node, machine

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        try:
            effects = self.machine.handle(event, now_ns)
        except ProtocolError as error:
            raise WrongError(f"{self.node} refuses a message of an honest participant: {error}") from None
        except AssertionError as error:
            raise WrongError(f"{self.node} breaks at {type(event).__name__}: {error}") from error
        self.run.handled(self.node, event, self.machine, effects)
        return effects


class WatchedRun:
    """A world in the simulator.  `spent`: the faults that its judges allow for."""

    dtype, schema, length = np.dtype(np.float64), "", 0

    def __init__(self, world: World, spent: Budget) -> None:
        self.world, self.spent, self.steps = world, spent, 0
        n = len(world.links)
        self.ghosts, self.ended, self.lives = [world.ghost] * n, [False] * n, [0] * n
        self.machines = [Watched(self, node, world.make(node, 0, None, ())) for node in range(n)]
        self.asked: dict[NodeId, Train] = {}

    def handled(self, node: NodeId, event: Event, machine: Machine, effects: Sequence[Effect]) -> None:
        self.steps += 1
        self.ghosts[node] = self.world.observe(node, self.ghosts[node], event, machine, effects)
        self.asked.update((node, effect) for effect in effects if isinstance(effect, Train))
        self.ended[node] |= any(isinstance(effect, Finish) for effect in effects)
        if wrong := self.world.judge(self.view()):
            raise WrongError(wrong)
        if self.steps > LONGEST:
            raise WrongError(f"no end after {LONGEST} steps without a fault")

    def view(self, dead: frozenset[NodeId] = frozenset()) -> View:
        parts = [
            Participant(None if node in dead else one.machine, self.lives[node], (), (), None, (), ended, ghost)
            for node, (one, ended, ghost) in enumerate(zip(self.machines, self.ended, self.ghosts, strict=True))
        ]
        return View(parts, {}, self.spent, ())

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        answers = [self.world.answer(job.node, self.asked[job.node]) for job in jobs]
        return [Update(one.update, one.examples, one.metrics, extra=one.extra) for one in answers]

    gradients = train

    def initial(self, node: NodeId) -> Vector:
        raise AssertionError(f"{node} has its vector")

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]

    def wrong(self, faults: Sequence[dict[str, Any]]) -> str:
        """Return what breaks in the simulator; "" where nothing does."""
        n = len(self.machines)

        def reborn(node: NodeId, life: int, saved: Checkpoint | None) -> Machine:
            self.lives[node] = life
            self.machines[node] = Watched(self, node, self.world.make(node, life, saved, simulator.logs.get(node, ())))
            return self.machines[node]

        simulator = Simulator(
            self.machines, self.world.links, self, SimulatedNetwork(NetworkSettings(**SETTINGS), n, 0),
            Network(n, 10**9, 10**9, lambda _: [], watch_all=False), lambda _: None,
            script=FaultScript(msgspec.convert(faults, list[Fault]), n, 0), rebirth=reborn,
        )  # fmt: skip
        try:
            simulator.run(min(self.world.until_ns / NS, LONGEST))
            waiting = [node for node, ended in enumerate(self.ended) if not ended and node not in simulator.dead]
            if waiting and self.world.until_ns > LONGEST * NS:
                return f"participants {waiting} wait for nothing: no timer, no message, no training"
            return self.world.settled(self.view(frozenset(simulator.dead)))
        except WrongError as error:
            return str(error)


def counter_example(world: World, budget: Budget, schedule: Schedule) -> list[dict[str, Any]]:
    """Return the fewest [[faults]] with which the simulator breaks what `schedule` does.  Raises NoScriptError."""
    if world.experiment is None:
        raise NoScriptError("no simulator has these machines")
    explorer = Explorer(world, budget)
    actions, wrong = explorer.played(schedule)
    strikes = Scripter(explorer).script(actions)

    def breaks(some: Sequence[Scripted]) -> bool:
        return kind_of(WatchedRun(world, budget).wrong(faults_of(some))) == kind_of(wrong)

    if not breaks(strikes):
        raise NoScriptError(f"not in the simulator: {wrong}")
    return faults_of(shortest(strikes, breaks))


def write_script(folder: Path, world: World, faults: Sequence[dict[str, Any]]) -> str:
    """Write experiment.toml and faults.toml; return the command that runs them."""
    assert world.experiment is not None, "counter_example was called"
    for name, content in (
        ("experiment.toml", {**world.experiment, "simulation": SETTINGS}),
        ("faults.toml", {"faults": list(faults)}),
    ):
        (folder / name).write_text(tomli_w.dumps(content))
    return f"fedgossip run {folder / 'experiment.toml'} --faults {folder / 'faults.toml'}"
