"""The requested resources of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from fedgossip.base.errors import ConfigError
from fedgossip.plans.plan import Plan

SLURM, RAY = "slurm", "ray"

LOCAL = "local"
"""The partition of Slurm, or the address of Ray, that is this machine: submitit's local executor, or a cluster of Ray
that ends with the run, to try what would be sent."""

START_SECONDS = 120.0
"""Default time in which all participants of a run must listen; a cold disk and sixteen of them need some."""

MORE_SECONDS = 30.0
"""Additional wait of participants for each other's addresses: the launcher is to report the missing ones."""


@dataclass(frozen=True)
class Resources:
    """Resources requested for a run."""

    engine: str
    cpus: int = 1
    """Processors of each participant; as many threads train there."""
    partition: str = ""
    """Of Slurm; "": its default one."""
    nodes: int = 1
    """Of Slurm: over how many the participants are spread."""
    minutes: int = 60
    """Of Slurm: time after which the job is stopped, queued again, and resumed from its checkpoints."""
    interface: str = ""
    """The network interface whose address the others use for a participant; "": the one with a route to them."""
    address: str = "auto"
    """Of Ray: HOST:PORT; auto: RAY_ADDRESS, or the cluster of this machine; local: one that ends with the run."""
    gpus: float = 0.0
    """Of Ray: GPUs of each participant, 0.5 for two that share one; with 0 Ray hides those that a node has."""
    start_seconds: float = START_SECONDS
    """Time in which all participants must listen, on Slurm from the moment in which the job runs."""

    @property
    def wait_seconds(self) -> float:
        """How long a participant waits for the addresses of the others."""
        return self.start_seconds + MORE_SECONDS


def check_placeable(plan: Plan) -> None:
    """Raise ConfigError for what cannot run on the nodes of a cluster."""
    if plan.experiment.loops:
        advice = "Launch its script, on this machine: fedgossip launch --experiment FILE SCRIPT."
        raise ConfigError("training loops of your own are not placed on a cluster", advice)
    if plan.experiment.faults:
        advice = "Leave [[faults]] out, or run it with fedgossip run --on local, or --on sim."
        raise ConfigError("faults are made by a script on one machine, not on a cluster", advice)
