"""Users' own loops in one process and in virtual time: n threads, of which one runs at a time.

A loop runs while its training is due, up to its next exchange.  Process-wide state (random states, torch's threads,
environment; for scripts `__main__`, sys.argv, output, modules in their folder) is swapped at every switch.  So a
synchronous run has the digest of the same loops as processes.  A common output file, port or signal is the user's
concern.
"""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy.typing as npt

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError, FedgossipError, TrainingError
from fedgossip.base.untrusted_text import line, printable
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.core.records import Row
from fedgossip.drivers.loops.description import Wished, check_alike, experiment_of, model_of
from fedgossip.drivers.loops.joining import likeness_of, place, seat_of
from fedgossip.drivers.loops.loop_handle import JoinedLoop, ends_well
from fedgossip.drivers.loops.scripts import Command
from fedgossip.drivers.loops.seats import NODE, N
from fedgossip.drivers.loops.task import LoopTask, Meeting, Released
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.learning.own_loop.global_state import GlobalState
from fedgossip.learning.own_loop.parameters import Exchanged
from fedgossip.plans import compose
from fedgossip.plans.compose import Plan
from fedgossip.report.page.page import write_report
from fedgossip.runs.run_directory import Run

IN_SCRIPT = "The fault is in the script."

END_SECONDS = 60.0
"""Maximum seconds for a loop to end after its run has failed."""


def simulate_loop(
    function: Callable[[], object],
    n: int | None = None,
    experiment: Experiment | Mapping[str, Any] | Path | str | None = None,
    *,
    graph: str | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    out: Path | str | None = None,
    report: bool = False,
    watch: Callable[[Row], None] | None = None,
) -> Run:
    """Call `function` in n loops of this process, each of which takes part by `fedgossip.join`; return the result.

    `n` and `graph` (ring by default), or an `experiment` with [topology] or [coordinator]; `overrides`, `seed`, `out`,
    `report` and `watch` as in `simulate`.  A loop's id is `peer.node`, or FEDGOSSIP_NODE in the environment.  Loops
    share this process's modules and their state.

    Raises ConfigError, and TrainingError if a loop raised.  For a script: `fedgossip launch --simulate`.
    """
    if not isinstance(experiment, Experiment):
        wished = Wished(n, graph)
        content = experiment_of(wished) if experiment is None else experiment
        experiment = load_experiment(content, ["task.kind=loop", *overrides], seed=seed)
    plan = compose.plan(experiment)
    loops = [_Loop(node, function, Belongings(plan.learners, node, plan.experiment.seed)) for node in _nodes(plan)]
    return _simulated(plan, loops, Path(out) if out else None, report=report, watch=watch)


def simulate_script(
    plan: Plan,
    command: Command,
    out: Path | None,
    *,
    report: bool = True,
    watch: Callable[[Row], None] | None = None,
    shown: Sequence[NodeId] = (0,),
) -> Run:
    """Run a script as the n loops of a plan, each as `__main__` in a separate namespace."""
    loops = []
    for node in _nodes(plan):
        main = _main_of(command.script)
        words = (str(command.script), *command.arguments)
        output = None if node in shown else io.StringIO()
        things = ScriptBelongings(plan.learners, node, plan.experiment.seed, main=main, words=words, output=output)
        loops.append(_Loop(node, partial(_execute, command.script, things), things))
    try:
        run = _simulated(plan, loops, out, report=False, watch=watch)
    except FedgossipError as failure:
        _show_traceback(failure, command.script)
        raise
    if out:
        command.keep(out)
        if report:
            write_report(out)
    return run


def _show_traceback(failure: FedgossipError, script: Path) -> None:
    raised = failure.__cause__
    if raised is None or isinstance(raised, FedgossipError | SystemExit):
        return
    found = traceback.TracebackException.from_exception(raised)
    named = [frame.filename for frame in found.stack]
    if str(script) in named:
        found.stack = traceback.StackSummary.from_list(found.stack[named.index(str(script)) :])
    elif isinstance(raised, SyntaxError):  # in the script: its line is part of the error
        found.stack = traceback.StackSummary()
    sys.stdout.write(printable("".join(found.format(chain=False)), keep="\n\t"))
    sys.stdout.flush()


def _nodes(plan: Plan) -> range:
    return range(plan.learners)


def _main_of(script: Path) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = str(script)
    return main


def _execute(script: Path, things: ScriptBelongings) -> None:
    exec(compile(outside_files.read_bytes(outside_files.resolve(script)), str(script), "exec"), things.main.__dict__)


@dataclass
class Belongings:
    """Process-wide state of one loop (RNG, environment, threads): set before the loop runs, and saved after it."""

    n: int
    node: NodeId
    seed: int
    state: GlobalState | None = None
    _before: GlobalState | None = None

    def put(self) -> None:
        self._before = GlobalState.now()
        (self.state or GlobalState.make_initial(self.seed, self.node)).put()
        os.environ.update({NODE: str(self.node), N: str(self.n)})

    def take(self) -> None:
        assert self._before is not None
        self.state = GlobalState.now()
        self._before.put()
        for name in (NODE, N):
            os.environ.pop(name, None)

    def anew(self) -> None:
        """Restore the state before the first line of the loop."""
        self.state = None


@dataclass
class ScriptBelongings(Belongings):
    """State of a script: its `__main__`, arguments, output, and its own copies of the modules in its folder."""

    main: ModuleType = field(default_factory=lambda: ModuleType("__main__"))
    words: tuple[str, ...] = ()
    output: TextIO | None = None
    modules: dict[str, ModuleType] = field(default_factory=dict)
    _ours: tuple[Any, ...] = ()

    @cached_property
    def folder(self) -> str:
        return str(Path(self.words[0]).resolve().parent)

    def put(self) -> None:
        super().put()
        self._ours = sys.modules["__main__"], sys.argv, sys.stdout, list(sys.path)
        sys.modules["__main__"], sys.argv = self.main, list(self.words)
        sys.modules.update(self.modules)
        sys.path.insert(0, self.folder)
        sys.stdout = self.output or sys.stdout

    def take(self) -> None:
        beside = {name: module for name, module in sys.modules.items() if self._is_beside(module)}
        self.modules = beside
        for name in beside:
            del sys.modules[name]
        sys.modules["__main__"], sys.argv, sys.stdout, sys.path[:] = self._ours
        super().take()

    def anew(self) -> None:
        super().anew()
        self.modules = {}
        self.main = _main_of(Path(self.words[0]))

    def _is_beside(self, module: ModuleType) -> bool:
        path = getattr(module, "__file__", None)
        inside = isinstance(path, str) and path.startswith(self.folder + os.sep) and "site-packages" not in path
        return inside and module is not self.main and not module.__name__.startswith("fedgossip")


@dataclass(frozen=True, eq=False)
class _Arrived:
    """A loop has called join()."""

    first: Vector
    exchanged: Exchanged
    like: Likeness


class _Gone(BaseException):
    """The simulated process of this loop was killed."""


class _Loop:
    """One thread, which runs when it gets the turn."""

    def __init__(self, node: NodeId, function: Callable[[], object], things: Belongings) -> None:
        self.node, self.function, self.things = node, function, things
        self.meeting = Meeting(self.turn)
        self.joined: JoinedLoop | None = None
        self.plan: Plan | None = None
        self.news: queue.SimpleQueue[_Arrived | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"loop-{node}", daemon=True)

    def turn(self, mine: bool) -> None:
        self.things.put() if mine else self.things.take()

    # --- the driver's side ----------------------------------------------------------------------------------------

    def arrive(self, plan: Plan) -> _Arrived:
        """Run the loop up to join().  Raises the error of a loop that does not get there."""
        self.plan = plan
        self.turn(True)
        self._thread.start()
        found = self.news.get()
        self.turn(False)
        if isinstance(found, _Arrived):
            return found
        if found is None:
            advice = "Call peer = fedgossip.join(model, optimizer) before the loop."
            raise ConfigError(f"loop {self.node} ended before it joined", advice)
        if isinstance(found, FedgossipError):
            raise found
        if isinstance(found, SystemExit):
            raise TrainingError(f"loop {self.node} ended with code {found.code!r} before it joined", IN_SCRIPT)
        text = f"loop {self.node} raised {type(found).__name__} before it joined: {found}"
        raise TrainingError(text, IN_SCRIPT) from found

    def end(self, how: Released) -> BaseException | None:
        """Release the loop and let it run to its end; return its error, if any."""
        if not self._thread.is_alive():
            return None
        self.turn(True)
        self.meeting.release(how)
        try:
            return self.news.get(timeout=None if how.error is None else END_SECONDS)  # type: ignore[return-value]
        except queue.Empty:
            return None  # it caught an exception meant to end it; the thread ends with the process
        finally:
            self.turn(False)

    def anew(self) -> _Loop:
        """End the loop like a crash; return a new one with the same start."""
        self.end(Released(error=_Gone()))
        self.things.anew()
        return _Loop(self.node, self.function, self.things)

    # --- in the thread --------------------------------------------------------------------------------------------

    leave_seconds: float | None = None

    @property
    def experiment(self) -> Experiment | None:
        return self.plan.experiment if self.plan else None

    def _run(self) -> None:
        place.set(self)
        try:
            self.function()
            if self.joined:
                self.joined.close()
        except SystemExit as error:  # the script's end, like that of a process
            if self.joined:
                self.joined.close_quietly()
            self.news.put(None if ends_well(error) else error)
        except BaseException as error:
            if self.joined:
                self.joined.leave(error)
            self.news.put(error)
        else:
            self.news.put(None)

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
        if self.joined is not None:
            advice = "One run exchanges one model: join torch.nn.ModuleList([a, b])."
            raise ConfigError("this loop has joined already", advice)
        assert self.plan is not None
        first = exchanged.read()
        exchanged.check_finite(first, f"node {self.node}, before the first round")
        self.news.put(_Arrived(first, exchanged, likeness_of(self.plan, exchanged, first)))
        seat = seat_of(self.plan, self.node, blocks=True)
        self.joined = JoinedLoop(exchanged, optimizers, seat, self.meeting, self)
        return self.joined

    def alive(self) -> bool:
        return True

    def stop(self) -> None:
        """Remove the loop from its run: it is interrupted in the middle, and waits until the simulation has ended."""
        self.meeting.abandon()

    def needs_loop(self) -> bool:
        return False


class SimulatedLoops(LoopTask):
    """The task of a simulation; a loop restarts with each new incarnation of its peer."""

    def __init__(self, plan: Plan, loops: Sequence[_Loop], arrived: Sequence[_Arrived]) -> None:
        one = arrived[0]
        first = {loop.node: there.first for loop, there in zip(loops, arrived, strict=True)}
        meetings = {loop.node: loop.meeting for loop in loops}
        super().__init__(meetings, first, one.exchanged.segments, one.exchanged.layout.schema, one.like)
        self.plan, self.loops = plan, list(loops)

    def state(self, node: NodeId) -> Mapping[str, npt.NDArray[Any]]:  # noqa: ARG002
        """Return nothing: a crashed loop loses its state."""
        return {}

    def load_state(self, node: NodeId, state: Mapping[str, npt.NDArray[Any]]) -> None:  # noqa: ARG002
        loop = self.loops[node] = self.loops[node].anew()
        self.meetings = {**self.meetings, node: loop.meeting}
        self.begins_anew(node)
        loop.arrive(self.plan)


def _simulated(
    plan: Plan, loops: list[_Loop], out: Path | None, *, report: bool, watch: Callable[[Row], None] | None
) -> Run:
    if plan.experiment.task.kind != "loop":
        raise ConfigError("this experiment brings its own task", 'Set [task] kind = "loop" for loops of your own.')
    error: FedgossipError = ConfigError("the simulation has ended")
    task: SimulatedLoops | None = None
    run: Run | None = None
    try:
        arrived = [loop.arrive(plan) for loop in loops]
        check_alike([model_of(one.exchanged.layout, one.like) for one in arrived])
        task = SimulatedLoops(plan, loops, arrived)
        run = simulate_plan(plan, task=task, out=out, report=report, watch=watch)
    except FedgossipError as failure:
        error = failure
        raise
    finally:
        ended = _end(task, task.loops if task else loops, run, error)
    if ended is not None:
        node, raised = ended
        text = f"loop {node} raised {type(raised).__name__} after its run: {raised}"
        found = TrainingError(text, "The run itself is whole.")
        if isinstance(raised, SystemExit):
            found = TrainingError(f"loop {node} ended with code {raised.code!r}", "Its rounds until then count.")
        if run is not None and run.summary["status"] == "partial":
            print(f"fedgossip: {line(str(found), 1000)}", file=sys.stderr, flush=True)
        else:
            raise found from raised
    return run


def _end(
    task: SimulatedLoops | None, loops: Sequence[_Loop], run: Run | None, error: FedgossipError
) -> tuple[NodeId, BaseException] | None:
    """End every loop; return the first error after a run that was not stopped."""
    whole = run is not None and run.summary["status"] != "interrupted"
    ended = run is not None and run.summary["status"] in ("finished", "partial")
    found = None
    for loop in loops:
        released = Released(error=error)
        if task is not None and run is not None and whole:
            released = task.released(loop.node, run.vectors[loop.node])
        raised = loop.end(released)
        if ended and raised is not None and found is None:
            found = loop.node, raised
    return found
