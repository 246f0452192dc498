"""One epoch of one client with each option of local training, and of a plain loop, beside the same epoch in float32.

    python benchmarks/local_training.py [--model cnn:small] [--examples 2048] [--turns 5] [--device auto] [--compile]
                                        [--threads 1] [--only "a plain loop/float32"] [--json]

Made-up images of 1 x 28 x 28.  "a plain loop" is what a user of torch would write: a module, torch's SGD, one batch
after another, and the loss read at the end.  On the CPU float32 of cnn:small has a path of its own, and "prefetch = 2"
goes by modules.  The contestants take turns; a ratio is the median of (float32 / contestant) over the turns, so above 1
it is the quicker one; "by CPU" is the same of this process's CPU time, for busy machines: of one that trains in other
processes it says nothing.  What happens once (compiling, processes that start) is not in it, but said.
On the CPU these are ratios of the CPU, and of nothing else.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from crew import machine, median
from torch.nn import functional

from fedgossip.errors import ConfigError
from fedgossip.learning import data, models
from fedgossip.learning.devices import describe, device_for
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.task import Job

PLAIN = "a plain loop"
OPTIONS = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "channels_last": {"channels_last": True},
    "bfloat16, channels_last": {"precision": "bfloat16", "channels_last": True},
    "prefetch = 2": {"prefetch": 2},
    "2 processes, ddp": {"processes": 2},
    "2 processes, fsdp": {"processes": 2, "parallel": "fsdp"},
}
COMPILED = {
    "compile": {"compile": True},
    "compile, bfloat16, channels_last": {"compile": True, "precision": "bfloat16", "channels_last": True},
}
BATCH = 64


class Contestant:
    """A client with one way to train; `first` is what its first epoch took, with all that happens once."""

    def __init__(self, options: argparse.Namespace, images: data.Dataset, how: dict[str, object]) -> None:
        common = {"batch_size": BATCH, "local_epochs": 1, "device": options.device, "threads": options.threads}
        settings = TrainSettings(**{**common, **how})  # type: ignore[arg-type]
        test, share = images.subset(np.arange(BATCH)), np.arange(len(images))
        self._task = TorchTask(images, test, [share], options.model, settings, seed=0, rounds=1000)
        self._vector = self._task.initial(0)
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.first = self._epoch(0)

    def turn(self) -> None:
        used = time.process_time()
        self.seconds.append(self._epoch(len(self.seconds) + 1))
        self.cpu.append(time.process_time() - used)

    def _epoch(self, round: int) -> float:
        began = time.perf_counter()
        self._task.train([Job(0, round, self._vector)])  # the update is read back, so the device is done
        return time.perf_counter() - began


class PlainLoop:
    """The same client without us."""

    def __init__(self, options: argparse.Namespace, images: data.Dataset) -> None:
        self._device = device_for(options.device)
        torch.set_num_threads(options.threads)
        self._module = models.build(options.model, images.shape, images.outputs, 0).to(self._device)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=0.1)
        self._x, self._y = (torch.from_numpy(one).to(self._device) for one in (images.x, images.y))
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.first = self._epoch()

    def turn(self) -> None:
        used = time.process_time()
        self.seconds.append(self._epoch())
        self.cpu.append(time.process_time() - used)

    def _epoch(self) -> float:
        began, losses = time.perf_counter(), []
        for rows in torch.randperm(len(self._x)).to(self._device).split(BATCH):
            self._optimizer.zero_grad()
            loss = functional.cross_entropy(self._module(self._x[rows]), self._y[rows])
            loss.backward()
            self._optimizer.step()
            losses.append(loss.detach())
        float(torch.stack(losses).mean())  # so the device is done
        return time.perf_counter() - began


def images(examples: int) -> data.Dataset:
    draw = np.random.default_rng(0)
    return data.from_arrays("made up", draw.random((examples, 1, 28, 28), np.float32), draw.integers(0, 10, examples))


def entered(options: argparse.Namespace) -> dict[str, Contestant | PlainLoop]:
    """Return the options that this machine has; say which it has not, and why."""
    examples = images(options.examples)
    wanted = set(options.only.split("/")) if options.only else {PLAIN, *OPTIONS, *COMPILED}
    found: dict[str, Contestant | PlainLoop] = {PLAIN: PlainLoop(options, examples)} if PLAIN in wanted else {}
    for name, how in {**OPTIONS, **(COMPILED if options.compile else {})}.items():
        if name not in wanted | {"float32"}:
            continue
        try:
            found[name] = Contestant(options, examples, how)
        except ConfigError as error:
            print(f"left out: {name}: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn:small")
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="also compiled models; their first epoch takes minutes")
    parser.add_argument("--only", default="", help="some of them, with / between; float32 always")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    contestants = entered(options)
    for _ in range(options.turns):
        for one in contestants.values():
            one.turn()
    plain = contestants["float32"]
    ratios = {name: ratio(plain.seconds, one.seconds) for name, one in contestants.items()}
    if options.json:
        print(json.dumps({name: [ratio, contestants[name].seconds] for name, ratio in ratios.items()}))
        return
    print(f"{machine()}\ntrains on {describe(device_for(options.device))}; torch {torch.__version__}")
    print(f"{options.model}, {options.examples} examples, batches of {BATCH}, {options.threads} thread(s) a process\n")
    print(f"{'':26}{'s an epoch':>12}{'CPU s':>8}{'x float32':>11}{'by CPU':>8}{'first, s':>10}")
    for name, one in contestants.items():
        spent = f"{median(one.seconds):>12.3f}{median(one.cpu):>8.3f}"
        print(f"{name:26}{spent}{ratios[name]:>11.2f}{ratio(plain.cpu, one.cpu):>8.2f}{one.first:>10.1f}")


def ratio(plain: list[float], other: list[float]) -> float:
    """The median of (plain / other) over the turns."""
    return median([p / s for p, s in zip(plain, other, strict=True)])


if __name__ == "__main__":
    main()
