"""A sweep: which cells there are, that each is run once whoever is killed, what is chosen by trials, and its table."""

from __future__ import annotations

import json
import os
import pickletools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from commands import Output, in_process
from commands import start as start_command

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core.records import NetworkRow, read_rows
from fedgossip.drivers.clusters import meeting
from fedgossip.lab.sweeps import cells, worker
from fedgossip.lab.sweeps.cells import CellOutcome
from fedgossip.lab.sweeps.folder import TRIAL_SEEDS, SweepFolder, TunedKey, Tuning, tuning_of, write_shared
from fedgossip.lab.sweeps.grid import SweepCell, read_sweep
from fedgossip.lab.sweeps.page import write_page
from fedgossip.lab.sweeps.sweep import folder_of
from fedgossip.lab.sweeps.sweep import sweep as run_sweep
from fedgossip.lab.sweeps.table import paired_difference, rank_correlation, table_of

QUADRATIC = {"rounds": 5, "task": {"kind": "quadratic"}, "topology": {"graph": "ring", "n": 4}}
DIGITS = {
    "rounds": 3,
    "data": {"validation": 0.2},
    "train": {"device": "cpu", "local_steps": 1},
    "topology": {"graph": "ring", "n": 4},
}
GRID = {"topology.graph": ["ring", "complete"], "algorithm.name": ["dsgd", "gradient-tracking"]}

Run = Callable[..., Output]


def sweep_of(**keys: Any) -> dict[str, Any]:
    return {"name": "small", "base": QUADRATIC, "seeds": 2, "grid": GRID, **keys}


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: in_process(["sweep", *words], tmp_path, monkeypatch, capsys)


def written(folder: Path, **keys: Any) -> Path:
    import tomli_w

    path = folder / "sweep.toml"
    path.write_text(tomli_w.dumps(sweep_of(**keys)))
    return path


# --- the grid ---------------------------------------------------------------------------------------------------


def test_every_combination_has_every_seed_and_all_of_a_seed_are_paired() -> None:
    grid = read_sweep(sweep_of(seeds=3, skip={"algorithm.name=gradient-tracking": ["topology.graph=complete"]}))
    assert [dict(values)["topology.graph"] for values in grid.combinations] == ["ring", "ring", "complete"]
    cells = [SweepCell(values, (), seed) for values in grid.combinations for seed in grid.seeds]
    assert len({grid.hash(cell) for cell in cells}) == 9
    assert {grid.experiment(cell).seed for cell in cells} == {1, 2, 3}


def test_a_cell_is_named_by_what_its_result_follows_from(tmp_path: Path) -> None:
    """By the content of files, and not by their places; by no order of keys, and not by the run's name."""

    def name(**change: Any) -> str:
        grid = read_sweep({"base": {**QUADRATIC, **change}})
        return grid.hash(SweepCell((), (), 1))

    assert name() == name(name="other") == name(seed=5)
    assert len({name(), name(rounds=6), name(train={"lr": 0.2})}) == 3
    names = []
    for folder, content in (("a", "0 1\n1 2\n"), ("b", "0 1\n1 2\n"), ("c", "0 1\n1 2\n2 0\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "g.edges").write_text(content)
        names.append(name(topology={"graph": str(tmp_path / folder / "g.edges")}))
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"grids": {}}, "unknown key 'grids'"),
        ({"engine": "fast"}, "engine = 'fast' is not known"),
        ({"equal": "seconds"}, "arrays have no time"),
        ({"grid": {"simulation.latency": [0.1, 9.0]}}, "simulation.latency is swept, and"),
        ({"grid": {"algorithm.deadline": [0.1, 9.0]}}, 'engine = "stacked" ignores it'),
        ({"over": 0}, "over = 0"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]"),
        ({"grid": {"topology.graph": []}}, "grid.topology.graph has no values"),
        ({"grid": {"seed": [1, 2]}}, "seed in the grid"),
        ({"grid": {"train.rate": [1]}}, "unknown key 'train.rate'"),
        ({"skip": {"algorithm.name=d2": []}}, "'algorithm.name=d2' is not in the grid"),
        ({"skip": {"train.lr=1": []}}, "train.lr is no key of the grid"),
        ({"reference": {"topology.graph": "star"}}, "'topology.graph=star' is not in the grid"),
        ({"skip": {f"topology.graph={g}": ["algorithm.name=dsgd", "algorithm.name=gradient-tracking"]
                   for g in GRID["topology.graph"]}}, "[skip] leaves nothing"),
        ({"tune": {"train.lr": {"from": 1.0, "to": 0.1}}}, "to = 0.1 is below from = 1"),
        ({"tune": {"train.lr": {"from": 0.1, "to": 1.0, "factor": 1}}}, "factor = 1.0 is out of range"),
        ({"tune": {"train.lr": 3}}, "tune.train.lr"),
        ({"tune": {"by": "test_loss"}}, "by = 'test_loss' is not known"),
        ({"tune": {"by": "gap?better=less"}}, "Of another number write gap?better=lower"),
        ({"tune": {"by": "loss?better=lower"}}, "Write loss."),
        ({"tune": {"train.lr": [0.1, 0.2]}}, "keeps nothing for validation"),
        ({"base": {"rounds": 3}, "grid": {"train.lr": [0.1]}}, "no [topology]"),
        ({"base": "nowhere.toml"}, "nowhere.toml: no such file"),
    ],
)  # fmt: skip
def test_what_no_sweep_can_be_made_of_is_refused_in_one_line(
    said: Run, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    found = said(str(written(tmp_path, **change)), "--out", "s")
    assert found.code == 2 and told in found.err and len(found.errors) == 1, found.err
    assert not list(tmp_path.glob("s/cells/*"))


@pytest.mark.parametrize("backend", ["rey:auto", "local:4", "ray:", "slurm"])
def test_a_backend_that_there_is_not_is_refused(said: Run, tmp_path: Path, backend: str) -> None:
    assert f"backend {backend!r} is not known" in said(str(written(tmp_path)), "--backend", backend).err


def test_a_sweep_with_an_unknown_name_leaves_no_folder(said: Run, tmp_path: Path) -> None:
    sweep = written(tmp_path, grid={"algorithm.name": ["dsgd", "dsdg"]})
    assert "Did you mean 'dsgd'?" in said(str(sweep), "--out", "s").err and not (tmp_path / "s").exists()


def test_a_folder_of_something_else_is_left_as_it_is(said: Run, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").write_text("")
    assert "not empty, and no sweep" in said(str(written(tmp_path)), "--out", "s").err
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["mine.txt"]


# --- the cells --------------------------------------------------------------------------------------------------


def test_a_cell_is_the_run_that_it_would_be_alone_and_is_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []
    table = fedgossip.sweep(sweep_of(), tmp_path / "s", tell=lambda cell, _: ran.append(cell.label))
    assert len(ran) == 8 and table.done == 8
    row = next(row for row in table.rows if row["topology.graph"] == "complete" and row["seed"] == 2)
    alone = fedgossip.simulate(QUADRATIC, engine="stacked", seed=2, overrides=["topology.graph=complete"])
    assert row["digest"] == alone.digest and row["test_loss"] == alone.summary["test_loss"]
    again = fedgossip.sweep(sweep_of(seeds=3), tmp_path / "s", tell=lambda cell, _: ran.append(cell.label))
    assert len(ran) == 12 and all("seed=3" in told for told in ran[8:])
    assert [row for row in again.rows if row["seed"] < 3] == list(table.rows)
    assert not list((tmp_path / "s" / "claims").glob("*.2"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_fails_or_cannot_be_run_is_a_row(said: Run, tmp_path: Path) -> None:
    grid = {"algorithm.name": ["dsgd", "d2"], "task.eta": [0.1, 1e200]}
    found = said(str(written(tmp_path, grid=grid, seeds=1)), "--out", "s", "--json")
    assert found.code == 9
    rows = {row["combination"]: row for row in json.loads(found.out)["rows"]}
    status = {name: row["status"] for name, row in rows.items()}
    assert status["algorithm.name=d2 task.eta=0.1"] == "refused"
    assert status["algorithm.name=dsgd task.eta=0.1"] == "finished"
    assert status["algorithm.name=dsgd task.eta=1e+200"] == "failed"
    assert "its model is not finite" in rows["algorithm.name=dsgd task.eta=1e+200"]["error"]
    page = (tmp_path / "s" / "sweep.html").read_text()
    assert "its model is not finite" in page and "http://" not in page.replace("http://www.w3.org", "")
    again = said("sweep.toml", "--out", "s")
    assert "FAILED" not in again.err, "it is told, and not tried again"
    assert "FAILED" in said("sweep.toml", "--out", "s", "--retry").err


def test_a_dry_run_counts_and_runs_nothing(said: Run, tmp_path: Path) -> None:
    found = said(str(written(tmp_path, grid={"algorithm.name": ["dsgd", "d2"]})), "--dry-run", "--out", "s")
    assert found.code == 0 and "2 combinations, 2 seeds: 4 cells; 0 exist already" in found.out
    assert "refused  algorithm.name=d2: d2 needs weights" in found.out and not (tmp_path / "s").exists()


def test_no_cell_is_begun_after_the_limit(said: Run, tmp_path: Path) -> None:
    found = said(str(written(tmp_path)), "--limit-seconds", "0", "--out", "s")
    assert found.code == 9 and "0 of 8 cells are done; 8 remain" in found.out
    assert said("sweep.toml", "--out", "s").code == 0


def test_at_equal_bytes_each_is_told_at_the_last_round_that_all_can_pay(tmp_path: Path) -> None:
    base = {**QUADRATIC, "rounds": 12, "eval": {"every": 1}}
    table = fedgossip.sweep(sweep_of(base=base, equal="bytes", seeds=1), tmp_path / "s")
    rounds = {row["combination"]: row["rounds"] for row in table.rows}
    cheapest = "topology.graph=ring algorithm.name=dsgd"
    assert rounds[cheapest] == 12 and all(n < 12 for name, n in rounds.items() if name != cheapest)
    limit = next(row["bytes_sent"] for row in table.rows if row["combination"] == cheapest)
    assert all(row["bytes_sent"] <= limit for row in table.rows)


@pytest.mark.parametrize("equal", ["rounds", "bytes"])
def test_a_score_can_be_the_mean_over_the_last_evaluated_rounds(tmp_path: Path, equal: str) -> None:
    """So that no graph gains by where in its period it ends."""
    base = {**DIGITS, "rounds": 6, "eval": {"every": 1}, "model": {"source": "softmax"}}
    grid = {"topology.graph": ["ring", "base:1"]}
    table = fedgossip.sweep(sweep_of(base=base, grid=grid, equal=equal, over=3, seeds=1), tmp_path / "s")
    assert len(table.rows) == 2
    for row in table.rows:
        rows = read_rows(tmp_path / "s" / row["cell"] / "metrics.jsonl")
        mine = [one for one in rows if isinstance(one, NetworkRow) and one.round <= row["rounds"]]
        assert row["mean_peer"] == pytest.approx(fmean(one.score_mean_peer for one in mine[-3:]))
        assert row["mean_peer"] != mine[-1].score_mean_peer
    assert "mean over the last 3 evaluated rounds" in write_page(table).read_text()


# --- tuning -----------------------------------------------------------------------------------------------------


def chosen_by(
    score: Callable[[float], float | None], tuned: TunedKey, better: str = "higher"
) -> tuple[Any, list[float]]:
    """What is chosen where a value has this score, and the values that were tried, in order."""
    tried: list[float] = []

    def outcome(cell: SweepCell) -> CellOutcome | None:
        value = cell.tuned[0][1]
        if value not in tried:
            tried.append(value)
        found = score(value)
        if found is None:
            return CellOutcome("failed", None, "diverged")
        return CellOutcome("finished", {"score": {"mean_peer": found, "better": better}, "test_loss": found})

    state = Tuning({"train.lr": tuned}).choose((), outcome, lambda cell: pytest.fail(f"{cell} was read"))
    return (state.chosen[0][1] if state.chosen else state.failed), tried


def test_a_best_value_at_an_end_widens_the_grid_and_no_further_than_it_may() -> None:
    assert chosen_by(lambda x: -abs(x - 0.2), TunedKey(0.1, 0.4)) == (0.2, [0.1, 0.2, 0.4])
    assert chosen_by(lambda x: -abs(x - 1.6), TunedKey(0.1, 0.4))[0] == 1.6
    assert chosen_by(lambda x: x, TunedKey(0.1, 0.4, widen=2)) == (1.6, [0.1, 0.2, 0.4, 0.8, 1.6])
    assert chosen_by(lambda x: x, TunedKey(0.1, 0.4), "lower")[0] == 0.0125


def test_a_value_at_which_training_fails_is_not_chosen() -> None:
    assert chosen_by(lambda x: x if x < 0.3 else None, TunedKey(0.1, 0.4)) == (0.2, [0.1, 0.2, 0.4])
    assert chosen_by(lambda _: None, TunedKey(0.1, 0.4))[0] == "diverged"


def test_trials_have_their_own_seeds_and_are_measured_on_the_validation_set(tmp_path: Path) -> None:
    tune = {"train.lr": {"from": 0.1, "to": 0.2, "widen": 0}}
    sweep = sweep_of(base=DIGITS, grid={"topology.graph": ["ring"]}, tune=tune, seeds=2)
    ran: list[SweepCell] = []
    table = fedgossip.sweep(sweep, tmp_path / "s", tell=lambda cell, _: ran.append(cell))
    grid = read_sweep(sweep)
    assert [cell.trial for cell in ran] == [True, True, False, False]
    for cell in ran:
        assert (grid.experiment(cell).eval.on == "validation") == cell.trial == (cell.seed >= TRIAL_SEEDS)
    assert len(table.rows) == 2 and table.rows[0]["train.lr"] in (0.1, 0.2)
    folder = SweepFolder.opened(tmp_path / "s")
    scores = {cell.tuned[0][1]: folder.outcome(cell).summary["score"]["mean_peer"] for cell in ran if cell.trial}  # type: ignore[union-attr]
    assert table.rows[0]["train.lr"] == max(scores, key=lambda lr: scores[lr])


def test_a_combination_at_which_every_trial_fails_is_a_row_that_says_why(tmp_path: Path) -> None:
    tune = {"train.lr": [1e60, 1e65]}
    sweep = sweep_of(base=DIGITS, grid={"algorithm.name": ["dsgd"]}, tune=tune, seeds=1)
    (row,) = fedgossip.sweep(sweep, tmp_path / "s").rows
    assert row["status"] == "failed" and row["error"].startswith("no trial has a score: ")


def test_several_keys_are_tuned_together() -> None:
    tuning = tuning_of(read_sweep(sweep_of(base=DIGITS, tune={"train.lr": [0.1, 0.2], "train.momentum": [0.0, 0.9]})))
    state = tuning.choose((), lambda _: None, lambda cell: pytest.fail(f"{cell} was read"))
    assert state.chosen is None and len(state.trials) == 4


@pytest.mark.parametrize(("better", "best"), [("lower", 0.01), ("higher", 0.5)])
def test_a_value_is_chosen_by_any_recorded_number(tmp_path: Path, better: str, best: float) -> None:
    """The spread of the updates, which grows with the rate, and is in no summary."""
    tune = {"by": f"update_spread?better={better}", "train.lr": [0.01, 0.5]}
    file = sweep_of(base=DIGITS, grid={"topology.graph": ["ring"]}, tune=tune, seeds=1)
    assert [row["train.lr"] for row in run_sweep(file, tmp_path / "s").rows] == [best]
    with pytest.raises(ConfigError, match=r"tune\.by = 'updates': no trial has recorded it"):
        run_sweep(sweep_of(base=DIGITS, tune={**tune, "by": "updates?better=lower"}, seeds=1), tmp_path / "t")


# --- claims -----------------------------------------------------------------------------------------------------


def test_a_claim_is_one_process_s_until_it_lets_go(tmp_path: Path) -> None:
    first = cells.claim(tmp_path, "cell")
    assert first is not None and cells.claim(tmp_path, "cell") is None
    assert cells.holder(tmp_path, "cell") == (cells.socket.gethostname(), os.getpid())
    first.release()
    assert cells.holder(tmp_path, "cell") is None
    second = cells.claim(tmp_path, "cell")
    assert second is not None and (tmp_path / "cell.2").exists()
    second.release()
    assert cells.claim(tmp_path, "cell", lambda: True) is None, "its holder finished it a moment ago"
    assert not (tmp_path / "cell.3").exists()


def test_a_claim_of_another_machine_counts_until_its_heartbeat_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cells.claim(tmp_path, "cell")
    assert held is not None
    monkeypatch.setattr(cells.socket, "gethostname", lambda: "another")
    assert cells.claim(tmp_path, "cell") is None
    old = time.time() - cells.STALE - 5
    os.utime(tmp_path / "cell.1", (old, old))
    taken = cells.claim(tmp_path, "cell")
    assert taken is not None
    monkeypatch.setattr(held, "_beaten", time.monotonic() - cells.STALE)
    with pytest.raises(cells.ClaimLostError):
        held.check()
    taken.release()
    held.release()


@pytest.mark.sockets
def test_a_cell_of_a_process_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from fedgossip.lab.sweeps.cells import claim\n"
    code += "claim(Path(sys.argv[1]), 'cell'); print('has it', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "has it\n"
    assert cells.claim(tmp_path, "cell") is None
    process.kill()
    process.wait()
    process.stdout.close()
    taken = cells.claim(tmp_path, "cell")
    assert taken is not None
    taken.release()


# --- several processes ------------------------------------------------------------------------------------------


def many(folder: Path, seeds: int = 15) -> Path:
    return written(folder, base={**QUADRATIC, "rounds": 30}, seeds=seeds)


def digests(folder: Path) -> list[tuple[str, int, str]]:
    rows = table_of(SweepFolder.opened(folder)).rows
    return [(row["combination"], row["seed"], row["digest"]) for row in rows]


def killed_on_the_way(folder: Path, file: Path, after: int) -> None:
    """Run the sweep by two workers, and kill all processes of it when so many cells are done, or at a random moment."""
    process = start_command(["sweep", str(file), "-j", "2", "--out", str(folder)], folder.parent)
    while process.poll() is None and len(list(folder.glob("cells/*/summary.json"))) < after:
        time.sleep(0.01)
    time.sleep(random.Random(after).random() / 20)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.sockets
def test_a_sweep_that_is_killed_goes_on_without_repeating_a_cell(tmp_path: Path) -> None:
    file = many(tmp_path)
    killed_on_the_way(tmp_path / "s", file, after=20)
    there = {path.parent.name for path in (tmp_path / "s").glob("cells/*/summary.json")}
    there -= {path.parent.name for path in (tmp_path / "s").glob("cells/*/INCOMPLETE")}
    assert 20 <= len(there) < 60
    ran: list[str] = []
    grid = read_sweep(file)
    table = fedgossip.sweep(file, tmp_path / "s", tell=lambda cell, _: ran.append(grid.hash(cell)))
    assert table.done == 60 and not there & set(ran) and len(ran) == 60 - len(there)
    assert len(list((tmp_path / "s" / "claims").glob("*.2"))) <= 2, "those that were under way"
    fedgossip.sweep(file, tmp_path / "other")
    assert digests(tmp_path / "s") == digests(tmp_path / "other")


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.timeout(1800)
def test_a_sweep_that_is_killed_twenty_times_comes_to_the_same_table(tmp_path: Path) -> None:
    file = many(tmp_path)
    for after in range(1, 58, 3):
        killed_on_the_way(tmp_path / "s", file, after)
    fedgossip.sweep(file, tmp_path / "s")
    fedgossip.sweep(file, tmp_path / "other")
    assert digests(tmp_path / "s") == digests(tmp_path / "other")
    assert len(list((tmp_path / "s" / "claims").glob("*.2"))) <= 40


@pytest.mark.sockets
def test_two_schedulers_in_one_folder_run_each_cell_once(tmp_path: Path) -> None:
    file = many(tmp_path)
    both = [start_command(["sweep", str(file), "--out", "s", "--json"], tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({json.dumps(json.loads(one)["rows"]) for one in said}) == 1
    assert len(list((tmp_path / "s" / "claims").iterdir())) == 60, "and none was claimed again"


def test_files_that_two_schedulers_write_at_once_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes a part of its own name, so neither loses its part to the other."""
    replace, parts = Path.replace, []

    def replaced(part: Path, path: Path) -> Path:
        parts.append(part)
        if len(parts) == 1:
            write_shared(path, b"other")
        return replace(part, path)

    monkeypatch.setattr(Path, "replace", replaced)
    write_shared(tmp_path / "table.csv", b"ours")
    assert (tmp_path / "table.csv").read_bytes() == b"ours" and len(list(tmp_path.iterdir())) == 1
    assert parts[0] != parts[1]


def test_a_folder_that_another_scheduler_is_creating_is_a_sweep_of_its_own(tmp_path: Path) -> None:
    file = many(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".0123.part").write_bytes(b"")
    assert SweepFolder.create(tmp_path / "s", read_sweep(file)).wanted()


KILLER = """
import os, signal
import numpy as np

def data():
    if os.environ.get("FEDGOSSIP_OF_A_TEST") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return np.random.default_rng(0).normal(size=(60, 3)).astype("float32"), np.arange(60) % 2

def large():
    return np.zeros((1 << 33,), "float64"), np.arange(60) % 2
"""


@pytest.mark.sockets
def test_a_cell_that_ends_its_worker_is_a_row_and_the_others_are_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KILLER)
    base = {"rounds": 1, "model": {"source": "softmax"}, "train": {"device": "cpu"}, **TOPOLOGY}
    file = written(tmp_path, base=base, seeds=1, grid={"data.source": ["mine:large", "mine:data", "breast-cancer"]})
    words = ["sweep", str(file), "--out", "s", "--json", "--memory", "16"]
    environment = {**os.environ, "FEDGOSSIP_OF_A_TEST": "kill", "PYTHONPATH": str(tmp_path)}
    process = start_command(words, tmp_path, env=environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 9, err
    rows = {row["data.source"]: row for row in json.loads(out)["rows"]}
    assert rows["breast-cancer"]["status"] == "finished"
    assert rows["mine:data"]["status"] == rows["mine:large"]["status"] == "failed"
    assert "ended by SIGKILL, 2 times" in rows["mine:data"]["error"]
    assert "raised MemoryError" in rows["mine:large"]["error"]


TOPOLOGY = {"topology": {"graph": "complete", "n": 2}}


@pytest.mark.sockets
@pytest.mark.filterwarnings("ignore")  # of a library that is not ours
def test_jobs_of_submitit_come_to_the_same_table_and_pickle_nothing_of_ours(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    fedgossip.sweep(sweep_of(), tmp_path / "s", backend="slurm:local", jobs=2)
    fedgossip.sweep(sweep_of(), tmp_path / "other")
    assert digests(tmp_path / "s") == digests(tmp_path / "other")
    for pickled in (tmp_path / "s" / "slurm").glob("*_submitted.pkl"):
        named = [str(arg) for _, arg, _ in pickletools.genops(pickled.read_bytes()) if isinstance(arg, str)]
        assert [one for one in named if one.startswith("fedgossip")] == ["fedgossip.lab.sweeps.worker"]  # a word


def test_a_worker_that_sees_another_folder_of_that_name_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node whose disk is its own has such a folder too, from a sweep of before say: its probe is not that one."""
    grid = read_sweep(sweep_of())
    SweepFolder.create(tmp_path / "s", grid)
    probe = meeting.probe_in(tmp_path / "s")
    meeting.check_shared(tmp_path / "s", probe, 0.0)
    (tmp_path / "s" / probe).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "check_shared", partial(meeting.check_shared, seconds=0.0))
        words = worker.words_of("fedgossip.lab.sweeps.worker", tmp_path / "s", probe=probe)
        code = worker.main(words[1:], lambda *_: pytest.fail("it ran cells"))
    assert code == 2 and "does not see the folder" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.sockets
@pytest.mark.filterwarnings("ignore")
def test_commands_on_a_ray_cluster_come_to_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    fedgossip.sweep(sweep_of(), tmp_path / "s", backend="ray:local", jobs=2)
    fedgossip.sweep(sweep_of(), tmp_path / "other")
    assert digests(tmp_path / "s") == digests(tmp_path / "other")


def test_what_is_not_installed_is_told_with_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match="cluster needs") as refused:
            fedgossip.sweep(sweep_of(), tmp_path / name, backend="ray:auto" if name == "ray" else "slurm:gpu")
        assert "fedgossip[cluster]" in refused.value.advice


# --- what it says -----------------------------------------------------------------------------------------------


def test_the_interval_of_paired_differences_is_student_s() -> None:
    """mean ± t(0.975, 4) s / sqrt(5), t = 2.7764 (any table of the distribution)."""
    ours = {seed: 0.8 + 0.01 * seed**2 for seed in range(5)}
    theirs = {seed: 0.7 + 0.02 * seed for seed in range(5)}
    found = paired_difference(ours, theirs | {9: 1.0})
    differences = [ours[seed] - theirs[seed] for seed in range(5)]
    half = 2.776445 * stdev(differences) / 5**0.5
    assert found is not None and found.pairs == 5
    assert found.mean == pytest.approx(fmean(differences)) and found.student is not None
    assert found.student == pytest.approx((found.mean - half, found.mean + half), rel=1e-6)
    assert found.bootstrap and found.student[0] < found.bootstrap[0] < found.mean
    assert found.mean < found.bootstrap[1] < found.student[1]
    assert paired_difference({1: 0.5}, {1: 0.25}) is not None
    assert paired_difference({1: 0.5}, {2: 0.25}) is None


def test_rank_correlation_is_spearman_s() -> None:
    """1 - 6 sum d² / (n (n² - 1)): the ranks of y are 2, 1, 4, 3, 5, so sum d² = 4."""
    found = rank_correlation([1, 2, 3, 4, 5], [20.0, 10.0, 40.0, 30.0, 500.0])
    assert found is not None and found.rho == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert rank_correlation([1, 2], [1, 2]) is None and rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_a_graph_that_changes_has_no_spectral_gap(tmp_path: Path) -> None:
    """base:1 and one-peer-exponential had 1, and Spearman's rho compared it with the gaps of other graphs."""
    graphs = ["ring", "complete", "base:1", "one-peer-exponential"]
    found = fedgossip.sweep(sweep_of(grid={"topology.graph": graphs}, seeds=1), tmp_path / "s")
    gaps = [row["gap"] for row in found.rows]
    assert gaps[:2] == [pytest.approx(2 / 3), pytest.approx(1.0)] and gaps[2:] == [None, None]  # 1 - (1 + 2 cos 90)/3
    assert len(found.points("n_w", "test_loss")) == 4 and len(found.points("gap", "test_loss")) == 2


def test_the_report_of_a_sweep_has_a_page_and_the_parts_of_a_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedgossip.sweep(sweep_of(base=DIGITS), tmp_path / "s")
    found = in_process(["report", "s", "--paper", "paper"], tmp_path, monkeypatch, capsys)
    assert found.code == 0, found.err
    assert len(found.out.splitlines()) == 2 and found.out.splitlines()[1].startswith("Wrote paper: ")
    files = {path.name: path.read_bytes() for path in (tmp_path / "paper").iterdir()}
    drawn = {name for name, content in files.items() if content.startswith(b"%PDF")}
    assert {name for name in drawn if not name.startswith("curve-")} == {
        "heat.pdf", "differences.pdf", "by-gap.pdf", "by-n-w.pdf",
    }  # fmt: skip
    assert "curve-mean-peer-by-epoch.pdf" in drawn and "curve-loss-by-bytes.pdf" in drawn
    assert rb"\begin{tabular}{lcc}" in files["scores.tex"] and b"gradient-tracking" in files["scores.tex"]
    assert files["cells.csv"].count(b"\n") == 9 and b"fedgossip sweep" in files["COMMANDS.txt"]
    assert files["cells.csv"] == (tmp_path / "s" / "table.csv").read_bytes()
    page = (tmp_path / "s" / "sweep.html").read_text()
    for name in ("heat", "differences", "by-gap", "by-n-w"):
        assert f'<figure id="{name}">' in page
    assert "curve-mean-peer-by-seconds.pdf" not in drawn, "arrays have no time"


def test_the_page_of_a_sweep_keeps_its_name_when_it_is_written_again(tmp_path: Path) -> None:
    """Its folder has a copy, sweep.toml, whose name is not the sweep's."""
    import tomli_w

    (tmp_path / "graphs.toml").write_text(tomli_w.dumps({"base": QUADRATIC, "grid": GRID}))
    SweepFolder.create(tmp_path / "s", read_sweep(tmp_path / "graphs.toml"))
    assert SweepFolder.opened(tmp_path / "s").grid.name == "graphs"


def test_the_folder_of_a_sweep_has_the_name_of_its_file(tmp_path: Path) -> None:
    """Not that of the base, which many sweeps share."""
    import tomli_w

    keys = {"base": {**QUADRATIC, "name": "of-the-base"}, "grid": GRID}
    (tmp_path / "graphs.toml").write_text(tomli_w.dumps(keys))
    assert folder_of(read_sweep(tmp_path / "graphs.toml"), None) == Path("sweeps/graphs")


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["report", "nothing", "--paper", "out"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "nothing: there is no such folder" in said.err
