"""Weights that settle on another mean than the plain one, or on the plain one where degrees differ.

    sinkhorn   of a directed graph: D1 (A + I) D2 with rows and columns that sum to one, the plain mean
    inverse    1 / (1 + received models), a plain average at every node: rows sum to one, frequent senders count most
    pi         Metropolis and Hastings with a stationary distribution pi: rows sum to one, sum_i pi_i x_i is kept
    sizes      the same, pi the numbers of examples of an experiment's peers

Sources: Sinkhorn and Knopp, Concerning nonnegative matrices and doubly stochastic matrices, Pacific J. Math. 21 (1967);
Hastings, Monte Carlo sampling methods using Markov chains and their applications, Biometrika 57 (1970).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray, Topology
from fedgossip.topology.weights.mixing import Mixing, assemble

SIZES = "sizes"
"""The rule `pi` with the numbers of examples that an experiment gives its peers: only it knows them."""

MOST_STEPS, NEAR = 100_000, 1e-14
MAX_FILE_BYTES = 64 << 20


def sinkhorn(topology: Topology) -> Mixing:
    """Return the doubly stochastic mixing on the arcs and loops of `topology` that Sinkhorn's steps converge to.

    Raises ConfigError where there is none: an arc on no cycle (which makes its row and column impossible).
    """
    from scipy.sparse import coo_array

    parts = topology.components()
    senders, receivers = topology.edges.T
    if not topology.directed:
        senders, receivers = np.concatenate([senders, receivers]), np.concatenate([receivers, senders])
    across = parts[senders] != parts[receivers]
    if across.any():
        u, v = senders[across][0], receivers[across][0]
        text = f"sinkhorn weights on {topology.name!r}: row {v} hears node {u}, and nothing comes back from there"
        raise ConfigError(text, "Add an arc that closes the cycle, or use push weights with push-sum.")
    ids = np.arange(topology.n)
    rows, columns = np.concatenate([receivers, ids]), np.concatenate([senders, ids])
    pattern = coo_array((np.ones(rows.size), (rows, columns)), shape=(topology.n, topology.n)).tocsr()
    turned = pattern.T.tocsr()
    left, right = np.ones(topology.n), np.ones(topology.n)
    for _ in range(MOST_STEPS):
        left = 1.0 / (pattern @ right)
        columns_sum = right * (turned @ left)
        if float(np.abs(columns_sum - 1.0).max()) < NEAR * 100:
            break
        right = right / columns_sum
    else:
        advice = "Use push weights with push-sum, or a graph whose degrees differ less."
        raise ConfigError(f"sinkhorn weights on {topology.name!r}: not balanced after {MOST_STEPS} steps", advice)
    return assemble(topology, "sinkhorn", receivers, senders, left[receivers] * right[senders], left * right)


def inverse(topology: Topology) -> Mixing:
    """Return the row-stochastic mixing in which every node averages its own and all received models equally."""
    starts, senders = topology.incoming
    counts = np.diff(starts)
    receivers = np.repeat(np.arange(topology.n, dtype=np.int64), counts)
    shares = np.asarray(1.0 / (1.0 + counts), np.float64)
    return assemble(topology, "inverse", receivers, senders, shares[receivers], shares, "rows")


def weighted(topology: Topology, pi: npt.ArrayLike, rule: str = "pi") -> Mixing:
    """Return the mixing that keeps sum_i pi_i x_i: i gives j min(pi_i / (1 + d_i), pi_j / (1 + d_j)) / pi_i.

    With equal pi these are Metropolis weights.  Raises ConfigError for a directed graph, for another number of values
    than nodes, and for one that is not positive.
    """
    values = np.asarray(pi, np.float64)
    if topology.directed:
        raise ConfigError(f"{rule} weights on {topology.name!r}, which is directed", "Take an undirected graph.")
    if values.shape != (topology.n,):
        raise ConfigError(f"{rule}: {values.size} values for {topology.n} nodes", "Give one per node, in their order.")
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        node = int(np.argmax(bad))
        raise ConfigError(f"{rule}: node {node} has {values[node]:g}", "Give positive numbers.")
    share = values / (1.0 + topology.degrees())
    u, v = topology.edges.T
    flow = np.minimum(share[u], share[v])
    receivers, senders = np.concatenate([u, v]), np.concatenate([v, u])
    weights = np.concatenate([flow, flow]) / values[receivers]
    own = np.asarray(1.0 - np.bincount(receivers, weights, topology.n), np.float64)
    even = bool((values == values[0]).all())
    return assemble(topology, rule, receivers, senders, weights, own, "both" if even else "rows")


def read_pi(path: Path) -> FloatArray:
    """Return the numbers of a file, one per node and line.  Raises ConfigError, naming the line."""
    try:
        lines = outside_files.read_text(outside_files.named(path), MAX_FILE_BYTES).splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "Write weights = pi:FILE.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file", "Give one number per line.") from None
    found = []
    for number, line in enumerate(lines, 1):
        if word := line.split("#", 1)[0].strip():
            try:
                found.append(float(word))
            except ValueError:
                text = f"{path}, line {number}: {word!r} is no number"
                raise ConfigError(text, "Give one number per line.") from None
    return np.array(found)
