"""Messages about membership: the roster, pings, admission by an invite, and the transfer of a model to a new member.

**Admission.**  The holder of the invite sends queries, the organiser replies; one reply per query.

    InviteProof  identity and proof of the secret  -->  Proposal: the planned experiment, for review by a person
    FileQuery    request of a piece of test data   -->  FilePart: a piece of the common test set
    Enrol        takes part; repeated in waiting   -->  Gathering: numbers of present and expected members
                                                        Beginning: the run begins, or has begun
    any of them                                    -->  TurnedAway, with the reason

Every query contains the proof, so the organiser stores no state of a holder before its admission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fedgossip.base.vectors import Vector
from fedgossip.core.messages.base import Carrier, Count, CountOrNone, Expected, Note, Part, Text, Word, declared


@dataclass(frozen=True, slots=True)
class Entry:
    """A member's signed description of itself; the highest incarnation is valid.

    It takes part in rounds `since` to before `until`; -1: not begun, and no end.  `key`, `verify`: public keys of links
    and signatures (hex); `admission`: the organiser's signature for a later member.
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
    """`by` received no reply from `node`, neither directly nor through others."""

    node: Count
    incarnation: Count
    by: Count
    signature: Text = ""


@dataclass(frozen=True, slots=True)
class ConfirmDead:
    """A verdict of `by`: no message from `node` since the suspicion.

    `node` is excluded from round `until` on when enough members agree (`protocols.members.roster`).
    """

    node: Count
    incarnation: Count
    until: Count
    by: Count
    signature: Text = ""


@dataclass(frozen=True, slots=True)
class Revocation:
    """Signed by the organiser: `node` with these keys is excluded for good."""

    node: Count
    key: Word
    verify: Word
    signature: Text = ""


News = Entry | Suspicion | ConfirmDead | Revocation

NEWS_MAX = 32
"""Maximum number of updates in one message."""

MEMBERS_MAX = 10_000
"""Maximum number of members in a roster: each peer stores a signed entry of each, about 400 bytes."""

COMPARED_MAX = 2000
"""Maximum number of members in one `Compare`, which fits one header."""

BUCKETS = 128
"""Number of buckets of a roster, by id: of at most MEMBERS_MAX members each has about 80."""

Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
"""The number of a bucket: id modulo BUCKETS."""


@declared
@dataclass(frozen=True, slots=True)
class Ping(Note):
    """Probe.  The sender has completed `round` rounds, -1: it does not take part; `digest` is of its roster."""

    number: Count
    round: CountOrNone
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class Pong(Note):
    """The reply to ping `number`; other fields as in `Ping`."""

    number: Count
    round: CountOrNone
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class PingReq(Note):
    """Request to ping `node`, which does not reply to the sender.  Answered by an `IndirectAck`, or not answered."""

    number: Count
    node: Count


@declared
@dataclass(frozen=True, slots=True)
class IndirectAck(Note):
    """The sender received a message from `node` after probe `number` of the receiver."""

    number: Count
    node: Count


@declared
@dataclass(frozen=True, slots=True)
class MembershipUpdate(Note):
    """At most NEWS_MAX updates on members; a receiver forwards those that are new to it."""

    news: Annotated[tuple[News, ...], msgspec.Meta(max_length=NEWS_MAX)]


@declared
@dataclass(frozen=True, slots=True)
class Compare(Note):
    """The sender's roster: (node, incarnation, hash of the node's status or 0); answered by newer updates.

    Of the members in these `buckets`; empty: of all.
    """

    known: Annotated[tuple[tuple[Count, Count, CountOrNone], ...], msgspec.Meta(max_length=COMPARED_MAX)]
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=BUCKETS)] = ()


@declared
@dataclass(frozen=True, slots=True)
class CompareBuckets(Note):
    """Hashes of all buckets of the sender's roster; answered by a `Compare` of unequal ones."""

    hashes: Annotated[tuple[Count, ...], msgspec.Meta(min_length=BUCKETS, max_length=BUCKETS)]


@declared
@dataclass(frozen=True, slots=True)
class Join(Note):
    """Request to join: with `Hello` the only message accepted from a sender with an unknown key."""

    entry: Entry


@declared
@dataclass(frozen=True, slots=True)
class ModelQuery(Note):
    """Request the receiver's model version; answered by a `ModelInfo`."""


@declared
@dataclass(frozen=True, slots=True)
class ModelInfo(Note):
    """Digest of the sender's model after `round` rounds, which it keeps for a limited time."""

    round: Count
    digest: Word


@declared
@dataclass(frozen=True, slots=True)
class ChunkRequest(Note):
    """Request that model's elements from `start` on; answered by a `ModelChunk`, or a `ModelInfo` of another model."""

    round: Count
    digest: Word
    start: Count


MODEL_CHUNK = 256 * 1024
"""Number of elements in a chunk of a model."""


@declared
@dataclass(frozen=True, slots=True, eq=False)
class ModelChunk(Carrier):
    """One vector: the elements of a model from `start` on, MODEL_CHUNK of them or the rest."""

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


INVITED_MAX = 128
"""Maximum number of members that begin together by an invite; a Beginning of all of them fits one header."""

PROPOSAL_LETTERS, GRAPH_LETTERS = 16_000, 32_000
"""Maximum number of letters of an experiment, and of a graph's file, sent to invited members."""

FILE_PART = 32 * 1024
"""Number of bytes in a piece of a file."""

Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


@dataclass(frozen=True, slots=True)
class Invited:
    """The sender of a query: the invite's name, the sender's signature key, and the proof of the invite's secret."""

    mark: Word
    verify: Word
    proof: Proof


@declared
@dataclass(frozen=True, slots=True)
class InviteProof(Note):
    """Request for admission.  `version` is the sender's fedgossip version."""

    who: Invited
    version: Word


@declared
@dataclass(frozen=True, slots=True)
class Proposal(Note):
    """The planned run.  `experiment`: TOML with every default; `graph`: the text of its file, or "".

    `code`: hash of its user modules; `parameters`, `dtype`: of its model; `test`: name of the common test set's file,
    of `test_bytes` bytes and this digest, or "".
    """

    experiment: Annotated[str, msgspec.Meta(max_length=PROPOSAL_LETTERS)]
    graph: Annotated[str, msgspec.Meta(max_length=GRAPH_LETTERS)]
    code: Word
    parameters: Count
    dtype: Word
    test: Text = ""
    test_bytes: Count = 0
    test_digest: Word = ""


@declared
@dataclass(frozen=True, slots=True)
class FileQuery(Note):
    """Request the bytes of the common test set from `start` on; answered by a `FilePart`."""

    who: Invited
    start: Count


@declared
@dataclass(frozen=True, slots=True)
class FilePart(Note):
    """FILE_PART bytes from `start` on, or the remaining ones."""

    start: Count
    data: Annotated[bytes, msgspec.Meta(max_length=FILE_PART)]


@declared
@dataclass(frozen=True, slots=True)
class Enrol(Note):
    """The sender takes part and listens at `address`, or ""; `signature` covers its keys and the address.

    With tiers: it is coordinator `lead`, or below coordinator `under`; 0: neither.
    """

    who: Invited
    version: Word
    address: Text
    signature: Text = ""
    lead: Count = 0
    under: Count = 0


@declared
@dataclass(frozen=True, slots=True)
class Gathering(Note):
    """The receiver is member `node`.  `here` of `wanted` members are present; the invite expires in `seconds`."""

    node: Count
    here: Annotated[tuple[Count, ...], msgspec.Meta(max_length=INVITED_MAX)]
    wanted: Count
    seconds: Count


@declared
@dataclass(frozen=True, slots=True)
class Beginning(Note):
    """The run begins with these members, and the receiver is member `node`; `organiser`: the key that signed the
    admissions.

    Founding members have `since` 0; later ones have -1 and fetch the model.  `signature` is the member's, as in
    `Enrol`.
    """

    node: Count
    organiser: Word
    members: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=INVITED_MAX)]


@declared
@dataclass(frozen=True, slots=True)
class TurnedAway(Note):
    """Admission refused or withdrawn; `reason` is one word, `about` its detail."""

    reason: Word
    about: Text = ""
