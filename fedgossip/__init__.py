"""Decentralized and federated learning: peers that learn together by gossip.

    import fedgossip

    run = fedgossip.simulate("experiment.toml")
    run.accuracy, run.digest

    ring = fedgossip.resolve("ring", 16)
    mixing = fedgossip.build(ring, "metropolis")
    fedgossip.spectrum(mixing).slem

Names are loaded when they are used: `import fedgossip` costs nothing, and torch is imported only to train.  Import it
before torch computes: it chooses torch's kernels, see `kernels`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from fedgossip.base import kernels
from fedgossip.base.version import __version__

kernels.prepare()

if TYPE_CHECKING:
    from fedgossip.base.errors import ConfigError, FedgossipError
    from fedgossip.core.task import Job, LocalTask, Segment, StatefulTask, Update
    from fedgossip.drivers.forecasting import forecast_run
    from fedgossip.drivers.local import run_local
    from fedgossip.drivers.loops.joining import join
    from fedgossip.drivers.loops.loop_handle import JoinedLoop
    from fedgossip.drivers.loops.simulating import simulate_loop
    from fedgossip.drivers.simulate import simulate
    from fedgossip.experiment import Experiment, load_experiment
    from fedgossip.lab.sweeps.sweep import sweep
    from fedgossip.lab.sweeps.table import SweepTable
    from fedgossip.learning.models.loaded_model import LoadedModel, load_model
    from fedgossip.runs.run_directory import Run
    from fedgossip.topology import (
        Forecast,
        Mixing,
        Spectrum,
        Topology,
        build,
        forecast,
        forecast_of,
        resolve,
        resolve_schedule,
        spectrum,
    )

HOMES = {
    "ConfigError": "fedgossip.base.errors",
    "FedgossipError": "fedgossip.base.errors",
    "Experiment": "fedgossip.experiment",
    "load_experiment": "fedgossip.experiment",
    "forecast_run": "fedgossip.drivers.forecasting",
    "run_local": "fedgossip.drivers.local",
    "LoadedModel": "fedgossip.learning.models.loaded_model",
    "load_model": "fedgossip.learning.models.loaded_model",
    "JoinedLoop": "fedgossip.drivers.loops.loop_handle",
    "join": "fedgossip.drivers.loops.joining",
    "simulate_loop": "fedgossip.drivers.loops.simulating",
    "Run": "fedgossip.runs.run_directory",
    "simulate": "fedgossip.drivers.simulate",
    "sweep": "fedgossip.lab.sweeps.sweep",
    "SweepTable": "fedgossip.lab.sweeps.table",
    "TrainedTable": "fedgossip.runs.run_directory",
    **dict.fromkeys(("load_table", "save_table"), "fedgossip.runs.table_files"),
    **dict.fromkeys(("Job", "LocalTask", "Segment", "StatefulTask", "Update"), "fedgossip.core.task"),
    **dict.fromkeys(("Forecast", "Mixing", "Spectrum", "Topology", "build"), "fedgossip.topology"),
    **dict.fromkeys(("forecast", "forecast_of", "resolve", "resolve_schedule", "spectrum"), "fedgossip.topology"),
}
"""Where each name is, by the name."""

__all__ = [
    "ConfigError",
    "Experiment",
    "FedgossipError",
    "Forecast",
    "Job",
    "JoinedLoop",
    "LoadedModel",
    "LocalTask",
    "Mixing",
    "Run",
    "Segment",
    "Spectrum",
    "StatefulTask",
    "SweepTable",
    "Topology",
    "TrainedTable",
    "Update",
    "__version__",
    "build",
    "forecast",
    "forecast_of",
    "forecast_run",
    "join",
    "load_experiment",
    "load_model",
    "load_table",
    "resolve",
    "resolve_schedule",
    "run_local",
    "save_table",
    "simulate",
    "simulate_loop",
    "spectrum",
    "sweep",
]


# by this name loops of users import callbacks: fedgossip.loops.transformers, fedgossip.loops.lightning
loops = sys.modules[f"{__name__}.loops"] = ModuleType(f"{__name__}.loops", "Callbacks of trainers, one per library.")
loops.__path__ = [str(Path(__file__).parent / "drivers" / "loops")]

# by this name programs of users import errors; loaded at their use, so that importing fedgossip is cheap
errors = sys.modules[f"{__name__}.errors"] = ModuleType(f"{__name__}.errors", "The errors that fedgossip raises.")
errors.__dict__["__getattr__"] = lambda name: getattr(importlib.import_module(f"{__name__}.base.errors"), name)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'fedgossip' has no attribute {name!r}")
    found = getattr(importlib.import_module(HOMES[name]), name)
    if not isinstance(found, FunctionType):
        return found
    from fedgossip.base.argument_types import checked

    return checked(found)


def __dir__() -> list[str]:
    return sorted(__all__)


if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    importlib.import_module("fedgossip.report.page.page").register(_shell)
