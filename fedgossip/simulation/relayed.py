"""RelaySGD on stacked arrays: the messages of every node to each of its neighbours, arrays [arcs, d], an arc a row.

Arcs are in the order of their sender, then of their receiver; those of one node lie together, as a peer has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.gossip.base import Vectors
from fedgossip.algorithms.gossip.relaysgd import RelaySGD, relay_sums
from fedgossip.base.vectors import RowGroups, frozen
from fedgossip.core.messages import RelaySum
from fedgossip.simulation.round_bytes import Edges, Numbered, RoundBytes, priced_both
from fedgossip.simulation.stacked import ModelExchange

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RelayExchange(ModelExchange):
    """Sums, another for each neighbour."""

    algorithm: RelaySGD

    def mix_all(self, groups: RowGroups, outgoing: Vectors) -> Vectors:
        own, *before = outgoing
        graph = arcs_of(groups, len(own))
        shape = graph.reverse.size, own.shape[1]
        heard, counts = before or (np.zeros(shape, own.dtype), np.zeros(len(graph.reverse)))
        told, numbers, models = np.empty(shape, own.dtype), np.empty(len(graph.reverse)), np.empty_like(own)
        places = [slice(*graph.starts[node : node + 2]) for node in range(len(own))]
        for node, arcs in enumerate(places):
            told[arcs], numbers[arcs] = relay_sums(own[node], heard[arcs], counts[arcs])
        heard, counts = frozen(told[graph.reverse]), frozen(numbers[graph.reverse])
        for node, arcs in enumerate(places):
            models[node] = self.algorithm.averaged(own[node], heard[arcs], counts[arcs])
        return frozen(models), heard, counts

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        """A message has the number of models in it, which takes more bytes the larger it is."""
        own, *before = outgoing
        arcs = arcs_of(edges.schedule.mixing(round).rows_by_degree(), len(own))
        counts = before[1] if before else np.zeros(arcs.senders.size)
        numbers = (1 + np.bincount(arcs.senders, counts, len(own))[arcs.senders] - counts).astype(np.int64)
        once, vectors = np.ones_like(numbers), (own[0],)
        sides = [Numbered(len(own), of, numbers, once) for of in (arcs.senders, arcs.receivers)]
        return priced_both((sides[0], sides[1]), lambda count: RelaySum(round, schema, vectors, count))


class TreeArcs(NamedTuple):
    """All (sender, receiver), ascending.  `starts` [n + 1]: where each node's begin; `reverse`: those the other way."""

    senders: Places
    receivers: Places
    starts: Places
    reverse: Places


def arcs_of(groups: RowGroups, n: int) -> TreeArcs:
    """Return the arcs of a graph in which every arc has its reverse."""
    senders = np.concatenate([np.repeat(nodes, ids.shape[1]) for nodes, ids, _ in groups])
    receivers = np.concatenate([ids.ravel() for _, ids, _ in groups])
    between = senders != receivers
    order = np.lexsort((receivers[between], senders[between]))
    senders, receivers = senders[between][order], receivers[between][order]
    return TreeArcs(senders, receivers, np.searchsorted(senders, np.arange(n + 1)), np.lexsort((senders, receivers)))
