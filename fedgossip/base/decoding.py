"""Decoding of untrusted bytes: messages, frames, logs, traces, checkpoints, files.

Too deep nesting is refused before decoding: decoders recurse once per level.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

DEPTH_MAX = 32
"""Maximum depth of nested lists and maps.  fedgossip writes at most 9."""

INTEGER_BITS = 64
"""Maximum number of bits of a whole number in TOML, whose standard has as many: Python prints no longer ones."""

DIGITS = 300
"""Number of digits that no number in JSON has: larger whole numbers are none of float64."""

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}[ \t]*+\.[ \t]*+){{{DEPTH_MAX}}}{_PART}")
"""A dotted key of TOML with more parts than `DEPTH_MAX`."""

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class UnreadableError(ValueError):
    """Invalid bytes; the message is one line, which may quote them."""


class Decoder(Protocol[T_co]):
    """A decoder of msgspec, for messages of one type."""

    def decode(self, body: bytes, /) -> T_co: ...


def from_msgpack(decoder: Decoder[T], body: bytes) -> T:
    """Decode msgpack.  Raises UnreadableError."""
    _check_msgpack(body)
    return _decoded(decoder.decode, body)


def from_json(decoder: Decoder[T], text: bytes) -> T:
    """Decode JSON.  Raises UnreadableError."""
    _check_json(text)
    return _decoded(decoder.decode, text)


def json_value(text: bytes | str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Decode JSON whose integers may exceed 64 bits, within DIGITS, and whose numbers may be nan.

    Raises UnreadableError.
    """
    _check_json(text.encode(errors="replace") if isinstance(text, str) else text)
    return _decoded(lambda whole: json.loads(whole, parse_constant=parse_constant), text)


def from_toml(text: str) -> dict[str, Any]:
    """Parse TOML.  Raises tomllib.TOMLDecodeError with the position for invalid text."""
    if _LONG_KEY.search(text):  # before: tomllib takes minutes for a key of 30 000 parts
        raise _too_deep(tomllib.TOMLDecodeError)
    try:
        tables = tomllib.loads(text)
    except RecursionError:  # tomllib is pure Python: its recursion limit is reached before the stack overflows
        raise _too_deep(tomllib.TOMLDecodeError) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number with more digits than Python converts
        raise tomllib.TOMLDecodeError(str(error)) from None
    level: list[Any] = [tables]
    for _ in range(DEPTH_MAX):
        level = [one for value in level for one in _parts(value)]
    if level:
        raise _too_deep(tomllib.TOMLDecodeError)
    return tables


def _parts(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if any(isinstance(one, int) and one.bit_length() > INTEGER_BITS for one in inner):
        raise tomllib.TOMLDecodeError(f"a whole number of more than {INTEGER_BITS} bits")
    return (one for one in inner if isinstance(one, dict | list))


def _decoded(decode: Callable[[Any], T], content: Any) -> T:
    from msgspec import MsgspecError  # costs more than this module

    try:
        return decode(content)
    except RecursionError:
        raise _too_deep(UnreadableError) from None
    except (MsgspecError, ValueError) as error:  # ValueError: invalid UTF-8
        raise UnreadableError(str(error)) from None


def _too_deep(kind: type[ValueError]) -> ValueError:
    return kind(f"lists and maps in one another, more than {DEPTH_MAX} deep")


# --- msgpack ----------------------------------------------------------------------------------------------------------

_HOLDERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""First bytes of lists and maps."""
_OTHERS = bytes(sorted(set(range(256)) - set(_HOLDERS)))

_FIXED = {0xC0: 0, 0xC1: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_FIXED |= {0xA0 + size: size for size in range(32)}
"""Number of bytes after the first one."""
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""Number of bytes of the size, and number of bytes between it and the content."""
_LONG_HOLDERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Number of bytes of the entry count, and number of values per entry."""


def _flat() -> re.Pattern[bytes]:
    values = [rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]"]
    values += (rb"[\xcc\xd0].", rb"[\xcd\xd1].{2}", rb"[\xca\xce\xd2].{4}")
    values += (rb"\xc4%b.{%d}" % (re.escape(bytes([size])), size) for size in (32, 64, 80))
    values += (rb"%b.{%d}" % (bytes([0xA0 + size]), size) for size in range(32))
    value = rb"(?:%b)" % b"|".join(values)
    lists = (rb"%b%b{%d}" % (bytes([0x90 + size]), value, size) for size in range(5))
    maps = (rb"%b%b{%d}" % (bytes([0x80 + size]), value, 2 * size) for size in range(9))
    return re.compile(b"|".join((*lists, *maps)), re.DOTALL)


_FLAT = _flat()


def _check_msgpack(body: bytes) -> None:
    """Raise UnreadableError for too deep nesting; truncation is left to the decoder."""
    if len(body.translate(None, _OTHERS)) <= DEPTH_MAX:  # the usual case: fewer container bytes than levels
        return
    at, left = 0, list[int]()  # number of missing values of each open list or map
    while at < len(body):
        head, values = body[at], 0
        flat = _FLAT.match(body, at) if head in _HOLDERS and len(left) < DEPTH_MAX else None
        at += 1
        if flat:
            at = flat.end()
        elif head in _SIZED:
            width, more = _SIZED[head]
            at += width + more + int.from_bytes(body[at : at + width], "big")
        elif head in _LONG_HOLDERS:
            width, each = _LONG_HOLDERS[head]
            values = each * int.from_bytes(body[at : at + width], "big")
            at += width
        elif 0x80 <= head < 0xA0:
            values = head & 15 if head >= 0x90 else 2 * (head & 15)
        else:
            at += _FIXED.get(head, 0)
        if values:
            left.append(values)
            if len(left) > DEPTH_MAX:
                raise _too_deep(UnreadableError)
            continue
        while left:
            left[-1] -= 1
            if left[-1]:
                break
            left.pop()


# --- JSON -------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{%d}" % DIGITS)


def _check_json(text: bytes) -> None:
    if _LONG_NUMBER.search(text) and _LONG_NUMBER.search(_TOKEN.sub(b"", text)):
        raise UnreadableError(f"a number of {DIGITS} digits or more")
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"[", b"{"):
            depth += 1
            if depth > DEPTH_MAX:
                raise _too_deep(UnreadableError)
        elif mark in (b"]", b"}"):
            depth -= 1
