"""Tiers at the command line: refusals, the words of a leaf, and machines by hand with a leaf that is killed.

The machines are of the long form (`--long`): nine processes.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from commands import Output, finish, free_ports, in_process, start, typed, wait_until
from safetensors.numpy import load_file

import fedgossip
from fedgossip.base.vectors import digest
from fedgossip.cli.run.progress import federated_text, words_for
from fedgossip.core.records import EventRow, PeerRow, read_rows
from fedgossip.experiment import load_experiment
from fedgossip.plans import compose

TIERS = """
rounds = 40
[task]
kind = "quadratic"
dim = 3
[coordinator]
clients = 6
min_clients = 3
tiers = [{ clients = 3 }, { clients = 2, secure = false }]
return_timeout = 3.0
"""


pytestmark = pytest.mark.sockets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiers.toml").write_text(TIERS)
    (tmp_path / "open.toml").write_text(TIERS.replace("clients = 3 }", "clients = 3, secure = false }"))
    ports = iter(free_ports(3))
    blocks = []
    for node in range(9):
        (tmp_path / f"at{node}").mkdir()
        where = ["--client"] if node < 6 else ["--address", f"tcp://127.0.0.1:{next(ports)}"]
        blocks.append(typed(["keys", "new", "--id", str(node), *where, "--out", f"at{node}/peer.key"], tmp_path).out)
    (tmp_path / "endpoints.toml").write_text("".join(blocks))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["coordinator", "tiers.toml", "--id", "5", "--endpoints", "endpoints.toml"], "there is no coordinator 5"),
        (["coordinator", "tiers.toml", "--id", "9", "--endpoints", "endpoints.toml"], "there is no coordinator 9"),
        (["privacy", "policy", "tiers.toml", "--endpoints", "endpoints.toml"], "the leaf coordinator of one client"),
        (["privacy", "policy", "tiers.toml", "--endpoints", "endpoints.toml", "--id", "6"], "there is no client 6"),
        (["privacy", "policy", "open.toml", "--endpoints", "endpoints.toml", "--id", "1"], "sees its updates"),
        (["run", "tiers.toml", "--on", "stacked", "--no-report"], "the stacked engine has one coordinator"),
    ],
)
def test_what_tiers_cannot_do_is_refused_by_name(
    folder: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = in_process(words, folder, monkeypatch, capsys)
    assert told.code == 2 and len(told.errors) == 1 and said in told.errors[0]


def test_each_client_s_policy_names_its_own_leaf(folder: Path) -> None:
    entries = (folder / "endpoints.toml").read_text().split("[[peer]]")
    for node, leaf in ((0, 6), (5, 7)):
        told = typed(["privacy", "policy", "tiers.toml", "--endpoints", "endpoints.toml", "--id", str(node)], folder)
        (pinned,) = (line for line in told.out.splitlines() if line.startswith("coordinator = "))
        assert pinned.split('"')[1] in entries[leaf + 1]
        (folder / "policy.toml").unlink()


def test_a_leaf_that_contributes_nothing_says_why() -> None:
    facts = {"contributions": 2, "needed": 3, "reason": "TOO_FEW", "text": ""}
    text = federated_text(EventRow(1, 6, "contributes_nothing", facts))
    assert "contributes nothing" in text and "2 contributed, 3 are needed" in text


def test_an_event_names_a_leaf_coordinator_by_its_role(folder: Path) -> None:
    roles = compose.plan(load_experiment(folder / "tiers.toml")).roles
    words = words_for(roles)
    assert words(EventRow(3, 8, "gone", 7)) == "leaf coordinator 1 is gone"
    assert words(EventRow(3, 6, "gone", 2)) == "client 2 is gone"
    late = EventRow(3, 8, "late", {"peer": 6, "round": 2})
    assert words(late) == "a message of leaf coordinator 0 for round 2 is too late"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_machines_by_hand_go_on_when_a_leaf_is_killed_and_started_again(folder: Path) -> None:
    common = ["tiers.toml", "--endpoints", "endpoints.toml"]
    for node in range(6):
        to = ["--id", str(node), "--out", f"at{node}/policy.toml"]
        assert typed(["privacy", "policy", *common, *to], folder).code == 0

    def at(node: int, *more: str) -> list[str]:
        who = ["client", *common, "--policy", f"at{node}/policy.toml"] if node < 6 else ["coordinator", *common]
        id_ = [] if node == 8 else ["--id", str(node)]
        return [*who, *id_, "--key", f"at{node}/peer.key", "--out", f"at{node}/run", *more]

    processes = {node: start(at(node), folder) for node in range(9)}

    def counts() -> list[int]:
        path = folder / "at8" / "run" / "metrics.jsonl"
        rows = read_rows(path) if path.exists() else []
        return [row.clients or 0 for row in rows if isinstance(row, PeerRow) and row.round]

    wait_until(lambda: len(counts()) > 2, 120, "three rounds")
    processes[6].send_signal(signal.SIGKILL)
    finish(processes[6])
    time.sleep(0.5)
    processes[6] = start(at(6, "--resume"), folder)
    ended: list[Output] = [finish(process, 200) for process in processes.values()]
    assert [one.code for one in ended] == [0] * 9, "\n".join(one.err for one in ended)
    found = counts()
    assert len(found) == 40 and set(found) <= {3, 6} and found[0] == 6
    if set(found) == {6}:  # it was killed between two rounds: the bits are those of an undisturbed run
        (vector,) = load_file(folder / "at8" / "run" / "vector.safetensors").values()
        assert digest([vector]) == fedgossip.simulate(folder / "tiers.toml").digest
