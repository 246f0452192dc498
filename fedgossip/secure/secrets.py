"""The secrets of a client during a session, each in a holder that can be erased and cannot be copied.

A neighbour's sealed shares and mask are computed for all neighbours together, in a few calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, NoReturn, Protocol

from fedgossip.secure import shamir
from fedgossip.secure.aborts import Reason, RoundAbandoned, Stage
from fedgossip.secure.fixed_point import Words, add_streams, subtract_streams
from fedgossip.secure.frames import Keys, commitment
from fedgossip.secure.primitives import (
    Agreement,
    Entropy,
    Secret,
    Sign,
    derive,
    encode_part,
    public_of,
    seal,
    transcript,
    unseal,
)
from fedgossip.secure.session import Descriptor


class Erasable(Protocol):
    def erase(self) -> None: ...


def erase(things: Iterable[Erasable]) -> None:
    for thing in things:
        thing.erase()


@contextmanager
def erased_on_failure(*new: Erasable) -> Iterator[None]:
    """Erase secrets that have no holder so far if handing them on fails, as signing, drawing and sealing may."""
    try:
        yield
    except BaseException:
        erase(new)
        raise


ROW = 32
"""Bytes of a key, and of a share."""


class SecretRows:
    """A secret key for each of some clients, in one holder."""

    __slots__ = ("_all", "clients")

    def __init__(self, clients: Iterable[int], rows: Iterable[bytes]) -> None:
        self.clients = tuple(clients)
        self._all: Secret = Secret(b"".join(rows))

    def read(self) -> dict[int, bytes]:
        """Return the key of each client.  Raises ValueError once they are erased."""
        return dict(zip(self.clients, rows_of(self._all.read(), ROW), strict=True))

    def erase(self) -> None:
        self._all.erase()

    def __repr__(self) -> str:
        return "<secrets>"


class SharePairs:
    """The shares of each client's mask key and of its b, in one holder; only one per client can ever be revealed."""

    __slots__ = ("_pairs", "owners")

    def __init__(self, owners: Iterable[int], pairs: Iterable[bytes]) -> None:
        """`pairs`: for each owner the share of the mask key and that of b, concatenated."""
        self.owners = tuple(owners)
        self._pairs: Secret = Secret(b"".join(pairs))

    def give(self, alive: Set[int]) -> tuple[tuple[int, bool, bytes], ...]:
        """Return (owner, whether alive, share of its b if so, else of its mask key), ascending, and erase all.

        Raises ValueError after that.
        """
        pairs = sorted(zip(self.owners, rows_of(self._pairs.read(), 2 * ROW), strict=True))
        self.erase()
        return tuple([(v, True, pair[ROW:]) if v in alive else (v, False, pair[:ROW]) for v, pair in pairs])

    def erase(self) -> None:
        self._pairs.erase()

    def __repr__(self) -> str:
        return "<shares>"


def rows_of(joined: bytes, size: int) -> list[bytes]:
    """Return the concatenated rows of `size` bytes."""
    return [joined[at : at + size] for at in range(0, len(joined), size)]


@dataclass(slots=True, eq=False, repr=False)
class OwnKeys:
    """A client's secrets of one session: two X25519 keys and the seed of its self mask; and their announcement."""

    c: Secret
    s: Secret
    b: Secret
    public: Keys

    def erase(self) -> None:
        erase((self.c, self.s, self.b))


def fresh_keys(origin: bytes, descriptor: Descriptor, round: int, me: int, sign: Sign, entropy: Entropy) -> OwnKeys:
    """Return new keys for `round`, announced in the session of `origin`."""
    c, s, b = Secret(entropy(32)), Secret(shamir.draw(entropy)), Secret(shamir.draw(entropy))
    with erased_on_failure(c, s, b):
        publics = public_of(c.read()), public_of(s.read()), commitment(origin, me, b.read())
        signature = sign(Keys(me, origin, *publics, bytes(64)).content(descriptor, round))
        return OwnKeys(c, s, b, Keys(me, origin, *publics, signature))


class Ahead:
    """Keys that a masked message announced for the next round; taken once, or erased."""

    __slots__ = ("_own", "_task_id", "round")

    def __init__(self, own: OwnKeys, task_id: str, round: int) -> None:
        self._own: OwnKeys | None = own
        self._task_id, self.round = task_id, round

    @property
    def public(self) -> Keys | None:
        """Return the announcement; None once the keys are taken or erased."""
        return self._own.public if self._own else None

    def take(self, descriptor: Descriptor) -> OwnKeys | None:
        """Return the keys if they were announced for this session; otherwise they are erased."""
        own, d = self._own, descriptor
        if own and (d.previous, d.task_id, d.round) == (own.public.origin, self._task_id, self.round):
            self._own = None
            return own
        self.erase()
        return None

    def erase(self) -> None:
        if self._own:
            self._own.erase()
        self._own = None

    def __repr__(self) -> str:
        return f"<keys for round {self.round}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are neither copied nor pickled")


@dataclass(slots=True, eq=False, repr=False)
class Sharing:
    """Between shares sent and vector masked: the self mask's seed, keys of masks and seals, and the client's shares."""

    b: Secret
    masks: SecretRows
    openers: SecretRows
    own: Secret

    def erase(self) -> None:
        erase((self.b, self.masks, self.openers, self.own))


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """From the masked vector to the end: the held shares, by their owners; the own keys are erased."""

    shares: SharePairs
    survivors: tuple[int, ...] = ()

    def erase(self) -> None:
        self.shares.erase()


@dataclass(slots=True, eq=False, repr=False)
class Ended:
    """Facts without secrets: the survivors, and the clients with revealed shares of each kind."""

    survivors: tuple[int, ...]
    alive: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def erase(self) -> None:
        """Nothing is left to erase."""


# The keys of the masks: one per pair, which cancels in the sum, and one per client, removed by its shares.
#
# Every key is used for one vector of one session: the session's hash is the salt, the length in the info.


@lru_cache(maxsize=128)
def mask_infos(u: int, others: tuple[int, ...], words: int) -> list[tuple[bytes]]:
    """Return the purpose of each mask key of `u` with others; the lower of both adds, the higher subtracts."""
    one, size = encode_part(u), encode_part(words)
    return [(_MASK + (one + encode_part(v) if u < v else encode_part(v) + one) + size,) for v in others]


@lru_cache(maxsize=128)
def seal_infos(u: int, others: tuple[int, ...]) -> list[tuple[bytes, bytes]]:
    """Return the purposes of two keys with each other: for the shares of the lower, and for those of the higher."""
    one = encode_part(u)
    both = [(one, encode_part(v)) if u < v else (encode_part(v), one) for v in others]
    return [(_SEAL + low + high, _SEAL + high + low) for low, high in both]


def self_key(sid: bytes, b: bytes, u: int, words: int) -> bytes:
    """Return the key of the mask that `u` alone adds."""
    return derive(sid, b, "self", u, words)


_MASK, _SEAL = transcript("mask"), transcript("enc")


Sealed = tuple[tuple[int, bytes], ...]
"""Two shares under a seal, by the client at the other end."""


def split(own: OwnKeys, group: Sequence[int], t: int, entropy: Entropy) -> dict[int, bytes]:
    """Share the mask key and b in the group; a member's x is its place in the roster plus one."""
    places = [v + 1 for v in group]
    return dict(zip(group, shamir.split_two(own.s.read(), own.b.read(), places, t, entropy), strict=True))


class PairKeys(NamedTuple):
    """The keys that a client has with each neighbour."""

    seals: dict[int, bytes]
    openers: SecretRows
    masks: SecretRows


def pair_keys(sid: bytes, own: OwnKeys, keys: Mapping[int, Keys], words: int) -> PairKeys:
    """Agree with each neighbour, and derive a key for either's seal and one for a mask of `words` words."""
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
    plains, bound = [pairs[v] for v in seals], [mine + encode_part(v) for v in seals]
    return tuple(zip(seals, seal([*seals.values()], plains, bound), strict=True))


def opened(sid: bytes, me: int, held: Sharing, message: Sealed) -> SharePairs:
    """Open every seal; return the shares, including the client's.

    Raises RoundAbandoned (AEAD) with the sender of the first seal that does not open.
    """
    openers, owners = held.openers.read(), [v for v, _ in message]
    if strangers := [v for v in owners if v not in openers]:
        v = strangers[0]
        raise RoundAbandoned(Reason.ROSTER, f"shares of {v}, who has no keys here", peer=v, stage=Stage.MASKED)
    if len(set(owners)) < len(owners):
        v = next(v for v in owners if owners.count(v) > 1)
        raise RoundAbandoned(Reason.TWICE, f"shares of {v} twice", peer=v, stage=Stage.MASKED)
    share, mine = transcript("share", sid), encode_part(me)
    bound = [share + encode_part(v) + mine for v in owners]
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
