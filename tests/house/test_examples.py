"""Every example runs from anywhere, without arguments and without a warning, and what it prints is true."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import json
import math
import re
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedgossip
from fedgossip.base.vectors import digest
from fedgossip.cli import cli

pytestmark = pytest.mark.sockets

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(name: str, folder: Path) -> str:
    """Run an example in an empty folder and return its output."""
    words = [sys.executable, "-W", "error", EXAMPLES / name]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def printed_here(name: str, folder: Path) -> str:
    """Run an example in this process, where warnings are errors too: those that say nothing of their process."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return out.getvalue()


def loaded(name: str) -> ModuleType:
    """Import an example, whose name is no identifier, without running its main part."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / name)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(line: str) -> list[float]:
    """Return the numbers that stand alone in a line."""
    return [float(word) for word in line.split() if re.fullmatch(r"-?[\d.]+(e[-+]\d+)?", word)]


def test_averaging_keeps_the_mean_and_needs_no_torch(tmp_path: Path) -> None:
    out = printed("01_averaging_numbers.py", tmp_path)
    rows = [numbers(line) for line in out.splitlines() if re.match(r" +\d+ ", line)]
    assert [row[0] for row in rows] == [1, 2, 5, 10, 20, 40, 80]
    means = [float(np.mean(row[1:9])) for row in rows]
    assert max(means) - min(means) < 1e-4  # four digits are printed
    spreads = [row[10] for row in rows]
    slem = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / 8)  # a ring under Metropolis
    assert all(later <= earlier * slem for earlier, later in pairwise(spreads))
    drift = re.search(r"mean moved by (\S+) in", out)
    assert drift and float(drift[1]) < 1e-15
    assert "torch was not needed" in out


def test_the_predicted_contraction_is_measured(tmp_path: Path) -> None:
    out = printed_here("02_gap_predicted_and_measured.py", tmp_path)
    found = {line.split()[0]: numbers(line) for line in out.splitlines() if line and line[0].islower()}
    known = {  # closed forms under Metropolis; see docs/reference/numerics.md
        "ring": 1 / 3 + 2 / 3 * math.cos(2 * math.pi / 16),
        "path": 1 / 3 + 2 / 3 * math.cos(2 * math.pi / 32),
        "star": 1 - 1 / 16,
        "torus:4x4": 1 - 2 / 5 * (1 - math.cos(2 * math.pi / 4)),
        "hypercube": 3 / 5,
    }
    for graph, slem in known.items():
        gap, forecast, measured = found[graph]
        assert (gap, forecast, measured) == pytest.approx((1 - slem, slem, slem), abs=2e-6), graph
    for placement, settled in (("smooth", 0.42462948), ("alternating", 0.00065746)):
        _, formula, measured = found[placement]
        assert (formula, measured) == pytest.approx((settled, settled), abs=1e-8)
    assert "646 times apart" in out


@pytest.mark.long
def test_n_w_and_not_the_gap_ranks_the_ring_above_the_star(tmp_path: Path) -> None:
    out = printed("03_gossip_learning.py", tmp_path)
    found = {line.split()[0]: numbers(line) for line in out.splitlines()[1:] if line and line[0].islower()}
    gap, n_w, mean_peer, worst_peer = 0, 1, 3, 4
    assert found["star"][gap] > found["ring"][gap]
    for column in (n_w, mean_peer, worst_peer):
        assert found["star"][column] < found["ring"][column] < found["hypercube"][column] <= found["complete"][column]
    assert found["complete"][2] == found["complete"][worst_peer] > 0.85


def test_three_engines_print_one_digest(tmp_path: Path) -> None:
    out = printed_here("04_reference_twin.py", tmp_path)
    assert len(out.splitlines()) == 3
    assert len(set(re.findall(r"[0-9a-f]{64}", out))) == 1


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "averaging", "dim": 1000},
        {"kind": "averaging", "dim": 7, "dtype": "float64"},
        {"kind": "quadratic", "dim": 33, "sigma": 1.0},
    ],
    ids=lambda task: f"{task['kind']}-{task.get('dtype', 'float32')}",
)
@pytest.mark.parametrize("graph", ["star", "directed-exponential", "erdos-renyi:0.4"])
def test_the_plain_loops_equal_both_engines(graph: str, task: dict[str, object]) -> None:
    twin = loaded("04_reference_twin.py").reference_twin
    experiment = fedgossip.load_experiment({"rounds": 9, "topology": {"graph": graph, "n": 11}, "task": task})
    expected = digest(twin(experiment))
    assert fedgossip.simulate(experiment).digest == expected
    assert fedgossip.simulate(experiment, engine="stacked").digest == expected


@pytest.mark.long
def test_processes_over_zeromq_end_with_the_simulated_bits(tmp_path: Path) -> None:
    out = printed("05_peers_over_zeromq.py", tmp_path)
    digests = re.findall(r"sha256 ([0-9a-f]{64})", out)
    assert len(digests) == 2
    assert digests[0] == digests[1]


@pytest.mark.long
def test_peers_that_know_one_piece_of_the_spirals_each_learn_the_whole_on_a_ring(tmp_path: Path) -> None:
    out = printed("06_your_own_model_and_data.py", tmp_path)
    worst = [float(found) for found in re.findall(r"round 60 .* worst ([\d.]+)", out)]
    assert len(worst) == 2
    alone, ring = worst
    assert alone < 0.5
    assert ring > alone + 0.15


def test_the_experiment_file_runs_as_its_first_lines_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = EXAMPLES / "07_experiment.toml"
    monkeypatch.chdir(tmp_path)
    assert cli(["run", str(experiment), "--json", "--no-report"], standalone_mode=False) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "finished"
    assert summary["score"]["averaged"] > 0.8
    # the virtual network decides when things happen, never what comes out
    assert summary["digest"] == fedgossip.simulate(experiment, engine="stacked").digest


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text()
    assert all(path.name in tested for path in EXAMPLES.glob("0*"))


@pytest.mark.long
def test_the_mean_stays_whatever_is_lost_and_pairs_do_not_wait_for_the_slow_one(tmp_path: Path) -> None:
    text = printed("08_bad_networks.py", tmp_path)
    drifts = [float(word) for word in re.findall(r"\d+e-\d+", text)]
    assert len(drifts) == 8 and max(drifts) < 1e-12
    assert float(re.findall(r"([\d.]+) times sooner", text)[0]) > 3


@pytest.mark.anywhere
def test_hospitals_learn_by_sums_and_bear_two_that_vanish(tmp_path: Path) -> None:
    out = printed_here("09_hospitals.py", tmp_path)
    secure, plain = (float(found) for found in re.findall(r"([\d.]+) % (?:by|in)", out))
    assert secure > 85 and abs(secure - plain) < 0.5
    apart = re.search(r"differ by (\S+) at most", out)
    assert apart and 0 < float(apart[1]) < 1e-3
    sites = [int(count) for count in re.search(r"\[([\d, ]+)\]", out)[1].split(",")]  # type: ignore[index]
    assert sites[0] == 8 and sites[-1] == 6 and len(sites) == 15


@pytest.mark.long
def test_ten_graphs_keep_to_their_forecast(tmp_path: Path) -> None:
    out = printed("10_forecast_then_run.py", tmp_path)
    kept = [float(share) for share in re.findall(r"([\d.]+) %", out)]
    assert len(kept) == 10 and min(kept) >= 90 and sum(kept) / 10 >= 95
    assert (tmp_path / "forecast_then_run.png").stat().st_size > 10_000


def added_lines(name: str) -> list[str]:
    """What the joined loop has beside the bare one, without empty lines; nothing may be missing in it."""
    bare, joined = ((EXAMPLES / "loops" / f"{name}{end}.py").read_text().splitlines() for end in ("_bare", ""))
    marks = [line for line in difflib.ndiff(bare, joined) if line[:2] in ("+ ", "- ") and line[2:].strip()]
    assert not [line for line in marks if line.startswith("-")]
    return marks


LOOPS = {  # what each needs, and how many lines it may have more; of trainers one beside the import
    "regression": (None, 5),
    "characters": (None, 5),
    "lora": ("peft", 5),
    "prepared_by_accelerate": ("accelerate", 5),
    "trainer_of_hugging_face": ("transformers", 2),
    "trainer_of_lightning": ("lightning", 2),
}


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "regression" else pytest.mark.long) for name in LOOPS]
)
def test_a_loop_of_ones_own_takes_part_by_five_lines_more_and_a_trainer_by_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed, lines = LOOPS[name]
    assert len(added_lines(name)) <= lines
    if needed:
        pytest.importorskip(needed)
    script = str(EXAMPLES / "loops" / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    words = ["launch", "--simulate", "-n", "3", "--json", "--out", "run", script]
    assert cli(words, standalone_mode=False) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "finished" and summary["digest"] and summary["rounds"] >= 4


def test_every_loop_is_counted() -> None:
    found = {path.stem.removesuffix("_bare") for path in (EXAMPLES / "loops").glob("*.py")}
    assert found == LOOPS.keys() | {"lora_llm"}


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.long
def test_four_sites_adapt_a_language_model_simulated_and_launched_with_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny model; each site's record has its losses before, alone and together."""
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    digests = set()
    for how in (["--simulate"], []):
        words = ["launch", *how, "-n", "4", "--json", "--no-report", "--out", f"run{len(how)}"]
        assert cli([*words, str(EXAMPLES / "loops" / "lora_llm.py"), "tiny"], standalone_mode=False) == 0
        digests.add(json.loads(capsys.readouterr().out)["digest"])
    rows = [json.loads(line) for line in (tmp_path / "run1" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["logged"] for row in rows if "loss_alone" in row.get("logged", {})]
    assert len(digests) == 1 and len(losses) == 4
    assert all(one["loss_alone"] < one["loss_before"] > one["loss_together"] for one in losses)


@pytest.mark.filterwarnings("ignore")  # of libraries that are not ours
@pytest.mark.long
def test_of_the_adapted_example_the_adapters_travel_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    words = ["launch", "--simulate", "-n", "2", "--json", "--no-report", str(EXAMPLES / "loops" / "lora.py")]
    assert cli(words, standalone_mode=False) == 0
    sides = [(64, 3 * 64), (64, 64), (4 * 64, 64)]  # of what attends, what follows, and what follows the hidden layer
    assert json.loads(capsys.readouterr().out)["parameters"] == 2 * 4 * sum(a + b for a, b in sides)


@pytest.mark.long
@pytest.mark.data
def test_four_loops_learn_the_plays_as_well_as_one_that_has_them_all(real_data: Path, tmp_path: Path) -> None:
    sys.path.insert(0, str(EXAMPLES.parent / "benchmarks"))
    try:
        from characters import alone, together
    finally:
        del sys.path[0]
    plays = real_data / "shakespeare" / "tinyshakespeare.txt"
    assert together(plays, 300, str(tmp_path)) < 1.03 * alone(plays, 300, str(tmp_path))


@pytest.mark.long
def test_the_bare_loops_run_as_they_are(tmp_path: Path) -> None:
    assert numbers(printed("loops/regression_bare.py", tmp_path))[0] > 0.4
    assert numbers(printed("loops/characters_bare.py", tmp_path))[0] < 4.5


def test_a_rule_holds_where_the_sum_falls_to_liars() -> None:
    attackers = loaded("10_attackers.py")
    assert attackers.accuracy("regular:6", "sign-flip", "linear", 5) < 0.5
    assert attackers.accuracy("regular:6", "sign-flip", "geometric-median", 5) > 0.5


@pytest.mark.long
def test_the_table_of_attackers_has_a_line_per_rule(tmp_path: Path) -> None:
    lines = printed("10_attackers.py", tmp_path).splitlines()
    found = {line.split()[0]: [float(word.rstrip("%")) for word in line.split()[1:]] for line in lines[1:7]}
    assert list(found) == list(loaded("10_attackers.py").RULES) and all(len(row) == 7 for row in found.values())
    quiet, flipped = found["linear"][:2]
    assert quiet > 70 and flipped < 50, "the sum learns, and falls to the first attack"
    assert found["geometric-median"][1] > 60


def test_rows_of_a_table_cost_what_their_batches_touch(tmp_path: Path) -> None:
    out = printed_here("rows_of_a_table.py", tmp_path)
    errors = [float(error) for error in re.findall(r"squared error ([\d.]+)", out)]
    assert errors[0] > 1 and errors[-1] < 0.1 and errors == sorted(errors, reverse=True)
    sent = re.search(r"sends (\d+) kB a round; the whole table is 64 MB", out)
    assert sent and int(sent[1]) * 1000 < 0.001 * 64e6
    (gain,) = gains(out)
    assert gain > 0.8


def test_hospitals_find_the_hazard_ratios_that_were_drawn(tmp_path: Path) -> None:
    out = printed("hazard_ratios.py", tmp_path)
    ten, old = (float(one) for one in re.findall(r"([\d.]+) times", out))
    assert 1.35 < ten < 1.6 and 1.7 < old < 2.3
    assert "1000 records of 5 of 5 sites" in out


def test_a_fit_over_queues_is_that_of_the_command(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        cli.main(["init", "hospitals"], standalone_mode=False)
    folder = tmp_path / "hospitals"
    assert printed_here("fit_over_queues.py", folder).startswith("(intercept): -0.1093 +- 0.1621\nage: 0.95")
    words = [
        f"--set={word}" for word in ("model.source=glm:logistic", "data.scale=federated", "data.categories=agreed")
    ]
    with contextlib.chdir(folder):
        assert cli.main(["fit", "experiment.toml", *words, "--to", "fit"], standalone_mode=False) == 0
    assert (folder / "fit" / "fit.json").read_bytes() == (folder / "fit.json").read_bytes()
    assert len((EXAMPLES / "fit_over_queues.py").read_text().splitlines()) <= 40


@pytest.mark.long  # three processes that import torch
def test_a_process_group_sums_by_secure_sums(tmp_path: Path) -> None:
    lines = printed("sum_over_gloo.py", tmp_path).splitlines()
    sums = ["[60. 60. 60. 60.]", "[120. 120. 120. 120.]"]  # of 10, 20 and 30, and of their doubles
    assert sorted(lines) == [f"rank {rank}, round {k}: {sums[k - 1]}" for rank in range(3) for k in (1, 2)]


def test_a_tenth_of_what_has_changed_is_enough_and_a_tenth_of_models_is_not(tmp_path: Path) -> None:
    changed, parts = [numbers(line) for line in printed_here("fewer_bytes.py", tmp_path).splitlines()]
    assert changed[0] < 1e-6 and parts[0] > 1
    assert changed[1] < 0.15 * changed[2]


@pytest.mark.anywhere
def test_long_local_work_sends_a_twentieth_and_fragments_a_quarter_of_that_at_a_time(tmp_path: Path) -> None:
    """A fragment ends with a row, so the largest has up to half a row of 64 elements more than a quarter."""
    out = printed_here("11_outer.py", tmp_path).splitlines()[1:]
    every, long, parts, ring = [numbers(line.partition("  ")[2].replace("%", "")) for line in out]
    assert every[1] == pytest.approx(20 * long[1], rel=1e-4) and long[2] == pytest.approx(every[2], rel=1e-4)
    assert parts[1] == pytest.approx(long[1], rel=0.01) and parts[2] == pytest.approx(long[2] / 4, rel=0.07)
    assert ring[1] < long[1] / 20
    assert min(one[0] for one in (every, long, parts, ring)) > 85


def test_personal_models_serve_most_clients_better_than_the_shared_one_and_than_one_alone(tmp_path: Path) -> None:
    *scores, last = printed_here("personal_models.py", tmp_path).splitlines()
    means = {line.split()[0]: numbers(line)[0] for line in scores}
    assert means["personal"] > max(means["shared"], means["alone"]) + 0.03
    behind = [int(word.strip(",:")) for word in last.split() if word.strip(",:").isdigit()]
    assert behind[2] == 20 and max(behind[:2]) < 10


def test_what_is_certified_is_as_near_as_it_says_and_the_lasso_leaves_weights_out(tmp_path: Path) -> None:
    pattern = r"(\d+) rounds: at most (\S+) above the best; (\d+) of (\d+) weights"
    logistic, lasso = (re.search(pattern, line) for line in printed_here("certified.py", tmp_path).splitlines())
    assert logistic and lasso
    for found in (logistic, lasso):
        assert int(found[1]) < 300 and 0 <= float(found[2]) <= 1e-3
    assert logistic[3] == logistic[4] and int(lasso[3]) < int(lasso[4])


def gains(out: str) -> list[float]:
    """Return the gains over alone that an example prints, as shares of 1."""
    found = re.findall(r"gain over alone ([+-]?[\d.]+)(%?)", out)
    return [float(gain) / (100 if percent else 1) for gain, percent in found]


def test_estimators_without_torch_gain_by_a_ring(tmp_path: Path) -> None:
    linear, centres = gains(printed_here("scikit_learn.py", tmp_path))
    assert min(linear, centres) > 0.08


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "least"),
    [("sensors.py", 0.2), ("graph_network.py", 0.02), ("segmentation.py", 0.03), ("reviews.py", 0.15)],
)
def test_a_network_of_ones_own_gains_by_a_ring(name: str, least: float, tmp_path: Path) -> None:
    (gain,) = gains(printed(name, tmp_path))
    assert gain > least


def test_the_examples_by_field_are_short() -> None:
    for name in ("sensors", "graph_network", "segmentation", "scikit_learn", "reviews", "rows_of_a_table"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80, name


@pytest.mark.long
def test_relayed_models_do_better_on_a_path_of_unlike_peers_than_chance_would(tmp_path: Path) -> None:
    line = printed("relay_on_a_tree.py", tmp_path).splitlines()[-1]
    found = re.search(r"\+(\S+)   95 %: \+(\S+) to \+(\S+)$", line)
    assert found and 0 < float(found[2]) < float(found[1]) < float(found[3])
