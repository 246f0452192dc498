"""Pictures of graphs: one graph, or the rounds of a schedule side by side; and the modes of one.

`topology heterogeneity` and `topology make` use graphs together with the labels of their nodes.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fedgossip.base import owner_files, seeds
from fedgossip.base.errors import ConfigError
from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.text import console, echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedgossip.topology import Mixing, Schedule, Topology
    from fedgossip.topology.graphs.graph import FloatArray


DRAW_LIMIT = 2000  # maximum number of nodes: a drawing of more cannot be read
MOST_ROUNDS = 24  # maximum number of pictures side by side
EXAMPLES = 4  # number of rounds drawn of a schedule that never repeats
FORMATS = (".svg", ".png", ".pdf")


def save(schedule: Schedule, title: str, place: Path) -> None:
    """Draw one graph, or the rounds of a schedule side by side, to `place`.  Raises ConfigError if it cannot be
    written.
    """
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
    """Labels of the axes."""

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
    """Draw the rounds of a period, or the first ones, on one circle of nodes."""
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
    """Return a position per node: its own, on a circle for a ring, else by a force-directed layout."""
    import networkx as nx

    if graph.positions is not None:
        return dict(enumerate(graph.positions))
    picture = graph.to_networkx().to_undirected()
    if graph.circulant is not None:
        return dict(nx.circular_layout(picture))
    layout: Callable[..., Any] = nx.kamada_kawai_layout if graph.n <= 300 else nx.spring_layout
    return dict(layout(picture) if graph.n <= 300 else layout(picture, seed=0))


DRAWS = 100
"""Number of random placements."""

MEANING = "H: distance of the labels in a peer's neighbourhood to those of all; 0 if they are equal."

MEANING_OF_UPDATES = (
    "tau²: how far the update of a peer's neighbourhood is from that of all, squared, from one model; "
    "noise: what other batches add to it."
)

_data = click.option(
    "--data",
    "experiment",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Experiment file with a [data] that determines the labels of each node.",
)
_weights = click.option("--weights", help="Weight rule.  [default: metropolis]")
_seed = click.option("--seed", default=seeds.USUAL, show_default=True, help="Seed of random draws.")


@click.command()
@click.argument("graph", nargs=-1, required=True)
@_data
@click.option(
    "-n", "--n", "n", type=click.IntRange(min=1), help="Number of peers.  [default: topology.n of the experiment]"
)
@_weights
@_seed
@click.option("--gradients", is_flag=True, help="By the peers' updates at the first models' mean, not by labels.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def heterogeneity(
    graph: tuple[str, ...],
    experiment: Path,
    n: int | None,
    weights: str | None,
    seed: int,
    gradients: bool,
    as_json: bool,
) -> None:
    """Measure how far each neighbourhood of GRAPHs differs from the whole, and how much placement matters."""
    from fedgossip.plans.gossip.own_graphs import one_graph
    from fedgossip.topology.spectra.heterogeneity import (
        MOST_PLACED,
        alone,
        compute_remaining_noise,
        draw_placements,
        expected,
        label_heterogeneity,
        placed,
    )

    shares, noise = _updates(experiment, n) if gradients else (_shares(experiment, n), None)
    rows = []
    for name in graph:
        mixing = one_graph(name, len(shares), weights, seed)
        least = float(draw_placements(mixing, shares, DRAWS, seed).min())
        best = placed(mixing, shares)[1] if mixing.n <= MOST_PLACED else None
        here = {"graph": name, "alone": alone(shares), "as_placed": label_heterogeneity(mixing, shares)}
        row = {**here, "expected": expected(mixing, shares), "drawn_least": least, "best": best}
        rows.append(
            row if noise is None else {**row, "noise": noise * compute_remaining_noise(mixing), "noise_alone": noise}
        )
    if as_json:
        echo_json(json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False))
        return
    _print_rows(rows, gradients=gradients)


def _print_rows(rows: Sequence[Mapping[str, Any]], *, gradients: bool) -> None:
    from rich import box
    from rich.table import Table

    heads = {"as placed": "as_placed", "by chance": "expected", f"least of {DRAWS}": "drawn_least"}
    heads |= {"best found": "best", **({"noise": "noise"} if gradients else {})}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("graph", *heads):
        table.add_column(head, justify="left" if head == "graph" else "right")
    for row in rows:
        numbers = [row[key] for key in heads.values()]
        table.add_row(str(row["graph"]), *("-" if value is None else f"{value:.5g}" for value in numbers))
    out, alone = console(), f"{rows[0]['alone']:.5g}"
    out.print(table)
    if gradients:
        out.print(f"{MEANING_OF_UPDATES}\nWithout any exchange it is {alone}, noise {rows[0]['noise_alone']:.5g}.")
        return
    out.print(f"{MEANING}\nWithout any exchange it is {alone}.", highlight=False)
    out.print("A better placement as a file: fedgossip topology make place:GRAPH", highlight=False)


@click.command()
@click.argument("spec")
@click.option("--data", "experiment", type=click.Path(path_type=Path, dir_okay=False), help="As in heterogeneity.")
@click.option(
    "-n", "--n", "n", type=click.IntRange(min=1), help="Number of peers.  [default: topology.n of the experiment]"
)
@_weights
@_seed
@click.option(
    "--out", required=True, type=OutputFile(".toml", mark='source = "fedgossip topology make'), help="FILE.toml."
)
def make(spec: str, experiment: Path | None, n: int | None, weights: str | None, seed: int, out: Path) -> None:
    """Write a graph with its weights to a file, for topology.graph.

    SPEC: d-cliques:10,ring or d-cliques:10,full, cliques with the overall labels; stl-fw:5, learned, at most 5 senders
    for each; place:GRAPH, GRAPH with the nodes where their labels fit best; or any GRAPH, with --weights fmmc for
    example.

    Peers need not know each other's labels in the run: the file has all.
    """
    from fedgossip import load_experiment
    from fedgossip.plans.gossip.own_graphs import build_mixing
    from fedgossip.topology import forecast_of
    from fedgossip.topology.graphs.files import written

    if out.suffix != ".toml":
        raise ConfigError(f"{out}: a graph with weights is a TOML file", "Give --out FILE.toml.")
    mixing = build_mixing(spec, load_experiment(experiment) if experiment else None, n, weights, seed)
    if not mixing.topology.is_connected:
        raise ConfigError(f"{spec} of these labels falls apart", "Take more steps, larger cliques or another --seed.")
    source = f"fedgossip topology make {spec}" + (f", by the labels of {experiment.name}" if experiment else "")
    try:
        owner_files.placed(out, written(mixing, out.stem, spec, source).encode())
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}", "Give a file that can be written.") from None
    slem = forecast_of(mixing).slem
    echo(f"{out}: {mixing.n} nodes, {mixing.topology.edge_count} links, slem {slem:.6g}", err=True)


def draw_modes(schedule: Schedule, title: str, experiment: Path | None, place: Path) -> None:
    """Draw the remainder of each mode, and with an experiment the share of its peers' labels in each."""
    from fedgossip.topology import Mixing
    from fedgossip.topology.spectra.heterogeneity import compute_remaining_modes, energies

    check_format(place)
    energy = None
    if experiment is None:
        values = compute_remaining_modes(schedule)
    elif isinstance(schedule, Mixing):
        values, energy = energies(schedule, _shares(experiment, schedule.n))
    else:
        raise ConfigError(f"{schedule.name!r} is another graph in every round", "Leave --data out, or take one graph.")
    signed = isinstance(schedule, Mixing) and schedule.symmetric
    left = "eigenvalue" if signed else f"left after {'a period' if schedule.period > 1 else 'a round'}"
    save_modes(values, energy, title, Labels(left, "share of what labels differ by"), place)
    echo(f"Drawn to {place}", err=True)


def _shares(experiment: Path, n: int | None) -> FloatArray:
    from fedgossip import load_experiment
    from fedgossip.plans.gossip.own_graphs import peers_of, shares_of

    loaded = load_experiment(experiment)
    return shares_of(loaded, peers_of(loaded, n))


def _updates(experiment: Path, n: int | None) -> tuple[FloatArray, float]:
    """Return rows [n, n] that differ as the peers' updates do, and the mean square of their random part."""
    from fedgossip import load_experiment
    from fedgossip.plans import compose
    from fedgossip.plans.gossip.own_graphs import peers_of
    from fedgossip.simulation.probe import probe

    loaded = load_experiment(experiment)
    size = peers_of(loaded, n)
    found = probe(compose.task_of(loaded, size)[0], size)
    return found.lasting, found.noise * (size - 1) / size  # less the part that is the mean's
