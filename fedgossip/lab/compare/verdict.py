"""The table of a comparison; the sentence on the winner under these links and the change that would replace it; and the
page with both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from fedgossip.algorithms.collectives.names import EqualLinks
from fedgossip.core import run_format
from fedgossip.lab.compare.measured import MeasuredCell, Point
from fedgossip.lab.compare.names import Setting, codec_seconds, dense_of, paradigm_of
from fedgossip.lab.costs.base import break_even, crossover
from fedgossip.report.page.paradigms import CrossoverMap, ParadigmPage, written
from fedgossip.report.page.reading import read_run
from fedgossip.runs.run_directory import write_whole

FASTEST, SLOWEST = 1e12, 1e2
"""Range of the search for another bandwidth, in bytes per second."""

LEARNED = 0.1
"""Share of the largest decrease of the test loss below which a line has learned nothing."""

STEP = 10 ** (1 / 8)
"""Ratio of successive bandwidths and latencies in the search."""


@dataclass(frozen=True)
class Line:
    """A paradigm with a number of workers: means over the seeds with a finished cell."""

    name: str
    workers: int
    cells: Sequence[MeasuredCell]
    failed: Sequence[MeasuredCell]

    def mean(self, values: Sequence[float | None]) -> float | None:
        there = [value for value in values if value is not None]
        return fmean(there) if there and len(there) == len(self.cells) else None


@dataclass(frozen=True)
class Comparison:
    """All cells, and the basis of their comparison."""

    lines: Sequence[Line]
    equal: str
    target: float | None
    """The test loss up to which seconds and bytes are counted."""
    driver: str = "sim"
    tuned: Sequence[Mapping[str, Any]] = ()
    """The search for each learning rate, if any."""

    @property
    def workers(self) -> list[int]:
        return sorted({line.workers for line in self.lines})

    def select_lines(self, workers: int) -> list[Line]:
        """Return the paradigms with `workers` and at least one cell."""
        return [line for line in self.lines if line.workers == workers and line.cells]

    def end(self, cell: MeasuredCell) -> Point | None:
        """Return the compared point of a cell: its end, or the point with the least resource that any cell used."""
        cells = [one for line in self.select_lines(cell.cell.workers) for one in line.cells if one.point]
        points = [one.point for one in cells if one.point]
        if self.equal == "seconds":
            return cell.within(seconds=min(point.seconds for point in points))
        if self.equal == "bytes":
            return cell.within(sent=min(point.bytes_sent for point in points))
        return cell.point


def comparison(
    cells: Sequence[MeasuredCell],
    equal: str,
    target: float | None,
    driver: str = "sim",
    tuned: Sequence[Mapping[str, Any]] = (),
) -> Comparison:
    """Group cells by paradigm and number of workers, in order of appearance."""
    keys = list(dict.fromkeys((one.cell.name, one.cell.workers) for one in cells))
    lines = []
    for name, workers in keys:
        own = [one for one in cells if (one.cell.name, one.cell.workers) == (name, workers)]
        lines.append(Line(name, workers, [o for o in own if not o.error], [o for o in own if o.error]))
    if target is None:
        ends = [one.curve[-1].loss for one in cells if one.curve and not _learned_nothing(one, cells)]
        target = max(ends, default=None)
    return Comparison(lines, equal, target, driver, tuned)


def _learned_nothing(one: MeasuredCell, cells: Sequence[MeasuredCell]) -> bool:
    """Whether a cell's loss fell by less than LEARNED of the largest decrease."""
    return not one.fall > LEARNED * max((other.fall for other in cells if other.curve), default=0.0)


def table(found: Comparison) -> list[dict[str, Any]]:
    """Return a row per paradigm and number of workers, as --json prints it.  Seconds; bytes of vectors."""
    return [_row(found, line) for line in found.lines]


def _row(found: Comparison, line: Line) -> dict[str, Any]:
    row: dict[str, Any] = {"paradigm": line.name, "workers": line.workers, "seeds": len(line.cells)}
    row["failed"] = [one.error for one in line.failed]
    if not line.cells:
        return row
    first, cells = line.cells[0], line.cells
    ends = [found.end(one) for one in cells]
    goals = [one.reached(found.target) if found.target is not None else None for one in cells]
    parts = ("compute", "communicate", "wait")
    row |= {
        "rounds": first.rounds,
        "seconds": fmean(one.seconds for one in cells),
        "test_loss": line.mean([end.loss if end else None for end in ends]),
        first.score_name or "score": line.mean([end.score if end else None for end in ends]),
        "seconds_to_target": line.mean([goal.seconds if goal else None for goal in goals]),
        "bytes_to_target": line.mean([goal.bytes_sent if goal else None for goal in goals]),
        **{part: fmean(one.parts[part] for one in cells) for part in parts},
        "round_seconds": fmean(one.round_seconds for one in cells),
        "models_apart": line.mean([one.apart for one in cells]),
        "payload_of_busiest": fmean(one.payload for one in cells),
        "runs": [one.path for one in cells],
    }
    predicted = [one.predicted for one in cells if one.predicted]
    if predicted:
        row["told"] = {
            "round_seconds": fmean(one.seconds for one in predicted),
            "error": max(one.error for one in predicted),
            "formula": line.mean([one.formula for one in cells]),
            "payload_of_busiest": fmean(one.payload_of_busiest for one in predicted),
        }
    alone = next((one for one in found.lines if (one.name, one.workers) == (line.name, 1) and one.cells), None)
    if alone:
        row["speedup"] = fmean(one.seconds for one in alone.cells) / row["seconds"]
        row["efficiency"] = row["speedup"] / line.workers
    if compression := _compression(found, line):
        row["compression"] = compression.plain_data()
    return row


def winner(found: Comparison) -> tuple[Line, float] | None:
    """Return the first paradigm at the target with the most workers, and its seconds; None if none reaches it."""
    times = _times(found)
    name = min(times, key=lambda one: times[one], default=None)
    if name is None:
        return None
    line = next(line for line in found.select_lines(found.workers[-1]) if line.name == name)
    return line, times[name]


def _times(found: Comparison) -> dict[str, float]:
    rows = [_row(found, line) for line in found.select_lines(found.workers[-1])] if found.workers else []
    return {row["paradigm"]: row["seconds_to_target"] for row in rows if row.get("seconds_to_target") is not None}


def sentence(found: Comparison) -> str:
    """Return a sentence: the winner, its margin, and the change that would make another win."""
    won = winner(found)
    if not any(line.cells for line in found.lines):
        return "No run ended: the lines above have the reasons."
    if won is None or found.target is None:
        return "None of them reaches the target: give more rounds, or a larger compare.target."
    line, seconds = won
    times = sorted(_times(found).items(), key=lambda pair: pair[1])
    text = f"With {line.workers} workers {line.name} is first at test loss {found.target:.3g}, after {seconds:.3g} s"
    if len(times) > 1:
        text += f"; then {times[1][0]}, after {times[1][1]:.3g} s"
    if len(times) > 2:
        text += f", and last {times[-1][0]}, after {times[-1][1]:.3g} s"
    change = other_winner(found, line.name)
    return "  ".join(one for one in (f"{text}.", *_describe_ends(found), change, *compressing(found)) if one)


def _describe_ends(found: Comparison) -> list[str]:
    """Return the final losses in words; and the lines that miss the target, or learned nothing."""
    lines = [line for line in found.select_lines(found.workers[-1]) if all(one.point for one in line.cells)]
    ends = {line.name: fmean(one.curve[-1].loss for one in line.cells) for line in lines}
    sentences = [f"Test losses at the end: {', '.join(f'{name} {loss:.3g}' for name, loss in ends.items())}."]
    cells = [one for line in lines for one in line.cells]
    for line in lines:
        if any(_learned_nothing(one, cells) for one in line.cells):
            began = fmean(one.curve[0].loss for one in line.cells)
            sentences.append(f"{line.name} DIVERGED, or learned nothing: it began at {began:.3g}.")
        elif any(one.reached(found.target or 0.0) is None for one in line.cells):
            sentences.append(f"{line.name} does not hold {found.target:.3g} to its end.")
    return sentences


def compressing(found: Comparison) -> list[str]:
    """Return for each compared codec whether it pays relative to the same collective; its computing time is measured
    here and added.
    """
    found_of = [_compression(found, line) for line in found.select_lines(found.workers[-1])]
    return [one.sentence for one in found_of if one]


def _compression(found: Comparison, line: Line) -> Compression | None:
    """Return the gain of a codec relative to the same collective without one; None without such a pair."""
    dense, setting = dense_of(line.name), line.cells[0].setting
    beside = next((one for one in found.select_lines(line.workers) if one.name == dense), None)
    if dense is None or beside is None or setting is None or setting.racked or found.target is None:
        return None
    goals = {one.name: [cell.reached(found.target) for cell in one.cells] for one in (line, beside)}
    seconds, rounds = (
        {name: fmean(getattr(goal, what) for goal in own if goal) if all(own) else None for name, own in goals.items()}
        for what in ("seconds", "round")
    )
    working = codec_seconds(line.name, setting.size // setting.element, line.workers)
    ends = [
        fmean(one.curve[-1].loss for one in of.cells) for of in (beside, line) if all(one.curve for one in of.cells)
    ]
    (still, sent), (own, less) = round_of(dense, setting), round_of(line.name, setting)
    found_here = compression_of((dense, line.name), seconds, rounds, working, setting)
    return replace(
        found_here,
        target=found.target,
        ends=(ends[0], ends[1]) if len(ends) == 2 else None,
        saved=(still - own, (sent - less) / setting.links.rate),
    )


def other_winner(found: Comparison, name: str) -> str:
    """Return in words the least change of bandwidth or latency that would make another paradigm win, by the cost model,
    or "".
    """
    rounds = _rounds_to_target(found)
    setting = next(
        (one.setting for line in found.select_lines(found.workers[-1]) for one in line.cells if one.setting), None
    )
    if setting is None or len(rounds) < 2:
        return ""
    here = setting.links
    for words, links, _ in sorted(_alternatives(here), key=lambda other: (other[2], other[0])):
        times = {one: count * _round_under(found, one, links) for one, count in rounds.items()}
        first = min(times, key=lambda one: times[one])
        if first != name:
            return f"By the cost model, {words} {first} would be first."
    others = [links for _, links, _ in _alternatives(here)]
    rates = [links.rate for links in others if math.isfinite(links.rate)]
    text = f"By the cost model no bandwidth from {format_rate(min(rates))}B/s to {format_rate(max(rates))}B/s"
    if here.latency:
        delays = [links.latency for links in others]
        text += f", and no latency from {min(delays):.2g} s to {max(delays):.2g} s,"
    lines = found.select_lines(found.workers[-1])
    return f"{text} would change that{'' if len(rounds) == len(lines) else ' among those'}."


def _rounds_to_target(found: Comparison) -> dict[str, float]:
    rounds: dict[str, float] = {}
    for line in found.select_lines(found.workers[-1]):
        goals = [one.reached(found.target or 0.0) for one in line.cells if one.predicted]
        if goals and all(goals):
            rounds[line.name] = fmean(goal.round for goal in goals if goal)
    return rounds


def _round_under(found: Comparison, name: str, links: EqualLinks) -> float:
    line = next(line for line in found.select_lines(found.workers[-1]) if line.name == name)
    setting = line.cells[0].setting
    assert setting is not None
    return paradigm_of(name).cost(replace(setting, links=links)).seconds


def _alternatives(here: EqualLinks) -> list[tuple[str, EqualLinks, float]]:
    found = []
    for up in (True, False):
        rate = here.rate if math.isfinite(here.rate) else FASTEST
        factor = 1.0
        while factor < 1e6:
            factor *= STEP * STEP
            other = rate * factor if up else rate / factor
            if not SLOWEST <= other <= FASTEST:
                break
            words = f"with a bandwidth {'above' if up else 'below'} about {format_rate(other)}B/s"
            found.append((words, replace(here, up=other, down=other), factor))
        factor = 1.0
        while here.latency and factor < 1e4:
            factor *= STEP * STEP
            other = here.latency * factor if up else here.latency / factor
            words = f"with a latency {'above' if up else 'below'} about {other:.2g} s"
            found.append((words, replace(here, latency=other), factor))
    return found


def summary_of(found: Comparison) -> Mapping[str, Any]:
    """Return the whole comparison as plain data."""
    return {
        "equal": found.equal,
        "target": found.target,
        "driver": found.driver,
        "sentence": sentence(found),
        "table": table(found),
        **({"tuned": found.tuned} if found.tuned else {}),
    }


# Whether a codec pays relative to the same collective without it, under these links, and its break-even bandwidth.


WORSE = 1.1
"""Maximum ratio of the final losses with and without a codec for which it learned as much."""

LINEAR = 1e6
"""Bandwidth, in bytes per second, for counting the bytes of a round: its time is linear in the inverse bandwidth."""


@dataclass(frozen=True)
class Compression:
    """One codec.  Rounds and seconds are those to the target loss; None if it was not reached."""

    dense: str
    coded: str
    dense_seconds: float | None
    coded_seconds: float | None
    codec_seconds: float
    """Seconds of a worker's codec in these rounds."""
    pays_below: float
    """Break-even bandwidth in bytes per second, each way; 0.0: never pays, infinite: always pays."""
    target: float | None = None
    ends: tuple[float, float] | None = None
    """Test loss at the end without the codec, and with it."""
    saved: tuple[float, float] | None = None
    """Seconds per round saved by fewer sequential messages, and by fewer bytes."""

    @property
    def pays(self) -> bool:
        """Return whether it reaches the target sooner under these links."""
        if self.coded_seconds is None:
            return False
        return self.dense_seconds is None or self.coded_seconds + self.codec_seconds < self.dense_seconds

    @property
    def below(self) -> str:
        """Return in words the bandwidths below which it would pay."""
        if not self.pays_below:
            return "at no bandwidth"
        return "at any bandwidth" if math.isinf(self.pays_below) else f"below {format_rate(self.pays_below)}B/s"

    @property
    def sentence(self) -> str:
        """Return the sentence for the head of a comparison."""
        verdict = "Compressing pays here" if self.pays else "Do not compress here"
        if self.target is not None and self.pays:
            verdict += f" up to a test loss of {self.target:.3g}"
        coded = f"{self.coded} {_format_after(self.coded_seconds)}"
        text = f"{verdict}: {self.dense} is at the loss {_format_after(self.dense_seconds)}, {coded}"
        if self.coded_seconds is not None:
            text += f" and {self.codec_seconds:.2g} s of its codec"
            if self.dense_seconds is not None:
                text += f"; by the cost model it pays {self.below}"
        if self.saved is not None:
            messages, sent = (0.0 if abs(seconds) < 1e-6 else seconds for seconds in self.saved)  # else rounding
            text += f"; of a round it saves {messages:.2g} s by fewer messages in turn, and {sent:.2g} s by fewer bytes"
        if self.ends is not None:
            worse = "" if self.ends[1] <= WORSE * self.ends[0] else ", so further training needs the other"
            text += f"; at the end they are at {self.ends[0]:.3g} and {self.ends[1]:.3g}{worse}"
        return f"{text}."

    def plain_data(self) -> Mapping[str, Any]:
        """Return plain data; "pays_below" is None if it pays at any bandwidth."""
        below = None if math.isinf(self.pays_below) else self.pays_below
        return {**asdict(self), "pays_below": below, "pays": self.pays, "below": self.below}


def compression_of(
    names: tuple[str, str],
    seconds: Mapping[str, float | None],
    rounds: Mapping[str, float | None],
    codec_seconds: float,
    setting: Setting,
) -> Compression:
    """Return the gain of a codec; `names`: without it, with it; `codec_seconds`: per round.

    With R rounds of B sequential bytes and c other seconds each, codec time t: break-even saves R B - R' B' bytes for
    R' (c' + t) - R c seconds.
    """
    dense, coded = names
    ours, theirs = rounds[coded], rounds[dense]
    if ours is None:
        return Compression(dense, coded, seconds[dense], None, 0.0, 0.0)
    working = codec_seconds * ours
    if theirs is None:
        return Compression(dense, coded, None, seconds[coded], working, math.inf)
    beside, sent = round_of(dense, setting)
    own, less = round_of(coded, setting)
    below = break_even(theirs * sent - ours * less, ours * (own + codec_seconds) - theirs * beside)
    return Compression(dense, coded, seconds[dense], seconds[coded], working, below)


def round_of(name: str, setting: Setting) -> tuple[float, float]:
    """Return the seconds of a round independent of bandwidth, and its sequential bytes."""

    def seconds(rate: float) -> float:
        return paradigm_of(name).cost(replace(setting, links=replace(setting.links, up=rate, down=rate))).seconds

    beside = seconds(math.inf)
    return beside, (seconds(LINEAR) - beside) * LINEAR


def format_rate(rate: float) -> str:
    """Return bytes per second with two digits and a unit prefix."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{float(f'{rate / size:.2g}'):g} {unit}"
    return f"{rate:.2g} "


def _format_after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.3g} s"


def write_page(folder: Path, found: Comparison, summary: Mapping[str, Any]) -> Path:
    """Write comparison.html, and the results as compared.json, into the folder; return the path of the page."""
    content = msgspec.json.format(msgspec.json.encode(summary), indent=1)
    write_whole(folder / run_format.COMPARED, content)
    lines = found.select_lines(found.workers[-1]) if found.workers else []
    shown = [(line.name, Path(line.cells[0].path)) for line in lines]
    page = ParadigmPage(
        title="Ways to train in parallel",
        lead=summary["sentence"],
        equal=found.equal,
        target=found.target,
        rows=summary["table"],
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
    """Return the map of latency and bandwidth that marks this experiment; None for real processes."""
    settings = [line.cells[0].setting for line in lines if line.cells[0].setting]
    setting = max(settings, key=lambda one: one.workers, default=None)  # processes of one participant are no workers
    if setting is None or setting.workers < 3 or setting.racked:
        return None
    latencies = [10 ** (-5 + k / 20) for k in range(101)]
    rates = [crossover(one, setting.workers, setting.size) for one in latencies]
    here = setting.links.latency, setting.links.rate
    at = here if here[0] > 0 and math.isfinite(here[1]) else None
    return CrossoverMap(latencies, rates, at, setting.workers, setting.size)
