"""Generalised de Bruijn and Kautz graphs: few arcs per node, and the mean after about log_K n rounds.

Both bring their weights: every node sends to K others, equal shares.  Any n; where an arc would go from a node to
itself the node keeps that share.

Source: Imase and Itoh, Design to minimize diameter on building-block network, IEEE Transactions on Computers C-30
(1981), and A design for directed graphs with minimum diameter, C-32 (1983).
"""

from __future__ import annotations

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.weights.mixing import Mixing, assemble


def debruijn(n: int, k: int) -> Mixing:
    """Return the mixing in which i sends 1/k of its model to k i + r mod n, r = 0..k-1.

    Rows and columns sum to one for every n.  The exact mean after D rounds where n = k^D: no eigenvalue
    but 1 and 0.  Raises ConfigError for a k that is not from 1 to n - 1.
    """
    _require("debruijn", n, k)
    ids = np.arange(n, dtype=np.int64)
    receivers = (k * ids[:, None] + np.arange(k)) % n
    return _shared(f"debruijn:{k}", n, receivers, np.full((n, k), 1.0 / k), 0.0)


def kautz(n: int, k: int) -> Mixing:
    """Return the mixing in which i gives 1/(k + 1) to each of -(k i + r) mod n, r = 1..k, and to itself.

    Rows and columns sum to one for every n; the Kautz graph where n = k^D + k^(D-1).  Raises ConfigError for a k that
    is not from 1 to n - 1.
    """
    _require("kautz", n, k)
    ids = np.arange(n, dtype=np.int64)
    receivers = -(k * ids[:, None] + np.arange(1, k + 1)) % n
    return _shared(f"kautz:{k}", n, receivers, np.full((n, k), 1.0 / (k + 1)), 1.0 / (k + 1))


def _shared(name: str, n: int, receivers: IntArray, weights: FloatArray, own: float) -> Mixing:
    senders = np.repeat(np.arange(n, dtype=np.int64), receivers.shape[1])
    to, shares = receivers.ravel(), weights.ravel()
    loops = senders == to
    kept = np.asarray(own + np.bincount(senders[loops], shares[loops], n), np.float64)
    arcs = np.stack([senders[~loops], to[~loops]], axis=1)
    topology = Topology.from_edges(n, arcs, name, directed=True)
    return assemble(topology, "uniform", to[~loops], senders[~loops], shares[~loops], kept)


def _require(word: str, n: int, k: int) -> None:
    if not 1 <= k < n:
        most = f"at most {n - 1}" if n > 2 else "and more than two nodes"
        raise ConfigError(f"{word}:{k} of {n} nodes", f"Give at least 1 arc per node, {most}, e.g. {word}:2.")
