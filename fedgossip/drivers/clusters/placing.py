"""A run with participants on a cluster: `fedgossip launch EXPERIMENT --on slurm`, or `--on ray`.

Slurm's nodes share a disk.  On Ray each participant is an actor with a separate process; the launcher distributes
addresses and copies files as they are written, into the layout of `run --on local`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, NetworkError, NotWrittenError, ResumeError, reason
from fedgossip.core import run_format
from fedgossip.core.records import Row
from fedgossip.core.run_format import BEGAN, ENDPOINT, ENDPOINTS, EXPERIMENT
from fedgossip.drivers.clusters.meeting import RAY, Resources, check_placeable
from fedgossip.drivers.clusters.mirror import Piece, apply, content_of
from fedgossip.drivers.clusters.ray_cluster import END_SECONDS, RayParticipant, connected
from fedgossip.drivers.clusters.slurm import SlurmProcesses
from fedgossip.drivers.local import run_local_plan, specs_of
from fedgossip.drivers.participant import check_recordable
from fedgossip.drivers.peer_processes import RunProcesses, start_failure
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.plans.gossip.gossip_checks import check_real
from fedgossip.runs.run_directory import Run, RunDirectory, state_plan, write_whole

PrintLine = Callable[[str], None]


class _Placed(msgspec.Struct):
    """placed.json: the resources, and the mark of the user that requested them."""

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
    print_line: PrintLine = lambda _: None,
    resume: bool = False,
) -> Run:
    """Run every participant on the cluster, and combine their results; otherwise as `run_local_plan`.

    `print_line` receives the engine's messages.  Raises ConfigError before a process starts, NetworkError if the engine
    does not answer.
    """
    check_placeable(plan)
    with processes_of(plan, wanted, print_line) as family:
        return run_local_plan(
            plan, out, family=family, report=report, watch=watch, resume=resume, made=lambda: _keep(out, wanted)
        )


def processes_of(plan: Plan, wanted: Resources, print_line: PrintLine) -> RunProcesses:
    """Return the processes that place the participants of a run.  Raises ConfigError, NetworkError."""
    if wanted.engine == RAY:
        return RayProcesses(plan.n, wanted, portable=plan.experiment.train.portable, print_line=print_line)
    return _slurm(plan, wanted, print_line)


def _slurm(plan: Plan, wanted: Resources, print_line: PrintLine) -> SlurmProcesses:
    return SlurmProcesses(plan.n, wanted, portable=plan.experiment.train.portable, print_line=print_line)


def submit(plan: Plan, out: Path, wanted: Resources, print_line: PrintLine) -> str:
    """Submit the participants to Slurm, and return the number of their job, which continues without this process.

    Their files are in OUT/peers.  Raises ConfigError.
    """
    check_placeable(plan)
    check_recordable(plan, 0)
    check_real(plan.experiment)
    slurm = _slurm(plan, wanted, print_line)
    task, _ = compose.task_of(plan.experiment, plan.learners)
    RunDirectory(out, plan).abandon()
    state_plan(out, plan, task)
    _keep(out, wanted)
    folders = [out / run_format.PEERS / f"{node:02d}" for node in range(plan.n)]
    for folder, spec in zip(folders, specs_of(out, folders, slurm).values(), strict=True):
        owner_files.make_folder(folder)
        slurm.start(spec)
    return slurm.submit(out)


def _keep(out: Path, wanted: Resources) -> None:
    placed = _Placed(wanted, owner_files.mark_of(msgspec.json.encode(wanted)))
    write_whole(out / run_format.PLACED, msgspec.json.encode(placed))


def saved_resources(run: Path) -> Resources:
    """Return the cluster resources of a stopped run, if this user requested them.  Raises ResumeError."""
    path = run / run_format.PLACED
    advice = "Name the cluster again: --on slurm, --on ray.  Or resume here: fedgossip run --resume."
    try:
        placed = from_json(_DECODER, outside_files.read_bytes(path))
    except (OSError, UnreadableError) as error:
        raise ResumeError(f"{path}: {reason(error)}", advice) from None
    # A cluster chosen by somebody else would receive the run, and answer with pickles; a partition's name with a line
    # break would be a line of the job's script.
    if not owner_files.is_mark(placed.mark, msgspec.json.encode(placed.resources)):
        raise ResumeError(f"{path}: no command of yours on this machine asked for this cluster", advice)
    return placed.resources


NEWS_SECONDS = 0.5
"""Maximum seconds that an actor without changes waits before it replies."""

DELAY_SECONDS = 2.0
"""Maximum delay, in seconds, until a participant's files are copied here."""

LEAVE_SECONDS = 10.0
"""Maximum seconds for actors to delete their folders."""

PLACES = {"experiment": EXPERIMENT, "endpoints": ENDPOINTS, "began": BEGAN}


class RayProcesses:
    """Participants as actors.  Raises ConfigError without Ray or room, NetworkError if no cluster answers."""

    driver, bind, delay = RAY, "", DELAY_SECONDS

    def __init__(self, count: int, wanted: Resources, *, portable: bool, print_line: PrintLine) -> None:
        self.exited: dict[int, int | None] = {}
        self._count, self._wanted, self._portable, self._report = count, wanted, portable, print_line
        self._specs: dict[int, dict[str, Any]] = {}
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}
        self._folders: dict[int, Path] = {}
        self._ray = connected(wanted.address, count * wanted.cpus)
        there = self._ray.cluster_resources()
        for name, each, title in (("CPU", wanted.cpus, "processors"), ("GPU", wanted.gpus, "GPUs")):
            if there.get(name, 0) < count * each:
                self._ray.shutdown()
                text = f"{count} participants of {each:g} {title} each: the cluster has {there.get(name, 0):g}"
                advice = f"Ask for less with --{name.lower()}s, or add nodes: ray start --address=HOST:PORT."
                raise ConfigError(text, advice)

    def start(self, spec: dict[str, Any]) -> None:
        """Queue a participant; `await_addresses` places all of them."""
        self._specs[spec["node"]] = spec

    def signal(self, node: int, number: int) -> None:
        """Do nothing: faults are refused on a cluster."""

    def await_addresses(self, out: Path, folders: Sequence[Path]) -> None:
        """Place all participants, and send the addresses of all to each."""
        seconds = self._wanted.start_seconds
        until = time.monotonic() + seconds
        hosts = self._place(out, until)
        how = {
            "here": str(Path.cwd()), "path": [str(Path(p).resolve()) for p in sys.path if p], "cpus": self._wanted.cpus,
            "portable": self._portable, "interface": self._wanted.interface, "places": PLACES,
        }  # fmt: skip
        files = {name: outside_files.read_bytes(out / name) for name in (EXPERIMENT,)}
        begun = {}
        for node, actor in self._actors.items():
            folder = self._folders[node] = folders[node]
            (folder / ENDPOINT).unlink(missing_ok=True)  # of an earlier life, at another place
            content: list[Piece] = content_of(folder)
            spec = {**self._specs[node], "wait_seconds": self._wanted.wait_seconds}
            begun[node] = actor.start.remote(spec, files, content, hosts, how)
        for node, ref in begun.items():
            self._answer(ref, until)
            self._ask(node)
        while not all((folder / ENDPOINT).exists() for folder in folders):
            self.poll(0.1)
            if self.exited or time.monotonic() > until:
                raise start_failure(out, folders)
        endpoints = b"\n".join(outside_files.read_bytes(folder / ENDPOINT) for folder in folders)
        write_whole(out / ENDPOINTS, endpoints)
        for actor in self._actors.values():
            actor.give.remote(ENDPOINTS, endpoints)

    def _place(self, out: Path, until: float) -> list[str]:
        """Create an actor for each participant; return their nodes' addresses."""
        actor = self._ray.remote(RayParticipant)
        how = {
            "num_cpus": self._wanted.cpus,
            "num_gpus": self._wanted.gpus,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        names = {node: f"fedgossip-{out.name}-{node:02d}" for node in range(self._count)}
        self._actors = {node: actor.options(name=name, **how).remote() for node, name in names.items()}
        hosts = [one.host.remote() for one in self._actors.values()]
        _, missing = self._ray.wait(hosts, num_returns=len(hosts), timeout=max(0.0, until - time.monotonic()))
        if missing:
            free = int(self._ray.available_resources().get("CPU", 0))
            text = f"{len(missing)} of {self._count} participants were not placed in {self._wanted.start_seconds:g} s"
            advice = f"{free} processors of the cluster are free now; wait for more with --start-timeout."
            raise NetworkError(text, advice)
        found = [str(self._answer(ref, until)) for ref in hosts]
        nodes = len(set(found))
        self._report(f"{self._count} actors of Ray on {nodes} node{'s' * (nodes != 1)}")
        return found

    def _answer(self, ref: Any, until: float) -> Any:
        """Return an actor's answer.  Raises NetworkError without one."""
        try:
            return self._ray.get(ref, timeout=max(0.1, until - time.monotonic()))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ConfigError):
                raise cause from None
            raise NetworkError(f"a node could not start its participant: {cause!r}", _SAME) from None
        except self._ray.exceptions.RayError as error:
            raise NetworkError(f"an actor of Ray was lost: {_line(error)}", _SAME) from None

    def _ask(self, node: int) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._asked[self._actors[node].news.remote(NEWS_SECONDS)] = node

    def poll(self, timeout: float) -> None:
        """Receive the participants' files, for `timeout` seconds."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            if not self._asked:
                time.sleep(left)
                return
            ready, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=left)
            for ref in ready:
                self._take(ref, self._asked.pop(ref))

    def _take(self, ref: Any, node: int) -> None:
        try:
            pieces, code = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._report(f"the actor of participant {node} was lost: {_line(error)}")
            self.exited[node] = None
            return
        try:
            apply(self._folders[node], pieces)
        except OSError as error:
            raise NotWrittenError(self._folders[node], error) from None
        if code is None:
            self._ask(node)
        else:
            self.exited[node] = code

    def stop(self) -> None:
        """End all participants with a goodbye, fetch their remaining files, and end their actors and the connection."""
        if not self._ray.is_initialized():
            return
        try:
            here = [node for node in self._asked.values() if node not in self.exited]
            for node in here:
                self._actors[node].end.remote()
            until = time.monotonic() + END_SECONDS + LEAVE_SECONDS
            while time.monotonic() < until and not self.exited.keys() >= set(here):
                self.poll(0.1)
            left = [actor.leave.remote() for actor in self._actors.values()]
            if left:
                self._ray.wait(left, num_returns=len(left), timeout=LEAVE_SECONDS)
            for actor in self._actors.values():
                self._ray.kill(actor)
        finally:
            self._ray.shutdown()

    def __enter__(self) -> RayProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


_SAME = "Has each node this fedgossip, in the Python that Ray runs?"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
