"""The errors that fedgossip raises deliberately: the message states the fault and its place, the advice the next step;
`needed` reports absent extras.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

PARTIAL_EXIT = 9
"""Exit code of a run without failure that did not reach its purpose: its status is partial."""


class FedgossipError(Exception):
    """Base of the family: ``str(error)`` is one line with the error, ``error.advice`` one with the advice."""

    exit_code = 1

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice
        if advice:
            self.add_note(advice)  # a script of the user's own has no command line that prints it


class ConfigError(FedgossipError):
    """User input (an experiment file, a graph, an argument, a data file) is invalid."""

    exit_code = 2


class NotWrittenError(ConfigError):
    """A file of a run could not be written, for example because the disk is full; `path` is unchanged."""

    def __init__(self, path: Path, error: OSError) -> None:
        forbidden = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        advice = "Make room there and resume, with --resume; or choose a folder on another disk: --out, or --folder."
        if forbidden:
            advice = "Choose a folder in which you may write, or resume with --resume when you may."
        super().__init__(f"{path}: not written: {reason(error)}{'' if forbidden else _room(path)}", advice)
        self.path = path


def reason(error: Exception) -> str:
    """Return the text of an error; of the operating system's without number and path, which the message has."""
    return getattr(error, "strerror", None) or str(error)


def not_writable(path: Path, error: OSError) -> ConfigError:
    """Return the error for a folder of results that could not be created or opened."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return ConfigError(f"{path}: a file, and a folder was expected", "Give another folder with --out.")
    return ConfigError(f"{path}: {error.strerror}", "Choose a folder that can be written, with --out.")


def _room(path: Path) -> str:
    try:
        disk = path.resolve().parent
        while not disk.is_mount():
            disk = disk.parent
        left = os.statvfs(disk)
    except OSError:
        return ""
    return f"; the disk at {disk} has {left.f_bavail * left.f_frsize / 1e6:,.1f} MB left"


class NetworkError(FedgossipError):
    """A socket could not be opened, or no participant could be reached."""

    exit_code = 3


class PeerError(FedgossipError):
    """Another peer sent an unacceptable message; ``peer`` is its id, or None if unknown."""

    exit_code = 4

    def __init__(self, message: str, advice: str = "", *, peer: int | None = None) -> None:
        super().__init__(message, advice)
        self.peer = peer


class ProtocolError(PeerError):
    """A message that is impossible at this point of the protocol.  The machine's state is unchanged."""


class TrainingError(FedgossipError):
    """Local training failed: the loss is not finite, or the user's function raised."""

    exit_code = 5


class BudgetError(FedgossipError):
    """The next release would spend more privacy than the budget allows; nothing was released."""

    exit_code = 6


class TooFewPeersError(FedgossipError):
    """Too few peers were present to continue."""

    exit_code = 7


class ResumeError(FedgossipError):
    """A run cannot resume: no readable checkpoint, or one of another experiment."""

    exit_code = 8


@dataclass(frozen=True)
class ExitCode:
    """An exit code and its meaning."""

    name: str
    meaning: str
    advice: str = ""


_READ = "Read the two lines: the fault and its place, and what to do now."

_GO_ON = "The command that resumes was printed, if there is one."

EXIT_CODES: Mapping[int, ExitCode] = {
    0: ExitCode("finished", "The command succeeded."),
    1: ExitCode(
        "fault",
        "A fault of fedgossip itself; or what was compared is not the same: a replay that differs, a log that is not "
        "sound; or a model tells which records it was trained on.",
        "With a fault of fedgossip set FEDGOSSIP_TRACEBACK=1 to see where, and report it.",
    ),
    2: ExitCode("configuration", "A file, a key or an argument cannot be used.", _READ),
    3: ExitCode("network", "An address cannot be used, or no message arrived.", _READ),
    4: ExitCode("refused", "Another peer sent an invalid message, or refused this one's message.", _READ),
    5: ExitCode("training failed", "A loss is not finite, or a function of yours raised.", _READ),
    6: ExitCode(
        "privacy budget",
        "A privacy budget ended the run, or would end it before its rounds are done.",
        "`fedgossip privacy plan` explains the budget, `fedgossip privacy spent` shows how much of it is used.",
    ),
    7: ExitCode(
        "too few peers",
        "Too few peers joined, the coordinator ended early, or nothing was exchanged.",
        "See which peers took part, and at which address; then resume with --resume.",
    ),
    8: ExitCode(
        "cannot be resumed",
        "A run cannot resume from its files, or not with this experiment.",
        "The keys that differ are named; a run with others is another run, with a folder of its own.",
    ),
    PARTIAL_EXIT: ExitCode(
        "partial",
        "The run ended, but not all of it happened: for example a participant's model is missing.",
        "The last lines, the report and `lacking` in the summary state what, and of whom.",
    ),
    129: ExitCode("SIGHUP", "Its terminal was closed; it ended as by Ctrl-C.", _GO_ON),
    130: ExitCode("Ctrl-C", "Somebody stopped it.", _GO_ON),
    143: ExitCode("SIGTERM", "`kill`, a container's stop or a scheduler ended it, as by Ctrl-C.", _GO_ON),
}
"""All exit codes, common to all commands."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'X'?" with the known word nearest to `word`, or the list of known words."""
    words = sorted(set(known))
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    known = f"Known: {', '.join(words)}." if words else "There is none: leave it out."
    return f"Did you mean {close[0]!r}?" if close else known


def place_of(error: BaseException) -> str:
    """Return " (mine.py, line 3)", the last executed line of the user's code; "" without one."""
    mine = [one for one in extract_tb(error.__traceback__) if _is_user_file(one.filename)]
    return f" ({Path(mine[-1].filename).name}, line {mine[-1].lineno})" if mine else ""


def _is_user_file(file: str) -> bool:
    """Return whether a file is the user's: not of an installed package, this one, or Python."""
    path = Path(file)
    if "<" in file or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(one) for one in (Path(__file__).parents[1], Path(os.__file__).parent))


def plural(number: int, word: str) -> str:
    """Return "1 class" or "3 classes"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}{'es' if word.endswith('s') else 's'}"


def needed(module: str, extra: str, what: str, otherwise: str = "") -> Any:
    """Return a module that `what` needs.  Raises ConfigError with the extra, and with what works `otherwise`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(f"{module.partition('.')[0]}: {error}", extra, what, otherwise) from None


def missing(package: str, extra: str, what: str, otherwise: str = "") -> ConfigError:
    """Return the error for a missing package that `what` needs."""
    advice = f"pip install 'fedgossip[{extra}]'"
    return ConfigError(f"{what} needs {package}", f"{advice}; {otherwise}" if otherwise else advice)
