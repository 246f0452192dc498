"""What a node costs in a round as runs grow: us of CPU time and bytes of the record, by the number of nodes.

    python benchmarks/growth.py [--only sim,stacked,learning,coordinator,secure] [--most 1024] [--large] [--json]

    sim           averaging of vectors of 8 on a random 4-regular graph, whole machines in virtual time
    stacked       the same on arrays, where a tenth of the rounds is evaluated
    learning      softmax on 16 examples a node, on arrays
    coordinator   federated averaging of vectors of 8 by machines, in the clear
    secure        the same of vectors of 650, in secure sums

Costs are of the rounds after the first: a run of few rounds is taken off one of more, both with a run directory; the
median of three such pairs.  "?": a round costs less than what runs differ by.  The
slope is that of a line through the logarithms: 0 where a node costs the same however many there are, 1 where twice as
many cost twice as much each.  One thread.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import linear_regression
from typing import Any

from crew import machine, median

from fedgossip import simulate

FEW, LEAST, JOBS = 2, 10, 2000
"""Rounds of the shorter run; how many more the longer has, so that all nodes together do some thousand at least."""
TURNS = 3


def gossip(n: int, **more: Any) -> dict[str, Any]:
    return {"task": {"kind": "averaging", "dim": 8}, "topology": {"graph": "regular:4", "n": n}, **more}


def learning(n: int) -> dict[str, Any]:
    """Classes drawn by chance: 16 examples for each node, and 100 to test on."""
    how = {"lr": 0.1, "batch_size": 16, "local_steps": 1, "device": "cpu"}
    of_all, to_test = (f"csv:{_table(examples)}?label=y" for examples in (16 * n, 100))
    return {"data": {"source": of_all, "test": to_test}, "model": {"source": "softmax"}, "train": how,
            "topology": {"graph": "regular:4", "n": n}}  # fmt: skip


def _table(examples: int) -> Path:
    path = Path(tempfile.gettempdir()) / f"growth-{examples}.csv"
    if not path.exists():
        import numpy as np

        random = np.random.default_rng(0)
        both = np.column_stack([random.standard_normal((examples, 16)), random.integers(0, 10, examples)])
        head = ",".join([*(f"x{column}" for column in range(16)), "y"])
        np.savetxt(path, both, "%.4g", delimiter=",", header=head, comments="")
    return path


def federated(n: int, dim: int, *, secure: bool) -> dict[str, Any]:
    task = {"kind": "quadratic", "dim": dim}
    return {"task": task, "coordinator": {"clients": n, "secure": {"on": secure}}}


KINDS = {
    "sim": ("sim", (16, 64, 256, 1024), gossip),
    "stacked": ("stacked", (16, 64, 256, 1024, 10_000), gossip),
    "learning": ("stacked", (16, 64, 256, 1024, 10_000), learning),
    "coordinator": ("sim", (8, 64, 256), lambda n: federated(n, 8, secure=False)),
    "secure": ("sim", (8, 64, 256), lambda n: federated(n, 650, secure=True)),
}


def taken(content: dict[str, Any], engine: str, rounds: int, out: Path) -> tuple[float, int]:
    """Run it; return CPU seconds and the bytes of its record."""
    began = time.process_time()
    simulate({**content, "rounds": rounds, "eval": {"every": 10}}, engine=engine, out=out)
    return time.process_time() - began, (out / "metrics.jsonl").stat().st_size


def of_node(content: dict[str, Any], engine: str, n: int, folder: Path, numbers: count[int]) -> tuple[float, float]:
    """Return (us, bytes of the record) of a node and round."""
    more = max(LEAST, JOBS // n)
    each, found = more * n, []
    for _ in range(TURNS):
        short, long = (taken(content, engine, rounds, folder / str(next(numbers))) for rounds in (FEW, FEW + more))
        found.append(((long[0] - short[0]) / each * 1e6, (long[1] - short[1]) / each))
    return median([us for us, _ in found]), found[0][1]


def large(watch: bool | None, rounds: int = 20) -> float:
    """Return the ms of a round of eight vectors of a million on a ring that is not evaluated."""
    content = {"task": {"kind": "averaging", "dim": 1_000_000}, "topology": {"graph": "ring", "n": 8}}
    times = []
    for number in (FEW, FEW, FEW + rounds):  # the first warms up
        began = time.process_time()
        simulate({**content, "rounds": number, "eval": {"every": 10**6, **({} if watch is None else {"watch": watch})}})
        times.append(time.process_time() - began)
    return (times[2] - times[1]) / rounds * 1e3


def slope(sizes: list[int], costs: list[float]) -> float:
    """Return the exponent of the cost by the size."""
    return linear_regression([math.log(n) for n in sizes], [math.log(cost) for cost in costs]).slope


def show(name: str, found: dict[int, tuple[float, float]]) -> None:
    told = "  ".join(f"{n}: {f'{us:.1f}' if us > 0 else '?'} ({size:.0f})" for n, (us, size) in found.items())
    known = {n: us for n, (us, _) in found.items() if us > 0}
    exponent = slope(list(known), list(known.values())) if len(known) > 1 else math.nan
    print(f"{name:12} {told}  slope {exponent:+.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--large", action="store_true", help="a round of 8 x 1M too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if not options.json:
        print(f"{machine()}\nus (and bytes of the record) of a node and round")
    with tempfile.TemporaryDirectory() as place:
        numbers = count()
        for name in options.only.split(","):
            engine, all_sizes, content = KINDS[name]
            sizes = [n for n in all_sizes if n <= options.most]
            for n in sizes[:1] + sizes:  # the first warms up
                found = of_node(content(n), engine, n, Path(place), numbers)
                results.setdefault(name, {})[n] = found
            if not options.json:
                show(name, results[name])
    if options.json:
        print(json.dumps(results))
        return
    if options.large:
        print(f"8 x 1M, ms a round not evaluated: {large(None):.1f}, with eval.watch = true {large(True):.1f}")


if __name__ == "__main__":
    main()
