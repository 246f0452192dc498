"""Four real workers over links of 50 Mbit/s and 30 ms: what share of the time they compute, beside the simulator's.

Each is a process, `fedgossip worker`, in a network namespace of its own (`tests/slow_links.py`); it needs root, and
says so where it cannot run.  For each way: the share of the seconds after the first round in which a worker trains; the
bytes that a worker sends for a step, in our frames, and in packets with those of TCP.  The simulator is given the
seconds that a round's training took.

    python benchmarks/shaped_links.py [--steps N]           a stand-in of as many elements, 10 ms a step on any machine
    python benchmarks/shaped_links.py [--steps N] TEXT      the transformer of outer.py on that text
    python benchmarks/shaped_links.py --kills [--steps N] [TEXT]   one worker killed every 30 s, started 3 s later

With --ahead the workers and the links go before all other processes, once they have begun: for a machine that is busy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import outer
import torch
from safetensors.numpy import load_file
from torch import nn

import fedgossip
from fedgossip.base.vectors import Vector, digest
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoint, text
from fedgossip.net.identity import Identity
from fedgossip.plans import compose

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from slow_links import FarMachines, lacking

HERE = Path(__file__).parent
MBIT, LATENCY = 50, 0.03
EVERY, AFTER = 30.0, 3.0
"""Seconds from one death to the next, and until the dead one is started again."""
LAST_KILL = 0.8
"""Share of the rounds after which nobody is killed any more: who is back must still find the others."""
PATIENCE = 60.0
"""Seconds without a round of anybody after which a run is stuck."""
ADDRESSES = {f"m{node}": [f"10.88.0.{node + 1}"] for node in range(outer.WORKERS)}

FRAGMENTS = {**outer.MILD, "fragments": 4, "delay": 1}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "every step": (1, {}),
    "H = 28, qsgd:7, delay = 1": (28, {"outer": {**outer.MILD, "delay": 1}, "codec": "qsgd:7"}),
    "the same, 4 fragments": (7, {"outer": FRAGMENTS, "codec": "qsgd:7"}),
    "the same, all-to-all": (7, {"outer": FRAGMENTS, "codec": "qsgd:7", "method": "all-to-all"}),
    "outer.py --together": outer.TOGETHER,
}
"""(local steps, more of [parallel])"""
CHOSEN = "outer.py --together"
EVERY_STEPS = 40
"""Maximum number of steps where each is shared: 0.3 s each."""
LEAST_STEPS = 112
"""Four rounds of the longest: of two, with `delay = 1`, nothing of the second is training."""


class Paced(nn.Module):
    """As many parameters as the transformer, and a step of 10 ms, most of which is slept."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(math.prod(shape), 1428), nn.ReLU(), nn.Linear(1428, classes))
        self._due = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            left = self._due - time.monotonic()  # of the step before; long past where this is the first of a round
            time.sleep(max(0.0, left) if left > -outer.STEP_SECONDS else outer.STEP_SECONDS)
            self._due = time.monotonic() + outer.STEP_SECONDS
        found: torch.Tensor = self.layers(x.flatten(1))
        return found


def experiment(play: str, steps: int, local: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return a run of as many rounds as `steps` steps are; of the stand-in where there is no play."""
    content = outer.experiment(play, steps, local, more)
    if not play:
        train = {"lr": 0.02, "batch_size": outer.BATCH, "local_steps": local, "device": "cpu"}
        content |= {"data": {"source": "digits"}, "model": {"source": "shaped_links:Paced"}, "train": train}
    content["simulation"] = dict(outer.LINKS)
    return content


def toml(value: Any) -> str:
    """Return a value as an experiment file has it, in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@dataclass
class Watched:
    """What was seen of workers from without."""

    deaths: int = 0
    longest: float = 0.0
    """Seconds in which nobody came a round further, after the first."""


class Workers:
    """Four of them, in a folder: started, watched, killed and started again."""

    def __init__(self, machines: FarMachines, folder: Path, content: Mapping[str, Any]) -> None:
        self.machines, self.folder, self._rounds = machines, folder, int(content["rounds"])
        self.nodes = range(outer.WORKERS)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "experiment.toml").write_text("".join(f"{key} = {toml(one)}\n" for key, one in content.items()))
        keys = [Identity.new() for _ in self.nodes]
        for node, key in enumerate(keys):
            key.save(folder / f"{node}.key")
        where = {node: Endpoint(f"tcp://{ADDRESSES[f'm{node}'][0]}:5700", keys[node].public) for node in self.nodes}
        (folder / "endpoints.toml").write_text(text(sorted(where.items())))

    def start(self, node: int, *more: str) -> None:
        words = ["worker", "experiment.toml", "--id", str(node), "--endpoints", "endpoints.toml"]
        words += ["--key", f"{node}.key", "--out", f"out{node}", *more]
        self.running[node] = self.machines.start(f"m{node}", words, self.folder, self.folder / f"log{node}.txt")

    def rows(self, node: int) -> list[Row]:
        """What its record has of itself."""
        path = self.folder / f"out{node}" / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        own = [line for line in lines if line.endswith(b"\n") and b'"kind":"network"' not in line]
        return [msgspec.json.decode(line, type=PeerRow | EventRow) for line in own]

    def furthest(self) -> int:
        rows = [row for node in self.nodes for row in self.rows(node) if isinstance(row, PeerRow)]
        return max((row.round for row in rows), default=0)

    def wait(self, every: float = 0.0, *, ahead: bool = False) -> Watched:
        """Wait for all to end; `every` so many seconds one is killed.  Raises RuntimeError where one fails, or all
        stand still."""
        seen, draw, due, dead = Watched(), random.Random(1), math.inf, list[tuple[float, int]]()
        best, since = 0, math.inf
        while dead or any(process.poll() is None for process in self.running.values()):
            time.sleep(0.2)
            now, furthest = time.monotonic(), self.furthest()
            if furthest and not best:
                due, since = now + every / 2 if every else math.inf, now
                if ahead:
                    for process in (None, *self.running.values()):
                        _go_ahead(process)
            if furthest > best:
                best, seen.longest, since = furthest, max(seen.longest, now - since), now
            failed = [node for node, process in self.running.items() if (process.poll() or 0) > 0]
            if failed or now - since > PATIENCE:
                raise RuntimeError("\n".join([f"round {best}", *map(self._said, self.nodes)]))
            if dead and now >= dead[0][0]:
                node = dead.pop(0)[1]
                self.start(node, "--resume")
                if ahead:
                    _go_ahead(self.running[node])
            if now >= due and best < LAST_KILL * self._rounds:
                node = draw.choice(self.nodes)
                self.running[node].kill()
                self.running[node].wait()
                dead.append((now + min(AFTER, every / 4), node))
                seen.deaths, due = seen.deaths + 1, due + every
        return seen

    def _said(self, node: int) -> str:
        path = self.folder / f"log{node}.txt"
        return f"worker {node}: {path.read_text()[-500:]}" if path.exists() else ""

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def ends(self) -> dict[str, Vector]:
        """All final models, by their digests."""
        paths = [self.folder / f"out{node}" / "vector.safetensors" for node in self.nodes]
        vectors = [load_file(path)["vector"] for path in paths]
        return {digest([vector]): vector for vector in vectors}

    def packet_bytes(self) -> float:
        """That a machine has sent, in the mean."""
        return fmean(self.machines.switch.carried.values()) if self.machines.switch else 0.0


def _go_ahead(process: subprocess.Popen[bytes] | None) -> None:
    """Let all threads of a process, or of this one with its links, go before all others of this machine."""
    pid = os.getpid() if process is None else process.pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


@contextmanager
def started(machines: FarMachines, folder: Path, content: Mapping[str, Any]) -> Iterator[Workers]:
    """Start four workers on these machines, which can import the stand-in; they are gone at the end."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    workers = Workers(machines, folder, content)
    try:
        for node in workers.nodes:
            workers.start(node)
        yield workers
    finally:
        workers.stop()


@contextmanager
def really(content: Mapping[str, Any]) -> Iterator[Workers]:
    """Make machines, and start workers on them."""
    machines = FarMachines(ADDRESSES, MBIT, LATENCY)
    try:
        machines.make()
        with TemporaryDirectory() as folder, started(machines, Path(folder), content) as workers:
            yield workers
    finally:
        machines.remove()


@dataclass(frozen=True)
class Measured:
    """Of all workers, from the second round on."""

    share: float
    """Of the seconds from the end of the first round, those in which one trains."""
    round_seconds: float
    """That a round's training takes."""
    step_bytes: float
    """That one sends for a step, in our frames."""


def measured(rows: Sequence[Row], local: int) -> Measured:
    """A training that is under way when a round ends counts in both: so what is no training is taken from all."""
    own = [[row for row in rows if isinstance(row, PeerRow) and row.round and row.peer == node] for node in range(4)]
    seconds = sum(of_one[-1].seconds - of_one[0].seconds for of_one in own)
    later = [row for of_one in own for row in of_one[1:]]
    idle = sum(row.seconds_communicating + row.seconds_waiting + row.seconds_mixing for row in later)
    trained = fmean(row.seconds_training for row in later)
    return Measured(1 - idle / seconds, trained, fmean(row.bytes_sent for row in later) / local)


def table(play: str, steps: int, *, ahead: bool) -> None:
    print("share computing: real, simulated, ratio; bytes a worker sends a step: real, simulated, ratio; in packets")
    for name, (local, more) in WAYS.items():
        content = experiment(play, min(steps, EVERY_STEPS) if local == 1 else steps, local, more)
        with really(content) as workers:
            workers.wait(ahead=ahead)
            real = measured([row for node in workers.nodes for row in workers.rows(node)], local)
            ends, packets = workers.ends(), workers.packet_bytes() / (content["rounds"] * local)
        content["simulation"]["training"] = real.round_seconds
        run = fedgossip.simulate(content, engine="sim")
        seen = measured(run.rows, local)
        same = "the same bits" if set(ends) == {digest([run.vectors[0]])} else "OTHER BITS"
        shares = f"{real.share:.3f} {seen.share:.3f} {real.share / seen.share:.2f}"
        told = f"{real.step_bytes:7.0f} {seen.step_bytes:7.0f} {real.step_bytes / seen.step_bytes:.3f} {packets:7.0f}"
        print(f"{name:26} {shares}  {told}  {1e3 * real.round_seconds / local:.1f} ms a step, {same}", flush=True)


def kills(play: str, steps: int, *, ahead: bool) -> None:
    """Print how long all stood still at most; of a play, the loss beside that of a run in which nobody is killed."""
    local, more = WAYS[CHOSEN]
    content = experiment(play, steps, local, more)
    began = time.monotonic()
    with really(content) as workers:
        seen = workers.wait(EVERY, ahead=ahead)
        ends, took = workers.ends(), time.monotonic() - began
    print(f"{seen.deaths} deaths in {took:.0f} s from the start of the commands; all ended well, {len(ends)} model;")
    print(f"no round of anybody for {seen.longest:.1f} s at most", flush=True)
    if play:
        task, _ = compose.task_of(compose.plan(load_experiment(content)).experiment, outer.WORKERS)
        loss = task.evaluate(list(ends.values()))[0]["loss"]
        whole = fedgossip.simulate(content, engine="stacked").summary["test_loss"]
        print(f"loss {loss:.4f}, of nobody killed {whole:.4f}: x {loss / whole:.4f}")


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("text", nargs="?", default="", metavar="TEXT")
    told.add_argument("--steps", type=int, default=560)
    told.add_argument("--kills", action="store_true")
    told.add_argument("--ahead", action="store_true")
    given = told.parse_args()
    if given.steps < LEAST_STEPS:
        told.error(f"--steps: at least {LEAST_STEPS}")
    if why := lacking():
        print(f"skipped: {why}")
        return
    play = str(Path(given.text).resolve()) if given.text else ""
    (kills if given.kills else table)(play, given.steps, ahead=given.ahead)


if __name__ == "__main__":
    main()
