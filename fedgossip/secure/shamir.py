"""Shamir's secret sharing over the prime field of p = 2^256 - 189: t shares restore the secret, t - 1 disclose nothing.

A share is a random polynomial's value at the holder's x, its place plus one; the secret is that at 0.

Source: Shamir, How to share a secret, Communications of the ACM 22 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice
from operator import add, mul

import numpy as np
import numpy.typing as npt

from fedgossip.secure.primitives import Entropy

_TOP = b"\xff" * 31

REDUCED_FROM = 512
"""Number of bits above which a number is reduced modulo p."""

FEW, MANY = 600, 1 << 15
"""Range of coefficients times holders with matrices faster than calls, and with enough memory for powers."""

TRIES_MAX = 512
"""Maximum number of tried sets of t shares per secret."""


def draw(entropy: Entropy) -> bytes:
    """Return 32 uniform bytes below p: 2^-248 of all draws are repeated."""
    return draws(1, entropy)[0]


def draws(count: int, entropy: Entropy) -> list[bytes]:
    """Return `count` draws, equal to that number of calls of `draw`."""
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

    Raises ValueError for t out of 1 to len(holders), a zero or duplicate x, and a secret of p or more.
    """
    _check(secret, holders, t)
    return _split(secret, draws(t - 1, entropy), holders)


def _split(secret: bytes, falling: Sequence[bytes], holders: Sequence[int]) -> dict[int, bytes]:
    constant, *coefficients = [int.from_bytes(one, "little") for one in (secret, *falling)]
    return {x: _evaluate(coefficients, constant, x).to_bytes(SIZE, "little") for x in holders}


def split_two(one: bytes, other: bytes, holders: Sequence[int], t: int, entropy: Entropy) -> list[bytes]:
    """Return each holder's share of `one` and of `other`, in this order, as two `split` calls.  Raises ValueError as
    they do.
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


def _evaluate(falling: Sequence[int], constant: int, x: int) -> int:
    """Horner, from the highest power down to the constant."""
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
    tops = _products_of_others([x - q for q in places])
    bottoms = [math.prod([p - q for q in places if q != p]) % P for p in places]
    before = [1]
    for bottom in bottoms:
        before.append(before[-1] * bottom % P)
    inverse, factors = pow(before[-1], -1, P), [0] * len(places)
    for i in range(len(places) - 1, -1, -1):
        factors[i] = tops[i] * before[i] * inverse % P
        inverse = inverse * bottoms[i] % P
    return tuple(factors)


def _products_of_others(factors: Sequence[int]) -> list[int]:
    """Return for each factor the product modulo p of all others: of those before it and those behind it."""
    before, behind = [1], [1]
    for left, right in zip(factors, reversed(factors), strict=True):
        before.append(before[-1] * left % P)
        behind.append(behind[-1] * right % P)
    return [one * other % P for one, other in zip(before, behind[-2::-1], strict=False)]


# --- with shares that may be wrong ------------------------------------------------------------------------------------


def recover(
    shares: Mapping[int, bytes], t: int, right: Callable[[bytes], bool]
) -> tuple[bytes, tuple[int, ...]] | None:
    """Return the secret for which `right` is true, and the places with shares off its polynomial; None: not found.

    Tries the first t shares, then sets that replace one, two, ..., TRIES_MAX in all; after a success the others are not
    examined.  A bad share is its holder's fault or its dealer's.
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
    """Yield every set of t places: the first t, then with one replaced, two, ..."""
    first, spare = places[:t], places[t:]
    if len(first) < t:
        return
    for wrong in range(min(t, len(spare)) + 1):
        for out in combinations(first, wrong):
            for new in combinations(spare, wrong):
                yield tuple(p for p in first if p not in out) + new


# Two polynomials over the field of p = 2^256 - 189 at many places at once, by products of matrices.
#
#     f(x) = sum_j c_j (x^j mod p)      c_j and x^j as 16 digits of 16 bits: sums of their products are exact in float64
#
# A product of digits counts 2^(16 s), s = 0 to 30; 2^256 is 189 in the field, so those from s = 16 on are folded back.
# The remaining 16 numbers below 2^53 for each value are carried in integers that contain all values side by side.


P = 2**256 - 189
SIZE = 32
"""Bytes of an element of the field, little-endian."""

TERMS_MOST = 512
"""Maximum number of coefficients: 190 times 16 times this number of products of two digits stays below 2^53."""

DIGITS, BITS = 16, 16
_FOLD = 2**256 - P
_LANE = 5
"""Number of 64-bit words of a value during carrying: 256 bits, and 64 for the overflow."""

"""Bytes above the lowest of every number from p to 2^256."""


def values_of_two(coefficients: Sequence[Sequence[bytes]], places: tuple[int, ...]) -> tuple[list[bytes], list[bytes]]:
    """Return both polynomials' values at the places, 32 bytes each; `coefficients`: from the highest power down, at
    most TERMS_MOST each.
    """
    terms, count = len(coefficients[0]), 2 * len(places)
    digits = np.frombuffer(b"".join([each for one in coefficients for each in one]), "<u2")
    left = digits.reshape(2, terms, DIGITS).transpose(2, 0, 1).astype(np.float64).reshape(2 * DIGITS, terms)
    sums = np.zeros((2 * DIGITS, count))
    for digit, products in enumerate(np.matmul(left, _powers(places, terms))):
        sums[digit : digit + DIGITS] += products.reshape(DIGITS, count)
    folded = (sums[:DIGITS] + _FOLD * sums[DIGITS:]).T.astype("<u8")
    total = 0
    for digit in range(64 // BITS):
        lanes = np.zeros((count, _LANE), "<u8")
        lanes[:, :-1] = folded[:, digit :: 64 // BITS]
        total += int.from_bytes(lanes.tobytes(), "little") << BITS * digit
    low, high = _masks(count)
    for _ in range(2):  # below 2^256 + 2^46, then below 2^256
        total = (total & low) + _FOLD * (total >> 256 & high)
    joined = total.to_bytes(8 * _LANE * count, "little")
    values = [joined[at : at + SIZE] for at in range(0, len(joined), 8 * _LANE)]
    if _TOP in joined:
        values = [(int.from_bytes(value, "little") % P).to_bytes(SIZE, "little") for value in values]
    return values[: len(places)], values[len(places) :]


@lru_cache(maxsize=4)
def _masks(count: int) -> tuple[int, int]:
    """Return the lower 256 bits of every lane, and the lowest 64."""
    lanes = sum(1 << 64 * _LANE * lane for lane in range(count))
    return lanes * (2**256 - 1), lanes * (2**64 - 1)


@lru_cache(maxsize=2)
def _powers(places: tuple[int, ...], terms: int) -> npt.NDArray[np.float64]:
    """Return the digits of x^j modulo p, [digit, j falling, place]; they are public."""
    rows = np.stack([np.frombuffer(_row(place, terms), "<u2").reshape(terms, DIGITS)[::-1] for place in places])
    return np.ascontiguousarray(rows.transpose(2, 1, 0).astype(np.float64))


@lru_cache(maxsize=1024)
def _row(place: int, terms: int) -> bytes:
    power, row = 1, []
    for _ in range(terms):
        row.append(power.to_bytes(SIZE, "little"))
        power = power * place % P
    return b"".join(row)
