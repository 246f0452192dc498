"""The page of a run that is watched: what it is told, to whom it is told, and what a real browser draws of it."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgossip.base.errors import NetworkError
from fedgossip.cli.run.progress import event_text, words_for
from fedgossip.core.records import EventRow
from fedgossip.report.watch import local_server, snapshot
from fedgossip.report.watch.follow import Follower
from fedgossip.report.watch.local_server import HttpAnswer, LocalServer, Site
from fedgossip.report.watch.snapshot import places
from fedgossip.topology import Topology, resolve
from tests.commands import finish, start, wait_until
from tests.written import Written, gone, peer_row, read, rounds

pytestmark = pytest.mark.sockets


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path / "run")


# --- the page -------------------------------------------------------------------------------------------------------


@contextmanager
def site(follower: Follower, before: Callable[[int], None] = lambda asked: None) -> Iterator[Site]:
    """Serve `follower`, polled whenever it is asked; `before` is told how often it was."""
    asked = 0
    lock = threading.Lock()

    def moment() -> dict[str, Any]:
        nonlocal asked
        with lock:
            asked += 1
            before(asked)
            follower.poll()
            return snapshot.moment(follower, words_for(follower.state.roles))

    with Site(lambda: snapshot.graph(follower), moment) as served:
        yield served


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page_is_whole_in_itself_and_may_ask_its_own_server_only(run: Written) -> None:
    with site(read(run.path)) as served:
        status, headers, page = ask(served.port, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    text = page.decode()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "innerHTML" not in text and "/*S" not in text


def test_the_states_are_plain_data(run: Written) -> None:
    run.add(*rounds(1, 5, accuracy=0.75), gone(1, 2, 5))
    with site(read(run.path)) as served:
        graph = json.loads(ask(served.port, "/graph.json")[2])
        now = json.loads(ask(served.port, "/state.json?again")[2])
    assert graph["watch"] == now["watch"]
    assert (graph["name"], graph["n"], graph["rounds"], len(graph["nodes"])) == ("it", 4, 20, 4)
    assert sorted(graph["edges"]) == [[0, 1], [0, 3], [1, 2], [2, 3]]
    assert (now["round"], now["status"], now["averaged"], now["distance"]) == (5, "", 0.75, 0.25)
    assert [peer["state"] for peer in now["peers"]] == ["training", "training", "gone", "training"]
    assert now["peers"][2]["note"] == "gone for 1"
    assert now["peers"][1]["links"] == "1/2"
    assert now["down"] == [[1, 2, "down"], [2, 3, "down"]]
    assert [event["text"] for event in now["events"]] == [event_text(gone(1, 2, 5))]
    assert now["curves"]["score"][-1] == [5, 0.75, pytest.approx(0.65), pytest.approx(0.55)]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}"])
def test_a_name_that_was_pointed_here_is_not_answered(host: str, run: Written) -> None:
    with site(read(run.path)) as served:
        status, _, content = ask(served.port, "/state.json", Host=host.format(port=served.port))
    assert status == 403
    assert b"it" not in content.split()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/../run/experiment.toml", 404), ("GET", "/favicon.ico", 404), ("POST", "/state.json", 501),
     ("PUT", "/", 501), ("DELETE", "/state.json", 501)],
)  # fmt: skip
def test_nothing_but_the_page_and_its_data_is_there(method: str, path: str, status: int, run: Written) -> None:
    with site(read(run.path)) as served:
        assert ask(served.port, path, method)[0] == status


def test_only_this_machine_is_listened_to(run: Written) -> None:
    with site(read(run.path)) as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert served._server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_a_network_error(run: Written) -> None:
    with site(read(run.path)) as served, pytest.raises(NetworkError, match="port"):
        Site(dict, dict, served.port)


def test_a_run_of_thousands_is_told_by_its_worst_peers(tmp_path: Path) -> None:
    run = Written(tmp_path / "run", n=3000)
    run.add(*rounds(1, 2, range(3000)), EventRow(-1, 2718, "crashed"))
    follower = read(run.path)
    now, graph = snapshot.moment(follower, event_text), snapshot.graph(follower)
    assert graph["nodes"] is None and graph["edges"] == []
    assert now["peers"][0]["id"] == 2718
    assert len(now["peers"]) + now["others"] == 3000
    assert len(json.dumps(now)) < 100_000


def test_nodes_stand_apart_in_the_unit_square() -> None:
    for graph, n in (("ring", 12), ("star", 9), ("two-cliques", 16), ("none", 5), ("grid:3x4", None), ("karate", None)):
        topology: Topology = resolve(graph, n)
        found = places(topology.n, topology)
        assert found is not None and found.shape == (topology.n, 2)
        assert found.min() >= 0 and found.max() <= 1
        apart = ((found[:, None] - found[None]) ** 2).sum(axis=2) ** 0.5
        assert sorted(apart.ravel())[topology.n] > 0.01, graph


def test_the_command_serves_until_ctrl_c_and_tells_where(run: Written) -> None:
    process = start(["watch", "--web", str(run.path)], run.path)
    assert process.stdout
    url = process.stdout.readline().strip()
    port = int(url.rsplit(":", 1)[1].strip("/"))
    assert ask(port, "/")[0] == 200
    run.add(*rounds(1, 3))
    wait_until(lambda: json.loads(ask(port, "/state.json")[2])["round"] == 3, 20, "the new rounds are told")
    run.end()
    wait_until(lambda: json.loads(ask(port, "/state.json")[2])["status"] == "finished", 20, "the end is told")
    process.send_signal(signal.SIGINT)
    said = finish(process, 20)
    assert (said.code, said.err) == (0, "")
    assert "The run has ended: finished" in said.out


# --- the page in a real browser -------------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def rendered(url: str, folder: Path, milliseconds: int = 2500) -> str:
    """Return the page as a real browser has it after some seconds of its own, virtual time."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    done = subprocess.run(
        [browser, *words, f"--virtual-time-budget={milliseconds}", "--dump-dom", url],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "<body" in done.stdout, done.stderr[-2000:]
    return done.stdout


def drawn(page: str) -> dict[int, tuple[str, str]]:
    """Return node -> (state by which it is coloured, word that is written at it), as they stand in the drawing."""
    found = re.findall(r'<g class="node s-(\w+)".*?<title>peer (\d+).*?class="word"[^>]*>(.*?)</text>', page)
    return {int(node): (state, word) for state, node, word in found}


@pytest.mark.browser
def test_a_browser_draws_who_is_gone_and_what_is_down(run: Written, tmp_path: Path) -> None:
    run.add(*rounds(1, 5, accuracy=0.75), gone(1, 2, 5))
    with site(read(run.path)) as served:
        page = rendered(served.url, tmp_path)
    assert drawn(page) == {0: ("training", ""), 1: ("training", ""), 2: ("gone", "gone"), 3: ("training", "")}
    assert page.count('class="link down"') == 2 + 1  # and one in the legend
    assert re.search(r"<li><svg.*?</svg>1 gone</li>", page)
    assert 'aria-label="Test accuracy until round 5: averaged model 75.0' in page
    assert '<li id="status" role="status" class="live">running</li>' in page


@pytest.mark.browser
def test_a_browser_draws_what_loops_logged(run: Written, tmp_path: Path) -> None:
    run.add(*(peer_row(p, at, logged={"grad <b>": p + at, "lr": 0.5}) for at in range(1, 5) for p in range(4)))
    with site(read(run.path)) as served:
        page = rendered(served.url, tmp_path)
    assert 'aria-label="grad <b> until round 4: mean 5.5, lowest peer 4, highest 7"' in html.unescape(page)
    assert 'aria-label="lr until round 4: mean 0.5"' in page


@pytest.mark.browser
def test_what_happens_while_a_browser_looks_is_drawn_without_loading_the_page_again(
    run: Written, tmp_path: Path
) -> None:
    run.add(*rounds(1, 5), gone(1, 2, 5))

    def go_on(asked: int) -> None:
        if asked == 3:
            run.add(EventRow(6, 1, "joined", 2), *rounds(7, 8), EventRow(8, 3, "suspected", 0))
        if asked == 5:
            run.add(*rounds(9, 20))
            run.end()

    with site(read(run.path), go_on) as served:
        page = rendered(served.url, tmp_path, 3400)
        assert int(re.findall(r'data-updates="(\d+)"', page)[0]) in (3, 4)
        assert drawn(page) == {0: ("suspected", "suspected"), **dict.fromkeys((1, 2, 3), ("training", ""))}
        page = rendered(served.url, tmp_path)
    assert [state for state, _ in drawn(page).values()] == ["done"] * 4
    assert "The run has ended: finished" in page


@pytest.mark.browser
def test_a_page_whose_watcher_is_gone_says_so(run: Written, tmp_path: Path) -> None:
    run.add(*rounds(1, 5))

    def leave(asked: int) -> None:
        if asked == 2:
            raise RuntimeError("gone")

    with site(read(run.path), leave) as served:
        page = rendered(served.url, tmp_path, 1800)
    assert re.search(r'id="status"[^>]*>connection lost<', page)
    assert 'class="lost"' in page and "Connection lost: the watcher does not answer" in page


@pytest.mark.browser
def test_hostile_words_in_the_files_stay_words_in_a_browser(tmp_path: Path) -> None:
    trap = "<img src=x onerror=document.title=1><script>document.title=2</script>"
    run = Written(tmp_path / "run", name=trap)
    run.add(*rounds(1, 2), EventRow(2, 1, trap, {trap: trap}), EventRow(2, 1, "failed", {"text": trap, "advice": trap}))
    with site(read(run.path)) as served:
        page = rendered(served.url, tmp_path)
    assert "<img" not in page and page.count("<script") == 1
    assert "&lt;img src=x onerror" in page
    assert "<title>2/20 &lt;img" in page


@pytest.mark.browser
def test_a_browser_is_not_given_thousands_of_nodes(tmp_path: Path) -> None:
    run = Written(tmp_path / "run", n=3000)
    run.add(*rounds(1, 2, range(3000)), EventRow(-1, 2718, "crashed"))
    with site(read(run.path)) as served:
        page = rendered(served.url, tmp_path)
    assert page.count("<tr") == 1 + snapshot.LISTED
    assert 'aria-label="3000 peers: 1 crashed, 2999 training"' in page


# --- those who keep a place -------------------------------------------------------------------------------------------


def _page() -> LocalServer:
    return LocalServer(lambda path, query: HttpAnswer("text/plain", b"here"))


def test_forty_connections_that_send_nothing_keep_nobody_out() -> None:
    with _page() as page, contextlib.ExitStack() as held:
        for _ in range(40):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", page.port), 5))
            slow.sendall(b"G")
        with urllib.request.urlopen(page.url, timeout=5) as answer:
            assert answer.read() == b"here"


def test_a_request_has_one_deadline_however_often_a_byte_of_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "REQUEST_SECONDS", 0.3)
    with _page() as page, socket.create_connection(("127.0.0.1", page.port), 5) as slow:
        slow.settimeout(0.05)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 100:  # five seconds
                slow.sendall(b"G")
                sent += 1
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1) == b"":
                        break
        assert sent < 100


@pytest.mark.sockets
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="nothing says whose a connection is")
def test_another_user_of_this_machine_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that a page shows are their owner's alone; a port of this machine is open to all its users."""
    with _page() as served:
        assert ask(served.port, "/")[0] == 200
        with socket.create_connection(("127.0.0.1", served.port)) as own:
            me = local_server.users_of(own.getsockname(), own.getpeername())
            assert me == {os.getuid()}
        monkeypatch.setattr(local_server, "users_of", lambda near, far: {65534})
        status, _, content = ask(served.port, "/")
        assert (status, content) == (403, b"this address answers its own user only\n")
        monkeypatch.setattr(local_server, "users_of", lambda near, far: {os.getuid() or 1, 65534})
        assert ask(served.port, "/")[0] == 403, "of two with this address, who knows"


def test_the_user_of_a_connection_is_found_by_both_of_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines as proc(5) of Linux shows them: addresses in the machine's order of bytes, the user in the eighth word."""
    two, one = (int.from_bytes(bytes([127, 0, 0, last]), sys.byteorder) for last in (2, 1))
    rest = "01 00000000:00000000 00:00000000 00000000 {}        0 1 1 0 20 4 30 10 -1"
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    four.write_text(
        f"  sl ...\n 0: {two:08X}:1388 {one:08X}:0050 {rest.format(7)}\n"
        f" 1: {one:08X}:1389 {one:08X}:0050 {rest.format(8)}\n"
    )
    six.write_text(
        f"  sl ...\n 0: {'0' * 16}FFFF0000{one:08X}:1388 {'0' * 16}FFFF0000{one:08X}:0050 {rest.format(9)}\n"
    )
    monkeypatch.setattr(local_server, "TABLES", (four, six, tmp_path / "missing"))
    found = {host: local_server.users_of((host, 5000), ("127.0.0.1", 80)) for host in ("127.0.0.1", "127.0.0.2")}
    assert found == {"127.0.0.1": {9}, "127.0.0.2": {7}}
