"""Checkpoints of a peer: their file, their folder, and the thread that periodically writes the newest one.

    checkpoint.safetensors             the newest
    checkpoint.previous.safetensors    the one before: used if the newest cannot be read
    incarnation                        how many lives this peer has begun; on disk before its first Hello

A file is safetensors: tensors `vector/NAME` (the machine's) and `task/NAME` (optimizer slots, steps, local buffers);
its metadata has `about` (JSON) with the sha256 over everything.  It is written next to the old one, synced, and
renamed.  It is read completely or refused with a reason.  Random streams need no state: they are functions of the seed
and round.

`About` decides whether a run may resume from it: some keys may differ.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import FedgossipError, NotWrittenError, ResumeError
from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.base.owner_files import patiently
from fedgossip.base.vectors import frozen
from fedgossip.core import run_format
from fedgossip.core.machine import Checkpoint, NodeId
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.run_format import CHECKPOINT, CHECKPOINT_BEFORE
from fedgossip.learning.settings import OF_THE_MACHINE

SECONDS = 10.0
"""Seconds between two checkpoints: the maximum loss in a crash."""


TURN_SECONDS = 1.0
"""Maximum wait of a durable checkpoint for the task's state after its round, from the training thread."""


class Checkpoints:
    """Writes the newest checkpoint of a running peer every `seconds`, in a separate thread.

    The training thread calls `keep` between two trainings, so the task's state belongs to the checkpoint.  Nothing is
    copied, as vectors are frozen and a task replaces its arrays.  The writing thread calls `failed` (the previous file
    stays) or `written`.
    """

    def __init__(
        self,
        folder: Path,
        about: About,
        failed: Callable[[int, OSError], None],
        seconds: float = SECONDS,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.about, self.seconds = folder, about, seconds
        self._failed, self._after = failed, written
        self._newest: Stored | None = None
        self._written: Stored | None = None
        self._memory: tuple[int, Mapping[str, Array]] = 0, {}
        self._due = time.monotonic() + seconds
        self._condition = threading.Condition()
        self._asked: Stored | None = None
        self._writing: Stored | None = None
        self._ending = False
        self._thread: threading.Thread | None = None
        self._died: BaseException | None = None

    def begin(self, round: int, memory: Mapping[str, Array]) -> None:
        """Record the task's state at the start of this incarnation."""
        self._memory = round, memory

    def keep(self, checkpoint: Checkpoint, memory: Mapping[str, Array]) -> None:
        """Store the state after a round; have it written if it is due."""
        with self._condition:
            if self._ending:
                return
            self._memory = checkpoint.round, memory
            self._condition.notify_all()
            newest = self._newest
            if newest is not None and newest.machine.durable and newest.machine.round >= checkpoint.round:
                return  # the durable one came from the machine first, and the next incarnation depends on it
            self._newest = Stored(self.about, checkpoint, memory)
            if time.monotonic() >= self._due:
                self._ask()

    def now(self, checkpoint: Checkpoint) -> None:
        """Write the state after a round (the task's as passed to `keep`); on return it is on disk, or `failed` was
        called.
        """
        with self._condition:
            if self._memory[1] and self._memory[0] < checkpoint.round:
                self._condition.wait_for(lambda: self._memory[0] >= checkpoint.round, TURN_SECONDS)
            stored = self._newest = Stored(self.about, checkpoint, self._memory[1])
            self._ask()
            self._condition.wait_for(lambda: stored not in (self._asked, self._writing) or self._died)
            if self._died:
                raise self._died

    def close(self) -> int | None:
        """Write the newest state if it is not on disk; return the round of the last one written, None if there
        is none.
        """
        with self._condition:
            if self._newest is not None and self._newest is not self._written and self._newest is not self._writing:
                self._ask()
            self._ending = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()
        return None if self._written is None else self._written.machine.round

    def _ask(self) -> None:
        self._due = time.monotonic() + self.seconds
        self._asked = self._newest
        if self._thread is None:
            self._thread = guarded_thread(self._work, f"checkpoints-{self.about.node}")
            self._thread.start()
        self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._asked is not None or self._ending)
                self._writing, self._asked = self._asked, None
            if self._writing is None:
                return
            try:
                self._write(self._writing)
            except BaseException as error:  # a waiting thread must not wait for ever
                self._died = error
                raise
            finally:
                with self._condition:  # release one or two models: the next may be long in coming
                    self._writing = None
                    self._condition.notify_all()

    def _write(self, stored: Stored) -> None:
        try:
            write(self.folder, stored)
        except OSError as error:
            self._failed(stored.machine.round, error)
        else:
            self._written = stored
            self._after()


MAY_DIFFER = ("name", "track", "algorithm.start_timeout", *(f"train.{key}" for key in OF_THE_MACHINE))
"""Keys that may differ when a run resumes; `rounds` may also grow."""

OF_SIMULATIONS = ("simulation", "faults")
"""Sections that real runs ignore."""


@dataclass(frozen=True, slots=True)
class About:
    """The origin of a checkpoint.  `experiment` is the resolved one, so that an error can name differing keys."""

    node: NodeId
    schema: str
    version: str
    experiment: Mapping[str, Any]
    data: str = ""
    """DataShares.digest: hash of the examples."""
    incarnation: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    """Likeness.code: the user's own functions in the experiment, each with a hash of its source."""


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], *, simulated: bool = False) -> list[str]:
    """Return the keys of two resolved experiments that forbid resuming, "train.lr: was 0.1, is 0.05".

    Paths of files may differ.
    """
    free = MAY_DIFFER if simulated else MAY_DIFFER + OF_SIMULATIONS
    was, now = (dict(_flat(json.loads(json.dumps(one)))) for one in (stored, given))  # tuples are lists in JSON
    found = []
    for key in sorted(was.keys() | now.keys()):
        before, after = _tail(key, was.get(key)), _tail(key, now.get(key))
        if key not in was and not after:  # an option of a later release, switched off
            continue
        if before == after or any(key == one or key.startswith(f"{one}.") for one in free):
            continue
        if key == "rounds" and isinstance(before, int) and isinstance(after, int) and after > before:
            schedule = str(now.get("train.schedule", "constant"))
            if schedule.endswith("cosine"):
                found.append(f"rounds: was {before}, is {after}, and train.schedule = {schedule} follows them")
            continue
        found.append(f"{key}: was {_format(before)}, is {_format(after)}")
    return found


def check_same(stored: About, given: About, where: Path | str, *, simulated: bool = False) -> None:
    """Raise ResumeError, with the differing keys, unless `stored` can resume as `given`."""
    found = differences(stored.experiment, given.experiment, simulated=simulated)
    if stored.data != given.data:
        found.append("the data files: other examples")
    if stored.code != given.code:
        names = " and ".join(Likeness(stored.code).changed(Likeness(given.code))) or "your own functions"
        found.append(f"{names}: another source")
    if found:
        may = ", ".join(MAY_DIFFER)
        advice = f"Give the experiment that it had, or start a new run.  These may differ: {may}; rounds may grow."
        raise ResumeError(f"{where}: a checkpoint of another experiment: {'; '.join(found)}", advice)


def _flat(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _tail(key: str, value: Any) -> Any:
    """Return the last part of a path, which is equal on all machines."""
    if key in ("data.source", "data.test", "data.common", "topology.graph") and isinstance(value, str) and "/" in value:
        kind, colon, _ = value.partition(":")
        return f"{kind}{colon}{value.rsplit('/', 1)[1]}" if colon else value.rsplit("/", 1)[1]
    return value


def _format(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)


FORMAT = 4


HEADER_BYTES_MAX = 128 << 20
"""Maximum bytes of the header, about 100 per array (of a table one per 8 kB of rows)."""

Array = npt.NDArray[Any]

_KINDS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = {"bool": "BOOL", **{kind: kind[0].upper() + kind.lstrip("floatuin") for kind in _KINDS}}
"""Dtypes of arrays in a checkpoint, and their names in safetensors."""

_OF_NAME = {name: np.dtype(kind) for kind, name in DTYPES.items()}


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """The header entry of one tensor."""

    dtype: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=32)]
    data_offsets: tuple[int, int]


class RefusedError(FedgossipError):
    """An unusable checkpoint; `reason` is one word: missing, corrupt, format, version, peer, model."""

    def __init__(self, path: Path, reason: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path, self.reason = path, reason


def write_tensors(folder: Path, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write plain data and arrays as the newest checkpoint of `folder`; the previous one stays.

    Raises OSError (a full disk, for example); nothing is lost then.
    """
    part = folder / f"{CHECKPOINT}.part"
    write_synced(part, _pieces(about, {name: _plain(array) for name, array in arrays.items()}))
    if (folder / CHECKPOINT).exists():
        (folder / CHECKPOINT).replace(folder / CHECKPOINT_BEFORE)  # one of the two exists even if the process ends here
    part.replace(folder / CHECKPOINT)
    owner_files.sync_folder(folder)


def write_synced(part: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file before its renaming; on return it is on disk.  Raises OSError after removing the file."""
    try:
        with patiently(lambda: owner_files.opened(part, "wb")) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _pieces(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield the file's bytes: a safetensors header, then every tensor, without a copy."""
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": {"about": text, "sha256": _hash(text, arrays)}}
    start = 0
    for name, array in arrays.items():
        offsets = [start, start + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        start += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the arrays begin at a multiple of 8 bytes, as safetensors expects
    if len(head) > HEADER_BYTES_MAX:  # before it replaces a readable one
        raise OSError(errno.EFBIG, f"{len(arrays):,} arrays are too many for one checkpoint: take more servers")
    yield struct.pack("<Q", len(head)) + head
    for array in arrays.values():
        yield _bytes(array)


def _plain(array: Array) -> Array:
    return np.require(array, array.dtype.newbyteorder("<"), ["C"])


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _hash(about: str, arrays: Mapping[str, Array]) -> str:
    total = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"/{name}/{array.dtype.name}/{array.shape}/".encode())
        total.update(_bytes(array))
    return total.hexdigest()


def take(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the content written by `write_tensors`.  Raises RefusedError."""
    try:
        metadata, arrays = _parsed(outside_files.read_bytes(path, outside_files.LARGE))
        text = metadata["about"]
        about: dict[str, Any] = json_value(text)
        if about["format"] != FORMAT:
            raise RefusedError(path, "format", f"of format {about['format']}, this fedgossip writes {FORMAT}")
        if _hash(text, arrays) != metadata["sha256"]:
            raise RefusedError(path, "corrupt", "its bytes are not those that were written (sha256)")
    except RefusedError:
        raise
    except OSError as error:
        raise RefusedError(path, "missing", f"cannot be read: {error.strerror}") from None
    except Exception as error:  # a forged file may raise anything
        raise RefusedError(path, "corrupt", f"not a whole checkpoint ({type(error).__name__})") from None
    return about, arrays


def _parsed(content: bytes) -> tuple[dict[str, str], dict[str, Array]]:
    (size,) = struct.unpack_from("<Q", content)
    if size > min(HEADER_BYTES_MAX, len(content)):
        raise ValueError("a header longer than the file")
    header = json_value(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    arrays: dict[str, Array] = {}
    end = 0
    for name, tensor in msgspec.convert(header, dict[str, _Tensor]).items():
        kind, count = _OF_NAME[tensor.dtype], math.prod(tensor.shape)
        if tensor.data_offsets != (end, end + count * kind.itemsize):
            raise ValueError("tensors that do not follow each other")
        # a copy: the bytes read are unaligned, and all in one block
        arrays[name] = np.frombuffer(content, kind, count, 8 + size + end).copy().reshape(tensor.shape)
        end += count * kind.itemsize
    if len(content) != 8 + size + end:
        raise ValueError("not of the stated length")
    return metadata, arrays


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A checkpoint with its context; `task` is the task's state after the same round."""

    about: About
    machine: Checkpoint
    task: Mapping[str, Array]


def write(folder: Path, stored: Stored) -> None:
    """Write `stored` into `folder`; the previous checkpoint stays.

    Raises OSError (a full disk, for example); nothing is lost then.
    """
    machine = {f"vector/{name}": vector for name, vector in stored.machine.vectors.items()}
    about = {name: getattr(stored.about, name) for name in About.__slots__}
    write_tensors(
        folder,
        {**about, "round": stored.machine.round, "facts": stored.machine.facts},
        {**machine, **{f"task/{name}": array for name, array in stored.task.items()}},
    )


def load(folder: Path, about: About) -> tuple[Stored | None, list[RefusedError]]:
    """Return the newest usable checkpoint of `folder`, and the refusals of newer ones; None without any.

    Raises ResumeError for another experiment's checkpoint, and if all are refused.
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
    """Delete the refused files after another was loaded: the next one written must not replace that by a
    refused file.
    """
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
    """Return a peer's checkpoint.  Raises RefusedError for a truncated or changed file, or another format."""
    about, arrays = take(path)
    try:
        return _stored(about, arrays)
    except Exception as error:  # a forged file may raise anything; reading changes nothing
        raise RefusedError(path, "corrupt", f"not a peer's checkpoint ({type(error).__name__})") from None


def _stored(about: dict[str, Any], arrays: dict[str, Array]) -> Stored:
    vectors = {n.removeprefix("vector/"): frozen(a) for n, a in arrays.items() if n.startswith("vector/")}
    task = {n.removeprefix("task/"): a for n, a in arrays.items() if n.startswith("task/")}
    about = {"code": "", **about}  # missing in earlier releases
    whose = msgspec.convert({name: about[name] for name in About.__slots__}, About)
    round = msgspec.convert(about["round"], Annotated[int, msgspec.Meta(ge=0)])
    return Stored(whose, Checkpoint(round, vectors, msgspec.convert(about["facts"], dict[str, Any])), task)


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
