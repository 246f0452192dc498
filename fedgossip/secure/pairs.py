"""Secrets shared by two peers alone, and the mask keys derived from them.

Each process of a peer draws a key (X25519) for the run, signs it (Ed25519), and sends it to its neighbours, which
forward it to theirs.  Pair keys derive from these and the links' long-term keys: later theft of those opens no mask.  A
mask's key is of the run, both senders, the receiver, the round and the length (HKDF, the run as salt): one key for one
vector while no peer masks twice in a round.

By them a node learns the weighted sum of its neighbours' models:

    v sends to j       Q(w_jv x_v) + masks              Q(x) = round(x / unit), an integer modulo 2^32
    masks              + PRG(k_uv) for each other sender u > v to j, - for each u < v: they cancel in the sum over S_j
    j                  x_j  <-  x_j + unit (sum of received - sum over its neighbours v of Q(w_jv x_j))

The change over an edge is Q(w x_v) - Q(w x_j) in j, and its exact opposite in v: no rounding moves the mean.  A model
beyond the bound is refused, not clipped.  A sum with a missing vector stays noise, detected by the words after the
model (`opened`).

Source: pairwise masks, Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017,
section 4; without second mask and shares, as no peer retries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import BLOCK, RowGroups, Vector, empty, frozen
from fedgossip.core.messages import CHECK_WORDS, RunKey
from fedgossip.secure.fixed_point import Words
from fedgossip.secure.primitives import (
    Agreement,
    Entropy,
    Secret,
    Sign,
    derive,
    digest,
    keystream,
    public_of,
    small_order,
    transcript,
    verify,
)


class Pairs(Protocol):
    """One peer's share in all its pairs."""

    def keys_for(self, of: Iterable[int]) -> Sequence[RunKey]:
        """Return the keys to send to a neighbour: one's own, and the known ones of these peers."""

    def news(self, key: RunKey) -> bool:
        """Return whether the key is new.  Raises ProtocolError for one without its owner's signature."""

    def take(self, key: RunKey) -> None:
        """Use this new key for masks with its owner from now on."""

    def knows(self, other: int) -> bool:
        """Return whether masks with this peer are possible."""

    def key(self, other: int, receiver: int, round: int, words: int) -> bytes:
        """Return the key of the mask that this peer and `other` put on their messages to `receiver`."""


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
                self._lasting[other] = Secret(agreement.agree(keys.link))
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

    def keys_for(self, of: Iterable[int]) -> Sequence[RunKey]:
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
        agreed = self._fresh.agree(bytes.fromhex(key.public))
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

    def keys_for(self, of: Iterable[int]) -> Sequence[RunKey]:  # noqa: ARG002
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


BITS = 30
"""Bits of a number with its sign: a row's weights sum to one, and the difference of two sums fits into 32 bits."""

LIMIT = (1 << (BITS - 1)) - 1


@dataclass(frozen=True)
class Grid:
    """Numbers from -bound to bound as integers; the same for all peers.  Raises ConfigError."""

    bound: float

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ConfigError(f"algorithm.bound = {self.bound}", "Set it above the largest weight of any model.")

    @property
    def unit(self) -> float:
        """Return the value of the integer 1; for numbers above bound / 64 finer than the step of float32."""
        return self.bound / LIMIT

    def find_excess(self, vector: Vector) -> float | None:
        """Return a vector's largest magnitude if beyond the bound or not finite; None for a vector within it."""
        largest = max(abs(float(vector.max())), abs(float(vector.min())))
        return None if largest <= self.bound else largest  # both comparisons fail for nan

    def quantise(self, vector: Vector, weight: float) -> Words:
        """Return Q(weight * vector), [d], a new array.  The vector is within the bound, the weight in [0, 1]."""
        out = words_of(vector.size)
        signed, scale = out.view(np.int32), self._scale(weight)
        rounded = np.empty(min(BLOCK, vector.size), np.float64)
        for start in range(0, vector.size, BLOCK):
            block = vector[start : start + BLOCK]
            numbers = rounded[: block.size]
            np.multiply(block, scale, out=numbers, dtype=np.float64)
            np.rint(numbers, out=numbers)
            signed[start : start + BLOCK] = numbers
        return out

    def possible(self, received: Words, senders: int) -> bool:
        """Return whether `senders` neighbours within the bound can have sent this sum: weights of 1 together, half a
        unit of rounding each.
        """
        signed, most = received.view(np.int32), LIMIT + senders
        return int(signed.max()) <= most and -int(signed.min()) <= most

    def moved(self, vector: Vector, received: Words, gone: Words) -> Vector:
        """Return vector + unit * (come - gone), the difference centred about 0; a new frozen vector."""
        out = empty(vector.size, vector.dtype)
        difference, sums = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float64)
        for start in range(0, vector.size, BLOCK):
            here, block = slice(start, start + BLOCK), vector[start : start + BLOCK]
            by, numbers = difference[: block.size], sums[: block.size]
            np.subtract(received[here], gone[here], out=by)
            np.multiply(by.view(np.int32), self.unit, out=numbers)
            np.add(numbers, block, out=numbers)
            out[here] = numbers
        return frozen(out)

    def moved_rows(self, groups: RowGroups, stacked: Vector, out: Vector) -> None:
        """Write the round's result for all nodes at once: the bits of `quantise` and `moved`.  [n, d], two arrays."""
        n, d = stacked.shape
        width = max(64, min(d, (1 << 18) // n))
        for start in range(0, d, width):
            block = stacked[:, start : start + width].astype(np.float64)
            for nodes, ids, weights in groups:
                own = block[nodes]
                by = np.zeros_like(own)  # whole numbers below 2^53: any order gives these bits
                for others, weight in zip(ids.T, weights.T, strict=True):
                    scale = np.where(others == nodes, 0.0, self._scale(weight))[:, None]
                    by += np.rint(block[others] * scale)
                    by -= np.rint(own * scale)
                by *= self.unit
                by += own
                out[nodes, start : start + width] = by

    def _scale(self, weight: float | npt.NDArray[np.float64]) -> float | npt.NDArray[np.float64]:
        return weight * (LIMIT / self.bound)


def words_of(length: int) -> Words:
    """Return uninitialised words, in warm memory if available."""
    return empty(length, np.uint32).view(np.uint32)


def masked(whole: Words, added: Iterable[bytes], subtracted: Iterable[bytes]) -> Words:
    """Return the words to send, [d + CHECK_WORDS]: the integers and a sender count of 1, under a stream of each key."""
    total = words_of(whole.size + CHECK_WORDS)
    streams = [(keystream(key), np.add) for key in added] + [(keystream(key), np.subtract) for key in subtracted]
    zeros, buffer = memoryview(bytes(4 * BLOCK)), np.empty(BLOCK, "<u4")
    for start in range(0, total.size, BLOCK):  # a block passes through memory once for all streams
        block, part = total[start : start + BLOCK], whole[start : start + BLOCK]
        block[: part.size] = part
        block[part.size :] = 1
        mask = buffer[: block.size]
        for stream, operation in streams:
            stream.update_into(zeros[: mask.nbytes], mask.view(np.uint8).data)
            operation(block, mask, out=block)
    return total


def opened(total: Words, senders: int) -> Words | None:
    """Return the sum, [d], a view; None if masks are left in it: noise passes with a chance of 2^-128."""
    length = total.size - CHECK_WORDS
    return total[:length] if bool((total[length:] == senders).all()) else None
