"""A worker of a sweep: a process that runs cells of a folder until none is open; any number may share the folder.

    python -m fedgossip.lab.sweeps.worker FOLDER [--until SECONDS] [--memory BYTES] [--probe NAME] [--listen]

It starts no further cell after its parent process ends, or, with --listen, after its standard input ends.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedgossip.base import signals
from fedgossip.base.errors import FedgossipError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.drivers.clusters.meeting import check_shared
from fedgossip.lab.sweeps.folder import SweepFolder

Stopped = Callable[[], bool]

LOOK_SECONDS = 1.0
"""Seconds between two checks of the parent process."""


def words_of(
    module: str, folder: Path, *, until: float = math.inf, memory: int | None = None, probe: str = ""
) -> list[str]:
    """Return the words, after `python -m`, that start a worker of a folder."""
    words = [module, str(folder.resolve())]
    words += [] if math.isinf(until) else ["--until", repr(until)]
    words += ["--memory", str(memory)] if memory else []
    return [*words, "--probe", probe] if probe else words


def main(words: Sequence[str], work: Callable[[Path, float, Stopped], Iterable[object]]) -> int:
    """Run the cells by `work` (folder, until in seconds of the epoch, whether to stop); return the exit code."""
    reader = argparse.ArgumentParser(prog="worker")
    reader.add_argument("folder", type=Path)
    reader.add_argument("--until", type=float, default=math.inf)
    reader.add_argument("--memory", type=int, default=0)
    reader.add_argument("--probe", default="")
    reader.add_argument("--listen", action="store_true")
    options = reader.parse_args(words)
    if options.memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
    try:
        with signals.as_interrupt():
            if options.probe:
                check_shared(options.folder, options.probe)
            for _ in work(options.folder, options.until, _watch_parent(listening=options.listen)):
                pass
    except KeyboardInterrupt:
        return 130
    except FedgossipError as error:
        sys.stderr.write(f"{error}  {error.advice}\n")
        return error.exit_code
    return 0


def _watch_parent(*, listening: bool) -> Stopped:
    left, parent = threading.Event(), os.getppid()

    def listen() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held by a thread at the end, would abort the process
            pass
        left.set()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        left.set()

    guarded_thread(listen if listening else look, "listening").start()
    return left.is_set


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], lambda folder, until, stopped: SweepFolder.opened(folder).work(until, stopped)))
