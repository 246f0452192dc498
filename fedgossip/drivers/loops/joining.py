"""`fedgossip.join`: makes a user's training loop a peer of a run.

If several processes train a loop's model (DDP, `fully_shard`), rank 0 has the host and acts for all; all ranks call the
same functions:

    rank 0                                   the others
    step(), with all of its exchanges        step(): execute commands until GO
      send READ;  read the model             take part in gathering its parts
      send WRITE, the vector;  write it      write it
      send TERMS, ...;  use them             use them
      send MEASURE;  measure                 measure
      send GO, round, done, failed           go on, or raise

So the ranks hold the same weights after every exchange.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from fedgossip.base.errors import ConfigError, FedgossipError, NetworkError
from fedgossip.base.untrusted_text import line
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.model_fingerprint import Likeness
from fedgossip.drivers.loops import description
from fedgossip.drivers.loops.asked import AnsweringLoop
from fedgossip.drivers.loops.description import Described, Wished, experiment_of
from fedgossip.drivers.loops.loop_handle import LEAVE_SECONDS, JoinedLoop, LoopSeat
from fedgossip.drivers.loops.seats import (
    LOOP,
    InvitedFile,
    LoopSeating,
    SeatFile,
    check_launched,
    hold,
    invited,
    is_there,
    read_seat,
    seating_of,
    stopped_by_launcher,
)
from fedgossip.drivers.loops.task import LoopTask, Meeting, Released, without_first
from fedgossip.experiment import Experiment, load_experiment
from fedgossip.experiment.sections import GossipExperiment
from fedgossip.learning.one_model.flat import BOTH, LORA, PRODUCT, STACK
from fedgossip.learning.own_loop import adapters
from fedgossip.learning.own_loop.parameters import Exchanged, optimizers_of
from fedgossip.learning.own_loop.terms import (
    GradientTerms,
    RankedExchange,
    RankedTerms,
    RankLink,
    RankOrder,
    check_supported,
    is_first,
    is_ranked,
    obey,
)
from fedgossip.net.faulty import Faults, RunClock
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.approvals.site_approvals import SiteApprovals
from fedgossip.plans.compose import DataShares, Plan
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.runs.collect import final_vector
from fedgossip.runs.peer_files import PeerEnded, empty_folder, failed, try_to_report
from fedgossip.runs.run_directory import new_path

NO_RUN = "Start it with: fedgossip launch -n 1 {script}  (alone; -n 4: four that learn together)"
IN_NOTEBOOK = "In a notebook: fedgossip.simulate_loop(function, n=4) calls a function with the loop once per peer"
IN_SCRIPT = "Or write join(..., alone=True) for a run of one, or name experiment=, node= and endpoints=."


class LoopPlace(Protocol):
    """The source of a loop's run: a launcher, a simulation, or a file named by the script."""

    @property
    def experiment(self) -> Experiment | None:
        """Return the run's experiment; None: that of a single loop."""

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop: ...


place: ContextVar[LoopPlace | None] = ContextVar("place", default=None)
"""Place of a simulation's loop: each loop has a thread, and so a separate context."""

_here: dict[str, JoinedLoop] = {}


def join(
    model: Any,
    optimizer: Any,
    experiment: Path | str | None = None,
    *,
    node: int | None = None,
    endpoints: Path | str | None = None,
    key: Path | str = run_format.PEER_KEY,
    out: Path | str | None = None,
    exchange: str | Sequence[str] = (),
    name: str = "",
    alone: bool = False,
) -> JoinedLoop:
    """Take part in a run with `model`, which `optimizer` (or several, in a list) trains in the caller's own loop.

    Run and partners: as given by `fedgossip launch`; or `experiment`, a file with [topology] or [coordinator] and
    train.local_steps, `node` in it, and `endpoints` and `key` as for `fedgossip peer`, with `out` for its folder.
    `exchange`: patterns of exchanged parameters, by default all with requires_grad; "lora" keeps lora_A and exchanges
    lora_B; "lora:both", "lora:product", "lora:stack": docs/use/own-loop.md.  `name`: distinguishes several joins of one
    process.
    `alone`: without launcher or invite, make a run of one in `out` or a new folder of runs/.

    Returns when the run begins.  Raises ConfigError, and the errors of a failed start.
    """
    with _reported_to_launcher():
        optimizers = optimizers_of(model, optimizer)
        only = [one for one in ([exchange] if isinstance(exchange, str) else exchange) if one]
        _check_named(experiment, node=node, endpoints=endpoints, alone=alone)
        named = _NamedRun(Path(experiment), node, endpoints, Path(key), out) if experiment else None
        found = place.get() or named or _launched(_Alone(out) if alone else None)
        if name in _here and not _here[name].done and place.get() is None:
            advice = "One run exchanges one model: join torch.nn.ModuleList([a, b]), or give the second join a name."
            raise ConfigError("this process has joined already", advice)
        ranked = place.get() is None and is_ranked()
        if ranked:
            check_supported(model)
        exchanged = _exchanged(model, only, found.experiment, ranked=ranked)
        exchanged.check_optimizers(optimizers)
    joined = _with_ranks(found, exchanged, optimizers) if ranked else found.join(exchanged, optimizers)
    if alone:
        print(f"fedgossip: {_size_line(joined.n)}", file=sys.stderr, flush=True)
    if place.get() is None:
        _here[name] = joined
        if isinstance(joined, JoinedLoop):  # nor one that follows another
            atexit.register(_leave_at_exit, joined)
    return joined


def _check_named(experiment: Path | str | None, *, alone: bool, **of_file: object) -> None:
    if experiment is not None and alone:
        raise ConfigError("join: an experiment and alone=True", "A run of one has no file: leave one of them out.")
    if experiment is None and (given := [name for name, value in of_file.items() if value is not None]):
        raise ConfigError(f"join: {given[0]} without an experiment", "Name its file too, or leave it out.")


@contextlib.contextmanager
def _reported_to_launcher() -> Iterator[None]:
    """Report why a loop cannot join: its launcher repeats the advice, and ends with the exit code."""
    try:
        yield
    except FedgossipError as error:
        if (seat := os.environ.get(LOOP)) and place.get() is None and not _here:
            try_to_report(Path(seat).parent, failed(error))
        raise


def _exchanged(model: Any, only: Sequence[str], experiment: Experiment | None, *, ranked: bool) -> Exchanged:
    buffers = experiment.train.buffers if experiment else "average"
    named, patterns = [one for one in only if one in LORA], [one for one in only if one not in LORA]
    if unknown := [one for one in patterns if one.startswith("lora:")]:
        text = f"exchange = {unknown[0]!r} is no form of exchange for adapters"
        advice = f"There are {', '.join(LORA)}; {PRODUCT} averages adapters of unlike ranks too."
        raise ConfigError(text, advice)
    if not named and experiment and experiment.task.exchange:
        named = [experiment.task.exchange]
    if len({LORA[one] for one in named}) > 1:
        text = f"exchange: {' and '.join(named)}: one form of adapters at a time"
        raise ConfigError(text, f"Choose {named[0]!r} alone.")
    kind: type[Exchanged] = RankedExchange if ranked and is_first() else Exchanged
    if named:
        form = LORA[named[0]]
        if ranked and form != BOTH:
            text = f"exchange = {form!r}: several processes train this model, whose wrapper expects all its gradients"
            raise ConfigError(text, "Freeze each lora_A before you wrap the model, and leave exchange out.")
        adapters.prepare(model, form)
        kind = {PRODUCT: adapters.AdapterProducts, STACK: adapters.MergedProducts}.get(form, kind)
    return kind(model, patterns, buffers)


def _size_line(n: int) -> str:
    if n > 1:
        return f"this loop learns with {n - 1} others"
    if _is_notebook():
        return f"this loop learns with 0 others.  {IN_NOTEBOOK}"
    return f"this loop learns with 0 others; four together: fedgossip launch -n 4 {_script()}"


def _with_ranks(found: LoopPlace, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
    """Join with rank 0, and let the other ranks follow it."""
    if not isinstance(exchanged, RankedExchange):
        return cast(JoinedLoop, FollowingLoop(exchanged, optimizers))
    joined = None
    try:
        joined = found.join(exchanged, optimizers)
    finally:
        go_on(exchanged.link, joined, failed=joined is None)
    return joined


def _leave_at_exit(joined: JoinedLoop) -> None:
    """Leave on behalf of a script that has not: ended normally, or by an error."""
    raised = getattr(sys, "last_value", None)
    if raised is None:
        joined.close_quietly()
    else:
        joined.leave(raised)


def seat_of(plan: Plan, node: int, *, blocks: bool = False, folder: Path | None = None) -> LoopSeat:
    """Return a loop's seat in a run.  `blocks`: it waits for its next order regardless of the algorithm, as in a
    simulation.
    """
    e, waiting = plan.experiment, waits(plan)
    steps = e.train.local_steps or 1
    settle, score = plan.patience[1], e.score.name
    weighed = (plan.weighs_examples, plan.most_examples) if isinstance(plan, FederationPlan) else (False, None)
    blocks = waiting or blocks
    return LoopSeat(node, plan.learners, steps, waiting, blocks, e.eval.every, settle, folder, score, *weighed)


def waits(plan: Plan) -> bool:
    """Return whether a loop waits at an exchange until its round is mixed."""
    e = plan.experiment
    return not isinstance(e, GossipExperiment) or e.algorithm.mode == "sync"


def likeness_of(plan: Plan, exchanged: Exchanged, first: Any) -> Likeness:
    """Return the properties that the models of all loops must share; with a coordinator not the first weights, which it
    sends.
    """
    like = Likeness(frozen=exchanged.frozen_projections(), probe=exchanged.first_projections(first))
    return like if plan.roles.alike else without_first(like)


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules


def _script() -> str:
    return line(shlex.quote(sys.argv[0] or "train.py"))


def _launched(otherwise: LoopPlace | None) -> LoopPlace:
    if (seat := invited()) is not None:
        return _Invited(seat)
    path = os.environ.get(LOOP)
    if not path and otherwise:
        return otherwise
    if not path:
        way = IN_NOTEBOOK if _is_notebook() else NO_RUN.format(script=_script())
        raise ConfigError("join: no run to take part in", f"{way}.  {IN_SCRIPT}")
    return _Launched(read_seat(Path(path)))


@dataclass(frozen=True)
class _Launched:
    """A seat made by `fedgossip launch`."""

    seat_file: SeatFile

    @property
    def experiment(self) -> Experiment:
        return load_experiment(Path(self.seat_file.experiment))

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
        from fedgossip.drivers.kept_keys import load_identity
        from fedgossip.plans.compose import faults_of
        from fedgossip.runs.checkpoints import incarnation_of

        seat_file, folder = self.seat_file, Path(self.seat_file.folder)
        check_launched(seat_file)
        hold(folder)
        last = incarnation_of(folder)
        overrides = seat_file.restart_overrides if last > seat_file.before else ()
        plan = compose.plan(load_experiment(Path(seat_file.experiment), overrides))
        faults = Faults(faults_of(plan), seat_file.node, RunClock(Path(seat_file.began)))
        options = {
            "identity": load_identity(folder),
            "bind": seat_file.bind,
            "endpoints": Path(seat_file.endpoints),
            "child": True,
            "faults": faults,
            "checkpoint_seconds": seat_file.checkpoint_seconds,
            "resume": last >= 0,
        }
        seat = LoopSeating(plan, seat_file.node, folder, options, Path(seat_file.asked), seat_file.launcher)
        return seated(seat, exchanged, optimizers)[0]


@dataclass(frozen=True)
class _Invited:
    """A seat obtained by an invite."""

    seat_file: InvitedFile

    @property
    def experiment(self) -> Experiment:
        return load_experiment(Path(self.seat_file.experiment))

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
        return seated(seating_of(self.seat_file), exchanged, optimizers)[0]


@dataclass(frozen=True)
class _NamedRun:
    """A run over several machines, named by the script."""

    file: Path
    node: int | None
    endpoints: Path | str | None
    key: Path
    out: Path | str | None

    @property
    def experiment(self) -> Experiment:
        return load_experiment(self.file, ["task.kind=loop"])

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
        from fedgossip.net.endpoints import load_endpoints
        from fedgossip.runs.checkpoints import incarnation_of

        plan = compose.plan(load_experiment(self.file, ["task.kind=loop"]))
        if self.node is None or self.endpoints is None:
            advice = "Name node=, which of the peers this is, and endpoints=, the file with all addresses and keys."
            raise ConfigError(f"join: {self.file} does not name this peer", advice)
        if not 0 <= self.node < plan.learners:
            raise ConfigError(f"there is no loop {self.node}", f"The run has loops 0 to {plan.learners - 1}.")
        known = load_endpoints(Path(self.endpoints), plan.n, plan.roles.listens)
        folder = Path(self.out) if self.out else new_path(plan, f"peer{self.node}", Path("runs"))
        again = folder.is_dir() and incarnation_of(folder) >= 0
        identity = Identity.load(self.key)
        if SiteApprovals(self.key, identity, time.time_ns).exists:  # as for every command that sends a site's numbers
            text = f"{self.key} has approved plans, and a training loop of one's own is in no plan"
            raise ConfigError(text, "Name a key that has approved none:  join(..., key=...).")
        options = {
            "identity": identity,
            "bind": known[self.node].address,
            "endpoints": known,
            "resume": again,
        }
        folder = folder if again else empty_folder(folder)
        return seated(LoopSeating(plan, self.node, folder, options), exchanged, optimizers)[0]


@dataclass(frozen=True)
class _Alone:
    """A run of one participant, without a launcher."""

    out: Path | str | None
    experiment = None

    def join(self, exchanged: Exchanged, optimizers: Sequence[Any]) -> JoinedLoop:
        from fedgossip.runs.checkpoints import incarnation_of

        name = Path(sys.argv[0]).stem or "loop"
        plan = compose.plan(load_experiment(experiment_of(Wished(1, name=name))))
        folder = Path(self.out) if self.out else new_path(plan, "alone", Path("runs"))
        again = folder.is_dir() and incarnation_of(folder) >= 0
        options = {"identity": Identity.new(), "bind": "tcp://127.0.0.1:*", "endpoints": {}, "resume": again}
        folder = folder if again else empty_folder(folder)
        return seated(LoopSeating(plan, 0, folder, options), exchanged, optimizers)[0]


def described(plan: Plan, exchanged: Exchanged, where: str) -> Described:
    """Return the description of a loop's model before its run.  Raises TrainingError for non-finite weights."""
    first = exchanged.read()
    exchanged.check_finite(first, f"{where}, before the first round")
    like = likeness_of(plan, exchanged, first)
    return Described(description.model_of(exchanged.layout, like), first)


def seated(seat: LoopSeating, exchanged: Exchanged, optimizers: Sequence[Any]) -> tuple[JoinedLoop, HostThread]:
    """Start the host in parallel to the loop, and wait until it may begin."""
    from fedgossip.drivers.peer import run_peer

    plan, node, folder, meeting = seat.plan, seat.node, seat.folder, Meeting()
    model_described = described(plan, exchanged, f"node {node}")
    like = description.describe(folder, model_described.model, model_described.first).likeness
    task = LoopTask({node: meeting}, {node: model_described.first}, exchanged.segments, exchanged.layout.schema, like)

    def run(stop: threading.Event) -> PeerEnded:
        shares = DataShares("the loop's own")
        return run_peer(plan, node, folder, learning=(task, shares), asked_to_stop=stop, **seat.options)

    host = HostThread(run, task, node, folder, seat.asked, seat.launcher)
    place_of = seat_of(plan, node, folder=folder)
    hand = SpeakingLoop if isinstance(exchanged, RankedExchange) else JoinedLoop
    return hand(exchanged, optimizers, place_of, meeting, host), host


# A loop's peer in this process: the host runs in one thread, the user's loop trains in its own.


Run = Callable[[threading.Event], PeerEnded]
"""Runs the peer to its end, or until the event is set.  Raises FedgossipError."""


class HostThread:
    """Runs a peer in parallel to its loop; `asked`: folder of a collector's measuring requests, if one exists."""

    leave_seconds: float | None = LEAVE_SECONDS

    def __init__(
        self, run: Run, task: LoopTask, node: NodeId, folder: Path, asked: Path | None = None, launcher: int = 0
    ) -> None:
        self._run, self._task, self._node, self._folder, self._launcher = run, task, node, folder, launcher
        self._meeting = meeting = task.meetings[node]
        self._stop = threading.Event()
        self.ended: PeerEnded | None = None
        self._thread = threading.Thread(target=self._main, name=f"host-{node}", daemon=True)
        self._thread.start()
        self._answering = AnsweringLoop(asked, node, meeting, self._launched, self.stop) if asked else None

    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()

    def needs_loop(self) -> bool:
        return self._answering is not None and self._answering.needed

    def _launched(self) -> bool:
        """Whether the collector may still send requests."""
        measured = self.ended is None or self.ended.exit_code in _MEASURED
        return not self._stop.is_set() and measured and is_there(self._launcher)

    def _main(self) -> None:
        try:
            self.ended = self._run(self._stop)
            error = self.stopped(self.ended, asked=self._stop.is_set())
            released = replace(self._task.released(self._node, final_vector(self._folder)), error=error)
        except FedgossipError as error:
            released = Released(error=error)
        except BaseException as error:
            failure = NetworkError(f"the run's own thread failed: {type(error).__name__}: {error}", "Please report it.")
            failure.__cause__ = error
            released = Released(error=failure)
        self._meeting.release(released)

    @staticmethod
    def stopped(ended: PeerEnded, *, asked: bool) -> FedgossipError | None:
        """Return the error of a loop whose run was stopped from outside."""
        if ended.status != "interrupted" or asked:
            return None
        return stopped_by_launcher()


_MEASURED = (0, 7, 9)
"""Exit codes of peers that ended normally."""


class SpeakingLoop(JoinedLoop):
    """Rank 0's handle of the run: after each call, it lets the other ranks continue."""

    terms_of = RankedTerms

    def step(self, examples: int = 1) -> bool:
        """Count a step as `JoinedLoop.step`; `examples` are those of this rank, and every other rank has the same
        number.
        """
        with self._speaking():
            return super().step(examples * self._link.size)

    def evaluate(self, measure: Callable[[Any], Mapping[str, float]], every: int | None = None) -> None:
        """Set the measuring function as `JoinedLoop.evaluate`; all ranks measure together, and rank 0's result
        counts.
        """

        def together(model: Any) -> Mapping[str, float]:
            self._link.broadcast_order(RankOrder.MEASURE)
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
    """Let the other ranks continue."""
    where = (loop.node, loop.n, loop.round, int(loop.done)) if loop else (0, 0, 0, 1)
    link.broadcast_order(RankOrder.GO, *where, int(failed))


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
        """Follow rank 0's step."""
        self._check("step")
        self._follow()
        return not self.done

    def log(self, **values: Any) -> None:
        """Do nothing: rank 0 logs."""

    def evaluate(self, measure: Callable[[Any], Mapping[str, float]], every: int | None = None) -> None:  # noqa: ARG002
        """Follow rank 0's evaluate."""
        self._check("evaluate")
        self._measure = measure
        self._follow()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: rank 0 saves."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: rank 0 loads."""

    def close(self) -> None:
        """Follow rank 0's close."""
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
        """Execute rank 0's commands until GO."""
        while True:
            order, numbers = self._link.receive_order()
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
            raise NetworkError("rank 0 of this loop has failed", "Its own log has the reason.")
