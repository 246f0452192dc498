"""The meaning of an unmasked sum of integers: a mean for the server's step, or one term of a coordinator's own sum.

In a tree of coordinators every client rounds, clips, weighs and hides its numbers as in a flat run, and coordinators
add integers. So the sum at the root, and the mean that is decoded from it there, do not depend on the tree.

A sum of coordinators says itself how many clients are in it: each has added one to its count.  That count, as every
element, is checked against the bounds of so many clients at each coordinator that sees a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgossip.algorithms.federated.base import Aggregate, ClientRule, Vectors
from fedgossip.algorithms.federated.coded import UploadCodec
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.gains import COUNTS
from fedgossip.core.machine import NodeId
from fedgossip.protocols.federated.aggregation_round import LeafSum
from fedgossip.protocols.federated.client_metrics import mean_loss
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import NO_NOISE, NoiseRule, RingEncoding
from fedgossip.secure.fixed_point import CLIPPED, DecodedSum
from fedgossip.secure.ring import Words


@dataclass(frozen=True)
class ClientsBelow:
    """The numbers of clients that a coordinator may have in its sum."""

    least: int
    most: int


@dataclass(frozen=True)
class SumReading:
    """How a coordinator reads the sum of its members."""

    rule: ClientRule
    kind: np.dtype[np.floating]
    noise: NoiseRule | None = None
    """The noise of each client, whatever coordinators are between."""
    coding: UploadCodec | None = None
    """Of the summed elements, where not all are."""
    below: Mapping[NodeId, ClientsBelow] = field(default_factory=dict)
    """Of members that are coordinators; others are one client each."""
    onward: bool = False
    """Whether the sum is for another coordinator."""

    def decoded(self, total: Words, members: Sequence[NodeId], fixed: RingEncoding) -> DecodedSum:
        """Return the values in a sum over `members`.  Raises RoundAbandoned for a sum that these cannot make."""
        noise = self.noise.at(fixed) if self.noise else NO_NOISE
        return fixed.decode(total, self._clients(total, members, fixed), noise.sigma, noise.bit_sigma)

    def _clients(self, total: Words, members: Sequence[NodeId], fixed: RingEncoding) -> int:
        """Return the number of clients in a sum, as it states it where members are coordinators."""
        if not self.below:
            return len(members)
        if total.shape != (fixed.words,):
            raise RoundAbandoned(Reason.SCHEMA, f"a sum of {total.size} words; {fixed.words} were agreed")
        count = fixed.clients_in(total)
        least = sum(self.below[node].least for node in members)
        most = sum(self.below[node].most for node in members)
        if not least <= count <= most:
            text = f"a sum that says {count} clients, of coordinators that have {least} to {most}"
            raise RoundAbandoned(Reason.OVERFLOW, text)
        return count

    def result(self, found: DecodedSum, total: Words, round: int) -> Aggregate | LeafSum:
        """Return the end of a round with this sum."""
        if self.onward:
            return LeafSum(total, found.clients)
        mean = frozen(found.mean.astype(self.kind))
        vectors = (self.coding.whole(mean, round),) if self.coding else apart(mean, self.rule.vectors)
        return Aggregate(vectors, found.clients, found.metrics.get("steps", 1.0))

    def facts(self, found: DecodedSum, fixed: RingEncoding) -> dict[str, object]:
        """Return the facts for the records."""
        facts: dict[str, object] = {"clients": found.clients, "loss": mean_loss(found.metrics)}
        if fixed.tells == CLIPPED:
            facts["clipped"] = found.clipped
        if fixed.weight_max > 1:
            facts["examples"] = round(found.samples)
        if found.metrics.get("tested"):
            facts["score"] = found.metrics["measured"]
        return facts | counts_in(found, fixed)


def counts_in(found: DecodedSum, fixed: RingEncoding) -> dict[str, int]:
    """Return the counts over clients in a sum; {} where none of them counted.

    Each client has added the weight's unit, limit / weight_max, rounded, so the counts are exact.
    """
    unit = fixed.limit / fixed.weight_max
    once = found.samples * unit / max(1, round(unit))
    counts = {name: round(value * once) for name, value in found.metrics.items() if name in COUNTS}
    return counts if any(counts.values()) else {}


def apart(vector: Vector, count: int) -> Vectors:
    """Split a vector that `client_round.joined` has concatenated."""
    length = vector.size // count
    return tuple(vector[k * length : (k + 1) * length] for k in range(count))
