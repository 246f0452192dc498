"""A process with a torch module: its construction from the setup, and its replies to orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fedgossip.core.machine import Terms
from fedgossip.data.dataset import Dataset
from fedgossip.data.objectives import Objective
from fedgossip.data.ragged import of_parts
from fedgossip.learning.many_nodes.stacked_engine import State
from fedgossip.learning.models import models
from fedgossip.learning.one_model.batches import BatchPlan
from fedgossip.learning.one_model.losses import Criterion
from fedgossip.learning.one_model.module_engine import Assignment, ModuleLoop
from fedgossip.learning.one_model.scoring import Scoring
from fedgossip.learning.one_model.sharing import GpuSharing
from fedgossip.learning.processes.ipc import STATE, Evaluated, EvaluateOrder, Message, Setup, TrainOrder, TrainReply
from fedgossip.learning.processes.shared_memory import SharedArrays

Arrays = Mapping[str, npt.NDArray[Any]]


class ModuleMember(ABC):
    """A process of a group, set up; `_loop` trains and evaluates its module."""

    _loop: ModuleLoop

    def __init__(self, boards: Mapping[str, SharedArrays]) -> None:
        self._boards, self._sharing = boards, GpuSharing()

    def answer(self, order: Message) -> Message:
        """Execute an order."""
        assert isinstance(order, TrainOrder | EvaluateOrder)
        self._sharing.pieces = order.pieces
        given = self._boards["given"].views(order.given)
        if isinstance(order, TrainOrder):
            return self._train(order, given, self._boards["found"].views(order.found))
        found = self._loop.sums(given["vector"], state_in(given) if order.own else None)
        sums = [np.sum(parts, axis=0).tolist() for parts in zip(*(one.sums for one in found.tallies), strict=True)]
        return Evaluated(found.loss, found.predicted, sums)

    @abstractmethod
    def _train(self, order: TrainOrder, given: Arrays, found: Arrays) -> TrainReply: ...


def job_of(order: TrainOrder, given: Arrays) -> Assignment:
    """Return the job of an order."""
    terms = None if order.pull is None else Terms(order.pull, given.get("correction"))
    plan = BatchPlan(given["indices"], given["counts"])
    return Assignment((order.node, order.round), given["vector"], plan, order.lr, state_in(given), terms)


def state_in(arrays: Arrays) -> State:
    """Return the node's state among the arrays of a job."""
    return {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}


def examples_of(setup: Setup, board: SharedArrays) -> tuple[Dataset, Dataset]:
    views = board.views(setup.examples)
    train, test = (
        Dataset(
            name,
            of_parts(views, f"{name}.x"),
            of_parts(views, f"{name}.y"),
            setup.classes,
            vocabulary=setup.vocabulary,
            kind=setup.kind,
            label_mean=setup.label_scale[0],
            label_deviation=setup.label_scale[1],
        )
        for name in ("train", "test")
    )
    return train, test


def module_of(setup: Setup, data: Dataset) -> nn.Module:
    base = None if setup.base is None else Path(setup.base)
    size = None if setup.vocabulary is None else len(setup.vocabulary)
    return models.build(setup.source, data.shape, data.outputs, setup.seed, size, base=base)


def judged_by(setup: Setup, test: Dataset) -> dict[str, Any]:
    """Return the criterion and the scoring, by the names that `ModuleLoop` has for them."""
    base = None if setup.base is None else Path(setup.base)
    objective = Objective(setup.kind, setup.loss, setup.metrics)
    return {"criterion": Criterion(objective, base), "scoring": Scoring(objective, test, base)}
