"""The experiment file: `sections` say what it may hold, `reading` reads it, `checks` refuse what cannot be run."""

from fedgossip.experiment.reading import checked, load_experiment
from fedgossip.experiment.sections import (
    AlgorithmSection,
    CoordinatorSection,
    DataSection,
    EvalSection,
    Experiment,
    ModelSection,
    PrivacySection,
    SecureSection,
    SimulationSection,
    TaskSection,
    TopologySection,
)

__all__ = [
    "AlgorithmSection",
    "CoordinatorSection",
    "DataSection",
    "EvalSection",
    "Experiment",
    "ModelSection",
    "PrivacySection",
    "SecureSection",
    "SimulationSection",
    "TaskSection",
    "TopologySection",
    "checked",
    "load_experiment",
]
