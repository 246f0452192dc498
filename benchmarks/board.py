"""Seconds from the start of `fedgossip board` until its page is there, until it lists all runs, and until all are read.

    python benchmarks/board.py [--runs N] [--json]

The floor is what reading the same files takes, with nothing done with them, and a bare start of Python.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from crew import machine

EXAMPLE = Path(__file__).parents[1] / "tests" / "old_runs" / "gossip"


def written(base: Path, runs: int) -> None:
    """Write so many copies of a run, each with another seed, in folders of a hundred."""
    for number in range(runs):
        folder = base / f"{number // 100}" / f"run-{number}"
        folder.mkdir(parents=True)
        for path in EXAMPLE.iterdir():
            content = path.read_text().replace("seed = 3", f"seed = {number}")
            (folder / path.name).write_text(content)


def floor(base: Path) -> float:
    """Seconds for a bare start of Python and for reading what a board reads whole."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    for name in ("summary.json", "experiment.toml"):
        for path in base.rglob(name):
            path.read_bytes()
    return time.perf_counter() - began


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def measured(base: Path, runs: int) -> dict[str, float]:
    began = time.perf_counter()
    words = [sys.executable, "-m", "fedgossip", "board", str(base)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        asked(url)
        found = {"page": time.perf_counter() - began}
        while (news := json.loads(asked(f"{url}runs.json")))["count"] < runs:
            time.sleep(0.02)
        found["all listed"] = time.perf_counter() - began
        while news["unread"]:
            time.sleep(0.05)
            news = json.loads(asked(f"{url}runs.json"))
        found["all read"] = time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found | {"of that CPU": used.ru_utime + used.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), options.runs)
        least = floor(Path(folder))
        found = measured(Path(folder), options.runs)
    if options.json:
        print(json.dumps({"runs": options.runs, "floor": least, **found, "machine": machine()}))
        return
    print(f"{options.runs} runs; a bare start, and reading their files: {least:.2f} s")
    for name, seconds in found.items():
        print(f"{name:12} {seconds:6.2f} s  {seconds / least:5.1f} x")


if __name__ == "__main__":
    main()
