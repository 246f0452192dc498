"""A process started by a client's task: it executes orders, and ends with the task.  No torch here.

    python -m MODULE SOCKET EXAMPLES GIVEN FOUND

The numbers are descriptors: of a socket pair and of three boards (`ipc`): the examples, a job's
inputs, its results.  A thread reads the socket and ends the process at once when the task's process is gone, also in
the midst of a sum over all processes; so an interrupted run leaves none behind.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from fedgossip.base import signals
from fedgossip.base.errors import FedgossipError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.learning.processes.ipc import Alive, Channel, Failed, Message, Ready, Setup, SharedArrays

ALIVE_SECONDS = 1.0
"""Between two signs of life."""

BOARDS = ("examples", "given", "found")


class OrderTaker(Protocol):
    """Executes each order in a process."""

    def answer(self, order: Message) -> Message: ...


class LifeSigns:
    """Reports finished steps to the task, now and then."""

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
    """Forward orders, and end this process when its task is gone."""
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
