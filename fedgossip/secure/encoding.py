"""Encoding of contributions as integers of the ring, as sessions see it: `FixedPoint`, `ExactSums`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedgossip.base.vectors import Vector
from fedgossip.secure.fixed_point import DecodedSum, Quantised
from fedgossip.secure.primitives import Entropy
from fedgossip.secure.ring import Words


class RingEncoding(Protocol):
    """The encoding, equal at every client and pinned by each."""

    @property
    def length(self) -> int:
        """Number of elements of an update."""
        ...

    @property
    def words(self) -> int:
        """Number of coordinates of the masked vector."""
        ...

    @property
    def ring_bits(self) -> int:
        """Return the number of bits of a number."""
        ...

    @property
    def schema(self) -> bytes:
        """Return the hash of the coordinates: of their number, order and meaning."""
        ...

    @property
    def together(self) -> bool:
        """Return whether all sums of a run, and of later runs with the same numbers, are over the same clients."""
        ...

    @property
    def clip_l2(self) -> float: ...
    @property
    def clip_inf(self) -> float: ...
    @property
    def weight_max(self) -> int: ...
    @property
    def q_bits(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def tells(self) -> str: ...
    @property
    def metrics(self) -> tuple[tuple[str, float], ...]: ...

    def clipped_at(self, clip: float) -> RingEncoding:
        """Return the same encoding with another clip."""
        ...

    def check_sum(self, n: int, sigma: float = 0.0) -> None:
        """Raise RoundAbandoned where the sum of `n` clients with noise `sigma` could wrap around."""
        ...

    def encode(self, update: Vector, samples: int, metrics: Mapping[str, float], entropy: Entropy) -> Quantised:
        """Return the client's coordinates.  Raises RoundAbandoned."""
        ...

    def clients_in(self, total: Words) -> int:
        """Return the number of clients that a sum states in its count: each client adds one."""
        ...

    def decode(self, total: Words, clients: int, sigma: float = 0.0, bit_sigma: float = 0.0) -> DecodedSum:
        """Return the values in the sum over `clients`.  Raises RoundAbandoned."""
        ...
