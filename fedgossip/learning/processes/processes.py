"""The processes of a client and their shared data: started, given orders, and ended together.  No torch here.

Processes are new, not forked, and map the same examples and vectors (`ipc`).  When one ends, fails, or is silent for
too long, all are discarded.

    python -m MODULE SOCKET EXAMPLES GIVEN FOUND

The numbers are descriptors: a socket pair and three boards (examples, a job's inputs, its results).  A thread reads the
socket and ends the process when the task's process is gone, even during a sum.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from fedgossip.base import signals
from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.kernels import PYTHON
from fedgossip.learning.processes.ipc import Alive, ArrayPlace, Channel, Failed, Message, Ready, Setup, SharedArrays

START_SECONDS = 300.0
"""Deadline in seconds for all processes to import, connect and build the model."""

SILENT_SECONDS = 600.0
"""Maximum time in seconds without a finished step of any process; torch.compile's first step is the longest."""

GRACE_SECONDS = 1.0
"""Wait in seconds after a failure, in case another process died and caused it."""

STOP_SECONDS = 5.0

WORKER = "fedgossip.learning.processes.worker"
"""The program of a process with a torch module."""

DIED_ADVICE = "Signal 9 is often the system's, when memory is short; the output of the process may explain it."

OUT_OF_MEMORY = "OutOfMemoryError"
"""The name of torch's own error."""


class StandingGroup:
    """A group that starts with the first order, and again after any interruption of its work."""

    def __init__(self, setup: Setup, examples: Mapping[str, npt.NDArray[Any]], program: str = WORKER) -> None:
        self.how = setup, examples, program
        self.group: Group | None = None

    @contextlib.contextmanager
    def working(self) -> Iterator[Group]:
        """Yield the group, started if necessary; an interruption of its work ends it."""
        group = self.group = self.group or Group(*self.how)
        try:
            yield group
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the group; the next order starts another."""
        group, self.group = self.group, None
        if group:
            group.close()


class Group:
    """The processes of a client, each running the module `program`, and the boards shared with them."""

    def __init__(self, setup: Setup, examples: Mapping[str, npt.NDArray[Any]], program: str = WORKER) -> None:
        self._program = program
        self._boards = [SharedArrays.new() for _ in range(3)]
        board, self.given, self.found = self._boards
        self._folder = tempfile.TemporaryDirectory(prefix="fedgossip-", ignore_cleanup_errors=True)
        # the folder is private: write access there allows joining the group
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
        """Send an order to all processes and return their replies.

        Raises TrainingError, or the failed process's error; the group is then useless.
        """
        for channel in self._channels:
            with contextlib.suppress(OSError):  # it has died: its reply reports that
                channel.send(order)
        return self._answers(SILENT_SECONDS)

    def _start(self, setup: Setup, rank: int, places: list[ArrayPlace]) -> None:
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(board.descriptor for board in self._boards)]
        self._channels.append(Channel(ours))
        self._processes.append(
            subprocess.Popen(
                [*PYTHON, "-m", self._program, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C reaches only this process
                env=_environment(setup.threads),
            )
        )
        theirs.close()
        store = str(Path(self._folder.name) / "store")
        self._channels[-1].send(msgspec.structs.replace(setup, rank=rank, store=store, examples=places))

    def _answers(self, seconds: float) -> list[Message]:
        """Return one reply of each process, with at most `seconds` between two messages."""
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

    def _failure(self, rank: int, failed: Failed | None) -> Exception:
        """Return the faulty process's error: a dead process's before one of a process that waited for it."""
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until:  # first: a survivor's error is only that it lost its partner
            for number, process in enumerate(self._processes):
                if (code := process.poll()) is not None:
                    return _died(number, len(self._processes), code)
            time.sleep(0.02)
        if failed is None:
            return TrainingError(f"process {rank} of {len(self._processes)} closed its socket", DIED_ADVICE)
        if failed.kind == OUT_OF_MEMORY:
            from fedgossip.learning.one_model.sharing import OutOfMemory

            return OutOfMemory(failed.text)
        kind = ConfigError if failed.kind == ConfigError.__name__ else TrainingError
        return kind(f"process {rank} of {len(self._processes)}: {failed.text}", failed.advice)


def _died(rank: int, size: int, code: int) -> TrainingError:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return TrainingError(f"process {rank} of {size} {how}", DIED_ADVICE)


def _environment(threads: int) -> dict[str, str]:
    ours = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    path = os.pathsep.join(part for part in sys.path if part)
    return _loopback() | dict(os.environ) | ours | {"PYTHONPATH": path}


def _loopback() -> dict[str, str]:
    """Return the network of gloo and nccl: the loopback interface, unreachable from outside."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {f"{library}_SOCKET_IFNAME": names[0] for library in ("GLOO", "NCCL")} if names else {}


def _end(
    processes: Sequence[subprocess.Popen[bytes]],
    channels: Sequence[Channel],
    boards: Sequence[SharedArrays],
    folder: tempfile.TemporaryDirectory[str],
) -> None:
    """End the processes; kill those that remain."""
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


ALIVE_SECONDS = 1.0
"""Interval between two signs of life in seconds."""

BOARDS = ("examples", "given", "found")


class OrderTaker(Protocol):
    """Executes each order in a process."""

    def answer(self, order: Message) -> Message: ...


class LifeSigns:
    """Reports finished steps to the task, at intervals."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._sent_at = channel, time.monotonic()

    def progressed(self) -> None:
        now = time.monotonic()
        if now - self._sent_at > ALIVE_SECONDS:
            self._sent_at = now
            self._channel.send(Alive())


def serve(member_of: Callable[[Message, Channel, Mapping[str, SharedArrays]], OrderTaker]) -> None:
    """Set up by the first message, then reply to orders one after the other; the first failure is the last reply."""
    signals.ignore_terminals()  # they are for the task's process
    descriptors = [int(word) for word in sys.argv[1:]]
    channel, boards = Channel(socket.socket(fileno=descriptors[0])), map(SharedArrays, descriptors[1:])
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    guarded_thread(_listen, "orders", channel, inbox).start()
    try:
        member = member_of(inbox.get(), channel, dict(zip(BOARDS, boards, strict=True)))
        channel.send(Ready())
        while True:
            channel.send(member.answer(inbox.get()))
    except Exception as error:
        channel.send(_failed(error))
    threading.Event().wait()  # the task ends this process: it may need the others' replies first


def _listen(channel: Channel, inbox: queue.SimpleQueue[Message]) -> None:
    store = None
    while (message := channel.receive()) is not None:
        if isinstance(message, Setup):
            store = Path(message.store)
        inbox.put(message)
    if store:  # a task's process that was killed has not cleared it away
        shutil.rmtree(store.parent, ignore_errors=True)
    os._exit(0)  # not sys.exit: the main thread may wait for the other processes


def _failed(error: Exception) -> Failed:
    if isinstance(error, FedgossipError):
        return Failed(type(error).__name__, str(error), error.advice)
    return Failed(type(error).__name__, f"{type(error).__name__}: {error}", "")
