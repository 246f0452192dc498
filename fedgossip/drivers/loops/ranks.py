"""A loop whose model is trained by several processes (DDP, or FSDP's `fully_shard`): rank 0 acts for all of them.

Only rank 0 has a host and controls the run.  All ranks call the same functions in the same places, and so meet:

    rank 0                                   the others
    step(), with all of its exchanges        step(): execute commands until GO
      send READ;  read the model             take part in gathering its parts
      send WRITE, the vector;  write it      write it
      send TERMS, ...;  use them             use them
      send MEASURE;  measure                 measure
      send GO, round, done, failed           go on, or raise

So the ranks hold the same weights after every exchange, at whichever step rank 0 makes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from fedgossip.base.errors import ConfigError, NetworkError
from fedgossip.drivers.loops.loop_handle import JoinedLoop
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.learning.own_loop.ranks import RankedExchange, RankedTerms, RankLink, RankOrder, obey
from fedgossip.learning.own_loop.terms import GradientTerms


class SpeakingLoop(JoinedLoop):
    """Rank 0's hand on the run: when a call is over, the others go on."""

    terms_of = RankedTerms

    def step(self, examples: int = 1) -> bool:
        """`JoinedLoop.step`; `examples` are those of this rank, and the others have as many."""
        with self._speaking():
            return super().step(examples * self._link.size)

    def evaluate(self, measure: Callable[[Any], Mapping[str, float]], every: int | None = None) -> None:
        """`JoinedLoop.evaluate`; all ranks measure together, and what rank 0 finds counts."""

        def together(model: Any) -> Mapping[str, float]:
            self._link.tell(RankOrder.MEASURE)
            return measure(model)

        with self._speaking():
            super().evaluate(together, every)

    def close(self) -> None:
        with self._speaking():
            super().close()

    def close_quietly(self) -> None:
        """Leave for a script that has ended: the other ranks may have exited."""
        self._depart()

    @property
    def _link(self) -> RankLink:
        assert isinstance(self._exchanged, RankedExchange)
        return self._exchanged.link

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        failed = True
        try:
            yield
            failed = False
        finally:
            go_on(self._link, self, failed=failed)


def go_on(link: RankLink, loop: JoinedLoop | None, *, failed: bool = False) -> None:
    """Let the other ranks go on."""
    where = (loop.node, loop.n, loop.round, int(loop.done)) if loop else (0, 0, 0, 1)
    link.tell(RankOrder.GO, *where, int(failed))


class FollowingLoop:
    """The counterpart on every other rank: it executes rank 0's commands, and has the same state."""

    folder = None

    def __init__(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> None:
        self.node = self.n = self.round = 0
        self.done = self._closed = False
        self._exchanged, self._terms = exchanged, GradientTerms(exchanged, list(optimizers))
        self._link = RankLink(exchanged.layout.length, exchanged.layout.dtype)
        self._measure: Callable[[Any], Any] = lambda _: {}
        self._follow()

    def step(self, examples: int = 1) -> bool:  # noqa: ARG002
        """As rank 0's."""
        self._check("step")
        self._follow()
        return not self.done

    def log(self, **values: Any) -> None:
        """Nothing: rank 0 logs."""

    def evaluate(self, measure: Callable[[Any], Mapping[str, float]], every: int | None = None) -> None:  # noqa: ARG002
        """As rank 0's."""
        self._check("evaluate")
        self._measure = measure
        self._follow()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: rank 0 saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing: rank 0 loads."""

    def close(self) -> None:
        """As rank 0's."""
        if not self._closed:
            self._follow()
            self._closed = True
            self._terms.remove()

    def leave(self, error: BaseException) -> None:  # noqa: ARG002
        """Leave without a message: the launcher of the ranks ends the others."""
        self._closed = True
        self._terms.remove()

    def __enter__(self) -> FollowingLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.leave(error)

    def _check(self, what: str) -> None:
        if self._closed:
            raise ConfigError(f"{what}() after close(): node {self.node} has left its run", "Join again in a new run.")

    def _follow(self) -> None:
        """Execute rank 0's commands until GO.  Raises NetworkError where rank 0 has failed."""
        while True:
            order, numbers = self._link.told()
            if order is RankOrder.GO:
                break
            if order is RankOrder.MEASURE:
                self._measure(self._exchanged.module)
            else:
                obey(order, numbers, self._link, self._exchanged, self._terms)
        self.node, self.n, self.round, done, failed = numbers
        self.done = bool(done)
        if failed:
            self._closed = True
            raise NetworkError("rank 0 of this loop has failed", "What happened stands in its own words.")
