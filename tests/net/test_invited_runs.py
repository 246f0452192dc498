"""Runs by invite that are of fixed participants: a coordinator and its clients, workers of one model, masked gossip."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import experiment, in_process, wait_until
from test_host_join import People

from fedgossip.base.errors import ConfigError
from fedgossip.cli.people.invited import InvitedSeat
from fedgossip.experiment import checked, load_experiment
from fedgossip.net.endpoints import signed
from fedgossip.net.identity import Identity
from fedgossip.net.relays.reachability import DIRECT
from fedgossip.plans import compose

pytestmark = pytest.mark.sockets

HANGS_SECONDS = 240.0
"""Four processes that import torch begin in half a minute on a busy machine."""

TABLE = "x1,x2,y\n" + "".join(f"{k % 7},{k % 5},{'ab'[k % 7 > 2]}\n" for k in range(60))
FEDERATED = """
rounds = 2
train = {{ device = "cpu", local_steps = 2 }}
data = {{ source = "csv:{{peer}}.csv?label=y", test = "csv:common.csv?label=y", partition = {{ kind = "own" }} }}
[coordinator]
clients = 5
{more}
"""
PARALLEL = """
rounds = 3
task = { kind = "quadratic", dim = 5 }
[parallel]
workers = 3
"""


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    made = People(tmp_path, HANGS_SECONDS)
    yield made
    made.stop()


def federated(people: People, more: str = "") -> None:
    (people.home("host") / "experiment.toml").write_text(FEDERATED.format(more=more))
    (people.home("host") / "common.csv").write_text(TABLE)
    for who in "bcd":
        (people.home(who) / "mine.csv").write_text(TABLE)


def rounds(people: People, who: str) -> int:
    """How many rounds one has behind it, by its record."""
    found = [*people.home(who).glob("*/*/run/metrics.jsonl")]
    return sum(b'"peer"' in line for line in found[0].read_bytes().splitlines()) if found else 0


def test_a_coordinator_is_hosted_and_those_who_join_are_clients_of_a_secure_sum(people: People) -> None:
    federated(people)
    invite = people.host("--peers", "3")
    for who in "bcd":
        people.join(who, invite, "--data", "csv:mine.csv?label=y")
    assert [people.ended(who) for who in ("host", *"bcd")] == [0] * 4, people.said("b") + people.said("host")
    said = people.said("b")
    assert "secure aggregation: the coordinator sees sums alone, each over at least 3 of 3" in said
    assert "this client's update to the coordinator" in said and "csv:mine.csv?label=y: yours" in said
    models = {(people.run_of(who) / "vector.safetensors").read_bytes()[-20:] for who in ("host", *"bcd")}
    assert len(models) == 1  # that of the last round, which everybody is sent
    assert "Here: client 0, client 1, client 2, coordinator.  It begins." in people.said("host")
    (page,) = people.home("host").glob("runs/*/report.html")
    assert f"The report of the whole run: open runs/{page.parent.name}/report.html" in people.said("host")
    policy = next(people.home("b").glob("joined/*/policy.toml"))
    assert policy.stat().st_mode & 0o077 == 0 and "min_clients = 3" in policy.read_text()


def test_workers_that_are_invited_end_with_the_digest_of_a_simulation(
    people: People, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = people.home("host")
    (home / "experiment.toml").write_text(PARALLEL)
    invite = people.host()
    for who in "bc":
        people.join(who, invite)
    assert [people.ended(who) for who in ("host", *"bc")] == [0] * 3, people.said("b") + people.said("host")
    assert "in sums, to other workers" in people.said("b") and "worker 2" in people.said("host")
    folders = [str(people.run_of(who)) for who in ("host", *"bc")]
    named = str(home / "hosting" / "experiment" / "experiment.toml")
    real = in_process(["collect", named, *folders, "--json"], home, monkeypatch, capsys)
    words = ["run", "experiment.toml", "--no-report", "--json"]
    simulated = in_process(words, home, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"]


@pytest.mark.long
def test_private_gossip_is_by_invite_too_for_its_neighbours_are_all_there_when_it_begins(people: People) -> None:
    more = "[algorithm]\nprivate = true\n"
    experiment(people.home("host"), n=4, rounds=2, graph="complete", more=more)
    invite = people.host()
    for who in "bcd":
        people.join(who, invite)
    assert [people.ended(who) for who in ("host", *"bcd")] == [0] * 4, people.said("b") + people.said("host")
    assert "masked: neighbours learn their sum alone" in people.said("b")


QUADRATIC = 'rounds = 100000\ntask = { kind = "quadratic", dim = 3 }\ncoordinator.clients = 3\n'


@pytest.mark.long
def test_a_client_and_a_coordinator_by_invite_go_on_after_a_kill(people: People) -> None:
    """The same command again: the keys, the place and the policy are those of the life before."""
    (people.home("host") / "experiment.toml").write_text(QUADRATIC)
    killed_in_turn(people)


@pytest.mark.long
def test_what_a_client_spends_is_counted_on_its_data_through_a_kill(people: People) -> None:
    federated(people, "[coordinator.privacy]\nunit = 'record'\nnoise = 8.0\nmax_epsilon = 50.0\n")
    path = people.home("host") / "experiment.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 300"))
    killed_in_turn(people, "--data", "csv:mine.csv?label=y")
    ledger = people.home("b") / "joined" / "keys.spent"
    spends = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    assert {one["data"] for one in spends} == {f"csv:{people.home('b') / 'mine.csv'}"}


def killed_in_turn(people: People, *words: str) -> None:
    """Host a run; kill a client, then the coordinator, and type the command of each again: rounds go on."""
    invite = people.host("--peers", "3")
    for who in "bcd":
        people.join(who, invite, *words)
    wait_until(lambda: rounds(people, "host") > 3, HANGS_SECONDS, f"rounds; {people.said('host')}")
    for who in ("b", "host"):
        people.running[who].send_signal(signal.SIGKILL)
        people.running[who].wait()
        before = rounds(people, "host")
        if who == "host":
            assert people.host("--peers", "3") == invite
        else:
            people.join(who, invite, *words)
        back = lambda before=before: rounds(people, "host") > before + 3  # noqa: E731
        wait_until(back, HANGS_SECONDS, f"{who} is back; {people.said('host')}; {people.said('b')}")


@pytest.mark.parametrize(
    ("words", "error"),
    [(("--data", "csv:a.csv?label=y"), "learns from no data"), (("--peers", "2"), "a secure sum takes at least 3")],
    ids=["data of a coordinator", "too few for a sum"],
)
def test_what_no_coordinator_can_host_is_said_before_an_invite_is_printed(
    words: tuple[str, ...], error: str, people: People, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    federated(people)
    said = in_process(["host", "experiment.toml", *words], people.home("host"), monkeypatch, capsys)
    assert said.code == 2 and error in said.errors[0] and not said.out and len(said.err.splitlines()) == 2, said.err


def test_a_client_holds_its_coordinator_to_what_it_agreed_to_when_the_run_began(tmp_path: Path) -> None:
    """An organiser that proposes another sum to one that comes back is refused, whatever was shown and said yes to."""
    people = [Identity.new() for _ in range(4)]
    known = {node: signed(one, "tcp://10.0.0.1:5700" if node == 3 else "") for node, one in enumerate(people)}

    def seat(**secure: object) -> InvitedSeat:
        content = {"task": {"kind": "quadratic", "dim": 3}, "coordinator": {"clients": 3, "secure": secure}}
        return InvitedSeat(compose.plan(load_experiment(content)), 0, tmp_path, tmp_path / "peer.key", DIRECT)

    assert seat()._agreed(known)[1] == seat()._agreed(known)[1] is not None
    others = {**known, 1: signed(Identity.new(), "")}
    for changed, roster, named in ((seat(bound=9.0), known, "bound"), (seat(), others, "roster")):
        with pytest.raises(ConfigError, match=f"policy.toml allows another run than this one: .*{named}"):
            changed._agreed(roster)
    with pytest.raises(ConfigError, match="switched the secure sum off"):
        seat(on=False)._agreed(known)


def test_an_address_of_a_client_that_nobody_calls_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    from fedgossip.cli.people.join import OwnMachine, _whereabouts

    own = OwnMachine("", "", "192.0.2.7", None, Path("policy"), None, None)
    content = {"coordinator": {"clients": 3}, "task": {"kind": "averaging"}, "rounds": 2}
    plan = compose.plan(checked(content, "test"))
    client = SimpleNamespace(invitation=SimpleNamespace(addresses=()), reached="tcp://127.0.0.1:7700")
    text, _ = _whereabouts(client, plan, own, None, None)  # type: ignore[arg-type]
    assert "None" not in text and "192.0.2.7" not in text
    assert "--address is not needed" in capsys.readouterr().err
