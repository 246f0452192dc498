"""DiLoCo on graphs by codecs: an outer step of each peer, and what has changed of its model as CHOCO-SGD says it."""

from __future__ import annotations

from typing import Any

import fault_seeds
import numpy as np
import pytest
from over_sockets import run_over_sockets

from fedgossip import simulate
from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import digest
from fedgossip.core.records import PeerRow
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

MILD = {"lr": 1.0, "beta": 0.5}


def diloco(options: dict[str, Any], rounds: int = 12, **more: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "task": {"kind": "quadratic", "dim": 30, "sigma": 0.1, "placement": "random"},
        "topology": {"graph": "ring", "n": 6},
        "algorithm": {"name": "diloco", "options": options, "deadline": 1e5},
        "eval": {"every": rounds},
        **more,
    }


@pytest.mark.parametrize("codec", ["top-k:0.4", "sign", "int8:16", "bf16"])
def test_simulator_and_stacked_arrays_have_one_digest_and_the_same_rows(codec: str) -> None:
    runs = [simulate(diloco({**MILD, "codec": codec}), engine=engine) for engine in ("sim", "stacked")]
    assert runs[0].digest == runs[1].digest
    ours, theirs = (
        sorted((row.round, row.peer, row.bytes_sent, row.payload_sent) for row in run.rows if isinstance(row, PeerRow))
        for run in runs
    )
    assert ours == theirs


@pytest.mark.sockets
def test_bits_over_sockets_are_those_of_the_simulator() -> None:
    content = diloco({"codec": "top-k:0.4"})
    plan = compose.plan(load_experiment(content))
    task, _ = compose.task_of(plan.experiment, plan.learners)
    vectors, _ = run_over_sockets(plan, task)
    assert digest(vectors) == simulate(content).digest


def test_on_the_complete_graph_a_codec_that_leaves_nothing_out_makes_it_diloco_to_rounding() -> None:
    complete = {"topology": {"graph": "complete", "n": 5}}
    both = diloco({"codec": "top-k:1", "gamma": 1.0}, **complete), diloco({}, **complete)
    ends = [np.stack(simulate(one, engine="stacked").vectors) for one in both]  # type: ignore[arg-type]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("codec", ["top-k:0.4", "sign"])
def test_a_step_of_one_without_momentum_is_choco_sgd_to_rounding(codec: str, nesterov: bool) -> None:
    stepped = diloco({"lr": 1.0, "beta": 0.0, "codec": codec, "nesterov": nesterov}, rounds=4)
    plain = {**stepped, "algorithm": {"name": "choco", "options": {"codec": codec}, "deadline": 1e5}}
    ends = [np.stack(simulate(one, engine="stacked").vectors) for one in (stepped, plain)]  # type: ignore[arg-type]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-5)


SQUARE = {("complete", "sign"), ("star", "top-k:0.1"), ("ring", "int8:16")}
"""Each graph and each codec once; the other pairs are the long form."""


@pytest.mark.parametrize(
    ("graph", "codec"),
    [
        pytest.param(graph, codec, marks=[] if (graph, codec) in SQUARE else pytest.mark.long)
        for graph in ("complete", "star", "ring")
        for codec in ("top-k:0.1", "sign", "int8:16")
    ],
)
def test_peers_agree_by_the_gamma_that_is_computed(graph: str, codec: str) -> None:
    """Nothing is trained: from models that are 1 apart they come to a tenth of that, and the mean stays."""
    task = {"kind": "averaging", "dim": 60, "dtype": "float64"}
    content = diloco({"codec": codec}, 300, task=task, topology={"graph": graph, "n": 8})
    run = simulate(content, engine="stacked")
    first, last = run.network()[0].consensus_distance, run.network()[-1].consensus_distance
    assert first > 0.5 and last < 0.1
    begun = np.mean([compose.task_of(load_experiment(content), 8)[0].initial(node) for node in range(8)], axis=0)
    assert np.abs(np.mean(np.stack(run.vectors), axis=0) - begun).max() < 1e-9  # type: ignore[arg-type]


def check_seeds(seeds: range) -> int:
    """Run seeds of the fault simulation by this algorithm; return how many changes were missed."""
    codecs = ("top-k:0.5", "sign", "int8:4")
    return fault_seeds.changes_missed(seeds, "diloco", lambda seed: {**MILD, "codec": codecs[seed % 3]})


def test_what_was_left_out_survives_lost_packets_and_the_mean_is_kept_or_the_loss_told() -> None:
    assert check_seeds(range(15)) > 5


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_seeds(block: int) -> None:
    check_seeds(range(15 + 100 * block, 115 + 100 * block))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"codec": "terngrad"}, "diloco: terngrad is no codec for it"),
        ({"gamma": 0.5}, "gamma is 0.5 without a codec"),
        ({"codec": "int8", "gamma": 0}, "gamma is 0"),
        ({"codec": "int8", "gamma": "practise"}, "diloco: there is no rule 'practise'"),
        ({"codec": "int8", "lr": 0}, "lr is 0"),
        ({"norm": 1.0}, "norm"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_advice(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        compose.plan(load_experiment(diloco(options)))
    assert refused.value.advice


def test_pairs_that_change_are_refused() -> None:
    """A peer keeps what each neighbour was told: so neighbours stay."""
    with pytest.raises(ConfigError, match="diloco"):
        compose.plan(load_experiment(diloco({"codec": "int8"}, topology={"graph": "random-matching", "n": 6})))
