"""Outer steps along the displacement of a round, or of several: DiLoCo and SlowMo.

Momentum over the displacements of rounds of local training:

    v  <-  beta v + D                   D: the displacement of a round; v begins with 0
    x  <-  x + lr v                     nesterov: x + lr (beta v + D)

-D is the pseudo-gradient of DiLoCo (Douillard and others, DiLoCo: distributed low-communication training of language
models, 2023), whose outer step is Nesterov's; without nesterov it is FedAvgM's server (Hsu, Qi and Brown, 2019).  One
implementation for a server (`federated/fedopt`), peers of a graph (`diloco`) and workers of a collective
(`descent/base`).

DiLoCo on any graph: local steps, then an outer step along the round's displacement (`outer`).

    s_i  =   x_i + u_i                      u_i: the change by node i's local steps, with a local optimiser
    D_i  =   sum_j W_ij s_j - x_i
    v_i  <-  beta v_i + D_i                 v begins with 0
    x_i  <-  x_i + lr (beta v_i + D_i)      without nesterov: x_i + lr v_i

On the complete graph this is DiLoCo; without nesterov FedAvgM with every client in every round.  On random pairs it is
NoLoCo (Kolehmainen and others, 2025) with one factor for both parts of D_i, and one vector per message.

Where we differ: the average is a round of the graph, so D and v hold the disagreement too.  On a quadratic the lasting
disagreement is that of D-PSGD, lambda / (1 - lambda) times the changes'.  An eigenvalue lambda of the weights must be
above 1 - 2 (1 + beta) / (lr (1 + 2 beta)), which is -0.94 for .7 and .9.  On pairs that change (`random-matching`)
Nesterov's form is stable (disagreement times .907 a round for .7 and .9), the other is not (1.014 for 16 peers): there
take a beta of .5.

SlowMo (Wang, Tantia, Ballas and Rabbat, ICLR 2020): slow momentum over rounds of another algorithm, the base.

    every E rounds, with x' the base's x since anchor = x:
        D       <-  x' - anchor
        v       <-  beta v + D                  v begins with 0
        x       <-  anchor + alpha v            nesterov: anchor + alpha (beta v + D)
        anchor  <-  x

alpha = 1 and beta = 0 are the base, to the bit: x is summed as x' + (alpha - 1) D + alpha beta v.  The base's other
state is unchanged.

The paper averages all models before each of these steps: `topology.graph = "every:12:complete:ring"` does so in every
12th round.  With another graph each peer steps on its local model, as in the paper's variant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, GossipAlgorithm, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.momentum import MomentumState, at_rate, share, yes_or_no
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, frozen, linear, subtract

LR, BETA = 0.7, 0.9  # DiLoCo's


@dataclass(frozen=True)
class OuterStep:
    """`lr` above 0, `beta` in [0, 1).  Raises ConfigError for others; `where` is their key."""

    lr: float = LR
    beta: float = BETA
    nesterov: bool = True
    where: str = "algorithm.options"

    def __post_init__(self) -> None:
        if not _number(self.lr) or not 0 < self.lr < float("inf"):
            raise ConfigError(f"{self.where}: lr is {self.lr!r}; expected a number above 0", f"Take {LR}.")
        if not _number(self.beta) or not 0 <= self.beta < 1:
            text = f"{self.where}: beta is {self.beta!r}; expected a number from 0 to below 1"
            raise ConfigError(text, f"Take {BETA}.")
        if self.nesterov not in (True, False) or _number(self.nesterov):
            text = f"{self.where}: nesterov is {self.nesterov!r}; expected true or false"
            raise ConfigError(text, "Write true for Nesterov's form.")

    @property
    def gain(self) -> float:
        """The first step of x for a D of 1."""
        return self.lr * (1 + self.beta) if self.nesterov else self.lr

    def taken(self, x: Vector, v: Vector, moved: Vector) -> tuple[Vector, Vector]:
        """Return (x, v) after the step for D = `moved`; arrays [d] or [n, d]."""
        v = linear((self.beta, v), (1, moved))
        if not self.nesterov:
            return linear((1, x), (self.lr, v)), v
        return linear((1, x), (self.lr * self.beta, v), (self.lr, moved)), v


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class Outer:
    """Arrays [d] or [n, d]: the model, and the outer momentum, a displacement."""

    x: Vector
    v: Vector


class DiLoCo:
    """`lr` above 0, `beta` in [0, 1).  Raises ConfigError for others."""

    slots = (MODEL,)
    needs = Needs()

    def __init__(self, lr: float = LR, beta: float = BETA, *, nesterov: bool = True) -> None:
        self.outer = OuterStep(lr, beta, nesterov)

    def start(self, x: Vector) -> Outer:
        return Outer(x, frozen(np.zeros_like(x)))

    def trained(self, state: Outer, update: Vector | None, step: Step) -> tuple[Outer, Vectors]:  # noqa: ARG002
        return state, (state.x if update is None else add(state.x, update),)

    def moved(self, state: Outer, models: Vector) -> tuple[Outer, Vectors]:
        return state, (models,)

    def mixed(self, state: Outer, mixed: Vectors) -> Outer:
        return Outer(*self.outer.taken(state.x, state.v, subtract(mixed[0], state.x)))

    def model(self, state: Outer) -> Vector:
        return state.x

    def seen(self, state: Outer, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Outer, differences: Vectors) -> Outer:
        """Count a late model as the step of its round would have."""
        (late,) = differences
        return Outer(linear((1, state.x), (self.outer.gain, late)), add(state.v, late))

    def rejoined(self, state: Outer, model: Vector) -> Outer:
        """Keep the momentum: it covers past rounds, independent of their peers."""
        return replace(state, x=model)


@dataclass(frozen=True, eq=False)
class SlowState:
    """`base`: the base's state; `slow`: the anchor and v; `since`: rounds since the anchor was set."""

    base: Any
    slow: MomentumState
    since: int = 0


class SlowMo:
    """Extends `base`, whose states need a field x, the model.  `every` from 1, `alpha` above 0, `beta` in [0, 1).

    Raises ConfigError for others.
    """

    def __init__(
        self,
        base: GossipAlgorithm[Any],
        every: int = 12,
        alpha: float = 1.0,
        beta: float = 0.7,
        *,
        nesterov: bool = False,
    ) -> None:
        self.base, self.beta, self.nesterov = base, share("beta", beta), yes_or_no("nesterov", nesterov)
        self.every, self.alpha = _rounds(every), _step(alpha)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.base.slots

    @property
    def needs(self) -> Needs:
        return self.base.needs

    def start(self, x: Vector) -> SlowState:
        return SlowState(self.base.start(x), MomentumState(x))

    def trained(self, state: SlowState, update: Vector | None, step: Step) -> tuple[SlowState, Vectors]:
        begun, outgoing = self.base.trained(state.base, update, step)
        return replace(state, base=begun, slow=at_rate(state.slow, step)), outgoing

    def mixed(self, state: SlowState, mixed: Vectors) -> SlowState:
        after, since = self.base.mixed(state.base, mixed), state.since + 1
        if since < self.every:
            return replace(state, base=after, since=since)
        moved, before = subtract(after.x, state.slow.x), state.slow.motion
        motion = moved if before is None else linear((self.beta, before), (1, moved))
        carried = motion if self.nesterov else before
        more = [(self.alpha - 1, moved)] if self.alpha != 1 else []
        more += [(self.alpha * self.beta, carried)] if self.beta and carried is not None else []
        x = linear((1, after.x), *more) if more else after.x
        return SlowState(replace(after, x=x), MomentumState(x, motion, state.slow.rate))

    def model(self, state: SlowState) -> Vector:
        return self.base.model(state.base)

    def seen(self, state: SlowState, outgoing: Vectors) -> Vector:
        return self.base.seen(state.base, outgoing)

    def corrected(self, state: SlowState, differences: Vectors) -> SlowState:
        """Count a late model; right after a slow step as if that step had included it."""
        after = self.base.corrected(state.base, differences)
        if state.since or state.slow.motion is None:
            return replace(state, base=after)
        late = subtract(after.x, state.base.x)
        gain = self.alpha * (1 + self.beta if self.nesterov else 1)
        x = after.x if gain == 1 else linear((1, after.x), (gain - 1, late))
        return replace(
            state, base=replace(after, x=x), slow=replace(state.slow, x=x, motion=add(state.slow.motion, late))
        )

    def rejoined(self, state: SlowState, model: Vector) -> SlowState:
        return SlowState(self.base.rejoined(state.base, model), MomentumState(model))


def _rounds(every: Any) -> int:
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        return every
    text = f"algorithm.options: every is {every!r}; expected a number of rounds from 1 on"
    raise ConfigError(text, "Take 12.")


def _step(alpha: Any) -> float:
    if isinstance(alpha, int | float) and not isinstance(alpha, bool) and 0 < alpha < float("inf"):
        return float(alpha)
    raise ConfigError(f"algorithm.options: alpha is {alpha!r}; expected a number above 0", "Take 1.0.")
