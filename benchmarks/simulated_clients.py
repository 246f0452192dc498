"""Rounds of 1000 simulated clients, cohorts of 100, with a CNN of 30 000 parameters, beside a plain loop of torch.

    python benchmarks/simulated_clients.py [--turns 7] [--clients 1000] [--cohort 100] [--steps 5] [--threads 1]
                                           [--sides 8 28] [--json]

Digits of 8x8 and MNIST's 28x28 (made-up images where FEDGOSSIP_DATA names no MNIST).  Contestants take turns:

    loop           every client of the cohort in turn: the global weights into one torch module, the same batches
                   through it, SGD in the form of `FORMS` that is quickest here, chosen before; then the mean.  Batches
                   are drawn beforehand, for nothing
    channels last  the same loop with weights and images in the layout that oneDNN's convolutions like best
    training       TorchTask.train of the cohort, then the mean: all that a loop does, and the drawing of the batches
    round          the same with FedAvg's machine: its accumulator, whose sum is exact, and its server's step

Every turn all four train the same round from the same weights, and what they give must agree within rounding.  A ratio
is the median over the turns of (loop / contestant), least and greatest in brackets, by the clock and by CPU time: a
busy machine moves the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from crew import machine, median
from torch.nn import functional

from fedgossip.algorithms.federated.base import Work
from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.sampling import Uniform
from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.base.vectors import Vector, frozen
from fedgossip.core.task import Job
from fedgossip.data.data import load
from fedgossip.data.dataset import Dataset, from_arrays
from fedgossip.learning.models import models
from fedgossip.learning.one_model.batches import Batches, BatchPlan
from fedgossip.learning.task import TorchTask, TrainSettings

MODELS = {8: "cnn:16-32-180", 28: "cnn:16-32-16"}  # 29 830 and 30 074 parameters
BATCHES = (10, 32)
EXAMPLES = 40  # of a client, drawn from all
LR = 0.1
AGREE = 0.01  # of the length of the round's step: a rounding decides, now and then, which of a window is the greatest
FORMS = ("by hand", "foreach", "fused")
LAYOUTS = {"loop": torch.contiguous_format, "channels last": torch.channels_last}


def images(side: int) -> Dataset:
    """Return the digits, or MNIST, or what has its shape."""
    if side == 8:
        digits = load("digits")
        return from_arrays("digits", digits.x.reshape(-1, 1, 8, 8), digits.y)
    try:
        return load("mnist")
    except ConfigError as error:
        print(f"no MNIST here, so made-up images: {error}")
        draw = stream(0, "made up")
        x = draw.random((10_000, 1, 28, 28), np.float32)
        return from_arrays("made up", x, np.arange(10_000) % 10)


class Loop:
    """A plain loop: one module, one client after another; `form` says who takes the step, `order` how images lie."""

    def __init__(self, data: Dataset, source: str, batches: Batches, form: str, order: torch.memory_format) -> None:
        self.form = form
        self._module = models.build(source, data.shape, data.classes, 0).to(memory_format=order)
        self._x = torch.from_numpy(np.array(data.x)).to(memory_format=order)
        self._y = torch.from_numpy(np.array(data.y))
        self._batches, self._parameters = batches, list(self._module.parameters())
        self._optimiser = None
        if form in ("foreach", "fused"):
            self._optimiser = torch.optim.SGD(self._parameters, lr=LR, **{form: True})

    def plans(self, cohort: list[int], number: int) -> list[BatchPlan]:
        return [self._batches.plan(node, number) for node in cohort]

    def round(self, weights: Vector, plans: list[BatchPlan]) -> npt.NDArray[np.float32]:
        given = torch.from_numpy(np.array(weights)).split([p.numel() for p in self._parameters])
        start = [one.view(p.shape) for one, p in zip(given, self._parameters, strict=True)]
        total = [torch.zeros_like(p) for p in self._parameters]
        for plan in plans:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, start)
            for rows in torch.from_numpy(plan.indices):
                self._step(rows)
            with torch.no_grad():
                torch._foreach_add_(total, self._parameters)
        mean = torch.cat([one.reshape(-1) for one in total]) / len(plans)
        return mean.numpy()

    def _step(self, rows: torch.Tensor) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        functional.cross_entropy(self._module(self._x[rows]), self._y[rows]).backward()
        if self._optimiser is not None:
            self._optimiser.step()
            return
        with torch.no_grad():
            torch._foreach_add_(self._parameters, [p.grad for p in self._parameters], alpha=-LR)


def trained(task: TorchTask, cohort: list[int], number: int, weights: Vector) -> npt.NDArray[np.float32]:
    updates = task.train([Job(node, number, weights) for node in cohort])
    total = np.zeros(task.length, np.float32)
    for update in updates:
        assert update.difference is not None
        total += update.difference
    return weights + total / np.float32(len(cohort))


def whole_round(task: TorchTask, cohort: list[int], number: int, weights: Vector, clients: int) -> Any:
    """The same with FedAvg's own server, as a simulation runs it."""
    of = make("fedavg", clients=clients)
    state, rule = of.server.start(weights), of.clients
    received = of.server.broadcast(state)
    jobs = [Job(node, number, received[0], rule.terms(received, ())) for node in cohort]
    total = of.aggregation.accumulator(rule.vectors, task.length, task.dtype)
    for node, update in zip(cohort, task.train(jobs), strict=True):
        assert update.difference is not None
        steps = int(update.metrics["steps"])
        work = Work(update.difference, update.examples, steps, update.metrics["rate"])
        total.add(node, rule.weight(update.examples), rule.upload(received, (), work)[0], steps)
    return of.server.broadcast(of.server.step(state, total.aggregate()))[0]


@dataclass
class Times:
    """Seconds of each turn by the clock and of the processor."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def take(self, work: Callable[[], Any]) -> Any:
        began = time.perf_counter(), time.process_time()
        found = work()
        self.clock.append(time.perf_counter() - began[0])
        self.processor.append(time.process_time() - began[1])
        return found


def compare(side: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what the turns of one size of image and batch took."""
    data, source = images(side), MODELS[side]
    draw = stream(0, "shares", side)
    shares = [draw.choice(len(data), EXAMPLES, replace=False) for _ in range(options.clients)]
    how = TrainSettings(lr=LR, batch_size=batch, local_steps=options.steps, device="cpu", threads=options.threads)
    some = data.subset(np.arange(100))
    task = TorchTask(data, some, shares, source, how, seed=0, rounds=1000)
    sampling = Uniform(0, tuple(range(options.clients)), options.cohort)
    weights, batches = task.initial(0), Batches(shares, how, 0, batch)
    loops = {
        name: _quickest([Loop(data, source, batches, form, order) for form in FORMS], list(range(20)), weights)
        for name, order in LAYOUTS.items()
    }
    times = {name: Times() for name in (*LAYOUTS, "training", "round")}
    apart = 0.0
    for number in range(options.turns + 1):
        cohort = list(sampling.draw(number, range(options.clients)).invited)
        plans = loops["loop"].plans(cohort, number)
        expected, other = (times[name].take(lambda: loop.round(weights, plans)) for name, loop in loops.items())  # noqa: B023
        found = times["training"].take(lambda: trained(task, cohort, number, weights))  # noqa: B023
        given = times["round"].take(lambda: whole_round(task, cohort, number, weights, options.clients))  # noqa: B023
        step = float(np.linalg.norm(expected - weights))
        apart = max(apart, *(float(np.linalg.norm(one - expected)) / step for one in (found, given, other)))
        if apart > AGREE:
            raise SystemExit(f"round {number}: the contestants are {apart:.2g} of a step apart; expected {AGREE:g}")
        weights = frozen(found)
    about = {"side": side, "batch": batch, "parameters": task.length, "data": data.name}
    result = {**about, "forms": [loop.form for loop in loops.values()], "apart": apart}
    for name, one in times.items():
        result[name] = {kind: getattr(one, kind)[1:] for kind in ("clock", "processor")}  # the first turn warms up
    return result


def _quickest(loops: list[Loop], cohort: list[int], weights: Vector) -> Loop:
    """Return the loop that takes fewest CPU seconds for this cohort, best of three."""
    taken: dict[str, list[float]] = {loop.form: [] for loop in loops}
    for _ in range(3):
        for loop in loops:
            plans, began = loop.plans(cohort, 0), time.process_time()
            loop.round(weights, plans)
            taken[loop.form].append(time.process_time() - began)
    return min(loops, key=lambda loop: min(taken[loop.form]))


def ratios(result: dict[str, Any], loop: str, name: str, kind: str) -> str:
    found = sorted(slow / ours for slow, ours in zip(result[loop][kind], result[name][kind], strict=True))
    return f"{median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("turns", 7), ("clients", 1000), ("cohort", 100), ("steps", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--sides", type=int, nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"{machine()}, torch {torch.__version__}, {options.threads} thread(s)")
        print(f"{options.clients} clients, cohorts of {options.cohort}, {options.steps} steps, {options.turns} turns\n")
    for side in options.sides:
        for batch in BATCHES:
            result = compare(side, batch, options)
            if options.json:
                print(json.dumps(result), flush=True)
                continue
            print(
                f"{side}x{side}, {result['data']}, batches of {batch}, {result['parameters']} parameters; the loops: "
                f"{', '.join(result['forms'])}; at most {result['apart']:.1e} of a step apart"
            )
            for name in (*LAYOUTS, "training", "round"):
                print(f"  {name:14}{1 / median(result[name]['clock']):6.2f} rounds/s", flush=True)
                for loop in LAYOUTS if name not in LAYOUTS else ():
                    clock, processor = (ratios(result, loop, name, kind) for kind in ("clock", "processor"))
                    print(f"      x {loop:14} {clock:24} CPU {processor}")


if __name__ == "__main__":
    main()
