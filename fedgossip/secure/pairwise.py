"""Shares under a seal, and a mask that cancels in the sum, for each neighbour of a client.

All neighbours' parts are computed together: a step makes a few calls for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fedgossip.secure import shamir
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.frames import Keys
from fedgossip.secure.primitives import Agreement, Entropy, derive, named, seal, transcript, unseal
from fedgossip.secure.ring import Words, add_streams, subtract_streams
from fedgossip.secure.secrets import OwnKeys, SecretRows, SharePairs, Sharing

# The keys of the masks: one per pair, which cancels in the sum, and one per client, removed by its shares.
#
# Every key is used for one vector of one session: the session's hash is the salt, the length in the info.


@lru_cache(maxsize=128)
def mask_infos(u: int, others: tuple[int, ...], words: int) -> list[tuple[bytes]]:
    """Return the purpose of the key of the mask that `u` shares with each other, derived from the agreed mask keys.

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


Sealed = tuple[tuple[int, bytes], ...]
"""Two shares under a seal, by the client at the other end."""


def split(own: OwnKeys, group: Sequence[int], t: int, entropy: Entropy) -> dict[int, bytes]:
    """Share the mask key and b among the group; a member's x is its place in the roster plus one."""
    places = [v + 1 for v in group]
    return dict(zip(group, shamir.split_two(own.s.read(), own.b.read(), places, t, entropy), strict=True))


class PairKeys(NamedTuple):
    """The keys that a client has with each neighbour."""

    seals: dict[int, bytes]
    openers: SecretRows
    masks: SecretRows


def pair_keys(sid: bytes, own: OwnKeys, keys: Mapping[int, Keys], words: int) -> PairKeys:
    """Agree with each neighbour, and derive a key for either's seal and one for a mask of so many words."""
    me = own.public.client
    others = tuple(sorted(keys.keys() - {me}))
    c_pks, s_pks = [keys[v].c_pk for v in others], [keys[v].s_pk for v in others]
    both = Agreement(own.c.read(), own.public.c_pk).keys(c_pks, sid, seal_infos(me, others))
    masks = Agreement(own.s.read(), own.public.s_pk).keys(s_pks, sid, mask_infos(me, others, words))
    seals = {v: of_lower if me < v else of_higher for v, (of_lower, of_higher) in zip(others, both, strict=True)}
    openers = [of_higher if me < v else of_lower for v, (of_lower, of_higher) in zip(others, both, strict=True)]
    return PairKeys(seals, SecretRows(others, openers), SecretRows(others, [key for (key,) in masks]))


def sealed(sid: bytes, me: int, seals: Mapping[int, bytes], pairs: Mapping[int, bytes]) -> Sealed:
    """Return each neighbour's shares under the seal for it alone, bound to the session, the sender and the receiver."""
    mine = transcript("share", sid, me)
    plains, bound = [pairs[v] for v in seals], [mine + named(v) for v in seals]
    return tuple(zip(seals, seal([*seals.values()], plains, bound), strict=True))


def opened(sid: bytes, me: int, held: Sharing, message: Sealed) -> SharePairs:
    """Open every seal; return the shares with one's own.

    Raises RoundAbandoned (AEAD) naming the first that does not open.
    """
    openers, owners = held.openers.read(), [v for v, _ in message]
    if strangers := [v for v in owners if v not in openers]:
        v = strangers[0]
        raise RoundAbandoned(Reason.ROSTER, f"shares of {v}, who has no keys here", peer=v, stage=Stage.MASKED)
    if len(set(owners)) < len(owners):
        v = next(v for v in owners if owners.count(v) > 1)
        raise RoundAbandoned(Reason.TWICE, f"shares of {v} twice", peer=v, stage=Stage.MASKED)
    share, mine = transcript("share", sid), named(me)
    bound = [share + named(v) + mine for v in owners]
    pairs = [held.own.read()]
    plains = unseal([openers[v] for v in owners], [text for _, text in message], bound)
    for v, plain in zip(owners, plains, strict=True):
        if plain is None:
            raise RoundAbandoned(Reason.AEAD, f"what {v} sealed does not open", peer=v, stage=Stage.MASKED)
        pairs.append(plain)
    return SharePairs([me, *owners], pairs)


def add_masks(words: Words, sid: bytes, me: int, held: Sharing, owners: Sequence[int], width: int) -> None:
    """Add the own mask, and one per neighbour that sent shares: + towards higher ids, - towards lower."""
    keys = held.masks.read()
    add_streams(words, [self_key(sid, held.b.read(), me, words.size), *(keys[v] for v in owners if v > me)], width)
    subtract_streams(words, [keys[v] for v in owners if v < me], width)
