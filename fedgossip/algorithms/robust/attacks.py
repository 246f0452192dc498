"""Messages of attackers in place of their models: each a function of the models received in the round.

    sign-flip     -x                                  x: the attacker's model, trained and mixed as all are
    noise         x + scale N(0, 1)
    label-flip    x, trained on labels C - 1 - y in place of y
    ipm           -scale mean of the good              inner product manipulation: Xie, Koyejo and Gupta, UAI 2020
    alie          mean - z std of the good     a little is enough: Baruch, Baruch and Goldberg, NeurIPS 2019
    dissensus     to t: x_t - scale sum_j w_tj (x_j - x_t) / sum of t's weights for attackers, j good
        He, Karimireddy and Jaggi, Byzantine-robust decentralized learning via ClippedGossip, 2022

"Good" are the honest peers whose models of this round the attacker has.  Where we differ: in their papers ipm and alie
attack gradients at a server, here models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.limits import chosen, table
from fedgossip.base.vectors import Vector, frozen, ordered_mix


@dataclass(frozen=True, eq=False)
class ObservedModels:
    """An attacker's view of a round.

    `own`: its model, [d]; `good`: honest ones by id, ascending; `row_of`: each peer's weights; `attackers`: their ids.
    """

    node: int
    round: int
    seed: int
    own: Vector
    good: Mapping[int, Vector]
    row_of: Callable[[int], Mapping[int, float]]
    attackers: frozenset[int]


class Attack(Protocol):
    """`aimed`: each receiver gets a different vector."""

    @property
    def aimed(self) -> bool:
        """Whether the vector depends on the receiver."""

    def vector(self, seen: ObservedModels, to: int) -> Vector:
        """Return the vector for peer `to`, [d], frozen."""


class SignFlip:
    """The attacker's model with the opposite sign."""

    aimed = False

    def vector(self, seen: ObservedModels, to: int) -> Vector:  # noqa: ARG002
        return ordered_mix([(-1.0, seen.own)])


class AddedNoise:
    """`scale`: the standard deviation in each coordinate."""

    aimed = False

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = positive("scale", scale)

    def vector(self, seen: ObservedModels, to: int) -> Vector:  # noqa: ARG002
        drawn = seeds.stream(seen.seed, "attack", seen.node, seen.round).standard_normal(seen.own.size)
        return frozen(seen.own + (self.scale * drawn).astype(seen.own.dtype))


class LabelFlip:
    """The falsified labels are in the examples; the trained model is sent unchanged."""

    aimed = False

    def vector(self, seen: ObservedModels, to: int) -> Vector:  # noqa: ARG002
        return seen.own


class InnerProduct:
    """`scale`: length of the vector against the mean, in units of the mean."""

    aimed = False

    def __init__(self, scale: float = 0.5) -> None:
        self.scale = positive("scale", scale)

    def vector(self, seen: ObservedModels, to: int) -> Vector:  # noqa: ARG002
        if not seen.good:
            return seen.own
        return ordered_mix([(-self.scale / len(seen.good), vector) for vector in seen.good.values()])


class ALittleIsEnough:
    """`z`: number of standard deviations from the mean."""

    aimed = False

    def __init__(self, z: float = 1.5) -> None:
        self.z = positive("z", z)

    def vector(self, seen: ObservedModels, to: int) -> Vector:  # noqa: ARG002
        if not seen.good:
            return seen.own
        share = 1 / len(seen.good)
        mean = ordered_mix([(share, vector) for vector in seen.good.values()])
        apart = [vector - mean for vector in seen.good.values()]
        spread = np.sqrt(ordered_mix([(share, one * one) for one in apart]))
        return ordered_mix([(1.0, mean), (-self.z, spread)])


class Dissensus:
    """`scale`: strength of the push that separates receivers from their honest neighbours."""

    aimed = True

    def __init__(self, scale: float = 1.5) -> None:
        self.scale = positive("scale", scale)

    def vector(self, seen: ObservedModels, to: int) -> Vector:
        row = seen.row_of(to)
        lying = sum(weight for j, weight in row.items() if j in seen.attackers)
        if to not in seen.good or not lying:
            return seen.own
        target = seen.good[to]
        pulls = [(-self.scale * row[j] / lying, j) for j in sorted(seen.good) if j in row and j != to]
        own = 1.0 - sum(pull for pull, _ in pulls)
        return ordered_mix([(own, target), *((pull, seen.good[j]) for pull, j in pulls)])


def positive(option: str, value: Any) -> float:
    """Return an option that is a number above 0.  Raises ConfigError for any other."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6:
        return float(value)
    raise ConfigError(f"adversary.options: {option} is {value!r}; expected a number above 0", "Take 1.0.")


ATTACKS: Mapping[str, Callable[..., Attack]] = table(
    ("sign-flip", SignFlip),
    ("noise", AddedNoise),
    ("label-flip", LabelFlip),
    ("ipm", InnerProduct),
    ("alie", ALittleIsEnough),
    ("dissensus", Dissensus),
)
"""Values of `adversary.attack`."""


def attack_of(name: str, options: Mapping[str, Any]) -> Attack:
    """Return an attack with its options.  Raises ConfigError for an unknown name or option."""
    return chosen("adversary.attack", name, ATTACKS, options)


def lies(attack: Attack, seen: ObservedModels, targets: tuple[int, ...]) -> dict[int, Vector]:
    """Return the vectors for the targets; one shared object if they are equal."""
    if attack.aimed:
        return {to: attack.vector(seen, to) for to in targets}
    return dict.fromkeys(targets, attack.vector(seen, seen.node))
