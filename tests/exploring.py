"""Runs the machines of a small run in every order of events: a model checker whose model is the machines themselves.

A state is every participant (its machine, timers, trainings, newest checkpoint) and the messages of each link.  A step
gives one machine one event.  Links keep their order, as those of every driver do.  A clock goes to a timer's time when
it fires: the earliest of all fires where nothing is under way; before that a participant's earliest, at the cost of one
`hastes` (something under way was slower than a wait).  `drops`, `repeats`, `crashes` are the other costs.  A crash is
between two events, or within one, behind a message and before what is then written to disk (`cut`).

A step is a function of one participant and its event, so it is computed once for each pair and looked up afterwards; a
state of the run is a tuple of numbers.  Participants are compared by their content, mappings and sets sorted.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedgossip.base.errors import ProtocolError
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    Log,
    Machine,
    MeasureModel,
    ModelMeasured,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Send,
    SetTimer,
    Started,
    Train,
    Trained,
)
from fedgossip.drivers.image_types import attributes, is_ours

LONGEST = 3_000
"""Maximum number of steps of a schedule without further faults: a run that takes more does not end."""

_PLAIN = (type(None), bool, int, float, str, bytes, complex)
_SHARED = (type, np.dtype, BuiltinFunctionType, range, slice)


class CannotCopyError(Exception):
    """An object of a machine has a state that cannot be copied and compared; the message has its place."""


class OutOfRoomError(Exception):
    """The exploration has reached its limit of memory; the message has its progress."""


class Copier:
    """Copies machines, and names their content.  `known` objects are the same in all copies, and never change."""

    def __init__(self, known: Sequence[object] = ()) -> None:
        self.known = {id(one): one for one in known}
        self._within: list[int] = []  # the objects that are being named: a part may refer to its whole

    def copy(self, value: Any, memo: dict[int, Any] | None = None) -> Any:
        """Return a copy that shares with `value` only what cannot change.  Raises CannotCopyError."""
        memo = {} if memo is None else memo
        kind = type(value)
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, np.random.Generator):
            return getattr(self.copy(value.__self__, memo), value.__name__)
        if kind in _PLAIN or isinstance(value, (*_SHARED, Enum, np.generic)) or id(value) in self.known:
            return value
        if isinstance(value, msgspec.Struct) and kind.__struct_config__.frozen:
            return value  # as in the simulator, where a message is one object for all
        if id(value) in memo:
            return memo[id(value)][0]

        def made(copied: Any) -> Any:
            memo[id(value)] = copied, value  # alive: no other object takes its id
            return copied

        if kind is np.ndarray:
            return made(self._array(value, memo))
        if kind in (tuple, frozenset):
            return made(kind(self.copy(one, memo) for one in value))
        if kind is bytearray:
            return made(bytearray(value))
        if kind is FunctionType:
            return made(self._function(value, memo))
        if kind is MethodType:
            return made(MethodType(value.__func__, self.copy(value.__self__, memo)))
        if isinstance(value, np.random.Generator):
            bits = type(value.bit_generator)()
            bits.state = value.bit_generator.state
            return made(np.random.Generator(bits))
        return self._changeable(value, kind, memo, made)

    def _array(self, value: Any, memo: dict[int, Any]) -> Any:
        """Return a copy; of a view a view of the copied array, so that a write through one is visible in the other."""
        if not value.flags.writeable:
            return value
        base = value.base
        if not isinstance(base, np.ndarray) or not base.flags.c_contiguous:
            return value.copy()
        offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        whole = self.copy(base, memo)
        return np.ndarray(value.shape, value.dtype, whole.data, offset, value.strides)

    def _changeable(self, value: Any, kind: type, memo: dict[int, Any], made: Callable[[Any], Any]) -> Any:
        if isinstance(value, list | set) and kind.__module__ in ("builtins", "collections"):
            copied = made(kind())
            (copied.extend if isinstance(value, list) else copied.update)(self.copy(one, memo) for one in value)
        elif isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
            copied = made(value.__copy__() if hasattr(value, "default_factory") else kind())
            copied.clear()
            for key, one in value.items():
                copied[self.copy(key, memo)] = self.copy(one, memo)
        elif kind.__name__ == "deque":
            copied = made(kind(maxlen=value.maxlen))
            copied.extend(self.copy(one, memo) for one in value)
        elif self._ours(kind):
            copied = made(object.__new__(kind))
            for name in attributes(value):
                object.__setattr__(copied, name, self._attribute(value, name, lambda one: self.copy(one, memo)))
        else:
            raise CannotCopyError(f"{kind.__module__}.{kind.__qualname__}")
        return copied

    def _ours(self, kind: type) -> bool:
        inside = (list, dict, set, tuple, frozenset, int, float, str, bytes)
        return (is_ours(kind) or not kind.__module__.startswith(_OUTSIDE)) and not issubclass(kind, inside)

    def _attribute(self, value: Any, name: str, then: Callable[[Any], Any]) -> Any:
        try:
            return then(getattr(value, name))
        except CannotCopyError as error:
            raise CannotCopyError(f"{error} in {type(value).__qualname__}.{name}") from None

    def _function(self, value: FunctionType, memo: dict[int, Any]) -> FunctionType:
        if not value.__closure__:
            return value
        cells = tuple(CellType(self.copy(cell.cell_contents, memo)) for cell in value.__closure__)
        return FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)

    def name(self, value: Any) -> Hashable:  # noqa: PLR0912
        """Return the content of `value`: equal for equal states.  Raises CannotCopyError."""
        kind = type(value)
        if kind in _PLAIN:
            return (kind.__name__, value) if kind in (bool, float) else value
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, np.random.Generator):
            return value.__name__, self.name(value.__self__)
        if id(value) in self.known or isinstance(value, _SHARED):
            return kind.__name__, id(value) if id(value) in self.known else str(value)
        if isinstance(value, Enum):
            return kind.__name__, value.name
        if kind is np.ndarray:
            return value.dtype.str, value.shape, value.tobytes(), bool(value.flags.writeable)
        if isinstance(value, np.generic):
            return value.dtype.str, value.tobytes()
        if kind in (tuple, list) or kind.__name__ == "deque":
            return kind.__name__, tuple(self.name(one) for one in value)
        if isinstance(value, dict):
            return kind.__name__, _sorted((self.name(key), self.name(one)) for key, one in value.items())
        if isinstance(value, set | frozenset):
            return kind.__name__, _sorted(self.name(one) for one in value)
        if kind is bytearray:
            return "bytearray", bytes(value)
        if kind is FunctionType:
            return value.__qualname__, tuple(self.name(cell.cell_contents) for cell in value.__closure__ or ())
        if kind is MethodType:
            return value.__qualname__, self.name(value.__self__)
        if isinstance(value, np.random.Generator):
            return "stream", repr(value.bit_generator.state)
        if not self._ours(kind):
            raise CannotCopyError(f"{kind.__module__}.{kind.__qualname__}")
        if id(value) in self._within:
            return "above", len(self._within) - self._within.index(id(value))
        self._within.append(id(value))
        try:
            named = [(name, self._attribute(value, name, self.name)) for name in attributes(value)]
        finally:
            self._within.pop()
        return kind.__qualname__, tuple(sorted(named, key=lambda one: one[0]))


_OUTSIDE = ("builtins", "_", "cryptography", "numpy", "torch", "threading", "io", "functools", "collections", "random")


def _sorted(names: Iterator[Hashable]) -> tuple[Hashable, ...]:
    return tuple(sorted(names, key=repr))


# --- one participant --------------------------------------------------------------------------------------------------


class Participant(NamedTuple):
    """One participant between two events.  `ghost`: what the observer remembers of it; no machine reads that."""

    machine: Machine | None
    """None: it has crashed."""
    life: int
    jobs: tuple[Event, ...]
    """Answers of its task that are to come."""
    timers: tuple[tuple[int, Any], ...]
    """(due, key), ascending."""
    checkpoint: Checkpoint | None
    log: tuple[tuple[str, Mapping[str, object]], ...]
    finished: bool
    ghost: Hashable


class Budget(NamedTuple):
    """How often each fault may happen in one schedule."""

    drops: int = 0
    repeats: int = 0
    crashes: int = 0
    hastes: int = 0


NO_FAULTS = Budget()


class State(NamedTuple):
    """The run between two steps, in numbers of interned contents."""

    nodes: tuple[int, ...]
    mail: tuple[tuple[tuple[NodeId, NodeId], tuple[int, ...]], ...]
    """The messages of each link in their order; links without any are absent."""
    now_ns: int
    left: Budget


class Action(NamedTuple):
    """One step: what happens, and where."""

    what: str
    """deliver | drop | repeat | trained | fire | hurry | crash | cut | return."""
    at: NodeId
    detail: Any = None

    def __str__(self) -> str:
        if self.what in ("deliver", "drop", "repeat"):
            return f"{self.what} the next message of {self.detail} to {self.at}"
        if self.what in ("fire", "hurry"):
            return f"{self.what} the timer {self.detail} of {self.at}"
        if self.what == "cut":
            return f"{self.detail[0]}, and crash {self.at} before what it then writes to disk"
        return f"{self.what} {self.at}"


Schedule = tuple[Action, ...]
Observe = Callable[[NodeId, Hashable, Event, Machine, Sequence[Effect]], Hashable]
"""(node, its ghost, the event, the machine after it, its effects): the new ghost."""


@dataclass
class World:
    """A run to be explored: how its machines are made, what its task answers, and what must hold.

    `judge` returns what is wrong in a state; "" where nothing is.  `settled` is that of states in which all have ended.
    """

    make: Callable[[NodeId, int, Checkpoint | None, Sequence[Any]], Machine]
    links: Sequence[Sequence[NodeId]]
    answer: Callable[[NodeId, Train], Trained] = lambda _node, asked: Trained(asked.job, None)
    known: Sequence[object] = ()
    observe: Observe = lambda _node, ghost, *_: ghost
    judge: Callable[[View], str] = lambda _view: ""
    settled: Callable[[View], str] = lambda _view: ""
    may_crash: Sequence[NodeId] | None = None
    ghost: Hashable = ()
    equal: Sequence[tuple[NodeId, ...]] = ()
    """Permutations of the participants that turn each schedule of the run into another."""
    experiment: Mapping[str, Any] | None = None
    """The experiment that has these machines; None: no experiment has."""
    until_ns: int = 1 << 62
    """The end of a run that does not end by itself: the first state at this time."""


class View(NamedTuple):
    """A state with its contents, for a judge."""

    nodes: Sequence[Participant]
    mail: Mapping[tuple[NodeId, NodeId], Sequence[Any]]
    """Messages under way by link; PeerGone and PeerJoined are events to come."""
    spent: Budget
    ids: tuple[int, ...]
    """The numbers of the participants' contents: equal numbers, equal contents."""


@dataclass
class Found:
    """The result of an exploration: `wrong` is empty where nothing was found."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    """The number of distinct ends of the run."""
    complete: bool = True
    """Whether all states within the budget were seen."""
    seconds: float = 0.0
    megabytes: int = 0
    wrong: str = ""
    schedule: Schedule = ()

    def __str__(self) -> str:
        whole = "all" if self.complete else "the first"
        text = f"{whole} {self.states} states, {self.steps} steps, {self.ends} ends, {self.seconds:.1f} s"
        text += f", {self.megabytes} MB"
        return text + (
            f"\n{self.wrong}, after\n" + "\n".join(f"  {one}" for one in self.schedule) if self.wrong else ""
        )


_Cut = tuple[int, tuple[tuple[NodeId, int], ...]]
"""A crash within a step: (the number of what is left of the participant, the messages (to, number) that are out)."""


class _Step(NamedTuple):
    """What becomes of a participant in a step: its number, its messages (to, number), what is wrong, and the cuts."""

    number: int
    sends: tuple[tuple[NodeId, int], ...]
    wrong: str = ""
    cuts: tuple[_Cut, ...] = ()


class WrongError(Exception):
    """A state, or a step, breaks an invariant."""


@dataclass
class _Contents:
    """Every distinct content, once, by number."""

    of: list[Any] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def add(self, name: Hashable, value: Any) -> int:
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.of)
            self.of.append(value)
        return number


_Way = tuple[int, int, int | None]
"""The last step to a state: (the place of the state before, the number of the step there, of a cut its place)."""

_NONE = 255
"""No step is left to branch to."""


class _Seen:
    """All states that were seen, in their order, each with the last step to it: 200 bytes a state."""

    def __init__(self) -> None:
        self.states: list[bytes] = []
        self._ways = array("q")  # 2^40 places, 2^12 steps, 2^11 cuts
        self.begins = bytearray()
        """The number of the first step of each that was not taken at once."""
        self.last: _Way | None = None
        """The last step of a chain that is not at its end."""
        self._places: dict[bytes, int] = {}

    def place(self, state: State) -> int | None:
        return self._places.get(msgspec.msgpack.encode(state))

    def add(self, state: State, way: _Way) -> int:
        packed = msgspec.msgpack.encode(state)
        self._places[packed] = place = len(self.states)
        self.states.append(packed)
        before, number, cut = way
        self._ways.append((before + 1) << 23 | number << 11 | (0 if cut is None else cut + 1))
        self.begins.append(1)
        return place

    def way(self, place: int) -> _Way:
        packed = self._ways[place]
        cut = packed & 0x7FF
        return (packed >> 23) - 1, packed >> 11 & 0xFFF, cut - 1 if cut else None

    def at(self, place: int) -> State:
        return msgspec.msgpack.decode(self.states[place], type=State)


def _cut(action: Action, place: int) -> Action:
    return Action("cut", action.at, (action, place))


class Explorer:
    """Explores one world within a budget.  `most_mb`: the limit of memory of this process."""

    def __init__(self, world: World, budget: Budget = NO_FAULTS, most_mb: int = 6_000) -> None:
        self.world, self.budget, self.most_mb = world, budget, most_mb
        self.copier = Copier(world.known)
        self.nodes, self.messages = _Contents(), _Contents()
        self._steps: dict[Hashable, _Step] = {}
        self._cut: int | None = None  # the cut to take in the next step
        self._offered: tuple[_Cut, ...] = ()  # those that the last step had
        self._names: dict[int, tuple[Hashable, Any]] = {}
        self.steps = 0

    # --- one participant's step -----------------------------------------------------------------------------------

    def _intern(self, node: NodeId, one: Participant) -> int:
        facts = one.checkpoint and (one.checkpoint.round, one.checkpoint.vectors, one.checkpoint.facts)
        name = self.copier.name
        parts = one.life, tuple(map(name, one.jobs)), one.timers, name(facts), name(one.log), one.finished, one.ghost
        return self.nodes.add((node, name(one.machine), *parts), one)

    def _message(self, message: Any) -> int:
        known = self._names.get(id(message))
        if known is None:
            known = self._names[id(message)] = self.copier.name(message), message
        return self.messages.add(known[0], message)

    def step(self, node: NodeId, place: int, events: Sequence[Event], now_ns: int, why: Hashable) -> _Step:
        """Return what becomes of the participant, by the numbers of contents."""
        key = place, why, now_ns
        done = self._steps.get(key)
        if done is None:
            try:
                done = self._take(node, self.nodes.of[place], events, now_ns)
            except WrongError as error:
                done = _Step(place, (), str(error))
            self._steps[key] = done
        return done

    def _take(self, node: NodeId, before: Participant, events: Sequence[Event], now_ns: int) -> _Step:
        assert before.machine is not None
        one, sends = before._replace(machine=self.copier.copy(before.machine)), list[tuple[NodeId, int]]()
        cuts: list[_Cut] = []
        for event in events:
            if one.finished:
                break
            machine = one.machine
            assert machine is not None
            try:
                effects = machine.handle(event, now_ns)
            except ProtocolError as error:
                raise WrongError(f"{node} refuses a message of an honest participant: {error}") from None
            except AssertionError as error:
                raise WrongError(f"{node} breaks at {type(event).__name__}: {error}") from error
            ghost = one.ghost
            for place, effect in enumerate(effects):
                one = self._perform(node, one, effect, now_ns, sends)
                if _is_written_later(effects, place):
                    seen = self.world.observe(node, ghost, event, machine, effects[: place + 1])
                    dead = one._replace(machine=None, jobs=(), timers=(), ghost=seen)
                    cuts.append((self._intern(node, dead), tuple(sends)))
            one = one._replace(ghost=self.world.observe(node, one.ghost, event, machine, effects))
        return _Step(self._intern(node, one), tuple(sends), "", tuple(cuts))

    def _perform(
        self, node: NodeId, one: Participant, effect: Effect, now_ns: int, sends: list[tuple[NodeId, int]]
    ) -> Participant:
        match effect:
            case Send(to, message):
                sends.append((to, self._message(message)))
            case Train():
                return one._replace(jobs=(*one.jobs, self.world.answer(node, effect)))
            case MeasureModel(round):
                return one._replace(jobs=(*one.jobs, ModelMeasured(round, None)))
            case SetTimer(key, after_ns):
                others = [timer for timer in one.timers if timer[1] != key]
                return one._replace(timers=tuple(sorted([*others, (now_ns + after_ns, key)], key=repr_of_timer)))
            case Checkpoint():
                return one._replace(checkpoint=effect)
            case Log(kind, facts):
                return one._replace(log=(*one.log, (kind, facts)))
            case Finish():
                return one._replace(finished=True, timers=(), jobs=())
        return one

    # --- states ---------------------------------------------------------------------------------------------------

    def start(self) -> State:
        """Return the state in which all are linked and have started."""
        numbers, mail = list[int](), dict[tuple[NodeId, NodeId], tuple[int, ...]]()
        for node, known in enumerate(self.world.links):
            machine = self.world.make(node, 0, None, ())
            fresh = self._intern(node, Participant(machine, 0, (), (), None, (), False, self.world.ghost))
            events: list[Event] = [Started(), *(PeerJoined(other) for other in known)]
            done = self.step(node, fresh, events, 0, "start")
            if done.wrong:
                raise WrongError(done.wrong)
            numbers.append(done.number)
            _post(mail, node, done.sends)
        return State(tuple(numbers), _mailed(mail), 0, self.budget)

    def actions(self, state: State) -> list[Action]:
        """Return what can happen now; first what happens without any fault."""
        nodes = [self.nodes.of[number] for number in state.nodes]
        left, links = state.left, [link for link, _ in state.mail]
        found = [Action("trained", node, place) for node, one in enumerate(nodes) for place in range(len(one.jobs))]
        found += [Action("deliver", to, sender) for sender, to in links]
        timers = [(one.timers[0], node) for node, one in enumerate(nodes) if one.timers]
        if not found:
            earliest = min((due for (due, _), _ in timers), default=0)
            found = [Action("fire", node, key) for (due, key), node in timers if due == earliest]
        elif left.hastes:
            found += [Action("hurry", node, key) for (_, key), node in timers]
        may = range(len(nodes)) if self.world.may_crash is None else self.world.may_crash
        found += [Action("return", node) for node, one in enumerate(nodes) if one.machine is None]
        messages = [
            Action(what, to, sender)
            for what, times in (("drop", left.drops), ("repeat", left.repeats))
            for (sender, to), queue in state.mail
            if times and self.is_message(queue[0])
        ]
        found += messages
        if left.crashes:
            alive = [node for node in may if nodes[node].machine is not None and not nodes[node].finished]
            found += [Action("crash", node) for node in alive]
        return found if left != self.budget else [one for one in found if self._is_representative(one)]

    def _is_representative(self, action: Action) -> bool:
        """Whether a first fault is the least of those that equal participants turn into each other.

        A schedule with another first fault is one of these with the participants exchanged.
        """
        if action.what not in ("drop", "repeat", "crash", "hurry"):
            return True
        struck = (action.at, action.detail) if action.what in ("drop", "repeat") else (action.at,)
        return all(struck <= tuple(moved[node] for node in struck) for moved in self.world.equal)

    def is_message(self, number: int) -> bool:
        return not isinstance(self.messages.of[number], PeerGone | PeerJoined)

    def after(self, state: State, action: Action) -> State:
        """Return the state after an action.  Raises WrongError."""
        self.steps += 1
        self._offered, self._cut = (), None
        if action.what == "cut":
            action, self._cut = action.detail
        what, node, detail = action
        mail, left = dict(state.mail), state.left
        one: Participant = self.nodes.of[state.nodes[node]]
        if what in ("deliver", "drop", "repeat"):
            number, *rest = mail.pop((detail, node))
            if rest or what == "repeat":
                mail[detail, node] = (*rest, number) if what == "repeat" else tuple(rest)
            if what == "drop":
                return state._replace(mail=_mailed(mail), left=left._replace(drops=left.drops - 1))
            if what == "repeat":
                left = left._replace(repeats=left.repeats - 1)
            if one.machine is None:
                return state._replace(mail=_mailed(mail), left=left)
            coming = self.messages.of[number]
            event = coming if isinstance(coming, PeerGone | PeerJoined) else Received(detail, coming)
            return self._stepped(state, node, [event], (number, detail), mail, left, state.now_ns)
        if what == "trained":
            place = self._intern(node, one._replace(jobs=one.jobs[:detail] + one.jobs[detail + 1 :]))
            nodes = _put(state.nodes, node, place)
            name = "trained", self.copier.name(one.jobs[detail])
            return self._stepped(state._replace(nodes=nodes), node, [one.jobs[detail]], name, mail, left, state.now_ns)
        if what in ("fire", "hurry"):
            if what == "hurry":
                left = left._replace(hastes=left.hastes - 1)
            (due, key), *others = one.timers
            nodes = _put(state.nodes, node, self._intern(node, one._replace(timers=tuple(others))))
            now_ns = max(state.now_ns, due)
            return self._stepped(state._replace(nodes=nodes), node, [Fired(key)], ("fired", key), mail, left, now_ns)
        return self._crash(state, node, one, mail) if what == "crash" else self._return(state, node, one, mail)

    def _stepped(
        self,
        state: State,
        node: NodeId,
        events: Sequence[Event],
        why: Hashable,
        mail: dict[tuple[NodeId, NodeId], tuple[int, ...]],
        left: Budget,
        now_ns: int,
    ) -> State:
        number, sends, wrong, cuts = self.step(node, state.nodes[node], events, now_ns, why)
        if wrong:
            raise WrongError(wrong)
        cut, self._cut = self._cut, None
        if cut is not None:
            number, sends = cuts[cut]
            _post(mail, node, [(to, one) for to, one in sends if self._reaches(state, mail, node, to)])
            return self._gone(state._replace(nodes=_put(state.nodes, node, number), now_ns=now_ns), node, mail, left)
        self._offered = cuts
        _post(mail, node, [(to, one) for to, one in sends if self._reaches(state, mail, node, to)])
        if self.nodes.of[number].finished:  # it handles nothing any more
            mail = {link: queue for link, queue in mail.items() if link[1] != node}
            if not self.nodes.of[state.nodes[node]].finished:  # its process ends, behind its last messages
                notice = self._message(PeerGone(node))
                _post(mail, node, [(to, notice) for to in self.world.links[node] if self._there(state, to)])
        return State(_put(state.nodes, node, number), _mailed(mail), now_ns, left)

    def _crash(self, state: State, node: NodeId, one: Participant, mail: dict[Any, Any]) -> State:
        gone = self._intern(node, one._replace(machine=None, jobs=(), timers=()))
        return self._gone(state._replace(nodes=_put(state.nodes, node, gone)), node, mail, state.left)

    def _gone(self, state: State, node: NodeId, mail: dict[Any, Any], left: Budget) -> State:
        """Whatever was under way to it is lost; the others learn of it behind what it has sent."""
        mail = {link: queue for link, queue in mail.items() if link[1] != node}
        notice = self._message(PeerGone(node))
        _post(mail, node, [(to, notice) for to in self.world.links[node] if self._there(state, to)])
        return State(state.nodes, _mailed(mail), state.now_ns, left._replace(crashes=left.crashes - 1))

    def _return(self, state: State, node: NodeId, one: Participant, mail: dict[Any, Any]) -> State:
        life = one.life + 1
        machine = self.world.make(node, life, one.checkpoint, one.log)
        fresh = self._intern(node, one._replace(machine=machine, life=life))
        others = [to for to in self.world.links[node] if self._there(state, to)]
        lives = {to: self.nodes.of[state.nodes[to]].life for to in others}
        events: list[Event] = [Started(), *(PeerJoined(to, lives[to]) for to in others)]
        notice = self._message(PeerJoined(node, life))
        _post(mail, node, [(to, notice) for to in others])
        nodes, why = _put(state.nodes, node, fresh), ("return", tuple(lives.items()))
        return self._stepped(state._replace(nodes=nodes), node, events, why, mail, state.left, state.now_ns)

    def _reaches(self, state: State, mail: Mapping[Any, Sequence[int]], node: NodeId, to: NodeId) -> bool:
        """Whether the link of `node` is to the present life of `to`: it is once the notice of that has arrived."""
        notices = (self.messages.of[number] for number in mail.get((to, node), ()))
        return self._there(state, to) and not any(isinstance(one, PeerJoined) for one in notices)

    def _there(self, state: State, node: NodeId) -> bool:
        one = self.nodes.of[state.nodes[node]]
        return one.machine is not None and not one.finished

    def view(self, state: State) -> View:
        mail = {link: [self.messages.of[number] for number in queue] for link, queue in state.mail}
        spent = Budget(*(whole - left for whole, left in zip(self.budget, state.left, strict=True)))
        return View([self.nodes.of[number] for number in state.nodes], mail, spent, state.nodes)

    def check(self, state: State, actions: Sequence[Action]) -> bool:
        """Return whether the run has ended here.  Raises WrongError for a state that must not be."""
        view = self.view(state)
        if wrong := self.world.judge(view):
            raise WrongError(wrong)
        if state.now_ns >= self.world.until_ns:
            return True
        if actions and actions[0].what in ("trained", "deliver", "fire", "hurry"):
            return False
        if waiting := [node for node, one in enumerate(view.nodes) if one.machine and not one.finished]:
            raise WrongError(f"participants {waiting} wait for nothing: no timer, no message, no training")
        if wrong := self.world.settled(view):
            raise WrongError(wrong)
        return True

    # --- all states -----------------------------------------------------------------------------------------------

    def explore(self, most: int = 10**7) -> Found:
        """See all states, or the first `most`; stop at the first that is wrong, and minimise its schedule.

        Schedules with few deviations from the first come first (Emmi, Qadeer and Rakamaric, Delay-bounded scheduling,
        POPL 2011): most faults need two or three.

        From each state on the run goes on without further faults until a state that was seen: in a cycle, or after
        LONGEST steps, it is wrong, for that run does not end.  Raises OutOfRoomError.
        """
        found, began, seen, place = Found(), time.process_time(), _Seen(), 0
        way: _Way = (-1, 0, None)
        try:
            found.ends += self._go_on(seen, self.start(), way)
            while place < len(seen.states) and len(seen.states) < most:
                state = seen.at(place)
                for number, action in enumerate(self._steps_from(state)):
                    if number < seen.begins[place] and not state.left.crashes:
                        continue
                    way = place, number, None
                    after = self.after(state, action)
                    cuts = self._cuts(state, action)
                    if number >= seen.begins[place]:
                        found.ends += self._go_on(seen, after, way)
                    for cut in range(cuts):
                        way = place, number, cut
                        found.ends += self._go_on(seen, self.after(state, _cut(action, cut)), way)
                place += 1
        except WrongError as error:
            found.wrong = str(error)
            found.schedule = self._minimised(self._path(seen, seen.last or way), found.wrong)
        found.states, found.steps = len(seen.states), self.steps
        found.complete = place == len(seen.states) and not found.wrong
        found.seconds, found.megabytes = time.process_time() - began, _megabytes()
        return found

    def _go_on(self, seen: _Seen, state: State, way: _Way) -> int:
        """See `state`, and what follows by first steps up to a seen state; return the number of new ends, 0 or 1."""
        first = len(seen.states)
        while (known := seen.place(state)) is None:
            place = seen.add(state, way)
            seen.last = way  # the way to a state that is wrong
            if not len(seen.states) % 4096:
                self._check_room(len(seen.states))
            actions = self.actions(state)
            ended = self.check(state, actions)
            if ended:
                seen.begins[place] = 0 if state.now_ns < self.world.until_ns else _NONE
                seen.last = None
                return 1
            if place - first > LONGEST:
                raise WrongError(f"no end after {LONGEST} steps without a fault")
            seen.last = way = place, 0, None
            state = self.after(state, self._reduced(state, actions)[0])
        if known >= first:
            raise WrongError("the run goes round in a circle without a fault")
        seen.last = None
        return 0

    def _steps_from(self, state: State) -> list[Action]:
        return self._reduced(state, self.actions(state))

    def _reduced(self, state: State, actions: list[Action]) -> list[Action]:
        """Return enough of `actions`: those of one participant whose every link has a message under way.

        A step of another participant only appends to these links, so it commutes with each of them (a persistent set;
        Godefroid, Partial-order methods, 1996).  Not while a fault is left: their budget is common to all.
        What one participant does and remembers is found all the same; of the sums over several, those at the ends.
        """
        if any(state.left) or len(actions) < 2 or actions[-1].what == "return":  # who returns is linked to all present
            return actions
        full = {link for link, _ in state.mail}
        for node, known in enumerate(self.world.links):
            if all((other, node) in full or self.nodes.of[state.nodes[other]].finished for other in known):
                own = [action for action in actions if action.at == node]
                if own and len(own) < len(actions):
                    return own
        return actions

    def _cuts(self, state: State, action: Action) -> int:
        """Return the number of crashes within the step that was just taken from `state`."""
        may, crash = self.world.may_crash, Action("crash", action.at)
        first = state.left == self.budget
        allowed = (may is None or action.at in may) and (not first or self._is_representative(crash))
        return len(self._offered) if state.left.crashes and allowed else 0

    def _check_room(self, states: int) -> None:
        if _megabytes() > self.most_mb:
            raise OutOfRoomError(
                f"{states} states seen, {len(self.nodes.of)} participants' contents:"
                f" {_megabytes()} MB are more than {self.most_mb}; take a smaller run or budget"
            )

    # --- schedules ------------------------------------------------------------------------------------------------

    def _path(self, seen: _Seen, way: _Way) -> Schedule:
        """Return the actions from the start, the last of them by `way`."""
        path: list[Action] = []
        place, number, cut = way
        while place >= 0:
            action = self._steps_from(seen.at(place))[number]
            path.append(action if cut is None else _cut(action, cut))
            place, number, cut = seen.way(place)
        return tuple(reversed(path))

    def replay(self, schedule: Sequence[Action]) -> str:
        """Return what is wrong in a run by `schedule`, and on to its end without faults; "" where nothing is."""
        return self.played(schedule)[1]

    def played(self, schedule: Sequence[Action]) -> tuple[Schedule, str]:
        """Return the steps of that run, up to the wrong one, and what is wrong.

        An action that is impossible when its turn comes is left out.
        """
        state, seen, taken = self.start(), set[State](), list[Action]()
        try:
            for action in schedule:
                actions = self.actions(state)
                self.check(state, actions)
                if self._is_possible(state, action, actions):
                    taken.append(action)
                    state = self.after(state, action)
            for _ in range(LONGEST):
                actions = self.actions(state)
                if self.check(state, actions):
                    return tuple(taken), ""
                if state in seen:
                    return tuple(taken), "the run goes round in a circle without a fault"
                seen.add(state)
                taken.append(actions[0])
                state = self.after(state, actions[0])
        except WrongError as error:
            return tuple(taken), str(error)
        return tuple(taken), f"no end after {LONGEST} steps without a fault"

    def _is_possible(self, state: State, action: Action, actions: Sequence[Action]) -> bool:
        if action.what != "cut":
            return action in actions
        within, place = action.detail
        if within not in actions or not state.left.crashes:
            return False
        self.after(state, within)
        return place < len(self._offered)

    def _minimised(self, schedule: Schedule, wrong: str) -> Schedule:
        """Return a schedule of the same fault of which no action can be left out."""
        return tuple(shortest(schedule, lambda shorter: kind_of(self.replay(shorter)) == kind_of(wrong)))


def shortest(parts: Sequence[Any], breaks: Callable[[Sequence[Any]], bool]) -> Sequence[Any]:
    """Return `parts` without those that `breaks` does not need: runs of them are left out first, then each."""
    size = max(1, len(parts) // 2)
    while size:
        at = 0
        while at < len(parts):
            shorter = [*parts[:at], *parts[at + size :]]
            if breaks(shorter):
                parts = shorter
            else:
                at += size
        size //= 2
    return parts


def kind_of(wrong: str) -> str:
    """Return the words of a fault without its numbers."""
    return "".join(letter for letter in wrong.partition(":")[0] if letter.isalpha())


def repr_of_timer(timer: tuple[int, Any]) -> tuple[int, str]:
    return timer[0], repr(timer[1])


def _is_written_later(effects: Sequence[Effect], place: int) -> bool:
    """Return whether the effect is the last of several messages, and something behind it is durable."""
    after = effects[place + 1 :]
    if type(effects[place]) is not Send or not after or type(after[0]) is Send:
        return False
    return any(isinstance(one, Log) or (isinstance(one, Checkpoint) and one.durable) for one in after)


def _post(
    mail: dict[tuple[NodeId, NodeId], tuple[int, ...]], node: NodeId, sends: Sequence[tuple[NodeId, int]]
) -> None:
    for to, number in sends:
        mail[node, to] = (*mail.get((node, to), ()), number)


def _mailed(mail: Mapping[tuple[NodeId, NodeId], tuple[int, ...]]) -> tuple[Any, ...]:
    return tuple(sorted(mail.items()))


def _put(numbers: tuple[int, ...], node: NodeId, number: int) -> tuple[int, ...]:
    return (*numbers[:node], number, *numbers[node + 1 :])


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
