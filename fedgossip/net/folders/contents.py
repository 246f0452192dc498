"""A message as the content of a sealed file, and back: the length of its header, the header, its vectors."""

from __future__ import annotations

import struct

from fedgossip.core.messages import AnyMessage
from fedgossip.core.wire import Assembler, FrameError, chunks, packed

_LENGTH, _MARK = struct.Struct("<I"), struct.Struct("<cII")


def content_of(message: AnyMessage) -> bytes:
    """Return a message as bytes."""
    header = packed(message).header
    return b"".join([_LENGTH.pack(len(header)), header, *chunks(message)])


def message_in(content: bytes, assembler: Assembler) -> AnyMessage:
    """Return the message of `content_of`.  Raises FrameError."""
    view = memoryview(content)
    if len(view) < _LENGTH.size:
        raise FrameError("truncated", f"a message of {len(view)} bytes")
    (length,) = _LENGTH.unpack_from(view)
    at = _LENGTH.size + length
    assembler.mark(_MARK.pack(b"H", 1, 0))
    message = assembler.header(bytes(view[_LENGTH.size : at]))
    index = 0
    while message is None:
        target = assembler.mark(_MARK.pack(b"C", 1, index))
        assert target is not None
        piece = view[at : at + len(target)]
        target[: len(piece)] = piece
        message = assembler.landed(len(piece))
        at, index = at + len(piece), index + 1
    if at != len(view):
        raise FrameError("truncated", f"{len(view) - at} bytes after the end of a message")
    return message
