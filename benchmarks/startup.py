"""Seconds until fedgossip's commands answer, beside a bare start of Python, each in a process of its own.

    python benchmarks/startup.py [--runs R] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from crew import machine, median

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import fedgossip": ["-c", "import fedgossip"],
    "fedgossip --help": ["-c", "from fedgossip.cli import main; main()", "--help"],
    "fedgossip topology --help": ["-c", "from fedgossip.cli import main; main()", "topology", "--help"],
    "import torch": ["-c", "import torch"],
}


def seconds(arguments: list[str]) -> float:
    """Run Python with `arguments`; return how long it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.runs + 1):  # in turns: machines are noisy
        for name, arguments in COMMANDS.items():
            taken[name].append(seconds(arguments))
    medians = {name: median(times[1:]) for name, times in taken.items()}  # the first run fills the file cache
    if options.json:
        print(json.dumps(medians))
        return
    print(f"{machine()}\n{'':28}{'s':>8}{'x bare':>9}")
    for name, middle in medians.items():
        print(f"{name:28}{middle:>8.3f}{middle / medians['python -c pass']:>9.1f}")


if __name__ == "__main__":
    main()
