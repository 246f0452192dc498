"""From an experiment to the parts of a run: graph, weights, forecast, task, machines.

Everything here is a function of the experiment alone, so that every peer, on whatever machine, makes the same parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fedgossip import __version__
from fedgossip.algorithms import push_sum
from fedgossip.algorithms.base import GossipAlgorithm
from fedgossip.algorithms.dsgd import DSGD
from fedgossip.algorithms.window_doubling import WindowDoubling
from fedgossip.errors import ConfigError
from fedgossip.experiment import Experiment
from fedgossip.learning.analytic import Averaging, Quadratic
from fedgossip.learning.data import Dataset, Indices
from fedgossip.machine import Checkpoint, Machine, NodeId
from fedgossip.messages import Hello
from fedgossip.protocols import async_gossip, sync_gossip
from fedgossip.protocols import push_sum as push_sum_peers
from fedgossip.protocols.async_gossip import AsyncGossip, AsyncSettings
from fedgossip.protocols.partners import rule_of
from fedgossip.protocols.push_sum import AsyncPushSum, PushSettings, PushSum
from fedgossip.protocols.sync_gossip import AGAIN_NS, AGAIN_TIMES, SyncGossip, SyncSettings
from fedgossip.task import LocalTask
from fedgossip.topology import (
    Forecast,
    Mixing,
    Schedule,
    Spectrum,
    Topology,
    forecast_of,
    resolve_schedule,
    schedule_names,
    spectrum,
    union,
)
from fedgossip.vectors import Vector

GAMMA = 0.9
"""The decay at which effective neighbours are counted in records (Vogels et al. 2022)."""

ALGORITHMS: dict[str, Callable[[int], GossipAlgorithm[Any]]] = {
    "dsgd": lambda _n: DSGD(),
    "push-sum": lambda _n: push_sum.PushSum(),
    "window-doubling": WindowDoubling,
}
"""By name, made for a number of peers."""


@dataclass(frozen=True)
class Plan:
    """What is known before anything is trained.

    `topology` has the links of all rounds of one period (where none repeats, of the first); `spectrum` is None where
    the graph changes.
    """

    experiment: Experiment
    schedule: Schedule
    topology: Topology
    spectrum: Spectrum | None
    forecast: Forecast

    @property
    def mixing(self) -> Mixing:
        """Of every round, where the graph never changes; else of the first."""
        return self.schedule.mixing(0)

    @property
    def n(self) -> int:
        return self.topology.n


@dataclass(frozen=True)
class DataShares:
    """Who has how many examples; `counts` is [n][classes], None where there are no classes."""

    source: str
    classes: int | None = None
    counts: list[list[int]] | None = None
    sizes: list[int] | None = None
    test: str = ""
    """Which examples the accuracies are of, in words."""
    digest: str = ""
    """A hash of all examples and of who has which: peers that read different files refuse each other by it.
    Where every peer has a file of its own, of the common test set with its columns and classes."""


def plan(experiment: Experiment) -> Plan:
    """Resolve the graph, its weights and the forecast.  Raises ConfigError."""
    section = experiment.topology
    weights = section.weights or own_weights(experiment)
    schedule = resolve_schedule(section.graph, section.n, weights=weights, seed=experiment.seed)
    _check_pair(experiment, schedule)
    found = spectrum(schedule) if isinstance(schedule, Mixing) else None
    return Plan(experiment, schedule, union(schedule), found, forecast_of(schedule, GAMMA, found))


def own_weights(experiment: Experiment) -> str | None:
    """The weights that the algorithm brings: push-sum weighs by the sender, where rounds bring none themselves."""
    word = experiment.topology.graph.partition(":")[0].strip().lower()
    brings = word in schedule_names() and word != "el-local"
    return "push" if experiment.algorithm.name == "push-sum" and not brings else None


def _check_pair(experiment: Experiment, schedule: Schedule) -> None:
    """Raise ConfigError where the algorithm and the graph do not go together."""
    name = experiment.algorithm.name
    if experiment.algorithm.mode == "async" and name != "push-sum":
        _check_async(schedule)
    unfit = {"push-sum": "rows", "dsgd": "columns", "window-doubling": "columns"}.get(name)
    if schedule.stochastic == unfit:
        sums = "rows" if unfit == "columns" else "columns"
        advice = 'Take other weights, or algorithm.name = "push-sum".' if unfit == "columns" else "Take other weights."
        raise ConfigError(f"{name} on {schedule.name!r}: the {sums} of its weights do not sum to one", advice)
    made_for = getattr(schedule, "algorithm", None)
    if (made_for or name) != name:
        advice = f'Set algorithm.name = "{made_for}".'
        raise ConfigError(f"the rounds of {schedule.name!r} are those of {made_for}, not of {name}", advice)
    if name == "window-doubling" and made_for != name:
        advice = 'Set topology.graph = "window-doubling".'
        raise ConfigError(f"window-doubling has its own graph, not {schedule.name!r}", advice)


def _check_async(schedule: Schedule) -> None:
    if not isinstance(schedule, Mixing):
        advice = "Name one graph; whom a peer meets when is drawn anyway: algorithm.partner."
        raise ConfigError(f"asynchronous gossip has no rounds in which {schedule.name!r} could change", advice)
    if schedule.topology.directed:
        advice = 'Use an undirected graph, or algorithm.name = "push-sum".'
        raise ConfigError(f"asynchronous gossip exchanges both ways, and {schedule.name!r} is directed", advice)


def task_of(experiment: Experiment, n: int, held: Sequence[NodeId] | None = None) -> tuple[LocalTask, DataShares]:
    """Make the task of all `n` peers.  Imports torch for learning, and only then.  Raises ConfigError.

    `held`: the peers that will train in this process; files of the others' own are not read.  Without it, all.
    """
    settings = experiment.task
    if settings.kind == "averaging":
        averaging = Averaging(n, settings.dim, dtype=settings.dtype, seed=experiment.seed)
        return averaging, DataShares("none")
    if settings.kind == "quadratic":
        quadratic = Quadratic(
            n,
            placement=settings.placement,
            eta=settings.eta,
            sigma=settings.sigma,
            dim=settings.dim,
            dtype=settings.dtype,
            seed=experiment.seed,
        )
        return quadratic, DataShares("none")
    return _learning(experiment, range(n) if held is None else held, n)


def centralised(plan: Plan) -> dict[str, float]:
    """Train one model on all peers' data with as many steps, of as many examples, as all peers took together.

    Returns "accuracy" and "loss" on the common test set, "train_loss", "steps".  Raises ConfigError where the
    experiment does not learn from data.
    """
    e = plan.experiment
    if e.task.kind != "learning":
        raise ConfigError(f"task {e.task.kind!r} has no centralised counterpart", "Leave --centralised out.")
    from fedgossip.learning.baseline import train_centralised

    found = _examples(e, range(plan.n), plan.n)
    train, test = found.train, found.test
    size = e.train.batch_size * plan.n
    per_round = e.train.local_steps or max(1, round((e.train.local_epochs or 1) * len(train) / size))
    return train_centralised(train, test, e.model.source, e.train, e.seed, e.rounds * per_round, size)


@dataclass(frozen=True)
class _Examples:
    """What is learned from and tested on; shares[node] are places in `train`; `digest` as in DataShares."""

    train: Dataset
    test: Dataset
    shares: Mapping[NodeId, Indices]
    digest: str


def _examples(experiment: Experiment, held: Sequence[NodeId], n: int) -> _Examples:
    """Read the examples; only where every peer has a file of its own do they depend on who is `held` here.

    The digest is taken of examples as they were read: scaling them may round differently on unlike machines, which may
    well train together.  What is a peer's own does not enter it.
    """
    from fedgossip.learning import data, own

    e, source, tested_on = experiment, experiment.data.source, experiment.data.test
    if own.PLACE in source:
        test = data.load(str(tested_on), seed=e.seed)
        train, shares = own.load_own(source, test, held)
        return _Examples(train, test, shares, test.digest())
    if isinstance(tested_on, str) and tested_on != data.OWN:
        test = data.load(tested_on, seed=e.seed)
        train = data.load(source, seed=e.seed, like=test)
        read = train.digest() + test.digest()
        train, test = data.scaled(train, test)
    else:
        dataset = data.load(source, seed=e.seed)
        read = dataset.digest()
        train, test = data.split(dataset, tested_on, e.seed)
    divided = _divided(e, train, n)
    total = hashlib.sha256(read.encode())
    for share in divided:
        total.update(len(share).to_bytes(8, "little") + share.data)
    return _Examples(train, test, dict(enumerate(divided)), total.hexdigest())


def _divided(experiment: Experiment, train: Dataset, n: int) -> Sequence[Indices]:
    from fedgossip.learning import partitions

    keys = dict(experiment.data.partition)
    kind = keys.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError("data.partition has no kind", 'Write partition = { kind = "iid" }.')
    if given := sorted(keys.keys() & {"labels", "n", "seed", "groups"}):
        advice = "Labels, groups, seed and the number of peers are the experiment's own."
        raise ConfigError(f"data.partition: unknown key {given[0]!r}", advice)
    return partitions.partition(kind, train.labels, n, seed=experiment.seed, groups=train.groups, **keys)


def _test_set(test: float | str, examples: int) -> str:
    counted = f"{examples:,}".replace(",", " ")
    if isinstance(test, str):
        return f"the source's own {counted}" if test == "own" else f"{test}: {counted}"
    return f"{100 * test:g} % of the examples: {counted}"


def _learning(experiment: Experiment, held: Sequence[NodeId], n: int) -> tuple[LocalTask, DataShares]:
    e = experiment
    found = _examples(e, held, n)
    train, shares = found.train, found.shares
    tested = _test_set(e.data.test, len(found.test))
    described = DataShares(e.data.source, train.classes, test=tested, digest=found.digest)
    if len(shares) == n:
        labels = train.labels
        counts = [np.bincount(labels[shares[node]], minlength=train.classes).tolist() for node in range(n)]
        described = replace(described, counts=counts, sizes=[len(shares[node]) for node in range(n)])

    from fedgossip.learning.task import TorchTask

    return TorchTask(train, found.test, shares, e.model.source, e.train, seed=e.seed, rounds=e.rounds), described


def machine_of(
    plan: Plan,
    node: NodeId,
    initial: Vector,
    schema: str,
    resumed: Checkpoint | None = None,
    *,
    incarnation: int = 0,
) -> Machine:
    """Make the machine of one peer, in life `incarnation`; with `resumed`, one that goes on from there."""
    machine: SyncGossip[Any] | AsyncGossip | PushSum | AsyncPushSum
    if plan.experiment.algorithm.name == "push-sum":
        machine = _push_sum(plan, node, initial, schema, resumed, incarnation)
    elif plan.experiment.algorithm.mode == "async":
        machine = _async_gossip(plan, node, initial, schema, resumed, incarnation)
    else:
        machine = _sync_gossip(plan, node, initial, schema, resumed)
    machine.eager |= incarnation > 0  # who comes back finds the others at work, or gone
    return machine


def impatient(plan: Plan) -> Plan:
    """Return the plan of a peer that comes back: it waits for the others no longer than in a round."""
    a = plan.experiment.algorithm
    soon = msgspec.structs.replace(a, start_timeout=min(a.start_timeout, a.deadline))
    return replace(plan, experiment=msgspec.structs.replace(plan.experiment, algorithm=soon))


def taken_up(plan: Plan, round: int, model: Vector) -> Checkpoint:
    """Return from where a machine goes on that has `model` after `round` rounds: what others have learned."""
    a = plan.experiment.algorithm
    if a.name == "push-sum":
        return push_sum_peers.taken_up(round, model)
    if a.mode == "async":
        return async_gossip.taken_up(round, model)
    return sync_gossip.taken_up(ALGORITHMS[a.name](plan.n), round, model)


def _sync_gossip(
    plan: Plan, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None
) -> SyncGossip[Any]:
    a = plan.experiment.algorithm
    deadline_ns = _ns(a.deadline)
    settings = SyncSettings(
        rounds=plan.experiment.rounds,
        deadline_ns=deadline_ns,
        least_deadline_ns=min(deadline_ns, _ns(a.least_deadline)),
        start_ns=_ns(a.start_timeout),
        drain_ns=deadline_ns,
        again_ns=min(AGAIN_NS, deadline_ns // AGAIN_TIMES),
    )
    return SyncGossip(node, plan.schedule, ALGORITHMS[a.name](plan.n), initial, schema, settings, resumed)


def _async_gossip(
    plan: Plan, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, incarnation: int
) -> AsyncGossip:
    e, a = plan.experiment, plan.experiment.algorithm
    settings = AsyncSettings(
        rounds=e.rounds, exchanges=a.exchanges, seed=e.seed, start_ns=_ns(a.start_timeout), drain_ns=_ns(a.deadline)
    )
    rule = rule_of(a.partner, node, e.seed, [(int(u), int(v)) for u, v in plan.topology.edges])
    return AsyncGossip(node, plan.schedule.partners(node), rule, initial, schema, settings, resumed, incarnation)


def _push_sum(
    plan: Plan, node: NodeId, initial: Vector, schema: str, resumed: Checkpoint | None, incarnation: int
) -> PushSum | AsyncPushSum:
    e, a = plan.experiment, plan.experiment.algorithm
    settings = PushSettings(
        rounds=e.rounds,
        seed=e.seed,
        deadline_ns=_ns(a.deadline),
        least_deadline_ns=min(_ns(a.deadline), _ns(a.least_deadline)),
        start_ns=_ns(a.start_timeout),
        drain_ns=_ns(a.deadline),
    )
    kind = PushSum if a.mode == "sync" else AsyncPushSum
    return kind(node, plan.schedule, initial, schema, settings, resumed, incarnation)


def whole(plan: Plan, rounds: int, *, stopped: bool = False) -> bool:
    """Whether a peer that ended after so many rounds has done its part.

    An asynchronous one that nobody stopped has: its neighbours have all done theirs, and it had nobody to learn with.
    """
    a = plan.experiment.algorithm
    alone = (a.mode == "async" or a.name == "push-sum") and not stopped
    return rounds == plan.experiment.rounds or alone


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def hello_of(plan: Plan, schema: str, data: str = "") -> Hello:
    """The first words of every peer of this run; `data` is DataShares.digest, empty where a task has no data.

    Where files lie differs between machines and does not count; what is in them does.
    """
    content = plan.experiment.to_dict()
    one = isinstance(plan.schedule, Mixing)
    content["topology"]["graph"] = plan.topology.digest if one else f"{plan.schedule.name}/{plan.n}"
    for key in ("source", "test"):
        kind, colon, path = str(content["data"][key]).partition(":")
        if colon and "/" in path:
            content["data"][key] = f"{kind}:{path.rsplit('/', 1)[1]}"
    for section, key in (("train", "device"), ("train", "threads"), ("algorithm", "start_timeout")):
        content[section].pop(key, None)
    content = {key: value for key, value in content.items() if key not in ("simulation", "name")}
    text = repr((_sorted(content), data)).encode()
    return Hello(schema, hashlib.sha256(text).hexdigest()[:16], __version__)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _sorted(value[key])) for key in sorted(value)]
    return value


def versions() -> dict[str, str]:
    """The versions that decide the bits of a run, of what is imported already."""
    import platform
    import sys

    found = {"fedgossip": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in ("numpy", "torch", "zmq"):
        if module := sys.modules.get(name):
            found[name] = str(module.__version__)
    return found


def describe_topology(plan: Plan, rows_up_to: int = 512) -> dict[str, Any]:
    """The graph and its weights as plain data, for the summary and the report."""
    topology, n = plan.topology, plan.n
    described: dict[str, Any] = {
        "n": n,
        "name": topology.name,
        "directed": topology.directed,
        "edges": topology.edges.tolist() if len(topology.edges) <= 20_000 else [],
        "labels": list(topology.labels) if topology.labels else None,
    }
    if n <= rows_up_to:
        described["rows"] = [{str(j): w for j, w in plan.mixing.row(i).items()} for i in range(n)]
    if plan.schedule.period != 1:
        described["period"] = plan.schedule.period
    return described


def eigenvalues(plan: Plan, up_to: int = 4096) -> Sequence[float] | None:
    """The mixing's eigenvalues, descending, where they are known and few enough to keep."""
    values = plan.spectrum.eigenvalues if plan.spectrum else None
    return None if values is None or plan.n > up_to else [float(v) for v in values]
