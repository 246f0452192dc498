"""The experiment file: `sections` say what it may hold, `reading` reads it, `checks` refuse what cannot be run."""

from fedgossip.experiment.reading import checked, load
from fedgossip.experiment.sections import (
    Algorithm,
    Coordinator,
    Data,
    Eval,
    Experiment,
    Model,
    Privacy,
    Secure,
    Simulation,
    Task,
    TopologySection,
)

__all__ = [
    "Algorithm",
    "Coordinator",
    "Data",
    "Eval",
    "Experiment",
    "Model",
    "Privacy",
    "Secure",
    "Simulation",
    "Task",
    "TopologySection",
    "checked",
    "load",
]
