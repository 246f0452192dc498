"""SlowMo (Wang, Tantia, Ballas and Rabbat, ICLR 2020): slow momentum over rounds of another algorithm, the base.

    every E rounds, with x' what the base has made of x since anchor = x:
        D       <-  x' - anchor
        v       <-  beta v + D                  v begins with 0
        x       <-  anchor + alpha v            nesterov: anchor + alpha (beta v + D)
        anchor  <-  x

alpha = 1 and beta = 0 are the base, to the bit: x is summed as x' + (alpha - 1) D + alpha beta v.  What the base keeps
beside x (momentum, corrections) stays.  v is a displacement, -rate times the paper's, see `momentum`.

The paper averages all models exactly before each of these steps.  That average is a round of the complete graph, so it
stands where graphs do: `topology.graph = "every:12:complete:ring"` has it in every 12th round, in which the slow step
is.  With any other graph each peer takes the step on its own model, as the paper's variant without the average.  On the
complete graph, with nesterov, it is the outer step of DiLoCo (Douillard et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedgossip.algorithms.gossip.base import GossipAlgorithm, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.momentum import MomentumState, at_rate, share, yes_or_no
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, add, linear, subtract


@dataclass(frozen=True, eq=False)
class SlowState:
    """`base`: the base's state; `slow`: the anchor and v; `since`: rounds since the anchor was set."""

    base: Any
    slow: MomentumState
    since: int = 0


class SlowMo:
    """Extends `base`, with states that have a field x, the model.  `every` from 1, `alpha` above 0, `beta` in [0, 1).

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
        """Count a late model; right after a slow step as if that step had seen it."""
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
