"""Graphs optimised for the peers' data: labels, or numbers of examples.

    d-cliques:10,ring  d-cliques:10,full  stl-fw:5    see topology/learned
    place:GRAPH                                       the nodes of GRAPH where their labels fit best
    any GRAPH                                         with weights, `sizes` among them

They need information on all peers' data, so runs read them from files.
"""

from __future__ import annotations

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.experiment import Experiment
from fedgossip.plans.gossip.own_graphs import named_schedule
from fedgossip.plans.tasks import example_counts, label_counts
from fedgossip.topology import Mixing, build, resolve
from fedgossip.topology.graphs import learned
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.spectra.heterogeneity import label_shares, placed
from fedgossip.topology.weights.stationary import SIZES, weighted

MADE = ("d-cliques", "stl-fw", "place")


def made_for(spec: str, experiment: Experiment | None, n: int | None, weights: str | None, seed: int) -> Mixing:
    """Return the graph with its weights.  Raises ConfigError for what cannot be read, and where an experiment lacks."""
    word, _, argument = spec.partition(":")
    if word not in MADE and weights != SIZES:
        return one_graph(spec, n, weights, seed)
    if experiment is None:
        what = f"{spec} is made for the labels of peers" if word in MADE else "weights by numbers of examples"
        raise ConfigError(what, "Give --data EXPERIMENT.toml, which says who has which.")
    peers = peers_of(experiment, n)
    if weights == SIZES and word in MADE:
        raise ConfigError(f"{spec} with weights by sizes", "Leave --weights out: it brings its own.")
    if weights == SIZES:
        return weighted(resolve(spec, peers, seed=seed), example_counts(experiment, peers), SIZES)
    shares = shares_of(experiment, peers)
    if word == "place":
        mixing = one_graph(argument, peers, weights, seed)
        return _moved(mixing, placed(mixing, shares)[0])
    size, _, between = argument.partition(",")
    if not size.isdecimal():
        raise ConfigError(f"{spec} cannot be read", "Write d-cliques:10,ring or stl-fw:5.")
    if word == "stl-fw":
        return learned.stl_fw(shares, int(size))
    return build(learned.d_cliques(shares, int(size), between or "ring", seed), weights or "metropolis")


def one_graph(graph: str, n: int | None, weights: str | None, seed: int) -> Mixing:
    """Return the graph that a name stands for, with weights.  Raises ConfigError for a schedule."""
    found = named_schedule(graph, n, weights=weights, seed=seed)
    if not isinstance(found, Mixing):
        raise ConfigError(f"{graph!r} is another graph in every round", "Take one graph, such as ring or regular:4.")
    return found


def shares_of(experiment: Experiment, n: int) -> FloatArray:
    """Return the label shares of the peers, [n, classes].  Raises ConfigError where they have none."""
    return label_shares(label_counts(experiment, n))


def peers_of(experiment: Experiment, n: int | None) -> int:
    """Return n, or the number of peers that the experiment says.  Raises ConfigError where neither does."""
    size: int | None = n or getattr(getattr(experiment, "topology", None), "n", None)
    if size is None:
        raise ConfigError("how many peers there are is not said in the experiment", "Give --n.")
    return size


def _moved(mixing: Mixing, places: IntArray) -> Mixing:
    """Return the mixing in which the node places[i] stands where i stood."""
    W = np.empty((mixing.n, mixing.n))
    W[np.ix_(places, places)] = mixing.matrix()
    return Mixing.from_matrix(W, rule=mixing.rule, stochastic=mixing.stochastic)
