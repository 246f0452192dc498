"""How one with an invite becomes a member: it asks, the organiser answers; one answer to every question.

    InviteProof  who I am; I know the secret                    -->  Proposal: what would be run, to be read by a person
    FileQuery  a piece of the common test set                   -->  FilePart
    Enrol      I take part; said again while I wait             -->  Gathering: who is here, and for whom we wait
                                                                     Beginning: the run begins, or has begun
    any of them                                                 -->  TurnedAway, and why

Every question carries the proof, so the organiser remembers nobody that it has not let in.
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
"""Letters of an experiment, and of the file of a graph, that travel to those who are invited."""

FILE_PART = 32 * 1024
"""Bytes of a file in one piece."""

Proof = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


@dataclass(frozen=True, slots=True)
class Invited:
    """Who asks: the invite's name, the key of its signatures, and the proof that it knows the invite's secret."""

    mark: Word
    verify: Word
    proof: Proof


@declared
@dataclass(frozen=True, slots=True)
class InviteProof(Note):
    """May I come in?  `version` is that of fedgossip."""

    who: Invited
    version: Word


@declared
@dataclass(frozen=True, slots=True)
class Proposal(Note):
    """What would be run.  `experiment` is TOML, with every default; `graph` the text of the file that it names, or "".

    `code` is the hash of the user's modules that it names, `parameters` and `dtype` are of its model.  `test` is the
    name of the common test set's file, which has `test_bytes` bytes and this digest; "" where none travels.
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
    """The bytes of the common test set from `start` on, please; answered by a `FilePart`."""

    who: Invited
    start: Count


@declared
@dataclass(frozen=True, slots=True)
class FilePart(Note):
    """FILE_PART bytes from `start` on, or what is left."""

    start: Count
    data: Annotated[bytes, msgspec.Meta(max_length=FILE_PART)]


@declared
@dataclass(frozen=True, slots=True)
class Enrol(Note):
    """I take part, and am called at `address`, "" where nobody calls me; `signature` is mine, of my keys and that."""

    who: Invited
    version: Word
    address: Text
    signature: Text = ""


@declared
@dataclass(frozen=True, slots=True)
class Gathering(Note):
    """You are member `node`.  So many are `here` of `wanted`; the invite expires after `seconds`."""

    node: Count
    here: Annotated[tuple[Count, ...], msgspec.Meta(max_length=INVITED_MAX)]
    wanted: Count
    seconds: Count


@declared
@dataclass(frozen=True, slots=True)
class Beginning(Note):
    """You are member `node`, and it begins with these; `organiser` is the key that has signed the admission of each.

    Those that begin together have `since` 0; who comes later has -1, and fetches the model.  The `signature` of each is
    its own, of its keys and its address, as in `Enrol`.
    """

    node: Count
    organiser: Word
    members: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=INVITED_MAX)]


@declared
@dataclass(frozen=True, slots=True)
class TurnedAway(Note):
    """Not you, or not any more; `reason` is one word, `about` what belongs to it."""

    reason: Word
    about: Text = ""
