"""One epoch of one client with each option of local training, and of a plain loop, beside the same epoch in float32.

    python benchmarks/local_training.py [--model cnn:small] [--examples 2048] [--turns 5] [--device auto] [--compile]
                                        [--threads 1] [--only "a plain loop/float32"] [--json]

--model resnet18 is one on made-up images of 3 x 32 x 32, in batches of 128; others see 1 x 28 x 28, in batches of 64.
"a plain loop" is what a user of torch would write: a module, torch's SGD, one batch after another, and the loss read at
the end; its model stays where it is, where a client's comes and goes once an epoch.  On the CPU float32 of cnn:small
has a path of its own, and "prefetch = 2" goes by modules.  The contestants take turns; a ratio is the median of
(float32 / contestant) over the turns, so above 1 it is the quicker one; "by CPU" is the same of this process's CPU
time, for busy machines: of one that trains in other processes it says nothing.  What happens once (compiling, processes
that start) is not in it, but said.  On the CPU these are ratios of the CPU, and of nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from crew import machine, median
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.core.task import Job
from fedgossip.data import data
from fedgossip.learning.models import models
from fedgossip.learning.one_model.devices import describe, device_for
from fedgossip.learning.task import TorchTask, TrainSettings

PLAIN: dict[str, dict[str, object]] = {
    "a plain loop": {},
    "plain, bfloat16": {"precision": "bfloat16"},
    "plain, bfloat16, channels_last": {"precision": "bfloat16", "channels_last": True},
}
OPTIONS: dict[str, dict[str, object]] = {
    "float32": {},
    "not captured": {"capture": False},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "channels_last": {"channels_last": True},
    "bfloat16, channels_last": {"precision": "bfloat16", "channels_last": True},
    "prefetch = 2": {"prefetch": 2},
    "2 processes, ddp": {"processes": 2},
    "2 processes, fsdp": {"processes": 2, "parallel": "fsdp"},
}
COMPILED: dict[str, dict[str, object]] = {
    "compile": {"compile": True},
    "compile, bfloat16, channels_last": {"compile": True, "precision": "bfloat16", "channels_last": True},
}
BATCH = {"resnet18": 128}
"""Examples of a step; 64 elsewhere."""


class Contestant:
    """A client with one way to train; `first` is what its first epoch took, with all that happens once."""

    def __init__(self, options: argparse.Namespace, images: data.Dataset, how: dict[str, object]) -> None:
        batch = BATCH.get(options.model, 64)
        common = {"batch_size": batch, "local_epochs": 1, "device": options.device, "threads": options.threads}
        settings = TrainSettings(**{**common, **how})  # type: ignore[arg-type]
        test, share = images.subset(np.arange(batch)), np.arange(len(images))
        self._task = TorchTask(
            images, test, [share], named(options.model), settings, seed=0, rounds=1000, base=Path(__file__).parent
        )
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

    def __init__(self, options: argparse.Namespace, images: data.Dataset, how: dict[str, object]) -> None:
        self._device = device_for(options.device)
        torch.set_num_threads(options.threads)
        self._module = models.build(
            named(options.model), images.shape, images.outputs, 0, base=Path(__file__).parent
        ).to(self._device)
        self._half, self._batch = how.get("precision") == "bfloat16", BATCH.get(options.model, 64)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=0.1)
        self._x, self._y = (torch.from_numpy(one).to(self._device) for one in (images.x, images.y))
        if how.get("channels_last"):
            self._module = self._module.to(memory_format=torch.channels_last)
            self._x = self._x.contiguous(memory_format=torch.channels_last)
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.first = self._epoch()

    def turn(self) -> None:
        used = time.process_time()
        self.seconds.append(self._epoch())
        self.cpu.append(time.process_time() - used)

    def _epoch(self) -> float:
        began, losses = time.perf_counter(), []
        for rows in torch.randperm(len(self._x)).to(self._device).split(self._batch):
            self._optimizer.zero_grad()
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
                loss = functional.cross_entropy(self._module(self._x[rows]), self._y[rows])
            loss.backward()
            self._optimizer.step()
            losses.append(loss.detach())
        float(torch.stack(losses).mean())  # so the device is done
        return time.perf_counter() - began


def named(model: str) -> str:
    return "residual_networks:resnet18" if model == "resnet18" else model


def images(examples: int, model: str) -> data.Dataset:
    draw, shape = np.random.default_rng(0), (3, 32, 32) if model == "resnet18" else (1, 28, 28)
    return data.from_arrays("made up", draw.random((examples, *shape), np.float32), draw.integers(0, 10, examples))


def entered(options: argparse.Namespace) -> dict[str, Contestant | PlainLoop]:
    """Return the options that this machine has; say which it has not, and why."""
    examples = images(options.examples, options.model)
    wanted = set(options.only.split("/")) if options.only else {*PLAIN, *OPTIONS, *COMPILED}
    found: dict[str, Contestant | PlainLoop] = {}
    for name, how in PLAIN.items():
        if name in wanted:
            found[name] = PlainLoop(options, examples, how)
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
    batch = BATCH.get(options.model, 64)
    print(f"{options.model}, {options.examples} examples, batches of {batch}, {options.threads} thread(s) a process\n")
    print(f"{'':34}{'s an epoch':>12}{'CPU s':>8}{'x float32':>11}{'by CPU':>8}{'first, s':>10}")
    for name, one in contestants.items():
        spent = f"{median(one.seconds):>12.3f}{median(one.cpu):>8.3f}"
        print(f"{name:34}{spent}{ratios[name]:>11.2f}{ratio(plain.cpu, one.cpu):>8.2f}{one.first:>10.1f}")


def ratio(plain: list[float], other: list[float]) -> float:
    """The median of (plain / other) over the turns."""
    return median([p / s for p, s in zip(plain, other, strict=True)])


if __name__ == "__main__":
    main()
