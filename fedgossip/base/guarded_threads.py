"""Threads that end the process when they fail: otherwise others would wait forever for their work."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

FAULT = 1
"""Exit code of a process with a failed thread."""


def guarded_thread(target: Callable[..., object], name: str, *arguments: Any) -> threading.Thread:
    """Return an unstarted thread; if `target` raises, the process ends with FAULT after a traceback on standard
    error."""

    def guarded() -> None:
        try:
            target(*arguments)
        except Exception:
            _end(name)

    return threading.Thread(target=guarded, name=name, daemon=True)


def _end(name: str) -> None:
    text = f"error: the thread {name} failed, and the process ends: this is a fault of fedgossip, report it\n"
    if sys.stderr is not None:
        sys.stderr.write(f"{traceback.format_exc()}{text}")
        sys.stderr.flush()
    os._exit(FAULT)
