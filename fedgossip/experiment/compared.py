"""[compare]: a file that describes several kinds of run, for `fedgossip compare`; no run has this section."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fedgossip.base.limits import OneOf, Within

COMPARE = "compare"
EQUALS = ("examples", "seconds", "bytes")


class CompareSection(msgspec.Struct, forbid_unknown_fields=True):
    """[compare]: for `fedgossip compare`, in a file that may have the sections of several kinds of run."""

    equal: Annotated[str, OneOf(EQUALS)] = "examples"
    """Equal resource for the comparison of losses: `examples` (all run to their end), `seconds` or `bytes` (the least
    use of any)."""
    target: Annotated[float | None, Within(0)] = None
    """The test loss to which seconds and bytes are counted; none: the least that all paradigms reach."""
