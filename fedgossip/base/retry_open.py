"""Opening files where others may have taken all descriptors for a while: a storm of callers, say."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS, AGAIN_SECONDS = 10.0, 0.05

T = TypeVar("T")


def patiently(open: Callable[[], T]) -> T:
    """Return what `open` opens; while no descriptor is left for it, try again, for PATIENCE_SECONDS at most.

    Raises the OSError, or the error of ZeroMQ, that it raises then, or for another reason.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return open()
        except Exception as error:
            if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > until:
                raise
        time.sleep(AGAIN_SECONDS)
