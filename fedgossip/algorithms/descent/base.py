"""Interface of a descent method: a state with the model, a step along the mean gradient, and descents around another.

    x      vector of the model, [d], float32 or float64
    step   (state, gradient [d], rate) -> state; every product and sum is rounded separately, in the model's type

Weights decay as in the papers: in the gradient (sgd, adagrad, adam, lars), or separately from it (adamw, lamb).

An outer step as a descent (workers train alone, displacements are averaged) is DiLoCo by all-reduce (Douillard and
others, 2023); its bits equal those of FedAvgM's server (`algorithms.gossip.outer`).  In models with running statistics,
only parameters take steps; statistics are the workers' mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from fedgossip.algorithms.gossip.base import saved
from fedgossip.algorithms.gossip.outer import OuterStep
from fedgossip.algorithms.gossip.running_statistics import cleared, joined
from fedgossip.base.vectors import BLOCK, Vector, empty, frozen
from fedgossip.core.task import Segment


@dataclass(frozen=True, slots=True, eq=False)
class DescentState:
    """State of a descent; its arrays are frozen, [d]."""

    x: Vector


State = TypeVar("State", bound=DescentState)


class Descent(Protocol[State]):
    """One method.  Workers with the same initial vector and the same gradients have the same bits."""

    elementwise: bool
    """Whether elements are independent: a stretch of the vector can then be stepped without the rest."""

    def start(self, x: Vector) -> State:
        """Return the state before the first step; its memory is zeros."""

    def step(self, state: State, gradient: Vector, rate: float) -> State:
        """Return the state after a step of `rate` along `gradient`, [d] of the model's type; an unfrozen gradient's
        memory is reused.
        """


def stepped(descent: Descent[Any], state: Any, part: slice, gradient: Vector, rate: float) -> Any:
    """Return the state after a step of the elements `part` along their gradient, [part]: all, unless elementwise."""
    if gradient.size == state.x.size:
        return descent.step(state, gradient, rate)
    assert descent.elementwise
    arrays = saved(state)[0]
    after = descent.step(replace(state, **{name: one[part] for name, one in arrays.items()}), gradient, rate)
    return replace(state, **{name: _replace_part(one, part, getattr(after, name)) for name, one in arrays.items()})


def stepped_by_momentum(descent: Descent[Any], state: Any, part: slice, rate: float) -> Any:
    """Return the state after a step of the elements `part` with a zero gradient: earlier momentum still moves them."""
    return stepped(descent, state, part, zeros(state.x[part]), rate)


def _replace_part(vector: Vector, part: slice, new: Vector) -> Vector:
    changed = vector.copy()
    changed[part] = new
    return frozen(changed)


def zeros(x: Vector) -> Vector:
    """Return a frozen vector of zeros like `x`."""
    return frozen(np.zeros_like(x))


def along_by(x: Vector, direction: Vector, rate: float) -> Vector:
    """Return x - rate * direction, frozen [d]: two roundings, in the memory of an unfrozen `direction`."""
    out, factor = direction if direction.flags.writeable else empty(x.size, x.dtype), x.dtype.type(rate)
    for start in range(0, x.size, BLOCK):  # a block stays in the cache between the two
        part = slice(start, start + BLOCK)
        np.multiply(direction[part], factor, out=out[part])
        np.subtract(x[part], out[part], out=out[part])
    return frozen(out)


def decayed(gradient: Vector, x: Vector, weight_decay: float) -> Vector:
    """Return gradient + weight_decay * x; the gradient itself without weight decay."""
    return gradient + x * weight_decay if weight_decay else gradient


def layers(segments: Sequence[Segment], length: int) -> list[tuple[slice, bool]]:
    """Return each tensor's stretch, and whether it is a layer with its own trust ratio.

    Biases and scales of normalisation (one axis) use the rate alone, as in the papers' code.  Without segments: one
    layer.
    """
    if not segments:
        return [(slice(0, length), True)]
    return [(slice(one.start, one.stop), len(one.shape) > 1) for one in segments]


def norm(vector: Vector) -> float:
    """Return the Euclidean norm, summed in float64."""
    return float(np.sqrt(np.square(vector, dtype=np.float64).sum()))


@dataclass(frozen=True, slots=True, eq=False)
class OuterState(DescentState):
    v: Vector
    """The outer momentum, a displacement."""


@dataclass(frozen=True)
class OuterDescent:
    """An outer step: its "gradient" is the mean change by local training, and it uses its own rate."""

    outer: OuterStep
    elementwise = True

    def start(self, x: Vector) -> OuterState:
        return OuterState(x, zeros(x))

    def step(self, state: OuterState, gradient: Vector, rate: float) -> OuterState:  # noqa: ARG002
        return OuterState(*self.outer.taken(state.x, state.v, gradient))


@dataclass(frozen=True)
class StatisticsDescent:
    """`statistics`: number of elements at the end of a vector."""

    descent: Descent[Any]
    statistics: int
    elementwise = False

    def start(self, x: Vector) -> Any:
        return self.descent.start(x)

    def step(self, state: Any, gradient: Vector, rate: float) -> Any:
        parameters = gradient.size - self.statistics
        after = self.descent.step(state, cleared(gradient, parameters), rate)
        return replace(after, x=joined(after.x, gradient[parameters:]))
