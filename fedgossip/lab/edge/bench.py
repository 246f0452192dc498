"""Size, latency and score of models: of runs in torch, and of exported files; and the examples for measuring them.

The examples of a model's run are unscaled, and also serve calibration and distillation.
"""

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
from fedgossip.core.machine import NodeId
from fedgossip.core.run_format import EXPERIMENT, MODEL_FACTS
from fedgossip.data.custom import check_allowed
from fedgossip.data.dataset import Dataset
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.lab.edge.onnx_model import AnsweringModule, OnnxModel, draw_examples
from fedgossip.learning.measuring import ROWS, DescribedModel, as_read
from fedgossip.learning.models import scored_tables
from fedgossip.learning.models.loaded_model import LoadedModel
from fedgossip.learning.models.model_files import KEPT, ModelFacts, facts_of, find_folder
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.tasks import examples_of

WARM = 20
"""Number of calls before measuring, which allocate memory."""


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
    """Share of the examples that a device answers without its server; None for a model in one part."""
    sent: float | None = None
    """Mean bytes that it sends to its server per example."""


Benchable = LoadedModel | OnnxModel


def measured(
    models: Sequence[tuple[str, Path, Benchable]], examples: Dataset, *, calls: int, threads: int
) -> list[Benched]:
    """Return each model's costs and score on unscaled examples.  Calls alternate, so other load affects all models.

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
        found.append(Benched(*costs, *_measure_exit(one, examples)))
    return found


def _measure_exit(model: Benchable, examples: Dataset) -> tuple[float | None, float | None]:
    """Return the share of examples that a device's part answers, and the mean bytes that it sends."""
    if not isinstance(model, OnnxModel) or model.server is None:
        return None, None
    sent = sum(model.answered(np.asarray(examples.x[at : at + ROWS]))[1] for at in range(0, len(examples), ROWS))
    return 1 - sent / len(examples), model.server.sent * sent / len(examples)


def latencies(calls_of: Sequence[Callable[[int], object]], calls: int) -> np.ndarray:
    """Return seconds [models, calls], with another example in each call, in random order: the model after torch would
    find full caches.
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
    examples = draw_examples(model.facts, 16)
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
    folder = find_folder(path)
    return sum(one.stat().st_size for one in (folder / run_format.WEIGHTS, folder / run_format.TREES) if one.is_file())


MOST_FOLDERS = 1000
"""Maximum number of sibling folders of a file searched for its run."""


@dataclass(frozen=True)
class NamedExamples:
    """Unscaled examples, and their description."""

    examples: Dataset
    words: str


def load_named(model: DescribedModel, source: str, *, run_code: bool = False) -> NamedExamples:
    """Return the named examples: a CSV file, a data.source, or the test set of FILE.toml.  Raises ConfigError."""
    if source.endswith(".toml"):
        return tested_on(Path(source), None, run_code=run_code)
    return NamedExamples(found := scored_tables.examples_of(model, source), f"{_counted(found)} of {source}")


def tested_on(experiment: Path, node: NodeId | None, *, run_code: bool = False) -> NamedExamples:
    """Return the test set of an experiment.

    Raises ConfigError if it is unreadable here, or names code that no user has approved.
    """
    e, test = _read(experiment, node, run_code)[:2]
    where = "validation" if e.eval.on == "validation" else "test"
    name = experiment.parent.name if experiment.name == EXPERIMENT else experiment.name
    return NamedExamples(as_read(test), f"{_counted(test)}, the {where} set of {name or experiment}")


def trained_on(experiment: Path, node: NodeId | None, *, everybody: bool, run_code: bool = False) -> NamedExamples:
    """Return training examples of a run: those of `node`, or of its first participant, or of all participants
    (`everybody`).

    Raises ConfigError for a run with a privacy budget, which would not cover this use.
    """
    e, _, shares, train = _read(experiment, node, run_code)
    if e.budget is not None:
        text = f"{experiment}: its training examples are under a privacy budget, which this would not count in"
        raise ConfigError(text, "Name other, public examples, with --data.")
    first = min(shares)
    rows = np.sort(np.concatenate(list(shares.values()))) if everybody and node is None else shares[first]
    whose = "the run trained on" if everybody and node is None else f"participant {first} trained on"
    found = train.subset(rows)
    return NamedExamples(as_read(found), f"the {_counted(found)} that {whose}")


def settings_of(model: Path) -> TrainSettings:
    """Return the [train] of the run around a model's folder; the defaults without a run."""
    path = experiment_of(model)
    return load_experiment(path).train if path is not None else TrainSettings()


def experiment_of(model: Path) -> Path | None:
    """Return the experiment of the run around a model's folder; None without a run."""
    for folder in (model, model.parent if model.name in KEPT else model):
        if (folder / EXPERIMENT).is_file():
            return folder / EXPERIMENT
    return None


def needed_experiment(model: Path) -> Path:
    """Return the experiment.  Raises ConfigError for a model without a run."""
    found = experiment_of(model)
    if found is None:
        raise ConfigError(f"{model}: no {EXPERIMENT} there to read examples by", "Name examples with --data SOURCE.")
    return found


def origin_of(file: Path, facts: ModelFacts) -> Path | None:
    """Return the source run of an exported file, if it is in a sibling folder; else None."""
    beside = sorted(one for one in file.resolve().parent.iterdir() if one.is_dir())[:MOST_FOLDERS]
    for folder in (file.parent, *(file.parent / one.name for one in beside)):
        for place in (folder, *(folder / kept for kept in KEPT)):
            if (place / MODEL_FACTS).is_file():
                try:
                    same = facts_of(place).weights == facts.weights
                except ConfigError:
                    continue
                if same:
                    return folder
    return None


def _read(
    path: Path, node: NodeId | None, run_code: bool
) -> tuple[Experiment, Dataset, dict[NodeId, np.ndarray], Dataset]:
    e = load_experiment(path)
    check_allowed(e.named_code, path, run_code=run_code)
    if not e.learns:
        raise ConfigError(f"{path}: a run of {e.task.kind} has no examples", "Name examples with --data SOURCE.")
    n = compose.plan(e).learners
    found = examples_of(e, [node or 0] if e.data.partition.get("kind") == "own" else range(n), n)
    shares = dict(found.shares) if node is None else {node: found.shares[node]}
    return e, found.test, shares, found.train


def _counted(found: Dataset) -> str:
    return f"{len(found):,} examples".replace(",", " ")
