"""The folder RUN/cluster, on a disk shared by all nodes, through which the tasks of a job and their launcher
communicate.

    job.json             the spec of each participant, and the location of the rest for the nodes
    stop                 exists when all must leave and end
    JOB-LIFE/            of each life of the job: a preempted job is queued again, as another life
        03.here          the process of participant 3, and its host
        03.toml          its address and public key;  endpoints.toml: those of all, once all exist
        03.exit          its exit code

Keys are made and stay on the nodes.  A recent file proves that a node sees this folder, and not another of the same
name.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from fedgossip.base import outside_files, owner_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, NotWrittenError, reason
from fedgossip.core.run_format import ENDPOINTS, JOB, STOP
from fedgossip.plans.plan import Plan
from fedgossip.runs.run_directory import write_whole


class PlacedJob(msgspec.Struct):
    """The job file that every task reads.  `here`: the launcher's folder, so that the user's modules are found."""

    specs: list[dict[str, Any]]
    here: str
    path: list[str]
    cpus: int = 1
    portable: bool = False
    interface: str = ""


_JOB = msgspec.json.Decoder(PlacedJob)


def read_job(folder: Path) -> PlacedJob:
    """Return the job of a folder.  Raises ConfigError."""
    try:
        return from_json(_JOB, outside_files.read_bytes(folder / JOB))
    except (OSError, UnreadableError) as error:
        advice = "Place runs in a folder that all nodes see, with --out."
        raise ConfigError(f"{folder / JOB}: {reason(error)}", advice) from None


def write_job(folder: Path, job: PlacedJob) -> None:
    """Write the job into its folder, which may have lives of an earlier run.  Raises NotWrittenError."""
    owner_files.make_folder(folder)
    (folder / STOP).unlink(missing_ok=True)
    write_whole(folder / JOB, msgspec.json.encode(job))


@dataclass(frozen=True)
class JobLife:
    """One life of a job of `count` participants; `folder` exists."""

    folder: Path
    count: int

    @classmethod
    def newest(cls, folder: Path, job: str, count: int) -> JobLife | None:
        """Return the latest life of a job; None if none has begun, or if the nodes do not see the folder."""
        lives = [int(path.name.rpartition("-")[2]) for path in folder.glob(f"{job}-*")]
        return cls(folder / f"{job}-{max(lives)}", count) if lives else None

    def begin(self, node: int) -> None:
        """Record that participant `node` is placed here."""
        owner_files.make_folder(self.folder)
        self._write(node, "here", f"{os.getpid()} {socket.gethostname()}\n".encode())

    def leave(self, node: int, endpoint: bytes) -> None:
        self._write(node, "toml", endpoint)

    def ended(self, node: int, code: int) -> None:
        self._write(node, "exit", str(code).encode())

    def list_placed(self) -> frozenset[int]:
        """Participants placed so far."""
        return self._those("here")

    def gather(self) -> None:
        """Write the addresses of all participants, once all have published theirs."""
        if len(found := sorted(self._those("toml"))) == self.count and not self.gathered:
            write_whole(
                self.endpoints, b"\n".join(outside_files.read_bytes(self._path(node, "toml")) for node in found)
            )

    @property
    def endpoints(self) -> Path:
        return self.folder / ENDPOINTS

    @property
    def gathered(self) -> bool:
        return self.endpoints.exists()

    def exits(self) -> Mapping[int, int]:
        """Exit codes of the participants that ended in this life."""
        return {node: int(outside_files.read_text(self._path(node, "exit"))) for node in sorted(self._those("exit"))}

    def _those(self, kind: str) -> frozenset[int]:
        return frozenset(int(path.stem) for path in self.folder.glob(f"[0-9]*.{kind}"))

    def _path(self, node: int, kind: str) -> Path:
        return self.folder / f"{node:02d}.{kind}"

    def _write(self, node: int, kind: str, content: bytes) -> None:
        write_whole(self._path(node, kind), content)


SEEN_SECONDS = 30.0
"""Maximum seconds until a file of another machine is seen: the refresh interval of NFS folders."""


def probe_in(folder: Path) -> str:
    """Write a probe into a folder, and return its name, for the nodes to look up.  Raises NotWrittenError."""
    name = f".probe-{uuid4().hex}"
    try:
        owner_files.written(folder / name, b"")
    except OSError as error:
        raise NotWrittenError(folder / name, error) from None
    return name


def check_shared(folder: Path, name: str, seconds: float = SEEN_SECONDS) -> None:
    """Wait at most `seconds` until the probe is seen here.  Raises ConfigError."""
    until = time.monotonic() + seconds
    while not (folder / name).exists():
        if time.monotonic() > until:
            text = f"{socket.gethostname()} does not see the folder {folder} that this was started in"
            raise ConfigError(text, "Choose one on a disk that all nodes share, with --out.")
        time.sleep(0.1)


SLURM, RAY = "slurm", "ray"

LOCAL = "local"
"""Partition or address of this machine, for a trial: submitit's local executor, or a temporary Ray cluster."""

START_SECONDS = 120.0
"""Default time for all participants of a run to listen, in seconds; a cold disk and sixteen of them need some."""

MORE_SECONDS = 30.0
"""Additional seconds that participants wait for each other's addresses, so that the launcher reports the
missing ones.
"""


@dataclass(frozen=True)
class Resources:
    """Resources requested for a run."""

    engine: str
    cpus: int = 1
    """Processors of each participant, equal to its training threads."""
    partition: str = ""
    """Slurm: partition; "": its default one."""
    nodes: int = 1
    """Slurm: number of nodes over which the participants are spread."""
    minutes: int = 60
    """Slurm: minutes after which the job is stopped, queued again, and resumed from its checkpoints."""
    interface: str = ""
    """Network interface with the address that the others use for a participant; "": the one with a route to them."""
    address: str = "auto"
    """Ray: HOST:PORT; auto: RAY_ADDRESS, or the cluster of this machine; local: one that ends with the run."""
    gpus: float = 0.0
    """Ray: GPUs of each participant, 0.5 for two that share one; with 0 Ray hides a node's GPUs."""
    start_seconds: float = START_SECONDS
    """Seconds for all participants to listen, on Slurm from the start of the job."""

    @property
    def wait_seconds(self) -> float:
        """Maximum seconds that a participant waits for the addresses of the others."""
        return self.start_seconds + MORE_SECONDS


def check_placeable(plan: Plan) -> None:
    """Raise ConfigError for runs that a cluster does not support."""
    if plan.experiment.loops:
        advice = "Launch its script, on this machine: fedgossip launch --experiment FILE SCRIPT."
        raise ConfigError("training loops of your own are not placed on a cluster", advice)
    if plan.experiment.faults:
        advice = "Leave [[faults]] out, or run it with fedgossip run --on local, or --on sim."
        raise ConfigError("faults are made by a script on one machine, not on a cluster", advice)
