"""A worker of a sweep: a process that runs cells of a folder until none is open; any number may share the folder.

    python -m fedgossip.sweeping.worker FOLDER UNTIL MEMORY

It lives for as many cells as there are, so torch is imported once.  It begins no further cell when its standard input
ends: whoever started it is gone.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from pathlib import Path

from fedgossip.errors import FedgossipError
from fedgossip.sweeping.folder import SweepFolder


def run_worker(folder: str, until: float) -> int:
    """Run cells of a folder, and return how many; for schedulers that call a function somewhere else."""
    return sum(1 for _ in SweepFolder.opened(Path(folder)).work(until))


def main(folder: str, until: str, memory: str) -> int:
    """`run_worker` as a process.  `until`: seconds of the epoch; `memory`: bytes that it may map; empty: no limit."""
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    left = threading.Event()

    def listen() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock, held by a thread at the end, would abort the process
            pass
        left.set()

    threading.Thread(target=listen, name="listening", daemon=True).start()
    try:
        for _ in SweepFolder.opened(Path(folder)).work(float(until) if until else math.inf, left.is_set):
            pass
    except KeyboardInterrupt:
        return 130
    except FedgossipError as error:
        sys.stderr.write(f"{error}  {error.advice}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
