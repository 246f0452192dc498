"""`fedgossip client --dry-run`: a site checks alone all that it can, each thing, and sends and notes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import tomli_w
from commands import typed
from test_agreed_statistics import breast_cancer
from test_plan_approvals import NAMED, Desk, stated
from test_private_federation import learning

from fedgossip.plans.federated.ledger import SpentLedger, TotalLimit

CHECKS = ["key", "participants", "records", "one round", "policy", "approval", "budget", "folder"]


def looked(desk: Desk, *more: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code, and of each check its word and what it said, with the advice."""
    said = desk.typed("client", "pilot.toml", *NAMED, "--dry-run", *more)
    assert "Nothing was sent." in said.err, said.err
    found: dict[str, tuple[str, str]] = {}
    what = ""
    for line in said.out.splitlines():
        if line.startswith(" "):
            word, text = found[what]
            found[what] = word, f"{text}  {line.strip()}"
        else:
            word, what, text = line[:7].strip(), line[9:21].strip(), line[23:]
            found[what] = word, text
    assert list(found) == CHECKS
    return said.code, found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    assert made.typed("privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml").code == 0
    return made


def test_a_site_that_is_ready_hears_so_and_nothing_is_written(desk: Desk) -> None:
    before = sorted(desk.folder.iterdir())
    code, found = looked(desk, "--out", "new")
    assert code == 0 and {word for word, _ in found.values()} == {"ok"}
    assert "none is asked for until one is given" in found["approval"][1]
    assert sorted(desk.folder.iterdir()) == before


def test_a_policy_pins_what_a_model_of_torch_gives(desk: Desk) -> None:
    """It was written without looking, and the client then refused the run that its site had agreed to."""
    keys = ("task.kind=classification", "model.source=softmax", "train.device=cpu")
    learned = [word for key in keys for word in ("--set", key)]
    (desk.folder / "policy.toml").unlink()
    assert desk.typed("privacy", "policy", "pilot.toml", "--endpoints", "endpoints.toml", *learned).code == 0
    assert "probe = [\n" in (desk.folder / "policy.toml").read_text()
    code, found = looked(desk, *learned)
    assert code == 0 and found["policy"] == ("ok", "policy.toml allows this run")


def test_every_fault_is_named_at_once_with_its_advice(desk: Desk) -> None:
    hash = stated(desk.folder / "pilot.toml").hash
    assert desk.typed("plan", "approve", "pilot.toml", *NAMED, "--plan", hash).code == 0
    lines = (desk.folder / "peer.key.approvals").read_bytes()
    (desk.folder / "used").mkdir()
    (desk.folder / "used" / "metrics.jsonl").touch()
    code, found = looked(desk, "--set", "seed=7", "--out", "used")
    assert code == 2
    refused = {what: text for what, (word, text) in found.items() if word == "REFUSED"}
    assert set(refused) == {"policy", "approval", "folder"}
    assert "task: pinned" in refused["policy"] and "differs in experiment.seed" in refused["approval"]
    assert "Name a new folder" in refused["folder"]
    assert (desk.folder / "peer.key.approvals").read_bytes() == lines, "no refusal of a run is noted"


def test_what_needs_a_thing_that_is_wrong_is_not_looked_at(desk: Desk) -> None:
    desk.identities[1].save(desk.folder / "other.key")
    code, found = looked(desk, "--key", "other.key")
    assert code == 2 and "is not the key that endpoints.toml gives client 0" in found["participants"][1]
    assert found["policy"][0] == found["approval"][0] == "-" and found["one round"][0] == "ok"


def test_an_update_that_would_be_cut_shows_before_the_run(tmp_path: Path) -> None:
    """Raw columns of thousands beside thousandths: the run of the six sites learned 42 %."""
    desk = Desk(tmp_path)
    breast_cancer(tmp_path, 0)
    (tmp_path / "raw.toml").rename(tmp_path / "pilot.toml")
    text = (tmp_path / "pilot.toml").read_text()
    (tmp_path / "pilot.toml").write_text(text.replace("clients = 5", "clients = 3"))
    code, found = looked(desk)
    word, told = found["one round"]
    assert word == "WARNING" and "14 of 62 numbers WOULD BE CUT to 1" in told
    assert "Raise coordinator.secure.bound above 15.3 at all participants, or scale the columns" in told
    assert found["budget"][0] == "WARNING" and "no epsilon covers" in found["budget"][1]
    assert "site-0.csv?label=outcome: 95 examples" in found["records"][1]
    assert code == 2 and "no policy there" in found["policy"][1]
    (tmp_path / "site-0.csv").unlink()
    code, found = looked(desk)
    assert code == 2 and found["records"][0] == "REFUSED" and found["one round"][0] == "-"


def test_a_budget_that_cannot_last_shows_before_the_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    content = learning("record", rounds=4, max_epsilon=50.0)
    content["coordinator"]["clients"] = 3
    (tmp_path / "pilot.toml").write_text(tomli_w.dumps(content))
    _, found = looked(desk)
    told = found["budget"][1]
    assert found["budget"][0] == "ok" and "no limit over all runs" in told
    after = float(told.split()[1])
    with contextlib.closing(SpentLedger(tmp_path / "peer.key.spent", "none", "")) as ledger:
        ledger.set_limit(TotalLimit(0.9 * after, 1e-5))
    code, found = looked(desk)
    assert found["budget"][0] == "REFUSED" and f"this site allows {0.9 * after:g} in all" in found["budget"][1]
    assert code == 2, "the policy comes first"
    _, found = looked(desk, "--set", "coordinator.privacy.unit=none")
    assert found["budget"][0] == "REFUSED" and "no privacy budget, and this site allows" in found["budget"][1]
    assert typed(["privacy", "ledger", "--max-epsilon-total", "99", "--allow-exact", "1"], tmp_path).code == 0
    _, found = looked(desk)
    assert f"{after:.3g} of the 99 that this site allows" in found["budget"][1]
