"""A real run on this machine: a process per peer, ZeroMQ between them, and this collector, which combines their files
to one run directory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgossip.base import owner_files, signals
from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError, NotWrittenError
from fedgossip.core.records import EventRow, Row
from fedgossip.core.run_format import BEGAN, ENDPOINTS, EXPERIMENT, LOG, PEERS
from fedgossip.drivers.forecasting import forecast_of
from fedgossip.drivers.participant import check_processes, check_recordable, check_selection
from fedgossip.drivers.peer_processes import POLL_SECONDS, PeerProcesses, RunProcesses, Striker, processes_for
from fedgossip.experiment import BEST, Experiment, load_experiment
from fedgossip.faults import Crash
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan, faults_of
from fedgossip.plans.gossip.gossip_checks import check_real
from fedgossip.plans.own_parts import measured_by
from fedgossip.plans.plan import record_of
from fedgossip.runs import incarnations
from fedgossip.runs.collect import Collector, Watched, conclude, first_failure, last_word
from fedgossip.runs.peer_files import keep_best_in, take_up
from fedgossip.runs.run_directory import Run, RunDirectory, state_plan, write_whole
from fedgossip.runs.tracking import Keeper, Tracking, pass_notes

PATIENCE_SECONDS = 5.0
"""Seconds added to two trainings and two deadlines of silence after a peer's end, or to a training after the
coordinator's.
"""

COME_TOO_LATE_SECONDS = 1.0
"""Maximum seconds of silence of a worker restarted after the workers of its model have ended: it would wait for
them.
"""

CHECKPOINT_SECONDS = 0.5
"""Seconds between two checkpoints of a peer that the script will kill and restart."""


def run_local(
    experiment: Experiment | Mapping[str, Any] | Path | str,
    out: Path | str,
    *,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    forecast: str | None = None,
) -> Run:
    """Run every peer of an experiment as a process of this machine; `out` is a new folder for the run directory.

    `experiment`, `seed`, `overrides`, `watch` and `forecast` as in `simulate`.  A synchronous run without faults, late
    peers and budget has the same digest as there.  Raises ConfigError before a process starts, NetworkError for peers
    that do not start, and a failed peer's error.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment, overrides, seed=seed)
    return run_local_plan(compose.plan(experiment), Path(out), report=report, watch=watch, forecast=forecast)


def check_local(plan: Plan, trace_bytes: int = 0) -> None:
    """Raise ConfigError for a run that processes of one machine do not support, or cannot trace."""
    check_recordable(plan, trace_bytes)
    check_selection(plan, whole=True)
    check_real(plan.experiment)
    if any(isinstance(fault, Crash) and fault.messages for fault in plan.experiment.faults):
        raise ConfigError("faults: a crash behind messages is only simulated", "Run it with --on sim, or give start.")


def run_local_plan(
    plan: Plan,
    out: Path,
    *,
    family: RunProcesses | None = None,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    resume: bool = False,
    trace_bytes: int = 0,
    forecast: str | None = None,
    made: Callable[[], None] = lambda: None,
) -> Run:
    """Run an experiment with a resolved graph as `run_local` does.  `family`: warm processes, or ones elsewhere.

    A dead or hung peer does not stop the others: the run is "partial".  Ctrl-C, SIGTERM or SIGHUP ends all peers and
    keeps the measurements; before the first measurement it raises KeyboardInterrupt.  Raises a failed peer's error
    after the others' end.

    `resume`: continue from the last checkpoints in `out`.  Raises ResumeError.  `trace_bytes`: maximum length of a
    peer's trace, 0 for none.  `made` is called once the directory exists, before a process starts.
    """
    began = time.monotonic()
    check_local(plan, trace_bytes)
    if family is None or isinstance(family, PeerProcesses):  # child processes inherit this process's limits
        check_processes(plan)
    running = family or processes_for(plan.experiment)
    with signals.as_interrupt(), running as processes, contextlib.ExitStack() as opened:
        script = faults_of(plan)
        task, shares = compose.task_of(plan.experiment, plan.learners)
        compose.check_task(plan, task)  # checks come first: nothing is made before a refusal
        folders = [out / PEERS / f"{node:02d}" for node in range(plan.n)]
        left = incarnations.prepare(out, folders, plan, task.schema, shares.digest) if resume else None
        tracking = Tracking(plan.experiment, out) if plan.experiment.track.to else None
        foretold = forecast_of(plan, task, shares, forecast, out if resume else None)
        again = RunDirectory.again(out, plan, left.rows) if left else None
        directory = opened.enter_context(again or RunDirectory(out, plan, foretold, peers=folders))
        keeper = Keeper(directory, watch, tracking, foretold, plan.exchanges)
        pass_notes(watch, shares.notes)
        evaluate, keeps = measured_by(plan.experiment, task), plan.experiment.eval.keep == BEST
        record = record_of(plan, evaluate, watch_all=False, kept=keep_best_in(out) if keeps else None)
        if left:
            record.best_model = take_up(record.best, out)
        collector = Collector(folders, record, keeper)

        def note(name: str, peer: int, value: object = None) -> None:
            keeper(EventRow(collector.rounds[peer], peer, name, value))

        with _finish_on_error(keeper):
            for folder in folders:  # some may be missing in a resumed run
                owner_files.make_folder(folder)
            state_plan(out, plan, task)
            made()
            measured = directory.rows() if left else ()
            collector.begin(left, measured, lambda: [task.initial(node) for node in range(plan.n)])
            specs = specs_of(out, folders, processes, restarts=script.restarts, resume=resume, trace_bytes=trace_bytes)
            (out / BEGAN).unlink(missing_ok=True)
            striker = Striker(script, processes, _restart_specs(plan, specs), note)
            interrupted = _run_processes(plan, out, folders, processes, specs, collector, striker)
        before = dict(processes.exited)  # from here on, every exit is requested
        processes.stop()
        opened.pop_all()  # closed below
    watched = Watched(interrupted, before if interrupted else processes.exited, time.monotonic() - began)
    with directory:
        return conclude(plan, task, shares, collector, directory, watched, driver=processes.driver, report=report)


def _run_processes(
    plan: Plan,
    out: Path,
    folders: Sequence[Path],
    processes: RunProcesses,
    specs: Mapping[int, dict[str, Any]],
    collector: Collector,
    striker: Striker,
) -> bool:
    """Start the processes and collect their rows; return whether the user ended them."""
    try:
        for spec in specs.values():
            processes.start(spec)
        processes.await_addresses(out, folders)
        _gather(plan, processes, collector, striker, out / BEGAN)
    except KeyboardInterrupt:
        return True
    return False


@contextlib.contextmanager
def _finish_on_error(keeper: Keeper) -> Iterator[None]:
    """Let the trackers finish if an error is raised."""
    try:
        yield
    except BaseException as error:
        keeper.ended("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def _gather(plan: Plan, processes: RunProcesses, collector: Collector, striker: Striker, began: Path) -> None:
    """Read the peers' files until all have ended or hang; apply the fault script."""
    silent, zero, (starting, deadline), counted = 0.0, 0, plan.patience, set(plan.roles.counted)
    while len(processes.exited) < plan.n or striker.away:
        ended = len(processes.exited)
        processes.poll(POLL_SECONDS)
        news = collector.read() or len(processes.exited) > ended
        if not zero and any(collector.rounds):
            zero = time.monotonic_ns() - int(collector.slowest_training * 1e9)
        if zero and not began.exists():
            with contextlib.suppress(NotWrittenError):  # a transient failure: the run continues
                write_whole(began, str(zero).encode())
        if zero:
            striker.act(time.monotonic_ns() - zero, collector.rounds)
        collector.ended(processes.exited.keys() - striker.away)
        if not zero and (fallen := _fallen(plan, processes, collector.folders)):
            raise fallen
        # Polls instead of a clock: this process may have been suspended with its peers.
        silent = 0.0 if news or striker.away else silent + POLL_SECONDS
        if not processes.exited:
            continue  # while all peers work, silence does not indicate a hang
        left = [node for node in range(plan.n) if node not in processes.exited]
        if silent > COME_TOO_LATE_SECONDS + processes.delay and _are_too_late(plan, left, striker, collector):
            for node in left:
                collector.keeper(EventRow(collector.rounds[node], node, "run_was_over"))
            return
        waiting = 2 * (deadline + collector.slowest_training)
        if plan.n > len(counted) and not counted & {*left, *striker.away}:
            waiting = collector.slowest_training  # the coordinator has ended: nothing is left to wait for
        elif any(collector.rounds[node] == 0 for node in left):
            waiting += starting
        if silent > waiting + PATIENCE_SECONDS + processes.delay:
            for node in left:
                collector.keeper(EventRow(collector.rounds[node], node, "hung"))
            return


def _fallen(plan: Plan, processes: RunProcesses, folders: Sequence[Path]) -> FedgossipError | None:
    """Return the error of a participant that failed before its start: the others would wait for it."""
    failed = [node for node, code in sorted(processes.exited.items()) if (code or 0) > 0]  # negative codes are signals
    words = {node: last_word(folders[node]) for node in failed}
    never = [node for node, ended in words.items() if ended is None or not ended.experiment]
    if not never:
        return None
    text = f"{plan.roles.label(never[0])} ended before the run began"
    return first_failure([words[node] for node in never]) or NetworkError(text, f"Read {folders[never[0]] / LOG}.")


def _are_too_late(plan: Plan, left: Sequence[int], striker: Striker, collector: Collector) -> bool:
    """Return whether the remaining peers were restarted after the others' end."""
    behind = all(collector.rounds[node] < plan.experiment.rounds for node in left)
    return plan.one_model and behind and striker.restarted >= set(left)


def specs_of(
    out: Path,
    folders: Sequence[Path],
    family: RunProcesses,
    *,
    restarts: bool = False,
    resume: bool = False,
    trace_bytes: int = 0,
) -> dict[int, dict[str, Any]]:
    """Return the spec of each peer's process; a peer that may restart stores its key, and checkpoints often."""
    experiment, endpoints, began = ((out / name).resolve() for name in (EXPERIMENT, ENDPOINTS, BEGAN))
    files = {"experiment": str(experiment), "endpoints": str(endpoints), "began": str(began)}
    common = {**files, "bind": family.bind, "restarts": restarts, "resume": resume, "trace_bytes": trace_bytes}
    often = {"checkpoint_seconds": CHECKPOINT_SECONDS} if restarts else {}
    return {
        node: {"node": node, "folder": str(folder.resolve()), **common, **often} for node, folder in enumerate(folders)
    }


def _restart_specs(plan: Plan, specs: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the specs of restarted peers, which wait for no others."""
    return {node: {**spec, "overrides": plan.restart_overrides} for node, spec in specs.items()}
