"""The handoff between a user's loop and its driver: the driver sends orders, the loop answers, each in its own thread.

    driver                                  loop
    ask(TrainFrom(round, vector))  ->       next() when it calls step(); trains on
                                   <-       give(Learned(vector, ...)) after local_steps calls
    ask(Measure(vector))           ->       next(), beside or between them
                                   <-       give(Measured(metrics))
    release(...)                   ->       next(): the run is over for this loop

One order is open at a time.  Only the loop's own thread touches the model.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Terms

POLL_SECONDS = 0.1
"""Seconds between two checks of a waiting loop that its driver is alive."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainFrom:
    """Train on from `vector`.  `change` is its difference from the loop's own weights; None: no difference."""

    round: int
    vector: Vector
    change: Vector | None
    terms: Terms | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """Order: measure the metrics of `vector`."""

    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The run is over for this loop, with this model, `change` as in TrainFrom; `error`: the run failed."""

    vector: Vector | None = None
    change: Vector | None = None
    error: BaseException | None = None


Order = TrainFrom | Measure | Released


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """The loop's weights after its steps, and those before them."""

    held: Vector
    began: Vector
    examples: int
    metrics: Mapping[str, float]
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Over:
    """The loop has ended by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Raised:
    """The loop, or a function that it gave, raised this."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Dismissed:
    """The order was cancelled."""


LoopAnswer = Learned | Measured | Over | Raised | Dismissed
_Reply = queue.SimpleQueue[LoopAnswer]


class Meeting:
    """One loop's.  `turn` is called with true before the loop may run, and with false when it waits again."""

    def __init__(self, turn: Callable[[bool], None] = lambda _: None) -> None:
        self._orders: queue.SimpleQueue[tuple[Order, _Reply]] = queue.SimpleQueue()
        self._turn = turn
        self._asking = threading.Lock()  # a training, and what others want to have measured
        self._training: _Reply | None = None  # the reply queue of the open training
        self._dismissed = False
        self._last: LoopAnswer | None = None  # the loop has raised, and answers no further orders
        self._replies: list[_Reply] = []  # of the orders taken by the loop, the newest last

    # --- the driver's side ----------------------------------------------------------------------------------------

    def ask(self, order: Order) -> LoopAnswer:
        """Give an order and wait for its answer, as long as the loop likes; `dismiss` ends a training's wait."""
        with self._asking:
            reply: _Reply = queue.SimpleQueue()
            if isinstance(order, TrainFrom):
                self._training = reply
                if self._dismissed:
                    return Dismissed()
            if self._last is not None:
                return self._last
            self._turn(True)
            self._orders.put((order, reply))
            answer = reply.get()
            self._turn(False)
            self._last = answer if isinstance(answer, Raised) else self._last
            return answer

    def dismiss(self) -> None:
        """Cancel the open training, and refuse further ones."""
        self._dismissed = True
        if self._training is not None:
            self._training.put(Dismissed())

    def abandon(self) -> None:
        """Answer the open order and all later ones with Over, for a loop that has left."""
        self._last = Over()
        while self._replies:
            self._replies.pop().put(self._last)

    def release(self, how: Released) -> None:
        """Send the loop the end of its run."""
        self._orders.put((how, queue.SimpleQueue()))

    # --- the loop's side ------------------------------------------------------------------------------------------

    def give(self, answer: LoopAnswer) -> None:
        """Answer the newest unanswered order."""
        self._replies.pop().put(answer)

    def next(self, alive: Callable[[], bool], seconds: float | None = None) -> Order | None:
        """Return the next order; None without one within `seconds` (0: not waiting), or where the driver has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                return self._take(self._orders.get(block=seconds != 0, timeout=POLL_SECONDS))
            except queue.Empty:
                if seconds == 0 or (until is not None and time.monotonic() > until):
                    return None
            if not alive() and self._orders.empty():
                return None

    def _take(self, came: tuple[Order, _Reply]) -> Order:
        order, reply = came
        if not isinstance(order, Released):
            self._replies.append(reply)
        return order
