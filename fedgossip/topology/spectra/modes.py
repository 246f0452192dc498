"""The modes of a graph: what a round leaves of each, and how much of what peers disagree about lies in which.

With symmetric W of modes (l_k, v_k) and rows P [n, width] of anything that peers have (label shares, updates),

    E_k = ||v_k' P||^2,    sum_{k>=2} E_k = n H(I),    sum_{k>=2} l_k^2 E_k = n H(W)

and H as in `heterogeneity`.  One graph with one spectrum does well where the energy lies in modes that die out at once,
and badly where it lies in the few that last.
"""

from __future__ import annotations

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs.graph import FloatArray
from fedgossip.topology.schedules.schedules import Random, Schedule
from fedgossip.topology.spectra import eigen
from fedgossip.topology.spectra.sequences import WORST_LIMIT
from fedgossip.topology.spectra.spectrum import spectrum
from fedgossip.topology.weights.mixing import Mixing

ALIKE = 1e-9  # eigenvalues this near count as equal, with indistinguishable eigenvectors


def left_of_modes(schedule: Schedule) -> FloatArray:
    """Return what a round, or a period, leaves of each mode, descending [n - 1], the mean's left out.

    Of a symmetric mixing its eigenvalues, with their signs.  Of others singular values: of one round, or of the product
    of a period.  Of a drawn one the roots of the eigenvalues of E[W'W] - J.  Raises ConfigError where they are not to
    be had: for size, and for rounds that do not repeat and are not drawn by a known rule.
    """
    if isinstance(schedule, Mixing):
        found = spectrum(schedule).eigenvalues
        if found is None:
            raise ConfigError(
                f"all modes of {schedule.name!r} with {schedule.n} nodes are not known", "Take a smaller --n."
            )
        return np.asarray(found[1:], np.float64)
    if isinstance(schedule, Random):
        return _of_draws(schedule)
    if not schedule.period or schedule.n > WORST_LIMIT:
        why = f"has {schedule.n} nodes" if schedule.period else "never repeats"
        raise ConfigError(f"the modes of {schedule.name!r}, which {why}", f"Take at most {WORST_LIMIT} nodes.")
    product = np.eye(schedule.n)
    for round in range(schedule.period):
        product = schedule.mixing(round).sparse() @ product
    with eigen.one_thread():
        sizes = np.linalg.svd(product - 1.0 / schedule.n, compute_uv=False)
    return np.asarray(sizes[:-1], np.float64)


def _of_draws(schedule: Random) -> FloatArray:
    n = schedule.n
    if schedule.moment is not None and n <= WORST_LIMIT:
        with eigen.one_thread():
            squares = np.linalg.eigvalsh(schedule.moment(np.eye(n) - 1.0 / n))[::-1][: n - 1]
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)), np.float64)
    if schedule.contraction is None:
        text = f"no formula for the modes of {schedule.name!r} is known"
        raise ConfigError(text, "Take el-oracle or random-matching.")
    return np.full(n - 1, schedule.contraction**0.5)


def energies(mixing: Mixing, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (l_k, E_k), both [n - 1], descending in l_k; modes with one eigenvalue share their energy equally.

    Raises ConfigError for a mixing that is not symmetric, too large, or of another size than `rows` [n, width].
    """
    n = mixing.n
    if not mixing.symmetric or n > eigen.DENSE_LIMIT:
        why = f"has {n} nodes; at most {eigen.DENSE_LIMIT} fit" if mixing.symmetric else "is not the same both ways"
        raise ConfigError(f"the modes of {mixing.name!r}, which {why}", "Take a smaller undirected graph.")
    if len(rows) != n:
        raise ConfigError(f"graph {mixing.name!r} has {n} nodes, and there are {len(rows)} peers", "Set --n.")
    with eigen.one_thread():
        values, vectors = np.linalg.eigh(mixing.matrix() + 2.0 / n)  # the mean's eigenvalue goes to 3, above all
    values, vectors = values[-2::-1], vectors[:, -2::-1]
    energy = np.sum((vectors.T @ rows) ** 2, axis=1)
    group = np.concatenate([[0], np.cumsum(np.diff(values) < -ALIKE)])
    shared = np.bincount(group, energy) / np.bincount(group)
    return np.asarray(values), np.asarray(shared[group], np.float64)
