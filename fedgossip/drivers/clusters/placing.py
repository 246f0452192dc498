"""A run with participants on a cluster: `fedgossip launch EXPERIMENT --on slurm`, or `--on ray`."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ResumeError
from fedgossip.core import run_format
from fedgossip.core.records import Row
from fedgossip.drivers.clusters.ray import RayProcesses
from fedgossip.drivers.clusters.resources import RAY, Resources, check_placeable
from fedgossip.drivers.clusters.slurm import SlurmProcesses
from fedgossip.drivers.kept_keys import mark_of
from fedgossip.drivers.local import run_local_plan, specs_of
from fedgossip.drivers.participant import check_recordable
from fedgossip.drivers.run_processes import RunProcesses
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.gossip.adversary import check_real
from fedgossip.runs.run_directory import Run, RunDirectory, state_plan, write_whole

Tell = Callable[[str], None]


class _Placed(msgspec.Struct):
    """placed.json: the resources, and the mark of the user who asked for them."""

    resources: Resources
    mark: str


_DECODER = msgspec.json.Decoder(_Placed)


def run_placed(
    plan: Plan,
    out: Path,
    wanted: Resources,
    *,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    tell: Tell = lambda _: None,
    resume: bool = False,
) -> Run:
    """Run every participant on the cluster, and combine their results; otherwise as `run_local_plan`.

    `tell` receives the engine's messages.  Raises ConfigError for a run that cannot be placed, before anything starts,
    and NetworkError where the engine does not answer.
    """
    check_placeable(plan)
    with processes_of(plan, wanted, tell) as family:
        return run_local_plan(
            plan, out, family=family, report=report, watch=watch, resume=resume, made=lambda: _keep(out, wanted)
        )


def processes_of(plan: Plan, wanted: Resources, tell: Tell) -> RunProcesses:
    """Return the processes that place the participants of a run.  Raises ConfigError, NetworkError."""
    if wanted.engine == RAY:
        return RayProcesses(plan.n, wanted, portable=plan.experiment.train.portable, tell=tell)
    return _slurm(plan, wanted, tell)


def _slurm(plan: Plan, wanted: Resources, tell: Tell) -> SlurmProcesses:
    return SlurmProcesses(plan.n, wanted, portable=plan.experiment.train.portable, tell=tell)


def submit(plan: Plan, out: Path, wanted: Resources, tell: Tell) -> str:
    """Have Slurm place the participants, and return the number of their job: they go on without us.

    Their files are in OUT/peers.  Raises ConfigError.
    """
    check_placeable(plan)
    check_recordable(plan, 0)
    check_real(plan.experiment)
    slurm = _slurm(plan, wanted, tell)
    task, _ = compose.task_of(plan.experiment, plan.learners)
    RunDirectory(out, plan).abandon()
    state_plan(out, plan, task)
    _keep(out, wanted)
    folders = [out / run_format.PEERS / f"{node:02d}" for node in range(plan.n)]
    for folder, spec in zip(folders, specs_of(out, folders, slurm).values(), strict=True):
        owner_files.made(folder)
        slurm.start(spec)
    return slurm.submit(out)


def _keep(out: Path, wanted: Resources) -> None:
    placed = _Placed(wanted, mark_of(msgspec.json.encode(wanted)))
    write_whole(out / run_format.PLACED, msgspec.json.encode(placed))


def saved_resources(run: Path) -> Resources:
    """Return the cluster resources of a run that was stopped, which this user asked for.  Raises ResumeError."""
    path = run / run_format.PLACED
    advice = "Name the cluster again: --on slurm, --on ray.  Or go on here: fedgossip run --resume."
    try:
        placed = from_json(_DECODER, outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ResumeError(f"{path}: {error}", advice) from None
    # A cluster of somebody else's choice would receive the run, and answer with pickles; a name of a partition
    # with a line break would be a line of the job's script.
    if not hmac.compare_digest(placed.mark.encode(), mark_of(msgspec.json.encode(placed.resources)).encode()):
        raise ResumeError(f"{path}: no command of yours on this machine asked for this cluster", advice)
    return placed.resources
