"""What a machine was told can be told again, and gives the same bits."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from over_sockets import run_over_sockets

from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import (
    Checkpoint,
    Effect,
    Event,
    Finish,
    Fired,
    Machine,
    PeerGone,
    PeerJoined,
    Received,
    Report,
    Rostered,
    Send,
    Started,
    Stopping,
    Trained,
)
from fedgossip.core.messages import (
    Answer,
    Compare,
    ConfirmDead,
    Entry,
    Join,
    Leaving,
    MembershipUpdate,
    Model,
    Offer,
    Parcel,
)
from fedgossip.core.task import Segment
from fedgossip.drivers.replay import replay_trace
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.runs.trace import _MESSAGES, Opening, Reading, Trace, Traced, TraceError, described, rebuild_event
from fedgossip.topology import Mixing, Topology, build

VECTOR = frozen(np.arange(5, dtype=np.float32))


def opening(**changed: Any) -> Opening:
    return dataclasses.replace(Opening(3, 0, "layout", "0", {"rounds": 2}, VECTOR), **changed)


class Echo:
    """A machine that says what it hears."""

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        return [Report("heard", described(event), now_ns)]


def never(name: str, text: str) -> None:
    raise AssertionError(f"{name}: {text}")


def written(path: Path, events: Sequence[Event], machine: Machine | None = None) -> Path:
    trace = Trace(path, opening(), never)
    traced = Traced(machine or Echo(), trace)
    for number, event in enumerate(events):
        traced.handle(event, number)
    trace.close()
    return path


def read(path: Path) -> list[Event]:
    with Reading(path) as reading:
        return [entry.event for entry in reading]


def test_an_opening_holds_where_tensors_begin(tmp_path: Path) -> None:
    segments = (Segment("weight", 0, (2, 2)), Segment("bias", 4, (1,)))
    Trace(tmp_path / "trace.bin", opening(segments=segments), never).close()
    with Reading(tmp_path / "trace.bin") as reading:
        assert reading.opening.segments == segments


# --- every event, there and back ------------------------------------------------------------------------------------

counts = st.integers(0, 2**40)
words = st.text(max_size=12)
vectors = st.lists(st.floats(width=32), min_size=1, max_size=9).map(lambda x: np.array(x, np.float32))
several = st.lists(vectors, min_size=1, max_size=3).map(tuple)
entries = st.builds(Entry, node=counts, incarnation=counts, address=words, key=words, verify=words)
messages = st.one_of(
    st.builds(Model, round=counts, schema=words, vectors=several, used=counts, missing=counts, view=words),
    st.builds(Offer, number=counts, round=counts, schema=words, vectors=several),
    st.builds(Answer, number=counts, round=counts, schema=words, vectors=several),
    st.builds(Parcel, number=counts, round=counts, schema=words, vectors=several, weight=st.floats()),
    st.builds(Leaving, round=counts, used=counts, missing=counts),
    st.builds(MembershipUpdate, news=st.tuples(entries, st.builds(ConfirmDead, counts, counts, counts, counts))),
    st.builds(Compare, known=st.lists(st.tuples(counts, counts, counts)).map(tuple)),
    st.builds(Join, entry=entries),
)
keys = st.recursive(st.one_of(words, st.integers(-9, 2**40)), lambda inner: st.lists(inner, max_size=3).map(tuple))
metrics = st.dictionaries(words, st.floats(), max_size=3)
events = st.one_of(
    st.just(Started()),
    st.just(Stopping()),
    st.builds(Received, counts, messages),
    st.builds(Trained, counts, st.none() | vectors.map(frozen), counts, metrics),
    st.builds(Fired, keys),
    st.builds(PeerJoined, counts, counts),
    st.builds(PeerGone, counts),
)


@given(st.lists(events, max_size=6))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_event_comes_back_as_it_was(tmp_path: Path, told: list[Event]) -> None:
    back = read(written(tmp_path / "trace.bin", told))
    assert [described(event) for event in back] == [described(event) for event in told]
    for one, other in zip(back, told, strict=True):
        if isinstance(one, Fired):
            assert one == other


@pytest.mark.parametrize("directed", [False, True])
def test_a_new_graph_comes_back_as_it_was(tmp_path: Path, directed: bool) -> None:
    graph = Topology.from_edges(5, [(k, (k + 1) % 5) for k in range(5)], "loop", directed)
    mixing = build(graph, "uniform" if directed else "metropolis")
    (event,) = read(written(tmp_path / "t", [Rostered(mixing)]))
    assert isinstance(event, Rostered) and isinstance(event.schedule, Mixing)
    assert event.schedule.topology == graph
    assert event.schedule.matrix().tolist() == mixing.matrix().tolist()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A message with arrays of unlike types, in fields of their own and in one another."""

    round: int
    places: Any
    several: tuple[Any, ...]


def test_arrays_of_unlike_types_come_back_from_any_field_of_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_MESSAGES, "Sparse", Sparse)
    places, grid = np.array([1, 5, 2**32 - 1], np.uint32), np.arange(6, dtype=np.float64).reshape(2, 3)
    sent = Sparse(7, places, (frozen(np.array([0.5, -1], np.float32)), grid))
    (event,) = read(written(tmp_path / "t", [Received(1, sent)]))  # type: ignore[arg-type]
    back: Any = event.message  # type: ignore[union-attr]
    assert described(back) == described(sent) and back.round == 7
    assert [array.dtype.name for array in (back.places, *back.several)] == ["uint32", "float32", "float64"]
    assert back.several[1].tolist() == grid.tolist() and not back.several[0].flags.writeable


def test_a_model_in_a_trace_of_the_release_before_comes_back() -> None:
    """There the vectors of a message had no field."""
    old = {"sender": 1, "message": {"is": "Model", "round": 3, "schema": "s"}}
    event: Any = rebuild_event("Received", old, [VECTOR])
    assert event.message.round == 3 and event.message.vectors == (VECTOR,)


def test_a_vector_belongs_to_the_machine_again_if_it_did(tmp_path: Path) -> None:
    mine, shared = np.ones(4, np.float32), frozen(np.ones(4, np.float32))
    (event,) = read(written(tmp_path / "t", [Received(1, Offer(0, 0, "", (mine, shared)))]))
    assert isinstance(event, Received) and isinstance(event.message, Offer)
    assert [vector.flags.writeable for vector in event.message.vectors] == [True, False]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    (event,) = read(written(tmp_path / "t", [Trained(0, None, 1, {"loss": np.float32(0.5)})]))
    assert isinstance(event, Trained) and event.metrics == {"loss": 0.5}


def test_the_opening_holds_what_the_machine_went_on_from(tmp_path: Path) -> None:
    facts = {"stream": 2**100, "list": [1, {"a": 0.5}]}
    trace = Trace(tmp_path / "t", opening(resumed=Checkpoint(7, {"state/0": VECTOR}, facts)), never)
    trace.close()
    with Reading(tmp_path / "t") as reading:
        resumed = reading.opening.resumed
    assert resumed is not None and resumed.round == 7 and resumed.facts == facts
    assert digest(resumed.vectors.values()) == digest([VECTOR])


# --- when writing or reading goes wrong -----------------------------------------------------------------------------


def test_a_trace_that_was_cut_short_gives_all_before_the_cut(tmp_path: Path) -> None:
    told = [Received(1, Offer(k, 0, "", (VECTOR,))) for k in range(4)]
    whole = written(tmp_path / "t", told).read_bytes()
    seen = set()
    for size in range(len(whole) // 2, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with Reading(tmp_path / "cut") as reading:
            found = [described(entry.event) for entry in reading]
        assert found == [described(event) for event in told[: len(found)]]
        seen.add(len(found))
    assert seen >= {3, 4}


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    whole = bytearray(written(tmp_path / "t", [Fired(("deadline", 3))] * 3).read_bytes())
    whole[-40] ^= 1
    (tmp_path / "t").write_bytes(whole)
    with pytest.raises(TraceError, match="not as it was written"):
        read(tmp_path / "t")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\x80\x04never unpickled")
    with pytest.raises(TraceError, match="not a trace"):
        Reading(tmp_path / "t")


def test_a_full_trace_stops_and_the_machine_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    trace = Trace(tmp_path / "t", opening(), lambda name, _: told.append(name), limit_bytes=2_000)
    machine = Traced(Echo(), trace)
    for _ in range(100):
        assert machine.handle(Received(1, Offer(0, 0, "", (VECTOR,))), 0)
    assert told == ["trace_full"]
    assert (tmp_path / "t").stat().st_size <= 2_000
    assert len(read(tmp_path / "t")) > 2


class FullDisk:
    """A file whose disk has room for so many bytes."""

    def __init__(self, inner: Any, room: int) -> None:
        self.inner, self.room = inner, room

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            self.inner.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.inner.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_full_disk_ends_the_trace_with_a_reason_and_not_the_run(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    trace = Trace(tmp_path / "t", opening(), lambda *why: told.append(why))
    trace._file = FullDisk(trace._file, 3_000)  # type: ignore[assignment]
    machine = Traced(Echo(), trace)
    for _ in range(100):
        machine.handle(Received(1, Offer(0, 0, "", (VECTOR,))), 0)
    assert told == [("trace_failed", "No space left on device")]
    assert read(tmp_path / "t")  # whole records only


# --- replay -----------------------------------------------------------------------------------------------------------


def recorded(folder: Path, overrides: Sequence[str], **top: Any) -> list[Path]:
    """Run over TCP with CURVE, every peer traced; return the traces."""
    experiment = load_experiment({"rounds": 12, "topology": {"graph": "ring", "n": 4}, **top}, overrides)
    plan = compose.plan(experiment)
    task, _ = compose.task_of(experiment, plan.n)
    traces: dict[int, Trace] = {}
    turn = threading.Lock()

    def wrap(node: int, machine: Machine) -> Machine:
        about = Opening(node, 0, task.schema, "0", experiment.to_dict(), task.initial(node))
        with turn:
            traces[node] = Trace(folder / f"{node}.bin", about, never)
        return Traced(machine, traces[node])

    results, _ = run_over_sockets(plan, task, wrap)
    for node, trace in traces.items():
        trace.close()
        replayed = replay_trace(trace.path)
        assert (replayed.end, replayed.digest) == ("finished", digest([results[node]]))
    return [traces[node].path for node in range(plan.n)]


QUADRATIC = ["task.kind=quadratic", "task.dim=300", "task.sigma=0.1"]
LEARNING = ["model.source=softmax", "train.momentum=0.9", "train.device=cpu", "train.local_steps=1"]


@pytest.mark.sockets
@pytest.mark.parametrize("overrides", [QUADRATIC, LEARNING], ids=["quadratic", "learning"])
def test_a_run_over_tcp_replays_with_equal_bits(tmp_path: Path, overrides: list[str]) -> None:
    for path in recorded(tmp_path, overrides):
        replayed = replay_trace(path)
        assert replayed.equal and replayed.events > 3 * 12


@pytest.mark.sockets
def test_an_asynchronous_run_over_tcp_replays_with_equal_bits(tmp_path: Path) -> None:
    """Its order belongs to the network: no other run of it has these bits, but a replay has."""
    paths = recorded(tmp_path, [*QUADRATIC, "algorithm.mode=async"], rounds=150)
    replays = [replay_trace(path) for path in paths]
    assert all(replayed.equal and replayed.end == "finished" for replayed in replays)
    assert sum(replayed.events for replayed in replays) >= 1000


def in_the_last_bit(event: Event) -> Trained:
    """Return a training whose update differs in the last bit of one number."""
    assert isinstance(event, Trained) and event.update is not None
    other = event.update.copy()
    other[17] = np.nextafter(other[17], other.dtype.type(9))
    return Trained(event.job, frozen(other), event.examples, event.metrics)


@pytest.mark.sockets
def test_a_changed_event_is_found_at_its_place(tmp_path: Path) -> None:
    path = recorded(tmp_path, QUADRATIC)[2]
    with Reading(path) as reading:
        entries = list(reading)
        about = reading.opening
    models = [e.number for e in entries if isinstance(e.event, Trained)]
    changed = models[len(models) // 2]
    trace = Trace(tmp_path / "changed.bin", about, never)
    for entry in entries:
        trace.write_event(entry.now_ns, in_the_last_bit(entry.event) if entry.number == changed else entry.event)
        trace.answered(entry.answer or [])
    trace.close()
    replayed = replay_trace(trace.path)
    assert not replayed.equal
    assert replayed.difference is not None and replayed.difference.event == changed
    assert replayed.difference.told.startswith("Trained(job=")
    assert "Outgoing" in replayed.difference.was and replayed.difference.was != replayed.difference.now


@pytest.mark.sockets
def test_until_stops_there(tmp_path: Path) -> None:
    path = recorded(tmp_path, QUADRATIC, rounds=3)[0]
    seen: list[int] = []
    replayed = replay_trace(path, until=4, show=lambda entry: seen.append(entry.number))
    assert (replayed.events, replayed.end, seen) == (4, "until", [1, 2, 3, 4])


def test_one_machine_of_another_kind_can_be_asked_the_same(tmp_path: Path) -> None:
    class Silent:
        def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
            return [Send(1, Leaving(0)), Finish(VECTOR)]

    written(tmp_path / "t", [Started()], Silent())
    assert replay_trace(tmp_path / "t", make=lambda _: Silent()).equal
    replayed = replay_trace(tmp_path / "t", make=lambda _: Echo())
    assert replayed.difference is not None
    assert replayed.difference.was.startswith("Send(to=1, message=Leaving(round=0")
