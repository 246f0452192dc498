"""One client, several processes: a GPU for each, or all on the CPU; they train every step together.

    the task's process     DistributedLoop: lays a job on a board, gives the order, takes up what was found
    P processes (`worker`)   a torch.distributed group among themselves; each trains on its part of every batch

The task's process is no member of the group: a crash inside the group is an error here and not the end of the peer,
several tasks of one process have groups of their own, and what holds the sockets of a peer trains on no GPU.  Nothing
is forked: the processes are new ones.  They map the same examples and vectors (`shared_memory`), so nothing is copied
between them but gradients.  Process 0 speaks for the group where all would say the same.

A step equals the step of one process to rounding, see `group`: with "ddp" each process holds the whole model, with
"fsdp" a part of it (`fsdp`).

The group starts with the first job.  When one of its processes ends, fails, or is silent for too long, all are ended,
and the next job starts a new group.  When the task's process ends, however it does, they end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedgossip.errors import ConfigError, TrainingError
from fedgossip.learning import module_engine
from fedgossip.learning.dataset import Dataset
from fedgossip.learning.ddp.ipc import (
    STATE,
    Alive,
    Channel,
    Evaluated,
    EvaluateOrder,
    Failed,
    Message,
    Setup,
    TrainOrder,
    TrainReply,
)
from fedgossip.learning.ddp.shared_memory import ArrayPlace, Shapes, SharedArrays
from fedgossip.learning.flat import Layout
from fedgossip.learning.module_engine import Assignment, Done, Sums
from fedgossip.learning.objectives import Objective
from fedgossip.learning.scoring import Scoring, Tally
from fedgossip.learning.settings import TrainSettings
from fedgossip.learning.sharing import GpuSharing, OutOfMemory
from fedgossip.learning.stacked_engine import Outcome, State
from fedgossip.vectors import Vector, empty, frozen

START_SECONDS = 300.0
"""For all processes to import torch, meet and build the model."""

SILENT_SECONDS = 600.0
"""The longest that no process of a group finishes a step; torch.compile's first step is the longest."""

GRACE_SECONDS = 1.0
"""When one process fails: for another to show that it died, and the failure was only that it did not answer."""

STOP_SECONDS = 5.0

DIED_ADVICE = "Signal 9 is often the system's, when memory is short; what the process printed says more."


@dataclass(frozen=True, slots=True)
class Source:
    """What the processes build the model from, as `models.build` takes it."""

    name: str
    base: Path | None
    seed: int
    objective: Objective


class DistributedLoop:
    """Trains and evaluates any torch module in settings.processes processes; as `ModuleLoop` to those who use it."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        train: Dataset,
        test: Dataset,
        settings: TrainSettings,
        *,
        source: Source,
        device: torch.device,
        scoring: Scoring,
        sharing: GpuSharing,
    ) -> None:
        self._scoring = scoring
        self.width = settings.examples_per_step
        self.trained = Layout.personal_of(module, settings.stays).length + layout.parameters
        self._layout, self._sharing = layout, sharing
        self._remembers = module_engine.remembered(module, layout, settings)
        self._group: Group | None = None
        self._examples = {"train.x": train.x, "train.y": train.y, "test.x": test.x, "test.y": test.y}
        self._setup = Setup(
            rank=0,
            size=settings.processes,
            device=device.type,
            store="",
            source=source.name,
            base=None if source.base is None else str(source.base),
            seed=source.seed,
            classes=train.classes,
            kind=source.objective.kind,
            loss=source.objective.loss,
            metrics=source.objective.metrics,
            label_scale=(train.label_mean, train.label_deviation),
            vocabulary=train.vocabulary,
            settings=asdict(settings),
            examples=[],
            silence=SILENT_SECONDS,
        )

    def train_one(self, job: Assignment) -> Outcome:
        """Train one job, as `ModuleLoop` does.  Raises TrainingError for what went wrong in a process."""
        with self._working() as group:
            found, reply = self._done(group, job, {f"{STATE}{n}": shape for n, shape in self._remembers.items()})
            return self._outcome(found, job.vector, job.state, Done(reply.loss, reply.skipped))

    def gradient_one(self, job: Assignment) -> Outcome:
        """Return the mean gradient, as `ModuleLoop` does.  Raises TrainingError as `train_one` does."""
        with self._working() as group:
            found, reply = self._done(group, job, {}, gradient=True)
            gradient = found["vector"].copy()
            return Outcome(frozen(gradient), reply.loss, bool(np.isfinite(gradient.sum())))

    def _done(
        self, group: Group, job: Assignment, shapes: Shapes, *, gradient: bool = False
    ) -> tuple[dict[str, npt.NDArray[Any]], TrainReply]:
        """Have the group do a job; return what it has written, the vector and arrays of these shapes, and its reply."""
        given = {"vector": job.vector, "indices": job.plan.indices, "counts": job.plan.counts, **_named(job.state)}
        if job.terms is not None and job.terms.correction is not None:
            given["correction"] = job.terms.correction
        order = TrainOrder(
            *job.name,
            lr=job.lr,
            pull=None if job.terms is None else job.terms.pull,
            pieces=self._sharing.pieces,
            given=group.given.lay(given),
            found=group.found.room({"vector": ("float32", (self._layout.length,)), **shapes}),
            gradient=gradient,
        )
        reply = group.ask(order)[0]
        assert isinstance(reply, TrainReply)
        return group.found.views(order.found), reply

    def _outcome(self, found: Mapping[str, npt.NDArray[Any]], vector: Vector, state: State, done: Done) -> Outcome:
        trained = empty(self._layout.length, np.float32)
        trained[:] = found["vector"]
        state.update({name: found[f"{STATE}{name}"].copy() for name in self._remembers})
        return module_engine.outcome(vector, trained, done)

    def evaluate(self, vectors: Sequence[Vector]) -> list[dict[str, float]]:
        """Return the mean loss and the metrics on the test set, per vector."""
        return [self._evaluate(vector, None) for vector in vectors]

    def evaluate_own(self, vector: Vector, state: State) -> dict[str, float]:
        """The same of one node: with its personal layers and local buffers."""
        return self._evaluate(vector, state)

    def _evaluate(self, vector: Vector, state: State | None) -> dict[str, float]:
        with self._working() as group:
            given = group.given.lay({"vector": vector, **_named(state or {})})
            answers = group.ask(EvaluateOrder(state is not None, self._sharing.pieces, given))
        parts = [
            Sums(one.loss, one.predicted, [Tally([np.array(sums) for sums in one.sums], None)] if one.predicted else [])
            for one in answers
            if isinstance(one, Evaluated)
        ]
        return module_engine.means(parts, self._scoring)

    @contextlib.contextmanager
    def _working(self) -> Iterator[Group]:
        """Give the group, started where there is none; whatever interrupts its work ends it."""
        group = self._group = self._group or Group(self._setup, self._examples)
        try:
            yield group
        except BaseException:
            self._group = None
            group.close()
            raise


class Group:
    """The processes of a client, and the boards that they share with it."""

    def __init__(self, setup: Setup, examples: Mapping[str, npt.NDArray[Any]]) -> None:
        self._boards = [SharedArrays.new() for _ in range(3)]
        board, self.given, self.found = self._boards
        self._folder = tempfile.TemporaryDirectory(prefix="fedgossip-", ignore_cleanup_errors=True)
        # the folder is ours alone: who can write there can join the group
        self._channels: list[Channel] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self.close = weakref.finalize(self, _end, self._processes, self._channels, self._boards, self._folder)
        try:
            places = board.lay(examples)
            for rank in range(setup.size):
                self._start(setup, rank, places)
            self._answers(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, order: Message) -> list[Message]:
        """Give an order to all processes and return their answers.

        Raises TrainingError, or the error of the process that failed; the group is of no use then.
        """
        for channel in self._channels:
            with contextlib.suppress(OSError):  # it has died: its answer says so
                channel.send(order)
        return self._answers(SILENT_SECONDS)

    def _start(self, setup: Setup, rank: int, places: list[ArrayPlace]) -> None:
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(board.descriptor for board in self._boards)]
        self._channels.append(Channel(ours))
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "fedgossip.learning.ddp.worker", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C reaches us alone
                env=_environment(setup.settings["threads"]),
            )
        )
        theirs.close()
        store = str(Path(self._folder.name) / "store")
        self._channels[-1].send(msgspec.structs.replace(setup, rank=rank, store=store, examples=places))

    def _answers(self, seconds: float) -> list[Message]:
        """Return one answer of each process; `seconds` is the longest wait for the next message of any of them."""
        found: dict[int, Message] = {}
        while waiting := {rank: one for rank, one in enumerate(self._channels) if rank not in found}:
            readable, _, _ = select.select(list(waiting.values()), [], [], seconds)
            if not readable:
                raise TrainingError(
                    f"no process of the group has finished a step within {seconds:g} s",
                    "Is one of them stopped, or is a step that long?  Use a smaller batch_size.",
                )
            for rank, channel in waiting.items():
                if channel in readable:
                    message = channel.receive()
                    if message is None or isinstance(message, Failed):
                        raise self._failure(rank, message)
                    if not isinstance(message, Alive):
                        found[rank] = message
        return [found[rank] for rank in sorted(found)]

    def _failure(self, rank: int, said: Failed | None) -> Exception:
        """Return the error of the process that is to blame: one that died, before one that missed it."""
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until:
            for number, process in enumerate(self._processes):
                if (code := process.poll()) is not None:
                    return _died(number, len(self._processes), code)
            time.sleep(0.02)
        if said is None:
            return TrainingError(f"process {rank} of {len(self._processes)} closed its socket", DIED_ADVICE)
        if said.kind == OutOfMemory.__name__:
            return OutOfMemory(said.text)
        kind = ConfigError if said.kind == ConfigError.__name__ else TrainingError
        return kind(f"process {rank} of {len(self._processes)}: {said.text}", said.advice)


def _died(rank: int, size: int, code: int) -> TrainingError:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return TrainingError(f"process {rank} of {size} {how}", DIED_ADVICE)


def _named(state: State) -> dict[str, npt.NDArray[Any]]:
    """Return a node's state by the names that it has among the arrays of a job."""
    return {f"{STATE}{name}": np.asarray(array) for name, array in state.items()}


def _environment(threads: int) -> dict[str, str]:
    ours = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    path = os.pathsep.join(part for part in sys.path if part)
    return _loopback() | dict(os.environ) | ours | {"PYTHONPATH": path}


def _loopback() -> dict[str, str]:
    """Name the network that gloo and nccl meet on: this machine's own, so that nobody outside can."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {f"{library}_SOCKET_IFNAME": names[0] for library in ("GLOO", "NCCL")} if names else {}


def _end(
    processes: Sequence[subprocess.Popen[bytes]],
    channels: Sequence[Channel],
    boards: Sequence[SharedArrays],
    folder: tempfile.TemporaryDirectory[str],
) -> None:
    """End the processes: without a socket to listen to they go by themselves, or are killed."""
    for channel in channels:
        channel.close()
    until = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for board in boards:
        os.close(board.descriptor)
    folder.cleanup()
