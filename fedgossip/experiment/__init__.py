"""The experiment file: `sections` declare its keys, `reading` reads it, and `checks` refuse what cannot run.

It imports `learning`, `protocols`, `faults`, `data` and below, and no torch.  `kinds` has a line for each kind of run,
by the section that this kind alone has.  A file: `reading` decodes TOML into the structs of `sections`, refuses
unknown keys with the nearest known one, checks each value against the limits in its annotation, and then calls the
check of its kind.
"""

from fedgossip.experiment.checks import ignored_by, ignores
from fedgossip.experiment.reading import checked, file_kept_in, load_experiment
from fedgossip.experiment.run_sections import (
    MAPREDUCE,
    AlgorithmSection,
    CoordinatorSection,
    ParallelSection,
    PrivacySection,
    SecureSection,
    ServerSection,
    SimulationSection,
    TopologySection,
)
from fedgossip.experiment.sections import (
    BEST,
    GIVEN,
    DataSection,
    EvalSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ModelSection,
    ParallelExperiment,
    TaskSection,
)

__all__ = [
    "BEST",
    "GIVEN",
    "MAPREDUCE",
    "AlgorithmSection",
    "CoordinatorSection",
    "DataSection",
    "EvalSection",
    "Experiment",
    "FederatedExperiment",
    "GossipExperiment",
    "ModelSection",
    "ParallelExperiment",
    "ParallelSection",
    "PrivacySection",
    "SecureSection",
    "ServerSection",
    "SimulationSection",
    "TaskSection",
    "TopologySection",
    "checked",
    "file_kept_in",
    "ignored_by",
    "ignores",
    "load_experiment",
]
