"""L-BFGS as the server's rule: clients send gradients of all their examples, only the server runs the line search.

    d = -H g                                      two-loop recursion over the last HISTORY pairs (s, y)
    x + a d  --down-->  clients;   g(x + a d)  --up-->  slope(a) = g(x + a d) . d
    accept a if     CURVATURE slope(0) <= slope(a) <= (1 - 2 DECREASE) |slope(0)|
    s = a d,  y = g(x + a d) - g(x)

A round is one gradient, at the trial point.  The conditions (approximate Wolfe) need only slopes, so no losses are
sent; they also work near the optimum, where differences of losses are lost in rounding.  After TRIES gradients without
an accepted step the rule drops its pairs and takes a gradient step.

Sources: Nocedal, Updating quasi-Newton matrices with limited storage, Math. of Computation 35 (1980); Hager and Zhang,
A new conjugate gradient method with guaranteed descent and an efficient line search, SIAM J. Optimization 16 (2005); as
Sandblaster: Dean, Corrado, Monga and others, Large scale distributed deep networks, NeurIPS 2012, with sharded vectors.

A descent as the server's rule: a step along the workers' mean gradient, the reduce of MapReduce.  With `Gradient` and
`Mean` a round is one of all-reduce.

Source: Dean and Ghemawat, MapReduce: simplified data processing on large clusters, OSDI 2004; of gradients: Chu, Kim,
Lin and others, Map-reduce for machine learning on multicore, NeurIPS 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from fedgossip.algorithms.descent.base import Descent, State, decayed, norm
from fedgossip.algorithms.federated.base import Aggregate, Vectors
from fedgossip.base.vectors import Vector, frozen

HISTORY = 10
"""Number of pairs in memory, as in the usual implementations (3 to 20)."""

TRIES = 20
"""Maximum number of gradients on one line; each bisects the bracket or at least doubles the step."""

DECREASE, CURVATURE = 0.1, 0.9
"""The constants of Hager and Zhang's conditions."""

SETTLED = 64
"""A gradient below this number of roundings of the largest one has no direction: the rule keeps its point."""


@dataclass(frozen=True, slots=True, eq=False)
class LineState:
    """`x` [d]: where clients compute the next gradient; `base` [d]: the last accepted point.

    `gradient` [d] at `base`, `slope` = gradient . direction (0: accept the next gradient).  `low` and `high` bracket
    the step; `high` is 0 while none was too long.
    """

    x: Vector
    base: Vector
    gradient: Vector
    direction: Vector
    steps: Vector
    """The pairs' s and y, the oldest first, each [HISTORY * d]; `pairs` of them are in use."""
    changes: Vector
    pairs: int = 0
    tries: int = 0
    length: float = 0.0
    slope: float = 0.0
    low: float = 0.0
    low_slope: float = 0.0
    high: float = 0.0
    high_slope: float = 0.0
    largest: float = 0.0
    """The largest norm of an accepted gradient."""
    failed: int = 0
    """Number of trials of the search that failed in the last round; 0: none failed."""


@dataclass(frozen=True)
class LBFGS:
    """The server.  `rate`: of the first step, and after a failed search; in the last of `rounds` the model is the
    accepted point.
    """

    rate: Callable[[int], float]
    rounds: int
    weight_decay: float = 0.0

    def start(self, x: Vector) -> LineState:
        zeros, pairs = frozen(np.zeros_like(x)), frozen(np.zeros(HISTORY * x.size, x.dtype))
        return LineState(x, x, zeros, zeros, pairs, pairs)

    def broadcast(self, state: LineState) -> Vectors:
        return (state.x,)

    def step(self, state: LineState, aggregate: Aggregate) -> LineState:
        gradient = frozen(decayed(aggregate.vectors[0], state.x, self.weight_decay))
        slope = _dot(gradient, state.direction)
        if not state.slope or CURVATURE * state.slope <= slope <= (2 * DECREASE - 1) * state.slope:
            after = self._new_line(_accepted(state, gradient), aggregate.round)
        elif state.tries >= TRIES:
            after = self._gradient_step(state, aggregate.round)
        else:
            after = _next_try(state, slope)
        # the last model must not be a trial point that no gradient has tested
        return replace(after, x=after.base) if aggregate.round == self.rounds - 1 else after

    def failures(self, state: LineState) -> Mapping[str, object] | None:
        """Return the facts of a search that failed in the last round; see `base.FallibleRule`."""
        return {"tries": state.failed} if state.failed else None

    def _new_line(self, state: LineState, round: int) -> LineState:
        size = norm(state.gradient)
        if size <= SETTLED * float(np.finfo(state.x.dtype).eps) * state.largest:
            return replace(state, slope=0.0)
        direction = _two_loops(state)
        slope = _dot(state.gradient, direction)
        if not slope < 0:  # by rounding alone: pairs of positive curvature make H positive
            return self._gradient_step(state, round)
        length = 1.0 if state.pairs else self.rate(round)
        line = replace(state, direction=direction, slope=slope, low=0.0, low_slope=slope, high=0.0, high_slope=0.0)
        return _move_to(replace(line, tries=1), length)

    def _gradient_step(self, state: LineState, round: int) -> LineState:
        x = frozen(state.base - state.gradient * state.x.dtype.type(self.rate(round)))
        return replace(state, x=x, pairs=0, slope=0.0, failed=max(1, state.tries))


def _accepted(state: LineState, gradient: Vector) -> LineState:
    step, change = state.x - state.base, gradient - state.gradient
    curvature = _dot(step, change)
    kept = replace(state, base=state.x, gradient=gradient, failed=0, largest=max(state.largest, norm(gradient)))
    # a pair without positive curvature would make H indefinite
    if not state.slope or not curvature > float(np.finfo(np.float64).eps) * norm(change) ** 2:
        return kept
    shape, full = (HISTORY, step.size), state.pairs == HISTORY
    steps, changes = (np.array(one.reshape(shape)) for one in (state.steps, state.changes))
    if full:
        steps[:-1], changes[:-1] = steps[1:].copy(), changes[1:].copy()
    place = HISTORY - 1 if full else state.pairs
    steps[place], changes[place] = step, change
    return replace(kept, steps=frozen(steps.reshape(-1)), changes=frozen(changes.reshape(-1)), pairs=place + 1)


def _two_loops(state: LineState) -> Vector:
    """Return -H g, [d]; -g without pairs."""
    kind, shape = state.x.dtype.type, (HISTORY, state.x.size)
    steps, changes = (one.reshape(shape)[: state.pairs] for one in (state.steps, state.changes))
    q, weights, curvatures = -state.gradient, [0.0] * state.pairs, [0.0] * state.pairs
    for i in reversed(range(state.pairs)):
        curvatures[i] = _dot(steps[i], changes[i])
        weights[i] = _dot(steps[i], q) / curvatures[i]
        q = q - changes[i] * kind(weights[i])
    if state.pairs:
        q = q * kind(curvatures[-1] / _dot(changes[-1], changes[-1]))
    for i in range(state.pairs):
        q = q + steps[i] * kind(weights[i] - _dot(changes[i], q) / curvatures[i])
    return frozen(q)


def _next_try(state: LineState, slope: float) -> LineState:
    """Return the state with another step: the zero of the line through two slopes, within the bracket."""
    if slope < 0:
        state = replace(state, low=state.length, low_slope=slope)
    else:
        state = replace(state, high=state.length, high_slope=slope)
    # no upper end of the bracket yet: only a longer step can find one
    if not state.high:
        return _move_to(replace(state, tries=state.tries + 1), 4.0 * state.length)
    width = state.high - state.low
    zero = state.low - state.low_slope * width / (state.high_slope - state.low_slope)
    # a tenth from both ends, or the secant step stalls at one of them
    inside = min(max(zero, state.low + 0.1 * width), state.high - 0.1 * width)
    return _move_to(replace(state, tries=state.tries + 1), inside)


def _move_to(state: LineState, length: float) -> LineState:
    x = frozen(state.base + state.direction * state.x.dtype.type(length))
    return replace(state, x=x, length=length)


def _dot(a: Vector, b: Vector) -> float:
    """Return the product in float64 in numpy's own order: BLAS's order depends on the threads."""
    return float(np.multiply(a, b, dtype=np.float64).sum())


@dataclass(frozen=True)
class DescentServer(Generic[State]):
    """The server: x <- step(x, mean gradient, rate(round)); its state is that of the descent."""

    descent: Descent[State]
    rate: Callable[[int], float]

    def start(self, x: Vector) -> State:
        return self.descent.start(x)

    def broadcast(self, state: State) -> Vectors:
        return (state.x,)

    def step(self, state: State, aggregate: Aggregate) -> State:
        return self.descent.step(state, aggregate.vectors[0], self.rate(aggregate.round))
