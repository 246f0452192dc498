"""Peers whose models only look alike are told apart, by the name of what differs."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import finish, free_ports, start, typed
from test_coordinator_commands import Site, refused_client
from torch import nn

import fedgossip
from fedgossip.base.errors import ConfigError
from fedgossip.core import wire
from fedgossip.core.messages import Hello
from fedgossip.core.model_fingerprint import CODE, FROZEN, PROBE, Likeness, describe_differences
from fedgossip.data.custom import code_of, modules_of
from fedgossip.data.dataset import Dataset, from_arrays
from fedgossip.learning.one_model.flat import Layout
from fedgossip.learning.one_model.probing import frozen_of, probe_of
from fedgossip.net.transport import refused
from fedgossip.plans.federated import policy

# --- the source -------------------------------------------------------------------------------------------------------

MODULES = {
    "mine.py": "import helping\nfrom parts import layers\n",
    "helping.py": "import numpy\nimport os.path\nVALUE = 1\n",
    "parts/__init__.py": "",
    "parts/layers.py": "from . import sizes\nfrom .deep.inner import one\n",
    "parts/sizes.py": "WIDTH = 3\n",
    "parts/deep/inner.py": "def one():\n    import late\n    return late\n",
    "late.py": "",
    "unused.py": "VALUE = 2\n",
}


def written(folder: Path, **changed: str) -> Path:
    for name, text in {**MODULES, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_the_code_is_that_of_all_modules_that_are_imported_and_of_no_other(name: str, tmp_path: Path) -> None:
    before = code_of(["mine:model"], written(tmp_path / "one"))
    after = code_of(["mine:model"], written(tmp_path / "two", **{name: MODULES[name] + "MORE = 1\n"}))
    assert len(before) == 32 and (before == after) == (name == "unused.py")


@pytest.mark.parametrize("text", ["a = 1\r\nb = 2\r\n", "a = 1  \nb = 2\n\n\n", "\ufeffa = 1\nb = 2"])
def test_how_lines_end_does_not_count(text: str, tmp_path: Path) -> None:
    for place, content in (("one", "a = 1\nb = 2\n"), ("two", text)):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_bytes(content.encode())
    assert code_of(["mine:f"], tmp_path / "one") == code_of(["mine:f"], tmp_path / "two") != ""


def test_installed_packages_and_what_is_no_module_are_not_the_users(tmp_path: Path) -> None:
    names = ["softmax", "csv:/a/b.csv?label=y", "sklearn.datasets:load_iris", "json:loads", "nowhere:at_all"]
    assert code_of(names, tmp_path) == ""


def test_this_package_is_not_the_users_where_a_run_is_started_in_its_checkout(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import fedgossip.data.custom")
    (tmp_path / "fedgossip").symlink_to(Path(fedgossip.__file__).parent)
    assert set(modules_of(["mine:model"], tmp_path)) == {"mine"}


def test_a_module_that_imports_itself_in_a_circle_or_is_no_python_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import other\n")
    (tmp_path / "other.py").write_text("import mine\n(\n")
    assert len(code_of(["mine:f"], tmp_path)) == 32


# --- frozen tensors, and the probe ------------------------------------------------------------------------------------


def network(activation: nn.Module, *, frozen: bool = True) -> nn.Module:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(6, 500), activation, nn.Linear(500, 3), nn.BatchNorm1d(3))
    made[0].requires_grad_(not frozen)
    return made


def numbers(module: nn.Module) -> tuple[float, ...]:
    return frozen_of(module, Layout.from_module(module))


@pytest.fixture
def examples() -> Dataset:
    draw = np.random.default_rng(3)
    return from_arrays("random", draw.normal(size=(40, 6)), draw.integers(0, 3, 40))


def test_one_frozen_weight_of_thousands_is_noticed_and_rounding_is_not() -> None:
    ours, rounded, other = network(nn.Tanh()), network(nn.Tanh()), network(nn.Tanh())
    with torch.no_grad():
        rounded[0].weight.mul_(1 + 3e-7 * torch.randn(500, 6))
        other[0].weight[17, 2] *= 1.05
    assert len(numbers(ours)) == 4
    assert not Likeness(frozen=numbers(ours)).unlike(Likeness(frozen=numbers(rounded)))
    assert Likeness(frozen=numbers(ours)).unlike(Likeness(frozen=numbers(other))) == (FROZEN,)


def test_a_counter_that_is_not_mixed_and_the_shape_of_what_is_frozen_count() -> None:
    ours, counted = network(nn.Tanh(), frozen=False), network(nn.Tanh(), frozen=False)
    counted[3].num_batches_tracked += 1
    assert Likeness(frozen=numbers(ours)).unlike(Likeness(frozen=numbers(counted))) == (FROZEN,)
    wide, tall = nn.Linear(2, 1), nn.Linear(2, 1)
    wide.register_buffer("kept", torch.zeros(2, 3, dtype=torch.int64))
    tall.register_buffer("kept", torch.zeros(3, 2, dtype=torch.int64))
    assert numbers(nn.Linear(2, 1)) == ()
    assert Likeness(frozen=numbers(wide)).unlike(Likeness(frozen=numbers(tall))) == (FROZEN,)


@pytest.mark.parametrize("other", [nn.Sigmoid(), nn.ReLU(), nn.Softsign(), nn.GELU()])
def test_another_activation_gives_another_probe_and_rounding_does_not(other: nn.Module, examples: Dataset) -> None:
    ours, rounded = network(nn.Tanh()), network(nn.Tanh())
    with torch.no_grad():
        for one in rounded.parameters():
            one.mul_(1 + 3e-6 * torch.randn(one.shape))
    probe = probe_of(ours, examples, seed=5)
    assert len(probe) == 4 and probe == probe_of(ours, examples, seed=5) != probe_of(ours, examples, seed=6)
    assert not Likeness(probe=probe).unlike(Likeness(probe=probe_of(rounded, examples, 5)))
    assert Likeness(probe=probe).unlike(Likeness(probe=probe_of(network(other), examples, 5))) == (PROBE,)


def test_a_probe_leaves_the_model_and_the_random_numbers_as_they_were(examples: Dataset) -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.random.get_rng_state()
    probe_of(module, examples, 1)
    assert module.training and torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_model_that_cannot_be_probed_says_nothing(examples: Dataset) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    assert probe_of(Broken(), examples, 1) == ()
    assert probe_of(nn.Sequential(nn.Linear(6, 3), nn.Threshold(9e9, float("nan"))), examples, 1) == ()


# --- what is said -----------------------------------------------------------------------------------------------------

OURS = Hello("schema", "experiment", "1", process=7, code="code", frozen=(1.0, 2.0), probe=(0.5,))


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"code": "another"}, CODE, "the source of its modules differs"),
        ({"frozen": (1.0, 2.1)}, FROZEN, "its frozen tensors differ"),
        ({"frozen": ()}, FROZEN, "its frozen tensors differ"),
        ({"probe": (float("nan"),)}, PROBE, "the outputs of its first model for the probe differs"),
        (
            {"code": "", "probe": ()},
            CODE,
            "the source of its modules and the outputs of its first",
        ),
        ({"schema": "s", "code": ""}, "schema", "another model, or other columns"),
    ],
)
def test_a_hello_says_what_differs_by_the_peers_name(changes: Any, reason: str, words: str) -> None:
    theirs = _changed(changes)
    refusal = refused(4, theirs, OURS)
    assert refusal and refusal.reason == reason and refusal.text.startswith("peer 4 ") and words in refusal.text
    assert refused(4, _changed({"incarnation": 3, "process": 1, "processor": 9, "probe": (0.5001,)}), OURS) is None


def _changed(changes: Any) -> Hello:
    return dataclasses.replace(OURS, **changes)


def test_all_that_differs_is_named() -> None:
    assert describe_differences((CODE, FROZEN, PROBE)).count(",") == 1


def test_a_hello_crosses_the_wire_whole_and_no_longer_row_of_numbers_does() -> None:
    assert wire.VOCABULARY.message_of(wire.VOCABULARY.decoded(wire.VOCABULARY.encoded(OURS))) == OURS
    with pytest.raises(Exception, match="length"):
        wire.VOCABULARY.decoded(wire.VOCABULARY.encoded(_changed({"probe": (0.0,) * 17})))


# --- over real processes ----------------------------------------------------------------------------------------------

MINE = """
import pathlib
import torch
from torch import nn

def model(shape, classes):
    hidden = nn.Linear(shape[0], 16).requires_grad_(False)
    kind, scale = pathlib.Path("kind.txt").read_text().split()
    with torch.no_grad():
        hidden.weight.mul_(float(scale))
    return nn.Sequential(nn.Flatten(), hidden, getattr(nn, kind)(), nn.Linear(16, classes))
"""
PAIR = """
from fedgossip.topology import Topology

def pair(n, seed):
    return Topology.from_edges(n, [(0, 1)], "pair")
"""
UNLIKE = {
    "source": (
        MINE + "\n# another\n",
        "Tanh 1.0",
        PAIR + "\n# another\n",
        "the source of its modules differs, behind mine:model and ours:pair",
    ),
    "probe": (MINE, "Sigmoid 1.0", PAIR, "the outputs of its first model for the probe differs"),
}
PEERS = """
rounds = 3
[topology]
graph = "ours:pair"
n = 2
[model]
source = "mine:model"
[train]
local_steps = 1
device = "cpu"
[algorithm]
start_timeout = 60.0
"""


@pytest.mark.sockets
@pytest.mark.parametrize("what", [pytest.param("source", marks=pytest.mark.long), "probe"])  # policies pin code, too
def test_two_peers_of_unlike_code_refuse_each_other_by_name(what: str, tmp_path: Path) -> None:
    """Before: exit 0, consensus distance 0, and two different models."""
    code, kind, graph, words = UNLIKE[what]
    endpoints = ""
    for node, port in enumerate(free_ports(2)):
        folder = tmp_path / str(node)
        folder.mkdir()
        (folder / "gossip.toml").write_text(PEERS)
        (folder / "mine.py").write_text(code if node else MINE)
        (folder / "ours.py").write_text(graph if node else PAIR)
        (folder / "kind.txt").write_text(kind if node else "Tanh 1.0")
        address = f"tcp://127.0.0.1:{port}"
        made = typed(["keys", "new", "--id", str(node), "--address", address], folder)
        assert made.code == 0, made
        endpoints += made.out
    for node in range(2):
        (tmp_path / str(node) / "endpoints.toml").write_text(endpoints)
    line = ["peer", "gossip.toml", "--endpoints", "endpoints.toml", "--key", "peer.key", "--out", "out", "--id"]
    both = [start([*line, str(node)], tmp_path / str(node)) for node in range(2)]
    ends = [finish(process) for process in both]
    for node, said in enumerate(ends):
        assert said.code == 4, said
        assert f"no partner to learn with: peer {1 - node} has another model: {words}" in said.errors[0], said
        assert "Give every peer the same modules" in said.err


SPY = "\n\ndef remember(records):\n    open('records.txt', 'a').write(repr(records))\n"
PILOT = textwrap.dedent("""
    rounds = 2
    coordinator = {{ clients = 3 }}
    model = {{ source = "mine:model" }}
    train = {{ device = "cpu" }}
""")


@pytest.mark.sockets
def test_a_policy_does_not_let_another_module_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a module that writes records to disk left the policy as it was."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "kind.txt").write_text("Tanh 1.0")
    monkeypatch.setattr("test_coordinator_commands.EXPERIMENT", PILOT)
    site = Site.made(tmp_path)
    try:
        (tmp_path / "mine.py").write_text(MINE + SPY)
        assert "policy.toml allows another run than this one: code: pinned" in refused_client(site)
        (tmp_path / "mine.py").write_text(MINE)
        (tmp_path / "kind.txt").write_text("Sigmoid 2.0")
        assert "frozen: not as it was pinned; probe: not as it was pinned" in refused_client(site, 1)
    finally:
        site.stop()


def test_numbers_of_a_policy_may_round_otherwise_here(tmp_path: Path) -> None:
    pinned = Likeness("c", (1.0, -3.0), (0.25,))
    here = Likeness("c", (1.00001, -3.00001), (0.2501,))
    assert pinned.unlike(here) == ()
    with pytest.raises(ConfigError):
        policy.read(tmp_path / "none.toml")
