"""Hogwild!: the processes of a client step on one model in shared memory, without a lock and without waiting.

    each of P processes, until its share of the batches is done:
        g  <-  the gradient of its next batch, at the present model
        model  <-  model - rate * g          in place, while the others read and write it

A step may begin from a model with half of another's step, and where two processes write an element at once one of the
two updates is lost.  Where examples affect few elements each that is rare; a dense model writes all of them in every
step.  The result depends on the speeds of the processes: no run has the bits of another.

Lost updates are measured with `train.count_lost`: each process counts its writes, and adds 1 to a counter per element
in shared memory with the same race; the deficit of the counters is the number of lost updates.

Source: F. Niu, B. Recht, C. Re, S. Wright, Hogwild!: a lock-free approach to parallelizing stochastic gradient
descent, NIPS 2011.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from torch import nn

from fedgossip.base.errors import ConfigError
from fedgossip.data.dataset import Dataset
from fedgossip.learning.many_nodes.stacked_engine import Outcome
from fedgossip.learning.one_model import module_engine
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.module_engine import PERSONAL, Assignment, Done
from fedgossip.learning.processes.engine import ProcessesLoop
from fedgossip.learning.processes.ipc import COUNTER, LINE, TrainReply, race_of
from fedgossip.learning.settings import HOGWILD, TrainSettings


class HogwildLoop(ProcessesLoop):
    """Trains in processes that all step on one line of shared memory: personal parameters, then the vector."""

    def __init__(
        self, module: nn.Module, layout: Layout, train: Dataset, test: Dataset, settings: TrainSettings, **how: Any
    ) -> None:
        super().__init__(module, layout, train, test, settings, **how)
        self._fresh = Layout.personal_of(module, settings.stays).read(module)
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {LINE: ("float32", (len(self._fresh) + layout.length,))}
        if settings.count_lost:
            self._shapes[COUNTER] = ("int32", (self.trained,))

    def train_one(self, job: Assignment) -> Outcome:
        p = len(self._fresh)
        with self.standing.working() as group:
            found = group.found.room(self._shapes)
            views = group.found.views(found)
            self._lay(job, views)
            answers = group.ask(self.order(group, job, found, {}))
            race = race_of([one for one in answers if isinstance(one, TrainReply)], views)
            line = views[LINE].copy()
        if p:
            job.state[PERSONAL] = line[:p].copy()
        outcome = module_engine.outcome(job.vector, line[p:].copy(), Done(race.loss, 0))
        return outcome._replace(logged=race.logged)

    def gradient_one(self, job: Assignment) -> Outcome:  # noqa: ARG002
        """Raise ConfigError: its processes take steps, and a gradient takes none."""
        advice = 'Use parallel = "ddp", or a method whose participants train: gossip, [coordinator], parallel.outer.'
        raise ConfigError(f'parallel = "{HOGWILD}": its processes take steps, and a gradient takes none', advice)

    def _lay(self, job: Assignment, views: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write the arrays that all processes step on."""
        p = len(self._fresh)
        views[LINE][:p] = job.state.get(PERSONAL, self._fresh)
        views[LINE][p:] = job.vector
        if COUNTER in views:
            views[COUNTER][:] = 0
