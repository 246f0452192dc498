"""RelaySGD: on a tree, every model reaches every peer once, relayed from neighbour to neighbour (Vogels, He, Koloskova,
Lin, Karimireddy, Stich and Jaggi, RelaySum for decentralized deep learning on heterogeneous data, NeurIPS 2021; the
variant that averages models):

    s_i     =   x_i + u_i                                         u_i: the change by node i's local steps
    m_ij    =   s_i + sum over neighbours k but j of m_ki         sent to j; m_ki: the sum from k in the previous round
    c_ij    =   1   + the same sum of c_ki                        number of models in the sum m_ij
    x_i     <-  (sum_j m_ji + (n - sum_j c_ji) s_i) / n           from the sums of this round

x_i is the mean of all n models, each delayed by the length of its path.  On a tree no model counts twice.  While models
are in transit or lost, c counts the missing ones; each is replaced by the peer's model.

There is no mixing: each neighbour receives a different sum (`protocols/gossip/relay_gossip`; all at once:
`simulation/stacked`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgossip.algorithms.gossip.base import MODEL, Needs, Step, Vectors
from fedgossip.base.vectors import Vector, add, frozen


@dataclass(frozen=True, eq=False)
class RelayState:
    """`x` [d], or [n, d] of all nodes.

    `heard` [k, d], `counts` [k], float64: the last round's sums, ascending by neighbour id, zeros for a silent one; of
    all nodes [arcs, d].  None before the first round.
    """

    x: Vector
    heard: Vector | None = None
    counts: Vector | None = None


class RelaySGD:
    """`n`: the number of peers, with equal weight for each model, independent of the graph's weights."""

    slots = (MODEL,)
    needs = Needs(tree=True, constant=True, constant_members=True, linear=True, weighs_alike=True)

    def __init__(self, n: int) -> None:
        self.n = n

    def start(self, x: Vector) -> RelayState:
        return RelayState(x)

    def trained(self, state: RelayState, update: Vector | None, step: Step) -> tuple[RelayState, Vectors]:  # noqa: ARG002
        """Compute messages from s and the received sums (`relay_sums`); from s alone in the first round."""
        s = state.x if update is None else add(state.x, update)
        if state.heard is None or state.counts is None:
            return state, (s,)
        return state, (s, state.heard, state.counts)

    def mixed(self, state: RelayState, mixed: Vectors) -> RelayState:  # noqa: ARG002
        """`mixed`: the mean (`averaged`), and its inputs other than s; the mean alone without received sums."""
        return RelayState(*mixed)

    def model(self, state: RelayState) -> Vector:
        return state.x

    def seen(self, state: RelayState, outgoing: Vectors) -> Vector:  # noqa: ARG002
        return outgoing[0]

    def corrected(self, state: RelayState, differences: Vectors) -> RelayState:  # noqa: ARG002
        """Late sums are dropped: the counts already reflect that."""
        return state

    def rejoined(self, state: RelayState, model: Vector) -> RelayState:  # noqa: ARG002
        return self.start(model)

    def averaged(self, s: Vector, received: Vector, counts: Vector) -> Vector:
        """Return one node's mean of all models, [d], from its s and its neighbours' sums, also for false counts."""
        total, known = s.copy(), 1.0 + float(counts.sum())
        for message_sum in received:
            np.add(total, message_sum, out=total)
        if known < self.n:
            np.add(total, s * s.dtype.type(self.n - known), out=total)
        return frozen(np.divide(total, s.dtype.type(max(known, self.n)), out=total))


def relay_sums(s: Vector, received: Vector, counts: Vector) -> tuple[Vector, Vector]:
    """Return one node's sums for each of its neighbours, [k, d] and [k], from those received in the previous round.

    Prefix and suffix sums, 3 k additions: the total less a term would lose low bits.
    """
    messages, left = np.empty_like(received), s.copy()
    for place, one in enumerate(received):
        messages[place] = left
        np.add(left, one, out=left)
    right = np.zeros_like(s)
    for place in reversed(range(len(received))):
        np.add(messages[place], right, out=messages[place])
        np.add(right, received[place], out=right)
    return frozen(messages), frozen(1.0 + counts.sum() - counts)
