"""What can be wrong with an experiment whose keys are all known: values out of range, sections that contradict."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.algorithms.descent.names import DESCENTS
from fedgossip.algorithms.names import METHODS
from fedgossip.errors import ConfigError, nearest
from fedgossip.experiment.sections import (
    GIVEN,
    TRACKERS,
    DataSection,
    Experiment,
    FederatedExperiment,
    GossipExperiment,
    ParallelExperiment,
)
from fedgossip.learning.custom import is_function
from fedgossip.learning.objectives import AS_THE_DATA, KINDS, LOOP, objective_of
from fedgossip.learning.per_peer import PLACE
from fedgossip.messages import WORKERS_MAX
from fedgossip.protocols.peer_sampling import RULES

LONGEST_SECONDS = 1e9
"""Thirty years; times are kept in 64-bit nanoseconds."""

MODES = tuple(dict.fromkeys(mode for method in METHODS.values() for mode in method.modes))
"""That some method has."""

ABOVE_0 = sys.float_info.min
MOST = 2**31 - 1
"""The largest count."""


def check(experiment: Experiment, where: str) -> None:
    """Raise ConfigError, naming the key, for what no run can be made of; `where` names the file."""
    _check_loop(experiment, where)
    _check_values(experiment, where)
    _check_objective(experiment, where)
    for text in experiment.track.to:
        _check_words({"track.to": (text.partition(":")[0], TRACKERS)}, where)
    _check_test(experiment.data.test, where)
    _check_own(experiment.data, where)
    if not 0 <= experiment.data.local_test < 1:
        raise ConfigError(f"{where}: data.local_test = {experiment.data.local_test} is no share", "Set it below 1.")


OF_LOOPS = ("local_steps", "buffers", "portable")
"""What of [train] a training loop of the user's own leaves to the experiment."""


def _check_loop(experiment: Experiment, where: str) -> None:
    """Raise ConfigError for what a user's own loop decides itself: it would not be obeyed."""
    if not experiment.loops:
        return
    advice = "Your loop has its own data, model and optimizer: [train] holds local_steps, buffers and portable alone."
    for name, section in (("data", experiment.data), ("model", experiment.model)):
        if section != type(section)():
            raise ConfigError(f"{where}: [{name}] beside task.kind = loop", advice)
    usual = type(experiment.train)()
    for field in dataclasses.fields(usual):
        if field.name not in OF_LOOPS and getattr(experiment.train, field.name) != getattr(usual, field.name):
            raise ConfigError(f"{where}: train.{field.name} beside task.kind = loop", advice)
    if experiment.budget and experiment.budget.unit == "record":
        advice = 'Set coordinator.privacy.unit = "client", or leave it out.'
        raise ConfigError(f"{where}: single records of a loop of your own cannot be hidden from here", advice)


def check_gossip(e: GossipExperiment, where: str) -> None:
    """Raise ConfigError for values of [topology] and [algorithm] that cannot be."""
    if not is_function(e.algorithm.name) and e.algorithm.name != GIVEN:
        _check_words({"algorithm.name": (e.algorithm.name, tuple(METHODS))}, where)
    words = {
        "algorithm.mode": (e.algorithm.mode, MODES),
        "algorithm.partner": (e.algorithm.partner, RULES),
    }
    _check_words(words, where)
    seconds = LONGEST_SECONDS
    ranges: Ranges = {
        "algorithm.deadline": (e.algorithm.deadline, ABOVE_0, seconds),
        "algorithm.exchanges": (e.algorithm.exchanges, 1, 1000),
        "algorithm.least_deadline": (e.algorithm.least_deadline, 0, seconds),
        "algorithm.start_timeout": (e.algorithm.start_timeout, ABOVE_0, seconds),
        "algorithm.bound": (e.algorithm.bound, ABOVE_0, sys.float_info.max),
    }
    _check_ranges(ranges, where)
    _check_seed("topology.seed", e.topology.seed, where)


def _check_values(experiment: Experiment, where: str) -> None:
    e = experiment
    _check_words(
        {
            "task.kind": (e.task.kind, (*KINDS, AS_THE_DATA, "averaging", "quadratic", LOOP)),
            "task.dtype": (e.task.dtype, ("float32", "float64")),
        },
        where,
    )
    s, seconds, number = e.simulation, LONGEST_SECONDS, sys.float_info.max
    ranges: Ranges = {
        "rounds": (e.rounds, 1, MOST),
        "eval.every": (e.eval.every, 1, MOST),
        "task.dim": (e.task.dim, 1, MOST),
        "train.batch_size": (e.train.batch_size, 1, MOST),
        "train.threads": (e.train.threads, 1, 1024),
        "train.lr": (e.train.lr, ABOVE_0, number),
        "simulation.latency": (s.latency, 0, seconds),
        "simulation.jitter": (s.jitter, 0, seconds),
        "simulation.bandwidth": (s.bandwidth, ABOVE_0, number),
        "simulation.downlink": (s.downlink, ABOVE_0, number),
        "simulation.training": (s.training, 0, seconds),
        "simulation.training_jitter": (s.training_jitter, 0, 1e6),
        "simulation.speed_spread": (s.speed_spread, 0, 10),
        "simulation.detection": (s.detection, 0, seconds),
    }
    _check_ranges(ranges, where)
    _check_seed("seed", e.seed, where)


def _check_seed(key: str, seed: int | None, where: str) -> None:
    if seed is not None and seed < 0:
        raise ConfigError(f"{where}: {key} = {seed} is negative", "Use 0 or a positive number.")


def _check_objective(experiment: Experiment, where: str) -> None:
    task = experiment.task
    if experiment.loops and not task.loss:
        return
    if not experiment.learns and (task.loss or task.metrics):
        key = "loss" if task.loss else "metrics"
        advice = f"Leave task.{key} out, or learn from data: task.kind = {KINDS[0]!r}."
        raise ConfigError(f"{where}: task.{key} of {task.kind}, a problem with a known answer", advice)
    try:
        objective_of(task.kind, task.loss, task.metrics, experiment.data.source) if experiment.learns else None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", error.advice) from None


def check_parallel(e: ParallelExperiment, where: str) -> None:
    """Raise ConfigError for values of [parallel] that cannot be."""
    p, seconds = e.parallel, LONGEST_SECONDS
    words = {"parallel.method": (p.method, tuple(COLLECTIVES)), "parallel.descent": (p.descent, ("", *DESCENTS))}
    _check_words(words, where)
    if p.workers > WORKERS_MAX:
        advice = "Use [topology] for peers that know their neighbours alone, or [coordinator]."
        raise ConfigError(f"{where}: {p.workers} workers, and {WORKERS_MAX} can all know each other", advice)
    ranges: Ranges = {
        "parallel.workers": (p.workers, 1, WORKERS_MAX),
        "parallel.accumulate": (p.accumulate, 1, MOST),
        "parallel.bucket": (p.bucket, 0, MOST),
        "parallel.deadline": (p.deadline, ABOVE_0, seconds),
        "parallel.least_deadline": (p.least_deadline, 0, seconds),
        "parallel.start_timeout": (p.start_timeout, ABOVE_0, seconds),
    }
    _check_ranges(ranges, where)
    if e.task.kind == "averaging":
        raise ConfigError(f"{where}: averaging has no gradient", 'Take task.kind = "quadratic", or learn from data.')
    if e.train.personal or e.train.buffers == "local":
        key = "personal" if e.train.personal else "buffers"
        raise ConfigError(f"{where}: train.{key} keeps a part at each worker, and all have one model", "Leave it out.")


def check_federated(experiment: FederatedExperiment, where: str) -> None:
    """Raise ConfigError for values of [coordinator] that cannot be."""
    c = experiment.coordinator
    seconds, number = LONGEST_SECONDS, sys.float_info.max
    words = {
        "coordinator.sampling": (c.sampling, ("uniform", "size", "poisson")),
        "coordinator.privacy.unit": (c.privacy.unit, ("none", "record", "client")),
    }
    _check_words(words, where)
    ranges: Ranges = {
        "coordinator.clients": (c.clients, 1, 1_000_000),
        "coordinator.participation": (c.participation, ABOVE_0, 1),
        "coordinator.cohort": (c.cohort, 1, MOST),
        "coordinator.over_selection": (c.over_selection, 1, 100),
        "coordinator.min_clients": (c.min_clients, 1, MOST),
        "coordinator.deadline": (c.deadline, ABOVE_0, seconds),
        "coordinator.least_deadline": (c.least_deadline, 0, seconds),
        "coordinator.start_timeout": (c.start_timeout, ABOVE_0, seconds),
        "coordinator.return_timeout": (c.return_timeout, 0, seconds),
        "coordinator.silence": (c.silence, ABOVE_0, seconds),
        "coordinator.at_once": (c.at_once, 1, MOST),
        "coordinator.goal": (c.goal, 1, MOST),
        "coordinator.most_stale": (c.most_stale, 0, MOST),
        "coordinator.secure.threshold": (c.secure.threshold, 1, 1000),
        "coordinator.secure.neighbours": (c.secure.neighbours, 2, 200),
        "coordinator.secure.bound": (c.secure.bound, ABOVE_0, number),
        "coordinator.secure.bits": (c.secure.bits, 2, 31),
        "coordinator.secure.weight_max": (c.secure.weight_max, 1, MOST),
        "coordinator.secure.score_max": (c.secure.score_max, ABOVE_0, 1e12),
        "coordinator.privacy.clip": (c.privacy.clip, ABOVE_0, number),
        "coordinator.privacy.noise": (c.privacy.noise, ABOVE_0, 1e6),
        "coordinator.privacy.test_noise": (c.privacy.test_noise, 0, 1e6),
        "coordinator.privacy.delta": (c.privacy.delta, ABOVE_0, 0.5),
        "coordinator.privacy.max_epsilon": (c.privacy.max_epsilon, ABOVE_0, number),
    }
    _check_ranges(ranges, where)
    if 0 < c.privacy.test_noise < TEST_NOISE_LEAST:
        advice = f"Set it to 0, so that nothing is told, or to at least {TEST_NOISE_LEAST:g}."
        raise ConfigError(f"{where}: coordinator.privacy.test_noise = {c.privacy.test_noise} hides nothing", advice)
    if c.cohort is not None and c.participation != 1.0:
        raise ConfigError(f"{where}: coordinator.cohort and coordinator.participation", "Give one of them.")


TEST_NOISE_LEAST = 0.5
"""The smallest that is drawn exactly (`secure.noise`); one release with it is epsilon 11 at delta 1e-5."""

Words = Mapping[str, tuple[str, Sequence[str]]]
Ranges = Mapping[str, tuple[float | None, float, float]]
"""Each value with its limits; a lower one of ABOVE_0 means that 0 itself is refused."""


def _check_words(words: Words, where: str) -> None:
    for key, (word, known) in words.items():
        if word not in known:
            raise ConfigError(f"{where}: {key} = {word!r} is not known", nearest(word, known))


def _check_ranges(ranges: Ranges, where: str) -> None:
    for key, (value, low, high) in ranges.items():
        if value is not None and not low <= value <= high:
            least = "above 0" if low == ABOVE_0 else f"at least {low:g}"
            raise ConfigError(f"{where}: {key} = {value} is out of range", f"Set it {least}, at most {high:g}.")


def _check_test(test: float | str, where: str) -> None:
    if isinstance(test, str):
        if test != "own" and ":" not in test:
            advice = 'Set it to a share: 0.2, to "own", or to a source: "csv:PATH?label=COLUMN".'
            raise ConfigError(f"{where}: data.test = {test!r} is no test set", advice)
    elif not 0 < test < 1:
        raise ConfigError(f"{where}: data.test = {test} is no share", 'Set it between 0 and 1, such as 0.2, or "own".')


def _check_own(data: DataSection, where: str) -> None:
    own = PLACE in data.source
    if own != (data.partition.get("kind") == "own"):
        advice = f'A source with {PLACE} in it and partition = {{ kind = "own" }} go together.'
        raise ConfigError(f"{where}: data.source = {data.source!r}, partition = {data.partition}", advice)
    if own and not (isinstance(data.test, str) and ":" in data.test and PLACE not in data.test):
        advice = 'Set it to a file that all peers have: "csv:PATH?label=COLUMN", "npz:PATH".'
        raise ConfigError(f"{where}: data.test = {data.test!r} is not common to peers with files of their own", advice)
