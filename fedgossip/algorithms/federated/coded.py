"""Uploads by a codec: what a client sends in fewer bytes, and what it remembers of what that left out.

    client    p = u + e;  C(p) goes up;  e' = p - C(p)      once the coordinator says that it was counted
    server    sees C(p) in place of u

e is a part of the client's memory (`base.ClientRule`), so it is as old as the last contribution that counted: one that
did not leaves it as it was.  Karimireddy et al., ICML 2019; of local steps: Basu, Data, Karakus and Diggavi,
Qsparse-local-SGD, NeurIPS 2019, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedgossip.algorithms.federated.base import ClientRule, Vectors, Work
from fedgossip.codecs.base import Codec, CodecTurn, LinearCodec, Payload, VectorLayout, of_bytes
from fedgossip.codecs.senders import Sender, sender_of
from fedgossip.machine import NodeId, Terms
from fedgossip.vectors import Vector, frozen


@dataclass(frozen=True)
class UploadCodec:
    """How a run's updates [d] go up; a value, the same at the coordinator and at all clients."""

    codec: Codec
    layout: VectorLayout
    seed: int

    def update_of(self, payload: Payload, node: NodeId, round: int) -> Vector:
        """Return the update [d] that a client's payload stands for.  Raises ProtocolError as `Codec.decode`."""
        return self.codec.decode(payload, self.layout, CodecTurn(self.seed, node, round))

    def whole(self, elements: Vector, round: int) -> Vector:
        """Return the update [d] that the elements of a linear codec stand for, or a mean of such."""
        assert isinstance(self.codec, LinearCodec)
        return self.codec.restored(elements, self.layout.length, CodecTurn(self.seed, 0, round))


@dataclass(frozen=True)
class CodedClient:
    """A client's rule, of one vector, whose update goes up by a codec."""

    rule: ClientRule
    coding: UploadCodec
    sender: Sender | None = None
    """How updates are sent; none: as the codec wants it, without a momentum."""
    added: bool = False
    """Whether the elements of a linear codec go up as numbers, to be added by a secure sum; else bytes do."""

    vectors = 1

    @property
    def gradient(self) -> bool:
        return self.rule.gradient

    def weight(self, examples: int) -> float:
        return self.rule.weight(examples)

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        return self.rule.terms(received, memory[len(self._start) :])

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        own = len(self._start)
        left = memory[:own] or self._start
        (update,), kept = self.rule.upload(received, memory[own:], work)
        turn = CodecTurn(self.coding.seed, work.node, work.round)
        payload, left = self._sender.send(left, update, self.coding.layout, turn)
        up = of_bytes(payload, self.coding.layout.dtype) if self.added else payload
        return (frozen(up),), (*left, *kept)

    @cached_property
    def _sender(self) -> Sender:
        return self.sender or sender_of(self.coding.codec)

    @cached_property
    def _start(self) -> Vectors:
        """What is remembered before the first update."""
        return self._sender.start(self.coding.layout)
