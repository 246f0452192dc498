"""The incarnation number of a peer: a file in its folder, on disk before its first Hello."""

from __future__ import annotations

from pathlib import Path

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import NotWrittenError, ResumeError
from fedgossip.core import run_format
from fedgossip.runs.checkpoints.tensor_file import write_synced


def incarnation_of(folder: Path) -> int:
    """Return the last incarnation started in `folder`; -1 without any.  Raises ResumeError."""
    path = folder / run_format.INCARNATION
    try:
        return int(outside_files.read_text(path))
    except FileNotFoundError:
        return -1
    except (OSError, ValueError):
        advice = "Write a number into it that is higher than that of any life of this peer before."
        raise ResumeError(f"{path}: not a number", advice) from None


def begin_life(folder: Path, incarnation: int) -> None:
    """Record the start of `incarnation`; on disk when this returns.  Raises NotWrittenError."""
    part = folder / f"{run_format.INCARNATION}.part"
    try:
        write_synced(part, [f"{incarnation}\n".encode()])
        part.replace(folder / run_format.INCARNATION)
        owner_files.sync_folder(folder)
    except OSError as error:
        raise NotWrittenError(folder / run_format.INCARNATION, error) from None
