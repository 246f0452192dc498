"""What members tell of each other, and how one that joins gets a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, CountOrNone, Expected, Note, Part, Text, Word, declared


@dataclass(frozen=True, slots=True)
class Entry:
    """A member as it describes itself, signed by itself.  The highest incarnation is the one that counts.

    It takes part in the rounds from `since` on and before `until`; -1: not yet, and no end.  `key` is its public key of
    the links, `verify` that of its signatures (hex), `admission` the organiser's signature for one that came later.
    """

    node: Count
    incarnation: Count
    address: Text
    key: Word
    verify: Word
    since: CountOrNone = -1
    until: CountOrNone = -1
    admission: Text = ""
    signature: Text = ""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`by` has no answer from `node`, neither itself nor through others."""

    node: Count
    incarnation: Count
    by: Count
    signature: Text = ""


@dataclass(frozen=True, slots=True)
class ConfirmDead:
    """`by` has not heard `node` since it was suspected: it is to take no part in round `until` and later ones.

    It counts where enough others say so too: see protocols/verdicts.
    """

    node: Count
    incarnation: Count
    until: Count
    by: Count
    signature: Text = ""


@dataclass(frozen=True, slots=True)
class Revocation:
    """The organiser's word, which it has signed: `node` with these keys takes part in nothing any more."""

    node: Count
    key: Word
    verify: Word
    signature: Text = ""


News = Entry | Suspicion | ConfirmDead | Revocation

NEWS_MAX = 32
"""Pieces of news in one message."""

MEMBERS_MAX = 2000
"""Members that a roster may hold; a `Compare` of all of them is one header."""


@declared
@dataclass(frozen=True, slots=True)
class Ping(Note):
    """Are you there?  `round` rounds are behind the sender, -1: it does not take part; `digest` is of its roster."""

    number: Count
    round: CountOrNone
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class Pong(Note):
    """Yes: the answer to ping `number`; the rest as in `Ping`."""

    number: Count
    round: CountOrNone
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class PingReq(Note):
    """Please ping `node` for me: I do not hear it.  Answered by a `IndirectAck`, or not at all."""

    number: Count
    node: Count


@declared
@dataclass(frozen=True, slots=True)
class IndirectAck(Note):
    """I have heard `node` since you sent probe `number`."""

    number: Count
    node: Count


@declared
@dataclass(frozen=True, slots=True)
class MembershipUpdate(Note):
    """News of members, at most NEWS_MAX; passed on by whom they are new to."""

    news: Annotated[tuple[News, ...], msgspec.Meta(max_length=NEWS_MAX)]


@declared
@dataclass(frozen=True, slots=True)
class Compare(Note):
    """All that the sender knows: (node, incarnation, hash of what is said of it or 0); answered by what is newer."""

    known: Annotated[tuple[tuple[Count, Count, CountOrNone], ...], msgspec.Meta(max_length=MEMBERS_MAX)]


@declared
@dataclass(frozen=True, slots=True)
class Join(Note):
    """Let me in: the only message, beside `Hello`, that is taken from one whose key nobody knows."""

    entry: Entry


@declared
@dataclass(frozen=True, slots=True)
class ModelQuery(Note):
    """What model do you have?  Answered by a `ModelInfo`."""


@declared
@dataclass(frozen=True, slots=True)
class ModelInfo(Note):
    """The sender's model after `round` rounds has this digest, and it keeps it for a while."""

    round: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class ChunkRequest(Note):
    """Send that model's elements from `start` on; answered by a `ModelChunk`, or a `ModelInfo` of another model."""

    round: Count
    digest: Word
    start: Count


MODEL_CHUNK = 256 * 1024
"""Elements of a model in one piece of it."""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ModelChunk(Carrier):
    """One vector: the elements of a model from `start` on, PIECE or what is left."""

    round: Count
    digest: Word
    start: Count
    schema: str
    vectors: tuple[Vector, ...]

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:
        if header.start % MODEL_CHUNK or header.start >= expected.length:
            return ()
        return ((expected.dtype, min(MODEL_CHUNK, expected.length - header.start)),)
