"""Models that stay on the CPU in the layout of products: the bits and the record of vectors that come and go."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resident_kit import LEARNING, coming_back, events

from fedgossip import simulate
from fedgossip.base.errors import TrainingError
from fedgossip.base.vectors import RowGroups, ordered_mix_rows
from fedgossip.core.records import NetworkRow, Row
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.learning.many_nodes import resident, stacked_engine
from fedgossip.learning.many_nodes.resident import HostMixing, HostStack, room_of
from fedgossip.plans import compose
from fedgossip.topology import build, resolve


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by an element for every round of models that stay."""
    found: list[int] = []
    train = HostStack._train

    def counted(stack: HostStack, *how: Any) -> None:
        found.append(1)
        train(stack, *how)

    monkeypatch.setattr(HostStack, "_train", counted)
    return found


def alike(n: int) -> RowGroups:
    """Rows of two lengths, each weighed alike by all that hear it."""
    random = np.random.default_rng(3)
    scales = random.random(n)
    both = [np.sort([random.choice(n, k, replace=False) for _ in range(n // 2)], axis=1) for k in (4, 2)]
    nodes = random.permutation(n)
    return [
        (np.sort(part), ids, scales[ids]) for part, ids in zip((nodes[: n // 2], nodes[n // 2 :]), both, strict=True)
    ]


@pytest.mark.parametrize("at_once", [1, 1 << 18])
@pytest.mark.parametrize("graph", ["ring", "regular:4", "star", "complete", "alike"])
def test_mixing_has_the_bits_of_the_ordered_sum(graph: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "COLUMNS_OF_ALL", at_once)
    n = 12
    groups = alike(n) if graph == "alike" else build(resolve(graph, n, seed=0), "metropolis").rows_by_degree()
    x = np.random.default_rng(1).standard_normal((n, 379)).astype(np.float32)
    expected = np.empty_like(x)
    ordered_mix_rows(groups, x, expected)
    rows = [torch.tensor(x[:, :250]), torch.tensor(x[:, 250:])]
    HostMixing(groups, n).mix(rows, torch.empty(room_of(n, 250)))
    assert torch.cat(rows, 1).numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("model", ["softmax", "mlp:64-9-10", "mlp:64-9-7-10"])
@pytest.mark.parametrize("graph", ["ring", "star", "one-peer-exponential", "el-oracle:3"])
def test_a_run_ends_with_the_bits_and_the_record_of_vectors(graph: str, model: str, rounds: list[int]) -> None:
    content = {**LEARNING, "model": {"source": model}, "topology": {"graph": graph, "n": 8}}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert len(rounds) == 7 and not events(run)
    assert run.digest == expected.digest == simulate(content, engine="sim").digest
    assert run.rows == expected.rows


@pytest.mark.parametrize(
    "more",
    [
        {"train": {**LEARNING["train"], "schedule": "cosine"}},
        {"train": {**LEARNING["train"], "batch_size": 1, "local_steps": 1}},
        {"train": {**LEARNING["train"], "batch_size": 4, "accumulate": 2}},
        {"data": {"source": "diabetes"}, "model": {"source": "mlp:10-7-1"}},
        {"data": {"source": "diabetes"}, "model": {"source": "softmax"}},
        {"eval": {"every": 7, "watch": False}},
    ],
)
def test_rates_batches_losses_and_watched_rounds_are_those_of_vectors(more: dict[str, Any], rounds: list[int]) -> None:
    content = {**LEARNING, "eval": {"every": 3, "watch": True}, **more}
    run, expected = simulate(content, engine="stacked"), coming_back(content)
    assert len(rounds) == 7 and run.digest == expected.digest and run.rows == expected.rows


def test_blocks_of_few_nodes_have_the_bits_of_one_block(rounds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(LEARNING, engine="stacked")
    monkeypatch.setattr(stacked_engine, "LARGEST_BLOCK", 3)
    assert simulate(LEARNING, engine="stacked").rows == whole.rows and len(rounds) == 14


def test_rows_are_told_after_every_round(rounds: list[int]) -> None:
    """Whoever watches a run does not wait for a later one."""
    content, seen = {**LEARNING, "eval": {"every": 7, "watch": False}}, list[int]()

    def told(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round:
            seen.append(len(rounds))

    simulate(content, engine="stacked", watch=told)
    assert seen == list(range(1, 8))


def test_a_stopped_run_goes_on_bit_for_bit_with_all_of_its_rows(tmp_path: Path, rounds: list[int]) -> None:
    plan = compose.plan(load_experiment(LEARNING))

    def ctrl_c(row: Row) -> None:
        if isinstance(row, NetworkRow) and row.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = simulate_plan(plan, engine="stacked", out=tmp_path / "whole")
    first = simulate_plan(plan, engine="stacked", out=tmp_path / "run", watch=ctrl_c)
    assert first.summary["status"] == "interrupted" and first.network()[-1].round == 3
    second = simulate_plan(plan, engine="stacked", out=tmp_path / "run", resume=True)
    assert len(rounds) == 14 and second.digest == whole.digest
    name = "metrics.jsonl"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_loss_that_is_not_finite_names_its_node_and_comes_after_the_rows_before(rounds: list[int]) -> None:
    content = {**LEARNING, "train": {**LEARNING["train"], "lr": 1e30}}
    told = []
    for run, how in ((simulate, {"engine": "stacked"}), (coming_back, {})):
        seen: list[Row] = []
        with pytest.raises(TrainingError) as raised:
            run(content, **how, watch=seen.append)
        told.append((str(raised.value), seen))
    assert rounds and told[0] == told[1]
