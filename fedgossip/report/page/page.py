"""Write the page of one run, or of several beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgossip.base.errors import ConfigError
from fedgossip.core import run_format
from fedgossip.report.page import comparison, federated, sections
from fedgossip.report.page.forecast import band
from fedgossip.report.page.markup import Markup, document, join, write_atomically
from fedgossip.report.page.participation import Participation
from fedgossip.report.page.reading import RecordedRun, read_run
from fedgossip.report.page.served import served


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into the run directory and return its path.

    The page is one file that loads nothing; the same run gives the same bytes.  Raises ConfigError when the files of
    the run are missing or cannot be read; an earlier report then stays unchanged.
    """
    run = read_run(run_dir)
    head, body = _gossip(run) if run.participation is None else _federated(run, run.participation)
    path = run_dir / run_format.REPORT
    write_atomically(path, document(f"{run.name} – fedgossip", head, body))
    return path


def _gossip(run: RecordedRun) -> tuple[Markup, Markup]:
    forecast = band(run)
    body = [
        sections.learning(run),
        sections.logged(run),
        sections.agreement(run, forecast),
        sections.graph(run),
        served(run),
        sections.peers(run),
        sections.faults(run),
        sections.provenance(run),
    ]
    return sections.head(run), join(body)


def _federated(run: RecordedRun, took: Participation) -> tuple[Markup, Markup]:
    return federated.head(run, took), join(federated.parts(run, took))


def write_comparison(path: Path, run_dirs: Sequence[Path], title: str) -> Path:
    """Write a page to `path` that shows the runs beside each other, in the given order, and return `path`.

    A run whose own report is already written is linked to it.  Raises ConfigError without runs, or as `write_report`
    does.
    """
    if not run_dirs:
        raise ConfigError("A comparison needs at least one run.", "Name the run directories to compare.")
    runs = [comparison.ComparedRun(read_run(folder), folder / run_format.REPORT) for folder in run_dirs]
    head, body = comparison.head_and_body(runs, title, path.parent)
    write_atomically(path, document(title, head, body))
    return path
