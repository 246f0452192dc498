"""Two-tap gossip, which remembers the round before and so agrees sooner on a slow graph (Muthukrishnan, Ghosh and
Schultz, First- and second-order diffusive methods for rapid, coarse, distributed load balancing, Theory of Computing
Systems 31, 1998):

    x_i  <-  om sum_j W_ij (x_j + u_j) + (1 - om) (x_i of the round before)

    om = 2 / (1 + sqrt(1 - slem^2)) is the best for the second largest |eigenvalue| slem of a symmetric W

Stable for 0 < om < 2.  The stationary disagreement and the fixed point are those of D-PSGD.  Over several rounds the
mean moves by om / (2 - om) times the mean update: so much larger a learning rate is what it amounts to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, linear

OM = 1.5
"""The best om for slem 0.943, about that of a ring of 16; on a graph that is better tied another is."""


@dataclass(frozen=True, eq=False)
class Taps:
    """Arrays [d] or [n, d]: the model, and that of the round before."""

    x: Vector
    before: Vector


class TwoTap:
    """Give `om`, or `slem` for the best om; none: OM.  Raises ConfigError for both, or one outside its range."""

    slots = (MODEL,)
    needs = Needs(constant=True, symmetric=True, linear=True)

    def __init__(self, om: float | None = None, slem: float | None = None) -> None:
        self.om = _om(om, slem)

    def start(self, x: Vector) -> Taps:
        return Taps(x, x)

    def trained(self, state: Taps, update: Vector | None, step: Step) -> tuple[Taps, Vectors]:  # noqa: ARG002
        return state, (state.x if update is None else add(state.x, update),)

    def mixed(self, state: Taps, mixed: Vectors) -> Taps:
        return Taps(linear((self.om, mixed[0]), (1 - self.om, state.before)), state.x)

    def model(self, state: Taps) -> Vector:
        return state.x

    def seen(self, state: Taps, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Taps, differences: Vectors) -> Taps:
        return replace(state, x=linear((1, state.x), (self.om, differences[0])))

    def rejoined(self, state: Taps, model: Vector) -> Taps:  # noqa: ARG002
        return Taps(model, model)


def _om(om: float | None, slem: float | None) -> float:
    advice = "`fedgossip topology show GRAPH` tells slem; or give om, between 0 and 2."
    if om is None and slem is None:
        return OM
    if om is not None and slem is not None:
        raise ConfigError("two-tap takes one of the options om and slem, not both", advice)
    name, value, below = ("om", om, 2) if slem is None else ("slem", slem, 1)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and (0 < value < below or value == slem == 0)):  # type: ignore[operator]
        raise ConfigError(f"two-tap: {name} is {value!r}; expected a number between 0 and {below}", advice)
    return float(om) if slem is None else 2 / (1 + sqrt(1 - slem**2))  # type: ignore[arg-type]
