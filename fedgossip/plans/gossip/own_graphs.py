"""The user's own graphs and weights: "module:function" in the experiment file, or objects given in Python.

    topology.graph     function(n, seed) -> Topology | Mixing | Schedule
    topology.weights   function(topology) -> Mixing | array [n, n]; row i weights the models received by i

A result must depend only on the arguments: each function is called twice, and the results are compared.  All are
checked before a run; later rounds of a non-repeating schedule are checked before use.  Errors name the function.

Graphs for the peers' data, which runs read from files:

    d-cliques:10,ring  d-cliques:10,full  stl-fw:5    see topology/graphs/families
    place:GRAPH                                       the nodes of GRAPH where their labels fit best
    any GRAPH                                         with weights, `sizes` among them
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError, place_of
from fedgossip.base.limits import CalledWith
from fedgossip.data import custom
from fedgossip.experiment import GIVEN, Experiment
from fedgossip.experiment.run_sections import GRAPH_CODE, WEIGHTS_CODE
from fedgossip.plans.tasks import example_counts, label_counts
from fedgossip.topology import (
    Cycle,
    Endless,
    Mixing,
    Random,
    Schedule,
    Topology,
    build,
    require_connected,
    resolve,
    resolve_schedule,
    union,
)
from fedgossip.topology.graphs import families
from fedgossip.topology.graphs.graph import FloatArray, IntArray
from fedgossip.topology.spectra.heterogeneity import label_shares, placed
from fedgossip.topology.weights.mixing_matrix import TOLERANCE, Stochastic, dense_weights
from fedgossip.topology.weights.weights import SIZES, weighted

LOOKED_AT = 4
"""Rounds checked before a run, of a schedule that never repeats."""

DIGITS = 6
"""Digits of a weight in a digest; differences between processors are far smaller."""

GRAPH = CalledWith(("n", "seed"), "Write def graph(n, seed): return Topology.from_edges(n, edges, 'mine')")
WEIGHTS = CalledWith(("topology",), "Write def weights(topology): return W, an array [n, n]")

YOURS = "The function is yours; see examples/own_graph.py."


def is_own_graph(graph: str) -> bool:
    """Return whether a text names a function; a built-in family of that name takes precedence."""
    return bool(GRAPH_CODE.find_name(graph))


def is_own_weights(weights: str | None) -> bool:
    """Return whether a text names a function that returns weights."""
    return bool(WEIGHTS_CODE.find_name(weights))


def build_schedule(
    graph: str,
    n: int | None,
    *,
    weights: str | None = None,
    seed: int,
    brought: str | None = None,
    allow_disconnected: bool = False,
) -> Schedule:
    """Return the mixings described by a text, as `resolve_schedule` does, or made by user functions.

    `weights`: the experiment's; `brought`: the algorithm's default.  Raises ConfigError, naming the function.
    """
    if graph == GIVEN:
        raise ConfigError("the graph was given in Python", "Call fedgossip.simulate with schedule= or mixing= again.")
    if not (is_own_graph(graph) or is_own_weights(weights)):
        return resolve_schedule(graph, n, weights=weights or brought, seed=seed, allow_disconnected=allow_disconnected)
    if not is_own_graph(graph):
        return _weighed(resolve(graph, n, seed=seed, allow_disconnected=allow_disconnected), weights, brought)
    if n is None:
        raise ConfigError(f"{graph} is a function of the number of peers", "Set topology.n.")
    first, second = (_make_graph(graph, n, seed) for _ in range(2))
    if isinstance(first, Topology):
        topologies = [one for one in (first, second) if isinstance(one, Topology)]
        if len({one.digest for one in topologies}) != 1 or len(topologies) != 2:
            raise _unsteady(graph)
        topology = _sized(graph, first, n)
        return _weighed(topology if allow_disconnected else _connected(graph, topology), weights, brought)
    if weights:
        text = f"{graph} brings weights of its own, and topology.weights = {weights!r}"
        raise ConfigError(text, "Leave topology.weights out.")
    return adopted(graph, first, n, again=second)


def adopt_schedule(schedule: Schedule | None, mixing: Mixing | npt.ArrayLike | None) -> Schedule | None:
    """Return the schedule of objects given in Python; None if none were given.  Raises ConfigError, as
    `adopted` does.
    """
    if schedule is not None and mixing is not None:
        raise ConfigError("both schedule and mixing are given", "A mixing is the schedule of one graph: give one.")
    if schedule is not None:
        return adopted("schedule", schedule)
    if mixing is None:
        return None
    return adopted("mixing", mixing if isinstance(mixing, Mixing) else from_weights("mixing", mixing))


def adopted(name: str, found: object, n: int | None = None, again: object = None) -> Schedule:
    """Return the user's Mixing or Schedule after checking the requirements of rounds.  `again`: the result of a second
    call.

    Raises ConfigError, naming it, for another type, another size than `n`, or two different results.
    """
    if isinstance(found, Mixing):
        ours: Schedule = _sized(name, found, found.n if n is None else n)
        _connected(name, found.topology)
    else:
        ours = _check_schedule(name, found, n)
    other = adopted_once(name, found if again is None else again, ours.n)
    if _look(name, ours, 1) != _look(name, other, -1):
        raise _unsteady(name)
    if ours.period > 1:
        _connected(name, union(ours))
    return ours


def adopted_once(name: str, found: object, n: int) -> Schedule:
    """Return the same as `adopted`, without a second result to compare."""
    return _sized(name, found, n) if isinstance(found, Mixing) else _check_schedule(name, found, n)


def from_weights(name: str, W: npt.ArrayLike, topology: Topology | None = None) -> Mixing:
    """Return the mixing of a user's dense weights [n, n]; rows, columns or both must sum to one.

    Raises ConfigError, naming a row.
    """
    try:
        dense = dense_weights(W)
        return Mixing.from_matrix(dense, topology, name, _promised(dense))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}", error.advice) from None


def digest_of(schedule: Schedule) -> str:
    """Return 32 hex digits of a hash of the mixings: of one period, or of the first rounds if they never repeat."""
    return _look(schedule.name, schedule, 1)


def _weighed(topology: Topology, weights: str | None, brought: str | None) -> Mixing:
    if weights is None or not is_own_weights(weights):
        return build(topology, weights or brought or topology.weights or "metropolis")
    mixings = [_check_weights(weights, topology, custom_given(weights, WEIGHTS, topology)) for _ in range(2)]
    if _look(weights, mixings[0], 1) != _look(weights, mixings[1], 1):
        raise _unsteady(weights)
    return mixings[0]


def _check_weights(name: str, topology: Topology, found: object) -> Mixing:
    if isinstance(found, Mixing):
        if found.topology.digest != topology.digest:
            raise ConfigError(f"{name} returned weights of another graph than it was given", YOURS)
        return found
    return from_weights(name, found, topology)  # type: ignore[arg-type]


def custom_given(name: str, how: CalledWith, *arguments: object) -> Any:
    """Return the result of the user's function.  Raises ConfigError, naming it, if it raises."""
    try:
        return custom.call(name, None, how, *arguments)
    except TrainingError as error:
        raise ConfigError(str(error), error.advice) from error


def _make_graph(name: str, n: int, seed: int) -> object:
    found = custom_given(name, GRAPH, n, seed)
    known = isinstance(found, Topology | Mixing) or hasattr(found, "mixing")
    if not known:
        text = f"{name} returned {_kind(found)}; expected a Topology, a Mixing or a Schedule"
        raise ConfigError(text, YOURS)
    if isinstance(found, Topology):
        _check_edges(name, found)
    return found


def _check_schedule(name: str, found: Any, n: int | None) -> Schedule:
    """Return the user's schedule; each of its rounds is checked when it is made."""
    missing = [word for word in ("n", "period", "mixing", "partners") if not hasattr(found, word)]
    if missing:
        text = f"{name}: {_kind(found)} is no schedule: it has no {missing[0]}"
        raise ConfigError(text, "Give a Mixing, or a Cycle or an Endless of fedgossip.topology.")
    _sized(name, found, found.n if n is None else n)
    promise: Stochastic = getattr(found, "stochastic", "both")
    size = int(found.n)
    if isinstance(found, Cycle):
        return replace(found, make=lambda phase: _round(name, phase, found.make, size, promise))
    if isinstance(found, Random):
        return replace(found, draw=lambda stream: _round(name, None, lambda _: found.draw(stream), size, promise))
    title, rule = str(getattr(found, "name", name)), str(getattr(found, "rule", "own"))

    def make(round: int) -> Mixing:
        return _round(name, round, found.mixing, size, promise)

    if found.period:
        return Cycle(title, size, int(found.period), rule, make, stochastic=promise)
    return Endless(title, size, rule, make, found.partners, promise)


def _round(name: str, number: int | None, make: Callable[[int], object], n: int, promise: Stochastic) -> Mixing:
    """Return a round's mixing.  Raises TrainingError, naming it."""
    where = name if number is None else f"{name}, round {number}"
    try:
        found = make(number or 0)
    except Exception as error:
        raise TrainingError(f"{where}: raised {error!r}{place_of(error)}", custom.SEE_WHERE) from error
    if not isinstance(found, Mixing):
        raise TrainingError(f"{where}: {_kind(found)}; expected a Mixing", YOURS)
    if found.n != n:
        raise TrainingError(f"{where}: {found.n} nodes; expected {n}", YOURS)
    if found.stochastic not in ("both", promise):
        text = f"{where}: {found.stochastic} of its weights alone sum to one; the schedule promises {promise}"
        raise TrainingError(text, "Give the schedule the attribute stochastic, or other weights.")
    return found


def _look(name: str, schedule: Schedule, step: int) -> str:
    """Return a hash of the rounds, evaluated forwards (step 1) or backwards (-1)."""
    rounds = list(range(schedule.period or LOOKED_AT))
    try:
        found = {round: _hash(schedule.mixing(round)) for round in rounds[::step]}
        if not schedule.period:
            _check_partners(name, schedule, rounds)
    except TrainingError as error:
        raise ConfigError(str(error), error.advice) from error
    return hashlib.sha256("".join(found[round] for round in rounds).encode()).hexdigest()[:32]


def _check_partners(name: str, schedule: Schedule, rounds: Iterable[int]) -> None:
    for node in range(schedule.n):
        known = set(schedule.partners(node))
        for round in rounds:
            if strange := set(schedule.mixing(round).partners(node)) - known:
                text = f"{name}, round {round}: node {node} exchanges with {min(strange)}, who is none of its partners"
                raise ConfigError(text, "partners(node) must name all partners of a node.")


def _hash(mixing: Mixing) -> str:
    # + 0.0 turns -0.0 into 0.0: equal weights have equal bytes in the hash
    parts: Sequence[npt.NDArray[Any]] = (mixing.starts, mixing.ids, np.round(mixing.values, DIGITS) + 0.0)
    return hashlib.sha256(b"".join(part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts)).hexdigest()


def _promised(dense: npt.NDArray[np.float64]) -> Stochastic:
    """Return which sums are one, of the rows or of the columns; "both" also if neither are."""
    if dense.ndim != 2:
        return "both"
    rows, columns = (bool(np.all(np.abs(dense.sum(axis=axis) - 1) <= TOLERANCE)) for axis in (1, 0))
    return "both" if rows == columns else "rows" if rows else "columns"


def _sized(name: str, found: Any, n: int) -> Any:
    if found.n != n:
        raise ConfigError(f"{name} returned {found.n} nodes; expected {n}", YOURS)
    return found


def _check_edges(name: str, topology: Topology) -> None:
    """Raise ConfigError for edges that no constructor made: another order, loops, or ids outside 0..n-1."""
    edges = Topology.from_edges(topology.n, topology.edges, name, topology.directed).edges
    given: Any = topology.edges
    if not (isinstance(given, np.ndarray) and given.dtype == edges.dtype and np.array_equal(given, edges)):
        raise ConfigError(f"{name}: its edges are not sorted and unique pairs", GRAPH.advice)


def _connected(name: str, topology: Topology) -> Topology:
    try:
        return require_connected(topology)
    except FedgossipError as error:
        raise ConfigError(f"{name}: {error}", error.advice) from None


def _unsteady(name: str) -> ConfigError:
    advice = "Draw from the seed alone: np.random.default_rng(seed)."
    return ConfigError(f"{name} gave two different graphs for the same arguments", advice)


def _kind(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"


MADE = ("d-cliques", "stl-fw", "place")


def build_mixing(spec: str, experiment: Experiment | None, n: int | None, weights: str | None, seed: int) -> Mixing:
    """Return the graph with its weights.  Raises ConfigError for an invalid text, and for a missing experiment."""
    word, _, argument = spec.partition(":")
    if word not in MADE and weights != SIZES:
        return one_graph(spec, n, weights, seed)
    if experiment is None:
        what = f"{spec} is made for the labels of peers" if word in MADE else "weights by numbers of examples"
        raise ConfigError(what, "Give --data EXPERIMENT.toml, which has the partition.")
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
        return families.stl_fw(shares, int(size))
    return build(families.d_cliques(shares, int(size), between or "ring", seed), weights or "metropolis")


def one_graph(graph: str, n: int | None, weights: str | None, seed: int) -> Mixing:
    """Return the graph of a name, with weights.  Raises ConfigError for a schedule."""
    found = build_schedule(graph, n, weights=weights, seed=seed)
    if not isinstance(found, Mixing):
        raise ConfigError(f"{graph!r} is another graph in every round", "Take one graph, such as ring or regular:4.")
    return found


def shares_of(experiment: Experiment, n: int) -> FloatArray:
    """Return the label shares of the peers, [n, classes].  Raises ConfigError if they have none."""
    return label_shares(label_counts(experiment, n))


def peers_of(experiment: Experiment, n: int | None) -> int:
    """Return n, or the experiment's number of peers.  Raises ConfigError if both are missing."""
    size: int | None = n or getattr(getattr(experiment, "topology", None), "n", None)
    if size is None:
        raise ConfigError("the experiment has no number of peers", "Give --n.")
    return size


def _moved(mixing: Mixing, places: IntArray) -> Mixing:
    """Return the mixing with node places[i] in the place of i."""
    W = np.empty((mixing.n, mixing.n))
    W[np.ix_(places, places)] = mixing.matrix()
    return Mixing.from_matrix(W, rule=mixing.rule, stochastic=mixing.stochastic)
