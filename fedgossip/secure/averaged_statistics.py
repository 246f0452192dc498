"""Running statistics in a secure sum: whole numbers of many bits, so that no bound of an update cuts a variance.

    V = (rint(x 2^40) + 2^103) w            |x| <= 2^63; w: the client's weight, the whole number that the sum has too
    V in limbs of 16 bits, lowest first, a word of the ring each: 65 536 clients fit
    mean = (sum V / sum w - 2^103) / 2^40

So the mean is by weight and exact to 2^-40: of what is nowhere negative it is not negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.ring import Words
from fedgossip.vectors import Vector

LIMBS, LIMB_BITS = 9, 16
"""Words of a statistic; 9 * 16 bits hold 104 of it and 30 of a weight."""

FINE, MOST = 40, 63
"""Binary digits behind the point, and before it."""

_OFFSET = 1 << (FINE + MOST)
_BYTES = LIMBS * LIMB_BITS // 8


def words_of_statistics(statistics: Vector, weight: int) -> Words:
    """Return the words [k * LIMBS] of statistics [k], times a whole weight.

    Raises RoundAbandoned (OVERFLOW) for one beyond 2^63.
    """
    wide = statistics.astype(np.float64)
    if not (np.abs(wide) <= 2.0**MOST).all():
        raise RoundAbandoned(Reason.OVERFLOW, f"a running statistic of {float(np.abs(wide).max()):.6g}")
    numbers: list[Any] = np.rint(wide * 2.0**FINE).tolist()
    packed = b"".join(((int(number) + _OFFSET) * weight).to_bytes(_BYTES, "little") for number in numbers)
    return np.frombuffer(packed, "<u2").astype(np.uint32)


def mean_statistics(total: Words, weight: int, clients: int) -> Vector:
    """Return the mean [k], float64, of the words in a sum over clients of this weight together.

    Raises RoundAbandoned (BOUND) for words that no statistics of so many clients add up to.
    """
    if total.size and int(total.max()) > clients * ((1 << LIMB_BITS) - 1):
        raise _beyond()
    limbs, found = total.reshape(-1, LIMBS).tolist(), []
    for row in limbs:
        number = sum(limb << (LIMB_BITS * place) for place, limb in enumerate(row)) - _OFFSET * weight
        if abs(number) > _OFFSET * weight:
            raise _beyond()
        found.append(number / (weight << FINE))
    return np.array(found, np.float64)


def _beyond() -> RoundAbandoned:
    return RoundAbandoned(Reason.BOUND, "a running statistic beyond 2^63; some client has not kept to what was agreed")
