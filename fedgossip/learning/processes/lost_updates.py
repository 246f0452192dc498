"""Results of a race on one model in shared memory: the mean loss, and the number of lost updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fedgossip.learning.processes.ipc import COUNTER, TrainReply

LOST: Final = "lost_updates"
"""The name under which a round's record has the share of updates that were lost."""


class Race(NamedTuple):
    """The mean loss of all steps, and their counts, where counted."""

    loss: float
    logged: Mapping[str, float]


def race_of(replies: Sequence[TrainReply], shared: Mapping[str, npt.NDArray[Any]]) -> Race:
    """Combine the replies of the processes, each with its numbers of steps and of written elements."""
    loss = sum(one.loss * one.steps for one in replies) / sum(one.steps for one in replies)
    if COUNTER not in shared:
        return Race(loss, {})
    written, kept = sum(one.written for one in replies), int(shared[COUNTER].sum(dtype=np.int64))
    return Race(loss, {LOST: 1 - kept / written})
