"""Interface of a gossip algorithm: the pseudocode of a paper, without the network.

    x = start(first vector)
    in every round:   train from model(x)          -> update
                      trained(x, update, step)     -> x', the outgoing vectors
                      mixing: every outgoing vector becomes the weighted sum of the neighbours' and the local one
                      mixed(x', the sums)          -> x

A state is a frozen dataclass of arrays and plain numbers; the checkpoint follows from its fields (`saved`, `restored`).
The same source runs on [d] and on [n, d].
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
    """One of the vectors mixed in a round."""

    name: str
    length: int | None = None
    """Number of elements; None: that of the model."""
    dtype: str = ""
    """Type; "": the model's."""


MODEL = Slot("x")
"""The only slot of an algorithm that mixes models alone."""

WEIGHT = Slot("weight", length=1, dtype="float64")
"""The last slot of a push-sum algorithm: the received weight; peers divide the other slots by it."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a peer's local training in one round: numbers, or arrays [n, 1] for all peers.

    `rate`: learning rate; `steps`: optimiser steps; 0 if unknown.
    """

    round: int
    rate: Any = 0.0
    steps: Any = 0.0
    given: Vector | None = None
    """The model at the start of the training, [d], if others have changed it since; else None."""

    @classmethod
    def of(cls, round: int, metrics: Mapping[str, float]) -> Step:
        """Return the step of one peer, from the metrics of its update."""
        return cls(round, float(metrics.get("rate", 0.0)), float(metrics.get("steps", 0.0)))


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of an algorithm on its graph; a run that violates them is refused before training."""

    sums: str = "rows"
    """Which weights must sum to one: "rows" (a mean of arrivals), "columns" (shares; the last slot is WEIGHT) or "both"
    (which keeps the mean of all).
    """
    own_graph: bool = False
    """Whether the graph must be the one with the algorithm's name."""
    constant_members: bool = False
    """The number of peers is fixed: no peer can join or leave."""
    constant: bool = False
    """One graph for the whole run."""
    symmetric: bool = False
    """i weighs j as j weighs i, in every round."""
    lambda_n: float | None = None
    """Lower bound of the smallest eigenvalue of the weights: one graph, with symmetric weights."""
    tree: bool = False
    """One graph without a cycle."""
    plain_sgd: bool = False
    """Local steps are the learning rate times a gradient: no momentum, decay, clipping or Adam."""
    linear: bool = False
    """Only the weighted sum can be mixed: outgoing vectors are more than a model, or a model only in the sum."""
    weighs_alike: bool = False
    """All models have equal weights, regardless of the graph's: an experiment must not set any."""
    lossless: bool = False
    """Every message of every round must arrive: no faults that lose messages."""
    elements: int = 1
    """Minimum number of elements of a model."""


class GossipAlgorithm(Protocol[State]):
    """Every array is [d] (one peer) or [n, d] (all peers at once); nothing is changed in place."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return the outgoing vectors of a round, one slot each."""

    @property
    def needs(self) -> Needs:
        """Requirements on a run; one that violates them is refused at the start."""

    def start(self, x: Vector) -> State:
        """Return the state of a peer with the initial vector `x`, [d]; for [n, d] that of all peers."""

    def trained(self, state: State, update: Vector | None, step: Step) -> tuple[State, Vectors]:
        """Return the state until the round is mixed, and the outgoing vectors, after local training returned `update`
        (None: no change).
        """

    def mixed(self, state: State, mixed: Vectors) -> State:
        """Return the state after mixing: `mixed` from all outgoing vectors; `state` from `trained`."""

    def model(self, state: State) -> Vector:
        """Return the vector to train from, and to evaluate."""

    def seen(self, state: State, outgoing: Vectors) -> Vector:
        """Return the model before the mixing of `outgoing`, for records."""

    def corrected(self, state: State, differences: Vectors) -> State:
        """Return the state after `differences`, one per outgoing vector, were added to the mixed vectors."""

    def rejoined(self, state: State, model: Vector) -> State:
        """Return the state of a peer that resumes from `model` in another group of peers; trackers are reset."""


@runtime_checkable
class SendsModels(Protocol[State]):
    """An algorithm whose `trained` sends the model plus the update and stores nothing else of the update."""

    def moved(self, state: State, models: Vector) -> tuple[State, Vectors]:
        """Return the result of `trained`, given the computed sum `models`."""


def saved(state: Any) -> tuple[dict[str, Vector], dict[str, int | float | str]]:
    """Return (arrays, plain numbers) of a state by field, without None, for a checkpoint; nested as "field/name"."""
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
    """Return the state from the results of `saved`; `fresh`: a state of the same kind.

    Raises ValueError if the fields differ.
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
