"""Two polynomials over the field of p = 2^256 - 189 at many places at once, by products of matrices.

    f(x) = sum_j c_j (x^j mod p)      c_j and x^j as 16 digits of 16 bits: sums of their products are exact in float64

A product of digits counts 2^(16 s), s = 0 to 30; 2^256 is 189 in the field, so those from s = 16 on are folded back.
The remaining 16 numbers below 2^53 for each value are carried in integers that contain all values side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

P = 2**256 - 189
SIZE = 32
"""Bytes of an element of the field, little-endian."""

TERMS_MOST = 512
"""Maximum number of coefficients: 190 times 16 times so many products of two digits stay below 2^53."""

DIGITS, BITS = 16, 16
_FOLD = 2**256 - P
_LANE = 5
"""Number of 64-bit words of a value during carrying: 256 bits, and 64 for the overflow."""

_TOP = b"\xff" * 31
"""The bytes above the lowest of every number from p to 2^256."""


def values_of_two(coefficients: Sequence[Sequence[bytes]], places: tuple[int, ...]) -> tuple[list[bytes], list[bytes]]:
    """Return the values of both polynomials at the places, 32 bytes each.

    `coefficients`: TERMS_MOST at most for each, from that of the highest power down to the constant, as many in both.
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
    """Return 1, x, x^2, ... modulo p."""
    power, row = 1, []
    for _ in range(terms):
        row.append(power.to_bytes(SIZE, "little"))
        power = power * place % P
    return b"".join(row)
