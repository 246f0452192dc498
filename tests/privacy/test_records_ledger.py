"""The ledger of a site's records: known again by their digest, and held to one limit over all runs."""

from __future__ import annotations

import contextlib
import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from commands import typed
from test_agreed_statistics import breast_cancer, budgeted
from test_ledger import SPEND, Desk

from fedgossip.base.errors import BudgetError
from fedgossip.core.messages import Hello
from fedgossip.data.record_groups import source_digest
from fedgossip.drivers import participant
from fedgossip.drivers.participant import Given
from fedgossip.experiment import load_experiment
from fedgossip.plans.federated.ledger import SpentLedger, TotalLimit, data_of, data_sets
from fedgossip.privacy.accounting import Mechanism, account_of, epsilon
from fedgossip.privacy.budget import Spend, TotalBudget, compute_record_cost
from fedgossip.sites.plans.statistics import statistics_plan

ROWS = [["age", "kind"], ["31", "a"], ["4.50", "b"], ["77", "a"]]


def table(path: Path, rows: list[list[str]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return f"csv:{path}?label=kind"


def opened(path: Path, data: str, records: str = "", unit: str = "record") -> contextlib.closing[SpentLedger]:
    return contextlib.closing(SpentLedger(path, unit, data, records))


def spend(path: Path, log: str, data: str, records: str = "", **change: str | float) -> None:
    with opened(path, data, records) as ledger:
        ledger.take_up(log, [])
        ledger.add({**SPEND, **change})


def before(path: Path, data: str, records: str = "") -> int:
    with opened(path, data, records) as ledger:
        return len(ledger.take_up("new", []))


# --- which records ----------------------------------------------------------------------------------------------------


def test_records_have_one_digest_whatever_their_path_order_and_spelling(tmp_path: Path) -> None:
    head, *rows = ROWS
    found = {source_digest(table(tmp_path / "a.csv", ROWS))}
    found.add(source_digest(table(tmp_path / "copy.csv", [head, *reversed(rows)])))
    found.add(source_digest(table(tmp_path / "columns.csv", [row[::-1] for row in ROWS])))
    found.add(source_digest(table(tmp_path / "spelled.csv", [head, ["31.0", "a"], ["4.5", "b"], ["7.7e1", "a"]])))
    assert len(found) == 1
    others = [[head, *rows[:2]], [*ROWS, rows[0]], [head, ["31", "b"], *rows[1:]], [["years", "kind"], *rows]]
    found |= {source_digest(table(tmp_path / "other.csv", one)) for one in others}
    assert len(found) == 1 + len(others)
    assert source_digest("digits") == "" == source_digest("csv:nowhere.csv?label=kind")


def test_what_was_once_linked_by_path_or_digest_stays_one_data_set(tmp_path: Path) -> None:
    """A copy under another name, and the file with a record more, would each begin anew by path or digest alone."""
    path = tmp_path / "k.spent"
    spend(path, "a", "csv:/one.csv", "d1")
    assert before(path, "csv:/copy.csv", "d1") == 1 and before(path, "csv:/one.csv", "d2") == 1
    assert before(path, "csv:/copy.csv", "d2") == 0
    spend(path, "b", "csv:/one.csv", "d2")
    assert before(path, "csv:/copy.csv", "d2") == 2 == before(path, "csv:/copy.csv", "d1")
    spend(path, "c", "csv:/other.csv", "d9")
    assert before(path, "csv:/other.csv", "d9") == 1
    (first, other), _ = data_sets(path, 1e-5)
    assert first.data == ("csv:/one.csv",) and first.records == "d2" and (first.releases, first.runs) == (2, 2)
    assert first.epsilon == pytest.approx(epsilon([Mechanism(1.0, 0.1, 6)], 1e-5)) and other.releases == 1


def test_a_ledger_of_the_release_before_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "k.spent"
    path.write_text(json.dumps({"data": "csv:/one.csv", "log": "a", "spend": SPEND}) + "\n")
    assert before(path, "csv:/one.csv", "d1") == 1


# --- what is spent in all ---------------------------------------------------------------------------------------------


def test_noise_for_whole_clients_counts_for_records_with_half_of_it(tmp_path: Path) -> None:
    """One record makes of one client another: twice as far as a client that is there or not."""
    client = Spend("client", 4.0, 1e-5, 1.0)
    assert compute_record_cost(client) == Mechanism(2.0) and compute_record_cost(
        replace(client, unit="record")
    ) == Mechanism(4.0)
    path = tmp_path / "k.spent"
    spend(path, "a", "digits")
    with opened(path, "digits", unit="client") as ledger:
        assert ledger.take_up("b", []) == [], "its own budget is another promise"
        ledger.add(client.to_mapping())
        ledger.set_limit(TotalLimit(5.0, 1e-5))
        total = ledger.total()
    assert total and total.epsilon == pytest.approx(epsilon([Mechanism(1.0, 0.1, 3), Mechanism(2.0)], 1e-5))


def test_no_order_of_releases_passes_the_limit() -> None:
    draw = random.Random(7)
    for _ in range(20):
        total, paid = TotalBudget(draw.uniform(0.5, 6), 1e-5), list[Mechanism]()
        for _ in range(30):
            one = Spend(draw.choice(["record", "client"]), draw.uniform(1, 9), 1e-6, 1.0, steps=draw.randint(1, 3))
            try:
                total = total.spend(one)
                paid.append(compute_record_cost(one))
            except BudgetError as error:
                after = account_of([*paid, compute_record_cost(one)]).epsilon(1e-5)
                assert after > total.max_epsilon and error.exit_code == 6
        assert total.epsilon == pytest.approx(account_of(paid).epsilon(1e-5)) and total.epsilon <= total.max_epsilon


def test_a_client_stays_out_where_the_site_s_limit_over_all_runs_is_reached(tmp_path: Path) -> None:
    """The experiment would allow epsilon 2.5; the site has said 1.2 before, and means all its runs together."""
    desk = Desk(tmp_path)
    free, refused, _ = desk.life("one", 3)
    assert not refused and len(free) == 3
    with opened(tmp_path / "peer.key.spent", "digits") as ledger:
        ledger.set_limit(TotalLimit(free[2] + 0.01, 1e-5))
    assert desk.life("two", 5)[:2] == ([], True)
    with opened(tmp_path / "peer.key.spent", "digits") as ledger:
        ledger.set_limit(TotalLimit(2.4, 1e-5))
    more, refused, _ = desk.life("three", 1000)
    assert refused and more and more[-1] <= 2.4
    lines = [json.loads(one) for one in (tmp_path / "peer.key.spent").read_text().splitlines()]
    assert sum(bool(one.get("spend")) for one in lines) == 3 + len(more), "each before it was released"


# --- without noise ----------------------------------------------------------------------------------------------------


def test_statistics_without_noise_are_remembered_and_can_be_limited(tmp_path: Path) -> None:
    """Only people remembered agreements whose file was removed."""
    breast_cancer(tmp_path, 0)
    words = ["data", "agree", "federated.toml"]
    assert "without noise, of" not in typed(words, tmp_path).err
    (tmp_path / "agreed.json").unlink()
    (tmp_path / "site-1.csv").write_text((tmp_path / "site-1.csv").read_text().rstrip("\n").rpartition("\n")[0] + "\n")
    again = typed(words, tmp_path)
    assert again.code == 0 and "site 0: released before without noise, of the same records: " in again.err
    assert "records: statistics once; two sums of a kind disclose" in again.err
    assert "site 1: released before without noise" in again.err, "one record less is the same file"
    (tmp_path / "agreed.json").unlink()
    ledger = ["privacy", "ledger", "--ledger", "agreed.json.spent"]
    assert typed([*ledger, "--allow-exact", "3"], tmp_path).code == 2
    limited = typed([*ledger, "--max-epsilon-total", "5", "--allow-exact", "2"], tmp_path)
    assert "statistics 2 times without noise, which no epsilon covers" in limited.out
    assert "This site allows epsilon 5 at delta 1e-05 in all; 2 times without noise." in limited.out
    refused = typed(words, tmp_path)
    assert refused.code == 6 and "2 such releases, of which 2 were made" in refused.err
    assert not (tmp_path / "agreed.json").exists()
    assert typed([*ledger, "--allow-exact", "3"], tmp_path).code == 0 == typed(words, tmp_path).code


def test_agreeing_again_with_noise_is_paid_for_again(tmp_path: Path) -> None:
    budgeted(tmp_path)
    limit = epsilon([Mechanism(2.0, 1.0, 5)], 1e-5)
    words = ["data", "agree", "federated.toml", "--set", f"coordinator.privacy.max_epsilon={limit}"]
    for code in (0, 0, 6):
        said = typed(words, tmp_path)
        assert said.code == code, said.err
        (tmp_path / "agreed.json").unlink(missing_ok=True)
    assert "site 0, two rounds of sums: the next release would bring epsilon" in said.err
    told = json.loads(typed(["privacy", "ledger", "--ledger", "agreed.json.spent", "--json"], tmp_path).out)
    assert [one["releases"] for one in told["data_sets"]] == [4] * 5 and told["limit"] is None
    assert told["data_sets"][0]["epsilon"] == pytest.approx(epsilon([Mechanism(2.0, 1.0, 4)], 1e-5))


def test_over_a_network_a_site_s_key_remembers_statistics_without_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breast_cancer(tmp_path, 0)
    monkeypatch.chdir(tmp_path)
    plan, _ = statistics_plan(load_experiment("federated.toml"))
    desk = Desk(tmp_path)
    endpoints = {node: desk.endpoints[min(node, 3)] for node in range(plan.n)}
    book = tmp_path / "peer.key.spent"

    def given(folder: str) -> Given:
        (tmp_path / folder).mkdir()
        about = endpoints, Hello("s", "run", "1"), None, None, False, False, None, None, book
        return Given(tmp_path / folder, desk.identity, *about)  # type: ignore[arg-type]

    def began(folder: str) -> list[object]:
        with participant.open_maker(plan, 0, given(folder)) as made:
            return [row.value for row in made.events if row.name == "exact_before"]

    monkeypatch.setattr(participant, "real", lambda *_: None)  # the keys are another test's
    assert began("one") == [] and began("two") == [{"times": 1, "what": "statistics once"}]
    (found,), _ = data_sets(book, 1e-5)
    assert found.exact == {"statistics": 2} and found.records == source_digest("csv:site-0.csv?label=outcome")
    assert found.data == (data_of(plan.experiment.data.source, 0),)
    abstaining = replace(plan, abstaining=frozenset({1}))
    with contextlib.ExitStack() as stack:
        assert participant._ledger(abstaining, 1, given("three"), stack) is None, "it tells nothing of its records"
