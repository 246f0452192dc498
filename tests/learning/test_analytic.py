"""Problems whose answer is a formula."""

from __future__ import annotations

import numpy as np
import pytest

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.core.task import Job, LocalTask
from fedgossip.learning.analytic import Averaging, Quadratic


def ring(n: int) -> np.ndarray:
    """Metropolis weights of a ring: 1/3 each."""
    identity = np.eye(n)
    return (identity + np.roll(identity, 1, axis=1) + np.roll(identity, -1, axis=1)) / 3


def stationary_consensus_error(mixing: np.ndarray, b: np.ndarray, eta: float, sigma: float) -> float:
    """Return (1/n) sum_k>=2 (eta l_k / (1 - (1-eta) l_k))^2 B_k^2 + (eta^2 sigma^2 / n) sum_k>=2 l_k^2
    / (1 - (1-eta)^2 l_k^2),

    for x <- W (x - eta (x - b + xi)), W symmetric with modes (l_k, u_k), B_k = u_k' b: the recursion is linear and each
    mode is an AR(1) process of its own.
    """
    values, modes = np.linalg.eigh(mixing)
    values, parts = values[:-1], (modes.T @ b)[:-1]  # the last is the mean
    bias = (eta * values / (1 - (1 - eta) * values)) ** 2 * parts**2
    noise = eta**2 * sigma**2 * values**2 / (1 - (1 - eta) ** 2 * values**2)
    return float((bias.sum() + noise.sum()) / len(b))


def adapt_then_combine(task: Quadratic, mixing: np.ndarray, rounds: int, skip: int) -> float:
    """Return the mean consensus error per coordinate over the rounds after `skip`."""
    x = np.stack([task.initial(node) for node in range(task.n)])
    errors = []
    for round in range(rounds):
        updates = task.train([Job(node, round, frozen(x[node].copy())) for node in range(task.n)])
        x = mixing @ (x + np.stack([update.difference for update in updates]))
        if round >= skip:
            errors.append(np.mean((x - x.mean(axis=0)) ** 2))
    return float(np.mean(errors))


@pytest.mark.parametrize("placement", ["smooth", "alternating"])
def test_the_placement_of_the_data_decides_the_consensus_error(placement):
    task, mixing = Quadratic(16, placement=placement), ring(16)
    expected = stationary_consensus_error(mixing, task.b[:, 0], 0.1, 0.0)
    assert adapt_then_combine(task, mixing, 1000, 999) == pytest.approx(expected, rel=1e-9)


def test_noise_adds_its_own_consensus_error():
    task = Quadratic(16, 400, placement="alternating", sigma=1.0, seed=3)
    expected = stationary_consensus_error(ring(16), task.b[:, 0], 0.1, 1.0)
    assert adapt_then_combine(task, ring(16), 260, 60) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("placement", ["smooth", "alternating"])
def test_placements_have_the_same_heterogeneity(placement):
    assert np.sum(Quadratic(16, placement=placement).b ** 2) == pytest.approx(16)


def test_the_loss_is_the_mean_of_the_nodes_functions():
    task = Quadratic(5, 3, placement="random", seed=1)
    x = np.arange(3.0)
    expected = np.mean([0.5 * np.sum((x - b) ** 2) for b in task.b])
    assert task.evaluate([x])[0]["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_kept(dtype):
    tasks: list[LocalTask] = [Quadratic(4, 3, sigma=0.1, dtype=dtype), Averaging(4, 3, dtype=dtype)]
    for task in tasks:
        assert task.dtype == task.initial(1).dtype == dtype
        assert task.initial(1).shape == (task.length,) == (3,)
    (update,) = tasks[0].train([Job(1, 0, tasks[0].initial(1))])
    assert update.difference.dtype == dtype
    assert not update.difference.flags.writeable


def test_the_mean_of_the_first_vectors_has_no_loss():
    task = Averaging(6, 50, dtype=np.float64)
    mean = np.mean([task.initial(node) for node in range(6)], axis=0)
    assert task.evaluate([mean])[0]["loss"] == pytest.approx(0, abs=1e-30)
    assert task.train([Job(0, 0, task.initial(0))])[0].difference is None


def test_noise_is_a_function_of_node_and_round():
    task = Quadratic(4, 3, sigma=1.0)
    one, again, other = (task.train([Job(2, r, task.initial(2))])[0].difference for r in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_an_unknown_placement_is_refused():
    with pytest.raises(ConfigError, match="smoth") as error:
        Quadratic(4, placement="smoth")
    assert "smooth" in error.value.advice
