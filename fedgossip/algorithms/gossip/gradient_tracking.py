"""Agreement on the optimum of the common loss for any distribution of the data: gradient tracking, D2 and EXTRA.

Gradient tracking, adapt-then-combine (DSGT: Pu and Nedic, Distributed stochastic gradient tracking methods,
Mathematical Programming 187, 2021; DIGing: Nedic, Olshevsky and Shi, SIAM J. Optim. 27, 2017):

    y_i  <-  c_i + u_i                      u_i: the change by node i's local steps, from x_i
    x_i  <-  sum_j W_ij (x_j + y_j)
    c_i  <-  sum_j W_ij y_j - u_i           c_i begins with 0

sum_i c_i = 0 in every round, so sum_i y_i = sum_i u_i: the peers agree on the common optimum for any distribution of
the data.

Two vectors are sent, so a message has twice the bytes of D-PSGD's.  Where we differ: the papers track gradients; u_i is
-rate times the gradient for one plain step, and the sum of several local steps otherwise.

D2 (Tang, Lian, Yan, Zhang and Liu, ICML 2018), which is exact diffusion (Yuan, Ying, Zhao and Sayed, IEEE Transactions
on Signal Processing 67, 2019):

    x_i  <-  sum_j W_ij (x_j + u_j + c_j)   u_j: the change by node j's local steps, from x_j
    c_i  <-  x_i - (x_i before) - u_i       c_i begins with 0

which is x' = W (2 x - x_before - eta g + eta g_before), the papers' line.  sum_i c_i stays 0; one vector per message.

Stable for one symmetric W with lambda_n > -1/3 (exactly: > -1 / (3 - 2 eta L), L the curvature): Metropolis weights of
an even ring are at the limit, those of a 4 x 4 torus beyond it; weights = "lazy" is always stable.  A lost message
leaves a lasting bias.

EXTRA (Shi, Ling, Wu and Yin, SIAM J. Optim. 25, 2015), with the paper's W~ = (I + W) / 2:

    x_i  <-  sum_j W_ij x_j + u_i + c_i                   u_i: the change by node i's local steps, from x_i
    c_i  <-  c_i + (sum_j W_ij x_j - (x_i before)) / 2    c_i begins with 0

which is x' = (I + W) x - W~ x_before - eta (g - g_before), the paper's line, summed over the rounds.  It combines
before it adapts, so the graph bounds its step: one symmetric W, lambda_n > -1, and eta L < 1 + lambda_n, L the
curvature (the paper's theorem; for a quadratic exactly (5 + 3 lambda_n) / 4).  Changing weights are not covered, so
faults that lose messages are refused, as with D2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgossip.algorithms.gossip.base import MODEL, Needs, Slot, Step, Vectors
from fedgossip.base.vectors import Vector, add, linear, subtract


@dataclass(frozen=True, eq=False)
class Tracked:
    """Arrays [d] or [n, d]; `correction` is None for zero, `update` is None until a round is trained."""

    x: Vector
    correction: Vector | None = None
    update: Vector | None = None


class GradientTracking:
    """A restarted peer, or one that resumes with another's model, begins with c = 0: its earlier correction is lost."""

    slots = (MODEL, Slot("y"))
    needs = Needs(
        sums="both", linear=True
    )  # y follows the mean update where columns sum to one, x agrees where rows do

    def start(self, x: Vector) -> Tracked:
        return Tracked(x)

    def trained(self, state: Tracked, update: Vector | None, step: Step) -> tuple[Tracked, Vectors]:  # noqa: ARG002
        u = subtract(state.x, state.x) if update is None else update
        y = u if state.correction is None else add(state.correction, u)
        return replace(state, update=u), (add(state.x, y), y)

    def mixed(self, state: Tracked, mixed: Vectors) -> Tracked:
        assert state.update is not None, "a round is mixed before it is trained"
        x, y = mixed
        return Tracked(x, subtract(y, state.update))

    def model(self, state: Tracked) -> Vector:
        return state.x

    def seen(self, state: Tracked, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Tracked, differences: Vectors) -> Tracked:
        x, y = differences
        return replace(state, x=add(state.x, x), correction=y if state.correction is None else add(state.correction, y))

    def rejoined(self, state: Tracked, model: Vector) -> Tracked:  # noqa: ARG002
        return Tracked(model)


class D2:
    """A peer that resumes from another model begins with c = 0."""

    slots = (MODEL,)
    needs = Needs(sums="both", constant=True, symmetric=True, lambda_n=-1 / 3, linear=True, lossless=True)

    def start(self, x: Vector) -> Tracked:
        return Tracked(x)

    def trained(self, state: Tracked, update: Vector | None, step: Step) -> tuple[Tracked, Vectors]:  # noqa: ARG002
        sent = state.x if update is None else add(state.x, update)
        return replace(state, update=update), (sent if state.correction is None else add(sent, state.correction),)

    def mixed(self, state: Tracked, mixed: Vectors) -> Tracked:
        (x,) = mixed
        moved = subtract(x, state.x) if state.update is None else linear((1, x), (-1, state.x), (-1, state.update))
        return Tracked(x, moved)

    def model(self, state: Tracked) -> Vector:
        return state.x

    def seen(self, state: Tracked, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Tracked, differences: Vectors) -> Tracked:
        (x,) = differences
        return replace(state, x=add(state.x, x), correction=x if state.correction is None else add(state.correction, x))

    def rejoined(self, state: Tracked, model: Vector) -> Tracked:  # noqa: ARG002
        return Tracked(model)


class EXTRA:
    """A peer that resumes from another model begins with c = 0."""

    slots = (MODEL,)
    needs = Needs(sums="both", constant=True, symmetric=True, lambda_n=-1.0, linear=True, lossless=True)

    def start(self, x: Vector) -> Tracked:
        return Tracked(x)

    def trained(self, state: Tracked, update: Vector | None, step: Step) -> tuple[Tracked, Vectors]:  # noqa: ARG002
        return replace(state, update=update), (state.x,)

    def mixed(self, state: Tracked, mixed: Vectors) -> Tracked:
        (x,) = mixed
        c, half = state.correction, linear((0.5, x), (-0.5, state.x))
        after = x if state.update is None else add(x, state.update)
        return Tracked(*((after, half) if c is None else (add(after, c), add(c, half))))

    def model(self, state: Tracked) -> Vector:
        return state.x

    def seen(self, state: Tracked, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: Tracked, differences: Vectors) -> Tracked:
        (x,) = differences
        c, half = state.correction, linear((0.5, x))
        return replace(state, x=add(state.x, x), correction=half if c is None else add(c, half))

    def rejoined(self, state: Tracked, model: Vector) -> Tracked:  # noqa: ARG002
        return Tracked(model)
