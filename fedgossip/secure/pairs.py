"""What two peers share with nobody else, and the keys of the masks that they make of it.

Two peers agree on their secret from the long-term keys of their links (X25519), without a word: each knows all public
keys.  A key of a mask is of the run, the two senders, the receiver, the round and the length: HKDF with the run as salt
and the rest in the info, so that no two vectors are masked with one key as long as nobody masks twice in one round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedgossip.errors import ConfigError
from fedgossip.secure.primitives import Agreement, Secret, derive, digest


class Pairs(Protocol):
    """One peer's share in all its pairs."""

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of the mask that this peer and `other` put on what they send to `receiver`."""
        ...


def run_of(*parts: str) -> bytes:
    """Return the hash of a run: what its peers must have in common."""
    return digest("private run", *parts)


def _key(run: bytes, shared: bytes, u: int, v: int, receiver: int, round: int, words: int) -> bytes:
    return derive(run, shared, "gossip mask", min(u, v), max(u, v), receiver, round, words)


class AgreedPairs:
    """Those of a real run: `secret` is this peer's X25519 key, `public` those of the others, 32 bytes each.

    Raises ConfigError for a public key with which everybody would agree on the same.
    """

    def __init__(self, node: int, secret: bytes, public: Mapping[int, bytes], run: bytes) -> None:
        agreement = Agreement(secret)
        self._node, self._run = node, run
        self._shared: dict[int, Secret] = {}
        for other, key in public.items():
            try:
                self._shared[other] = Secret(agreement.with_(key))
            except ValueError:
                advice = "Ask its owner for the key that `fedgossip keys show` prints."
                raise ConfigError(f"the public key of peer {other} is none", advice) from None

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of one mask; raises KeyError for a stranger."""
        return _key(self._run, self._shared[other].read(), self._node, other, receiver, round, words)

    def __repr__(self) -> str:
        return "<pairs>"


@dataclass(frozen=True)
class SeededPairs:
    """Those of a simulation, from its seed: they cancel as the real ones do, and hide nothing."""

    node: int
    seed: int = field(repr=False)

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of one mask."""
        u, v = min(self.node, other), max(self.node, other)
        shared = digest("simulated pair", self.seed, u, v)
        return _key(run_of("simulated"), shared, u, v, receiver, round, words)
