"""This machine's memory, and the refusal of work that it cannot hold, before an allocation fails or the system ends the
process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fedgossip.base.errors import ConfigError

GIB = 1 << 30


def _read_memory() -> int:
    """Return this machine's bytes of memory, or its container's limit; 64 GiB if unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with contextlib.suppress(OSError, ValueError):  # no limit, or none by cgroups of version 2
            return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
        return physical
    except (AttributeError, OSError, ValueError):
        return 64 * GIB


MEMORY = _read_memory()


def check_fits(what: str, least: int, advice: str) -> None:
    """Raise ConfigError if `what`, a plural noun, takes more memory than this machine has: at least that many bytes."""
    if least > MEMORY:
        text = f"{what} take at least {least / 1e9:,.1f} GB of memory"
        raise ConfigError(f"{text}; this machine has {MEMORY / 1e9:,.1f}", advice)
