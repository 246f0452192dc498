"""What a coordinator writes into its checkpoints, and begins its next life with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgossip.algorithms.federated.base import ServerRule, State, numbers_of, restored, saved
from fedgossip.base.scores import BestSoFar
from fedgossip.core.machine import Checkpoint, NodeId
from fedgossip.protocols.federated.coordinator_settings import CoordinatorSettings

BEST = "best"
"""In the facts of a checkpoint: the best round, its score, and how many evaluations have found no better one since."""

SERVER = "server"
"""In the facts of a checkpoint: the numbers of the server's state."""


def checkpoint_of(
    round: int, state: object, counted: Mapping[NodeId, int], summing: Mapping[str, object], best: BestSoFar
) -> Checkpoint:
    """Return the state after `round`, who was `counted` last in which, what a secure sum must know, and the best round
    until now."""
    facts: dict[str, object] = {"counted": {str(node): last for node, last in counted.items()}, **summing}
    if best.patience:
        facts[BEST] = [best.round, best.value, best.since]
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


def best_in(checkpoint: Checkpoint | None, settings: CoordinatorSettings) -> BestSoFar:
    """Return what compares the rounds, as it was at the checkpoint."""
    best = BestSoFar(settings.score, settings.patience)
    known: Any = checkpoint.facts.get(BEST) if checkpoint else None
    if known:
        best.round, best.value, best.since = int(known[0]), float(known[1]), int(known[2])
    return best
