"""Secrets shared by two peers alone, and the mask keys derived from them.

Each process of a peer draws a key of its own (X25519) for the run, signs it with the peer's identity (Ed25519), and
sends it to its neighbours, which forward it to theirs: those are the peers that send to a common receiver.  Pair keys
are derived from these keys and from the long-term ones of their links: theft of the long-term keys later opens no mask
of a finished run, for the others are stored nowhere.

A key of a mask is of the run, the two senders, the receiver, the round and the length: HKDF with the run as salt
and the rest in the info, so that no two vectors are masked with one key while no peer masks twice in one round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.core.messages import RunKey
from fedgossip.secure.primitives import (
    Agreement,
    Entropy,
    Secret,
    Sign,
    derive,
    digest,
    public_of,
    small_order,
    transcript,
    verify,
)


class Pairs(Protocol):
    """One peer's share in all its pairs."""

    def told(self, of: Iterable[int]) -> Sequence[RunKey]:
        """Return the keys to send to a neighbour: one's own, and the known ones of these peers."""
        ...

    def news(self, key: RunKey) -> bool:
        """Return whether the key is new.  Raises ProtocolError for one without its owner's signature."""
        ...

    def take(self, key: RunKey) -> None:
        """Use this new key for masks with its owner from now on."""
        ...

    def knows(self, other: int) -> bool:
        """Return whether masks with this peer are possible."""
        ...

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of the mask that this peer and `other` put on their messages to `receiver`."""
        ...


def run_of(*parts: str) -> bytes:
    """Return the hash of the data that a run's peers must share."""
    return digest("private run", *parts)


def _key(run: bytes, shared: bytes, u: int, v: int, receiver: int, round: int, words: int) -> bytes:
    return derive(run, shared, "gossip mask", min(u, v), max(u, v), receiver, round, words)


@dataclass(frozen=True)
class Own:
    """A peer in one process: the X25519 key of its links, its signing function, and the source of its new key."""

    node: int
    incarnation: int
    secret: bytes = field(repr=False)
    sign: Sign = field(repr=False)
    entropy: Entropy = field(repr=False)


@dataclass(frozen=True)
class Other:
    """Another peer: its long-term keys of links (X25519) and of signatures (Ed25519), 32 bytes each."""

    link: bytes
    identity: bytes


class AgreedPairs:
    """The pairs of a real run.  Raises ConfigError for a public key that gives every peer the same secret."""

    def __init__(self, own: Own, others: Mapping[int, Other], run: bytes) -> None:
        self._node, self._run, self._others = own.node, run, others
        agreement, self._lasting = Agreement(own.secret), dict[int, Secret]()
        for other, keys in others.items():
            try:
                self._lasting[other] = Secret(agreement.with_(keys.link))
            except ValueError:
                advice = "Ask its owner for the key that `fedgossip keys show` prints."
                raise ConfigError(f"the public key of peer {other} is none", advice) from None
        fresh = own.entropy(32)
        self._fresh = Agreement(fresh)
        unsigned = RunKey(own.node, own.incarnation, public_of(fresh).hex())
        signature = own.sign(self._content(unsigned))
        self._own = RunKey(own.node, own.incarnation, unsigned.public, signature.hex())
        self._known: dict[int, RunKey] = {}
        self._shared: dict[int, Secret] = {}

    def _content(self, key: RunKey) -> bytes:
        return transcript("run key", self._run, key.node, key.incarnation, key.public)

    def told(self, of: Iterable[int]) -> Sequence[RunKey]:
        return [self._own, *(self._known[node] for node in of if node in self._known)]

    def news(self, key: RunKey) -> bool:
        """Store another peer's key if new.  Raises ProtocolError for an unsigned or invalid key."""
        if key.node == self._node:
            return False
        if key.node not in self._others:
            raise ProtocolError(f"a key of peer {key.node}, which is in no roster here")
        before = self._known.get(key.node)
        if before and before.incarnation >= key.incarnation:
            return False
        try:
            public, signature = bytes.fromhex(key.public), bytes.fromhex(key.signature)
        except ValueError:
            raise ProtocolError(f"a key of peer {key.node} that is none") from None
        if not verify(self._others[key.node].identity, signature, self._content(key)):
            raise ProtocolError(f"a key of peer {key.node} that it has not signed", "Have all the same endpoints.toml?")
        if len(public) != 32 or small_order(public):
            raise ProtocolError(f"a key of peer {key.node} that is none")
        return True

    def take(self, key: RunKey) -> None:
        agreed = self._fresh.with_(bytes.fromhex(key.public))
        self._known[key.node] = key
        self._shared[key.node] = Secret(digest("gossip pair", self._lasting[key.node].read(), agreed))

    def knows(self, other: int) -> bool:
        return other in self._shared

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of one mask; raises KeyError without the other's key."""
        return _key(self._run, self._shared[other].read(), self._node, other, receiver, round, words)

    def __repr__(self) -> str:
        return "<pairs>"


@dataclass(frozen=True)
class SeededPairs:
    """The pairs of a simulation, from its seed: masks cancel as real ones do, and hide nothing; no key is sent."""

    node: int
    seed: int = field(repr=False)

    def told(self, of: Iterable[int]) -> Sequence[RunKey]:  # noqa: ARG002
        return ()

    def news(self, key: RunKey) -> bool:
        """Refuse any key: those of a simulation follow from its seed.  Raises ProtocolError."""
        raise ProtocolError(f"a key of peer {key.node} in a simulation, whose keys follow from the seed")

    def take(self, key: RunKey) -> None:
        raise AssertionError(f"a key of peer {key.node} was no news")

    def knows(self, other: int) -> bool:  # noqa: ARG002
        return True

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of one mask."""
        u, v = min(self.node, other), max(self.node, other)
        shared = digest("simulated pair", self.seed, u, v)
        return _key(run_of("simulated"), shared, u, v, receiver, round, words)
