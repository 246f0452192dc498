"""Threads of ours, none of which dies unnoticed: what it served would be waited for, for ever."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

FAULT = 1
"""The exit code of a process one of whose threads has failed."""


def guarded_thread(target: Callable[..., object], name: str, *arguments: Any) -> threading.Thread:
    """Return a thread that is not started; where `target` raises the process ends with FAULT, and the traceback on
    standard error says why."""

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
