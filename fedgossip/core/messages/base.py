"""Declaration of a message: one dataclass, with the bounds of its numbers in the annotations.

    @declared
    @dataclass(frozen=True, slots=True, eq=False)
    class Halves(Carrier):
        round: Count
        schema: str
        vectors: tuple[Vector, ...]

        @classmethod
        def allowed(cls, header, expected):            # two arrays of unlike types
            return ("float32", expected.length), ("uint8", expected.length)

Its header on the wire, its allocation limits, the mutated frames of the tests and the trace are derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from fedgossip.base.vectors import Vector
from fedgossip.core.model_fingerprint import Likeness

Count = Annotated[int, msgspec.Meta(ge=0)]
CountOrNone = Annotated[int, msgspec.Meta(ge=-1)]
"""Number of a round or an exchange, >= 0; -1: none."""
Word = Annotated[str, msgspec.Meta(max_length=64)]
Text = Annotated[str, msgspec.Meta(max_length=128)]
Code = Annotated[str, msgspec.Meta(max_length=1024)]
"""Names of user functions, each with the hash of its source."""
Numbers = Annotated[tuple[float, ...], msgspec.Meta(max_length=16)]

FRAME_OF_A_SUM_MAX = 60 * 1024
"""Maximum bytes of a signed frame of a secure sum: enough for the keys of 200 neighbours."""
Frame = Annotated[bytes, msgspec.Meta(max_length=FRAME_OF_A_SUM_MAX)]

Part = tuple[str, int]
"""An array of a message: the name of its type, and its number of elements, at least one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected shape of a model: `count` vectors of `length` elements of `dtype`.

    `words`: length of a masked vector, or 0.
    """

    schema: str
    dtype: str
    length: int
    count: int = 1
    words: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the arrays of a model on the wire."""
        return ((self.dtype, self.length),) * self.count

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def payload_bytes(self) -> int:
        return self.count * self.length * np.dtype(self.dtype).itemsize


def longest_payload(length: int, itemsize: int) -> int:
    """Return the maximum payload bytes of any codec for `length` elements: a scale and a byte for each."""
    return (length + 1) * (itemsize + 1)


class Carrier:
    """A message with vectors."""

    __slots__ = ()
    schema: str
    vectors: tuple[Vector, ...]

    @property
    def payload_bytes(self) -> int:
        vectors = self.vectors
        return vectors[0].nbytes if len(vectors) == 1 else sum(vector.nbytes for vector in vectors)

    @classmethod
    def allowed(cls, header: Any, expected: Expected) -> tuple[Part, ...]:  # noqa: ARG003
        """Return the arrays to allocate for a header with these fields; () if they are invalid."""
        return expected.parts


class Note:
    """A message without vectors."""

    __slots__ = ()

    @property
    def payload_bytes(self) -> int:
        return 0


DECLARED: list[type[Carrier] | type[Note]] = []
"""All messages that may cross the network."""

Kind = TypeVar("Kind", bound=type)


def declared(kind: Kind) -> Kind:
    """Register a message for the network."""
    DECLARED.append(kind)
    return kind


@declared
@dataclass(frozen=True, slots=True)
class Hello(Note):
    """The first message on a link: peers of two experiments, or layouts, must not mix.

    `experiment`: hash of the resolved experiment; `schema`: of the layout; `version`: fedgossip's; `incarnation`:
    number of starts of the sender; `process`: random, distinguishes two processes with one identity (0: not given);
    `processor`: hash of its name if it affects bits, else 0; `code`, `frozen` and `probe`: of `Likeness`.
    """

    schema: str
    experiment: str
    version: str
    incarnation: Count = 0
    process: Count = 0
    processor: Count = 0
    code: Code = ""
    frozen: Numbers = ()
    probe: Numbers = ()

    @property
    def likeness(self) -> Likeness:
        """Return the fields compared within a tolerance."""
        return Likeness(self.code, self.frozen, self.probe)
