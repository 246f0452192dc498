"""`fedgossip demo`: the whole idea in under a minute, offline, on real data.

With --chaos, real processes are killed, suspended and disconnected while they learn, and continue to learn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import console, echo, some
from fedgossip.core import run_format
from fedgossip.core.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.core.run_summary import RunSummary

if TYPE_CHECKING:
    from types import TracebackType

    from rich.table import Table

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
    """Return the demo's experiment on one graph."""
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


PEERS = 8
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]

LINKS = {"kind": "delay", "seconds": 0.1}
"""Every message takes a tenth of a second, as over an ocean: a round takes about as long on every computer."""

FAULTS: list[dict[str, Any]] = [
    {"kind": "slow", "peers": [6], "factor": 5.0, "start": 1.0},
    {"kind": "crash", "peers": [0, 1, 2, 3, 4, 5], "start": 3.0, "stop": 16.0, "every": 4.0, "after": 2.0},
    {"kind": "sleep", "peers": [7], "start": 5.0, "seconds": 4.0},
    {"kind": "partition", "groups": HALVES, "start": 12.0, "stop": 17.0},
]

PLAIN_SECONDS = 5.0
"""Seconds between two plain lines about all peers."""

HITS_SHOWN = 4


def run_chaos(seed: int, rounds: int, out: Path | None) -> int:
    """Run the experiment with real processes and many faults, then once more without faults, simulated."""
    from fedgossip.drivers.local import run_local_plan
    from fedgossip.drivers.simulate import simulate_plan

    began = time.monotonic()
    folder = out or Path("runs") / time.strftime("chaos-%Y%m%d-%H%M%S")
    echo(f"{PEERS} peers, each a process of this machine, learn to read handwritten digits together.")
    echo("While they do, every 4 seconds one is killed (SIGKILL) and restarts 2 seconds later; one is put to")
    echo("sleep, one is slow, and for 5 seconds two halves are cut off from each other.  No peer leads.\n")
    with PeerTable(rounds) as board:
        disturbed = run_local_plan(
            plan_of("chaos", seed, rounds, [LINKS, *FAULTS]), folder / "chaos", watch=board, report=True
        )
    if disturbed.summary["status"] == "interrupted":
        return 130
    quiet = simulate_plan(plan_of("undisturbed", seed, rounds, [LINKS]), out=folder / "undisturbed", report=False)
    for line in words(disturbed, quiet):
        echo(line)
    echo(f"\nAll of it in pictures: open {folder / 'chaos' / run_format.REPORT}")
    echo(f"{time.monotonic() - began:.0f} seconds.")
    return 0


def plan_of(name: str, seed: int, rounds: int, faults: list[dict[str, Any]]) -> Any:
    """Return the experiment with these faults."""
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose

    return compose.plan(
        load_experiment(
            {
                "name": name,
                "seed": seed,
                "rounds": rounds,
                "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}},
                "model": {"source": "mlp:64-32-10"},
                "train": {"lr": 0.1, "batch_size": 16, "local_steps": 5, "device": "cpu"},
                "topology": {"graph": "exponential", "n": PEERS},
                "algorithm": {"deadline": 3.0, "least_deadline": 1.0, "start_timeout": 60.0},
                "faults": faults,
            }
        )
    )


def words(disturbed: Run, quiet: Run) -> list[str]:
    """Return the results for a reader without previous knowledge."""
    events, accuracy, usual = disturbed.summary["events"], disturbed.score, quiet.score
    finished = sum(vector is not None for vector in disturbed.vectors)
    return [
        f"{some(events.get('crashed', 0), 'kill')}, {some(events.get('restarted', 0), 'return')} from the dead; "
        f"{finished} of {PEERS} peers went all the way.",
        "",
        "Accuracy on the test images:",
        f"    after all that   {_percent(accuracy['averaged'])} the peers' average model, "
        f"{_percent(accuracy['worst_peer'])} the worst peer",
        f"    undisturbed      {_percent(usual['averaged'])} the peers' average model, "
        f"{_percent(usual['worst_peer'])} the worst peer   (the same experiment, simulated)",
        "",
        "A killed peer resumed from its last checkpoint, caught up, and was admitted again by its neighbours;",
        "while it was away they gave its weight to themselves, and took it back afterwards.",
    ]


def _percent(share: float | None) -> str:
    return "  n/a " if share is None else f"{100 * share:4.1f} %"


@dataclass
class _PeerStatus:
    state: str = "starting"
    round: int = 0
    accuracy: float | None = None
    hits: list[str] = field(default_factory=list)


STATES = {
    "crashed": "killed",
    "restarted": "coming back",
    "asleep": "asleep",
    "awake": "learning",
    "failed": "failed",
    "died": "died",
}

STYLES = {"learning": "green", "done": "green", "killed": "red", "failed": "red", "died": "red"}


class PeerTable:
    """The peers and their faults: a live table on a terminal, plain lines elsewhere.  A context manager."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.peers = [_PeerStatus() for _ in range(PEERS)]
        self.seconds, self.averaged = 0.0, None  # type: float, float | None
        self.parted = False
        self._began = self._printed_at = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> PeerTable:
        out = console()
        if out.is_terminal:
            from rich.live import Live

            self._live = Live(console=out, get_renderable=self.table, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
        echo()

    def __call__(self, row: Row) -> None:
        match row:
            case PeerRow():
                self._moved(self.peers[row.peer], row)
            case NetworkRow() if row.score_averaged is not None:
                self.averaged = row.score_averaged
            case EventRow():
                self._happened(row)
        if not self._live and time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._print(self._summary())

    def _moved(self, peer: _PeerStatus, row: PeerRow) -> None:
        peer.round = row.round
        peer.accuracy = row.score if row.score is not None else peer.accuracy
        if peer.state in ("starting", "coming back"):
            peer.state = "learning"
        if row.round >= self.rounds:
            peer.state = "done"

    def _happened(self, row: EventRow) -> None:
        peer = self.peers[row.peer]
        peer.state = STATES.get(row.name, peer.state)
        match row.name:
            case "crashed":
                self._hit(row.peer, "killed", "SIGKILL")
            case "restarted":
                self._hit(row.peer, None, "starts again")
            case "resumed" if isinstance(row.value, dict):
                self._hit(row.peer, None, f"resumes from its checkpoint of round {row.value['round']}")
            case "asleep":
                self._hit(row.peer, "put to sleep", "put to sleep (SIGSTOP)")
            case "awake":
                self._hit(row.peer, None, "wakes")
            case "slow":
                self._hit(row.peer, f"{row.value:g}x slower", f"is {row.value:g} times slower from now on")
            case "partition" | "healed":
                self.parted = row.name == "partition"
                halves = " | ".join(" ".join(map(str, half)) for half in HALVES)
                self._print(f"the network falls apart: {halves}" if self.parted else "the network is whole again")
                for one in self.peers if self.parted else ():
                    one.hits.append("cut off")

    def _hit(self, peer: int, hit: str | None, text: str) -> None:
        if hit:
            self.peers[peer].hits.append(hit)
        self._print(f"peer {peer}: {text}")

    def _print(self, text: str) -> None:
        if not self._live:
            self._printed_at = time.monotonic()
            echo(f"{self._printed_at - self._began:5.1f} s   {text}")

    def _summary(self) -> str:
        each = " ".join(f"{peer.round}" if peer.state != "killed" else "-" for peer in self.peers)
        return f"rounds of all peers: {each} of {self.rounds}; accuracy {_percent(self.averaged).strip()}"

    def table(self) -> Table:
        """Return the present table of the peers."""
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{time.monotonic() - self._began:.0f} s   average model {_percent(self.averaged)}")
        if self.parted:
            title.append("   the network is in two halves", "red")
        table = Table(title=title, title_justify="left", min_width=76)
        for name in ("peer", "round", "accuracy"):
            table.add_column(name, justify="right")
        table.add_column("state", min_width=11)
        table.add_column("fault", min_width=32)
        for number, peer in enumerate(self.peers):
            style = STYLES.get(peer.state, "yellow")
            state = Text(peer.state, style)
            hits = ", ".join(peer.hits[-HITS_SHOWN:])
            table.add_row(str(number), f"{peer.round}/{self.rounds}", _percent(peer.accuracy), state, hits)
        return table
