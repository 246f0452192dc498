"""Gradient tracking and EXTRA: exact where D-PSGD stays apart, the same bits in every driver, and after a peer is gone.

The quadratic of `learning.analytic`: f_i = 1/2 |x - b_i|^2, so u = -eta (x - b + xi), and a round is a linear map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from members import World
from members import membership as membership_of
from over_sockets import run_over_sockets

import fedgossip
from fedgossip import load_experiment, simulate
from fedgossip.algorithms.gossip.base import Step
from fedgossip.algorithms.gossip.gradient_tracking import EXTRA, GradientTracking
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.machine import Checkpoint, Effect, Event, Finish, Machine, NodeId, Train, Trained
from fedgossip.core.task import Job
from fedgossip.experiment import checked
from fedgossip.plans import compose
from fedgossip.protocols.members.member import Member
from fedgossip.topology import build, resolve

N, ETA = 16, 0.1


def experiment(**more: Any) -> dict[str, Any]:
    return {
        "rounds": 200,
        "task": {"kind": "quadratic", "placement": "smooth", "dtype": "float64", "eta": ETA},
        "topology": {"graph": "ring", "n": N},
        "algorithm": {"name": "gradient-tracking", "deadline": 1e5},
        **more,
    }


def one_round(W: np.ndarray, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """A and B of z <- A z + B (b - xi), z = (x, c), written from the papers' three lines, with u = eta (b - xi - x).

    y = c + u;   x' = W (x + y) = W ((1 - eta) x + c) + eta W b;   c' = W y - u = W c + (I - W) eta x - (I - W) eta b
    """
    one = np.eye(len(W))
    A = np.block([[(1 - eta) * W, W], [eta * (one - W), W]])
    return A, np.vstack([eta * W, -eta * (one - W)])


def smooth(n: int = N) -> np.ndarray:
    return np.sqrt(2) * np.cos(2 * np.pi * np.arange(n) / n)


@pytest.mark.sockets
@pytest.mark.long
def test_two_hundred_rounds_are_those_of_the_linear_map_in_every_driver() -> None:
    W, z = build(resolve("ring", N)).matrix(), np.zeros(2 * N)
    A, B = one_round(W, ETA)
    for _ in range(200):
        z = A @ z + B @ smooth()
    stacked = simulate(experiment(), engine="stacked")
    assert np.abs(np.concatenate(stacked.vectors) - z[:N]).max() < 1e-10
    uneven = {"simulation": {"training_jitter": 2.0, "speed_spread": 0.5, "jitter": 0.3}}
    assert simulate(experiment()).digest == simulate(experiment(**uneven)).digest == stacked.digest
    plan = compose.plan(load_experiment(experiment()))
    vectors, _ = run_over_sockets(plan, compose.task_of(plan.experiment, plan.n)[0])
    assert digest(vectors) == stacked.digest


@pytest.mark.parametrize("placement", ["smooth", "alternating"])
def test_peers_agree_on_the_optimum_where_dsgd_stays_apart(placement: str) -> None:
    """Stationary disagreement: 0, for D-PSGD .42462948 (smooth) and .00065746 (alternating)."""
    task = {"kind": "quadratic", "placement": placement, "dtype": "float64", "eta": ETA}
    ours = simulate(experiment(task=task, rounds=1200), engine="stacked")
    assert ours.summary["consensus_distance"] ** 2 < 1e-14
    assert max(float(np.abs(x).max()) for x in ours.vectors) < 1e-7, "the optimum is the mean of b, which is 0"
    plain = simulate(experiment(task=task, algorithm={"name": "dsgd"}), engine="stacked")
    assert plain.summary["consensus_distance"] ** 2 == pytest.approx(
        {"smooth": 0.42462948, "alternating": 0.00065746}[placement], rel=1e-4
    )


@pytest.mark.parametrize(("weights", "consensus"), [("metropolis", 0.00589526), ("lazy", 0.00929853)])
def test_the_stationary_variance_is_the_papers_lyapunov_equation(weights: str, consensus: float) -> None:
    """With gradient noise of sigma 1: the printed numbers from the equation, and the algorithm's own map in it."""
    W = build(resolve("ring", N), weights).matrix()
    A, B = one_round(W, ETA)
    assert own_map(W) == pytest.approx(A)
    # c has the eigenvalue 1 on the constant vector, where it stays 0: taken out before the equation is solved
    P = np.eye(N) - np.full((N, N), 1 / N)
    project = np.block([[np.eye(N), np.zeros((N, N))], [np.zeros((N, N)), P]])
    C = scipy.linalg.solve_discrete_lyapunov(project @ A @ project, project @ B @ B.T @ project)[:N, :N]
    assert np.trace(P @ C @ P) / N == pytest.approx(consensus, abs=5e-9)
    assert np.full(N, 1 / N) @ C @ np.full(N, 1 / N) == pytest.approx(0.00328947, abs=5e-9)


def own_map(W: np.ndarray) -> np.ndarray:
    """The matrix of one round of the algorithm object, column by column, without b and without noise."""
    algorithm, columns = GradientTracking(), []
    for unit in np.eye(2 * N):
        x, c = (frozen(part.reshape(N, 1).copy()) for part in np.split(unit, 2))
        state, outgoing = algorithm.trained(type(algorithm.start(x))(x, c), frozen(-ETA * x), Step(0))
        after = algorithm.mixed(state, tuple(frozen(W @ vector) for vector in outgoing))
        columns.append(np.concatenate([after.x, after.correction])[:, 0])
    return np.array(columns).T


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**16))
def test_the_corrections_sum_to_nothing_and_the_mean_moves_by_the_mean_update(n: int, rounds: int, seed: int) -> None:
    rng = np.random.Generator(np.random.PCG64(seed))
    W = build(resolve("path", n)).matrix()
    algorithm = GradientTracking()
    state = algorithm.start(frozen(rng.standard_normal((n, 3))))
    expected = state.x.mean(axis=0)
    for number in range(rounds):
        update = frozen(rng.standard_normal((n, 3)))
        begun, outgoing = algorithm.trained(state, update, Step(number))
        state = algorithm.mixed(begun, tuple(frozen(W @ vector) for vector in outgoing))
        expected = expected + update.mean(axis=0)
        assert np.abs(state.x.mean(axis=0) - expected).max() < 1e-12
        assert np.abs(state.correction.sum(axis=0)).max() < 1e-12


def test_losses_and_slow_links_leave_no_bias() -> None:
    """An edge counts at both ends or at neither, for both vectors: what was lost is made up for."""
    lossy = [{"kind": "drop", "probability": 0.1}]
    waits = {"deadline": 1.0, "least_deadline": 0.3}
    content = experiment(rounds=300, algorithm={"name": "gradient-tracking", **waits}, faults=lossy)
    run = simulate({**content, "topology": {"graph": "ring", "n": 6}})
    assert run.summary["status"] == "finished"
    assert max(float(np.abs(x).max()) for x in run.vectors) < 1e-6


def test_a_peer_that_was_killed_and_comes_back_leaves_no_bias() -> None:
    waits = {"deadline": 1.0, "least_deadline": 0.3}
    crash = [{"kind": "crash", "peers": [3], "start": 2.0, "after": 1.0}]
    content = experiment(rounds=300, algorithm={"name": "gradient-tracking", **waits}, faults=crash)
    run = simulate({**content, "topology": {"graph": "ring", "n": 6}})
    assert max(float(np.abs(x).max()) for x in run.vectors) < 1e-6


# --- a member that is killed and does not come back -------------------------------------------------------------------


def member(node: NodeId, n: int, rounds: int) -> Member:
    section = {"name": "gradient-tracking", "deadline": 1.0, "least_deadline": 1.0, "start_timeout": 60.0}
    content = {
        "rounds": rounds,
        "algorithm": section,
        "topology": {"graph": "ring", "n": n},
        "task": {"kind": "quadratic", "placement": "smooth", "dtype": "float64", "eta": ETA},
    }
    plan = compose.plan(checked(content, "test"))

    def graphs(ids: tuple[NodeId, ...]) -> Any:
        return build(resolve("ring", len(ids)))

    def make(schedule: Any, checkpoint: Checkpoint | None, incarnation: int) -> Machine:
        from dataclasses import replace

        return replace(plan, schedule=schedule).machine(node, zero, "s", checkpoint, incarnation=incarnation)

    zero = frozen(np.zeros(1))
    members = membership_of(node, n, make=graphs, rounds=rounds)
    return Member(members, make, plan.resume_point, ("s", 1, "float64"), rounds, join=False, start_ns=60 * 10**9)


class Training(World):
    """Members that train on the quadratic: a step takes a tenth of a second."""

    def __init__(self, machines: dict[NodeId, Any], b: Sequence[float]) -> None:
        self.b, self.results = b, {}
        super().__init__(machines)

    def other(self, node: NodeId, effect: Effect | Event) -> None:
        match effect:
            case Train(job, vector):
                update = frozen(ETA * (self.b[node] - vector))
                self.push(0.1, node, Trained(job, update, 1, {"steps": 1, "rate": ETA}))
            case Finish(result):
                self.results[node] = result


def test_after_a_member_was_killed_the_others_agree_on_their_own_optimum() -> None:
    """What the dead one's correction was worth would bias the others for ever; they begin anew together."""
    n, b = 6, smooth(6)
    world = Training({node: member(node, n, 900) for node in range(n)}, list(b))
    world.run(6)
    assert set(world.living) == set(range(n))
    world.crash(2, notice=True)
    world.run(300)
    assert world.results.keys() == set(range(n)) - {2}
    optimum = np.delete(b, 2).mean()
    assert [float(x[0]) for x in world.results.values()] == pytest.approx([optimum] * 5, abs=1e-9)


# --- EXTRA ------------------------------------------------------------------------------------------------------------


def test_extra_comes_to_the_optimum_with_a_constant_step_where_dgd_stays_at_a_distance_of_the_step() -> None:
    """Least squares of unlike curvatures: every round is the paper's line in plain loops, the end is the optimum.

    Decentralised gradient descent, x' = W x - step g, which the paper compares with, ends at a distance O(step).
    """
    n, d, draw = 6, 3, np.random.default_rng(3)
    A, b = draw.standard_normal((n, 5, d)), draw.standard_normal((n, 5))
    optimum = np.linalg.lstsq(A.reshape(-1, d), b.reshape(-1), rcond=None)[0]
    W = build(resolve("ring", n)).matrix()
    curvature = max(np.linalg.eigvalsh(a.T @ a)[-1] for a in A)
    step = (1 + np.linalg.eigvalsh(W)[0]) / curvature / 2

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.array([a.T @ (a @ x_i - b_i) for a, x_i, b_i in zip(A, x, b, strict=True)])

    def mix(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.array([sum(matrix[i, j] * x[j] for j in range(n)) for i in range(n)])

    one, algorithm = np.eye(n), EXTRA()
    before = np.zeros((n, d))
    x = mix(W, before) - step * gradient(before)
    state = algorithm.start(frozen(before.copy()))
    for number in range(2000):
        update = frozen(-step * gradient(algorithm.model(state)))
        begun, sent = algorithm.trained(state, update, Step(number))
        state = algorithm.mixed(begun, tuple(frozen(W @ vector) for vector in sent))
        if number < 60:
            assert np.abs(algorithm.model(state) - x).max() < 1e-12
            change = step * (gradient(x) - gradient(before))
            before, x = x, mix(one + W, x) - mix((one + W) / 2, before) - change
    assert np.abs(algorithm.model(state) - optimum).max() < 1e-12
    assert np.abs(state.correction.sum(axis=0)).max() < 1e-12

    def distance(step: float) -> float:
        x = np.zeros((n, d))
        for _ in range(4000):
            x = W @ x - step * gradient(x)
        return float(np.linalg.norm(x - optimum))

    coarse, fine = distance(step / 10), distance(step / 20)
    assert fine > 1e-3 and 1.7 < coarse / fine < 2.3, "half the step, half the distance"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_it_has_rounds() -> None:
    with pytest.raises(ConfigError, match="gradient-tracking has no async mode"):
        simulate(experiment(algorithm={"name": "gradient-tracking", "mode": "async"}))


def test_weights_that_keep_no_mean_are_refused() -> None:
    with pytest.raises(ConfigError, match="the rows of its weights do not sum to one"):
        simulate(experiment(topology={"graph": "ring", "n": 6, "weights": "push"}))


def test_it_learns_digits_with_the_same_bits_in_simulator_and_on_stacked_arrays() -> None:
    content = {
        "rounds": 4,
        "data": {"partition": {"kind": "dirichlet", "alpha": 0.1}},
        "train": {"device": "cpu"},
        "topology": {"graph": "ring", "n": 5},
        "algorithm": {"name": "gradient-tracking"},
    }
    runs = [fedgossip.simulate(content, engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest


def reference(rounds: int) -> list[Vector]:
    """The papers' lines in plain loops, ascending ids, a product and a sum per term."""
    plan = compose.plan(load_experiment(experiment(rounds=rounds)))
    task, _ = compose.task_of(plan.experiment, N)
    x = [task.initial(i) for i in range(N)]
    c = [np.zeros(1) for _ in range(N)]
    for r in range(rounds):
        u = [task.train([Job(i, r, frozen(x[i]))])[0].difference for i in range(N)]
        y = [c[i] + u[i] if r else u[i] for i in range(N)]
        sent = [x[i] + y[i] for i in range(N)]
        rows = [sorted(plan.mixing.row(i).items()) for i in range(N)]
        x = [total([sent[j] * w for j, w in row]) for row in rows]
        c = [total([y[j] * w for j, w in row]) - u[i] for i, row in enumerate(rows)]
    return x


def total(terms: list[np.ndarray]) -> np.ndarray:
    sum_ = terms[0]
    for term in terms[1:]:
        sum_ = sum_ + term
    return sum_


def test_the_bits_are_those_of_the_papers_lines_in_plain_loops() -> None:
    assert digest(reference(30)) == simulate(experiment(rounds=30)).digest
