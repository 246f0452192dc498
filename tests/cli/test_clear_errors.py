"""What is wrong in somebody's own file is said in one line that names it, and one of what to write."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import in_process, typed

import fedgossip
from fedgossip.base.errors import ConfigError, NotWrittenError, TrainingError
from fedgossip.base.limits import CalledWith, check_call
from fedgossip.cli import _explain_disk_error, _run
from fedgossip.data import custom, data, partitions
from fedgossip.data.tables import read_csv
from fedgossip.experiment import load_experiment
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret, written
from fedgossip.plans import compose


def refused(text: str, folder: Path) -> ConfigError:
    path = folder / "e.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_experiment(path)
    return error.value


RING = '[topology]\ngraph = "ring"\nn = 4\n'


@pytest.mark.parametrize(
    ("text", "said", "advice"),
    [
        (f"{RING}[data]\ntest = 0.2\n[train]\n[data]\n", "the table 'data' is there twice, in line 7 again", "[data]"),
        (f"data.test = 0.2\n{RING}[data]\nsource = 'digits'\n", "the table 'data' is there twice", "data.key = ..."),
        (
            f"{RING}[data.partition]\n[data.partition]\n",
            "the table 'data.partition' is there twice",
            "[data.partition]",
        ),
        (f"{RING}[train]\nlr = 0.1\nbatch_size = 2\nlr = 0.2\n", "'lr' is given twice, in line 7 again", "Take one"),
        (f"{RING}x = \n", "not TOML", "Strings need quotes"),
        (f'{RING}[data]\npartition = "dirichlet"\n', "data.partition is a table", 'kind = "dirichlet", alpha = 0.3 }'),
        (f'{RING}[data]\npartition = "iid"\n', "data.partition is a table", '{ kind = "iid" }'),
        ('topology = "ring"\n', "topology is a table", 'topology = { graph = "ring" }'),
        (f'{RING}[train]\nlr = "fast"\n', "train.lr: expected `float`, got `str`", "a number, without quotes"),
        (f'rounds = "3"\n{RING}', "rounds: expected `int`, got `str`", "a whole number, without quotes"),
        (f"rounds = 3.5\n{RING}", "rounds: expected `int`, got `float`", "a whole number"),
        (f"name = 3\n{RING}", "name: expected `str`, got `int`", "text in quotes"),
        ("topology = [1, 2]\n", "topology: expected `object`, got `array`", "Write a table"),
        (
            f'{RING}[[faults]]\nkind = "crash"\nevery = 0\n',
            "faults[0].every: expected",
            "explain faults.every",
        ),
        (
            f'{RING}[task]\nkind = "quadratic"\n[data]\nlocal_test = 0.2\n',
            "data.local_test of quadratic",
            "Leave it out",
        ),
        (f'{RING}[task]\nkind = "averaging"\n[model]\nsource = "cnn:small"\n', "model.source of averaging", "Leave it"),
        (f"rounds = {10**12}\n{RING}", "is out of range", "at most 2,147,483,647"),
        (f"rounds = {10**23}\n{RING}", "a whole number of more than 64 bits", "at most 64 bits"),
        (f"{RING}[train]\nlr = inf\n", "lr = inf is out of range", "a finite number"),
    ],
)
def test_what_is_written_otherwise_than_meant_is_named(text: str, said: str, advice: str, tmp_path: Path) -> None:
    error = refused(text, tmp_path)
    assert said in str(error) and advice in error.advice, (str(error), error.advice)


def test_a_mistyped_experiment_is_answered_by_those_beside_it(tmp_path: Path) -> None:
    for wrong, advice in (("experiment.tml", "init digits"), ("experiment.tml", "Did you mean 'experiment.toml'?")):
        with pytest.raises(ConfigError, match="no such file") as refused:
            load_experiment(tmp_path / wrong)
        assert advice in refused.value.advice
        (tmp_path / "experiment.toml").write_text(RING)
    with pytest.raises(ConfigError, match="a directory") as refused:
        load_experiment(tmp_path)
    assert "experiment.toml" in refused.value.advice


def test_a_command_without_its_experiment_names_those_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = in_process(["host", "--script", "train.py"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "init own-loop" in said.err and "See fedgossip host --help" in said.err
    (tmp_path / "lan.toml").write_text(RING)
    (tmp_path / "train.py").write_text("")
    for command in (["host"], ["run"], ["sweep"]):
        assert "Here: lan.toml. See" in in_process(command, tmp_path, monkeypatch, capsys).err, command
    assert "Here: train.py. See" in in_process(["launch"], tmp_path, monkeypatch, capsys).err


def test_an_option_without_its_value_names_the_help_of_its_command(tmp_path: Path) -> None:
    assert "See fedgossip run --help" in typed(["run", "experiment.toml", "--out"], tmp_path).err


def test_a_script_in_place_of_an_experiment_is_named_with_the_command_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text("import fedgossip\n")
    with pytest.raises(ConfigError, match="a script, no experiment file") as refused:
        load_experiment(tmp_path / "my train.py")
    assert f"fedgossip launch -n 2 '{tmp_path}/my train.py'" in refused.value.advice


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_not_be_written_is_not_told_to_be_full(reason: int) -> None:
    error = NotWrittenError(Path("/run/x"), OSError(reason, "why"))
    assert str(error) == "/run/x: not written: why" and error.advice.startswith("Choose a folder")
    full = NotWrittenError(Path("/run/x"), OSError(errno.ENOSPC, "why"))
    assert "MB left" in str(full) and full.advice.startswith("Make room")


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: a device, and a file was expected"):
        load_experiment("/dev/zero")


def test_a_file_that_begins_with_the_mark_of_an_editor_is_read(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_bytes(b"\xef\xbb\xbf" + RING.encode().replace(b"\n", b"\r\n"))
    assert load_experiment(tmp_path / "e.toml").topology.n == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["dirichlet", "shard", "pathological", "size-skewed", "iid"])
def test_the_table_that_is_advised_is_one_that_works(kind: str, tmp_path: Path) -> None:
    advice = refused(f'{RING}[data]\npartition = "{kind}"\n', tmp_path).advice
    path = tmp_path / "mended.toml"
    path.write_text(f"{advice.removeprefix('Write ')}\n{RING}")
    keys = dict(load_experiment(path).data.partition)
    labels = np.arange(400) % 5
    assert len(partitions.partition(keys.pop("kind"), labels, 4, seed=1, **keys)) == 4


# --- the user's own module --------------------------------------------------------------------------------------------


def module(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return f"{name}:f"


def test_a_module_that_is_not_there_and_one_that_it_imports_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no module 'nobody_has_this'"):
        custom.function("nobody_has_this:f", tmp_path)
    with pytest.raises(ConfigError, match="there is no module 'nobody_has'"):
        custom.function("nobody_has.this:f", tmp_path)
    source = module(tmp_path, "clear_errors_one", "import os\nimport nobody_has_that\n")
    with pytest.raises(ConfigError) as error:
        custom.function(source, tmp_path)
    text = "clear_errors_one is there, and a module that it imports is not: 'nobody_has_that' (clear_errors_one.py"
    assert text in str(error.value) and "Install it" in error.value.advice


def test_an_error_in_the_users_code_says_its_line_and_how_to_see_more(tmp_path: Path) -> None:
    source = module(tmp_path, "clear_errors_two", "def g():\n    return 1 / 0\n\ndef f():\n    return g()\n")
    with pytest.raises(TrainingError, match=r"ZeroDivisionError.*\(clear_errors_two.py, line 2\)") as error:
        custom.call(source, tmp_path, CalledWith((), ""))
    assert "FEDGOSSIP_TRACEBACK=1" in error.value.advice
    source = module(tmp_path, "clear_errors_three", "x = 1\ny = int('a')\n")
    with pytest.raises(ConfigError, match=r"importing clear_errors_three failed.*line 2\)"):
        custom.function(source, tmp_path)


OTHER_ARGUMENTS = {
    "model": ('[model]\nsource = "{}"\n', "(width)", "(shape = (64,), classes = 10)", "too many positional arguments"),
    "model that wants more": ('[model]\nsource = "{}"\n', "(a, b, *, width)", "(shape = (64,), ", "'width'"),
    "data": ('[data]\nsource = "{}"\n', "(seed)", "()", "missing a required argument: 'seed'"),
    "loss": ('[task]\nloss = "{}"\n', "(outputs)", "(outputs, labels)", "too many positional arguments"),
    "metric": ('[task]\nmetrics = ["{}"]\n', "(a, b, c)", "(outputs, labels)", "missing a required argument: 'c'"),
    "graph": ("", "(n)", "(n = 4, seed = 1)", "too many positional arguments"),
    "weights": ("", "(graph, seed)", "(topology = ", "missing a required argument: 'seed'"),
}


@pytest.mark.parametrize("kind", sorted(OTHER_ARGUMENTS))
def test_a_function_that_takes_other_arguments_is_told_both_and_how_to_write_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, takes, given, reason = OTHER_ARGUMENTS[kind]
    name = f"clear_errors_takes_{kind.replace(' ', '_')}"
    source = module(tmp_path, name, f"def f{takes} -> dict:\n    return 1 / 0\n")
    ring = 'graph = "ring"'
    graph = {"graph": f'graph = "{source}"', "weights": f'{ring}\nweights = "{source}"'}.get(kind, ring)
    text = f"rounds = 1\n[topology]\n{graph}\nn = 4\n[train]\ndevice = 'cpu'\n{table.format(source)}"
    (tmp_path / "e.toml").write_text(text)
    said = in_process(["run", "e.toml", "--no-report"], tmp_path, monkeypatch, capsys)
    error, advice = said.err.splitlines()[-2:]
    assert said.code == 2 and source in error and "ZeroDivisionError" not in said.err
    assert f"is called with {given}" in error and f"and takes {takes}: " in error and reason in error, error
    assert advice.startswith("Write def "), advice


def test_an_error_inside_the_users_function_is_its_own_whatever_its_kind(tmp_path: Path) -> None:
    text = "def g(x):\n    return x\n\ndef f(shape, classes):\n    return g()\n"
    source = module(tmp_path, "clear_errors_inside", text)
    with pytest.raises(TrainingError, match=r"raised TypeError.*missing 1 required.*clear_errors_inside.py, line 5\)"):
        custom.call(source, tmp_path, CalledWith(("shape", "classes"), "no"), (4,), 2)


def test_what_tells_no_signature_and_what_a_decorator_hides_is_called() -> None:
    import functools

    def wide(shape: object, classes: object, width: int) -> tuple[object, ...]:
        return shape, classes, width

    @functools.wraps(wide)
    def narrow(shape: object, classes: object) -> tuple[object, ...]:
        return wide(shape, classes, 3)

    two = CalledWith(("shape", "classes"), "no")
    for one in (narrow, functools.partial(wide, width=3), dict.update, max, lambda *_: None):
        check_call("own:f", one, two)
    with pytest.raises(ConfigError, match="own:f is called with"):
        check_call("own:f", wide, two)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def mixed(self, state):\n        return state", "Own.mixed is called with (state, mixed) and takes (state)"),
        ("def __init__(self, slem):\n        self.slem = slem", "Own needs the option 'slem'"),
    ],
)
def test_an_algorithm_that_takes_other_arguments_is_told_both(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"clear_errors_algorithm_{len(body)}"
    text = f"from fedgossip.algorithms.gossip.dsgd import DSGD\nclass Own(DSGD):\n    {body}\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    content = {"topology": {"graph": "ring", "n": 4}, "algorithm": {"name": f"{name}:Own"}}
    with pytest.raises(ConfigError) as error:
        compose.plan(load_experiment(content))
    assert said in str(error.value) and error.value.advice


def test_the_hint_shows_the_traceback_that_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = module(tmp_path, "clear_errors_four", "def f(shape, classes):\n    return 1 / 0\n")
    (tmp_path / "e.toml").write_text(RING + f'[model]\nsource = "{source}"\n')
    said = in_process(["run", "e.toml", "--no-report"], tmp_path, monkeypatch, capsys)
    assert said.code == 5 and "FEDGOSSIP_TRACEBACK=1" in said.err
    monkeypatch.setenv("FEDGOSSIP_TRACEBACK", "1")
    monkeypatch.setattr("sys.argv", ["fedgossip", "run", "e.toml", "--no-report"])
    from fedgossip.cli import main

    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 5 and "ZeroDivisionError: division by zero" in told and told.endswith(said.err)


def test_a_model_that_calls_sys_exit_does_not_end_a_run_as_if_it_were_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leaving = "class Leaving(torch.nn.Linear):\n    def forward(self, x):\n        raise SystemExit(0)\n\n"
    made = "def f(shape, classes):\n    return Leaving(64, classes)\n"
    source = module(tmp_path, "clear_errors_leaving", f"import torch\n{leaving}{made}")
    (tmp_path / "e.toml").write_text(RING + f'[model]\nsource = "{source}"\n')
    said = in_process(["run", "e.toml", "--no-report", "--set", "train.device=cpu"], tmp_path, monkeypatch, capsys)
    assert said.code == 5 and said.errors[0] == "error: stopped in its midst by sys.exit(0)"


# --- labels that are no classes ---------------------------------------------------------------------------------------


def table(folder: Path, labels: list[object]) -> Path:
    path = folder / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k},{label}\n" for k, label in enumerate(labels)))
    return path


REGRESSION = {
    "prices": [1000 + 37 * k for k in range(100)],
    "shares": [k / 64 for k in range(64)] * 20,
}
CLASSES = {
    "letters": [k % 26 for k in range(130)],
    "grades": [0.5 * (k % 8) for k in range(40)],
    "few": list(range(20)),
}


@pytest.mark.parametrize("name", REGRESSION)
def test_numbers_to_be_predicted_are_called_regression(name: str, tmp_path: Path) -> None:
    labels = REGRESSION[name]
    with pytest.raises(
        ConfigError, match=f"{len(set(labels))} different numbers in {len(labels)} examples.*regression"
    ) as error:
        read_csv(table(tmp_path, list(labels)), {"label": "y"})
    assert 'task.kind = "regression"' in error.value.advice
    with pytest.raises(ConfigError, match="regression"):
        data.from_arrays("mine", np.zeros((len(labels), 2)), np.array(labels))


@pytest.mark.parametrize("name", CLASSES)
def test_numbers_that_name_classes_stay_classes(name: str, tmp_path: Path) -> None:
    labels = CLASSES[name]
    assert read_csv(table(tmp_path, list(labels)), {"label": "y"}).classes == len(set(labels))


def test_words_are_classes_however_many_they_are(tmp_path: Path) -> None:
    assert read_csv(table(tmp_path, [f"w{k}" for k in range(60)]), {"label": "y"}).classes == 60


@pytest.mark.parametrize("words", [["-n", "3", "e.toml"], ["--simulate", "e.toml"], ["e.toml", "--ranks", "2"]])
def test_an_option_of_scripts_before_an_experiment_names_the_help_that_holds(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(RING)
    said = in_process(["launch", *words], tmp_path, monkeypatch, capsys)
    option = next(word for word in words if word.startswith("-"))
    assert said.code == 2 and f"{option} is for scripts: an experiment's file takes other options" in said.err
    assert "See fedgossip launch EXPERIMENT.toml --help" in said.err


@pytest.mark.parametrize("words", [["run", "e.toml"], ["sweep", "s.toml"]])
def test_a_file_in_place_of_the_folder_of_results_is_named_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(f'{RING}[task]\nkind = "quadratic"\n')
    (tmp_path / "s.toml").write_text('base = "e.toml"\n[grid]\nrounds = [1, 2]\n')
    (tmp_path / "head.csv").write_text("a,b\n")
    said = in_process([*words, "--out", "head.csv"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "head.csv: a file, and a folder was expected" in said.err, said.err
    assert (tmp_path / "head.csv").read_text() == "a,b\n"


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        (["run", "--on", "stacked"], "simulation.latency, algorithm.deadline"),
        (["run", "--on", "stacked", "--dry-run"], "simulation.latency, algorithm.deadline"),
        (["run", "--on", "local", "--dry-run"], "simulation.latency"),
        (["run", "--on", "sim", "--dry-run"], ""),
        (["sweep", "--dry-run"], "simulation.latency, algorithm.deadline"),
        (["sweep", "--dry-run", "--on", "sim"], ""),
    ],
)
def test_times_that_an_engine_ignores_are_named_before_the_run(
    words: list[str], ignored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = "rounds = 1\nsimulation = { latency = 9.0, jitter = 0.0 }\nalgorithm = { deadline = 1.0 }\n"
    late = late.replace(", jitter = 0.0", "") if words[0] == "sweep" else late  # a default is no wish
    (tmp_path / "e.toml").write_text(f'{late}task = {{ kind = "quadratic" }}\n{RING}')
    (tmp_path / "s.toml").write_text('base = "e.toml"\n[grid]\n"train.lr" = [0.1]\n')
    said = in_process([*words, "e.toml" if words[0] == "run" else "s.toml"], tmp_path, monkeypatch, capsys)
    lines = [line for line in (said.err + said.out).splitlines() if "IGNORED" in line]
    assert said.code == 0 and [line.removeprefix("# ").split(" (")[0] for line in lines] == (
        [f"IGNORED: {ignored}"] if ignored else []
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--relay", "nothing"], "--relay: 'relay://nothing' is no address"),
        (["--address", "a b"], "--address: 'tcp://a b:5700' is no address"),
        (["--address", "10.0.0.5:5700"], "--address: '10.0.0.5:5700' has a port"),
        (["--address", "[::1]:5700"], "--address: '[::1]:5700' has a port"),
        (["--links", "folder:none"], "none: no such folder"),
    ],
)
def test_an_address_or_folder_that_is_none_is_refused_before_a_folder_is_made(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.toml").write_text(RING)
    found = in_process(["host", "e.toml", "-n", "2", "--folder", "h", *words], tmp_path, monkeypatch, capsys)
    assert found.code == 2 and f"error: {said}" in found.err, found.err
    assert [one.name for one in tmp_path.iterdir()] == ["e.toml"]


def test_a_folder_that_is_not_there_is_named_and_not_the_part_that_would_be_written_there(tmp_path: Path) -> None:
    lost = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "no" / ".7298548c.part"))
    assert _explain_disk_error(lost) == (f"there is no folder {tmp_path / 'no'}", "Make it, or name another place.")
    (tmp_path / "no").mkdir()
    assert "Choose a folder" in _explain_disk_error(lost)[1]


def test_a_first_model_that_is_not_finite_is_named_and_no_rate_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong_start.py").write_text(
        "import torch\ndef model(shape, classes):\n    made = torch.nn.Linear(shape[0], classes)\n"
        "    torch.nn.init.constant_(made.weight, float('nan'))\n    return made\n"
    )
    more = '[data]\nsource = "digits"\n[train]\ndevice = "cpu"\n[model]\nsource = "wrong_start:model"\n'
    (tmp_path / "e.toml").write_text(RING + more)
    said = in_process(["run", "e.toml", "--out", "out", "--no-report"], tmp_path, monkeypatch, capsys)
    assert said.code == 5 and "peer -1" not in said.err
    assert "round 0, the run: the loss of the first model is nan, its first wrong tensor weight\n" in said.err
    assert "the first model is not finite, before any training, in weight\nLook at model.source" in said.err


def test_a_host_that_ends_in_a_number_is_an_address_of_four(tmp_path: Path) -> None:
    for host in ("1.2.3.4.5", "300.1.1.1", "host.7"):
        out = typed(["keys", "new", "--address", f"tcp://{host}:5700"], tmp_path)
        assert out.code == 2 and "is no address" in out.errors[0] and not any(tmp_path.iterdir())
        assert typed(["relay", "--listen", f"{host}:5700"], tmp_path).errors[0].endswith("no address")


def test_a_second_key_is_refused_before_its_address_is_found_out(tmp_path: Path) -> None:
    typed(["keys", "new", "--client"], tmp_path)
    out = typed(["keys", "new"], tmp_path)
    assert out.code == 2 and out.err.startswith("error: peer.key: a key exists already")


def test_explanations_keep_the_order_of_their_words(tmp_path: Path) -> None:
    out = typed(["explain", "7", "train.lr", "6"], tmp_path).out
    assert out.startswith("7 ") and out.index("train.lr  (key)") < out.index("\n6  (exit code)")


@pytest.mark.parametrize(
    ("override", "error", "advice"),
    [
        ("lr=1", "unknown key 'lr'", "Did you mean train.lr?"),
        ("n=1", "unknown key 'n'", "Did you mean topology.n?"),
        ("data.partition.kind=iid", "unknown parameter 'alpha'", "--set 'data.partition={kind=\"iid\"}'"),
        ("data.source=csv:.", "is a folder, and a table is a file", "NAME.csv"),
    ],
)
def test_an_override_is_refused_with_what_its_user_meant(
    tmp_path: Path, override: str, error: str, advice: str
) -> None:
    typed(["init", "digits", "."], tmp_path)
    out = typed(["run", "experiment.toml", "--dry-run", "--set", override], tmp_path)
    assert out.code == 2 and error in out.errors[0] and advice in out.err


@pytest.mark.parametrize("command", [["host", "--peers", "2"], ["compare"], ["forecast"], ["launch", "--simulate"]])
def test_every_command_names_the_section_of_an_override(tmp_path: Path, command: list[str]) -> None:
    typed(["init", "digits", "."], tmp_path)
    file = ["--experiment", "experiment.toml"] if command[0] == "launch" else ["experiment.toml"]
    script = ["train.py"] if command[0] == "launch" else []
    before = sorted(tmp_path.iterdir())
    out = typed([*command, *file, "--set", "lr=1", *script], tmp_path)
    assert out.code == 2 and "Did you mean train.lr?" in out.err and sorted(tmp_path.iterdir()) == before, out


def test_a_release_names_a_wrong_folder_before_a_missing_key(tmp_path: Path) -> None:
    assert typed(["release", "nowhere"], tmp_path).errors[0].startswith("error: nowhere/summary.json")


def test_a_certificate_of_a_relay_that_listens_at_no_wss_is_refused(tmp_path: Path) -> None:
    out = typed(["relay", "--listen", "127.0.0.1:0", "--cert", "none.pem"], tmp_path)
    assert out.code == 2 and "a certificate is for wss://" in out.errors[0]


@pytest.mark.parametrize("option", ["--ranks", "--restarts"])
def test_options_of_processes_are_refused_of_simulated_loops(tmp_path: Path, option: str) -> None:
    out = typed(["launch", "-n", "2", "--simulate", option, "2", "train.py"], tmp_path)
    assert out.code == 2 and f"--simulate and {option}" in out.errors[0] and not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["launch", "-n", "2", "t.csv"], "t.csv: by its name no script of Python"),
        (["launch", "-n", "2", "--simulate", "t.csv"], "t.csv: by its name no script of Python"),
        (["step", "nowhere"], "nowhere: no participant of a run by folder (No such file or directory)"),
        (["pilot", "host", "e.toml", "--answers", "nowhere"], "nowhere: no answers: No such file or directory"),
        (["keys", "own", "nowhere"], "nowhere: nothing is there"),
        (["runs", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_a_path_that_is_wrong_is_named_without_the_system_s_number(
    tmp_path: Path, command: list[str], words: str
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "e.toml").write_text("[coordinator]\nclients = 3\n")
    said = typed(command, tmp_path)
    assert said.code == 2 and said.errors == [f"error: {words}"], said


@pytest.mark.parametrize("where", ["deep/er/run", "deep/er", "."])
def test_a_run_is_listed_by_its_own_folder_and_by_those_above(where: str, tmp_path: Path) -> None:
    run = tmp_path / "deep" / "er" / "run"
    run.mkdir(parents=True)
    (run / "summary.json").write_text('{"status": "finished", "n": 3}')
    (one,) = json.loads(typed(["runs", where, "--json"], tmp_path).out)
    assert (tmp_path / one["run_dir"]).samefile(run) and one["status"] == "finished"


def test_the_usual_folder_of_runs_may_be_absent(tmp_path: Path) -> None:
    assert typed(["runs"], tmp_path).code == 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (["join", "--data", "csv:mine.csv?label=y"], "there is no file"),
        (["join", "--data", "csw:mine.csv?label=y"], "unknown data source"),
        (["join", "--script", "mine.py --fast"], "mine.py: no such file"),
        (["join", "--script", "run"], "run: is a folder"),
        (["join", "--script", "other.py"], "other.py: neither it nor a module in its folder names fedgossip"),
        (["join", "--script", "wrong.py"], "wrong.py: invalid syntax (wrong.py, line 2)"),
        (["join", "--address", "a b"], "--address: 'tcp://a b:5700' is no address"),
        (["join", "--address", "10.0.0.5:5700"], "--address: '10.0.0.5:5700' has a port"),
        (["pilot", "join", "--data", "mine.csv"], "mine.csv: no such file"),
    ],
)
def test_what_is_wrong_on_this_machine_is_refused_before_the_organiser_is_called(
    tmp_path: Path, how: list[str], words: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "other.py").write_text("print(1)\n")
    (tmp_path / "wrong.py").write_text("x = 1\ny = = 2\n")
    invite = written(Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 2**32 - 1))
    said = typed([*how, invite], tmp_path)
    assert said.code == 2 and words in said.err and "Calling" not in said.err, said
    assert not (tmp_path / "joined").exists()


@pytest.mark.sockets
@pytest.mark.parametrize("mark", ["summary.json", "INCOMPLETE"])
def test_keys_of_an_invite_are_not_made_in_the_folder_of_a_run(tmp_path: Path, mark: str) -> None:
    (tmp_path / "e.toml").write_text(f'{RING}[train]\ndevice = "cpu"\n')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / mark).touch()
    said = typed(["host", "e.toml", "--folder", "run"], tmp_path)
    assert said.code == 2 and "run: a run is in this folder" in said.err, said
    assert [one.name for one in (tmp_path / "run").iterdir()] == [mark]


def test_numbers_of_other_libraries_and_paths_are_values_of_an_experiment(tmp_path: Path) -> None:
    plain = {"rounds": 3, "seed": 2, "topology": {"graph": "ring", "n": 4}, "train": {"lr": 0.5}}
    theirs = {
        "rounds": np.int64(3),
        "topology": {"graph": "ring", "n": np.uint8(4)},
        "train": {"lr": np.array(0.5)},
        "data": {"source": tmp_path / "t.csv"},
    }
    given = load_experiment(theirs, seed=np.int32(2))  # type: ignore[arg-type]
    wanted = load_experiment({**plain, "data": {"source": str(tmp_path / "t.csv")}})
    assert given.to_dict() == wanted.to_dict()


@pytest.mark.parametrize("source", [[1], None, 3, b"e.toml"])
def test_what_is_no_experiment_is_refused_by_its_type(source: object) -> None:
    with pytest.raises(ConfigError, match=f"an experiment is no {type(source).__name__}"):
        load_experiment(source)  # type: ignore[arg-type]


GRAPH = fedgossip.resolve("ring", 5)
SMALL = {"rounds": 1, "task": {"kind": "averaging"}, "topology": {"graph": "ring", "n": 3}}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: fedgossip.simulate(SMALL, out=3), "simulate: out is of type int, not Path or str or None"),
        (lambda: fedgossip.simulate(SMALL, report="yes"), "simulate: report is of type str, not bool"),
        (lambda: fedgossip.simulate(SMALL, overrides="rounds=2"), "overrides is of type str, not Sequence of str"),
        (lambda: fedgossip.simulate(SMALL, overrides=[3]), "overrides is of type list, not Sequence of str"),
        (lambda: fedgossip.simulate(SMALL, watch=3), "watch is of type int, not Callable or None"),
        (lambda: fedgossip.simulate_loop("train.py", 2), "simulate_loop: function is of type str, not Callable"),
        (lambda: fedgossip.resolve("ring", "5"), "resolve: n is of type str, not int or None"),
        (lambda: fedgossip.resolve("regular:3", 6, seed=0.5), "resolve: seed is of type float, not int"),
        (lambda: fedgossip.build("ring:5"), "build: topology is of type str, not Topology"),
        (lambda: fedgossip.spectrum(GRAPH), "spectrum: mixing is of type Topology, not Mixing"),
        (lambda: fedgossip.forecast({}), "forecast: mixing is of type dict, not Mixing"),
        (lambda: fedgossip.load_model(None), "load_model: path is of type NoneType, not Path or str"),
    ],
)
def test_every_public_function_refuses_an_argument_of_a_wrong_type_in_one_way(
    call: Callable[[], object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        call()
    assert "help(fedgossip." in refused.value.advice


def test_numbers_of_numpy_and_paths_of_any_kind_are_arguments() -> None:
    assert fedgossip.resolve("ring", np.int64(5)).n == fedgossip.resolve("ring", 5, seed=np.uint8(1)).n == 5
    assert fedgossip.simulate(SMALL, forecast=None, overrides=("rounds=2",)).summary["rounds"] == 2
    with pytest.raises(TypeError, match=r"resolve\(\) got an unexpected keyword argument 'size'"):
        fedgossip.resolve("ring", size=5)  # type: ignore[call-arg]


def test_the_nearest_size_of_a_graph_is_named_once() -> None:
    with pytest.raises(ConfigError) as refused:
        fedgossip.resolve("none", 0)
    assert refused.value.advice == "Nearest sizes that it has: 1."


def test_a_program_finds_all_errors_at_one_name() -> None:
    from fedgossip.errors import ResumeError  # type: ignore[import-not-found]

    assert ResumeError.exit_code == 8 and fedgossip.errors.FedgossipError is fedgossip.FedgossipError
    with pytest.raises(AttributeError):
        _ = fedgossip.errors.NoError


@pytest.mark.parametrize(
    "words",
    [
        "forecast e.toml ring --out",
        "topology draw ring --n 4 --out",
        "plot nowhere --out",
        "report nowhere --out",
        "table nowhere --out",
        "plan show e.toml --out",
        "audit export nowhere --out",
        "predict nowhere e.toml --out",
    ],
)
def test_a_file_to_write_is_refused_before_any_work_if_it_is_an_input_or_has_no_folder(
    words: str, tmp_path: Path
) -> None:
    content = 'rounds = 1\ntopology = { graph = "ring", n = 3 }\n'
    (tmp_path / "e.toml").write_text(content)
    for place, text in (("e.toml", "there already"), ("no/x.svg", "there is no folder no"), (".", "a folder, and a")):
        said = typed([*words.split(), place], tmp_path)
        assert said.code == 2 and text in said.err, said
    assert (tmp_path / "e.toml").read_text() == content


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("topology make ring -n 4 --weights fmmc --out", "pilot.toml"),
        ("forecast e.toml --out", "approval.json"),
        ("plan show e.toml --out", "approval.json"),
        ("plot nowhere --out", "patients.csv"),
        ("audit export nowhere --out", "patients.csv"),
        ("timeline e.toml --out", "patients.json"),
    ],
)
def test_a_text_that_the_command_did_not_write_is_never_replaced(words: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('rounds = 1\ntopology = { graph = "ring", n = 3 }\n')
    (tmp_path / name).write_text("age,sex\n41,1\n")
    said = typed([*words.split(), name], tmp_path)
    assert said.code == 2 and f"{name}: there already" in said.err, said
    assert (tmp_path / name).read_text() == "age,sex\n41,1\n"


@pytest.mark.parametrize(
    "words",
    [
        "topology make ring -n 4 --weights fmmc --out a.toml",
        "forecast e.toml --out a.json",
        "timeline e.toml --out a.json",
    ],
)
def test_a_text_that_the_command_wrote_is_replaced(words: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('rounds = 1\ntopology = { graph = "ring", n = 3 }\n[task]\nkind = "quadratic"\n')
    for _ in range(2):
        said = typed(words.split(), tmp_path)
        assert said.code == 0, said


OPTIONS_AND_SET = [
    ("run e.toml -n 3 --set topology.n=5", "--set topology.n=5, and 3 by another option"),
    ("run e.toml --seed 3 --set seed=5", "--set seed=5, and 3 by another option"),
    ("run e.toml --portable --set train.portable=false", "--set train.portable=false, and true"),
    ("launch -n 3 --set topology.n=5 train.py", "--set topology.n=5, and 3"),
    ("launch -n 3 --coordinator --set coordinator.clients=5 train.py", "--set coordinator.clients=5, and 3"),
    ("launch -n 3 --rounds 4 --set rounds=5 train.py", "--set rounds=5, and 4"),
    ("launch -n 3 --graph ring --set topology.graph=star train.py", "--set topology.graph=star, and ring"),
    ("run --resume runs/one --on local", "--resume and --on"),
    ("run --resume runs/one --out two", "--resume and --out"),
    ("run --resume runs/one --forecast probe", "--resume and --forecast"),
    ("run --resume runs/one --faults f.toml", "--resume and --faults"),
    ("run --resume runs/one -n 4", "--resume and -n"),
    (f"run e.toml --set rounds={10**20}", "a whole number of more than 64 bits"),
    (f"run e.toml --seed {10**20}", "has more than 63 bits"),
]


@pytest.mark.parametrize(("words", "refused"), OPTIONS_AND_SET)
def test_options_that_contradict_each_other_are_refused(words: str, refused: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('rounds = 1\ntopology = { graph = "ring", n = 3 }\n')
    (tmp_path / "train.py").touch()
    said = typed(words.split(), tmp_path)
    assert said.code == 2 and refused in said.err, said
    assert not (tmp_path / "runs").exists()


def test_an_option_and_the_same_value_by_set_agree(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('rounds = 1\ntopology = { graph = "ring", n = 3 }\n')
    assert (
        typed(
            ["run", "e.toml", "-n", "4", "--set", "topology.n=4", "--seed", "2", "--set", "seed=2", "--dry-run"],
            tmp_path,
        ).code
        == 0
    )


@pytest.mark.parametrize(
    "error", [MemoryError("16 GB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 32000 bytes")]
)
def test_a_lack_of_memory_is_no_fault_of_fedgossip(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(**_: object) -> None:
        raise error

    monkeypatch.setattr("fedgossip.cli.cli", lacking)
    assert _run() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory: ") and "smaller batches" in said and "a fault of" not in said
