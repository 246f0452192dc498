"""data.where selects records at each site: by a condition of tokens, and the fit is that of these records alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fit_sites import QUERY, SITES, SOURCE, TIMES, own_tables, patients

from fedgossip import ConfigError, load_experiment
from fedgossip.core.task import Job
from fedgossip.data.agreed.agreed_table import AgreedTable, unknown
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.columns.subset import parsed
from fedgossip.experiment import FederatedExperiment
from fedgossip.plans.approvals.plan_statement import lines
from fedgossip.secure.encoding import as_vector, integers_of, words_in, words_of
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.statistics import agreed_from, stated_statistics, statistics_plan, statistics_task
from fedgossip.sites.plans.sums import summed_here
from fedgossip.sites.releases.model_card import _data

CELLS = {"age": ["17", "18.0", "", "60"], "ward": ["north", "", "south", "the east"], "sex": ["1", "2", "1.0", ""]}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("age >= 18", [1, 3]),
        ("age<18", [0]),
        ("age = 18", [1]),
        ("not age > 17", [0]),
        ("sex == 1", [0, 2]),
        ("sex != 1", [1]),
        ("ward = `the east`", [3]),
        ("ward != north", [2, 3]),
        ("age > 17 or ward = south", [1, 2, 3]),
        ("not (age > 17 or ward = south)", [0]),
        ("age > 17 and ward = north or sex = 1", [0, 2]),
        ("age > 17 and (ward = `the east` or sex = 2)", [1, 3]),
        ("not (age > 17 and ward = north)", [0, 2, 3]),
    ],
)
def test_a_condition_selects_records_whose_cells_make_it_true(text: str, rows: list[int]) -> None:
    """An empty cell is neither; Kleene's logic, as SQL's: not (unknown or true) is false, (unknown and false) too."""
    assert parsed(text).verdicts(CELLS).true.nonzero()[0].tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age >= __import__('os').system('x')", "letter 8, '__import__': >= compares numbers"),
        ("age.__class__ = 1; x", "letter 18, ';': expected is 'and', 'or' or the end"),
        ("import os", "letter 8, 'os': expected is '<' or '>'"),
        ("age", "at its end: expected is '<'"),
        ("age ! 3", "letter 7, '3': expected is a number or a level"),
        ("age > 3 and", "at its end: expected is a column"),
        ("(age > 3", "at its end: expected is ')'"),
        ("age > 3)", "letter 8, ')': expected is 'and', 'or' or the end"),
        ("ward = 'north'", 'letter 8, "\'": expected is a number or a level'),
        ("(" * 30 + "age > 3" + ")" * 30, "letter 21, '(': more than 20 levels"),
        ("age > 3" + " or age > 3" * 1000, "at its end: a formula has at most 10,000 letters"),
    ],
)
def test_a_token_of_a_condition_that_does_not_fit_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert message in str(refused.value) and refused.value.advice and "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of five sites, and beside them, in `chosen`, those of their records over 50 alone."""
    found = tmp_path_factory.mktemp("subset")
    (found / "chosen").mkdir()
    for name in [*(f"site-{site}" for site in range(SITES)), "test"]:
        patients(found / f"{name}.csv", 99 if name == "test" else int(name[-1]))
        head, *rows = csv.reader((found / f"{name}.csv").read_text().splitlines())
        kept = [row for row in rows if name == "test" or int(row[0]) > 50]
        (found / "chosen" / f"{name}.csv").write_text("\n".join(map(",".join, [head, *kept])) + "\n")
    return found


def experiment(folder: Path, kind: str, where: str) -> FederatedExperiment:
    more = f'where = "{where}"\n' + ('[task]\nkind = "regression"\n' if QUERY[kind] == TIMES else "")
    path = folder / f"{kind}.toml"
    path.write_text(own_tables(kind, QUERY[kind], source=SOURCE[kind], more=more))
    found = load_experiment(path)
    assert isinstance(found, FederatedExperiment)
    return found


def fitted(folder: Path, kind: str, where: str = "") -> dict[str, Any]:
    """Return a fit's file without the hash of its statistics."""
    of = experiment(folder, kind, where)
    plan, schema = statistics_plan(of)
    plan, task, refused = statistics_task(plan, schema, range(SITES))
    assert not refused
    Path(of.data.agreed).write_bytes(encoded(agreed_from(task, summed_here(plan, task, range(SITES)), schema, 5)))
    fit = planned_fit(of)
    _, sums, refused = fit.of_sites(range(SITES))
    assert not refused
    found: dict[str, Any] = json.loads(encoded(fit.result(summed_here(fit.plan, sums, range(SITES)))))
    return found | {"design": found["design"] | {"agreed": ""}}


@pytest.mark.parametrize("kind", ["glm", "kaplan-meier", "trees", "table1"])
def test_a_fit_of_a_subset_is_the_fit_of_its_records_alone(kind: str, folder: Path) -> None:
    chosen = fitted(folder / "chosen", kind)
    assert fitted(folder, kind, "age > 50") == chosen != fitted(folder, kind)


def test_the_card_states_the_subset(folder: Path) -> None:
    none: Any = None
    for where, there in (("age != 50", True), ("", False)):
        table = agreed_of_none(experiment(folder, "glm", where))
        assert ("Only records with age != 50 take part." in str(_data(none, table))) == there


def agreed_of_none(of: FederatedExperiment) -> AgreedTable:
    return unknown(statistics_plan(of)[1], 5)


def test_the_plan_states_the_subset_and_a_file_without_one_keeps_its_hash(folder: Path) -> None:
    (_, with_it), (_, without) = (stated_statistics(experiment(folder, "glm", where)) for where in ("arm != new", ""))
    assert "Only records with arm != new." in dict(lines(with_it))["from"]
    assert with_it.hash != without.hash and "where" not in without.experiment["data"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("ago > 50", "letter 1, 'ago': the common file has no column 'ago'"),
        ("arm = odl", "letter 7, 'odl': 'odl' is no value of 'arm'"),
        ("arm > 3", "letter 7, '3': 'arm' holds words, which have no order"),
        ("age = old", "letter 7, 'old': 'old' is no value of 'age'"),
    ],
)
def test_a_column_or_a_level_that_the_common_file_lacks_is_named(where: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        statistics_plan(experiment(folder, "glm", where))
    assert message in str(refused.value) and refused.value.advice


def test_a_site_takes_no_part_if_the_subset_has_few_of_its_records_or_all_but_few(folder: Path) -> None:
    for where, text in (("age < 33", "fewer than 5 records"), ("age > 33", "leaves out fewer than 5 records")):
        plan, schema = statistics_plan(experiment(folder, "glm", where))
        _, _, refused = statistics_task(plan, schema, range(SITES))
        assert any(text in str(error) for error in refused.values()), (where, refused)


@pytest.mark.parametrize("alone", [1, 2])
def test_no_sums_are_sent_of_a_subset_that_leaves_out_records_at_few_sites(
    alone: int, folder: Path, tmp_path: Path
) -> None:
    """Their difference to those of all records would be the sums of these sites."""
    for name in [*(f"site-{site}" for site in range(SITES)), "test"]:
        text = (folder / f"{name}.csv").read_text()
        here = name == "test" or int(name[-1]) < alone
        (tmp_path / f"{name}.csv").write_text(text if here else text.replace(",old,", ",new,"))
    plan, schema = statistics_plan(experiment(tmp_path, "glm", "arm = new"))
    plan, task, refused = statistics_task(plan, schema, range(SITES))
    assert not refused and plan.experiment.rounds == 3
    first = [integers_of(words_in(task.sums(Job(node, 0, task.initial(node))))) for node in range(SITES)]  # type: ignore[arg-type]
    assert [one[:2] for one in first] == [[1, int(node < alone)] for node in range(SITES)]
    assert not any(any(one[2:]) for one in first)
    total = as_vector(words_of([sum(one) for one in zip(*first, strict=True)]))
    assert all("leaves out records at" in task.uneven(node, 1, total) for node in range(SITES))
    with pytest.raises(ConfigError, match="alone, whose sums would be disclosed"):
        agreed_from(task, summed_here(plan, task, range(SITES)) or total, schema, 5)


def test_a_cell_that_is_no_number_is_named_at_its_site(folder: Path, tmp_path: Path) -> None:
    for name in [*(f"site-{site}.csv" for site in range(SITES)), "test.csv"]:
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / "site-2.csv").write_text(
        (folder / "site-2.csv").read_text().replace("\n", "\nunder 18,new,9,1,no\n", 1)
    )
    plan, schema = statistics_plan(experiment(tmp_path, "glm", "age > 50"))
    _, _, refused = statistics_task(plan, schema, range(SITES))
    assert list(refused) == [2] and "site-2.csv, line 2, column 'age': 'under 18'" in str(refused[2])
