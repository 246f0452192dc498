"""Whether what was told of a round is what a round takes: real machines in the simulator's virtual time, on quadratics.

The model is cut to fewer numbers and the links to as much less bandwidth, so a message takes as long as it would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgossip.drivers.simulate import simulate
from fedgossip.lab.advise.candidates import ROUNDS, AdviceAsked, AdvisedWay
from fedgossip.lab.advise.rates import measured_rate

NUMBERS = 50_000
"""Numbers of the vectors that travel: headers are then less than a thousandth of a message."""

NEAR = 0.02
"""By which share a measured round may be off."""

DIMENSIONS, REPEATS, RATE_ROUNDS = 48, 60, 60
"""Of the quadratics on which a rate is measured: zeta is DIMENSIONS + 2."""


@dataclass(frozen=True)
class VerifiedNumber:
    """What was told and what was measured."""

    what: str
    told: float
    measured: float
    near: float

    @property
    def holds(self) -> bool:
        """Whether they agree."""
        return abs(self.measured / self.told - 1) <= self.near


def verified(asked: AdviceAsked, found: Sequence[AdvisedWay]) -> list[VerifiedNumber]:
    """Return the round of a ring all-reduce and of the soonest gossip as told and as measured, and the latter's rate.

    Only where all train equally long and links are equal; the rate where zeta is 50.
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
    """Return what a round takes in the simulator, the first left out."""
    links, scale = asked.links.usual, min(1.0, NUMBERS * 4 / asked.size)
    period = way.schedule.period if way.schedule is not None and way.schedule.period else 1
    rounds = 1 + period * -(-ROUNDS // period)  # whole periods, and the first, which waits for nobody's last
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
