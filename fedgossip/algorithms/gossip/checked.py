"""A user's own algorithm, held to what a round needs: what it returns, and what it raises, names it and the round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

from fedgossip.algorithms.gossip.base import WEIGHT, GossipAlgorithm, Needs, Slot, Step, Vectors
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.signatures import CalledWith, check_call
from fedgossip.base.vectors import Vector

Given = TypeVar("Given")

_SEE = "See GossipAlgorithm in fedgossip/algorithms/gossip/base.py."

METHODS = ("start", "trained", "mixed", "model", "seen", "corrected", "rejoined")


class Checked:
    """Stands round an algorithm.  Raises ConfigError where it lacks a method, TrainingError for what it returns."""

    def __init__(self, name: str, algorithm: GossipAlgorithm[Any]) -> None:
        self.name, self.algorithm, self.round = name, algorithm, 0
        self.first: Vector | None = None  # what all models are like
        missing = [method for method in METHODS if not callable(getattr(algorithm, method, None))]
        if missing:
            raise ConfigError(f"{name} has no method {missing[0]!r}", _SEE)
        for method in METHODS:
            _, *arguments = inspect.signature(getattr(GossipAlgorithm, method)).parameters
            check_call(f"{name}.{method}", getattr(algorithm, method), CalledWith(tuple(arguments), _SEE))
        slots = tuple(getattr(algorithm, "slots", ()))
        if not slots or not all(isinstance(slot, Slot) for slot in slots):
            raise ConfigError(f"{name}: slots = {slots!r}", 'Give a Slot per vector that a round mixes: (Slot("x"),).')
        self.needs: Needs = getattr(algorithm, "needs", Needs())
        self._weighted = self.needs.sums == "columns"
        if self._weighted and slots[-1] != WEIGHT:
            advice = 'Give as the last slot base.WEIGHT, Slot("weight", length=1, dtype="float64").'
            raise ConfigError(f"{name}: needs.sums = 'columns', and what is given away has no weight", advice)
        if any(slot.length is not None or slot.dtype for slot in slots[: -1 if self._weighted else None]):
            raise ConfigError(f"{name}: a slot of another length or type than the model's", "Mix vectors like it.")
        self.slots: tuple[Slot, ...] = slots

    def start(self, x: Vector) -> Any:
        """See `GossipAlgorithm.start`.  Raises TrainingError for a state that is no dataclass."""
        self.first = x
        return self._state(self._asked("start", self.algorithm.start, x))

    def trained(self, state: Any, update: Vector | None, step: Step) -> tuple[Any, Vectors]:
        """See `GossipAlgorithm.trained`.  Raises TrainingError, by method and round, for what it gives or raises."""
        self.round = step.round
        given = self._asked("trained", self.algorithm.trained, state, update, step)
        if not (isinstance(given, tuple) and len(given) == 2):
            raise self._wrong("trained returned no (state, vectors)")
        begun, outgoing = given
        return self._state(begun), self._vectors("trained", outgoing, self.model(state))

    def mixed(self, state: Any, mixed: Vectors) -> Any:
        """See `GossipAlgorithm.mixed`.  Raises TrainingError as `trained` does."""
        after = self._state(self._asked("mixed", self.algorithm.mixed, state, mixed))
        self._like("mixed", self.model(after), mixed[0])
        return after

    def model(self, state: Any) -> Vector:
        """See `GossipAlgorithm.model`.  Raises TrainingError for another shape or type than the first vector's."""
        model = self._asked("model", self.algorithm.model, state)
        return model if self.first is None else self._like("model", model, self.first)

    def seen(self, state: Any, outgoing: Vectors) -> Vector:
        """See `GossipAlgorithm.seen`.  Raises TrainingError as `model` does."""
        return self._like("seen", self._asked("seen", self.algorithm.seen, state, outgoing), outgoing[0])

    def corrected(self, state: Any, differences: Vectors) -> Any:
        """See `GossipAlgorithm.corrected`.  Raises TrainingError as `start` does."""
        return self._state(self._asked("corrected", self.algorithm.corrected, state, differences))

    def rejoined(self, state: Any, model: Vector) -> Any:
        """See `GossipAlgorithm.rejoined`.  Raises TrainingError as `start` does."""
        return self._state(self._asked("rejoined", self.algorithm.rejoined, state, model))

    def _asked(self, method: str, call: Callable[..., Given], *arguments: Any) -> Given:
        try:
            return call(*arguments)
        except Exception as error:
            raise self._wrong(f"{method} raised {error!r}") from error

    def _state(self, state: Any) -> Any:
        if not is_dataclass(state):
            raise self._wrong(f"a state is a frozen dataclass of arrays and numbers, not {type(state).__name__}")
        return state

    def _vectors(self, method: str, vectors: Sequence[Vector], like: Vector) -> Vectors:
        if not (isinstance(vectors, tuple) and len(vectors) == len(self.slots)):
            found = len(vectors) if isinstance(vectors, tuple | list) else type(vectors).__name__
            raise self._wrong(f"{method} returned {found} vectors for {len(self.slots)} slots")
        if not self._weighted:
            return tuple(self._like(method, vector, like) for vector in vectors)
        *likes, weight = vectors
        ones = np.ones((*like.shape[:-1], 1))
        return (*(self._like(method, vector, like) for vector in likes), self._like(method, weight, ones))

    def _like(self, method: str, vector: Any, like: Vector) -> Vector:
        if not (isinstance(vector, np.ndarray) and vector.dtype == like.dtype and vector.shape == like.shape):
            found = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
            raise self._wrong(f"{method} returned {found}; expected {like.dtype} {like.shape}")
        return vector

    def _wrong(self, what: str) -> TrainingError:
        return TrainingError(
            f"{self.name}, round {self.round}: {what}", "The algorithm is yours; see examples/two_tap.py."
        )
