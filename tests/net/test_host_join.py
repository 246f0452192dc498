"""The two commands: `fedgossip host` on one machine, `fedgossip join INVITE` on others."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import COMMAND, Output, experiment, free_ports, in_process, typed, wait_until

from fedgossip.drivers import invite_joining
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret, written

pytestmark = pytest.mark.sockets

SECONDS = 60.0
INVITE = written(Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 2**32 - 1))


class People:
    """Commands that run at the same time, each in a folder of its own on this machine."""

    def __init__(self, folder: Path, seconds: float = SECONDS) -> None:
        """`seconds`: until a command that has not ended is taken to hang."""
        self.folder, self.seconds = folder, seconds
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def home(self, who: str) -> Path:
        path = self.folder / who
        path.mkdir(exist_ok=True)
        return path

    def start(self, who: str, *words: str) -> None:
        home = self.home(who)
        with (home / "out").open("wb") as out, (home / "err").open("wb") as err:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            self.running[who] = subprocess.Popen([*COMMAND, *words], cwd=home, **pipes)  # type: ignore[call-overload]

    def host(self, *words: str) -> str:
        """Start a host on loopback; return its invite."""
        self.start("host", "host", "experiment.toml", "--address", "127.0.0.1", *words)
        wait_until(lambda: self.said("host", "out").endswith("\n"), self.seconds, f"an invite; {self.said('host')}")
        return self.said("host", "out").split()[-1]

    def join(self, who: str, invite: str, *words: str) -> None:
        self.start(who, "join", invite, "--yes", *words)

    def said(self, who: str, what: str = "err") -> str:
        return (self.home(who) / what).read_text()

    def ended(self, who: str) -> int:
        try:
            return self.running[who].wait(self.seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{who} still runs: {self.said(who)}")

    def run_of(self, who: str) -> Path:
        (found,) = [*self.home(who).glob("hosting/*/run"), *self.home(who).glob("joined/*/run")]
        return found

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    made = People(tmp_path)
    yield made
    made.stop()


def test_two_commands_and_three_peers_learn_together(people: People) -> None:
    experiment(people.home("host"), n=4, rounds=4)
    invite = people.host("--peers", "3")
    people.join("b", invite)
    people.join("c", invite)
    assert [people.ended(who) for who in ("host", "b", "c")] == [0, 0, 0], people.said("b")
    vectors = [(people.run_of(who) / "vector.safetensors").read_bytes()[-20:] for who in ("host", "b", "c")]
    assert vectors[0] == vectors[1] == vectors[2]  # on a ring of three everybody has the mean
    said = people.said("b")
    assert all(word in said for word in ("Rounds", "4", "Sent", "no data", "Budget", "Organiser"))
    assert "Waiting for" in people.said("host") and "peer 1 (127.0.0.1)" in people.said("host")
    assert "copy all peers' folders to one machine, this one as all-peers/peer0; there:" in people.said("host")


def test_an_invite_outlives_a_kill_of_its_host_and_whoever_was_let_in_waits_on(people: People) -> None:
    experiment(people.home("host"), rounds=4, n=3)
    invite = people.host()
    people.join("b", invite)
    wait_until(lambda: "peer 1" in people.said("host"), SECONDS, "b is let in")
    people.running["host"].send_signal(signal.SIGKILL)
    people.running["host"].wait()
    assert people.host() == invite
    people.join("c", invite)
    assert [people.ended(who) for who in ("host", "b", "c")] == [0, 0, 0], people.said("c")


def test_what_nobody_agreed_to_does_not_run(people: People) -> None:
    experiment(people.home("host"), n=3)
    invite = people.host()
    people.start("b", "join", invite)
    assert people.ended("b") == 2
    assert "Rounds" in people.said("b") and "--yes" in people.said("b")
    assert not [*people.home("b").glob("joined/*/run")] and "peer 1" not in people.said("host")


LEARNING = """
rounds = 2
[topology]
graph = "complete"
n = 2
[train]
device = "cpu"
"""


def test_code_does_not_travel_and_another_than_the_organisers_is_refused(people: People) -> None:
    text = "import torch\n\ndef model(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"
    (people.home("host") / "experiment.toml").write_text(LEARNING + '[model]\nsource = "mine:model"\n')
    (people.home("host") / "mine.py").write_text(text)
    invite = people.host()
    people.join("b", invite)
    assert people.ended("b") == 2 and "mine.py, which is not here" in people.said("b")
    (people.home("c") / "mine.py").write_text("open('ran', 'w')\n" + text)
    people.join("c", invite)
    assert people.ended("c") == 2 and "is another here" in people.said("c")
    assert not (people.home("c") / "ran").exists()
    (people.home("d") / "mine.py").write_text(text)
    people.join("d", invite)
    assert [people.ended(who) for who in ("host", "d")] == [0, 0], people.said("d")
    assert "from your mine.py: the same as the organiser's" in people.said("d")


@pytest.mark.long
def test_each_brings_its_own_data_and_the_common_test_set_comes_with_the_invite(people: People) -> None:
    table = "x1,x2,y\n" + "".join(f"{k % 7},{k % 5},{'ab'[k % 7 > 2]}\n" for k in range(60))
    own = '[data]\ntest = "csv:common.csv?label=y"\n'
    (people.home("host") / "experiment.toml").write_text(LEARNING + own)
    for who, name in (("host", "common.csv"), ("host", "a.csv"), ("b", "b.csv")):
        (people.home(who) / name).write_text(table)
    invite = people.host("--data", "csv:a.csv?label=y")
    people.join("c", invite)
    assert people.ended("c") == 2 and "--data 'csv:FILE?label=y'" in people.said("c")
    people.join("b", invite, "--data", "csv:b.csv?label=y")
    assert [people.ended(who) for who in ("host", "b")] == [0, 0], people.said("b")
    assert "csv:b.csv?label=y: yours; it stays on this machine" in people.said("b")
    for who in ("host", "b"):
        kept = (people.run_of(who) / "experiment.toml").read_text()
        assert "own:{peer}" in kept and "a.csv" not in kept and "b.csv" not in kept


UNLIKE = """
rounds = 2
data = { common = "random:40", local_test = 0.5 }
train = { local_steps = 2, device = "cpu" }
coordinator = { clients = 2, algorithm = "feddf", secure = { on = false } }
[model]
source = "mlp:64-32-10"
"""


def test_each_brings_its_own_model_where_answers_are_exchanged(people: People) -> None:
    (people.home("host") / "experiment.toml").write_text(UNLIKE)
    invite = people.host()
    people.join("a", invite, "--model", "dense:9")
    assert people.ended("a") == 2 and "dense:9" in people.said("a")
    people.join("a", invite, "--model", "softmax")  # the impossible one took no seat
    wait_until(lambda: "client 0" in people.said("host"), SECONDS, f"a is let in; {people.said('a')}")
    people.join("b", invite, "--model", "cnn:small")
    assert [people.ended(who) for who in ("host", "a", "b")] == [0, 0, 0], people.said("b")
    assert "softmax; it stays on this machine" in people.said("a")
    (people.home("sim") / "e.toml").write_text(f'{UNLIKE}sources = ["softmax", "cnn:small"]')
    assert typed(["run", "e.toml", "--out", "run"], people.home("sim")).code == 0
    weights = (people.home("sim") / "run" / "model" / "weights.safetensors").read_bytes()
    assert (people.run_of("host") / "model" / "weights.safetensors").read_bytes() == weights
    people.join("a", invite, "--model", "cnn:small")
    assert people.ended("a") == 2 and "accepted with softmax" in people.said("a")


def test_a_model_of_ones_own_is_refused_where_models_are_averaged(people: People) -> None:
    (people.home("host") / "experiment.toml").write_text(LEARNING)
    people.join("b", people.host(), "--model", "softmax")
    assert people.ended("b") == 2 and "all have one architecture" in people.said("b")


# --- one line of error and one of advice ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("invite", "words"),
    [
        (INVITE[:60], "cut off"),
        (INVITE[:30] + ("0" if INVITE[30] != "0" else "1") + INVITE[31:], "wrong letter"),
        ("fg2-" + INVITE[4:], "another release"),
        ("hello", "no invite"),
        ("", "no invite"),
    ],
    ids=["cut", "changed", "version", "none", "empty"],
)
def test_a_bad_invite_is_one_line_of_error_and_one_of_advice(
    invite: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["join", invite], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and words in said.errors[0] and len(said.err.splitlines()) == 2
    assert not [*tmp_path.iterdir()]


def test_where_nobody_answers_it_says_who_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(invite_joining.proposal, "__defaults__", (0.5,))
    old = written(Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 1))
    said = in_process(["join", old], tmp_path, monkeypatch, capsys)
    assert said.code == 3 and "127.0.0.1:1" in said.errors[0] and "has expired" in said.errors[0]


@pytest.mark.parametrize(
    ("more", "words", "error"),
    [
        ("[data]\nsource = 'csv:a.csv?label=y'\ntest = 0.2\n", (), "a file of this machine"),
        ("", ("--address", "0.0.0.0"), "every address"),
        ("", ("--data", "csv:a.csv?label=y"), "not common to peers"),
        ("", ("--port", "{taken}"), "port"),
    ],
    ids=["file", "address", "test", "port"],
)
def test_what_cannot_be_hosted_is_said_before_an_invite_is_printed(
    more: str, words: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import socket

    text = 'rounds = 2\ntrain.device = "cpu"\n[topology]\ngraph = "complete"\nn = 4\n'
    (tmp_path / "experiment.toml").write_text(text + more)
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    with socket.create_server(("0.0.0.0", 0)) as taken:
        filled = [word.format(taken=taken.getsockname()[1]) for word in words]
        said: Output = in_process(["host", "experiment.toml", *filled], tmp_path, monkeypatch, capsys)
    assert said.code == (3 if error == "port" else 2) and error in said.errors[0] and not said.out, said.err


def test_nobody_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    experiment(tmp_path, n=3)
    ports = free_ports(2)
    words = ["--invite-port", str(ports[0]), "--port", str(ports[1]), "--expires", "0.01", "--address", "127.0.0.1"]
    said = in_process(["host", "experiment.toml", *words], tmp_path, monkeypatch, capsys)
    assert said.code == 7 and "no participant joined" in said.errors[0]


def test_a_qr_code_holds_the_invite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("segno")
    experiment(tmp_path, n=3)
    words = ["--expires", "0.01", "--address", "127.0.0.1", "--qr"]
    said = in_process(["host", "experiment.toml", *words], tmp_path, monkeypatch, capsys)
    assert len(said.out.splitlines()) > 15


@pytest.mark.long
def test_a_regression_on_everybodys_own_table_can_be_hosted(people: People) -> None:
    table = "x1,x2,y\n" + "".join(f"{k % 7},{k % 5},{0.5 * (k % 7)}\n" for k in range(60))
    own = '[data]\ntest = "csv:common.csv?label=y"\n[task]\nkind = "regression"\n'
    (people.home("host") / "experiment.toml").write_text(LEARNING + own)
    for who, name in (("host", "common.csv"), ("host", "a.csv"), ("b", "b.csv")):
        (people.home(who) / name).write_text(table)
    people.join("b", people.host("--data", "csv:a.csv?label=y"), "--data", "csv:b.csv?label=y")
    assert [people.ended(who) for who in ("host", "b")] == [0, 0], people.said("b")
