"""A site whose key approves plans takes part in fits that it has approved, as in runs, and in no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Output, typed
from fit_sites import SITES, SOURCE, every_kind, files, machines
from test_release import USE

from fedgossip.cli.run.participant import Participant
from fedgossip.core.run_format import APPROVAL
from fedgossip.plans.approvals.approvals import read_signed
from fedgossip.sites.releases.checking import check

pytestmark = pytest.mark.sockets  # a free port is asked for; nobody calls anybody

WITH = ["--endpoints", "endpoints.toml"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return every_kind(tmp_path_factory.mktemp("fits"))


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of those that would wait for the others now; what is to be done before they do is done."""
    found: list[str] = []

    def taken(self: Participant, _waiting: str) -> int:
        assert self.out is not None
        gate = self.gate or self._gate()
        self.out.mkdir()
        if gate:
            gate.keep(self.out)
            gate.open()
        found.append(self.title)
        return 0

    monkeypatch.setattr("fedgossip.cli.run.participant.Participant.take_part", taken)
    return found


def fit(machine: Path, kind: str, *more: str, out: str = "log") -> Output:
    return typed(["fit", f"{kind}.toml", *WITH, "--id", "0", "--out", out, *more], machine)


def shown(machine: Path, kind: str, *more: str) -> tuple[str, str]:
    """Return the words of a plan, and its hash."""
    said = typed(["plan", "show", f"{kind}.toml", *more], machine)
    assert said.code == 0, said
    return said.out, said.out.split()[-1]


@pytest.mark.parametrize("kind", SOURCE)
def test_a_site_fits_what_it_has_approved_and_nothing_else(
    kind: str,
    folder: Path,
    tmp_path: Path,
    began: list[str],
) -> None:
    machine = machines(folder, tmp_path, files(kind))[0]
    assert fit(machine, kind, out="free").code == 0 and began == ["site 0"], "a key that approves no plans asks nothing"
    words, named = shown(machine, kind)
    assert "the number of records" in words and "trains nothing" in words and SOURCE[kind] in words
    said = typed(["plan", "approve", f"{kind}.toml", *WITH, "--id", "0", "--plan", named, "--by", "a board"], machine)
    assert said.code == 0 and f"plan {named}" in said.out, said
    said = fit(machine, kind)
    assert said.code == 0 and f"plan {named[:16]}, approved on" in said.err and len(began) == 2, said
    (line,) = read_signed(machine / "log" / APPROVAL)
    assert (line.plan, line.by, line.participant) == (named, "a board", 0)
    over = fit(machine, kind, out="again")
    assert over.code == 2 and "are used" in over.err, "an approval is of one fit, unless it says more rounds"
    other = fit(machine, kind, "--set", "coordinator.min_clients=4", out="other")
    assert other.code == 2 and "was never approved" in other.err and "experiment.coordinator.min_clients" in other.err
    assert len(began) == 2 and not (machine / "other").exists()


def test_the_coordinator_s_plan_is_the_one_that_was_approved_and_its_release_has_the_approvals(
    folder: Path,
    tmp_path: Path,
    began: list[str],
) -> None:
    where = machines(folder, tmp_path, files("cox"))
    _, named = shown(where[SITES], "cox")
    for node in (2, 0):
        words = ["--id", str(node), "--plan", named, "--by", f"Dr. {node}"]
        assert typed(["plan", "approve", "cox.toml", *WITH, *words], where[node]).code == 0
        words = ["--id", str(node), "--out", "log"]
        assert typed(["fit", "cox.toml", *WITH, *words], where[node]).code == 0
    assert typed(["fit", "cox.toml", "--to", str(tmp_path / "cox")], folder).code == 0
    (tmp_path / "use.txt").write_text(USE)
    logs = [word for node in (2, 0) for word in ("--logs", f"machine{node}/log")]
    keys = ["--key", "machine5/peer.key", "--endpoints", "machine5/endpoints.toml"]
    said = typed(["release", "cox", *logs, *keys], tmp_path)
    assert said.code == 0 and "signed by 2 of 5 sites" in said.out, said
    found = check(tmp_path / "cox-release.zip", tmp_path / "machine5" / "endpoints.toml")
    assert not found.faults and found.release.plan == named
    assert [(one.site, one.by) for one in found.release.approvals] == [(2, "Dr. 2"), (0, "Dr. 0")]
    assert "Dr. 2" in (tmp_path / "cox" / "card.html").read_text()
