"""Gossip on one array of all peers' vectors, with the same bits: no messages (their bytes are counted), no time.

RelaySGD's messages are arrays [arcs, d], arcs by sender, then receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt

from fedgossip.algorithms.codecs.base import Codec, VectorLayout
from fedgossip.algorithms.gossip.base import GossipAlgorithm, SendsModels, State, Step, Vectors
from fedgossip.algorithms.gossip.fragments import FragmentedDiLoCo
from fedgossip.algorithms.gossip.relaysgd import RelaySGD, relay_sums
from fedgossip.algorithms.robust.attacks import Attack, ObservedModels, lies
from fedgossip.algorithms.robust.robust_mixing import Combination, combine_rows
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import RowGroups, Vector, empty, frozen, ordered_mix_rows, unsummable_row
from fedgossip.core.machine import NodeId
from fedgossip.core.messages import (
    CHECK_WORDS,
    Accepted,
    CodedModel,
    Masked,
    Message,
    Model,
    ModelFragment,
    Parcel,
    RelaySum,
)
from fedgossip.core.metrics import Network
from fedgossip.core.records import PeerRow, Row, give_all
from fedgossip.core.task import IdleTask, Job, LocalTask, StackedTask, Update
from fedgossip.core.wire import wire_bytes
from fedgossip.secure.pairs import Grid
from fedgossip.topology import Mixing

if TYPE_CHECKING:
    from fedgossip.topology import Schedule


Losses = Sequence[float | None]
LoggedOf = Sequence[dict[str, float | None] | None] | None
"""The numbers logged by each node; None: none."""

Sizes = npt.NDArray[np.int64]


class RoundBytes(NamedTuple):
    """The traffic of each peer in a round, sent and received: (bytes of messages, bytes of vectors), int64 [n]."""

    sent: tuple[Sizes, Sizes]
    received: tuple[Sizes, Sizes]


class Numbered(NamedTuple):
    """Message numbers of a round, for `n` nodes: `times[g]` messages of node `owners[g]` have `numbers[g]`; int64."""

    n: int
    owners: Sizes
    numbers: Sizes
    times: Sizes


class TwoSizes(NamedTuple):
    """Message numbers of a round: two[i] of the all[i] messages of node i have the number `last`, the others -1; int64
    [n].
    """

    last: int
    two: Sizes
    all: Sizes


MessageSizes = Numbered | TwoSizes


class Edges:
    """The numbers of a round's messages for their edges, without losses."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self._nodes = schedule, range(schedule.n)
        self._mixed: dict[tuple[NodeId, NodeId], int] = {}
        self._used: Counter[tuple[NodeId, NodeId]] = Counter()
        self._followed = 0
        mixing = schedule.mixing(0)
        self._targets = [mixing.targets(node) for node in self._nodes]
        self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]
        # Only for a graph that never changes.
        sides = zip(self._sources, self._targets, strict=True)
        self._both = np.array([len(sources.intersection(to)) for sources, to in sides], np.int64)
        self._given, self._taken = (np.array([len(of) for of in side]) for side in (self._targets, self._sources))

    def mixed_before(self, round: int) -> tuple[MessageSizes, MessageSizes]:
        """Return for each target, and for each source, the last round in which both ends mixed each other's model.

        -1: none.
        """
        if self.schedule.period == 1:
            both = self._both if round else np.zeros_like(self._both)
            return TwoSizes(round - 1, both, self._given), TwoSizes(round - 1, both, self._taken)
        self._follow(round)
        given = [self._mixed.get((i, j), -1) for i in self._nodes for j in self._targets[i]]
        taken = [self._mixed.get((i, j), -1) for i in self._nodes for j in self._sources[i]]
        return _one_each(self._targets, given), _one_each(self._sources, taken)

    def used_before(self, round: int) -> tuple[MessageSizes, MessageSizes]:
        """Return for each target, and for each source, the number of earlier rounds that used the arc."""
        if self.schedule.period == 1:
            return TwoSizes(round, self._given, self._given), TwoSizes(round, self._taken, self._taken)
        self._follow(round)
        given = [self._used[i, j] for i in self._nodes for j in self._targets[i]]
        taken = [self._used[j, i] for i in self._nodes for j in self._sources[i]]
        return _one_each(self._targets, given), _one_each(self._sources, taken)

    def _follow(self, round: int) -> None:
        while self._followed < round:
            for i in self._nodes:
                for to in self._targets[i]:
                    self._used[i, to] += 1
                    if to in self._sources[i]:
                        self._mixed[i, to] = self._followed
            self._followed += 1
            mixing = self.schedule.mixing(self._followed)
            self._targets = [mixing.targets(node) for node in self._nodes]
            self._sources = [mixing.row(node).keys() - {node} for node in self._nodes]


def _one_each(of: Sequence[Collection[NodeId]], numbers: Sequence[int]) -> Numbered:
    owners = np.repeat(np.arange(len(of)), [len(one) for one in of])
    return Numbered(len(of), owners, np.array(numbers, np.int64), np.ones(len(numbers), np.int64))


def priced_both(numbered: tuple[MessageSizes, MessageSizes], message: Callable[[int], Message]) -> RoundBytes:
    """Return the sizes of each node's sent and received messages; `numbered`: the message numbers of both."""
    return RoundBytes(*(_priced(one, message) for one in numbered))


def _priced(of: MessageSizes, message: Callable[[int], Message]) -> tuple[Sizes, Sizes]:
    if isinstance(of, TwoSizes):
        rest = of.all - of.two
        last, never = _costs(message(of.last)), _costs(message(-1)) if rest.any() else (0, 0)
        return of.two * last[0] + rest * never[0], of.two * last[1] + rest * never[1]
    there = of.times > 0
    numbers, places = np.unique(of.numbers[there], return_inverse=True)
    messages = [message(number) for number in numbers.tolist()]
    sizes = np.array([_costs(one) for one in messages], np.int64).reshape(-1, 2)
    together = np.zeros((of.n, 2), np.int64)
    np.add.at(together, of.owners[there], sizes[places] * of.times[there, None])
    return together[:, 0], together[:, 1]


def _costs(message: Message) -> tuple[int, int]:
    return wire_bytes(message), message.payload_bytes


@dataclass
class StackMeters:
    """Traffic of all peers since their last rows, int64 [n] each; there is no time here."""

    bytes_sent: Sizes
    bytes_received: Sizes
    payload_sent: Sizes
    payload_received: Sizes

    @classmethod
    def make_empty(cls, n: int) -> StackMeters:
        """Return empty meters of n peers."""
        return cls(*(np.zeros(n, np.int64) for _ in range(4)))

    def carried(self, traffic: RoundBytes) -> None:
        """Add a round's messages."""
        self.bytes_sent, self.payload_sent = self.bytes_sent + traffic.sent[0], self.payload_sent + traffic.sent[1]
        self.bytes_received = self.bytes_received + traffic.received[0]
        self.payload_received = self.payload_received + traffic.received[1]

    def rows(self, round: int, losses: Losses, logged: LoggedOf = None) -> list[PeerRow]:
        """Return each peer's row of the round that ends as `round`, and reset the counts."""
        carried = self.bytes_sent, self.bytes_received, self.payload_sent, self.payload_received
        self.__init__(*(np.zeros_like(one) for one in carried))  # type: ignore[misc]
        known = losses, *(one.tolist() for one in carried)
        columns = dict(zip(_COUNTED, known, strict=True)) | {"peer": range(len(losses)), "round": repeat(round)}
        columns |= {"logged": logged} if logged else {}
        return list(map(PeerRow, *(columns.get(name, repeat(value)) for name, value in _TIMELESS.items())))


_COUNTED = "loss", "bytes_sent", "bytes_received", "payload_sent", "payload_received"
_TIMELESS = msgspec.structs.asdict(PeerRow(0, 0, None, None, 0, 0, 0.0, 0.0, 0.0, 0.0))
"""The fields of a row in their order, with their defaults."""


@dataclass
class Stack(Generic[State]):
    """The state of a run between two rounds."""

    round: int
    state: State
    meters: StackMeters
    settle: Callable[[], None] = lambda: None
    """Fetches parts of the run from other devices; an image is taken after it."""


def first_stack(task: LocalTask, n: int, algorithm: GossipAlgorithm[State]) -> Stack[State]:
    """Return the initial state of a run."""
    initial = frozen(np.stack([task.initial(node) for node in range(n)]))
    return Stack(0, algorithm.start(initial), StackMeters.make_empty(n))


class StackedExchange(Protocol):
    """The mixing of all nodes' vectors in a round, and the messages that a peer would send for it."""

    def mix_all(self, groups: RowGroups, outgoing: Vectors) -> Vectors:
        """Return the mixed result of the outgoing vectors, [n, d] each, frozen."""

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        """Return the traffic of each peer in `round`, without losses."""


class ModelExchange:
    """Models in clear."""

    def mix_all(self, groups: RowGroups, outgoing: Vectors) -> Vectors:
        return tuple(self.mix(groups, vectors) for vectors in outgoing)

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        out = empty(vectors.size, vectors.dtype).reshape(vectors.shape)
        ordered_mix_rows(groups, vectors, out)
        return frozen(out)

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        vectors = _one_peers(outgoing)
        return priced_both(edges.mixed_before(round), lambda used: Model(round, schema, vectors, used))


@dataclass(frozen=True)
class RuledExchange(ModelExchange):
    """Models in clear, combined by a rule other than a sum."""

    rule: Combination

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        out = np.empty_like(vectors)
        combine_rows(self.rule, groups, vectors, out)
        return frozen(out)


@dataclass(frozen=True)
class ChangeExchange(ModelExchange):
    """Changes of models, encoded by a codec; all mixed vectors are known to all peers."""

    codec: Codec

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        payload = cast(Vector, np.empty(self.codec.size(VectorLayout.of(outgoing[0][0]), round), np.uint8))
        fields = round, round - 1, payload.size, schema, (payload,)
        return priced_both(edges.mixed_before(round), lambda used: CodedModel(*fields, used))


@dataclass(frozen=True)
class FragmentExchange(ModelExchange):
    """A fragment of each model; the rest of the mixed vector stays 0."""

    algorithm: FragmentedDiLoCo

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        model = outgoing[0][0]
        vector = model[self.algorithm.fragments(model.size).part(round)]
        fields = round, vector.size, schema, (vector,)
        return priced_both(edges.mixed_before(round), lambda used: ModelFragment(*fields, used))


class MassExchange(ModelExchange):
    """Shares of vectors and of their weight; each is accepted."""

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        *like_the_model, weight = _one_peers(outgoing)
        shares = tuple(like_the_model)
        given, taken = edges.used_before(round)
        parcels = priced_both((given, taken), lambda number: Parcel(number, round, schema, shares, float(weight[0])))
        answers = priced_both((taken, given), Accepted)
        sides = zip(parcels, answers, strict=True)
        return RoundBytes(*((one[0] + other[0], one[1] + other[1]) for one, other in sides))


@dataclass(frozen=True)
class Private(ModelExchange):
    """Models as the integers that remain after the masks of private gossip cancel."""

    grid: Grid

    def mix(self, groups: RowGroups, vectors: Vector) -> Vector:
        if (largest := self.grid.find_excess(vectors)) is not None:
            text = f"a model with a weight of {largest:.6g}, beyond algorithm.bound = {self.grid.bound:g}"
            raise TrainingError(text, "Raise algorithm.bound; or lower train.lr, if the training has diverged.")
        out = np.empty_like(vectors)
        self.grid.moved_rows(groups, vectors, out)
        return frozen(out)

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        words = np.empty(outgoing[0].shape[1] + CHECK_WORDS, np.uint32)
        masked = Masked(round, schema, (cast(Vector, words),))
        return priced_both(edges.mixed_before(round), lambda _: masked)


PLAIN, SHARES = ModelExchange(), MassExchange()


def run_stacked(
    task: LocalTask,
    schedule: Schedule,
    algorithm: GossipAlgorithm[State],
    rounds: int,
    record: Network,
    write: Callable[[Row], None],
    exchange: StackedExchange = PLAIN,
    *,
    stack: Stack[State] | None = None,
    between: Callable[[], None] = lambda: None,
    attackers: StackedAttackers | None = None,
) -> list[Vector]:
    """Run synchronous gossip of all nodes for `rounds`, or from `stack` on; return the final vectors, one per node.

    `attackers`: for an algorithm that mixes models alone.  `between` is called between two rounds: `stack`, the record
    and the task's memory are then the whole state.
    """
    n = schedule.n
    stack = stack or first_stack(task, n, algorithm)
    edges, train = Edges(schedule), _training(task, algorithm, n)

    def advanced(number: int) -> list[Row]:
        """Compute a round and return its rows, so that its memory is freed on return."""
        mixing = schedule.mixing(number)
        before = algorithm.model(stack.state)
        state, outgoing, losses, logged = train(stack.state, number)
        if not attackers:  # theirs have no bound, and what honest peers make of them is what is measured
            check_summable(number, *outgoing)
        seen = algorithm.seen(state, outgoing)
        traffic = exchange.carried(edges, number, task.schema, outgoing)
        mixed = exchange.mix_all(mixing.rows_by_degree(), outgoing)
        if attackers:
            mixed = (attackers.mixed(mixing, number, *outgoing, *mixed),)
        stack.round, stack.state = number + 1, algorithm.mixed(state, mixed)
        stack.meters.carried(traffic)
        sent, vectors = int(traffic.sent[0].sum()), (before, seen, algorithm.model(stack.state))
        return record.together(
            number + 1, losses, lambda: stack.meters.rows(number + 1, losses, logged), sent, *vectors
        )

    for number in range(stack.round, rounds):
        if record.over:
            break
        between()
        give_all(advanced(number), write)
    return list(algorithm.model(stack.state))


def check_summable(round: int, *stacks: Vector) -> None:
    """Raise TrainingError for vectors [n, d] that neighbours would refuse: arrays have no rounds without them."""
    for rows in stacks:
        if (node := unsummable_row(rows)) is not None:
            text = f"node {node}, round {round}: its model is not finite, or too large to be mixed"
            raise TrainingError(text, "Its training has diverged: lower train.lr.")


_Trained = tuple[State, Vectors, Losses, LoggedOf]
"""The state until the round is mixed, the outgoing vectors, and each node's training loss and logged numbers."""


def _training(task: LocalTask, algorithm: GossipAlgorithm[State], n: int) -> Callable[[State, int], _Trained[State]]:
    """Return the function that trains all nodes in a round: at once if possible, else job by job."""
    if isinstance(task, IdleTask) and task.idle:
        return partial(_nothing_trained, algorithm)
    if isinstance(task, StackedTask) and task.trains_stacks(n):
        return partial(_moved if _sends_models(algorithm) else _stack_trained, task, algorithm)
    return partial(_jobs_trained, task, algorithm)


def _sends_models(algorithm: object) -> bool:
    """Whether the algorithm defines `moved`, and no changed `trained`."""
    owner = next((kind for kind in type(algorithm).__mro__ if "trained" in vars(kind)), object)
    return isinstance(algorithm, SendsModels) and "moved" in vars(owner)


def _jobs_trained(task: LocalTask, algorithm: GossipAlgorithm[State], state: State, number: int) -> _Trained[State]:
    before = algorithm.model(state)
    updates = task.train([Job(node, number, vector) for node, vector in enumerate(before)])
    step = stacked_step(number, updates, before.dtype)
    logged: LoggedOf = [dict(one.logged) or None for one in updates] if any(one.logged for one in updates) else None
    losses = [one.metrics.get("loss") for one in updates]
    return *algorithm.trained(state, stacked_updates(updates), step), losses, logged


def _nothing_trained(algorithm: GossipAlgorithm[State], state: State, number: int) -> _Trained[State]:
    before = algorithm.model(state)
    nothing = np.zeros((len(before), 1), before.dtype)
    return *algorithm.trained(state, None, Step(number, nothing, nothing)), [None] * len(before), None


def _stack_trained(task: StackedTask, algorithm: GossipAlgorithm[State], state: State, number: int) -> _Trained[State]:
    before = algorithm.model(state)
    updates = empty(before.size, before.dtype).reshape(before.shape)
    done = task.train_stack(number, before, updates, lambda _: None)
    rate, steps = (np.full((len(before), 1), value, before.dtype) for value in (done.rate, done.steps))
    return *algorithm.trained(state, frozen(updates), Step(number, rate, steps)), done.losses.tolist(), None


def _moved(task: StackedTask, algorithm: GossipAlgorithm[State], state: State, number: int) -> _Trained[State]:
    """As `_stack_trained`; updates are added while in the cache."""
    before = algorithm.model(state)
    models = empty(before.size, before.dtype).reshape(before.shape)

    def added(rows: slice) -> None:
        np.add(before[rows], models[rows], out=models[rows])

    done = task.train_stack(number, before, models, added)
    return *cast(SendsModels[State], algorithm).moved(state, frozen(models)), done.losses.tolist(), None


def combined(
    algorithm: GossipAlgorithm[State], state: State, outgoing: Vectors, groups: RowGroups, exchange: StackedExchange
) -> State:
    """Return the state of all nodes after mixing the outgoing vectors, [n, d] each."""
    return algorithm.mixed(state, exchange.mix_all(groups, outgoing))


def _one_peers(outgoing: Vectors) -> Vectors:
    """Return the first peer's part of the outgoing vectors."""
    return tuple(vectors[0] for vectors in outgoing)


def stacked_step(round: int, updates: Sequence[Update], kind: np.dtype[np.floating]) -> Step:
    """Return the step of all nodes at once."""
    found = [update.metrics for update in updates]
    if not any(found):
        return Step(round, np.zeros((len(found), 1), kind), np.zeros((len(found), 1), kind))
    rates, steps = (np.array([metrics.get(name, 0.0) for metrics in found], kind) for name in ("rate", "steps"))
    return Step(round, rates[:, None], steps[:, None])


def stacked_updates(updates: Sequence[Update]) -> Vector | None:
    """Return the updates of all nodes, [n, d]; None if nothing changed."""
    there = [update.difference for update in updates if update.difference is not None]
    assert len(there) in (0, len(updates)), "a task changes every vector or none"
    return frozen(np.stack(there)) if there else None


@dataclass(frozen=True)
class StackedAttackers:
    """`peers` attack by `attack`; `all_known`: they have the models of all honest peers, not only of neighbours."""

    peers: frozenset[NodeId]
    attack: Attack
    rule: Combination
    seed: int
    all_known: bool = False

    def mixed(self, mixing: Mixing, round: int, outgoing: Vector, mixed: Vector) -> Vector:
        """Return the results of all, [n, d], from `mixed`: the mix of the models that honest peers would have sent."""
        forged: dict[tuple[NodeId, NodeId], Vector] = {}
        for peer in sorted(self.peers):
            known = range(mixing.n) if self.all_known else mixing.row(peer)
            good = {j: outgoing[j] for j in known if j not in self.peers}
            seen = ObservedModels(peer, round, self.seed, outgoing[peer], good, mixing.row, self.peers)
            forged.update({(peer, to): one for to, one in lies(self.attack, seen, mixing.targets(peer)).items()})
        out = mixed.copy()
        for to in sorted({to for _, to in forged}):
            row = mixing.row(to)
            out[to] = self.rule.combine(to, row, {j: forged.get((j, to), outgoing[j]) for j in row})
        return frozen(out)


Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RelayExchange(ModelExchange):
    """Sums, a different one for each neighbour."""

    algorithm: RelaySGD

    def mix_all(self, groups: RowGroups, outgoing: Vectors) -> Vectors:
        own, *before = outgoing
        graph = arcs_of(groups, len(own))
        shape = graph.reverse.size, own.shape[1]
        received, counts = before or (np.zeros(shape, own.dtype), np.zeros(len(graph.reverse)))
        sent, numbers, models = np.empty(shape, own.dtype), np.empty(len(graph.reverse)), np.empty_like(own)
        places = [slice(*graph.starts[node : node + 2]) for node in range(len(own))]
        for node, arcs in enumerate(places):
            sent[arcs], numbers[arcs] = relay_sums(own[node], received[arcs], counts[arcs])
        received, counts = frozen(sent[graph.reverse]), frozen(numbers[graph.reverse])
        for node, arcs in enumerate(places):
            models[node] = self.algorithm.averaged(own[node], received[arcs], counts[arcs])
        return frozen(models), received, counts

    def carried(self, edges: Edges, round: int, schema: str, outgoing: Vectors) -> RoundBytes:
        """Return the traffic; a message contains its number of models, whose bytes depend on its size."""
        own, *before = outgoing
        arcs = arcs_of(edges.schedule.mixing(round).rows_by_degree(), len(own))
        counts = before[1] if before else np.zeros(arcs.senders.size)
        numbers = (1 + np.bincount(arcs.senders, counts, len(own))[arcs.senders] - counts).astype(np.int64)
        once, vectors = np.ones_like(numbers), (own[0],)
        sides = [Numbered(len(own), of, numbers, once) for of in (arcs.senders, arcs.receivers)]
        return priced_both((sides[0], sides[1]), lambda count: RelaySum(round, schema, vectors, count))


class TreeArcs(NamedTuple):
    """All (sender, receiver), ascending.  `starts` [n + 1]: each node's first arc; `reverse`: each reverse arc."""

    senders: Places
    receivers: Places
    starts: Places
    reverse: Places


def arcs_of(groups: RowGroups, n: int) -> TreeArcs:
    """Return the arcs of a graph with the reverse of every arc."""
    senders = np.concatenate([np.repeat(nodes, ids.shape[1]) for nodes, ids, _ in groups])
    receivers = np.concatenate([ids.ravel() for _, ids, _ in groups])
    between = senders != receivers
    order = np.lexsort((receivers[between], senders[between]))
    senders, receivers = senders[between][order], receivers[between][order]
    return TreeArcs(senders, receivers, np.searchsorted(senders, np.arange(n + 1)), np.lexsort((senders, receivers)))
