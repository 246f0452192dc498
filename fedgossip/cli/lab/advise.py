"""`fedgossip advise mesh`: the fastest mesh of a participant's processes, and the meshes that do not fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.base.errors import ConfigError
from fedgossip.cli.text import CommandGroup, columns, echo, print_json, talk_to_stderr

if TYPE_CHECKING:
    from fedgossip.lab.advise.mesh import AdvisedMesh, MeshAsked, StepCosts

UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
BARE_MIN = 1e6
"""A number without a unit is in bytes; below this minimum its unit is missing, because no process holds a model in so
little memory.
"""


def bytes_of(_context: click.Context, _param: click.Parameter, value: str) -> float:
    """Return the bytes of a text such as 16GB.  Raises BadParameter."""
    unit = next((unit for unit in UNITS if value.lower().endswith(unit.lower())), "")
    try:
        size = float(value.removesuffix(value[-len(unit) :] if unit else "")) * UNITS.get(unit, 1.0)
    except ValueError:
        size = 0.0
    if not unit and 1 <= size < BARE_MIN:
        raise click.BadParameter(f"{value!r} would be bytes.  Write the unit too: {size:g}GB, {size:g}MB.")
    if not 1 <= size < 1e18:
        raise click.BadParameter(f"{value!r} is no size.  Write 16GB, 500MB, or a number of bytes.")
    return size


@click.group(cls=CommandGroup)
def advise() -> None:
    """Advice before a run: the mesh of processes.  (Gossip, all-reduce or a server: `fedgossip topology advise`.)"""


@advise.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--processes", type=click.IntRange(2, 64), required=True, help="Processes of one participant.")
@click.option("--memory", default="16GB", show_default=True, metavar="SIZE", callback=bytes_of, help="Of a process.")
@click.option(
    "--links",
    default="",
    help="Between processes: cluster, lan, wan; SECONDS,BYTES_PER_SECOND.  [default: measured here, by axis]",
)
@click.option(
    "--compute",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds of a step of one process with all of the batch.  [default: measured here]",
)
@click.option("--cores", type=click.IntRange(1), help="Processors that the processes share.  [default: this machine's]")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the file.")
@click.option("--verify", is_flag=True, help="Measure the steps of all meshes that fit, in real processes here.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def mesh(
    experiment: Path, processes: int, memory: float, links: str, compute: float | None, cores: int | None,
    overrides: Sequence[str], verify: bool, as_json: bool,
) -> int:  # fmt: skip
    """Rank the meshes of a participant's processes for the model of EXPERIMENT, by the seconds of a step.

    Tries every mesh of data x tensor x pipeline x context, with whole models and rows of them (ZeRO), and divided
    experts.  A mesh that does not fit the layers, the settings or the memory is refused with its reason.  If none fits
    the exit code is 2.
    """
    from fedgossip.lab.advise.mesh import MeshAsked, advised

    with talk_to_stderr():
        asked = MeshAsked.from_experiment(experiment, overrides, processes, memory)
        costs = _costs(asked, links, compute, cores)
        found = advised(asked, costs)
        if verify:
            found = [_measured(asked, one) for one in found]
    fits = [one for one in found if not one.refused]
    code = 0 if fits else ConfigError.exit_code
    if as_json:
        plain = [{**asdict(one), "name": one.name, "seconds": None if one.refused else one.seconds} for one in found]
        print_json({"costs": asdict(costs), "meshes": plain})
        return code
    echo(_sentence(fits, processes, len(found)))
    if fits:
        echo()
        echo(columns([_heads(verify), *(_row(one, verify=verify) for one in fits)]))
    if not all(one.counted for one in fits):
        echo("+: activations besides, which are counted for gpt alone")
    if len(fits) < len(found):
        echo()
        echo(columns([["refused", "", "because"], *_refused(found)]))
    if fits:
        echo(f"\nTake it by  {' '.join(f'--set {key!r}' for key in fits[0].keys)}")
    return code


def _measured(asked: MeshAsked, one: AdvisedMesh) -> AdvisedMesh:
    from fedgossip.lab.advise.mesh import with_measured

    if one.refused:
        return one
    found = with_measured(asked, one)
    echo(f"{one.name}, {one.how}: {_seconds(found.measured or 0.0)} a step", err=True)
    return found


def _costs(asked: MeshAsked, links: str, compute: float | None, cores: int | None) -> StepCosts:
    from fedgossip.lab.advise.candidates import links_of
    from fedgossip.lab.advise.mesh import StepCosts, measured_compute, measured_links
    from fedgossip.lab.costs.base import FittedLink
    from fedgossip.learning.processes.step_costs import LINKED

    rows = asked.experiment.train.batch_size
    each = measured_compute(asked) if compute is None else FittedLink(0.0, rows / compute, 0.0)
    given = dict.fromkeys(LINKED, links_of(links, asked.processes).usual) if links else None
    between = given or measured_links(asked.experiment.train, asked.processes)
    return StepCosts(each, between, cores or len(os.sched_getaffinity(0)))


def _sentence(fits: Sequence[AdvisedMesh], processes: int, tried: int) -> str:
    if not fits:
        return f"None of {tried} meshes of {processes} processes is possible."
    best = fits[0]
    axes = f"data x tensor x pipeline x context{' x expert' if best.expert > 1 else ''}"
    words = f"{best.name} ({axes}), {best.how}, is first of {len(fits)} that fit"
    parts = {"computing": best.work, "idle stages": best.idle, "messages": best.messages}
    shares = ", ".join(f"{_seconds(value)} {name}" for name, value in parts.items() if value)
    return f"{words}: {_seconds(best.seconds)} a step; {shares}."


def _heads(verify: bool) -> list[str]:
    return ["mesh", "", "a step", "computing", "idle", "messages", "a process holds", *(["measured"] if verify else [])]


def _row(one: AdvisedMesh, *, verify: bool) -> list[str]:
    from fedgossip.report.page.numbers import data_size

    times = [_seconds(value) for value in (one.seconds, one.work, one.idle, one.messages)]
    held = data_size(one.memory) + ("" if one.counted else " +")
    return [one.name, one.how, *times, held, *([_seconds(one.measured or 0.0)] if verify else [])]


def _refused(found: Sequence[AdvisedMesh]) -> list[list[str]]:
    """Return a row for each reason: the mesh, or the first of several and their number."""
    of: dict[str, list[AdvisedMesh]] = {}
    for one in found:
        if one.refused:
            of.setdefault(one.refused, []).append(one)
    several = {reason: f"{len(all_)} such as {all_[0].name}" for reason, all_ in of.items() if len(all_) > 1}
    return [[several.get(reason, all_[0].name), all_[0].how, reason] for reason, all_ in of.items()]


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
