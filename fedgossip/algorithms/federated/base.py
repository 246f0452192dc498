"""Interface of a federated algorithm: three rules, without the network.

    x  --down-->  each client of the cohort trains from x          ClientRule      terms, upload
                  their vectors become one                         Aggregation     a mean, a median, ...
    x  <-- step                                                    ServerRule      broadcast, step

Any three with the same number of vectors combine; `names` has those of the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId, Terms

State = TypeVar("State")

Vectors = tuple[Vector, ...]
"""Vectors sent down or up: a fixed number, each [d] and of the model's type; the first belongs to the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Result of local training: `update` [d] after `steps` steps of learning rate `rate` over `examples`.

    Where the rule asks for a gradient, `update` is the mean over `steps` batches.
    """

    update: Vector
    examples: int = 1
    steps: int = 1
    rate: float = 1.0
    node: NodeId = 0
    """The client, and the round that it was invited to."""
    round: int = 0
    extra: Vectors = ()
    """The result for the terms' `extra`."""


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Aggregate of a round: vectors [d], the number of `clients`, and the weighted mean of their `effective_steps`."""

    vectors: Vectors
    clients: int
    steps: float
    round: int = 0
    """The round that ends with it."""


class ClientRule(Protocol):
    """The rule of a client.  `memory` is its own, () at first; nothing is changed in place."""

    @property
    def vectors(self) -> int:
        """Numbers of vectors down, and up."""

    @property
    def gradient(self) -> bool:
        """Whether a client gives the mean gradient at received[0], in place of an update from it."""

    def weight(self, examples: int) -> float:
        """Return the weight of a contribution in the mean; above 0."""

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        """Return the terms added to the gradients of local training from received[0]."""

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        """(what goes up, the memory if that is counted)."""


class ServerRule(Protocol[State]):
    """The rule of the coordinator.  A state is a frozen dataclass of vectors, the model `x` first."""

    def start(self, x: Vector) -> State:
        """Return the state of a run with the initial model `x` [d]."""

    def broadcast(self, state: State) -> Vectors:
        """Return the vectors for clients; the model first."""

    def step(self, state: State, aggregate: Aggregate) -> State:
        """Return the state after a round with the result `aggregate`; nothing is changed in place."""


@runtime_checkable
class EndingRule(Protocol):
    """A server with a stopping criterion for its model."""

    def over(self, x: Vector) -> bool:
        """Whether the run ends with this model [d]; a function of it alone."""


def is_over(server: object, x: Vector) -> bool:
    """Return whether a run ends with the model `x` before its last round."""
    return isinstance(server, EndingRule) and server.over(x)


@runtime_checkable
class FallibleRule(Protocol):
    """A server with steps that can fail, after which it goes on by another."""

    def failures(self, state: Any) -> Mapping[str, object] | None:
        """Return the facts of what failed in the last step, for the event `line_search_failed`; None: nothing."""


def failures_of(server: object, state: object) -> Mapping[str, object] | None:
    """Return the facts of what failed in the server's last step; None: nothing."""
    return server.failures(state) if isinstance(server, FallibleRule) else None


@runtime_checkable
class CountingRule(Protocol):
    """A client rule whose steps count otherwise than by their number."""

    def effective(self, steps: int) -> float:
        """Return what so many steps of one client count in `Aggregate.steps`."""


def effective_steps(rule: object, steps: int) -> float:
    """Return what a client's steps count in the mean of all; the coordinator and a secure sum take the same."""
    return rule.effective(steps) if isinstance(rule, CountingRule) else float(steps)


class Accumulator(Protocol):
    """Takes contributions in any order; the aggregate does not depend on it."""

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:
        """Add a contribution: vectors [d], what it counts, and its effective steps.

        Raises NotSummableError for elements that are not finite, or too large; nothing is then changed.
        """

    def aggregate(self) -> Aggregate:
        """Of at least one contribution; what was added is used up."""


class Aggregation(Protocol):
    """The aggregation of contributions."""

    @property
    def least(self) -> int:
        """With fewer of them there is no aggregate."""

    def accumulator(self, vectors: int, length: int, kind: np.dtype[np.floating]) -> Accumulator:
        """A fresh one for a round of so many vectors [length] of type `kind`."""


@dataclass(frozen=True)
class Federated(Generic[State]):
    """An algorithm: what clients do, how contributions become one, and what the server does with that."""

    clients: ClientRule
    aggregation: Aggregation
    server: ServerRule[State]


def saved(state: Any) -> dict[str, Vector]:
    """Return the vectors [d] that a server's state holds, by field, for a checkpoint."""
    held = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in held.items() if isinstance(value, np.ndarray)}


def numbers_of(state: Any) -> dict[str, int | float | str]:
    """Return what else a server's state holds, plain numbers by field."""
    held = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in held.items() if isinstance(value, int | float | str)}


NO_NUMBERS: Mapping[str, int | float | str] = MappingProxyType({})


def restored(
    server: ServerRule[State], vectors: Mapping[str, Vector], numbers: Mapping[str, Any] = NO_NUMBERS
) -> State:
    """Return the state that `saved` was taken of, and `numbers_of`.  Raises TypeError for those of another rule's."""
    state: Any = replace(server.start(vectors["x"]), **vectors, **numbers)  # type: ignore[type-var]
    return state  # type: ignore[no-any-return]
