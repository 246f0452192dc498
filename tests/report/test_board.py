"""The board: all runs of a folder in one table, their curves in common axes, read from files that may be anybody's."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_watch_page import ask, rendered

from fedgossip.cli.run.progress import words_for
from fedgossip.report.board import heads, pages
from fedgossip.report.board.pages import COLUMNS, POINTS_MAX, RUNS_AT_ONCE, Board, Catalogue, RunCurves
from fedgossip.report.watch.local_server import HttpAnswer, LocalServer
from tests.commands import finish, start, wait_until
from tests.written import Written, network_row, peer_row, rounds

TRAP = "<img src=x onerror=document.title=1><script>document.title=2</script>"


def finished(path: Path, accuracy: float = 0.9, total: int = 20, status: str = "finished", **facts: object) -> Written:
    run = Written(path, total=total, name=path.name)
    run.add(*rounds(1, total, accuracy=accuracy))
    score = {"averaged": accuracy, "mean_peer": accuracy - 0.1, "worst_peer": accuracy - 0.2, "name": "accuracy"}
    run.end(status, **{"name": path.name, "n": 4, "rounds": total, "bytes_sent": 4000 * total, "score": score, **facts})
    return run


def looked(folder: Path) -> Catalogue:
    found = Catalogue(folder)
    look(found)
    return found


def look(found: Catalogue) -> None:
    """Let a catalogue find and read all that is new."""
    found._next_look = 0.0
    found.look(60.0)
    assert not found.unread


def listed(found: Catalogue) -> dict[str, dict[str, Any]]:
    """Every run as the page has it, by its folder."""
    told = [pages.row(key, run) for key, run in found.since(0, 10**6).runs]
    return {run["folder"]: dict(run) for run in told}


def told_by(answers: Board, path: str, **query: list[str]) -> Any:
    answer = answers.answer(path, query)
    assert answer is not None
    return json.loads(answer.content)


# --- the table ------------------------------------------------------------------------------------------------------


def test_every_run_below_the_folder_is_told_with_the_keys_of_its_experiment(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    finished(tmp_path / "demo" / "graphs" / "b", 0.8)
    Written(tmp_path / "live").add(*rounds(1, 7, accuracy=0.7))
    found = listed(looked(tmp_path))
    assert set(found) == {"a", "demo/graphs/b", "live"}
    assert found["a"]["facts"]["score"] == 0.9 and found["a"]["facts"]["status"] == "finished"
    assert found["a"]["settings"]["topology.graph"] == "ring" and found["a"]["settings"]["topology.n"] == 4
    live = found["live"]["facts"]
    assert (live["status"], live["rounds"], live["score"], live["graph"]) == ("running", 7, 0.7, "ring")


def test_a_run_that_says_nothing_for_long_is_incomplete(tmp_path: Path) -> None:
    run = Written(tmp_path / "old")
    for path in run.path.iterdir():
        os.utime(path, (1.0, 1.0))
    assert listed(looked(tmp_path))["old"]["facts"]["status"] == "incomplete"


def test_the_folder_of_one_participant_is_told_too(tmp_path: Path) -> None:
    run = Written(tmp_path / "peer")
    (run.path / "INCOMPLETE").unlink()
    (run.path / "endpoint.toml").write_text("[[peer]]\nid = 2\n")
    (run.path / "ended.json").write_text('{"status": "finished"}')
    assert listed(looked(tmp_path))["peer"]["facts"]["status"] == "participant, finished"


def test_only_what_is_new_is_read_and_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        finished(tmp_path / name)
    found = looked(tmp_path)
    before = found.since(0, 100).version
    read: list[str] = []
    real = heads.read_head
    monkeypatch.setattr(pages, "read_head", lambda folder, marks: read.append(folder.name) or real(folder, marks))
    look(found)
    assert read == [] and not found.since(before, 100).runs
    finished(tmp_path / "d")
    (tmp_path / "b" / "report.html").write_text("")
    for path in (tmp_path / "c").iterdir():
        path.unlink()
    look(found)
    news = found.since(before, 100)
    assert sorted(read) == ["b", "d"] == sorted(run.shown for _, run in news.runs)
    assert len(news.gone) == 1 and news.count == 3


def test_a_thousand_runs_are_there_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is answered meanwhile, from one thread; another reads, and waits here for the first file."""
    for number in range(1000):
        (run := tmp_path / f"{number:04d}").mkdir()
        (run / "INCOMPLETE").touch()
    go_on, reading = threading.Event(), threading.Event()
    real = heads.read_head

    def slow(folder: Path, marks: heads.Marks) -> heads.Head:
        reading.set()
        assert go_on.wait(60)
        return real(folder, marks)

    monkeypatch.setattr(pages, "read_head", slow)
    found = Catalogue(tmp_path)
    board = Board(found, words_for)
    reader = threading.Thread(target=found.look, args=(120.0,))
    reader.start()
    try:
        assert reading.wait(60)
        news = told_by(board, "/runs.json")
        assert (news["count"], news["unread"], len(news["runs"]), news["more"]) == (1000, 1000, RUNS_AT_ONCE, True)
        assert "facts" not in news["runs"][0]
    finally:
        go_on.set()
        reader.join()
    assert found.unread == 0


def test_all_runs_are_told_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        finished(tmp_path / str(number), total=1)
    monkeypatch.setattr("fedgossip.report.board.pages.RUNS_AT_ONCE", 3)
    board, told, since = Board(looked(tmp_path), words_for), [], "0"
    name = told_by(board, "/runs.json")["board"]
    for _ in range(3):
        news = told_by(board, "/runs.json", board=[name], since=[since])
        told += [run["folder"] for run in news["runs"]]
        since = str(news["version"])
    assert sorted(told) == [str(number) for number in range(7)] and not news["more"]
    assert told_by(board, "/runs.json", board=["another"], since=[since])["runs"]


# --- what strangers put into the files ------------------------------------------------------------------------------

CRAFTED: dict[str, str] = {
    "no json": "{",
    "a list": "[1, 2]",
    "a huge n": json.dumps({"n": 10**18, "rounds": 10**400, "status": "finished"}),
    "not finite": '{"score": {"averaged": NaN}, "seconds": 1e999}',
    "other types": json.dumps({"n": "x", "score": 7, "status": {"a": 1}, "bytes_sent": [], "name": 3, "privacy": []}),
    "markup": json.dumps({"name": TRAP, "status": TRAP, "score": {"name": TRAP, "averaged": TRAP}, "n": TRAP}),
    "deep": '{"score": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "deep in what is not read": '{"status": "finished", "topology": ' + '{"a":' * 10_000 + "1" + "}" * 10_001,
    "a negative time": json.dumps({"seconds": -5, "status": "finished", "rounds": -(2**60)}),
}


@pytest.mark.parametrize("content", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_crafted_summary_is_told_in_short_lines_and_hides_no_other_run(content: str, tmp_path: Path) -> None:
    finished(tmp_path / "honest")
    run = finished(tmp_path / "crafted")
    (run.path / "summary.json").write_text(content)
    board = Board(looked(tmp_path), words_for)
    answer = board.answer("/runs.json", {})
    assert answer and len(answer.content) < 10_000
    news = json.loads(answer.content, parse_constant=pytest.fail)
    told = {run["folder"]: run for run in news["runs"]}
    assert told["honest"]["facts"]["score"] == 0.9
    assert isinstance(told["crafted"]["facts"]["status"], str)
    assert all(isinstance(value, str | int | float) for value in told["crafted"]["facts"].values())


def test_a_crafted_experiment_has_a_bounded_number_of_short_keys(tmp_path: Path) -> None:
    run = finished(tmp_path / "crafted")
    lines = "\n".join(f'"key {number} {TRAP}" = {number}' for number in range(1500))
    text = f"{lines}\nname = '{TRAP}'\nlist = [[1], [{{a = 1}}], nan]\nnan = nan\nbig = {2**62}\n"
    (run.path / "experiment.toml").write_text(text)
    settings = listed(looked(tmp_path))["crafted"]["settings"]
    assert len(settings) == heads.KEYS_MAX
    assert max(map(len, settings)) <= heads.LETTERS_MAX


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "summary.json").write_text('{"name": "secret", "status": "finished"}')
    base = tmp_path / "runs"
    run = finished(base / "run")
    (run.path / "report.html").symlink_to(secret / "summary.json")
    (base / "elsewhere").symlink_to(secret)
    pipe = base / "pipe"
    pipe.mkdir()
    (pipe / "INCOMPLETE").touch()
    os.mkfifo(pipe / "summary.json")
    found = looked(base)
    told = listed(found)
    assert set(told) == {"run", "pipe"} and not told["run"]["report"]
    assert Board(found, words_for).answer(f"/report/{told['run']['id']}", {}) is None


def test_crafted_rows_make_no_point(tmp_path: Path) -> None:
    run = Written(tmp_path / "run")
    run.add(*rounds(1, 3, accuracy=0.5))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind":"network","round":1e400}\n{"kind":"network","round":4,"peers":4,"seconds":1,"bytes_sent":')
        file.write("9" * 400 + ',"loss":1}\n{"kind":"network","round":"<b>","peers":[]}\n[[[\n\n')
    course = RunCurves(run.path)
    course.read(10.0)
    lines = course.as_plain()["lines"]
    assert [point[0] for point in lines["score_averaged"]] == [1, 2, 3]
    assert [point[0] for point in lines["loss"]] == [0, 1, 2, 3]


# --- curves ---------------------------------------------------------------------------------------------------------


def test_a_curve_is_thinned_evenly_and_keeps_its_newest_point(tmp_path: Path) -> None:
    run = Written(tmp_path / "run")
    run.add(*(network_row(at) for at in range(1, 3 * POINTS_MAX + 1)))
    course = RunCurves(run.path)
    course.read(30.0)
    points = course.as_plain()["lines"]["loss"]
    assert POINTS_MAX / 2 <= len(points) <= POINTS_MAX + 1
    assert points[-1][:3] == [3 * POINTS_MAX, 4000 * 3 * POINTS_MAX, pytest.approx(0.1 * 3 * POINTS_MAX)]


def test_what_loops_logged_is_a_curve_on_all_axes(tmp_path: Path) -> None:
    run = Written(tmp_path / "run")
    for at in range(1, 4):
        run.add(*(peer_row(p, at, logged={"grad norm": p + at, "bad": math.nan}) for p in range(4)), network_row(at))
    course = RunCurves(run.path)
    course.read(10.0)
    lines = course.as_plain()["lines"]
    assert lines["logged:grad norm"] == [[at, 4000 * at, pytest.approx(0.1 * at), 1.5 + at] for at in range(1, 4)]
    assert "logged:bad" not in lines


@pytest.mark.browser
@pytest.mark.sockets
def test_a_browser_draws_what_loops_logged(tmp_path: Path) -> None:
    run = Written(tmp_path / "runs" / "one")
    for at in range(1, 4):
        run.add(*(peer_row(p, at, logged={"grad norm": p + at}) for p in range(4)), network_row(at))
    key = ids(tmp_path / "runs")["one"]
    with serving(tmp_path / "runs") as served:
        page = rendered(f"{served.url}#runs={key}&metric={quote('logged:grad norm')}", tmp_path)
    assert len(curve_of(page, key)) == 3
    assert '<option value="logged:grad norm">grad norm</option>' in page
    assert re.search(r'<text class="y-name"[^>]*>grad norm</text>', page)


def test_curves_are_told_again_only_where_they_are_new(tmp_path: Path) -> None:
    run = Written(tmp_path / "run")
    run.add(*rounds(1, 3, accuracy=0.5))
    found = looked(tmp_path)
    ((key, _),) = found.since(0, 1).runs
    board = Board(found, words_for)
    first = told_by(board, "/curves.json", run=[f"{key}:"])["runs"][key]
    assert set(first["lines"]) == set(COLUMNS) and first["read"] == 1.0
    assert told_by(board, "/curves.json", run=[f"{key}:{first['version']}"])["runs"] == {}
    run.add(peer_row(1, 4))
    run.add(*rounds(4, 5, accuracy=0.6))
    again = told_by(board, "/curves.json", run=[f"{key}:{first['version']}"])["runs"][key]
    assert again["lines"]["score_averaged"][-1] == [5, 20000, 0.5, 0.6]
    assert told_by(board, "/curves.json", run=["nobody:1", "../x", ""])["runs"] == {}


# --- who is answered ------------------------------------------------------------------------------------------------


@contextmanager
def serving(folder: Path, page: HttpAnswer | None = None) -> Iterator[LocalServer]:
    """Serve the board of a folder, looked at once; `page` in place of its own."""
    board = Board(looked(folder), words_for)
    with LocalServer(lambda path, query: page if page and path == "/" else board.answer(path, query)) as served:
        yield served


def ids(folder: Path) -> dict[str, str]:
    return {name: run["id"] for name, run in listed(looked(folder)).items()}


@pytest.mark.sockets
def test_the_board_is_whole_in_itself_and_answers_its_own_name_only(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    with serving(tmp_path) as served:
        status, headers, page = ask(served.port, "/")
        refused = ask(served.port, "/runs.json", Host="evil.example")[0]
        wrong = [ask(served.port, path)[0] for path in ("/../run/experiment.toml", "/report/x", "/watch/x/", "/watch")]
        posted = ask(served.port, "/runs.json", "POST")[0]
    assert (status, refused, wrong, posted) == (200, 403, [404] * 4, 501)
    text = page.decode()
    assert "connect-src 'self'" in headers["Content-Security-Policy"] and "Access-Control-Allow-Origin" not in headers
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "innerHTML" not in text and "/*S" not in text
    assert served._server.server_address[0] == "127.0.0.1"


@pytest.mark.sockets
def test_each_run_has_its_watch_page_and_its_report(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    (run.path / "report.html").write_text("<p>the report</p>")
    key = ids(tmp_path)["run"]
    with serving(tmp_path) as served:
        watch = ask(served.port, f"/watch/{key}/")
        now = json.loads(ask(served.port, f"/watch/{key}/state.json")[2])
        report = ask(served.port, f"/report/{key}")
    assert watch[0] == 200 and b"fedgossip watch" in watch[2] and now["round"] == 20
    assert report[2] == b"<p>the report</p>"
    assert "sandbox allow-scripts" in report[1]["Content-Security-Policy"]
    assert "connect-src" not in report[1]["Content-Security-Policy"]


@pytest.mark.sockets
def test_nothing_is_written_while_a_board_is_looked_at(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    key = ids(tmp_path)["run"]
    with serving(tmp_path) as served:
        for path in ("/", "/runs.json", f"/curves.json?run={key}:", f"/watch/{key}/graph.json", f"/report/{key}"):
            ask(served.port, path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.sockets
def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    finished(tmp_path / "runs" / "one")
    process = start(["board"], tmp_path)
    assert process.stdout
    port = int(process.stdout.readline().strip().rsplit(":", 1)[1].strip("/"))

    def told() -> dict[str, Any]:
        return {run["folder"]: run for run in json.loads(ask(port, "/runs.json")[2])["runs"]}

    wait_until(lambda: told().get("one", {}).get("facts"), 20, "the run is told")
    finished(tmp_path / "runs" / "two")
    wait_until(lambda: told().get("two", {}).get("facts"), 20, "a new run is told")
    process.send_signal(signal.SIGINT)
    said = finish(process, 20)
    assert (said.code, said.err) == (0, "")


@pytest.mark.sockets
def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = finish(start(["board", "nowhere"], tmp_path), 20)
    assert said.code == 2 and "nowhere: no such folder" in said.err


# --- in a real browser ----------------------------------------------------------------------------------------------


def rows_of(page: str) -> list[tuple[str, bool]]:
    """The folders in the table from above, and whether each is chosen."""
    found = re.findall(r'<tr data-run="\w+" class="(\w*)">.*?title="watch ([^"]*)"', page)
    return [(folder, mark == "chosen") for mark, folder in found]


@pytest.mark.browser
@pytest.mark.sockets
def test_a_browser_sorts_and_filters_by_keys_of_the_experiment(tmp_path: Path) -> None:
    for place, graph in enumerate(("ring", "star", "ring", "complete")):
        run = finished(tmp_path / "runs" / f"run-{place}", 0.9 - 0.1 * place)
        text = (run.path / "experiment.toml").read_text()
        (run.path / "experiment.toml").write_text(text.replace('"ring"', f'"{graph}"') + f"eta = {0.1 * place}\n")
    with serving(tmp_path / "runs") as served:
        words = f"filter={quote('topology.graph=ring')}&sort=score&columns=task.eta"
        page = rendered(f"{served.url}#{words}", tmp_path)
        other = rendered(f"{served.url}#filter={quote('task.eta>0.05 status!=failed')}", tmp_path)
        strange = rendered(f"{served.url}#filter={quote('task.etta=1')}", tmp_path)
    assert [folder for folder, _ in rows_of(page)] == ["run-2", "run-0"]
    assert 'data-key="task.eta"' in page and 'data-key="score" class="number"' in page and "2 of 4 runs." in page
    assert sorted(folder for folder, _ in rows_of(other)) == ["run-1", "run-2", "run-3"]
    assert not rows_of(strange) and "No run has the key task.etta." in strange


def curve_of(page: str, key: str) -> list[tuple[float, float]]:
    found = re.search(rf'<path class="curve" data-run="{key}" d="M([^"]*)"', page)
    return [(float(x), float(y)) for x, y in (pair.split() for pair in found[1].split("L"))] if found else []


@pytest.mark.browser
@pytest.mark.sockets
def test_a_browser_draws_the_curves_of_the_chosen_runs_over_what_is_asked_for(tmp_path: Path) -> None:
    for name, rest in (("one", 20), ("two", 10)):
        finished(tmp_path / "runs" / name, total=rest)
    keys = ids(tmp_path / "runs")
    chosen = f"#runs={keys['one']},{keys['two']}&metric=loss"
    with serving(tmp_path / "runs") as served:
        page = rendered(f"{served.url}{chosen}", tmp_path)
        by_bytes = rendered(f"{served.url}{chosen}&over=bytes&smooth=0.5", tmp_path)
        enlarged = rendered(f"{served.url}{chosen}&view=0,0.5,0,1", tmp_path)
    assert [len(curve_of(page, keys[name])) for name in ("one", "two")] == [21, 11]
    assert sorted(rows_of(page)) == [("one", True), ("two", True)]
    assert re.search(r'<text class="x"[^>]*>(80\.0|60\.0|50\.0)\W*kB</text>', by_bytes)
    assert by_bytes.count('class="curve raw"') == 2
    whole, half = curve_of(page, keys["one"]), curve_of(enlarged, keys["one"])
    assert half[1][0] - half[0][0] == pytest.approx(2 * (whole[1][0] - whole[0][0]), abs=0.2)


@pytest.mark.browser
@pytest.mark.sockets
def test_strangers_words_stay_words_in_a_browser(tmp_path: Path) -> None:
    run = finished(tmp_path / "runs" / "evil", name=TRAP, status=TRAP, graph=TRAP)
    text = (run.path / "experiment.toml").read_text()
    (run.path / "experiment.toml").write_text(text + f"'{TRAP}' = '{TRAP}'\n")
    key = ids(tmp_path / "runs")["evil"]
    with serving(tmp_path / "runs") as served:
        page = rendered(f"{served.url}#runs={key}&columns={quote('task.' + TRAP)}&filter={quote(TRAP)}", tmp_path)
        every = rendered(f"{served.url}#runs={key},{quote(TRAP)}&metric={quote(TRAP)}&sort={quote(TRAP)}", tmp_path)
    for one in (page, every):
        assert "<img" not in one and one.count("<script") == 1
        assert "<title>1 runs – fedgossip board" in one
    assert "&lt;img src=x onerror" in every


DRAG = """
addEventListener("load", () => setTimeout(() => {
  const svg = document.querySelector("svg.zoomable"), box = svg.getBoundingClientRect(), frame = %s;
  const send = (kind, part) => {
    const view = svg.viewBox.baseVal, x = box.left + (frame.x + part * frame.width) / view.width * box.width;
    const at = { clientX: x, clientY: box.top + box.height / 2, isPrimary: true, pointerId: 1, bubbles: true };
    svg.dispatchEvent(new PointerEvent(kind, at));
  };
  send("pointerdown", 0.25); send("pointermove", 0.5); send("pointerup", 0.75);
}, 1200));
"""
"""Drags over the middle half of a plot, as a hand would."""


@pytest.mark.browser
@pytest.mark.sockets
def test_dragging_over_the_plot_enlarges_what_was_marked(tmp_path: Path) -> None:
    finished(tmp_path / "runs" / "one")
    key = ids(tmp_path / "runs")["one"]
    ours = Board(looked(tmp_path / "runs"), words_for)._page
    script = f"<script>{DRAG % 'PLOT'}</script></body>"
    page = replace(
        ours, content=ours.content.replace(b"</body>", script.encode()), policy="default-src 'self' 'unsafe-inline'"
    )
    with serving(tmp_path / "runs", page) as served:
        dragged = rendered(f"{served.url}#runs={key}&metric=loss", tmp_path, 4000)
        plain = rendered(f"{served.url}#runs={key}&metric=loss&view=0,1,0,1", tmp_path, 600)
    whole, half = curve_of(plain, key), curve_of(dragged, key)
    assert half[1][0] - half[0][0] == pytest.approx(2 * (whole[1][0] - whole[0][0]), abs=0.3)
    assert re.search(r'<button type="button" id="all">Show all', dragged)


def test_a_run_under_way_is_named_by_what_its_experiment_says() -> None:
    told = (
        {"parallel.workers": 3, "parallel.method": "ring"},
        {"coordinator.clients": 5, "coordinator.algorithm": "scaffold"},
    )
    assert [heads._method(settings) for settings in told] == [
        {"n": 3, "algorithm": "ring"}, {"n": 5, "algorithm": "scaffold"}
    ]  # fmt: skip
