"""`fedgossip replay`: feeds the recorded events of a real run to new machines."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.run.participant import run_code_option
from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.drivers.replay import Replayed
    from fedgossip.runs.trace import TraceEntry


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--peer", type=click.IntRange(min=0), help="One peer of the run.")
@click.option("--until", type=click.IntRange(min=1), metavar="N", help="Stop after event N.")
@click.option("--show", is_flag=True, help="Print every event, and its effects.")
@run_code_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per trace.")
def replay(run: Path, peer: int | None, until: int | None, show: bool, run_code: bool, as_json: bool) -> int:
    """Replay RUN: a run directory, a peer's folder or a trace.

    Prints per trace whether every effect and the final model have the same bits, or the first event that differs; ends
    with code 1 then.  A restarted peer has a trace of each recorded process.
    """
    from fedgossip.drivers.replay import lives_of, replay_trace, traces_of

    equal = True
    recorded: dict[Path, list[Replayed]] = {}
    for path in traces_of(run, peer):
        replayed = replay_trace(path, until=until, show=_show if show else None, run_code=run_code)
        lives = lives_of(path.parent)
        equal = equal and replayed.equal
        recorded.setdefault(path.parent, []).append(replayed)
        echo(json.dumps(_facts(replayed, lives)) if as_json else _describe_end(replayed, lives))
    if not as_json and run.is_dir():
        for folder, replays in recorded.items():
            if words := _unrecorded({one.incarnation for one in replays}, lives_of(folder)):
                echo(f"peer {replays[0].node}, {words}")
    return 0 if equal else 1


def _unrecorded(recorded: Collection[int], lives: int) -> str:
    missing = [life for life in range(lives) if life not in recorded]
    if not missing:
        return ""
    what = "life" if len(missing) == 1 else "lives"
    return f"{what} {', '.join(map(str, missing))}: not recorded; give --trace to each life"


def _show(entry: TraceEntry) -> None:
    from fedgossip.runs.trace import described

    echo(f"{entry.number:6d}  {entry.now_ns / 1e9:9.4f} s  {described(entry.event)}")
    for line in entry.answer or []:
        echo(f"{'':21}-> {line}")


_ENDS = {
    "finished": "to its end",
    "torn": "the trace is cut short there",
    "open": "the trace ends there",
    "until": "as far as was asked",
}


def _describe_end(replayed: Replayed, lives: int) -> str:
    several = lives > 1 or replayed.incarnation > 0
    life = f", life {replayed.incarnation}" + (f" of 0 to {lives - 1}" if lives > 1 else "") if several else ""
    head = f"peer {replayed.node}{life}: {replayed.events:,} events"
    if replayed.difference:
        return f"{head}, then a difference\n  {_difference(replayed)}{_version(replayed)}"
    if not replayed.equal:
        return f"{head}, all equal, but vector.safetensors holds another vector"
    vector = f", final vector sha256 {replayed.digest}" if replayed.digest else ""
    end = "to the end of this life" if several and replayed.end == "finished" else _ENDS[replayed.end]
    return f"{head}, equal, {end}{vector}"


def _difference(replayed: Replayed) -> str:
    found = replayed.difference
    assert found is not None
    return f"event {found.event}: {found.told}\n  was {found.was or 'nothing'}\n  is  {found.now or 'nothing'}"


def _version(replayed: Replayed) -> str:
    from fedgossip.base.version import __version__

    if replayed.version == __version__:
        return ""
    return f"\n  It was recorded by fedgossip {replayed.version}; this is {__version__}."


def _facts(replayed: Replayed, lives: int) -> dict[str, Any]:
    found = replayed.difference
    return {
        "trace": str(replayed.path),
        "peer": replayed.node,
        "incarnation": replayed.incarnation,
        "lives": lives or None,
        "events": replayed.events,
        "equal": replayed.equal,
        "end": replayed.end,
        "digest": replayed.digest,
        "difference": found and {"event": found.event, "told": found.told, "was": found.was, "is": found.now},
    }
