"""`fedgossip topology`: look at graphs before training on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip import topology as graphs
from fedgossip.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedgossip.topology import Forecast, Mixing, Topology

DRAW_LIMIT = 2000  # nodes; beyond it a drawing is a blot
FORMATS = (".svg", ".png", ".pdf")

GAP_MEANS = "worst case: share of a disagreement that one round removes"
N_W_MEANS = "typical case: models that each one in effect averages"

_nodes = click.option("--n", "n", type=click.IntRange(min=1), help="Number of nodes, where the graph leaves it open.")
_weights = click.option("--weights", help=f"Weight rule: {', '.join(graphs.rule_names())}.  [default: metropolis]")
_gamma = click.option("--gamma", default=0.9, show_default=True, help="Memory of n_W: 0.9 is about ten rounds.")
# 1 as in an experiment: the graph shown is the one that a run with the defaults uses
_seed = click.option("--seed", default=1, show_default=True, help="For graphs that are drawn at random.")
_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


@click.group()
def topology() -> None:
    """Graphs: who exchanges models with whom, and how fast that brings them together.

    GRAPH is a family (ring, torus:4x4, regular:3), a ready graph (karate, abilene) or the path of a TOML file or a
    list of edges.
    """


@topology.command("list")
@_json
def list_graphs(as_json: bool) -> None:
    """List the families and the ready graphs."""
    from fedgossip.topology import files
    from fedgossip.topology.grammar import FAMILIES

    described = {name: files.read(path) for name in graphs.ready_names() if (path := files.ready_path(name))}
    if as_json:
        found = [{"name": k, "form": f.form, "what": f.what, "kind": "family"} for k, f in FAMILIES.items()]
        ready = [{"name": k, "what": g.title, "source": g.source, "kind": "ready"} for k, g in described.items()]
        _print_json([*found, *ready])
        return
    console, table = _console(), _table("Families", "write", "what it is")
    for family in FAMILIES.values():
        table.add_row(family.form, family.what)
    console.print(table)
    table = _table("Ready graphs, each with its source", "write", "what it is")
    for name, graph in described.items():
        table.add_row(name, graph.title)
    console.print(table)
    console.print("Look at one: fedgossip topology show ring --n 16")


@topology.command()
@click.argument("graph")
@_nodes
@_weights
@_gamma
@_seed
@_json
def show(graph: str, n: int | None, weights: str | None, gamma: float, seed: int, as_json: bool) -> None:
    """Show what GRAPH and its weights promise before anything is trained."""
    mixing = _mixing(graph, n, weights, seed)
    promise = graphs.forecast(mixing, gamma)
    if as_json:
        _print_json({"graph": graph, **promise.to_dict()})
        return
    console, table = _console(), _table(_title(mixing), "quantity", "value", "what it means")
    for row in _rows(promise):
        table.add_row(*row)
    console.print(table)
    console.print(_ranking(gamma), highlight=False)
    for line in _about(graph):
        console.print(line, style="dim", highlight=False, markup=False)


@topology.command()
@click.argument("graph", nargs=-1, required=True)
@_nodes
@_weights
@_gamma
@_seed
@_json
def compare(graph: tuple[str, ...], n: int | None, weights: str | None, gamma: float, seed: int, as_json: bool) -> None:
    """Put several GRAPHs side by side."""
    promises = {name: graphs.forecast(_mixing(name, n, weights, seed), gamma) for name in graph}
    if as_json:
        _print_json([{"graph": name, **promise.to_dict()} for name, promise in promises.items()])
        return
    heads = ("graph", "nodes", "edges", "degree", "gap", "n_W", "to halve", "to 1 %")
    table = _table("", *heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, promise in promises.items():
        table.add_row(name, *_compared(promise))
    console = _console()
    console.print(table)
    console.print(f"gap: {GAP_MEANS}.\nn_W: {N_W_MEANS}.", highlight=False)
    console.print("degree: most neighbours of a node.  to halve, to 1 %: rounds, in the worst case.", highlight=False)
    console.print(_ranking(gamma), highlight=False)


@topology.command()
@click.argument("graph")
@_nodes
@_weights
@_seed
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="FILE.svg, .png or .pdf.")
def draw(graph: str, n: int | None, weights: str | None, seed: int, out: Path | None) -> None:
    """Draw GRAPH; the heavier an edge weighs, the wider it is."""
    mixing = _mixing(graph, n, weights, seed)
    place = out or Path(f"{mixing.topology.name}.svg")
    if place.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot draw to {place}", f"End the name in {', '.join(FORMATS)}.")
    if mixing.n > DRAW_LIMIT:
        raise ConfigError(f"{mixing.n} nodes are too many to draw", f"Draw at most {DRAW_LIMIT}, e.g. --n 64.")
    _draw(mixing, place)
    click.echo(f"Drawn to {place}", err=True)


# --- what is said -----------------------------------------------------------------------------------------------


def _mixing(graph: str, n: int | None, weights: str | None, seed: int) -> Mixing:
    found = graphs.resolve(graph, n, seed=seed)
    return graphs.build(found, weights or found.weights or "metropolis")


def _title(mixing: Mixing) -> str:
    graph = mixing.topology
    word = "arcs" if graph.directed else "edges"
    return f"{graph.name}: {graph.n} nodes, {len(graph.edges)} {word}, {mixing.rule} weights"


def _rows(promise: Forecast) -> list[tuple[str, str, str]]:
    rows = [
        ("most neighbours", str(promise.degree_max), "models that the busiest node sends per round"),
        ("spectral gap", _number(promise.spectral_gap, promise), f"{GAP_MEANS} (0 none, 1 all)"),
        ("effective neighbours n_W", _effective(promise), f"{N_W_MEANS} (1 alone, n all)"),
        ("rounds to halve", _rounds(promise.rounds_to_halve, promise), "until the worst disagreement is half"),
        ("rounds to 1 %", _rounds(promise.rounds_to_1_percent, promise), "until 1 % of it is left"),
        ("one round leaves", _plain(promise.mean_contraction), "of a disagreement in a random direction"),
        ("slem", _number(promise.slem, promise), "1 - gap; at most this is left after one round"),
    ]
    if promise.lambda2 is not None and promise.lambda_n is not None:
        rows.append(("λ2", _number(promise.lambda2, promise), "second largest eigenvalue of the weights"))
        rows.append(("λn", _number(promise.lambda_n, promise), "smallest eigenvalue"))
    if promise.algebraic_connectivity is not None:
        rows.append(("algebraic connectivity", f"{promise.algebraic_connectivity:.7g}", "μ2 of the graph's Laplacian"))
    return [*rows, ("computed by", promise.method, _error(promise))]


def _error(promise: Forecast) -> str:
    if not promise.resolved:
        return "did not converge: the gap is tiny or the graph too large"
    return f"eigenvalues to within {promise.residual:.1e}" if promise.residual else "exact to rounding"


def _compared(promise: Forecast) -> tuple[str, ...]:
    return (
        str(promise.n),
        str(promise.edges),
        str(promise.degree_max),
        f"{promise.spectral_gap:.4g}" if promise.spectral_gap is not None else "unresolved",
        _effective(promise),
        _rounds(promise.rounds_to_halve, promise),
        _rounds(promise.rounds_to_1_percent, promise),
    )


def _number(value: float | None, promise: Forecast) -> str:
    if value is None:
        return "-" if promise.resolved else "unresolved"
    if 0 < 1 - abs(value) < 1e-6 and promise.spectral_gap:
        return f"{'-' if value < 0 else ''}(1 - {promise.spectral_gap:.7g})"
    return f"{value:.7g}" if abs(value) > 1e-14 else "0"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _effective(promise: Forecast) -> str:
    if promise.n_w is None:
        return "-" if promise.resolved else "unresolved"
    return f"{promise.n_w:.2f}" + (f" ± {promise.n_w_error:.2f}" if promise.n_w_error else "")


def _rounds(value: int | None, promise: Forecast) -> str:
    if value is None:
        return "never" if promise.resolved else "unresolved"
    return str(value)


def _about(graph: str) -> list[str]:
    from fedgossip.topology import files

    path = files.ready_path(graph) or (Path(graph) if graph.endswith(".toml") else None)
    if path is None:
        return []
    described = files.read(path)
    return [described.title, f"Source: {described.source}"]


# --- how it is said ---------------------------------------------------------------------------------------------


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _console() -> Any:
    from rich.console import Console

    return Console()


def _ranking(gamma: float) -> str:
    memory = f"n_W remembers {1 / (1 - gamma):.0f} rounds (gamma {gamma:g})."
    return f"{memory}  Where gap and n_W rank graphs differently, training usually follows n_W."


def _table(title: str, *heads: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place < len(heads) - 1 or len(heads) > 3, overflow="fold")
    return table


def _draw(mixing: Mixing, place: Path) -> None:
    import networkx as nx
    from matplotlib.figure import Figure

    graph = mixing.topology
    side = min(12.0, 4.0 + graph.n / 20)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    picture, places = graph.to_networkx(), _places(graph)
    weights = [mixing.row(v).get(u, 0.0) for u, v in picture.edges]
    heaviest = max((abs(weight) for weight in weights), default=1.0) or 1.0
    widths = [0.3 + 1.9 * abs(weight) / heaviest for weight in weights]
    size = max(8.0, 320.0 - 4 * graph.n)
    nx.draw_networkx_edges(picture, places, ax=axes, width=widths, edge_color="#7a8b99", node_size=size)
    nx.draw_networkx_nodes(picture, places, ax=axes, node_size=size, node_color="#cfe3f5", edgecolors="#33658a")
    if graph.n <= 64:
        labels = {node: graph.label(node) for node in range(graph.n)}
        nx.draw_networkx_labels(picture, places, labels, ax=axes, font_size=8, clip_on=False)
    axes.set_title(_title(mixing), fontsize=10)
    axes.margins(0.1)
    _save(figure, place)


def _save(figure: Any, place: Path) -> None:
    try:
        figure.savefig(place, dpi=150)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}", "Give --out a folder that you may write to.") from None


def _places(graph: Topology) -> dict[int, Any]:
    """Return a place per node: its own where it has one, on a circle where the graph is one, else by forces."""
    import networkx as nx

    if graph.positions is not None:
        return dict(enumerate(graph.positions))
    picture = graph.to_networkx().to_undirected()
    if graph.circulant is not None:
        return dict(nx.circular_layout(picture))
    layout: Callable[..., Any] = nx.kamada_kawai_layout if graph.n <= 300 else nx.spring_layout
    return dict(layout(picture) if graph.n <= 300 else layout(picture, seed=0))
