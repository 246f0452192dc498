"""PowerSGD: two sums a round, factors of matrices in place of them, one digest in all drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from over_sockets import run_over_sockets
from resuming import from_the_middle
from test_allreduce import learning
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from fedgossip import simulate
from fedgossip.algorithms.codecs.base import VectorLayout
from fedgossip.algorithms.codecs.low_rank import LowRank, low_rank_of
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector, digest, frozen
from fedgossip.core.records import PeerRow
from fedgossip.core.task import Segment, segments_of
from fedgossip.experiment import load_experiment
from fedgossip.lab.compare.names import paradigm_of
from fedgossip.plans import compose
from fedgossip.protocols.allreduce.coded_fragments import LowRankGradients, LowRankSums

SHAPES = ((30, 20), (30,), (6, 5, 2, 2), (3, 2))
FLOAT = np.dtype(np.float32)


def low(rank: int = 2) -> LowRank:
    segments, at = [], 0
    for number, shape in enumerate(SHAPES):
        segments.append(Segment(str(number), at, shape))
        at += int(np.prod(shape))
    return LowRank(rank, VectorLayout.of_length(at, FLOAT, segments), 1)


def gradients(workers: int, seed: int = 0) -> list[Vector]:
    draw = np.random.default_rng(seed)
    return [frozen(draw.standard_normal(low().layout.length).astype(np.float32)) for _ in range(workers)]


def coded(rank: int = 2, workers: int = 3, method: str = "ring", **more: Any) -> dict[str, Any]:
    return learning(workers, method, parallel={"codec": f"powersgd:{rank}", **more.pop("parallel", {})}, **more)


def rows(run: Any) -> list[tuple[int, int, int, int]]:
    found = [row for row in run.rows if isinstance(row, PeerRow)]
    return sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in found)


# --- the mathematics --------------------------------------------------------------------------------------------------


def round_of(of: LowRank, given: list[Vector], right: Vector) -> tuple[Vector, Vector, Vector]:
    """(all P, all Q, the mean) of a round whose sums are means of float32 vectors."""
    first: Any = np.mean([of.first(one, right) for one in given], axis=0, dtype=np.float32)
    left = of.left(first)
    second: Any = np.mean([of.second(one, left) for one in given], axis=0, dtype=np.float32)
    return left, second, of.restored(left, first[of.left_length :], second)


def test_factors_are_those_of_torch_to_1e_5() -> None:
    """On the same gradients and the same Q: M Q, torch's own Gram-Schmidt of its hook, M' P, and P Q'."""
    of, given = low(), gradients(4)
    left, second, mean = round_of(of, given, of.start())
    for one in of.matrices:
        whole = torch.from_numpy(np.mean([g[one.place] for g in given], axis=0)).reshape(one.rows, one.columns)
        p = whole @ torch.tensor(of.start()[one.second].reshape(2, one.columns)).T
        powerSGD_hook._orthogonalize_gram_schmidt(p.unsqueeze(0))
        q = whole.T @ p
        np.testing.assert_allclose(left[one.first].reshape(2, -1).T, p, atol=1e-5)
        np.testing.assert_allclose(second[one.second].reshape(2, -1).T, q, atol=1e-5)
        np.testing.assert_allclose(mean[one.place].reshape(one.rows, -1), p @ q.T, atol=1e-5)


def test_the_bytes_are_those_of_the_factors_and_of_what_goes_whole() -> None:
    """4 r (n + m) of matrices [n, m]; (6, 5, 2, 2) is one of 6 by 20; (30,) goes whole, and (3, 2), of 6 elements."""
    of = low()
    assert [(one.rows, one.columns) for one in of.matrices] == [(30, 20), (6, 20)]
    assert of.first_length == 2 * (30 + 6) + 30 + 6 and of.second_length == 2 * (20 + 20)


def test_a_matrix_of_that_rank_is_said_whole() -> None:
    of, draw = low(3), np.random.default_rng(0)
    vector = np.zeros(of.layout.length, np.float32)
    for one in of.matrices:
        vector[one.place] = (draw.standard_normal((one.rows, 3)) @ draw.standard_normal((3, one.columns))).reshape(-1)
    _, _, mean = round_of(of, [frozen(vector)], of.start())
    np.testing.assert_allclose(mean, vector, atol=1e-4)


def test_the_warm_start_comes_near_to_the_best_of_that_rank() -> None:
    """Of one matrix again and again: rounds are steps of subspace iteration, to the largest singular values."""
    of, (vector,) = low(1), gradients(1)
    right = of.start()
    for _ in range(300):
        _, second, mean = round_of(of, [vector], right)
        right = of.upright(second)
    for one in of.matrices:
        matrix = vector[one.place].reshape(one.rows, one.columns)
        singular = np.linalg.svd(matrix, compute_uv=False)
        off = np.linalg.norm(matrix - mean[one.place].reshape(matrix.shape))
        assert off <= 1.001 * np.sqrt((singular[1:] ** 2).sum())


def test_nothing_but_zeros_is_said_as_zeros() -> None:
    of = low()
    zeros = frozen(np.zeros(of.layout.length, np.float32))
    left, second, mean = round_of(of, [zeros], of.start())
    assert not mean.any() and not left.any() and not of.upright(second).any()


def test_what_is_left_out_and_what_was_stepped_along_are_all_that_was_given() -> None:
    """The mean over workers of what they left out, and the sum of the means, are the sum of the mean gradients."""
    of = low()
    sums = LowRankSums(lambda _: None, of, 1000)  # type: ignore[arg-type,return-value]
    workers, stepped, whole = [LowRankGradients(node, sums) for node in range(3)], 0.0, 0.0
    for round in range(5):
        given = gradients(3, round)
        brought: Any = [one.coded(g, 1, {}, round) for one, g in zip(workers, given, strict=True)]
        left, second, mean = round_of(of, [pieces[2] for _, pieces in brought], workers[0].memory[1])
        found = frozen(np.concatenate([left, mean[of.whole], np.ones(2, np.float32), second]))
        for one in workers:
            one.take_result(found)
            one.settled(round + 1)
        stepped, whole = stepped + mean.astype(np.float64), whole + np.mean(given, axis=0, dtype=np.float64)
    left_out = np.mean([one.memory[0] for one in workers], axis=0, dtype=np.float64)
    np.testing.assert_allclose(stepped + left_out, whole, atol=1e-5)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ring", "star", pytest.param("tree", marks=pytest.mark.long)])
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(method: str) -> None:
    runs = [simulate(coded(method=method), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest and rows(runs[0]) == rows(runs[1])


@pytest.mark.sockets
def test_bits_over_sockets_are_those_of_the_simulator() -> None:
    experiment = load_experiment(coded())
    plan = compose.plan(experiment)
    task, shares = compose.task_of(experiment, plan.learners)
    vectors, _ = run_over_sockets(plan.with_shares(shares).with_segments(segments_of(task)), task)
    assert digest(vectors) == simulate(coded()).digest


def test_a_rank_that_is_worth_it_for_no_tensor_sends_gradients_as_they_are_and_says_so() -> None:
    """Of 10 by 64: 9 (10 + 64) = 666 elements are no fewer than 640."""
    experiment = coded(9)
    assert simulate(experiment).digest == simulate(learning(3)).digest
    plan: Any = compose.plan(load_experiment(experiment))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    assert any("powersgd:9: 0 of 2 tensors by factors, the others whole" in line for line in plan.outlook(task).lines)


def test_lost_late_and_doubled_messages_change_no_bit() -> None:
    faults = [
        {"kind": "drop", "probability": 0.1},
        {"kind": "duplicate", "probability": 0.2},
        {"kind": "delay", "seconds": 0.05, "probability": 0.2},
    ]
    assert simulate(coded(faults=faults, simulation={"jitter": 0.02})).digest == simulate(coded()).digest


def test_survivors_and_one_that_comes_back_end_with_the_same_bits() -> None:
    whole = simulate(coded(workers=4, rounds=8)).summary["seconds"]
    for at in np.linspace(0.001, whole * 0.45, 3):
        faults = [
            {"kind": "crash", "peers": [1], "start": float(at)},
            {"kind": "crash", "peers": [3], "start": float(at) + 0.05, "after": 0.1},
        ]
        run = simulate(coded(workers=4, rounds=8, faults=faults))
        assert len({digest([run.vectors[node]]) for node in (0, 2, 3)}) == 1  # type: ignore[list-item]


@pytest.mark.parametrize("engine", ["sim", "stacked"])
def test_a_stopped_simulation_goes_on_bit_for_bit(engine: str, tmp_path: Path) -> None:
    plan = compose.plan(load_experiment(coded(rounds=5)))
    whole, again = from_the_middle(plan, tmp_path, engine)
    assert again.digest == whole.digest and again.rows == whole.rows


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"parallel": {"workers": 4, "codec": "powersgd"}}, "powersgd takes the rank"),
        ({"parallel": {"workers": 4, "codec": "powersgd:0"}}, "powersgd takes the rank"),
        ({"parallel": {"workers": 4, "codec": "powersgd:1.5"}}, "powersgd takes the rank"),
        ({"parallel": {"workers": 4, "codec": "powersgd:2", "overlap": True}}, "needs the whole gradient"),
        ({"parallel": {"workers": 4, "codec": "powersgd:2", "method": "mapreduce"}}, "takes two sums"),
        ({"coordinator": {"clients": 4, "codec": "powersgd:2"}}, "takes two sums"),
        ({"topology": {"graph": "ring", "n": 4}, "algorithm": {"name": "choco", "options": {"codec": "powersgd:2"}}},
         "takes two sums"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused_with_advice(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        compose.plan(load_experiment(section))
    assert refused.value.advice


def test_compare_says_that_it_cannot_price_it() -> None:
    with pytest.raises(ConfigError, match=r"ring\+powersgd:2: its bytes follow from the shapes") as refused:
        paradigm_of("ring+powersgd:2")
    assert "--set parallel.codec=powersgd:2" in refused.value.advice


def test_a_name_of_another_codec_has_no_rank() -> None:
    assert low_rank_of("top-k:0.1") is None and low_rank_of("") is None and low_rank_of("powersgd:4") == 4
