"""What peers tell their neighbours: models, exchanges, shares of mass, and the accounts of their edges."""

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
    """What a peer mixes in `round`: one vector, or several for algorithms that track more than one.

    The account of this edge: `used` is the last round in which the sender mixed a model of the receiver, `missing`
    the round in which it had to do without one and does not know yet whether the receiver mixed its own.  `view` names
    the graph that the sender uses in this round: an edge counts where both ends use the same.
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
    """What has changed in what a peer mixes, from version `base` to `round`, as a codec says it: `length` bytes.

    The other fields are those of a `Model`.  A version is the round in which it was made; -1: zeros, which all know.
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
    """What a peer mixes in `round` of a model of which a fragment goes out at a time: `length` elements.

    The other fields are those of a `Model`.
    """

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
    """The sum of `count` models: the sender's of `round`, and what others than the receiver told it before."""

    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    count: Count


@declared
@dataclass(frozen=True, slots=True)
class Leaving(Note):
    """The sender has no round to come; `round` rounds are behind it.  The account is that of `Model`.

    `done`: the receiver has said so too, and the sender needs nothing more of it.
    """

    round: Count
    used: CountOrNone = -1
    missing: CountOrNone = -1
    done: bool = False


@declared
@dataclass(frozen=True, slots=True)
class Account(Note):
    """The account of an edge alone.  `asks`: the sender waits for the receiver's model of `round`; say it again."""

    round: Count
    used: CountOrNone = -1
    missing: CountOrNone = -1
    asks: bool = False


CHECK_WORDS = 4
"""Words of a masked vector after those of the model: each sender puts a one there, so that the sum counts them."""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Masked(Carrier):
    """The sender's share of what the receiver adds up in `round`, under masks that cancel in the sum alone.

    One vector, of uint32 whatever its type says, [d + CHECK_WORDS]: integers modulo 2^32.
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
    """The key with which one life of `node` makes its masks of a run: X25519 in hex, signed by the key that it is."""

    node: Count
    incarnation: Count
    public: Word
    signature: Text = ""


@declared
@dataclass(frozen=True, slots=True)
class RunKeys(Note):
    """Keys for the masks of the run: the sender's own, and those of its neighbours, who send to it as we do."""

    keys: Annotated[tuple[RunKey, ...], msgspec.Meta(max_length=KEYS_MAX)]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Offer(Carrier):
    """The sender's vectors, to be averaged with the receiver's; `number` counts the sender's offers to it."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Answer(Carrier):
    """Half the difference: what the receiver of the offer has added, and its sender is to subtract."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]


@declared
@dataclass(frozen=True, slots=True)
class Decline(Note):
    """The offer changed nothing here and never will: the receiver was busy, or has not seen it."""

    number: Count
    round: Count


@declared
@dataclass(frozen=True, slots=True)
class Query(Note):
    """What became of offer `number`?  Answered by the same answer again, or by a refusal."""

    number: Count


@declared
@dataclass(frozen=True, slots=True)
class Ack(Note):
    """The answer to offer `number` is here; it need not be kept."""

    number: Count


@declared
@dataclass(frozen=True, slots=True, eq=False)
class Parcel(Carrier):
    """A share of the sender's mass: vectors and their weight; it is the sender's until accepted."""

    number: Count
    round: Count
    schema: str
    vectors: tuple[Vector, ...]
    weight: float


@declared
@dataclass(frozen=True, slots=True)
class Accepted(Note):
    """All parcels up to `number` are here."""

    number: Count
