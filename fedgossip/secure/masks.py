"""The keys of the masks: one per pair, which cancels in the sum, and one per client, which its shares take off.

Every key is used for one vector of one session: the session's hash is the salt, the length in the info.
"""

from __future__ import annotations

from fedgossip.secure.primitives import derive


def mask_key(sid: bytes, shared: bytes, u: int, v: int, words: int) -> bytes:
    """Return the key of the mask that `u` and `v` share: added by the lower of them, subtracted by the other."""
    return derive(sid, shared, "mask", min(u, v), max(u, v), words)


def self_key(sid: bytes, b: bytes, u: int, words: int) -> bytes:
    """Return the key of the mask that `u` alone adds."""
    return derive(sid, b, "self", u, words)
