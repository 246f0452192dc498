"""Size, latency and score of models side by side: of runs in torch, and of exported files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedgossip.base.errors import ConfigError
from fedgossip.base.seeds import stream
from fedgossip.core import run_format
from fedgossip.data.dataset import Dataset
from fedgossip.lab.edge.onnx_model import AnsweringModule, OnnxModel, drawn
from fedgossip.learning.measuring import ROWS
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import found

WARM = 20
"""Number of calls before measuring: memory is allocated then."""


@dataclass(frozen=True)
class Benched:
    """A model with its costs and score; times in seconds, of one example at a time."""

    name: str
    runtime: str
    how: str
    size: int
    p50: float
    p99: float
    score: float
    on_device: float | None = None
    """Share of the examples that a device answers by itself; None of a model in one piece."""
    sent: float | None = None
    """Mean bytes that it sends its server for an example."""


Benchable = LoadedModel | OnnxModel


def measured(
    models: Sequence[tuple[str, Path, Benchable]], examples: Dataset, *, calls: int, threads: int
) -> list[Benched]:
    """Return each model's costs and score on unscaled examples, calls alternating so that other load affects all.

    Raises ConfigError for models of different tasks.
    """
    first = models[0][2].facts
    for name, _, one in models[1:]:
        if (one.facts.kind, one.facts.shape, one.facts.outputs) != (first.kind, first.shape, first.outputs):
            text = f"{name} answers another question than {models[0][0]}: other examples, or other answers"
            raise ConfigError(text, "Compare models of one task.")
    kept = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = latencies([_call(one) for _, _, one in models], calls)
    finally:
        torch.set_num_threads(kept)
    score = first.metrics[0].partition("?")[0]
    found = []
    for (name, path, one), taken in zip(models, times, strict=True):
        p50, p99 = np.percentile(taken, [50, 99])
        scores = one.evaluate(examples)
        if score not in scores:
            raise ConfigError(f"{name} does not know its run's {score}", "It is a function of your own: leave it out.")
        runtime, how = ("onnx", one.how) if isinstance(one, OnnxModel) else ("torch", "float32")
        costs = name, runtime, how, _size(path), float(p50), float(p99), scores[score]
        found.append(Benched(*costs, *_of_exit(one, examples)))
    return found


def _of_exit(model: Benchable, examples: Dataset) -> tuple[float | None, float | None]:
    """Return the share of examples that a device's part answers, and the mean bytes it sends."""
    if not isinstance(model, OnnxModel) or model.server is None:
        return None, None
    sent = sum(model.answered(np.asarray(examples.x[at : at + ROWS]))[1] for at in range(0, len(examples), ROWS))
    return 1 - sent / len(examples), model.server.sent * sent / len(examples)


def latencies(calls_of: Sequence[Callable[[int], object]], calls: int) -> np.ndarray:
    """Return seconds [models, calls], another example each call, in an order drawn anew: the one after torch finds full
    caches.
    """
    times, order = np.empty((len(calls_of), calls)), stream(0, "bench")
    for number in range(-WARM, calls):
        for place in order.permutation(len(calls_of)):
            begun = time.perf_counter()
            calls_of[place](number)
            if number >= 0:
                times[place, number] = time.perf_counter() - begun
    return times


def _call(model: Benchable) -> Callable[[int], object]:
    examples = drawn(model.facts, 16)
    if isinstance(model, OnnxModel):
        return lambda number: model.answer(examples[number % 16][None])
    module = AnsweringModule(model).eval()
    rows = [torch.from_numpy(examples[k : k + 1]) for k in range(16)]

    def answer(number: int) -> object:
        with torch.inference_mode():
            return module(rows[number % 16]).numpy()

    return answer


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    folder = found(path)
    return sum(one.stat().st_size for one in (folder / run_format.WEIGHTS, folder / run_format.TREES) if one.is_file())
