"""Running statistics next to any algorithm: gradients move parameters; statistics are only averaged.

    vector          [ parameters | statistics ]         a statistic: BatchNorm's running mean, its running variance
    the algorithm   [ parameters |      0     ]         so all its states, terms and factors are 0 there
    statistics      s_i  <-  sum_j W_ij t_j             t_j: statistics after local training, from s_j

A mean of variances is a variance; a momentum step, a correction of a late message or an extrapolation can go below 0,
and the model then returns nan.

    Late messages   count for parameters alone.
    Shares          (push-sum) statistics are averaged by the shares' weight.
    Exchanges       (asynchronous) both ends continue with the mean; one during a training has equal weight to it.
    Rules           (`combine`) a robust rule applies to the parameters; statistics take each element's median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgossip.algorithms.gossip.base import GossipAlgorithm, Needs, Slot, Step, Vectors
from fedgossip.algorithms.gossip.relaysgd import RelaySGD
from fedgossip.algorithms.robust.robust_mixing import Combination, CoordinateMedian, Models, Row
from fedgossip.base.vectors import Vector, add, frozen, linear, negated, scaled_difference


def cleared(vector: Vector, parameters: int) -> Vector:
    """Return the vector, [d] or [n, d], with zeros in place of its statistics; frozen."""
    return joined(vector, np.zeros_like(vector[..., parameters:]))


def joined(vector: Vector, statistics: Vector) -> Vector:
    """Return the vector with these statistics at its end; frozen."""
    out = vector.copy()
    out[..., vector.shape[-1] - statistics.shape[-1] :] = statistics
    return frozen(out)


def counted(given: Vector, change: Vector, parameters: int) -> Vector:
    """Return the statistics after a training, start plus change; non-negative ones remain non-negative."""
    return add(given[..., parameters:], change[..., parameters:])


@dataclass(frozen=True, eq=False)
class Beside:
    """`base`: the algorithm's state, zeros for statistics.  `statistics` [k] or [n, k]; `weight` of shares [1] or [n,
    1], or None.
    """

    base: Any
    statistics: Vector
    weight: Vector | None = None


class StatisticsBeside:
    """An algorithm of vectors with `parameters` leading parameters, followed by statistics.

    `exchanged`: arrivals between rounds are the statistics of an exchange, not differences.
    """

    def __init__(self, algorithm: GossipAlgorithm[Any], parameters: int, *, exchanged: bool = False) -> None:
        self.algorithm, self.parameters, self.exchanged = algorithm, parameters, exchanged
        self._shares = algorithm.needs.sums == "columns"

    @property
    def slots(self) -> tuple[Slot, ...]:
        return self.algorithm.slots

    @property
    def needs(self) -> Needs:
        return self.algorithm.needs

    def start(self, x: Vector) -> Beside:
        weight = frozen(np.ones((*x.shape[:-1], 1))) if self._shares else None
        return Beside(self.algorithm.start(self._cleared(x)), self._statistics(x), weight)

    def trained(self, state: Beside, update: Vector | None, step: Step) -> tuple[Beside, Vectors]:
        moved = None if update is None else self._cleared(update)
        begun, outgoing = self.algorithm.trained(state.base, moved, step)
        now = state.statistics if update is None else self._counted(state.statistics, update, step)
        weight = outgoing[-1] if self._shares else None
        goes = now if weight is None else frozen(now * weight.astype(now.dtype))
        return Beside(begun, state.statistics, weight), (joined(outgoing[0], goes), *outgoing[1:])

    def _counted(self, now: Vector, update: Vector, step: Step) -> Vector:
        if step.given is None or not (self.exchanged or self._shares):
            return add(now, self._statistics(update))
        return linear((0.5, counted(step.given, update, self.parameters)), (0.5, now))

    def mixed(self, state: Beside, mixed: Vectors) -> Beside:
        weight = mixed[-1] if self._shares else None
        base = self.algorithm.mixed(state.base, self._without(mixed))
        return Beside(base, self._mean(mixed), weight)

    def model(self, state: Beside) -> Vector:
        return joined(self.algorithm.model(state.base), state.statistics)

    def seen(self, state: Beside, outgoing: Vectors) -> Vector:
        return joined(self.algorithm.seen(state.base, self._without(outgoing)), self._mean(outgoing))

    def corrected(self, state: Beside, differences: Vectors) -> Beside:
        base = self.algorithm.corrected(state.base, self._without(differences))
        if self.exchanged:
            return Beside(base, self._statistics(differences[0]), state.weight)
        if state.weight is None:
            return Beside(base, state.statistics)
        weight = add(state.weight, differences[-1])
        mass = state.statistics * state.weight.astype(state.statistics.dtype) + self._statistics(differences[0])
        return Beside(base, frozen(mass / weight.astype(mass.dtype)), weight)

    def rejoined(self, state: Beside, model: Vector) -> Beside:
        fresh = self.start(model)
        return Beside(self.algorithm.rejoined(state.base, self._cleared(model)), fresh.statistics, fresh.weight)

    def _statistics(self, vector: Vector) -> Vector:
        return frozen(vector[..., self.parameters :].copy())

    def _mean(self, vectors: Vectors) -> Vector:
        """Return the statistics of outgoing vectors, or of their sum; for shares divided by their weight."""
        found = self._statistics(vectors[0])
        return frozen(found / vectors[-1].astype(found.dtype)) if self._shares else found

    def _cleared(self, vector: Vector) -> Vector:
        return cleared(vector, self.parameters)

    def _without(self, vectors: Vectors) -> Vectors:
        return (self._cleared(vectors[0]), *vectors[1:])


def with_statistics(
    algorithm: GossipAlgorithm[Any], parameters: int, length: int, *, asynchronous: bool = False
) -> GossipAlgorithm[Any]:
    """Return the algorithm for vectors [length] with `parameters` parameters; unchanged if all are, and on a tree."""
    if parameters == length or isinstance(algorithm, RelaySGD):
        return algorithm
    return StatisticsBeside(algorithm, parameters, exchanged=asynchronous and algorithm.needs.sums != "columns")


class CombinedApart:
    """A rule of `combine` for parameters, with the median of each element for statistics."""

    linear = False

    def __init__(self, rule: Combination, parameters: int) -> None:
        self.rule, self.parameters, self.tolerates = rule, parameters, rule.tolerates

    def combine(self, node: int, row: Row, models: Models) -> Vector:
        first = {j: model[: self.parameters] for j, model in models.items()}
        behind = {j: model[self.parameters :] for j, model in models.items()}
        parts = self.rule.combine(node, row, first), CoordinateMedian().combine(node, row, behind)
        return frozen(np.concatenate(parts))


def combined_apart(rule: Combination, parameters: int, length: int) -> Combination:
    """Return the rule for vectors [length] with `parameters` parameters; a sum is unchanged."""
    return rule if rule.linear or parameters == length else CombinedApart(rule, parameters)


def halfway(theirs: Vector, ours: Vector, parameters: int) -> Vector:
    """Return an exchange's addition to the local model: half of the difference, then the mean of the statistics."""
    h = scaled_difference(0.5, theirs, ours)
    if parameters == h.size:
        return h
    return joined(h, linear((0.5, theirs[parameters:]), (0.5, ours[parameters:])))


def given_up(h: Vector, parameters: int) -> Vector:
    """Return an exchange's addition to the model at the other end, from the result of `halfway`."""
    return joined(negated(h), h[parameters:])
