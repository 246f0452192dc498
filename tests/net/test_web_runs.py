"""Runs whose members meet by the web alone, through a proxy of CONNECT and one that opens TLS: one digest."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import COMMAND, finish, free_ports, in_process, no_secrets_in, start, wait_until
from folder_kit import FolderRun
from relays import relay_running
from test_host_join import People
from web_proxies import Authority, Web, proxy_running

from fedgossip.net.endpoints import block, signed
from fedgossip.net.identity import Identity
from fedgossip.net.relays import web_way

pytestmark = pytest.mark.sockets

HANGS_SECONDS = 120.0
NOWHERE = "192.0.2.1"
"""An address for examples: nobody is reached there, so the web is the one way."""
FEDERATED = 'seed = 1\nrounds = {rounds}\ntask = {{ kind = "quadratic", dim = 5 }}\n[coordinator]\nclients = 3\n'
GOSSIP = (
    'seed = 1\nrounds = {rounds}\ntask = {{ kind = "averaging", dim = 5 }}\ntopology = {{ graph = "ring", n = 4 }}\n'
)
SECRET = "op3n-s3same"


class Campus:
    """A host with a door by the web, and two proxies: one that asks for a password, and one that opens TLS."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.people = People(folder, HANGS_SECONDS)
        stack.callback(self.people.stop)
        self.authority, self.filter = Authority(folder), Authority(folder, "Campus filter")
        self.connect = stack.enter_context(proxy_running(user="ann", password=SECRET))
        self.opening = stack.enter_context(proxy_running(opens=self.filter, trusts=self.authority.path))
        (self.port,) = free_ports(1)

    def host(self, text: str, environment: pytest.MonkeyPatch) -> str:
        """Start the host; return its invite."""
        (self.people.home("host") / "experiment.toml").write_text(text)
        certificate, key = map(str, self.authority.certificate("127.0.0.1"))
        url = f"wss://127.0.0.1:{self.port}/fedgossip"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", web_way.PROXY):
            environment.delenv(name, raising=False)
            environment.delenv(name.lower(), raising=False)
        words = ["--address", NOWHERE, "--web", url, "--cert", certificate, "--cert-key", key]
        self.people.start("host", "host", "experiment.toml", *words)
        said = self.people.said
        wait_until(lambda: said("host", "out").endswith("\n"), HANGS_SECONDS, f"an invite; {said('host')}")
        return said("host", "out").split()[-1]

    def join(self, who: str, invite: str, proxy: Web, environment: pytest.MonkeyPatch) -> None:
        environment.setenv("HTTPS_PROXY", proxy.url)
        trusted = self.filter if proxy.opens else self.authority
        words = (
            []
            if "coordinator" in (self.people.home("host") / "experiment.toml").read_text()
            else ["--address", NOWHERE]
        )
        self.people.join(who, invite, "--ca", str(trusted.path), *words)

    def ended(self) -> list[int]:
        return [self.people.ended(who) for who in ("host", *"bcd")]

    def events(self, who: str) -> set[str]:
        found = map(json.loads, (self.people.run_of(who) / "metrics.jsonl").read_text().splitlines())
        return {row["name"] for row in found if row["kind"] == "event"}


@pytest.fixture
def campus(tmp_path: Path) -> Iterator[Campus]:
    with ExitStack() as stack:
        yield Campus(tmp_path, stack)


@pytest.mark.parametrize("kind", ["federated", pytest.param("gossip", marks=pytest.mark.long)])
def test_members_that_meet_by_the_web_end_with_the_digest_of_the_simulator(
    kind: str, campus: Campus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A secure sum of three clients, and gossip of four peers; the proxies see nothing but ciphertext inside."""
    people, text = campus.people, (FEDERATED if kind == "federated" else GOSSIP).format(rounds=4)
    invite = campus.host(text, monkeypatch)
    for who, proxy in zip("bcd", (campus.connect, campus.opening, campus.opening), strict=True):
        campus.join(who, invite, proxy, monkeypatch)
    assert campus.ended() == [0] * 4, people.said("host") + people.said("b")
    home = people.home("host")
    folders = [str(people.run_of(who)) for who in ("host", *"bcd")]
    named = str(next(home.glob("hosting/*/experiment.toml")))
    real = in_process(["collect", named, *folders, "--json"], home, monkeypatch, capsys)
    simulated = in_process(["run", named, "--no-report", "--json"], home, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"]
    assert all("via_web" in campus.events(who) for who in "bcd")
    assert len(campus.connect.asked) > 1 and b"Upgrade: websocket" in campus.opening.seen
    for plain in (b"quadratic", b"averaging", b"loss", b"layout", b"experiment"):
        assert plain not in campus.opening.seen
    for folder in (home, *map(people.home, "bcd")):
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not any(SECRET.encode() in one for one in files)  # nor in what was printed
    assert no_secrets_in(people.run_of("b"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gossip", "workers"])
def test_participants_whose_entries_name_a_relay_by_the_web_alone_end_with_the_digest_of_the_simulator(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    n, common = 2, ["e.toml", "--endpoints", "endpoints.toml", "--proxy", "none"]
    text = GOSSIP.format(rounds=3).replace("ring", "path").replace("n = 4", f"n = {n}")
    if kind == "workers":
        text = f'seed = 1\nrounds = 3\ntask = {{ kind = "quadratic", dim = 5 }}\n[parallel]\nworkers = {n}\n'
    (tmp_path / "e.toml").write_text(text)
    with relay_running(scheme="ws") as relay:
        blocks = []
        for node in range(n):
            identity = Identity.new()
            identity.save(tmp_path / f"{node}.key")
            blocks.append(block(node, signed(identity, relay.address)))
        (tmp_path / "endpoints.toml").write_text("\n".join(blocks))
        command = ["worker" if kind == "workers" else "peer", *common]
        own = [["--id", str(node), "--key", f"{node}.key", "--out", f"out{node}"] for node in range(n)]
        ended = [finish(one) for one in [start([*command, *words], tmp_path) for words in own]]
        assert [one.code for one in ended] == [0] * n, ended
        assert relay.relay.counts["put through"]
        survey = ["doctor", "--links", "--endpoints", "endpoints.toml", "--proxy", "none"]
        surveys = [start([*survey, "--key", f"{node}.key"], tmp_path) for node in range(n)]
        measured = [finish(one) for one in surveys]
        assert [one.code for one in measured] == [0] * n and "MB/s" in measured[0].out, measured
    folders = [f"out{node}" for node in range(n)]
    real = in_process(["collect", "e.toml", *folders, "--json"], tmp_path, monkeypatch, capsys)
    simulated = in_process(["run", "e.toml", "--no-report", "--json"], tmp_path, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"]


TIERS = "tiers = [{ clients = 3 }, { clients = 2, secure = false }]"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["federated", "gossip"])
def test_one_experiment_has_one_digest_by_every_carrier(
    kind: str, campus: Campus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated, by sockets, by the web through both proxies, by a folder; a secure sum in tiers as well."""
    people = campus.people
    text = GOSSIP.format(rounds=3) if kind == "gossip" else FEDERATED.format(rounds=3).replace("s = 3\n", "s = 6\n")
    guests = "bcd" if kind == "gossip" else "bcdefg"
    invite = campus.host(text, monkeypatch)
    for place, who in enumerate(guests):
        campus.join(who, invite, (campus.connect, campus.opening)[place % 2], monkeypatch)
    assert [people.ended(who) for who in ("host", *guests)] == [0] * (1 + len(guests)), people.said("host")
    home = people.home("host")
    named = str(next(home.glob("hosting/*/experiment.toml")))
    folders = [str(people.run_of(who)) for who in ("host", *guests)]
    found: dict[str, list[str]] = {"web": ["collect", named, *folders]}
    trees: dict[str, list[str]] = (
        {"": []} if kind == "gossip" else {"": [], " in tiers": ["--set", f"coordinator.{TIERS}"]}
    )
    for tree, more in trees.items():
        for engine in ("sim", "local"):
            found[f"{engine}{tree}"] = ["run", named, "--no-report", "--on", engine, *more]
    digests = {}
    for what, words in found.items():
        said = in_process([*words, "--json"], home, monkeypatch, capsys)
        digests[what] = json.loads(said.out)["digest"]
    for tree in trees:
        content = tomllib.loads(text)
        if tree:
            content["coordinator"] |= tomllib.loads(TIERS)
        place = tmp_path / f"by folder{tree}"
        place.mkdir()
        run = FolderRun(place, content)
        run.over()
        digests[f"folder{tree}"] = run.digest()
    assert len(set(digests.values())) == 1 and len(digests) == (4 if kind == "gossip" else 7), digests


@pytest.mark.long
def test_a_proxy_that_dies_and_returns_costs_a_round_at_most(campus: Campus, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FEDERATED.format(rounds=100_000).replace("clients = 3", "clients = 3\ndeadline = 20.0")
    invite = campus.host(text, monkeypatch)
    for who, proxy in zip("bcd", (campus.connect, campus.opening, campus.opening), strict=True):
        campus.join(who, invite, proxy, monkeypatch)

    def rounds() -> int:
        path = next(campus.people.home("host").glob("hosting/*/run/metrics.jsonl"), None)
        return path.read_bytes().count(b'"kind":"round"') + path.read_bytes().count(b'"kind":"peer"') if path else 0

    wait_until(lambda: rounds() > 5, HANGS_SECONDS, f"rounds; {campus.people.said('host')}")
    campus.opening.stop()
    before = rounds()
    campus.opening.start()
    wait_until(lambda: rounds() > before + 20, HANGS_SECONDS, f"it goes on; {campus.people.said('c')}")
    rows = (campus.people.run_of("host") / "metrics.jsonl").read_text().splitlines()
    abandoned = [row for row in map(json.loads, rows) if row["kind"] == "event" and row["name"] == "abandoned"]
    assert len(abandoned) <= 1


@pytest.mark.parametrize(
    ("fault", "line"),
    [("password", "does not accept this user and password"),
     pytest.param("authority", "authority that this machine does not know", marks=pytest.mark.long),
     pytest.param("refusal", "refuses CONNECT to 127.0.0.1:", marks=pytest.mark.long)],
)  # fmt: skip
def test_who_cannot_join_by_the_web_is_told_why(
    fault: str, line: str, campus: Campus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invite = campus.host(FEDERATED.format(rounds=2), monkeypatch)
    campus.connect.answer = b"HTTP/1.1 403 Forbidden\r\n\r\n" if fault == "refusal" else b""
    url = campus.connect.url.replace(SECRET, "wr0ng") if fault == "password" else campus.connect.url
    monkeypatch.setenv("HTTPS_PROXY", campus.opening.url if fault == "authority" else url)
    monkeypatch.setattr("fedgossip.net.invites.invite_client.ANSWER_SECONDS", 3.0)
    monkeypatch.setattr("fedgossip.net.invites.invite_client.InviteClient.ask.__defaults__", (3.0,))
    monkeypatch.setenv("SSL_CERT_FILE", str(campus.authority.path))
    said = in_process(["join", invite, "--yes"], campus.people.home("b"), monkeypatch, capsys)
    assert said.code == 3 and line in said.errors[0], said.err
    assert "wr0ng" not in said.err and SECRET not in said.err


# --- doctor -----------------------------------------------------------------------------------------------------------


def steps(*words: str, env: Mapping[str, str]) -> tuple[int, list[str]]:
    done = subprocess.run(
        [*COMMAND, "doctor", "--reach", *words], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_the_doctor_names_each_step_and_the_one_that_fails(tmp_path: Path) -> None:
    authority, network = Authority(tmp_path), Authority(tmp_path, "Campus filter")
    with ExitStack() as stack:
        relay = stack.enter_context(relay_running(scheme="wss", tls=authority.server("127.0.0.1")))
        proxy = stack.enter_context(proxy_running(opens=network, trusts=authority.path, user="ann", password=SECRET))
        env = {"HTTPS_PROXY": proxy.url, "https_proxy": proxy.url, "NO_PROXY": "", "no_proxy": ""}
        code, lines = steps(relay.address, "--ca", str(network.path), env=env)
        assert code == 0, lines
        names = [line.split()[1] for line in lines]
        assert names == ["proxy", "name", "CONNECT", "TLS", "upgrade", "greeting", "round", "rate"]
        assert "Campus filter" in lines[3] and "sees ciphertext of ours" in lines[3]
        assert re.search(r"[\d.]+ ms", lines[6]) and re.search(r"[\d.]+ MB/s", lines[7])
        assert SECRET not in "".join(lines)
        code, lines = steps(relay.address, env=env)
        assert code == 3 and lines[-2].startswith("failed  127.0.0.1: the certificate is of an authority")
        assert "--ca" in lines[-1] and [line.split()[1] for line in lines[:-2]] == ["proxy", "name", "CONNECT"]


# --- with what Debian has ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("squid") or not shutil.which("nginx"), reason="needs squid and nginx")
def test_squid_and_nginx_pass_a_call_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay without TLS behind nginx, which ends it, reached through squid by CONNECT."""
    authority = Authority(tmp_path)
    certificate, key = authority.certificate("127.0.0.1")
    front, proxy = free_ports(2)
    with relay_running(scheme="ws") as relay, ExitStack() as stack:
        (tmp_path / "nginx.conf").write_text(
            f"""daemon off; pid {tmp_path}/nginx.pid; error_log stderr; user root; events {{}}
            http {{ access_log off;
              server {{ listen 127.0.0.1:{front} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
                location /fedgossip {{ proxy_pass http://127.0.0.1:{relay.port}; proxy_http_version 1.1;
                  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }} }} }}"""
        )
        (tmp_path / "squid.conf").write_text(
            "shutdown_lifetime 0 seconds\n"
            f"http_port 127.0.0.1:{proxy}\nacl there port {front}\nhttp_access allow CONNECT there\n"
            "http_access deny all\npid_filename none\naccess_log none\ncache_log /dev/null\ncoredump_dir none\n"
        )
        for words in (
            ["nginx", "-c", str(tmp_path / "nginx.conf")],
            ["squid", "-N", "-n", f"fg{os.getpid()}", "-f", str(tmp_path / "squid.conf")],
        ):
            with (tmp_path / f"{words[0]}.out").open("wb") as out:
                process = subprocess.Popen(words, stdout=out, stderr=out)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        named = f"http://127.0.0.1:{proxy}"
        env = {
            "HTTPS_PROXY": named,
            "https_proxy": named,
            "NO_PROXY": "",
            "no_proxy": "",
            "SSL_CERT_FILE": str(authority.path),
        }
        url, found = f"wss://127.0.0.1:{front}/fedgossip", (1, [""])

        def reached() -> bool:
            nonlocal found
            found = steps(url, env=env)
            return found[0] == 0

        wait_until(reached, 30.0, "squid and nginx have begun")
        assert [line.split()[1] for line in found[1]][:3] == ["proxy", "name", "CONNECT"], found
        code, lines = steps(f"wss://127.0.0.1:{relay.port}/fedgossip", env=env)
        assert code == 3 and "refuses CONNECT" in lines[-2] and "403" in lines[-2]
        code, lines = steps(f"wss://127.0.0.1:{front}/elsewhere", env=env)
        assert code == 3 and "answers 404" in lines[-2]
