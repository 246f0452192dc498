"""Interface of a gossip algorithm: the pseudocode of a paper, without the network.

    x = start(first vector)
    in every round:   train from model(x)          -> update
                      trained(x, update, step)     -> x', what goes out
                      mixing: every outgoing vector becomes the weighted sum over the neighbours' and one's own
                      mixed(x', the sums)          -> x

A state is a frozen dataclass of arrays and plain numbers, from which the checkpoint follows (`saved`, `restored`).  The
same source runs on [d] and on [n, d].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedgossip.base.vectors import Vector

State = TypeVar("State")
Vectors = tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the vectors that a round mixes."""

    name: str
    length: int | None = None
    """Elements; None: as many as the model has."""
    dtype: str = ""
    """Empty: the model's type."""


MODEL = Slot("x")
"""The only slot of an algorithm that mixes models and nothing beside them."""

WEIGHT = Slot("weight", length=1, dtype="float64")
"""The last slot of a push-sum algorithm: the received weight, by which peers divide the other slots."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a peer's local training in one round: numbers, or arrays [n, 1] for all peers.

    `rate`: learning rate; `steps`: optimiser steps; 0 where unknown.
    """

    round: int
    rate: Any = 0.0
    steps: Any = 0.0
    given: Vector | None = None
    """The model that the training began with, [d], where others have changed it since; else None."""

    @classmethod
    def of(cls, round: int, metrics: Mapping[str, float]) -> Step:
        """The step of one peer, from the metrics of its update."""
        return cls(round, float(metrics.get("rate", 0.0)), float(metrics.get("steps", 0.0)))


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of an algorithm on its graph; a run that violates them is refused before training."""

    sums: str = "rows"
    """Which weights must sum to one: "rows" (a mean of arrivals), "columns" (shares; the last slot is WEIGHT) or "both"
    (which keeps the mean of all).
    """
    own_graph: bool = False
    """Only the graph that bears the algorithm's name will do."""
    constant_members: bool = False
    """The number of peers is fixed: no peer can join or leave."""
    constant: bool = False
    """One graph for the whole run."""
    symmetric: bool = False
    """i weighs j as j weighs i, in every round."""
    lambda_n: float | None = None
    """The smallest eigenvalue of the weights is above this: one graph, with symmetric weights."""
    tree: bool = False
    """One graph without a cycle."""
    plain_sgd: bool = False
    """Local steps are the learning rate times a gradient: no momentum, decay, clipping or Adam."""
    linear: bool = False
    """Only the weighted sum can be mixed: outgoing vectors are more than a model, or a model only in the sum."""
    weighs_alike: bool = False
    """All models count alike, whatever the weights of the graph: an experiment must not name any."""
    lossless: bool = False
    """Every message of every round arrives: no faults that lose one."""
    elements: int = 1
    """Least number of elements of a model."""


class GossipAlgorithm(Protocol[State]):
    """Every array is [d] (one peer) or [n, d] (all peers at once); nothing is changed in place."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return the outgoing vectors of a round, one slot each."""

    @property
    def needs(self) -> Needs:
        """Requirements on a run; one that violates them is refused at the start."""

    def start(self, x: Vector) -> State:
        """Return the state of a peer with the initial vector `x`, [d]; of all peers where it is [n, d]."""

    def trained(self, state: State, update: Vector | None, step: Step) -> tuple[State, Vectors]:
        """(the state until the round is mixed, what goes out), after local training gave `update` (None: no change)."""

    def mixed(self, state: State, mixed: Vectors) -> State:
        """The state after the mixing of what went out, own and neighbours'; `state` is the one `trained` gave."""

    def model(self, state: State) -> Vector:
        """The vector to train from, and to evaluate."""

    def seen(self, state: State, outgoing: Vectors) -> Vector:
        """Return the model before the mixing of `outgoing`, for records."""

    def corrected(self, state: State, differences: Vectors) -> State:
        """The state after `differences`, one per outgoing vector, have been added to what was mixed."""

    def rejoined(self, state: State, model: Vector) -> State:
        """The state of a peer that goes on from `model` among others than before: what tracks them begins anew."""


@runtime_checkable
class SendsModels(Protocol[State]):
    """An algorithm with a `trained` that sends the model plus the update and keeps nothing else of the update."""

    def moved(self, state: State, models: Vector) -> tuple[State, Vectors]:
        """Return the result of `trained`, where the sum `models` is computed already."""


def saved(state: Any) -> tuple[dict[str, Vector], dict[str, int | float | str]]:
    """Return (arrays, plain numbers) of a state by field, without None, for a checkpoint; of a state within it as
    "field/name".
    """
    arrays: dict[str, Vector] = {}
    numbers: dict[str, int | float | str] = {}
    for field in _field_names(type(state)):  # type: ignore[arg-type]
        value = getattr(state, field)
        if isinstance(value, np.ndarray):
            arrays[field] = value
        elif is_dataclass(value):
            held, counted = saved(value)
            arrays.update({f"{field}/{name}": one for name, one in held.items()})
            numbers.update({f"{field}/{name}": one for name, one in counted.items()})
        elif value is not None:
            numbers[field] = value
    return arrays, numbers


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def restored(fresh: State, arrays: Mapping[str, Vector], numbers: Mapping[str, Any]) -> State:
    """Return the state that `saved` was taken of; `fresh`: one of the same kind.

    Raises ValueError where there are other fields.
    """
    within = {field.name for field in fields(fresh) if is_dataclass(getattr(fresh, field.name))}  # type: ignore[arg-type]
    names = {field.name for field in fields(fresh)} - within  # type: ignore[arg-type]
    given = {**arrays, **numbers}
    if unknown := sorted(name for name in given if name not in names and name.partition("/")[0] not in within):
        raise ValueError(f"{type(fresh).__name__} has no {', '.join(unknown)}")
    inner = {name: restored(getattr(fresh, name), _below(name, arrays), _below(name, numbers)) for name in within}
    there = {name: one for name, one in given.items() if name in names}
    return replace(fresh, **dict.fromkeys(names - there.keys()), **there, **inner)  # type: ignore[type-var]


def _below(name: str, held: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(f"{name}/"): one for key, one in held.items() if key.startswith(f"{name}/")}
