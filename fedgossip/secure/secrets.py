"""The secrets of a client during a session, each in a holder that can be erased and cannot be copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
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
    """Erase secrets that nobody holds yet where handing them on fails, as signing, drawing and sealing may."""
    try:
        yield
    except BaseException:
        erase(new)
        raise


class Survival(Enum):
    """The fate of a client, said once: it survives, or it does not."""

    ALIVE = "alive"
    DEAD = "dead"


@dataclass(slots=True, eq=False, repr=False)
class SharePair:
    """The shares of one client's b and of its mask key, of which only one can ever be given."""

    of_b: Secret
    of_key: Secret

    @classmethod
    def unpacked(cls, plain: bytes) -> SharePair:
        """Return the pair of a sealed text: the share of the mask key, the share of b."""
        return cls(of_b=Secret(plain[32:]), of_key=Secret(plain[:32]))

    def packed(self) -> bytes:
        return self.of_key.read() + self.of_b.read()

    def give(self, fate: Survival) -> bytes:
        """Return the share for this fate; both are erased, so that no other fate can be said of the same client."""
        share = (self.of_b if fate is Survival.ALIVE else self.of_key).read()
        self.erase()
        return share

    def erase(self) -> None:
        self.of_b.erase()
        self.of_key.erase()


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
    """Keys that a masked message has announced for the next round; taken once, or erased."""

    __slots__ = ("_own", "_task_id", "round")

    def __init__(self, own: OwnKeys, task_id: str, round: int) -> None:
        self._own: OwnKeys | None = own
        self._task_id, self.round = task_id, round

    @property
    def public(self) -> Keys | None:
        """The announcement; None once the keys are taken or erased."""
        return self._own.public if self._own else None

    def take(self, descriptor: Descriptor) -> OwnKeys | None:
        """Return the keys if this is the session that they were announced for; otherwise they are erased."""
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
    """Between shares sent and vector masked: the seed of the own mask, what was agreed on with each neighbour for the
    masks, the keys that open each neighbour's seal, and the shares held."""

    b: Secret
    agreed: dict[int, Secret]
    openers: dict[int, Secret]
    shares: dict[int, SharePair]

    def erase(self) -> None:
        erase((self.b, *self.agreed.values(), *self.openers.values(), *self.shares.values()))


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """From the masked vector to the end: the shares held, by their owners; the own keys are erased."""

    shares: dict[int, SharePair]
    survivors: tuple[int, ...] = ()

    def erase(self) -> None:
        erase(self.shares.values())


@dataclass(slots=True, eq=False, repr=False)
class Ended:
    """Facts that are not secret: the survivors, and the clients whose shares of each kind were given."""

    survivors: tuple[int, ...]
    alive: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def erase(self) -> None:
        """Nothing is left to erase."""
