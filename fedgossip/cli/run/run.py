"""`fedgossip run`: reads an experiment file and runs it; with --dry-run it only prints the properties of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli import STOPPED, LackingFileError
from fedgossip.cli.run.participant import portable_option, run_code_option, trace_limit_option
from fedgossip.cli.text import columns, echo, find_given, print_json, some, talk_to_stderr, times
from fedgossip.core import run_format
from fedgossip.core.records import kind_of
from fedgossip.core.roles import roles_in
from fedgossip.core.run_summary import RunSummary, StepFacts
from fedgossip.data.objectives import read_score

if TYPE_CHECKING:
    from fedgossip.core.records import Row
    from fedgossip.core.task import LocalTask
    from fedgossip.drivers.peer_processes import PeerProcesses
    from fedgossip.experiment import Experiment
    from fedgossip.learning.processes.step_costs import ProcessMemory
    from fedgossip.learning.settings import TrainSettings
    from fedgossip.plans.plan import Plan
    from fedgossip.runs.run_directory import Run


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path), required=False)
@click.option(
    "--on",
    type=click.Choice(["sim", "stacked", "local"]),
    default="sim",
    show_default=True,
    help="sim: machines in virtual time.  stacked: arrays only, fastest.  local: a process per peer, ZeroMQ.",
)
@click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Replace a key of the file, e.g. --set train.lr=0.05; may be repeated.",
)
@click.option("-n", "--n", "n", type=click.IntRange(min=1), help="Replace how many learn: topology.n, or of its kind.")
@portable_option
@click.option("--seed", type=int, help="Replace the file's seed.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make.  [default: runs/NAME-TIME]")
@click.option(
    "--resume",
    "stopped",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Resume a run that was stopped, in its folder; EXPERIMENT may be left out.",
)
@run_code_option
@click.option(
    "--faults",
    type=click.Path(path_type=Path),
    help="Replace the file's [[faults]] by those of this file, which has nothing else.",
)
@click.option("--trace", is_flag=True, help="With --on local: write a trace of the peers' events, for replay.")
@trace_limit_option
@click.option("--dry-run", is_flag=True, help="Check everything, print the forecast, train nothing.")
@click.option("--report/--no-report", default=True, help="Write report.html.")
@click.option(
    "--centralised", is_flag=True, help="Then train one model on all data with as many steps and examples, to compare."
)
@click.option(
    "--forecast",
    type=click.Choice(["auto", "none", "probe", "shadow", "followed", "drawn"]),
    default="auto",
    help="Forecast the run before it begins; replaces forecast.level.  auto: where the whole answer is known, as of "
    "quadratics.  [default: forecast.level]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def run(
    experiment: Path | None,
    on: str,
    overrides: tuple[str, ...],
    n: int | None,
    seed: int | None,
    out: Path | None,
    stopped: Path | None,
    run_code: bool,
    faults: Path | None,
    trace: bool,
    trace_limit: float,
    dry_run: bool,
    report: bool,
    centralised: bool,
    forecast: str,
    as_json: bool,
) -> int:
    """Run the experiment in the file EXPERIMENT."""
    from fedgossip.experiment import faults_in, ignored_by, load_experiment

    if stopped:
        from fedgossip.drivers import resume

        if given := find_given("n", "on", "out", "forecast", "faults"):
            option = f"-{given}" if given == "n" else f"--{given}"
            raise click.UsageError(f"--resume and {option}: a run resumes in its folder, as it began")
        on = resume.engine_of(stopped)
    elif experiment is None:
        raise LackingFileError("which experiment?  Give its file, or --resume RUN.")
    if trace and on != "local":
        raise click.UsageError("--trace needs --on local: a simulation can be repeated without it")
    if stopped:
        wanted = resume.experiment_of(stopped, experiment, overrides, seed, run_code=run_code)
    else:
        assert experiment is not None, "one of both is given"
        script = faults_in(faults) if faults else None
        wanted = load_experiment(experiment, overrides, size=n, seed=seed, faults=script)
    if dry_run:
        from fedgossip.plans import compose

        show_plan(compose.plan(wanted), on=on, trace_bytes=int(trace_limit * 1e9) if trace else 0, as_json=as_json)
        return 0
    with _processes(wanted, on) as family:
        from fedgossip.plans import compose

        plan = compose.plan(wanted)
        for line in [*plan.banner, *ignored_by(on, plan.experiment)]:
            echo(line, err=True)
        from fedgossip.runs.run_directory import new_path

        drive = _Drive(on, report, int(trace_limit * 1e9) if trace else 0, forecast, family)
        path = stopped or out or new_path(plan, on, Path("runs"))

        def driven() -> Run:
            finished = drive(plan, path, resumed=stopped is not None)
            if centralised:
                from fedgossip.runs.run_directory import add_centralised

                add_centralised(finished, compose.centralised(plan.experiment, plan.learners))
            return finished

        return concluded(driven, path, report=report, as_json=as_json)


def concluded(
    drive: Callable[[], Run],
    path: Path,
    *,
    report: bool,
    as_json: bool,
    again: str = "",
    resumable: Callable[[Path], bool] | None = None,
) -> int:
    """Complete a run by `drive`, print the result, and return the exit code: the common end of `run`, `launch` and
    `place`.

    After a stop the last line is the command that resumes: `again`, by default that of the folder `path`.  `resumable`:
    whether the run in a folder can resume, which a stop in its first seconds prevents.
    """
    from fedgossip.drivers import resume

    try:
        with talk_to_stderr() if as_json else contextlib.nullcontext():
            finished = drive()
        if as_json:
            print_json(finished.summary)
        else:
            show(finished, report=report)
    except KeyboardInterrupt:
        return _stopped_at_once(path, again, resumable or resume.may_go_on)
    if (code := exit_code(finished)) == STOPPED and finished.directory:
        echo(again or f"To go on: {resume.line(path)}", err=True)
    return code


def _processes(experiment: Experiment, on: str) -> contextlib.AbstractContextManager[PeerProcesses | None]:
    """Return the processes of a local run: they import while this process does."""
    if on != "local":
        return contextlib.nullcontext()
    from fedgossip.drivers.peer_processes import processes_for

    return processes_for(experiment)


def _stopped_at_once(path: Path, again: str, resumable: Callable[[Path], bool]) -> int:
    from fedgossip.drivers import resume

    if resume.is_over(path):
        echo(f"error: stopped when the run was over: all of it is in {path}", err=True)
    elif resumable(path) or _has_rounds(path):
        echo(f"error: stopped at once\n{again or f'To go on: {resume.line(path)}'}", err=True)
    else:
        echo("error: stopped before the run began: nothing was trained yet", err=True)
    return STOPPED


def _has_rounds(path: Path) -> bool:
    from fedgossip.core.records import read_rows

    record = path / run_format.ROWS
    return record.exists() and any(row.round for row in read_rows(record))


def exit_code(finished: Run) -> int:
    """Return 0 for a run that finished; one that failed raised its error."""
    from fedgossip.base.errors import PARTIAL_EXIT, BudgetError, TooFewPeersError

    partial = TooFewPeersError.exit_code if finished.summary["in_vain"] else PARTIAL_EXIT
    codes = {"finished": 0, "partial": partial, "exhausted": BudgetError.exit_code, "interrupted": STOPPED}
    return codes[finished.summary["status"]]


@dataclass(frozen=True)
class _Drive:
    """The options of a run."""

    on: str
    report: bool
    trace_bytes: int
    forecast: str | None = None
    family: PeerProcesses | None = None

    def __call__(self, plan: Plan, out: Path, *, resumed: bool) -> Run:
        from fedgossip.cli.run.progress import Progress

        title = f"{plan.experiment.name or plan.name} on {self.on}"
        rounds, score = plan.experiment.rounds, plan.experiment.score
        with Progress(title, rounds, plan.roles, score=score) as progress:
            if resumed:
                from fedgossip.drivers.resume import resume

                how: dict[str, Any] = {"trace_bytes": self.trace_bytes, "family": self.family}
                return resume(out, plan.experiment, report=self.report, watch=progress, **how)
            if self.on == "local":
                from fedgossip.drivers.local import run_local_plan

                how = {"trace_bytes": self.trace_bytes, "forecast": self.forecast, "family": self.family}
                return run_local_plan(plan, out, report=self.report, watch=progress, **how)
            from fedgossip.drivers.simulate import simulate_plan

            return simulate_plan(
                plan, engine=self.on, out=out, report=self.report, watch=progress, forecast=self.forecast
            )


REFUSALS_SHOWN = 4
BEFORE_THE_FIRST_ROUND = "stopped before the first round was over: nothing was trained yet"

ENDINGS = {
    "partial": "some participants did not reach the end; the others did",
    "interrupted": "stopped before its end; all results until then are stored",
    "exhausted": "its privacy budget ended it: the next round would have crossed it; the model so far is kept",
}


def show(finished: Run, *, report: bool = True) -> None:
    """Print the results of a run, for people."""
    echo(columns([*facts(finished.summary, finished.rows), *_closing_lines(finished, report=report)]))


def facts(summary: RunSummary, record: Sequence[Row] = ()) -> list[tuple[str, str]]:
    """Return the lines of a run's summary, each a name and the value in words.  Some values are only in its record."""
    from fedgossip.core.records import PeerRow
    from fedgossip.report.page.numbers import data_size

    rows, roles = [*_described(summary, record), *_forecast(summary)], roles_in(summary)
    recorded = {row.peer for row in record if isinstance(row, PeerRow)}
    who = f"the {roles.label(*recorded)} alone" if recorded == {roles.leader} else "all"
    rows.append(("sent", f"{data_size(summary['bytes_sent'])} by {who}"))
    if summary["driver"] != "stacked":
        rows.append(("time", _time(summary)))
    rows += [("data", note) for note in summary.get("data", {}).get("notes", [])]
    rows += _events(summary)
    if "inside" in summary:
        rows.append(("a step", describe_step(summary["inside"])))
    if sent := summary.get("inside_bytes"):
        rows.append(("sent inside", f"{sent:,} bytes by a process to others of its participant, in the whole run"))
    if "lost_updates" in summary:
        rows.append(("lost updates", f"{100 * summary['lost_updates']:.2g} % of the elements that the processes wrote"))
    alone = "" if summary.get("identical", True) else "  (of this run alone: processes raced)"
    rows.append(
        ("digest", f"{summary['digest']}{alone}" if summary["digest"] else "none: the run did not reach its end")
    )
    return rows


def _time(summary: RunSummary) -> str:
    """Return the rounds' time by the run's clock, and the command's by the wall clock."""
    simulated, wall = summary["driver"] == "sim", summary["wall_seconds"]
    rounds = f"{summary['seconds']:.2f} s {'virtual' if simulated else 'wall-clock'}, of the rounds"
    beside = "to simulate" if simulated else "with start and end"
    return rounds + ("" if wall is None else f"; {wall:.1f} s wall-clock {beside}")


def _described(summary: RunSummary, record: Sequence[Row]) -> list[tuple[str, str]]:
    if summary["mode"] == "federated":
        return _federated(summary, record)
    if "forecast" in summary:
        return _gossiped(summary)
    from fedgossip.report.watch.follow import DRIVERS

    what = (
        f"{roles_in(summary).wording}, {summary.get('algorithm', summary['name'])}, {some(summary['rounds'], 'round')}"
    )
    return [("run", f"{what}, {DRIVERS[summary['driver']]}"), *_compared(summary)]


def _events(summary: RunSummary) -> list[tuple[str, str]]:
    from fedgossip.report.page.reasons import gravest_first

    roles = roles_in(summary)
    counts = [f"{count} {name.replace('_', ' ')}" for name, count in gravest_first(summary["events"])]
    rows = [("events", ", ".join(counts))] if counts else []
    for cause in summary.get("refusals", [])[:REFUSALS_SHOWN]:
        text = f"by {roles.label(cause['peer'])}, {times(cause['times'])}: {cause['text']}  {cause['advice']}"
        rows.append(("refused", text.strip()))
    return rows


def _closing_lines(finished: Run, *, report: bool) -> list[tuple[str, str]]:
    """Return the last lines: whether the run is complete, its scores, the model's path."""
    summary, folder = finished.summary, finished.directory
    rows: list[tuple[str, str]] = []
    if folder:
        rows.append(("everything", f"in {folder}" + (f"; open {folder / run_format.REPORT}" if report else "")))
    status = summary["status"]
    if words := BEFORE_THE_FIRST_ROUND if status == "interrupted" and not summary["rounds"] else ENDINGS.get(status):
        rows += [("" if place else status.upper(), one) for place, one in enumerate(summary["lacking"] or [words])]
    elif status == "finished":
        rows += [("" if place else "MISSING", one) for place, one in enumerate(summary["lacking"])]
    rows += [*_reached(summary), *_best(summary)]
    return [*rows, *_model(finished)]


DISTILLED = "distilled from the mean logits"


def _reached(summary: RunSummary) -> list[tuple[str, str]]:
    scores = summary["score"]
    score = read_score(scores)
    if scores["averaged"] is None and scores["mean_peer"] is None:
        return [] if summary["test_loss"] is None else [("loss", f"{summary['test_loss']:.6g}")]
    averaged, distils = scores["averaged"], summary.get("exchanged") == "logits"
    if averaged is not None and (distils or roles_in(summary).leader is not None):
        of = f", of a model {DISTILLED}" if distils else ""
        return [(f"test {score.word}", f"{score.figure(averaged)}{score.note}{of}")]
    one = roles_in(summary).measured
    named = {"averaged": averaged, f"mean {one}": scores["mean_peer"], f"worst {one}": scores["worst_peer"]}
    each = ", ".join(f"{score.figure(value)} {name}" for name, value in named.items() if value is not None)
    at = scores.get("round", summary["rounds"])
    when = "" if at == summary["rounds"] else f", in round {at}"
    return [(f"test {score.word}", f"{each}{score.note}{when}")]


def _best(summary: RunSummary) -> list[tuple[str, str]]:
    best, at = summary.get("best"), summary["score"].get("round", summary["rounds"])
    if best is None or best["round"] == at or best["score"] == summary["score"]["averaged"]:
        return []
    score = read_score(summary["score"])
    where = " on the clients' own examples" if best.get("at") else ""
    value = f"{score.figure(best['score'])}{where}"
    above = f"; the figures above are of round {at}" if at == summary["rounds"] else ""  # else they say it themselves
    return [("best round", f"{best['round']}, with {value}{above}")]


def _model(finished: Run) -> list[tuple[str, str]]:
    if finished.directory is None:
        return []
    path = finished.directory / run_format.MODEL
    if not path.exists():
        summary = finished.summary
        cut = summary["status"] == "interrupted" and summary["rounds"] > 0
        return [("model", "none: the run did not reach its end" if cut else "none: nothing was trained")]
    best = finished.directory / run_format.MODEL_BEST
    kept = [("best model", f"{best}, of round {finished.summary['best']['round']}")] if best.exists() else []
    roles = roles_in(finished.summary)
    average = "" if roles.leader is not None else f", the average of the {roles.measured}s’ models"
    if finished.summary.get("exchanged") == "logits":
        average = f", {DISTILLED}: no participant's own"
    return [*kept, ("model", f"{path}{average}")]


def _compared(summary: RunSummary) -> list[tuple[str, str]]:
    if "centralised" not in summary:
        return []
    return [("centralised", f"{summary['centralised'][summary['score']['name']]:.4f}, as many steps and examples")]


def _federated(summary: RunSummary, record: Sequence[Row]) -> list[tuple[str, str]]:
    from fedgossip.report.watch.follow import DRIVERS

    sees = "sums alone" if summary["secure"] else "EVERY UPDATE: no secure sum"
    what = f"{some(summary['clients'], 'client')}, {summary['algorithm']}, {some(summary['rounds'], 'round')}"
    rows = [("run", f"{what}, {DRIVERS[summary['driver']]}"), ("coordinator sees", sees)]
    gains = summary.get("personal")
    if summary["score"]["averaged"] is not None:  # the clients' mean is that of their own models
        at_clients = _list_client_scores(record) if gains is None or gains["mean_own"] is None else []
        rows += [*at_clients, *_list_own_scores(summary), *_compared(summary)]
    if "epsilon" in summary:
        p = summary["privacy"]
        spent = "at" if summary["epsilon"] is None else f"{summary['epsilon']:.3f}, at"  # or only clients know it
        worth = p["guarantee"]
        rows.append(("epsilon", f"{spent} most {p['max_epsilon']:g}, delta {p['delta']:g}, per {p['unit']}: {worth}"))
    if summary["rounds_abandoned"]:
        rows.append(("abandoned", f"{summary['rounds_abandoned']} of {summary['rounds']} rounds changed nothing"))
    return rows


def _list_client_scores(record: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the clients' last measurements, of the previous round's model."""
    tested = [(row.round - 1, at) for row in record if (at := getattr(row, "score_clients", None)) is not None]
    return [("at the clients", f"{at:.4f} on their own examples, in round {round}") for round, at in tested[-1:]]


def _list_own_scores(summary: RunSummary) -> list[tuple[str, str]]:
    """Return the scores of the participants' personal models, and how many are worse than others."""
    from fedgossip.core.gains import NOT_MEASURED

    if "exchanged" not in summary:
        return []
    own = summary.get("personal")
    if own is None:
        return [("own models", NOT_MEASURED)]
    found = [f"{own['mean_own']:.4f} the mean"] if own["mean_own"] is not None else []
    found += [f"{own['worst_own']:.4f} the worst"] if own["worst_own"] is not None else []
    rows = [("own models", f"{', '.join(found)}, each on its {roles_in(summary).one}'s own examples")] if found else []
    behind = {"the shared one": own["behind_shared"], "one trained alone": own["behind_alone"]}
    counted = [f"{count} worse than {name}" for name, count in behind.items() if count is not None]
    return [*rows, *([("", f"of {own['tested']}, {' and '.join(counted)}")] if counted else [])]


def _gossiped(summary: RunSummary) -> list[tuple[str, str]]:
    from fedgossip.report.watch.follow import DRIVERS

    forecast, driver = summary["forecast"], DRIVERS[summary["driver"]]
    peers, rounds = some(summary["n"], "peer"), some(summary["rounds"], "round")
    rows = [("run", f"{peers}, {summary['graph']}, {rounds}, {driver}"), *_list_own_scores(summary)]
    rows += _compared(summary)
    apart = summary["consensus_distance"]  # None: stopped before there were models
    rows += [] if apart is None else [("consensus distance", f"{apart:.6g}")]
    promised = forecast["slem"] if forecast["slem"] is not None else forecast.get("rate")
    if promised is not None and summary["measured_contraction"] is not None:
        words = f"{promised:.4f} in the long run" if forecast["slem"] is None else f"at most {promised:.4f} forecast"
        if forecast.get("exact_after") and forecast["slem"] is None:
            words = f"without training exactly 0 after {forecast['exact_after']} rounds"
        words = words if summary.get("summed", True) else "not forecast: no sum of honest models by weights"
        measured = f"{summary['measured_contraction']:.4f} measured, {words}"
        effects = {name for name in summary["events"] if kind_of(name).implies in ("missed", "gone", "ended")}
        if effects or "skipped_mix" in summary["events"]:
            measured += " for rounds in which nobody is missing"
        rows.append(("contraction per round", measured))
    return rows


def _forecast(summary: RunSummary) -> list[tuple[str, str]]:
    if (file := summary.get("forecast_file")) is None:
        return []
    kept, loss = summary.get("forecast_kept"), summary.get("forecast_scores_kept", {}).get("test_loss")
    level, texts = f"{file['level']} before the run", []
    if kept is not None:
        exact = "exact" if file["exact"] else f"edges {file['width']:.2f} times apart"
        wide = ", wide" if file["wide"] else ""
        texts.append(f"kept in {100 * kept:.0f} % of the rounds; {level}, {exact}{wide}")
    if loss is not None:
        texts.append(f"loss kept in {100 * loss:.0f} % of the evaluated rounds; {level}")
    return [("forecast", text) for text in texts]


def show_plan(plan: Plan, *, on: str, trace_bytes: int = 0, as_json: bool) -> None:
    """Check everything, and print the facts before a run: the experiment with all defaults, sizes, the forecast."""
    from fedgossip.cli.text import print_json, talk_to_stderr
    from fedgossip.core.task import segments_of, table_of
    from fedgossip.drivers.forecasting import check_forecast
    from fedgossip.experiment import ignored_by
    from fedgossip.plans import compose

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        task, shares = compose.task_of_dry_run(plan.experiment, plan.learners)
        plan = plan.with_shares(shares)
        compose.check_task(plan, task)
        plan = plan.with_segments(segments_of(task)).with_table(table_of(task))
        _check_driver(plan, task, on, trace_bytes)
        check_forecast(plan, task)
        last = plan.n - 1
        plan.machine(last, task.initial(last), task.schema, own=plan.simulated(last))
    outlook = plan.outlook(task)
    facts = {
        "n": plan.learners,
        "parameters": task.length,
        "schema": task.schema,
        "examples": shares.sizes,
        **({"notes": list(shares.notes)} if shares.notes else {}),
        "experiment": plan.experiment.to_dict(),
        **outlook.facts,
        "bytes_per_round": outlook.bytes_per_round,
        "bytes_total": outlook.bytes_per_round * plan.experiment.rounds,
    }
    memory = _memory_of(plan, task)
    step = compose.step_inside(plan.experiment, task)
    if step:
        facts["inside"] = step
    if ways := step["by_way"] if step else _ways(plan, task):
        facts["by_way"] = ways
    if memory:
        facts["processes"] = [asdict(one) for one in memory]
    if as_json:
        print_json(facts)
        return
    import tomli_w

    echo(tomli_w.dumps(plan.experiment.to_dict()))
    for line in [*plan.banner, *ignored_by(on, plan.experiment), *outlook.lines]:
        echo(f"# {line}")
    total = f"{outlook.bytes_per_round:,} bytes a round, {facts['bytes_total']:,} in all"
    what = "logit" if plan.experiment.exchanges_logits else "parameter"
    numbers = f"{task.length:,} {what}" + ("" if task.length == 1 else "s")
    echo(f"# {numbers} in {task.dtype.name}: {total}")
    if memory:
        for line in _describe(memory, plan.experiment.train):
            echo(f"# {line}")
    if step:
        echo(f"# a step inside a participant: {describe_step(step)}")
    if ways:
        held = "; ".join(f"by {way} {size:,}" for way, size in ways.items())
        echo(f"# the fullest process holds, in bytes: {held}")
    if shares.sizes:
        counted = f"{min(shares.sizes)} to {max(shares.sizes)} each"
        echo(f"# {sum(shares.sizes):,} training examples, {counted}")
    for note in shares.notes:
        echo(f"# {note}")
    echo("Nothing was trained: this was a dry run.", err=True)


def _check_driver(plan: Plan, task: LocalTask, on: str, trace_bytes: int) -> None:
    """Raise an error for a run that a driver, or this machine, does not support."""
    from fedgossip.drivers.local import check_local
    from fedgossip.drivers.participant import check_processes
    from fedgossip.drivers.simulate import check_engine

    if on != "local":
        return check_engine(plan, on, task)
    check_local(plan, trace_bytes)
    return check_processes(plan)


def _memory_of(plan: Plan, task: LocalTask) -> Sequence[ProcessMemory]:
    if not plan.experiment.train.in_parts:
        return ()
    from fedgossip.learning.task import TorchTask

    return task.memory if isinstance(task, TorchTask) else ()


def _ways(plan: Plan, task: LocalTask) -> Mapping[str, int]:
    """Return the bytes of the fullest process by ddp and ZeRO's stages; empty without parts of a batch."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.learning.settings import HOGWILD

    train = plan.experiment.train
    if train.parts_of_batch < 2 or train.parallel == HOGWILD:
        return {}
    from fedgossip.learning.task import TorchTask

    if not isinstance(task, TorchTask):
        return {}
    with contextlib.suppress(ConfigError):  # of lines of several lengths
        return task.step_shape().by_way
    return {}


def describe_step(step: StepFacts) -> str:
    """Return the seconds of a step inside a participant, and the bytes that its busiest process sends."""
    parts = {"computing": step["work"], "idle stages": step["idle"], **step["messages"]}
    shares = ", ".join(f"{1000 * seconds:.3g} ms {name}" for name, seconds in parts.items() if seconds)
    return f"{1000 * step['seconds']:.3g} ms: {shares}; a process sends {sum(step['sent'].values()):,.0f} bytes"


def _describe(memory: Sequence[ProcessMemory], train: TrainSettings) -> Iterator[str]:
    """Yield sentences on the process with the most memory, and on its machine."""
    most = max(memory, key=lambda one: one.total)
    saved = "activations not counted" if most.activations is None else f"activations {most.activations:,}"
    held = f"parameters {most.parameters:,}, gradients as many, slots {most.slots:,}, {saved}"
    yield f"the fullest of {len(memory)} processes of a learner holds, in bytes: {held}"
    if stages := memory[-1].stage:
        totals = (max(one.total for one in memory if one.stage == stage) for stage in range(stages + 1))
        yield "by stage, in bytes: " + ", ".join(f"{total:,}" for total in totals)
    if most.together:
        yield f"train.zero = {train.zero}: between its passes all parameters too, {most.together:,} bytes"
    if train.offload:
        yield "train.offload: parameters, gradients and slots in host memory, page-locked for a GPU; activations"
        yield "  and the layers that compute on the device.  On a CPU both are one memory: nothing is gained."
