"""What an adversary can say: a message of every kind, and messages like one that was said, one field of it another.

Everything goes by the types of the fields, so a message class that is new is covered by being there.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from fedgossip.base.vectors import frozen
from fedgossip.core import wire
from fedgossip.core.messages import Message
from fedgossip.secure import frames


def kinds_in(union: Any) -> tuple[type, ...]:
    """The classes of a union of unions."""
    return tuple(kind for part in typing.get_args(union) for kind in (kinds_in(part) or (part,)))


MESSAGES = kinds_in(Message)
FRAMES = kinds_in(frames.Upward) + kinds_in(frames.Downward)

WHOLE = (0, -1, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**64 - 1)
REAL = (0.0, -0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1.7e308, -1.7e308, 3e38, 5e-324, 1e-300)
TEXTS = ("", "x", "x" * 64, "0" * 16, "\x1b[2J\x1b]0;evil\x07", "[/bold][red]", "é" * 30, "\n" * 9, "os:system", "NaN")
MANY = 40
"""Copies of an item in a list that is made long."""

Draw = np.random.Generator


@dataclass
class Words:
    """Draws messages.  `ids` are nodes that somebody may speak of; `length`, `dtype` and `schema` the layout.

    `heard` is what was said so far, from which texts, bytes and whole messages are taken again.  `signed` puts the
    adversary's own signature on what carries one: it has valid keys.  `sealed` packs a frame of a secure sum.
    """

    draw: Draw
    ids: Sequence[int]
    length: int
    dtype: str
    schema: str
    heard: list[Any] = field(default_factory=list)
    signed: Callable[[Any], Any] = lambda value: value
    sealed: Callable[[frames.Frame], bytes] | None = None
    kinds: Sequence[type] = MESSAGES

    # --- messages -------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """One message: said before, like one, or of any kind, in its own words or in others'."""
        chance = self.draw.random()
        if self.heard and chance < 0.7:
            said = self.one(self.heard)
            return said if chance < 0.2 else self.like(said)
        made = self.example(self.one(self.kinds))
        return made if chance < 0.85 else self.like(made)

    def like(self, message: Any) -> Any:
        """The same with one field, or two, of other contents."""
        for _ in range(1 + int(self.draw.integers(2))):
            message = self.other(message)
        return message

    def example(self, hint: Any) -> Any:
        """Something of this type, well formed where that is easy, signed by the adversary where it can be."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(hint, typing.TypeVar) or hint is Any:
            return self._words()
        if origin is typing.Annotated:
            return self._within(args[0], [meta for meta in args[1:] if isinstance(meta, msgspec.Meta)])
        if origin in (typing.Union, types.UnionType):
            return self.example(self.one(args))
        if origin is tuple and args[-1:] == (Ellipsis,):
            many = 1 if self._is_vector(args[0]) or args[0] is Any else int(self.draw.integers(4))
            return tuple(self.example(args[0]) for _ in range(many))
        if origin is tuple:
            return tuple(self.example(arg) for arg in args)
        if self._is_vector(hint):
            return frozen(self.draw.standard_normal(self.length).astype(self.dtype))
        if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
            return self._made(hint)
        plain: dict[Any, Callable[[], Any]] = {
            int: lambda: self.one((*self.ids, *range(6))),
            float: lambda: float(self.draw.standard_normal()),
            bool: lambda: bool(self.draw.integers(2)),
            str: lambda: self.one((self.schema, *TEXTS)),
            bytes: lambda: self.draw.bytes(int(self.draw.integers(100))),
            type(None): lambda: None,
        }
        return plain[hint]()

    def _made(self, kind: Any) -> Any:
        hints = typing.get_type_hints(kind, include_extras=True)
        names = (
            kind.__struct_fields__
            if issubclass(kind, msgspec.Struct)
            else [one.name for one in dataclasses.fields(kind)]
        )
        values = {name: self.schema if name == "schema" else self.example(hints[name]) for name in names}
        if "frame" in values and self.sealed and self.draw.random() < 0.8:
            values["frame"] = self.sealed(self.example(self.one(FRAMES)))
        return self.signed(kind(**values))

    def _within(self, kind: Any, metas: Sequence[msgspec.Meta]) -> Any:
        least = max((meta.min_length or 0 for meta in metas), default=0)
        if kind is bytes:
            most = min((meta.max_length for meta in metas if meta.max_length is not None), default=100)
            return self.draw.bytes(int(self.draw.integers(least, max(least, min(most, 100)) + 1)))
        if typing.get_origin(kind) is tuple and least:
            return tuple(self.example(typing.get_args(kind)[0]) for _ in range(least))
        for pattern in (meta.pattern for meta in metas if meta.pattern):
            words = [word for word in re.findall(r"\w+", pattern) if re.search(pattern, word)]
            if words:  # one of those that it lists
                return self.one(words)
        return self.example(kind)

    @staticmethod
    def _is_vector(hint: Any) -> bool:
        return typing.get_origin(hint) is np.ndarray

    def _words(self) -> Any:
        return self.draw.integers(0, 2**32, self.length + 4, dtype=np.uint32)

    # --- other contents -------------------------------------------------------------------------------------------

    def other(self, value: Any) -> Any:
        """Something of the same type in its place."""
        match value:
            case bool():
                return not value
            case int():
                near = (value - 1, value + 1, value + 2, -value)
                return min(max(int(self.one((*WHOLE, *near, *self.ids))), -(2**63)), 2**64 - 1)
            case float() | None:
                return self.one((*REAL, None) if value is None else REAL)
            case str():
                return self.one((*TEXTS, value[:-1], value + "x", *self._said(str)))
            case bytes():
                return self._other_bytes(value)
            case np.ndarray():
                return self._other_vector(value)
            case tuple():
                return self._other_items(value)
            case _:
                return self._other_field(value)

    def _other_field(self, value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            names, replace = value.__struct_fields__, msgspec.structs.replace
        else:
            names, replace = tuple(one.name for one in dataclasses.fields(value)), dataclasses.replace
        if not names:
            return value
        name = self.one(names)
        changed = replace(value, **{name: self.other(getattr(value, name))})
        return self.signed(changed) if name != "signature" and self.draw.random() < 0.7 else changed

    def _other_bytes(self, value: bytes) -> bytes:
        if self.sealed and self.draw.random() < 0.6 and (frame := opened(value)) is not None:
            return self.sealed(self.like(frame))  # signed by the adversary itself
        if not value:
            return self.draw.bytes(64)
        place = int(self.draw.integers(len(value)))
        flipped = bytearray(value)
        flipped[place] ^= 1 << int(self.draw.integers(8))
        nested = value[:64] + b"\x91" * 30_000
        garbage = self.draw.bytes(len(value))
        return self.one((b"", value[:place], value + b"x", bytes(flipped), garbage, nested, *self._said(bytes)))

    def _other_vector(self, value: Any) -> Any:
        if value.dtype.kind != "f":
            changed = value.astype(np.uint32) ^ self.draw.integers(0, 2**32, value.size, dtype=np.uint32)
            return self.one((changed, value[:-1], np.zeros(9_999, np.uint32), value.astype(np.float32)))
        top = float(np.finfo(value.dtype).max)
        one = value.copy()
        if one.size:
            one[int(self.draw.integers(one.size))] = self.one((np.nan, np.inf, top, -top))
        fills = (np.nan, np.inf, -np.inf, 0.0, top, -top, top / 2, 5e-324, 1e30, 1e6)
        kinds = ("float16", "float32", "float64", "int64", "uint32")
        wrong = (value[:-1], np.zeros(0, value.dtype), np.zeros(9_999, value.dtype))
        with np.errstate(all="ignore"):
            filled = np.full(value.shape, self.one(fills)).astype(value.dtype)
            another = value.astype(self.one(kinds))
            return self.one((one, filled, filled, value * value.dtype.type(3), self.one(wrong), another))

    def _other_items(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            return value
        place = int(self.draw.integers(len(value)))
        before, item, after = value[:place], value[place], value[place + 1 :]
        longer = value if isinstance(item, np.ndarray) and item.nbytes > 10_000 else value * 2
        return self.one(
            [(*before, self.other(item), *after)] * 4
            + [(*before, *after), longer, tuple(reversed(value)), (), (item,) * (3 if len(value) > 99 else MANY)]
        )

    # --- pieces ---------------------------------------------------------------------------------------------------

    def one(self, of: Sequence[Any]) -> Any:
        return of[int(self.draw.integers(len(of)))]

    def _said(self, kind: type) -> list[Any]:
        """Texts or bytes of a message that was said: another's digest, signature or frame."""
        if not self.heard:
            return []
        return list(_parts(self.one(self.heard), kind))[:3]


def _parts(value: Any, kind: type) -> typing.Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _parts(one, kind)
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from _parts(getattr(value, one.name), kind)


def opened(frame: bytes) -> Any:
    """The message in a frame of a secure sum, whoever signed it; None for other bytes."""
    for decoder in (frames._UP, frames._DOWN):
        try:
            return decoder.decode(frame[frames.SIGNATURE :])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return None


def carried(message: Any) -> Any:
    """The message as the other end reads it; None where the frame layer refuses what its header says.

    What becomes of vectors of another layout, `wire.Assembler` refuses too; machines hold that for themselves, so it
    is left to them.
    """
    try:
        header = wire.VOCABULARY.decoded(wire.VOCABULARY.encoded(message))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, IndexError):  # bytes that cannot be made
        return None
    vectors = getattr(message, "vectors", ())
    return wire.VOCABULARY.message_of(header, tuple(np.array(one) for one in vectors))
