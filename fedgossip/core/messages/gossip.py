"""Messages between neighbouring peers: models, exchanges, shares of mass, and the accounts of their edges."""

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
    Note,
    Part,
    Text,
    Word,
    declared,
    longest_payload,
)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Model(Carrier):
    """A peer's input to the mix of `round`: one vector, or several for algorithms that mix more than one.

    The account of this edge: `used` is the last round for which the sender mixed a model of the receiver, `missing` the
    round mixed without one, until the receiver reports whether it mixed the sender's.  `view` identifies the sender's
    graph: an edge counts if both ends use the same.
    """

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    used: CountOrNone = -1
    missing: CountOrNone = -1
    view: Word = ""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class CodedModel(Carrier):
    """The coded change of a peer's vector from version `base` to `round`, `length` bytes; else as `Model`.

    A version is its round; -1: zeros.
    """

    round: Count
    base: CountOrNone
    length: Count
    schema: str
    vectors: tuple[Vector, ...]
    used: CountOrNone = -1
    missing: CountOrNone = -1
    view: Word = ""

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if not 0 < header.length <= longest_payload(expected.length, expected.itemsize):
            return ()
        return (("uint8", header.length),)


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ModelFragment(Carrier):
    """One fragment of a peer's model in `round`, `length` elements; else as `Model`."""

    round: Count
    length: Count
    schema: str
    vectors: tuple[Vector, ...]
    used: CountOrNone = -1
    missing: CountOrNone = -1
    view: Word = ""

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        return ((expected.dtype, header.length),) if 0 < header.length <= expected.length else ()


@declared
@dataclass(frozen=True, slots=True, eq=False)
class RelaySum(Carrier):
    """The sum of `count` models: the sender's of `round`, and earlier ones of peers other than the receiver."""

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    count: Count


@declared
@dataclass(frozen=True, slots=True)
class Leaving(Note):
    """The sender starts no round after `round` rounds; account as in `Model`.  `done`: it has received the receiver's
    `Leaving` and needs nothing more.
    """

    round: Count
    used: CountOrNone = -1
    missing: CountOrNone = -1
    done: bool = False


@declared
@dataclass(frozen=True, slots=True)
class Account(Note):
    """The account of an edge without a model.  `asks`: request the receiver's model of `round` again."""

    round: Count
    used: CountOrNone = -1
    missing: CountOrNone = -1
    asks: bool = False


CHECK_WORDS = 4
"""Number of words of a masked vector after the model's.  Each sender puts a one there, so that the sum counts senders.
"""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Masked(Carrier):
    """The sender's term of the receiver's sum in `round`, under masks that cancel only in the sum.

    One vector [d + CHECK_WORDS], uint32 despite its annotation: integers modulo 2^32.
    """

    round: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        return (("uint32", expected.length + CHECK_WORDS),)


KEYS_MAX = 128
"""Maximum number of keys in one message."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """Mask key of one incarnation of `node` in a run: X25519 in hex, signed by the node's identity key."""

    node: Count
    incarnation: Count
    public: Word
    signature: Text = ""


@declared
@dataclass(frozen=True, slots=True)
class RunKeys(Note):
    """Keys for the masks of the run: the sender's, and those of its neighbours, which also send to it."""

    keys: Annotated[tuple[RunKey, ...], msgspec.Meta(max_length=KEYS_MAX)]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Offer(Carrier):
    """The sender's vectors, to be averaged with the receiver's; `number` counts offers from this sender to it."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Answer(Carrier):
    """Half the difference: added by the receiver of the offer, to be subtracted by its sender."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class Decline(Note):
    """The offer had no effect and will have none: the receiver was busy, or has not received it."""

    number: Count
    round: Count


@declared
@dataclass(frozen=True, slots=True)
class Query(Note):
    """Request the outcome of offer `number`; answered by the same `Answer` again, or by a `Decline`."""

    number: Count


@declared
@dataclass(frozen=True, slots=True)
class Ack(Note):
    """The answer to offer `number` was received; its sender may drop it."""

    number: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Parcel(Carrier):
    """A share of the sender's mass: vectors and their weight; it belongs to the sender until accepted."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    weight: float


@declared
@dataclass(frozen=True, slots=True)
class Accepted(Note):
    """All parcels up to `number` were received."""

    number: Count
