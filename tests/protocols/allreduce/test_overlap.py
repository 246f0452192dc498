"""Buckets that leave while the rest of the gradient is computed: the same bits, sooner."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgossip import Job, Update, simulate
from fedgossip.algorithms.collectives.names import COLLECTIVES, EqualLinks
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import frozen
from fedgossip.core.machine import Produced
from fedgossip.core.messages import TAIL
from fedgossip.core.records import NetworkRow
from fedgossip.data.data import load, split
from fedgossip.data.partitions import partition
from fedgossip.drivers.local import run_local_plan
from fedgossip.drivers.replay import replay_trace
from fedgossip.experiment import load_experiment
from fedgossip.lab.costs.base import TrainingTimes
from fedgossip.lab.costs.methods import Buckets, collective
from fedgossip.learning.task import TorchTask, TrainSettings
from fedgossip.plans import compose
from fedgossip.protocols.allreduce.reduction import Reduction
from fedgossip.runs.trace import Reading
from fedgossip.simulation.network import share_until

NAMES = sorted(COLLECTIVES)
TRAINING = 0.05


def quadratic(workers: int = 4, method: str = "ring", *, overlap: bool, **more: Any) -> dict[str, Any]:
    """200 elements in buckets of 16."""
    parallel = {"workers": workers, "method": method, "bucket": 64, "overlap": overlap}
    task = {"kind": "quadratic", "dim": 200, "sigma": 0.3}
    return {"rounds": 6, "task": task, "train": {"lr": 0.1}, "parallel": parallel, **more}


def digits(model: str = "mlp:64-16-10", **how: Any) -> TorchTask:
    train, test = split(load("digits"), 0.2, 0)
    shares = partition("iid", train.y, 2, seed=0)
    return TorchTask(train, test, shares, model, TrainSettings(device="cpu", **how), seed=1, rounds=50)


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_bits_do_not_depend_on_overlap(method: str, workers: int) -> None:
    early, late = (simulate(quadratic(workers, method, overlap=overlap)) for overlap in (True, False))
    assert early.digest == late.digest == simulate(quadratic(workers, method, overlap=True), engine="stacked").digest


def test_bits_do_not_depend_on_it_whatever_is_lost_and_whoever_dies() -> None:
    faults = [
        {"kind": "drop", "probability": 0.1},
        {"kind": "duplicate", "probability": 0.2},
        {"kind": "delay", "seconds": 0.05, "probability": 0.2},
    ]
    loud, quiet = quadratic(overlap=True, faults=faults, simulation={"jitter": 0.02}), quadratic(overlap=False)
    assert simulate(loud).digest == simulate(quiet).digest
    for at in np.linspace(0.02, 0.6, 6):  # in the middle of a stretch too
        run = simulate(quadratic(5, overlap=True, faults=[{"kind": "crash", "peers": [1], "start": float(at)}]))
        ends = {run.vectors[node].tobytes() for node in (0, 2, 3, 4)}  # type: ignore[union-attr]
        assert len(ends) == 1 and run.summary["status"] == "partial"


def test_a_long_collective_hides_the_backward_pass() -> None:
    """Where links take longer than the training, a round is shorter by the time of the backward pass but one bucket."""
    links = {"bandwidth": 2e4, "downlink": 2e4, "latency": 1e-4, "training": TRAINING}
    early, late = (
        simulate(quadratic(overlap=overlap, simulation=links)).summary["seconds"] / 6 for overlap in (True, False)
    )
    backward = TRAINING - TRAINING * share_until(192, 200, 1)
    assert 0.8 * backward < late - early < 1.2 * backward


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("method", ["ring", "halving-doubling", "all-to-all"])
def test_a_round_with_buckets_takes_what_the_cost_model_says(method: str, accumulate: int, overlap: bool) -> None:
    """And up to a twelfth more: acknowledgements queue behind chunks, and a fifth chunk of a link waits for one."""
    dim, m, rounds, latency, rate = 160_000, 4, 4, 1e-3, 4e6
    links = {"latency": latency, "bandwidth": rate, "downlink": rate, "training": TRAINING}
    experiment = quadratic(m, method, overlap=overlap, rounds=rounds, simulation=links)
    experiment["task"]["dim"] = dim
    experiment["parallel"] |= {"bucket": 64_000, "accumulate": accumulate, "deadline": 1e3, "least_deadline": 1e3}
    rows = [row.seconds for row in simulate(experiment).rows if isinstance(row, NetworkRow)]
    buckets, times = Buckets(16_000, overlap, accumulate), TrainingTimes.equal(TRAINING, m)
    told = collective(method, 4 * (dim + TAIL), EqualLinks(latency, rate, rate), times, buckets=buckets)
    assert told.seconds <= (rows[-1] - rows[1]) / (rounds - 1) <= 1.08 * told.seconds


def test_share_of_a_training() -> None:
    """Two thirds of the last of the batches is its backward pass."""
    assert share_until(0, 100, 1) == 1.0
    assert share_until(100, 100, 1) == pytest.approx(1 / 3)
    assert share_until(50, 100, 4) == pytest.approx(1 - 1 / 12)


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("mlp:64-16-10", {}),
        ("mlp:64-32-16-10", {}),
        ("softmax", {}),
        ("cnn:small", {}),
        ("mlp:64-32-16-10", {"precision": "bfloat16"}),
        ("cnn:small", {"channels_last": True}),
        ("cnn:small-bn", {"buffers": "local"}),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_stretches_are_the_gradient_to_the_bit(model: str, how: dict[str, Any], accumulate: int) -> None:
    """Of stacks, and of torch's own modules; what is told is a suffix of it, the last first, with its loss."""
    task = digits(model, **how)
    starts = tuple(range(task.length - task.length % 97, 0, -97))
    job = Job(1, 4, task.initial(0), gradient=True, accumulate=accumulate, stretches=starts)
    (whole,) = task.gradients([Job(1, 4, task.initial(0), gradient=True, accumulate=accumulate)])
    told: list[Produced] = []
    update: Update = task.gradient_in_stretches(job, told.append)
    assert update.difference is not None and whole.difference is not None
    assert update.difference.tobytes() == whole.difference.tobytes() and update.metrics == whole.metrics
    stop = task.length
    for one, start in zip(told, starts, strict=False):
        assert one.start == start and one.start + one.vector.size == stop
        assert one.vector.tobytes() == whole.difference[start:stop].tobytes()
        assert one.metrics["loss"] == whole.metrics["loss"] and one.examples == whole.examples
        assert one.metrics["rows"] == whole.metrics["rows"]
        stop = start
    alone = model in ("softmax", "cnn:small") and not how  # one linear layer, which is there at the very end
    assert alone or told


def test_stretches_are_told_before_the_gradient_is_there() -> None:
    task = digits("mlp:64-64-64-10", precision="bfloat16")
    seen: list[bool] = []
    done = threading.Event()
    last = task.layout.segments[-2].start
    job = Job(0, 0, task.initial(0), gradient=True, accumulate=1, stretches=(last,))
    module = task._engine._module  # type: ignore[union-attr]
    first = next(module.parameters())
    first.register_post_accumulate_grad_hook(lambda _: done.set())
    task.gradient_in_stretches(job, lambda _: seen.append(done.is_set()))
    assert seen == [False] and done.is_set()


def test_a_stretch_that_leaves_a_gap_waits_for_the_whole() -> None:
    """As after a round that was stopped: what was told before is not told again."""
    kind, table = np.dtype(np.float64), COLLECTIVES["ring"].table(2)
    ranks = [Reduction(rank, table, 10, kind, 4) for rank in range(2)]
    ones = frozen(np.ones(10))
    assert ranks[0].give(2, 1.0, ones[2:8]) == [] and not ranks[0].begun
    assert [one.bucket for one in ranks[0].give(4, 1.0, ones[4:])] == [2, 1]
    assert ranks[0].give(4, 1.0, ones[4:]) == [], "it was there before"
    assert [one.bucket for one in ranks[0].give(0, 1.0, ones)] == [0]
    assert ranks[0].begun and not ranks[0].done


@pytest.mark.sockets
def test_processes_that_overlap_end_with_the_digest_of_those_that_do_not(tmp_path: Path) -> None:
    parallel = {"workers": 3, "bucket": 1000}
    train = {"lr": 0.1, "momentum": 0.9, "batch_size": 32, "device": "cpu"}
    experiment = {"rounds": 3, "model": {"source": "mlp:64-32-10"}, "train": train, "parallel": parallel}
    early = {**experiment, "parallel": {**parallel, "overlap": True}}
    run = run_local_plan(compose.plan(load_experiment(early)), tmp_path / "run", report=False, trace_bytes=1 << 24)
    assert run.digest == simulate(experiment).digest
    for folder in sorted((tmp_path / "run" / "peers").glob("*")):
        replayed = replay_trace(folder)
        assert replayed.equal and replayed.digest is not None
        with Reading(folder / "trace.bin") as reading:
            assert any(isinstance(entry.event, Produced) for entry in reading)


@pytest.mark.parametrize("method", ["mapreduce", "parameter-server"])
def test_servers_have_none(method: str) -> None:
    with pytest.raises(ConfigError, match=r"parallel\.overlap"):
        load_experiment({"parallel": {"workers": 4, "method": method, "overlap": True}})
