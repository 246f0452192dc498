"""`fedgossip run`: an experiment file in, a run out."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fedgossip.cli.text import columns

if TYPE_CHECKING:
    from fedgossip.running.compose import Plan
    from fedgossip.running.runs import Run


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path), required=False)
@click.option("--on", type=click.Choice(["sim", "stacked", "local"]), default="sim", show_default=True,
              help="sim: machines in virtual time.  stacked: arrays only, fastest.  local: a process per peer, ZeroMQ.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True,
              help="Replace a key of the file, e.g. --set train.lr=0.05; may be repeated.")
@click.option("--seed", type=int, help="Replace the file's seed.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make.  [default: runs/NAME-TIME]")
@click.option("--resume", "stopped", metavar="RUN", type=click.Path(path_type=Path),
              help="Go on with a run that was stopped, in its folder; EXPERIMENT may be left out.")
@click.option("--trace", is_flag=True, help="With --on local: write down all that peers are told, for replay.")
@click.option("--trace-limit", metavar="GB", type=click.FloatRange(min=0, min_open=True), default=2.0,
              show_default=True, help="The longest trace of a peer; the run goes on without.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the forecast, train nothing.")
@click.option("--report/--no-report", default=True, help="Write report.html.")
@click.option("--centralised", is_flag=True,
              help="Then train one model on all data with as many steps and examples, to compare.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def run(
    experiment: Path | None,
    on: str,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    stopped: Path | None,
    trace: bool,
    trace_limit: float,
    dry_run: bool,
    report: bool,
    centralised: bool,
    as_json: bool,
) -> int:
    """Run the experiment in the file EXPERIMENT."""
    from fedgossip.experiment import load
    from fedgossip.running import compose, resume

    if stopped:
        on = resume.engine_of(stopped)
        source = experiment or resume.experiment_in(stopped)
    else:
        if experiment is None:
            raise click.UsageError("which experiment?  Give its file, or --resume RUN.")
        source = experiment
    if trace and on != "local":
        raise click.UsageError("--trace goes with --on local: a simulation can be run again as it is")
    plan = compose.plan(load(source, overrides, seed=seed))
    if dry_run:
        _show_plan(plan, as_json)
        return 0
    from fedgossip.running.runs import new_path

    drive = _Drive(on, report, int(trace_limit * 1e9) if trace else 0)
    with talk_to_stderr() if as_json else contextlib.nullcontext():
        finished = drive(plan, stopped or out or new_path(plan, on, Path("runs")), resumed=stopped is not None)
        if centralised:
            from fedgossip.running.runs import amend

            amend(finished, centralised=compose.centralised(plan))
    if as_json:
        print_json(finished.summary)
    else:
        show(finished, report=report)
    if exit_code(finished) and finished.directory:
        click.echo(f"To go on: {resume.line(finished.directory)}", err=True)
    return exit_code(finished)


def exit_code(finished: Run) -> int:
    """Return 130 for a run that somebody stopped, else 0; a run that failed raised its error."""
    return 130 if finished.summary["status"] == "interrupted" else 0


def talk_to_stderr() -> contextlib.AbstractContextManager[object]:
    """What is printed inside goes to standard error: a model or data function of the user's own may print."""
    return contextlib.redirect_stdout(sys.stderr)


def print_json(value: object) -> None:
    """Print one JSON object; a number that is not finite becomes null, for JSON has no other word for it."""
    print(msgspec.json.encode(value).decode())


@dataclass(frozen=True)
class _Drive:
    """How to run."""

    on: str
    report: bool
    trace_bytes: int

    def __call__(self, plan: Plan, out: Path, *, resumed: bool) -> Run:
        from fedgossip.cli.progress import Progress

        title = f"{plan.experiment.name or plan.topology.name} on {self.on}"
        with Progress(title, plan.experiment.rounds, plan.n) as progress:
            if resumed:
                from fedgossip.running.resume import resume

                return resume(
                    out, plan.experiment, report=self.report, watch=progress, trace_bytes=self.trace_bytes
                )
            if self.on == "local":
                from fedgossip.running.local import run_local_plan

                return run_local_plan(
                    plan, out, report=self.report, watch=progress, trace_bytes=self.trace_bytes
                )
            from fedgossip.running.simulated import simulate_plan

            return simulate_plan(plan, engine=self.on, out=out, report=self.report, watch=progress)


ENDINGS = {
    "partial": "Not every peer finished; the others went on to the end.",
    "interrupted": "Stopped before the end; all that was done is kept.",
}


def show(finished: Run, *, report: bool = True) -> None:
    """Print what came out of a run, for people."""
    print(columns(facts(finished.summary)))
    if words := ENDINGS.get(finished.summary["status"]):
        print(words)
    if finished.directory:
        page = finished.directory / "report.html"
        print(f"Everything is in {finished.directory}" + (f"; open {page}" if report else ""))


def facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of a run's summary: what, and the value in words."""
    forecast, accuracy = summary["forecast"], summary["accuracy"]
    rows = [("run", f"{summary['n']} peers, {summary['graph']}, {summary['rounds']} rounds, {summary['driver']}")]
    if accuracy["averaged"] is not None:
        each = ", ".join(f"{accuracy[k]:.4f} {k.replace('_', ' ')}" for k in ("averaged", "mean_peer", "worst_peer"))
        rows.append(("test accuracy", each))
        if "centralised" in summary:
            rows.append(("centralised", f"{summary['centralised']['accuracy']:.4f}, as many steps and examples"))
    elif summary["test_loss"] is not None:
        rows.append(("loss", f"{summary['test_loss']:.6g}"))
    rows.append(("consensus distance", f"{summary['consensus_distance']:.6g}"))
    promised = forecast["slem"] if forecast["slem"] is not None else forecast.get("rate")
    if promised is not None and summary["measured_contraction"] is not None:
        words = f"{promised:.4f} in the long run" if forecast["slem"] is None else f"at most {promised:.4f} forecast"
        if forecast.get("exact_after") and forecast["slem"] is None:
            words = f"without training exactly 0 after {forecast['exact_after']} rounds"
        measured = f"{summary['measured_contraction']:.4f} measured, {words}"
        if {"missed", "gone", "crashed", "died"} & set(summary["events"]):
            measured += " for rounds in which nobody is missing"
        rows.append(("contraction per round", measured))
    rows.append(("sent", f"{summary['bytes_sent'] / 1e6:,.2f} MB by all peers"))
    kind = "virtual seconds" if summary["driver"] == "sim" else "seconds"
    if summary["driver"] != "stacked":
        whole = "" if summary["wall_seconds"] is None else f", {summary['wall_seconds']:.1f} s in all"
        rows.append(("time", f"{summary['seconds']:.2f} {kind}{whole}"))
    if summary["events"]:
        rows.append(("events", ", ".join(f"{count} {name}" for name, count in summary["events"].items())))
    rows.append(("digest", summary["digest"] or "none: not every peer finished"))
    return rows


def _show_plan(plan: Plan, as_json: bool) -> None:
    from fedgossip.messages import Model
    from fedgossip.running import compose
    from fedgossip.wire import wire_bytes

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        task, shares = compose.task_of(plan.experiment, plan.n)
    size = wire_bytes(Model(0, task.schema, (task.initial(0),)))
    per_round = plan.forecast.messages * plan.n
    facts = {
        "n": plan.n,
        "parameters": task.length,
        "schema": task.schema,
        "bytes_per_round": int(size * per_round),
        "bytes_total": int(size * per_round) * plan.experiment.rounds,
        "examples": shares.sizes,
        "forecast": plan.forecast.to_dict(),
        "experiment": plan.experiment.to_dict(),
    }
    if as_json:
        print_json(facts)
        return
    import tomli_w

    forecast = plan.forecast
    print(tomli_w.dumps(plan.experiment.to_dict()))
    print(f"# {plan.n} peers, {len(plan.topology.edges)} links, {task.length:,} parameters in {task.dtype.name}")
    print(f"# {int(size * plan.forecast.messages):,} bytes a round from a peer, {facts['bytes_total']:,} in all")
    if shares.sizes:
        print(f"# {sum(shares.sizes):,} training examples, {min(shares.sizes)} to {max(shares.sizes)} per peer")
    if plan.schedule.period != 1 and forecast.exact_after:
        print(f"# the exact mean after {forecast.exact_after} rounds, for the rounds change and complete each other")
    if forecast.slem is not None and forecast.n_w is not None:
        print(f"# gap {1 - forecast.slem:.6f}, n_W({forecast.gamma}) {forecast.n_w:.2f}", end="")
        halved, gone = _rounds(forecast.rounds_to_halve), _rounds(forecast.rounds_to_1_percent)
        print(f"; disagreement falls to a half {halved}, to 1 % {gone}")
    print("Nothing was trained: this was a dry run.", file=sys.stderr)


def _rounds(count: int | None) -> str:
    """A number of rounds in words; None is never."""
    if count is None:
        return "never"
    return "in 1 round" if count == 1 else f"in {count:,} rounds"
