"""`fedgossip topology heterogeneity` and `topology make`: graphs beside the labels of those who are on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip import seeds
from fedgossip.cli.text import console, echo, echo_json
from fedgossip.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedgossip.topology import Mixing, Schedule
    from fedgossip.topology.graph import FloatArray

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
    help="Experiment file whose [data] says who has which labels.",
)
_weights = click.option("--weights", help="Weight rule.  [default: metropolis]")
_seed = click.option("--seed", default=seeds.USUAL, show_default=True, help="For what is drawn at random.")


@click.command()
@click.argument("graph", nargs=-1, required=True)
@_data
@click.option("--n", "n", type=click.IntRange(min=1), help="Number of peers.  [default: topology.n of the experiment]")
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
    """Say how unlike the whole each neighbourhood of GRAPHs is, and how much placement matters."""
    from fedgossip.topology.heterogeneity import (
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
        mixing = _mixing(name, len(shares), weights, seed)
        least = float(drawn(mixing, shares, DRAWS, seed).min())
        best = placed(mixing, shares)[1] if mixing.n <= MOST_PLACED else None
        here = {"graph": name, "alone": alone(shares), "as_placed": label_heterogeneity(mixing, shares)}
        row = {**here, "expected": expected(mixing, shares), "drawn_least": least, "best": best}
        rows.append(row if noise is None else {**row, "noise": noise * left_of_noise(mixing), "noise_alone": noise})
    if as_json:
        echo_json(json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False))
        return
    _tell(rows, gradients=gradients)


def _tell(rows: Sequence[Mapping[str, Any]], *, gradients: bool) -> None:
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
@click.option("--n", "n", type=click.IntRange(min=1), help="Number of peers.  [default: topology.n of the experiment]")
@_weights
@_seed
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="FILE.toml.")
def make(spec: str, experiment: Path | None, n: int | None, weights: str | None, seed: int, out: Path) -> None:
    """Write a graph with its weights to a file, for topology.graph.

    SPEC: d-cliques:10,ring or d-cliques:10,full, cliques with the labels of all; stl-fw:5, learned, at most 5 heard by
    each; place:GRAPH, GRAPH with the nodes where their labels fit best; or any GRAPH, with --weights fmmc for example.

    Peers need not know each other's labels in the run: the file says all.
    """
    from fedgossip.topology import forecast_of
    from fedgossip.topology.files import written

    if out.suffix != ".toml":
        raise ConfigError(f"{out}: a graph with weights is a TOML file", "Give --out FILE.toml.")
    mixing = _made(spec, experiment, n, weights, seed)
    if not mixing.topology.is_connected:
        raise ConfigError(f"{spec} of these labels falls apart", "Take more steps, larger cliques or another --seed.")
    source = f"fedgossip topology make {spec}" + (f", by the labels of {experiment.name}" if experiment else "")
    try:
        out.write_text(written(mixing, out.stem, spec, source), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror or error}", "Give a file that can be written.") from None
    slem = forecast_of(mixing).slem
    echo(f"{out}: {mixing.n} nodes, {mixing.topology.edge_count} links, slem {slem:.6g}", err=True)


def draw_modes(schedule: Schedule, title: str, experiment: Path | None, place: Path) -> None:
    """Draw what is left of each mode, and with an experiment how much of its peers' labels lies in which."""
    from fedgossip.cli import drawing
    from fedgossip.topology import Mixing
    from fedgossip.topology.modes import energies, left_of_modes

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


def _made(spec: str, experiment: Path | None, n: int | None, weights: str | None, seed: int) -> Mixing:
    word, _, argument = spec.partition(":")
    if word not in ("d-cliques", "stl-fw", "place"):
        return _by_sizes(spec, experiment, n, seed) if weights == "sizes" else _mixing(spec, n, weights, seed)
    if experiment is None:
        raise ConfigError(f"{spec} is made for the labels of peers", "Give --data EXPERIMENT.toml.")
    from fedgossip.topology import build, learned
    from fedgossip.topology.heterogeneity import placed

    shares = _shares(experiment, n)
    if word == "place":
        mixing = _mixing(argument, len(shares), weights, seed)
        return _moved(mixing, placed(mixing, shares)[0])
    size, _, between = argument.partition(",")
    if not size.isdecimal():
        raise ConfigError(f"{spec} cannot be read", "Write d-cliques:10,ring or stl-fw:5.")
    if word == "stl-fw":
        return learned.stl_fw(shares, int(size))
    return build(learned.d_cliques(shares, int(size), between or "ring", seed), weights or "metropolis")


def _by_sizes(graph: str, experiment: Path | None, n: int | None, seed: int) -> Mixing:
    if experiment is None:
        raise ConfigError("weights by numbers of examples", "Give --data EXPERIMENT.toml, which says how many.")
    from fedgossip import load_experiment
    from fedgossip.plans.tasks import example_counts
    from fedgossip.topology import resolve
    from fedgossip.topology.stationary import weighted

    loaded = load_experiment(experiment)
    counts = example_counts(loaded, _peers(loaded, experiment, n))
    return weighted(resolve(graph, len(counts), seed=seed), counts, "sizes")


def _moved(mixing: Mixing, places: Any) -> Mixing:
    """Return the mixing in which the node places[i] stands where i stood."""
    import numpy as np

    from fedgossip.topology import Mixing

    W = np.empty((mixing.n, mixing.n))
    W[np.ix_(places, places)] = mixing.matrix()
    return Mixing.from_matrix(W, rule=mixing.rule, stochastic=mixing.stochastic)


def _mixing(graph: str, n: int | None, weights: str | None, seed: int) -> Mixing:
    from fedgossip.plans.own_graphs import named_schedule
    from fedgossip.topology import Mixing

    found = named_schedule(graph, n, weights=weights, seed=seed)
    if not isinstance(found, Mixing):
        raise ConfigError(f"{graph!r} is another graph in every round", "Take one graph, such as ring or regular:4.")
    return found


def _shares(experiment: Path, n: int | None) -> FloatArray:
    from fedgossip import load_experiment
    from fedgossip.plans.tasks import label_counts
    from fedgossip.topology.heterogeneity import label_shares

    loaded = load_experiment(experiment)
    return label_shares(label_counts(loaded, _peers(loaded, experiment, n)))


def _updates(experiment: Path, n: int | None) -> tuple[FloatArray, float]:
    """Return rows [n, n] that differ as the peers' updates do, and the mean square of what is drawn afresh in them."""
    from fedgossip import load_experiment
    from fedgossip.plans import compose
    from fedgossip.simulation.probe import probe

    loaded = load_experiment(experiment)
    size = _peers(loaded, experiment, n)
    found = probe(compose.task_of(loaded, size)[0], size)
    return found.lasting, found.noise * (size - 1) / size  # less the part that is the mean's


def _peers(loaded: Any, experiment: Path, n: int | None) -> int:
    size: int | None = n or getattr(getattr(loaded, "topology", None), "n", None)
    if size is None:
        raise ConfigError(f"{experiment}: how many peers is not said", "Give --n.")
    return size
