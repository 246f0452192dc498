"""An image of a simulation can be changed by anybody who can write the run directory: it is data, and stays data."""

from __future__ import annotations

import random
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import finish, start
from test_resume import ctrl_c_after

from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import Vector
from fedgossip.core.run_format import CHECKPOINT
from fedgossip.drivers import image_write, sim_checkpoint, simulate
from fedgossip.drivers.image_types import declared
from fedgossip.drivers.sim_checkpoint import CheckpointedSimulation, Pauses
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs import checkpoints
from fedgossip.simulation.simulator import Simulator

CRASH = {"kind": "crash", "peers": [1], "start": 0.12, "after": 0.1}
LOSSES = [CRASH, {"kind": "drop", "probability": 0.2}, {"kind": "delay", "seconds": 0.02}]
CLIENTS = {"topology": None, "coordinator": {"clients": 3, "secure": {"on": False}}}

RUNS: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {"faults": LOSSES, "algorithm": {"deadline": 0.5}},
    "learning": {"task": {"kind": "learning"}, "train": {"local_steps": 1, "momentum": 0.9, "device": "cpu"}},
    "gradient tracking": {"algorithm": {"name": "gradient-tracking"}, "faults": LOSSES},
    "momentum": {"algorithm": {"name": "qg-dsgdm"}},
    "mixed momentum": {"algorithm": {"name": "push-sum", "options": {"momentum": "mixed"}}, "faults": LOSSES},
    "slow momentum": {"algorithm": {"name": "slowmo", "options": {"base": "dsgdm", "every": 2}}},
    "push-diging": {"algorithm": {"name": "push-diging"}, "faults": LOSSES},
    "d2": {"algorithm": {"name": "d2"}, "topology": {"graph": "ring", "n": 3, "weights": "lazy"}},
    "two-tap": {"algorithm": {"name": "two-tap"}, "faults": LOSSES},
    "asynchronous": {"algorithm": {"mode": "async"}, "faults": LOSSES},
    "push-sum": {"algorithm": {"name": "push-sum"}, "faults": LOSSES},
    "asynchronous push-sum": {"algorithm": {"name": "push-sum", "mode": "async"}, "faults": LOSSES},
    "private": {"algorithm": {"private": True}, "topology": {"graph": "complete", "n": 4}, "faults": LOSSES},
    "scaffold": {**CLIENTS, "faults": LOSSES, "algorithm": None},
    "fedbuff": CLIENTS | {"coordinator": {**CLIENTS["coordinator"], "algorithm": "fedbuff"}},  # type: ignore[dict-item]
    "median": CLIENTS | {"coordinator": {**CLIENTS["coordinator"], "algorithm": "median"}},  # type: ignore[dict-item]
}


def plan_of(name: str) -> compose.Plan:
    content: dict[str, Any] = {
        "rounds": 4,
        "topology": {"graph": "ring", "n": 3},
        "task": {"kind": "averaging", "dim": 3},
        "simulation": {"jitter": 0.01, "speed_spread": 0.4},
        **RUNS[name],
    }
    return compose.plan(load_experiment({key: value for key, value in content.items() if value is not None}))


class Enough(Exception):
    """The simulation has come as far as the test wants it."""


@contextmanager
def between_events(
    what: Callable[[CheckpointedSimulation, int], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Have `what` called between two events: with the simulation, and how many there were."""
    seen = 0

    def called(pauses: Pauses) -> None:
        nonlocal seen
        what(pauses.simulation, seen)
        seen += 1

    with monkeypatch.context() as patched:
        patched.setattr(simulate, "Pauses", Pauses)
        patched.setattr(Pauses, "__call__", called)
        yield


def made_anew(
    name: str, monkeypatch: pytest.MonkeyPatch, engine: str = "sim", events: int = 0
) -> CheckpointedSimulation:
    """Return the simulation of a run as it stands after so many events."""
    found: list[CheckpointedSimulation] = []

    def stop(simulation: CheckpointedSimulation, seen: int) -> None:
        if seen == events:
            found.append(simulation)
            raise Enough

    with between_events(stop, monkeypatch), pytest.raises(Enough):
        simulate_plan(plan_of(name), engine=engine)
    return found[0]


def taken_up(fresh: CheckpointedSimulation, arrays: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """What the image gives to a simulation made anew, which stays as it is."""
    return read(fresh, fresh._list_known(), arrays)


def read(fresh: CheckpointedSimulation, known: Mapping[str, object], arrays: Mapping[str, Any]) -> Any:
    copies = {name: array.copy() for name, array in arrays.items()}
    return image_write.restored(copies, [fresh.run, fresh.record], known)


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("name", RUNS)
def test_what_was_written_at_any_time_is_taken_up(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "stacked" and (RUNS[name].get("faults") or name == "fedbuff"):
        pytest.skip("the stacked engine has no faults, and goes by rounds")
    fresh, count = made_anew(name, monkeypatch, engine), 0

    def check(simulation: CheckpointedSimulation, seen: int) -> None:
        nonlocal count
        if engine == "stacked" or seen % 11 == 0:
            count += 1
            arrays = simulation.capture()
            (run, record), memory = taken_up(fresh, arrays)
            assert run.keys() == vars(simulation.run).keys() and record.keys() == vars(simulation.record).keys()
            assert sorted(memory) == list(range(simulation.n))

    with between_events(check, monkeypatch):
        simulate_plan(plan_of(name), engine=engine)
    assert count > 3


# --- what somebody has put there --------------------------------------------------------------------------------------


class Table:
    """The nodes of an image, to be changed."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = dict(arrays)
        self.start, self.nodes = msgspec.msgpack.decode(arrays["table"].tobytes())

    def add(self, *node: Any) -> list[int]:
        self.nodes.append(list(node))
        return [len(self.nodes) - 1]

    def many(self, kind: str, *refs: Any) -> list[int]:
        return self.add(kind, list(refs))

    def node(self, ref: list[int]) -> list[Any]:
        found: list[Any] = self.nodes[ref[0]]
        return found

    def root(self, place: int) -> list[list[Any]]:
        """The attributes of the run (0) or of the record (1), as pairs of name and reference."""
        pairs: list[list[Any]] = self.node(self.node(self.start)[1][place])[1]
        return pairs

    def put(self, name: str, ref: Any, place: int = 0) -> None:
        next(pair for pair in self.root(place) if pair[0] == name)[1] = ref

    def put_within(self, name: str, inner: str, ref: Any) -> None:
        """As `put`, for an attribute of an attribute of the run."""
        next(pair for pair in self.node(self.get(name))[2] if pair[0] == inner)[1] = ref

    def get(self, name: str, place: int = 0) -> Any:
        return next(ref for key, ref in self.root(place) if key == name)

    def written(self) -> dict[str, Any]:
        encoded = msgspec.msgpack.encode([self.start, self.nodes])
        return {**self.arrays, "table": np.frombuffer(encoded, np.uint8)}


def as_a_command(table: Table, command: str) -> None:
    """Have `rebirth` run a function of Python's for a node that is called so: what an image could do before."""
    node, nobody = "os:system", table.many("list")
    restart = table.add("object", "fedgossip.simulation.network:Restart", [])
    zero = table.many("tuple", 0, 0)
    table.put("rebirth", table.add("function", "fedgossip.data.custom:call"))
    coming = table.many("list", table.many("tuple", 1, node, restart, zero, zero))
    table.put_within("_instants", "_there", table.add("dict", [[0, coming]]))
    table.put_within("_instants", "times", table.many("list", 0))
    table.put("lives", table.add("dict", [[node, 0]]))
    table.put("checkpoints", table.add("dict", [[node, command]]))
    table.put_within("connections", "known", table.add("dict", [[node, nobody]]))


@pytest.mark.sockets
def test_a_tampered_run_directory_runs_no_command(tmp_path: Path) -> None:
    """Over a real process: before, `fedgossip run --resume` ran it."""
    run, ran = tmp_path / "run", tmp_path / "ran"
    simulate_plan(plan_of("synchronous"), out=run, watch=ctrl_c_after(1))
    about, arrays = checkpoints.take(run / CHECKPOINT)
    table = Table(arrays)
    as_a_command(table, f"touch {shlex.quote(str(ran))}")
    checkpoints.write_tensors(run, {key: value for key, value in about.items() if key != "format"}, table.written())
    said = finish(start(["run", "--resume", "run", "--no-report"], tmp_path))
    assert not ran.exists(), "a command was run"
    assert said.code == 8 and len(said.err.splitlines()) == 2, said
    assert "the image of the simulation cannot be taken up" in said.errors[0]


@pytest.mark.parametrize("name", ["rebirth", "write", "task", "script", "on_crash", "record"])
def test_what_can_be_called_is_never_of_an_image(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what an image would have in its place is refused, as is one's own in the place of data."""
    fresh = made_anew("synchronous", monkeypatch)
    arrays = fresh.capture()
    (run, _), _ = taken_up(fresh, arrays)
    assert run[name] is vars(fresh.run)[name]
    for ref in (["function", "fedgossip.data.custom:call"], ["known", "task"], ["object", "x:y", []]):
        table = Table(arrays)
        table.put(name, table.add(*ref))
        if ref[0] == "object" or name == "on_crash":
            with pytest.raises(ResumeError):
                taken_up(fresh, table.written())
        else:
            assert taken_up(fresh, table.written())[0][0][name] is vars(fresh.run)[name]
        table = Table(arrays)
        table.put_within("_instants", "_there", table.add(*ref))
        with pytest.raises(ResumeError):
            taken_up(fresh, table.written())


def kinds_in(table: Table) -> dict[str, list[int]]:
    """A reference to one object of each class."""
    return {str(node[1]): [number] for number, node in enumerate(table.nodes) if node[0] == "object"}


@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "scaffold"])
def test_an_object_of_another_class_is_refused_wherever_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every attribute of every class, each other class of the image once."""
    fresh = made_anew(name, monkeypatch)
    arrays = made_anew(name, monkeypatch, events=40).capture()
    kinds = kinds_in(Table(arrays))
    tried = set()
    for number, node in enumerate(Table(arrays).nodes):
        for place, (attribute, ref) in enumerate(node[2] if node[0] == "object" else ()):
            if (node[1], attribute) in tried:
                continue
            table = Table(arrays)
            own, may = table.node(ref) if isinstance(ref, list) else ["plain"], may_stand(node[1], attribute)
            others = [kind for kind in kinds if not re.search(rf"\b{kind}\b", may) and kind not in own]
            if own[0] == "known" or not others:
                continue
            tried.add((node[1], attribute))
            kind = random.Random(f"{node[1]}.{attribute}").choice(others)
            table.nodes[number][2][place][1] = kinds[kind]
            with pytest.raises(ResumeError, match="cannot be taken up"):
                taken_up(fresh, table.written())
                pytest.fail(f"{kind} as {attribute} of {node[1]}")
    assert len(tried) > 50


@cache
def may_stand(kind: str, attribute: str) -> str:
    """The declared type of an attribute, as text: a place that is empty may be filled."""
    (of,) = {
        one
        for name, module in list(sys.modules.items())
        if name.startswith("fedgossip.")
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == name and one.__qualname__ == kind
    }
    return str(declared(of).get(attribute))


def test_nothing_is_looked_up_by_a_name_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a module runs it: `fedgossip.__main__` is the whole command line."""
    fresh = made_anew("synchronous", monkeypatch)
    for name in ("fedgossip.__main__:main", "fedgossip.net.host:Host", "os:system", "fedgossip.core.machine:Started.x"):
        table = Table(fresh.capture())
        table.put("network", table.add("object", name, []))
        with pytest.raises(ResumeError, match="where SimulatedNetwork belongs"):
            taken_up(fresh, table.written())
    assert "fedgossip.__main__" not in sys.modules


@pytest.mark.parametrize("attribute", ["__class__", "__dict__", "handle", "_handle"])
def test_no_attribute_is_set_that_there_is_not(attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = made_anew("synchronous", monkeypatch)
    table = Table(fresh.capture())
    table.node(table.get("network"))[2].append([attribute, 1])
    with pytest.raises(ResumeError, match="other attributes"):
        taken_up(fresh, table.written())


# --- images changed at random -----------------------------------------------------------------------------------------

CALLED = (
    "fedgossip.drivers.image_write",
    "fedgossip.drivers.image_write",
    "fedgossip.drivers.image_types",
    "fedgossip.base.errors",
)
"""Modules whose functions reading an image calls; nothing of the rest."""


def changed(table: Table, draw: random.Random) -> None:
    """Change one thing: a reference, a plain value, a name, a kind, or what two nodes are."""
    nodes = table.nodes
    node = nodes[draw.randrange(len(nodes))]
    match draw.randrange(5):
        case 0:
            node[:] = nodes[draw.randrange(len(nodes))]
        case 1:
            node[0] = draw.choice(
                ["object", "dict", "list", "tuple", "set", "deque", "function", "method", "known", "int"]
            )
        case 2 if node[0] == "object":
            node[1] = draw.choice(["fedgossip.data.custom:call", "os:system", *kinds_in(table)])
        case _:
            places = list(places_in(node))
            if places:
                where, key = draw.choice(places)
                refs = [0], [draw.randrange(len(nodes))], [-1], [1e9]
                where[key] = draw.choice((None, True, -1, 2**63, 1e308, "", "os:system", {}, *refs))


def places_in(one: Any) -> Iterator[tuple[Any, int]]:
    """All places of nested lists where something stands."""
    for key, part in enumerate(one):
        yield one, key
        if isinstance(part, list):
            yield from places_in(part)


@contextmanager
def nothing_else_called(called: set[str]) -> Iterator[None]:
    """Collect functions of fedgossip, but for those that read images, and of subprocess and os that are called."""

    def watch(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("fedgossip") and module not in CALLED:
                called.add(f"{module}:{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("name", ["synchronous", "asynchronous push-sum", "scaffold"])
def test_images_changed_at_random_are_refused_or_taken_up_and_call_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    fresh = made_anew(name, monkeypatch)
    arrays = made_anew(name, monkeypatch, events=45).capture()
    taken_up(fresh, arrays)  # the types are read once
    known, called = fresh._list_known(), set[str]()
    refused, times = 0, 30_000 if request.config.getoption("--long") else 150
    for seed in range(times):
        draw, table = random.Random(seed), Table(arrays)
        for _ in range(draw.choice([1, 1, 2, 5])):
            changed(table, draw)
        with nothing_else_called(called):
            try:
                read(fresh, known, table.written())
            except ResumeError:
                refused += 1
    assert not called
    assert times / 3 < refused < times


def test_an_image_that_nests_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = made_anew("synchronous", monkeypatch)
    table = Table(fresh.capture())
    inner = table.many("list")
    for _ in range(50_000):
        inner = table.many("list", inner)
    table.put("_states", table.add("dict", [[0, inner]]))
    with pytest.raises(ResumeError, match="RecursionError"):
        taken_up(fresh, table.written())


def test_the_types_of_attributes_are_those_that_the_source_declares() -> None:
    found = declared(Simulator)
    assert found["checkpoint_every"] is int and found["results"] == dict[int, Vector]
    assert found["now_ns"] is object, "0 alone tells no type: the new simulation does"
    assert declared(sim_checkpoint.Left)["rows"] is int
