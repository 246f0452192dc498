"""What may cross the network.  Everything else stays where it is: data, gradients of one example, optimizer state.

A message that carries vectors has the fields `schema`, the hash of the parameter layout, and `vectors`: vectors of
another layout must never be averaged.  Numbers of rounds and of exchanges start at 0; -1 is none.
"""

from __future__ import annotations

from fedgossip.messages.base import (
    DECLARED,
    FRAME_OF_A_SUM_MAX,
    Carrier,
    Count,
    CountOrNone,
    Expected,
    Frame,
    Kind,
    Note,
    Numbers,
    Part,
    Text,
    Word,
    declared,
)
from fedgossip.messages.federated import Contribution, Final, Invite, MaskedInput, Refusal, Secured
from fedgossip.messages.gossip import (
    CHECK_WORDS,
    KEYS_MAX,
    Accepted,
    Account,
    Ack,
    Answer,
    Decline,
    Leaving,
    Masked,
    Model,
    Offer,
    Parcel,
    Query,
    RunKey,
    RunKeys,
)
from fedgossip.messages.hosts import Hello
from fedgossip.messages.members import (
    MEMBERS_MAX,
    MODEL_CHUNK,
    NEWS_MAX,
    ChunkRequest,
    Compare,
    ConfirmDead,
    Entry,
    IndirectAck,
    Join,
    MembershipUpdate,
    ModelChunk,
    ModelInfo,
    ModelQuery,
    News,
    Ping,
    PingReq,
    Pong,
    Revocation,
    Suspicion,
)

Gossip = Model | Masked | RunKeys | Leaving | Account | Offer | Answer | Decline | Query | Ack | Parcel | Accepted
Membership = Ping | Pong | PingReq | IndirectAck | MembershipUpdate | Compare | Join
Transfer = ModelQuery | ModelInfo | ChunkRequest | ModelChunk
Federated = Invite | Contribution | Final | Secured | MaskedInput | Refusal
Message = Gossip | Federated | Membership | Transfer
AnyMessage = Message | Hello


ModelCarrier = Model | Masked | Offer | Answer | Parcel | Invite | Contribution | Final
"""Messages with vectors like the model, or words for it, and the round that they are of."""

__all__ = [
    "CHECK_WORDS",
    "DECLARED",
    "FRAME_OF_A_SUM_MAX",
    "KEYS_MAX",
    "MEMBERS_MAX",
    "MODEL_CHUNK",
    "NEWS_MAX",
    "Accepted",
    "Account",
    "Ack",
    "Answer",
    "AnyMessage",
    "Carrier",
    "ChunkRequest",
    "Compare",
    "ConfirmDead",
    "Contribution",
    "Count",
    "CountOrNone",
    "Decline",
    "Entry",
    "Expected",
    "Federated",
    "Final",
    "Frame",
    "Gossip",
    "Hello",
    "IndirectAck",
    "Invite",
    "Join",
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
    "ModelInfo",
    "ModelQuery",
    "News",
    "Note",
    "Numbers",
    "Offer",
    "Parcel",
    "Part",
    "Ping",
    "PingReq",
    "Pong",
    "Query",
    "Refusal",
    "Revocation",
    "RunKey",
    "RunKeys",
    "Secured",
    "Suspicion",
    "Text",
    "Transfer",
    "Word",
    "declared",
]
