"""`fedgossip topology heterogeneity` and `topology make`: graphs beside the labels of their nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base import owner_files, seeds
from fedgossip.base.errors import ConfigError
from fedgossip.cli.text import console, echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedgossip.topology import Schedule
    from fedgossip.topology.graphs.graph import FloatArray

DRAWS = 100
"""Random placements that are drawn."""

MEANING = "H: how far the labels that a peer's neighbourhood has are from those of all; 0 where they are alike."

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
    from fedgossip.plans.gossip.made_graphs import one_graph
    from fedgossip.topology.spectra.heterogeneity import (
        MOST_PLACED,
        alone,
        drawn,
        expected,
        label_heterogeneity,
        left_of_noise,
        placed,
    )

    shares, noise = _updates(experiment, n) if gradients else (_shares(experiment, n), None)
    rows = []
    for name in graph:
        mixing = one_graph(name, len(shares), weights, seed)
        least = float(drawn(mixing, shares, DRAWS, seed).min())
        best = placed(mixing, shares)[1] if mixing.n <= MOST_PLACED else None
        here = {"graph": name, "alone": alone(shares), "as_placed": label_heterogeneity(mixing, shares)}
        row = {**here, "expected": expected(mixing, shares), "drawn_least": least, "best": best}
        rows.append(row if noise is None else {**row, "noise": noise * left_of_noise(mixing), "noise_alone": noise})
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
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="FILE.toml.")
def make(spec: str, experiment: Path | None, n: int | None, weights: str | None, seed: int, out: Path) -> None:
    """Write a graph with its weights to a file, for topology.graph.

    SPEC: d-cliques:10,ring or d-cliques:10,full, cliques with the labels of all; stl-fw:5, learned, at most 5 senders
    for each; place:GRAPH, GRAPH with the nodes where their labels fit best; or any GRAPH, with --weights fmmc for
    example.

    Peers need not know each other's labels in the run: the file has all.
    """
    from fedgossip import load_experiment
    from fedgossip.plans.gossip.made_graphs import made_for
    from fedgossip.topology import forecast_of
    from fedgossip.topology.graphs.files import written

    if out.suffix != ".toml":
        raise ConfigError(f"{out}: a graph with weights is a TOML file", "Give --out FILE.toml.")
    mixing = made_for(spec, load_experiment(experiment) if experiment else None, n, weights, seed)
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
    from fedgossip.cli.topology import drawing
    from fedgossip.topology import Mixing
    from fedgossip.topology.spectra.modes import energies, left_of_modes

    drawing.check_format(place)
    energy = None
    if experiment is None:
        values = left_of_modes(schedule)
    elif isinstance(schedule, Mixing):
        values, energy = energies(schedule, _shares(experiment, schedule.n))
    else:
        raise ConfigError(f"{schedule.name!r} is another graph in every round", "Leave --data out, or take one graph.")
    signed = isinstance(schedule, Mixing) and schedule.symmetric
    left = "eigenvalue" if signed else f"left after {'a period' if schedule.period > 1 else 'a round'}"
    drawing.save_modes(values, energy, title, drawing.Labels(left, "share of what labels differ by"), place)
    echo(f"Drawn to {place}", err=True)


def _shares(experiment: Path, n: int | None) -> FloatArray:
    from fedgossip import load_experiment
    from fedgossip.plans.gossip.made_graphs import peers_of, shares_of

    loaded = load_experiment(experiment)
    return shares_of(loaded, peers_of(loaded, n))


def _updates(experiment: Path, n: int | None) -> tuple[FloatArray, float]:
    """Return rows [n, n] that differ as the peers' updates do, and the mean square of their random part."""
    from fedgossip import load_experiment
    from fedgossip.plans import compose
    from fedgossip.plans.gossip.made_graphs import peers_of
    from fedgossip.simulation.probe import probe

    loaded = load_experiment(experiment)
    size = peers_of(loaded, n)
    found = probe(compose.task_of(loaded, size)[0], size)
    return found.lasting, found.noise * (size - 1) / size  # less the part that is the mean's
