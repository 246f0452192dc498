"""Tuning of the process: memory reuse, imports of large packages, and where processes that it starts import from."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

PYTHON = (sys.executable, "-P")
"""Start of the command line of another process of ours.

Without -P `python -m` imports what lies in the folder where it is started, numpy.py for example, before installed
packages: that folder may be a stranger's.
"""

# The amount of freed memory that the C library keeps for reuse.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep(block: int, total: int) -> None:
    """Keep freed blocks of up to `block` bytes for reuse, `total` bytes in all, in this process from now on.

    glibc returns such blocks to the system at each free, and a page fault per 4 KiB of the next one costs more than
    writing to it.  No effect with other C libraries.
    """
    allocator = getattr(ctypes.CDLL(None), "mallopt", None)
    if allocator is not None:
        allocator(_M_MMAP_THRESHOLD, block)
        allocator(_M_TRIM_THRESHOLD, total)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import, or make a population, with the garbage collector off: nothing of it is garbage.

    Its scans of imported objects take a tenth of torch's import time, and those of a million seats half of the set-up.
    What was imported is of the oldest generation then: the next collections do not scan it.
    """
    before, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if before:
            if len(sys.modules) > modules and not gc.get_freeze_count():  # which counts what is frozen, one by one
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, without a scan
            gc.enable()
