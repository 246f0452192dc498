"""The run directory: the files of a run, during the run and after it.

`core.run_format` declares them.  metrics.jsonl grows during the run; summary.json is written last, before the report;
INCOMPLETE exists until then.  Status: `finished`; `exhausted` (the privacy budget); `partial`, without some
peers or a part of its work (`lacking`); `interrupted`; or `failed`.

Only one command at a time writes a run directory, on file systems with locks.  The forecast is written before the first
row, and compared at the end.  If messages or peers were lost, a second one for the actual mixing separates its errors
from the network's effects.  For a trained table, only the touched rows are stored.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, FedgossipError, NotWrittenError, ResumeError, not_writable
from fedgossip.base.keyed_rows import KeyedTable, Rows, frozen_keys
from fedgossip.base.scores import Score
from fedgossip.base.vectors import Vector
from fedgossip.core.forecasts import RunForecast, digest_of, encoded, kept, read_forecast, scores_kept
from fedgossip.core.machine import NodeId
from fedgossip.core.records import NetworkRow, Row, RowWriter, read_rows
from fedgossip.core.run_format import (
    AGREED,
    BEST,
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    EXPERIMENT,
    FORECAST,
    INCOMPLETE,
    LAUNCHED,
    MODEL,
    MODEL_BEST,
    PEERS,
    PLACED,
    PLAN,
    REPORT,
    ROLES,
    ROWS,
    SUMMARY,
)
from fedgossip.core.run_summary import ForecastFacts, RunSummary
from fedgossip.core.task import LocalTask, export_whole_model
from fedgossip.data.custom import ALLOW
from fedgossip.experiment import load_experiment
from fedgossip.learning.models import model_files
from fedgossip.plans import compose
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.compose import Plan
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.plan import EXHAUSTED, PARTIAL

_INCOMPLETE = "This run has not finished; metrics.jsonl has the measurements so far.\n"

WHOLE = frozenset({"finished", PARTIAL, EXHAUSTED})
"""Statuses of runs that ended regularly, with all files complete."""


@dataclass(frozen=True)
class TrainedTable:
    """`table` computes the untouched rows; `touched` stores the others."""

    table: KeyedTable
    touched: Rows

    def rows(self, keys: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Return the rows with these numbers, in their order, [k, width].  Raises ConfigError for an invalid number."""
        wanted = np.asarray(keys).reshape(-1)
        if wanted.size and not (np.issubdtype(wanted.dtype, np.integer) and wanted.min() >= 0):
            raise ConfigError(f"rows {wanted[:3]} of a table", "Rows are whole numbers from 0 on.")
        if wanted.size and wanted.max() >= self.table.rows:
            text = f"row {wanted.max()} of a table of {self.table.rows}"
            raise ConfigError(text, f"The last is {self.table.rows - 1}.")
        there, place = np.unique(wanted, return_inverse=True)
        found = np.array(self.table.first(frozen_keys(there))).reshape(-1, self.table.width)
        at = np.searchsorted(self.touched.keys, there)
        known = np.minimum(at, max(len(self.touched.keys) - 1, 0))
        here = self.touched.keys[known] == there if self.touched.keys.size else np.zeros(there.size, bool)
        found[here] = self.touched.matrix[known[here]]
        return found[place.reshape(-1)]

    @property
    def matrix(self) -> npt.NDArray[np.floating]:
        """The touched rows [k, width]."""
        return np.ascontiguousarray(self.touched.values).reshape(-1, self.table.width)


@dataclass(frozen=True, repr=False)
class Run:
    """An ended run.  `vectors` has the final vector of each peer in ascending order; None for a peer without one."""

    summary: RunSummary
    rows: list[Row]
    vectors: list[Vector | None]
    directory: Path | None
    table: TrainedTable | None = None
    """The model of a table: the touched rows of all servers together; None for a vector."""

    @property
    def digest(self) -> str | None:
        """sha256 over all final vectors; None if a peer did not finish."""
        value: str | None = self.summary["digest"]
        return value

    @property
    def score(self) -> Mapping[str, Any]:
        """averaged, mean_peer, worst_peer, on the common test set; and the metric's name, better, unit."""
        score: Mapping[str, Any] = self.summary["score"]
        return score

    @property
    def accuracy(self) -> Mapping[str, float | None]:
        """`score` of a run with accuracy as its score.  Raises ConfigError for other runs."""
        if self.score["name"] not in ("accuracy", ""):
            raise ConfigError(f"the score of this run is {self.score['name']}, not accuracy", "Use run.score.")
        return {which: self.score[which] for which in ("averaged", "mean_peer", "worst_peer")}

    def __repr__(self) -> str:
        place = f", directory={str(self.directory)!r}" if self.directory else ""
        return f"Run({self.summary['name']!r}, {self.summary['status']}, digest={(self.digest or 'none')[:16]}{place})"

    def network(self) -> list[NetworkRow]:
        """Return one row per round, for all peers together."""
        return [row for row in self.rows if isinstance(row, NetworkRow)]


class RunDirectory:
    """Made when a run starts; refuses a folder in use or with other content.

    As a context it closes its record and unlocks its folder.  `peers`: the participants' folders, made before
    experiment.toml, with which a stopped run can be resumed.
    """

    def __init__(self, path: Path, plan: Plan, foretold: Foretold | None = None, *, peers: Sequence[Path] = ()) -> None:
        try:
            owner_files.make_folder(path)
            if any(path.iterdir()):
                raise ConfigError(f"{path}: not empty", _advice_on(path))
            self._open(path, plan, foretold, peers=peers)
        except OSError as error:
            raise not_writable(path, error) from None

    @classmethod
    def again(cls, path: Path, plan: Plan, rows: int) -> RunDirectory:
        """Open the directory of a stopped run, and truncate its record to the first `rows` bytes."""
        directory = cls.__new__(cls)
        try:
            directory._open(path, plan, rows=rows)
        except OSError as error:
            raise not_writable(path, error) from None
        return directory

    def _open(
        self,
        path: Path,
        plan: Plan,
        foretold: Foretold | None = None,
        rows: int | None = None,
        peers: Sequence[Path] = (),
    ) -> None:
        self.path, self._gives_model = path, plan.gives_model
        with contextlib.ExitStack() as opened:
            opened.callback(RunLock(path).release)
            owner_files.written(path / INCOMPLETE, _INCOMPLETE.encode())
            if rows is not None:
                (path / SUMMARY).unlink(missing_ok=True)  # before the experiment: a summary that is there is of its run
            if foretold:
                write_whole(path / FORECAST, encoded(foretold.forecast))
            for folder in peers:
                owner_files.make_folder(folder)
            describe(path, plan)
            self.writer = RowWriter(path / ROWS)
            opened.callback(self.writer.close)
            if rows is not None:
                os.truncate(path / ROWS, min(rows, (path / ROWS).stat().st_size))
            self._opened = opened.pop_all()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def finish(
        self,
        summary: RunSummary,
        task: LocalTask,
        model: Vector | None,
        *,
        best: Vector | None = None,
        report: bool,
    ) -> None:
        """Write the model, the best round's model if kept, the summary and the report; on return the run counts as
        complete.
        """
        try:
            self._finish(summary, task, model, best, report=report)
        finally:
            self.abandon()

    def _finish(
        self, summary: RunSummary, task: LocalTask, model: Vector | None, best: Vector | None, *, report: bool
    ) -> None:
        self.writer.close()
        trained = summary["rounds"] > summary.get("rounds_abandoned", 0)
        if self._gives_model and model is not None and trained:
            save_model(self.path / MODEL, task, model, score=_scored(summary))
        if best is not None and trained:
            score = {**_scored(summary), "value": summary["best"]["score"], "rounds": summary["best"]["round"]}
            save_model(self.path / MODEL_BEST, task, best, score=score)
        _write_summary(self.path, summary)
        if summary["status"] in WHOLE:
            for name in (INCOMPLETE, CHECKPOINT, CHECKPOINT_BEFORE, BEST):
                (self.path / name).unlink(missing_ok=True)
        if report:
            from fedgossip.report.page.page import write_report

            try:
                write_report(self.path)
            except OSError as error:
                raise NotWrittenError(self.path / REPORT, error) from None

    def rows(self) -> list[Row]:
        """Return the record so far."""
        return read_rows(self.path / ROWS)

    def abandon(self) -> None:
        """Close the record with the rows so far; INCOMPLETE stays.  A second call, or one after `finish`, has no
        effect.
        """
        self._opened.close()


def keep(folder: Path, plan: Plan, run: Run) -> None:
    """Write the results of a run without a directory into a new one.

    Raises ConfigError, NotWrittenError.
    """
    try:
        owner_files.make_folder(folder)
        writer = RowWriter(folder / ROWS)
    except OSError as error:
        raise not_writable(folder, error) from None
    for row in run.rows:
        writer.write(row)
    writer.close()
    describe(folder, plan)
    _write_summary(folder, run.summary)


def _write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    write_whole(folder / SUMMARY, msgspec.json.format(msgspec.json.encode(summary), indent=1))


def new_path(plan: Plan, driver: str, base: Path) -> Path:
    """Return runs/NAME-nN-DRIVER-TIME, a new folder."""
    name = plan.experiment.name or plan.name
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or "run"
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    path = base / f"{safe}-n{plan.learners}-{driver}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = base / f"{safe}-n{plan.learners}-{driver}-{stamp}-{number}"
    return path


def _advice_on(path: Path) -> str:
    new = "Give a new folder with --out, or none to have one made."
    simulated_loops = (path / LAUNCHED).exists() and not is_launched(path)  # each time from their beginning
    stopped = ((path / INCOMPLETE).exists() or (path / SUMMARY).exists()) and not simulated_loops
    return f"To resume it: {resume_line(path)}.  {new}" if stopped else new


def resume_line(path: Path) -> str:
    """Return the command that resumes the run of a folder; it allows the paths outside the folder that the run
    names.
    """
    command = "launch" if is_launched(path) or is_placed(path) else "run"
    allowed = f" {ALLOW}" if is_launched(path) or _reaches_out(path) else ""
    return f"fedgossip {command} --resume {shlex.quote(os.fspath(path))}{allowed}"


def _reaches_out(path: Path) -> bool:
    try:
        return bool(load_experiment(path / EXPERIMENT).reaches)
    except FedgossipError:
        return False


def is_launched(path: Path) -> bool:
    """Return whether a run directory belongs to launched scripts."""
    return (path / LAUNCHED).exists() and (path / PEERS).is_dir()


def is_placed(path: Path) -> bool:
    """Return whether the participants of a run directory ran on a cluster."""
    return (path / PLACED).is_file()


def describe(folder: Path, plan: Plan) -> None:
    """Write the roles of the participants and the resolved experiment, for readers."""
    import tomli_w

    write_whole(folder / ROLES, msgspec.json.encode({"name": plan.name, "roles": plan.roles.plain}))
    write_whole(folder / EXPERIMENT, tomli_w.dumps(plan.experiment.to_dict()).encode())


def state_plan(folder: Path, plan: Plan, task: LocalTask) -> None:
    """Write the plan that a federated run's sites were asked to approve, and the statistics, which the plan lacks.

    Raises NotWrittenError.
    """
    if isinstance(plan, FederationPlan) and plan.gives_model:
        plan_statement.write(folder / PLAN, plan_statement.statement_of(plan, task))
        if plan_statement.agrees(plan.experiment):
            agreed = outside_files.resolve(plan.experiment.data.agreed)
            write_whole(folder / AGREED, outside_files.read_bytes(agreed))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically.  Raises NotWrittenError; `path` is unchanged then."""
    part = path.with_name(path.name + ".part")
    try:
        owner_files.written(part, content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise NotWrittenError(path, error) from None


def save_model(
    folder: Path, task: LocalTask, vector: Vector, node: NodeId | None = None, *, score: Mapping[str, Any]
) -> None:
    """Write a model's folder: of `node` with its local parts, or of all.  Raises NotWrittenError."""
    model = export_whole_model(task, vector, node)
    try:
        model_files.write_model(
            folder, model, write_whole, schema=task.schema, node=node, score=score, versions=compose.versions()
        )
    except OSError as error:
        raise NotWrittenError(folder, error) from None


def _scored(summary: RunSummary) -> dict[str, Any]:
    """Return the facts on a run's score for a model's folder."""
    score, (kind, colon, rest) = summary["score"], summary["data"]["test"].partition(":")
    path, mark, query = rest.partition("?")
    on = f"{kind}{colon}{Path(path).name}{mark}{query}" if mark else summary["data"]["test"]  # not the folder
    return {"name": score["name"], "value": score["averaged"], "on": on, "rounds": summary["rounds"]}


def add_centralised(run: Run, metrics: dict[str, float]) -> None:
    """Add the metrics of centralised training to a finished run's summary, in memory and in its directory."""
    run.summary["centralised"] = metrics
    if run.directory:
        _write_summary(run.directory, {key: value for key, value in run.summary.items() if key != "run_dir"})


PATIENCE_SECONDS = 5.0
"""Time before a folder counts as in use by another command: the processes of a killed one end a little later."""


class RunLock:
    """The lock of the run in `folder`, until `release`.  Raises ResumeError if another command has it."""

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(folder, os.O_RDONLY)
            free = self._await()
        except OSError:
            free = True
        if not free:
            self.release()
            advice = f"Wait until it has ended, or end it; to see it: fedgossip watch {shlex.quote(str(folder))}"
            raise ResumeError(f"{folder}: another command is running in it", advice)

    def _await(self) -> bool:
        assert self._file is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while not (free := owner_files.try_lock(self._file)) and time.monotonic() < until:
            time.sleep(0.05)
        return free

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._file is not None:
            owner_files.unlock(self._file)
            os.close(self._file)
            self._file = None


def check_free(folder: Path) -> None:
    """Raise ResumeError if a command is running in `folder`."""
    RunLock(folder).release()


@dataclass(frozen=True)
class Foretold:
    """A forecast and the sha256 of its file."""

    forecast: RunForecast
    sha256: str
    again: Callable[[Sequence[Row]], RunForecast | None] | None = None
    """Computes the same forecast for the recorded mixing of the rounds; returns None if all went as planned."""

    @classmethod
    def from_forecast(cls, forecast: RunForecast | None) -> Foretold | None:
        """Return the forecast of a starting run."""
        return None if forecast is None else cls(forecast, digest_of(encoded(forecast)))

    @classmethod
    def read(cls, folder: Path) -> Foretold | None:
        """Return the forecast of a resumed run.  Raises ConfigError for an invalid file."""
        found = read_forecast(folder)
        return None if found is None else cls(*found)

    def realised(self, rows: Sequence[Row]) -> RunForecast | None:
        """Return the forecast for the mixing that took place, after losses."""
        return self.again(rows) if self.again else None

    def facts(self, rows: Sequence[NetworkRow], score: Score, realised: RunForecast | None = None) -> ForecastFacts:
        """Return the summary's facts on the forecast, and on that of the actual mixing."""
        one = self.forecast
        later: ForecastFacts = {} if realised is None else {"forecast_realised_kept": kept(realised, rows)}
        file = {"level": one.level, "sha256": self.sha256, "exact": one.exact, "width": one.width, "wide": one.wide}
        return {
            "forecast_file": file,
            "forecast_kept": kept(one, rows),
            "forecast_scores_kept": scores_kept(one, rows, share=score.share),
            **later,
        }
