"""Admission by an invite: the holder sends queries, the organiser replies; one reply per query.

    InviteProof  identity and proof of the secret  -->  Proposal: the planned experiment, for review by a person
    FileQuery    request of a piece of test data   -->  FilePart: a piece of the common test set
    Enrol        takes part; repeated in waiting   -->  Gathering: numbers of present and expected members
                                                        Beginning: the run begins, or has begun
    any of them                                    -->  TurnedAway, with the reason

Every query contains the proof, so the organiser keeps no state of a holder before it is admitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from fedgossip.core.messages.base import Count, Note, Text, Word, declared
from fedgossip.core.messages.members import Entry

INVITED_MAX = 128
"""Members that can begin together by an invite; a Beginning of all of them is one header."""

PROPOSAL_LETTERS, GRAPH_LETTERS = 16_000, 32_000
"""Letters of an experiment, and of the file of a graph, sent to invited members."""

FILE_PART = 32 * 1024
"""Bytes of a file in one piece."""

Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


@dataclass(frozen=True, slots=True)
class Invited:
    """The sender of a query: the invite's name, its signature key, and the proof of the invite's secret."""

    mark: Word
    verify: Word
    proof: Proof


@declared
@dataclass(frozen=True, slots=True)
class InviteProof(Note):
    """Request for admission.  `version` is that of fedgossip."""

    who: Invited
    version: Word


@declared
@dataclass(frozen=True, slots=True)
class Proposal(Note):
    """The planned run.  `experiment` is TOML, with every default; `graph` the text of the file that it names, or "".

    `code` is the hash of its user modules; `parameters` and `dtype` are those of its model.  `test` is the name of the
    common test set's file, of `test_bytes` bytes and this digest; "" where none is sent.
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
    """FILE_PART bytes from `start` on, or the rest."""

    start: Count
    data: Annotated[bytes, msgspec.Meta(max_length=FILE_PART)]


@declared
@dataclass(frozen=True, slots=True)
class Enrol(Note):
    """The sender takes part and listens at `address`, "" where it does not listen; `signature` covers its keys and the
    address.

    In a run with tiers it is to be coordinator `lead`, or one of those below coordinator `under`; 0: neither.
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
    """The receiver is member `node`.  `here` of `wanted` members are present; the invite expires after `seconds`."""

    node: Count
    here: Annotated[tuple[Count, ...], msgspec.Meta(max_length=INVITED_MAX)]
    wanted: Count
    seconds: Count


@declared
@dataclass(frozen=True, slots=True)
class Beginning(Note):
    """The receiver is member `node`, and the run begins with these; `organiser` is the key that signed each admission.

    Founding members have `since` 0; later members have -1 and fetch the model.  Each `signature` is the member's own,
    over its keys and its address, as in `Enrol`.
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
