"""Messages that cross the network; examples, their gradients and optimiser states never do.

A message is one class (`base`): its header, the bounds of its numbers, and the arrays to allocate (`allowed`) follow
from the declaration.  An array without elements is refused.  A message with vectors has the fields `schema`, the hash
of the parameter layout, and `vectors`: vectors of another layout must never be averaged.  Rounds and exchanges count
from 0; -1 is none.

    gossip       Model, Account, Leaving                synchronous rounds, and the accounts of their edges
                 CodedModel, ModelFragment, RelaySum    changes by a codec; a fragment; on a tree a sum and its count
                 Offer, Answer, Decline, Query, Ack     asynchronous exchanges
                 Parcel, Accepted                       push-sum
                 Masked, RunKeys                        private gossip
    parallel     ReduceChunk, CodedChunk, ChunkTaken    all-reduce: parts of sums or payloads, sent until acknowledged
                 ChunksAsked, ChunksHere                which chunks without an acknowledgement arrived
                 GroupReport, GroupView                 agreement on the group after a worker is lost
                 WorkerReturn, WorkerRefused            a worker that returns, and one that the others exclude
                 StateQuery, StatePiece                 the optimiser state, for a worker that is behind
    servers      ShardPush, ShardPull, PullHeld, Pulled, PieceTaken    gradients to a server, shards back
                 CodedPush, CodedPulled                 the same by codecs
                 ShardStep, EmptyStep, ShardCopy, EmptyCopy    steps of a shard for its copies, and a whole copy
                 Tenure, TenureTaken, ServerReady, ShardLost   which server owns which shard from now on
    tables       RowKeys, SomeKeys, KeysWanted, RowPull, RowsPulled, RowPush, NoRows, RowStep, RowCopy    rows of tables
    federated    Invite, Contribution, CodedContribution, Refusal, Final    rounds of a coordinator
                 Secured, MaskedInput                   the frames of a secure sum
                 Subtotal                               numbers of a tier without one
    members      Ping, Pong, PingReq, IndirectAck, MembershipUpdate, Compare, CompareBuckets, Join    peers that join
                 ModelQuery, ModelInfo, ChunkRequest, ModelChunk    the model for a peer that joins
    invitations  InviteProof, Proposal, FileQuery, FilePart, Enrol, Gathering, Beginning, TurnedAway
    hosts        Hello                                  the first message of a link: layout, experiment, version,
                                                        incarnation, code, frozen tensors, and a probe of the processor
"""

from __future__ import annotations

from fedgossip.core.messages.base import (
    DECLARED,
    FRAME_OF_A_SUM_MAX,
    Carrier,
    Count,
    CountOrNone,
    Expected,
    Frame,
    Hello,
    Kind,
    Note,
    Numbers,
    Part,
    Text,
    Word,
    declared,
)
from fedgossip.core.messages.federated import (
    CodedContribution,
    Contribution,
    Final,
    Invite,
    MaskedInput,
    Refusal,
    Secured,
    Subtotal,
)
from fedgossip.core.messages.gossip import (
    CHECK_WORDS,
    KEYS_MAX,
    Accepted,
    Account,
    Ack,
    Answer,
    CodedModel,
    Decline,
    Leaving,
    Masked,
    Model,
    ModelFragment,
    Offer,
    Parcel,
    Query,
    RelaySum,
    RunKey,
    RunKeys,
)
from fedgossip.core.messages.members import (
    BUCKETS,
    COMPARED_MAX,
    FILE_PART,
    GRAPH_LETTERS,
    INVITED_MAX,
    MEMBERS_MAX,
    MODEL_CHUNK,
    NEWS_MAX,
    PROPOSAL_LETTERS,
    Beginning,
    ChunkRequest,
    Compare,
    CompareBuckets,
    ConfirmDead,
    Enrol,
    Entry,
    FilePart,
    FileQuery,
    Gathering,
    IndirectAck,
    Invited,
    InviteProof,
    Join,
    MembershipUpdate,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    News,
    Ping,
    PingReq,
    Pong,
    Proposal,
    Revocation,
    Suspicion,
    TurnedAway,
)
from fedgossip.core.messages.parallel import (
    STATE_VECTORS_MAX,
    TAIL,
    WORKERS_MAX,
    ChunksAsked,
    ChunksHere,
    ChunkTaken,
    CodedChunk,
    GroupReport,
    GroupView,
    ReduceChunk,
    StatePiece,
    StateQuery,
    WorkerRefused,
    WorkerReturn,
)
from fedgossip.core.messages.servers import (
    LIST_KEYS_MAX,
    PIECE_BYTES,
    SERVERS_MAX,
    SHARDS_MAX,
    ChangeHead,
    CodedPulled,
    CodedPush,
    CopyHead,
    EmptyCopy,
    EmptyStep,
    KeysWanted,
    NoRows,
    Piece,
    PieceTaken,
    Pulled,
    PullHeld,
    RowCopy,
    RowKeys,
    RowPull,
    RowPush,
    RowsPulled,
    RowStep,
    ServerReady,
    ShardCopy,
    ShardLost,
    ShardPull,
    ShardPush,
    ShardStep,
    SomeKeys,
    Tenure,
    TenureTaken,
)

Pairwise = Offer | Answer | Decline | Query | Ack | Parcel | Accepted
OfARound = Model | ModelFragment | CodedModel | Masked | RelaySum
"""Inputs to the mix of a synchronous gossip round."""
Gossip = OfARound | RunKeys | Leaving | Account | Pairwise
Membership = Ping | Pong | PingReq | IndirectAck | MembershipUpdate | Compare | CompareBuckets | Join
Transfer = ModelQuery | ModelInfo | ChunkRequest | ModelChunk
Federated = Invite | Contribution | CodedContribution | Final | Secured | MaskedInput | Subtotal | Refusal
Invitations = InviteProof | Proposal | FileQuery | FilePart | Enrol | Gathering | Beginning | TurnedAway
Chunks = ReduceChunk | CodedChunk | ChunkTaken | ChunksAsked | ChunksHere
Parallel = Chunks | GroupReport | GroupView | WorkerRefused | WorkerReturn | StateQuery | StatePiece
Served = ShardPush | CodedPush | ShardPull | PullHeld | Pulled | CodedPulled | PieceTaken
Keyed = RowKeys | SomeKeys | KeysWanted | RowPull | RowsPulled | RowPush | NoRows
ChangeMessage = ShardStep | RowStep | EmptyStep
"""A change of a shard, or a piece of one."""
CopyMessage = ShardCopy | RowCopy | EmptyCopy
"""A whole shard, or a piece of one."""
Replicated = ChangeMessage | CopyMessage | Tenure | TenureTaken | ServerReady | ShardLost
Message = Gossip | Federated | Membership | Transfer | Invitations | Parallel | Served | Keyed | Replicated
AnyMessage = Message | Hello


ModelCarrier = Model | ModelFragment | Masked | RelaySum | Offer | Answer | Parcel | Invite | Contribution | Final
"""Messages with model vectors, or masked words of one, and the number of their round or exchange."""

__all__ = [
    "BUCKETS",
    "CHECK_WORDS",
    "COMPARED_MAX",
    "DECLARED",
    "FILE_PART",
    "FRAME_OF_A_SUM_MAX",
    "GRAPH_LETTERS",
    "INVITED_MAX",
    "KEYS_MAX",
    "LIST_KEYS_MAX",
    "MEMBERS_MAX",
    "MODEL_CHUNK",
    "NEWS_MAX",
    "PIECE_BYTES",
    "PROPOSAL_LETTERS",
    "SERVERS_MAX",
    "SHARDS_MAX",
    "STATE_VECTORS_MAX",
    "TAIL",
    "WORKERS_MAX",
    "Accepted",
    "Account",
    "Ack",
    "Answer",
    "AnyMessage",
    "Beginning",
    "Carrier",
    "ChangeHead",
    "ChangeMessage",
    "ChunkRequest",
    "ChunkTaken",
    "ChunksAsked",
    "ChunksHere",
    "CodedChunk",
    "CodedContribution",
    "CodedModel",
    "CodedPulled",
    "CodedPush",
    "Compare",
    "CompareBuckets",
    "ConfirmDead",
    "Contribution",
    "CopyHead",
    "CopyMessage",
    "Count",
    "CountOrNone",
    "Decline",
    "EmptyCopy",
    "EmptyStep",
    "Enrol",
    "Entry",
    "Expected",
    "Federated",
    "FilePart",
    "FileQuery",
    "Final",
    "Frame",
    "Gathering",
    "Gossip",
    "GroupReport",
    "GroupView",
    "Hello",
    "IndirectAck",
    "Invitations",
    "Invite",
    "InviteProof",
    "Invited",
    "Join",
    "Keyed",
    "KeysWanted",
    "Kind",
    "Leaving",
    "Masked",
    "MaskedInput",
    "Membership",
    "MembershipUpdate",
    "Message",
    "Model",
    "ModelCarrier",
    "ModelChunk",
    "ModelFragment",
    "ModelInfo",
    "ModelQuery",
    "News",
    "NoRows",
    "Note",
    "Numbers",
    "OfARound",
    "Offer",
    "Parallel",
    "Parcel",
    "Part",
    "Piece",
    "PieceTaken",
    "Ping",
    "PingReq",
    "Pong",
    "Proposal",
    "PullHeld",
    "Pulled",
    "Query",
    "ReduceChunk",
    "Refusal",
    "RelaySum",
    "Replicated",
    "Revocation",
    "RowCopy",
    "RowKeys",
    "RowPull",
    "RowPush",
    "RowStep",
    "RowsPulled",
    "RunKey",
    "RunKeys",
    "Secured",
    "Served",
    "ServerReady",
    "ShardCopy",
    "ShardLost",
    "ShardPull",
    "ShardPush",
    "ShardStep",
    "SomeKeys",
    "StatePiece",
    "StateQuery",
    "Subtotal",
    "Suspicion",
    "Tenure",
    "TenureTaken",
    "Text",
    "Transfer",
    "TurnedAway",
    "Word",
    "WorkerRefused",
    "WorkerReturn",
    "declared",
]
