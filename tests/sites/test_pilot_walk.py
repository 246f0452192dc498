"""A whole pilot by one command at each end: its questions, its log, and the model that it makes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Output, finish, free_ports, start, typed, wait_until
from pages import page
from relays import relay_running
from web_proxies import Authority, proxy_running

import fedgossip
from fedgossip import ConfigError
from fedgossip.audit.entries import Owner, entries
from fedgossip.audit.log import AuditLog
from fedgossip.cli.people.pilot import _link
from fedgossip.cli.people.pilot_steps import (
    DECLINED,
    PilotFacts,
    PilotSite,
    PilotStep,
    Question,
    Walk,
    answer_to,
    coordinator_steps,
    site_steps,
)
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.net.identity import Identity
from fedgossip.sites.fits.glm.glm_result import GlmFit
from fedgossip.sites.fits.glm.glm_sums import GlmDesign

SITES = 3
STUDY = """
name = "study"
rounds = 3
[data]
source = "csv:site-{peer}.csv?label=ill"
test = "csv:test.csv?label=ill"
partition = { kind = "own" }
scale = "federated"
[train]
device = "cpu"
[coordinator]
clients = 3
"""
TRAINED = PilotFacts(federated=True, fit=False, judged=True, budget=False, secure=True)
JOINING = 1
"""The question before the steps: whether to take part."""


def asked() -> tuple[int, int]:
    """Return how many questions a site and the coordinator answer in a pilot that trains."""
    site = site_steps(TRAINED, PilotSite(0, [], "peer.key", "keys.spent"))
    lead = coordinator_steps(TRAINED, "study", [])
    return JOINING + sum(len(one.asked) for one in site), sum(len(one.asked) for one in lead)


def test_the_guide_counts_the_questions_and_commands_of_a_pilot() -> None:
    words = " ".join(page("coordinator").read_text().split())
    at_site, leading = asked()
    assert f"{SITES + 1} commands for {SITES} sites" in words
    assert f"a site answers {at_site} questions, the coordinator {leading}" in words


@pytest.mark.parametrize(
    ("answers", "told"),
    [("join = 3", "no answers"), ("join =", "no answers"), (None, "no answers")],
)
def test_answers_that_cannot_be_read_end_the_command_in_one_line(
    tmp_path: Path, answers: str | None, told: str
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    if answers:
        (tmp_path / "answers.toml").write_text(answers)
    said = typed(["pilot", "host", "study.toml", "--answers", "answers.toml"], tmp_path)
    assert said.code == 2 and told in said.err and len(said.errors) == 1


def test_a_pilot_with_tiers_is_refused_in_one_line(tmp_path: Path) -> None:
    tiers = STUDY.replace(
        "clients = 3", "clients = 6\nmin_clients = 2\ntiers = [{ clients = 3 }, { clients = 2, secure = false }]"
    )
    (tmp_path / "study.toml").write_text(tiers)
    said = typed(["pilot", "host", "study.toml"], tmp_path)
    assert said.code == 2 and "a pilot has no tiers" in said.err and len(said.errors) == 1


def test_a_no_at_a_step_ends_the_walk_before_its_commands_and_is_asked_again(tmp_path: Path) -> None:
    identity, typing = Identity.new(), []
    owner = Owner(0, "client", bytes.fromhex(identity.verify), "what", "0")
    step = PilotStep("plan", "what is signed", asked=[Question("same", "?")], typed=lambda _: typing.append(1) or [])
    with AuditLog(tmp_path / "audit.jsonl", owner, identity.sign_bytes, lambda: 1, synced=False) as log:
        assert Walk(tmp_path, log, {"same": "no"}).follow([step]) == DECLINED and not typing
        assert Walk(tmp_path, log, {"same": "yes"}).follow([step]) == 0 and typing
    assert [one.kind for one in entries(tmp_path / "audit.jsonl")].count("answered") == 2


@pytest.mark.parametrize("fit", [False, True])
def test_every_plan_that_sites_approve_is_read_out_and_its_hash_is_asked_last(fit: bool) -> None:
    """Its command follows at once, so a mistyped hash ends the step before anything else is asked."""
    facts = replace(TRAINED, fit=fit, budget=True)
    site, lead = site_steps(facts, PilotSite(0, [], "peer.key", "keys.spent")), coordinator_steps(facts, "study", [])
    approved = [one for one in site if any(words[:2] == ["plan", "show"] for words in one.shown)]
    assert all(one.asked[-1].name.startswith("approve") for one in approved)
    hashed = [[words[2:] for words in one.shown if words[:2] == ["plan", "hash"]] for one in (*approved, *lead)]
    confirmed = [one.asked[0].name for one in lead if one.asked and one.asked[0].name.startswith("same")]
    assert len(confirmed) == len(approved) == 2 + fit
    assert [one for one in hashed if one] == hashed[: len(approved)] * 2


@pytest.mark.parametrize(("converged", "done"), [(True, 1), (False, 0)])
def test_a_fit_that_is_not_at_its_end_ends_the_walk_and_one_of_fewer_sites_does_not(
    converged: bool, done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end with the code 9."""
    identity = Identity.new()
    owner = Owner(0, "client", bytes.fromhex(identity.verify), "what", "0")
    step = PilotStep("fit", "the model of all sites", typed=lambda _: [["fit", "e.toml", "--to", "new:run"]])
    d = GlmDesign(family="linear", outcome="y", columns=("a",), places=(0,), mean=(0.0,), deviation=(1.0,), steps=16)
    fit = GlmFit(
        design=d, sites=3, least=3, records=90, steps=3, converged=converged, dispersion=1.0, rank=2, deviance=88.0,
        null_deviance=None, aic=None, coefficients=(), covariance=(),
    )  # fmt: skip

    def fitted(walk: Walk, placed: list[str]) -> int:
        (walk.folder / placed[-1]).mkdir()
        (walk.folder / placed[-1] / "fit.json").write_bytes(encoded(fit))
        return 9

    monkeypatch.setattr(Walk, "_typed", fitted)
    with AuditLog(tmp_path / "audit.jsonl", owner, identity.sign_bytes, lambda: 1, synced=False) as log:
        assert Walk(tmp_path, log, {}).follow([step]) == (0 if converged else 9)
    assert [one.kind for one in entries(tmp_path / "audit.jsonl")].count("step_done") == done


def test_the_release_has_the_folders_of_sites_and_nothing_that_a_link_among_them_leads_to(tmp_path: Path) -> None:
    """What a site handed over may be an archive with a link to the files of another study."""
    (handed := tmp_path / "handed").mkdir()
    (handed / "site0").mkdir()
    (handed / "site1").symlink_to(tmp_path)
    (handed / "use.txt").write_text("")
    step = coordinator_steps(TRAINED, "study", [])[-1]
    words = [word for one in step.typed({"use": "use.txt", "handed": str(handed)}) for word in one]
    assert [word for word in words if word.startswith(str(handed))] == [str(handed / "site0")] * 2
    question = next(one for one in step.asked if one.name == "handed")
    with pytest.raises(ConfigError, match=r"handed: .*use\.txt: no such folder"):
        answer_to(question, {"handed": str(handed / "use.txt")}, tmp_path)


def test_a_declaration_that_a_site_writes_after_its_first_look_is_found(tmp_path: Path) -> None:
    own, link = tmp_path / "mine.csv", tmp_path / "tables" / "site-0.csv"
    link.parent.mkdir()
    own.write_text("Alter,ill\n50,1\n")
    (tmp_path / "study.toml").write_text(STUDY.replace("site-{peer}", f"{link.parent}/site-{{peer}}"))
    experiment = fedgossip.load_experiment(tmp_path / "study.toml")
    _link(experiment, 0, own)
    beside = link.with_name("site-0.csv.toml")
    assert link.resolve() == own and not beside.exists()
    own.with_name("mine.csv.toml").write_text('[columns.age]\naliases = ["Alter"]\n')
    for data in (own, None):
        _link(experiment, 0, data)
        assert beside.resolve() == own.with_name("mine.csv.toml")


def _table(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal([60, 130], [10, 20], (60 + 20 * seed, 2))
    ill = (x[:, 0] - 60) / 10 + (x[:, 1] - 130) / 20 + rng.normal(0, 1, len(x)) > 0
    rows = [f"{a:.1f},{b:.1f},{int(y)}" for (a, b), y in zip(x, ill, strict=True)]
    path.write_text("\n".join(["age [years],pressure [mmHg],ill", *rows]) + "\n")


def _joined(
    folder: Path, site: int, invite: str, answers: dict[str, str], words: Sequence[str]
) -> subprocess.Popen[str]:
    where = folder / f"machine{site}"
    (where / "answers.toml").write_text("".join(f'{name} = "{text}"\n' for name, text in answers.items()))
    return start(["pilot", "join", invite, "--data", "own.csv", "--answers", "answers.toml", *words], where)


@pytest.mark.long  # 40 CPU s: four processes, three of which begin again
@pytest.mark.timeout(600)
@pytest.mark.sockets
@pytest.mark.parametrize("carrier", ["sockets", "web"])
def test_a_pilot_of_three_sites_ends_with_the_simulator_s_digest_and_goes_on_where_it_stopped(
    carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the web the coordinator has a relay, no address is answered, and a proxy before the sites opens TLS."""
    with ExitStack() as stack:
        leads, sites = ["--address", "127.0.0.1"], list[str]()
        if carrier == "web":
            authority, network = Authority(tmp_path), Authority(tmp_path, "Campus filter")
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
            relay = stack.enter_context(relay_running(scheme="wss", tls=authority.server("127.0.0.1")))
            proxy = stack.enter_context(proxy_running(opens=network, trusts=authority.path))
            leads = ["--address", "192.0.2.1", "--relay", f"{relay.address}/fedgossip", "--proxy", "none"]
            sites = ["--proxy", proxy.url, "--ca", str(network.path)]
        _pilot(tmp_path, leads, sites)
        assert carrier != "web" or (b"Upgrade: websocket" in proxy.seen and b"pressure" not in proxy.seen)


def _pilot(tmp_path: Path, leads: Sequence[str], sites: Sequence[str]) -> None:
    """`leads`, `sites`: further words of the coordinator's command, and of a site's."""
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "study.toml").write_text(STUDY)
    (hub / "use.txt").write_text("To help a nurse decide whom a doctor sees first. Not to send anybody home.\n")
    _table(hub / "test.csv", 9)
    (hub / "answers.toml").write_text('same = "yes"\nsame-model = "yes"\nuse = "use.txt"\n')
    first, second = free_ports(2)
    ports = [*leads, "--invite-port", str(first), "--port", str(second)]
    with (hub / "out").open("w") as out:
        lead = start(["pilot", "host", "study.toml", *ports, "--answers", "answers.toml"], hub, stdout=out)
    wait_until(lambda: (hub / "out").read_text().strip(), 60, "the invite")
    invite = (hub / "out").read_text().split()[3]
    approved = typed(["plan", "show", "study.toml"], hub).out.splitlines()[-1].split()[1]
    given = {"join": "yes", "records": "yes", "by": "Dr", "hand-over": "yes", "approve": approved[:8]}
    running = []
    for site in range(SITES):
        (tmp_path / f"machine{site}").mkdir()
        _table(tmp_path / f"machine{site}" / "own.csv", site)
        running.append(_joined(tmp_path, site, invite, given, sites))
    stopped: list[Output] = [finish(one) for one in running]
    assert all("approve-model: there is no terminal" in one.err for one in stopped), stopped
    hashes = {re.findall(r"^hash ([0-9a-f]{8})", one.out, re.MULTILINE)[-1] for one in stopped}
    assert len(hashes) == 1
    running = [
        _joined(tmp_path, site, invite, {**given, "approve-model": hashes.copy().pop()}, sites) for site in range(SITES)
    ]
    ended = [finish(one) for one in running]
    assert [one.code for one in ended] == [0] * SITES, ended
    waiting = finish(lead)
    assert waiting.code == 2 and "handed: there is no terminal" in waiting.err, waiting
    for site, one in enumerate(ended):  # each site says which folder it hands over, and under which name
        (handed,) = re.findall(r"^Hand over: (\S+), under the name (\S+)$", one.out + one.err, re.MULTILINE)
        shutil.copytree(tmp_path / f"machine{site}" / handed[0], hub / "handed" / handed[1])
    assert {one.name for one in (hub / "handed").iterdir()} == {f"site{site}" for site in range(SITES)}
    (hub / "answers.toml").write_text('use = "use.txt"\nhanded = "handed"\n')
    last = typed(["pilot", "host", "study.toml", *ports, "--answers", "answers.toml"], hub)
    assert last.code == 0 and f"signed by {SITES} of {SITES} sites" in last.out + last.err, last
    logs_of = re.findall(r"logs +(\d+) of (\d+) sound", last.out + last.err)
    assert logs_of and all(one == other and int(one) > SITES for one, other in logs_of), last
    logs = [next((tmp_path / f"machine{site}").glob("joined/*/decisions/audit.jsonl")) for site in range(SITES)]
    logs.append(hub / "hosting" / "study" / "decisions" / "audit.jsonl")
    answered = [sum(one.kind == "answered" for one in entries(path)) for path in logs]
    again = 1  # the coordinator named the use once more
    assert answered == [asked()[0]] * SITES + [asked()[1] + again]
    desk = tmp_path / "desk"
    desk.mkdir()
    for name in ("study.toml", "test.csv"):
        shutil.copy(hub / name, desk)
    for link in tmp_path.glob("machine?/joined/*/tables/site-?.csv"):
        shutil.copy(link, desk / link.name)
    assert typed(["data", "agree", "study.toml"], desk).code == 0
    told = json.loads((hub / "hosting" / "study" / "whole" / "summary.json").read_text())
    assert fedgossip.simulate(desk / "study.toml").summary["digest"] == told["digest"]
