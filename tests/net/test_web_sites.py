"""Sites that reach a proxy and nothing else, in network namespaces: squid lets CONNECT to 443 out, nginx ends TLS.

The sites' network has no route to the host's; the proxy is in both and forwards no packet.  All are of the long form.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fit_sites
import pytest
from commands import in_process, typed, wait_until
from fit_sites import every_kind
from namespaces import Machines, machines
from web_proxies import Authority

pytestmark = [
    pytest.mark.sockets,
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("squid") or not shutil.which("nginx"), reason="needs squid and nginx"),
]

SECONDS = 120.0
NETS = {"proxy": ("10.81.1.9", "10.81.2.9"), "ward": ("10.81.1.1",), "lab": ("10.81.1.2",), "host": ("10.81.2.1",)}
PROXY, OPENING, FRONT = "http://10.81.1.9:3128", "http://10.81.1.9:3129", "10.81.2.1"
FEDERATED = 'seed = 1\nrounds = {rounds}\ntask = {{ kind = "quadratic", dim = 5 }}\n[coordinator]\nclients = 3\n'
GOSSIP = (
    'seed = 1\nrounds = {rounds}\ntask = {{ kind = "averaging", dim = 5 }}\ntopology = {{ graph = "ring", n = 4 }}\n'
)
NGINX = """daemon off; pid {here}/nginx.pid; error_log stderr; user root; events {{}}
http {{ access_log off; client_body_temp_path {here}/b; proxy_temp_path {here}/p; fastcgi_temp_path {here}/f;
  uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;
  server {{ listen {front}:443 ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
    location /fedgossip {{ proxy_pass http://127.0.0.1:8080; proxy_http_version 1.1; proxy_read_timeout 1h;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }} }} }}"""
SQUID = """shutdown_lifetime 0 seconds
http_port 10.81.1.9:3128
acl there port 443
http_access allow CONNECT there
http_access deny all
pid_filename none
access_log none
cache_log /dev/null
coredump_dir none
"""


class Sites:
    """Two sites behind squid, a host behind nginx."""

    def __init__(self, net: Machines, folder: Path, stack: ExitStack) -> None:
        self.net, self.folder, self.stack = net, folder, stack
        self.authority = Authority(folder)
        certificate, key = self.authority.certificate(FRONT)
        conf = NGINX.format(here=folder, front=FRONT, certificate=certificate, key=key)
        (folder / "nginx.conf").write_text(conf)
        (folder / "squid.conf").write_text(SQUID)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self.stop)
        self.spawn("host", "nginx", ["nginx", "-c", str(folder / "nginx.conf")])
        self.squid()

    def squid(self) -> None:
        self.spawn("proxy", "squid", ["squid", "-N", "-n", f"fgw{os.getpid()}", "-f", str(self.folder / "squid.conf")])

    def spawn(self, machine: str, who: str, command: list[str]) -> None:
        self.running[who] = self.net.spawn(machine, command, self.home(who), self.home(who) / "log")

    def fedgossip(self, machine: str, who: str, *words: str, proxy: str = "") -> None:
        trusted = [f"SSL_CERT_FILE={self.authority.path}", f"HTTPS_PROXY={proxy}", "NO_PROXY="]
        self.spawn(machine, who, ["env", *trusted, sys.executable, "-m", "fedgossip", *words])

    def home(self, who: str) -> Path:
        path = self.folder / who
        path.mkdir(exist_ok=True)
        return path

    def log(self, who: str) -> str:
        path = self.home(who) / "log"
        return path.read_text() if path.exists() else ""

    def mitmproxy(self) -> Path:
        """Start a proxy that opens TLS and records what it sees; return its authority's certificate."""
        words = ["mitmdump", "--listen-host", "10.81.1.9", "-p", "3129", "-w", str(self.folder / "seen")]
        chosen = [f"confdir={self.folder / 'mitm'}", f"ssl_verify_upstream_trusted_ca={self.authority.path}"]
        self.spawn("proxy", "mitmdump", [*words, *(word for one in chosen for word in ("--set", one))])
        found = self.folder / "mitm" / "mitmproxy-ca-cert.pem"
        wait_until(found.exists, SECONDS, f"mitmproxy has begun; {self.log('mitmdump')}")
        return found

    def begin(self, text: str, opening: Path | None = None) -> None:
        """Host a run and let three join it: two in the ward, one in the lab, by `opening` where given."""
        (self.home("coordinator") / "experiment.toml").write_text(text)
        web = ["--web", f"wss://{FRONT}/fedgossip", "--web-listen", "ws://127.0.0.1:8080"]
        self.fedgossip("host", "coordinator", "host", "experiment.toml", *web)
        invite = lambda: re.findall(r"^fedgossip join (fg1-\w+)$", self.log("coordinator"), re.MULTILINE)  # noqa: E731
        wait_until(invite, SECONDS, f"an invite; {self.log('coordinator')}")
        for who, machine in (("a", "ward"), ("b", "ward"), ("c", "lab")):
            opened = opening if machine == "lab" else None
            trusted = ["--ca", str(opened)] if opened else []
            self.fedgossip(machine, who, "join", invite()[-1], "--yes", *trusted, proxy=OPENING if opened else PROXY)

    def run_of(self, who: str) -> Path:
        (found,) = [*self.home(who).glob("hosting/*/run"), *self.home(who).glob("joined/*/run")]
        return found

    def events(self, who: str, name: str) -> list[dict[str, object]]:
        rows = map(json.loads, (self.run_of(who) / "metrics.jsonl").read_bytes().splitlines(keepends=True))
        return [row for row in rows if row["kind"] == "event" and row["name"] == name]

    def rounds(self) -> int:
        path = next(self.home("coordinator").glob("hosting/*/run/metrics.jsonl"), None)
        return path.read_bytes().count(b'"kind":"peer"') if path else 0

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        net = stack.enter_context(machines(NETS))
        yield Sites(net, tmp_path, stack)


@pytest.mark.parametrize("text", [FEDERATED, GOSSIP], ids=["secure sum", "gossip"])
def test_sites_that_reach_a_proxy_alone_end_with_the_digest_of_the_simulator(
    text: str, sites: Sites, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "unreachable" in sites.net.ask("ward", ["ip", "route", "get", FRONT])
    sites.begin(text.format(rounds=4))
    check_digest(sites, monkeypatch, capsys)


@pytest.mark.skipif(not shutil.which("mitmdump"), reason="needs mitmproxy")
def test_mitmproxy_sees_ciphertext(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites.begin(FEDERATED.format(rounds=4), sites.mitmproxy())
    check_digest(sites, monkeypatch, capsys)
    sites.running["mitmdump"].terminate()
    sites.running["mitmdump"].wait()
    seen = (sites.folder / "seen").read_bytes()
    assert b"websocket" in seen and len(seen) > 10_000
    for plain in (b"quadratic", b"loss", b"layout", b"experiment", b"rounds"):
        assert plain not in seen


@pytest.mark.skipif(not shutil.which("mitmdump"), reason="needs mitmproxy")
@pytest.mark.parametrize("kind", ["kaplan-meier", "glm", "cox"])
def test_sites_that_reach_proxies_alone_fit_the_file_of_the_simulation(kind: str, sites: Sites) -> None:
    """Three behind squid, two behind mitmproxy; the coordinator calls its relay as they do, through nginx."""
    source = sites.home("source")
    every_kind(source)
    homes = fit_sites.machines(source, sites.folder, fit_sites.files(kind), f"wss://{FRONT}/fedgossip")
    sites.fedgossip("host", "relay", "relay", "--listen", "ws://127.0.0.1:8080")
    opened = sites.mitmproxy()
    words = ["fit", f"{kind}.toml", "--endpoints", "endpoints.toml", "--out", "signed", "--to", "fit"]
    for node, home in enumerate(homes):
        lab = node in (3, 4)
        own = ["--id", str(node)] if node < fit_sites.SITES else []
        machine, proxy = ("lab", OPENING) if lab else ("ward", PROXY) if own else ("host", "")
        sites.fedgossip(machine, home.name, *words, *own, *(["--ca", str(opened)] if lab else []), proxy=proxy)
    ended = [sites.running[home.name].wait(SECONDS) for home in homes]
    assert ended == [0] * len(homes), [sites.log(home.name)[-1500:] for home in homes]
    simulated = typed(["fit", f"{kind}.toml", "--to", "simulated"], source)
    assert simulated.code == 0, simulated
    (result,) = (path for path in (source / "simulated").glob("*.json") if (homes[0] / "fit" / path.name).exists())
    assert {(home / "fit" / result.name).read_bytes() for home in homes} == {result.read_bytes()}


def check_digest(sites: Sites, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All end well, by the web, with the digest of the simulator."""
    people = ("coordinator", *"abc")
    ended = [sites.running[who].wait(SECONDS) for who in people]
    assert ended == [0] * 4, [sites.log(who)[-1500:] for who in people]
    home = sites.home("coordinator")
    named = str(next(home.glob("hosting/*/experiment.toml")))
    folders = [str(sites.run_of(who)) for who in people]
    real = in_process(["collect", named, *folders, "--json"], home, monkeypatch, capsys)
    simulated = in_process(["run", named, "--no-report", "--json"], home, monkeypatch, capsys)
    assert json.loads(real.out)["digest"] == json.loads(simulated.out)["digest"]
    assert all(sites.events(who, "via_web") for who in "abc")


def test_a_squid_that_is_killed_and_started_again_costs_a_round_at_most(sites: Sites) -> None:
    sites.begin(FEDERATED.format(rounds=1_000_000).replace("clients = 3", "clients = 3\ndeadline = 20.0"))
    wait_until(lambda: sites.rounds() > 5, SECONDS, f"rounds; {sites.log('coordinator')}{sites.log('a')}")
    sites.running["squid"].kill()
    sites.running["squid"].wait()
    before = sites.rounds()
    sites.squid()
    wait_until(lambda: sites.rounds() > before + 20, SECONDS, f"it goes on; {sites.log('a')}")
    assert len(sites.events("coordinator", "abandoned")) <= 1
