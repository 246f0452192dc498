"""A schedule of the explorer as a fault script, and the simulator under it: what is broken here is broken there.

The machines pass through the schedule once more, now by a clock that advances by STEP before every step; a timer fires
at its own time.  Where the simulator then breaks nothing, only the order at each participant is kept (`Timed`).  The
times give the
delays of messages, the durations of trainings, the seconds of crashes, and sleeps where a timer is late.  The notice of
an end is a cut link, since the simulator sends it when all have ended.  Notices of crashes take the simulator's time,
and machines measure other times, so the script is tried in the simulator, and reduced there to the necessary faults.
"""

from __future__ import annotations

from collections import deque
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
    State,
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
DETECTION = 5_000
"""Time until a broken link is reported: a message a STEP earlier has arrived."""
SETTINGS = {"latency": LATENCY / NS, "training": STEP / NS, "jitter": 0.0, "detection": DETECTION / NS}
SOON = 1e-9
"""Seconds in which one training begins, and no other."""

Scripted = tuple[tuple[Any, ...], dict[str, Any]]
"""One strike: (a message, or nothing), and the other keys of its fault."""


class NoScriptError(Exception):
    """A schedule that no fault script has; the message has the step."""


# --- from steps to times ----------------------------------------------------------------------------------------------

Apart = tuple[int, int, int]
"""(a step, another, nanoseconds): the first is at least so much later."""


@dataclass
class Timed:
    """The times of a schedule's steps, from their order at each participant: steps of two participants commute.

    A step is after the participant's last one and after the message that it delivers was sent; a timer fires when due,
    and no event comes to a participant between a timer's time and its firing.  All are differences of two times, whose
    least solution is a longest path (Cormen et al., Introduction to Algorithms, 24.4).
    """

    explorer: Explorer
    _apart: list[Apart] = field(default_factory=list)
    _last: dict[Any, int] = field(default_factory=dict)
    """The last step of each participant, and the last that took a message from each link."""
    _sent: dict[tuple[NodeId, NodeId], list[int]] = field(default_factory=dict)
    """The steps that sent the messages under way on a link."""
    _timers: dict[NodeId, dict[Any, tuple[int, int]]] = field(default_factory=dict)
    """The step that set each timer, and its nanoseconds."""

    def order(self, actions: Schedule) -> list[tuple[int, Action]]:
        """Return (time, step) in the order of times."""
        before, state, taken = None, self.explorer.start(), list[Action]()
        self._sends(state, 0)
        for node in range(len(state.nodes)):
            self._sets(state, state, node, 0)
        for action in actions:
            before = state
            try:
                state = self.explorer.after(state, action)
            except WrongError:
                state = before
            taken.append(action)
            self._steps(before, state, action, len(taken))
        return sorted(zip(self._solve(len(taken))[1:], taken, strict=True), key=lambda one: one[0])

    def _steps(self, before: State, state: State, action: Action, step: int) -> None:
        alone = action.what in ("crash", "return", "cut")  # in its place among all steps
        what, node, detail = _taken(action)
        if what in ("deliver", "drop", "repeat"):
            link = detail, node
            sent = self._sent[link].pop(0)
            if what == "repeat":
                self._sent[link].append(sent)
            self._apart += [(step, sent, 0 if what == "drop" else STEP), (step, self._last.get(link, 0), 0)]
            self._last[link] = step
        if what != "drop":
            places = [0, *self._last.values()] if alone else [self._last.get(node, 0), self._last.get("alone", 0)]
            self._apart += [(step, place, STEP) for place in places]
            self._last[node] = step
        if alone:
            self._last["alone"] = step
            self._timers[node] = {}
        if what in ("fire", "hurry"):
            key = self.explorer.nodes.of[before.nodes[node]].timers[0][1]
            place, after_ns = self._timers[node].pop(key)
            self._apart += [(step, place, after_ns), (place, step, -after_ns)]
        if what != "drop":
            self._apart += [(place, step, STEP - after_ns) for place, after_ns in self._timers[node].values()]
            self._sets(before, state, node, step)
        self._sends(state, step)

    def _sets(self, before: State, state: State, node: NodeId, step: int) -> None:
        known = self._timers.setdefault(node, {})
        timers = {key: due for due, key in self.explorer.nodes.of[state.nodes[node]].timers}
        old = {} if state is before else {key: due for due, key in self.explorer.nodes.of[before.nodes[node]].timers}
        for key in {*known} - {*timers}:
            del known[key]
        known |= {key: (step, due - state.now_ns) for key, due in timers.items() if key not in known or old[key] != due}

    def _sends(self, state: State, step: int) -> None:
        mail = dict(state.mail)
        for link in {*mail, *self._sent}:
            queue, known = mail.get(link, ()), self._sent.setdefault(link, [])
            if len(queue) < len(known):
                known.clear()  # lost with a participant
            known += [step] * (len(queue) - len(known))

    def _solve(self, steps: int) -> list[int]:
        """Return the least times.  Where an event must be behind a timer's time, that timer is late."""
        times, behind = [0] * (steps + 1), [list[tuple[int, int]]() for _ in range(steps + 1)]
        for step, other, by in sorted(self._apart, key=lambda one: one[2] < 0):  # later ones first; then the timers
            if (raised := _raised(times, behind, (step, other, by))) is not None:
                behind[other].append((step, by))
                for at, time in raised.items():
                    times[at] = time
        return times


def _raised(times: Sequence[int], behind: Sequence[Sequence[tuple[int, int]]], apart: Apart) -> dict[int, int] | None:
    """Return the times that one more difference raises; None if it has no solution with the others."""
    step, other, by = apart
    raised, waiting = dict[int, int](), deque([(step, times[other] + by)])
    while waiting:
        at, time = waiting.popleft()
        if time > raised.get(at, times[at]):
            if at in (0, other):
                return None
            raised[at] = time
            waiting += [(after, time + more) for after, more in behind[at]]
    return raised


@dataclass
class Scripter:
    """Passes through a timed schedule, and keeps what must happen to messages, trainings and participants."""

    explorer: Explorer
    in_order: bool
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
        timed = [(0, one) for one in actions] if self.in_order else Timed(self.explorer).order(actions)
        for at_ns, action in timed:
            if not self._is_possible(state, action):
                continue  # a measured time is no longer nothing, so a timer differs
            soon_ns = now_ns + (STEP if self.in_order and action.what != "drop" else 0)
            now_ns = self._time(state, _taken(action), max(at_ns, soon_ns), now_ns)
            self._before(state, _taken(action), now_ns)
            if action.what in ("crash", "cut"):
                self._lose(action.at)
            sent = dict(self._sent)
            try:
                state = self.explorer.after(state._replace(now_ns=now_ns), action)
            except WrongError:
                break
            self._record(state)
            if action.what in ("crash", "cut"):
                new = [(*link, last) for link, last in self._sent.items() if last != sent.get(link)]
                self._falls(action, new, now_ns)
        self._to_the_end(now_ns + LONGEST * STEP)
        return self.strikes

    def _is_possible(self, state: Any, action: Action) -> bool:
        if action.what in ("fire", "hurry"):
            return bool(self.explorer.nodes.of[state.nodes[action.at]].timers)
        return _taken(action) in self.explorer.actions(state)

    def _time(self, state: State, action: Action, at_ns: int, now_ns: int) -> int:
        if action.what not in ("fire", "hurry"):
            return at_ns
        due_ns, _ = self.explorer.nodes.of[state.nodes[action.at]].timers[0]
        if due_ns >= now_ns:
            return int(due_ns)
        late_ns = now_ns + STEP
        self._strike((), kind="sleep", peers=[action.at], start=due_ns / NS, seconds=(late_ns - due_ns) / NS)
        return late_ns

    def _before(self, state: State, action: Action, now_ns: int) -> None:
        what, node, detail = action
        if what in ("deliver", "drop", "repeat"):
            if self._is_of_an_end(state, detail, node):  # the simulator sends it when all have ended: a cut does so now
                since_ns = now_ns - LATENCY - DETECTION
                self._strike((), kind="partition", groups=[[detail], [node]], start=since_ns / NS)
            number, sent_ns, first_ns = self._under_way[detail, node].pop(0)
            if what == "repeat":
                self._under_way[detail, node].append((number, sent_ns, now_ns))
            if what == "drop":
                self._strike((detail, node, number), kind="drop")
            else:
                self._arrives((detail, node, number), sent_ns, first_ns, now_ns)
        elif what == "trained":
            self._trains(node, self._began[node].pop(detail), now_ns)
        elif what == "return":
            crashed_ns, crash = self._crashed[node]
            crash["after"] = (now_ns - crashed_ns) / NS

    def _lose(self, node: NodeId) -> None:
        for (sender, to), queue in self._under_way.items():
            for number, _, first_ns in queue if to == node else ():
                if number is not None and first_ns is None:
                    self._strike((sender, to, number), kind="drop")
        self._began[node] = []

    def _falls(self, action: Action, sent: Sequence[tuple[NodeId, NodeId, int]], now_ns: int) -> None:
        """A crash by itself, or behind the last messages that it has `sent` in its step."""
        own = [message for message in sent if message[0] == action.at]
        if action.what == "cut" and not own:
            raise NoScriptError(f"{action}: nobody is there for its messages")
        keys: dict[str, Any] = {} if own else {"peers": [action.at], "start": now_ns / NS}
        self._crashed[action.at] = now_ns, self._strike(own[0] if own else (), kind="crash", **keys)

    def _is_of_an_end(self, state: State, sender: NodeId, to: NodeId) -> bool:
        """Whether the next message of the link is the notice that `sender` has ended."""
        number = dict(state.mail)[sender, to][0]
        return not self.explorer.is_message(number) and self.explorer.nodes.of[state.nodes[sender]].finished

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


def _taken(action: Action) -> Action:
    """The step that an action takes; a crash within it is behind that."""
    return action.detail[0] if action.what == "cut" else action


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

    def breaks(some: Sequence[Scripted]) -> bool:
        return kind_of(WatchedRun(world, budget).wrong(faults_of(some))) == kind_of(wrong)

    for in_order in (True, False):
        strikes = Scripter(explorer, in_order).script(actions)
        if breaks(strikes):
            return faults_of(shortest(strikes, breaks))
    raise NoScriptError(f"not in the simulator: {wrong}")


def write_script(folder: Path, world: World, faults: Sequence[dict[str, Any]]) -> str:
    """Write experiment.toml and faults.toml; return the command that runs them."""
    assert world.experiment is not None, "counter_example was called"
    for name, content in (
        ("experiment.toml", {**world.experiment, "simulation": SETTINGS}),
        ("faults.toml", {"faults": list(faults)}),
    ):
        (folder / name).write_text(tomli_w.dumps(content))
    return f"fedgossip run {folder / 'experiment.toml'} --faults {folder / 'faults.toml'}"
