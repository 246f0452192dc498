"""`fedgossip runs`, `collect`, `report` and `table` read the files of past runs."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fedgossip.base import outside_files
from fedgossip.base.decoding import json_value
from fedgossip.base.errors import ConfigError
from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.lab.plot import width_option
from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.run.participant import portable_option, run_code_option
from fedgossip.cli.text import columns, echo, find_given
from fedgossip.core.records import renamed
from fedgossip.core.roles import PEERS, Roles, roles_in
from fedgossip.core.run_format import COMPARISON, ENDED, INCOMPLETE, SUMMARY, SWEEP


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def runs(folder: Path | None, as_json: bool) -> None:
    """List the runs in FOLDER, or the run that it is; without it, those in runs/, hosting/ and joined/."""
    from fedgossip.report.watch.places import SEARCHED

    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", "Name the folder that holds your runs.")
    searched = SEARCHED if folder is None else (folder,)
    found = [run for base in searched for run in _list_runs(base)]
    if as_json:
        echo(json.dumps(found))
        return
    if not found:
        echo(f"No runs in {', '.join(map(str, searched))}.")
        return
    echo(columns(_table(found)))


def _table(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    roles = [_roles(run) for run in found]
    led = [who.leader is not None for who in roles]
    own = [] if all(led) else ["mean peer", "worst peer"]
    only_peers = all(who.alike and who.one == PEERS.one for who in roles)
    words = ["peers", "rounds", "averaged"] if only_peers else ["members", "rounds", "model"]
    rows = [["run", "status", *words, *own, "digest"]]
    for run, who, alone in zip(found, roles, led, strict=True):
        score = run.get("score") or {}
        known = [score.get("averaged"), *([None] * 2 if alone else [score.get(k) for k in _OF_PEERS])]
        other = score.get("name") if score.get("name", "accuracy") != "accuracy" else ""
        shown = [f"{value:.4f} {other}".rstrip() if value is not None else "-" for value in known[: 1 + len(own)]]
        members = str(run.get("n", "-")) if only_peers else _members(run, who)
        rows.append([run["run_dir"], run["status"], members, _rounds(run), *shown, (run.get("digest") or "-")[:12]])
    return rows


def _roles(run: dict[str, Any]) -> Roles:
    """Return the participants; peers if a summary has no valid ones."""
    try:
        return roles_in(run)
    except ValueError:
        return PEERS


def _members(run: dict[str, Any], who: Roles) -> str:
    """Return the participants; with a coordinator, also its view of them."""
    if not run.get("n"):
        return "-"
    if who.leader is None:
        return who.wording
    seen = {True: ", secure", False: ", IN THE CLEAR"}.get(run.get("secure"), "")  # type: ignore[arg-type]
    return f"{who.wording}, {run.get('algorithm')}{seen}"


def _rounds(run: dict[str, Any]) -> str:
    lost = run.get("rounds_abandoned")
    return f"{run.get('rounds', '-')}" + (f", {lost} abandoned" if lost else "")


_OF_PEERS = ("mean_peer", "worst_peer")
_KEPT = ("status", "n", "graph", "rounds", "score", "digest", "seconds", "driver", "seed")
_OPTIONAL = ("mode", "roles", "algorithm", "clients", "cohort", "secure", "rounds_abandoned", "privacy")
"""Keys that are copied if a file has them."""


def _list_runs(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for run in _folders(folder):
        if (summary := run / SUMMARY).exists():
            found.append({"run_dir": str(run), **_read(summary, _KEPT, _OPTIONAL)})
        elif (run / INCOMPLETE).exists():
            found.append({"run_dir": str(run), "status": "incomplete"})
        else:
            status = _read(run / ENDED, ("status",))["status"]
            found.append({"run_dir": str(run), "status": f"participant, {status}"})
    return found


def _read(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Return some keys of a JSON file, {} for a broken one."""
    try:
        content = renamed(json_value(outside_files.read_text(path)))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        return {"status": "unreadable"}
    there = (key for key in optional if key in content)
    return {**{key: content.get(key) for key in keys}, **{key: content[key] for key in there}}


def _folders(place: Path, depth: int = 3) -> Iterator[Path]:
    """Yield the run at `place`, or every run below it; the demo's runs are nested."""
    if any((place / name).exists() for name in (SUMMARY, INCOMPLETE, ENDED)):
        yield place
    elif depth and place.is_dir():
        for inner in sorted(place.iterdir()):
            yield from _folders(inner, depth - 1)


@click.command()
@click.argument("run_dirs", metavar="RUN...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=OutputFile(".html"), help="Page to write, for several runs.")
@click.option("--title", default="Runs compared", show_default=True, help="Its title.")
@click.option("--paper", type=click.Path(path_type=Path), help="Of a sweep: a folder for PDF, CSV and LaTeX.")
@width_option
@click.option("--target", type=float, help="Of a sweep: the score of rounds to a target.  [default: the reference's]")
@click.option("--score", metavar="NAME", help="Of a sweep: the recorded number that is compared.")
def report(
    run_dirs: tuple[Path, ...],
    out: Path | None,
    title: str,
    paper: Path | None,
    width: float,
    target: float | None,
    score: str | None,
) -> None:
    """Write report.html of one RUN, or one page with several side by side; or the page of a sweep's folder."""
    from fedgossip.report.page.page import write_comparison, write_report

    if len(run_dirs) == 1 and (run_dirs[0] / SWEEP).is_file():
        if out is not None or (paper is None and find_given("width", "target")):
            text = (
                "--out is for several runs"
                if out is not None
                else f"--{find_given('width', 'target')} goes with --paper"
            )
            raise click.UsageError(f"{text}: the page of a sweep is in its folder")
        _report_sweep(run_dirs[0], paper, width, target, score)
        return
    for folder in run_dirs:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder", "Give the folder of a run, or of a sweep.")
    if option := find_given("paper", "score", "width", "target"):
        advice = "; fedgossip plot RUN... draws a figure of runs" if option == "width" else ""
        raise click.UsageError(f"--{option} is for the folder of a sweep{advice}")
    if len(run_dirs) == 1 and out is None:
        echo(f"Wrote {write_report(run_dirs[0])}")
        return
    echo(f"Wrote {write_comparison(out or Path(COMPARISON), list(run_dirs), title)}")


def _report_sweep(folder: Path, paper: Path | None, width: float, target: float | None, score: str | None) -> None:
    from fedgossip.lab.sweeps.folder import SweepFolder
    from fedgossip.lab.sweeps.page import write_page, write_paper
    from fedgossip.lab.sweeps.table import table_of

    table = table_of(SweepFolder.opened(folder))
    table = table if score is None else table.scored_by(score)
    table.write()
    echo(f"Wrote {write_page(table)}")
    words = ["--paper", str(paper), "--width", f"{width:g}", *([] if target is None else ["--target", repr(target)])]
    words += [] if score is None else ["--score", score]
    if paper:
        kinds = Counter(file.suffix[1:] for file in write_paper(table, paper, width, target, words))
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        echo(f"Wrote {paper}: {counted}; scores.tex is the table, COMMANDS.txt how they were made")


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@click.argument("folders", metavar="FOLDER...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="As given to the peers.")
@portable_option
@click.option("--seed", type=int, help="As given to the peers.")
@run_code_option
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make.  [default: runs/NAME-TIME]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; all else on stderr.")
def collect(
    experiment: Path,
    folders: tuple[Path, ...],
    overrides: tuple[str, ...],
    seed: int | None,
    run_code: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Combine the FOLDERs of a run's peers: digest, three accuracies, report."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.cli.run.run import exit_code, show
    from fedgossip.cli.text import print_json, talk_to_stderr
    from fedgossip.data.custom import REACHING, check_allowed
    from fedgossip.drivers.loops.description import first_description
    from fedgossip.experiment import load_experiment
    from fedgossip.plans import compose
    from fedgossip.runs.collect import collect_peers
    from fedgossip.runs.run_directory import new_path

    if experiment.is_dir():
        advice = f"fedgossip collect EXPERIMENT {quoted(experiment)} ..., with the file that the peers were given."
        raise ConfigError(f"{experiment}: a folder; write the EXPERIMENT first", advice)
    loops = first_description(folders)
    more = ["task.kind=loop"] if loops else []
    read = load_experiment(experiment, [*more, *overrides], seed=seed)
    check_allowed(read.reaches, experiment, run_code=run_code, whose=REACHING)
    plan = compose.plan(read)
    learning = loops.learning if loops else None
    with talk_to_stderr() if as_json else contextlib.nullcontext():
        finished = collect_peers(plan, folders, out or new_path(plan, "peers", Path("runs")), learning)
    if as_json:
        print_json(finished.summary)
    else:
        show(finished)
    return exit_code(finished)


SHOWN = 8
"""Maximum number of printed elements of a row."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=OutputFile(".npz", ".safetensors"), help="Write it there: FILE.npz or FILE.safetensors.")
@click.option("--rows", "wanted", help="Show these rows, e.g. 3,17,250; untouched ones too.")
def table(run: Path, out: Path | None, wanted: str | None) -> None:
    """Show, or write, the trained table of the run in the folder RUN: the touched rows, by their keys.

    RUN may be a file written by this command.
    """
    from fedgossip.report.page.numbers import data_size
    from fedgossip.runs.table_files import load_table, save_table

    found = load_table(run)
    shape, touched = found.table, found.touched
    zeros = len(touched.keys) - int(touched.matrix.any(axis=1).sum()) if touched.keys.size else 0
    first = f"drawn from seed {shape.seed}" if shape.scale else "zeros"
    lines = [
        ["table", f"{shape.rows:,} rows of {shape.width}, {shape.kind}; untouched ones: {first}"],
        ["touched", f"{len(touched.keys):,} rows, {data_size(touched.values.nbytes)}; {zeros:,} of them are zeros"],
    ]
    for key, row in zip(keys := _keys(wanted), found.rows(keys), strict=True):
        more = " ..." if row.size > SHOWN else ""
        lines.append([f"row {key}", " ".join(f"{one:.6g}" for one in row[:SHOWN]) + more])
    if out:
        save_table(found, out)
        lines.append(["written", f"{out}: keys [{len(touched.keys)}], rows [{len(touched.keys)}, {shape.width}]"])
    echo(columns(lines))


def _keys(text: str | None) -> list[int]:
    from fedgossip.base.errors import ConfigError

    parts = [part.strip() for part in text.split(",")] if text else []
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 11)]:
        raise ConfigError(f"--rows {wrong[0]!r} is no row", "Give numbers with commas between them: --rows 3,17.")
    return [int(part) for part in parts]
