"""What is asked of a cluster."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from fedgossip.errors import ConfigError
from fedgossip.plans.plan import Plan

SLURM = "slurm"

LOCAL = "local"
"""The partition that is this machine: submitit's local executor, to try what would be sent."""


@dataclass(frozen=True)
class Resources:
    """What is asked for a run."""

    engine: str
    cpus: int = 1
    """Processors of each participant; as many threads train there."""
    partition: str = ""
    """Of Slurm; "": its default one."""
    nodes: int = 1
    """Of Slurm: over how many the participants are spread."""
    minutes: int = 60
    """Of Slurm: after so many the job is stopped, queued again, and goes on from its checkpoints."""
    interface: str = ""
    """The network interface by whose address the others call a participant; "": the one that leads to them."""


def check_placeable(plan: Plan) -> None:
    """Raise ConfigError for what cannot run on the nodes of a cluster."""
    if plan.experiment.loops:
        advice = "Launch its script, on this machine: fedgossip launch --experiment FILE SCRIPT."
        raise ConfigError("training loops of your own are not placed on a cluster", advice)
    if plan.experiment.faults:
        advice = "Leave [[faults]] out, or run it with fedgossip run --on local, or --on sim."
        raise ConfigError("faults are made by a script on one machine, not on a cluster", advice)


def imported(name: str, title: str) -> Any:
    """Return a module of the extra.  Raises ConfigError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{title} is not installed", "pip install 'fedgossip[cluster]'") from None
