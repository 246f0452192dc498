"""Unscaled examples of a model's run: for measuring, calibration and training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgossip.base.errors import ConfigError
from fedgossip.core.machine import NodeId
from fedgossip.core.run_format import EXPERIMENT, MODEL_FACTS
from fedgossip.data.custom import check_allowed
from fedgossip.data.dataset import Dataset
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.learning.measuring import DescribedModel, as_read
from fedgossip.learning.models import scored_tables
from fedgossip.learning.models.model_files import KEPT, ModelFacts, facts_of
from fedgossip.learning.settings import TrainSettings
from fedgossip.plans import compose
from fedgossip.plans.tasks import examples_of

MOST_FOLDERS = 1000
"""Maximum number of folders beside a file that are searched for its run."""


@dataclass(frozen=True)
class NamedExamples:
    """Unscaled examples, and their description."""

    examples: Dataset
    words: str


def named(model: DescribedModel, source: str, *, run_code: bool = False) -> NamedExamples:
    """Return the named examples: a CSV file, a data.source, or the test set of FILE.toml.  Raises ConfigError."""
    if source.endswith(".toml"):
        return tested_on(Path(source), None, run_code=run_code)
    return NamedExamples(found := scored_tables.examples_of(model, source), f"{_counted(found)} of {source}")


def tested_on(experiment: Path, node: NodeId | None, *, run_code: bool = False) -> NamedExamples:
    """Return the test set of an experiment.

    Raises ConfigError where it is unreadable here, and where it names code that no user has approved.
    """
    e, test = _read(experiment, node, run_code)[:2]
    where = "validation" if e.eval.on == "validation" else "test"
    name = experiment.parent.name if experiment.name == EXPERIMENT else experiment.name
    return NamedExamples(as_read(test), f"{_counted(test)}, the {where} set of {name or experiment}")


def trained_on(experiment: Path, node: NodeId | None, *, everybody: bool, run_code: bool = False) -> NamedExamples:
    """Return training examples of a run: those of `node`, or of its first participant, or of `everybody` it trained.

    Raises ConfigError for a run with a privacy budget, which would not cover this use.
    """
    e, _, shares, train = _read(experiment, node, run_code)
    if e.budget is not None:
        text = f"{experiment}: its training examples are under a budget of privacy, which this would not count in"
        raise ConfigError(text, "Name other examples, that are nobody's secret, with --data.")
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
    """Return the same.  Raises ConfigError for a model without a run."""
    found = experiment_of(model)
    if found is None:
        raise ConfigError(f"{model}: no {EXPERIMENT} there to read examples by", "Name examples with --data SOURCE.")
    return found


def origin_of(file: Path, facts: ModelFacts) -> Path | None:
    """Return the source run of an exported file, where it is in a folder beside it; else None."""
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
