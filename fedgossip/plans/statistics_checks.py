"""Checks before training (`Plan.with_segments`) that a method can average running statistics unchanged; advice names an
accepted run.
"""

from __future__ import annotations

from typing import Any

from fedgossip.algorithms.gossip.base import GossipAlgorithm
from fedgossip.algorithms.gossip.choco import Choco
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.window_doubling import WindowDoubling
from fedgossip.base.errors import ConfigError
from fedgossip.experiment import CoordinatorSection, GossipExperiment, ParallelExperiment
from fedgossip.topology import Mixing, Schedule

LOOKED_AT = 4
"""Rounds checked of a schedule that never repeats."""

ROUNDING = 1e-9
"""Tolerance for a computed weight."""

LOCAL = 'set train.buffers = "local": statistics then stay at their node, and tests count their own'


def check_gossip_statistics(
    experiment: GossipExperiment, algorithm: GossipAlgorithm[Any], schedule: Schedule, tensor: str
) -> None:
    """Raise ConfigError for peers whose exchange does not average the statistic `tensor`."""
    a = experiment.algorithm
    if a.private:
        text = "algorithm.private rounds what is sent to one grid, for which a running statistic may be too large"
        raise _refused(text, tensor, f"Leave it out, or {LOCAL}.")
    if isinstance(algorithm, Choco):
        text = f"{a.name} sends what has changed by {algorithm.codec.name}, of which a running statistic is no sum"
        instead = 'Set algorithm.name = "dsgd"' if a.name == "choco" else "Leave algorithm.options.codec out"
        raise _refused(text, tensor, f"{instead}, or {LOCAL}.")
    if isinstance(algorithm, FragmentedDiLoCo):
        text = f"{a.name} keeps what was trained of a fragment until its round, and a running statistic has no such sum"
        raise _refused(text, tensor, f"Leave algorithm.options.fragments out, or {LOCAL}.")
    if isinstance(algorithm, WindowDoubling):
        text = f"{a.name} sends sums over a window of rounds, and a running statistic is averaged in each"
        advice = 'Set algorithm.name = "dsgd" and topology.graph = "one-peer-exponential"'
        raise _refused(text, tensor, f"{advice}, or {LOCAL}.")
    _check_weights(schedule, min(schedule.period or LOOKED_AT, experiment.rounds), tensor)


def _check_weights(schedule: Schedule, rounds: int, tensor: str) -> None:
    for round in range(rounds):
        mixing: Mixing = schedule.mixing(round)
        for _, _, weights in mixing.rows_by_degree():
            if weights.min() < -ROUNDING:
                text = f"{schedule.name!r} has the weight {weights.min():.3g}, and a mean of variances has none below 0"
                raise _refused(text, tensor, f'Set topology.weights = "metropolis", or {LOCAL}.')


def check_federated_statistics(section: CoordinatorSection, gradients: bool, tensor: str) -> None:
    """Raise ConfigError for clients that send no statistics, or add noise to them."""
    if gradients:
        text = f"clients of {section.algorithm} send gradients, and a running statistic has none"
        raise _refused(text, tensor, f'Set coordinator.algorithm = "fedavg", or {LOCAL}.')
    if section.privacy.unit == "client":
        text = 'coordinator.privacy.unit = "client" adds noise to all that is sent, and a variance would fall below 0'
        raise _refused(text, tensor, f"Take a model without running statistics, for example cnn:small, or {LOCAL}.")


def check_parallel_statistics(experiment: ParallelExperiment, tensor: str) -> None:
    """Raise ConfigError for workers of one model that send no statistics, or only parts of them."""
    p = experiment.parallel
    other = "or take a model without running statistics, for example cnn:small"
    if p.races:
        return
    if not p.local:
        text = f"workers of {p.method} send gradients, and a running statistic has none"
        raise _refused(text, tensor, f'Set parallel.method = "ring" and parallel.outer = {{ lr = 0.7 }}, {other}.')
    if p.codec:
        text = f"parallel.codec = {p.codec!r} would cut a running statistic"
        raise _refused(text, tensor, f"Leave parallel.codec out, {other}.")
    if p.outer.fragments > 1:
        text = "parallel.outer.fragments keeps what was trained for its round, and a running statistic has no such sum"
        raise _refused(text, tensor, f"Leave parallel.outer.fragments out, {other}.")
    if p.outer.delay:
        text = "parallel.outer.delay adds a mean to what was trained since, and a running statistic has no such sum"
        raise _refused(text, tensor, f"Leave parallel.outer.delay out, {other}.")


def _refused(text: str, tensor: str, advice: str) -> ConfigError:
    return ConfigError(f"{text}; the model has {tensor!r}", advice)
