"""Uploads by a codec, with the client's error memory.

    client    p = u + e;  C(p) is sent;  e' = p - C(p)      once the coordinator confirms it
    server    sees C(p) in place of u

e is a part of the client's memory (`base.ClientRule`), so only a counted contribution changes it.  Karimireddy et al.,
ICML 2019; with local steps: Basu, Data, Karakus and Diggavi, Qsparse-local-SGD, NeurIPS 2019, algorithm 1.

A codec encodes parameters only; running statistics follow uncoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, LinearCodec, Payload, VectorLayout, as_bytes, of_bytes
from fedgossip.algorithms.codecs.senders import Sender, sender_of
from fedgossip.algorithms.federated.base import ClientRule, Vectors, Work, effective_steps
from fedgossip.base.vectors import Vector, frozen, summable
from fedgossip.core.machine import NodeId, Terms


@dataclass(frozen=True)
class UploadCodec:
    """The encoding of uploaded updates [d]; a value, equal at the coordinator and all clients."""

    codec: Codec
    layout: VectorLayout
    """The layout of the parameters."""
    seed: int
    statistics: int = 0
    """Number of elements after the parameters, which are sent uncoded."""

    def size(self, round: int) -> int:
        """Return the bytes of every payload of a round."""
        return self.codec.size(self.layout, round) + self.statistics * self.layout.itemsize

    def payload_of(self, coded: Payload, update: Vector) -> Payload:
        """Return the upload of an update [d], given its encoded parameters."""
        return np.concatenate([coded, as_bytes(update[self.layout.length :])]) if self.statistics else coded

    def update_of(self, payload: Payload, node: NodeId, round: int) -> Vector:
        """Return the update [d] of a client's payload.  Raises ProtocolError as `Codec.decode`."""
        turn = CodecTurn(self.seed, node, round)
        if not self.statistics:
            return self.codec.decode(payload, self.layout, turn)
        if payload.dtype != np.uint8 or payload.ndim != 1 or payload.size != self.size(round):
            raise self.codec.refused(self.layout, f"has {payload.size} bytes, not {self.size(round)}")
        coded = self.codec.size(self.layout, round)
        behind = of_bytes(payload[coded:], self.layout.dtype)
        if not summable(behind):
            raise self.codec.refused(self.layout, "holds statistics that are not finite, or too large")
        return frozen(np.concatenate([self.codec.decode(payload[:coded], self.layout, turn), behind]))

    def whole(self, elements: Vector, round: int) -> Vector:
        """Return the update [d] of a linear codec's elements, or of a mean of them."""
        assert isinstance(self.codec, LinearCodec)
        turn, sent = CodecTurn(self.seed, 0, round), elements.size - self.statistics
        found = self.codec.restored(elements[:sent], self.layout.length, turn)
        return frozen(np.concatenate([found, elements[sent:]])) if self.statistics else found


@dataclass(frozen=True)
class CodedClient:
    """A client's rule with one vector, encoded by a codec for upload."""

    rule: ClientRule
    coding: UploadCodec
    sender: Sender | None = None
    """The sender of updates; None: the codec's default, without momentum."""
    added: bool = False
    """Whether the elements of a linear codec are sent as numbers, to be added by a secure sum; else as bytes."""

    vectors = 1

    @property
    def gradient(self) -> bool:
        return self.rule.gradient

    def weight(self, examples: int) -> float:
        return self.rule.weight(examples)

    def effective(self, steps: int) -> float:
        return effective_steps(self.rule, steps)

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        return self.rule.terms(received, memory[len(self._start) :])

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        own = len(self._start)
        left = memory[:own] or self._start
        (update,), kept = self.rule.upload(received, memory[own:], work)
        turn = CodecTurn(self.coding.seed, work.node, work.round)
        layout = self.coding.layout
        coded, left = self._sender.send(left, update[: layout.length], layout, turn)
        payload = self.coding.payload_of(coded, update)
        up = of_bytes(payload, layout.dtype) if self.added else payload
        return (frozen(up),), (*left, *kept)

    @cached_property
    def _sender(self) -> Sender:
        return self.sender or sender_of(self.coding.codec)

    @cached_property
    def _start(self) -> Vectors:
        return self._sender.start(self.coding.layout)
