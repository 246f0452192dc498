"""Files of others are opened by `outside_files` alone: regular, bounded, not waited for, no link out of the folder."""

from __future__ import annotations

import ast
import itertools
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import experiment, typed
from rooms import FILES, PACKAGE

from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, ResumeError
from fedgossip.base.untrusted_text import quoted
from fedgossip.core.run_format import MODEL_FACTS
from fedgossip.drivers.resume import resume
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import load_experiment
from fedgossip.learning.models import model_files
from fedgossip.plans import compose
from fedgossip.report.page.reading import read_run

OPENING = {
    "read_text",
    "read_bytes",
    "fdopen",
    "memory_map",
    "safe_open",
    "load_file",
    "memmap",
    "copyfile",
    "copytree",
}
OPENING |= {"fromfile", "genfromtxt", "loadtxt", "is_zipfile", "ZipFile", "load_workbook", "ParquetFile", "open_stream"}
OPENING |= {"mmread", "run_path", "load_cert_chain", "load_verify_locations", "open_memmap"}
DOOR = "outside_files"
BY_WHOSE = {
    "np.load",
    "numpy.load",
    "torch.load",
    "onnx.load",
    "sqlite3.connect",
    "json.load",
    "tomllib.load",
    "pickle.load",
    "runtime.InferenceSession",
    "shutil.copy",
    "shutil.copy2",
    "Path.open",
    "io.open",
}

NOT_FROM_OUTSIDE = {
    # files of this package, of torch or of the kernel
    "report/board/pages.py": 1, "cli/init.py": 2, "cli/text.py": 2, "core/records.py": 1, "core/glossary.py": 1,
    "base/kernels.py": 2, "base/machine_memory.py": 1, "base/version.py": 1, "data/bundled.py": 1,
    "learning/one_model/devices.py": 1,
    "net/streams/sealing.py": 1, "report/page/markup.py": 3,
    "lab/repro/published.py": 1, "lab/lectures/topics.py": 1, "report/watch/local_server.py": 2,
    # the sources of modules that this process has imported already
    "learning/models/loaded_model.py": 1,
    # locks, folders, and files that are written: what is opened is not read
    "drivers/fork_server.py": 1, "learning/one_model/sharing.py": 4,
    "drivers/loops/seats.py": 2, "net/identity.py": 2, "base/owner_files.py": 5, "plans/federated/policy.py": 2,
    "runs/run_directory.py": 1, "net/pair_folder.py": 1, "runs/incarnations.py": 1, "audit/transcript.py": 1,
    # bytes that the door has read, and a file that was just written
    "lab/edge/onnx_model.py": 1, "lab/edge/compression.py": 1,
    # what the door has opened, and a database, which it has checked
    "data/arrow.py": 4, "data/office_tables.py": 4, "sites/releases/released.py": 2,
    # a script and certificates that the command itself names
    "drivers/loops/first_model.py": 1, "net/relays/relay.py": 1, "net/relays/web_way.py": 2,
    # streams that are open already, or not of files
    "data/agreed/suppression.py": 1,
    "data/cifar.py": 1, "data/idx.py": 1, "data/images.py": 1,
    "net/hub/client.py": 1, "net/links/outbox.py": 2, "net/streams/sealed_way.py": 2, "net/hub/server.py": 1,
    "simulation/simulator.py": 1,
}  # fmt: skip
"""How many calls that could open a file are in a module beside the door; and why they may be."""


def _opens(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not any(name in text for name in (*OPENING, *BY_WHOSE, "open(")):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        whole = ast.unparse(node.func)
        if (name in OPENING or name == "open" or whole in BY_WHOSE) and DOOR not in whole:
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


def test_no_module_opens_a_file_beside_the_door() -> None:
    """Read it by fedgossip.base.outside_files; where nobody else can have written it, say so above."""
    found = {path.relative_to(PACKAGE).as_posix(): list(_opens(path)) for path in FILES if path.stem != DOOR}
    beside = {name: calls for name, calls in found.items() if len(calls) != NOT_FROM_OUTSIDE.get(name, 0)}
    assert beside == {}


# --- what the door refuses --------------------------------------------------------------------------------------------


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 << 30)


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (_pipe, "a pipe, and a file was expected"),
        (_device, "a link that leads out of its folder"),
        (_link_out, "a link that leads out of its folder"),
        (_sparse, "42,949,672,960 bytes, and at most"),
        (Path.mkdir, "a directory, and a file was expected"),
    ],
)
def test_what_is_no_bounded_regular_file_is_refused_at_once(tmp_path: Path, hostile, why: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "file"
    hostile(path)
    with pytest.raises(OSError, match=why):
        outside_files.read_bytes(path, outside_files.LARGE)


def test_a_link_inside_its_folder_is_followed_and_one_that_was_named_anywhere(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data/key").write_text("a")  # as Kubernetes mounts secrets
    (tmp_path / "key").symlink_to("..data/key")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/key").symlink_to("../key")
    assert outside_files.read_text(tmp_path / "key") == "a"
    assert outside_files.read_text(outside_files.resolve(tmp_path / "inner/key")) == "a"
    assert outside_files.read_text(tmp_path / "inner/key", within=tmp_path) == "a"
    with pytest.raises(OSError, match="out of its folder"):
        outside_files.read_text(tmp_path / "inner/key")


def test_a_library_that_opens_by_name_opens_what_was_checked(tmp_path: Path) -> None:
    path, other = tmp_path / "table", tmp_path / "other"
    path.write_text("checked")
    other.write_text("replaced")
    with outside_files.open_by_name(path) as name:
        other.replace(path)
        assert Path(name).read_text() == "checked"
    with pytest.raises(OSError, match="a directory"), outside_files.open_by_name(tmp_path):
        pass


@pytest.mark.parametrize("name", ["run/key", "run", "run/link"])
def test_a_link_that_is_put_there_after_the_check_opens_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("given/run", "mine/run"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "key").write_text(folder)
    path = tmp_path / "given" / ("run/key" if name == "run" else name)
    if name == "run/link":
        path.symlink_to("key")  # which is followed, since it stays inside
    assert outside_files.read_text(path, within=tmp_path / "given") == "given/run"
    check, swapped = outside_files._check_kind, tmp_path / "given" / name.replace("link", "key")

    def raced(*given: Any) -> None:
        check(*given)
        if not swapped.is_symlink():
            swapped.rename(tmp_path / "aside")
            swapped.symlink_to(tmp_path / "mine" / swapped.relative_to(tmp_path / "given"))

    monkeypatch.setattr(outside_files, "_check_kind", raced)
    with pytest.raises(OSError, match="a link, and a file was expected"):
        outside_files.read_text(path, within=tmp_path / "given")


@pytest.mark.parametrize("name", ["roles.json.part", "INCOMPLETE", "metrics.jsonl", "model", "peers/00/snapshots"])
def test_going_on_in_a_folder_of_others_writes_and_deletes_nothing_outside_it(tmp_path: Path, name: str) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("mine")
    what = load_experiment(experiment(tmp_path))
    simulate_plan(compose.plan(what), out=run, report=False)
    link = run / name
    if link.exists():
        link.rename(run / "aside")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine if name in ("model", "peers/00/snapshots") else mine / "precious")
    more = msgspec.structs.replace(what, rounds=what.rounds + 1)
    with pytest.raises(ResumeError, match=f"{name}: a link that leads out of its folder"):
        resume(run, more, report=False)
    with pytest.raises(ConfigError, match=f"{name}: a link that leads out of its folder"):
        read_run(run)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]


PEERS = ["collect", "experiment.toml", "given/peers", "--out", "whole"]
IN_A_FOLDER = {
    "watch": (["watch", "--once", "given"], "given/peers"),
    "watch of a peer": (["watch", "--once", "given/peers/00"], "given/peers/00/snapshots"),
    "collect": (PEERS, "given/peers/00/snapshots"),
    "collect of a folder elsewhere": (PEERS, "given/peers/01"),
    "compare": (["compare", "experiment.toml", "--paradigms", "gossip", "--out", "given"], "given/gossip-w4-s1"),
    "sweep": (["report", "given"], "given/table.parquet.part"),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_A_FOLDER)
def test_a_link_that_leads_out_of_a_given_folder_is_refused_before_it_is_followed(what: str, tmp_path: Path) -> None:
    words, name = IN_A_FOLDER[what]
    experiment(tmp_path)
    for folder in ("mine", "given/peers/00"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mine/metrics.jsonl").write_text("mine")
    of_others = [] if what == "compare" else ["given/sweep.toml"]  # a comparison refuses the folder of a sweep
    for file in (*of_others, "given/INCOMPLETE", "given/peers/00/endpoint.toml"):
        (tmp_path / file).write_text("[[peer]]\nid = 0\n")
    link = tmp_path / name
    if link.exists():
        link.rename(tmp_path / "aside")
    link.symlink_to(tmp_path / "mine")
    said = typed(words, tmp_path)
    assert said.code == 2 and f"{Path(name).name}: a link that leads out of its folder" in said.errors[0], said
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["metrics.jsonl"]


def test_a_line_of_a_record_is_bounded_however_long_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"a\n" * 600_000 + b"b")
    assert b"".join(outside_files.lines_of(path)) == path.read_bytes()
    assert list(outside_files.lines_of(path, 1_199_998)) == [b"a\n", b"b"]
    os.truncate(path, 7 << 30)  # zeros without a line feed, within what a record may have
    with pytest.raises(OSError, match="a line of more than 1,048,576 bytes"):
        sum(1 for _ in outside_files.lines_of(path))


@pytest.mark.parametrize(
    "words",
    [["topology", one, "ring", "-n", "4", "--out", name] for one, name in (("make", "a.toml"), ("draw", "a.svg"))],
)
def test_a_file_that_is_asked_for_takes_the_place_of_a_link(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / words[-1]).symlink_to(tmp_path / "mine")
    assert typed(words, tmp_path).code == 0
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / words[-1]).is_symlink()


def test_a_folder_of_a_model_elsewhere_is_not_the_model_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / MODEL_FACTS).write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="a link that leads out of its folder"):
        model_files.find_folder(tmp_path / "run")
    assert model_files.find_folder(tmp_path / "run" / "model")  # which its user has named


@pytest.mark.parametrize("mode", ["wb", "ab", "w+b"])
def test_what_is_written_follows_no_link(tmp_path: Path, mode: str) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="a link, and a file was expected"):
        owner_files.opened(tmp_path / "link", mode)
    assert (tmp_path / "mine").read_text() == "mine"


def test_an_archive_is_refused_by_what_it_would_inflate_to_before_it_is_inflated(tmp_path: Path) -> None:
    """Declared sizes bound what zipfile inflates, so a false one helps nobody: the shape must agree with it too."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", b"\0" * 100)
    content = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):  # where its size stands, in the list and before it
        place = content.rindex(mark) + at
        content[place : place + 4] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="3,221,225,472 bytes when inflated, and at most 1,073,741,824 are read"):
        outside_files.read_arrays(path, {"x"})


def test_a_shape_that_claims_more_than_its_entry_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "claims.npz"
    np.savez(path, x=np.zeros(3))
    with zipfile.ZipFile(path) as archive:
        content = archive.read("x.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content.replace(b"(3,), }" + b" " * 8, b"(300000000,), }"))
    with pytest.raises(ValueError, match="2,400,000,000 bytes by its shape, 24 in the archive"):
        outside_files.read_arrays(path, {"x"})


def test_arrays_are_those_that_were_saved(tmp_path: Path) -> None:
    saved = {"x": np.arange(12.0).reshape(3, 4), "y": np.array(7)}
    np.savez_compressed(tmp_path / "a.npz", **saved)
    found = outside_files.read_arrays(tmp_path / "a.npz", {"x", "y", "z"})
    assert found.keys() == saved.keys() and all((found[name] == saved[name]).all() for name in saved)


# --- what is written --------------------------------------------------------------------------------------------------

BY_HAND = re.compile(r"(?:^|\n)[a-z_]+ = ['\"]$|(?:^|[{,])\s*\"[a-z_]+\": \"?$")
"""The beginning of a line of TOML, or of a pair of JSON, before a value that is put in."""
MAYBE = re.compile(r"""[a-z_](?: = \\?['"]|\\?": \\?"?)\{""")
"""Without it in its text a module has none: few need be parsed."""


def test_no_line_of_toml_or_json_is_formatted_by_hand() -> None:
    """A value with a quote or a control letter would end the line, and whoever reads the file (attack e5)."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        if MAYBE.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.JoinedStr)
        for before, value in itertools.pairwise(node.values)
        if isinstance(value, ast.FormattedValue) and isinstance(before, ast.Constant)
        if BY_HAND.search(str(before.value)) and not ast.unparse(value.value).isupper()  # a constant of ours
    ]
    assert found == []


COMMAND_OF_A_PATH = re.compile(r"fedgossip [a-zA-Z ]+ $")
PATHS = {"path", "file", "folder", "key", "self.key", "site.key", "experiment", "out", "run"}
"""What paths are called where a command is printed."""


def test_no_path_stands_in_a_printed_command_as_it_is_called() -> None:
    """A release named `a; rm -r b` is one word of the command that looks at it again."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        if "fedgossip " in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.JoinedStr)
        for before, value in itertools.pairwise(node.values)
        if isinstance(value, ast.FormattedValue) and isinstance(before, ast.Constant)
        if COMMAND_OF_A_PATH.search(str(before.value)) and ast.unparse(value.value) in PATHS
    ]
    assert found == []
    assert quoted("a; rm -r 'b'") == "'a; rm -r '\"'\"'b'\"'\"''"


def test_no_message_has_an_error_of_the_system_with_its_number_and_path() -> None:
    """ "[Errno 2] No such file or directory: 'a/b'": `errors.reason` has the words alone."""
    raw = []
    for path in FILES:
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
                continue
            if "OSError" not in {one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)}:
                continue
            shown = [one for one in ast.walk(handler) if isinstance(one, ast.FormattedValue)]
            bare = [
                one.value.args[0] if isinstance(one.value, ast.Call) and one.value.args else one.value for one in shown
            ]
            calls = [getattr(one.value, "func", None) for one in shown]
            raw += [
                f"{path.relative_to(PACKAGE)}, line {one.lineno}"
                for one, value, call in zip(shown, bare, calls, strict=True)
                if isinstance(value, ast.Name) and value.id == handler.name and getattr(call, "id", "") != "reason"
            ]
    raw = [one for one in raw if not one.startswith(("net/hub/", "net/links/mesh"))]  # errors of ours, with a reason
    assert not raw, f"write reason(error): {raw}"
