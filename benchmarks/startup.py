"""Seconds until fedgossip's commands have done their work, beside a bare start of Python and the import of torch.

    python benchmarks/startup.py [--runs R] [--json]

Each is a process of its own.  `run` is three rounds of four peers, softmax on digits, without the report.  Seconds
are wall time; in brackets, and in the ratio, CPU time of the process and of all that it has started.  Bytecode is kept,
as it is of what pip installs, whatever PYTHONDONTWRITEBYTECODE says: without it each start compiles what it imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from crew import machine, median

CLI = ["-m", "fedgossip"]
EXPERIMENT = """
rounds = 3
topology = { graph = "ring", n = 4 }
data = { source = "digits" }
model = { source = "softmax" }
"""
RUN = ["run", "EXPERIMENT", "--no-report", "--out", "NEW"]

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import fedgossip": ["-c", "import fedgossip"],
    "fedgossip --help": [*CLI, "--help"],
    "fedgossip topology --help": [*CLI, "topology", "--help"],
    "fedgossip topology show": [*CLI, "topology", "show", "torus:4x4"],
    "fedgossip doctor": [*CLI, "doctor"],
    "import torch": ["-c", "import torch"],
    "fedgossip run --dry-run": [*CLI, *RUN[:2], "--dry-run"],
    "fedgossip run": [*CLI, *RUN],
    "fedgossip run --on local": [*CLI, *RUN, "--on", "local"],
}


def taken(arguments: list[str], folder: Path, numbers: count[int]) -> tuple[float, float]:
    """Run Python with `arguments`; return how long it took, and the CPU seconds."""
    places = {"EXPERIMENT": str(folder / "tiny.toml"), "NEW": str(folder / f"run{next(numbers)}")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [places.get(word, word) for word in arguments]
    kept = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, *words], check=True, env=os.environ | kept, **silent)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as place:
        folder, numbers = Path(place), count()
        (folder / "tiny.toml").write_text(EXPERIMENT)
        for _ in range(options.runs + 1):  # in turns: machines are noisy
            for name, arguments in COMMANDS.items():
                found[name].append(taken(arguments, folder, numbers))
    # the first run fills the file cache, and keeps the bytecode
    medians = {name: tuple(median(list(one)) for one in zip(*of[1:], strict=True)) for name, of in found.items()}
    if options.json:
        print(json.dumps(medians))
        return
    print(f"{machine()}\n{'':28}{'s':>8}{'(CPU s)':>10}{'x import torch':>16}")
    for name, (seconds, cpu) in medians.items():
        print(f"{name:28}{seconds:>8.3f}{f'({cpu:.3f})':>10}{cpu / medians['import torch'][1]:>16.2f}")


if __name__ == "__main__":
    main()
