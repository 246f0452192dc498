"""What codecs cost in time and save in bytes, and below which bandwidth that pays.

    python benchmarks/codecs.py [--elements 1000000] [--turns 5] [--workers 4]

CPU nanoseconds per element of encoding and decoding, and how many copies of the vector take that long, in the same
run.  The break-even is the bandwidth, each way, at which the bytes saved take as long as encoding and decoding: an
upload is encoded once and decoded once; a gradient of `--workers` is encoded once, its payload goes round a
ring to all, and all are decoded; the dense gradient beside it is reduced by a ring.  "never": the codec sends no
fewer bytes.  powersgd is of one square matrix of so many elements.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np

from fedgossip.algorithms.codecs.base import CodecTurn, LinearCodec, VectorLayout
from fedgossip.algorithms.codecs.low_rank import LowRank
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.base.vectors import Vector
from fedgossip.core.task import Segment
from fedgossip.lab.costs.base import break_even

NAMES = ("bf16", "fp16", "int8:256", "top-k:0.01", "random-k:0.01", "dgc:0.001", "qsgd:7", "terngrad", "sign")


def quickest(work: Callable[[], object], turns: int) -> float:
    """Return the CPU seconds of the quickest of some turns."""
    found = []
    for _ in range(turns):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def even(dense: float, sent: float, seconds: float) -> str:
    """Return the bandwidth below which it pays, in MB/s."""
    rate = break_even(dense - sent, seconds)
    return f"{rate / 1e6:,.0f}" if rate else "never"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--elements", type=int, default=1_000_000)
    asked.add_argument("--turns", type=int, default=5)
    asked.add_argument("--workers", type=int, default=4)
    given = asked.parse_args()
    d, m = given.elements, given.workers
    vector = np.random.default_rng(0).standard_normal(d).astype(np.float32)
    layout, turn, place = VectorLayout.of(vector), CodecTurn(1, 0, 1000), np.empty_like(vector)
    copy = quickest(lambda: np.copyto(place, vector), 5 * given.turns)
    print(f"{d:,} elements of float32; a copy takes {copy / d * 1e9:.3f} ns per element")
    print("codec          ns, encode  decode   x copy     bytes   dense/  pays below MB/s: upload, ring of", m)
    for name in NAMES:
        codec = make_codec(name)
        payload = codec.encode(vector, layout, turn)
        encode = quickest(lambda codec=codec: codec.encode(vector, layout, turn), given.turns)
        decode = quickest(lambda codec=codec, one=payload: codec.decode(one, layout, turn), given.turns)
        size, dense = payload.size, vector.nbytes
        ring = 2 * (m - 1) / m
        linear = isinstance(codec, LinearCodec)
        sent, seconds = (ring * size, encode + decode) if linear else ((m - 1) * size, encode + m * decode)
        print(
            f"{name:14} {encode / d * 1e9:10.2f} {decode / d * 1e9:7.2f} {(encode + decode) / copy:8.1f} {size:9,} "
            f"{dense / size:8.1f}  {even(dense, size, encode + decode):>10} {even(ring * dense, sent, seconds):>10}"
        )
    for rank in (1, 2, 4):
        of_low_rank(rank, vector, copy, given.turns, m)


def of_low_rank(rank: int, vector: Vector, copy: float, turns: int, m: int) -> None:
    """Print the same of factors of a square matrix, which a ring reduces as it does whole gradients."""
    side = math.isqrt(vector.size)
    square = vector[: side * side]
    low = LowRank(rank, VectorLayout.of(square, [Segment("", 0, (side, side))]), 1)
    start = low.start()
    first = low.first(square, start)
    left = low.left(first)
    second = low.second(square, left)
    encode = quickest(lambda: (low.first(square, start), low.left(first), low.second(square, left)), turns)
    decode = quickest(lambda: low.restored(left, first[:0], second), turns)
    size, ring = 4 * (low.first_length + low.second_length), 2 * (m - 1) / m
    print(
        f"{f'powersgd:{rank}':14} {encode / square.size * 1e9:10.2f} {decode / square.size * 1e9:7.2f}"
        f" {(encode + decode) / copy:8.1f} {size:9,} {square.nbytes / size:8.1f}"
        f"  {'':>10} {even(ring * square.nbytes, ring * size, encode + decode):>10}"
    )


if __name__ == "__main__":
    main()
