"""A gateway: many participants in one process.

Each has its own machine, links, key, log and folder, as in a process of its own; only libraries, data and the task are
shared, and one of them trains at a time.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fedgossip.base.errors import FedgossipError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.core.machine import NodeId
from fedgossip.net.host_ports import SharedParts, sharing
from fedgossip.net.sockets import FILES, check_files
from fedgossip.runs.peer_files import PeerEnded

FILES_OF_A_SEAT = 16
"""Maximum number of open files of a client: its connections, the wakers of its threads, its log."""

SWITCH_SECONDS = 0.2
"""Interval at which a thread that waits for the interpreter wakes to ask for it: at Python's 5 ms hundreds of waiting
threads take most of the processor.
"""

LOOK_SECONDS = 0.5

Seat = Callable[[threading.Event, SharedParts], PeerEnded]
"""Runs one participant to its end, or until the event is set.  Raises FedgossipError."""


def run_seats(seats: Mapping[NodeId, Seat]) -> dict[NodeId, PeerEnded | FedgossipError]:
    """Run all participants to their ends, each in a thread; return each end, or the error, an unforeseen one too.

    An interrupt stops all of them, and a second one raises KeyboardInterrupt.  Raises NetworkError if this process
    cannot open enough files.
    """
    check_files(f"{len(seats)} clients of one process", FILES + FILES_OF_A_SEAT * len(seats))
    stop, over, ended = threading.Event(), threading.Event(), dict[NodeId, PeerEnded | FedgossipError]()
    with sharing(len(seats)) as shared, _switching(SWITCH_SECONDS):

        def run(node: NodeId) -> None:
            try:
                ended[node] = seats[node](stop, shared)
            except FedgossipError as error:
                ended[node] = error
            except Exception as error:  # such as of a disk: it ends this client, as its own process, and no other
                sys.stderr.write(traceback.format_exc())
                text = f"{type(error).__name__}: {error}"
                ended[node] = FedgossipError(text, "The lines above are its cause; continue with --resume.")
            if len(ended) == len(seats):
                over.set()

        for node in seats:
            guarded_thread(run, f"client-{node}", node).start()
        try:
            _wait(over)
        except KeyboardInterrupt:
            stop.set()
            _wait(over)
    return dict(sorted(ended.items()))


def _wait(over: threading.Event) -> None:
    # not by Thread.join: interrupted, it takes a running thread for an ended one (Python 3.11)
    while not over.wait(LOOK_SECONDS):  # a wait without an end would not let an interrupt through
        pass


@contextmanager
def _switching(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
