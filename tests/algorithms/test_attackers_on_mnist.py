"""The order of rules on real digits, as in the table of He, Karimireddy and Jaggi (2022), MNIST; in the long form.

Published, mean of the honest: two cliques without attackers, every peer with few classes: the sum 93.6, clipped 93.8,
geometric median 88.6, trimmed mean 86.9.  Under alie of 10 deviations: clipped 94.2, both others 9.8.  Theirs is a
model with momentum at the workers and tau = 0.1, on a ring with attackers at every peer (`fedgossip repro
clipped-gossip`); what is held here is the order, by a softmax and an adaptive tau.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedgossip
from fedgossip.lab.repro import run_measures

pytestmark = [pytest.mark.long, pytest.mark.data, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch, real_data: Path) -> None:
    monkeypatch.setenv("FEDGOSSIP_DATA", str(real_data))


def learned(rule: str, options: dict[str, Any], graph: str, rounds: int, adversary: dict[str, Any]) -> float:
    """The mean score of the honest of sixteen peers, of whom each has two shards of the sorted labels."""
    content = {
        "rounds": rounds,
        "data": {"source": "mnist", "partition": {"kind": "shard", "shards_per_peer": 2}},
        "train": {"lr": 0.1, "local_steps": 1, "batch_size": 32, "device": "cpu"},
        "topology": {"graph": graph, "n": 16},
        "algorithm": {"combine": rule, "combine_options": options},
        "adversary": adversary,
        "eval": {"every": rounds},
    }
    return float(fedgossip.simulate(content, engine="stacked").summary["score"]["mean_peer"])


def test_without_attackers_rules_cost_accuracy_in_the_published_order() -> None:
    """Measured: 0.837, 0.781, 0.751, 0.663."""
    rules = [("linear", {}), ("clipped", {"f": 1}), ("geometric-median", {}), ("trimmed-mean", {"f": 1})]
    found = [learned(rule, options, "two-cliques", 300, {}) for rule, options in rules]
    assert found == sorted(found, reverse=True) and found[1] - found[3] > 0.05


def test_a_little_is_enough_against_the_sum_and_the_trimmed_mean_and_not_against_the_nearest() -> None:
    """Measured: 0.003 and 0.003; clipped 0.21, geometric median 0.456, nna 0.834.

    Where we are not as published: there the geometric median falls too, and clipped holds.
    """
    liars = {"peers": [11, 12, 13, 14, 15], "attack": "alie", "options": {"z": 10.0}}
    rules = [("linear", {}), ("trimmed-mean", {"f": 3}), ("clipped", {"f": 5}), ("nna", {"f": 5})]
    plain, trimmed, clipped, nearest = (learned(rule, options, "complete", 100, liars) for rule, options in rules)
    assert max(plain, trimmed) < 0.15 < clipped < nearest and nearest > 0.75


ATTACKS = [("alie", {"z": 10.0}), ("ipm", {"scale": 0.1}), ("dissensus", {"scale": 1.5})]


def on_the_published_ring(
    monkeypatch: pytest.MonkeyPatch, attack: tuple[str, dict[str, float]], which: str, **more: Any
) -> float:
    """A score of 5 honest and 11 attackers with tau = 0.1, after 870 rounds."""
    data = {"source": "mnist", "partition": {"kind": "iid"}}
    onto = {**run_measures.TRAINING, "rounds": 870, "eval": {"every": 870}, "data": data, **more}
    monkeypatch.setattr(run_measures, "TRAINING", onto)
    return run_measures.score_on_malicious_ring(*attack, "clipped", {"tau": 0.1}, False, seeds=1, which=which)


def test_the_published_radius_holds_on_the_published_ring_in_the_published_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Published: 0.942, 0.915, 0.901.

    Measured: 0.868, 0.861 and 0.816, with a linear model where theirs is a convolutional one, and 8000 examples.
    """
    found = [on_the_published_ring(monkeypatch, attack, "mean_peer") for attack in ATTACKS]
    assert found == sorted(found, reverse=True) and found[-1] > 0.78


@pytest.mark.parametrize(("attack", "least"), [(ATTACKS[0], 0.89), (ATTACKS[1], 0.9), (ATTACKS[2], 0.85)])
def test_a_convolutional_model_comes_near_the_published_figures(
    monkeypatch: pytest.MonkeyPatch, attack: tuple[str, dict[str, float]], least: float
) -> None:
    """Measured as published, of the honest's averaged model, on standardised inputs: 0.917, 0.930, 0.875.

    Theirs has 32 and 64 channels where this has 8 and 16, and 3750 examples a peer where this has 500.
    """
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    model = {"source": "standardised_net:small"}
    assert on_the_published_ring(monkeypatch, attack, "averaged", model=model) > least
