"""What more workers bring where the examples of a round stay the same (strong scaling), and where the rest is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedgossip.lab.costs.base import Cost


@dataclass(frozen=True)
class Scaling:
    """T(1) / T(m), that per worker, and the shares of a round that go to communication and to waiting."""

    speedup: float
    efficiency: float
    lost_to_communication: float
    lost_to_waiting: float


def strong_scaling(costs: Mapping[int, Cost]) -> dict[int, Scaling]:
    """Return what each number of workers brings over one.  Raises ValueError where that of one is not among them."""
    if 1 not in costs:
        raise ValueError("strong scaling is told beside one worker")
    return {
        m: Scaling(
            costs[1].seconds / cost.seconds,
            costs[1].seconds / cost.seconds / m,
            cost.communicate / cost.seconds,
            cost.wait / cost.seconds,
        )
        for m, cost in sorted(costs.items())
    }
