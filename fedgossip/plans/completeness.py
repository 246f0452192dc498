"""Find in a run's rows what the run is for and did not happen: such a run is partial, however smoothly it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fedgossip.machine import NodeId
from fedgossip.records import EventRow, NetworkRow, PeerRow, Row
from fedgossip.task import Segment, first_wrong
from fedgossip.vectors import Vector

TOLERATED = 0.1
"""Share of the measured rounds whose model may answer with what is no number, where the final one does not."""

NAMED = 8
"""Maximum number of pairs, or of clients, that are named."""


@dataclass(frozen=True)
class Lacking:
    """Sentences that say what did not happen, the gravest first; none where all of it happened.

    `in_vain`: nothing of it happened at all; nobody has learned anything from anybody.
    """

    said: tuple[str, ...] = ()
    in_vain: bool = False


def of_gossip(
    rows: Sequence[Row], n: int, partners: Callable[[NodeId], Sequence[NodeId]], node: NodeId | None, *, directed: bool
) -> Lacking:
    """Return what is lacking among `n` peers, by all their rows; or for peer `node`, by its own.

    Every pair of neighbours must have exchanged a model; over every arc a model must have come.
    """
    alone = sorted({row.peer for row in _told(rows, "learned_alone")})
    pairs = {(row.peer, other) for row in _told(rows, "never_exchanged") for other in _ids(row.value)}
    cut_off = {one for one in alone if directed or set(partners(one)) <= {j for i, j in pairs if i == one}}
    pairs = {(i, j) for i, j in pairs if i not in cut_off and (directed or j not in cut_off)}  # told as a whole
    if directed:
        said = [f"Peer {i} never got a model from peer {j}." for i, j in sorted(pairs)]
    else:
        pairs = {(min(pair), max(pair)) for pair in pairs}
        said = [f"Peers {i} and {j} never exchanged a model." for i, j in sorted(pairs)]
    if node is None and len(alone) == n:
        return Lacking(("No model was exchanged in the whole run: every peer learned alone.",), in_vain=True)
    first = [f"Peer {one} exchanged a model with nobody: it learned alone." for one in alone]
    return Lacking((*_short(first, "peers"), *_short(said, "pairs")), in_vain=node in alone)


def of_numbers(rows: Sequence[Row], vectors: Sequence[Vector | None], segments: Sequence[Segment]) -> tuple[str, ...]:
    """Say where a model answers with what is no number: the final one, or that of more than a tenth of the rounds that
    were measured; `vectors`: the final ones."""
    wrong = {row.round: row for row in rows if isinstance(row, EventRow) and row.name == "not_finite"}
    measured = {row.round for row in rows if isinstance(row, NetworkRow) and row.measured} | wrong.keys()
    if wrong and (max(measured) in wrong or len(wrong) > TOLERATED * len(measured)):
        first = min(wrong)
        value = wrong[first].value
        facts = value if isinstance(value, dict) else {}
        often = f"of {len(wrong)} of {len(measured)} measured rounds, round {first} first"
        tensor = facts.get("tensor")
        where = f"the first tensor that is not right is {tensor!r}" if tensor else "its weights are all finite"
        return (f"The {facts.get('figure')} is {facts.get('value')} {often}; {where}.",)
    named = next((name for one in vectors if one is not None if (name := first_wrong(one, segments))), "")
    return (f"Tensor {named!r} of the final model is not right: not finite, or a variance below 0.",) if named else ()


def of_federation(rows: Sequence[Row], coordinator: NodeId, node: NodeId | None, *, all_in_each: bool) -> Lacking:
    """Return what is lacking in a federated run, by its coordinator's rows; or for participant `node`, by its own.

    A round must have counted, and every client must have been in one; `all_in_each`: nobody is left out by chance.
    """
    if node is not None and node != coordinator:
        took_part = any(isinstance(row, PeerRow) and row.peer == node for row in rows)
        if took_part or not all_in_each:
            return Lacking()
        return Lacking((f"Client {node} took part in no round: it trained nothing.",), in_vain=True)
    done = [row for row in rows if isinstance(row, PeerRow) and row.peer == coordinator]
    if done and not any(row.clients for row in done):
        text = f"No round counted, of {len(done)}: nothing was learned; the model is that with which the run began."
        return Lacking((text,), in_vain=True)
    clients = sorted({client for row in _told(rows, "never_counted") for client in _ids(row.value)})
    return Lacking(tuple(_short([f"No round counted an update of client {one}." for one in clients], "clients")))


def _told(rows: Sequence[Row], name: str) -> list[EventRow]:
    """Return what was told at the last end: a run that has ended may be given more rounds, which come after it."""
    named = [row for row in rows if isinstance(row, EventRow) and row.name == name]
    if not named:  # nearly always
        return []
    reached: dict[NodeId, int] = {}
    for row in rows:
        if isinstance(row, PeerRow):
            reached[row.peer] = max(row.round, reached.get(row.peer, 0))
    return [row for row in named if row.round >= reached.get(row.peer, 0)]


def _ids(value: object) -> list[NodeId]:
    return [one for one in value if isinstance(one, int)] if isinstance(value, list | tuple) else []


def _short(said: Iterable[str], kind: str) -> list[str]:
    said = list(said)
    more = len(said) - NAMED
    return said if more <= 0 else [*said[:NAMED], f"The same is true of {more} more {kind}."]
