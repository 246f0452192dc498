"""The score of the mean of all models, in a run in which only the loops can measure: requests and replies are files.

    asked/a000004-2.safetensors     a vector for loop 2 to measure
    asked/a000004.json              its metrics
    asked/over                      no more requests will follow

A requester has a letter: "a" the collector, "c" a coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, json_value
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.drivers.loops.description import Described
from fedgossip.drivers.loops.task import DescribedTask, Measure, Measured, Meeting
from fedgossip.runs.run_directory import write_whole

ANSWER_SECONDS = 30.0
"""Maximum seconds to wait for a loop's answer, which it gives between two exchanges."""

LOOK_SECONDS = 0.05


def requests_in(out: Path) -> Path:
    """Return the folder of a run's requests, written by its collector for its loops."""
    return out / run_format.ASKED


class AskingTask(DescribedTask):
    """A task with models measured by the first present loop that measures; `there()` lists the present loops."""

    def __init__(self, of: Described, folder: Path, there: Callable[[], Sequence[NodeId]], who: str = "a") -> None:
        super().__init__(of.first, of.model.segments, of.model.schema, of.model.likeness)
        self._folder, self._there, self._who = folder, there, who
        self._number = 0
        self._deaf: set[NodeId] = set()
        owner_files.make_folder(folder)

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [self._request_metrics(vector) for vector in vectors]

    def over(self) -> None:
        """Mark that no more requests will follow."""
        owner_files.written(self._folder / run_format.OVER, b"")

    def _request_metrics(self, vector: Vector) -> Mapping[str, float]:
        for loop in [node for node in self._there() if node not in self._deaf]:
            found = self._await_reply(loop, vector)
            if found:
                return found
            if found is None and loop in self._there():  # one that has died may start again
                self._deaf.add(loop)
        return {}

    def _await_reply(self, loop: NodeId, vector: Vector) -> Mapping[str, float] | None:
        """Return the loop's metrics, empty if it has no function that measures; None without a reply."""
        from safetensors.numpy import save

        self._number += 1
        asked = self._folder / f"{self._who}{self._number:06d}-{loop}.safetensors"
        answer = self._folder / f"{self._who}{self._number:06d}.json"
        try:
            write_whole(asked, save({"vector": np.ascontiguousarray(vector)}))
        except NotWrittenError:
            return {}
        until = time.monotonic() + ANSWER_SECONDS
        while not answer.exists():
            if time.monotonic() > until or loop not in self._there():
                asked.unlink(missing_ok=True)
                return None
            time.sleep(LOOK_SECONDS)
        found = _numbers(answer)
        asked.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
        return found


def _numbers(path: Path) -> Mapping[str, float]:
    try:
        content = json_value(outside_files.read_bytes(path))
    except (OSError, UnreadableError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {str(name): float(value) for name, value in pairs if isinstance(value, int | float)}


class AnsweringLoop:
    """Answers requests to loop `node` in a thread, until the run is over (`over` is called) or `alive` is false."""

    def __init__(
        self, folder: Path, node: NodeId, meeting: Meeting, alive: Callable[[], bool], over: Callable[[], None]
    ) -> None:
        self._folder, self._node, self._meeting, self._alive, self._over = folder, node, meeting, alive, over
        self._thread = guarded_thread(self._run, f"answering-{node}")
        self._thread.start()

    @property
    def needed(self) -> bool:
        """Whether requests may still follow."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while self._alive() and not (self._folder / run_format.OVER).exists():
            for path in sorted(self._folder.glob(f"*-{self._node}.safetensors")):
                self._answer(path)
            time.sleep(LOOK_SECONDS)
        if (self._folder / run_format.OVER).exists():
            self._over()

    def _answer(self, path: Path) -> None:
        from safetensors.numpy import load

        answer = path.with_name(path.name.partition("-")[0] + ".json")
        if answer.exists():
            return
        try:
            vector = frozen(load(outside_files.read_bytes(path, outside_files.LARGE))["vector"])
        except (OSError, KeyError):  # no longer requested
            return
        order = self._meeting.ask(Measure(vector))
        found = order.metrics if isinstance(order, Measured) else {}
        finite = {name: value for name, value in found.items() if np.isfinite(value)}
        try:
            write_whole(answer, msgspec.json.encode(finite))
        except NotWrittenError:
            return
