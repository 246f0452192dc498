"""A thousand seeds, each a graph, an algorithm, a network and faults: every run ends, and the mean is kept.

Long form: `pytest --long tests/protocols/gossip/test_fault_simulation.py`, twenty times as many.  A seed that fails
is run again, and shown event by event, by `python tests/fault_seeds.py SEED`.
"""

from __future__ import annotations

import json

import fault_seeds
import pytest

BLOCK, BLOCKS, LONG_BLOCKS = 100, 2, 200


def check(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        outcome = fault_seeds.run(seed)
        assert not outcome.verdict, f"{outcome.verdict}\n\n    python tests/fault_seeds.py {seed}\n"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_ends_and_keeps_the_mean_or_reports_what_it_lost(block: int) -> None:
    check(block)


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS, LONG_BLOCKS))
def test_twenty_thousand_seeds(block: int) -> None:
    check(block)


def test_a_seed_has_one_history() -> None:
    def history(seed: int) -> list[str]:
        rows: list[object] = []
        fault_seeds.run(seed, rows.append)
        return [repr(row) for row in rows]

    for seed in range(5):
        assert history(seed) == history(seed) != []


def test_the_seeds_meet_every_fault_and_every_algorithm() -> None:
    met = [fault_seeds.scenario(seed) for seed in range(BLOCK * BLOCKS)]
    kinds = {fault["kind"] for one in met for fault in one["faults"]}
    assert kinds == {"drop", "duplicate", "reorder", "delay", "flap", "partition", "slow", "sleep", "crash"}
    assert {(one["algorithm"]["name"], one["algorithm"]["mode"]) for one in met} == set(fault_seeds.MODES)
    assert len({json.dumps(one["topology"]) for one in met}) > 30


def test_a_rule_that_gives_a_lost_weight_to_one_end_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one-sided rule that we replaced: without the accounts some seed must move the mean."""
    from fedgossip.protocols.gossip.edge_ledger import Edge

    monkeypatch.setattr(Edge, "missed", lambda *_: None)
    assert any("the mean moved" in fault_seeds.run(seed).verdict for seed in range(100))
