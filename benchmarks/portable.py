"""What the choice of kernels costs: CPU time of training as torch comes, reproducible (the default) and portable.

    python benchmarks/portable.py [--turns 7] [--json]

A process per mode and turn, for torch chooses its kernels once; the modes take turns, so that what else the machine
does falls on all of them.  Each process warms up and reports the least of a few measurements; the figure is the median
of the turns' ratios to the mode as torch comes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

AS_IT_COMES = "as it comes"
if AS_IT_COMES in sys.argv:
    import torch

    torch.ones(2, 2) @ torch.ones(2, 2)  # before fedgossip, which would ask for reproducible kernels

from fedgossip.base import kernels  # noqa: E402

MODES = {AS_IT_COMES: {}, "reproducible": kernels.REPRODUCIBLE, "portable": kernels.PORTABLE}
NODES, EXAMPLES, AGAIN = 16, 64, 3

# name -> (model, shape of an example, classes, steps of a round, settings)
WORK: dict[str, tuple[str, tuple[int, ...], int, int, dict[str, object]]] = {
    "softmax 64-10": ("softmax", (64,), 10, 40, {}),
    "mlp 64-128-10": ("mlp:64-128-10", (64,), 10, 40, {}),
    "mlp 64-128-10, adam": ("mlp:64-128-10", (64,), 10, 40, {"optimizer": "adam"}),
    "mlp 784-256-10": ("mlp:784-256-10", (784,), 10, 10, {}),
    "cnn:small 28x28 (stack)": ("cnn:small", (1, 28, 28), 10, 2, {}),
    "cnn:small-bn 28x28 (modules)": ("cnn:small-bn", (1, 28, 28), 10, 2, {}),
}


def measured(name: str, *, portable: bool) -> float:
    """CPU seconds of a round of all nodes."""
    from fedgossip.core.task import Job
    from fedgossip.data import data
    from fedgossip.learning.task import TorchTask, TrainSettings

    model, shape, classes, steps, how = WORK[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((NODES * EXAMPLES, *shape), np.float32)
    dataset = data.from_arrays("random", x, rng.integers(0, classes, len(x)))
    shares = list(np.arange(len(x)).reshape(NODES, EXAMPLES))
    settings = TrainSettings(device="cpu", batch_size=32, local_steps=steps, portable=portable, lr=0.01, **how)  # type: ignore[arg-type]
    task = TorchTask(dataset, dataset.subset(shares[0]), shares, model, settings, seed=0, rounds=AGAIN + 1)
    start, found = task.initial(0), []
    for number in range(AGAIN + 1):
        began = time.process_time()
        task.train([Job(node, number, start) for node in range(NODES)])
        found.append(time.process_time() - began)
    return min(found[1:])


def turn(mode: str) -> dict[str, float]:
    """The measurements of a process of its own."""
    clean = {key: value for key, value in os.environ.items() if key not in kernels.PORTABLE}
    path = os.pathsep.join(part for part in sys.path if part)
    words = [sys.executable, str(Path(__file__)), "--mode", mode]
    said = subprocess.run(words, env={**clean, **MODES[mode], "PYTHONPATH": path}, capture_output=True, check=True)
    found: dict[str, float] = json.loads(said.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        wanted = {AS_IT_COMES: "as they come"}.get(options.mode, options.mode)
        assert kernels.mode() == wanted, kernels.mode()
        print(json.dumps({name: measured(name, portable=options.mode == "portable") for name in WORK}))
        return
    turns = [{mode: turn(mode) for mode in MODES} for _ in range(options.turns)]
    rows = {}
    for name in WORK:
        ratios = {mode: [one[mode][name] / one[AS_IT_COMES][name] for one in turns] for mode in MODES}
        plain = float(np.median([one[AS_IT_COMES][name] for one in turns]))
        rows[name] = {"ms": 1e3 * plain, **{mode: [float(np.median(r)), min(r), max(r)] for mode, r in ratios.items()}}
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{kernels.processor()}; {options.turns} turns; CPU ms of a round, and ratios: median (least to greatest)")
    for name, row in rows.items():
        parts = (f"{mode} {row[mode][0]:.2f} ({row[mode][1]:.2f} to {row[mode][2]:.2f})" for mode in list(MODES)[1:])
        print(f"{name:<30} {row['ms']:8.1f} ms   {'   '.join(parts)}")


if __name__ == "__main__":
    main()
