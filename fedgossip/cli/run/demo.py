"""`fedgossip demo`: the whole idea in under a minute, offline, on real data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import echo
from fedgossip.core import run_format
from fedgossip.core.run_summary import RunSummary

if TYPE_CHECKING:
    from fedgossip.drivers.peer_processes import PeerProcesses
    from fedgossip.plans.compose import Plan
    from fedgossip.runs.run_directory import Run

GRAPHS = (
    ("complete", "complete"),
    ("exponential", "exponential"),
    ("hypercube", "hypercube"),
    ("random 3-regular", "regular:3"),
    ("ring", "ring"),
    ("star", "star"),
    ("two cliques", "two-cliques"),
    ("no exchange", "none"),
)

HEADER = ("graph", "gap", "n_W", "averaged", "mean peer", "worst peer", "disagreement", "MB sent")
WIDTHS = (17, 8, 6, 10, 11, 12, 14, 9)


@click.command()
@click.option("--seed", default=1, show_default=True, help="Every random number follows from it.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of every run.  [default: 60; with --chaos 200]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make.  [default: runs/demo-TIME]")
@click.option("--chaos", is_flag=True, help="Eight processes that are killed, suspended and parted while they learn.")
def demo(seed: int, rounds: int | None, out: Path | None, chaos: bool) -> int:
    """Eight graphs in the simulator, then the ring again with real processes: the same bits."""
    if chaos:
        from fedgossip.cli.run.chaos import run_chaos

        return run_chaos(seed, rounds or 200, out)
    return _graphs(seed, rounds or 60, out)


def _graphs(seed: int, rounds: int, out: Path | None) -> int:
    from fedgossip.drivers.peer_processes import PeerProcesses

    began = time.monotonic()
    folder = out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    echo("16 peers learn to read handwritten digits.  Each sees only its own, uneven share of the images")
    echo("(Dirichlet 0.3); after every 5 small steps each averages its model with its neighbours' models.\n")
    with PeerProcesses() as family:  # the parent of the processes warms up while the simulator works
        echo("1. Eight graphs, simulated.  Test accuracy of the averaged model, the mean and the worst peer:\n")
        simulated = _simulate_all(seed, rounds, folder)
        echo("\n   The gap is the graph's worst case, n_W how many neighbours' models a peer in effect averages;")
        echo("   both are computed before any training.  n_W foretells the peers better: compare star and ring.")
        echo("\n2. The ring again: 16 processes, encrypted ZeroMQ over TCP on this machine.\n")
        real = _run_real(seed, rounds, folder, family)
    if real.summary["status"] == "interrupted":
        return 130
    return _compare(simulated, real, folder, began)


def experiment(title: str, graph: str, seed: int, rounds: int) -> dict[str, Any]:
    """The demo's experiment on one graph."""
    return {
        "name": title,
        "seed": seed,
        "rounds": rounds,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}},
        "model": {"source": "mlp:64-32-10"},
        "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
        "topology": {"graph": graph, "n": 16},
    }


def _plan(title: str, graph: str, seed: int, rounds: int) -> Plan:
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose

    return compose.plan(load_experiment(experiment(title, graph, seed, rounds)))


def _simulate_all(seed: int, rounds: int, folder: Path) -> dict[str, Run]:
    from fedgossip.drivers.simulate import simulate_plan

    _line(HEADER)
    results = {}
    for title, graph in GRAPHS:
        result = simulate_plan(_plan(title, graph, seed, rounds), out=folder / "simulated" / title.replace(" ", "-"))
        results[graph] = result
        _line(_cells(title, result.summary))
    return results


def _cells(title: str, summary: RunSummary) -> tuple[str, ...]:
    forecast, score = summary["forecast"], summary["score"]
    shares = score["averaged"], score["mean_peer"], score["worst_peer"]
    return (
        title,
        f"{forecast['spectral_gap']:.4f}",
        f"{forecast['n_w']:.1f}",
        *(f"{100 * share:.1f} %" for share in shares if share is not None),
        f"{summary['consensus_distance']:.4f}",
        f"{summary['bytes_sent'] / 1e6:.1f}",
    )


def _line(cells: tuple[str, ...]) -> None:
    first, *rest = cells
    numbers = "".join(cell.rjust(width) for cell, width in zip(rest, WIDTHS[1:], strict=True))
    echo("   " + first.ljust(WIDTHS[0]) + numbers)


def _run_real(seed: int, rounds: int, folder: Path, family: PeerProcesses) -> Run:
    from fedgossip.cli.run.progress import Progress
    from fedgossip.drivers.local import run_local_plan

    plan = _plan("ring", "ring", seed, rounds)
    with Progress("   ring, real processes", rounds, plan.roles) as progress:
        return run_local_plan(plan, folder / "real-ring", family=family, watch=progress)


def _compare(simulated: dict[str, Run], real: Run, folder: Path, began: float) -> int:
    from fedgossip.report.page.page import write_comparison, write_report

    ring = simulated["ring"]
    same = ring.digest == real.digest
    measured, promised = ring.summary["measured_contraction"], ring.summary["forecast"]["slem"]
    echo(f"   simulated  sha256 {ring.digest}")
    echo(f"   real       sha256 {real.digest}")
    echo(f"   {'equal' if same else 'DIFFERENT'}: over all 16 final models, to the last bit\n")
    echo(f"3. Forecast for the ring: a round leaves at most {promised:.4f} of the disagreement.")
    echo(f"   Measured over the run: {measured:.4f}.\n")
    runs = [run.directory for run in (*simulated.values(), real) if run.directory]
    ring_folder = ring.directory
    if ring_folder:
        write_report(ring_folder)
    page = write_comparison(folder / run_format.REPORT, runs, "Eight graphs, one task")
    echo(f"   All of it in pictures: open {page}")
    echo(f"\n{time.monotonic() - began:.0f} seconds.  Next: fedgossip topology compare ring star torus --n 16")
    return 0 if same else 1
