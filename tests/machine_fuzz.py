"""Sequences of valid and invalid messages for every machine, from every kind of sender, in virtual time.

One node is the adversary.  It runs the honest machine of its place, so that it holds valid keys and is in step with the
others, and bends what that one says: left out, said twice, late, out of order, in other words; and it says more on top.
A stranger, or a guest, has no place and no link: it only speaks.  Everybody else is honest, and held to this:

    handle          raises nothing but ProtocolError, and then the machine's state is what it was
    effects         few for one event; what is to be sent can be; models are finite; timers do not pile up
    memory          stays below a bound that is set by an undisturbed run, whatever was said
    the end         comes for all, with a finite model; strangers and guests change no bit of it

python tests/machine_fuzz.py MACHINE SENDER SEED          one case, and all that happened
python tests/machine_fuzz.py MACHINE SENDER FIRST LAST    a range, and a line for each that went wrong
"""

from __future__ import annotations

import collections
import functools
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import test_join
from fuzz_casts import SCENES, Cast, Sender
from fuzz_words import Words, carried
from members import SECOND, World
from secure_federation import quick

from fedgossip.base import seeds
from fedgossip.base.errors import ProtocolError
from fedgossip.core import wire
from fedgossip.core.machine import (
    ChooseRows,
    Effect,
    Event,
    Finish,
    Fired,
    Log,
    NodeId,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Send,
    SetTimer,
    Train,
    Trained,
)
from fedgossip.core.task import Job, choose_rows

EVENTS_MAX = 60_000
"""Events of one case; more is a storm, or a run without end."""

PENDING_MAX = 100
"""Timers of one machine that wait at a time; those of undisturbed runs come on top."""

EFFECTS_MAX = 64
"""Effects of one event, above four times those of an undisturbed run."""

REPORT_MAX = 20_000
"""Characters of a report."""

ROOM = 40_000
"""Bytes that a machine may hold above three times what it holds in an undisturbed run."""


class Broken(AssertionError):
    """An honest participant is not as it should be."""


# --- what a machine is made of ----------------------------------------------------------------------------------------

CACHES = {"_looked", "_views", "_ids", "_made", "_watching", "_mixings", "_parts"}
"""Attributes that follow from others, or only remember what was looked at; each bounded by itself."""

_LEAVES = ("fedgossip.topology", "fedgossip.experiment", "fedgossip.secure.session", "fedgossip.learning")


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Slots and others, but for what follows from them."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    names += getattr(value, "__struct_fields__", ())
    names += vars(value) if hasattr(value, "__dict__") else ()
    for name in dict.fromkeys(names):
        if name not in CACHES and name not in ("__dict__", "__weakref__") and hasattr(value, name):
            yield name, getattr(value, name)


def look(root: object) -> tuple[int, int]:
    """Return (hash, bytes) of all that can be reached from a machine: its state, and its size."""
    seen: dict[int, int] = {}
    alive: list[object] = []
    size = 0

    def of(value: Any) -> Any:
        nonlocal size
        match value:
            case None | bool() | int():
                size += 32
                return type(value).__name__, value
            case float() | np.generic():
                size += 32
                return type(value).__name__, repr(value)
            case str() | bytes():
                size += 50 + len(value)
                return value
        if (number := seen.get(id(value))) is not None:
            return "again", number
        seen[id(value)] = len(seen)
        alive.append(value)
        size += 64
        match value:
            case np.ndarray():
                size += value.nbytes
                return value.dtype.name, value.shape, value.tobytes()
            case dict():
                return ("dict", *((of(key), of(one)) for key, one in value.items()))
            case set() | frozenset():
                return ("set", *sorted(hash(of(one)) for one in value))
            case list() | tuple() | collections.deque():
                return (type(value).__name__, *(of(one) for one in value))
            case np.random.Generator():
                return repr(value.bit_generator.state)
            case types.FunctionType() | types.BuiltinFunctionType() | functools.partial() | type() | np.dtype():
                return str(getattr(value, "__qualname__", ""))
            case types.MethodType():
                return value.__name__, of(value.__self__)
        module = type(value).__module__
        if module.partition(".")[0] not in ("fedgossip", "test_join") or module.startswith(_LEAVES):
            return type(value).__qualname__
        return (type(value).__qualname__, *((name, of(one)) for name, one in attributes(value)))

    found = of(root)
    return hash(found), size


# --- the adversary ----------------------------------------------------------------------------------------------------


class Adversary:
    """Bends the words of the machine in its place, and says more; at most `most` evil messages, then it is honest.

    How often it does what is drawn once for a case, so that cases differ: nearly honest ones, floods, silence.
    """

    def __init__(self, sender: Sender, words: Words, draw: np.random.Generator, most: int) -> None:
        self.sender, self.words, self.draw, self.most = sender, words, draw, most
        self.bends = float(draw.choice([0.0, 0.05, 0.3, 1.0], p=[0.2, 0.3, 0.3, 0.2]))
        self.speaks = float(draw.choice([0.02, 0.1, 0.5]))
        self.flood = int(draw.choice([1, 1, 3, 50]))
        self.breaks = float(draw.choice([0.0, 0.0, 0.01]))
        self.said = 0

    def tired(self) -> bool:
        return self.said >= self.most

    def bent(self, message: Any) -> list[tuple[float, Any]]:
        """What is said in its place, each so many seconds later."""
        if self.tired() or self.draw.random() >= self.bends:
            return [(0.0, message)]
        self.said += 1
        late = float(self.draw.choice([0.05, 0.5, 5.0]))
        ways: list[Callable[[], list[tuple[float, Any]]]] = [
            list,
            lambda: [(0.0, message), (0.0, message)],
            lambda: [(late, message)],
            lambda: [(0.0, message), (late, message)],
            lambda: [(0.0, self.words.like(message))],
            lambda: [(0.0, self.words.like(message))],
            lambda: [(0.0, self.words.like(message)), (0.0, message)],
            lambda: [(0.0, message), (0.0, self.words.like(message))],
            lambda: [(0.0, self.words.next()), (0.0, message)],
        ]
        return ways[int(self.draw.integers(len(ways)))]()

    def more(self) -> list[Any]:
        """What it says of its own accord, now."""
        if self.tired() or self.draw.random() >= self.speaks:
            return []
        count = self.flood if self.draw.random() < 0.2 else 1
        self.said += count
        if count > 1 and self.draw.random() < 0.3:  # the same again and again
            return [self.words.next()] * count
        return [self.words.next() for _ in range(count)]


# --- the stage --------------------------------------------------------------------------------------------------------


@dataclass
class Bounds:
    """What an undisturbed run needs."""

    size: int = 0
    effects: int = 0
    timers: int = 0
    said: list[tuple[NodeId, NodeId, Any]] = field(default_factory=list)
    results: dict[NodeId, Any] = field(default_factory=dict)


class Stage(World):
    """Runs a cast, and holds all honest machines to what is promised after every step."""

    def __init__(self, cast: Cast, seed: int, adversary: Adversary | None = None, bounds: Bounds | None = None) -> None:
        self.cast, self.adversary, self.bounds = cast, adversary, bounds
        self.needs = Bounds()
        self.results: dict[NodeId, Any] = {}
        self.pending: dict[NodeId, set[Any]] = {node: set() for node in cast.machines}
        self.events = self.refusals = self.evil = self.uncarried = 0
        self.trace: Callable[[str], None] | None = None
        self._place = adversary.sender.place if adversary else None
        self._lost = False  # the machine in the adversary's place
        now = {node: machine for node, machine in cast.machines.items() if node not in cast.late}
        self.reported: set[str] = set()
        """What honest machines have reported."""
        self.trainings = dict.fromkeys(cast.machines, 0)
        super().__init__(now, seed)
        for node, others in cast.partners.items():
            for other in others if cast.linked else ():
                self.push(self.latency, node, PeerJoined(other))

    @property
    def honest(self) -> list[NodeId]:
        return [node for node in self.cast.machines if node != self._place]

    def play(self) -> None:
        """Run to the end.  Raises Broken."""
        for node, (at, through) in self.cast.late.items():
            self.run(at)
            machine: Any = self.cast.machines[node]
            self.start(node, machine)
            self.push(0, through, Received(-1, machine.introduction()))
        self.run(self.cast.seconds / 2)
        if self.adversary:  # and then it is heard of no more
            self.adversary.most = 0
            for node in self.cast.partners.get(self._place, ()) if self._place is not None else ():
                self.push(0, node, PeerGone(self._place or 0))
            self._lost = True
        self.run(self.cast.seconds / 2)
        missing = [node for node in self.honest if node not in self.results]
        if missing:
            raise Broken(f"nodes {missing} never ended")
        for node in self.honest:
            self._check_size(node)
            if not np.isfinite(self.results[node]).all():
                raise Broken(f"node {node} ends with a model that is not finite")

    # --- an event -------------------------------------------------------------------------------------------------

    def before(self, node: NodeId) -> None:
        self.events += 1
        if self.events > EVENTS_MAX:
            raise Broken(f"{EVENTS_MAX} events and no end: messages in flight {self.sent}")
        if self.adversary is None or node == self._place:
            return
        targets = self.cast.partners.get(self._place, ()) if self._place is not None else ()
        to = int(self.adversary.draw.choice([node, *targets])) if targets else node
        for message in self.adversary.more():
            self._speak(to, message)
        if self._place is not None and node in targets and self.adversary.draw.random() < self.adversary.breaks:
            self._break(node)

    def _speak(self, to: NodeId, message: Any, late: float = 0.0) -> None:
        """The adversary says this, if it can be put on the wire at all."""
        assert self.adversary is not None
        sender = self.adversary.sender
        if to == self._place or to in sender.spares or to not in self.machines or not sender.lets(message):
            return
        if (message := carried(message)) is None:
            self.uncarried += 1
            return
        self.push(self.latency * 0.5 + late, to, Received(self.adversary.sender.name, message))

    def _break(self, node: NodeId) -> None:
        """The link to the adversary breaks and comes back, perhaps in a later life, as its Hello says."""
        assert self.adversary is not None and self._place is not None
        life = int(self.adversary.draw.choice([0, 1, 2, 2**53, 2**63 - 1]))
        self.push(0, node, PeerGone(self._place))
        self.push(0.1, node, PeerJoined(self._place, life))

    def tell(self, node: NodeId, event: Event) -> None:
        if isinstance(event, Fired):
            self.pending[node].discard(event.key)
        self.before(node)
        if node == self._place:
            self._tell_adversary(node, event)
            return
        evil = self._is_evil(node, event)
        self.evil += evil
        sampled = evil and self.evil % 3 == 0
        state = look(self.machines[node])[0] if sampled else 0
        if self.trace is not None:
            self.trace(f"{self.now:9.3f} {'EVIL' if evil else '    '} {node} <- {event!r:.300}")
        try:
            effects = list(self.machines[node].handle(event, self.now_ns))
        except ProtocolError as error:
            self.refusals += 1
            if self.trace is not None:
                self.trace(f"          refused: {error}")
            if not evil and self.adversary is None:
                raise Broken(f"node {node} refuses an honest message: {error}") from error
            if sampled and look(self.machines[node])[0] != state:
                raise Broken(f"node {node} refused {event!r:.200} ({error}), and its state is another") from None
            return
        except Exception as error:
            raise Broken(f"node {node}: {type(error).__name__}: {error} at {event!r:.300}") from error
        self._check(node, event, effects)
        if self.events % 40 == 0:
            self._check_size(node)
        for effect in effects:
            self.perform(node, effect)

    def _is_evil(self, node: NodeId, event: Event) -> bool:
        if self.adversary is None or not isinstance(event, Received):
            return False
        return event.sender == self.adversary.sender.name and node not in self.adversary.sender.spares

    def _tell_adversary(self, node: NodeId, event: Event) -> None:
        """The machine in its place is told what is said to it; how it fares is nobody's business."""
        if self._lost:
            return
        try:
            effects = list(self.machines[node].handle(event, self.now_ns))
        except ProtocolError:
            return
        except Exception:
            self._lost = True
            return
        assert self.adversary is not None
        for effect in effects:
            if isinstance(effect, Send):
                self.adversary.words.heard[:-500] = []
                self.adversary.words.heard.append(effect.message)
                for late, message in self.adversary.bent(effect.message):
                    self._speak(effect.to, message, late)
            else:
                self.perform(node, effect)

    # --- what is promised -----------------------------------------------------------------------------------------

    def _check(self, node: NodeId, event: Event, effects: Sequence[Effect]) -> None:
        self.needs.effects = max(self.needs.effects, len(effects))
        if self.bounds and len(effects) > 4 * self.bounds.effects + EFFECTS_MAX:
            raise Broken(f"node {node}: {len(effects)} effects of {event!r:.300}")
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._check_sent(node, to, message, event)
                case SetTimer(key, after_ns):
                    if not 0 <= after_ns < 10**10 * SECOND:
                        raise Broken(f"node {node}: a timer {key} after {after_ns} ns, of {event!r:.300}")
                case Report(name, value) if len(repr(value)) > REPORT_MAX:
                    raise Broken(f"node {node}: a report {name} of {len(repr(value))} characters, of {event!r:.300}")
                case Log(kind, facts) if len(repr(facts)) > REPORT_MAX:
                    raise Broken(f"node {node}: a line {kind} of {len(repr(facts))} characters, of {event!r:.300}")
                case _:
                    pass

    def _check_sent(self, node: NodeId, to: NodeId, message: Any, event: Event) -> None:
        try:
            wire.VOCABULARY.decoded(wire.VOCABULARY.encoded(message))
        except Exception as error:
            raise Broken(
                f"node {node} sends to {to} what cannot be sent: {message!r:.300}, of {event!r:.200}"
            ) from error
        for vector in getattr(message, "vectors", ()):
            if vector.dtype.kind == "f" and not np.isfinite(vector).all():
                raise Broken(f"node {node} sends a vector that is not finite: {message!r:.200}, of {event!r:.200}")

    def _check_size(self, node: NodeId) -> None:
        size = look(self.machines[node])[1]
        self.needs.size = max(self.needs.size, size)
        if self.bounds and size > 3 * self.bounds.size + ROOM:
            raise Broken(f"node {node} holds {size} bytes after {self.evil} evil messages; {self.bounds.size} without")

    # --- effects --------------------------------------------------------------------------------------------------

    def push(self, after: float, node: NodeId, event: Event) -> None:
        super().push(after, node, event)
        if isinstance(event, Fired):
            pending = self.pending[node]
            pending.add(event.key)
            self.needs.timers = max(self.needs.timers, len(pending))
            if self.bounds and len(pending) > self.bounds.timers + PENDING_MAX:
                raise Broken(f"node {node}: {len(pending)} timers wait, {self.bounds.timers} in an undisturbed run")

    def perform(self, node: NodeId, effect: Effect | Event) -> None:
        if self.trace is not None:
            self.trace(f"            {node} -> {effect!r:.200}")
        if isinstance(effect, Report) and node != self._place:
            self.reported.add(effect.name)
        if isinstance(effect, Send):
            if self.adversary is None:
                self.needs.said.append((node, effect.to, effect.message))
            elif len(self.adversary.words.heard) < 1000 and effect.to == self._place:
                self.adversary.words.heard.append(effect.message)
        super().perform(node, effect)

    def other(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Train(job):
                self.trainings[node] += 1
                (update,) = self.cast.task.train([Job.from_train(node, effect)])
                self.push(0.05, node, Trained(job, update.difference, update.examples, update.metrics))
            case ChooseRows():
                self.push(0.0, node, choose_rows(self.cast.task, node, effect))
            case Finish(result):
                self.results[node] = result


# --- a case -----------------------------------------------------------------------------------------------------------

WORLDS = 3
"""Undisturbed runs that cases are held against: latencies differ between them."""

MOST = (30, 150, 1000)
"""Evil messages of a case, one of these."""


@functools.cache
def undisturbed(name: str, world: int) -> Bounds:
    """What a run without the adversary needs, says and gives."""
    scene = SCENES[name]
    cast = scene.make()
    stage = Stage(cast, world)
    with scene.around(cast):
        stage.play()
    stage.needs.results = stage.results
    return stage.needs


def play(name: str, kind: str, seed: int, trace: Callable[[str], None] | None = None) -> Stage:
    """Play one case.  Raises Broken."""
    scene, world = SCENES[name], seed % WORLDS
    sender, bounds = scene.senders[kind], undisturbed(name, world)
    cast, draw = scene.make(), seeds.stream(seed, "fuzz", name, kind)
    place = sender.place if sender.place is not None else min(cast.machines)
    task = cast.task
    said = [
        message for _, _, message in bounds.said if isinstance(message, sender.kinds) and type(message) not in cast.old
    ]
    words = Words(
        draw,
        (*cast.machines, 77, -1),
        task.length,
        task.dtype.name,
        task.schema if cast.linked else test_join.SCHEMA,
        said[:: max(1, len(said) // 300)],
        lambda value: cast.signed(value, draw, kind),
        cast.sealed(place),
        sender.kinds,
    )
    stage = Stage(cast, world, Adversary(sender, words, draw, int(draw.choice(MOST))), bounds)
    stage.trace = trace
    with scene.around(cast):
        stage.play()
    judge(stage, sender, bounds)
    return stage


def judge(stage: Stage, sender: Sender, bounds: Bounds) -> None:
    """Hold the results against what was to come out.  Raises Broken."""
    cast, watch = stage.cast, stage.cast.watch
    if sender.place is None:  # one that has no place changes nothing at all
        for node, result in sorted(stage.results.items()):
            moved = np.abs(result - bounds.results[node]).max()
            if moved > cast.near:
                raise Broken(f"node {node} ends with another model than without the adversary, by {moved:.3g}")
    for session, survivors, total in watch.sums:
        bent = sender.place in survivors and stage.adversary is not None and stage.adversary.said > 0
        expected = sum((watch.inputs[v, session] for v in survivors if (v, session) in watch.inputs), 0 * total)
        if len(set(survivors)) < len(survivors) or len(survivors) < 3:
            raise Broken(f"session {session} has summed {survivors}")
        if not bent and not np.array_equal(expected, total):
            raise Broken(f"the sum of session {session}, of {survivors}, is not that of what they masked")
    buffered = hasattr(cast.machines.get(cast.coordinator or 0), "flying")
    pairs = [(id(total), node) for total, node in watch.added]
    if not buffered and len(set(pairs)) < len(pairs):
        raise Broken("a client counts twice in a round")
    for node in stage.honest:
        done = getattr(cast.machines[node], "round", cast.rounds)
        if cast.coordinator is None and done < cast.rounds and "stopped_with_the_others" not in stage.reported:
            raise Broken(f"node {node} ends after {done} of {cast.rounds} rounds")
        if node == cast.coordinator and done < cast.rounds and not stage.reported & {"too_few", "budget"}:
            raise Broken(f"the coordinator ends after {done} of {cast.rounds} rounds, and says no reason")
        if cast.budget is not None and node != cast.coordinator and stage.trainings[node] > cast.budget:
            raise Broken(f"client {node} has trained {stage.trainings[node]} times; its budget pays for {cast.budget}")


def command(name: str, kind: str, seed: int) -> str:
    return f"python tests/machine_fuzz.py {name} {kind} {seed}"


def checked(name: str, kind: str, seed: int) -> Stage:
    """Play one case; where it goes wrong the error says how to see it again."""
    try:
        return play(name, kind, seed)
    except Broken as broken:
        broken.add_note(command(name, kind, seed))
        raise


def main() -> None:
    name, kind, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[-1])
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        if first == last:
            play(name, kind, first, print)
            print("fine")
            return
        wrong, evil = 0, 0
        for seed in range(first, last):
            try:
                evil += play(name, kind, seed).evil
            except Broken as broken:
                wrong += 1
                print(f"{command(name, kind, seed)}: {broken}")
                if wrong == 1 and broken.__cause__:
                    traceback.print_exception(broken.__cause__)
        print(f"{last - first} cases, {evil} evil messages, {wrong} wrong")


if __name__ == "__main__":
    main()
