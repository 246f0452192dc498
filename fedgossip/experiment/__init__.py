"""The experiment file: `sections` say what it may hold, `kinds` what it may describe, `reading` reads it, `checks`
refuse what cannot be run."""

from fedgossip.experiment.coordinator_sections import CoordinatorSection, PrivacySection, SecureSection
from fedgossip.experiment.data_section import DataSection
from fedgossip.experiment.gossip_sections import AlgorithmSection, TopologySection
from fedgossip.experiment.parallel_sections import MAPREDUCE, ParallelSection, ServerSection
from fedgossip.experiment.reading import checked, file_kept_in, load_experiment
from fedgossip.experiment.sections import (
    BEST,
    GIVEN,
    EvalSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ModelSection,
    ParallelExperiment,
)
from fedgossip.experiment.simulation_section import SimulationSection
from fedgossip.experiment.task_section import TaskSection

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
    "load_experiment",
]
