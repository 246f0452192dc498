"""Every method of the registry has its machines, and is named where people look for methods."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedgossip.algorithms.federated.names import ALGORITHMS
from fedgossip.algorithms.names import METHODS, make
from fedgossip.plans.federated_run import FEDBUFF
from fedgossip.plans.gossip_machines import MODES, told

ROOT = Path(__file__).parents[1]


def ways() -> set[tuple[str, str]]:
    """What the methods ask for: (what is told, mode)."""
    made = [(make(name, one, 7, {}), one) for name, one in METHODS.items()]
    found = {(told(algorithm, private=False), mode) for algorithm, one in made for mode in one.modes}
    return found | {(told(algorithm, private=True), "sync") for algorithm, one in made if one.private}


def test_every_method_and_mode_has_its_machine_and_no_machine_is_left_over() -> None:
    assert ways() == MODES.keys()


@pytest.mark.parametrize(("file", "key", "names"), [
    ("README.md", "algorithm.name", METHODS.keys()),
    ("docs/coordinator.md", "coordinator.algorithm", {*ALGORITHMS, FEDBUFF}),
])
def test_every_method_is_in_the_table_of_keys(file: str, key: str, names: set[str]) -> None:
    (row,) = [line for line in (ROOT / file).read_text().splitlines() if line.startswith(f"| `{key}` |")]
    assert names <= set(re.findall(r"[`\"]([\w-]+)[`\"]", row))
