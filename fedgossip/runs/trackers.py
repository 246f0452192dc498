"""Trackers of curves: each receives numbers by name and step, without information on runs.

A tracker may raise any exception: `tracking` then drops it and reports it.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError
from fedgossip.base.untrusted_text import MASK
from fedgossip.core import run_format
from fedgossip.data.extras import needed

FINISHED = "finished"
MLFLOW_WORDS = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
"""Variables of the environment in which MLflow looks for them."""


class Tracker(Protocol):
    """Made when a run is sure to begin; called by one thread, in this order."""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """A run of this name, with these settings, "section.key" each."""
        ...

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """The measurements after so many rounds."""
        ...

    def end(self, status: str, values: Mapping[str, float]) -> None:
        """The run ended so, with these numbers."""
        ...


class CsvTracker:
    """rounds.csv in the run's folder: a line per round, a column per number; cells of rounds without it are empty."""

    def __init__(self, place: str, folder: Path) -> None:
        self._path = outside_files.named(place) if place else folder / run_format.ROUNDS_CSV
        self._columns: list[str] = []

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        pass

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        if not {"round", *values} <= set(self._columns):
            self._widen(values)
        cells = {"round": step, **values}
        self._write([[cells.get(name, "") for name in self._columns]])

    def end(self, status: str, values: Mapping[str, float]) -> None:
        pass

    def _widen(self, values: Mapping[str, float]) -> None:
        """Add the columns that are missing, also to the lines of this file that are there."""
        there = outside_files.read_text(self._path, outside_files.LARGE) if self._path.exists() else ""
        head, *lines = list(csv.reader(io.StringIO(there))) or [["round"]]
        self._columns = list(dict.fromkeys([*head, "round", *values]))
        if self._columns != head or not lines:
            wide = ([*line, *[""] * (len(self._columns) - len(line))] for line in lines)
            owner_files.placed(self._path, _csv_of([self._columns, *wide]))

    def _write(self, lines: Sequence[Sequence[object]]) -> None:
        with owner_files.opened(self._path, "ab") as file:
            file.write(_csv_of(lines))


def _csv_of(lines: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


class TensorBoardTracker:
    """Event files in the run's folder, or in `place`: tensorboard --logdir runs."""

    def __init__(self, place: str, folder: Path) -> None:
        self._place = Path(place) / folder.name if place else folder / run_format.TENSORBOARD
        self._made = needed("tensorboard.summary", "tensorboard", 'track.to = ["tensorboard"]').Writer
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._writer = self._made(str(self._place))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, status: str, values: Mapping[str, float]) -> None:  # noqa: ARG002
        self._writer.close()


class MlflowTracker:
    """A run of MLflow at `place`: a server's address, sqlite:///FILE, or a folder, as MLflow takes them."""

    def __init__(self, place: str, folder: Path) -> None:
        client = needed("mlflow.tracking", "mlflow", 'track.to = ["mlflow:URI"]').MlflowClient
        uri = place or str(folder.parent / run_format.MLRUNS)
        self._connect: Callable[[], Any] = lambda: client(tracking_uri=uri)
        self._name = folder.name
        self._client: Any = None
        self._run = ""

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        self._client = self._connect()
        there = self._client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=self._name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, str(value)[:250])

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, status: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value)
        self._client.set_terminated(self._run, "FINISHED" if status == FINISHED else "FAILED")


class WandbTracker:
    """A run of Weights & Biases in the project `place`."""

    def __init__(self, place: str, folder: Path) -> None:
        self._wandb = needed("wandb", "wandb", 'track.to = ["wandb:PROJECT"]')
        self._project, self._folder = place or "fedgossip", folder
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:  # noqa: ARG002
        about = {"project": self._project, "name": self._folder.name, "dir": str(self._folder)}
        self._run = self._wandb.init(**about, config=dict(settings))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, status: str, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if status == FINISHED else 1)


KINDS: Mapping[str, Callable[[str, Path], Tracker]] = {
    "csv": CsvTracker,
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def _without_mask(name: str, place: str) -> str:
    """Return an address of a run's own copy, which has no password, for a library that looks for it elsewhere.

    Raises ConfigError where it is nowhere.
    """
    if name == "mlflow" and f"{MASK}@" in place and all(word in os.environ for word in MLFLOW_WORDS):
        return place.replace(f"{MASK}@", "")
    text = f"track.to: {name}:{place}: the password is not kept in a run's folder"
    raise ConfigError(text, f"Give the experiment file again, or set {' and '.join(MLFLOW_WORDS)} for MLflow.")


def make_tracker(text: str, folder: Path) -> Tracker:
    """Return the tracker named "name" or "name:place", for a run in `folder`.

    Raises ConfigError where a library is missing.
    """
    name, _, place = text.partition(":")
    if MASK in place:
        place = _without_mask(name, place)
    return KINDS[name](place, folder)
