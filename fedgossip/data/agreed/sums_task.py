"""A LocalTask with vectors of sums over sites: a few whole numbers in each round, without training.  No torch.

The vector begins with zeros; each round adds its sums.  A site checks it before it replies (`check`).  It accepts the
agreed start, the vector of the last request, or one round's sums later, if enough records count at that point.
`encoded` returns the result's file, the same bytes at all sites.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.decoding import UnreadableError, from_json
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.vectors import Vector, empty, frozen
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, Update
from fedgossip.secure.aborts import Reason, RoundAbandoned
from fedgossip.secure.encoding import ExactSums, integers_of, words_in, words_of
from fedgossip.secure.fixed_point import little
from fedgossip.secure.primitives import Entropy
from fedgossip.secure.session_history import AskedBefore

Draw = Callable[[NodeId, int], Entropy]
"""Random bytes for the noise of a site in a round."""


def draw_system_entropy(_node: NodeId, _round: int) -> Entropy:
    """Return system randomness, for real sites; a simulation, which has no secrets, uses the seed."""
    return os.urandom


class SumsTask(ABC):
    """The sums of the local sites, one round after another; other sites run elsewhere."""

    dtype = np.dtype(np.float64)
    again = ""
    """Advice for an empty first round: the command to type when all sites are present."""

    def __init__(self, exact: ExactSums, digest: str) -> None:
        """`digest`: of the data that all participants must share."""
        self.length, self.schema, self.exact = exact.length, digest[:16], exact
        self._replied: dict[NodeId, tuple[int, Vector]] = {}
        """The round and the sums of each site's last reply."""
        self._looked: tuple[Vector, Vector, tuple[int, int, bytes], str] | None = None

    @abstractmethod
    def sums(self, job: Job) -> Vector:
        """Return a site's sums of a round, and zeros elsewhere; `job.vector` has the sums of all earlier rounds."""

    def initial(self, node: NodeId) -> Vector:  # noqa: ARG002
        zeros = empty(self.length, np.float64)
        zeros[:] = 0
        return frozen(zeros)

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        """Return each site's sums of the round.  Raises TrainingError if the first round collected nothing."""
        replies = [self.sums(job) for job in jobs]
        self._replied.update({job.node: (job.round, one) for job, one in zip(jobs, replies, strict=True)})
        return [Update(one, 1) for one in replies]

    # --- checks of a site -----------------------------------------------------------------------------------------

    def check(self, node: NodeId, round: int, model: Vector, before: AskedBefore | None) -> None:
        """Raise RoundAbandoned (POINT) for a request that this site must refuse; `before`: its last request."""
        if before is None and not np.array_equal(model, self.initial(node)):
            raise _refused(round, "it begins with sums that this site has not seen: all begin again together")
        moved = before if before is not None and not np.array_equal(model, before.model) else None
        if moved and (why := self._why_broken(model, moved) or self.below_own(node, model, moved)):
            raise _refused(round, f"the received state does not follow from round {moved.round}: {why}")
        if why := self.uneven(node, round, model):
            raise _refused(round, why)

    def _why_broken(self, model: Vector, before: AskedBefore) -> str:
        promised, last = (before.round, before.clients, before.sum_digest), self._looked
        if last is None or last[0] is not model or last[1] is not before.model or last[2] != promised:
            last = self._looked = model, before.model, promised, self.broken(model, before)
        return last[3]

    @abstractmethod
    def broken(self, model: Vector, before: AskedBefore) -> str:
        """Return why the received vector cannot follow from the previous one by sums over all sites; "" if it can."""

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:  # noqa: ARG002
        """Return the sums over all sites that are below this site's own; "" without any."""
        return ""

    def uneven(self, node: NodeId, round: int, model: Vector) -> str:  # noqa: ARG002
        """Return the sums dominated by too few of a site's records at the requested point; "" without any."""
        return ""

    def find_reply(self, node: NodeId, before: AskedBefore) -> Vector | None:
        """Return a site's reply to an earlier request; None without one in this process."""
        round, reply = self._replied.get(node, (-1, None))
        return reply if round == before.round else None

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{} for _ in vectors]

    def nothing_there(self, node: NodeId) -> TrainingError:
        text = f"site {node}: the sums of the first round are not complete"
        return TrainingError(text, f"{self.again} again when all sites are present.")


class PooledSumsTask(SumsTask):
    """A task with the sums of all rounds in the model, each at its own indices; the numbers have WIDE bits."""

    @abstractmethod
    def places(self, round: int) -> npt.NDArray[np.bool_]:
        """Return which numbers a round adds, [numbers]."""

    @abstractmethod
    def counts(self) -> npt.NDArray[np.bool_]:
        """Return which numbers are never negative at a site, [numbers]."""

    def broken(self, model: Vector, before: AskedBefore) -> str:
        words = words_in(model - before.model)
        if words is None or words.size != self.exact.length:
            return "it holds no sums of one round more"
        numbers, places = integers_of(words), self.places(before.round)
        if any(number for number, place in zip(numbers, places.tolist(), strict=True) if not place):
            return "sums of an earlier round have changed"
        if places[0] and (why := before.miscounted(numbers[0])):
            return why
        whole = np.concatenate([words, words_of([before.clients])])
        if before.whole and before.sum_digest and hashlib.sha256(little(whole)).digest() != before.sum_digest:
            return "other sums than the coordinator has signed"
        return ""

    def below_own(self, node: NodeId, model: Vector, before: AskedBefore) -> str:
        words = words_in(model - before.model)
        assert words is not None, "`broken` has looked"
        numbers = integers_of(words)
        if (reply := self.find_reply(node, before)) is not None and (own := words_in(reply)) is not None:
            mine, never_less = integers_of(own), self.counts().tolist()
            if any(all_ < one for all_, one, fixed in zip(numbers, mine, never_less, strict=True) if fixed):
                return "a count over all sites is below that of this site alone"
        return ""


def _refused(round: int, why: str) -> RoundAbandoned:
    return RoundAbandoned(Reason.POINT, f"the coordinator asks in round {round}, and {why}")


def find_places(
    names: Mapping[tuple[str, ...], int], is_one: Callable[[tuple[str, ...]], bool]
) -> npt.NDArray[np.bool_]:
    """Return which names satisfy a predicate, in the order of the vector."""
    return np.fromiter(map(is_one, names), bool, len(names))


class SumsFile(Protocol):
    @property
    def format(self) -> int: ...


Content = TypeVar("Content", bound=SumsFile)


def encoded(content: SumsFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def read_sums_file(kind: type[Content], path: Path, known: int, what: str, advice: str) -> Content:
    """Read a file of format `known`.  Raises ConfigError, with `advice`, if no such file of `what` exists."""
    try:
        found = from_json(msgspec.json.Decoder(kind), outside_files.read_bytes(path))
    except OSError as error:
        raise ConfigError(f"{path}: no {what} ({error.strerror})", advice) from None
    except UnreadableError as error:
        raise ConfigError(f"{path}: cannot be read: {error}", advice) from None
    if found.format != known:
        text = f"{path}: format {found.format}; this release knows {known}"
        raise ConfigError(text, f"Use the release of fedgossip that wrote it, or: {advice}")
    return found
