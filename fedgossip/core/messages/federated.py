"""Messages between a coordinator and its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import (
    Carrier,
    Count,
    CountOrNone,
    Expected,
    Frame,
    Note,
    Part,
    declared,
    longest_payload,
)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Invite(Carrier):
    """Request to take part in `round`: train from these vectors, the model first.

    `counted`: the last round that counted the receiver's contribution; it discards later state.  `session`: number and
    signed invitation of the secure sum for the reply; without one the reply is a `Contribution`.
    """

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    counted: CountOrNone = -1
    session: CountOrNone = -1
    frame: Frame = b""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Contribution(Carrier):
    """A client's result: vectors, number of `examples`, local `steps`, mean `loss` or None.

    `measured`: the received model's score on `tested` held-out examples.
    """

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    examples: Count
    steps: Count
    loss: float | None
    measured: float = 0.0
    tested: Count = 0


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedContribution(Carrier):
    """A `Contribution` with its vector encoded by a codec in `length` bytes; other fields as in `Contribution`."""

    round: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]
    examples: Count
    steps: Count
    loss: float | None
    measured: float = 0.0
    tested: Count = 0

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize):
            return ()
        return (("uint8", header.length),)

    def make_contribution(self, update: Vector) -> Contribution:
        """Return the decoded contribution, with the vector `update`."""
        facts = self.examples, self.steps, self.loss, self.measured, self.tested
        return Contribution(self.round, self.schema, (update,), *facts)


@declared
@dataclass(frozen=True, slots=True)
class Secured(Note):
    """A signed frame of a secure sum, see secure/frames.py, of this session and stage.  Sent in both directions."""

    session: Count
    stage: Count
    frame: Frame


@declared
@dataclass(frozen=True, slots=True, eq=False)
class MaskedInput(Carrier):
    """A client's masked vector, uint32 words of the ring, after the frame that signs it."""

    session: Count
    stage: Count
    frame: Frame
    schema: str
    vectors: tuple[Any, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint32", expected.words),) if expected.words else ()


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Subtotal(Carrier):
    """The rounded numbers of `clients` clients, uint32 words of the ring without a mask, in a tier without a secure
    sum.
    """

    round: Count
    schema: str
    vectors: tuple[Any, ...]
    clients: Count

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint32", expected.words),) if expected.words else ()


REFUSALS = (
    "POLICY", "ROSTER", "SIG", "DUPKEY", "TOO_FEW", "AEAD", "SCHEMA", "MODEL_HASH", "REPLAY", "TWICE",
    "INCONSISTENT_U3", "SHARE_INVALID", "OVERFLOW", "BOUND", "DEADLINE", "BUDGET", "COMPANY", "POINT",
)  # fmt: skip
"""Reasons of a client's refusal: those of secure/aborts.py, and a spent budget."""


@declared
@dataclass(frozen=True, slots=True)
class Refusal(Note):
    """The sender declines `round`, or leaves it; `reason` is one of REFUSALS, checked by the links."""

    round: Count
    session: CountOrNone
    reason: Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(REFUSALS)})\Z")]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Final(Carrier):
    """The run is over after `round` rounds, and this is the result.  Answered by a `Leaving`."""

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
