"""The graph with its weights, and its spectrum."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.base.untrusted_text import line
from fedgossip.report.page.drawing import BLUE, EDGE, INK, LINE, ORANGE, PALE, QUIET, SKY, draw, set_whole_axis
from fedgossip.report.page.numbers import near_one
from fedgossip.report.page.reading import Graph, RecordedRun

LABEL_LETTERS = 16
"""Maximum length of a user's label in a figure."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_NODES = 1000  # above this a drawing is a grey ball
MOST_EDGES = 20_000
MOST_NUMBERS = 40  # maximum number of nodes with room for a number inside
MOST_MOVED_BY_HAND = 60  # nodes for the exact layout; it takes O(n^3) time
WEIGHT_STEPS = 5
LAYOUT_SEED = 1
COLOURS = 40


def drawable(graph: Graph) -> bool:
    """Return whether the run stored the edges and a drawing of them would show something."""
    return bool(graph.edges) and graph.n <= MOST_NODES and len(graph.edges) <= MOST_EDGES


def network(run: RecordedRun, graph: Graph, name: str) -> str:
    """Return the drawing of a `drawable` graph: width by weight, colour by the last score, otherwise by degree."""
    values, what = _node_values(run, graph)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        places = _places(graph)
        _edges(axes, graph, places, 1.0, never_exchanged(run))
        dots = _nodes(axes, graph, places, values)
        _attackers(axes, places, sorted(attackers(run)), graph.n)
        _fallen(axes, places, fallen(run), graph.n)
        if graph.n <= MOST_NUMBERS:
            _names(axes, graph, places, values, fallen(run))
        if dots is not None:
            bar = figure.colorbar(dots, ax=axes, orientation="horizontal", shrink=0.55, aspect=28, pad=0.02)
            bar.outline.set_visible(False)
            if bar.solids is not None:
                bar.solids.set(
                    rasterized=False, edgecolor="face", antialiased=False
                )  # lines, not a picture, also in a paper
            bar.set_label(what)
            if what != "degree":
                low, high = min(values), max(values)
                bar.set_ticks([low, high], labels=[run.summary.score.format(end) for end in (low, high)])
            else:
                bar.set_ticks(sorted({min(values), max(values)}))
            bar.ax.tick_params(length=0)

    return draw(name, 4.9, paint)


def attackers(run: RecordedRun) -> set[int]:
    """Return the attacking peers, which are excluded from scores."""
    return {node for role in run.roles.all if role.name == "attacker" for node in role.ids}


def _attackers(axes: Axes, places: NDArray[np.float64], nodes: Sequence[int], n: int) -> None:
    if nodes:
        size = max(6.0, min(260.0, 4200.0 / n))
        there = places[list(nodes)]
        axes.scatter(
            there[:, 0], there[:, 1], s=size, color=ORANGE, marker="s", edgecolors=INK, linewidths=0.8, zorder=4
        )


def fallen(run: RecordedRun) -> list[int]:
    """Return the peers that ended before the run did, ascending."""
    return sorted(node for node in run.fallen if 0 <= node < run.summary.n)


def _fallen(axes: Axes, places: NDArray[np.float64], nodes: Sequence[int], n: int) -> None:
    if nodes:
        size, there = max(6.0, min(260.0, 4200.0 / n)), places[list(nodes)]
        axes.scatter(there[:, 0], there[:, 1], s=size, color=PALE, edgecolors=ORANGE, linewidths=1.0, zorder=4)
        axes.scatter(there[:, 0], there[:, 1], s=size, color=ORANGE, marker="x", linewidths=1.4, zorder=4.5)


def never_exchanged(run: RecordedRun) -> set[tuple[int, int]]:
    """Return the pairs (u, v), u < v, with a peer's report that it never received a model."""
    events = [event for event in run.events if event.name == "never_exchanged" and isinstance(event.value, list)]
    peers = range(run.summary.n)
    return {
        (min(event.peer, other), max(event.peer, other))
        for event in events
        for other in event.value
        if event.peer in peers and other in peers and event.peer != other
    }


def miniature(graph: Graph, name: str) -> str:
    """Return a small drawing without words, for graphs side by side."""

    return draw(name, 2.0, lambda figure: draw_small(figure.subplots(), graph), width=2.0)


def draw_small(axes: Axes, graph: Graph, strength: float = 0.7) -> None:
    """Draw a graph without words on separate axes."""
    places = _places(graph)
    if graph.edges:
        _edges(axes, graph, places, strength)
    size = max(4.0, min(40.0, 900.0 / graph.n))
    axes.scatter(places[:, 0], places[:, 1], s=size, color=BLUE, zorder=3, linewidths=0)
    _frame(axes)


def spectrum(run: RecordedRun, name: str) -> str | None:
    """Return the sorted eigenvalues with the slem marked; None if the run stored no eigenvalues."""
    if not run.summary.eigenvalues:
        return None
    values = np.sort(np.array(run.summary.eigenvalues, dtype=np.float64))[::-1]
    slem = run.summary.forecast.slem
    directed = run.summary.topology is not None and run.summary.topology.directed

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        order = np.arange(1, len(values) + 1)
        if slem is not None:
            axes.axhspan(-slem, slem, color=SKY, alpha=0.13, linewidth=0)
            for edge in (slem, -slem):
                axes.axhline(edge, color=ORANGE, linewidth=1.1, linestyle=(0, (5, 2)))
            axes.annotate(
                f"slem {near_one(slem)}",
                (1.0, slem),
                xycoords=axes.get_yaxis_transform(),
                xytext=(0, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                color=ORANGE,
            )
        axes.axhline(0.0, color=LINE, linewidth=0.8)
        if len(values) <= 100:
            axes.vlines(order, 0, values, color=LINE, linewidth=max(0.6, min(2.0, 60 / len(values))))
            axes.plot(order, values, "o", color=BLUE, markersize=max(2.5, min(5.0, 120 / len(values))))
        else:
            axes.plot(order, values, color=BLUE)
        axes.set_ylim(min(-0.05, values[-1] * 1.1, -(slem or 0) * 1.1), 1.06)
        axes.set_xlabel("place in the order of size")
        axes.set_ylabel("singular value" if directed else "eigenvalue")
        set_whole_axis(axes)

    return draw(name, 2.7, paint)


def _node_values(run: RecordedRun, graph: Graph) -> tuple[list[float], str]:
    others = attackers(run) | set(fallen(run))  # they are drawn separately, on top
    known = [peer.score for node, peer in enumerate(run.peers) if peer.score is not None and node not in others]
    if known and len(known) == graph.n - len(others):
        there = iter(known)
        return [
            min(known) if node in others else next(there) for node in range(graph.n)
        ], f"last measured {run.summary.score.metric.word} of the peer"
    degrees = [0.0] * graph.n
    for u, v in graph.edges:
        degrees[u] += 1
        degrees[v] += 1
    return degrees, "degree"


def _places(graph: Graph) -> NDArray[np.float64]:
    """Return [n, 2] positions: a circle if rotation preserves the graph, otherwise by the edges' pull."""
    import networkx as nx

    if _is_circulant(graph):
        turn = math.pi / 2 - 2 * math.pi * np.arange(graph.n) / graph.n
        return np.stack([np.cos(turn), np.sin(turn)], axis=1)
    drawn = nx.Graph()
    drawn.add_nodes_from(range(graph.n))
    drawn.add_edges_from(graph.edges)
    if graph.n <= MOST_MOVED_BY_HAND and nx.is_connected(drawn):
        start = nx.spring_layout(drawn, seed=LAYOUT_SEED, method="force")  # from its circle it may stay tangled
        found: dict[int, Any] = nx.kamada_kawai_layout(drawn, pos=start)
    else:
        found = nx.spring_layout(drawn, seed=LAYOUT_SEED, method="force", iterations=60)
    places = np.array([found[node] for node in range(graph.n)])
    return _lying(places - places.mean(axis=0))


def _lying(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn centred positions so that the longest direction is horizontal."""
    _, axes = np.linalg.eigh(places.T @ places)
    axes = axes[:, ::-1]
    return np.asarray(places @ (axes * np.where(axes.sum(axis=0) < 0, -1.0, 1.0)))


def _is_circulant(graph: Graph) -> bool:
    """Return whether i -> i + 1 (mod n) preserves the edges: rings, complete and exponential graphs."""
    n = graph.n
    arcs = set(graph.edges) if graph.directed else {arc for u, v in graph.edges for arc in ((u, v), (v, u))}
    return all(((u + 1) % n, (v + 1) % n) in arcs for u, v in arcs)


def _weight(graph: Graph, u: int, v: int) -> float:
    """Return the larger of w_uv and w_vu, 1 without weights."""
    if graph.rows is None:
        return 1.0
    return max(abs(graph.rows[u].get(v, 0.0)), abs(graph.rows[v].get(u, 0.0)))


def _edges(
    axes: Axes,
    graph: Graph,
    places: NDArray[np.float64],
    strength: float,
    never: Collection[tuple[int, int]] = (),
) -> None:
    """Draw the edges, one path for each of a few widths: separate lines would take megabytes."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    weights = [_weight(graph, u, v) for u, v in graph.edges]
    largest = max(weights) or 1.0
    classes: dict[int, list[tuple[int, int]]] = {}
    for edge, weight in zip(graph.edges, weights, strict=True):
        if (min(edge), max(edge)) not in never:
            classes.setdefault(max(1, round(weight / largest * WEIGHT_STEPS)), []).append(edge)
    widest = strength * max(0.8, min(3.2, 300 / len(graph.edges)))
    for u, v in sorted(never):
        axes.plot(*places[[u, v]].T, color=ORANGE, linewidth=max(1.4, widest / 2), linestyle=(0, (3, 2)), zorder=2)
    for step, edges in sorted(classes.items()):
        ends = places[np.array(edges)].reshape(-1, 2)
        path = Path(ends, [Path.MOVETO, Path.LINETO] * len(edges))
        width = max(0.3, widest * step / WEIGHT_STEPS)
        axes.add_patch(PathPatch(path, fill=False, edgecolor=EDGE, linewidth=width, capstyle="butt", zorder=1))
    if graph.directed and len(graph.edges) <= 200 and strength == 1.0:
        _arrowheads(axes, graph, places)


def _arrowheads(axes: Axes, graph: Graph, places: NDArray[np.float64]) -> None:
    starts, ends = (places[[edge[side] for edge in graph.edges]] for side in (0, 1))
    for start, end in zip(starts, ends, strict=True):
        axes.annotate(
            "",
            xy=tuple(start + 0.62 * (end - start)),
            xytext=tuple(start + 0.6 * (end - start)),
            arrowprops={"arrowstyle": "-|>", "color": QUIET, "linewidth": 0.5, "mutation_scale": 8},
        )


def _nodes(axes: Axes, graph: Graph, places: NDArray[np.float64], values: list[float]) -> Any:
    """Draw the nodes; return a colour bar's mapping, None for equal values."""
    from matplotlib import colormaps

    differ = max(values) > min(values)
    size = max(6.0, min(260.0, 4200.0 / graph.n))
    paint: dict[str, Any] = {"c": values, "cmap": colormaps["cividis"].resampled(COLOURS)} if differ else {"color": SKY}
    edge = LINE if graph.n <= 200 else "none"
    dots = axes.scatter(places[:, 0], places[:, 1], s=size, edgecolors=edge, linewidths=0.8, zorder=3, **paint)
    _frame(axes)
    return dots if differ else None


def _names(
    axes: Axes, graph: Graph, places: NDArray[np.float64], values: list[float], crossed: Collection[int] = ()
) -> None:
    """Write each node's number inside it and its name next to it."""
    low, high = min(values), max(values)
    centre = places.mean(axis=0)
    for node, (x, y) in enumerate(places):
        dark = high > low and (values[node] - low) / (high - low) < 0.45 and node not in crossed
        colour = "#ffffff" if dark else "#0b0d12"  # not INK: on a coloured disc it stays dark on the dark page
        axes.text(x, y, str(node), color=colour, fontsize=7.5, ha="center", va="center_baseline", zorder=5)
        name = line(graph.labels[node], LABEL_LETTERS) if graph.labels else ""
        if name and name != str(node):
            below = y <= centre[1] + 1e-9
            axes.annotate(
                name,
                (x, y),
                xytext=(0, -10 if below else 10),
                textcoords="offset points",
                ha="center",
                va="top" if below else "bottom",
                fontsize=7.5,
                color=INK,
            )


def _frame(axes: Axes) -> None:
    axes.set_aspect("equal", adjustable="datalim")  # not "box": nodes on one line, as two are, would have none
    axes.margins(0.09)
    axes.set_axis_off()
