"""What it costs a training loop to take part: CPU seconds of the loop's thread, joined and bare, asynchronous.

A transformer of 8 million parameters on the CPU, two loops of one machine; the bare loop takes turns with the joined
one in the same process.  Printed: CPU milliseconds a step of the thread that trains, their ratio, and that without the
copies of exchanges.

    python benchmarks/join.py [STEPS]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

import fedgossip

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from loops_kit import Machines, ring

WIDTH, LAYERS, CONTEXT, BATCH, LOCAL = 320, 6, 64, 8, 10
TURNS = 5


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(512, WIDTH), layers, nn.Linear(WIDTH, 512))


def steps(model: nn.Module, optimizer: Any, count: int, peer: Any = None) -> tuple[float, float]:
    """CPU seconds of this thread a step: in all, and inside `peer.step()`."""
    text = torch.randint(512, (BATCH, CONTEXT))
    began, inside = time.thread_time(), 0.0
    for _ in range(count):
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if peer is not None:
            before = time.thread_time()
            peer.step(examples=BATCH)
            inside += time.thread_time() - before
    return (time.thread_time() - began) / count, inside / count


def main(count: int) -> None:
    torch.set_num_threads(1)
    models = [transformer(), transformer(), transformer()]
    optimizers = [torch.optim.SGD(model.parameters(), 1e-3) for model in models]
    parameters = sum(p.numel() for p in models[0].parameters())
    bare, joined, inside = [], [], []
    over = threading.Event()
    with TemporaryDirectory() as folder:
        machines = Machines(Path(folder), ring(2, steps=LOCAL, algorithm={"mode": "async", "deadline": 2.0}))

        def other() -> None:
            """Exchanges as often as it is asked to, and hardly trains: what is measured is the first loop."""
            peer = machines.join(1)(models[1], optimizers[1])
            while not over.wait(0.05):
                peer.step()
            peer.close()

        def measured() -> None:
            peer = machines.join(0)(models[0], optimizers[0])
            for _ in range(TURNS):
                bare.append(steps(models[2], optimizers[2], count)[0])
                one, copies = steps(models[0], optimizers[0], count, peer)
                joined.append(one)
                inside.append(copies)
            over.set()
            peer.close()

        found = machines.run({0: measured, 1: other}, 600)
    assert not any(isinstance(one, BaseException) for one in found.values()), found
    base, whole, copies = (statistics.median(one) for one in (bare, joined, inside))
    print(f"{parameters / 1e6:.1f} million parameters, an exchange every {LOCAL} steps; medians of {TURNS} turns")
    print(f"CPU ms a step: bare {1e3 * base:.1f}, joined {1e3 * whole:.1f}, of which in step() {1e3 * copies:.1f}")
    print(f"ratio {whole / base:.3f}; outside the copies {(whole - copies) / base:.3f}")


if __name__ == "__main__":
    print(f"fedgossip {fedgossip.__version__}, torch {torch.__version__}")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
