"""`fedgossip topology advise`: gossip, all-reduce, a server, or alone?  By formula, for given links and machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.text import columns, echo, print_json

if TYPE_CHECKING:
    from fedgossip.lab.advise.candidates import AdviceAsked, AdvisedWay, VerifiedNumber

BYTES = 4
"""Bytes of a parameter."""


@click.command()
@click.option("-n", "--n", "n", type=click.IntRange(2, 100_000), help="Number of machines.  [with --data: from it]")
@click.option("--parameters", type=click.FloatRange(min=1), help="Of the model; float32 each.  [with --data: from it]")
@click.option("--data", type=click.Path(path_type=Path), metavar="EXPERIMENT",
              help="Rounds as forecast of this data and model, in place of those of noisy quadratics.")  # fmt: skip
@click.option("--algorithms", default="", help="With --data: of gossip, with blanks between.  [default: dsgd]")
@click.option(
    "--links", default="lan", show_default=True,
    help="cluster, lan, wan; SECONDS,BYTES_PER_SECOND; or a .csv: from,to,latency,rate.",
)  # fmt: skip
@click.option(
    "--compute", default="0.05", show_default=True,
    help="Seconds of a step: 0.05; exp:0.05; straggler:10:0.05, one machine of each round takes 10 times as long.",
)  # fmt: skip
@click.option("--noise", type=click.FloatRange(min=1.01, max=1e9), default=50.0, show_default=True,
              help="How noisy a gradient is: alone, a step removes 1 / NOISE of the error.")  # fmt: skip
@click.option(
    "--target",
    default="0.001",
    show_default=True,
    help="Share of the distance to the optimum that may be left; with --data a score: accuracy:0.9.",
)
@click.option("--graphs", default="", help="Graphs of gossip, with blanks between.  [default: twelve]")
@click.option("--fail", type=click.IntRange(min=0), default=0, show_default=True,
              help="Leave out graphs that fall apart when so many are lost.")  # fmt: skip
@click.option("--verify", is_flag=True, help="Measure a round in the simulator, and the rate on quadratics.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def advise(
    n: int | None, parameters: float | None, data: Path | None, algorithms: str, links: str, compute: str, noise: float,
    target: str, graphs: str, fail: int, verify: bool, as_json: bool,
) -> int:  # fmt: skip
    """Rank methods of training together by time, including gossip, with the costs of each.

    Uses the cost model of `fedgossip compare`, and the rate at which noisy quadratics shrink: the order of the methods
    is meaningful, and the seconds are not those of your training.
    """
    from fedgossip.lab.advise.candidates import GRAPHS, AdviceAsked, front, links_of, times_of, verified, ways
    from fedgossip.topology import resolve_schedule

    wanted = tuple(graphs.split()) or GRAPHS
    if data:
        asked, found = _learned(data, target, (n, parameters, verify), links, compute, wanted, algorithms.split())
        goal = target
    else:
        if n is None or parameters is None or algorithms:
            missing = "--algorithms goes with --data" if algorithms else "give --n and --parameters, or --data"
            raise click.UsageError(missing)
        asked = AdviceAsked(n, parameters * BYTES, links_of(links, n), times_of(compute), noise, _share(target))
        goal = f"{asked.share:g} of the distance"
    if graphs:
        for graph in wanted:
            resolve_schedule(graph, asked.n)
    found = found if data else ways(asked, wanted)
    found = [way for way in found if way.survives is None or way.survives >= fail]
    best, checks = front(found), verified(asked, found) if verify else []
    if as_json:
        print_json({"first": sentence(goal, found), "ways": [_plain(way, best) for way in found],
                    "verified": [_checked(one) for one in checks]})  # fmt: skip
    else:
        echo(f"{sentence(goal, found)}\n")
        echo(columns([HEADS, *(_row(way, best) for way in found)]))
        echo(LEGEND)
        for one in checks:
            mark = "agrees" if one.holds else "DIFFERS"
            echo(f"{mark:8} {one.what}: told {one.predicted:.4g}, measured {one.measured:.4g}")
        if verify and not checks:
            echo("Not verified: that is for links that are equal and times that are constant.")
    return 0 if all(one.holds for one in checks) else 1


HEADS = ["", "way", "seconds", "rounds", "a round", "busiest carries", "n_W", "may be lost"]
LEGEND = """
*: no other row is faster, lighter and safer at once.  busiest carries: bytes in its larger direction till the target.
n_W: models that each one in effect averages.  may be lost: so many at the worst places leave the graph in one piece."""


def _share(target: str) -> float:
    try:
        share = float(target)
    except ValueError:
        share = math.nan
    if not 1e-12 <= share <= 0.99:
        text = f"{target!r} is no share from 1e-12 to 0.99; a score goes with --data"
        raise click.BadParameter(text, param_hint="--target")
    return share


def _learned(
    data: Path, target: str, given: tuple[int | None, float | None, bool], links: str, compute: str,
    graphs: Sequence[str], algorithms: Sequence[str],
) -> tuple[AdviceAsked, list[AdvisedWay]]:  # fmt: skip
    from fedgossip.lab.advise.candidates import AdviceAsked, links_of, times_of
    from fedgossip.lab.advise.learned import learned_task, learned_ways

    if any(given):
        raise click.UsageError("--n, --parameters and --verify do not go with --data, which determines the training")
    task = learned_task(data, target)
    n = task.plan.n
    asked = AdviceAsked(n, task.size, links_of(links, n), times_of(compute))
    return asked, learned_ways(asked, task, graphs, algorithms or ("dsgd",))


def sentence(goal: str, found: Sequence[AdvisedWay]) -> str:
    """Return the winner, and the time of the best of the other kind to the `goal`."""
    first = found[0]
    gossip = next((way for way in found if way.kind == "gossip"), None)
    together = next(way for way in found if way.kind not in ("gossip", "alone", "once"))
    if math.isinf(first.seconds):
        return f"No way reaches {goal} in these rounds."
    text = f"{_name(first)} is first: {_seconds(first.seconds)} to {goal}"
    if gossip is None:
        return f"{text}; no graph of gossip is left to compare."
    if first.kind == "gossip":
        return f"{text}; the best without it, {together.name}, takes {_seconds(together.seconds)}."
    return f"{text}; the best gossip, on {gossip.name}, takes {_seconds(gossip.seconds)}."


def _name(way: AdvisedWay) -> str:
    names = {"gossip": f"Gossip on {way.name}", "alone": "Training alone"}
    return names.get(way.kind, way.name[0].upper() + way.name[1:])


def _seconds(value: float) -> str:
    return "for ever" if math.isinf(value) else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _row(way: AdvisedWay, best: set[str]) -> list[str]:
    size = next((f"{way.payload / unit:.3g} {word}" for word, unit in SIZES if way.payload >= unit), "0")
    size, rounds = "-" if math.isinf(way.payload) else size, "-" if math.isinf(way.rounds) else f"{way.rounds:.1f}"
    lost = "-" if way.survives is None else str(way.survives)
    return [
        "*" if way.name in best else "", way.name, _seconds(way.seconds), rounds,
        _seconds(way.round_seconds), size, f"{way.n_w:.1f}", lost,
    ]  # fmt: skip


SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def _plain(way: AdvisedWay, best: set[str]) -> dict[str, Any]:
    return {
        "way": way.name, "kind": way.kind, "seconds": way.seconds, "rounds": way.rounds,
        "round_seconds": way.round_seconds, "bytes_of_busiest": way.payload, "n_w": way.n_w, "eta": way.eta,
        "may_be_lost": way.survives, "front": way.name in best,
    }  # fmt: skip


def _checked(one: VerifiedNumber) -> dict[str, Any]:
    return {"what": one.what, "told": one.predicted, "measured": one.measured, "agrees": one.holds}
