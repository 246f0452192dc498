"""Seats of loops: all start options of the participant that belongs to a loop, from any source.

In a run by invite, `host` and `join` write a seat file and start the script.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import kernels, outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, NetworkError, NotWrittenError, ResumeError, reason
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import load_endpoints
from fedgossip.net.identity import Identity
from fedgossip.net.relays.reachability import DIRECT
from fedgossip.net.relays.relay_client import RelayClient
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.peer_files import empty_folder
from fedgossip.runs.run_directory import write_whole

LOOP, NODE, N = "FEDGOSSIP_LOOP", "FEDGOSSIP_NODE", "FEDGOSSIP_N"
"""Environment variables of `fedgossip launch` for a script: its seat file, its id and the number of loops."""

FREE_SECONDS = 30.0
"""Maximum seconds that a resuming run waits for the processes of its last launch to end."""

_held: dict[Path, int] = {}
"""Seat files held by this process, closed when it ends."""


@dataclass(frozen=True)
class LoopSeating:
    """A loop's place in a run: `options` are those of `run_peer`; `asked`: the folder of measuring requests."""

    plan: Plan
    node: NodeId
    folder: Path
    options: Mapping[str, Any]
    asked: Path | None = None
    launcher: int = 0


class SeatFile(msgspec.Struct):
    """The seat of a launched process, in a file of its folder."""

    experiment: str
    node: int
    folder: str
    endpoints: str
    bind: str
    began: str
    asked: str
    checkpoint_seconds: float = 10.0
    restart_overrides: list[str] = []
    """Overrides for a loop that restarts while the others run."""
    before: int = -1
    """Number of the last incarnation before this launch."""
    launcher: int = 0
    """Process id of the launcher; after its exit a loop receives no more requests."""


def read_seat(path: Path) -> SeatFile:
    """Return the seat in a file.  Raises ConfigError for a file that no launcher wrote."""
    try:
        return from_json(msgspec.json.Decoder(SeatFile), outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        advice = "Start the script with: fedgossip launch -n 4 --graph ring train.py"
        raise ConfigError(f"{path}: not what fedgossip launch wrote: {reason(error)}", advice) from None


def stopped_by_launcher() -> NetworkError:
    """Return the error of a participant whose launcher has ended without it."""
    return NetworkError("the run was stopped: its launcher is gone", "Start it again; it resumes.")


def check_launched(seat: SeatFile) -> None:
    """Raise NetworkError if the launcher ended while this process loaded: no process would end it then."""
    if not is_there(seat.launcher):
        raise stopped_by_launcher()


def hold(folder: Path) -> None:
    """Hold the seat in `folder` for the life of this process.

    Raises ConfigError if it is taken, or if this process has joined before, and NotWrittenError.
    """
    if folder in _held:
        text = f"{folder}: this script has joined before, and a script is one loop of one run"
        raise ConfigError(text, "Call fedgossip.join once; launch another script for another run.")
    try:
        file = os.open(folder / run_format.HELD, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NotWrittenError(folder / run_format.HELD, error) from None
    if not owner_files.try_lock(file):
        os.close(file)
        raise ConfigError(f"{folder}: another process is this loop", "Wait until it has ended, or end it.")
    _held[folder] = file


def is_there(process: int) -> bool:
    """Return whether a process with this id exists; true for 0, which belongs to none."""
    try:
        os.kill(process or os.getpid(), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def await_free(folders: Sequence[Path], seconds: float = FREE_SECONDS) -> None:
    """Wait until no process has a seat in these folders.  Raises ResumeError for one still running then."""
    until = time.monotonic() + seconds
    for folder in folders:
        while not _is_free(folder):
            if time.monotonic() > until:
                text = f"{folder}: a process of the last launch still runs"
                raise ResumeError(text, "Wait until it has ended, or end it; then resume.")
            time.sleep(0.05)


def _is_free(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), (folder / run_format.HELD).open("rb") as file:
        return owner_files.try_lock(file.fileno())
    return True


INVITED = "FEDGOSSIP_INVITED"
"""Environment variable of `host` and `join` for a script: its seat file."""


class InvitedFile(msgspec.Struct):
    """The seat of a script that takes part by an invite; `folder`: folder of its run, `bind`: "" without a listener."""

    experiment: str
    node: int
    folder: str
    endpoints: str
    key: str
    bind: str
    relayed: bool = False


def keep_seat(folder: Path, seat_file: InvitedFile, *, portable: bool) -> Mapping[str, str]:
    """Write the seat file; return the environment of the script.  Raises NotWrittenError."""
    write_whole(folder / run_format.SEAT, msgspec.json.encode(seat_file))
    return {**kernels.environment(portable=portable), INVITED: str((folder / run_format.SEAT).resolve())}


def invited() -> InvitedFile | None:
    """Return the seat that this process was started with, if by an invite.  Raises ConfigError."""
    path = os.environ.get(INVITED)
    if not path:
        return None
    try:
        return from_json(msgspec.json.Decoder(InvitedFile), outside_files.read_bytes(Path(path)))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}", "Type the command of the invite again.") from None


def seating_of(seat_file: InvitedFile) -> LoopSeating:
    """Return the start options of the participant that belongs to the loop.  Raises ConfigError."""
    folder, identity = Path(seat_file.folder), Identity.load(Path(seat_file.key))
    plan = compose.plan(load_experiment(Path(seat_file.experiment)))
    again = folder.is_dir() and incarnation_of(folder) >= 0
    options = {
        "identity": identity,
        "bind": seat_file.bind,
        "endpoints": load_endpoints(Path(seat_file.endpoints), plan.n, plan.roles.listens),
        "resume": again,
        "ways": RelayClient(identity).ways() if seat_file.relayed else DIRECT,
    }
    return LoopSeating(plan, seat_file.node, folder if again else empty_folder(folder), options)
