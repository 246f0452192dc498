"""Outer steps on any graph: DiLoCo against FedAvgM's server, torch's Nesterov, and what theory says of disagreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fedgossip import simulate
from fedgossip.algorithms.federated.base import Aggregate
from fedgossip.algorithms.federated.names import make
from fedgossip.algorithms.gossip.base import Step, restored, saved
from fedgossip.algorithms.gossip.outer import DiLoCo, OuterStep
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, digest, frozen, ordered_mix, subtract
from fedgossip.core.records import NetworkRow
from fedgossip.core.task import Job, Update
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

OPTIONS = {"lr": 0.5, "beta": 0.5}


def quadratic(rounds: int, graph: str, n: int, **options: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 3, "placement": "random", "dtype": "float64", "eta": 0.1},
        "topology": {"graph": graph, "n": n},
        "algorithm": {"name": "diloco", "options": options, "deadline": 1e5},
        "eval": {"every": rounds},
    }


class Dyadic:
    """u = (b - x) / 2 with whole b: every sum of a short run is exact, so nothing depends on the order of sums."""

    length, dtype, schema = 4, np.dtype("float64"), "dyadic"
    b = np.arange(16.0).reshape(4, 4) ** 2

    def initial(self, node: int) -> Vector:
        return frozen(np.zeros(4))

    def train(self, jobs: Sequence[Job]) -> Sequence[Update]:
        return [Update(frozen((self.b[job.node] - job.vector) / 2), 1, {}) for job in jobs]

    def evaluate(self, vectors: Sequence[Vector]) -> Sequence[Mapping[str, float]]:
        return [{"loss": float(np.abs(self.b.mean(axis=0) - vector).max())} for vector in vectors]


@pytest.mark.parametrize("engine", ["sim", "stacked"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_on_the_complete_graph_it_is_fedavgm_with_its_coordinator_to_the_bit(nesterov: bool, engine: str) -> None:
    options = {**OPTIONS, "nesterov": nesterov}
    server = {"clients": 4, "algorithm": "fedavgm", "options": options, "secure": {"on": False}}
    led = simulate({"rounds": 5, "coordinator": server}, task=Dyadic(), engine=engine)
    alone = simulate(quadratic(5, "complete", 4, **options), task=Dyadic(), engine=engine)
    assert {vector.tobytes() for vector in alone.vectors} == {led.vectors[-1].tobytes()}
    assert np.abs(led.vectors[-1]).min() > 1  # it has moved


@pytest.mark.parametrize("nesterov", [False, True])
def test_its_step_is_that_of_fedavgms_server_given_the_same_mean_to_the_bit(nesterov: bool) -> None:
    """Whatever the numbers: what a round has come to goes to the server, and its model to all peers."""
    options = {"lr": 0.7, "beta": 0.9, "nesterov": nesterov}
    content = quadratic(30, "complete", 5, **options)
    content["task"]["dtype"] = "float32"
    run = simulate(content, engine="sim")
    from fedgossip import load_experiment
    from fedgossip.plans import compose

    task, _ = compose.task_of(compose.plan(load_experiment(content)).experiment, 5)
    server = make("fedavgm", clients=5, **options).server
    state = server.start(task.initial(0))
    for number in range(30):
        updates = task.train([Job(node, number, state.x) for node in range(5)])
        models = [frozen(state.x + update.difference) for update in updates]
        mixed = ordered_mix([(0.2, model) for model in models])
        state = server.step(state, Aggregate((subtract(mixed, state.x),), 5, 1.0, number))
    assert run.digest == digest([state.x] * 5)


def test_nesterovs_form_is_torchs() -> None:
    draw = np.random.default_rng(3)
    start = draw.standard_normal(6)
    weights = torch.nn.Parameter(torch.tensor(start))
    sgd = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    x, v = frozen(start.copy()), frozen(np.zeros(6))
    for _ in range(20):
        moved = draw.standard_normal(6)
        weights.grad = torch.tensor(-moved)
        sgd.step()
        x, v = OuterStep().taken(x, v, frozen(moved))
    assert np.abs(x - weights.detach().numpy()).max() < 1e-12


def test_a_step_of_one_without_momentum_is_dsgd() -> None:
    plain = {**quadratic(40, "ring", 6), "algorithm": {"name": "dsgd"}}
    run = simulate(quadratic(40, "ring", 6, lr=1.0, beta=0.0), engine="stacked")
    assert np.abs(np.stack(run.vectors) - np.stack(simulate(plain, engine="stacked").vectors)).max() < 1e-12


def test_the_disagreement_that_lasts_is_that_of_dsgd() -> None:
    """Momentum multiplies the changes of single peers by 1 / (1 - beta); of what is mixed, no disagreement."""
    run = simulate(quadratic(600, "ring", 6), engine="stacked")
    plain = {**quadratic(600, "ring", 6), "algorithm": {"name": "dsgd"}}
    models = np.stack(run.vectors)
    assert np.abs(models - np.stack(simulate(plain, engine="stacked").vectors)).max() < 1e-9
    assert np.ptp(models, axis=0).max() > 0.1


@pytest.mark.parametrize(("nesterov", "stable"), [(True, True), pytest.param(False, False, marks=pytest.mark.long)])
def test_on_random_pairs_nesterovs_form_is_the_stable_one(nesterov: bool, stable: bool) -> None:
    run = simulate(quadratic(700, "random-matching", 16, nesterov=nesterov), engine="stacked")
    assert (np.abs(np.stack(run.vectors)).max() < 10) == stable


def test_what_comes_late_counts_as_if_it_had_been_mixed() -> None:
    draw = np.random.default_rng(5)
    for nesterov in (False, True):
        algorithm = DiLoCo(nesterov=nesterov)
        state = algorithm.start(frozen(draw.standard_normal((4, 3))))
        for number in range(4):
            begun, sent = algorithm.trained(state, frozen(draw.standard_normal((4, 3))), Step(number))
            late = frozen(draw.standard_normal((4, 3)))
            in_time = algorithm.mixed(begun, (frozen(sent[0] + late),))
            state = algorithm.corrected(algorithm.mixed(begun, sent), (late,))
            assert np.abs(state.x - in_time.x).max() < 1e-12 and np.abs(state.v - in_time.v).max() < 1e-12


def test_a_checkpoint_holds_the_momentum_and_another_roster_keeps_it() -> None:
    algorithm = DiLoCo()
    begun, sent = algorithm.trained(algorithm.start(frozen(np.ones(3))), frozen(np.arange(3.0)), Step(0))
    state = algorithm.mixed(begun, sent)
    arrays, numbers = saved(state)
    again = restored(algorithm.start(frozen(np.ones(3))), arrays, numbers)
    assert again.x is state.x and again.v is state.v and state.v.any()
    assert algorithm.rejoined(state, frozen(np.zeros(3))).v is state.v


@pytest.mark.parametrize(
    ("options", "said"),
    [({"lr": 0}, "lr is 0; expected a number above 0"), ({"beta": 1}, "beta is 1"), ({"nesterov": 1}, "nesterov is 1")],
)
def test_other_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(quadratic(2, "ring", 4, **options))
    with pytest.raises(ConfigError, match=f"(coordinator.options|fedavgm): {said}"):
        make("fedavgm", clients=2, **options)


def workers(rounds: int, method: str = "ring", *, outer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parallel = {"workers": 4, "method": method, "bucket": 24, "outer": {"lr": 0.7, **(outer or {})}, **more}
    return {"rounds": rounds, "task": {"kind": "quadratic", "dim": 7, "placement": "random"}, "parallel": parallel}


@pytest.mark.parametrize("method", ["ring", "halving-doubling"])
@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_by_all_reduce_it_is_fedavgm_with_its_coordinator_to_the_bit(engine: str, method: str) -> None:
    options = {**OPTIONS, "nesterov": True}
    server = {"clients": 4, "algorithm": "fedavgm", "options": options, "secure": {"on": False}}
    led = simulate({"rounds": 5, "coordinator": server}, task=Dyadic(), engine=engine)
    alone = simulate(workers(5, method, outer=options), task=Dyadic(), engine=engine)
    assert {vector.tobytes() for vector in alone.vectors} == {led.vectors[-1].tobytes()}


def test_an_outer_step_of_one_is_the_mean_of_the_workers_by_their_examples() -> None:
    """As FedAvg's: a worker counts as many times as it has examples."""
    content = {
        "rounds": 3,
        "data": {"source": "digits"},
        "train": {"device": "cpu", "lr": 0.1, "local_steps": 3},
    }
    by_workers = {**content, "parallel": {"workers": 4, "outer": {"lr": 1, "beta": 0}}}
    by_server = {**content, "coordinator": {"clients": 4, "secure": {"on": False}}}
    one, other = (simulate(e, engine="sim").vectors[-1] for e in (by_workers, by_server))
    assert np.abs(one - other).max() < 1e-6


@pytest.mark.parametrize(
    ("more", "said", "advice"),
    [
        ({"method": "mapreduce", "bucket": None}, "parallel.outer with parallel.method = 'mapreduce'", "fedavgm"),
        ({"method": "parameter-server", "bucket": None}, "with parallel.method = 'parameter-server'", "collective"),
        ({"descent": "adam"}, "parallel.descent = 'adam' with parallel.outer", "train.optimizer"),
        ({"accumulate": 2}, "parallel.accumulate is of gradients", "train.local_steps"),
        ({"overlap": True}, "parallel.overlap with parallel.outer", "one of them"),
        ({"codec": "dgc:0.1"}, "dgc:0.1 applies the momentum", "top-k"),
        ({"outer": {"lr": 0.7, "beta": 1.0}}, "parallel.outer: beta is 1.0", "Take 0.9"),
        ({"outer": {"lr": -0.7}}, "parallel.outer.lr = -0.7", "at least 0"),
    ],
)
def test_what_an_outer_step_does_not_go_with_is_refused(more: dict[str, Any], said: str, advice: str) -> None:
    content = workers(2)
    content["parallel"] = {key: one for key, one in {**content["parallel"], **more}.items() if one is not None}
    with pytest.raises(ConfigError, match=said) as error:
        simulate(content)
    assert advice in error.value.advice


@pytest.mark.parametrize("codec", ["", "top-k:0.3"])
def test_a_mean_that_comes_late_has_the_same_bits_in_simulator_and_arrays(codec: str) -> None:
    late = workers(12, outer={"delay": 1}, codec=codec)
    runs = [simulate(late, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    if codec:  # else what is learned is linear in where it began, and its mean the same but for rounding
        assert runs[0].digest != simulate(workers(12, codec=codec), engine="stacked").digest
    slow = simulate({**late, "simulation": {"latency": 3.0, "training_jitter": 1.0}})  # sums take longer than training
    assert slow.digest == runs[0].digest


def test_where_all_learn_the_same_a_late_mean_of_models_changes_nothing() -> None:
    task = Dyadic()
    task.b = np.tile(Dyadic.b[1], (4, 1))
    late, soon = (workers(8, outer={"lr": 1.0, "beta": 0.0, "delay": delay}) for delay in (1, 0))
    assert simulate(late, task=task).digest == simulate(soon, task=task).digest


def test_a_late_mean_takes_no_time_where_training_takes_longer() -> None:
    """Rounds of 1 s, and sums of 6 messages of 0.1 s each: 1.6 s a round, and 1 s with `delay`, but for the last."""
    how = {"simulation": {"latency": 0.1, "training": 1.0}}
    soon, late = (simulate({**workers(20, outer={"delay": delay}), **how}).summary["seconds"] for delay in (0, 1))
    assert soon == pytest.approx(20 * 1.6, rel=0.02) and late == pytest.approx(20 + 0.6, rel=0.02)


@pytest.mark.parametrize("delay", [pytest.param(0, marks=pytest.mark.long), 1])
def test_what_a_codec_left_out_survives_lost_packets_to_the_bit(delay: int) -> None:
    """A chunk that is lost goes again with the same bytes, and what was left out of it counts once."""
    content = workers(6, outer={"delay": delay}, codec="top-k:0.3", deadline=1e5, least_deadline=1e5)
    lossy = {**content, "faults": [{"kind": "drop", "probability": 0.15}]}
    run = simulate(lossy)
    assert run.digest == simulate(content, engine="stacked").digest
    assert run.summary["bytes_sent"] > simulate(content).summary["bytes_sent"]  # something was sent again


def test_a_round_that_was_trained_ahead_and_is_done_again_counts_once_in_the_optimizer() -> None:
    """All workers die while two of them have trained the next round already: it is trained again from checkpoints."""
    outer = {"lr": 0.7, "delay": 1}
    train = {"optimizer": "adamw", "local_steps": 3, "device": "cpu"}
    slow, crash = {"kind": "slow", "peers": [2], "factor": 10.0}, {"kind": "crash", "start": 0.7, "after": 0.05}
    content = {"rounds": 4, "train": train, "parallel": {"workers": 3, "outer": outer}, "faults": [slow, crash]}
    one = load_experiment(content)
    task, _ = compose.task_of(one, 3, range(3))
    assert simulate(one, task=task).summary["events"]["restarted"] == 3
    assert [int(task.state(node)["steps"]) for node in range(3)] == [12] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_worker_that_is_killed_again_and_again_stalls_nobody(delay: int) -> None:
    """Every 4 s one of four is killed, and started again a second later; a round takes a second."""
    content = workers(30, outer={"delay": delay}, codec="top-k:0.3", start_timeout=20.0)
    crash = {"kind": "crash", "every": 4.0, "after": 1.0, "stop": 25.0}
    run = simulate({**content, "simulation": {"training": 1.0, "detection": 0.2}, "faults": [crash]})
    assert run.summary["status"] == "finished" and run.summary["seconds"] < 1.5 * 30
    assert max(row.round for row in run.rows if isinstance(row, NetworkRow)) == 30
