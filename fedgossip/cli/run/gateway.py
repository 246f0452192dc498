"""`fedgossip client --id 0-99`: a gateway, which is many clients in one process.  See `drivers.gateway`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedgossip.cli.run.participant import Participant
from fedgossip.cli.text import echo, some
from fedgossip.core.run_format import ROWS

if TYPE_CHECKING:
    import threading

    from fedgossip.base.errors import FedgossipError
    from fedgossip.core.machine import NodeId
    from fedgossip.net.host_ports import SharedParts
    from fedgossip.runs.peer_files import PeerEnded


def take_part(seats: Sequence[Participant], waiting: str) -> int:
    """Run all clients to their ends; return the first exit code other than 0.  Raises FedgossipError."""
    from fedgossip.drivers.gateway import run_seats

    for one in seats:  # before any folder is made
        one.load_identity()
    ready = {one.node: (one, one.get_ready()) for one in seats}
    for line in seats[0].plan.banner:
        echo(line, err=True)
    echo(f"clients {_ranges(ready)} in this process: {waiting}", err=True)

    def run(node: NodeId, stop: threading.Event, shared: SharedParts) -> PeerEnded:
        one, its = ready[node]
        return one.run(its, asked_to_stop=stop, shared=shared)

    ended = run_seats({node: partial(run, node) for node in ready})
    outcomes: dict[_Outcome, list[NodeId]] = {}
    for node, end in ended.items():
        outcomes.setdefault(_outcome(end, ready[node][1].folder), []).append(node)
    return _print_outcomes(outcomes, seats[0])


class _Outcome(NamedTuple):
    """What several clients may have in common."""

    text: str
    advice: str
    exit_code: int


def _outcome(end: PeerEnded | FedgossipError, folder: Path) -> _Outcome:
    from fedgossip.base.errors import FedgossipError, TooFewPeersError
    from fedgossip.core.records import read_rows
    from fedgossip.runs.summary import refusals

    if isinstance(end, FedgossipError):
        return _Outcome(f"failed: {end}", end.advice, end.exit_code)
    after = f"after {some(end.rounds, 'round')}"
    if "ended_early" in end.counts:
        return _Outcome(f"ended by the coordinator {after}", "", TooFewPeersError.exit_code)
    text = f"{end.status} {after}" + (f": {end.message}" if end.message else "")
    rows = read_rows(folder / ROWS) if end.exit_code and (folder / ROWS).exists() else []
    causes = [f"{cause['text']}  {cause['advice']}" for cause in refusals(rows)]
    return _Outcome(text, "  ".join([*causes, end.advice]).strip(), end.exit_code)


def _print_outcomes(outcomes: Mapping[_Outcome, Sequence[NodeId]], first: Participant) -> int:
    """Print each outcome with its clients; return the exit code."""
    codes = [outcome.exit_code for outcome in outcomes if outcome.exit_code]
    for outcome, nodes in outcomes.items():
        echo(f"{_ranges(nodes)}: {outcome.text}", err=True)
        if outcome.advice:
            echo(outcome.advice, err=True)
    if codes:
        echo(f"To go on: {first.resume_line()}", err=True)
    return codes[0] if codes else 0


def _ranges(nodes: Iterable[NodeId]) -> str:
    from fedgossip.secure.session import ranges

    return ranges(sorted(nodes))
