"""The object that `fedgossip.join` returns: it controls the run from inside the user's own training loop.

    peer = fedgossip.join(model, optimizer)
    for x, y in loader:
        loss = criterion(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()
        peer.step(examples=len(x))
    peer.close()

After every `train.local_steps` calls of `step()` the model is exchanged, and changes in place.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol

import numpy as np

from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError
from fedgossip.base.untrusted_text import line
from fedgossip.base.vectors import Vector
from fedgossip.drivers.loops.task import Learned, Measure, Measured, Meeting, Order, Over, Raised, Released, TrainFrom
from fedgossip.learning.own_loop.global_state import isolate
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.learning.own_loop.terms import GradientTerms

STATE = 1
"""Version of the return value of `state_dict`."""

SERVE_SECONDS = 0.2
"""Seconds that a loop at its end waits for an order before it checks whether the run still needs it."""

LEAVE_SECONDS = 10.0
"""Seconds to wait for the goodbye of a loop that raised."""


class Driver(Protocol):
    """The part that runs the machine in parallel to the loop."""

    leave_seconds: float | None
    """Maximum seconds that a leaving loop waits for its goodbye; None: until it is released."""

    def alive(self) -> bool:
        """Return whether orders may still follow."""

    def stop(self) -> None:
        """Send a goodbye as soon as possible, at a person's request."""

    def needs_loop(self) -> bool:
        """Return whether a finished loop may still receive requests to measure a model."""


@dataclass(frozen=True)
class LoopSeat:
    """A loop's place and settings in its run."""

    node: int
    n: int
    local_steps: int
    waits: bool
    """Whether a round is mixed before the loop continues; otherwise the change from mixing is added to its later
    weights.
    """
    blocks: bool
    """Whether `step()` waits at an exchange for its result."""
    every: int
    """Rounds between two measurements, from the experiment."""
    settle_seconds: float
    """Maximum seconds at the end of a loop that does not wait, for the open exchange."""
    folder: Path | None = None
    """This participant's folder; None in a simulation."""
    score: str = "accuracy"
    """Metric shown in reports, from the experiment."""
    weighs_examples: bool = False
    """Whether a coordinator weights a round by its number of examples."""
    most_examples: int | None = None
    """Maximum number of examples per round, if a secure sum bounds them."""


class JoinedLoop:
    """One loop in its run, for the joining thread.

    `node` of `n`: this participant's id, which selects its data.  `round`: completed exchanges, above 0 in a later
    incarnation.  `done`: the run is over, and the loop may continue alone.  `folder`: of this loop in all its
    incarnations, for its own checkpoints; None in a simulation.
    """

    terms_of: ClassVar[Callable[..., GradientTerms]] = GradientTerms

    def __init__(
        self,
        exchanged: Exchanged,
        optimizers: Sequence[Any],
        seat: LoopSeat,
        meeting: Meeting,
        driver: Driver,
    ) -> None:
        self.node, self.n, self.round, self.done = seat.node, seat.n, 0, False
        self.folder = seat.folder
        self._exchanged, self._optimizers, self._seat = exchanged, list(optimizers), seat
        self._meeting, self._driver = meeting, driver
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._order: TrainFrom | None = None
        self._began: Vector | None = None
        self._steps = self._examples = self._exchanges = 0
        self._logged: dict[str, list[Any]] = {}
        self._measure: Callable[[Any], Any] | None = None
        self._unscored = self._still = False
        self._terms = self.terms_of(exchanged, self._optimizers)
        self._closed = self._alone = False
        self._final: Vector | None = None
        self._take(None)  # the initial weights

    # --- in the loop ----------------------------------------------------------------------------------------------

    def step(self, examples: int = 1) -> bool:
        """Count one step of the optimizer on `examples` examples; exchange the model when the round is complete.

        Call it after `optimizer.step()`.  Returns whether the run continues.  Raises ConfigError after `close()` and in
        another thread, TrainingError for a parameter that is not finite (this round is then not sent), and the error
        that ended the run.
        """
        self._check("step")
        examples = _count(examples)
        if self.done:
            if not self._alone:
                self._print("the run is over; this loop continues alone")
            self._alone = True
            self._serve(0)
            return False
        self._steps += 1
        self._examples += examples
        if self._order is None:
            self._take(0)
        if self._steps >= self._seat.local_steps and self._order is not None:
            self._hand_in()
            self._take(None if self._seat.blocks else 0)
        return not self.done

    def log(self, **values: Any) -> None:
        """Log numbers, or tensors of one element: the record has the mean of each over the round."""
        self._check("log")
        for name, value in values.items():
            if getattr(value, "numel", lambda: 1)() != 1:
                shape = list(value.shape)
                raise ConfigError(f"log: {name!r} is a tensor {shape}, not one number", f"Log {name}.mean().")
            number = value.detach() if hasattr(value, "detach") else _number("log", name, value)
            self._logged.setdefault(name, []).append(number)

    def evaluate(self, measure: Callable[[Any], Mapping[str, float]], every: int | None = None) -> None:
        """Measure models by `measure(model)` from now on; it returns numbers by name: "accuracy", "loss".

        Called every `eval.every` rounds with this loop's model, at one loop with the mean of all; `every`: the same
        number, as a check.  The model, its mode and random states are restored.
        """
        self._check("evaluate")
        if not callable(measure):
            raise ConfigError(f"evaluate: measure is a {type(measure).__name__}", "Give a function of the model.")
        if every not in (None, self._seat.every):
            advice = f"All measure in the same rounds: set eval.every = {every} in the experiment, or with --set."
            text = f"evaluate: every = {every}, and the run measures every {self._seat.every} rounds"
            raise ConfigError(text, advice)
        self._measure = measure

    # --- a checkpoint of the user's own ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the loop's own checkpoint, in addition to model and optimizer."""
        return {"fedgossip": STATE, "steps": self._steps, "examples": self._examples, "round": self.round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the return value of `state_dict` from an earlier incarnation: the steps of the open round.

        Raises ConfigError for anything else.
        """
        self._check("load_state_dict")
        if state.get("fedgossip") != STATE or not {"steps", "examples"} <= state.keys():
            raise ConfigError("load_state_dict: not what state_dict() returned", "Save peer.state_dict() whole.")
        self._steps, self._examples = int(state["steps"]), int(state["examples"])

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Exchange the progress since the last exchange, and leave; the model is then the final one, unless the loop
        continued alone.

        A script that ends without this call leaves as well; a second call has no effect.
        """
        if self._closed or self._is_fork():
            return
        self._check("close")
        try:
            if not self.done and self._order is None:
                self._take(self._seat.settle_seconds)
            if self._order is not None and not self._steps and not self._exchanges:
                self._report_idle()
            if self._order is not None and self._steps:
                self._hand_in()
                self._take(None if self._seat.blocks else self._seat.settle_seconds)
            if self._order is not None:
                self._answer(Over())
            elif not self.done:
                self._driver.stop()
            while not self.done:
                self._take(None)
            if self._final is not None and not self._alone:
                self._exchanged.write(self._final)
            while self._driver.needs_loop():
                self._serve(SERVE_SECONDS)
        finally:
            self._closed = True
            self._terms.remove()

    def _report_idle(self) -> None:
        """Report a model that was trained without a step(): it has no effect on the run."""
        assert self._began is not None
        if self._exchanged.read().tobytes() != self._began.tobytes():
            self._print("nothing was exchanged: step() was never called.  Call it after each optimizer.step()")

    def close_quietly(self) -> None:
        """`close`, for a script that has ended: an error is one line.  In another thread only the goodbye is sent."""
        if threading.get_ident() != self._thread and not self._is_fork():
            self._depart()
            return
        try:
            self.close()
        except FedgossipError as error:
            self._print(f"{error}  {error.advice}".strip())

    def _depart(self) -> None:
        """Send a goodbye without the model."""
        self._driver.stop()
        until = time.monotonic() + LEAVE_SECONDS
        while not (self.done or self._closed) and self._driver.alive() and time.monotonic() < until:
            time.sleep(SERVE_SECONDS)

    def leave(self, error: BaseException) -> None:
        """Send a goodbye at once: the loop has raised `error`, or a person has stopped it.  Never raises."""
        if self._closed or self._is_fork():
            return
        self._closed = True
        self._terms.remove()
        stopped = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
        if stopped or self._order is None:
            self._driver.stop()
        else:
            self._meeting.give(Raised(error))
        while not self.done:
            order = self._meeting.next(self._driver.alive, self._driver.leave_seconds)
            if isinstance(order, Measure):
                self._meeting.give(Measured({}))
            self.done = order is None or isinstance(order, Released)

    def __enter__(self) -> JoinedLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or ends_well(error):
            self.close()
        else:
            self.leave(error)

    def _serve(self, seconds: float) -> None:
        """Answer the last measuring requests; wait at most `seconds` for each."""
        if isinstance(order := self._meeting.next(lambda: True, seconds), Measure):
            self._meeting.give(self._measured(order.vector))

    # --- an exchange ----------------------------------------------------------------------------------------------

    def _hand_in(self) -> None:
        assert self._order is not None and self._began is not None
        self._exchanged.check_complete()
        self._check_examples()
        held = self._exchanged.read()
        self._exchanged.check_finite(held, f"node {self.node}, round {self._order.round}")
        began = self._began
        if not self._still and np.array_equal(held, began):
            self._still = True
            text = f"no parameter changed in {self._steps} steps: is step() called after optimizer.step()?"
            self._print(f"{text}  Does the optimizer hold the model's parameters?")
        steps, rate = self._terms.measure_steps(self._steps, lambda: held.tobytes() != began.tobytes())
        metrics = {"steps": steps, "rate": rate}
        logged = {name: _mean(name, values) for name, values in self._logged.items()}
        logged.update(self._exchanged.facts())
        if (loss := logged.pop("loss", math.nan)) == loss:
            metrics["loss"] = loss
        self._answer(Learned(held, began, self._examples, metrics, logged))
        self._exchanges += 1
        self._steps = self._examples = 0
        self._logged.clear()

    def _check_examples(self) -> None:
        where, most = f"node {self.node}, round {self.round}", self._seat.most_examples
        if self._seat.weighs_examples and not self._examples:
            advice = "Give how many each batch has: step(examples=len(labels))."
            raise ConfigError(f"{where}: 0 examples, and the coordinator weights each model by its examples", advice)
        if most is not None and self._examples > most:
            text = f"{where}: {self._examples} examples, and a secure sum counts at most {most}"
            raise ConfigError(text, f"Set coordinator.secure.weight_max to {self._examples} or more, for all clients.")

    def _answer(self, answer: Learned | Over) -> None:
        self._order = None
        self._meeting.give(answer)

    def _take(self, seconds: float | None) -> None:
        while self._order is None and not self.done:
            order = self._meeting.next(self._driver.alive, seconds)
            if order is None and seconds is not None:
                return
            self._obey(order or Released(error=NetworkError("the run's own thread has ended without a word")))

    def _obey(self, order: Order) -> None:
        match order:
            case TrainFrom():
                self._begin(order)
            case Measure(vector):
                self._meeting.give(self._measured(vector))
            case Released():
                self.done = True
                self._change(order)
                if order.error is not None:
                    self._closed = True
                    raise order.error
                if not self._seat.waits:  # it trained in parallel to its peer, which has a separate final model
                    self._final = order.vector

    def _change(self, order: TrainFrom | Released) -> None:
        """Apply a mixing: the whole vector, or as a change if the loop has continued training."""
        if order.change is None or order.vector is None:
            return
        if self._seat.waits or not self._exchanges:
            self._exchanged.write(order.vector)
        else:
            self._exchanged.add(order.change)

    def _begin(self, order: TrainFrom) -> None:
        self._order, self.round = order, order.round
        try:
            self._change(order)
            exact = self._exchanged.exact or not self._seat.waits or order.change is None
            self._began = order.vector if exact else self._exchanged.read()
            self._terms.use(order.terms, order.vector)
        except FedgossipError as error:
            self.leave(error)  # here: inside join() the script has no handle to leave with
            raise

    def _measured(self, vector: Vector) -> Measured | Raised:
        if self._measure is None:
            return Measured({})
        own = self._exchanged.snapshot()
        try:
            with isolate(self._exchanged.module):
                self._exchanged.write(vector)
                found = _scores(self._measure(self._exchanged.module))
        except Exception as error:
            return Raised(error)
        finally:
            self._exchanged.restore(own)
        given = ", ".join(name for name in found if name != "loss")
        if given and self._seat.score not in found and not self._unscored:
            self._unscored = True
            text = f"evaluate returned {given} and no {self._seat.score}"
            self._print(f"{text}: reports show no score until task.metrics names yours")
        return Measured(found)

    # --- checks of the caller -------------------------------------------------------------------------------------

    def _check(self, what: str) -> None:
        if self._closed:
            raise ConfigError(f"{what}() after close(): node {self.node} has left its run", "Join again in a new run.")
        if self._is_fork():
            text = f"{what}() in another process than join()"
            raise ConfigError(text, "A process that the loop forked takes no part in the run.")
        if threading.get_ident() != self._thread:
            advice = "Call it where the loop trains: the model is changed in place there."
            raise ConfigError(f"{what}() in another thread than join()", advice)

    def _is_fork(self) -> bool:
        """Whether this is a copy of the loop in a process that it forked: its end ends nothing of the run."""
        return os.getpid() != self._process

    def _print(self, text: str) -> None:
        print(f"fedgossip: node {self.node}: {line(text, 1000)}", file=sys.stderr, flush=True)


def ends_well(error: BaseException) -> bool:
    """Return whether a script that raises this has ended normally: `sys.exit()`, or `sys.exit(main())` without
    a fault.
    """
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _mean(name: str, values: Sequence[Any]) -> float:
    return sum(_number("log", name, value) for value in values) / len(values)


def _number(where: str, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        advice = "Give numbers, or tensors of one element."
        raise ConfigError(f"{where}: {name!r} is no number: {line(repr(value), 100)}", advice) from None


def _count(examples: Any) -> int:
    """Return a number of examples, of any library's type, as an int."""
    try:
        count = int(examples)
        right = count >= 0 and count == float(examples)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        right = False
    if not right:
        shown = line(repr(examples), 100)
        advice = (
            "Give how many the batch has, as a whole number: len(labels).  Of a dict len() is the number of its keys."
        )
        raise ConfigError(f"step: examples = {shown} is no number of examples", advice)
    return count


def _scores(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        advice = 'Return {"accuracy": ...}, {"loss": ...} or both, and more by names of your own.'
        raise ConfigError(f"evaluate: the function returned {type(found).__name__}, not numbers by name", advice)
    return {str(name): _number("evaluate", str(name), value) for name, value in found.items()}
