"""Pictures of graphs: one graph, or the rounds of a schedule side by side; and the modes of one."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgossip.base import owner_files
from fedgossip.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedgossip.topology import Mixing, Schedule, Topology
    from fedgossip.topology.graphs.graph import FloatArray

DRAW_LIMIT = 2000  # maximum number of nodes: a drawing of more cannot be read
MOST_ROUNDS = 24  # maximum number of pictures side by side
EXAMPLES = 4  # number of rounds drawn of a schedule that never repeats
FORMATS = (".svg", ".png", ".pdf")


def save(schedule: Schedule, title: str, place: Path) -> None:
    """Draw one graph, or the rounds of a schedule side by side, to `place`.  Raises ConfigError where it cannot."""
    check_format(place)
    if schedule.n > DRAW_LIMIT:
        raise ConfigError(f"{schedule.n} nodes are too many to draw", f"Draw at most {DRAW_LIMIT}, e.g. --n 64.")
    if schedule.period == 1:
        _save(_one(schedule.mixing(0), title), place)
    else:
        _save(_side_by_side(schedule, title), place)


def check_format(place: Path) -> None:
    """Raise ConfigError for a file that is no picture."""
    if place.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw to {place}", f"End the name in {', '.join(FORMATS)}.")


def save_modes(values: FloatArray, energy: FloatArray | None, title: str, labels: Labels, place: Path) -> None:
    """Draw the remainder of each mode [n - 1], descending, as a staircase; `energy` [n - 1] as shares beneath it."""
    from matplotlib.figure import Figure

    rows = 1 if energy is None else 2
    figure = Figure(figsize=(7.0, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    ids = np.arange(2, len(values) + 2)
    axes[0].stairs(values, np.append(ids, ids[-1] + 1) - 0.5, baseline=None, color="#33658a", linewidth=1.6)
    axes[0].axhline(0.0, color="#7a8b99", linewidth=0.6)
    axes[0].set_ylabel(labels.left)
    axes[0].set_ylim(min(-0.05, float(values.min()) - 0.05), 1.05)
    axes[0].set_title(title, fontsize=10)
    if energy is not None:
        shares = energy / (float(energy.sum()) or 1.0)
        axes[1].stairs(shares, np.append(ids, ids[-1] + 1) - 0.5, fill=True, color="#d98f4e")
        axes[1].set_ylabel(labels.energy)
    axes[-1].set_xlabel("mode, 1 is the mean's")
    _save(figure, place)


@dataclass(frozen=True)
class Labels:
    """Labels beside the axes."""

    left: str
    energy: str


def _one(mixing: Mixing, title: str) -> Figure:
    from matplotlib.figure import Figure

    side = min(12.0, 4.0 + mixing.n / 20)
    figure = Figure(figsize=(side, side), layout="constrained")
    _paint(figure.add_subplot(), mixing, _places(mixing.topology), max(8.0, 320.0 - 4 * mixing.n))
    figure.axes[0].set_title(title, fontsize=10)
    return figure


def _side_by_side(schedule: Schedule, title: str) -> Figure:
    """Draw every round of a period, or the first ones; all rounds share one circle of nodes."""
    import networkx as nx
    from matplotlib.figure import Figure

    rounds = min(schedule.period or EXAMPLES, MOST_ROUNDS)
    columns = min(rounds, 4)
    rows = math.ceil(rounds / columns)
    side = min(5.0, 2.4 + schedule.n / 40)
    figure = Figure(figsize=(columns * side, rows * side + 0.4), layout="constrained")
    places = dict(nx.circular_layout(range(schedule.n)))
    for round in range(rounds):
        axes = figure.add_subplot(rows, columns, round + 1)
        _paint(axes, schedule.mixing(round), places, max(6.0, 160.0 - 3 * schedule.n))
        axes.set_title(f"round {round + 1}" + (f" of {schedule.period}" if schedule.period else ""), fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure


def _paint(axes: Axes, mixing: Mixing, places: dict[int, Any], size: float) -> None:
    import networkx as nx

    graph = mixing.topology
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    picture = graph.to_networkx()
    weights = [mixing.row(v).get(u, 0.0) for u, v in picture.edges]
    heaviest = max((abs(weight) for weight in weights), default=1.0) or 1.0
    widths = [0.3 + 1.9 * abs(weight) / heaviest for weight in weights]
    nx.draw_networkx_edges(picture, places, ax=axes, width=widths, edge_color="#7a8b99", node_size=size)
    nx.draw_networkx_nodes(picture, places, ax=axes, node_size=size, node_color="#cfe3f5", edgecolors="#33658a")
    if size >= 60:
        labels = {node: graph.label(node) for node in range(graph.n)}
        nx.draw_networkx_labels(picture, places, labels, ax=axes, font_size=8 if size > 150 else 6, clip_on=False)
    axes.margins(0.1)


def _save(figure: Any, place: Path) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=place.suffix.removeprefix("."), dpi=150)
    try:
        owner_files.placed(place, content.getvalue())
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}", "Give --out a folder that you may write to.") from None


def _places(graph: Topology) -> dict[int, Any]:
    """Return a place per node: its own where it has one, on a circle where the graph is a ring, else by forces."""
    import networkx as nx

    if graph.positions is not None:
        return dict(enumerate(graph.positions))
    picture = graph.to_networkx().to_undirected()
    if graph.circulant is not None:
        return dict(nx.circular_layout(picture))
    layout: Callable[..., Any] = nx.kamada_kawai_layout if graph.n <= 300 else nx.spring_layout
    return dict(layout(picture) if graph.n <= 300 else layout(picture, seed=0))
