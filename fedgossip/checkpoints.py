"""What a peer needs to go on after a crash: its machine's vectors and facts, its task's memory, and whose they are.

    checkpoint.safetensors             the newest
    checkpoint.previous.safetensors    the one before: taken where the newest cannot be read
    incarnation                        how many lives this peer has begun; on disk before its first Hello

A checkpoint is a safetensors file: tensors `vector/NAME` (the machine's) and `task/NAME` (optimizer slots, steps taken,
local buffers), and in its metadata `about` (JSON) with the sha256 over everything.  It is written beside the old one,
synced, and renamed: a reader sees a whole file or none.  Random streams need no state of their own: they are functions
of the seed and of the round.
"""

from __future__ import annotations

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

from fedgossip import owner_files
from fedgossip.decoding import json_value
from fedgossip.errors import FedgossipError, NotWrittenError, ResumeError
from fedgossip.machine import Checkpoint, NodeId
from fedgossip.patience import patiently
from fedgossip.vectors import frozen

FORMAT = 1

NEWEST, PREVIOUS, LIVES = "checkpoint.safetensors", "checkpoint.previous.safetensors", "incarnation"

SECONDS = 10.0
"""Between two checkpoints: what a crash may cost."""

HEADER_BYTES_MAX = 16 << 20

Array = npt.NDArray[Any]

_KINDS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = {"bool": "BOOL", **{kind: kind[0].upper() + kind.lstrip("floatuin") for kind in _KINDS}}
"""The types of arrays that a checkpoint holds, and what safetensors calls them."""

_OF_NAME = {name: np.dtype(kind) for kind, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class About:
    """Whose checkpoint it is.  `experiment` is the resolved one, so that a resume can say which keys differ."""

    node: NodeId
    schema: str
    version: str
    experiment: Mapping[str, Any]
    data: str = ""
    """DataShares.digest: the hash of the examples."""
    incarnation: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A checkpoint with all that belongs to it; `task` is what the task remembered after the same round."""

    about: About
    machine: Checkpoint
    task: Mapping[str, Array]


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """What the header says of one tensor."""

    dtype: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=32)]
    data_offsets: tuple[int, int]


class RefusedError(FedgossipError):
    """A checkpoint that cannot be taken; `reason` is one word: missing, corrupt, format, version, peer, model."""

    def __init__(self, path: Path, reason: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path, self.reason = path, reason


# --- writing ----------------------------------------------------------------------------------------------------------


def write(folder: Path, stored: Stored) -> None:
    """Put `stored` into `folder`, keeping the one before.  Raises OSError (a full disk, say); nothing is lost then."""
    machine = {f"vector/{name}": vector for name, vector in stored.machine.vectors.items()}
    about = {name: getattr(stored.about, name) for name in About.__slots__}
    put(
        folder,
        {**about, "round": stored.machine.round, "facts": stored.machine.facts},
        {**machine, **{f"task/{name}": array for name, array in stored.task.items()}},
    )


def put(folder: Path, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write plain data and arrays as the newest checkpoint of `folder`; as `write`."""
    part = folder / f"{NEWEST}.part"
    _synced(part, _pieces(about, {name: _plain(array) for name, array in arrays.items()}))
    if (folder / NEWEST).exists():
        (folder / NEWEST).replace(folder / PREVIOUS)
    part.replace(folder / NEWEST)
    _sync(folder)


def _synced(part: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that will be renamed; on disk when this returns, and not there where it raises OSError."""
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
    """Yield the bytes of the file: a safetensors header, then every tensor as it lies in memory, without a copy."""
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": {"about": text, "sha256": _hash(text, arrays)}}
    start = 0
    for name, array in arrays.items():
        offsets = [start, start + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        start += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
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


def _sync(folder: Path) -> None:
    descriptor = patiently(lambda: os.open(folder, os.O_RDONLY))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading ----------------------------------------------------------------------------------------------------------


def load(folder: Path, about: About) -> tuple[Stored | None, list[RefusedError]]:
    """Return the newest checkpoint of `folder` that can be taken, and why newer ones were refused.

    None, and nothing refused: this peer had written none.  Raises ResumeError for one of another experiment, and where
    there are some and all are refused.
    """
    refused: list[RefusedError] = []
    for path in (folder / NEWEST, folder / PREVIOUS):
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


def take(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what `put` wrote.  Raises RefusedError."""
    try:
        metadata, arrays = _parsed(path.read_bytes())
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
    except Exception as error:  # as in `read`
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
        # a copy: what is read lies unaligned, and all of it in one block
        arrays[name] = np.frombuffer(content, kind, count, 8 + size + end).copy().reshape(tensor.shape)
        end += count * kind.itemsize
    if len(content) != 8 + size + end:
        raise ValueError("not as long as it says")
    return metadata, arrays


def _stored(about: dict[str, Any], arrays: dict[str, Array]) -> Stored:
    vectors = {n.removeprefix("vector/"): frozen(a) for n, a in arrays.items() if n.startswith("vector/")}
    task = {n.removeprefix("task/"): a for n, a in arrays.items() if n.startswith("task/")}
    whose = msgspec.convert({name: about[name] for name in About.__slots__}, About)
    round = msgspec.convert(about["round"], Annotated[int, msgspec.Meta(ge=0)])
    return Stored(whose, Checkpoint(round, vectors, msgspec.convert(about["facts"], dict[str, Any])), task)


# --- lives ------------------------------------------------------------------------------------------------------------


def incarnation_of(folder: Path) -> int:
    """Return the number of the life that was begun last in `folder`; -1 where none was.  Raises ResumeError."""
    path = folder / LIVES
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return -1
    except (OSError, ValueError):
        advice = "Write a number into it that is higher than that of any life of this peer before."
        raise ResumeError(f"{path}: not a number", advice) from None


def begin_life(folder: Path, incarnation: int) -> None:
    """Write down that life `incarnation` begins; on disk when this returns.  Raises NotWrittenError."""
    part = folder / f"{LIVES}.part"
    try:
        _synced(part, [f"{incarnation}\n".encode()])
        part.replace(folder / LIVES)
        _sync(folder)
    except OSError as error:
        raise NotWrittenError(folder / LIVES, error) from None


# --- keeping them while a peer runs -----------------------------------------------------------------------------------


class Checkpoints:
    """Keeps the newest checkpoint of a running peer, and has a thread of its own write it every `seconds`.

    `keep` is called between two trainings, by the thread that trains: what the task remembers then belongs to the
    checkpoint.  Nothing is copied: vectors are frozen, and a task replaces what it remembers and never changes it.
    `failed` is told, by the writing thread, why a checkpoint could not be written; the one before stays.
    """

    def __init__(
        self, folder: Path, about: About, failed: Callable[[int, OSError], None], seconds: float = SECONDS
    ) -> None:
        self.folder, self.about, self.seconds = folder, about, seconds
        self._failed = failed
        self._newest: Stored | None = None
        self._written: Stored | None = None
        self._due = time.monotonic() + seconds
        self._condition = threading.Condition()
        self._asked: Stored | None = None
        self._ending = False
        self._thread: threading.Thread | None = None

    def keep(self, checkpoint: Checkpoint, memory: Mapping[str, Array]) -> None:
        """Take the state after a round; have it written if it is time."""
        if self._ending:
            return
        self._newest = Stored(self.about, checkpoint, memory)
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.seconds
        with self._condition:
            self._asked = self._newest
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"checkpoints-{self.about.node}", daemon=True)
                self._thread.start()
            self._condition.notify()

    def now(self, checkpoint: Checkpoint) -> None:
        """Take the state after a round, and write it: it is on disk when this returns, or `failed` is told.

        For a peer whose task remembers nothing; not to be mixed with `keep`.
        """
        self._newest = Stored(self.about, checkpoint, {})
        self._write(self._newest)

    def close(self) -> int | None:
        """Write the newest if it is not; return the round of the last one that is on disk, None where there is none."""
        with self._condition:
            self._ending = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
        if self._newest is not None and self._newest is not self._written:
            self._write(self._newest)
        return None if self._written is None else self._written.machine.round

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._asked is not None or self._ending)
                asked, self._asked = self._asked, None
            if asked is None:
                return
            self._write(asked)
            del asked  # a model or two, and the next may be long in coming

    def _write(self, stored: Stored) -> None:
        try:
            write(self.folder, stored)
        except OSError as error:
            self._failed(stored.machine.round, error)
        else:
            self._written = stored


# --- the same experiment? ---------------------------------------------------------------------------------------------

OF_THE_MACHINE = ("device", "threads", "channels_last", "compile", "prefetch", "processes", "parallel")
"""Keys of `[train]` that say how a machine computes, not what: as in learning.settings, a room of the same floor."""

MAY_DIFFER = ("name", "algorithm.start_timeout", *(f"train.{key}" for key in OF_THE_MACHINE))
"""Keys that a resume may change; and `rounds` may grow."""

OF_SIMULATIONS = ("simulation", "faults")
"""Sections that real runs ignore."""


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], *, simulated: bool = False) -> list[str]:
    """Return the keys of two resolved experiments that keep one from going on as the other, in words.

    "train.lr: was 0.1, is 0.05".  Where files lie may differ; what is in them is compared by its hash, elsewhere.
    """
    free = MAY_DIFFER if simulated else MAY_DIFFER + OF_SIMULATIONS
    was, now = (dict(_flat(json.loads(json.dumps(one)))) for one in (stored, given))  # a tuple came back as a list
    found = []
    for key in sorted(was.keys() | now.keys()):
        before, after = _tail(key, was.get(key)), _tail(key, now.get(key))
        if key not in was and not after:  # an option that came since, and is off
            continue
        if before == after or any(key == one or key.startswith(f"{one}.") for one in free):
            continue
        if key == "rounds" and isinstance(before, int) and isinstance(after, int) and after > before:
            if now.get("train.schedule", "constant") == "cosine":
                found.append(f"rounds: was {before}, is {after}, and train.schedule = cosine follows them")
            continue
        found.append(f"{key}: was {_said(before)}, is {_said(after)}")
    return found


def check_same(stored: About, given: About, where: Path | str, *, simulated: bool = False) -> None:
    """Raise ResumeError, which says which keys differ, unless `stored` can go on as `given`."""
    found = differences(stored.experiment, given.experiment, simulated=simulated)
    if stored.data != given.data:
        found.append("the data files: other examples")
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
    """Return the last part of a path: where a file lies differs between machines, and between then and now."""
    if key in ("data.source", "data.test", "topology.graph") and isinstance(value, str) and "/" in value:
        kind, colon, _ = value.partition(":")
        return f"{kind}{colon}{value.rsplit('/', 1)[1]}" if colon else value.rsplit("/", 1)[1]
    return value


def _said(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)
