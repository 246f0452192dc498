"""The page of a comparison: its content, from the cells and their run directories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedgossip.core import run_format
from fedgossip.lab.compare.verdict import Comparison, Line
from fedgossip.lab.costs.formulas import crossover
from fedgossip.report.page.paradigms import CrossoverMap, ParadigmPage, written
from fedgossip.report.page.reading import read_run
from fedgossip.runs.run_directory import write_whole


def write_page(folder: Path, found: Comparison, told: Mapping[str, Any]) -> Path:
    """Write comparison.html, and the results as compared.json, into the folder; return the path of the page."""
    content = msgspec.json.format(msgspec.json.encode(told), indent=1)
    write_whole(folder / run_format.COMPARED, content)
    lines = found.of(found.workers[-1]) if found.workers else []
    shown = [(line.name, Path(line.cells[0].path)) for line in lines]
    page = ParadigmPage(
        title="Ways to train in parallel",
        lead=told["sentence"],
        equal=found.equal,
        target=found.target,
        rows=told["table"],
        runs=[(name, read_run(place), place / run_format.REPORT) for name, place in shown],
        staleness={line.name: dict(line.cells[0].staleness) for line in lines if line.cells[0].staleness},
        crossing=_crossing(lines),
        simulated=found.driver == "sim",
        tuned=found.tuned,
    )
    path = folder / run_format.COMPARISON
    written(path, page)
    return path


def _crossing(lines: list[Line]) -> CrossoverMap | None:
    """Return the map of latency and bandwidth, with this experiment's place in it; None for real processes."""
    settings = [line.cells[0].setting for line in lines if line.cells[0].setting]
    setting = max(settings, key=lambda one: one.workers, default=None)  # processes of one participant are no workers
    if setting is None or setting.workers < 3:
        return None
    latencies = [10 ** (-5 + k / 20) for k in range(101)]
    rates = [crossover(one, setting.workers, setting.size) for one in latencies]
    here = setting.links.latency, setting.links.rate
    at = here if here[0] > 0 and math.isfinite(here[1]) else None
    return CrossoverMap(latencies, rates, at, setting.workers, setting.size)
