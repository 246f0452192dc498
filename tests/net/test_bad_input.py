"""Whatever is wrong with what somebody wrote: one line of error, at most one of advice, the documented exit code."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from commands import Output, experiment, finish, free_ports, in_process, start

from fedgossip.base.errors import ConfigError
from fedgossip.experiment import load_experiment
from fedgossip.net.endpoints import Endpoint
from fedgossip.net.endpoints import text as endpoints_text
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.topology import Mixing, load_weighted


class Desk:
    """A folder with an experiment file, and the command line in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        experiment(folder)
        (folder / "learning.toml").write_text(
            'rounds = 2\n[topology]\ngraph = "ring"\nn = 4\n[train]\ndevice = "cpu"\nlocal_steps = 1\n'
        )

    def run(self, *arguments: str) -> Output:
        return in_process(arguments, self.folder, self._monkeypatch, self._capsys)

    def refused(self, *arguments: str, code: int = 2) -> str:
        """Run what must be refused, check all that holds for every refusal, and return the two lines."""
        said = self.run(*arguments)
        assert said.code == code, said
        assert said.out == ""
        assert len(said.errors) == 1 and said.err.startswith("error: "), said.err
        assert len(said.err.splitlines()) <= 2, said.err
        assert "Traceback" not in said.err and "unexpected" not in said.err
        assert not (self.folder / "out" / "summary.json").exists()
        return said.err

    def set(self, *settings: str, file: str = "experiment.toml", code: int = 2) -> str:
        words = [word for setting in settings for word in ("--set", setting)]
        text = self.refused("run", file, "--out", "out", "--json", *words, code=code)
        assert not (self.folder / "out").exists() or (self.folder / "out" / "INCOMPLETE").exists()
        return text


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


# --- keys and values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "near"),
    [
        ("train.lrr=1", "'lr'"),
        ("algoritm.name=x", "'algorithm'"),
        ("algorithm.dead_line=1", "'deadline'"),
        ("topology.graf=ring", "'graph'"),
        ("task.kind=avraging", "'averaging'"),
        ("topology.weights=metropolos", "'metropolis'"),
        ("topology.graph=hypercub", "'hypercube'"),
        ('faults=[{kind="flop", seconds=2.0}]', "'flap'"),
        ('faults=[{kind="drop", probabilty=0.1}]', "'probability'"),
    ],
)
def test_an_unknown_word_names_the_nearest_known_one(desk: Desk, setting: str, near: str) -> None:
    assert f"Did you mean {near}?" in desk.set(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "seed=-1",
        "seed=1.5",
        "rounds=0",
        "rounds=1000000000000000000000000",
        "train=4",
        "train.lr=nan",
        "train.threads=100000000",
        "task.dim=0",
        "task.dim=100000000000000000000",
        "topology.n=2.5",
        "topology.n=abc",
        "eval.every=0",
        "data.test=1.5",
        "algorithm.deadline=0",
        "algorithm.deadline=inf",
        "algorithm.deadline=1e300",
        "algorithm.start_timeout=-1",
        "simulation.latency=-1",
        "simulation.latency=nan",
        "simulation.jitter=-0.5",
        "simulation.bandwidth=0",
        "simulation.training=1e300",
        "simulation.training=-1",
        "simulation.speed_spread=inf",
        "simulation.detection=-1",
        'faults=[{kind="drop", probability=1.5}]',
        'faults=[{kind="slow", peers=[9], factor=2.0}]',
        'faults=[{kind="slow", factor=nan}]',
        'faults=[{kind="crash", peers=["x"]}]',
        'faults=[{kind="crash"}]',
        "no-equals-sign",
        "=4",
        "rounds.x=1",
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_is_made(desk: Desk, setting: str) -> None:
    desk.set(setting)
    assert not (desk.folder / "out").exists()


@pytest.mark.parametrize(
    ("graph", "weights"), [("ring", "fmmc"), ("ring", "fdla"), ("matcha:0.5:ring", ""), ("every:3:ring:leja:ring", "")]
)
def test_weights_whose_last_bits_belong_to_the_processor_are_not_portable(graph: str, weights: str) -> None:
    section = {"graph": graph, "n": 8, **({"weights": weights} if weights else {})}
    text = {"topology": section, "train": {"portable": True}}
    with pytest.raises(ConfigError, match="end in other bits on another kind of processor"):
        compose.plan(load_experiment(text))
    compose.plan(load_experiment({"topology": section}))
    compose.plan(load_experiment({**text, "topology": {"graph": "ring", "n": 8, "weights": "best-constant"}}))


def test_an_experiment_file_that_is_no_text_is_refused(desk: Desk) -> None:
    (desk.folder / "bad.toml").write_bytes(b"\x00\xff\x81")
    assert "not TOML" in desk.refused("run", "bad.toml", "--json")
    assert "no such file" in desk.refused("run", "missing.toml", "--json")
    assert "directory" in desk.refused("run", str(desk.folder), "--json")


@pytest.mark.parametrize("words", [("rn",), ("run",), ("run", "x", "--on", "moon"), ("run", "x", "--bogus")])
def test_a_slip_at_the_command_line_takes_two_lines(desk: Desk, words: tuple[str, ...]) -> None:
    assert "--help" in desk.refused(*words).splitlines()[1]


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "n"), [("hypercube", 6), ("regular:3", 5), ("two-cliques", 7), ("ring", 0), ("ring", 1)]
)
def test_a_size_that_the_family_has_not_names_the_sizes_that_it_has(desk: Desk, graph: str, n: int) -> None:
    text = desk.set(f"topology.graph={graph}", f"topology.n={n}")
    assert f"has no form with {n} {'node' if n == 1 else 'nodes'}\n" in text and "Nearest sizes" in text


def test_a_disconnected_graph_is_refused(desk: Desk) -> None:
    (desk.folder / "two.edges").write_text("0 1\n2 3\n")
    assert "falls into 2 components" in desk.set("topology.graph=./two.edges")


def test_an_edge_list_with_a_hole_is_refused(desk: Desk) -> None:
    (desk.folder / "hole.edges").write_text("0 1\n1 2\n2 4\n4 0\n")
    assert "node 3 is missing" in desk.set("topology.graph=./hole.edges")


def test_weights_that_do_not_sum_to_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sum"):
        Mixing.from_matrix([[0.5, 0.4], [0.4, 0.5]])
    (tmp_path / "heavy.edges").write_text("0 1 0.8\n1 2 0.8\n2 0 0.1\n")
    with pytest.raises(ConfigError):
        load_weighted(tmp_path / "heavy.edges")


# --- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ('{kind="dirichlet",alhpa=0.1}', "Did you mean 'alpha'?"),
        ('{kind="shard",shards_per_peer=1000}', "empty partition"),
        ('{kind="natural"}', "no groups"),
        ('{kind="iid",seed=3}', "unknown key 'seed'"),
        ('{kind="iid",labels=3}', "unknown key 'labels'"),
        ("{}", "no kind"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(desk: Desk, partition: str, says: str) -> None:
    assert says in desk.set(f"data.partition={partition}", file="learning.toml")


def test_a_peer_without_examples_is_refused(desk: Desk) -> None:
    assert "empty partition" in desk.set("topology.n=2000", file="learning.toml")


def test_a_corrupt_data_file_is_refused(desk: Desk) -> None:
    """Not a zip; pickled objects; numbers that are none; a label that is none; a cut gzip; a wrong row; no text."""
    folder = desk.folder
    (folder / "zip.npz").write_bytes(b"PK\x03\x04garbage")
    np.savez(folder / "objects.npz", x=np.array([object()] * 4, dtype=object), y=np.zeros(4, int))
    np.savez(folder / "nan.npz", x=np.full((20, 3), np.nan), y=np.zeros(20, int))
    np.savez(folder / "label.npz", x=np.zeros((20, 3)), y=np.full(20, np.nan))
    (folder / "cells.csv").write_text("a,b,label\n1,2\n")
    (folder / "word.csv").write_text("a,b,label\n1,x,0\n2,3,1\n")
    (folder / "mnist").mkdir()
    packed = gzip.compress(b"\x00\x00\x08\x03" + bytes(5000))
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "mnist" / "train-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x05\x01")
    for source in (
        "npz:zip.npz",
        "npz:objects.npz",
        "npz:nan.npz",
        "npz:label.npz",
        "npz:missing.npz",
        "csv:cells.csv?label=label",
        "csv:word.csv?label=label",
        "csv:zip.npz?label=label",
        "csv:word.csv?label=lable",
        "mnist:mnist",
        "text:cells.csv",
    ):
        text = desk.set(f"data.source={source}", file="learning.toml")
        assert "error: " in text and not (folder / "out").exists(), source


def test_the_users_own_print_does_not_disturb_json(desk: Desk) -> None:
    (desk.folder / "talkative.py").write_text(
        "import numpy as np\nprint('imported')\n"
        "def data():\n    print('called')\n    return np.eye(40, dtype='float32'), np.arange(40) % 2\n"
    )
    said = desk.run("run", "learning.toml", "--json", "--out", "out", "--set", "data.source=talkative:data")
    assert said.code == 0, said
    assert json.loads(said.out)["status"] == "finished"
    assert "imported" in said.err and "called" in said.err


# --- where it goes ------------------------------------------------------------------------------------------------


@pytest.mark.sockets
def test_a_folder_that_holds_something_is_refused(desk: Desk) -> None:
    for driver in ("sim", "stacked", "local"):
        text = desk.refused("run", "experiment.toml", "--on", driver, "--out", ".", "--json")
        assert "not empty" in text


@pytest.mark.parametrize("out", ["experiment.toml", "experiment.toml/below", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused(desk: Desk, out: str) -> None:
    assert "--out" in desk.refused("run", "experiment.toml", "--out", out, "--json")


@pytest.mark.sockets
def test_a_full_disk_ends_the_run_and_it_does_not_look_finished(tmp_path: Path) -> None:
    """A limit on the size of files is refused by the system as a full disk is: write fails with an OSError."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    experiment(tmp_path, rounds=200)
    # Python would leave bytecode of 2 000 bytes behind, which no later process of the suite could import.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = ["run", "experiment.toml", "--out", "out", "--json"]
    said = finish(start(run, tmp_path, preexec_fn=limit, env=environment))
    assert said.code == 2 and said.out == "" and len(said.errors) == 1 and "Traceback" not in said.err, said
    assert (tmp_path / "out" / "INCOMPLETE").exists() and not (tmp_path / "out" / "summary.json").exists()


# --- peers --------------------------------------------------------------------------------------------------------


class Machines(Desk):
    """The folder of somebody who starts peer 0 of two."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, monkeypatch, capsys)
        experiment(folder, n=2)
        self.identities = [Identity.new(), Identity.new()]
        self.identities[0].save(folder / "peer.key")
        self.ports = free_ports(2)
        self.write(self.ports)

    def write(self, ports: list[int]) -> None:
        where = [Endpoint(f"tcp://127.0.0.1:{p}", i.public) for p, i in zip(ports, self.identities, strict=True)]
        (self.folder / "endpoints.toml").write_text(endpoints_text(enumerate(where)))

    def peer(self, *more: str, node: int = 0, code: int = 2) -> str:
        words = ("peer", "experiment.toml", "--id", str(node), "--endpoints", "endpoints.toml", "--out", "out")
        said = self.run(*words, *more)
        assert (said.code, said.out, len(said.errors)) == (code, "", 1), said
        assert "Traceback" not in said.err and "unexpected" not in said.err
        return said.err


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machines:
    return Machines(tmp_path, monkeypatch, capsys)


@pytest.mark.sockets
def test_a_port_in_use_is_a_network_error(machines: Machines) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        machines.write([holder.getsockname()[1], machines.ports[1]])
        text = machines.peer(code=3)
    assert "address already in use" in text and "another port" in text
    assert json.loads((machines.folder / "out" / "ended.json").read_text())["status"] == "failed"


@pytest.mark.sockets
def test_an_address_that_is_not_ours_is_a_network_error(machines: Machines) -> None:
    assert "cannot listen" in machines.peer("--bind", "nonsense", code=3)


@pytest.mark.sockets
def test_the_wrong_key_is_refused(machines: Machines) -> None:
    assert "is not the key" in machines.peer(node=1)
    Identity.new().save(machines.folder / "other.key")
    assert "is not the key" in machines.peer("--key", "other.key")
    assert "no key there" in machines.peer("--key", "missing.key")


@pytest.mark.sockets
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"public = 'x'\n", b"[[", b"public = 'a'\nsecret = 'b'\n"])
def test_a_corrupt_key_file_is_refused(machines: Machines, content: bytes) -> None:
    path = machines.folder / "bad.key"
    path.write_bytes(content)
    path.chmod(0o600)
    assert "not a key pair" in machines.peer("--key", "bad.key")


@pytest.mark.sockets
def test_a_key_file_that_others_can_read_is_refused(machines: Machines) -> None:
    path = machines.folder / "peer.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    assert "others can read" in machines.peer()


@pytest.mark.sockets
def test_endpoints_must_name_every_peer_once_with_a_real_address(machines: Machines) -> None:
    path = machines.folder / "endpoints.toml"
    whole = path.read_text()
    for broken in (
        whole.replace("id = 1", "id = 0"),
        whole.replace("id = 1", "id = 7"),
        whole.replace("id = 1", "id = -1"),
        whole.replace(f":{machines.ports[1]}", ":99999"),
        whole.replace(f":{machines.ports[1]}", ":0"),
        whole.replace("tcp://", "http://"),
        whole.replace(machines.identities[1].public, machines.identities[0].public),
        whole.replace(machines.identities[1].public, "short"),
        whole.replace("address", "adress"),
        whole.rpartition("[[peer]]")[0],
        "[[",
    ):
        path.write_text(broken)
        machines.peer()
    path.unlink()
    machines.peer()


@pytest.mark.sockets
def test_a_peer_that_the_graph_has_not_is_refused(machines: Machines) -> None:
    assert "there is no peer 7" in machines.peer(node=7)


# --- collect ------------------------------------------------------------------------------------------------------


def test_folders_that_are_no_peers_are_refused(desk: Desk) -> None:
    (desk.folder / "empty").mkdir()
    (desk.folder / "odd").mkdir()
    (desk.folder / "odd" / "endpoint.toml").write_text("[[peer]]\nkey = 'x'\n")
    for folder in ("empty", "odd", "missing"):
        assert "not the folder of a peer" in desk.refused("collect", "experiment.toml", folder, "--out", "out")


def test_one_broken_summary_does_not_hide_the_other_runs(desk: Desk) -> None:
    (desk.folder / "runs" / "broken").mkdir(parents=True)
    (desk.folder / "runs" / "broken" / "summary.json").write_text("{")
    said = desk.run("runs")
    assert said.code == 0 and "unreadable" in said.out
