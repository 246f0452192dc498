"""Grammar of graph names: of a family, "torus:4x4", "regular:3" with n = 16; or of a schedule, "base:2", "el-oracle:4".

The three tables at the end are the grammar, for `resolve`, files and `fedgossip topology list`: graphs, graphs with
weights, and schedules.  Some take other names as arguments: matcha:0.5:regular:4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.topology.graphs import families
from fedgossip.topology.graphs.graph import FloatArray, IntArray, Topology
from fedgossip.topology.schedules import cycles, random_schedules
from fedgossip.topology.schedules.schedules import Cycle, Endless, Random, Schedule
from fedgossip.topology.weights.mixing_matrix import Mixing, assemble
from fedgossip.topology.weights.weights import build

Number = TypeVar("Number", int, float)

Inner = Callable[[str, int | None, int], Topology]
"""(name, n, seed) -> the graph of a name after a colon."""

ANY = ("any",)


@dataclass(frozen=True)
class Request:
    """One use of a family: `spec` as written, the text after its colon, and the separately requested options."""

    spec: str
    arguments: str
    n: int | None
    seed: int
    form: str
    weights: str | None = None
    """The requested rule, for schedules with a choice of rules."""
    inner: Inner | None = None
    """Factory of a graph from the name after the colon; None permits only families."""

    def size(self) -> int:
        """Return n.  Raises ConfigError if none was given."""
        if self.n is None:
            raise ConfigError(f"graph {self.spec!r} needs a number of nodes", "Give n, at the command line --n 16.")
        return self.n

    def numbers(self, kind: Callable[[str], Number], count: int | None, separator: str = ",") -> list[Number]:
        """Return the numbers after the colon.

        Raises ConfigError unless their count is `count` (None: at least one).
        """
        try:
            found = [kind(word) for word in self.arguments.split(separator)]
        except ValueError:
            found = []
        if not found or (count is not None and len(found) != count):
            raise ConfigError(f"graph {self.spec!r} cannot be read", f"Write it as {self.form}.")
        return found

    def plain(self) -> None:
        """Raise ConfigError for an argument after a colon that this family does not take."""
        if self.arguments:
            raise ConfigError(f"graph {self.spec!r}: nothing may follow the colon", f"Write it as {self.form}.")

    def graph(self, spec: str) -> Topology:
        """Return the graph named after the colon.  Raises ConfigError as `resolve` does."""
        if not spec:
            raise ConfigError(f"graph {self.spec!r} names no graph", f"Write it as {self.form}.")
        found = self.inner(spec, self.n, self.seed) if self.inner else family(spec, self.n, self.seed)
        if found is None:
            raise ConfigError(f"graph {self.spec!r}: no graph is called {spec!r}", f"Write it as {self.form}.")
        return found

    def mixing(self, spec: str) -> Mixing:
        """Return the graph named after the colon with the requested weights, metropolis by default."""
        if (made := weighted(spec, self.n, self.seed)) is not None:
            return made
        topology = self.graph(spec)
        return build(topology, self.weights or topology.weights or "metropolis")

    def changing(self, spec: str) -> Schedule:
        """Return the schedule, or the graph with weights, named after the colon."""
        return schedule(spec, self.n, seed=self.seed, inner=self.inner) or self.mixing(spec)

    def fixed(self, topology: Topology) -> Topology:
        """Return a graph with its size in its name.  Raises ConfigError if another n was requested."""
        return require_size(topology, self.spec, self.n)


@dataclass(frozen=True)
class Family:
    """A row of FAMILIES: the first word of a family of graphs."""

    form: str
    """Its notation."""
    what: str
    make: Callable[[Request], Topology]


@dataclass(frozen=True)
class Weighted:
    """A row of WEIGHTED: the first word of graphs with their own weights."""

    form: str
    """Its notation."""
    what: str
    make: Callable[[Request], Mixing]


@dataclass(frozen=True)
class TimeVarying:
    """A row of SCHEDULES: the first word of graphs that change from round to round."""

    form: str
    """Its notation."""
    what: str
    make: Callable[[Request], Schedule]
    weights: tuple[str, ...]
    """Permitted weight rules: the names of the schedule's numbers, or a choice; ANY: those of the graph after the
    colon.
    """


def require_size(topology: Topology, spec: str, n: int | None) -> Topology:
    """Return `topology`.  Raises ConfigError if `n` was requested and differs from its size."""
    if n is not None and n != topology.n:
        raise ConfigError(f"graph {spec!r} has {topology.n} nodes, not {n}", f"Leave n out or set it to {topology.n}.")
    return topology


def family(spec: str, n: int | None = None, seed: int = seeds.USUAL, inner: Inner | None = None) -> Topology | None:
    """Return the graph named `spec`, or None if its first word is no family.

    `inner` returns the graph of a name after a colon.  Raises ConfigError for a missing size and unreadable arguments.
    """
    word, _, arguments = spec.strip().partition(":")
    entry = FAMILIES.get(word.strip().lower())
    if entry is None:
        return None
    return entry.make(Request(spec.strip(), arguments.strip(), n, seed, entry.form, inner=inner))


def weighted(spec: str, n: int | None = None, seed: int = seeds.USUAL) -> Mixing | None:
    """Return the graph with weights named `spec`, or None if its first word is not in WEIGHTED.

    Raises ConfigError as `family` does.
    """
    word, _, arguments = spec.strip().partition(":")
    entry = WEIGHTED.get(word.strip().lower())
    if entry is None:
        return None
    return entry.make(Request(spec.strip(), arguments.strip(), n, seed, entry.form))


def weighted_names() -> tuple[str, ...]:
    """Return the first words of all graphs with their own weights."""
    return tuple(WEIGHTED)


def family_names() -> tuple[str, ...]:
    """Return the first words of all families."""
    return tuple(FAMILIES)


def schedule(
    spec: str,
    n: int | None = None,
    *,
    weights: str | None = None,
    seed: int = seeds.USUAL,
    inner: Inner | None = None,
) -> Schedule | None:
    """Return the time-varying schedule named `spec`, or None if its first word is no schedule.

    Raises ConfigError for a missing size, unreadable arguments, and other weights.
    """
    word, _, arguments = spec.strip().partition(":")
    entry = SCHEDULES.get(word.strip().lower())
    if entry is None:
        return None
    if weights is not None and weights not in entry.weights and entry.weights != ANY:
        known = f"it has {' and '.join(entry.weights)}" if entry.weights else "it has no others"
        raise ConfigError(
            f"{weights} weights on {spec.strip()!r}, whose rounds bring their own", f"Leave them out: {known}."
        )
    return entry.make(Request(spec.strip(), arguments.strip(), n, seed, entry.form, weights, inner))


def schedule_names() -> tuple[str, ...]:
    """Return the first words of all time-varying schedules."""
    return tuple(SCHEDULES)


# --- constructors -----------------------------------------------------------------------------------------------


def _sized(make: Callable[[int], Topology]) -> Callable[[Request], Topology]:
    def make_graph(request: Request) -> Topology:
        request.plain()
        return make(request.size())

    return make_graph


def _wrap_fixed(make: Callable[[], Topology]) -> Callable[[Request], Topology]:
    def make_graph(request: Request) -> Topology:
        request.plain()
        return request.fixed(make())

    return make_graph


def _lattice(make: Callable[[int, int], Topology]) -> Callable[[Request], Topology]:
    def make_graph(request: Request) -> Topology:
        if not request.arguments:
            return make(*families.most_square(request.size()))
        rows, columns = request.numbers(int, 2, separator="x")
        return request.fixed(make(rows, columns))

    return make_graph


def _circulant(request: Request) -> Topology:
    return families.circulant(request.size(), tuple(request.numbers(int, None)))


def _regular(request: Request) -> Topology:
    return families.random_regular(request.size(), request.numbers(int, 1)[0], request.seed)


def _erdos_renyi(request: Request) -> Topology:
    return families.erdos_renyi(request.size(), request.numbers(float, 1)[0], request.seed)


def _small_world(request: Request) -> Topology:
    k, p = request.numbers(float, 2)
    if k != int(k):
        raise ConfigError(f"graph {request.spec!r} cannot be read", f"Write it as {request.form}.")
    return families.small_world(request.size(), int(k), p, request.seed)


def _barabasi_albert(request: Request) -> Topology:
    return families.barabasi_albert(request.size(), request.numbers(int, 1)[0], request.seed)


def _tree(request: Request) -> Topology:
    branching = request.numbers(int, 1)[0] if request.arguments else 2
    return families.tree(request.size(), branching)


def _barbell(request: Request) -> Topology:
    clique, between = request.numbers(int, 2)
    return request.fixed(families.barbell(clique, between))


def _cycle(make: Callable[[int], Schedule]) -> Callable[[Request], Schedule]:
    def make_graph(request: Request) -> Schedule:
        request.plain()
        return make(request.size())

    return make_graph


def _matching(request: Request) -> Schedule:
    request.plain()
    return random_schedules.random_matching(request.size(), request.seed)


def _base(request: Request) -> Schedule:
    return cycles.base(request.size(), request.numbers(int, 1)[0])


def _simple_base(request: Request) -> Schedule:
    return cycles.simple_base(request.size(), request.numbers(int, 1)[0])


def _oracle(request: Request) -> Schedule:
    return random_schedules.epidemic_oracle(request.size(), request.numbers(int, 1)[0], request.seed)


def _local(request: Request) -> Schedule:
    make = random_schedules.epidemic_push if request.weights == "push" else random_schedules.epidemic_local
    return make(request.size(), request.numbers(int, 1)[0], request.seed)


def _spanning_tree(request: Request) -> Topology:
    return spanning_tree(request.graph(request.arguments))


def _debruijn(request: Request) -> Mixing:
    return debruijn(request.size(), request.numbers(int, 1)[0])


def _kautz(request: Request) -> Mixing:
    return kautz(request.size(), request.numbers(int, 1)[0])


def _equi_static(both_ways: bool) -> Callable[[Request], Mixing]:
    def make_graph(request: Request) -> Mixing:
        return families.static(request.size(), request.numbers(int, 1)[0], request.seed, both_ways)

    return make_graph


def _equi_dynamic(make: Callable[[int, float, int], Schedule]) -> Callable[[Request], Schedule]:
    def make_graph(request: Request) -> Schedule:
        eta = request.numbers(float, 1)[0] if request.arguments else families.ETA
        return make(request.size(), eta, request.seed)

    return make_graph


def _matcha(request: Request) -> Schedule:
    budget, _, graph = request.arguments.partition(":")
    try:
        share = float(budget)
    except ValueError:
        raise ConfigError(f"graph {request.spec!r}: no budget", f"Write it as {request.form}.") from None
    return random_schedules.matcha(request.graph(graph), share, request.seed)


def _leja(request: Request) -> Schedule:
    return cycles.leja(request.graph(request.arguments))


def _shuffled(request: Request) -> Schedule:
    return shuffled(request.mixing(request.arguments), request.seed)


def _every(request: Request) -> Schedule:
    count, _, rest = request.arguments.partition(":")
    seldom, usual = _two_names(rest)
    if not count.isdecimal() or not usual:
        raise ConfigError(f"graph {request.spec!r} cannot be read", f"Write it as {request.form}.")
    return every(request.spec, int(count), request.changing(seldom), request.changing(usual))


def _two_names(text: str) -> tuple[str, str]:
    """Return "regular:4" and "base:1" of "regular:4:base:1"."""
    parts = text.split(":")
    place = _end_of_name(parts, 0)
    return ":".join(parts[:place]), ":".join(parts[place:])


def _end_of_name(parts: list[str], start: int) -> int:
    """Return the end of the name at `start`: its word, numbers, and the names that it takes as arguments."""
    place = start + 1
    while place < len(parts) and not parts[place][:1].isalpha():
        place += 1
    for _ in range(NESTING.get(parts[start], 0)):
        place = _end_of_name(parts, place) if place < len(parts) else place
    return place


NESTING = {"spanning-tree": 1, "matcha": 1, "leja": 1, "shuffled": 1, "every": 2}
"""Number of names after the colon."""


DRAWN = frozenset(
    (
        *("regular", "erdos-renyi", "small-world", "barabasi-albert", "random-matching", "el-oracle", "el-local"),
        *("equi-static", "u-equi-static", "equi-dynamic", "u-equi-dynamic", "matcha", "shuffled"),
    )
)
"""First words of graphs that depend on the seed, also after another name's colon."""

FAMILIES: dict[str, Family] = {
    "ring": Family("ring", "each node joined to the next, in a circle", _sized(families.ring)),
    "path": Family("path", "a ring with one edge taken out", _sized(families.path)),
    "star": Family("star", "node 0 joined to all others: a server", _sized(families.star)),
    "complete": Family("complete", "everybody joined to everybody", _sized(families.complete)),
    "torus": Family("torus or torus:4x4", "a grid whose borders are joined", _lattice(families.torus)),
    "grid": Family("grid or grid:4x4", "an open grid", _lattice(families.grid)),
    "hypercube": Family("hypercube", "2^d nodes, joined where one binary digit differs", _sized(families.hypercube)),
    "exponential": Family("exponential", "joined at distances 1, 2, 4, ...", _sized(families.exponential)),
    "directed-exponential": Family(
        "directed-exponential", "sends to the nodes 1, 2, 4, ... further on", _sized(families.directed_exponential)
    ),
    "circulant": Family("circulant:1,2,4", "joined at the distances given, on a circle", _circulant),
    "regular": Family("regular:3", "random, every node with 3 neighbours", _regular),
    "erdos-renyi": Family("erdos-renyi:0.2", "random, each pair joined with probability 0.2", _erdos_renyi),
    "small-world": Family("small-world:4,0.1", "a ring with 4 neighbours each, a tenth rewired", _small_world),
    "barabasi-albert": Family("barabasi-albert:2", "grown, 2 edges per new node: a few hubs", _barabasi_albert),
    "tree": Family("tree or tree:2", "each node with 2 below it", _tree),
    "two-cliques": Family("two-cliques", "two complete halves joined by one edge", _sized(families.two_cliques)),
    "barbell": Family("barbell:5,0", "two complete graphs of 5, 0 nodes between them", _barbell),
    "petersen": Family("petersen", "10 nodes of degree 3, any two at most 2 apart", _wrap_fixed(families.petersen)),
    "heawood": Family("heawood", "14 nodes of degree 3, any two at most 3 apart", _wrap_fixed(families.heawood)),
    "icosahedron": Family("icosahedron", "12 nodes of degree 5", _wrap_fixed(families.icosahedron)),
    "spanning-tree": Family("spanning-tree:karate", "a tree of shortest ways out of a graph", _spanning_tree),
    "none": Family("none", "no edge: every node learns alone", _sized(families.empty)),
}

WEIGHTED: dict[str, Weighted] = {
    "debruijn": Weighted("debruijn:2", "each sends to 2 others, i to 2i and 2i + 1: exact after log2 n", _debruijn),
    "kautz": Weighted("kautz:2", "each sends to 2 others, i to -2i - 1 and -2i - 2: a small diameter", _kautz),
    "equi-static": Weighted("equi-static:4", "4 random shifts of a circle, one way", _equi_static(False)),
    "u-equi-static": Weighted("u-equi-static:4", "the same both ways", _equi_static(True)),
}

SCHEDULES: dict[str, TimeVarying] = {
    "one-peer-exponential": TimeVarying(
        "one-peer-exponential",
        "each sends to one other: 1 further on, then 2, 4, ...",
        _cycle(cycles.one_peer_exponential),
        ("uniform", "push"),
    ),
    "one-peer-hypercube": TimeVarying(
        "one-peer-hypercube",
        "2^d nodes in pairs, along one dimension per round: exact after d",
        _cycle(cycles.one_peer_hypercube),
        ("metropolis", "uniform", "push"),
    ),
    "base": TimeVarying("base:1", "at most 1 link (or K) per node and round: exact after a few, any n", _base, ()),
    "simple-base": TimeVarying("simple-base:1", "the same, built more simply; sometimes longer", _simple_base, ()),
    "window-doubling": TimeVarying(
        "window-doubling",
        "exact after log2 n rounds, any n; for the algorithm of this name",
        _cycle(cycles.window_doubling),
        (),
    ),
    "random-matching": TimeVarying(
        "random-matching", "new random pairs in every round", _matching, ("metropolis", "push")
    ),
    "el-oracle": TimeVarying(
        "el-oracle:4", "a new random graph per round, everybody with 4", _oracle, ("metropolis", "uniform", "push")
    ),
    "el-local": TimeVarying(
        "el-local:4", "each sends to 4 new random others; the mean may wander", _local, ("uniform", "push")
    ),
    "equi-dynamic": TimeVarying(
        "equi-dynamic", "one random shift of a circle per round", _equi_dynamic(families.dynamic), ()
    ),
    "u-equi-dynamic": TimeVarying(
        "u-equi-dynamic", "pairs along a random shift, new in every round", _equi_dynamic(families.dynamic_pairs), ()
    ),
    "matcha": TimeVarying(
        "matcha:0.5:regular:4", "half of a graph's matchings per round, critical links more often", _matcha, ()
    ),
    "leja": TimeVarying("leja:torus:4x4", "one graph, weights that end at the exact mean; may be negative", _leja, ()),
    "shuffled": TimeVarying("shuffled:ring", "a graph with a new random placement in every round", _shuffled, ANY),
    "every": TimeVarying("every:10:complete:ring", "the first graph in every 10th round, else the second", _every, ANY),
}


# Graphs and schedules made of others: relabelled in every round, one in every n-th round, a spanning tree.


def shuffled(mixing: Mixing, seed: int) -> Random:
    """Return the schedule that permutes the nodes of `mixing` at random in every round.

    A round leaves (||W||_F^2 - 1)/(n - 1) of sum ||x_i - mean||^2 in expectation.  Raises ConfigError for weights whose
    rows or columns do not sum to one.
    """
    name = f"shuffled:{mixing.name}"
    if mixing.stochastic != "both":
        raise ConfigError(f"{name}: {mixing.rule} weights do not keep the mean", "Use metropolis weights.")
    n, graph = mixing.n, mixing.topology
    others = mixing.ids != mixing.receivers
    receivers, senders, weights = mixing.receivers[others], mixing.ids[others], mixing.values[others]
    own = mixing.values[~others]

    def draw(stream: np.random.Generator) -> Mixing:
        places = stream.permutation(n).astype(np.int64)
        round = Topology.from_edges(n, places[graph.edges], name, graph.directed)
        kept = np.empty(n)
        kept[places] = own
        return assemble(round, mixing.rule, places[receivers], places[senders], weights, kept)

    left = (float(mixing.values @ mixing.values) - 1.0) / max(1, n - 1)
    return Random(name, n, mixing.rule, seed, draw, left)


def every(name: str, count: int, seldom: Schedule, usual: Schedule) -> Schedule:
    """Return the schedule that uses `seldom` in every count-th round, the last of count, and `usual` in the others.

    Each counts its own rounds.  Raises ConfigError for a count below 2, different sizes or different stochasticity.
    """
    if count < 2:
        raise ConfigError(f"{name}: every {count} rounds", "Give at least 2, e.g. every:10:complete:ring.")
    if seldom.n != usual.n or seldom.stochastic != usual.stochastic:
        differ = f"{seldom.n} and {usual.n} nodes" if seldom.n != usual.n else "different sums of weights"
        raise ConfigError(f"{name}: {seldom.name!r} and {usual.name!r} have {differ}", "Give two that fit together.")
    for part in (seldom, usual):
        if isinstance(part, Cycle) and part.algorithm:
            raise ConfigError(f"{name}: {part.name!r} is for the algorithm of this name alone", "Take another graph.")

    def make(round: int) -> Mixing:
        before, left = divmod(round, count)
        return seldom.mixing(before) if left == count - 1 else usual.mixing(before * (count - 1) + left)

    def links(node: int) -> tuple[int, ...]:
        return tuple({*seldom.partners(node), *usual.partners(node)})

    rule = seldom.rule if seldom.rule == usual.rule else f"{seldom.rule}, {usual.rule}"
    if seldom.period and usual.period:
        blocks = math.lcm(seldom.period, usual.period // math.gcd(usual.period, count - 1))
        return Cycle(name, seldom.n, count * blocks, rule, make, stochastic=seldom.stochastic)
    return Endless(name, seldom.n, rule, make, links, seldom.stochastic)


def spanning_tree(graph: Topology) -> Topology:
    """Return a tree of shortest paths from the node of highest degree.  Raises ConfigError for a directed or
    disconnected graph.
    """
    name = f"spanning-tree:{graph.name}"
    if graph.directed or not graph.is_connected:
        what = "is directed" if graph.directed else "falls apart"
        raise ConfigError(f"{name}: the graph {what}", "A tree needs an undirected graph that hangs together.")
    root = int(graph.degrees().argmax())
    above: dict[int, int] = {root: root}
    ring = [root]
    while ring:
        found = {other: node for node in reversed(ring) for other in graph.neighbours(node) if other not in above}
        above.update(found)
        ring = sorted(found)
    edges: IntArray = np.array([(node, before) for node, before in above.items() if node != before], np.int64)
    return Topology.from_edges(graph.n, edges.reshape(-1, 2), name, labels=graph.labels, positions=graph.positions)


# Generalised de Bruijn and Kautz graphs: few arcs per node, and the mean after about log_K n rounds.
#
# Both define their weights: every node sends equal shares to K others, for any n.  A node keeps the share of an arc to
# itself.
#
# Source: Imase and Itoh, Design to minimize diameter on building-block network, IEEE Transactions on Computers C-30
# (1981), and A design for directed graphs with minimum diameter, C-32 (1983).


def debruijn(n: int, k: int) -> Mixing:
    """Return the mixing that sends 1/k of node i's model to each k i + r mod n, r = 0..k-1.

    Doubly stochastic for every n; the exact mean after D rounds if n = k^D.  Raises ConfigError for a k outside 1..n -
    1.
    """
    _require("debruijn", n, k)
    ids = np.arange(n, dtype=np.int64)
    receivers = (k * ids[:, None] + np.arange(k)) % n
    return _shared(f"debruijn:{k}", n, receivers, np.full((n, k), 1.0 / k), 0.0)


def kautz(n: int, k: int) -> Mixing:
    """Return the mixing that sends 1/(k + 1) of node i's model to each -(k i + r) mod n, r = 1..k, and to itself.

    Doubly stochastic for every n; the Kautz graph if n = k^D + k^(D-1).  Raises ConfigError for a k outside 1..n - 1.
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
