"""The experiment file: `sections` declares its keys, `reading` reads it, and `checks` refuses what cannot run.

It imports `learning`, `protocols`, `faults`, `data` and below, and no torch.  `reading.RUN_KINDS` has one line per kind
of run, keyed by the section that only this kind has.  Steps for a file: `reading` decodes TOML into the structs of
`sections`, refuses unknown keys with the nearest known one, checks each value against the limits in its annotation, and
calls the check of its kind.
"""

from fedgossip.experiment.checks import ignored_by, ignores
from fedgossip.experiment.reading import check_agree, checked, faults_in, file_kept_in, load_experiment
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
    "check_agree",
    "checked",
    "faults_in",
    "file_kept_in",
    "ignored_by",
    "ignores",
    "load_experiment",
]
