"""A graph and weights of your own: clusters whose first members meet in a ring, and weigh each other less.

In an experiment file, `topology.graph = "own_graph:clusters"` and `topology.weights = "own_graph:shy"`; every peer has
this file beside it, and one that has another is refused.  From Python the same objects are given as they are.
"""

import numpy as np

import fedgossip
from fedgossip.topology import Mixing, Topology

SIZE = 4


def clusters(n, seed):
    """Cliques of four; the last may be smaller.  What is drawn would be drawn from `seed` alone."""
    inside = [(u, v) for v in range(n) for u in range(v) if u // SIZE == v // SIZE]
    first = list(range(0, n, SIZE))
    across = {tuple(sorted(pair)) for pair in zip(first, first[1:] + first[:1], strict=True)}
    return Topology.from_edges(n, [*inside, *sorted(pair for pair in across if pair[0] != pair[1])], "clusters")


def shy(topology):
    """A tenth for a link across clusters, a fifth for one inside; what is left stays."""
    W = np.zeros((topology.n, topology.n))
    for u, v in topology.edges:
        W[u, v] = W[v, u] = 0.2 if u // SIZE == v // SIZE else 0.1
    return W + np.diag(1 - W.sum(axis=1))


if __name__ == "__main__":
    problem = {"rounds": 30, "task": {"kind": "averaging", "dtype": "float64"}}
    named = {"graph": "own_graph:clusters", "n": 16, "weights": "own_graph:shy"}
    by_name = fedgossip.simulate({**problem, "topology": named})
    graph = clusters(16, seed=1)
    given = fedgossip.simulate(problem, mixing=Mixing.from_matrix(shy(graph), graph))
    print("the same run:", by_name.digest == given.digest)
