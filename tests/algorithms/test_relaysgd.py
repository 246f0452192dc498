"""RelaySGD: every model comes once, by the one way of a tree; the same bits in every driver; nothing counts twice."""

from __future__ import annotations

from typing import Any

import fault_seeds
import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import simulate
from fedgossip.algorithms.gossip.base import Step, restored, saved
from fedgossip.algorithms.gossip.relaysgd import RelaySGD, RelayState, relay_sums
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.base.vectors import digest, frozen
from fedgossip.core.machine import Checkpoint, PeerJoined, Received, Started, Trained
from fedgossip.core.messages import RelaySum
from fedgossip.core.records import EventRow, PeerRow
from fedgossip.drivers.forecasting import forecast_run
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.plans.gossip.gossip_words import longest_way
from fedgossip.simulation.stacked import RelayExchange
from fedgossip.topology import Topology, build, resolve

TREES = ("path", "tree", "star", "spanning-tree:torus:3x3")


def relaysgd(graph: str = "path", n: int | None = 7, rounds: int = 12, **more: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 5, "sigma": 0.1, "placement": "random"},
        "topology": {"graph": graph, **({"n": n} if n else {})},
        "algorithm": {"name": "relaysgd", "deadline": 1e5},
        **more,
    }


def of(graph: str, **more: Any) -> dict[str, Any]:
    return relaysgd(graph, None if ":" in graph else 9, **more)


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", TREES)
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_bytes(graph: str) -> None:
    uneven = {"simulation": {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}}
    one, other = (simulate(of(graph), engine=engine) for engine in ("sim", "stacked"))
    assert one.digest == other.digest == simulate(of(graph, **uneven)).digest
    ours, theirs = ([_traffic(row) for row in run.rows if isinstance(row, PeerRow)] for run in (one, other))
    assert sorted(ours) == sorted(theirs)


def _traffic(row: PeerRow) -> tuple[int, ...]:
    return row.round, row.peer, row.bytes_sent, row.payload_sent


def test_a_count_above_127_takes_a_byte_more_on_arrays_too() -> None:
    many = relaysgd("path", 130, rounds=2, task={"kind": "averaging", "dim": 1}, eval={"every": 2})
    star = {**many, "topology": {"graph": "star", "n": 130}}
    sent = [simulate(star, engine=engine).summary["bytes_sent"] for engine in ("sim", "stacked")]
    assert sent[0] == sent[1]


@pytest.mark.sockets
def test_bits_over_sockets_are_those_of_the_simulator() -> None:
    plan = compose.plan(load_experiment(relaysgd("tree", 5)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(relaysgd("tree", 5)).digest


# --- what the paper promises ------------------------------------------------------------------------------------------


def sums_along(tree: Topology, vectors: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """What all neighbours of each node tell it after so many rounds, and the node's own vector; how many it counts."""
    near = [tree.neighbours(node) for node in range(tree.n)]
    heard = {(i, j): (np.zeros(vectors.shape[1]), 0.0) for i in range(tree.n) for j in near[i]}
    for _ in range(rounds):
        told = {}
        for i in range(tree.n):
            sums, counts = relay_sums(
                frozen(vectors[i].copy()),
                frozen(np.stack([heard[j, i][0] for j in near[i]])),
                frozen(np.array([heard[j, i][1] for j in near[i]])),
            )
            told.update({(i, j): (sums[place], counts[place]) for place, j in enumerate(near[i])})
        heard = told
    totals = np.stack([vectors[i] + sum(heard[j, i][0] for j in near[i]) for i in range(tree.n)])
    return totals, np.array([1 + sum(heard[j, i][1] for j in near[i]) for i in range(tree.n)])


@pytest.mark.parametrize("graph", TREES)
def test_after_the_diameter_each_unit_vector_has_arrived_exactly_once_at_every_node(graph: str) -> None:
    tree = resolve(graph, None if ":" in graph else 9)
    diameter = longest_way(tree) + 1
    totals, counts = sums_along(tree, np.eye(tree.n), diameter)
    assert (totals == 1).all() and (counts == tree.n).all()
    early, fewer = sums_along(tree, np.eye(tree.n), diameter - 1)
    assert set(early.ravel()) == {0.0, 1.0} and fewer.min() < tree.n and (early.sum(axis=1) == fewer).all()


@pytest.mark.parametrize("graph", TREES[:3])
def test_a_run_is_the_mean_of_models_each_as_old_as_its_way_is_long(graph: str) -> None:
    """A twin in plain loops: x_i = (sum of s_j of tau_ij - 1 rounds before, s_i for those not here yet) / n."""
    content = relaysgd(graph, 6, task={"kind": "quadratic", "dim": 3, "placement": "random", "dtype": "float64"})
    task, _ = compose.task_of(compose.plan(load_experiment(content)).experiment, 6)
    ways = _distances(resolve(graph, 6))
    x, history = np.stack([task.initial(node) for node in range(6)]), []
    for _ in range(12):
        history.append(x + 0.1 * (task.b - x))  # type: ignore[attr-defined]
        x = np.stack([sum(_here(history, int(ways[i, j]), j, i) for j in range(6)) / 6 for i in range(6)])
    run = simulate(content, engine="stacked")
    assert np.abs(np.stack(run.vectors) - x).max() < 1e-12 and np.ptp(x, axis=0).max() > 1e-3


def _here(history: list[np.ndarray], way: int, j: int, i: int) -> Any:
    age = max(way - 1, 0)
    return history[-1 - age][j] if age < len(history) else history[-1][i]


def _distances(tree: Topology) -> np.ndarray:
    found = np.where(np.eye(tree.n, dtype=bool), 0, tree.n)
    for i, j in tree.edges:
        found[i, j] = found[j, i] = 1
    for k in range(tree.n):
        found = np.minimum(found, found[:, k : k + 1] + found[k : k + 1])
    return found


@pytest.mark.parametrize("graph", [pytest.param("path", marks=pytest.mark.long), "tree"])
def test_peers_agree_on_the_optimum_however_unlike_their_data_are(graph: str) -> None:
    """Quadratics with their optima apart: D-PSGD with a constant rate stays apart, this does not."""
    task = {"kind": "quadratic", "dim": 2, "placement": "random", "dtype": "float64", "eta": 0.1}
    content = relaysgd(graph, 16, rounds=1500, task=task, eval={"every": 1500})
    run = simulate(content, engine="stacked")
    assert run.network()[-1].consensus_distance < 1e-10
    optimum = compose.task_of(load_experiment(content), 16)[0].b.mean(axis=0)  # type: ignore[attr-defined]
    assert np.abs(np.stack(run.vectors) - optimum).max() < 0.5
    plain = simulate({**content, "algorithm": {"name": "dsgd"}}, engine="stacked")
    assert plain.network()[-1].consensus_distance > 0.1


@pytest.mark.parametrize(
    ("graph", "expected"), [("path", (0.00104688, 0.00059814, 0.981148)), ("tree", (0.00078240, 0.00095010, 0.970835))]
)
def test_what_noise_leaves_of_a_quadratic_is_what_the_map_of_the_paper_leaves(
    graph: str, expected: tuple[float, ...]
) -> None:
    """16 nodes, curvature 1, a rate of 0.1, unit noise: disagreement, variance of the mean, and how fast both come."""
    groups = build(resolve(graph, 16), "metropolis").rows_by_degree()
    algorithm = RelaySGD(16)
    state, width = algorithm.start(frozen(np.zeros((16, 1)))), 16 + 30

    def after(begun: Any, update: np.ndarray) -> Any:
        begun, sent = algorithm.trained(begun, frozen(update.copy()), Step(0))
        return algorithm.mixed(begun, RelayExchange(algorithm).mix_all(groups, sent))

    for _ in range(16):  # until all are counted
        state = after(state, np.zeros((16, 1)))

    def row(z: np.ndarray, update: np.ndarray) -> np.ndarray:
        found = after(RelayState(frozen(z[:16].copy()), frozen(z[16:].copy()), state.counts), update)
        return np.concatenate([found.x, found.heard])

    units, nothing = np.eye(width), np.zeros((width, 16))
    a, b = row(units, -0.1 * units[:16]), row(nothing, 0.1 * np.eye(16))
    left, power = b @ b.T, a
    for _ in range(12):  # sum over k of A^k B B' A'^k, twice as many terms each time
        left, power = left + power @ left @ power.T, power @ power
    together = left[:16, :16]
    mean = together.mean()
    measured = np.trace(together) / 16 - mean, mean, np.abs(np.linalg.eigvals(a)).max()
    assert np.abs(np.array(measured) - expected).max() < 6e-7


def test_a_forecast_by_a_shadow_is_the_run_itself_on_a_quadratic() -> None:
    content = relaysgd(eval={"every": 1})
    (found,) = forecast_run(content, "shadow")
    measured = [row.consensus_distance for row in simulate(content, engine="stacked").network()][1:]
    np.testing.assert_allclose(found.upper, measured, rtol=1e-4)
    with pytest.raises(ConfigError, match="a probe does not follow it"):
        forecast_run(content, "probe")


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_a_lost_sum_costs_no_count_and_a_dead_leaf_costs_one_everywhere() -> None:
    close = {"name": "relaysgd", "deadline": 3.0, "least_deadline": 0.5}
    lossy = relaysgd(rounds=40, algorithm=close, faults=[{"kind": "drop", "probability": 0.1}])
    run = simulate(lossy)
    events = {row.name for row in run.rows if isinstance(row, EventRow)}
    assert "missed" in events <= {"missed", "goodbye"}  # a peer may end before the last lost sum was sent again
    assert run.summary["status"] == "finished"

    dead = relaysgd(rounds=40, algorithm=close, faults=[{"kind": "crash", "peers": [6], "start": 0.5}])
    rows = [row for row in simulate(dead).rows if isinstance(row, EventRow) and row.name == "counted_fewer"]
    assert [(row.peer, row.value) for row in rows] == [(node, {"models": 6, "before": 7}) for node in range(5, -1, -1)]
    assert [row.round for row in rows] == list(range(rows[0].round, rows[0].round + 6)), "a round later a link further"


def outcome_of(seed: int) -> Any:
    content = fault_seeds.scenario(seed)
    topology = {**content["topology"], "graph": TREES[seed % 3]}
    algorithm = {**content["algorithm"], "name": "relaysgd", "mode": "sync"}
    return fault_seeds.run(seed, keys={"topology": topology, "algorithm": algorithm})


def check_seeds(seeds: range) -> None:
    """Run them; the mean may move, as it does without a fault, so it is asked for the rest alone."""
    for seed in seeds:
        outcome = outcome_of(seed)
        outcome.drift = 0.0
        assert not outcome.verdict, f"seed {seed}: {outcome.verdict}"


def test_every_seed_of_the_fault_simulation_ends() -> None:
    check_seeds(range(20))


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_seeds(block: int) -> None:
    check_seeds(range(20 + 100 * block, 120 + 100 * block))


@pytest.mark.parametrize("node", [0, 1, *(pytest.param(node, marks=pytest.mark.long) for node in range(2, 7))])
def test_no_fault_makes_a_model_count_twice(node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peer `node` dies and comes back while a fifth of all is lost: no more models than there are, ever."""
    from fedgossip.protocols.gossip.relay_gossip import RelayGossip

    seen: list[float] = []
    gather = RelayGossip._gather

    def watched(self: RelayGossip) -> Any:
        sums, counts = gather(self)
        seen.extend(counts)
        assert 1 + counts.sum() <= 7
        return sums, counts

    monkeypatch.setattr(RelayGossip, "_gather", watched)
    faults = [{"kind": "drop", "probability": 0.2}, {"kind": "crash", "peers": [node], "start": 0.4, "after": 0.7}]
    close = {"name": "relaysgd", "deadline": 1.0, "least_deadline": 0.3}
    simulate(relaysgd("tree", rounds=25, algorithm=close, faults=faults))
    assert 0.0 in seen and max(seen) > 1


# --- a peer alone -----------------------------------------------------------------------------------------------------


def machine(resumed: Checkpoint | None = None) -> Any:
    plan = compose.plan(load_experiment(relaysgd("path", 5)))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    made = plan.machine(2, task.initial(2), task.schema, resumed)
    for event in (Started(), PeerJoined(1), PeerJoined(3)):
        made.handle(event, 0)
    return made, task.schema


def test_a_checkpoint_holds_what_was_heard_and_goes_on_with_the_same_bits() -> None:
    draw, (first, schema) = np.random.default_rng(4), machine()

    def vector() -> Any:
        return frozen(draw.standard_normal(5).astype(np.float32))

    def round_of(peer: Any, number: int, update: Any, sums: Any) -> Any:
        peer.handle(Trained(number, update), 0)
        for j, one in zip((1, 3), sums, strict=True):
            effects = peer.handle(Received(j, RelaySum(number, schema, (one,), 1 + number)), 0)
        return next(effect for effect in effects if isinstance(effect, Checkpoint))

    kept = round_of(first, 0, vector(), (vector(), vector()))
    second, _ = machine(kept)
    told = vector(), (vector(), vector())
    one, other = (round_of(peer, 1, *told) for peer in (first, second))
    assert [digest([one.vectors[name]]) for name in sorted(one.vectors)] == [
        digest([other.vectors[name]]) for name in sorted(other.vectors)
    ]
    assert one.vectors["state/heard"].shape == (2, 5) and one.vectors["state/counts"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("round", "count"), [(12, 1), (0, 0), (0, 5)])
def test_a_sum_that_cannot_be_is_refused_and_changes_nothing(round: int, count: int) -> None:
    peer, schema = machine()
    with pytest.raises(ProtocolError, match="a sum of"):
        peer.handle(Received(1, RelaySum(round, schema, (frozen(np.zeros(5, np.float32)),), count)), 0)
    assert not peer.mailbox.of


def test_counts_of_more_models_than_there_are_still_make_a_mean() -> None:
    algorithm, own = RelaySGD(3), frozen(np.full(2, 4.0))
    mean = algorithm.averaged(own, frozen(np.array([[8.0, 8.0], [8.0, 8.0]])), frozen(np.array([2.0, 2.0])))
    assert mean.tolist() == [4.0, 4.0]


def test_a_state_goes_through_a_checkpoint_whole() -> None:
    algorithm = RelaySGD(3)
    begun, _ = algorithm.trained(algorithm.start(frozen(np.ones(2))), None, Step(0))
    state = algorithm.mixed(begun, (frozen(np.zeros(2)), frozen(np.ones((2, 2))), frozen(np.ones(2))))
    again = restored(algorithm.start(frozen(np.ones(2))), *saved(state))
    assert again.heard is state.heard and again.counts is state.counts


@pytest.mark.parametrize(
    ("more", "text", "advice"),
    [
        ({"topology": {"graph": "ring", "n": 4}}, "relaysgd needs a tree, and 'ring' has the cycle", "spanning-tree"),
        ({"topology": {"graph": "random-matching", "n": 4}}, "needs one graph for the whole run", "Take one graph"),
        ({"topology": {"graph": "directed-exponential", "n": 4}}, "needs a tree", "star, path"),
        ({"topology": {"graph": "path", "n": 4, "weights": "lazy"}}, "counts all models alike", "weights out"),
        ({"algorithm": {"name": "relaysgd", "mode": "async"}}, "relaysgd has no async mode", "sync"),
        ({"algorithm": {"name": "relaysgd", "combine": "median"}}, "no meaning but in a sum", "dsgd"),
        ({"algorithm": {"name": "relaysgd", "private": True}}, "private gossip", "dsgd"),
        ({"adversary": {"peers": [1], "attack": "sign-flip"}}, "attackers lie", "dsgd"),
    ],
)
def test_what_does_not_go_with_it_is_refused(more: dict[str, Any], text: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=text) as error:
        compose.plan(load_experiment({**relaysgd(), **more}))
    assert advice in (error.value.advice or "")
