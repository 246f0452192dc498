"""What a coordinator writes into its checkpoints, and begins its next life with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgossip.algorithms.federated.base import ServerRule, State, numbers_of, restored, saved
from fedgossip.machine import Checkpoint, NodeId

SERVER = "server"
"""In the facts of a checkpoint: the numbers of the server's state."""


def checkpoint_of(
    round: int, state: object, counted: Mapping[NodeId, int], summing: Mapping[str, object]
) -> Checkpoint:
    """Return the state after `round`, who was `counted` last in which, and what a secure sum must know."""
    facts: dict[str, object] = {"counted": {str(node): last for node, last in counted.items()}, **summing}
    if numbers := numbers_of(state):
        facts[SERVER] = numbers
    return Checkpoint(round, saved(state), facts, durable=True)


def state_in(server: ServerRule[State], checkpoint: Checkpoint) -> State:
    """Return the state of the server rule that is in a checkpoint."""
    numbers: Any = checkpoint.facts.get(SERVER, {})
    return restored(server, checkpoint.vectors, numbers)


def counted_in(checkpoint: Checkpoint | None) -> dict[NodeId, int]:
    """Return in which round each client was counted last."""
    facts: Any = checkpoint.facts.get("counted", {}) if checkpoint else {}
    return {int(node): int(round) for node, round in facts.items()}
