"""An hour of everything at once, in turns of ten minutes, of real processes on a disk of their own.

    pytest --long -s tests/drivers/test_hour.py             an hour and a quarter; FEDGOSSIP_HOUR=60 makes it a minute

Every few seconds a process is killed, another one suspended; for a while the network is parted, and loses, delays and
repeats messages; one of the gossiping peers lies within its protocol; the disk is full for some seconds; the launcher
is killed, and the run resumed.  The seed of a turn is printed, and draws all of it but the kill of the launcher, which
comes in the middle.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from commands import Output, alive, finish, start, wait_until
from test_endings import children
from test_full_disk import Disk

from fedgossip import load_experiment, load_model, simulate
from fedgossip.core.records import EventRow, read_rows

HOUR = float(os.environ.get("FEDGOSSIP_HOUR", "3600"))
TURNS = ("sync", "coordinator", "async", "servers", "push-sum", "ring")
SECONDS = HOUR / len(TURNS)
N, PACE = 8, 3.0
"""Participants, and rounds of a turn over its seconds."""
DELAYS = {"async": 0.02}
"""Seconds that a message takes, 0.1 otherwise: an asynchronous peer spreads its offers over eight of them."""

POINT = 0.01
LIAR = 7

pytestmark = [pytest.mark.long, pytest.mark.sockets, pytest.mark.root, pytest.mark.timeout(3 * HOUR)]


def learning(kind: str, seed: int) -> dict[str, Any]:
    """Return a run of `kind` for about SECONDS where nothing goes wrong."""
    patient = {"deadline": 6.0, "least_deadline": 2.0, "start_timeout": 120.0}
    twice = {"servers": 2, "replication": 2}
    parted = {
        **patient,
        "deadline": 0.1 * SECONDS + 10,
    }  # a server that is away longer ends the run
    sections: dict[str, dict[str, Any]] = {
        "coordinator": {"coordinator": {"clients": N, "min_clients": 4, **patient}},
        "ring": {"parallel": {"workers": N, "method": "ring", **parted}},
        "servers": {"parallel": {"workers": N - 2, "method": "parameter-server", "server": twice, **parted}},
    }
    if kind not in sections:
        clipped = {"combine": "clipped", "combine_options": {"f": 1}} if kind == "sync" else {}
        named = {"name": "push-sum"} if kind == "push-sum" else {"mode": kind}
        sections[kind] = {
            "topology": {"graph": "exponential", "n": N},
            "algorithm": {**named, **clipped, **patient},
            **({"adversary": {"peers": [LIAR], "attack": "sign-flip"}} if kind == "sync" else {}),
        }
    return {
        "rounds": int(SECONDS * PACE),
        "seed": seed,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0, "min_size": 20}},
        "model": {"source": "mlp:64-32-10"},
        "train": {"lr": 0.05, "batch_size": 16, "local_steps": 2, "device": "cpu"},
        "eval": {"every": 30},
        **sections[kind],
    }


def trouble(kind: str, draws: random.Random, seconds: float) -> list[dict[str, Any]]:
    """Return the faults of a turn; in its last quarter all are left in peace."""
    quiet = 0.75 * seconds
    parted = draws.uniform(0.1, 0.4) * seconds
    half = draws.sample(range(N), 4)
    return [
        {"kind": "delay", "seconds": DELAYS.get(kind, 0.1)},
        {"kind": "crash", "start": 5.0, "every": draws.uniform(8.0, 15.0), "after": 2.0, "stop": quiet},
        {"kind": "sleep", "start": 9.0, "every": draws.uniform(20.0, 40.0), "seconds": 2.5, "stop": quiet},
        {"kind": "partition", "groups": [half], "start": parted, "stop": parted + 0.05 * seconds},
        {"kind": "drop", "probability": 0.02, "start": 0.3 * seconds, "stop": quiet},
        {"kind": "duplicate", "probability": 0.05, "seconds": 0.3, "start": 0.2 * seconds, "stop": quiet},
    ]


def resident(pids: list[int]) -> float:
    """Return the megabytes of the processes that run."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 200 MB: the transcripts of a turn of secure rounds are some tens of them."""
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(path)]
    mounted = subprocess.run(words, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no disk of our own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Turn:
    """A run, its launcher, and the largest process in each third of it."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk, self.out = folder, disk, disk.path / "run"
        self.seen: set[int] = set()
        self.without_room = 0
        self.largest: list[float] = [0.0, 0.0, 0.0]

    def run(self) -> Output:
        """Run it; in the middle the launcher is killed, and the run resumed.

        A secure round that cannot be recorded ends its run, whose end may lack the room for its reason; it is resumed.
        """
        process = start(["run", "e.toml", "--on", "local", "--no-report", "--out", str(self.out)], self.folder)
        began = time.monotonic()
        filling = threading.Thread(target=self._fill_for_a_while)
        filling.start()
        self._watch(process, began, until=began + SECONDS / 2)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            finish(process)
            process = self._resumed(began)
        said = finish(process)
        while said.code == 3 and self.without_room < 2:
            self.without_room += 1
            said = finish(self._resumed(began))
        filling.join()
        return said

    def _resumed(self, began: float) -> Any:
        wait_until(lambda: not any(alive(pid) for pid in self.seen), 60, "the peers of a launcher that is gone end")
        process = start(["run", "--resume", str(self.out), "--no-report"], self.folder)
        self._watch(process, began, until=began + 4 * SECONDS)
        return process

    def _watch(self, process: Any, began: float, until: float) -> None:
        while process.poll() is None and time.monotonic() < until:
            mine = children(process.pid)
            self.seen.update(mine)
            third = min(2, int(3 * (time.monotonic() - began) / SECONDS))
            self.largest[third] = max([self.largest[third], *(resident([pid]) for pid in mine)])
            time.sleep(1.0)

    def _fill_for_a_while(self) -> None:
        time.sleep(SECONDS / 5)
        self.disk.fill()
        time.sleep(3.0)
        self.disk.free()


@pytest.mark.parametrize("kind", TURNS)
def test_ten_minutes_of_everything(kind: str, disk: Disk, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    experiment = learning(kind, seed)
    faults = trouble(kind, random.Random(seed), SECONDS)
    undisturbed = simulate(experiment)
    (tmp_path / "e.toml").write_text(tomli_w.dumps({**experiment, "faults": faults}))
    turn = Turn(tmp_path, disk)
    said = turn.run()
    print(json.dumps({"kind": kind, "seed": seed, "code": said.code, "largest MB": turn.largest}))

    assert said.code in (0, 9), said.err[-3000:]
    assert not any(alive(pid) for pid in turn.seen)
    summary = json.loads((turn.out / "summary.json").read_text())
    usual, now = undisturbed.summary["score"]["averaged"], summary["score"]["averaged"]
    print(json.dumps({"undisturbed": usual, "now": now, "status": summary["status"], "events": summary["events"]}))
    assert now > usual - POINT

    records = list(turn.out.rglob("metrics.jsonl"))
    rows = [row for path in records for row in read_rows(path)]
    assert rows and load_experiment(turn.out / "experiment.toml").seed == seed
    load_model(turn.out)
    told = Counter(row.name for row in rows if isinstance(row, EventRow))
    assert not told["died"] and not told["hung"], told  # who was killed by the script has crashed
    assert told["crashed"] and told["restarted"], told
    assert turn.largest[2] < 1.15 * max(turn.largest[:2]), turn.largest
