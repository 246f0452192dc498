"""Files of traces: a machine's events are written before it acts, so that a new machine can replay them.

A machine's effects are a function of its events and times, so a run can be replayed even though its order of arrival
depends on the network; `fedgossip replay` reports the first differing event.

    file      "fgtrace1", then records
    record    header bytes u32, body bytes u64, crc32 of both u32 | header, msgpack | body, raw little-endian numbers
    headers   opening (once, first) | told | answered, in turn

All integers are little-endian.  A record cut short by a kill ends the trace.  Nothing is unpickled.

An event is written before it is handled, as handling may consume received vectors.  Then follows one line per effect,
with vectors by hash.  The opening has the experiment, the first vector, and the slices of its tensors
(`Plan.segments`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import struct
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import from_msgpack, json_value
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core import messages
from fedgossip.core.machine import (
    SINCE,
    Checkpoint,
    Effect,
    Event,
    Machine,
    NodeId,
    Produced,
    Received,
    Rostered,
    RowsChosen,
    Trained,
    guarded_handle,
)
from fedgossip.core.messages import Carrier
from fedgossip.core.task import PARAMETER, STATISTIC, Segment, statistics_in
from fedgossip.topology import Mixing, Topology

MAGIC = b"fgtrace1"

_KINDS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = frozenset({"bool", *_KINDS})
"""Allowed dtypes of arrays in a trace."""

LIMIT_BYTES = 2 << 30
"""Maximum bytes of a peer's trace; later events are not written, and the run continues."""

HEADER_BYTES_MAX = 64 << 20

FRAME = struct.Struct("<IQI")


# --- records ----------------------------------------------------------------------------------------------------------


class ArrayShape(msgspec.Struct, array_like=True):
    """One array of the body, one-dimensional.  `mine`: whether the machine owned it, and may have written to it."""

    dtype: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    mine: bool = False


class _Record(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    pass


class _Resumed(msgspec.Struct, array_like=True):
    round: int
    names: list[str]
    facts: str
    """Experiment as JSON, for integers longer than 64 bits."""


class _Opening(_Record, tag="opening"):
    node: int
    incarnation: int
    schema: str
    version: str
    experiment: dict[str, Any]
    resumed: _Resumed | None
    arrays: list[ArrayShape]
    segments: list[tuple[str, int, tuple[int, ...]]] = []
    """Segments of the vector; empty in older traces: one segment."""
    statistics: int = 0
    """Elements at the end of the vector that are statistics."""


class _Delivered(_Record, tag="told"):
    now_ns: int
    event: str
    fields: dict[str, Any]
    arrays: list[ArrayShape]


class _Answered(_Record, tag="answered"):
    effects: list[str]


_decoder: msgspec.msgpack.Decoder[_Opening | _Delivered | _Answered] = msgspec.msgpack.Decoder(
    _Opening | _Delivered | _Answered
)


def _number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no part of a trace")


ENCODER = msgspec.msgpack.Encoder(enc_hook=_number)

# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """Inputs for making the same machine again."""

    node: NodeId
    incarnation: int
    schema: str
    version: str
    experiment: Mapping[str, Any]
    initial: Vector
    resumed: Checkpoint | None = None
    segments: tuple[Segment, ...] = ()


class Trace:
    """Writes the trace of one incarnation.  `stopped(name, text)` is called once if the trace ends before the peer."""

    def __init__(
        self, path: Path, opening: Opening, stopped: Callable[[str, str], None], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._stopped = stopped
        self._file: BinaryIO | None = None
        self._size = 0
        try:
            self._file = owner_files.opened(path, "wb")
            self._file.write(MAGIC)
        except OSError as error:
            self._give_up("trace_failed", error.strerror or str(error))
        self._size = len(MAGIC)
        resumed, arrays = None, [opening.initial]
        if opening.resumed:
            at = opening.resumed
            resumed = _Resumed(at.round, list(at.vectors), json.dumps(at.facts))
            arrays += at.vectors.values()
        o = opening
        about = o.node, o.incarnation, o.schema, o.version, dict(o.experiment)
        segments = [(one.name, one.start, one.shape) for one in o.segments]
        header = _Opening(*about, resumed, shapes_of(arrays), segments, statistics_in(o.segments))
        self._write(header, arrays)

    def write_event(self, now_ns: int, event: Event) -> None:
        """Write an event before the machine handles it, as that may consume the event's vectors."""
        if self._file:
            fields, arrays = split_event(event)
            self._write(_Delivered(now_ns, type(event).__name__, fields, shapes_of(arrays)), arrays)

    def answered(self, effects: Sequence[Effect | str]) -> None:
        """Write the effects of the event; a text is written unchanged."""
        if self._file:
            digests: dict[int, str] = {}
            self._write(_Answered([e if isinstance(e, str) else described(e, digests) for e in effects]), [])

    def _write(self, header: _Record, arrays: Sequence[Array]) -> None:
        if self._file is None:
            return
        text, bodies = ENCODER.encode(header), [raw(array) for array in arrays]
        size, crc = sum(len(body) for body in bodies), zlib.crc32(text)
        for body in bodies:
            crc = zlib.crc32(body, crc)
        whole = FRAME.size + len(text) + size
        if self._size + whole > self.limit_bytes:
            self._give_up("trace_full", f"{self._size:,} bytes written; the limit is {self.limit_bytes:,}")
            return
        try:
            self._file.write(FRAME.pack(len(text), size, crc) + text)
            for body in bodies:
                self._file.write(body)
            self._file.flush()  # flushed to the system, so that it outlives a kill of this process
        except OSError as error:
            self._give_up("trace_failed", error.strerror or str(error))
            return
        self._size += whole

    def _give_up(self, name: str, text: str) -> None:
        file, self._file = self._file, None
        if file:
            with contextlib.suppress(OSError):  # there is no room for the rest of the buffer either
                file.close()
            if self._size > len(MAGIC):
                os.truncate(self.path, self._size)
            else:  # not even the opening was written: there is no trace
                self.path.unlink(missing_ok=True)
        self._stopped(name, text)

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None


def shapes_of(arrays: Sequence[Array]) -> list[ArrayShape]:
    return [ArrayShape(array.dtype.name, array.size, bool(array.flags.writeable)) for array in arrays]


class Traced:
    """A machine that writes its events and effects into a trace."""

    def __init__(self, machine: Machine, trace: Trace) -> None:
        self.machine, self.trace = machine, trace

    def handle(self, event: Event, now_ns: int) -> Sequence[Effect]:
        self.trace.write_event(now_ns, event)
        try:
            effects = guarded_handle(self.machine, event, now_ns)
        except ProtocolError as error:
            self.trace.answered([refusal(error)])
            raise
        self.trace.answered(effects)
        return effects


def refusal(error: ProtocolError) -> str:
    """Return the text written to a trace in place of the effects."""
    return f"refused: {error}"


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TraceEntry:
    """The `number`-th event, from 1; `answer` is None if the trace ends before it."""

    number: int
    now_ns: int
    event: Event
    answer: list[str] | None


class Reading:
    """Reads one trace, an event at a time; a context manager.  `end`: "whole", or "torn" after a truncated last record.

    Raises TraceError for a file other than a trace, and for a changed record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end: Literal["whole", "torn"] = "whole"
        try:
            self._file = outside_files.open_file(path, outside_files.ROWS)
            self._bytes = path.stat().st_size
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}", "Record one with --trace.") from None
        try:
            self.opening = self._opening()
        except TraceError:
            self._file.close()
            raise

    def _opening(self) -> Opening:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise self._broken("not a trace")
        first = self._next()
        if first is None:
            raise self._broken("it ends before it begins")
        header, arrays = first
        if not isinstance(header, _Opening):
            raise self._broken("no opening")
        try:
            return _opened(header, arrays)
        except Exception as error:  # a forged file may raise anything; reading changes nothing
            raise self._broken(f"no opening that can be read: {error!r}") from None

    def __iter__(self) -> Iterator[TraceEntry]:
        number = 0
        while (record := self._next()) is not None:
            header, arrays = record
            number += 1
            if not isinstance(header, _Delivered):
                raise self._broken(f"event {number} is missing")
            try:
                event = rebuild_event(header.event, header.fields, arrays)
            except TraceError as error:
                raise TraceError(f"{self.path}: event {number}: {error}", error.advice) from None
            except Exception as error:  # as above
                raise self._broken(f"event {number}, {header.event}: {error!r}") from None
            answer = self._next()
            yield TraceEntry(number, header.now_ns, event, _lines(answer))

    def _next(self) -> tuple[_Opening | _Delivered | _Answered, list[Array]] | None:
        at = self._file.tell()
        frame = self._file.read(FRAME.size)
        if not frame:
            return None
        if len(frame) < FRAME.size:
            self.end = "torn"
            return None
        length, size, crc = FRAME.unpack(frame)
        if at + FRAME.size + length + size > self._bytes:
            self.end = "torn"
            return None
        text, body = self._file.read(min(length, HEADER_BYTES_MAX)), bytearray(size)
        self._file.readinto(body)
        if zlib.crc32(body, zlib.crc32(text)) != crc:
            raise self._broken(f"the record at byte {at} is not as it was written")
        try:
            header = from_msgpack(_decoder, text)
            arrays = [] if isinstance(header, _Answered) else list(arrays_in(header.arrays, body))
        except Exception as error:  # as above
            raise self._broken(f"the record at byte {at}: {error}") from None
        return header, arrays

    def _broken(self, text: str) -> TraceError:
        return TraceError(f"{self.path}: {text}", "Was it copied whole, and written by this fedgossip?")

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def _lines(record: tuple[_Opening | _Delivered | _Answered, list[Array]] | None) -> list[str] | None:
    return record[0].effects if record and isinstance(record[0], _Answered) else None


def arrays_in(shapes: Sequence[ArrayShape], body: bytearray) -> Iterator[Array]:
    start = 0
    for shape in shapes:
        if shape.dtype not in DTYPES:
            raise ValueError("an array of another kind than are written here")
        dtype = np.dtype(shape.dtype).newbyteorder("<")
        array = np.frombuffer(body, dtype, shape.size, start).astype(np.dtype(shape.dtype))
        start += array.nbytes
        yield array if shape.mine else frozen(array)
    if start != len(body):
        raise ValueError("a body of another size than stated")


def _opened(header: _Opening, arrays: list[Array]) -> Opening:
    initial, *saved = arrays
    resumed = None
    if header.resumed:
        at = header.resumed
        resumed = Checkpoint(at.round, dict(zip(at.names, saved, strict=True)), json_value(at.facts))
    about = header.node, header.incarnation, header.schema, header.version, header.experiment
    counted = initial.size - header.statistics
    segments = (Segment(*one, STATISTIC if one[1] >= counted else PARAMETER) for one in header.segments)
    return Opening(*about, initial, resumed, tuple(segments))


Array = npt.NDArray[Any]


class TraceError(ConfigError):
    """A trace that cannot be read or replayed."""


_NO_MESSAGES = (messages.Expected,)
_MESSAGES = {
    name: kind for name, kind in vars(messages).items() if dataclasses.is_dataclass(kind) and kind not in _NO_MESSAGES
}
"""The types allowed in a message, including messages."""
_EVENTS = {kind.__name__: kind for kind in typing.get_args(Event)}


def split_event(event: Event) -> tuple[dict[str, Any], list[Array]]:
    """Return an event's plain fields and its arrays."""
    match event:
        case Received(sender, message):
            arrays: list[Array] = []
            return {"sender": sender, "message": _plain(message, arrays)}, arrays
        case Trained(job, update, examples, metrics, extra):
            fields = {"job": job, "examples": examples, "metrics": dict(metrics)}
            if extra:
                fields["extra"] = len(extra)
            return fields, [*([] if update is None else [update]), *extra]
        case Produced(job, start, vector, examples, metrics):
            return {"job": job, "start": start, "examples": examples, "metrics": dict(metrics)}, [vector]
        case RowsChosen(job, keys, watched):
            return {"job": job}, [keys] if watched is None else [keys, watched]
        case Rostered(Mixing() as mixing):
            graph = mixing.topology
            fields = {"n": graph.n, "name": graph.name, "directed": graph.directed, "rule": mixing.rule}
            fields["stochastic"] = mixing.stochastic
            return fields, [graph.edges.reshape(-1), mixing.starts, mixing.ids, mixing.values]
        case Rostered(schedule):
            return {"opaque": type(schedule).__name__}, []
        case _:
            return {name: _plain(one, []) for name, one in _fields_of(event)}, []


def rebuild_event(name: str, fields: dict[str, Any], arrays: list[Array]) -> Event:
    """Return the event of a `split_event` value.  Raises TraceError if it cannot be replayed."""
    match name:
        case "Received":
            return Received(fields["sender"], _rebuild(fields["message"], arrays))
        case "Trained":
            first = len(arrays) - fields.get("extra", 0)
            update = arrays[0] if first else None
            return Trained(fields["job"], update, fields["examples"], fields["metrics"], tuple(arrays[first:]))
        case "Produced":
            return Produced(vector=arrays[0], **fields)
        case "RowsChosen":
            return RowsChosen(fields["job"], arrays[0], arrays[1] if len(arrays) > 1 else None)
        case "Rostered" if "opaque" in fields:
            advice = "Only changes to a graph that is the same in every round are written whole."
            raise TraceError(f"a new schedule of kind {fields['opaque']} cannot be replayed", advice)
        case "Rostered":
            edges, starts, ids, values = arrays
            graph = Topology.from_edges(fields["n"], edges.reshape(-1, 2), fields["name"], fields["directed"])
            return Rostered(Mixing(graph, fields["rule"], (starts, ids, values), fields["stochastic"]))
        case _:
            event: Event = _EVENTS[name](**{key: _rebuild(value, arrays) for key, value in fields.items()})
            return event


def _plain(value: Any, arrays: list[Array]) -> Any:
    """Return a value for msgpack: other types by name, arrays by their index in `arrays`."""
    if isinstance(value, np.ndarray):
        arrays.append(value.reshape(-1))
        return {"is": "array", "at": len(arrays) - 1, "shape": list(value.shape)}
    if dataclasses.is_dataclass(value):
        return {"is": type(value).__name__, **{name: _plain(one, arrays) for name, one in _fields_of(value)}}
    if isinstance(value, tuple):
        return {"is": "tuple", "of": [_plain(one, arrays) for one in value]}
    return value


def _rebuild(value: Any, arrays: Sequence[Array]) -> Any:
    if not isinstance(value, dict):
        return value
    name = value.pop("is")
    if name == "array":
        return arrays[value["at"]].reshape(value["shape"])
    if name == "tuple":
        return tuple(_rebuild(one, arrays) for one in value["of"])
    kind: Any = _MESSAGES[name]
    fields = {key: _rebuild(one, arrays) for key, one in value.items()}
    if issubclass(kind, Carrier) and "vectors" not in fields:  # of an earlier release, with arrays only there
        fields["vectors"] = tuple(arrays)
    return kind(**fields)


def described(value: object, digests: dict[int, str] | None = None) -> str:
    """Return an event, effect or part as one line, arrays by 16 digits of sha256 (`digests` caches them); equal lines
    mean equal values.
    """
    known = {} if digests is None else digests
    if isinstance(value, np.ndarray):
        if id(value) not in known:
            known[id(value)] = hashlib.sha256(raw(value)).hexdigest()[:16]
        return f"<{value.dtype.name} {value.size} {known[id(value)]}>"
    if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        fields = ", ".join(f"{name}={described(one, known)}" for name, one in _describe(value))
        return f"{type(value).__name__}({fields})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {described(one, known)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(described(one, known) for one in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(described(one, known) for one in value)) + "}"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    for name in kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind.__dataclass_fields__:
        yield name, getattr(value, name)


def _describe(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a line; newer fields only if they differ from the default."""
    since = SINCE.get(type(value), ())
    usual = _usual(type(value)) if since else {}  # type: ignore[arg-type]
    for name, one in _fields_of(value):
        if name not in since or isinstance(one, np.ndarray) or one != usual[name]:
            yield name, one


@cache
def _usual(kind: Any) -> Mapping[str, Any]:
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    return {field.name: field.default for field in fields}


def raw(array: Array) -> memoryview:
    """Return the little-endian bytes of an array, as a view if possible."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
