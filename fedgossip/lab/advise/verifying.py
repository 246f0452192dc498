"""Verifies predicted rounds against real machines in the simulator's virtual time, on quadratics.

The model is cut to fewer numbers and the links to proportionally less bandwidth, so message times stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.drivers.simulate import simulate
from fedgossip.lab.advise.candidates import ROUNDS, AdviceAsked, AdvisedWay
from fedgossip.lab.advise.rates import measured_rate

NUMBERS = 50_000
"""Elements of the exchanged vectors: headers are then less than a thousandth of a message."""

NEAR = 0.02
"""Accepted relative error of a measured round."""

DIMENSIONS, REPEATS, RATE_ROUNDS = 48, 60, 60
"""Parameters of the quadratics that measure a rate: zeta is DIMENSIONS + 2."""


@dataclass(frozen=True)
class VerifiedNumber:
    """A predicted and a measured number."""

    what: str
    told: float
    measured: float
    near: float

    @property
    def holds(self) -> bool:
        """Return whether they agree."""
        return abs(self.measured / self.told - 1) <= self.near


def verified(asked: AdviceAsked, found: Sequence[AdvisedWay]) -> list[VerifiedNumber]:
    """Return the rounds of a ring all-reduce and of the fastest gossip, predicted and measured, and the latter's rate.

    Only with equal training times and equal links; the rate where zeta is 50.
    """
    if not asked.times.constant or asked.links.pairs:
        return []
    ring = next(way for way in found if way.name == "all-reduce, ring")
    gossip = next(way for way in found if way.kind == "gossip")
    told = [
        VerifiedNumber(f"seconds of a round of {way.name}", way.round_seconds, round_in_the_simulator(asked, way), NEAR)
        for way in (ring, gossip)
    ]
    if asked.zeta == DIMENSIONS + 2 and asked.n <= 64 and gossip.schedule is not None:
        rate = 1 - 10 ** (-2 * _digits(asked) / gossip.rounds)
        measured = measured_rate(gossip.schedule, gossip.eta, DIMENSIONS, RATE_ROUNDS, REPEATS)
        told.append(VerifiedNumber(f"rate of {gossip.name} on quadratics", rate, measured, 0.05))
    return told


def _digits(asked: AdviceAsked) -> float:
    from math import log10

    return -log10(asked.share)


def round_in_the_simulator(asked: AdviceAsked, way: AdvisedWay) -> float:
    """Return the time of a round in the simulator, without the first."""
    links, scale = asked.links.usual, min(1.0, NUMBERS * 4 / asked.size)
    period = way.schedule.period if way.schedule is not None and way.schedule.period else 1
    rounds = 1 + period * -(-ROUNDS // period)  # whole periods, after a first round that waits for no previous one
    content: dict[str, Any] = {
        "rounds": rounds,
        "eval": {"every": rounds},
        "task": {"kind": "quadratic", "dim": max(1, round(asked.size * scale / 4))},
        "simulation": {
            "latency": links.latency, "bandwidth": links.up * scale, "downlink": links.down * scale,
            "training": asked.times.seconds,
        },
    }  # fmt: skip
    if way.kind == "gossip":
        content["topology"] = {"graph": way.name, "n": asked.n}
        content["algorithm"] = {"deadline": 1e6, "least_deadline": 1e6, "start_timeout": 1e6}
    else:
        limits = {"deadline": 1e6, "least_deadline": 1e6, "start_timeout": 1e6}
        content["parallel"] = {"workers": asked.n, "method": "ring", "bucket": 0, **limits}
    rows = [row for row in simulate(content).network() if row.round]
    return (rows[-1].seconds - rows[0].seconds) / (len(rows) - 1)
