"""Momentum on graphs: mixed like the model, DecentLaM, quasi-global momentum; and two-tap gossip.

D-PSGD with momentum mixed like the model (Yu, Jin and Yang, ICML 2019):

    M_i  <-  beta M_i + u_i                 u_i: the change by node i's local steps, from x_i; M begins with 0
    x_i  <-  sum_j W_ij (x_j + M_j)
    M_i  <-  sum_j W_ij M_j

nesterov: x_i  <-  sum_j W_ij (x_j + u_j + beta M_j), with the new M.

Two vectors are sent.  Local momentum (`train.momentum`) causes the disagreement of a step eta / (1 - beta); mixed
momentum is nearly that of the mean.  M is a displacement, -rate times the paper's momentum, so it is multiplied by new
rate / old rate when the rate changes.

DecentLaM (Yuan, Chen, Huang, Zhang, Pan, Xu and Yin, ICCV 2021), momentum of the step after mixing:

    M_i  <-  beta M_i + sum_j W_ij (x_j + u_j) - x_i      u_j: the change by node j's local steps, from x_j
    x_i  <-  x_i + M_i                                    M begins with 0

One vector is sent.  M is 0 at D-PSGD's fixed point, so the stationary disagreement is D-PSGD's.  The paper's g~ = (x
- W (x - eta g)) / eta is -(M - beta M_before) / eta.

Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, ICML 2021), of the peers' common move:

    x_i  <-  sum_j W_ij (x_j + u_j + beta M_j)    u_j: the change by node j's local steps, from x_j
    M_i  <-  mu M_i + (1 - mu) (x_i - x_i before)     M begins with 0

One vector is sent; the stationary disagreement is D-PSGD's, as M is 0 at a fixed point.  Where we differ: beta M acts
once a round, on the sum of the local steps, not in each.

Two-tap gossip uses the previous round too, and so agrees sooner on a slow graph (Muthukrishnan, Ghosh and Schultz,
First- and second-order diffusive methods for rapid, coarse, distributed load balancing, Theory of Computing Systems 31,
1998):

    x_i  <-  om sum_j W_ij (x_j + u_j) + (1 - om) (x_i of the round before)

    om = 2 / (1 + sqrt(1 - slem^2)) is the best for the second largest |eigenvalue| slem of a symmetric W

Stable for 0 < om < 2, with D-PSGD's stationary disagreement and fixed point.  Over several rounds the mean moves by om
/ (2 - om) times the mean update: a larger learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Protocol, TypeVar

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, Needs, Slot, Step, Vectors
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, linear, subtract


@dataclass(frozen=True, eq=False)
class MomentumState:
    """Arrays [d] or [n, d]; `motion` is None for zero; `rate` is its learning rate."""

    x: Vector
    motion: Vector | None = None
    rate: Vector | float = 0.0


class HasMotion(Protocol):
    """A state with a motion and its learning rate."""

    @property
    def motion(self) -> Vector | None: ...

    @property
    def rate(self) -> Vector | float: ...


State = TypeVar("State", bound=HasMotion)


def at_rate(state: State, step: Step) -> State:
    """Return the state with its motion rescaled to the step's learning rate; unchanged for an unknown rate, 0."""
    if state.motion is None:
        return replace(state, rate=step.rate)  # type: ignore[type-var]
    known = np.logical_and(step.rate, state.rate)
    now, before = np.where(known, step.rate, 1.0), np.where(known, state.rate, 1.0)
    ratio = np.divide(now, before, dtype=state.motion.dtype, casting="same_kind")
    return replace(state, motion=linear((ratio, state.motion)), rate=step.rate)  # type: ignore[type-var]


def share(option: str, value: Any) -> float:
    """Return an option in [0, 1).  Raises ConfigError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise ConfigError(f"algorithm.options: {option} is {value!r}; expected a number from 0 to below 1", "Take 0.9.")


def yes_or_no(option: str, value: Any) -> bool:
    """Return a boolean option.  Raises ConfigError for anything else."""
    if isinstance(value, bool):
        return value
    raise ConfigError(f"algorithm.options: {option} is {value!r}; expected true or false", "Leave it out for false.")


class MixedMomentum:
    """`beta` in [0, 1).  A peer that resumes from another model begins without momentum."""

    slots = (MODEL, Slot("momentum"))
    needs = Needs(plain_sgd=True, linear=True)

    def __init__(self, beta: float = 0.9, *, nesterov: bool = False) -> None:
        self.beta, self.nesterov = share("beta", beta), yes_or_no("nesterov", nesterov)

    def start(self, x: Vector) -> MomentumState:
        return MomentumState(x)

    def trained(self, state: MomentumState, update: Vector | None, step: Step) -> tuple[MomentumState, Vectors]:
        now = at_rate(state, step)
        terms = [] if now.motion is None else [(self.beta, now.motion)]
        terms += [] if update is None else [(1.0, update)]
        motion = linear(*(terms or [(0.0, state.x)]))
        if not self.nesterov:
            return now, (add(state.x, motion), motion)
        ahead = [(1.0, state.x)] + ([] if update is None else [(1.0, update)])
        return now, (linear(*ahead, (self.beta, motion)), motion)

    def mixed(self, state: MomentumState, mixed: Vectors) -> MomentumState:
        x, motion = mixed
        return MomentumState(x, motion, state.rate)

    def model(self, state: MomentumState) -> Vector:
        return state.x

    def seen(self, state: MomentumState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: MomentumState, differences: Vectors) -> MomentumState:
        x, motion = differences
        return replace(state, x=add(state.x, x), motion=motion if state.motion is None else add(state.motion, motion))

    def rejoined(self, state: MomentumState, model: Vector) -> MomentumState:  # noqa: ARG002
        return MomentumState(model)


class DecentLaM:
    """`beta` in [0, 1)."""

    slots = (MODEL,)
    needs = Needs(symmetric=True, plain_sgd=True)

    def __init__(self, beta: float = 0.9) -> None:
        self.beta = share("beta", beta)

    def start(self, x: Vector) -> MomentumState:
        return MomentumState(x)

    def trained(self, state: MomentumState, update: Vector | None, step: Step) -> tuple[MomentumState, Vectors]:
        return at_rate(state, step), (state.x if update is None else add(state.x, update),)

    def mixed(self, state: MomentumState, mixed: Vectors) -> MomentumState:
        moved = subtract(mixed[0], state.x)
        motion = moved if state.motion is None else linear((self.beta, state.motion), (1, moved))
        return MomentumState(add(state.x, motion), motion, state.rate)

    def model(self, state: MomentumState) -> Vector:
        return state.x

    def seen(self, state: MomentumState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: MomentumState, differences: Vectors) -> MomentumState:
        (x,) = differences
        return replace(state, x=add(state.x, x), motion=x if state.motion is None else add(state.motion, x))

    def rejoined(self, state: MomentumState, model: Vector) -> MomentumState:  # noqa: ARG002
        return MomentumState(model)


class QuasiGlobal:
    """`beta` and `mu` in [0, 1)."""

    slots = (MODEL,)
    needs = Needs(plain_sgd=True)

    def __init__(self, beta: float = 0.9, mu: float = 0.9) -> None:
        self.beta, self.mu = share("beta", beta), share("mu", mu)

    def start(self, x: Vector) -> MomentumState:
        return MomentumState(x)

    def trained(self, state: MomentumState, update: Vector | None, step: Step) -> tuple[MomentumState, Vectors]:
        now = at_rate(state, step)
        sent = state.x if update is None else add(state.x, update)
        return now, (sent if now.motion is None else linear((1, sent), (self.beta, now.motion)),)

    def mixed(self, state: MomentumState, mixed: Vectors) -> MomentumState:
        (x,) = mixed
        moved = (1 - self.mu, subtract(x, state.x))
        kept = [] if state.motion is None else [(self.mu, state.motion)]
        return MomentumState(x, linear(*kept, moved), state.rate)

    def model(self, state: MomentumState) -> Vector:
        return state.x

    def seen(self, state: MomentumState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: MomentumState, differences: Vectors) -> MomentumState:
        (x,) = differences
        moved = (1 - self.mu, x)
        kept = [] if state.motion is None else [(1.0, state.motion)]
        return replace(state, x=add(state.x, x), motion=linear(*kept, moved))

    def rejoined(self, state: MomentumState, model: Vector) -> MomentumState:  # noqa: ARG002
        return MomentumState(model)


OM = 1.5
"""The best om for slem 0.943, about that of a ring of 16; a better connected graph has a smaller one."""


@dataclass(frozen=True, eq=False)
class Taps:
    """Arrays [d] or [n, d]: the model, and the model of the previous round."""

    x: Vector
    before: Vector


class TwoTap:
    """`om`, or `slem` for the best om; else OM.  Raises ConfigError for both, or for one outside its range."""

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
    advice = "`fedgossip topology show GRAPH` prints slem; or give om, between 0 and 2."
    if om is None and slem is None:
        return OM
    if om is not None and slem is not None:
        raise ConfigError("two-tap takes one of the options om and slem, not both", advice)
    name, value, below = ("om", om, 2) if slem is None else ("slem", slem, 1)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and (0 < value < below or value == slem == 0)):  # type: ignore[operator]
        raise ConfigError(f"two-tap: {name} is {value!r}; expected a number between 0 and {below}", advice)
    return float(om) if slem is None else 2 / (1 + sqrt(1 - slem**2))  # type: ignore[arg-type]
