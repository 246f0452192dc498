"""Stopping a simulation between two instants, and resuming there: the same bits, rows and virtual time.

A run directory has `run.json`, which names the engine, and the newest `checkpoint.safetensors`.  A run killed before
the first image, or with more rounds, starts again, with the same result.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Protocol, runtime_checkable

import msgspec

from fedgossip.base import outside_files, signals
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ResumeError
from fedgossip.core.machine import NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import EventRow
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE, ENGINE, ROWS
from fedgossip.core.task import LocalTask, give_memory, memory_of
from fedgossip.drivers import image_write
from fedgossip.runs import checkpoints
from fedgossip.runs.checkpoints import About, RefusedError

SECONDS = 30.0
"""Seconds between two images; longer if writing one takes more than a twentieth of that."""


class Engine(msgspec.Struct):
    """run.json"""

    engine: str
    """sim | stacked"""


@runtime_checkable
class SettlingRun(Protocol):
    """A run with a part of its state on another device."""

    def settle(self) -> None:
        """Copy all of it to its attributes, and to the record."""


@runtime_checkable
class SeatedRun(Protocol):
    """A run with machines made on demand."""

    def occupy(self, nodes: Iterable[NodeId]) -> None:
        """Make the machines of these nodes, as an image has their attributes."""


@dataclass(frozen=True)
class CheckpointedSimulation:
    """An image: the attributes of `run` and `record`, the task's memory of `n` peers, and `known` objects by name."""

    run: object
    record: Network
    task: LocalTask
    n: int
    known: Mapping[str, object]

    def _list_known(self) -> dict[str, object]:
        evaluate = vars(self.record)["_evaluate"]
        return {**self.known, "task": self.task, "record": self.record, "evaluate": evaluate}

    def settle(self) -> None:
        """Let a run move its state to a place that an image can read; that may write rows."""
        if isinstance(self.run, SettlingRun):
            self.run.settle()

    def capture(self) -> dict[str, image_write.Array]:
        """Return all of it as arrays.  Raises ImageError."""
        memory = {node: dict(memory_of(self.task, node)) for node in range(self.n)}
        return image_write.write_image([self.run, self.record], memory, self._list_known())

    def restore(self, arrays: Mapping[str, image_write.Array]) -> None:
        """Resume from the return value of `taken`.  Raises ResumeError."""
        if isinstance(self.run, SeatedRun):
            self.run.occupy(image_write.contained(arrays, 0, "machines"))
        (run, record), memory = image_write.restored(arrays, [self.run, self.record], self._list_known())
        try:
            for node in range(self.n):
                give_memory(self.task, node, memory[node])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            text = f"the image does not hold what peer {node} remembers ({type(error).__name__}: {error})"
            raise ResumeError(text, image_write.ADVICE) from None
        vars(self.run).update(run)
        vars(self.record).update(record)


@dataclass(frozen=True)
class Left:
    """The state left by a stopped run.  `rows`: bytes of metrics.jsonl that belong to the image."""

    arrays: Mapping[str, image_write.Array]
    rows: int
    round: int


def load_newest(folder: Path, about: About) -> tuple[Left | None, list[EventRow]]:
    """Return the newest usable image or None, and events with refused images' reasons (deleted if another is used).

    Raises ResumeError for a run of another experiment.
    """
    events: list[EventRow] = []
    refused: list[RefusedError] = []
    for path in (folder / CHECKPOINT, folder / CHECKPOINT_BEFORE):
        if not path.exists():
            continue
        try:
            found, arrays = checkpoints.take(path)
            if found["version"] != about.version:
                raise RefusedError(path, "version", f"written by fedgossip {found['version']}, this is {about.version}")
            found = {"code": "", **found}  # missing in earlier releases
            theirs = About(**{name: found[name] for name in About.__slots__})
            checkpoints.check_same(theirs, about, path, simulated=True)
            if theirs.experiment["rounds"] != about.experiment["rounds"]:
                return None, events
            left = Left(arrays, found["rows"], found["round"])
            if (there := _size_of(folder / ROWS)) < left.rows:
                text = f"of the {left.rows:,} bytes of metrics.jsonl that belong to it {there:,} are there"
                raise RefusedError(path, "corrupt", text)
            checkpoints.drop(refused)
            return left, events
        except (RefusedError, KeyError, TypeError) as error:
            found_bad = (
                error if isinstance(error, RefusedError) else RefusedError(path, "corrupt", f"no image ({error!r})")
            )
            refused.append(found_bad)
            value = {"file": path.name, "reason": found_bad.reason, "text": str(found_bad)}
            events.append(EventRow(-1, -1, "checkpoint_refused", value))
    return None, events


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def engine_of(folder: Path) -> str | None:
    """Return the engine of a simulated run; None for any other folder."""
    try:
        return from_json(msgspec.json.Decoder(Engine), outside_files.read_bytes(folder / ENGINE)).engine
    except OSError:
        return None
    except UnreadableError:
        raise ResumeError(f"{folder / ENGINE}: cannot be read", "Start the run again.") from None


class Pauses:
    """Takes images at intervals, and at Ctrl-C; a context manager, called between two instants.

    Ctrl-C raises KeyboardInterrupt from the call once the image is written; a second one at once.
    """

    def __init__(
        self,
        folder: Path | None,
        about: About | None,
        simulation: CheckpointedSimulation,
        note: Callable[[EventRow], None],
    ) -> None:
        self.folder, self.about, self.simulation = folder, about, simulation
        self._note = note
        self._due = time.monotonic() + SECONDS
        self._asked = False
        self._possible = True
        self._stack = contextlib.ExitStack()

    def __call__(self) -> None:
        if self._asked:
            self.write()
            raise KeyboardInterrupt
        if self.folder is not None and time.monotonic() >= self._due:
            began = time.monotonic()
            self.write()
            now = time.monotonic()
            self._due = now + max(SECONDS, 20 * (now - began))

    def write(self) -> None:
        """Write an image; if that is impossible, report an event with the reason and continue."""
        if self.folder is None or self.about is None or not self._possible:
            return
        self.simulation.settle()
        about = {name: getattr(self.about, name) for name in About.__slots__}
        rows, round = (self.folder / ROWS).stat().st_size, min(self.simulation.record.reached)
        try:
            checkpoints.write_tensors(self.folder, {**about, "rows": rows, "round": round}, self.simulation.capture())
        except image_write.ImageError as error:
            self._possible = False
            self._failed(round, "kind", f"a {error} cannot be written down")
        except OSError as error:
            self._failed(round, type(error).__name__, error.strerror or str(error))

    def _failed(self, round: int, reason: str, text: str) -> None:
        self._note(EventRow(round, -1, "checkpoint_failed", {"reason": reason, "text": text}))

    def __enter__(self) -> Pauses:
        if self.folder is not None and threading.current_thread() is threading.main_thread():
            self._stack.enter_context(signals.as_interrupt())
            self._stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, self._stop))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
