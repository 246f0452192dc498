"""`fedgossip forecast`: the expected course of a run before it begins, on one graph or on several."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.run.participant import portable_option
from fedgossip.cli.text import columns, echo, print_json, short, talk_to_stderr

if TYPE_CHECKING:
    from fedgossip.core.forecasts import RunForecast
    from fedgossip.lab.costs.times import TimeForecast
    from fedgossip.plans.compose import Plan
    from fedgossip.plans.gossip.gossip import GossipPlan

DRAWN = "drawn"


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.argument("more", metavar="[GRAPH]...", nargs=-1)
@click.option(
    "--level",
    type=click.Choice(["graph", "times", "probe", "shadow", "followed", "drawn"]),
    help="graph: nothing is trained.  times: how long rounds of any run take, and how stale updates are.  "
    "probe: three jobs a peer.  shadow: one training at the peers' mean.  "
    "followed: a third of a training more for each graph, with edges much nearer to each other.  "
    "drawn: eight simulations of any run, with other draws of times and faults.  "
    "[default: forecast.level, else shadow for synchronous gossip and drawn for other runs]",
)
@click.option("--graphs", metavar="GRAPH...", multiple=True, help="Other graphs than the file's, of as many peers.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@portable_option
@click.option("--seed", type=int, help="Replace the file's seed.")
@click.option(
    "--memory", metavar="GB", type=click.FloatRange(min=0, min_open=True),
    help="Most memory for the models of a shadow run.  [default: forecast.memory]",
)  # fmt: skip
@click.option("--out", type=OutputFile(".json", mark='"level"'), help="Write the forecasts into this file, as JSON.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list on stdout; all else on stderr.")
def forecast(
    experiment: Path,
    more: tuple[str, ...],
    level: str | None,
    graphs: tuple[str, ...],
    overrides: tuple[str, ...],
    seed: int | None,
    memory: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Forecast the run of the file EXPERIMENT: the disagreement of its peers, their scores, or their loss.

    Prints two edges for the consensus distance, and for the scores of evaluated rounds; where nobody waits, and in runs
    without peers, also for the loss.  `fedgossip run --forecast` writes the same into the run's folder, and compares it
    with the run.

    `--level times` forecasts the virtual seconds of any simulated run, including runs with buffers, deadlines,
    staleness or lost messages.
    """
    if level == "times":
        _forecast_times(experiment, [*graphs, *more], overrides, seed, out, as_json=as_json)
        return 0
    from fedgossip.drivers.forecasting import choose_level, forecasts_of, gossiping, plans_of
    from fedgossip.plans import compose

    plans = plans_of(experiment, [*graphs, *more], overrides, seed)
    level = level if level == "graph" else choose_level(plans, level)
    with talk_to_stderr() if as_json else contextlib.nullcontext():
        if level == "graph":
            peers = [gossiping(plan, rounds=False) for plan in plans]
            paired = all(plan.pairwise is not None for plan in peers)
            found: list[Any] = [_promised_of_pairs(plan) if paired else _promised(plan) for plan in peers]
            text, table = found, _promises_of_pairs(found) if paired else _promises(found)
        else:
            task, shares = compose.task_of(plans[0].experiment, plans[0].learners)
            forecasts = forecasts_of(plans, task, shares, level, memory_gb=memory)
            text, table = list(forecasts), _expected(forecasts, plans[0])
    if out:
        _write(out, text)
    if as_json:
        print_json(text)
        return 0
    echo(columns(table))
    echo(f"\n{_legend(level, text)}")
    return 0


def _write(out: Path, found: Sequence[Any]) -> None:
    from fedgossip.core.forecasts import encoded
    from fedgossip.runs.run_directory import write_whole

    write_whole(out, encoded(found))
    echo(f"written: {out}", err=True)


# --- the times --------------------------------------------------------------------------------------------------


def _forecast_times(
    experiment: Path,
    graphs: Sequence[str],
    overrides: Sequence[str],
    seed: int | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from fedgossip.lab.costs.times import forecast_times

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        found = forecast_times(experiment, graphs, overrides, seed)
    if out:
        _write(out, found)
    if as_json:
        print_json(found)
        return
    heads = [
        "",
        "half of the rounds",
        "all",
        "with other draws",
        "training",
        "sending",
        "waiting",
        "rounds of each",
        "stale",
    ]
    echo(columns([heads, *(_times(one) for one in found)]))
    many = len(found[0].seeds)
    echo(f"\nVirtual seconds by [simulation], from {many} simulations with other draws and without training.")
    for one in found:
        if one.events:
            events = ", ".join(f"{count} {name}" for name, count in sorted(one.events.items()))
            echo(f"Events{f' of {one.graph}' if len(found) > 1 else ''}: {events}  (fedgossip explain NAME)")


def _times(one: TimeForecast) -> list[str]:
    half = one.seconds[(len(one.rounds) - 1) // 2]
    shares = [f"{100 * share:.0f} %" for share in (one.training, one.communicating, one.waiting)]
    rounds = (
        str(one.least_rounds) if one.least_rounds == one.most_rounds else f"{one.least_rounds} to {one.most_rounds}"
    )
    stale = f"{one.stale_mean:.1f}, {one.stale_most} at most" if one.staleness else "-"
    return [
        one.graph,
        short(half),
        short(one.seconds[-1]),
        _between(one.lower[-1], one.upper[-1]),
        *shares,
        rounds,
        stale,
    ]


# --- the graph alone --------------------------------------------------------------------------------------------


def _promised(plan: GossipPlan) -> dict[str, Any]:
    from fedgossip.drivers.forecasting import name_graph
    from fedgossip.topology.spectra.convergence import outlook

    shares = outlook(plan.schedule, plan.experiment.rounds)
    worst = None if shares.worst is None else shares.worst.tolist()
    about = {"level": "graph", "graph": name_graph(plan), "typical": shares.typical.tolist(), "worst": worst}
    return about | plan.forecast.to_dict()


def _promises(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [["graph", "a peer sends", "n_W", "a round leaves", "to halve", "to 1 %", "exact", "left at the end"]]
    for one in found:
        rate = one["slem"] if one["slem"] is not None else one["rate"]
        halve, percent = (_both(one[f"typical_to_{word}"], one[f"rounds_to_{word}"]) for word in ("halve", "1_percent"))
        worst = "-" if one["worst"] is None else short(one["worst"][-1])
        left = f"{short(one['typical'][-1])} / {worst}"
        exact = "-" if one["exact_after"] is None else str(one["exact_after"])
        first = [one["graph"], f"{one['messages']:.3g}", short(one["n_w"]), short(rate)]
        rows.append([*first, halve, percent, exact, left])
    return rows


def _promised_of_pairs(plan: GossipPlan) -> dict[str, Any]:
    from fedgossip.drivers.forecasting import name_graph
    from fedgossip.plans.gossip.gossip_words import pairwise_facts

    rates, exchanges = plan.pairwise, plan.experiment.algorithm.exchanges
    assert rates is not None
    halve, percent = (rates.rounds_to(share, exchanges) for share in (0.5, 0.01))
    needed = {"rounds_to_halve": halve, "rounds_to_1_percent": percent}
    return {"level": "graph", "graph": name_graph(plan), **pairwise_facts(rates, exchanges), **needed}


def _promises_of_pairs(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [["graph", "an exchange leaves of the square", "a round leaves", "to halve", "to 1 %"]]
    for one in found:
        each = one["bound"] if one["rate"] is None else one["rate"]
        needed = ["-" if one[key] is None else str(one[key]) for key in ("rounds_to_halve", "rounds_to_1_percent")]
        rows.append([one["graph"], "-" if each is None else f"{each:.8f}", short(one["round"]), *needed])
    return rows


# --- of the run -------------------------------------------------------------------------------------------------


def _expected(found: Sequence[RunForecast], plan: Plan) -> list[list[str]]:
    names = [*found[0].scores.edges()] if found[0].scores else []
    word = plan.experiment.score.word
    heads = {"averaged": f"{word}: averaged", "mean_peer": "mean peer", "worst_peer": "worst peer", "test_loss": "loss"}
    rows = [["graph", "disagreement at the end", "point", *(heads[name] for name in names)]]
    for one in found:
        ends = _between(one.lower[-1], one.upper[-1]) if one.rounds else "-"
        edges = one.scores.edges() if one.scores else {}
        rows.append([one.graph, ends, _point(one), *(_span(name, edges[name][-1]) for name in names)])
    return rows


def _point(one: RunForecast) -> str:
    if not one.rounds:
        return "-"
    if one.points is None:
        return "wide" if one.level == DRAWN else "weakly tied: wide"
    return "exact" if one.exact else short(one.points[-1])


def _span(name: str, ends: tuple[float, float]) -> str:
    low, high = (f"{end:.4g}" if name == "test_loss" else f"{end:.3f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _between(low: float, high: float) -> str:
    edges = short(low), short(high)
    return edges[0] if edges[0] == edges[1] else f"{edges[0]} to {edges[1]}"


def _both(typical: int | None, worst: int | None) -> str:
    return " / ".join("-" if value is None else str(value) for value in (typical, worst))


def _legend(level: str, found: Sequence[Any]) -> str:
    if level == "graph":
        if found and "round" in found[0]:
            return "In the long run, by exchanges of uniformly drawn pairs alone: the root mean square over all draws."
        return "To halve, to 1 %, left at the end: of a disagreement by mixing alone, typical / worst direction."
    if level == DRAWN:
        from fedgossip.core.forecasts import DRAWS

        how, jobs = "other draws of times and faults", sum(one.jobs for one in found)
        return f"After the last round, by {DRAWS} simulations each with {how}: {jobs:,} local trainings in all."
    jobs = sum({one.jobs for one in found})
    how = "three jobs a peer" if level == "probe" else "one training at the peers' mean"
    followed = [one for one in found if one.level == "followed"]
    how += ", and in one round of three of each graph's peers" if followed else ""
    last = found[0].rounds
    lines = [f"After round {last}, by {how}: {jobs:,} local trainings in all."]
    if level == "probe" and not all(one.exact for one in found):
        lines.append("A probe takes the first round's updates for all rounds': --level shadow follows them.")
    if any(one.wide for one in found):
        nearer = "" if followed else "  --level followed brings them nearer."
        lines.append(f"Weakly tied: the edges are more than 2.5 times apart, so no point is given.{nearer}")
    return "\n".join(lines)
