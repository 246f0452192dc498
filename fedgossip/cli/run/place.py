"""`fedgossip launch EXPERIMENT --on slurm|ray`: every participant of an experiment, on the nodes of a cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.run.portable import portable_option, run_code_option
from fedgossip.cli.run.run import concluded
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.drivers.clusters.resources import Resources
    from fedgossip.plans.compose import Plan
    from fedgossip.runs.run_directory import Run

ENGINES = ("local", "slurm", "ray")
ENGINE_OF = {
    "partition": "slurm",
    "nodes": "slurm",
    "minutes": "slurm",
    "detach": "slurm",
    "address": "ray",
    "gpus": "ray",
}
"""The options that one engine alone has."""


@click.command(name="launch")
@click.argument("experiment", type=click.Path(path_type=Path), required=False)
@click.option(
    "--on",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="local: as `run --on local`.  slurm: a job, by submitit.  ray: actors.",
)
@click.option("--partition", default="", help="Of Slurm.  local: submitit on this machine.  [default: Slurm's own]")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Of Slurm.")
@click.option(
    "--minutes",
    type=click.IntRange(2, 100_000),
    default=60,
    show_default=True,
    help="Of Slurm: the job's time; after it the run goes on in a next life of the job.",
)
@click.option(
    "--cpus",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Processors of each participant, and threads that train.",
)
@click.option(
    "--address",
    default="auto",
    show_default=True,
    help="Of Ray: HOST:PORT; auto: RAY_ADDRESS or this machine's; local: a cluster that ends with the run.",
)
@click.option(
    "--gpus",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Of Ray: GPUs of each participant; 0.5: two share one; 0: Ray hides them.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="In which all participants must listen; on Slurm since the job runs.",
)
@click.option(
    "--interface",
    default="",
    help="Interface for the others to call.  [default: the one with a route to them]",
)
@click.option("--detach", is_flag=True, help="Of Slurm: do not wait; print the line that collects.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@portable_option
@click.option("--seed", type=int, help="Replace the file's seed.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder, on a shared disk.  [default: runs/NAME-TIME]")
@click.option(
    "--resume",
    "stopped",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Go on with a run that was stopped, where it was placed; EXPERIMENT may be left out.",
)
@run_code_option
@click.option("--report/--no-report", default=True, help="Write report.html.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
@click.pass_context
def place(
    context: click.Context,
    experiment: Path | None,
    on: str,
    partition: str,
    nodes: int,
    minutes: int,
    cpus: int,
    address: str,
    gpus: float,
    start_timeout: float,
    interface: str,
    detach: bool,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    stopped: Path | None,
    run_code: bool,
    report: bool,
    as_json: bool,
) -> int:
    """Run every participant of the file EXPERIMENT as a process, on this machine or on the nodes of a cluster.

    On Slurm the folder is on a disk that all nodes share; on Ray it is here, and the nodes' files are copied to it.
    Ctrl-C ends all and keeps the results so far.
    """
    from fedgossip.data.named_code import ALLOW
    from fedgossip.drivers import resume
    from fedgossip.drivers.clusters.placing import saved_resources, submit
    from fedgossip.drivers.clusters.resources import LOCAL, Resources
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose
    from fedgossip.runs.run_directory import new_path

    named = context.get_parameter_source("on") is not click.core.ParameterSource.DEFAULT
    if named or not stopped:
        _check_engine(context, on)
    if detach and stopped:
        raise click.UsageError("--detach goes with a run that begins")
    wanted = Resources(on, cpus, partition, nodes, minutes, interface, address, gpus, start_timeout)
    if stopped:
        wanted = wanted if named else saved_resources(stopped)
        found = resume.experiment_of(stopped, experiment, overrides, seed, run_code=run_code)
        plan = resume.plan_of(stopped, found)
    elif experiment is None:
        raise click.UsageError("which experiment?  Give its file, or --resume RUN.")
    else:
        plan = compose.plan(load_experiment(experiment, overrides, seed=seed))
    for line in plan.banner:
        echo(line, err=True)
    folder = stopped or out or new_path(plan, wanted.engine, Path("runs"))
    if detach:
        number = submit(plan, folder, wanted, _print)
        words = ["fedgossip", "collect", str(folder / run_format.EXPERIMENT), str(folder / run_format.PEERS)]
        words += [ALLOW] if plan.experiment.reaches else []
        here = wanted.partition == LOCAL
        ended = (
            f"each of {folder / run_format.PEERS}/* has ended.json" if here else f"it has ended (`squeue -j {number}`)"
        )
        whose = "submitit, on this machine," if here else "Slurm"
        echo(f"job {number} of {whose} runs {plan.roles.wording}; when {ended}:", err=True)
        echo(shlex.join(words))
        return 0
    return concluded(
        lambda: _run(plan, folder, wanted, report=report, resumed=stopped is not None),
        folder, report=report, as_json=as_json,
    )  # fmt: skip


def _check_engine(context: click.Context, on: str) -> None:
    """Refuse an option of another engine than the selected one."""
    for name, engine in ENGINE_OF.items():
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if given and on != engine:
            raise click.UsageError(f"--{name} goes with --on {engine}")


def _print(text: str) -> None:
    echo(text, err=True)


def _run(plan: Plan, folder: Path, wanted: Resources, *, report: bool, resumed: bool) -> Run:
    from fedgossip.cli.run.progress import Progress
    from fedgossip.drivers.clusters.placing import run_placed
    from fedgossip.drivers.local import run_local_plan

    title = f"{plan.experiment.name or plan.name} on {wanted.engine}"
    with Progress(title, plan.experiment.rounds, plan.roles, score=plan.experiment.score) as progress:
        if wanted.engine == "local":
            return run_local_plan(plan, folder, report=report, watch=progress, resume=resumed)
        return run_placed(plan, folder, wanted, report=report, watch=progress, tell=_print, resume=resumed)
