"""Resumes a stopped run: `fedgossip run --resume RUN`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, json_value
from fedgossip.base.errors import ResumeError
from fedgossip.core.records import Row
from fedgossip.core.run_format import EXPERIMENT, PEERS, SUMMARY
from fedgossip.data.custom import REACHING, check_allowed
from fedgossip.drivers import sim_checkpoint
from fedgossip.drivers.peer_processes import RunProcesses
from fedgossip.experiment import Experiment, file_kept_in, load_experiment
from fedgossip.experiment.sections import ENDLESS
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.plan import EXHAUSTED
from fedgossip.runs import checkpoints
from fedgossip.runs.run_directory import WHOLE, Run, is_launched, resume_line


def resume(
    run: Path | str,
    experiment: Experiment | None = None,
    *,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    trace_bytes: int = 0,
    family: RunProcesses | None = None,
    run_code: bool = False,
) -> Run:
    """Complete a stopped run in its directory; a simulated one has the same bits as without a stop.

    Real peers continue from their last checkpoints.  `experiment`: with changes in permitted keys, by default the
    directory's.  `family`: warming processes.  `run_code`: run the functions that the directory's experiment names.
    Raises ResumeError, naming the differing keys; nothing changes then.
    """
    run = Path(run)
    engine = engine_of(run)
    if is_launched(run):
        raise ResumeError(f"{run}: a run of launched loops", line(run))
    experiment = experiment or experiment_of(run, run_code=run_code)
    plan = plan_of(run, experiment, simulated=engine != "local")
    if engine == "local":
        from fedgossip.drivers.local import run_local_plan

        how: dict[str, Any] = {"resume": True, "trace_bytes": trace_bytes, "family": family}
        return run_local_plan(plan, run, report=report, watch=watch, **how)
    from fedgossip.drivers.simulate import simulate_plan

    return simulate_plan(plan, engine=engine, out=run, report=report, watch=watch, resume=True)


def experiment_of(
    run: Path, given: Path | None = None, overrides: Sequence[str] = (), seed: int | None = None, *, run_code: bool
) -> Experiment:
    """Return the resumed experiment: of the file `given`, otherwise of the directory.

    Raises ConfigError if the directory's experiment names code, or places, that a person must allow.
    """
    experiment = load_experiment(given or experiment_in(run), overrides, seed=seed)
    mine = given is not None and not given.resolve().is_relative_to(run.resolve())
    check_allowed(() if mine else experiment.reaches, run, run_code=run_code, whose=REACHING)
    return experiment


def plan_of(run: Path, experiment: Experiment, *, simulated: bool = False) -> Plan:
    """Return the plan of `experiment` for a resumed run.

    Raises ResumeError if it cannot resume, or not with this experiment, naming the differing keys.
    """
    stored = load_experiment(experiment_in(run))
    if stored.loops and simulated:
        advice = "They are simulated from their beginning: give their command again, for another folder."
        raise ResumeError(f"{run}: a run of simulated loops", advice)
    if found := checkpoints.differences(stored.to_dict(), experiment.to_dict(), simulated=simulated):
        advice = f"Give the experiment that it had, {run / EXPERIMENT}, or start a new run."
        raise ResumeError(f"{run}: a run of another experiment: {'; '.join(found)}", advice)
    if _status(run) == EXHAUSTED:
        advice = "Its model is kept.  More rounds need more noise, or a larger max_epsilon: a new run."
        raise ResumeError(f"{run}: its privacy budget has ended this run", advice)
    if _status(run) in WHOLE and experiment.rounds == stored.rounds:
        advice = "Start a new run." if stored.rounds == ENDLESS else "It can have more rounds: --set rounds=N."
        raise ResumeError(f"{run}: this run has ended", advice)
    return compose.plan(experiment)


def experiment_in(run: Path) -> Path:
    """Return the experiment file of a run directory.  Raises ResumeError for any other folder."""
    _check_there(run)
    path = run / EXPERIMENT
    if not path.is_file():
        raise ResumeError(f"{run}: no run to resume", "Give the folder of a run; `fedgossip runs` lists them.")
    return file_kept_in(run)


def engine_of(run: Path) -> str:
    """Return sim, stacked or local.  Raises ResumeError if the folder does not record it."""
    _check_there(run)
    if (run / PEERS).is_dir():
        return "local"
    engine = sim_checkpoint.engine_of(run)
    if engine is None:
        advice = "A peer of a run over several machines: fedgossip peer ... --resume, in its own folder."
        raise ResumeError(f"{run}: neither a simulated run nor one of local processes", advice)
    return engine


def may_go_on(run: Path) -> bool:
    """Return whether a folder is that of a run that has begun."""
    try:
        return bool(engine_of(run) and experiment_in(run))
    except ResumeError:
        return False


def is_over(run: Path) -> bool:
    """Return whether the run of a folder has ended for all of its remaining participants."""
    return _status(run) in WHOLE


def _check_there(run: Path) -> None:
    if not run.is_dir():
        raise ResumeError(f"{run}: no such folder", "`fedgossip runs` lists the existing runs.")
    try:
        outside_files.check_folder(run)
    except OSError as error:
        advice = "Resuming would write, or delete, there.  Who made it?  Put the folder itself in place of the link."
        raise ResumeError(f"{error.filename or run}: {error.strerror}", advice) from None


def _status(run: Path) -> str | None:
    """Return the status at the end of the run; None for a killed one."""
    path = run / SUMMARY
    if not os.path.lexists(path):
        return None
    try:
        summary = json_value(outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
    else:
        if isinstance(summary, dict):
            return str(summary.get("status"))
        reason = "no table"
    advice = (
        "It records how the run ended: copy the folder again, or delete this file to resume from its last checkpoints."
    )
    raise ResumeError(f"{path}: cannot be read ({reason})", advice)


def line(run: Path) -> str:
    """Return the command that resumes a run."""
    return resume_line(run)
