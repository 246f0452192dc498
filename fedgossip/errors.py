"""The errors that fedgossip raises on purpose.  The message says what and where, the advice what to do now."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

PARTIAL_EXIT = 9
"""The exit code where nothing failed and something that the run is for did not happen: its status is partial."""


class FedgossipError(Exception):
    """Base of the family.  ``str(error)`` is the one line of error, ``error.advice`` the one line of advice."""

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class ConfigError(FedgossipError):
    """Something you wrote (an experiment file, a graph, an argument, a data file) cannot be used."""

    exit_code = 2


class NotWrittenError(ConfigError):
    """A file of a run that could not be written, because the disk is full, say; `path` is as it was."""

    def __init__(self, path: Path, error: OSError) -> None:
        reason = error.strerror or str(error)
        advice = "Make room there and go on with --resume, or choose a folder on another disk with --out."
        super().__init__(f"{path}: not written: {reason}{_room(path)}", advice)
        self.path = path


def _room(path: Path) -> str:
    """Say which disk a path is on, and what room it has; nothing where that cannot be known."""
    try:
        disk = path.resolve().parent
        while not disk.is_mount():
            disk = disk.parent
        left = os.statvfs(disk)
    except OSError:
        return ""
    return f"; the disk at {disk} has {left.f_bavail * left.f_frsize / 1e6:,.1f} MB left"


class NetworkError(FedgossipError):
    """A socket could not be opened or nobody could be reached."""

    exit_code = 3


class PeerError(FedgossipError):
    """Another peer sent something that cannot be accepted; ``peer`` is its id, or None where it has none."""

    exit_code = 4

    def __init__(self, message: str, advice: str = "", *, peer: int | None = None) -> None:
        super().__init__(message, advice)
        self.peer = peer


class ProtocolError(PeerError):
    """A message that is impossible at this point of the protocol.  The machine's state is unchanged."""


class TrainingError(FedgossipError):
    """Local training failed: the loss is not finite, or the user's own function raised."""

    exit_code = 5


class BudgetError(FedgossipError):
    """The next release would spend more privacy than the budget allows; nothing was released."""

    exit_code = 6


class TooFewPeersError(FedgossipError):
    """Too few peers were there to go on."""

    exit_code = 7


class ResumeError(FedgossipError):
    """A run cannot go on from what it left: no checkpoint can be read, or it is of another experiment."""

    exit_code = 8


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'X'?" for the known word nearest to `word`, or the list of known words."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(words)}."
