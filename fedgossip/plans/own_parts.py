"""The user's own parts, "module:function" or "module:Class" in place of a name: made, and tested before a run.

A part is made twice and tested on the same small case; then it is made again for the run.  It is refused, with its
name, if it is a lambda, lacks a member, raises, changes its arguments, returns another shape, or gives a different
second result.  In a run its errors name it (`Guarded`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Codec, CodecTurn, Payload, VectorLayout
from fedgossip.algorithms.codecs.names import make_codec
from fedgossip.algorithms.federated.base import Federated, Work, effective_steps
from fedgossip.algorithms.gossip.base import GossipAlgorithm, Step
from fedgossip.algorithms.robust.attacks import Attack, ObservedModels, attack_of
from fedgossip.algorithms.robust.robust_mixing import Combination, combination
from fedgossip.algorithms.sampling import Draw, Sampling
from fedgossip.base.errors import ConfigError, TrainingError
from fedgossip.base.limits import CalledWith, check_options
from fedgossip.base.vectors import Vector, frozen, linear
from fedgossip.core.metrics import Evaluate
from fedgossip.core.task import METHODS, Job, LocalTask, Update, checked_task
from fedgossip.data.custom import call_part, function, is_function
from fedgossip.data.objectives import is_of_model, score_of
from fedgossip.experiment import Experiment
from fedgossip.learning.settings import schedule_of

SEE = "See examples/own_parts.py."
STEADY = "Let it depend on its arguments alone; draw from a seed that it is given."
SIZE = 6
"""Elements of the small case."""
LOOKED_AT = 3
"""Rounds of the small case."""

Trial = Callable[[Any], Iterable[npt.NDArray[Any]]]
"""Test of a part: returns its arrays for the small case.  Raises ConfigError for another shape."""


@dataclass(frozen=True)
class Guarded:
    """Wraps a user's own part, so that errors of its methods name it."""

    text: str
    part: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle request these before `part` exists
            raise AttributeError(name)
        found = getattr(self.part, name)
        if not inspect.isroutine(found):
            return found
        return lambda *arguments, **named: call_part(f"{self.text}: {name}", found, *arguments, **named)


def make_part(
    key: str,
    text: str,
    options: Mapping[str, Any],
    members: Sequence[str],
    trial: Trial,
    guarded: Callable[[str, Any], Any] | None = None,
    **ours: object,
) -> Any:
    """Return the part of `text`, the value of `key`, made with its options and those of `ours` that it accepts;
    `guarded` names it in errors.

    Raises ConfigError for the faults listed in the module's docstring.
    """
    make, where, guarded = function(text), f"{key} = {text!r}", guarded or _guarded
    check_options(where, make, options, ours)
    taken = inspect.signature(make).parameters
    given = {**options, **{name: value for name, value in ours.items() if name in taken}}
    looks = []
    try:
        for _ in range(2):  # made twice: a hidden state shows as a difference
            part = call_part(text, make, **given)
            if missing := [name for name in members if not hasattr(part, name)]:
                raise ConfigError(f"{where} gave {_kind(part)} without {missing[0]!r}", SEE)
            looks.append(_look(trial(guarded(text, part))))
        part = guarded(text, call_part(text, make, **given))  # a third one: the others have a state by now
    except TrainingError as error:
        raise ConfigError(f"{where} on a small case: {error}", error.advice) from error
    if looks[0] != looks[1]:
        text = f"{where} gave two results for the same arguments"
        raise ConfigError(text, STEADY)
    return part


def _guarded(text: str, part: Any) -> Any:
    """Return the part with its own classes guarded, not those of fedgossip, which plans recognise by type."""
    if isinstance(part, Federated):
        rules = {name: _guarded(text, getattr(part, name)) for name in ("clients", "aggregation", "server")}
        return replace(part, **rules)
    return part if type(part).__module__.startswith("fedgossip.") else Guarded(text, part)


def _look(arrays: Iterable[npt.NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for one in arrays:
        found.update(f"{one.dtype} {one.shape}".encode() + np.ascontiguousarray(one).tobytes())
    return found.hexdigest()


def _kind(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"


def _vector(number: int) -> Vector:
    """Return a read-only vector of the small case."""
    return frozen(np.sin(np.arange(SIZE) + SIZE * number).astype(np.float32))


def _like(what: str, found: Any, like: Vector) -> Vector:
    if isinstance(found, np.ndarray) and (found.dtype, found.shape) == (like.dtype, like.shape):
        return found
    other = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else _kind(found)
    raise ConfigError(f"{what} returned {other}; expected {like.dtype} {like.shape}", SEE)


# --- the rules of a coordinator ---------------------------------------------------------------------------------------


def make_federated(text: str, options: Mapping[str, Any], clients: int) -> Federated[Any]:
    """Return the three rules made by "module:function", some of them the user's own.  Raises ConfigError."""
    key = "coordinator.algorithm"

    def trial(found: Any) -> Iterable[Vector]:
        if not isinstance(found, Federated):
            raise ConfigError(f"{key} = {text!r} gave {_kind(found)}; expected Federated(clients, ...)", SEE)
        rule, server, x = found.clients, found.server, _vector(0)
        state, count = server.start(x), rule.vectors
        for round in range(LOOKED_AT):
            if not is_dataclass(state):
                raise ConfigError(f"{text}: a server's state is a frozen dataclass, not {_kind(state)}", SEE)
            received = _several(f"{text}: broadcast", server.broadcast(state), count, x)
            total = found.aggregation.accumulator(count, SIZE, x.dtype)
            for node in range(max(LOOKED_AT, found.aggregation.least)):
                rule.terms(received, ())
                work = Work(_vector(node + round + 1), node + 1, node + 1, 0.1, node, round)
                up, _ = rule.upload(received, (), work)
                up = _several(f"{text}: upload", up, count, x)
                if not (weight := rule.weight(work.examples)) > 0:
                    raise ConfigError(f"{text}: weight({work.examples}) is {weight!r}; expected one above 0", SEE)
                yield from up
                total.add(node, weight, up, effective_steps(rule, work.steps))
            aggregate = total.aggregate()
            _several(f"{text}: aggregate", aggregate.vectors, count, x)
            state = server.step(state, replace(aggregate, round=round))
            yield from _several(f"{text}: broadcast", server.broadcast(state), count, x)

    made: Federated[Any] = make_part(key, text, options, (), trial, clients=clients)
    return made


def _several(what: str, found: Any, count: int, like: Vector) -> tuple[Vector, ...]:
    if not (isinstance(found, tuple) and len(found) == count):
        many = len(found) if isinstance(found, tuple | list) else _kind(found)
        raise ConfigError(f"{what} returned {many} vectors; expected a tuple of {count}", SEE)
    return tuple(_like(what, one, like) for one in found)


@dataclass(frozen=True)
class OwnSampling:
    """A user's own sampling; each draw is checked."""

    text: str
    part: Any

    def draw(self, round: int, here: Any) -> Draw:
        """Return the cohort of a round.  Raises TrainingError for a cohort with clients that are not in `here`."""
        found = call_part(f"{self.text}: draw", self.part.draw, round, here)
        right = isinstance(found, Draw) and list(found.invited) == sorted({*found.invited} & {*here})
        if not right or not 0 <= found.wanted <= len(found.invited):
            advice = "Return fedgossip.algorithms.sampling.Draw(invited, wanted): ids of `here`, ascending, each once."
            raise TrainingError(f"{self.text}: draw of round {round} returned {found!r}"[:200], advice)
        assert isinstance(found, Draw)
        return found


def make_sampling(text: str, seed: int, clients: int, count: int) -> Sampling:
    """Return the sampling of "module:Class", made with (seed, clients, count).  Raises ConfigError."""

    def trial(part: Any) -> Iterable[npt.NDArray[np.int64]]:
        for round in range(LOOKED_AT):
            draw = OwnSampling(text, part).draw(round, range(clients))
            yield np.array([*draw.invited, draw.wanted], np.int64)

    ours: dict[str, Any] = {"seed": seed, "clients": clients, "count": count}
    return OwnSampling(text, make_part("coordinator.sampling", text, {}, ("draw",), trial, **ours))


# --- rules of peers ---------------------------------------------------------------------------------------------------


def attack_named(text: str, options: Mapping[str, Any]) -> Attack:
    """Return the built-in attack of this name, or the user's own.  Raises ConfigError."""
    if not is_function(text):
        return attack_of(text, options)

    def trial(attack: Any) -> Iterable[Vector]:
        good = MappingProxyType({1: _vector(1), 2: _vector(2)})
        row = MappingProxyType({0: 0.25, 1: 0.5, 2: 0.25})
        seen = ObservedModels(0, 3, 7, _vector(0), good, lambda _: row, frozenset({0}))
        for to in (1, 2) if attack.aimed else (0,):
            yield _like(f"{text}: vector", attack.vector(seen, to), seen.own)

    made: Attack = make_part("adversary.attack", text, options, ("aimed", "vector"), trial)
    return made


def check_algorithm(text: str, make: Callable[[], GossipAlgorithm[Any]]) -> None:
    """Raise ConfigError for a user's gossip algorithm that gives two results; what it raises is left to the run."""

    def models() -> Iterable[Vector]:
        algorithm = make()
        states = [algorithm.start(_vector(node)) for node in range(2)]
        for round in range(LOOKED_AT):
            step, sent = Step(round, 0.1, 1), []
            for node, state in enumerate(states):
                states[node], outgoing = algorithm.trained(state, _vector(node + round + 1), step)
                sent.append(outgoing)
            mixed = tuple(linear((0.5, one), (0.5, other)) for one, other in zip(*sent, strict=True))
            states = [algorithm.mixed(state, mixed) for state in states]
            yield from (algorithm.model(state) for state in states)

    try:
        first, second = (_look(models()) for _ in range(2))
    except TrainingError:
        return
    if first != second:
        raise ConfigError(f"algorithm.name = {text!r} gave two results for the same arguments", STEADY)


def combination_named(text: str, options: Mapping[str, Any]) -> Combination:
    """Return the built-in combination rule of this name, or the user's own.  Raises ConfigError."""
    if not is_function(text):
        return combination(text, options)

    def trial(rule: Any) -> Iterable[Vector]:
        if rule.linear:
            advice = "Set linear = False; weights of your own are topology.weights."
            raise ConfigError(f"algorithm.combine = {text!r} claims to be the weighted sum", advice)
        row = MappingProxyType({0: 0.5, 1: 0.25, 4: 0.25})
        models = MappingProxyType({0: _vector(0), 1: _vector(1), 4: _vector(2)})
        yield _like(f"{text}: combine", rule.combine(1, row, models), models[1])

    made: Combination = make_part("algorithm.combine", text, options, ("linear", "tolerates", "combine"), trial)
    return made


# --- codecs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnCodec(Codec):
    """A user's own codec; each payload is checked.  A secure sum does not support it (`LinearCodec`)."""

    part: Any = field(compare=False)

    def contraction(self, layout: VectorLayout) -> float:
        return float(self.part.contraction(layout))

    def size(self, layout: VectorLayout, round: int) -> int:
        return int(self.part.size(layout, round))

    def encode(self, vector: Vector, layout: VectorLayout, turn: CodecTurn) -> Payload:
        found: Payload = self.part.encode(vector, layout, turn)
        size = self.size(layout, turn.round)
        if not (isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.shape == (size,)):
            raise TrainingError(f"{self.name}: encode returned {_kind(found)}, not uint8 ({size},)", SEE)
        return found

    def decoded(self, payload: Payload, layout: VectorLayout, turn: CodecTurn) -> Vector:
        found: Vector = self.part.decoded(payload, layout, turn)
        if not (isinstance(found, np.ndarray) and (found.dtype, found.shape) == (layout.dtype, (layout.length,))):
            text = f"{self.name}: decoded returned {_kind(found)}, not {layout.dtype} ({layout.length},)"
            raise TrainingError(text, SEE)
        return found


def codec_named(text: str, key: str = "coordinator.codec") -> Codec:
    """Return the built-in codec of this name, or the user's own.  Raises ConfigError."""
    if not is_function(text):
        return make_codec(text)

    def trial(part: Any) -> Iterable[npt.NDArray[Any]]:
        vector, codec = _vector(0), OwnCodec(text, part)
        layout = VectorLayout.of(vector)
        for round in range(LOOKED_AT):
            turn = CodecTurn(7, 2, round)
            payload = codec.encode(vector, layout, turn)
            yield payload
            yield codec.decode(payload, layout, turn)
        if not 0 <= codec.contraction(layout) <= 1:
            raise ConfigError(f"{text}: contraction is {codec.contraction(layout)}; expected one from 0 to 1", SEE)

    return OwnCodec(text, make_part(key, text, {}, ("contraction", "size", "encode", "decoded"), trial))


# --- tasks, and metrics of models -------------------------------------------------------------------------------------

METRICS_MOST = 24
"""Maximum number of metrics that a user's own task returns."""
MODEL_METRIC = CalledWith(("model", "task"), "Write def metric(model, task): return float(abs(model).max())")
"""Signature of a metric with of=model: the frozen vector [d], and the task of all participants."""


class GuardedTask(Guarded):
    """A user's task with checked results; a subclass has the members that identify its abilities."""

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return self._updates("train", jobs)

    def _updates(self, name: str, jobs: Sequence[Job]) -> Sequence[Update]:
        found = call_part(f"{self.text}: {name}", getattr(self.part, name), jobs)
        if not isinstance(found, list | tuple) or len(found) != len(jobs):
            raise TrainingError(f"{self.text}: {name} returned no list of {len(jobs)} updates", SEE)
        for job, update in zip(jobs, found, strict=True):
            if not isinstance(update, Update):
                raise TrainingError(f"{self.text}: {name} returned {_kind(update)}; expected fedgossip.Update", SEE)
            if update.difference is None:
                continue
            _like(f"{self.text}: {name}", update.difference, job.vector)
            if not np.isfinite(update.difference).all():
                text = f"node {job.node}, round {job.round}: {self.text}: {name} returned numbers that are not finite"
                raise TrainingError(text, "Take smaller steps.")
        return found

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        found = call_part(f"{self.text}: evaluate", self.part.evaluate, vectors)
        if not isinstance(found, list | tuple) or len(found) != len(vectors):
            raise TrainingError(f"{self.text}: evaluate returned no list of {len(vectors)} mappings", SEE)
        return [self._metrics(one) for one in found]

    def _metrics(self, found: object) -> dict[str, float]:
        if not isinstance(found, Mapping) or len(found) > METRICS_MOST:
            raise TrainingError(f"{self.text}: evaluate gave no mapping of at most {METRICS_MOST} metrics", SEE)
        return {_metric_name(self.text, name): _number(f"{self.text}: {name}", one) for name, one in found.items()}


def make_task(experiment: Experiment, n: int) -> LocalTask:
    """Return the task of task.kind = "module:Class" for `n` learners.  Raises ConfigError."""
    text = experiment.task.kind

    def guarded(text: str, task: Any) -> Any:
        def member(name: str) -> Any:
            if name == "gradients":
                return lambda self, jobs: self._updates(name, jobs)
            if inspect.isroutine(getattr(task, name)):
                return lambda self, *given, **named: Guarded.__getattr__(self, name)(*given, **named)
            return property(lambda self: getattr(self.part, name))

        own = [name for name in dir(task) if not name.startswith("_") and not hasattr(GuardedTask, name)]
        return type(type(task).__name__, (GuardedTask,), {name: member(name) for name in own})(text, task)

    def trial(task: Any) -> Iterable[npt.NDArray[Any]]:
        checked_task(task)
        nodes = sorted({0, n - 1})
        first = [task.initial(node) for node in nodes]
        for vector in first:
            yield _like(f"{text}: initial", vector, np.empty(task.length, task.dtype))
        given = [frozen(vector.copy()) for vector in first]
        for update in task.train([Job(node, 0, vector) for node, vector in zip(nodes, given, strict=True)]):
            yield from () if update.difference is None else (update.difference,)
        for metrics in task.evaluate(given):
            yield np.array([value for _, value in sorted(metrics.items())])

    ours: dict[str, Any] = {"n": n, "seed": experiment.seed, "rounds": experiment.rounds}
    made: LocalTask = make_part("task.kind", text, experiment.task.options, METHODS, trial, guarded, **ours)
    return made


def measured_by(experiment: Experiment, task: LocalTask) -> Evaluate:
    """Return the function that measures models: the task's, with the functions of (model, task) in task.metrics.

    Raises ConfigError for a function that raises, or returns two numbers, on the first model.
    """
    named = [metric.partition("?")[0] for metric in experiment.task.metrics if is_of_model(metric)]
    functions = {score_of(text).name: (text, function(text, None, MODEL_METRIC)) for text in named}

    def values(vector: Vector) -> dict[str, float]:
        return {
            name: _number(text, call_part(text, measure, vector, task)) for name, (text, measure) in functions.items()
        }

    first = frozen(task.initial(0).copy())
    try:
        one, other = values(first), values(first)
    except TrainingError as error:
        raise ConfigError(f"task.metrics: {error}", error.advice) from error
    if unlike := [name for name in one if repr(one[name]) != repr(other[name])]:
        text = f"task.metrics: {functions[unlike[0]][0]} returned two numbers for one model"
        raise ConfigError(text, "Let it depend on its arguments alone.")

    def evaluate(vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        found = task.evaluate(vectors)
        return [{**metrics, **values(vector)} for metrics, vector in zip(found, vectors, strict=True)]

    return evaluate if functions else task.evaluate


def _metric_name(text: str, name: object) -> str:
    if isinstance(name, str) and 0 < len(name) <= 40 and name.isprintable():
        return name
    raise TrainingError(f"{text}: evaluate named a metric {name!r}"[:200], "Write short names.")


def _number(what: str, found: Any) -> float:
    if isinstance(found, np.ndarray) and found.size != 1:
        raise TrainingError(f"{what} is {found.dtype} {found.shape}; expected a number", SEE)
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError):
        raise TrainingError(f"{what} is {_kind(found)}; expected a number", SEE) from None


# --- partitions and rates ---------------------------------------------------------------------------------------------


def make_partition(
    text: str, labels: npt.NDArray[np.int64], n: int, seed: int, options: Mapping[str, Any]
) -> list[npt.NDArray[np.int64]]:
    """Return the result of "module:function" for (labels, n, seed): n ascending, disjoint arrays of all indices.

    Raises ConfigError for other results, or two different ones.
    """
    make, where = function(text), f"data.partition.kind = {text!r}"
    check_options(where, make, options, ours=tuple(inspect.signature(make).parameters)[:3])  # labels, n, seed
    given = labels.copy()
    given.flags.writeable = False
    try:
        first, second = (call_part(text, make, given, n, seed, **options) for _ in range(2))
    except TrainingError as error:
        raise ConfigError(f"{where}: {error}", error.advice) from error
    shares = [_indices(where, one) for one in first]
    if [one.tolist() for one in shares] != [_indices(where, one).tolist() for one in second]:
        raise ConfigError(f"{where} gave two partitions for the same arguments", "Draw from the seed alone.")
    if len(shares) != n or not all(one.size for one in shares):
        text = f"{where} gave {sum(one.size > 0 for one in shares)} peers examples; expected {n}"
        raise ConfigError(text, "Return an array of indices for each peer, none empty.")
    if not np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(labels))):
        raise ConfigError(f"{where}: an example is missing, or given twice", "Give each to exactly one peer.")
    return shares


def _indices(where: str, found: Any) -> npt.NDArray[np.int64]:
    array = np.asarray(found)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"{where} gave {array.dtype} {array.shape}", "Return a list of whole indices for each peer.")
    return np.sort(array).astype(np.int64)


def check_schedule(experiment: Experiment) -> None:
    """Raise ConfigError for a user's own rate schedule that gives no rate, or two for one round."""
    text = experiment.train.schedule
    if not is_function(text):
        return
    rounds = sorted({0, experiment.rounds // 2, experiment.rounds - 1})

    def rates() -> list[float]:
        return [schedule_of(text).rate(1.0, round, experiment.rounds) for round in rounds]

    try:
        first, second = rates(), rates()
    except TrainingError as error:
        raise ConfigError(f"train.schedule: {error}", error.advice) from error
    if first != second:
        raise ConfigError(
            f"train.schedule = {text!r} gave two rates for one round", "Let it depend on (round, rounds)."
        )
