"""A LocalTask whose vector are sums over sites: whole numbers, a few of them in each round, and nothing is trained.

The vector begins with zeros; each round adds its sums over all sites, and a site reads from it what the rounds before
have brought.  No torch here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedgossip.errors import TrainingError
from fedgossip.machine import NodeId
from fedgossip.secure.exact_sums import ExactSums
from fedgossip.secure.primitives import Entropy
from fedgossip.task import Job, Update
from fedgossip.vectors import Vector, empty, frozen

Draw = Callable[[NodeId, int], Entropy]
"""Random bytes for the noise of a site in a round."""


def from_system(_node: NodeId, _round: int) -> Entropy:
    """Draw what nobody can know: of a simulation, which is no secret, the seed serves."""
    return os.urandom


class SumsTask(ABC):
    """What the sites that are held here tell, a round after another; others are asked elsewhere."""

    dtype = np.dtype(np.float64)
    again = ""
    """What to type when all sites are there, where the first round has brought nothing."""

    def __init__(self, exact: ExactSums, digest: str) -> None:
        """`digest`: of what all participants must have alike."""
        self.length, self.schema = exact.length, digest[:16]

    @abstractmethod
    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round, and zeros elsewhere; `job.vector` has the sums of all rounds before."""

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        zeros = empty(self.length, np.float64)
        zeros[:] = 0
        return frozen(zeros)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return each site's sums of the round.  Raises TrainingError where the first round has brought nothing."""
        return [Update(self.sums(job), 1) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]

    def nothing_there(self, node: NodeId) -> TrainingError:
        text = f"site {node}: the sums of the first round have not come together"
        return TrainingError(text, f"{self.again} again when all sites are there.")
