"""`fedgossip timeline`: a picture of the participants' computing, sending, receiving and waiting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.text import columns, echo, print_json, talk_to_stderr

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment
    from fedgossip.report.page.timeline import NamedTimeline

PICTURES = (".svg", ".png", ".pdf")
TRACE = ".json"

_FILES = OutputFile(*PICTURES, TRACE, mark='"traceEvents"')


@click.command()
@click.argument("where", metavar="RUN|EXPERIMENT", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(1, 10_000), default=3, show_default=True, help="The first rounds.")
@click.option(
    "--paradigms",
    default="",
    help="Of an experiment: several together, as for `compare`; `collectives`: every all-reduce.",
)
@click.option("-n", "--n", "n", type=click.IntRange(min=1), help="Of an experiment: how many learn.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Replace a key of the experiment.")
@click.option("--seed", type=int, help="Replace the experiment's seed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("timeline"),
    show_default=True,
    help="Files to write: NAME.svg, NAME.png, and NAME.json for ui.perfetto.dev; with an ending that one alone.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def timeline(
    where: Path,
    rounds: int,
    paradigms: str,
    n: int | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path,
    as_json: bool,
) -> int:
    """Draw the first rounds of a run, or of an experiment, which is then simulated.

    A lane per participant, with arrows for messages with vectors.  The bars of a round sum to its row in the record.
    For real processes the record has seconds per round, and no single messages.
    """
    from fedgossip.base.errors import ConfigError

    if out.suffix and out.suffix.lower() not in (*PICTURES, TRACE):
        raise ConfigError(f"cannot write {out}", f"End the name in {', '.join((*PICTURES, TRACE))}, or in nothing.")
    for place in _places(out):
        _FILES.check_replaceable(place)
    if where.is_dir():
        if paradigms or overrides or n is not None or seed is not None:
            raise click.UsageError("--paradigms, --n, --set and --seed go with an experiment; a run is as it was")
        found = [_load_run(where, rounds)]
    else:
        with talk_to_stderr() if as_json else contextlib.nullcontext():
            found = [
                _simulated(title, one, rounds) for title, one in _experiments(where, paradigms, n, overrides, seed)
            ]
    written = list(_written(found, out))
    if as_json:
        print_json({"timelines": [_facts(one) for one in found], "files": [str(place) for place in written]})
        return 0
    echo(columns(_table(found)))
    echo(f"\nWritten: {', '.join(str(place) for place in written)}")
    return 0


def _load_run(folder: Path, rounds: int) -> NamedTimeline:
    from fedgossip.base import outside_files
    from fedgossip.base.errors import ConfigError
    from fedgossip.core import run_format
    from fedgossip.core.records import read_rows
    from fedgossip.core.timeline import SIMULATE, build_timeline, read_timeline
    from fedgossip.report.page.reading import read_run
    from fedgossip.report.page.timeline import NamedTimeline

    outside_files.checked_folder(folder)
    run = read_run(folder)
    if run.summary.driver == "stacked":
        raise ConfigError(f"{folder}: the run recorded no times: on stacked arrays nothing takes any", SIMULATE)
    found = read_timeline(folder) or build_timeline(read_rows(folder / run_format.ROWS), run.roles.n, run.roles.counted)
    if found.participants != run.roles.n:
        advice = "The files of two runs may lie in one folder."
        raise ConfigError(f"{folder}: a timeline of {found.participants} participants, {run.roles.n} took part", advice)
    if found.find_end(rounds) is None and (there := found.whole_rounds) < min(rounds, run.summary.rounds):
        echo(f"The run recorded the times of {there} rounds; its experiment.toml gives more.", err=True)
    return NamedTimeline(run.name, found.first(rounds), [run.roles.label(node) for node in range(run.roles.n)])


def _experiments(
    where: Path, paradigms: str, n: int | None, overrides: Sequence[str], seed: int | None
) -> Iterator[tuple[str, Experiment]]:
    from fedgossip.algorithms.collectives.names import COLLECTIVES
    from fedgossip.experiment import load_experiment
    from fedgossip.experiment.reading import content_of
    from fedgossip.lab.compare.cells import experiment_for, workers_of
    from fedgossip.lab.compare.names import paradigm_of

    names = [name.strip() for name in paradigms.split(",") if name.strip()]
    if not names:
        one = load_experiment(where, overrides, size=n, seed=seed)
        yield one.name or where.stem, one
        return
    named, content = content_of(where, overrides)
    workers = n or workers_of(content, named)
    first = int(content.get("seed", 1)) if seed is None else seed
    for name in names:
        for method in COLLECTIVES if name == "collectives" else [name]:
            yield method, experiment_for(content, paradigm_of(method), workers, workers, first, named)


def _simulated(title: str, experiment: Experiment, rounds: int) -> NamedTimeline:
    from fedgossip.base.errors import ConfigError
    from fedgossip.core.timeline import ITEMS, PARTICIPANTS, TimelineLog, too_many
    from fedgossip.drivers.simulate import simulate_plan
    from fedgossip.plans import compose
    from fedgossip.report.page.timeline import NamedTimeline

    plan = compose.plan(experiment)
    if plan.n > PARTICIPANTS:
        raise too_many(plan.n)
    log = TimelineLog(plan.n, plan.roles.counted, ITEMS, rounds)
    simulate_plan(plan, timeline=log)
    found = log.timeline()
    if not found.bars:
        raise ConfigError(f"{title}: nothing happened in it", "Does its run take part in a round?")
    return NamedTimeline(title, found.first(rounds), [plan.roles.label(node) for node in range(plan.n)])


def _places(out: Path) -> list[Path]:
    return [out.with_name(out.stem + ending) for ending in ([out.suffix] if out.suffix else [".svg", ".png", TRACE])]


def _written(found: Sequence[NamedTimeline], out: Path) -> Iterator[Path]:
    from fedgossip.base import owner_files
    from fedgossip.core.timeline import chrome_trace
    from fedgossip.report.page.drawing import Drawing, save
    from fedgossip.report.page.timeline import WIDE, height_of, paint

    owner_files.make_folder(out.parent)
    for place in _places(out):
        if place.suffix.lower() == TRACE:
            owner_files.placed(place, chrome_trace((one.title, one.timeline, one.names) for one in found))
        else:
            save(place, Drawing(height_of(found), lambda figure: paint(figure, found), WIDE))
        yield place


def _facts(one: NamedTimeline) -> dict[str, object]:
    timeline = one.timeline
    each = [{"name": name, "seconds": timeline.seconds(node, 0, timeline.until)} for node, name in enumerate(one.names)]
    return {
        "title": one.title,
        "seconds": timeline.until / 1e9,
        "rounds": timeline.whole_rounds,
        "messages": len(timeline.messages),
        "participants": each,
    }


def _table(found: Sequence[NamedTimeline]) -> list[list[str]]:
    from fedgossip.core.timeline import ACTIVITIES

    there = [what for what in ACTIVITIES if any(bar.what == what for one in found for bar in one.timeline.bars)]
    rows = [["", "participant", *(f"{what}" for what in there)]]
    for one in found:
        for node, name in enumerate(one.names):
            seconds = one.timeline.seconds(node, 0, one.timeline.until)
            title = f"{one.title}, {one.timeline.until / 1e9:.4g} s" if node == 0 else ""
            rows.append([title, name, *(f"{seconds[what]:.4g}" for what in there)])
    return rows
