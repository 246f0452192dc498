"""Running statistics in a secure sum: whole numbers of many bits, so that no bound of an update cuts a variance.

    V = (rint(x 2^40) + 2^103) w            |x| <= 2^63; w: the client's weight, the whole number also in the sum
    V in limbs L_k of 10 bits, lowest first, a word of the ring each; r_k from 10 bits of chance, r_14 = 0
    word k = L_k + 2^10 r_k - r_(k-1)       the sum of 2^(10 k) word_k is V; 1000 clients fit
    mean = (sum V / sum w - 2^103) / 2^40

So the mean is weighted and exact to 2^-40: nonnegative statistics have a nonnegative mean.  Without the chance r the
sum of each limb would disclose the carries of the clients' numbers beside their sum; with it two sets of numbers with
one sum are distinguished with an advantage of at most 14 / 2^10 for each carry by which they differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgossip.base.vectors import Vector
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.primitives import Entropy, keystream
from fedgossip.secure.ring import Words

LIMBS, LIMB_BITS = 15, 10
"""Words of a statistic; 15 * 10 bits hold 104 of it, 30 of a weight and the sum of a cohort."""

CHANCE_BITS = 10
"""Bits of the chance that hides a carry: a word of one client stays below 2^21, and that of 1000 within the ring."""

FINE, MOST = 40, 63
"""Binary digits after the point, and before it."""

_OFFSET = 1 << (FINE + MOST)
_LIMB = (1 << LIMB_BITS) - 1


def words_of_statistics(statistics: Vector, weight: int, entropy: Entropy) -> Words:
    """Return the words [k * LIMBS] of statistics [k], times a whole weight; `entropy` gives 32 bytes of chance.

    Raises RoundAbandoned (OVERFLOW) for one beyond 2^63.
    """
    wide = statistics.astype(np.float64)
    if not (np.abs(wide) <= 2.0**MOST).all():
        raise RoundAbandoned(Reason.OVERFLOW, f"a running statistic of {float(np.abs(wide).max()):.6g}")
    numbers: list[Any] = np.rint(wide * 2.0**FINE).tolist()
    whole = [(int(number) + _OFFSET) * weight for number in numbers]
    words = np.array([[v >> (LIMB_BITS * k) & _LIMB for k in range(LIMBS)] for v in whole], np.int64)
    words = words.reshape(len(whole), LIMBS)
    drawn = keystream(entropy(32)).update(bytes(2 * len(whole) * (LIMBS - 1)))
    chance = (np.frombuffer(drawn, "<u2") >> (16 - CHANCE_BITS)).astype(np.int64).reshape(len(whole), LIMBS - 1)
    words[:, :-1] += chance << LIMB_BITS
    words[:, 1:] -= chance
    return words.astype(np.int32).view(np.uint32).reshape(-1)


def mean_statistics(total: Words, weight: int, clients: int) -> Vector:
    """Return the mean [k], float64, of the words in a sum over clients of this total weight.

    Raises RoundAbandoned (BOUND) for words that no statistics of so many clients add up to.
    """
    words = total.view(np.int32).astype(np.int64)
    if words.size and int(np.abs(words).max()) >= clients << (LIMB_BITS + CHANCE_BITS + 1):
        raise _beyond()
    limbs, found = words.reshape(-1, LIMBS).tolist(), []
    for row in limbs:
        number = sum(limb << (LIMB_BITS * place) for place, limb in enumerate(row)) - _OFFSET * weight
        if abs(number) > _OFFSET * weight:
            raise _beyond()
        found.append(number / (weight << FINE))
    return np.array(found, np.float64)


def _beyond() -> RoundAbandoned:
    return RoundAbandoned(Reason.BOUND, "a running statistic beyond 2^63; some client has not kept to what was agreed")
