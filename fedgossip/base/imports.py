"""Imports of much code at once."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

# Memory that was freed and will be wanted again: how much of it the C library keeps.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep(block: int, total: int) -> None:
    """Let freed blocks of up to `block` bytes be used again, `total` bytes of them; in this process, from now on.

    glibc hands such blocks back to the system at each free, and a page fault per 4 KiB of the next one costs more than
    writing to it.  Other C libraries: nothing.
    """
    allocator = getattr(ctypes.CDLL(None), "mallopt", None)
    if allocator is not None:
        allocator(_M_MMAP_THRESHOLD, block)
        allocator(_M_TRIM_THRESHOLD, total)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import without the garbage collector: it would look through all that is imported, for a tenth of torch's time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
