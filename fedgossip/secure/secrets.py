"""The secrets of a client during a session, each in a holder that can be erased and cannot be copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol

from fedgossip.secure import shamir
from fedgossip.secure.frames import Keys, commitment
from fedgossip.secure.primitives import Entropy, Secret, Sign, public_of
from fedgossip.secure.session import Descriptor


class Erasable(Protocol):
    def erase(self) -> None: ...


def erase(things: Iterable[Erasable]) -> None:
    for thing in things:
        thing.erase()


@contextmanager
def erased_on_failure(*new: Erasable) -> Iterator[None]:
    """Erase secrets without a holder yet where handing them on fails, as signing, drawing and sealing may."""
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
        self._all = Secret(b"".join(rows))

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
        self._pairs = Secret(b"".join(pairs))

    def give(self, alive: Set[int]) -> tuple[tuple[int, bool, bytes], ...]:
        """Return (owner, whether it is alive, the share of its b if so and of its mask key if not), ascending.

        All are erased, so that no further share can be revealed.  Raises ValueError after that.
        """
        pairs = sorted(zip(self.owners, rows_of(self._pairs.read(), 2 * ROW), strict=True))
        self.erase()
        return tuple([(v, True, pair[ROW:]) if v in alive else (v, False, pair[:ROW]) for v, pair in pairs])

    def erase(self) -> None:
        self._pairs.erase()

    def __repr__(self) -> str:
        return "<shares>"


def rows_of(joined: bytes, size: int) -> list[bytes]:
    """Return the concatenated rows of so many bytes."""
    return [joined[at : at + size] for at in range(0, len(joined), size)]


@dataclass(slots=True, eq=False, repr=False)
class OwnKeys:
    """A client's secrets of one session: two X25519 keys and the seed of its own mask; and their announcement."""

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
    """Between shares sent and vector masked: the seed of the own mask, the keys of the masks with each neighbour and
    of its seal, and the client's own share of its own secrets."""

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
    """Facts that are not secret: the survivors, and the clients with revealed shares of each kind."""

    survivors: tuple[int, ...]
    alive: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def erase(self) -> None:
        """Nothing is left to erase."""
