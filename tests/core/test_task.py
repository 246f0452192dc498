"""What a task may have beside the methods that every one has, and what is no task."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgossip
from fedgossip import Job, LocalTask, Segment, Update
from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import checked_task, give_memory, memory_of, segments_of, tensors_of
from fedgossip.drivers.peer import Stopper
from fedgossip.experiment import checked
from fedgossip.faults import FaultScript, Slow
from fedgossip.net.faulty import Faults
from fedgossip.plans import compose

RING = {"rounds": 6, "topology": {"graph": "ring", "n": 4}}


class Plain:
    """Remembers nothing."""

    length, dtype, schema = 6, np.dtype(np.float32), "six"

    def initial(self, node: int) -> Vector:
        return frozen(np.full(6, node, np.float32))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(None, 1, {"loss": 0.0}) for _ in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{"loss": 0.0} for _ in vectors]


class Counting(Plain):
    """Adds the number of a peer's jobs so far."""

    def __init__(self) -> None:
        self.jobs: dict[int, int] = {}
        self.taken_up: list[tuple[int, int]] = []

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        for job in jobs:
            self.jobs[job.node] = self.jobs.get(job.node, 0) + 1
        return [Update(frozen(np.full(6, self.jobs[job.node], np.float32)), 1, {"loss": 0.0}) for job in jobs]

    def state(self, node: int) -> Mapping[str, np.ndarray]:
        return {"jobs": np.array(self.jobs.get(node, 0))}

    def load_state(self, node: int, state: Mapping[str, np.ndarray]) -> None:
        self.jobs[node] = int(state.get("jobs", 0))
        self.taken_up.append((node, self.jobs[node]))


class Layered(Plain):
    segments: Sequence[Segment] = (Segment("weight", 0, (2, 2)), Segment("bias", 4, (2,)))


def test_a_task_that_says_nothing_has_one_segment() -> None:
    assert segments_of(Plain()) == (Segment("vector", 0, (6,)),)


def test_a_vector_is_taken_apart_by_the_segments() -> None:
    found = tensors_of(Layered(), np.arange(6, dtype=np.float32))
    assert found["weight"].tolist() == [[0, 1], [2, 3]]
    assert found["bias"].tolist() == [4, 5]


@pytest.mark.parametrize(
    "segments, said",
    [
        ([Segment("a", 0, (4,)), Segment("b", 3, (3,))], "'b' holds elements 3 to 6, after one that ends at 4"),
        ([Segment("a", 0, (2,)), Segment("b", 4, (2,))], "'b' holds elements 4 to 6, after one that ends at 2"),
        ([Segment("a", 0, (5,))], "the segments end at 5 of 6 elements"),
        ([Segment("a", 0, (2, 4))], "the segments end at 8 of 6 elements"),
        ([Segment("a", 0, (3,)), Segment("a", 3, (3,))], "share a name"),
    ],
)
def test_segments_cover_the_vector_and_do_not_overlap(segments: list[Segment], said: str) -> None:
    task = Layered()
    task.segments = segments
    with pytest.raises(ConfigError, match=said):
        fedgossip.simulate(RING, task=task)


@pytest.mark.parametrize("kind", ["gossip", "federation"])
def test_machines_of_a_run_know_the_segments(kind: str) -> None:
    sections = {"gossip": RING, "federation": {"rounds": 2, "coordinator": {"clients": 3, "secure": {"on": False}}}}
    plan = compose.plan(checked(dict(sections[kind]), kind)).with_segments(segments_of(Layered()))
    assert plan.shorten_start().segments == Layered.segments


def test_what_is_no_task_is_refused_before_anything_runs() -> None:
    class Untrained:
        length, dtype, schema = 6, np.dtype(np.float32), "six"
        initial, evaluate = Plain.initial, Plain.evaluate

    with pytest.raises(ConfigError, match="Untrained is no task: it has no train"):
        fedgossip.simulate(RING, task=Untrained())  # type: ignore[arg-type]


@pytest.mark.parametrize("half, other", [("state", "load_state"), ("load_state", "state")])
def test_half_of_a_stateful_task_is_refused(half: str, other: str) -> None:
    task: Any = Plain()
    setattr(task, half, lambda *_: {})
    with pytest.raises(ConfigError, match=f"Plain has {half} and no {other}"):
        checked_task(task)


def test_a_task_without_a_memory_does_not_take_up_another_ones() -> None:
    with pytest.raises(ResumeError, match="peer 2: Plain remembers nothing, and the checkpoint holds jobs"):
        give_memory(Plain(), 2, {"jobs": np.array(3)})


def test_a_restarted_peer_goes_on_with_what_its_task_remembered() -> None:
    crash = [{"kind": "crash", "peers": [1], "start": 0.5, "after": 0.2}]
    task = Counting()
    fedgossip.simulate({**RING, "rounds": 8, "faults": crash, "simulation": {"training": 0.1}}, task=task)
    ((node, jobs),) = task.taken_up
    assert node == 1
    assert 2 <= jobs <= 5


def test_a_slowed_task_is_what_the_task_is(tmp_path: Path) -> None:
    def slowed(task: LocalTask) -> LocalTask:
        script = FaultScript([Slow(peers=[0], factor=2.0)], 4, 0, set())
        return Faults(script, 0, lambda: 0).on_task(task)

    counting = slowed(Counting())
    counting.train([Job(0, 0, Plain().initial(0))])
    assert memory_of(counting, 0)["jobs"] == 1
    assert segments_of(slowed(Layered())) == Layered.segments
    with pytest.raises(ResumeError):
        give_memory(slowed(Plain()), 0, {"jobs": np.array(3)})


def test_a_peer_in_a_thread_sets_no_signals() -> None:
    class Links:
        woken = 0

        def wake_on_signals(self) -> None:
            self.woken += 1

    links: Any = Links()
    found: list[object] = []

    def start() -> None:
        try:
            with Stopper(links, child=False) as stop:
                found.append(stop())
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(10)
    assert (found, links.woken) == ([False], 0)
