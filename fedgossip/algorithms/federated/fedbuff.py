"""FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, AISTATS 2022): no rounds to wait for.

    a fixed number of clients trains at any time; each answer is added with the weight s(staleness) and another client
    is sent the newest model in its place; after K answers
        x <- x + eta * sum_k s(t_k) u_k / K             t_k: server steps since client k was sent its model

s(t) = 1 / sqrt(1 + t) (their section 5).  Here with the mean by weights, sum s u / sum s, which keeps the step's length
when all are stale.  The server may be any other, FedAdam say; `protocols.federated.buffered` is the machine.
"""

from __future__ import annotations

import math


def staleness_weight(staleness: int) -> float:
    """Return 1 / sqrt(1 + staleness)."""
    return 1 / math.sqrt(1 + staleness)
