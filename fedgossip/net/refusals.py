"""The record of what a host refused: each cause at once, and again whenever there are ten times as many.

A cause is who sent it and why, in one word; where the word is "refused", the sentence without its numbers as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fedgossip.net.transport import Rejected

CAUSES_WRITTEN = 20
"""Maximum number of causes that are written out; the host counts all that it refuses."""


@dataclass(slots=True)
class _Cause:
    first: Rejected
    count: int = 0
    written: int = 0


class Refusals:
    """`write` takes the facts of the event `refused`: from, reason, text, advice, and count where it is not 1."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self._causes: dict[tuple[int | None, str], _Cause] = {}

    def add(self, event: Rejected) -> None:
        """Count one refusal; write it if it is the first of its cause, the tenth, the hundredth, and so on."""
        key = event.sender, _cause(event)
        if key not in self._causes:
            if len(self._causes) >= CAUSES_WRITTEN:
                return
            self._causes[key] = _Cause(event)
        cause = self._causes[key]
        cause.count += 1
        if cause.count >= 10 * cause.written:
            self._say(cause)

    def close(self) -> None:
        """Write the counts that have grown since they were written."""
        for cause in self._causes.values():
            if cause.count > cause.written:
                self._say(cause)

    def _say(self, cause: _Cause) -> None:
        cause.written = cause.count
        first = cause.first
        value: dict[str, object] = {
            "from": first.sender,
            "reason": first.reason,
            "text": first.text,
            "advice": first.advice,
        }
        self._write(value if cause.count == 1 else {**value, "count": cause.count})


def _cause(event: Rejected) -> str:
    return re.sub(r"\d+", "#", event.text) if event.reason == "refused" else event.reason
