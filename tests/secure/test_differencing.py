"""Sums of a lying coordinator that differ by one client: what their difference tells of it (docs/privacy/attacks.md,
A18).

The coordinator leads two sessions of one round with the same clients, and lets one of them be away in the second.
Batches and rounding follow from the round, so all else cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lying import TRAININGS, Hall, from_round_to_round, learning, nudged

from fedgossip.base.seeds import stream
from fedgossip.core.messages import Invite, Message, Secured
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose
from fedgossip.protocols.federated.coordinator import Coordinator
from fedgossip.secure.aborts import Reason, Stage
from fedgossip.secure.fixed_point import Words, centred

VICTIM = 3
CLOSE = 0.1
"""The cosine with the victim's update from which on a difference tells of it."""


def tells(hall: Hall, first: Words | None, second: Words | None) -> bool:
    """Whether the difference of two sums tells what the victim has learned."""
    assert first is not None, "the first session is an honest one"
    return second is not None and abs(hall.closeness(first, second, VICTIM, 0)) > CLOSE


def again(hall: Hall) -> Words | None:
    return hall.session(life=1, away=[VICTIM])


def from_another_model(hall: Hall) -> Words | None:
    """As good as the same, and another input to the sum."""
    return hall.session(life=1, away=[VICTIM], model=nudged(hall.initial, 1e-6))


def behind_a_session_that_is_thrown_away(hall: Hall) -> Words | None:
    hall.session(life=1, round=1, until="shares")
    return hall.session(life=2, away=[VICTIM])


def in_another_life_of_the_clients(hall: Hall) -> Words | None:
    for node in hall.clients:
        hall.start(node, life=1)
    return hall.session(life=1, away=[VICTIM])


def under_the_name_of_another_round(hall: Hall) -> Words | None:
    """The session is of round 7, and clients are to train with the batches of round 0."""

    def lie(message: Message) -> Message:
        return replace(message, round=0) if isinstance(message, Invite) else message

    return hall.session(life=1, round=7, away=[VICTIM], twist=lie)


def with_the_number_of_another_session(hall: Hall) -> Words | None:
    """What the client's log would say of it lets it forget round 0 in its next life."""

    def lie(message: Message) -> Message:
        return replace(message, session=1 << 33) if isinstance(message, Invite) else message

    return hall.session(life=1, round=3, away=[VICTIM], twist=lie)


def in_a_round_that_is_none(hall: Hall) -> Words | None:
    return hall.session(life=1, round=10**6, away=[VICTIM])


ATTACKS = [
    again,
    from_another_model,
    behind_a_session_that_is_thrown_away,
    in_another_life_of_the_clients,
    under_the_name_of_another_round,
    with_the_number_of_another_session,
    in_a_round_that_is_none,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_two_sums_of_a_round_do_not_differ_by_one_client(attack: Callable[[Hall], Words | None]) -> None:
    hall = Hall(learning())
    first = hall.session(life=0)
    assert not hall.refused
    assert not tells(hall, first, attack(hall))
    assert {node for node, _ in hall.refused} == set(range(8)) - {VICTIM}, "each refuses, and says so"


def test_what_was_masked_is_on_disk_before_it_leaves(tmp_path: Path) -> None:
    """The clients are killed once their masked vectors have left; their next lives know no more than the disk does."""
    hall = Hall(learning(), folder=tmp_path)
    first = hall.session(life=0)
    for node in hall.clients:
        hall.start(node, life=1)
    assert not tells(hall, first, hall.session(life=1, away=[VICTIM]))
    assert {reason for _, reason in hall.refused} == {Reason.REPLAY}
    assert hall.session(life=1, round=1) is not None, "the next round is summed"


def test_a_round_that_nobody_has_masked_in_may_be_led_again() -> None:
    hall = Hall(learning())
    hall.session(life=0, until="shares")
    assert hall.session(life=1) is not None and not hall.refused


def withheld(message: Message) -> Message:
    """Return it, but for the result of a sum, which the coordinator keeps for itself."""
    late = isinstance(message, Secured) and message.stage == Stage.RESULT
    return replace(message, frame=b"none") if late else message


@pytest.mark.parametrize("dies", [False, True])
def test_a_round_that_is_said_to_be_lost_is_not_summed_again_without_the_victim(dies: bool) -> None:
    """Without chance the next round is the same from the same model: the difference would be the victim's update."""
    hall = Hall({"task": {"kind": "quadratic", "dim": 9}, "coordinator": {"clients": 8}})
    first = hall.session(life=0, twist=withheld)
    assert first is not None
    if dies:
        for node in hall.clients:
            hall.start(node, life=1)
    hall.refused.clear()
    assert hall.session(life=1, round=1, away=[VICTIM]) is None
    assert hall.refused == [(node, Reason.TWICE) for node in range(8) if node != VICTIM]
    again = hall.session(life=2, round=2)
    assert again is not None and np.abs(centred(again - first)).max() <= 8, "the same sum, but for each one's rounding"


# --- what no rule of a client stops -----------------------------------------------------------------------------------


def test_full_batches_without_a_budget_are_differenced_from_round_to_round() -> None:
    """As docs/privacy/attacks.md says: nothing is left to chance."""
    assert from_round_to_round(TRAININGS["full batches, one pass"]) > 0.99


@pytest.mark.parametrize(
    ("train", "sizes", "whole"),
    [
        ({"local_epochs": 1}, None, True),
        ({"local_steps": 5, "batch_size": 32}, (180, 160), True),
        ({"local_steps": 5, "batch_size": 32}, (180, 161), False),
        ({"local_steps": 5, "batch_size": 32}, None, False),
    ],
)
def test_a_run_without_a_budget_says_so_at_its_head(
    train: dict[str, Any], sizes: tuple[int, ...] | None, whole: bool
) -> None:
    plan: Any = compose.plan(load_experiment(learning(**train)))
    (last,) = (line for line in replace(plan, sizes=sizes).banner if "privacy budget" in line)
    assert last.startswith("NO" if whole else "no ")
    assert ("whole passes" in last) is whole
    assert ("or two where" in last) is (sizes is None and not whole), "where nobody has counted, nothing is promised"


def test_a_run_with_a_budget_or_without_a_secure_sum_does_not() -> None:
    hidden, plain = learning(), learning()
    hidden["coordinator"]["privacy"] = {"unit": "client"}
    plain["coordinator"]["secure"] = {"on": False}
    for content in (hidden, plain):
        assert not any("no budget" in line.lower() for line in compose.plan(load_experiment(content)).banner)


# --- an honest coordinator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [9, 10])
def test_cohorts_of_an_honest_coordinator_never_differ_by_one(first: int) -> None:
    """Whoever leaves and comes back, in whatever order, over the lives of the coordinator too."""
    content: dict[str, Any] = {"rounds": 60, "task": {"kind": "quadratic"}, "coordinator": {"clients": first}}
    plan: Any = compose.plan(load_experiment(content))
    cohorts = []
    for round in range(60):
        if round % 20 == 0:
            own = plan.simulated(plan.coordinator, round // 20)
            model = np.zeros(10, np.float32)
            machine: Any = plan.machine(plan.coordinator, model, "s", incarnation=round // 20, own=own)
            assert isinstance(machine, Coordinator)
        random = stream(1, "company", round)
        left = {int(node) for node in random.permutation(first)[: random.integers(0, 5)]}
        gone = {int(node) for node in random.permutation(first)[: random.integers(0, 3)]}
        here = [node for node in range(first) if node not in left | gone]
        cohorts.append(set(machine.summing.cohort(plan.sampling, round, here, left).invited))
    assert len({len(cohort) for cohort in cohorts}) > 1
    assert all(len(one ^ other) != 1 for one, other in combinations(cohorts, 2))
