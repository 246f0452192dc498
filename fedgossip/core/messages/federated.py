"""What a coordinator and its clients tell each other."""

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
    """Take part in `round`: train from these vectors, the model first.

    `counted` is the last round in which a contribution of the receiver was counted: what it remembers since then, and
    was not counted, it forgets.  `session`: the number and the signed invitation of the secure sum that the answer is
    to go into; without it the answer is a `Contribution`.
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
    """What a client gives to `round`: vectors, of so many `examples` and local `steps`; their mean `loss`, or None.

    `measured` is the score of the model it was sent, on `tested` examples that it keeps for that.
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
    """A `Contribution` whose vector is said by a codec, in `length` bytes; the other fields are as there."""

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

    def whole(self, update: Vector) -> Contribution:
        """Return the contribution that it stands for, whose vector is `update`."""
        told = self.examples, self.steps, self.loss, self.measured, self.tested
        return Contribution(self.round, self.schema, (update,), *told)


@declared
@dataclass(frozen=True, slots=True)
class Secured(Note):
    """A signed frame of a secure sum, see secure/frames.py: of this session and stage.  Either way."""

    session: Count
    stage: Count
    frame: Frame


@declared
@dataclass(frozen=True, slots=True, eq=False)
class MaskedInput(Carrier):
    """A client's masked vector, uint32 words of the ring, behind the frame that signs it."""

    session: Count
    stage: Count
    frame: Frame
    schema: str
    vectors: tuple[Any, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint32", expected.words),) if expected.words else ()


REFUSALS = (
    "POLICY", "ROSTER", "SIG", "DUPKEY", "TOO_FEW", "AEAD", "SCHEMA", "MODEL_HASH", "REPLAY", "TWICE",
    "INCONSISTENT_U3", "SHARE_INVALID", "OVERFLOW", "BOUND", "DEADLINE", "BUDGET", "COMPANY", "POINT",
)  # fmt: skip
"""Why a client stays out of a round: the reasons of secure/aborts.py, and that its budget is used up."""


@declared
@dataclass(frozen=True, slots=True)
class Refusal(Note):
    """The sender takes no part in `round`, or no further; `reason` is one of REFUSALS, the links let no other pass."""

    round: Count
    session: CountOrNone
    reason: Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(REFUSALS)})\Z")]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Final(Carrier):
    """The run is over after `round` rounds, and this is what came out.  Answered by a `Leaving`."""

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
