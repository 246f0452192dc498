"""Shamir's secret sharing over the prime field of p = 2^256 - 189: t shares restore the secret, t - 1 disclose nothing.

A share is the value of a random polynomial of degree t - 1 at the holder's x, its place in the roster plus one; the
secret is the value at 0.

Source: Shamir, How to share a secret, Communications of the ACM 22 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice
from operator import add, mul

from fedgossip.secure.polynomials import SIZE, P, values_of_two
from fedgossip.secure.primitives import Entropy

_TOP = b"\xff" * 31

REDUCED_FROM = 512
"""Number of bits above which a number is reduced modulo p."""

FEW, MANY = 600, 1 << 15
"""Range of coefficients times holders in which matrices are faster: below it calls dominate, above it the memory for
the powers of all places."""

TRIES_MAX = 512
"""Maximum number of tried sets of t shares per secret."""


def draw(entropy: Entropy) -> bytes:
    """Return 32 uniform bytes below p: 2^-248 of all draws are repeated."""
    return draws(1, entropy)[0]


def draws(count: int, entropy: Entropy) -> list[bytes]:
    """Return `count` draws, equal to as many calls of `draw`."""
    found: list[bytes] = []
    while missing := count - len(found):
        drawn = entropy(missing * SIZE)
        each = [drawn[at : at + SIZE] for at in range(0, len(drawn), SIZE)]
        if _TOP in drawn:  # so has every value of p or more
            each = [value for value in each if int.from_bytes(value, "little") < P]
        found += each
    return found


def split(secret: bytes, holders: Sequence[int], t: int, entropy: Entropy) -> dict[int, bytes]:
    """Return a share per holder, {x: 32 bytes}; any `t` of them restore `secret`.

    Raises ValueError for t out of 1 to len(holders), for an x that is 0 or duplicate, and for a secret of p or more.
    """
    _check(secret, holders, t)
    return _split(secret, draws(t - 1, entropy), holders)


def _split(secret: bytes, falling: Sequence[bytes], holders: Sequence[int]) -> dict[int, bytes]:
    constant, *coefficients = [int.from_bytes(one, "little") for one in (secret, *falling)]
    return {x: _at(coefficients, constant, x).to_bytes(SIZE, "little") for x in holders}


def split_two(one: bytes, other: bytes, holders: Sequence[int], t: int, entropy: Entropy) -> list[bytes]:
    """Return for each holder, in this order, its share of `one` and then that of `other`, as two `split` calls do.

    Raises ValueError as they do.
    """
    _check(one, holders, t)
    _check(other, holders, t)
    falling = draws(2 * (t - 1), entropy)
    of_one, of_other = falling[: t - 1], falling[t - 1 :]
    if FEW < t * len(holders) < MANY:
        return [*map(add, *values_of_two([[*of_one, one], [*of_other, other]], tuple(holders)))]
    first, second = _split(one, of_one, holders), _split(other, of_other, holders)
    return [first[x] + second[x] for x in holders]


def _check(secret: bytes, holders: Sequence[int], t: int) -> None:
    if not 1 <= t <= len(holders) or len(set(holders)) != len(holders) or min(holders) < 1:
        raise ValueError(f"{t} shares of {len(holders)} holders: they need distinct positive places")
    if len(secret) != SIZE or int.from_bytes(secret, "little") >= P:
        raise ValueError("a secret is 32 bytes, below p")


def _at(falling: Sequence[int], constant: int, x: int) -> int:
    """Horner: coefficients from the highest power down to x^1, then the constant."""
    total = 0
    for coefficient in falling:
        total = (total + coefficient) * x
        if total >> REDUCED_FROM:  # places are small, so that a product is cheaper than a remainder
            total %= P
    return (total + constant) % P


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of all these shares: the value at 0 of the polynomial through them."""
    return _value(shares, tuple(shares), 0).to_bytes(SIZE, "little")


def _value(shares: Mapping[int, bytes], places: tuple[int, ...], x: int) -> int:
    factors = basis(places, x)
    values = [int.from_bytes(shares[p], "little") for p in places]
    total: int = sum(map(mul, factors, values))
    return total % P


@lru_cache(maxsize=64)
def basis(places: tuple[int, ...], x: int = 0) -> tuple[int, ...]:
    """Return the Lagrange factors at `x` for these places; they are public.  One inversion for all of them."""
    tops = [math.prod(x - q for q in places if q != p) % P for p in places]
    bottoms = [math.prod(p - q for q in places if q != p) % P for p in places]
    before = [1]
    for bottom in bottoms:
        before.append(before[-1] * bottom % P)
    inverse, factors = pow(before[-1], -1, P), [0] * len(places)
    for i in range(len(places) - 1, -1, -1):
        factors[i] = tops[i] * before[i] * inverse % P
        inverse = inverse * bottoms[i] % P
    return tuple(factors)


# --- with shares that may be wrong ------------------------------------------------------------------------------------


def recover(
    shares: Mapping[int, bytes], t: int, right: Callable[[bytes], bool]
) -> tuple[bytes, tuple[int, ...]] | None:
    """Return the secret that is `right`, and the places with shares off its polynomial; None: not found.

    Tries the first t shares, then sets that replace one, two, ... of them, TRIES_MAX sets in all.  After a first
    success the others are not examined: a faultless round costs t shares.  A share that does not fit is the fault of
    its holder or of its dealer: the polynomial does not show which.
    """
    first = tuple(shares)[:t]
    for places in islice(_sets(tuple(shares), t), TRIES_MAX):
        value = _value(shares, places, 0)
        secret = value.to_bytes(SIZE, "little")
        if right(secret):
            rest = () if places == first else tuple(p for p in shares if p not in places)
            return secret, tuple(p for p in rest if _value(shares, places, p).to_bytes(SIZE, "little") != shares[p])
    return None


def _sets(places: tuple[int, ...], t: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of t places once at most: the first t, then those that replace one of them, two of them, ..."""
    first, spare = places[:t], places[t:]
    if len(first) < t:
        return
    for wrong in range(min(t, len(spare)) + 1):
        for out in combinations(first, wrong):
            for new in combinations(spare, wrong):
                yield tuple(p for p in first if p not in out) + new
