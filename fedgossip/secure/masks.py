"""The keys of the masks: one per pair, which cancels in the sum, and one per client, which its shares take off.

Every key is used for one vector of one session: the session's hash is the salt, the length in the info.
"""

from __future__ import annotations

from functools import lru_cache

from fedgossip.secure.primitives import derive, named, transcript


@lru_cache(maxsize=128)
def mask_infos(u: int, others: tuple[int, ...], words: int) -> list[tuple[bytes]]:
    """Return the purpose of the key of the mask that `u` shares with each other, from what their mask keys agree on.

    The lower of both adds the mask, the higher subtracts it.
    """
    one, size = named(u), named(words)
    return [(_MASK + (one + named(v) if u < v else named(v) + one) + size,) for v in others]


@lru_cache(maxsize=128)
def seal_infos(u: int, others: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
    """Return the purposes of two keys with each other: for the shares of the lower, and for those of the higher."""
    one = named(u)
    both = [(one, named(v)) if u < v else (named(v), one) for v in others]
    return [(_SEAL + low + high, _SEAL + high + low) for low, high in both]


def self_key(sid: bytes, b: bytes, u: int, words: int) -> bytes:
    """Return the key of the mask that `u` alone adds."""
    return derive(sid, b, "self", u, words)


_MASK, _SEAL = transcript("mask"), transcript("enc")
