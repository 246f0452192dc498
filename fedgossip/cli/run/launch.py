"""`fedgossip launch`: starts every participant of a run.

launch SCRIPT                       a script with the user's training loop, once per peer
launch EXPERIMENT --on slurm|ray    every participant of an experiment, on the nodes of a cluster
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli import LackingFileError
from fedgossip.cli.run.participant import portable_option, run_code_option
from fedgossip.cli.run.run import concluded
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.cli.run.progress import Progress
    from fedgossip.drivers.clusters.meeting import Resources
    from fedgossip.drivers.loops.scripts import Command
    from fedgossip.plans.compose import Plan
    from fedgossip.runs.run_directory import Run


class _LaunchCommand(click.Command):
    """`launch SCRIPT`, or, for an experiment's file, `launch EXPERIMENT` of `place`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:

        if _is_experiment(args, [*self.params, *place.params]):
            try:  # usage and errors name the command whose help has these options
                return place.make_context(f"{info_name} EXPERIMENT.toml", args, parent, **extra)
            except click.NoSuchOption as error:
                if any(error.option_name in one.opts for one in self.params):
                    text = f"{error.option_name} is for scripts: an experiment's file takes other options"
                    raise click.UsageError(text, error.ctx) from None
                raise
        return super().make_context(info_name, args, parent, **extra)


def _is_experiment(words: Sequence[str], parameters: Sequence[click.Parameter]) -> bool:
    from fedgossip.runs.run_directory import is_placed

    valued = {name for one in parameters if isinstance(one, click.Option) and not one.is_flag for name in one.opts}
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name == "--resume" and is_placed(Path(value or next(rest, ""))):
            return True
        if not word.startswith("-"):
            return word.endswith(".toml")
        if word in valued and word != "--resume":
            next(rest, None)
    return False


OF_LAUNCH = "-n", "--n", "--graph", "--coordinator", "--simulate"
"""Options that hardly any script has: behind its name the script gets them, and launch does not."""


@click.command(cls=_LaunchCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--n", "n", type=click.IntRange(min=1), help="How many loops.")
@click.option("--graph", help="Graph of the loops: ring, torus:4x4, ... [default: ring; none for one loop]")
@click.option("--coordinator", is_flag=True, help="A coordinator and n clients, in place of a graph.")
@click.option("--experiment", type=click.Path(path_type=Path), help="A file with [topology] or [coordinator], instead.")
@click.option("--algorithm", help="The method: dsgd, push-sum, ...; of a coordinator: fedavg, scaffold, ...")
@click.option("--mode", type=click.Choice(["sync", "async"]), help="async: no peer waits for another.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Exchanges of the run.  [default: as many as the loops make]",
)
@click.option("--local-steps", type=click.IntRange(min=1), help="Calls of step() between two exchanges.  [default: 5]")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Any other key of an experiment.")
@portable_option
@click.option("--seed", type=int, help="Of the run; the scripts seed themselves.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make.  [default: runs/NAME-TIME]")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often a script that dies is started again.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that train the model of each loop together, by DDP or FSDP; torchrun starts them.",
)
@click.option(
    "--show",
    "shown",
    metavar="WHO",
    default="0",
    show_default=True,
    help="Peers with output shown here: numbers with commas, all, none.  The run directory has all of it.",
)
@click.option(
    "--resume",
    "stopped",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Resume a launched run that was stopped, in its folder; SCRIPT may be left out.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="All loops in this process, one at a time, in virtual time: the same digest as without it.",
)
@run_code_option
@click.option("--report/--no-report", default=True, help="Write report.html.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
@click.argument("script", type=click.Path(path_type=Path), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    n: int | None,
    graph: str | None,
    coordinator: bool,
    experiment: Path | None,
    algorithm: str | None,
    mode: str | None,
    rounds: int | None,
    local_steps: int | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    restarts: int,
    ranks: int,
    shown: str,
    stopped: Path | None,
    simulate: bool,
    run_code: bool,
    report: bool,
    as_json: bool,
    script: Path | None,
    arguments: tuple[str, ...],
) -> int:
    """Run SCRIPT with its ARGUMENTS once per loop; it takes part by `fedgossip.join(model, optimizer)`.

    `fedgossip launch EXPERIMENT.toml` runs the participants of an experiment, on Slurm too: its options are in
    `fedgossip launch EXPERIMENT.toml --help`.
    """
    from fedgossip.cli.run.progress import Progress
    from fedgossip.drivers import resume
    from fedgossip.drivers.loops.description import Wished, experiment_of
    from fedgossip.drivers.loops.launching import all_joined, check_kept, check_launchable, plan_to_resume
    from fedgossip.drivers.loops.scripts import Command
    from fedgossip.experiment import check_agree, load_experiment
    from fedgossip.plans import compose
    from fedgossip.runs.run_directory import new_path

    of_processes = [name for name, given in {"--ranks": ranks > 1, "--restarts": restarts > 0}.items() if given]
    _check_given(script, stopped, out, experiment, of_processes, simulate=simulate)
    if behind := [word for word in arguments if word.partition("=")[0] in OF_LAUNCH]:
        echo(f"{script} gets {', '.join(behind)}: options of launch stand before the script", err=True)
    wished = Wished(n, graph, coordinator, algorithm, mode, rounds, local_steps, script.stem if script else "")
    check_agree(overrides, wished.keys)
    file = resume.experiment_in(stopped) if stopped else experiment
    if stopped:
        check_kept(stopped, script, run_code=run_code)
    more = [*(["task.kind=loop"] if experiment else []), *wished.overrides(file), *overrides]
    asked = (
        resume.experiment_of(stopped, None, more, seed, run_code=run_code)
        if stopped
        else load_experiment(file or experiment_of(wished), more, seed=seed)
    )
    plan = plan_to_resume(stopped, asked) if stopped else compose.plan(asked)
    check_launchable(plan)
    command = Command(script, arguments, plan.experiment.train.portable, ranks=ranks).checked() if script else None
    drive = _LaunchDrive(command, _parse_shown(shown, plan.learners), restarts, report, simulate)
    for line in plan.banner:
        echo(line, err=True)
    folder = stopped or out or new_path(plan, "sim" if simulate else "local", Path("runs"))
    title = f"{plan.experiment.name or plan.name} {'simulated' if simulate else 'launched'}"

    def driven() -> Run:
        rounds, score = plan.experiment.rounds, plan.experiment.score
        with Progress(title, rounds, plan.roles, score=score) as progress:
            return drive(plan, folder, progress, resumed=stopped is not None)

    again = "Simulated loops are simulated from their beginning: give the command again." if simulate else ""
    return concluded(
        driven, folder, report=report, as_json=as_json, again=again, resumable=lambda run: all_joined(plan, run)
    )


LEFT = "Loops that end before their run leave it: lower --rounds, or loop while peer.step() returns True."


@dataclass(frozen=True)
class _LaunchDrive:
    """The options of a launch."""

    command: Command | None
    shown: Sequence[int]
    restarts: int
    report: bool
    simulate: bool

    def __call__(self, plan: Plan, folder: Path, progress: Progress, *, resumed: bool) -> Run:
        from fedgossip.base.errors import FedgossipError, TooFewPeersError

        try:
            return self._driven(plan, folder, progress, resumed=resumed)
        except FedgossipError as error:
            if error.exit_code == TooFewPeersError.exit_code:
                error.advice = f"{LEFT}  {error.advice}"
            raise

    def _driven(self, plan: Plan, folder: Path, progress: Progress, *, resumed: bool) -> Run:
        from fedgossip.drivers.loops.launching import Launching, launch_scripts, resume_scripts

        how = Launching(self.restarts, self.report, self.shown)
        if resumed:
            return resume_scripts(plan, folder, self.command, how, progress)
        assert self.command
        if not self.simulate:
            return launch_scripts(plan, folder, self.command, how, progress)
        from fedgossip.drivers.loops.simulating import simulate_script

        return simulate_script(plan, self.command, folder, report=self.report, watch=progress, shown=self.shown)


def _check_given(
    script: Path | None,
    stopped: Path | None,
    out: Path | None,
    experiment: Path | None,
    of_processes: Sequence[str],
    *,
    simulate: bool,
) -> None:
    if script is None and stopped is None:
        raise LackingFileError("which script?  Give it, or --resume RUN.", ".py")
    if simulate and of_processes:
        raise click.UsageError(f"--simulate and {of_processes[0]}: simulated loops are threads of one process")
    if stopped and (simulate or out or experiment):
        given = "--simulate" if simulate else "--out" if out else "--experiment"
        raise click.UsageError(f"--resume and {given}: a launched run resumes in its folder, by its own experiment")


def _parse_shown(words: str, n: int) -> Sequence[int]:
    if words in ("all", "none"):
        return range(n) if words == "all" else ()
    parts: list[Any] = words.split(",")
    if not all(part.strip().isdigit() and int(part) < n for part in parts):
        raise click.UsageError(f"--show {words}: give numbers from 0 to {n - 1}, with commas; all; none")
    return [int(part) for part in parts]


ENGINES = ("local", "slurm", "ray")
ENGINE_OF = {
    "partition": "slurm",
    "nodes": "slurm",
    "minutes": "slurm",
    "detach": "slurm",
    "address": "ray",
    "gpus": "ray",
}
"""The options of a single engine."""


@click.command(name="launch")
@click.argument("experiment", metavar="", type=click.Path(path_type=Path), required=False)
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
    help="Of Slurm: the job's time; after it the run resumes in the requeued job.",
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
    help="Seconds in which all participants must listen; on Slurm since the job runs.",
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
    help="Resume a run that was stopped, where it was placed; EXPERIMENT may be left out.",
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
    from fedgossip.data.custom import ALLOW
    from fedgossip.drivers import resume
    from fedgossip.drivers.clusters.meeting import LOCAL, Resources
    from fedgossip.drivers.clusters.placing import saved_resources, submit
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
        raise LackingFileError("which experiment?  Give its file, or --resume RUN.")
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
        return run_placed(plan, folder, wanted, report=report, watch=progress, print_line=_print, resume=resumed)
