"""One peer's checkpoints in its folder: written one beside the other, taken whole or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fedgossip.base.errors import ResumeError
from fedgossip.base.vectors import frozen
from fedgossip.core import run_format
from fedgossip.core.machine import Checkpoint
from fedgossip.runs.checkpoints.sameness import About, check_same
from fedgossip.runs.checkpoints.tensor_file import Array, RefusedError, take, write_tensors


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A checkpoint with its context; `task` is the task's state after the same round."""

    about: About
    machine: Checkpoint
    task: Mapping[str, Array]


def write(folder: Path, stored: Stored) -> None:
    """Put `stored` into `folder`, keeping the one before.  Raises OSError (a full disk, say); nothing is lost then."""
    machine = {f"vector/{name}": vector for name, vector in stored.machine.vectors.items()}
    about = {name: getattr(stored.about, name) for name in About.__slots__}
    write_tensors(
        folder,
        {**about, "round": stored.machine.round, "facts": stored.machine.facts},
        {**machine, **{f"task/{name}": array for name, array in stored.task.items()}},
    )


def load(folder: Path, about: About) -> tuple[Stored | None, list[RefusedError]]:
    """Return the newest checkpoint of `folder` that can be taken, and why newer ones were refused.

    None, and nothing refused: this peer had written none.  Raises ResumeError for one of another experiment, and where
    there are some and all are refused.
    """
    refused: list[RefusedError] = []
    for path in (folder / run_format.CHECKPOINT, folder / run_format.CHECKPOINT_BEFORE):
        if not path.exists():
            continue
        try:
            return _checked(read(path), about, path), refused
        except RefusedError as error:
            refused.append(error)
    if refused:
        advice = f"Put a good copy there, or start this peer in a new folder; --resume does not change {folder}."
        raise ResumeError("; ".join(map(str, refused)), advice)
    return None, []


def drop(refused: Iterable[RefusedError]) -> None:
    """Delete files that were refused where another was taken: the next one written must not push them onto that."""
    for error in refused:
        error.path.unlink(missing_ok=True)


def _checked(stored: Stored, about: About, path: Path) -> Stored:
    theirs = stored.about
    if theirs.node != about.node:
        raise RefusedError(path, "peer", f"a checkpoint of peer {theirs.node}, this is peer {about.node}")
    if theirs.version != about.version:
        raise RefusedError(path, "version", f"written by fedgossip {theirs.version}, this is {about.version}")
    check_same(theirs, about, path)
    if theirs.schema != about.schema:
        raise RefusedError(path, "model", "of a model of another layout")
    return stored


def read(path: Path) -> Stored:
    """Return a peer's checkpoint.  Raises RefusedError for one that is cut short, changed or of another format."""
    about, arrays = take(path)
    try:
        return _stored(about, arrays)
    except Exception as error:  # whatever a file of somebody else's makes of it; nothing is changed by reading
        raise RefusedError(path, "corrupt", f"not a peer's checkpoint ({type(error).__name__})") from None


def _stored(about: dict[str, Any], arrays: dict[str, Array]) -> Stored:
    vectors = {n.removeprefix("vector/"): frozen(a) for n, a in arrays.items() if n.startswith("vector/")}
    task = {n.removeprefix("task/"): a for n, a in arrays.items() if n.startswith("task/")}
    about = {"code": "", **about}  # of a run that wrote none
    whose = msgspec.convert({name: about[name] for name in About.__slots__}, About)
    round = msgspec.convert(about["round"], Annotated[int, msgspec.Meta(ge=0)])
    return Stored(whose, Checkpoint(round, vectors, msgspec.convert(about["facts"], dict[str, Any])), task)
