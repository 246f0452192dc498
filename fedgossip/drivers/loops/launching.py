"""A script with its own loop, n times on this machine: a process each, one run directory, as with `run --on local`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, FedgossipError, NotWrittenError, ResumeError, TrainingError
from fedgossip.base.kernels import PYTHON
from fedgossip.base.untrusted_text import printable
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, Row
from fedgossip.core.run_format import BEGAN, ENDPOINT, ENDPOINTS, EXPERIMENT, LOG, OVER, PEERS, SEAT
from fedgossip.data.custom import check_allowed
from fedgossip.drivers import resume
from fedgossip.drivers.local import CHECKPOINT_SECONDS
from fedgossip.drivers.loops import description
from fedgossip.drivers.loops.asked import AskingTask, requests_in
from fedgossip.drivers.loops.scripts import Command, Scripts, read_command
from fedgossip.drivers.loops.seats import SeatFile, await_free
from fedgossip.drivers.participant import check_processes
from fedgossip.drivers.peer_processes import Striker
from fedgossip.experiment import Experiment
from fedgossip.plans.compose import DataShares, Plan, faults_of
from fedgossip.plans.plan import record_of
from fedgossip.runs import incarnations
from fedgossip.runs.checkpoints import incarnation_of
from fedgossip.runs.collect import Collector, Watched, conclude, first_failure, last_word
from fedgossip.runs.incarnations import Prepared
from fedgossip.runs.run_directory import Run, RunDirectory, is_launched, write_whole
from fedgossip.runs.tracking import Keeper, Tracking

POLL_SECONDS = 0.05

COORDINATOR_SECONDS = 10.0
"""Maximum seconds for a coordinator to end after all loops have left."""


@dataclass(frozen=True)
class Launching:
    """Settings of launched scripts.  `restarts`: maximum number of restarts of each after it dies."""

    restarts: int = 0
    report: bool = True
    shown: Sequence[NodeId] = (0,)


def launch_scripts(
    plan: Plan, out: Path, command: Command, how: Launching | None = None, watch: Callable[[Row], None] | None = None
) -> Run:
    """Run `command` once per loop of the plan, until all have ended; `out` is a new folder.

    Loops that die do not stop the others; Ctrl-C ends all and keeps the measurements.  Raises ConfigError if the
    scripts cannot begin together, and a failed loop's error after the others' end.
    """
    return _Launch(plan, out, command.checked(), how or Launching(), watch).run()


def plan_to_resume(run: Path, experiment: Experiment) -> Plan:
    """Return the plan of a resumed launched run.  Raises ResumeError if it cannot resume, or not with `experiment`."""
    if not is_launched(run):
        advice = "Of other runs: fedgossip run --resume.  Simulated loops are simulated again."
        raise ResumeError(f"{run}: no run of launched scripts", advice)
    return resume.plan_of(run, experiment)


def check_kept(run: Path, script: Path | None, *, run_code: bool) -> None:
    """Raise ConfigError if the script named in a run's folder would run without a person having named or allowed it."""
    if script is None and is_launched(run):
        named = f"{read_command(run).script}"
        check_allowed([named], run, run_code=run_code, whose="its folder names the script")


def resume_scripts(
    plan: Plan,
    run: Path,
    command: Command | None = None,
    how: Launching | None = None,
    watch: Callable[[Row], None] | None = None,
) -> Run:
    """Complete a launched run that was stopped, or lost its launcher, in its folder.

    All scripts start again, by default with the original command, from their last checkpoints.  Raises ResumeError;
    nothing changes then.
    """
    command = (command or read_command(run, plan.experiment.train.portable)).checked()
    folders = folders_of(plan, run)
    if not all_joined(plan, run):
        raise ResumeError(f"{run}: it was stopped before all its loops had joined", "Start it in a new folder.")
    await_free(folders)
    schema, shares = description.described(folders[0]).model.schema, DataShares("the loops' own")
    before = incarnations.prepare(run, folders, plan, schema, shares.digest)
    shutil.rmtree(requests_in(run), ignore_errors=True)
    (run / BEGAN).unlink(missing_ok=True)
    return _Launch(plan, run, command, how or Launching(), watch, before).run()


def all_joined(plan: Plan, run: Path) -> bool:
    """Return whether all loops of a launched run have joined; from then on it can resume."""
    return all(description.is_described(folder) for folder in folders_of(plan, run)[: plan.learners])


def folders_of(plan: Plan, out: Path) -> list[Path]:
    """Return the folder of each participant of a launched run."""
    return [out / PEERS / f"{node:02d}" for node in range(plan.n)]


class _Launch:
    def __init__(
        self,
        plan: Plan,
        out: Path,
        command: Command,
        how: Launching,
        watch: Callable[[Row], None] | None,
        before: Prepared | None = None,
    ) -> None:
        check_processes(plan)
        self.plan, self.out, self.command, self.how, self.before = plan, out, command, how, before
        self.scripts = Scripts(command, plan.learners, how.shown)
        self.script = faults_of(plan)
        self.folders = folders_of(plan, out)
        tracking = Tracking(plan.experiment, out) if plan.experiment.track.to else None
        self.directory = RunDirectory.again(out, plan, before.rows) if before else RunDirectory(out, plan)
        self.keeper = Keeper(self.directory, watch, tracking, exchanges=plan.exchanges)
        self.left = dict.fromkeys(range(plan.n), how.restarts)
        self._over_since, self._over = 0.0, False

    def run(self) -> Run:
        began = time.monotonic()
        interrupted = False
        with self.directory, self.scripts as scripts:
            self.command.keep(self.out)
            task, collector = self._begin()
            try:
                self._gather(collector)
                exits = scripts.exited
            except KeyboardInterrupt:
                interrupted = True
                exits = dict(scripts.exited)
                scripts.stop()
            watched = Watched(interrupted, exits, time.monotonic() - began)
            try:
                shares = DataShares("the loops' own")
                run = conclude(self.plan, task, shares, collector, self.directory, watched, report=self.how.report)
            except FedgossipError:
                task.over()
                self._show_guilty()
                scripts.wait()  # work of the others after their run, such as saving results
                raise
            finally:
                task.over()
            self._await_scripts(run)
        return run

    # --- the beginning --------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[AskingTask, Collector]:
        specs = self.specs = self._specs()
        for node in range(self.plan.learners):
            self.scripts.start(specs[node])
        self._await(range(self.plan.learners), description.is_described)
        first = self._same_model()
        for node in range(self.plan.learners, self.plan.n):
            self.scripts.start(specs[node])
        self._await(range(self.plan.n), lambda folder: (folder / ENDPOINT).exists())
        task = AskingTask(first, requests_in(self.out), self._list_running)
        record = record_of(self.plan, task.evaluate, watch_all=False)
        collector = Collector(self.folders, record, self.keeper)
        self.striker = Striker(self.script, self.scripts, specs, self._noted(collector))
        weights = [description.described(folder).first for folder in self.folders[: self.plan.learners]]
        initial = [*weights, *(weights[:1] * (self.plan.n - self.plan.learners))]
        blocks = b"\n".join(outside_files.read_bytes(folder / ENDPOINT) for folder in self.folders)
        write_whole(self.out / ENDPOINTS, blocks)
        self.initial = initial
        return task, collector

    def _specs(self) -> dict[NodeId, dict[str, Any]]:
        """Write every participant's seat; return its process's spec."""
        often = {"checkpoint_seconds": CHECKPOINT_SECONDS} if self.script.restarts or self.how.restarts else {}
        paths = (EXPERIMENT, ENDPOINTS, BEGAN)
        experiment, endpoints, began = (str((self.out / name).resolve()) for name in paths)
        specs: dict[NodeId, dict[str, Any]] = {}
        for node, folder in enumerate(self.folders):
            owner_files.make_folder(folder)
            place = folder.resolve()
            seat = SeatFile(
                experiment, node, str(place), endpoints, "tcp://127.0.0.1:*", began,
                str(requests_in(self.out).resolve()),
                restart_overrides=list(self.plan.restart_overrides), before=incarnation_of(folder),
                launcher=os.getpid(), **often,
            )  # fmt: skip
            write_whole(folder / SEAT, msgspec.json.encode(seat))
            specs[node] = {"node": node, "folder": str(place)}
            if node >= self.plan.learners:
                specs[node]["words"] = [*PYTHON, "-m", "fedgossip.drivers.loops.coordinating", str(place / SEAT)]
        return specs

    def _await(self, nodes: Sequence[NodeId], ready: Callable[[Path], bool]) -> None:
        """Wait until all are ready, without a limit on the scripts' time."""
        while missing := [node for node in nodes if not ready(self.folders[node])]:
            self.scripts.poll(POLL_SECONDS)
            for node in missing:
                if node in self.scripts.exited and not ready(self.folders[node]) and not self._revived(node, 0):
                    raise self._never_joined(node)

    def _never_joined(self, node: NodeId) -> Exception:
        if failure := first_failure([last_word(self.folders[node])]):
            return failure
        code, log = self.scripts.exited[node], self.folders[node] / LOG
        last_words = self.scripts.last_words(node)
        text = f"the script of loop {node} ended with code {code} before it joined" + (
            f": {last_words}" if last_words else ""
        )
        advice = f"All that it printed is in {log}." if last_words else ""
        asked = "Does it call fedgossip.join?"
        return TrainingError(text, advice or asked) if code else ConfigError(text, f"{asked}  {advice}".rstrip())

    def _same_model(self) -> description.Described:
        """Return the loops' common first weights.  Raises ConfigError, naming the first parameter that differs."""
        descriptions = [description.described(folder) for folder in self.folders[: self.plan.learners]]
        description.check_alike([one.model for one in descriptions])
        return descriptions[0]

    # --- the run --------------------------------------------------------------------------------------------------

    def _list_running(self) -> list[NodeId]:
        return [node for node in self.scripts.running if node < self.plan.learners]

    def _noted(self, collector: Collector) -> Callable[[str, NodeId, object], None]:
        def note(name: str, peer: NodeId, value: object = None) -> None:
            self.keeper(EventRow(collector.rounds[peer], peer, name, value))

        return note

    def _gather(self, collector: Collector) -> None:
        """Read the loops' files until all have ended, without a limit on a step's time."""
        collector.begin(self.before, self.directory.rows() if self.before else (), lambda: self.initial)
        zero, alone_since = 0, 0.0
        while len(self.scripts.exited) < self.plan.n or self.striker.away:
            self.scripts.poll(POLL_SECONDS)
            collector.read()
            if not zero and any(collector.rounds):
                zero = time.monotonic_ns() - int(collector.slowest_training * 1e9)
                with contextlib.suppress(NotWrittenError):
                    write_whole(self.out / BEGAN, str(zero).encode())
            if zero:
                self.striker.act(time.monotonic_ns() - zero, collector.rounds)
            self._start_again(collector)
            collector.ended(self.scripts.exited.keys() - self.striker.away)
            alone_since = self._end_coordinator(alone_since)
            self._end_late(collector)

    def _start_again(self, collector: Collector) -> None:
        for node in self.scripts.exited.keys() - self.striker.away:
            self._revived(node, collector.rounds[node])

    def _revived(self, node: NodeId, round: int) -> bool:
        """Restart a script that died without a final status; return whether it was restarted."""
        died = self.scripts.exited[node] != 0 and last_word(self.folders[node]) is None
        if not died or not self.left[node]:
            return False
        self.left[node] -= 1
        self.scripts.start(self.specs[node])
        self.keeper(EventRow(round, node, "restarted"))
        return True

    def _end_coordinator(self, alone_since: float) -> float:
        n = self.plan.learners
        if self.plan.n == n or n in self.scripts.exited or not set(range(n)) <= self.scripts.exited.keys():
            return 0.0
        if alone_since and time.monotonic() - alone_since > COORDINATOR_SECONDS:
            self.scripts.signal(n, 15)
        return alone_since or time.monotonic()

    def _end_late(self, collector: Collector) -> None:
        """After the coordinator's end, let loops without a run continue alone."""
        left = [node for node in range(self.plan.n) if node not in self.scripts.exited]
        if self.plan.n == self.plan.learners or self.plan.learners in left or not left or self.striker.away:
            self._over_since = 0.0
            return
        now = time.monotonic()
        self._over_since = self._over_since or now
        if now - self._over_since > COORDINATOR_SECONDS + collector.slowest_training and not self._over:
            self._over = True
            write_whole(requests_in(self.out) / OVER, b"")
            for node in left:
                self.keeper(EventRow(collector.rounds[node], node, "run_was_over"))

    def _show_guilty(self) -> None:
        """Show the traceback of the first loop that raised."""
        words = {node: last_word(folder) for node, folder in enumerate(self.folders[: self.plan.learners])}
        if guilty := [node for node, ended in words.items() if ended and ended.status == "failed"]:
            self.scripts.show_traceback(guilty[0])

    def _await_scripts(self, run: Run) -> None:
        """Wait for the scripts after the run; report those that failed."""
        codes = self.scripts.wait()
        status = run.summary["status"]
        for node in [node for node, code in codes.items() if code > 0]:
            last_words, log = self.scripts.last_words(node), self.folders[node] / LOG
            ended = f"the script of loop {node} ended with code {codes[node]}"
            words = f": {last_words}" if last_words else ""
            if status == "finished":
                advice = f"The run itself is whole, in {self.out}; all that it printed is in {log}."
                raise TrainingError(f"{ended} after its run{words}", advice)
            if status == "partial" and last_word(self.folders[node]):  # a loop without a status is reported as dead
                print(printable(f"fedgossip: {ended}{words}; all that it printed is in {log}"), file=sys.stderr)


def check_launchable(plan: Plan) -> None:
    """Raise ConfigError for an experiment that does not support loops."""
    if plan.experiment.task.kind != "loop":
        raise ConfigError("this experiment brings its own task", 'Set [task] kind = "loop" for a loop of your own.')
