"""Interface of a federated algorithm: three rules, without the network.

    x  --down-->  each client of the cohort trains from x          ClientRule      terms, upload
                  their vectors become one                         Aggregation     a mean, a median, ...
    x  <-- step                                                    ServerRule      broadcast, step

Any three with the same number of vectors can be combined; `names` has those of the papers.
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
"""Vectors sent down or up: a fixed number, each [d] and of the model's type, the model's first."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Result of local training: `update` [d] after `steps` steps of learning rate `rate` over `examples`.

    If the rule requests a gradient, `update` is the mean over `steps` batches.
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
    """The round that this aggregate ends."""


class ClientRule(Protocol):
    """The rule of a client.  `memory` is its state, () at first; nothing is changed in place."""

    @property
    def vectors(self) -> int:
        """Numbers of vectors sent down and up."""

    @property
    def gradient(self) -> bool:
        """Whether a client returns the mean gradient at received[0], in place of an update from it."""

    def weight(self, examples: int) -> float:
        """Return the weight of a contribution in the mean; above 0."""

    def terms(self, received: Vectors, memory: Vectors) -> Terms:
        """Return the terms added to the gradients of local training from received[0]."""

    def upload(self, received: Vectors, memory: Vectors, work: Work) -> tuple[Vectors, Vectors]:
        """Return the uploaded vectors, and the memory that replaces the old one if they are counted."""


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
    """A server whose step can fail; it then continues with another step."""

    def failures(self, state: Any) -> Mapping[str, object] | None:
        """Return the facts of a failure in the last step, for the event `line_search_failed`; None without one."""


def failures_of(server: object, state: object) -> Mapping[str, object] | None:
    """Return the facts of a failure in the server's last step; None without one."""
    return server.failures(state) if isinstance(server, FallibleRule) else None


@runtime_checkable
class CountingRule(Protocol):
    """A client rule that weighs its number of steps."""

    def effective(self, steps: int) -> float:
        """Return the contribution of that number of steps of one client to `Aggregate.steps`."""


def effective_steps(rule: object, steps: int) -> float:
    """Return the contribution of a client's steps to the mean of all; the coordinator and a secure sum use the same."""
    return rule.effective(steps) if isinstance(rule, CountingRule) else float(steps)


class Accumulator(Protocol):
    """Accepts contributions in any order; the aggregate does not depend on it."""

    def add(self, node: NodeId, weight: float, vectors: Vectors, steps: float) -> None:
        """Add a contribution: vectors [d], their weight, and its effective steps.

        Raises NotSummableError for elements that are not finite, or too large; nothing is then changed.
        """

    def aggregate(self) -> Aggregate:
        """Return the aggregate of at least one contribution; call it once."""


class Aggregation(Protocol):
    """The aggregation of contributions."""

    @property
    def least(self) -> int:
        """Minimum number of contributions for an aggregate."""

    def accumulator(self, vectors: int, length: int, kind: np.dtype[np.floating]) -> Accumulator:
        """Return a new accumulator for a round of `vectors` vectors [length] of type `kind`."""


@dataclass(frozen=True)
class Federated(Generic[State]):
    """An algorithm: the rules of clients, aggregation and server."""

    clients: ClientRule
    aggregation: Aggregation
    server: ServerRule[State]


def saved(state: Any) -> dict[str, Vector]:
    """Return the vectors [d] of a server's state by field, for a checkpoint."""
    held = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in held.items() if isinstance(value, np.ndarray)}


def numbers_of(state: Any) -> dict[str, int | float | str]:
    """Return the plain numbers of a server's state by field."""
    held = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in held.items() if isinstance(value, int | float | str)}


NO_NUMBERS: Mapping[str, int | float | str] = MappingProxyType({})


def restored(
    server: ServerRule[State], vectors: Mapping[str, Vector], numbers: Mapping[str, Any] = NO_NUMBERS
) -> State:
    """Return the state from the results of `saved` and `numbers_of`.  Raises TypeError for those of another rule."""
    state: Any = replace(server.start(vectors["x"]), **vectors, **numbers)  # type: ignore[type-var]
    return state  # type: ignore[no-any-return]
