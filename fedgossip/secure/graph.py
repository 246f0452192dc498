"""Which clients share masks: all pairs, or the k nearest on a circle that the session shuffles.

Up to 64 clients the graph is complete (Bonawitz et al., Practical secure aggregation for privacy-preserving machine
learning, CCS 2017); above, a k-regular Harary graph over a permutation by the session's hash (Bell et al., Secure
single-server aggregation with (poly)logarithmic overhead, CCS 2020), which has no guarantee against a coordinator that
tries many hashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedgossip.secure.primitives import derive, keystream

COMPLETE_MAX = 64
COHORT_MAX = 1000


def complete(cohort: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the neighbours of each, ascending: all others."""
    return {u: tuple(v for v in cohort if v != u) for u in cohort}


def harary(cohort: Sequence[int], k: int, sid0: bytes) -> dict[int, tuple[int, ...]]:
    """Return the neighbours of each, ascending: the k / 2 before and after it on the shuffled circle.

    Raises ValueError for an odd k, below 2, or not below the number of clients.
    """
    n = len(cohort)
    if k % 2 or not 2 <= k < n:
        raise ValueError(f"k = {k}: an even number of neighbours from 2 to {n - 1}")
    circle = shuffled(cohort, sid0)
    steps = [step for step in range(-k // 2, k // 2 + 1) if step]
    return {u: tuple(sorted({circle[(place + step) % n] for step in steps})) for place, u in enumerate(circle)}


def shuffled(cohort: Sequence[int], sid0: bytes) -> list[int]:
    """Return a permutation that depends on the session alone: Fisher and Yates, draws without bias."""
    below = _drawer(derive(sid0, sid0, "graph"))
    order = list(cohort)
    for last in range(len(order) - 1, 0, -1):
        other = below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def _drawer(key: bytes) -> Callable[[int], int]:
    stream = keystream(key)

    def below(bound: int) -> int:
        limit = 2**64 - 2**64 % bound  # an equal number of each remainder
        while True:
            value = int.from_bytes(stream.update(bytes(8)), "little")
            if value < limit:
                return value % bound

    return below


# --- number of neighbours and threshold -------------------------------------------------------------------------------


def policy_threshold(m: int) -> int:
    """Return the smallest threshold that an honest client accepts in a share group of `m`, itself included.

    More than two thirds: two lists of survivors would need 2 t shares, and the group gives at most m + m / 3.
    """
    return max(2 * m // 3 + 1, 3)


def parameters(
    n: int, corrupt: float, dropping: float, *, semi_malicious: bool = False, sigma: int = 40, eta: int = 20
) -> tuple[int, int] | None:
    """Return (k, t): the smallest even number of neighbours that admits a threshold, and the smallest threshold.

    `corrupt` and `dropping`: shares of the n clients.  With probability 2^-sigma at most some client has t corrupt
    neighbours, or the honest are disconnected; with 2^-eta at most a round cannot be finished.  Exact integers; None if
    no k below n is enough.  Source: Bell et al. 2020, section 3.
    """
    bad, gone = (math.floor(round(share * n, 9)) for share in (corrupt, dropping))
    for k in range(2, n, 2):
        if not _connected(n, k, bad + gone, sigma):
            continue
        ways = math.comb(n, k)
        t = _private(n, _hypergeometric(n, bad, k), ways, sigma)
        if semi_malicious:
            t = max(t, (k + t - 1) // 2 + 1)  # 2 t > k + corrupt neighbours, fewer than t of them
        if 0 < t <= k and n * sum(_hypergeometric(n, n - gone, k)[:t]) << eta <= ways:
            return k, t
    return None


def _hypergeometric(n: int, marked: int, k: int) -> list[int]:
    """Return the number of k-subsets of n with i marked elements, for i = 0 to k."""
    return [math.comb(marked, i) * math.comb(n - marked, k - i) for i in range(k + 1)]


def _connected(n: int, k: int, missing: int, sigma: int) -> bool:
    lost = math.prod(max(missing - j, 0) for j in range(k))
    return n * (n - k - 1) * lost << (sigma + 1) <= 2 * math.prod(n - j for j in range(k))


def _private(n: int, corrupt: Sequence[int], ways: int, sigma: int) -> int:
    """Return the smallest t with n Pr[at least t corrupt neighbours] <= 2^-(sigma + 1)."""
    t, tail = len(corrupt), 0
    while t and n * (tail + corrupt[t - 1]) << (sigma + 1) <= ways:
        t -= 1
        tail += corrupt[t]
    return t
