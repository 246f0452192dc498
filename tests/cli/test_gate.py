"""Whatever leaves a site asks the site's key first, by one gate: commands, steps of a plan, records, statistics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, SOURCE, every_kind, files, machines, own_tables
from test_plan_approvals import EXPERIMENT, Desk

import fedgossip
from fedgossip.base.errors import ConfigError, NotWrittenError
from fedgossip.cli import cli
from fedgossip.core.machine import Train, Trained
from fedgossip.core.meter import Meter
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.objectives import SUMS
from fedgossip.data.record_groups import source_digest
from fedgossip.learning.analytic import Averaging
from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity
from fedgossip.net.training_thread import TrainingThread, WorkerPorts
from fedgossip.plans.approvals.approvals import AGREE, ApprovalRequest
from fedgossip.plans.approvals.site_approvals import SiteApprovals, run_of
from fedgossip.runs.peer_files import PeerEnded

pytestmark = pytest.mark.sockets  # a free port is asked for; nobody calls anybody

WITH = ["--endpoints", "endpoints.toml"]
TRAINED = "label=ill&drop=days,died"
BUDGET = '[coordinator.privacy]\nunit = "record"\nnoise = 4.0\nmax_epsilon = 3.0\n'
BOUNDS = "[data.columns]\nage = { low = 20, high = 100 }\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sites' tables, an experiment of each kind of fit, and of a training under a budget; a model of that."""
    made = every_kind(tmp_path_factory.mktemp("sites"))
    text = own_tables("trained", TRAINED, more=BOUNDS)
    (made / "trained.toml").write_text(f'rounds = 3\n{text}{BUDGET}[train]\ndevice = "cpu"\n')
    quadratic = 'rounds = 2\ntask = { kind = "quadratic", dim = 3 }\n'
    (made / "mixed.toml").write_text(f'{quadratic}topology = {{ graph = "ring", n = 6 }}\n')
    (made / "shared.toml").write_text(f"{quadratic}parallel = {{ workers = 6 }}\n")
    (made / "pilot.toml").write_text(EXPERIMENT.replace("clients = 3", f"clients = {SITES}"))
    return made


@pytest.fixture(scope="module")
def site(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine of site 0, whose key has approved one plan, and that of nothing else."""
    names = [
        *(name for kind in SOURCE for name in files(kind)),
        "trained.toml",
        "mixed.toml",
        "shared.toml",
        "pilot.toml",
    ]
    found = machines(folder, tmp_path_factory.mktemp("machines"), sorted(set(names)))[0]
    shown = typed(["plan", "show", "pilot.toml"], found)
    words = ["plan", "approve", "pilot.toml", *WITH, "--id", "0", "--plan", shown.out.split()[-1]]
    assert typed(words, found).code == 0
    keys = [Identity.load(found.with_name(f"machine{node}") / "peer.key") for node in range(SITES + 1)]
    listening = (block(node, signed(key, f"tcp://127.0.0.1:{5700 + node}")) for node, key in enumerate(keys))
    (found / "listening.toml").write_text("\n".join(listening))
    fedgossip.simulate({"rounds": 1, "data": {"source": "digits"}, "train": {"device": "cpu"},
                        "topology": {"graph": "ring", "n": 3}}, out=found / "model")  # fmt: skip
    return found


ASKED = {
    "client": ("client pilot.toml --set coordinator.secure.on=false", "was never approved"),
    "data agree": ("data agree trained.toml", "was never approved"),
    "evaluate": ("evaluate model digits.toml", "was never approved"),
    **{f"fit of {kind}": (f"fit {kind}.toml", "was never approved") for kind in SOURCE},
    "peer": ("peer mixed.toml", "an approval is asked for, and peers of a graph"),
    "worker": ("worker shared.toml", "an approval is asked for, and this run is of workers"),
}
"""What to type at a site to send numbers of its records, and why the gate refuses it."""
SENDS_NOTHING_OF_A_SITE = {
    "audit verify", "doctor", "plan approve", "privacy policy", "release make", "release verify",
    "coordinator", "manager", "server",  # which hold no records
}  # fmt: skip
JOINS = {"join", "host", "pilot join", "pilot host"}
"""They ask in `approved_to_join`: tests/net/test_joining_approved.py."""


def commands_with(option: str, group: click.Group = cli, before: str = "") -> Iterator[str]:
    """Yield the names of all commands that have an option."""
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        if isinstance(one, click.Group):
            yield from commands_with(option, one, f"{before}{name} ")
        elif one and any(option in parameter.opts for parameter in one.params):
            yield f"{before}{name}"


def test_every_command_that_reaches_others_is_known_to_ask_or_to_send_nothing_of_a_site() -> None:
    """A new command with others' keys stands in one of these lists, or this fails."""
    asked = {name.partition(" of ")[0] for name in ASKED}
    found = set(commands_with("--endpoints"))
    assert found == asked | SENDS_NOTHING_OF_A_SITE
    assert set(commands_with("--relay")) | set(commands_with("--address")) <= JOINS | {"keys new", "keys show"}


def test_whatever_starts_a_participant_does_it_behind_the_gate() -> None:
    """`run_peer` is what sends; who calls it asks a gate, or holds keys that it has made for one run."""
    root = Path(fedgossip.__file__).parent
    calls = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"(?<!def )\brun_peer\(", path.read_text())
    }
    assert calls == {
        "cli/run/participant.py",  # Participant._gate
        "drivers/loops/joining.py",  # refuses a key that has approved plans
        "drivers/loops/coordinating.py",  # a coordinator, which has no records
        "drivers/fork_server.py",  # processes of one machine, whose keys are made for the run
    }


def test_every_kind_of_sums_is_asked_for_by_a_command_that_is_tried() -> None:
    tried = {"statistics": "data agree", "evaluation": "evaluate", "glm": "fit of glm", "trees": "fit of trees",
             "survival": "fit of kaplan-meier", "cox": "fit of cox", "tables": "fit of table1"}  # fmt: skip
    assert set(tried) == set(SUMS) and set(tried.values()) <= set(ASKED)


@pytest.mark.parametrize("command", ASKED)
def test_a_key_that_has_approved_a_plan_sends_nothing_in_another(command: str, site: Path) -> None:
    """It ends before a folder is made or anybody is called, and the refusal is in the log."""
    (site / "digits.toml").write_text('[data]\nsource = "digits"\n[coordinator]\nclients = 5\n')
    line, why = ASKED[command]
    said = typed([*line.split(), "--endpoints", "listening.toml", "--id", "0", "--out", "out"], site)
    assert said.code == 2 and why in said.errors[0], said
    assert not (site / "out").exists()


def test_a_policy_that_asks_for_an_approval_asks_before_sums_too(site: Path, folder: Path, tmp_path: Path) -> None:
    """The policy of the machine held for trainings alone; its key has approved nothing yet."""
    found = machines(folder, tmp_path, ["trained.toml", "test.csv"])[0]
    words = ["trained.toml", *WITH]
    assert typed(["privacy", "policy", *words, "--approval-days", "9"], found).code == 0, (
        "before anything was agreed on"
    )
    said = typed(["data", "agree", *words, "--id", "0", "--out", "out"], found)
    assert said.code == 2 and "was never approved" in said.errors[0], said


# --- what is approved of a plan of two steps --------------------------------------------------------------------------


Machine = Callable[..., Output]


@pytest.fixture
def approving(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Machine]:
    """A machine of site 0 that has approved the training before anything was agreed on; runs end where they begin."""
    found = machines(folder, tmp_path, ["trained.toml", "test.csv"])[0]
    words = ["trained.toml", *WITH, "--id", "0"]
    shown = typed(["plan", "show", "trained.toml"], found)
    assert shown.code == 0, shown
    assert typed(["plan", "approve", *words, "--plan", shown.out.split()[-1]], found).code == 0

    def started(*arguments: str, sends: bool = True) -> Output:
        def begun(*_: Any, first_work: Any = None, **__: Any) -> PeerEnded:
            if sends:
                first_work()
            return PeerEnded("interrupted", 0, {}, exit_code=130)

        monkeypatch.setattr("fedgossip.drivers.peer.run_peer", begun)
        return typed([*arguments, *words], found)

    return found, started


def test_a_plan_is_the_same_before_and_after_its_sites_have_agreed(folder: Path, tmp_path: Path) -> None:
    """So one signature covers both steps; `plan show` ended with "no statistics agreed" before."""
    found = machines(folder, tmp_path, ["trained.toml", "test.csv"])[0]
    before = typed(["plan", "show", "trained.toml"], found)
    assert before.code == 0 and "data agree; with noise 4 on each site's: epsilon" in " ".join(before.out.split())
    for other in range(SITES):
        (found / f"site-{other}.csv").write_bytes((folder / f"site-{other}.csv").read_bytes())
    assert typed(["data", "agree", "trained.toml"], found).code == 0
    assert typed(["plan", "show", "trained.toml"], found).out == before.out


def test_what_a_dry_run_of_agreeing_costs_is_what_it_then_spends_and_what_the_plan_has(
    folder: Path, tmp_path: Path
) -> None:
    """Nothing is written down by it; the ledger holds the same epsilon when the sums were made."""
    found = machines(folder, tmp_path, ["trained.toml", "test.csv"])[0]
    for other in range(SITES):
        (found / f"site-{other}.csv").write_bytes((folder / f"site-{other}.csv").read_bytes())
    before = sorted(found.iterdir())
    said = typed(["data", "agree", "trained.toml", "--dry-run"], found)
    assert said.code == 0 and sorted(found.iterdir()) == before, said
    (worth,) = re.findall(r"epsilon: (\S+) of at most 3 for each record", said.out)
    assert "opened: how many records" in said.out and "the coordinator sees sums alone" in said.out
    plan = typed(["plan", "show", "trained.toml"], found).out
    assert f"epsilon {worth} for each record" in " ".join(plan.split())
    outlook = typed(["privacy", "plan", "trained.toml"], found)
    assert outlook.code == 0 and f"are epsilon {worth} alone" in outlook.out
    assert typed(["data", "agree", "trained.toml"], found).code == 0
    ledger = typed(["privacy", "ledger", "--ledger", "trained.json.spent"], found).out
    (spent,) = {f"{float(one):.3g}" for one in re.findall(r"epsilon (\S+) for each record", ledger)}
    assert spent == worth
    assert typed(["privacy", "plan", "trained.toml"], found).out == outlook.out


def test_agreeing_is_a_step_of_the_approved_plan_and_costs_none_of_its_rounds(approving: tuple[Path, Machine]) -> None:
    folder, started = approving
    assert started("data", "agree", "--out", "a").code == 130
    approved = typed(["plan", "approved"], folder).out
    assert "0 of 3" in approved
    again = started("data", "agree", "--out", "b")
    assert again.code == 2 and "one time of agreeing on statistics, and 1 began" in again.errors[0]


def test_a_start_from_which_nothing_leaves_costs_nothing_and_one_that_sends_costs_the_run(
    folder: Path, approving: tuple[Path, Machine]
) -> None:
    where, started = approving
    assert started("data", "agree", "--out", "a", sends=False).code == 130
    assert started("data", "agree", "--out", "b", sends=False).code == 130, "the first sent nothing"
    (where / "trained.json").write_bytes(_agreed_by(where, folder))
    assert started("client", "--policy", "none.toml", "--out", "c", sends=False).code == 2, "there is no policy"
    assert typed(["privacy", "policy", "trained.toml", *WITH], where).code == 0
    for out in ("d", "e"):
        assert started("client", "--out", out, sends=False).code == 130
    assert "0 of 3" in typed(["plan", "approved"], where).out
    assert started("client", "--out", "f").code == 130
    assert "3 of 3" in typed(["plan", "approved"], where).out
    over = started("client", "--out", "g")
    assert over.code == 2 and "of which 3 are used" in over.errors[0]
    assert started("client", "--out", "g", "--policy", "policy.toml").code == 2


def _agreed_by(where: Path, folder: Path) -> bytes:
    """Return the statistics of all sites, written down as made under the site's approval."""
    desk = where / "desk"
    desk.mkdir()
    for name in ("trained.toml", "test.csv", *(f"site-{one}.csv" for one in range(SITES))):
        (desk / name).write_bytes((folder / name).read_bytes())
    assert typed(["data", "agree", "trained.toml"], desk).code == 0
    content = (desk / "trained.json").read_bytes()
    approvals = SiteApprovals(where / "peer.key", Identity.load(where / "peer.key"), lambda: 0)
    approvals.agreed(approvals.all()[-1], content)
    return content


def test_a_site_trains_on_the_statistics_that_it_has_agreed_on_and_on_no_others(
    folder: Path, approving: tuple[Path, Machine]
) -> None:
    where, started = approving
    content = _agreed_by(where, folder)
    assert typed(["privacy", "policy", "trained.toml", *WITH], where).code == 0
    table = json.loads(content)
    table["records"] += 1
    (where / "trained.json").write_bytes(encoded(msgspec.convert(table, AgreedTable)))
    other = started("client", "--out", "a")
    assert other.code == 2 and "are not the plan that this site has approved" in other.errors[0], other
    (where / "trained.json").write_bytes(content)
    assert started("client", "--out", "a").code == 130


def test_the_file_of_another_site_is_refused_and_the_digest_of_its_own_is_no_secret_to_try(
    folder: Path, approving: tuple[Path, Machine]
) -> None:
    """Site 0 with site 1's file passed every check.  Its rows in another order are the same records."""
    where, started = approving
    own = (where / "site-0.csv").read_text()
    (where / "site-0.csv").write_bytes((folder / "site-1.csv").read_bytes())
    other = started("data", "agree", "--out", "a")
    assert other.code == 2 and "with other records of this site than its file has now" in other.errors[0], other
    head, *rows = own.splitlines()
    (where / "site-0.csv").write_text("\n".join([head, *reversed(rows)]) + "\n")
    assert source_digest(f"csv:{where}/site-0.csv") not in (where / "peer.key.approvals").read_text()
    assert started("data", "agree", "--out", "a").code == 130


# --- the gate ---------------------------------------------------------------------------------------------------------


def test_the_gate_opens_once_before_the_first_number_and_nothing_is_made_where_it_does_not() -> None:
    done: list[str] = []

    def opened(*, fails: bool) -> list[Any]:
        def first_work() -> None:
            done.append("asked")
            if fails:
                raise ConfigError("it was revoked", "Ask the board.")

        ports = WorkerPorts(lambda: 0, lambda: 0, lambda *_: None, lambda _: None, lambda: None, first_work)
        thread = TrainingThread(0, Averaging(1, 1), Meter(0), ports)
        for round in range(2):
            thread.put(Train(round, np.zeros(1, np.float32)))
        thread.start()
        thread.end()
        thread.join(10)
        return list(thread.answers())

    assert all(isinstance(one, Trained) for one in opened(fails=False)) and done == ["asked"]
    assert [str(one) for one in opened(fails=True)] == ["it was revoked"] * 2


def test_a_run_that_goes_on_is_counted_once_and_a_step_apart_from_its_rounds(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made, request = desk.approvals().approve(desk.request(), days=30, rounds=8), desk.request()
    step: ApprovalRequest = replace(request, step=AGREE)
    for name in ("one", "one", "two"):
        (tmp_path / name).mkdir(exist_ok=True)
        approvals = desk.approvals()
        approvals.count(made, step, approvals.keep(made, tmp_path / name))
    assert desk.approvals().used(made) == 0
    assert "2 times of agreeing on statistics, and 2 began" in desk.refuses(step)
    assert desk.approvals().check(request) == made
    desk.approvals().count(made, request, run_of(tmp_path / "one"))
    more = desk.request("rounds=8")
    other = desk.approvals().approve(more, days=30, rounds=8)
    for _ in range(2):
        desk.approvals().count(other, more, run_of(tmp_path / "one"))
    assert desk.approvals().used(made) == 4, "agreeing in the same folder has not counted its rounds"
    assert desk.approvals().used(other) == 8, "nor have those of another plan that it went on with"


def test_a_gate_that_cannot_write_lets_nothing_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    made = desk.approvals().approve(desk.request(), days=30, rounds=4)
    with pytest.raises(NotWrittenError):
        desk.approvals().keep(made, tmp_path / "nowhere")
