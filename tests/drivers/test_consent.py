"""Nothing of others runs, and nothing is written under a name of theirs, before a person has agreed to it."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest
import tomli_w
from commands import finish, in_process, start
from spying import Seen, spying

from fedgossip import ConfigError, load_model, simulate
from fedgossip.base.errors import NetworkError, PeerError
from fedgossip.base.kernels import PYTHON
from fedgossip.cli.people import join as joining_command
from fedgossip.cli.people.join import OwnMachine
from fedgossip.core.messages import Proposal
from fedgossip.core.run_format import PROPOSED_FILES, TEST_SET
from fedgossip.data import custom
from fedgossip.data.custom import NamesCode, code_by_key, code_in, code_of, keys_of_code
from fedgossip.drivers import invite_joining, proposals
from fedgossip.drivers.clusters import placing
from fedgossip.drivers.clusters.meeting import Resources
from fedgossip.drivers.clusters.placing import saved_resources
from fedgossip.drivers.proposals import proposal_of, shared
from fedgossip.drivers.replay import machine_of
from fedgossip.experiment import load_experiment
from fedgossip.experiment.meanings import keys
from fedgossip.experiment.reading import RUN_KINDS
from fedgossip.lab.edge.onnx_model import exported_facts
from fedgossip.learning.models import model_files
from fedgossip.net import sockets
from fedgossip.net.identity import Identity
from fedgossip.net.invites.invitation import Invitation, new_secret, written
from fedgossip.plans import compose
from fedgossip.report.board.pages import Catalogue
from fedgossip.runs.trace import Opening

EVIL = "from pathlib import Path\nPath(__file__).with_name('RAN').write_text('ran')\n"
EVERY = {kind.experiment: tuple(keys_of_code(kind.experiment)) for kind in RUN_KINDS.values()}
LOGITS_KEYS = ("data.common", "model.sources")
"""Keys of methods that exchange logits."""
NEVER_SENT = {"adversary.attack"}
"""Keys of sections that no invite carries."""
KEYS = sorted(
    {(of.kind, key) for of, found in EVERY.items() for key in found if key not in NEVER_SENT}
    - {("parallel", "train.optimizer")}  # the steps are the method's
    - {("parallel", key) for key in LOGITS_KEYS}
)
LEAST: dict[str, dict[str, Any]] = {
    "topology": {"topology": {"graph": "ring", "n": 3}},
    "coordinator": {"coordinator": {"clients": 3}},
    "parallel": {"parallel": {"method": "parameter-server", "workers": 3}},
}


def content_with(kind: str, key: str, value: str) -> dict[str, Any]:
    """Return an experiment whose `key`, of dotted sections, is `value`, or a list or table of it."""
    content: dict[str, Any] = json.loads(json.dumps(LEAST[kind]))
    *sections, last = key.split(".")
    place = content
    for section in sections:
        place = place.setdefault(section, {})
    if last == "options":
        place["name"] = "choco"
    place[last] = {"partition": {"kind": value}, "options": {"codec": value}}.get(
        last, [value] if last in ("metrics", "filters", "sources") else value
    )
    if key in LOGITS_KEYS:
        section, name = ("coordinator", "algorithm") if kind == "coordinator" else ("algorithm", "personal")
        content.setdefault(section, {})[name] = "feddf"
    return content


def proposed(content: dict[str, Any], **more: Any) -> Proposal:
    return replace(Proposal(tomli_w.dumps(content), "", "", 650, "float32"), **more)


# --- what names code --------------------------------------------------------------------------------------------------


def test_every_key_that_may_name_code_is_declared_so() -> None:
    """The meaning of a key, which the reference prints, says module:function or module:Class; its type says it too."""
    told = {name for name, found in keys().items() if any("module:" in one.meaning for one in found)}
    sources = {"data.test", *LOGITS_KEYS}  # their meanings name the key that says it
    assert told | sources == {key for found in EVERY.values() for key in found}


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_code_that_any_key_names_is_compared_between_organiser_and_joiner(
    kind: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = content_with(kind, key, "mine:thing")
    with pytest.raises(ConfigError, match=r"mine\.py, which is not here"):
        proposals.check_code(one := proposed(content), proposals.experiment_of(one, tmp_path / "in"))
    (tmp_path / "mine.py").write_text(EVIL)
    one = proposed(content, code=code_of(["mine:thing"]))
    assert proposals.check_code(one, proposals.experiment_of(one, tmp_path / "in")) == ["mine:thing"]
    (tmp_path / "mine.py").write_text(f"{EVIL}# another\n")
    with pytest.raises(ConfigError, match=r"mine\.py, which is another here"):
        proposals.check_code(one, proposals.experiment_of(one, tmp_path / "in"))
    assert not (tmp_path / "RAN").exists()


def test_a_new_key_is_found_by_its_type_alone() -> None:
    class Inner(msgspec.Struct):
        chosen: Annotated[list[str], NamesCode({"built"}.__contains__)] = msgspec.field(default_factory=list)

    class Outer(msgspec.Struct):
        plain: str = "mine:not"
        inner: Inner = msgspec.field(default_factory=Inner)

    held = Outer(inner=Inner(["built:in", "mine:f?better=lower", "word"]))
    globals().update(Inner=Inner)  # hints of this module are texts
    assert list(code_by_key(held)) == [("inner.chosen", "mine:f")]
    assert code_in(load_experiment({"topology": {"graph": "ring", "n": 3}})) == []


@pytest.mark.parametrize("source", ["os.path", "os:", ":f", "../evil:model", "a-b:model", "joined/x:alg"])
def test_only_what_is_looked_for_as_code_can_be_imported(source: str) -> None:
    with pytest.raises(ConfigError, match="is no function"):
        custom.function(source)


GML = "graph [ node [ id 0 ] node [ id 1 ] node [ id 2 ] edge [ source 0 target 1 ] edge [ source 1 target 2 ] ]"


# --- an invite --------------------------------------------------------------------------------------------------------


class Asked:
    """One who is asked to take part, in a folder of their own, and has not answered."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        self.invitation = Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 0)
        self.place = invite_joining.folder_of(folder / "joined", self.invitation)

    def shown(self, proposal: Proposal, capsys: pytest.CaptureFixture[str], *, yes: bool = False) -> tuple[str, Seen]:
        own = OwnMachine("", "", None, None, self.place.path / "policy.toml", None, None)
        with spying() as seen:
            try:
                joining_command._agreed(proposal, self.invitation, self.place, own, yes=yes)
            except ConfigError as error:
                return f"{capsys.readouterr().err}\n{error}", seen
        return capsys.readouterr().err, seen


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(tmp_path, monkeypatch)


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_an_invite_is_shown_without_running_or_writing_anything(
    kind: str, key: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    """Honest code too, which is here and the same: it is named, as "from your mine.py"."""
    (asked.folder / "mine.py").write_text(EVIL)
    content = content_with(kind, key, "mine:thing")
    if kind == "parallel":
        content |= {"task": {"kind": "sparse-logistic", "dim": 100}} if key.startswith("parallel") else {}
    said, seen = asked.shown(proposed(content, code=code_of(["mine:thing"])), capsys)
    assert "there is no terminal to confirm at" in said and "from your mine.py" in said
    assert "mine" not in seen.imported and not (asked.folder / "RAN").exists()
    assert seen.outside(seen.ran) == [] and seen.changed == [] and seen.started == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"parameters": 2**60}, "more than this machine can hold"),
        ({"dtype": "float32\x1b[2J"}, "not of float32 or float64"),
        ({"test": "t.csv", "test_bytes": 1 << 40}, "at most 16,777,216 travel"),
    ],
)
def test_sizes_that_no_run_can_have_are_refused_before_anybody_is_asked(
    more: dict[str, Any], why: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    said, _ = asked.shown(proposed(content_with("topology", "topology.graph", "ring"), **more), capsys)
    assert why in said and "nobody is there" not in said and "\x1b" not in said


def test_a_machine_that_may_not_open_the_files_takes_no_seat(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    one = proposed({"topology": {"graph": "complete", "n": 100}, "task": {"kind": "averaging"}, "rounds": 1})
    plan = compose.plan(proposals.experiment_of(one, asked.folder))
    own = OwnMachine("", "", None, None, asked.place.path / "policy.toml", None, None)
    client: Any = SimpleNamespace(ask_all=list)  # requests parts of a common test set, of which there is none
    monkeypatch.setattr(sockets, "raise_open_files", lambda: 64)
    with pytest.raises(NetworkError, match=r"99 partners need \d+ open files"):
        joining_command._take_part(client, one, plan, asked.place, own, None, "fedgossip join")


@pytest.mark.parametrize(
    "name", ["evil.py", "mine.GML", "peer.key", "policy.toml", "experiment.toml", "port", "endpoints.toml"]
)
def test_a_graph_that_comes_with_an_invite_gets_a_name_of_ours_and_not_before_a_yes(
    name: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    key = (asked.place.path / "peer.key").read_bytes()
    one = proposed({"topology": {"graph": name, "n": 3}}, graph=GML if name.endswith(".GML") else "0 1\n1 2\n2 0\n")
    said, seen = asked.shown(one, capsys)
    assert "there is no terminal to confirm at" in said and seen.changed == [] and seen.started == []
    asked.shown(one, capsys, yes=True)
    kept = {path.relative_to(asked.place.path).as_posix() for path in asked.place.path.rglob("*") if path.is_file()}
    suffix = {"toml": "toml", "GML": "gml"}.get(name.rpartition(".")[2], "txt")
    assert kept == {"owner.mark", "peer.key", "proposal.hash", f"proposed-files/graph.{suffix}"}
    assert (asked.place.path / "peer.key").read_bytes() == key
    assert not custom.is_function(f"joined.{asked.invitation.mark}.proposed-files.graph:f")


def test_one_invite_is_for_one_proposal_also_where_a_script_says_yes(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later proposal, or an old one again, to one that has agreed; by its graph or its test set alone too."""
    first = proposed({"topology": {"graph": "g.txt", "n": 3}}, graph="0 1\n1 2\n2 0\n")
    asked.shown(first, capsys, yes=True)
    graph = (asked.place.path / "proposed-files" / "graph.txt").read_text()
    asked.shown(first, capsys, yes=True)  # as after an interruption
    for other in (
        proposed({"topology": {"graph": "ring", "n": 3}, "rounds": 100_000}),
        replace(first, graph="0 1\n1 2\n"),
        replace(first, test_digest="0" * 64),
    ):
        with pytest.raises(PeerError, match="proposes another run"):
            asked.shown(other, capsys, yes=True)
        assert (asked.place.path / "proposed-files" / "graph.txt").read_text() == graph


def test_code_cannot_come_from_where_files_of_invites_are_kept(asked: Asked) -> None:
    planted = asked.place.path / "evil.py"
    planted.write_text(EVIL)
    name = f"joined.{asked.invitation.mark}.evil:alg"
    content = {"topology": {"graph": "ring", "n": 3}, "algorithm": {"name": name}}
    one = proposed(content, code=code_of([name]))
    with pytest.raises(ConfigError, match="a folder for files of invites"):
        proposals.check_code(one, proposals.experiment_of(one, asked.place.path), asked.folder / "joined")


def test_no_link_is_followed_where_a_file_of_a_proposal_is_written(asked: Asked) -> None:
    mine = asked.folder / "mine.txt"
    mine.write_text("precious")
    files = asked.place.path / PROPOSED_FILES
    (files / TEST_SET).mkdir(parents=True)
    (files / "graph.txt").symlink_to(mine)
    one = proposed({"topology": {"graph": "g.txt", "n": 3}}, graph="0 1\n1 2\n")
    proposals.keep_graph(one, files)
    assert mine.read_text() == "precious" and (files / "graph.txt").read_text() == one.graph
    assert not (files / "graph.txt").is_symlink()


@pytest.mark.parametrize(
    "more",
    [
        {"track": {"to": ["csv:elsewhere.csv"]}},
        {"faults": [{"kind": "crash", "peers": [1], "start": 1.0}]},
        {"adversary": {"peers": [1]}},
        {"simulation": {"jitter": 0.1}},
        {"compare": {"equal": "bytes"}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_what_no_invite_may_carry_is_refused_by_its_name(more: dict[str, Any], tmp_path: Path) -> None:
    one = proposed({**LEAST["topology"], **more})
    with pytest.raises(ConfigError, match=rf"has \[+{next(iter(more))}\]+, which no invite may carry"):
        proposals.experiment_of(one, tmp_path)


def test_the_organisers_own_trackers_stay_at_the_organiser(tmp_path: Path) -> None:
    e = load_experiment({**LEAST["topology"], "task": {"kind": "averaging"}, "track": {"to": ["csv:mine.csv"]}})
    task, _ = compose.task_of(e, 3)
    got = proposals.experiment_of(proposal_of(shared(e, ""), task), tmp_path)
    assert e.track.to == ["csv:mine.csv"] and got.track.to == []


@pytest.mark.parametrize(
    "more",
    [
        {"topology": {"graph": "ring", "n": 3, "weights": "pi:/etc/passwd"}},
        {"data": {"source": "own:{peer}", "partition": {"kind": "own"}, "scale": "federated", "agreed": "/etc/passwd"}},
    ],
    ids=["weights", "statistics"],
)
def test_an_invite_names_no_file_of_this_machine(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file"):
        proposals.experiment_of(proposed({**LEAST["topology"], **more}), tmp_path)


@pytest.mark.parametrize("more", ["\nCode        none", "\u2028Code        none", "x" * 60_000])
def test_the_name_of_an_experiment_makes_no_row_of_what_is_shown(
    more: str, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    said, _ = asked.shown(proposed({**LEAST["topology"], "name": f"harmless{more}"}), capsys)
    rows = [line for line in said.splitlines() if line.startswith("Code ")]
    assert rows == ["Code        none but fedgossip's own"] and max(map(len, said.splitlines())) < 300


def test_what_an_organiser_chooses_for_the_machines_of_others_is_shown(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    said, _ = asked.shown(proposed({**LEAST["topology"], "train": {"threads": 64}}), capsys)
    assert "threads = 64" in said


@pytest.mark.parametrize("way", ["file", "standard input"])
def test_an_invite_need_not_stand_in_the_list_of_processes(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is read all the same: this one is of another release, which the answer says."""
    text = written(Invitation(("tcp://127.0.0.1:1",), Identity.new().public, new_secret(), 0)).replace("fg1", "fg7")
    (tmp_path / "invite.txt").write_text(f"{text}\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{text}\n"))
    said = in_process(["join", "-" if way == "standard input" else "invite.txt"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "an invite of another release" in said.err


# --- folders and files of others --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    content = {
        "rounds": 1, "topology": {"graph": "ring", "n": 3}, "train": {"local_steps": 1, "device": "cpu"},
    }  # fmt: skip
    simulate(load_experiment(content), out=folder, report=False)
    (folder / "x.csv").write_text(f"{','.join(f'c{k}' for k in range(64))}\n{','.join(['1'] * 64)}\n")
    return folder


def hostile(run: Path, folder: Path, facts: dict[str, Any], experiment: dict[str, Any]) -> Path:
    """Return a copy of a run that names code; that code lies wherever it may be looked for."""
    got = folder / "got"
    shutil.copytree(run, got)
    path = got / "model" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    text = {**load_experiment(got / "experiment.toml").to_dict(), "rounds": 2}
    for section, values in experiment.items():
        text[section] = {**text[section], **values}
    (got / "experiment.toml").write_text(tomli_w.dumps(text))
    (got / "INCOMPLETE").write_text("")
    shutil.copy(Path(__file__).parents[1] / "old_runs" / "federated" / "peers" / "03" / "audit.jsonl", got)
    (got / "model" / "code").mkdir()
    for place in (folder, got, got / "model", got / "model" / "code"):
        (place / "evil.py").write_text(EVIL)
    return got


MODELS = {
    "no code": {"source": "evil:model", "code": ""},
    "code of another": {"source": "evil:model", "code": "0" * 32, "modules": ["evil.py"]},
    "installed": {"source": "antigravity:model", "code": ""},
    "below here": {"source": "got.model.code.evil:model", "code": ""},
    "loss": {"loss": "evil:loss", "code": ""},
    "metric": {"metrics": ["evil:metric?better=lower"], "code": ""},
}


@pytest.mark.parametrize("facts", MODELS.values(), ids=MODELS)
def test_what_a_model_is_made_by_decides_whether_code_runs(
    facts: dict[str, Any], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = hostile(run, tmp_path, facts, {})
    for place in (tmp_path, got, got / "model"):
        monkeypatch.chdir(place)
        with spying() as seen, pytest.raises(ConfigError, match="the model is made by code"):
            load_model(got)
        assert seen.outside(seen.ran) == [] and not {"evil", "antigravity"} & set(seen.imported)
    assert not list(tmp_path.rglob("RAN"))


def test_an_onnx_file_names_no_code(run: Path) -> None:
    facts = model_files.facts_of(run / "model")
    facts = msgspec.structs.replace(facts, loss="evil:loss", metrics=("evil:metric?better=lower",), code="x")
    assert code_in(msgspec.structs.replace(exported_facts(facts), source="softmax")) == []


NAMED = {
    "model": {"model": {"source": "evil:model"}},
    "data": {"data": {"source": "evil:data"}},
    "graph": {"topology": {"graph": "evil:graph"}},
    "weights": {"topology": {"weights": "evil:weights"}},
    "algorithm": {"algorithm": {"name": "evil:Alg"}},
    "installed": {"algorithm": {"name": "antigravity:Alg"}},
}


def commands(got: Path) -> Mapping[str, Sequence[str]]:
    """Every command that reads what somebody else has written, by its name."""
    folder, model = str(got), str(got / "model")
    experiment = f"{folder}/experiment.toml"
    return {
        "report": ["report", folder],
        "watch": ["watch", "--once", folder],
        "runs": ["runs", str(got.parent)],
        "table": ["table", folder],
        "resume": ["run", "--resume", folder],
        "dry run": ["run", "--dry-run", "--resume", folder],
        "launch": ["launch", "--resume", folder],
        "collect": ["collect", experiment, folder],
        "replay": ["replay", folder],
        "audit show": ["audit", "show", folder],
        "audit verify": ["audit", "verify", f"{folder}/audit.jsonl"],
        "release verify": ["release", "verify", f"{folder}/release.zip"],
        "release make": ["release", "make", folder, "--out", f"{folder}/r.zip"],
        "predict": ["predict", model, f"{folder}/x.csv", "--out", f"{folder}/scored.csv"],
        "evaluate": ["evaluate", model, "digits"],
        "judge": ["evaluate", model, experiment],
        "export": ["model", "export", folder, "--to", f"{folder}/o.onnx"],
        "distill": ["model", "distill", folder, "--to", "softmax", "--out", f"{folder}/small"],
        "step": ["step", folder],
        "timeline": ["timeline", folder],
        "plot": ["plot", folder, "--list"],
        "export of a log": ["audit", "export", f"{folder}/audit.jsonl", "--out", f"{folder}/log.csv"],
        "withdraw": ["release", "withdraw", f"{folder}/release.zip", "--site", "0"],
        "bench": ["model", "bench", folder],
        "membership": ["privacy", "membership", model, experiment, "--id", "0"],
    }


BY_EXPERIMENT = ("resume", "dry run", "collect", "judge", "distill", "membership")
BY_MODEL = ("predict", "evaluate", "export", "bench")
EVERYTHING = tuple(
    name for name in commands(Path()) if name not in ("export", "bench")
)  # which takes seconds where it is not refused


@pytest.mark.parametrize("named", NAMED)
def test_no_command_that_reads_a_strangers_folder_runs_or_opens_anything_outside_of_it(
    named: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("matplotlib.font_manager")  # the first of an account starts fc-list
    got = hostile(run, tmp_path, MODELS["no code"] if named == "model" else {}, NAMED[named])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    libraries = (tmp_path, Path.home() / ".cache", Path.home() / ".config")  # where they keep what they found
    all_of_them = {"graph": EVERYTHING, "model": (*BY_MODEL, *BY_EXPERIMENT)}
    for name in all_of_them.get(named, BY_EXPERIMENT):
        with spying() as seen:
            in_process(commands(got)[name], tmp_path / "here", monkeypatch, capsys)
        assert seen.outside(seen.ran) == [], name
        assert not {"evil", "antigravity"} & set(seen.imported), name
        assert seen.outside(seen.read, *libraries) == [], name
        assert seen.outside(seen.changed, *libraries) == [] and seen.started == [], name
    with spying() as seen:
        Catalogue(tmp_path).look(1.0)
    assert seen.outside(seen.ran) == [] and seen.outside(seen.changed, tmp_path) == []
    assert not list(tmp_path.rglob("RAN"))


NEED_A_YES = (["run", "--resume", "got"], ["collect", "got/experiment.toml", "got"])


@pytest.mark.parametrize("words", NEED_A_YES, ids=lambda one: one[0])
def test_code_that_a_folder_names_runs_when_a_person_allows_it(
    words: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got = hostile(run, tmp_path, {}, {"topology": {"graph": "evil:graph"}})
    refused = in_process(words, tmp_path, monkeypatch, capsys)
    assert refused.code == 2 and "it names code that would run" in refused.err and "evil:graph" in refused.err
    assert "--run-code" in refused.err and not (tmp_path / "RAN").exists()
    in_process([*words, "--run-code"], tmp_path, monkeypatch, capsys)
    assert (tmp_path / "RAN").exists() and not (got / "RAN").exists()  # the user's own module, and not the folder's
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("command", ["show", "diff", "approve"])
def test_a_plan_is_read_without_the_code_that_it_is_of(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(run, tmp_path, {}, {"topology": {"graph": "evil:graph"}})
    refused = in_process(["plan", command, "got/experiment.toml"], tmp_path, monkeypatch, capsys)
    assert refused.code == 2 and "the plan is of code that would run to be shown: evil:graph" in refused.err
    assert "--run-code" in refused.err and not list(tmp_path.rglob("RAN"))


def test_a_given_experiment_sends_the_record_nowhere_before_a_person_allows_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got = hostile(run, tmp_path, {}, {})
    text = load_experiment(got / "experiment.toml").to_dict() | {"track": {"to": [f"csv:{tmp_path / 'elsewhere.csv'}"]}}
    (got / "experiment.toml").write_text(tomli_w.dumps(text))
    for words in NEED_A_YES:
        said = in_process(words, tmp_path, monkeypatch, capsys)
        assert said.code == 2 and "a place that would be sent the record: csv:" in said.err
        assert not (tmp_path / "elsewhere.csv").exists()
    (got / "experiment.toml").write_text(tomli_w.dumps(text | {"track": {"to": ["csv", "tensorboard", "wandb"]}}))
    assert load_experiment(got / "experiment.toml").reaches == ["wandb"]


def test_the_script_that_a_launched_run_names_runs_when_a_person_allows_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got = hostile(run, tmp_path, {}, {"task": {"kind": "averaging"}})
    (got / "peers").mkdir()
    (got / "launched.json").write_text(
        json.dumps({"script": str(got / "evil.py"), "arguments": [], "folder": str(got)})
    )
    said = in_process(["launch", "--resume", "got"], tmp_path, monkeypatch, capsys)
    assert said.code == 2 and "its folder names the script" in said.err and "--run-code" in said.err


CLUSTERS = {"engine": "slurm", "partition": "x\ntouch RAN"}, {"engine": "ray", "address": "192.0.2.1:6379"}


@pytest.mark.parametrize("wanted", CLUSTERS, ids=lambda one: str(one["engine"]))
def test_a_folder_of_somebody_else_chooses_no_cluster(
    wanted: dict[str, str],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Which would receive the run and answer with pickles; a line of a partition's name would be one of a script."""
    got = hostile(run, tmp_path, {}, {})
    for content in (wanted, {"resources": wanted, "mark": "0" * 64}, {"resources": wanted, "mark": ""}):
        (got / "placed.json").write_text(json.dumps(content))
        with spying() as seen:
            said = in_process(["launch", "--resume", "got"], tmp_path, monkeypatch, capsys)
        assert said.code == 8 and "Name the cluster again" in said.err and seen.started == [], said
    assert saved_resources(_placed(tmp_path)).partition == "mine", "one's own is known again"


def _placed(folder: Path) -> Path:
    placing._keep(folder, Resources("slurm", partition="mine"))
    return folder


def test_a_trace_is_replayed_without_the_code_that_it_names() -> None:
    content = {"topology": {"graph": "ring", "n": 3}, "algorithm": {"name": "evil:Alg"}}
    opening = Opening.__new__(Opening)
    object.__setattr__(opening, "node", 0)
    object.__setattr__(opening, "experiment", content)
    with pytest.raises(ConfigError, match="the trace of peer 0: it names code that would run: evil:Alg"):
        machine_of(opening)


# --- other processes and programs -------------------------------------------------------------------------------------

RUN = 'rounds = 1\n[task]\nkind = "quadratic"\n[topology]\ngraph = "ring"\nn = 3\n'


@pytest.mark.sockets
def test_processes_that_a_command_starts_import_nothing_from_the_folder_it_is_typed_in(tmp_path: Path) -> None:
    """A folder of somebody else's, with modules in the names of libraries; programs of its own come first in PATH."""
    (tmp_path / "e.toml").write_text(RUN)
    planted = "from pathlib import Path\nPath(__file__).parent.joinpath('RAN').write_text(__name__)\n"
    for name in ("fedgossip", "numpy", "msgspec", "zmq", "sitecustomize", "signal"):
        (tmp_path / f"{name}.py").write_text(planted)
    for name in ("xdg-open", "www-browser", "git", "sinfo", "c++", "g++", "uname", "python", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\ntouch RAN\n")
        (tmp_path / name).chmod(0o700)
    hostile = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BROWSER": str(tmp_path / "www-browser")}
    command = (*PYTHON, "-m", "fedgossip")
    for words in (["run", "e.toml", "--on", "local", "--out", "out"], ["run", "--resume", "out", "--set", "rounds=2"]):
        said = finish(start([*words, "--no-report"], tmp_path, command, env={**os.environ, **hostile}))
        assert said.code == 0 and not (tmp_path / "RAN").exists(), (words, said.err)


def test_every_process_of_ours_is_started_without_the_folder_of_its_start() -> None:
    """`sys.executable` stands beside a person's own script alone, which finds the modules beside itself."""
    package = Path(custom.__file__).parents[1]
    found = {path.name for path in package.rglob("*.py") if re.search(r'\[sys.executable(?!, "-I")', path.read_text())}
    assert found == {"invited.py"}
