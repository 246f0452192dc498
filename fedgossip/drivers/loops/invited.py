"""The place of a loop in a run by invite: `host` and `join` write down where it sits, and start the script."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fedgossip.base import kernels, outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.drivers.loops.seats import LoopSeating
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import load_endpoints
from fedgossip.net.identity import Identity
from fedgossip.net.relays.reachability import DIRECT
from fedgossip.net.relays.relay_client import RelayClient
from fedgossip.plans import compose
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.peer_files import empty_folder
from fedgossip.runs.run_directory import write_whole

INVITED = "FEDGOSSIP_INVITED"
"""Environment variable by which `host` and `join` pass a script the file of its seat."""


class InvitedFile(msgspec.Struct):
    """The seat of a script that takes part by an invite; `folder` is that of its run, `bind` "" without a listener."""

    experiment: str
    node: int
    folder: str
    endpoints: str
    key: str
    bind: str
    relayed: bool = False


def keep_seat(folder: Path, seat_file: InvitedFile, *, portable: bool) -> Mapping[str, str]:
    """Write the seat down; return the environment of the script.  Raises NotWrittenError."""
    write_whole(folder / run_format.SEAT, msgspec.json.encode(seat_file))
    return {**kernels.environment(portable=portable), INVITED: str((folder / run_format.SEAT).resolve())}


def invited() -> InvitedFile | None:
    """Return the seat that this process was started for, if by an invite.  Raises ConfigError."""
    path = os.environ.get(INVITED)
    if not path:
        return None
    try:
        return from_json(msgspec.json.Decoder(InvitedFile), outside_files.read_bytes(Path(path)))
    except (OSError, UnreadableError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "Type the command of the invite again.") from None


def seating_of(seat_file: InvitedFile) -> LoopSeating:
    """Return the start options of the participant beside the loop.  Raises ConfigError."""
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
