"""What a command loads before it answers, and bundled data read without the library that brings them."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from fedgossip.base.errors import ConfigError
from fedgossip.base.kernels import uncollected
from fedgossip.cli import cli
from fedgossip.data import bundled
from fedgossip.learning import untrained

SMALL = """
rounds = 2
topology = { graph = "regular:3", n = 8 }
data = { source = "digits" }
model = { source = "cnn:small-bn" }
"""

AVERAGING = """
rounds = 2
topology = { graph = "ring", n = 4 }
task = { kind = "averaging" }
"""

PRIVATE = """
rounds = 2
data = { source = "digits" }
model = { source = "softmax" }
coordinator = { clients = 4, privacy = { unit = "UNIT", noise = 8.0, clip = 1.0, max_epsilon = 20.0 } }
"""

TESTED = """
rounds = 2
data = { source = "digits", local_test = 0.2 }
model = { source = "softmax" }
coordinator = { clients = 4 }
"""

WITHOUT_TORCH = [
    "doctor",
    "topology list",
    "topology show ring --n 8",
    "topology audit ring --n 8",
    "explain train.lr",
    "explain run",
    "forecast small.toml --level graph",
    "forecast averaging.toml --level probe",
    "plan show client.toml",
    "plan show record.toml",
    "privacy plan client.toml",
    "privacy spent",
    "privacy ledger",
    "run small.toml --dry-run",
    "run tested.toml --dry-run",
    "run averaging.toml --no-report --out new",
    "runs .",
    "report new",
    "watch new --once",
]
"""Commands that compute no model.  One process types them all, for what one has loaded stays."""

TYPED = """
import sys
from fedgossip.cli import cli
for words in sys.argv[1:]:
    code = cli(words.split(), standalone_mode=False)
    print("typed", code or 0, words, *sorted({"torch", "sklearn", "scipy.stats"} & set(sys.modules)))
import fedgossip.drivers.loops.launching  # its loops train, a launcher waits for them
print("launching", *sorted({"torch"} & set(sys.modules)))
"""


@pytest.mark.sockets
def test_commands_that_compute_no_model_load_no_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    gpu = bool(torch.version.cuda or torch.version.hip)
    wanted = [words for words in WITHOUT_TORCH if not (gpu and words == "doctor")]  # a torch for GPUs is asked for them
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "averaging.toml").write_text(AVERAGING)
    for unit in ("client", "record"):
        (tmp_path / f"{unit}.toml").write_text(PRIVATE.replace("UNIT", unit))
    (tmp_path / "tested.toml").write_text(TESTED)
    command = [sys.executable, "-c", TYPED, *wanted]
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    typed = [line for line in said.stdout.splitlines() if line.startswith("typed ")]
    assert typed == [f"typed 0 {words}" for words in wanted], said.stdout[-2000:] + said.stderr[-2000:]
    assert said.stdout.endswith("launching\n")


def test_bundled_data_are_those_of_the_library() -> None:
    x, y = datasets.load_digits(return_X_y=True)
    found = bundled.digits()
    assert np.array_equal(found.x, (x / 16).astype(np.float32)) and np.array_equal(found.y, y)
    x, y = datasets.load_breast_cancer(return_X_y=True)
    found = bundled.breast_cancer()
    assert np.array_equal(found.x, x) and np.array_equal(found.y, y)
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    found = bundled.diabetes()
    assert np.array_equal(found.x, x) and np.array_equal(found.y[:, 0], y)


def test_data_that_are_not_there_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"digits\.csv\.gz") as refused:
        bundled.digits()
    assert "pip install" in refused.value.advice


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ('topology = { graph = "ring", n = 4 }', ""),
        ("coordinator = { clients = 4 }", ""),
        ("coordinator = { clients = 4 }", ", local_test = 0.2"),
        ('parallel = { method = "ring", workers = 4, codec = "powersgd:2" }', ""),
        ('coordinator = { clients = 4, privacy = { unit = "record", noise = 8.0 } }', ""),
    ],
)
def test_a_dry_run_says_without_torch_what_it_says_with_it(
    kind: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(f"""
rounds = 2
{kind}
data = {{ source = "digits"{data} }}
model = {{ source = "mlp:64-32-10" }}
train = {{ device = "cpu" }}
""")
    said = []
    for _ in range(2):
        assert not cli(["run", str(tmp_path / "e.toml"), "--dry-run", "--json"], standalone_mode=False)
        said.append(capsys.readouterr().out)
        monkeypatch.setattr(untrained, "untrained", lambda *_, **__: None)  # as for a model that only its module knows
    assert said[0] == said[1]


@pytest.mark.parametrize("on", [True, False])
def test_imports_without_the_collector_leave_it_as_it_was(monkeypatch: pytest.MonkeyPatch, *, on: bool) -> None:
    collecting = [on]
    monkeypatch.setattr(gc, "isenabled", lambda: collecting[-1])
    monkeypatch.setattr(gc, "disable", lambda: collecting.append(False))
    monkeypatch.setattr(gc, "enable", lambda: collecting.append(True))
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled() is on


SCANNED = """
import gc
from fedgossip.base.kernels import uncollected
with uncollected():
    import fedgossip.core.task
    imported = [[] for _ in range(1000)]
young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
print(len(young & set(map(id, imported))), gc.get_freeze_count(), gc.isenabled())
"""


@pytest.mark.sockets
def test_what_was_imported_without_the_collector_is_scanned_by_full_collections_alone() -> None:
    scanned = subprocess.run([sys.executable, "-c", SCANNED], capture_output=True, text=True, check=True)
    assert scanned.stdout.split() == ["0", "0", "True"]


# --- the processes of a local run ------------------------------------------------------------------------------------

SPAWNED = """
import subprocess, sys
started = []
class Told(subprocess.Popen):
    def __init__(self, *given, **named):
        print("drivers imported" if "fedgossip.drivers.local" in sys.modules else "drivers not imported")
        super().__init__(*given, **named)
        started.append(self)
subprocess.Popen = Told
from fedgossip.cli import main
try:
    main()
finally:
    print("started", len(started), "running", sum(one.returncode is None for one in started))
"""


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["averaging.toml", "--no-report"], 0, ["drivers not imported", "started 1 running 0"]),
        (["averaging.toml", "--set", "topology.graph=torus:4x4"], 2, ["drivers not imported", "started 1 running 0"]),
        (["averaging.toml", "--set", "rounds=none"], 2, ["started 0 running 0"]),
        (["averaging.toml", "--dry-run"], 0, ["started 0 running 0"]),
    ],
    ids=["run", "refused by its graph", "refused by its file", "dry run"],
)
def test_the_parent_of_peers_starts_before_the_drivers_are_imported_and_ends_with_the_command(
    words: list[str], code: int, told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "averaging.toml").write_text(AVERAGING)
    line = [sys.executable, "-c", SPAWNED, "run", *words, "--on", "local", "--out", "new"]
    typed = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert typed.returncode == code, typed.stderr
    assert [one for one in typed.stdout.splitlines() if "imported" in one or one.startswith("started")] == told
    assert (tmp_path / "new").exists() == ("--no-report" in words)


# --- the end of a command --------------------------------------------------------------------------------------------

ENDING = """
import atexit, os, signal, sys, threading
from fedgossip.__main__ import command

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Last:
    def __del__(self):
        interrupt()

signal.signal(signal.SIGINT, signal.default_int_handler)
how, sys.argv[1:] = sys.argv[1], sys.argv[2:]
main = threading.main_thread()
if how == "thread":
    threading.Thread(target=lambda: (main.join(), interrupt())).start()
elif how == "exit":
    import fedgossip.cli
    fedgossip.cli.cli.callback = lambda: atexit.register(interrupt)
else:
    sys.modules["last"] = Last()
command()
"""


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("how", "words", "code"),
    [
        ("thread", ["explain", "train.lr"], 0),
        ("exit", ["explain", "nothing at all"], 2),
        ("modules", ["explain", "train.lr"], 0),
    ],
)
def test_ctrl_c_while_the_interpreter_ends_changes_no_exit_code_and_says_nothing(
    how: str, words: list[str], code: int
) -> None:
    line = [sys.executable, "-c", ENDING, how, *words]
    typed = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    plain = subprocess.run(
        [sys.executable, "-m", "fedgossip", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert (typed.returncode, typed.stdout, typed.stderr) == (code, plain.stdout, plain.stderr)


@pytest.mark.parametrize("engine", ["sim", "local"])
@pytest.mark.sockets
def test_ctrl_c_while_the_results_are_shown_says_that_the_run_is_over(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "averaging.toml").write_text(AVERAGING)
    monkeypatch.chdir(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgossip.cli.run.run.show", interrupted)
    words = ["run", "averaging.toml", "--no-report", "--on", engine, "--out", "new"]
    assert cli(words, standalone_mode=False) == 130
    assert "error: stopped when the run was over: all of it is in new" in capsys.readouterr().err
