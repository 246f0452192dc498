"""A release: one page and one signed file, of which no byte can be changed."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import Output, finish, free_ports, in_process, start, typed
from judging import SITES, trained_in
from spying import spying

from fedgossip.audit.entries import Owner
from fedgossip.audit.log import AuditLog
from fedgossip.core.run_format import APPROVAL, AUDIT_LOG
from fedgossip.net.endpoints import load_blocks, roster_of
from fedgossip.net.identity import Identity
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import JOINING, ApprovalRequest, versions
from fedgossip.plans.approvals.site_approvals import SiteApprovals
from fedgossip.sites.releases.checking import CheckedRelease, check
from fedgossip.sites.releases.released import (
    END,
    Release,
    ReleaseError,
    _digest,
    open_signed,
    ranges,
    write_signed,
)

USE = "To help a pathologist to decide what to look at first.\n\nNot to tell a patient anything <b>by itself</b>.\n"
NOW = 1_790_000_000_000_000_000


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that all sites have judged and approved, with their keys and the beginnings of their logs."""
    folder = trained_in(tmp_path_factory.mktemp("released"))
    assert typed(["evaluate", "run", "own.toml"], folder).code == 0
    (folder / "use.txt").write_text(USE)
    blocks = []
    for node in range(SITES + 1):
        where = ["--client"] if node < SITES else ["--address", "tcp://127.0.0.1:5700"]
        blocks.append(typed(["keys", "new", "--id", str(node), "--out", f"{node}.key", *where], folder).out)
    (folder / "endpoints.toml").write_text("\n".join(blocks))
    (folder / "5.key").rename(folder / "peer.key")
    _approve(folder)
    for node in range(2):
        identity = Identity.load(folder / f"{node}.key")
        owner = Owner(node, "client", bytes.fromhex(identity.verify), "run", "0.1.0")
        (folder / "logs" / str(node)).mkdir(parents=True)
        with AuditLog(
            folder / "logs" / str(node) / AUDIT_LOG, owner, identity.sign_bytes, lambda: NOW, synced=False
        ) as log:
            log.append("masked", {"round": 0, "bytes": 120})
    return folder


def _approve(folder: Path) -> None:
    """Sign the plan of the run as each site, and put the lines where `fedgossip collect` puts them."""
    plan, known = plan_statement.read(folder / "run" / "plan.json"), load_blocks(folder / "endpoints.toml")
    roster, lines = roster_of(known).first(SITES), []
    for node in range(SITES):
        key = folder / f"{node}.key"
        request = ApprovalRequest(plan, node, known[SITES].verify, roster.hash.hex(), versions())
        one = SiteApprovals(key, Identity.load(key), lambda: NOW).approve(request, 30, 100, by=f"Dr. {node}")
        lines.append(one.line)
    (folder / "run" / APPROVAL).write_bytes(b"".join(lines))


MAKE = "release run --logs logs --endpoints endpoints.toml"


@pytest.fixture(scope="module")
def released(judged: Path) -> Path:
    said = typed(MAKE.split(), judged)
    assert said.code == 0 and said.err.endswith("judged-release.zip, and its page: run/card.html\n"), said.err
    return judged / "judged-release.zip"


def flip(path: Path, at: int, by: int) -> None:
    """Change a byte where it stands."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        (was,) = file.read(1)
        file.seek(at)
        file.write(bytes([was ^ by]))


def refused(path: Path) -> bool:
    try:
        check(path)
    except ReleaseError:
        return True
    return False


# --- no byte ----------------------------------------------------------------------------------------------------------


def names_in(path: Path) -> tuple[str, ...]:
    with open_signed(path) as archive:
        return archive.names


def test_what_is_read_of_a_release_is_what_was_verified(tmp_path: Path) -> None:
    """Also where another file takes its name between the two."""
    path, other = tmp_path / "a.zip", tmp_path / "b.zip"
    write_signed(path, {"a.txt": b"verified"}, Identity.new())
    write_signed(other, {"a.txt": b"replaced"}, Identity.new())
    with open_signed(path) as archive:
        other.replace(path)
        assert archive.read("a.txt") == b"verified"


def signed_anew(path: Path, places: dict[bytes, tuple[int, bytes]], identity: Identity) -> None:
    """Write a signed archive of one file; then change its headers behind their marks, and sign that."""
    write_signed(path, {"release.json": b"{}" * 40}, identity)
    content = bytearray(path.read_bytes()[:-128])
    for mark, (at, value) in places.items():
        start = content.index(mark) + at
        content[start : start + len(value)] = value
    content = content[: -64 - 1] + identity.verify.encode() + b"\n"
    path.write_bytes(content)
    with path.open("rb") as file:
        signature = identity.sign(_digest(file, len(content)))  # type: ignore[arg-type]
    path.write_bytes(bytes(content) + signature.encode())


FILE, DIRECTORY, LAST = b"PK\3\4", b"PK\1\2", b"PK\5\6"
HOSTILE: dict[str, dict[bytes, tuple[int, bytes]]] = {
    "encrypted": {FILE: (6, b"\1\0"), DIRECTORY: (8, b"\1\0")},
    "a patch": {FILE: (6, b"\x20\0"), DIRECTORY: (8, b"\x20\0")},
    "deflated": {FILE: (8, b"\x08\0"), DIRECTORY: (10, b"\x08\0")},
    "an unknown method": {DIRECTORY: (10, b"\x63\0")},
    "4 GiB": {DIRECTORY: (20, b"\xf0\xff\xff\xff\xf0\xff\xff\xff")},
    "more than is there": {DIRECTORY: (20, b"\x70\x01\0\0\x70\x01\0\0")},
    "at another place": {DIRECTORY: (42, b"\x50\0\0\0")},
    "far away": {DIRECTORY: (42, b"\xf0\xff\xff\x7f")},
    "no file's header": {FILE: (0, b"PK\3\5")},
    "another name": {FILE: (30, b"elsewhere")},
    "a directory elsewhere": {LAST: (16, b"\xf0\xff\xff\x7f")},
    "many entries": {LAST: (10, b"\xff\xff")},
    "another disk": {LAST: (4, b"\7\0\7\0")},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_an_archive_that_no_writer_makes_is_refused_in_a_line_whoever_signs(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signed_anew(tmp_path / "x.zip", HOSTILE[what], Identity.new())
    with spying() as seen:
        said = in_process(["release", "verify", "x.zip"], tmp_path, monkeypatch, capsys)
    assert said.code == 1 and len(said.errors) == 1 and "x.zip" in said.err, said
    assert [one for one in seen.changed if not one.startswith(tempfile.gettempdir())] == [] and seen.started == []


def test_every_single_byte_of_a_signed_file_counts(tmp_path: Path) -> None:
    """Also those of the archive's own directory; each bit of the letters of the key and of the signature."""
    path = tmp_path / "small.zip"
    write_signed(path, {"a.txt": b"hello", "b/c.txt": b"world"}, Identity.new())
    assert names_in(path) == ("a.txt", "b/c.txt")
    size, passed = path.stat().st_size, []
    tries = [(at, 0xFF) for at in range(size)] + [(at, 1 << bit) for at in range(size - END, size) for bit in range(8)]
    for at, by in tries:
        flip(path, at, by)
        try:
            names_in(path)
            passed.append((at, by))
        except ReleaseError:
            flip(path, at, by)
    names_in(path)
    assert len(tries) > 500 and not passed


def test_a_release_with_one_byte_changed_anywhere_is_refused(released: Path, tmp_path: Path) -> None:
    rng, path = random.Random(5), tmp_path / "x.zip"
    shutil.copy(released, path)
    for _ in range(300):
        at, by = rng.randrange(path.stat().st_size), 1 << rng.randrange(8)
        flip(path, at, by)
        assert refused(path), at
        flip(path, at, by)
    assert not refused(path)


@pytest.mark.long  # a bit of each of 60 000 bytes, each a signature
@pytest.mark.timeout(900)
def test_a_release_with_any_byte_changed_is_refused(released: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    shutil.copy(released, path)
    for at in range(path.stat().st_size):
        flip(path, at, 1 << at % 8)
        with pytest.raises(ReleaseError):
            names_in(path)
        flip(path, at, 1 << at % 8)


@pytest.mark.parametrize("change", ["cut", "longer", "empty", "another file"])
def test_what_is_no_release_is_refused_in_a_line(
    change: str, released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = released.read_bytes()
    contents = {"cut": content[:-1], "longer": content + b"0", "empty": b"", "another file": b"x" * 5000}
    (tmp_path / "x.zip").write_bytes(contents[change])
    said = in_process(["release", "verify", "x.zip"], tmp_path, monkeypatch, capsys)
    assert said.code == 1 and "x.zip: no release, or its end was changed or cut" in said.err
    assert in_process(["release", "verify", "nothing.zip"], tmp_path, monkeypatch, capsys).code == 1


def test_names_that_lead_elsewhere_are_refused_whoever_signs_them(tmp_path: Path) -> None:
    identity = Identity.new()
    for name in ("../up.txt", "/etc/x", "a//b", ".hidden", "a/../b"):
        plain = tmp_path / "plain.zip"
        write_signed(plain, {"x": b"0"}, identity)
        from fedgossip.sites.releases import released

        original, released._NAME = released._NAME, re.compile(".*")
        try:
            write_signed(plain, {name: b"0"}, identity)
        finally:
            released._NAME = original
        with pytest.raises(ReleaseError, match="signed, and no archive as releases are"):
            names_in(plain)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_release_is_sound_and_says_what_the_run_and_the_sites_say(released: Path, judged: Path) -> None:
    found = check(released, judged / "endpoints.toml")
    release = found.release
    assert not found.faults and found.whose == "the coordinator's, by your own list"
    facts = json.loads((judged / "run" / "model" / "model.json").read_text())
    evaluation = json.loads((judged / "run" / "model" / "evaluation.json").read_text())
    assert release.model.weights == facts["weights"] == evaluation["layout"]["model"]
    assert [one.by for one in release.approvals] == [f"Dr. {node}" for node in range(SITES)]
    assert release.counted == ((1, 2, 3, 4, 5, 6),) * SITES
    assert [one.sound for one in release.logs] == [True, True] and release.logs[1].what == "log of client 1"
    page = (judged / "run" / "card.html").read_text()
    assert "Not to tell a patient anything &lt;b&gt;by itself&lt;/b&gt;." in page
    assert "North; South; East; West; Harbour &amp; Sons" in page and "&lt;i&gt;what&lt;/i&gt;" in page
    for words in (
        f"{evaluation['score']:.3g}", f"on {evaluation['records']} records of 5 sites", "plan signed by 5 of 5 sites",
        "2 logs verified", release.plan[:16], "1 to 6", "Nothing is promised about single records",
        "nothing here unlearns",
        f"{evaluation['outcomes'][0]['auroc']:.4f} ± {evaluation['outcomes'][0]['auroc_within']:.4f}",
        "5 sites tested it on their own records; none could tell", "Dr. 3",
    ):  # fmt: skip
        assert words in page, words


def test_nothing_in_a_release_is_of_this_machine_or_of_one_site(released: Path, judged: Path) -> None:
    """No path, no row of a site's table, no secret key."""
    with zipfile.ZipFile(released) as archive:
        everything = b"".join(archive.read(name) for name in archive.namelist())
    assert str(judged).encode() not in everything
    assert (judged / "site-0.csv").read_text().splitlines()[5].encode() not in everything
    assert Identity.load(judged / "peer.key").secret.encode() not in everything


@pytest.mark.sockets  # a process of its own
def test_a_release_is_verified_where_there_is_no_torch(released: Path) -> None:
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'matplotlib', 'sklearn', 'opacus'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Without())\n"
        f"sys.argv = ['fedgossip', 'release', 'verify', {str(released)!r}]\n"
        "from fedgossip.cli import main\n"
        "main()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and ": sound, as it was signed on " in said.stdout, said.stderr


def test_a_release_of_a_run_under_a_budget_says_what_it_promises(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    experiment = {
        "name": "private",
        "rounds": 2,
        "data": {"source": "breast-cancer"},
        "train": {"device": "cpu"},
        "coordinator": {"clients": 3, "privacy": {"unit": "record", "noise": 4.0, "max_epsilon": 4.0}},
    }
    import fedgossip

    run = fedgossip.simulate(experiment, out=tmp_path / "run")
    (tmp_path / "use.txt").write_text(USE)
    Identity.new().save(tmp_path / "peer.key")
    said = typed(["release", "run"], tmp_path)
    assert said.code == 0, said.err
    told = check(tmp_path / "private-release.zip").release.privacy
    words = dict(told.words)
    assert told.unit == "record" and told.epsilon == pytest.approx(run.summary["epsilon"])
    assert "Each example of each client" in words["unit"] and "The coordinator, the other clients" in words["from"]
    assert "A strong guarantee" in words["verdict"] or "A reasonable guarantee" in words["verdict"]
    assert f"epsilon {told.epsilon:.4g} at delta 1e-05 for each record" in said.out
    assert "NOT judged by the sites" in said.out and "none" in said.out


# --- what does not fit together ---------------------------------------------------------------------------------------

Contents = dict[str, bytes]


def of_weights(contents: Contents) -> None:
    contents["model/weights.safetensors"] = contents["model/weights.safetensors"][:-1] + b"\0"


def of_the_plan(contents: Contents) -> None:
    contents["plan.json"] = contents["plan.json"].replace(b'"rounds": 6', b'"rounds": 7')


def of_a_log(contents: Contents) -> None:
    contents["logs/000/audit.jsonl"] = contents["logs/000/audit.jsonl"].replace(b'"bytes":120', b'"bytes":121')


def of_an_approval(contents: Contents) -> None:
    first, *rest = contents["approval.jsonl"].splitlines(keepends=True)
    contents["approval.jsonl"] = b"".join([first.replace(b"Dr. 0", b"Dr. X"), *rest])


def of_one_file_less(contents: Contents) -> None:
    del contents["use.txt"]


def of_one_file_more(contents: Contents) -> None:
    contents["more.txt"] = b"more"


FORGED: Mapping[Callable[[Contents], None], str] = {
    of_weights: "model/weights.safetensors: not the weights that the card describes",
    of_the_plan: "plan.json: not the plan that the card describes",
    of_a_log: "logs/000/audit.jsonl: line",
    of_an_approval: "approval.jsonl, line 1: not as it was written",
    of_one_file_less: "no use.txt in it",
    of_one_file_more: "other files than release.json names",
}


@pytest.mark.parametrize("change", FORGED, ids=lambda one: one.__name__)
def test_who_signs_a_release_anew_does_not_get_what_others_have_signed_past_it(
    change: Callable[[Contents], None],
    released: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with zipfile.ZipFile(released) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    change(contents)
    identity = Identity.new()
    about = json.loads(contents["release.json"]) | {"signer": identity.verify}
    contents["release.json"] = json.dumps(about).encode()
    msgspec.json.decode(contents["release.json"], type=Release)
    write_signed(tmp_path / "forged.zip", contents, identity)
    said = in_process(["release", "verify", "forged.zip"], tmp_path, monkeypatch, capsys)
    assert said.code == 1 and FORGED[change] in said.out, said.out + said.err
    assert said.out.startswith("forged.zip: NOT sound")


def test_who_joined_by_an_invite_is_found_by_the_key_that_signed(judged: Path, tmp_path: Path) -> None:
    """Its approval names no number, for it had none; that of a key that did not take part is told."""
    folder = tmp_path / "joined"
    shutil.copytree(judged, folder, ignore=shutil.ignore_patterns("*.zip"))
    statement, organiser = plan_statement.read(folder / "run" / "plan.json"), Identity.new().public
    request = ApprovalRequest(statement, JOINING, organiser, "", versions())
    Identity.new().save(folder / "strange.key")

    def checked(*keys: str, logs: Sequence[str] = MAKE.split()[2:]) -> CheckedRelease:
        signing = [SiteApprovals(folder / key, Identity.load(folder / key), lambda: NOW) for key in keys]
        (folder / "run" / APPROVAL).write_bytes(b"".join(one.approve(request, 30, 100).line for one in signing))
        said = typed(["release", "run", *logs, "--out", f"{'-'.join(keys)}-{len(logs)}.zip"], folder)
        assert said.code == 0, said.err
        return check(folder / f"{'-'.join(keys)}-{len(logs)}.zip")

    found = checked("3.key", "1.key")
    assert [one.site for one in found.release.approvals] == [3, 1] and not found.faults
    (fault,) = checked("2.key", "strange.key").faults
    assert fault == "approval.jsonl: a site that joined signed with a key that is not its own"
    alone = checked("4.key", logs=[])
    assert [one.who for one in alone.release.approvals] == ["a site that joined"] and not alone.faults


def test_a_signer_whom_nobody_knows_is_refused_by_one_s_own_list(released: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(released) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    identity = Identity.new()
    contents["release.json"] = json.dumps(json.loads(contents["release.json"]) | {"signer": identity.verify}).encode()
    write_signed(tmp_path / "other.zip", contents, identity)
    assert "of no participant" in check(tmp_path / "other.zip").whose
    with pytest.raises(ReleaseError, match="which is no key of"):
        check(tmp_path / "other.zip", released.parent / "endpoints.toml")
    everybody = released.parent / "endpoints.toml"
    mine = everybody.read_text().replace(load_blocks(everybody)[1].verify, "0" * 64)
    (tmp_path / "mine.toml").write_text(mine)
    (fault,) = check(released, tmp_path / "mine.toml").faults
    assert fault.startswith("endpoints.toml: site 1 has another key there than in ")


# --- as a person types it ---------------------------------------------------------------------------------------------


def test_a_site_that_withdraws_is_told_what_contains_its_data_and_nothing_is_unlearned(
    released: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(site: int) -> Output:
        words = ["release", "withdraw", released.name, "--site", str(site)]
        return in_process(words, released.parent, monkeypatch, capsys)

    said = asked(2).out
    assert "site 2 was counted in rounds: 1 to 6, of 6" in said and "nothing is unlearned" in said
    assert "model/weights.safetensors: its updates are in the sums of 6 of 6 rounds" in said
    assert "at the sites K = 0, 1, 3, 4:" in said and "--out without-2" in said
    assert asked(7).code == 2


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("use.txt", "use.txt: cannot be read"),
        ("peer.key", "peer.key: no key there"),
        ("run/model/model.json", "run: no model there"),
        ("run/plan.json", "run/plan.json: no plan there"),
        ("endpoints.toml", "endpoints.toml"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_written(
    broken: str,
    said: str,
    judged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(judged, folder, ignore=shutil.ignore_patterns("*.zip", "card.html"))
    (folder / broken).unlink()
    told = in_process(MAKE.split(), folder, monkeypatch, capsys)
    assert told.code == 2 and said in told.err, told.err
    assert not list(folder.glob("*.zip*")) and not (folder / "run" / "card.html").exists()


def test_files_that_do_not_belong_together_are_not_released(
    judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(change: Callable[[Path], Any]) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(judged, tmp_path / "copy", ignore=shutil.ignore_patterns("*.zip"))
        change(tmp_path / "copy")
        said = in_process(MAKE.split(), tmp_path / "copy", monkeypatch, capsys)
        assert said.code == 2, said
        return said.err

    def edited(name: str, before: str, after: str) -> Callable[[Path], Any]:
        def change(folder: Path) -> None:
            text = (folder / name).read_text()
            assert before in text
            (folder / name).write_text(text.replace(before, after, 1))

        return change

    weights = json.loads((judged / "run" / "model" / "model.json").read_text())["weights"]
    assert "of another model" in told(edited("run/model/evaluation.json", weights, "0" * 64))
    assert "the use takes 20 to" in told(edited("use.txt", USE, "anything"))
    assert "approval.jsonl, line 2: not as it was written" in told(edited("run/approval.jsonl", "Dr. 1", "Dr. 2"))
    assert "no federated run" in told(_gossip)


def _gossip(folder: Path) -> None:
    import fedgossip

    shutil.rmtree(folder / "run")
    fedgossip.simulate(
        {"rounds": 1, "topology": {"graph": "ring", "n": 3}, "train": {"device": "cpu"}}, out=folder / "run"
    )


def test_rounds_are_told_as_ranges() -> None:
    assert ranges(()) == "none" and ranges((1,)) == "1" and ranges((1, 2, 3, 5, 7, 8)) == "1 to 3, 5, 7 to 8"


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.long  # 6 processes; their logs and transcripts go along
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_the_logs_of_real_participants_go_along_and_are_verified(judged: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(judged, folder, ignore=shutil.ignore_patterns("*.zip", "run", "logs", "approval*"))
    said = finish(start(["run", "own.toml", "--on", "local", "--out", "local", "--no-report"], folder))
    assert said.code == 0, said
    assert typed(["release", "local"], folder).code == 0
    found = check(folder / "judged-release.zip")
    assert not found.faults
    assert [one.what for one in found.logs].count("log of coordinator 5") == 1 and len(found.logs) == SITES + 1 + 6
    (path,) = (folder / "local").rglob("000002.transcript")
    flip(path, path.stat().st_size // 2, 1)
    assert typed(["release", "local", "--out", "again.zip"], folder).code == 0
    again = check(folder / "again.zip")
    assert sum(not one.sound for one in again.logs) >= 1 and any("000002" in one for one in again.faults)


@pytest.mark.long  # 10 processes
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_the_commands_for_a_training_without_a_site_train_without_it(
    judged: Path, released: Path, tmp_path: Path
) -> None:
    """As `release withdraw` prints them, with a shorter wait; site 2 stays away, and its file is gone."""
    told = typed(["release", "withdraw", str(released), "--site", "2"], tmp_path).out
    told = told.replace("EXPERIMENT.toml", "own.toml").replace("start_timeout=60", "start_timeout=10")
    at_hub, at_sites = (
        [line.split()[1:] for line in part.splitlines() if line.startswith("  fedgossip ")]
        for part in told.partition("at the coordinator:")[2].split("at the sites K = 0, 1, 3, 4:")
    )
    (port,) = free_ports(1)
    machines, keys = {node: tmp_path / f"machine{node}" for node in range(SITES + 1) if node != 2}, []
    for node in range(SITES + 1):
        machine = machines.get(node, tmp_path)
        machine.mkdir(exist_ok=True)
        for name in ("own.toml", "test.csv", *([f"site-{node}.csv"] if node not in (2, SITES) else [])):
            shutil.copy(judged / name, machine)
        where = ["--client"] if node < SITES else ["--address", f"tcp://127.0.0.1:{port}"]
        keys.append(typed(["keys", "new", "--id", str(node), *where], machine).out)
    for machine in machines.values():
        (machine / "endpoints.toml").write_text("\n".join(keys))
    agree, lead = at_hub
    agree_too, policy, approve, take_part = at_sites
    sites = [node for node in machines if node != SITES]

    def mine(words: list[str], node: int) -> list[str]:
        return [str(node) if word == "K" else word for word in words]

    def together(leads: list[str], others: list[str]) -> list[Output]:
        running = [start(mine(others, node), machines[node]) for node in sites]
        return [finish(one) for one in [*running, start(leads, machines[SITES])]]

    assert {one.code for one in together(agree, agree_too)} <= {0, 9}
    for node in sites:
        assert typed(policy, machines[node]).code == 0
        (plan,) = re.findall(r"^hash +([0-9a-f]{64})$", typed(["plan", "show", "own.toml"], machines[node]).out, re.M)
        assert typed([*mine(approve, node), "--plan", plan], machines[node]).code == 0
    said = together(lead, take_part)
    assert {one.code for one in said} <= {0, 9}, said
    assert json.loads((machines[0] / "agreed.json").read_text())["sites"] == 4
    assert (machines[SITES] / "without-2" / "model" / "model.json").exists()


@pytest.mark.parametrize(
    "names",
    [["/".join("a" * 1500)], ["x" * 300], ["a", "a/b"], ["a/b/c", "a/b"], ["\u0661"], ["a" + "/a" * 8]],
    ids=["deep", "long", "file and folder", "folder and file", "letters", "levels"],
)
def test_names_that_cannot_be_unpacked_are_no_release_of_whoever_signs(names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "odd.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedgossip.sites.releases.released._NAME", re.compile(".*"))
        write_signed(path, dict.fromkeys(["release.json", *names], b"{}"), Identity.new())
    with pytest.raises(ReleaseError, match="no archive as releases are"):
        names_in(path)


def test_a_file_of_a_release_that_cannot_be_read_is_named_as_the_release_names_it(
    released: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(released) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents |= {"logs/009/rounds/000000.transcript": b"\x91" * 1000, "logs/audit.jsonl/audit.jsonl": b"x"}
    write_signed(tmp_path / "odd.zip", contents, Identity.new())
    with pytest.raises(ReleaseError) as refused:
        check(tmp_path / "odd.zip")
    assert str(refused.value).startswith(f"{tmp_path}/odd.zip: logs/009/rounds/000000.transcript: "), refused.value
