"""What a stranger has put into a folder or in the place of a file: every reading command ends at once, with a line, and
shows nothing of what a link leads to.

Which files a command reads is found by a spy at the door (`outside_files`), on an honest folder; then each of them is
one thing after the other that is no file: in the long form.  The normal form has one file of each of some commands be
one thing, in turns.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, own_tables, patients
from test_endings import ends

import fedgossip
from fedgossip import load_model
from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.cli import cli
from fedgossip.cli.run.progress import words_for
from fedgossip.report.board.pages import Board, Catalogue

pytestmark = pytest.mark.sockets  # the run of the honest folder is one of processes

OLD = Path(__file__).parents[1] / "old_runs"
SECRET = "root-of-all-secrets"
WATCHED = "", "graph.json", "state.json"
"""Pages of the board for each run."""
SECONDS = 20
REFUSED = "REFUSED"
"""How a line of a dry run begins."""
TOOK_NO_PART = "took no part: "
"""In the line of a site whose file it is, of a command that runs all sites."""
MEMORY = 1 << 29

KNOWN = ["--endpoints", "keys.toml"]
FIVE = ["--endpoints", "five.toml", "--key", "stranger.key"]
BY_BOX = ["--links", "folder:box", "--once", "--out", "new"]
RING_BOX = ["--links", "folder:ring", "--once", "--out", "new"]

COMMANDS: dict[str, list[str]] = {
    "report": ["report", "gossip"],
    "report of two": ["report", "gossip", "fed", "--out", "both.html"],
    "watch": ["watch", "gossip", "--once"],
    "watch of clients": ["watch", "fed", "--once"],
    "runs": ["runs", "."],
    "audit show": ["audit", "show", "fed/peers/03/audit.jsonl"],
    "audit verify": ["audit", "verify", "fed/peers/05/audit.jsonl", "--endpoints", "fed/endpoints.toml"],
    "audit verify of rounds": ["audit", "verify", "fed/peers/05/rounds/000000.transcript", "--roster",
                               "fed/endpoints.toml"],
    "predict": ["predict", "learned", "rows.csv"],
    "evaluate": ["evaluate", "learned", "rows.csv"],
    "resume": ["run", "--resume", "learned"],
    "dry run": ["run", "e.toml", "--dry-run"],
    "run by an edge list": ["run", "e.toml", "--dry-run", "--set", "topology.graph=edges.txt"],
    "graph": ["topology", "show", "edges.txt"],
    "table": ["table", "table.npz"],
    "keys": ["keys", "show", "peer.key", "--id", "0", "--client"],
    "keys own": ["keys", "own", "peer.key"],
    "release": ["release", "verify", "r.zip"],
    "sweep": ["sweep", "s.toml", "--dry-run"],
    "privacy": ["privacy", "plan", "e.toml"],
    "collect": ["collect", "e.toml", "local/peers", "--out", "whole"],
    "replay": ["replay", "local"],
    "compare": ["compare", "e.toml", "--paradigms", "gossip", "--out", "compared", "--no-report"],
    "invite": ["join", "invite.txt"],
    "plan": ["plan", "approve", "pilot.toml", "--id", "0", "--endpoints", "keys.toml", "--plan", "00000000"],
    "plan diff": ["plan", "diff", "pilot.toml"],
    "policy": ["client", "pilot.toml", "--id", "0", "--endpoints", "keys.toml", "--dry-run"],
    "approvals": ["plan", "approved"],
    "board": ["board", "."],
    "release make": ["release", "make", "fed", "--use", "use.txt", "--out", "new.zip"],
    "resume of processes": ["run", "--resume", "local", "--set", "rounds=3", "--no-report"],
    "export": ["model", "export", "learned", "--to", "m.onnx"],
    "bench": ["model", "bench", "learned"],
    "membership": ["privacy", "membership", "learned", "rows.csv", "--holdout", "others.csv"],
    "resume with more rounds": ["run", "--resume", "learned", "--set", "rounds=2", "--no-report"],
    "distill": ["model", "distill", "learned", "--student", "softmax", "--epochs", "1", "--out", "student"],
    "load_model": ["load_model", "learned"],
    "forecast": ["forecast", "e.toml", "--level", "graph"],
    "launch": ["launch", "--resume", "launched"],
    "host": ["host", "e.toml", "--links", "folder:box", "--once", "--folder", "hosting"],
    "host again": ["host", "e.toml", "--links", "folder:met", "--once", "--folder", "hosted"],
    "join by a folder": ["join", "--folder", "joined", "--links", "folder:met", "--yes", "--once", "asked.txt"],
    "pilot host": ["pilot", "host", "fit.toml", "--answers", "answers.toml", "--address", "no name"],
    "pilot join": ["pilot", "join", "invite.txt", "--data", "rows.csv"],
    "relay": ["relay", "--listen", "203.0.113.1:7777", "--allow", "keys.toml"],
    "peer": ["peer", "e.toml", "--id", "0", "--endpoints", "peers.toml", "--key", "p0.key", *RING_BOX],
    "coordinator": ["coordinator", "pilot.toml", *KNOWN, "--key", "hub.key", *BY_BOX],
    "client": ["client", "pilot.toml", "--id", "0", *KNOWN, *BY_BOX],
    "step": ["step", "stepping"],
    "worker": ["worker", "parallel.toml", "--id", "0", *FIVE],
    "server": ["server", "parallel.toml", "--id", "2", *FIVE],
    "manager": ["manager", "parallel.toml", *FIVE],
    "ledger": ["privacy", "ledger", "--ledger", "peer.key.spent"],
    "spent": ["privacy", "spent"],
    "new policy": ["privacy", "policy", "pilot.toml", *KNOWN, "--out", "new.toml"],
    "plan show": ["plan", "show", "pilot.toml"],
    "plan hash": ["plan", "hash", "fed/plan.json"],
    "revoke a plan": ["plan", "revoke", "--plan", "00000000"],
    "admit": ["keys", "admit", "block.toml"],
    "revoke": ["keys", "revoke", "block.toml", "--id", "0"],
    "mesh": ["advise", "mesh", "e.toml", "--processes", "2", "--links", "lan", "--compute", "1", "--cores", "2"],
    "advise": ["topology", "advise", "-n", "3", "--parameters", "9", "--links", "links.csv"],
    "curious nodes": ["topology", "audit", "edges.txt"],
    "graphs": ["topology", "compare", "edges.txt", "ring", "-n", "3"],
    "drawing": ["topology", "draw", "edges.txt", "--out", "g.svg"],
    "heterogeneity": ["topology", "heterogeneity", "edges.txt", "--data", "labels.toml"],
    "written graph": ["topology", "make", "edges.txt", "-n", "3", "--data", "labels.toml", "--out", "g.toml"],
    "agree": ["data", "agree", "fit.toml", "--dry-run"],
    "describe": ["data", "describe", "fit.toml", "--id", "0"],
    "fit": ["fit", "fit.toml", "--dry-run"],
    "withdraw": ["release", "withdraw", "r.zip", "--site", "0"],
    "export of a log": ["audit", "export", "fed/peers/03/audit.jsonl", "--out", "log.csv"],
    "timeline": ["timeline", "gossip"],
    "plot": ["plot", "gossip", "--list"],
}  # fmt: skip


def _pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def _device(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def _link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def _sparse(path: Path, secret: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 << 30)


def _folder(path: Path, secret: Path) -> None:
    path.mkdir()


QUICK = {"watch": 0, "runs": 1, "audit show": 2, "table": 3, "keys": 2, "release": 1, "graph": 0, "dry run": 4,
         "invite": 3, "plan": 0, "policy": 1, "approvals": 2, "board": 0, "release make": 3,
         "step": 1, "client": 4, "host again": 3, "join by a folder": 0, "ledger": 1, "fit": 2}  # fmt: skip
"""Commands of the normal form, and which thing the first file is that each reads."""

HOSTILE: list[Callable[[Path, Path], None]] = [_pipe, _device, _link, _sparse, _folder]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that is read."""
    place = _without_a_model(tmp_path_factory.mktemp("honest"))
    draw = np.random.default_rng(1)
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in draw.normal(size=(60, 2))]
    (place / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    experiment: dict[str, Any] = {
        "rounds": 1, "topology": {"graph": "ring", "n": 3}, "train": {"device": "cpu"},
        "data": {"source": f"csv:{place / 'rows.csv'}?label=y"}, "model": {"source": "softmax"},
    }  # fmt: skip
    fedgossip.simulate(experiment, out=place / "learned")
    shutil.copy(place / "rows.csv", place / "others.csv")
    assert typed(["run", "e.toml", "--on", "local", "--trace", "--out", "local", "--no-report"], place).code == 0
    assert typed(COMMANDS["compare"], place).code == 0
    assert typed(["data", "agree", "fit.toml"], place).code == 0
    return place


@pytest.fixture(scope="module")
def without_a_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but for what torch makes."""
    return _without_a_model(tmp_path_factory.mktemp("without"))


def _without_a_model(place: Path) -> Path:
    shutil.copytree(OLD / "gossip", place / "gossip")
    shutil.copytree(OLD / "federated", place / "fed")
    (place / "e.toml").write_text('rounds = 1\n[task]\nkind = "quadratic"\n[topology]\ngraph = "ring"\nn = 3\n')
    (place / "s.toml").write_text('base = "e.toml"\nseeds = [1]\n[grid]\n"topology.n" = [3, 4]\n')
    (place / "edges.txt").write_text("0 1\n1 2\n2 0\n")
    facts = {"rows_in_all": 10, "width": 1, "seed": 1, "scale": 1.0}
    np.savez(place / "table.npz", keys=np.arange(3, dtype="<u4"), rows=np.zeros((3, 1), "<f4"), **facts)
    (place / "r.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    (place / "invite.txt").write_text("fg1-" + "a" * 40)
    _with_a_plan(place)
    _with_more(place)
    return place


def _with_a_plan(place: Path) -> None:
    """Add what a client has that has pinned a policy and approved a plan, and what a release is made of."""
    (place / "pilot.toml").write_text(
        'rounds = 2\ntask = { kind = "quadratic", dim = 3 }\ncoordinator = { clients = 3 }\n'
    )
    with (place / "keys.toml").open("w") as file:
        for node, name in enumerate(["peer.key", "1.key", "2.key", "hub.key"]):
            where = ["--client"] if node < 3 else ["--address", "tcp://127.0.0.1:5799"]
            file.write(typed(["keys", "new", "--id", str(node), *where, "--out", name], place).out)
    known = ["--endpoints", "keys.toml"]
    typed(["privacy", "policy", "pilot.toml", *known], place)
    shown = typed(["plan", "show", "pilot.toml"], place).out.split()[-1]
    assert typed(["plan", "approve", "pilot.toml", "--id", "0", *known, "--plan", shown], place).code == 0
    (place / "use.txt").write_text("For tests.\n")
    typed(["plan", "show", "fed/experiment.toml", "--out", "fed/plan.json"], place)


def _with_more(place: Path) -> None:
    """Add the files of runs through a folder and by an invite, of members, of graphs, and of a site's table."""
    blocks = [
        typed(["keys", "new", "--id", str(node), "--address", "tcp://127.0.0.1:5799", "--out", f"p{node}.key"], place)
        for node in range(5)
    ]
    for name, many in (("peers.toml", 3), ("five.toml", 5)):
        (place / name).write_text("".join(one.out for one in blocks[:many]))
    typed(["keys", "new", "--client", "--id", "0", "--out", "stranger.key"], place)
    block = typed(["keys", "organiser"], place).out + (place / "peers.toml").read_text()
    (place / "block.toml").write_text(block)
    (place / "parallel.toml").write_text(
        'rounds = 1\ntask = { kind = "quadratic", dim = 3 }\n'
        '[parallel]\nmethod = "parameter-server"\nworkers = 2\nserver = { servers = 2, replication = 2 }\n'
    )
    typed(["privacy", "ledger", "--ledger", "peer.key.spent", "--max-epsilon-total", "3"], place)
    (place / "links.csv").write_text(
        "from,to,latency,rate\n" + "".join(f"{a},{b},0.001,1e8\n" for a in range(3) for b in range(3) if a != b)
    )
    (place / "labels.toml").write_text('data = { source = "digits" }\n[topology]\ngraph = "ring"\nn = 3\n')
    (place / "answers.toml").write_text('consent = "y"\n')
    query = "label=ill&drop=days,died"
    (place / "fit.toml").write_text(own_tables("fit", query, source="glm:logistic"))
    for site in range(SITES):
        patients(place / f"site-{site}.csv", site)
    shutil.copy(place / "site-0.csv", place / "test.csv")
    for folder in ("box", "met", "ring"):
        (place / folder).mkdir()
    by_box = ["--links", "folder:box", "--once"]
    assert typed(["client", "pilot.toml", "--id", "1", *KNOWN, "--key", "1.key", *by_box, "--out", "stepping"],
                 place).code == 0  # fmt: skip
    hosted = typed(["host", "e.toml", "--links", "folder:met", "--once", "--folder", "hosted"], place)
    (place / "asked.txt").write_text(next(word for word in hosted.out.split() if word.startswith("fg1-")))
    (place / "launched" / "peers").mkdir(parents=True)
    shutil.copy(place / "e.toml", place / "launched" / "experiment.toml")
    (place / "launched" / "launched.json").write_text('{"script": "none.py", "arguments": [], "folder": "."}')


def _loaded(folder: Path) -> Output:
    try:
        return Output(0, str(load_model(folder)), "")
    except ConfigError as error:
        return Output(2, "", f"error: {error}")


def _said(words: list[str], place: Path) -> Output:
    """Type a command; `board` and the function `load_model` are called."""
    if words[0] == "load_model":
        return _loaded(place / words[1])
    return _board(place) if words[0] == "board" else typed(words, place)


def _board(place: Path) -> Output:
    """Ask a board for each of its pages, once all is read: the command itself does not end."""
    catalogue = Catalogue(place)
    board = Board(catalogue, words_for)
    catalogue.look(SECONDS)
    keys = [key for key, _ in catalogue.since(0, 100).runs]
    asked = [board.answer("/runs.json", {}), board.answer("/curves.json", {"run": [f"{key}:0" for key in keys]})]
    for key in keys:
        asked += [board.answer(path, {}) for path in (f"/report/{key}", *(f"/watch/{key}/{one}" for one in WATCHED))]
    return Output(0, "".join(one.content.decode() for one in asked if one), "")


@contextmanager
def _no_longer(seconds: int) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"still there after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _read_by(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the folder that a command opens, below it."""
    seen: dict[Path, None] = {}
    real = outside_files.open_file

    def spied(path: Path, *more: Any, **options: Any) -> Any:
        found = Path(os.path.realpath(place / path))
        if found.is_relative_to(place):
            seen[found.relative_to(place)] = None
        return real(path, *more, **options)

    with monkeypatch.context() as patched:
        patched.setattr(outside_files, "open_file", spied)
        _said(words, place)
    return list(seen)


def _tried(words: list[str], file: Path, hostile: Callable[[Path, Path], None], honest: Path, place: Path) -> None:
    secret = place.with_name("elsewhere") / "passwd"
    secret.parent.mkdir(exist_ok=True)
    written = f'name = "{SECRET}"\n{{"name": "{SECRET}"}}\n{SECRET},{SECRET},{SECRET}\n'
    secret.write_text(written)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(honest, place)
    (place / file).unlink()
    hostile(place / file, secret)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _no_longer(SECONDS):
        said = _said(words, place)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    what = f"{words[:2]} with {hostile.__name__} as {file}: {said}"
    assert "This is a fault of fedgossip" not in said.err, what
    refused = said.errors or REFUSED in said.out or TOOK_NO_PART in said.err
    assert bool(refused) == (said.code not in (0, 9)), what
    assert len(said.errors) <= 1, what
    assert grown < MEMORY, what
    assert secret.read_text() == written, what
    if hostile is not _link or file.as_posix() not in " ".join(words):  # the user means a link that the command names
        assert SECRET not in said.out + said.err, what
        pages = [page for page in place.rglob("*.html") if SECRET in page.read_text(errors="replace")]
        assert pages == [], what


def _files(name: str, honest: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    shutil.copytree(honest, place)
    files = [file for file in _read_by(COMMANDS[name], place, monkeypatch) if (honest / file).exists()]
    if name == "resume of processes":  # which read their own files
        files += sorted(file.relative_to(honest) for file in (honest / "local/peers/00").iterdir() if file.is_file())
    assert files, f"{name}: it reads nothing; is the command still called so?"
    return files


NO_FILE = {"demo", "init", "lecture", "repro", "explain", "doctor", "completion", "keys new", "keys organiser",
           "topology list"}  # fmt: skip
"""Commands that read no file of others: examples, results and words of ours, and what they make."""


def test_every_command_is_held_against_hostile_files_or_reads_none() -> None:
    """A command that is added has a line in the table."""
    every = {" ".join(words) for words in ends("", cli)}
    held = {one for one in every for words in COMMANDS.values() if f"{' '.join(words)} ".startswith(f"{one} ")}
    assert every - held == NO_FILE and {"board", "load_model"} <= {words[0] for words in COMMANDS.values()}


@pytest.mark.parametrize("name", QUICK)
def test_a_reading_command_ends_with_a_line_whatever_lies_in_the_place_of_a_file(
    name: str, without_a_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    file = _files(name, without_a_model, place, monkeypatch)[0]
    _tried(COMMANDS[name], file, HOSTILE[QUICK[name]], without_a_model, place)


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_every_reading_command_with_all_that_is_no_file(
    name: str, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    for file in _files(name, honest, place, monkeypatch):
        for hostile in HOSTILE:
            _tried(COMMANDS[name], file, hostile, honest, place)
