"""Checks of vectors from others, before they are mixed with ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.base.errors import ProtocolError
from fedgossip.base.vectors import summable
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import ModelCarrier


@dataclass(frozen=True, slots=True)
class VectorCheck:
    """`count` vectors [length] of type `kind`, as `node` sends them; `schema` is the hash of a vector's layout."""

    node: NodeId
    schema: str
    kind: np.dtype[Any]
    length: int
    count: int = 1

    def check(self, sender: NodeId, message: ModelCarrier) -> None:
        """Raise ProtocolError where the message's vectors have another layout."""
        vectors, shape = message.vectors, (self.length,)
        ours = message.schema == self.schema and len(vectors) == self.count
        for vector in vectors:
            if vector.shape != shape or vector.dtype != self.kind:
                ours = False
        if not ours:
            raise ProtocolError(
                f"node {self.node}: a model of another layout from node {sender}, round {message.round}"
                f" (schema {message.schema}, ours {self.schema})",
                "Give every peer the same [model] section.",
                peer=sender,
            )

    def check_values(self, sender: NodeId, message: ModelCarrier) -> None:
        """Raise ProtocolError for values that would destroy our model."""
        for vector in message.vectors:
            if summable(vector):
                continue
            what = "with values that are not finite, or too large to be mixed"
            raise ProtocolError(
                f"node {self.node}: a model from node {sender} {what}",
                "Its training has diverged: lower train.lr.",
                peer=sender,
            )
