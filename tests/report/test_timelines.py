"""Timelines: their bars are the record's seconds, and what cannot be drawn is refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedgossip.algorithms.collectives.names import COLLECTIVES
from fedgossip.base.errors import ConfigError
from fedgossip.cli.lab.timeline import timeline as command
from fedgossip.core.records import PeerRow, read_rows
from fedgossip.core.run_format import ROWS, TIMELINE
from fedgossip.core.timeline import ITEMS, Timeline, TimelineLog, build_timeline, chrome_trace, read_timeline
from fedgossip.drivers.simulate import simulate, simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.lab.lectures.computed import pipelined
from fedgossip.plans import compose
from fedgossip.report.page.page import write_report
from fedgossip.report.page.timeline import following_bars

Content = dict[str, Any]
TASK = {"kind": "quadratic", "dim": 500}
LINKS = {
    "latency": 0.003,
    "bandwidth": 4e5,
    "downlink": 4e5,
    "training": 0.02,
    "classes": [{"nodes": "2", "slower": 3.0}],
}
COMMON: Content = {"rounds": 6, "task": TASK, "simulation": LINKS}
CRASH = {"kind": "crash", "start": 0.07, "after": 0.1, "peers": [1]}
RUNS: dict[str, Content] = {
    "ring": {"parallel": {"method": "ring", "workers": 4}},
    "star": {"parallel": {"method": "star", "workers": 4}},
    "naive": {"parallel": {"method": "ring-naive", "workers": 4}},
    "overlap": {"parallel": {"method": "tree", "workers": 4, "bucket": 400, "overlap": True}},
    "mapreduce": {"parallel": {"method": "mapreduce", "workers": 4}},
    "fedbuff": {"coordinator": {"clients": 4, "algorithm": "fedbuff", "secure": {"on": False}}},
    "servers": {"parallel": {"method": "parameter-server", "workers": 4, "server": {"staleness": 2}}},
    "fedavg": {"coordinator": {"clients": 4, "secure": {"on": False}}},
    "gossip": {"topology": {"graph": "ring", "n": 4}},
    "a death": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"deadline": 0.1}, "faults": [CRASH]},
    "pairs": {"topology": {"graph": "ring", "n": 4}, "algorithm": {"mode": "async"}},
}


def _recorded(content: Mapping[str, Any]) -> tuple[Timeline, list[PeerRow]]:
    plan = compose.plan(load_experiment({**COMMON, **content}))
    log = TimelineLog(plan.n, plan.roles.counted, ITEMS)
    run = simulate_plan(plan, timeline=log)
    return log.timeline(), [row for row in run.rows if isinstance(row, PeerRow) and row.round]


@pytest.mark.parametrize("name", RUNS)
def test_the_bars_of_a_round_sum_to_its_row(name: str) -> None:
    found, rows = _recorded(RUNS[name])
    assert rows
    for node in {row.peer for row in rows}:
        own = [row for row in rows if row.peer == node]
        # the record's first round begins with the first training, or with the run
        begin = next((bar.began for bar in found.bars if bar.node == node and bar.what == "computing"), 0)
        total = {"computing": 0.0, "communicating": 0.0, "waiting": 0.0}
        for row in own:
            seconds = found.seconds(node, begin, begin := round(row.seconds * 1e9))
            total["computing"] += row.seconds_training - seconds["computing"]
            total["communicating"] += row.seconds_communicating - sum(
                seconds[what] for what in ("sending", "receiving", "both")
            )
            total["waiting"] += row.seconds_waiting - seconds["waiting"]
            if name not in ("pairs", "servers"):  # there a training may span two rounds, and counts where it ends
                assert total == pytest.approx(dict.fromkeys(total, 0.0), abs=1e-7), row
        unended = sum(min(bar.ended, begin) - bar.began for bar in found.bars if bar.node == node
                      and bar.what == "computing" and bar.began < begin < bar.ended)  # fmt: skip
        assert total["computing"] >= -unended / 1e9 - 1e-7
        assert total["communicating"] == pytest.approx(0.0, abs=1e-7)
        assert total["waiting"] == pytest.approx(0.0, abs=1e-7)


def test_a_dead_peer_is_away_and_does_not_wait() -> None:
    found, rows = _recorded(RUNS["a death"])
    assert found.seconds(1, 0, found.until)["away"] == pytest.approx(0.1)
    own = [row for row in rows if row.peer == 1]
    spent = sum(row.seconds_training + row.seconds_communicating + row.seconds_waiting for row in own)
    assert spent == pytest.approx(own[-1].seconds - 0.1, abs=1e-7)
    assert [mark.what for mark in found.marks if mark.node == 1] == ["crashed", "restarted"]


def test_every_message_with_vectors_is_an_arrow_of_its_size() -> None:
    found, _ = _recorded({**RUNS["gossip"], "rounds": 1})
    assert len(found.messages) == 8  # four peers of a ring, two neighbours each
    assert {one.payload for one in found.messages} == {500 * 4}
    for one in found.messages:
        assert one.sent - one.began == pytest.approx(2000 / 4e5 * 1e9, rel=0.05)
        assert one.arrived >= one.sent + 3_000_000


ALWAYS = {"ph", "name", "pid", "tid"}
OF_PHASE = {
    "M": {"args"}, "X": {"ts", "dur", "cname"}, "i": {"ts", "s"},
    "s": {"ts", "cat", "id", "args"}, "f": {"ts", "cat", "id", "args", "bp"},
}  # fmt: skip
OPTIONAL = {"cname"}
CNAMES = {"thread_state_running", "grey", "terrible"}
"""Of the names that Chrome's viewer reserves."""


def read_strictly(content: bytes) -> dict[str, list[dict[str, Any]]]:
    """Return the events of a trace by phase; AssertionError for what the Trace Event Format does not allow."""
    whole = json.loads(content, parse_constant=pytest.fail)  # neither NaN nor Infinity
    assert set(whole) == {"traceEvents", "displayTimeUnit"} and whole["displayTimeUnit"] in ("ms", "ns")
    found: dict[str, list[dict[str, Any]]] = {phase: [] for phase in OF_PHASE}
    for one in whole["traceEvents"]:
        allowed = ALWAYS | OF_PHASE[one["ph"]]
        assert allowed - OPTIONAL <= set(one) <= allowed and type(one["name"]) is str
        assert type(one["pid"]) is type(one["tid"]) is int and min(one["pid"], one["tid"]) >= 0
        assert all(type(one[key]) in (int, float) and one[key] >= 0 for key in ("ts", "dur") if key in one)
        assert one.get("cname", "grey") in CNAMES and one.get("bp", "e") == "e" and one.get("s", "t") == "t"
        found[one["ph"]].append(one)
    named = {(one["pid"], one["tid"]) for one in found["M"] if one["name"] == "thread_name"}
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in found["X"]:
        lanes.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    assert lanes.keys() <= named
    for lane in lanes.values():
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(sorted(lane))), "slices of a thread overlap"
    for kind in "sf":
        assert len({one["id"] for one in found[kind]}) == len(found[kind])
        for one in found[kind]:  # a flow that no slice encloses is not drawn
            within = lanes[one["pid"], one["tid"]]
            assert any(begin - 1e-3 <= one["ts"] <= end + 1e-3 for begin, end in within)
    return found


@pytest.mark.parametrize("names", [["ring"], list(RUNS)], ids=["one", "all"])
def test_the_trace_of_chrome_is_of_its_format_with_a_slice_per_bar_and_a_flow_per_message(names: list[str]) -> None:
    timelines = [_recorded(RUNS[name])[0] for name in names]
    lanes = [[f"node {node}" for node in range(one.participants)] for one in timelines]
    events = read_strictly(chrome_trace(zip(names, timelines, lanes, strict=True)))
    seconds = sum(bar.ended - bar.began for one in timelines for bar in one.bars) / 1e9
    assert sum(one["dur"] for one in events["X"]) / 1e6 == pytest.approx(seconds)
    starts, ends = ({one["id"]: one for one in events[kind]} for kind in "sf")
    arrived = [one for of in timelines for one in of.messages if 0 <= one.arrived <= of.until]
    assert starts.keys() == ends.keys() and len(starts) == len(arrived)
    assert all(starts[number]["ts"] < ends[number]["ts"] for number in starts)


def _called(*words: str) -> tuple[int, str, BaseException | None]:
    found = CliRunner().invoke(command, list(words), standalone_mode=False)
    return found.exit_code, found.output, found.exception


def test_all_collectives_stand_on_one_page(tmp_path: Path) -> None:
    file = tmp_path / "ring.toml"
    file.write_text('rounds = 9\ntask = { kind = "quadratic", dim = 90 }\n[parallel]\nmethod = "ring"\nworkers = 4\n')
    code, output, error = _called(
        str(file), "--paradigms", "collectives", "--rounds", "1", "--out", str(tmp_path / "all")
    )
    assert code == 0, (output, error)
    drawn = (tmp_path / "all.svg").read_text()
    assert all(name in output and f"{name}: " in drawn for name in COLLECTIVES)
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "all.json").exists()


def test_a_run_stores_its_first_rounds_and_the_report_shows_them(tmp_path: Path) -> None:
    simulate({**COMMON, **RUNS["gossip"]}, out=tmp_path / "run")
    found = read_timeline(tmp_path / "run")
    assert found is not None and found.whole_rounds == 6
    code, output, _ = _called(str(tmp_path / "run"), "--rounds", "2", "--out", str(tmp_path / "two.svg"))
    assert code == 0 and (tmp_path / "two.svg").exists() and "peer 3" in output
    assert 'id="timeline"' in write_report(tmp_path / "run").read_text()


def test_the_record_alone_gives_bars_without_arrows(tmp_path: Path) -> None:
    simulate({**COMMON, **RUNS["star"]}, out=tmp_path / "run")
    stored = read_timeline(tmp_path / "run")
    told = build_timeline(read_rows(tmp_path / "run" / ROWS), 4, range(4))
    assert stored is not None and not told.messages
    for node in range(4):
        begin = next(bar.began for bar in stored.bars if bar.node == node)
        end = max(one.at for one in stored.rounds if one.node == node)
        seconds, of_events = told.seconds(node, 0, told.until), stored.seconds(node, begin, end)
        assert seconds["computing"] == pytest.approx(of_events["computing"], abs=1e-6)
        carried = sum(of_events[what] for what in ("sending", "receiving", "both"))
        assert seconds["communicating"] == pytest.approx(carried, abs=1e-6)


@pytest.mark.parametrize("engine", ["stacked"])
def test_a_run_without_times_is_refused_with_what_to_do(tmp_path: Path, engine: str) -> None:
    simulate({**COMMON, **RUNS["gossip"], "simulation": {}}, engine=engine, out=tmp_path / "run")
    assert not (tmp_path / "run" / TIMELINE).exists()
    _, _, error = _called(str(tmp_path / "run"))
    assert isinstance(error, ConfigError) and "recorded no times" in str(error)
    assert "fedgossip timeline RUN/experiment.toml" in error.advice


def test_more_participants_than_lanes_and_other_endings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "many.toml"
    file.write_text('rounds = 1\ntask = { kind = "averaging", dim = 2 }\n[topology]\ngraph = "ring"\nn = 65\n')
    _, _, error = _called(str(file))
    assert isinstance(error, ConfigError) and "65 participants" in str(error) and "--n 8" in error.advice
    _, _, error = _called(str(file), "--out", "picture.gif")
    assert isinstance(error, ConfigError) and "picture.gif" in str(error)


def test_a_damaged_timeline_is_refused_in_one_line(tmp_path: Path) -> None:
    simulate({**COMMON, **RUNS["gossip"]}, out=tmp_path / "run")
    place = tmp_path / "run" / TIMELINE
    whole = place.read_text()
    for damaged in (whole[:-5], whole.replace('"bars":[[0', '"bars":[[9999', 1), '{"participants":4}', "[]"):
        assert damaged != whole
        place.write_text(damaged)
        with pytest.raises(ConfigError, match=TIMELINE):
            read_timeline(tmp_path / "run")


def test_pieces_that_follow_each_other_are_apart_in_the_picture_of_a_pipeline() -> None:
    """GPipe: of 8 pieces at each of 4 stages, 7 follow another forward, and 7 back."""
    picture = pipelined(4, 8).picture
    assert isinstance(picture, list) and len(following_bars(picture[0].timeline.bars)) == 4 * 2 * 7
