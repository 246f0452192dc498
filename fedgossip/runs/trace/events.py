"""Turn events into plain fields and arrays, and back; and describe effects in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.core import messages
from fedgossip.core.machine import SINCE, Event, Produced, Received, Rostered, RowsChosen, Trained
from fedgossip.core.messages import Carrier
from fedgossip.topology import Mixing, Topology

Array = npt.NDArray[Any]


class TraceError(ConfigError):
    """A trace that cannot be read or replayed."""


_NO_MESSAGES = (messages.Expected,)
_MESSAGES = {
    name: kind for name, kind in vars(messages).items() if dataclasses.is_dataclass(kind) and kind not in _NO_MESSAGES
}
"""The types allowed in a message, including messages."""
_EVENTS = {kind.__name__: kind for kind in typing.get_args(Event)}


def taken_apart(event: Event) -> tuple[dict[str, Any], list[Array]]:
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


def put_together(name: str, fields: dict[str, Any], arrays: list[Array]) -> Event:
    """Return the event of a `taken_apart` value.  Raises TraceError for one that cannot be replayed."""
    match name:
        case "Received":
            return Received(fields["sender"], _whole(fields["message"], arrays))
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
            raise TraceError(f"a new schedule of kind {fields['opaque']} cannot be told again", advice)
        case "Rostered":
            edges, starts, ids, values = arrays
            graph = Topology.from_edges(fields["n"], edges.reshape(-1, 2), fields["name"], fields["directed"])
            return Rostered(Mixing(graph, fields["rule"], (starts, ids, values), fields["stochastic"]))
        case _:
            event: Event = _EVENTS[name](**{key: _whole(value, arrays) for key, value in fields.items()})
            return event


def _plain(value: Any, arrays: list[Array]) -> Any:
    """Return a value as msgpack can hold it: other types by a name, an array in any field by its number.

    Arrays are added to `arrays`.
    """
    if isinstance(value, np.ndarray):
        arrays.append(value.reshape(-1))
        return {"is": "array", "at": len(arrays) - 1, "shape": list(value.shape)}
    if dataclasses.is_dataclass(value):
        return {"is": type(value).__name__, **{name: _plain(one, arrays) for name, one in _fields_of(value)}}
    if isinstance(value, tuple):
        return {"is": "tuple", "of": [_plain(one, arrays) for one in value]}
    return value


def _whole(value: Any, arrays: Sequence[Array]) -> Any:
    """Return the value of a `_plain` form."""
    if not isinstance(value, dict):
        return value
    name = value.pop("is")
    if name == "array":
        return arrays[value["at"]].reshape(value["shape"])
    if name == "tuple":
        return tuple(_whole(one, arrays) for one in value["of"])
    kind: Any = _MESSAGES[name]
    fields = {key: _whole(one, arrays) for key, one in value.items()}
    if issubclass(kind, Carrier) and "vectors" not in fields:  # of the release before, which had arrays there alone
        fields["vectors"] = tuple(arrays)
    return kind(**fields)


def described(value: object, digests: dict[int, str] | None = None) -> str:
    """Return an event, an effect or a part of one as one line, arrays by the first 16 digits of their sha256.

    Equal lines mean equal values.  `digests` remembers those of arrays that stand in several effects.
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
    """Yield the name and value of each field of a struct or dataclass."""
    kind = type(value)
    for name in kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind.__dataclass_fields__:
        yield name, getattr(value, name)


def _describe(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that stand in a line: those that earlier traces have not, where they are other than usual."""
    since = SINCE.get(type(value), ())
    usual = _usual(type(value)) if since else {}  # type: ignore[arg-type]
    for name, one in _fields_of(value):
        if name not in since or isinstance(one, np.ndarray) or one != usual[name]:
            yield name, one


@cache
def _usual(kind: Any) -> Mapping[str, Any]:
    """Return the default of each field."""
    fields = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind)
    return {field.name: field.default for field in fields}


def raw(array: Array) -> memoryview:
    """Return the little-endian bytes of an array; a view where it has them already."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data
