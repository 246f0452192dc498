"""Distance of adapters averaged by halves from the mean of their products.

    || mean(B) mean(A) - mean(BA) ||  /  || mean(BA) ||        Frobenius norms over all layers, means by weight

No product is formed: with C = [B_1 ... B_n] and R the weighted A_i below each other, mean(BA) = C R, and
||C R||^2 = <C'C, R R'> needs only matrices [n r, n r].

The two matrices of a low-rank adapter, lora_A [r, in] and lora_B [out, r], are found by their names in peft, loralib
and torchtune: lora_A.default.weight, lora_embedding_A, lora_A, lora_a.weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedgossip.base.vectors import Vector
from fedgossip.core.task import Segment

MEASURED_MOST = 32
"""Maximum number of contributions of a round whose adapters are measured: the first to arrive."""

Matrix = npt.NDArray[np.float64]

_HALF = re.compile(r"((?:^|(?<=\.))[Ll]o[Rr][Aa]_(?:embedding_)?)([AaBb])(?=\.|$)")


def half_of(name: str) -> str:
    """Return "a" or "b" for the name of such a matrix; "" for any other name."""
    found = _HALF.search(name)
    return found[2].lower() if found else ""


def other_half(name: str) -> str:
    """Return the name of the matrix that multiplies it."""
    return _HALF.sub(lambda found: found[1] + {"A": "B", "B": "A", "a": "b", "b": "a"}[found[2]], name)


def product_name(name: str) -> str:
    """Return the name of the product of both."""
    return _HALF.sub(lambda found: found[1] + ("BA" if found[2].isupper() else "ba"), name)


def adapters_in(segments: Sequence[Segment]) -> tuple[tuple[Segment, Segment], ...]:
    """Return the pairs (A [r, in], B [out, r]) in the tensors of a vector; those of other shapes are omitted."""
    named = {one.name: one for one in segments}
    both = [(named.get(other_half(one.name)), one) for one in segments if half_of(one.name) == "b"]
    return tuple((a, b) for a, b in both if a and len(a.shape) > 1 < len(b.shape) and a.shape[0] == b.shape[1])


class AdapterDistance:
    """The measurement of one round: contributions are added, then `value` is read."""

    def __init__(self, pairs: Sequence[tuple[Segment, Segment]], model: Vector) -> None:
        self._pairs, self._model = pairs, model
        self._of: dict[int, tuple[float, list[tuple[Matrix, Matrix]]]] = {}

    def add(self, client: int, weight: float, update: Vector) -> None:
        """Add the adapters of model + update, with the weight of the contribution."""
        if len(self._of) < MEASURED_MOST:
            self._of[client] = weight, [(self._part(a, update), self._part(b, update)) for a, b in self._pairs]

    def value(self) -> float | None:
        """Return the relative distance; None with fewer than two contributions, or for products of zeros."""
        clients = sorted(self._of)
        total = sum(self._of[client][0] for client in clients)
        if len(clients) < 2 or not total:
            return None
        shares = [self._of[client][0] / total for client in clients]
        apart = whole = 0.0
        for place in range(len(self._pairs)):
            pairs = [self._of[client][1][place] for client in clients]
            rows = np.concatenate([share * a for share, (a, _) in zip(shares, pairs, strict=True)])
            columns = np.concatenate([b for _, b in pairs], axis=1)
            mean_a = sum(share * a for share, (a, _) in zip(shares, pairs, strict=True))
            mean_b = sum(share * b for share, (_, b) in zip(shares, pairs, strict=True))
            whole += _squared(columns, rows)
            apart += _squared(np.concatenate([mean_b, columns], axis=1), np.concatenate([mean_a, -rows]))
        return math.sqrt(max(apart, 0.0) / whole) if whole > 0 else None

    def _part(self, segment: Segment, update: Vector) -> Matrix:
        place = slice(segment.start, segment.stop)
        whole = self._model[place].astype(np.float64) + update[place]
        return whole.reshape(segment.shape[0], -1)


def _squared(columns: Matrix, rows: Matrix) -> float:
    """Return ||columns rows||^2 without the product."""
    return float(((columns.T @ columns) * (rows @ rows.T)).sum())
