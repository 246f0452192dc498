"""A wheel has all of the package, alone it is enough, and what is optional is missed in one way."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import in_process

from fedgossip.base import errors, version
from fedgossip.base.errors import ConfigError
from fedgossip.cli import COMMANDS

pytestmark = pytest.mark.sockets

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MEGABYTES_MOST = 3.0
"""Of a wheel: mistakenly packed data and pictures are found by it."""


def built(folder: Path, target: str) -> Path:
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (file,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


def test_a_wheel_has_every_file_of_the_package_and_no_other(tmp_path: Path) -> None:
    wheel = built(tmp_path, "wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        packed_commit = archive.read(f"fedgossip/{version.COMMIT_FILE}").decode().strip() if version.commit() else ""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "fedgossip", "topologies"]
    tracked = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a checkout: which files belong to the package is not known")
    files = {name for name in tracked.stdout.split() if (ROOT / name).exists()}
    expected = {f"fedgossip/{name}" if name.startswith("topologies/") else name for name in files}
    assert names - {f"fedgossip/{version.COMMIT_FILE}"} == expected
    assert packed_commit == version.commit()
    assert "fedgossip/py.typed" in names
    assert wheel.stat().st_size < MEGABYTES_MOST * 1e6


def test_the_version_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version, "PACKAGE", tmp_path)
    assert version.commit() == ""
    assert in_process(["--version"], tmp_path, monkeypatch, capsys).out == "fedgossip, version 0.1.0\n"
    (tmp_path / "base").mkdir()
    (tmp_path / version.COMMIT_FILE).write_text("0123abc\n")
    assert in_process(["--version"], tmp_path, monkeypatch, capsys).out == "fedgossip, version 0.1.0 (commit 0123abc)\n"
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert version.commit_of(tmp_path) == ""  # somebody else's checkout


# --- optional parts ---------------------------------------------------------------------------------------------------


def plain(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


NEEDED = {plain(one) for one in PROJECT["dependencies"]}
OPTIONAL = {extra: {plain(one) for one in of} for extra, of in PROJECT["optional-dependencies"].items()}
NAMES = importlib.metadata.packages_distributions() | {
    "mlflow": ["mlflow-skinny"], "wandb": ["wandb"], "ray": ["ray"], "flwr": ["flwr"], "nvflare": ["nvflare"],
    "psycopg": ["psycopg"]
}  # fmt: skip


def packages(module: str) -> set[str]:
    """Return the packages that a module is part of, also of those that are not installed here."""
    return {plain(one) for one in NAMES.get(module.partition(".")[0], [])}


def calls() -> Iterator[tuple[str, str, str]]:
    """Yield each call of `needed` in the package: its place, the module and the extra."""
    for path in sorted((ROOT / "fedgossip").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("needed", "missing")
                and node.args[2:]
            ):
                module, extra = (one.value if isinstance(one, ast.Constant) else "" for one in node.args[:2])
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(module), str(extra)


def test_every_optional_import_names_an_extra_that_has_it() -> None:
    found = list(calls())
    assert len(found) > 15
    wrong = [one for one in found if one[1] and not packages(one[1]) & OPTIONAL.get(one[2], set())]
    assert wrong == []
    parts = set(OPTIONAL) - {"all", "dev", "docs", "peft", "accelerate"}  # of loops that import them themselves
    assert {extra for _, _, extra in found} >= parts


def test_no_other_line_tells_which_extra_to_install() -> None:
    lines = [
        path
        for path in (ROOT / "fedgossip").rglob("*.py")
        if "pip install 'fedgossip[" in path.read_text() and path.name not in ("errors.py", "doctor.py")
    ]
    assert lines == []


def test_a_missing_package_is_one_line_and_its_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match="a model as ONNX needs onnx") as error:
        errors.needed("onnx", "edge", "a model as ONNX", "predict works without it.")
    assert error.value.advice == "pip install 'fedgossip[edge]'; predict works without it."


def test_doctor_lists_every_library_and_the_extras_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = importlib.metadata.version

    def installed(name: str) -> str:
        if name in ("pyarrow", "click"):
            raise importlib.metadata.PackageNotFoundError(name)
        return asked(name)

    monkeypatch.setattr(importlib.metadata, "version", installed)
    said = in_process(["doctor"], tmp_path, monkeypatch, capsys)
    assert said.code == 2
    assert "missing  click: pip install 'click>=8.1'" in said.out
    assert "ok       without the extra parquet (pyarrow): pip install 'fedgossip[parquet]' adds it" in said.out
    assert all(f"ok       {name} " in said.out for name in PROJECT_LIBRARIES)


PROJECT_LIBRARIES = sorted(NEEDED - {"click"})


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_choices(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = in_process(["completion", shell], tmp_path, monkeypatch, capsys)
    assert script.code == 0 and f"_FEDGOSSIP_COMPLETE={shell}_complete" in script.out

    def answered(*line: str) -> str:
        monkeypatch.setenv("_FEDGOSSIP_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(line))
        monkeypatch.setenv("COMP_CWORD", line[-1] if shell == "fish" else str(len(line) - 1))
        said = in_process([], tmp_path, monkeypatch, capsys)
        assert (said.code, said.err) == (0, "")
        return said.out

    assert all(name in answered("fedgossip", "") for name in COMMANDS)
    assert "forecast" in answered("fedgossip", "fore") and "launch" not in answered("fedgossip", "fore")
    assert "--links" in answered("fedgossip", "doctor", "--li")
    assert "zsh" in answered("fedgossip", "completion", "z")
    assert answered("fedgossip", "no-such-command", "").strip() == ""


# --- an environment of its own ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_what_was_built_is_enough_without_the_checkout(target: str, tmp_path: Path) -> None:
    """The libraries are those of this environment, behind the new one's own: nothing is downloaded."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-build-isolation"]
    libraries = [path for path in map(Path, sys.path) if (path / "torch").is_dir()]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDGOSSIP"))}
    shared = env | {"PYTHONPATH": os.pathsep.join(map(str, libraries))}
    subprocess.run([*words, str(built(tmp_path, target))], cwd=tmp_path, env=shared, check=True, timeout=300)
    (own,) = (tmp_path / "env/lib").glob("python*/site-packages")
    (own / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))

    def said(*line: str) -> str:
        done = subprocess.run([python.with_name("fedgossip"), *line], cwd=tmp_path, env=env, capture_output=True,
                              text=True, timeout=300, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = subprocess.run([python, "-c", "import fedgossip; print(fedgossip.__file__)"], cwd=tmp_path, env=env,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(own)
    assert version.commit() in said("--version")
    said("doctor")
    for template in ("digits", "own-loop", "hospitals"):
        said("init", template)
    said("run", "digits/experiment.toml", "--set", "rounds=2", "--out", "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"
    said("launch", "-n", "2", "--graph", "ring", "own-loop/train.py")
    said("topology", "show", "petersen")
    assert "equal" in said("demo")
