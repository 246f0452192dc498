"""What may cross the network.  Everything else stays where it is: data, gradients of one example, optimizer state.

A message that carries vectors has the fields `schema`, the hash of the parameter layout, and `vectors`: vectors of
another layout must never be averaged.  Numbers of rounds and of exchanges start at 0; -1 is none.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """The account of an edge alone, where no model goes along it in `round`."""

    round: int
    used: int = -1
    missing: int = -1


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


# --- between hosts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(_Note):
    """The first words on a link, between hosts: peers of two experiments, or of two layouts, must not mix.

    `experiment` is the hash of the resolved experiment, `schema` of the parameter layout, `version` fedgossip's.
    `incarnation` counts the lives of the sender: after a crash it is a higher one.
    """

    schema: str
    experiment: str
    version: str
    incarnation: int = 0


Message = Model | Leaving | Account | Offer | Answer | Decline | Query | Settled | Parcel | Accepted
AnyMessage = Message | Hello

CARRIERS = (Model, Offer, Answer, Parcel)
Carrier = Model | Offer | Answer | Parcel
