"""Window doubling: the exact mean after ceil(log2 n) rounds for every n, with one vector sent per round.

    T_m(i) = sum_{j=1..m} x_{i-j}   and   S_m(i) = x_i + T_m(i)           begin with m = 0, T = 0, S = x
    read the bits of n - 1 from the top:
        bit 0   receive T_m(i-m),    m <- 2m
        bit 1   receive S_m(i-m-1),  m <- 2m + 1                          add it to T and to S
    m = n - 1:  S / n is the mean

Node i receives from the node of `topology.schedules.cycles.window_doubling`, with rows {i: 0, source: 1}.

With training, a peer trains from S/(m+1) plus its updates of this window; these join the sums when the next begins:

    model = S/(m+1) + p          p: local updates since the window began
    at a window's first round    x = model + u, S = x, T = 0, p = 0
    at its other rounds          p = p + u

In every round the mean of `model` over the peers equals the mean of the first vectors plus all updates.  Without
updates all have the exact mean from the end of the first window on.

Where we differ from DSGD-CECA (Ding, Jin, Ying, Yuan and Yin, ICML 2023): updates do not enter sums in progress, so a
window ends with the exact mean, and an update arrives up to a window later.

All peers count the same phase: for synchronous runs without skipped rounds.  The part of a missing source is omitted
from the window, which moves the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add, empty, frozen


@dataclass(frozen=True, eq=False)
class Window:
    """The sums of one peer, [d], or of all, [n, d]; T and pending are None for zero."""

    S: Vector
    T: Vector | None = None
    pending: Vector | None = None
    phase: int = 0
    """Rounds since the window began; at 0 S is the model itself."""


class WindowDoubling:
    """For n >= 2 nodes."""

    slots = (MODEL,)
    needs = Needs(own_graph=True, constant_members=True, linear=True)

    def __init__(self, n: int) -> None:
        self.n = n
        self.rounds = (n - 1).bit_length()

    def start(self, x: Vector) -> Window:
        return Window(x)

    def trained(self, state: Window, update: Vector | None, step: Step) -> tuple[Window, Vectors]:  # noqa: ARG002
        begun = _trained(state, update)
        bit = self._counts(state.phase + 1) % 2
        return begun, (begun.S if bit or begun.T is None else begun.T,)

    def mixed(self, state: Window, mixed: Vectors) -> Window:
        (arrived,) = mixed
        summed = _plus(state, arrived)
        phase = state.phase + 1
        if phase < self.rounds:
            return replace(summed, phase=phase)
        mean = _divided(summed.S, self.n)
        return Window(mean if summed.pending is None else add(mean, summed.pending))

    def model(self, state: Window) -> Vector:
        mean = state.S if state.phase == 0 else _divided(state.S, self._counts(state.phase) + 1)
        return mean if state.pending is None else add(mean, state.pending)

    def seen(self, state: Window, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return self.model(state)

    def corrected(self, state: Window, differences: Vectors) -> Window:
        """Count a late arrival of the last round; of an earlier round a part is lost."""
        (difference,) = differences
        if state.phase == 0:
            return Window(add(state.S, _divided(difference, self.n)))
        return _plus(state, difference)

    def rejoined(self, state: Window, model: Vector) -> Window:  # noqa: ARG002
        return Window(model)

    def _counts(self, phase: int) -> int:
        """Return m, the number of other peers in the sums after `phase` rounds."""
        return (self.n - 1) >> (self.rounds - phase)


def _trained(state: Window, update: Vector | None) -> Window:
    if update is None:
        return state
    if state.phase == 0:
        return Window(add(state.S, update))
    return replace(state, pending=update if state.pending is None else add(state.pending, update))


def _plus(state: Window, arrived: Vector) -> Window:
    return replace(state, S=add(state.S, arrived), T=arrived if state.T is None else add(state.T, arrived))


def _divided(vector: Vector, count: int) -> Vector:
    out = empty(vector.size, vector.dtype).reshape(vector.shape)
    return frozen(np.divide(vector, vector.dtype.type(count), out=out))
