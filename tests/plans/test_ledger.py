"""The ledger beside a key: a privacy budget is of the data, and does not begin anew in another folder."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from accounts import next_rate
from fit_sites import SITES, own_tables, patients
from test_coordinator_commands import CLIENTS, Site
from test_private_federation import hiding, learning

import fedgossip
from fedgossip.audit.entries import entries
from fedgossip.base.errors import BudgetError, ConfigError, NotWrittenError
from fedgossip.base.vectors import frozen
from fedgossip.cli import cli
from fedgossip.core.machine import Log, PeerJoined, Received, Report, Send, Started, Trained
from fedgossip.core.messages import Hello, Invite, Refusal
from fedgossip.core.records import EventRow
from fedgossip.drivers import participant
from fedgossip.drivers.participant import Given
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoint, signed
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.ledger import SpentLedger, data_of
from fedgossip.plans.federated.privacy_budget import purse_of
from fedgossip.privacy.accounting import Mechanism, epsilon
from fedgossip.privacy.budget import Budget, Spend
from fedgossip.sites.plans.statistics import statistics_plan

SPEND = Spend("record", noise=1.0, delta=1e-5, clip=1.0, rate=0.1, steps=3).to_mapping()


def opened(path: Path, data: str = "digits", unit: str = "record") -> contextlib.closing[SpentLedger]:
    return contextlib.closing(SpentLedger(path, unit, data))


def left(path: Path, *logs: str, data: str = "digits") -> Path:
    """A release for each of these logs."""
    with opened(path, data) as ledger:
        for log in logs:
            ledger.take_up(log, [])
            ledger.add(SPEND)
    return path


def before(path: Path, log: str = "new", logged: int = 0, data: str = "digits", unit: str = "record") -> int:
    with opened(path, data, unit) as ledger:
        return len(ledger.take_up(log, [SPEND] * logged))


# --- the file ---------------------------------------------------------------------------------------------------------


def test_what_other_runs_have_spent_of_the_same_data_counts_and_nothing_else(tmp_path: Path) -> None:
    path = left(tmp_path / "k.spent", "a", "a", "b")
    assert before(path) == 3
    assert before(path, "a", logged=2) == 1, "its own log tells of the others"
    assert before(path, data="breast-cancer") == 0 and before(path, unit="client") == 0
    assert path.stat().st_mode & 0o077 == 0


def test_a_release_that_a_crash_left_out_of_the_log_counts(tmp_path: Path) -> None:
    path = left(tmp_path / "k.spent", "a", "a", "a")
    assert before(path, "a", logged=2) == 1


def test_a_ledger_that_was_lost_is_made_again_from_the_log(tmp_path: Path) -> None:
    assert before(tmp_path / "k.spent", "a", logged=4) == 0
    assert before(tmp_path / "k.spent", "b") == 4


def test_a_torn_line_was_no_release_and_hides_no_later_one(tmp_path: Path) -> None:
    path = left(tmp_path / "k.spent", "a", "b")
    path.write_bytes(path.read_bytes()[:-7])
    assert before(path) == 1
    assert before(left(path, "c")) == 2


@pytest.mark.parametrize("line", [b"{}\n", b"word\n", b'{"data":"digits","log":"a","spend":{"noise":1.0}}\n'])
def test_a_ledger_that_cannot_be_read_allows_nothing(tmp_path: Path, line: bytes) -> None:
    path = left(tmp_path / "k.spent", "a")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(ConfigError, match="line 2") as error:
        before(path)
    assert "nothing more may be released" in error.value.advice


@pytest.mark.sockets
def test_one_process_at_a_time_spends_with_a_key(tmp_path: Path) -> None:
    path = tmp_path / "k.spent"
    with opened(path):
        code = "import sys, pathlib, fedgossip.plans.federated.ledger as it; it._locked(pathlib.Path(sys.argv[1]))"
        words = [sys.executable, "-c", code, str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and "another process spends of the budget of this key" in done.stderr
    assert before(path) == 0


def test_on_a_full_disk_nothing_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path / "k.spent") as ledger:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(NotWrittenError, match="No space left"):
            ledger.add(SPEND)


def test_a_file_is_the_same_data_by_whatever_path_and_options(tmp_path: Path) -> None:
    (tmp_path / "site-2.csv").touch()
    (tmp_path / "link.csv").symlink_to(tmp_path / "site-2.csv")
    names = ["site-{peer}.csv?label=a", "./site-{peer}.csv?label=b&drop=c", "link.csv?label=a"]
    experiment = load_experiment(learning("record"))
    found = set()
    for name in names:
        experiment.data.source = f"csv:{tmp_path}/{name}"
        found.add(data_of(experiment.data.source, 2))
    assert found == {f"csv:{tmp_path.resolve()}/site-2.csv"}
    assert data_of(load_experiment(learning("record")).data.source, 2) == "digits"


# --- the budget -------------------------------------------------------------------------------------------------------


def test_spends_of_other_noise_clip_and_delta_add_up() -> None:
    other = [Spend("record", 2.0, 1e-6, 0.5, 0.2, 4).to_mapping()]
    privacy = load_experiment(learning("record", max_epsilon=50.0)).coordinator.privacy  # type: ignore[union-attr]
    purse = purse_of(privacy, 0.1, 3, [("spent", SPEND)], other)
    expected = epsilon([Mechanism(2.0, 0.2, 4), Mechanism(1.0, 0.1, 3)], 1e-5)
    assert purse.epsilon == pytest.approx(expected)
    purse.pay(1)
    assert purse.epsilon == pytest.approx(epsilon([Mechanism(2.0, 0.2, 4), Mechanism(1.0, 0.1, 6)], 1e-5))


def test_a_budget_that_others_have_used_up_allows_nothing() -> None:
    one = Spend("client", 2.0, 1e-5, 1.0)
    limit = Budget(1e9, 1e-5, "client").spend(one).epsilon
    fresh = Budget(limit, 1e-5, "client")
    used = Budget(limit, 1e-5, "client", before=fresh.spend(one).account)
    assert fresh.allows(one) and not used.allows(one)
    with pytest.raises(BudgetError):
        used.spend(one)


# --- participants -----------------------------------------------------------------------------------------------------


class Desk:
    """Client 0 of three, with a key, that hides its records; a life in a folder of its own."""

    def __init__(self, tmp_path: Path) -> None:
        content = learning("record", rounds=1000, max_epsilon=2.5)
        content["coordinator"] |= {"clients": 3, "secure": {"on": False}}
        plan = compose.plan(load_experiment(content))
        task, shares = compose.task_of(plan.experiment, 3, [0])
        self.plan, self.task = plan.with_shares(shares), task
        self.tmp, self.identity = tmp_path, Identity.new()
        others = [Identity.new() for _ in range(3)]
        self.endpoints: dict[int, Endpoint] = {
            node: signed(one, "tcp://127.0.0.1:5700" if node == 3 else "")
            for node, one in enumerate([self.identity, *others])
        }

    def life(self, folder: str, rounds: int) -> tuple[list[float], bool, Any]:
        """Be invited to so many rounds; return epsilon after each paid one, whether it refused, and what was told."""
        (self.tmp / folder).mkdir(exist_ok=True)
        hello: Any = Hello(self.task.schema, "run", "1")
        links: Any = None
        given = Given(
            self.tmp / folder, self.identity, self.endpoints, hello, links, None, False, False, None, None,
            self.tmp / "peer.key.spent",
        )  # fmt: skip
        paid, refused = [], False
        with participant.open_maker(self.plan, 0, given) as made:
            initial = self.task.initial(0)
            machine = made.make(initial, None, 0)
            assert made.recorder
            for event in (Started(), PeerJoined(3, 1)):
                machine.handle(event, 0)
            for round in range(rounds):
                model = frozen(initial + np.float32(round))
                effects = machine.handle(Received(3, Invite(round, self.task.schema, (model,))), 0)
                for effect in effects:
                    if isinstance(effect, Log):
                        made.recorder.log(effect)
                        paid.append(machine.purse.epsilon)  # type: ignore[attr-defined]
                    refused |= isinstance(effect, Send) and isinstance(effect.message, Refusal)
                    refused |= isinstance(effect, Report) and effect.name == "budget"
                if refused:
                    break
                machine.handle(Trained(round, None, 10, {"steps": 3}), 0)
        return paid, refused, made.events


def test_the_budget_of_records_goes_on_in_another_folder(tmp_path: Path) -> None:
    """2.477 was spent twice so: once for each --out."""
    desk = Desk(tmp_path)
    first, refused, told = desk.life("one", 5)
    assert not refused and not told and len(first) == 5
    second, refused, (event,) = desk.life("two", 1000)
    assert refused and second[0] > first[-1] and second[-1] <= 2.5
    assert event.name == "spent_before" and event.value["epsilon"] == pytest.approx(first[-1])
    third, refused, _ = desk.life("three", 1)
    assert not third and refused


def test_the_budget_of_records_goes_on_in_the_same_folder_also_in_the_clear(tmp_path: Path) -> None:
    """A run without a secure sum had no credentials, and so no memory of what it had spent."""
    desk = Desk(tmp_path)
    first, _, _ = desk.life("one", 4)
    again, _, told = desk.life("one", 4)
    assert again[0] > first[-1] and not told, "the log of the folder tells of it"
    (tmp_path / "peer.key.spent").unlink()
    last, _, _ = desk.life("one", 4)
    assert last[0] > again[-1]


@pytest.mark.sockets
@pytest.mark.long
def test_the_budget_of_clients_goes_on_in_another_folder_at_the_coordinator_and_at_clients(tmp_path: Path) -> None:
    """Real processes: the budget is for seven rounds of clients, a run for five."""
    limit = epsilon([Mechanism(2.0, 1.0, 7)], 1e-5) + 0.01
    site = Site.made(tmp_path, more=f', privacy = {{ unit = "client", noise = 2.0, max_epsilon = {limit} }}')
    try:
        for life, (rounds, code) in enumerate([(5, 0), (2, 6)]):
            processes = [*(site.client(node) for node in range(CLIENTS)), site.coordinator()]
            codes = [site.ended(one) for one in processes]
            assert codes[-1] == code and (codes[0] == 0) == (code == 0), site.said(0) + site.said(CLIENTS)
            for node in range(CLIENTS + 1):
                folder = (tmp_path / f"out{node}").rename(tmp_path / f"life{life}-{node}")
                spent = [entry for entry in entries(folder / "audit.jsonl") if entry.kind == "spent"]
                assert len(spent) == rounds, f"participant {node}"
                lines = [json.loads(line) for line in (tmp_path / f"{node}.key.spent").read_text().splitlines()]
                assert len(lines) == (5 if life == 0 else 7) and {line["data"] for line in lines} == {"digits"}
        assert "was spent in other runs with this key" in site.said(0) + site.said(CLIENTS)
    finally:
        site.stop()


def test_a_simulation_keeps_no_ledger_and_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [fedgossip.simulate(hiding(rounds=2), out=tmp_path / name) for name in ("one", "two")]
    assert runs[0].summary["epsilon"] == runs[1].summary["epsilon"] and runs[0].digest == runs[1].digest
    assert not list(tmp_path.rglob("*spent*"))


def test_what_keeps_a_budget_is_not_traced() -> None:
    """A replay knows neither how many examples a client has nor what it has spent; it ended with a KeyError."""
    content = learning("record")
    content["coordinator"]["secure"] = {"on": False}
    plan = compose.plan(load_experiment(content))
    with pytest.raises(ConfigError, match="cannot be replayed"):
        participant.check_recordable(plan, 1)
    assert isinstance(plan, FederationPlan)
    with pytest.raises(ConfigError, match="the number of examples of client 0 is unknown"):
        plan.machine(0, frozen(np.zeros(3, np.float32)), "s")


def test_the_event_reads_as_a_sentence() -> None:
    from fedgossip.cli.run.progress import federated_text

    row = EventRow(0, 1, "spent_before", {"epsilon": 2.4771, "limit": 8.0, "releases": 5})
    assert federated_text(row) == "epsilon 2.477 of 8 was spent in other runs with this key, on the same data"


def test_the_command_says_what_a_key_has_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left(tmp_path / "peer.key.spent", "a", "a", "b")
    left(tmp_path / "peer.key.spent", "c", data="csv:/site.csv")
    key = str(tmp_path / "peer.key")
    cli(["privacy", "spent", "--key", key, "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert [(one["data"], one["releases"], one["runs"]) for one in told] == [("csv:/site.csv", 1, 1), ("digits", 3, 2)]
    assert told[1]["epsilon"] == pytest.approx(epsilon([Mechanism(1.0, 0.1, 9)], 1e-5))
    cli(["privacy", "spent", "--key", key], standalone_mode=False)
    assert f"epsilon {told[1]['epsilon']:.4g} at delta 1e-05, by 3 releases in 2 runs" in capsys.readouterr().out
    cli(["privacy", "spent", "--key", str(tmp_path / "new.key")], standalone_mode=False)
    assert "Nothing" in capsys.readouterr().err


def test_a_plan_counts_what_the_key_has_spent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {**learning("record", rounds=4, max_epsilon=5.0), "eval": {"every": 4}}
    Path("e.toml").write_text(tomli_w.dumps(content))
    assert cli(["privacy", "plan", "e.toml", "--id", "0", "--json"], standalone_mode=False) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["total"] == alone["epsilon"]
    rate = next_rate(alone["plan"]["batch_size"] / min(alone["plan"]["examples"]))
    with opened(tmp_path / "peer.key.spent") as ledger:
        ledger.take_up("a", [])
        for _ in range(4):
            ledger.add({**SPEND, "rate": rate})
    words = ["privacy", "plan", "e.toml", "--id", "0", "--key", "peer.key"]
    cli([*words, "--json"], standalone_mode=False)
    with_it = json.loads(capsys.readouterr().out)
    assert with_it["total"] == pytest.approx(epsilon([Mechanism(1.0, rate, 24)], 1e-5))
    assert with_it["rounds_within"] == alone["rounds_within"] - 4
    cli(words, standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"Epsilon {alone['epsilon']:.3g} was spent in other runs with this key" in said
    with pytest.raises(ConfigError, match="accounted for by each client"):
        cli(["privacy", "plan", "e.toml", "--key", "peer.key"], standalone_mode=False)


# --- subsets of records -----------------------------------------------------------------------------------------------


def test_no_difference_of_released_subsets_is_over_few_records(tmp_path: Path) -> None:
    """Of random subsets, some of them nearly alike: sums of all records and of the allowed subsets, added with factors,
    are over none or five records; and a subset is refused only where one of them is over fewer."""
    rng, allowed, refused = np.random.default_rng(3), list[Any](), 0

    def fewest(subsets: list[Any]) -> int:
        whole = np.array([np.ones(60, int), *subsets])
        factors = 3 ** np.arange(len(whole))  # distinct for each way to be in them: any class of records alone
        return int(min((found == one).sum() for found in [factors @ whole] for one in set(found.tolist())))

    with contextlib.closing(SpentLedger(tmp_path / "spent", "none", "csv:a.csv", "ab")) as ledger:
        for run in range(300):
            near = allowed[rng.integers(len(allowed))] if allowed and run % 2 else np.zeros(60, int)
            chosen = near ^ (np.arange(60) % 12 < rng.integers(2, 12)) if run % 3 else near ^ (rng.random(60) < 0.1)
            bits = "".join(map(str, chosen.astype(int)))
            try:
                ledger.note_exact("glm", f"run{run}", f"60:{int(bits, 2):x}", 5)
                allowed.append(chosen)
            except BudgetError as error:
                assert fewest([*allowed, chosen]) < 5 and "fewer than 5 records" in str(error)
                refused += 1
    assert fewest(allowed) >= 5 and len(allowed) > 3 and refused > 50


def begin(folder: Path, log: str, *overrides: str) -> None:
    """Begin the agreement of a.toml as site 4, with one key and ledger for all."""
    plan, _ = statistics_plan(load_experiment(folder / "a.toml", list(overrides)))
    (folder / log).mkdir()
    identity = Identity.new()
    members = {node: signed(identity if node == 4 else Identity.new(), "") for node in range(SITES + 1)}
    hello: Any = Hello("schema", "run", "1")
    links: Any = None
    given = Given(folder / log, identity, members, hello, links, None, False, False, None, None, folder / "spent")
    with participant.open_maker(plan, 4, given):
        pass


def test_a_site_begins_no_fit_of_nearly_the_records_of_an_earlier_one(tmp_path: Path) -> None:
    for site in range(SITES):
        patients(tmp_path / f"site-{site}.csv", site)
    patients(tmp_path / "test.csv", 99)
    (tmp_path / "a.toml").write_text(own_tables("a", "label=ill&drop=days,died", source="glm:logistic"))
    begin(tmp_path, "first", "data.where=age >= 50")
    with pytest.raises(BudgetError, match="sums of fewer than 5 records"):
        begin(tmp_path, "second", "data.where=age >= 48")
    begin(tmp_path, "third", "data.where=age >= 50.0")
    lines = [json.loads(line) for line in (tmp_path / "spent").read_text().splitlines()]
    assert len({line["rows"] for line in lines}) == 1 and len(lines) == 2


def test_records_are_the_same_in_whatever_encoding_a_plan_declares(tmp_path: Path) -> None:
    """In another one than the file's a name with one letter beyond ASCII made it a new table, without any history."""
    rows = [f"{age},{'Zoë' if age == 40 else 'Ann'},{'yes' if age % 2 else 'no'}" for age in range(30, 60)]
    for site in (*range(SITES), "test"):
        name = "test.csv" if site == "test" else f"site-{site}.csv"
        (tmp_path / name).write_text("\n".join(["age,name,ill", *rows]) + "\n", "utf-8")
    (tmp_path / "a.toml").write_text(own_tables("a", "label=ill&drop=name", source="glm:logistic"))
    begin(tmp_path, "first", "data.where=age >= 40")
    other = "data.source=csv:site-{peer}.csv?label=ill&drop=name&encoding=cp1252"
    with pytest.raises(BudgetError, match="sums of fewer than 5 records"):
        begin(tmp_path, "second", "data.where=age >= 42", other)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["data.missing=mean"], ["data.missing=drop"]),
        (["data.missing=drop"], ["data.missing=mean"]),
        (["data.missing=drop"], ["data.missing=drop", "data.{}=csv:{}.csv?label=ill&keep=age"]),
        (["data.missing=drop", "data.where=age >= 30"], ["data.missing=mean"]),
    ],
)
@pytest.mark.parametrize(("empty", "refused"), [(1, True), (6, False)])
def test_a_site_begins_no_fit_with_few_records_more_or_fewer_for_empty_cells(
    first: list[str], second: list[str], empty: int, refused: bool, tmp_path: Path
) -> None:
    """The published means of the age over N and N - 1 records gave that of the record with an empty cell elsewhere."""
    for site in [*range(SITES), "test"]:
        path = tmp_path / (f"site-{site}.csv" if isinstance(site, int) else "test.csv")
        patients(path, 99 if site == "test" else int(site))
        rows = [line.split(",") for line in path.read_text().splitlines()]
        for row in rows[1 : 1 + empty] if site == 4 else ():
            row[1] = ""
        path.write_text("\n".join(map(",".join, rows)) + "\n")
    (tmp_path / "a.toml").write_text(own_tables("a", "label=ill&keep=age,arm", source="glm:logistic"))
    of = [("source", "site-{peer}"), ("test", "test")]

    def given(overrides: list[str]) -> list[str]:
        every = [one.format(*pair) if "{}" in one else one for one in overrides for pair in of]
        return list(dict.fromkeys(every))

    begin(tmp_path, "first", *given(first))
    with pytest.raises(BudgetError, match="sums of fewer than 5") if refused else contextlib.nullcontext():
        begin(tmp_path, "second", *given(second))
