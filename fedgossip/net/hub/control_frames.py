"""Control frames between coordinator and client, below all messages: a mark and an empty body.

b"A" + transfer (u32) + 0    client: may I send message `transfer`?  It has more than one chunk: `upload_slots`
b"G" + transfer (u32) + 0    coordinator: yes, go
b"T" + 0        + 0          coordinator: another process with your key is connected, and was here before
b"N" + 0        + 0          coordinator: nothing; but TCP must bring it, or notice that it cannot
"""

from __future__ import annotations

import struct

from fedgossip.net.links.outbox import Pair

_WORD = struct.Struct("<cII")

ASK, GO, TWIN, NOTHING = b"A", b"G", b"T", b"N"

CHUNK = b"C"
"""The kind of frames that carry a chunk; see wire."""

ANSWERS = (GO, TWIN, NOTHING)
"""Kinds of frames that a client may receive."""


def word(kind: bytes, transfer: int = 0) -> Pair:
    return _WORD.pack(kind, transfer, 0), b""


def parse(mark: bytes) -> tuple[bytes, int]:
    """Return (kind, transfer) of a mark; (b"", 0) for a malformed one."""
    if len(mark) != _WORD.size:
        return b"", 0
    kind, transfer, _ = _WORD.unpack(mark)
    return kind, transfer
