"""What `make` installs is known to the byte, but for torch: the lock, the constraints and the project agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return {plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def wanted() -> set[str]:
    """All that the project asks for, with what its tests and its build do."""
    project = PROJECT["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"], *PROJECT["build-system"]["requires"]]
    return {plain(re.split(r"[<>=!~\[; ]", one)[0]) for one in asked}


def test_the_build_is_by_one_version() -> None:
    (hatchling,) = PROJECT["build-system"]["requires"]
    assert pins(hatchling) == {"hatchling": pins(LOCK)["hatchling"]}


def test_the_lock_and_the_constraints_pin_the_same_versions() -> None:
    elsewhere = {"colorama"}  # of Windows
    lock, constraints = pins(LOCK), pins((ROOT / "constraints.txt").read_text())
    assert {k: v for k, v in constraints.items() if k != "torch"} == {
        k: v for k, v in lock.items() if k not in elsewhere
    }


def test_all_that_is_asked_for_is_locked_but_torch() -> None:
    assert wanted() - pins(LOCK).keys() == {"torch"}


def test_every_locked_package_has_hashes() -> None:
    blocks = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(LOCK)) > 50
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


def test_make_installs_by_the_lock() -> None:
    make = (ROOT / "Makefile").read_text()
    assert "--require-hashes" in make and "$(STAMP): pyproject.toml constraints.txt requirements.lock" in make
