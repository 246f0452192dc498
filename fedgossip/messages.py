"""What may cross the network.  Everything else stays where it is: data, gradients of one example, optimizer state."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.vectors import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What a peer mixes in `round` (0 is the first): one vector, or several for algorithms that track more than one.

    `schema` is the hash of the parameter layout: vectors of another layout must never be averaged.
    """

    round: int
    schema: str
    vectors: tuple[Vector, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(vector.nbytes for vector in self.vectors)


@dataclass(frozen=True, slots=True)
class Leaving:
    """The sender has sent everything it will ever send; `round` rounds are behind it."""

    round: int

    @property
    def payload_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The first words on a link, between hosts: peers of two experiments, or of two layouts, must not mix.

    `experiment` is the hash of the resolved experiment, `schema` of the parameter layout, `version` fedgossip's.
    """

    schema: str
    experiment: str
    version: str

    @property
    def payload_bytes(self) -> int:
        return 0


Message = Model | Leaving
AnyMessage = Message | Hello
