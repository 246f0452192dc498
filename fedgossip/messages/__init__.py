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
    Settled,
)
from fedgossip.messages.hosts import Hello
from fedgossip.messages.members import (
    MEMBERS_MAX,
    NEWS_MAX,
    PIECE,
    Compare,
    Entry,
    Fetch,
    Have,
    Join,
    News,
    Piece,
    Ping,
    Pong,
    Probe,
    Revocation,
    Seek,
    Suspicion,
    Tidings,
    Verdict,
    Vouch,
)

Gossip = Model | Masked | RunKeys | Leaving | Account | Offer | Answer | Decline | Query | Settled | Parcel | Accepted
Membership = Ping | Pong | Probe | Vouch | Tidings | Compare | Join
Transfer = Seek | Have | Fetch | Piece
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
    "NEWS_MAX",
    "PIECE",
    "Accepted",
    "Account",
    "Answer",
    "AnyMessage",
    "Carrier",
    "Compare",
    "Contribution",
    "Count",
    "CountOrNone",
    "Decline",
    "Entry",
    "Expected",
    "Federated",
    "Fetch",
    "Final",
    "Frame",
    "Gossip",
    "Have",
    "Hello",
    "Invite",
    "Join",
    "Kind",
    "Leaving",
    "Masked",
    "MaskedInput",
    "Membership",
    "Message",
    "Model",
    "ModelCarrier",
    "News",
    "Note",
    "Numbers",
    "Offer",
    "Parcel",
    "Part",
    "Piece",
    "Ping",
    "Pong",
    "Probe",
    "Query",
    "Refusal",
    "Revocation",
    "RunKey",
    "RunKeys",
    "Secured",
    "Seek",
    "Settled",
    "Suspicion",
    "Text",
    "Tidings",
    "Transfer",
    "Verdict",
    "Vouch",
    "Word",
    "declared",
]
