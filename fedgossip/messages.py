"""What may cross the network.  Everything else stays where it is: data, gradients of one example, optimizer state.

A message that carries vectors has the fields `schema`, the hash of the parameter layout, and `vectors`: vectors of
another layout must never be averaged.  Numbers of rounds and of exchanges start at 0; -1 is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgossip.likeness import Likeness
from fedgossip.vectors import Vector


class _Carrier:
    """A message with vectors."""

    __slots__ = ()
    vectors: tuple[Vector, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(vector.nbytes for vector in self.vectors)


class _Note:
    """A message without vectors."""

    __slots__ = ()

    @property
    def payload_bytes(self) -> int:
        return 0


# --- synchronous gossip: protocols/sync_gossip.py ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Model(_Carrier):
    """What a peer mixes in `round`: one vector, or several for algorithms that track more than one.

    The account of this edge: `used` is the last round in which the sender mixed a model of the receiver, `missing`
    the round in which it had to do without one and does not know yet whether the receiver mixed its own.  `view` names
    the graph that the sender uses in this round: an edge counts where both ends use the same.
    """

    round: int
    schema: str
    vectors: tuple[Vector, ...]
    used: int = -1
    missing: int = -1
    view: str = ""


@dataclass(frozen=True, slots=True)
class Leaving(_Note):
    """The sender has no round to come; `round` rounds are behind it.  The account is that of `Model`.

    `done`: the receiver has said so too, and the sender needs nothing more of it.
    """

    round: int
    used: int = -1
    missing: int = -1
    done: bool = False


@dataclass(frozen=True, slots=True)
class Account(_Note):
    """The account of an edge alone.  `asks`: the sender waits for the receiver's model of `round`; say it again."""

    round: int
    used: int = -1
    missing: int = -1
    asks: bool = False


# --- private gossip: protocols/private_gossip.py ----------------------------------------------------------------------


CHECK_WORDS = 4
"""Words of a masked vector after those of the model: each sender puts a one there, so that the sum counts them."""


@dataclass(frozen=True, slots=True, eq=False)
class Masked(_Carrier):
    """The sender's share of what the receiver adds up in `round`, under masks that cancel in the sum alone.

    One vector, of uint32 whatever its type says, [d + CHECK_WORDS]: integers modulo 2^32.
    """

    round: int
    schema: str
    vectors: tuple[Vector, ...]


# --- asynchronous gossip: protocols/async_gossip.py -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Offer(_Carrier):
    """The sender's vectors, to be averaged with the receiver's; `number` counts the sender's offers to it."""

    number: int
    round: int
    schema: str
    vectors: tuple[Vector, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Answer(_Carrier):
    """Half the difference: what the receiver of the offer has added, and its sender is to subtract."""

    number: int
    round: int
    schema: str
    vectors: tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Decline(_Note):
    """The offer changed nothing here and never will: the receiver was busy, or has not seen it."""

    number: int
    round: int


@dataclass(frozen=True, slots=True)
class Query(_Note):
    """What became of offer `number`?  Answered by the same answer again, or by a refusal."""

    number: int


@dataclass(frozen=True, slots=True)
class Settled(_Note):
    """The answer to offer `number` is here; it need not be kept."""

    number: int


# --- push-sum: protocols/push_sum.py ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Parcel(_Carrier):
    """A share of the sender's mass: vectors and their weight; it is the sender's until accepted."""

    number: int
    round: int
    schema: str
    vectors: tuple[Vector, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Accepted(_Note):
    """All parcels up to `number` are here."""

    number: int


# --- federated: protocols/coordinator.py, client.py -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Invite(_Carrier):
    """Take part in `round`: train from these vectors, the model first.

    `counted` is the last round in which a contribution of the receiver was counted: what it remembers since then, and
    was not counted, it forgets.  `session`: the number and the signed invitation of the secure sum that the answer is
    to go into; without it the answer is a `Contribution`.
    """

    round: int
    schema: str
    vectors: tuple[Vector, ...]
    counted: int = -1
    session: int = -1
    frame: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution(_Carrier):
    """What a client gives to `round`: vectors, of so many `examples` and local `steps`; their mean `loss`, or None.

    `accuracy` is that of the model it was sent, on `tested` examples that it keeps for that.
    """

    round: int
    schema: str
    vectors: tuple[Vector, ...]
    examples: int
    steps: int
    loss: float | None
    accuracy: float = 0.0
    tested: int = 0


@dataclass(frozen=True, slots=True)
class Secured(_Note):
    """A signed frame of a secure sum, see secure/frames.py: of this session and stage.  Either way."""

    session: int
    stage: int
    frame: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskedInput(_Carrier):
    """A client's masked vector, uint32 words of the ring, behind the frame that signs it."""

    session: int
    stage: int
    frame: bytes
    schema: str
    vectors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Refusal(_Note):
    """The sender takes no part in `round`, or no further; `reason` is one word (secure/aborts.py)."""

    round: int
    session: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Final(_Carrier):
    """The run is over after `round` rounds, and this is what came out.  Answered by a `Leaving`."""

    round: int
    schema: str
    vectors: tuple[Vector, ...]


# --- membership: protocols/roster.py, membership.py, transfer.py ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A member as it describes itself, signed by itself.  The highest incarnation is the one that counts.

    It takes part in the rounds from `since` on and before `until`; -1: not yet, and no end.  `key` is its public key of
    the links, `verify` that of its signatures (hex), `admission` the organiser's signature for one that came later.
    """

    node: int
    incarnation: int
    address: str
    key: str
    verify: str
    since: int = -1
    until: int = -1
    admission: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`by` has no answer from `node`, neither itself nor through others."""

    node: int
    incarnation: int
    by: int
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`by` has not heard `node` since it was suspected: it is to take no part in round `until` and later ones.

    It counts where enough others say so too: see protocols/verdicts.
    """

    node: int
    incarnation: int
    until: int
    by: int
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Revocation:
    """The organiser's word, which it has signed: `node` with these keys takes part in nothing any more."""

    node: int
    key: str
    verify: str
    signature: str = ""


News = Entry | Suspicion | Verdict | Revocation

NEWS_MAX = 32
"""Pieces of news in one message."""

MEMBERS_MAX = 2000
"""Members that a roster may hold; a `Compare` of all of them is one header."""


@dataclass(frozen=True, slots=True)
class Ping(_Note):
    """Are you there?  `round` rounds are behind the sender, -1: it does not take part; `digest` is of its roster."""

    number: int
    round: int
    digest: str


@dataclass(frozen=True, slots=True)
class Pong(_Note):
    """Yes: the answer to ping `number`; the rest as in `Ping`."""

    number: int
    round: int
    digest: str


@dataclass(frozen=True, slots=True)
class Probe(_Note):
    """Please ping `node` for me: I do not hear it.  Answered by a `Vouch`, or not at all."""

    number: int
    node: int


@dataclass(frozen=True, slots=True)
class Vouch(_Note):
    """I have heard `node` since you sent probe `number`."""

    number: int
    node: int


@dataclass(frozen=True, slots=True)
class Tidings(_Note):
    """News of members, at most NEWS_MAX; passed on by whom they are new to."""

    news: tuple[News, ...]


@dataclass(frozen=True, slots=True)
class Compare(_Note):
    """All that the sender knows: (node, incarnation, hash of what is said of it or 0); answered by what is newer."""

    known: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Join(_Note):
    """Let me in: the only message, beside `Hello`, that is taken from one whose key nobody knows."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Seek(_Note):
    """What model do you have?  Answered by a `Have`."""


@dataclass(frozen=True, slots=True)
class Have(_Note):
    """The sender's model after `round` rounds has this digest, and it keeps it for a while."""

    round: int
    digest: str


@dataclass(frozen=True, slots=True)
class Fetch(_Note):
    """Send the piece of that model that begins at element `start`; answered by a `Piece`, or a `Have` of another."""

    round: int
    digest: str
    start: int


PIECE = 256 * 1024
"""Elements of a model in one piece of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece(_Carrier):
    """One vector: the elements of a model from `start` on, PIECE or what is left."""

    round: int
    digest: str
    start: int
    schema: str
    vectors: tuple[Vector, ...]


# --- between hosts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(_Note):
    """The first words on a link, between hosts: peers of two experiments, or of two layouts, must not mix.

    `experiment` is the hash of the resolved experiment, `schema` of the parameter layout, `version` fedgossip's.
    `incarnation` counts the lives of the sender: after a crash it is a higher one.  `process` is drawn at its start, so
    that two with one identity can be told apart; 0: not said.  `processor` is a hash of the processor's name where that
    decides the bits of what is learned; 0: it does not.  `code`, `frozen` and `probe` are those of `Likeness`.
    """

    schema: str
    experiment: str
    version: str
    incarnation: int = 0
    process: int = 0
    processor: int = 0
    code: str = ""
    frozen: tuple[float, ...] = ()
    probe: tuple[float, ...] = ()

    @property
    def likeness(self) -> Likeness:
        """What must be alike, beside what must be equal."""
        return Likeness(self.code, self.frozen, self.probe)


Gossip = Model | Masked | Leaving | Account | Offer | Answer | Decline | Query | Settled | Parcel | Accepted
Membership = Ping | Pong | Probe | Vouch | Tidings | Compare | Join
Transfer = Seek | Have | Fetch | Piece
Federation = Invite | Contribution | Final | Secured | MaskedInput | Refusal
Message = Gossip | Federation | Membership | Transfer
AnyMessage = Message | Hello

CARRIERS = (Model, Masked, Offer, Answer, Parcel, Invite, Contribution, MaskedInput, Final, Piece)
Carrier = Model | Masked | Offer | Answer | Parcel | Invite | Contribution | MaskedInput | Final | Piece
