"""The run directory: the files that a run leaves, and how they look while it is not finished.

    experiment.toml      the resolved experiment
    roles.json           who takes part, as what
    plan.json            of a federated run, what its sites are asked to approve; approval.jsonl: a site's answer
    metrics.jsonl        a line per peer and round, per round, per event; written as they come
    summary.json         written last, in one piece
    forecast.json        what was forecast, written before the first row; where that was asked for
    forecast-realised.json   the same of the rounds as they were mixed, where messages or peers were lost
    model/               the averaged model with all that it takes to use it, see learning.model_files
    table.safetensors    of a model that is a table, the rows that were touched
    report.html          one page, no external request
    peers/03/            what each real process wrote itself
    launched.json        the script of loops that were launched or simulated, and its arguments
    placed.json          what was asked of a cluster, and cluster/: how its tasks met; of a run that was placed on one
    INCOMPLETE           there until all of the above is, and still there when a run was interrupted or failed

A run's status is `finished`; `exhausted`, when its budget of privacy was; `partial`, when it came to its end without
some of the peers, or of what it is for (`lacking`); `interrupted`, by somebody; or `failed`, when a peer's training or
network did.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedgossip import kernels, owner_files
from fedgossip.checkpoints import NEWEST, PREVIOUS
from fedgossip.errors import ConfigError, NotWrittenError
from fedgossip.forecasts import FORECAST, REALISED, encoded
from fedgossip.learning import model_files
from fedgossip.learning.model_files import MODEL
from fedgossip.machine import NodeId
from fedgossip.metrics import Network
from fedgossip.plans import compose, plan_statement
from fedgossip.plans.completeness import Lacking
from fedgossip.plans.compose import DataShares, Plan
from fedgossip.plans.federation import FederationPlan
from fedgossip.plans.plan import EXHAUSTED, PARTIAL
from fedgossip.records import EventRow, NetworkRow, Row, RowWriter, read_rows
from fedgossip.report.reading import LAUNCHED
from fedgossip.roles import ROLES
from fedgossip.rundir.busiest import busiest
from fedgossip.rundir.foretold import Foretold
from fedgossip.rundir.races import race_facts
from fedgossip.rundir.tracking import Tracking
from fedgossip.rundir.trained_table import TrainedTable
from fedgossip.scores import Score
from fedgossip.task import LocalTask, whole_model_of
from fedgossip.vectors import Vector, consensus_distance, digest, mean

INCOMPLETE = "INCOMPLETE"
_INCOMPLETE = "This run has not finished; metrics.jsonl holds what was measured so far.\n"

PLACED = "placed.json"
"""What was asked of a cluster for a run whose participants were placed on one."""

CAUSES_KEPT = 20
"""Maximum number of causes of refusals in a summary."""

WHOLE = frozenset({"finished", PARTIAL, EXHAUSTED})
"""The statuses of runs that ended by themselves, and of which nothing is half written."""


@dataclass(frozen=True)
class Run:
    """A run that ended.  `vectors` holds the final vector of each peer, ascending; None where a peer has none."""

    summary: dict[str, Any]
    rows: list[Row]
    vectors: list[Vector | None]
    directory: Path | None
    table: TrainedTable | None = None
    """The model, where it is a table, which servers hold: their touched rows together."""

    @property
    def digest(self) -> str | None:
        """sha256 over all final vectors; None where a peer did not finish."""
        value: str | None = self.summary["digest"]
        return value

    @property
    def score(self) -> Mapping[str, Any]:
        """averaged, mean_peer, worst_peer, on the common test set; and name, better, unit: which metric that is."""
        score: Mapping[str, Any] = self.summary["score"]
        return score

    @property
    def accuracy(self) -> Mapping[str, float | None]:
        """`score` of a run that is judged by its accuracy.  Raises ConfigError for other runs."""
        if self.score["name"] not in ("accuracy", ""):
            raise ConfigError(f"the score of this run is {self.score['name']}, not accuracy", "Use run.score.")
        return {which: self.score[which] for which in ("averaged", "mean_peer", "worst_peer")}

    def network(self) -> list[NetworkRow]:
        """One row per round, for all peers together."""
        return [row for row in self.rows if isinstance(row, NetworkRow)]


class RunDirectory:
    """Made when a run starts; refuses a folder that holds something else."""

    def __init__(self, path: Path, plan: Plan, foretold: Foretold | None = None) -> None:
        try:
            owner_files.made(path)
            if any(path.iterdir()):
                raise ConfigError(f"{path}: not empty", _advice_on(path))
            self._open(path, plan, foretold)
        except OSError as error:
            raise _not_writable(path, error) from None

    @classmethod
    def again(cls, path: Path, plan: Plan, rows: int) -> RunDirectory:
        """Open the directory of a run that was stopped, and cut its record to the first `rows` bytes."""
        directory = cls.__new__(cls)
        try:
            directory._open(path, plan)
            os.truncate(path / "metrics.jsonl", min(rows, (path / "metrics.jsonl").stat().st_size))
            (path / "summary.json").unlink(missing_ok=True)
        except OSError as error:
            raise _not_writable(path, error) from None
        return directory

    def _open(self, path: Path, plan: Plan, foretold: Foretold | None = None) -> None:
        self.path, self._gives_model = path, plan.gives_model
        owner_files.written(path / INCOMPLETE, _INCOMPLETE.encode())
        if foretold:
            write_whole(path / FORECAST, encoded(foretold.forecast))
        describe(path, plan)
        self.writer = RowWriter(path / "metrics.jsonl")

    def finish(self, summary: Mapping[str, Any], task: LocalTask, model: Vector | None, *, report: bool) -> None:
        """Write the model, the summary and the report; the run counts as whole when this returns."""
        self.writer.close()
        if (
            self._gives_model and model is not None and summary["rounds"] > summary.get("rounds_abandoned", 0)
        ):  # one that was trained
            save_model(self.path / MODEL, task, model, score=_scored(summary))
        _write_summary(self.path, summary)
        if report:
            from fedgossip.report.page import write_report

            try:
                write_report(self.path)
            except OSError as error:
                raise NotWrittenError(self.path / "report.html", error) from None
        if summary["status"] in WHOLE:
            for name in (INCOMPLETE, NEWEST, PREVIOUS):
                (self.path / name).unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """Return the record so far."""
        return read_rows(self.path / "metrics.jsonl")

    def abandon(self) -> None:
        """Close the record with what was measured so far; INCOMPLETE stays beside it."""
        self.writer.close()


def keep(folder: Path, plan: Plan, run: Run) -> None:
    """Write what a run was, that has ended without a directory, into a new one.

    Raises ConfigError, NotWrittenError.
    """
    try:
        owner_files.made(folder)
        writer = RowWriter(folder / "metrics.jsonl")
    except OSError as error:
        raise _not_writable(folder, error) from None
    for row in run.rows:
        writer.write(row)
    writer.close()
    describe(folder, plan)
    _write_summary(folder, run.summary)


def _write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    write_whole(folder / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=1))


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: {error.strerror}", "Choose a folder that can be written, with --out.")


def new_path(plan: Plan, driver: str, base: Path) -> Path:
    """Return runs/NAME-nN-DRIVER-TIME, a folder that does not exist yet."""
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
    """Return the advice for a folder that is not empty: a run that stopped there can go on."""
    new = "Give a new folder with --out, or none to have one made."
    stopped = (path / INCOMPLETE).exists() or (path / "summary.json").exists()
    command = "launch" if is_launched(path) or is_placed(path) else "run"
    return f"To go on with it: fedgossip {command} --resume {shlex.quote(str(path))}.  {new}" if stopped else new


def is_launched(path: Path) -> bool:
    """Whether a run directory is one of scripts that were launched."""
    return (path / LAUNCHED).exists() and (path / "peers").is_dir()


def is_placed(path: Path) -> bool:
    """Whether a run directory is one whose participants were placed on a cluster."""
    return (path / PLACED).is_file()


def describe(folder: Path, plan: Plan) -> None:
    """Write what the run is, for its readers: the roles of those that take part, and the resolved experiment."""
    import tomli_w

    write_whole(folder / ROLES, msgspec.json.encode({"name": plan.name, "roles": plan.roles.plain}))
    write_whole(folder / "experiment.toml", tomli_w.dumps(plan.experiment.to_dict()).encode())


def state_plan(folder: Path, plan: Plan, task: LocalTask) -> None:
    """Write what the sites of a federated run were asked to approve.  Raises NotWrittenError."""
    if isinstance(plan, FederationPlan) and plan.gives_model:
        plan_statement.write(folder / plan_statement.PLAN, plan_statement.statement_of(plan, task))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none.  Raises NotWrittenError; `path` is unchanged then."""
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
    """Write the folder of a model: of `node` with what stays there, or of all.  Raises NotWrittenError."""
    model = whole_model_of(task, vector, node)
    try:
        model_files.write_model(
            folder, model, write_whole, schema=task.schema, node=node, score=score, versions=compose.versions()
        )
    except OSError as error:
        raise NotWrittenError(folder, error) from None


def _scored(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's folder says of the score of a run: of the averaged model, on which examples."""
    score, (kind, colon, rest) = summary["score"], summary["data"]["test"].partition(":")
    path, mark, query = rest.partition("?")
    on = f"{kind}{colon}{Path(path).name}{mark}{query}" if mark else summary["data"]["test"]  # folders are nobody's
    return {"name": score["name"], "value": score["averaged"], "on": on, "rounds": summary["rounds"]}


class Keeper:
    """Passes every row of a run on: to the file, to memory for the caller, and to watchers."""

    def __init__(
        self,
        directory: RunDirectory | None,
        watch: Callable[[Row], None] | None,
        tracking: Tracking | None = None,
        foretold: Foretold | None = None,
    ) -> None:
        self._tracking = tracking
        self.foretold = foretold
        if tracking:
            tracking.begin()
        self.rows: list[Row] = []
        self.events: dict[str, int] = {}
        self._directory, self._watch = directory, watch

    @property
    def lost(self) -> int:
        """The number of rows that did not fit on the disk."""
        return self._directory.writer.lost if self._directory else 0

    def remember(self, rows: Sequence[Row]) -> None:
        """Read the rows of the part of the run that is written already."""
        for row in rows:
            self._take(row)

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        if isinstance(row, EventRow):
            self.events[row.name] = self.events.get(row.name, 0) + 1

    def __call__(self, row: Row) -> None:
        told = self._directory.writer.write(row) if self._directory else None
        for one in (row, told) if told else (row,):
            self._take(one)
            if self._watch:
                self._watch(one)
        self._track(row)

    def all(self, rows: Sequence[Row]) -> None:
        """Pass rows on that came at once: all are in the file before the first is watched."""
        told = list(self._directory.writer.write_all(rows)) if self._directory else []
        self.rows += rows
        for row in rows:
            if type(row) is EventRow:
                self.events[row.name] = self.events.get(row.name, 0) + 1
            if self._watch:
                self._watch(row)
        for event in told:
            self._take(event)
            if self._watch:
                self._watch(event)
        for row in rows if self._tracking else ():
            self._track(row)

    def _track(self, row: Row) -> None:
        if self._tracking and isinstance(row, NetworkRow):
            self._tracking.row(row)
            self._tell_failures(self._tracking)

    def ended(self, status: str) -> None:
        """Let the trackers finish: the run ended so."""
        if self._tracking:
            last = next((row for row in reversed(self.rows) if isinstance(row, NetworkRow)), None)
            self._tracking.end(status, last)
            self._tell_failures(self._tracking)

    def held_against_the_forecast(self, rows: Sequence[NetworkRow], score: Score, *, whole: bool) -> dict[str, Any]:
        """Return what the summary says of the forecast; where messages were lost, write that of what was mixed."""
        if self.foretold is None:
            return {}
        realised = self.foretold.realised(self.rows) if whole else None
        if realised and self._directory:
            write_whole(self._directory.path / REALISED, encoded(realised))
        return self.foretold.facts(rows, score, realised)

    def _tell_failures(self, tracking: Tracking) -> None:
        for event in tracking.failures():
            self(event)


@dataclass(frozen=True)
class RunOutcome:
    """How a driver left a run: the final vectors, and the counts of what happened."""

    vectors: Sequence[Vector | None]
    counts: Mapping[str, int]
    status: str
    wall_seconds: float | None
    """None where the driver was not there."""
    payload: Mapping[tuple[NodeId, NodeId], int] = field(default_factory=dict)
    """Bytes of vectors on each link, where the driver has links."""


def status_of(plan: Plan, words: Sequence[str | None], rows: Sequence[Row]) -> str:
    """Return the run's status, by everybody's last word; partial where something that it is for is lacking."""
    said = plan.verdict(words)
    return PARTIAL if said == "finished" and plan.lacking(rows).said else said


def summarize(
    plan: Plan, driver: str, task: LocalTask, shares: DataShares, record: Network, keeper: Keeper, ended: RunOutcome
) -> dict[str, Any]:
    """Return the summary of a run, as summary.json and `--json` have it."""
    networks = [row for row in keeper.rows if isinstance(row, NetworkRow)]
    last = networks[-1] if networks else NetworkRow(0, plan.n, 0.0, 0)
    outcome = plan.outcome(ended.vectors)
    there = [vector for vector in outcome if vector is not None]
    evaluated = next((row for row in reversed(networks) if row.test_loss is not None), last)
    if evaluated is not last and there:  # the run ended before the round that would have been evaluated
        evaluated = NetworkRow(last.round, len(there), last.seconds, last.bytes_sent)
        record.fill(evaluated, there)
    whole = len(there) == len(outcome) and ended.status in WHOLE
    experiment = plan.experiment
    events = {**keeper.events, **ended.counts}
    if keeper.lost:
        events["rows_lost"] = ended.counts.get("rows_lost", 0) + keeper.lost
    lacking = plan.lacking(keeper.rows) if ended.status == PARTIAL else Lacking()
    return {
        "name": experiment.name or plan.name,
        "driver": driver,
        "status": ended.status,
        "lacking": lacking.said,
        "in_vain": lacking.in_vain,
        "seed": experiment.seed,
        "n": plan.learners,
        "roles": plan.roles.plain,
        "rounds": last.round,
        "digest": digest(there) if whole else None,
        "score": {
            **told_of(experiment.score),
            "averaged": evaluated.score_averaged,
            "mean_peer": evaluated.score_mean_peer,
            "worst_peer": evaluated.score_worst_peer,
        },
        "test_loss": evaluated.test_loss,
        "consensus_distance": consensus_distance(there) if there else last.consensus_distance,
        "bytes_sent": last.bytes_sent,
        "busiest": busiest(keeper.rows, ended.payload),
        "seconds": last.seconds,
        "wall_seconds": ended.wall_seconds,
        "parameters": task.length,
        "dtype": task.dtype.name,
        "schema": task.schema,
        "measured_contraction": record.measured_contraction(),
        "events": dict(sorted(events.items())),
        "refusals": refusals(keeper.rows),
        "data": {
            "source": shares.source,
            "test": shares.test,
            "classes": shares.classes,
            "shares": shares.counts,
            "sizes": shares.sizes,
            **({"notes": list(shares.notes)} if shares.notes else {}),
        },
        "versions": compose.versions(),
        "cores": os.cpu_count(),
        "processor": kernels.processor(),
        "kernels": kernels.used(),
        **race_facts(experiment, keeper.rows),
        **plan.facts(keeper.rows),
        **keeper.held_against_the_forecast(networks, experiment.score, whole=ended.status in (*WHOLE, PARTIAL)),
    }


def told_of(score: Score) -> dict[str, str]:
    """What a summary says of the metric beside its three values."""
    return {"name": score.name, "better": score.better, "unit": score.unit}


def refusals(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return why each participant refused something: each cause once, with its count, the most frequent first."""
    earlier: dict[tuple[NodeId, str, str], int] = {}  # refusals of lives that are over
    newest: dict[tuple[NodeId, str, str], int] = {}
    for row in rows:
        if isinstance(row, EventRow) and row.name == "refused":
            facts = row.value if isinstance(row.value, Mapping) else {"text": row.value}
            cause = row.peer, str(facts.get("text") or facts.get("reason")), str(facts.get("advice", ""))
            count = facts.get("count", 1)  # refusals of this life so far
            before, newest[cause] = newest.get(cause, 0), count if isinstance(count, int) else 1
            earlier[cause] = earlier.get(cause, 0) + (before if newest[cause] <= before else 0)
    total = {cause: count + earlier[cause] for cause, count in newest.items()}
    found = sorted(total, key=lambda cause: (-total[cause], cause))
    return [
        {"peer": peer, "times": total[peer, text, advice], "text": text, "advice": advice}
        for peer, text, advice in found[:CAUSES_KEPT]
    ]


def amend(run: Run, **facts: Any) -> None:
    """Add facts to a finished run's summary, in memory and in its directory."""
    run.summary.update(facts)
    if run.directory:
        _write_summary(run.directory, {key: value for key, value in run.summary.items() if key != "run_dir"})


def averaged(vectors: Sequence[Vector | None]) -> Vector | None:
    """Return the mean of the vectors that are there."""
    there = [vector for vector in vectors if vector is not None]
    return mean(there) if there else None
