"""Headers: a message without its vectors, as msgpack; unknown fields and numbers out of bounds raise.

They are generated from the declarations of the messages (messages/base): the same fields by the same names, vectors
replaced by `parts`, dtype and length of each.  The kind of a message on the wire is its lower-case name.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
import typing
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Union

import msgspec
import numpy as np

from fedgossip.base.decoding import from_msgpack
from fedgossip.base.vectors import Vector
from fedgossip.core.messages import DECLARED, AnyMessage, Carrier, Part

LENGTHS_KEPT = 4096
"""Maximum number of cached header lengths."""


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message without its vectors: the same fields by the same names."""


class Carries(Header):
    """Header of a message with vectors: dtype and length of each."""

    schema: str
    parts: list[Part]


class Item(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """A structured part of a message; its fields in the order of its dataclass."""


class Vocabulary:
    """The headers of all messages that may cross the network; converts messages to headers and back."""

    def __init__(self, messages: Sequence[type[Any]]) -> None:
        self._items: dict[type[Any], type[Item]] = {}
        self.headers: dict[type[Any], type[Header]] = {message: self._header(message) for message in messages}
        self.messages = {header: message for message, header in self.headers.items()}
        self._fields = {kind: _names(kind) for kind in messages}
        self._nested = {kind: self._nested_in(kind) for kind in messages}
        self._parts = {item: part for part, item in self._items.items()}
        self._decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Union[tuple(self.messages)])  # noqa: UP007
        self._encoder = msgspec.msgpack.Encoder()
        self._said = {kind: operator.attrgetter(*self._fields[kind]) for kind in messages if self._is_short(kind)}
        self._lengths: dict[Hashable, int] = {}

    def encoded(self, message: AnyMessage) -> bytes:
        kind = type(message)
        fields: dict[str, Any] = {name: getattr(message, name) for name in self._fields[kind]}
        for name in self._nested[kind]:
            fields[name] = self._packed(fields[name])
        if isinstance(message, Carrier):
            fields["parts"] = [(_name(v.dtype), v.size) for v in message.vectors]
        return self._encoder.encode(self.headers[kind](**fields))

    def length(self, message: AnyMessage) -> int:
        """Return the bytes of the header of `message`; equal headers are encoded once."""
        kind = type(message)
        said = self._said.get(kind)
        if said is None:
            return len(self.encoded(message))
        parts = [(v.dtype, v.size) for v in message.vectors] if isinstance(message, Carrier) else ()
        key = kind, said(message), *parts
        length = self._lengths.get(key)
        if length is None:
            if len(self._lengths) >= LENGTHS_KEPT:
                self._lengths.clear()
            length = self._lengths[key] = len(self.encoded(message))
        return length

    def decoded(self, body: bytes) -> Header:
        """Decode a header.  Raises ValueError, msgspec.MsgspecError."""
        return from_msgpack(self._decoder, body)

    def message_of(self, header: Header, vectors: tuple[Vector, ...] = ()) -> AnyMessage:
        """Return the message of a header with its announced vectors."""
        kind = self.messages[type(header)]
        fields: dict[str, Any] = {name: getattr(header, name) for name in self._fields[kind]}
        for name in self._nested[kind]:
            fields[name] = self._unpacked(fields[name])
        if isinstance(header, Carries):
            fields["vectors"] = vectors
        return kind(**fields)  # type: ignore[no-any-return]

    def _header(self, message: type[Any]) -> type[Header]:
        base = Carries if issubclass(message, Carrier) else Header
        fields = self._described(message, {"vectors", *base.__struct_fields__})
        return msgspec.defstruct(f"{message.__name__}Header", fields, bases=(base,), tag=tag_of(message), kw_only=True)  # type: ignore[return-value]

    def _item(self, part: type[Any]) -> type[Item]:
        if part not in self._items:
            fields = [field[:2] for field in self._described(part, set())]
            made = msgspec.defstruct(f"{part.__name__}Item", fields, bases=(Item,), tag=tag_of(part))
            self._items[part] = made  # type: ignore[assignment]
        return self._items[part]

    def _described(self, kind: type[Any], without: set[str]) -> list[Any]:
        """(name, type, default) of the fields of a dataclass, as msgspec takes them."""
        hints = typing.get_type_hints(kind, include_extras=True)
        found: list[Any] = []
        for field in dataclasses.fields(kind):
            if field.name in without:
                continue
            spoken = self._as_msgpack(hints[field.name])
            if field.default is dataclasses.MISSING:
                found.append((field.name, spoken))
            else:
                default = msgspec.field(default_factory=list) if field.default == () else field.default
                found.append((field.name, spoken, default))
        return found

    def _as_msgpack(self, hint: Any) -> Any:
        """Return a field's type in msgpack: lists for tuples of any length, items for parts."""
        if dataclasses.is_dataclass(hint):
            return self._item(hint)  # type: ignore[arg-type]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return Annotated[self._as_msgpack(arguments[0]), *hint.__metadata__]
        if origin in (Union, types.UnionType):
            return Union[tuple(self._as_msgpack(one) for one in arguments)]  # noqa: UP007
        if origin is tuple and arguments[-1] is Ellipsis:
            return list[self._as_msgpack(arguments[0])]  # type: ignore[misc]
        return hint

    def _is_short(self, kind: type[Any]) -> bool:
        """Whether all fields are integers and short texts, so that equal values have equal lengths."""
        hints = typing.get_type_hints(kind)
        return bool(self._fields[kind]) and all(hints[name] in (int, bool, str) for name in self._fields[kind])

    def _nested_in(self, kind: type[Any]) -> tuple[str, ...]:
        """Return the fields other than numbers, texts and bytes."""
        hints = typing.get_type_hints(kind)
        return tuple(name for name in self._fields[kind] if self._as_msgpack(hints[name]) != hints[name])

    def _packed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._packed(one) for one in value]
        item = self._items.get(type(value))
        return value if item is None else item(*(getattr(value, name) for name in item.__struct_fields__))

    def _unpacked(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self._unpacked(one) for one in value)
        part = self._parts.get(type(value))
        return value if part is None else part(*(getattr(value, name) for name in value.__struct_fields__))


def tag_of(kind: type[Any]) -> str:
    """Return the wire name of a message or part: MaskedInput is "masked input"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name != "vectors")


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # cached: numpy builds the string at every access


VOCABULARY = Vocabulary(DECLARED)
