"""Runs on stacked arrays whose models stay on a device, which is the CPU, and the same runs whose models come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedgossip import simulate
from fedgossip.core.records import EventRow, Row
from fedgossip.learning.many_nodes import resident
from fedgossip.learning.many_nodes.device_stack import DeviceStack
from fedgossip.runs.run_directory import Run

LEARNING: dict[str, Any] = {
    "rounds": 7,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "model": {"source": "mlp:64-9-10"},
    "train": {"local_steps": 2, "batch_size": 5, "device": "cpu"},
    "topology": {"graph": "ring", "n": 8},
    "eval": {"every": 3, "watch": False},
}


def stay_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let models stay on the CPU as they do on a GPU; return how to ask in how many rounds they have."""
    rounds: list[int] = []
    feed = DeviceStack._feed

    def counted(stack: DeviceStack, *how: Any) -> None:
        rounds.append(1)
        feed(stack, *how)

    monkeypatch.setattr(DeviceStack, "_feed", counted)
    monkeypatch.setattr(resident, "STACKS", {"cpu": DeviceStack})
    return lambda: len(rounds)


def coming_back(content: dict[str, Any], **how: Any) -> Run:
    """The run whose models are vectors after every round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resident, "STACKS", {})
        return simulate(content, engine="stacked", **how)


def told(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not isinstance(row, EventRow)]


def events(run: Run) -> list[tuple[str, object]]:
    return [(row.name, row.value) for row in run.rows if isinstance(row, EventRow)]


def check_same_record(found: list[Row], expected: list[Row]) -> None:
    """Sums in float64 are taken in another order there; all else is equal."""
    assert len(told(found)) == len(told(expected))
    for one, other in zip(told(found), told(expected), strict=True):
        assert type(one) is type(other)
        for name in one.__struct_fields__:
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine == (pytest.approx(theirs, rel=1e-12) if isinstance(theirs, float) else theirs), name
