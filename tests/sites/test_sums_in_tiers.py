"""Fits and statistics of sites below leaf coordinators: the files of a run without tiers, always of the same sites."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import finish, free_ports, start, typed
from fit_sites import QUERY, SOURCE, TIMES, own_tables, patients

from fedgossip import ConfigError, load_experiment
from fedgossip.algorithms.sampling import Draw
from fedgossip.base.errors import TooFewPeersError
from fedgossip.base.vectors import empty
from fedgossip.core.messages import Invite, Subtotal
from fedgossip.core.records import EventRow
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.plans.federated.tree import tree_of
from fedgossip.protocols.federated.aggregation_round import Abandoned, ClientsBelow, LeafSum, SumReading
from fedgossip.protocols.federated.clear_tier import ClearRound, ClearSumming
from fedgossip.runs.run_directory import Run
from fedgossip.secure.encoding import ExactSums, words_of
from fedgossip.secure.session_history import AskedBefore
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.given_sums import fit_by_sums

SITES = 12
TREES = {
    "secure root": "[{clients=4},{clients=3}]",
    "open root": '[{groups=["0-2,11","3-10"]},{clients=2,secure=false}]',
    "three tiers": "[{clients=3},{clients=2,secure=false},{clients=2,secure=false}]",
}
OPEN = "[{clients=3},{clients=4,secure=false}]"
KINDS = {"glm": "fit.json", "kaplan-meier": "survival.json", "cox": "fit.json", "trees": "trees-fit.json"}
KINDS |= {"table1": "tables.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tiers")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    for kind in KINDS:
        more = '[task]\nkind = "regression"\n' if QUERY[kind] == TIMES else ""
        text = own_tables(kind, QUERY[kind], source=SOURCE[kind], more=more)
        (found / f"{kind}.toml").write_text(text.replace("clients = 5", f"clients = {SITES}"))
    return found


def in_tiers(tree: str) -> list[str]:
    return ["--set", f"coordinator.tiers={tree}"] if tree else []


def agreed(folder: Path, kind: str, tree: str = "") -> bytes:
    path = folder / f"{kind}.json"
    path.unlink(missing_ok=True)
    said = typed(["data", "agree", f"{kind}.toml", *in_tiers(tree)], folder)
    assert said.code == 0, said
    return path.read_bytes()


def fit(folder: Path, kind: str, to: Path, tree: str = "", code: int = 0) -> bytes:
    said = typed(["fit", f"{kind}.toml", "--to", str(to), *in_tiers(tree)], folder)
    assert said.code == code, said
    return (to / KINDS[kind]).read_bytes()


@pytest.mark.parametrize("kind", ["table1", *(pytest.param(kind, marks=pytest.mark.long) for kind in list(KINDS)[:-1])])
def test_the_files_are_those_of_a_run_without_tiers(kind: str, folder: Path, tmp_path: Path) -> None:
    table = agreed(folder, kind)
    file = fit(folder, kind, tmp_path / "flat")
    for name, tree in TREES.items():
        assert agreed(folder, kind, tree) == table, name
        assert fit(folder, kind, tmp_path / name, tree) == file, name


def test_a_leaf_with_too_few_sites_contributes_nothing_and_the_fit_is_of_the_others(
    folder: Path, tmp_path: Path
) -> None:
    agreed(folder, "glm")
    files = []
    for tree, unfit in ((OPEN, [1]), ("", [0, 1, 2])):
        copy = shutil.copytree(folder, tmp_path / f"of {len(unfit)}")
        for site in unfit:
            with (copy / f"site-{site}.csv").open("a") as file:
                file.write("fifty,new,3,1,no\n")
        files.append(fit(copy, "glm", copy / "fit", tree, code=4))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("[{clients=3,secure=false},{clients=4}]", "secure ones of the first tier's clients"),
        ('[{groups=["0-9","10,11"]},{clients=2,secure=false}]', "a sum over 2 reveals each"),
    ],
)
def test_sums_of_single_sites_and_of_two_are_refused(tree: str, words: str, folder: Path) -> None:
    agreed(folder, "glm")
    for command in (["fit", "glm.toml", "--to", "none"], ["data", "agree", "glm.toml", "--dry-run"]):
        said = typed([*command, *in_tiers(tree)], folder)
        assert said.code == 2 and words in said.errors[0], said


def test_given_sums_have_no_tiers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed(folder, "glm")
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="each of which is over all sites"):
        fit_by_sums(load_experiment("glm.toml", [f"coordinator.tiers={OPEN}"]), 0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("present", "there"),
    [(range(12), True), ((0, 1, 11), True), ((0, 1, 3, 4), False), ((3, 9, 10), True), ((), False)],
)
def test_a_tree_has_a_sum_where_a_leaf_has_enough(present: Iterable[int], there: bool, folder: Path) -> None:
    tree = tree_of(load_experiment(folder / "glm.toml", [f"coordinator.tiers={TREES['open root']}"]).coordinator)  # type: ignore[attr-defined]
    assert tree.sums_up(tree.root, set(present), 3) == there


# --- the same sites always --------------------------------------------------------------------------------------------


def test_a_root_that_sees_subtotals_adds_those_of_the_same_leaves_alone() -> None:
    exact = ExactSums((1000,))
    reading = SumReading(None, np.dtype(np.float64), below=dict.fromkeys((6, 7), ClientsBelow(3, 3)), onward=True)  # type: ignore[arg-type]
    summing = ClearSumming(exact, reading, 1)
    asked = Invite(0, "s", (empty(exact.length, np.float64),))

    def round_of(number: int, *leaves: int) -> ClearRound:
        one = ClearRound(summing, number, Draw((6, 7), 2), (6, 7), asked, {})
        for leaf in leaves:
            one.handle(leaf, Subtotal(number, "s", (words_of([10 * leaf, 3]),), 3))
        if len(leaves) < 2:
            one.expired()
        return one

    assert isinstance(round_of(0, 6, 7).result, LeafSum)
    assert round_of(1, 7).result == Abandoned(1, 2) and summing.members == {6, 7}
    assert isinstance(round_of(2, 6, 7).result, LeafSum)


def test_a_leaf_or_a_site_that_dies_in_a_fit_ends_it_without_other_sums(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed(folder, "glm")
    monkeypatch.chdir(folder)

    def died(node: int) -> Run:
        fault = f'faults=[{{kind="crash",peers=[{node}],start=0.3}}]'
        plan, task, _ = planned_fit(load_experiment("glm.toml", [f"coordinator.tiers={OPEN}", fault])).of_sites(
            range(SITES)
        )
        return simulate_plan(plan, task=task)

    with pytest.raises(
        TooFewPeersError, match=r"all sums of this run are of the same clients, and \[12\] of them left"
    ):
        died(12)
    run = died(0)
    facts = [row.value for row in run.rows if isinstance(row, EventRow) and row.name == "abandoned"]
    assert run.summary["status"] == "partial"
    assert {(one["contributions"], one["needed"]) for one in facts} == {(3, 4)}


def test_a_site_below_a_leaf_accepts_sums_over_more_sites_than_its_leaf_has_signed() -> None:
    flat, below = (AskedBefore(0, empty(1, np.float64), 3, whole=whole) for whole in (True, False))
    assert [bool(flat.miscounted(sites)) for sites in (2, 3, 9)] == [True, False, True]
    assert [bool(below.miscounted(sites)) for sites in (2, 3, 9)] == [True, False, False]
    assert "leaf coordinator has signed 3" in below.miscounted(2)


def test_the_plan_names_all_coordinators_of_a_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed(folder, "glm")
    monkeypatch.chdir(folder)
    plan = planned_fit(load_experiment("glm.toml", [f"coordinator.tiers={OPEN}"])).plan
    leaf, root = (line for line in plan.banner if "secure aggregation" in line)
    assert "a leaf coordinator sees sums of its clients alone, each over at least 3 of 3" in leaf
    assert "the root sees the sum of each of its 4 coordinators, over at least 3 clients" in root


# --- processes --------------------------------------------------------------------------------------------------------

PARTICIPANTS, TREE = 9, "[{clients=3},{clients=2,secure=false}]"
"""Sites 0 to 5, leaf coordinators 6 and 7, the root 8."""


def machines(folder: Path, where: Path, carrier: str) -> list[Path]:
    """Return a folder for each participant: a key, everybody's, the experiment, and a site's own table."""
    ports, keys = iter(free_ports(3) if carrier == "sockets" else ()), []
    found = [where / f"machine{node}" for node in range(PARTICIPANTS)]
    for node, machine in enumerate(found):
        machine.mkdir()
        for name in ("glm.toml", "glm.json", "test.csv", *([f"site-{node}.csv"] if node < 6 else [])):
            shutil.copy(folder / name, machine)
        listens = node >= 6 and carrier == "sockets"
        at = ["--address", f"tcp://127.0.0.1:{next(ports)}"] if listens else ["--client"]
        keys.append(typed(["keys", "new", "--id", str(node), *at], machine).out)
    for machine in found:
        (machine / "endpoints.toml").write_text("\n".join(keys))
    return found


def of_six(folder: Path, to: Path) -> Path:
    six = shutil.copytree(folder, to)
    (six / "glm.toml").write_text((six / "glm.toml").read_text().replace(f"clients = {SITES}", "clients = 6"))
    agreed(six, "glm")
    return six


FIT = ["fit", "glm.toml", "--endpoints", "endpoints.toml", "--out", "log", "--to", "fit"]


def test_an_approval_is_of_the_tree_and_of_the_site_s_own_leaf(folder: Path, tmp_path: Path) -> None:
    site = machines(of_six(folder, tmp_path / "here"), tmp_path, "folder")[0]
    known = ["--endpoints", "endpoints.toml", "--id", "0"]
    shown = typed(["plan", "show", "glm.toml", *in_tiers(TREE)], site).out
    plan = shown.partition("\nhash ")[2][:12]
    approved = typed(["plan", "approve", "glm.toml", *in_tiers(TREE), *known, "--plan", plan], site)
    assert approved.code == 0, approved
    others = '[{groups=["0,1,3","2,4,5"]},{clients=2,secure=false}]'
    said = typed([*FIT, "--id", "0", *in_tiers(others), "--links", "folder:."], site)
    assert said.code == 2 and "differs in experiment.coordinator.tiers" in said.errors[-1], said
    first, *blocks = (site / "endpoints.toml").read_text().split("[[peer]]")
    blocks[6] = typed(["keys", "new", "--id", "6", "--client", "--out", "new.key"], site).out.partition("[[peer]]")[2]
    (site / "endpoints.toml").write_text("[[peer]]".join([first, *blocks]))
    said = typed([*FIT, "--id", "0", *in_tiers(TREE), "--links", "folder:."], site)
    assert said.code == 2 and "was approved with other keys of the coordinator" in said.errors[-1], said


def check_released(where: Sequence[Path]) -> None:
    """The logs of a site, a leaf and the root are sound in a release, which may contain each site's records."""
    root = where[-1]
    (root / "use.txt").write_text("To help with tests, and to decide nothing else.\n")
    for node in (0, 6, 8):
        shutil.copytree(where[node] / "log", root / f"logs/{node}")
    made = typed(["release", "fit", "--logs", "logs", "--endpoints", "endpoints.toml", "--out", "fit.zip"], root)
    assert made.code == 0 and "20 of 20 sound" in made.out, made
    assert typed(["release", "verify", "fit.zip"], root).code == 0
    assert "may be in the sums of all 17 rounds" in typed(["release", "withdraw", "fit.zip", "--site", "3"], root).out


@pytest.mark.sockets
@pytest.mark.long  # 9 processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("carrier", ["sockets", "folder"])
def test_processes_in_tiers_write_the_file_of_the_simulation(carrier: str, folder: Path, tmp_path: Path) -> None:
    six = of_six(folder, tmp_path / "here")
    here = fit(six, "glm", tmp_path / "simulated")
    where = machines(six, tmp_path, carrier)
    (tmp_path / "shared").mkdir()
    words = [*FIT, *in_tiers(TREE)]
    words += ["--links", f"folder:{tmp_path / 'shared'}", "--poll", "0.05"] if carrier == "folder" else []
    running = [start([*words, *(["--id", str(node)] if node < 8 else [])], where[node]) for node in range(PARTICIPANTS)]
    said = [finish(one) for one in running]
    assert [one.code for one in said] == [0] * PARTICIPANTS, said
    assert {(one / "fit/fit.json").read_bytes() for one in where} == {here}
    check_released(where)
    log = (where[0] / "log/audit.jsonl").read_text()
    assert '"sites":"0-2"' in log.replace(" ", "") and "3-5" not in log
    for node in (0, 6, 8):
        checked = ["audit", "verify", f"machine{node}/log", "--endpoints", "machine0/endpoints.toml"]
        assert typed(checked, tmp_path).code == 0, node
