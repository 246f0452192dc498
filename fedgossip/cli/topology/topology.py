"""`fedgossip topology`: inspect graphs before training on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base import seeds
from fedgossip.base.errors import ConfigError
from fedgossip.base.untrusted_text import csv_rows
from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.text import CommandGroup, console, echo, echo_json
from fedgossip.cli.topology import drawing, promises
from fedgossip.cli.topology.advise import advise
from fedgossip.topology import forecast_of, is_drawn, ready_names, rule_names
from fedgossip.topology.weights.mixing_matrix import SIGNED

if TYPE_CHECKING:
    from fedgossip.topology import Schedule

LONGEST_NAME = 20
"""Maximum number of characters of a name in one line of 80 with the numbers."""

COMPARED = ("edges", "degree", "gap", "n_W", "to halve", "to 1 %", "exact")
CHANGING_MEANS = (
    "Where every round has another graph: edges and degree of the busiest round, and no gap: the rounds to 1 % say how "
    "fast, in expectation where they are drawn afresh."
)

_nodes = click.option("-n", "--n", "n", type=click.IntRange(min=1), help="Number of nodes, where the graph is of any.")
_weights = click.option("--weights", help=f"Weight rule: {', '.join(rule_names())}, pi:FILE.  [default: metropolis]")
_gamma = click.option("--gamma", default=0.9, show_default=True, help="Memory of n_W: 0.9 is about ten rounds.")
# the seed is 1 as in an experiment: a run with the defaults uses the shown graph
_seed = click.option(
    "--seed",
    default=seeds.USUAL,
    show_default=True,
    help="For graphs that are drawn at random: topology.seed of an experiment, or its own seed.",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


@click.group(cls=CommandGroup)
def topology() -> None:
    """Graphs: which peers exchange models, and how fast these agree.

    GRAPH is a family (ring, torus:4x4, regular:3), a ready graph (karate, abilene), the path of a TOML file or a list
    of edges, or a schedule with another graph in every round (base:2, el-oracle:4).
    """


topology.add_command(advise)


@topology.command("list")
@_json
def list_graphs(as_json: bool) -> None:
    """List the families, the graphs with weights, the schedules and the ready graphs."""
    from fedgossip.topology.graphs import files
    from fedgossip.topology.graphs.grammar import FAMILIES, SCHEDULES, WEIGHTED

    described = {name: files.read(path) for name in ready_names() if (path := files.ready_path(name))}
    if as_json:
        found = [{"name": k, "form": f.form, "what": f.what, "kind": "family"} for k, f in FAMILIES.items()]
        ready = [{"name": k, "what": g.title, "source": g.source, "kind": "ready"} for k, g in described.items()]
        found += [{"name": k, "form": w.form, "what": w.what, "kind": "weighted"} for k, w in WEIGHTED.items()]
        changing = [{"name": k, "form": s.form, "what": s.what, "kind": "schedule"} for k, s in SCHEDULES.items()]
        _print_json([*found, *changing, *ready])
        return
    out, table = console(), _table("Families", "write", "what it is")
    for family in FAMILIES.values():
        table.add_row(family.form, family.what)
    out.print(table)
    table = _table("Graphs that bring their weights", "write", "what it is")
    for weighted in WEIGHTED.values():
        table.add_row(weighted.form, weighted.what)
    out.print(table)
    table = _table("Schedules: another graph in every round", "write", "what it is")
    for schedule in SCHEDULES.values():
        table.add_row(schedule.form, schedule.what)
    out.print(table)
    table = _table("Ready graphs, each with its source", "write", "what it is")
    for name, graph in described.items():
        table.add_row(name, graph.title)
    out.print(table)
    out.print("Look at one: fedgossip topology show ring --n 16")


@topology.command()
@click.argument("graph")
@_nodes
@_weights
@_gamma
@_seed
@_json
@click.option(
    "--spectrum",
    "picture",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the factor of each mode per round, to FILE.svg, .png or .pdf.",
)
@click.option(
    "--data",
    "experiment",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --spectrum: experiment file; the heterogeneity of its peers' labels in each mode.",
)
def show(
    graph: str,
    n: int | None,
    weights: str | None,
    gamma: float,
    seed: int,
    as_json: bool,
    picture: Path | None,
    experiment: Path | None,
) -> None:
    """Show the guarantees of GRAPH and its weights before training."""
    from fedgossip.plans.gossip.own_graphs import build_schedule

    if experiment and not picture:
        raise ConfigError("--data places labels in a drawing", "Give --spectrum FILE.svg too.")
    schedule = build_schedule(graph, n, weights=weights, seed=seed)
    promise = forecast_of(schedule, gamma)
    if picture:
        drawing.draw_modes(schedule, promises.title(schedule), experiment, picture)
    if as_json:
        _print_json({"graph": graph, **({"seed": seed} if is_drawn(graph) else {}), **promise.to_dict()})
        return
    out, table = console(), _table(promises.title(schedule), "quantity", "value", "what it means")
    for row in promises.rows(promise):
        table.add_row(*row)
    out.print(table)
    out.print(promises.ranking(gamma), highlight=False)
    for line in [*_signed(schedule), *_describe_draw(graph, seed), *_about(graph)]:
        out.print(line, style="dim", highlight=False)


@topology.command()
@click.argument("graph", nargs=-1, required=True)
@_nodes
@_weights
@_gamma
@_seed
@_json
@click.option("--csv", "as_csv", is_flag=True, help="CSV instead of a table: a line per graph.")
def compare(
    graph: tuple[str, ...], n: int | None, weights: str | None, gamma: float, seed: int, as_json: bool, as_csv: bool
) -> None:
    """Compare several GRAPHs side by side."""
    from fedgossip.plans.gossip.own_graphs import build_schedule

    found = {name: build_schedule(name, n, weights=weights, seed=seed) for name in graph}
    promised = {name: forecast_of(schedule, gamma) for name, schedule in found.items()}
    if as_json:
        _print_json([{"graph": name, **promise.to_dict()} for name, promise in promised.items()])
        return
    if as_csv:
        _print_csv([{"graph": name, **promise.to_dict()} for name, promise in promised.items()])
        return
    sizes = {promise.n for promise in promised.values()}
    heads = ("graph", *(["nodes"] if len(sizes) > 1 else []), *COMPARED)
    table = _table("" if len(sizes) > 1 else f"{sizes.pop()} nodes", *heads)
    long = max(map(len, promised)) > LONGEST_NAME
    table.columns[0].no_wrap = not long  # a long name takes two lines before a number loses a digit
    for column in table.columns[1:]:
        column.justify, column.min_width = "right", len(str(column.header)) if long else None
    for name, promise in promised.items():
        table.add_row(name, *promises.compared(promise)[-len(heads) + 1 :])
    out = console()
    out.print(table)
    out.print(f"gap: {promises.GAP_MEANS}.\nn_W: {promises.N_W_MEANS}.", highlight=False)
    out.print(f"degree: most neighbours of a node.  to halve, to 1 %: {promises.ROUNDS_MEAN}.", highlight=False)
    out.print("exact: rounds until everybody has exactly the mean.", highlight=False)
    if any(promise.period != 1 for promise in promised.values()):
        out.print(CHANGING_MEANS, highlight=False)
    out.print(promises.ranking(gamma), highlight=False)


@topology.command()
@click.argument("graph")
@_nodes
@_weights
@_seed
@click.option("--out", type=OutputFile(".svg", ".png", ".pdf"), help="FILE.svg, .png or .pdf.")
def draw(graph: str, n: int | None, weights: str | None, seed: int, out: Path | None) -> None:
    """Draw GRAPH; edges with larger weights are wider.  For a schedule: its rounds, side by side."""
    from fedgossip.cli.topology import drawing
    from fedgossip.plans.gossip.own_graphs import build_schedule

    schedule = build_schedule(graph, n, weights=weights, seed=seed)
    place = out or Path(f"{schedule.name.replace(':', '-')}.svg")
    drawing.save(schedule, promises.title(schedule), place)
    echo(f"Drawn to {place}", err=True)


@topology.command()
@click.argument("graph")
@_nodes
@_weights
@_seed
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Rounds that are watched.")
@click.option(
    "--colluding",
    metavar="K",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Nodes that combine their knowledge.",
)
@_json
def audit(
    graph: str, n: int | None, weights: str | None, seed: int, rounds: int, colluding: int, as_json: bool
) -> None:
    """Report the models that curious nodes of GRAPH can compute, and after how many rounds.

    For plain gossip, with neighbours' models visible, and for private gossip (algorithm.private), with only their sum
    visible; without training, and with one mixing per local update.
    """
    from fedgossip.cli.topology import exposures
    from fedgossip.plans.gossip.own_graphs import build_schedule
    from fedgossip.topology import exposure

    schedule = build_schedule(graph, n, weights=weights, seed=seed)
    found, refused = exposure.audit(schedule, rounds, colluding), exposures.refused(schedule, rounds)
    if as_json:
        _print_json({"graph": graph, "refused": refused, **found.to_dict()})
        return
    out, table = console(), _table(promises.title(schedule), *exposures.HEADS)
    for row in exposures.rows(found):
        table.add_row(*row)
    out.print(table)
    for line in (*exposures.meanings(found), "", *exposures.verdict(found, schedule, refused)):
        out.print(line, highlight=False)


topology.add_command(drawing.heterogeneity)
topology.add_command(drawing.make)


# --- lines of output --------------------------------------------------------------------------------------------


def _signed(schedule: Schedule) -> list[str]:
    if schedule.rule not in SIGNED:
        return []
    least = min(float(schedule.mixing(round).values.min()) for round in range(schedule.period or 1))
    return [f"The smallest weight is {least:.4g}: a model may count negatively."] if least < 0 else []


def _describe_draw(graph: str, seed: int) -> list[str]:
    if not is_drawn(graph):
        return []
    return [f"Drawn with seed {seed} (--seed); a run draws with topology.seed, or with its own seed."]


def _about(graph: str) -> list[str]:
    from fedgossip.topology.graphs import files

    path = files.ready_path(graph) or (Path(graph) if graph.endswith(".toml") else None)
    if path is None:
        return []
    described = files.read(path)
    return [described.title, f"Source: {described.source}"]


# --- formats ----------------------------------------------------------------------------------------------------


def _print_csv(rows: list[dict[str, Any]]) -> None:
    echo(csv_rows(rows).rstrip())


def _print_json(value: object) -> None:
    echo_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _table(title: str, *heads: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place < len(heads) - 1 or len(heads) > 3, overflow="fold")
    return table
