"""Two commands on three machines: network namespaces with addresses of their own, routers that masquerade, a relay."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from commands import experiment, wait_until
from namespaces import Machines, machines

from fedgossip.learning.analytic import Averaging

pytestmark = [pytest.mark.sockets, pytest.mark.root]

SECONDS = 90.0
FIRST_ROUND_SECONDS = 60.0


class Site:
    """Commands on machines, each in a folder of its own."""

    def __init__(self, net: Machines, folder: Path) -> None:
        self.net, self.folder = net, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def home(self, machine: str) -> Path:
        path = self.folder / machine
        path.mkdir(exist_ok=True)
        return path

    def start(self, machine: str, *words: str, name: str = "") -> None:
        self.running[name or machine] = self.net.start(machine, words, self.home(machine), self.home(machine) / "log")

    def log(self, machine: str) -> str:
        path = self.home(machine) / "log"
        return path.read_text() if path.exists() else ""

    def host(self, machine: str, *words: str) -> str:
        self.start(machine, "host", "experiment.toml", *words)
        invite = lambda: re.findall(r"^fedgossip join (fg1-\w+)$", self.log(machine), re.MULTILINE)  # noqa: E731
        wait_until(invite, SECONDS, f"an invite; {self.log(machine)}")
        return str(invite()[-1])

    def rows(self, machine: str) -> list[dict[str, Any]]:
        found = [*self.home(machine).glob("*/*/run/metrics.jsonl")]
        lines = found[0].read_bytes().splitlines(keepends=True) if found else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def round(self, machine: str) -> int:
        return max((row["round"] for row in self.rows(machine) if row["kind"] == "peer"), default=0)

    def events(self, machine: str, name: str) -> list[Any]:
        return [row["value"] for row in self.rows(machine) if row["kind"] == "event" and row["name"] == name]

    def reach(self, round: int, *among: str, seconds: float = SECONDS) -> None:
        """Wait until all of these have done so many rounds."""

        def there() -> bool:
            for machine in among:
                assert self.running[machine].poll() is None, self.log(machine)
            return all(self.round(machine) >= round for machine in among)

        wait_until(there, seconds, f"round {round}: {[self.log(machine)[-800:] for machine in among]}")

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def site_of(stack: ExitStack, addresses: dict[str, tuple[str, ...]], folder: Path) -> Site:
    site = Site(stack.enter_context(machines(addresses)), folder)
    stack.callback(site.stop)
    return site


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def averaging(folder: Path, n: int, rounds: int = 100_000) -> None:
    experiment(folder, n=n, rounds=rounds, graph="complete", more="[algorithm]\ndeadline = 5.0\n")


LAN = {"anna": ("10.79.0.1",), "bob": ("10.79.0.2",), "carl": ("10.79.0.3",)}


def test_three_machines_two_commands_and_no_address_typed(stack: ExitStack, tmp_path: Path) -> None:
    site = site_of(stack, LAN, tmp_path)
    averaging(site.home("anna"), 3)
    invite = site.host("anna")
    for machine in ("bob", "carl"):
        site.start(machine, "join", invite, "--yes")
    site.reach(1, "anna", "bob", "carl", seconds=FIRST_ROUND_SECONDS)
    assert "peer 1 (10.79.0." in site.log("anna")


def test_an_invite_from_before_the_hosts_address_changed_finds_it_by_its_announcement(
    stack: ExitStack, tmp_path: Path
) -> None:
    pytest.importorskip("zeroconf")
    site = site_of(stack, LAN, tmp_path)
    averaging(site.home("anna"), 2)
    old = site.host("anna")
    site.running["anna"].kill()
    site.running["anna"].wait()
    name = site.net.name("anna")
    for words in (("addr", "flush", "dev", "eth0"), ("addr", "add", "10.79.0.9/24", "dev", "eth0")):
        subprocess.run(["ip", "-n", name, *words], check=True, capture_output=True)
    (site.home("anna") / "log").unlink()
    new = site.host("anna")
    assert new != old
    site.start("bob", "join", old, "--yes")
    site.reach(1, "anna", "bob", seconds=FIRST_ROUND_SECONDS)


def test_a_peer_whose_address_changes_goes_on_and_at_most_one_round_is_lost(stack: ExitStack, tmp_path: Path) -> None:
    site = site_of(stack, LAN, tmp_path)
    averaging(site.home("anna"), 3)
    invite = site.host("anna")
    for machine in ("bob", "carl"):
        site.start(machine, "join", invite, "--yes")
    site.reach(20, "anna", "bob", "carl")
    bob = site.net.name("bob")
    for words in (("addr", "flush", "dev", "eth0"), ("addr", "add", "10.79.0.77/24", "dev", "eth0")):
        subprocess.run(["ip", "-n", bob, *words], check=True, capture_output=True)
    wait_until(lambda: site.events("bob", "moved"), SECONDS, "b notices")
    reached = max(map(site.round, LAN))
    site.reach(reached + 20, "anna", "bob", "carl")
    assert "10.79.0.77" in str(site.events("bob", "moved"))
    lost = [row["round"] for m in LAN for row in site.rows(m) if row["kind"] == "event" and row["name"] == "missed"]
    assert len(set(lost)) <= 1, lost
    assert not site.events("anna", "gone") or all(not isinstance(one, dict) for one in site.events("anna", "gone"))


def test_a_client_whose_address_changes_calls_again_and_at_most_one_round_is_lost(
    stack: ExitStack, tmp_path: Path
) -> None:
    site = site_of(stack, LAN, tmp_path)
    text = 'rounds = 100000\ntask = { kind = "quadratic", dim = 5 }\n'
    text += "[coordinator]\nclients = 2\nmin_clients = 2\nsecure.on = false\ndeadline = 5.0\n"
    (site.home("anna") / "experiment.toml").write_text(text)
    invite = site.host("anna")
    for machine in ("bob", "carl"):
        site.start(machine, "join", invite, "--yes")
    site.reach(10, "anna", seconds=FIRST_ROUND_SECONDS)
    bob = site.net.name("bob")
    for words in (("addr", "flush", "dev", "eth0"), ("addr", "add", "10.79.0.77/24", "dev", "eth0")):
        subprocess.run(["ip", "-n", bob, *words], check=True, capture_output=True)
    site.reach(site.round("anna") + 20, "anna")  # of two clients, so with bob at his new address
    assert len(site.events("anna", "abandoned")) <= 1


def masquerade(router: str, net: Machines) -> None:
    """Let what comes from inside a router leave with its own address, and nothing come in by itself."""
    ways = {
        "nft": "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; "
        "add rule ip nat out oifname eth0 masquerade; add table ip filter; "
        "add chain ip filter in { type filter hook forward priority 0; policy drop; }; "
        "add rule ip filter in iifname inside accept; add rule ip filter in ct state established,related accept",
    }
    name = net.name(router)
    subprocess.run(["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    if shutil.which("nft"):
        inside = ["ip", "netns", "exec", name, "nft", ways["nft"]]
        done = subprocess.run(inside, check=False, capture_output=True, text=True)
    elif shutil.which("iptables"):
        rules = ("-t nat -A POSTROUTING -o eth0 -j MASQUERADE", "-P FORWARD DROP", "-A FORWARD -i inside -j ACCEPT",
                 "-A FORWARD -m state --state ESTABLISHED,RELATED -j ACCEPT")  # fmt: skip
        for rule in rules:
            words = ["ip", "netns", "exec", name, "iptables", *rule.split()]
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            if done.returncode:
                break
    else:
        pytest.skip("needs nft or iptables to masquerade")
    if done.returncode:
        pytest.skip(f"this kernel does not masquerade: {done.stderr.strip()}")


def behind(net: Machines, router: str, machine: str, stack: ExitStack) -> None:
    """Put a machine behind a router: 192.168.1.2 on a network that the router alone is on, too."""
    inner, outer = net.name(machine), net.name(router)
    subprocess.run(["ip", "netns", "add", inner], check=True)
    stack.callback(subprocess.run, ["ip", "netns", "del", inner], capture_output=True)
    pair = ["type", "veth", "peer", "name", "inside", "netns", outer]
    for words in (
        ["link", "add", "eth0", "netns", inner, *pair],
        ["-n", outer, "addr", "add", "192.168.1.1/24", "dev", "inside"],
        ["-n", outer, "link", "set", "inside", "up"],
        ["-n", inner, "addr", "add", "192.168.1.2/24", "dev", "eth0"],
        ["-n", inner, "link", "set", "eth0", "up"],
        ["-n", inner, "link", "set", "lo", "up"],
        ["-n", inner, "route", "add", "default", "via", "192.168.1.1"],
    ):
        subprocess.run(["ip", *words], check=True, capture_output=True)
    masquerade(router, net)


WORLD = {"relay": ("10.79.1.1",), "left": ("10.79.1.2",), "right": ("10.79.1.3",), "open": ("10.79.1.4",)}
RELAY = "10.79.1.1:7777"


def relayed_world(stack: ExitStack, folder: Path) -> Site:
    """A relay that is watched; anna behind one router and bob behind another, both with the same private address."""
    site = site_of(stack, WORLD, folder)
    for router, machine in (("left", "anna"), ("right", "bob")):
        behind(site.net, router, machine, stack)
    wire = folder / "wire"
    wire.mkdir()
    words = [sys.executable, str(Path(__file__).parents[1] / "sniffing.py"), str(wire)]
    site.running["wire"] = site.net.spawn("relay", words, folder, folder / "sniffing")
    wait_until(lambda: "sniffing" in (folder / "sniffing").read_text(), SECONDS, "the wire is watched")
    site.start("relay", "relay", "--listen", "0.0.0.0:7777")
    wait_until(lambda: "relay at" in site.log("relay"), SECONDS, "the relay listens")
    return site


def check_wire(folder: Path, known: list[bytes]) -> None:
    """What went through the relay's card is ciphertext after the greeting of ZeroMQ, which says that it will be."""
    streams = [path.read_bytes() for path in (folder / "wire").iterdir()]
    greeted = [one for one in streams if b"CURVE" in one[:200] and len(one) > 2000]
    assert len(greeted) >= 4, [len(one) for one in streams]
    assert not any(bytes_ in one for bytes_ in known for one in streams)


def seen(run: Path) -> str:
    """What `fedgossip watch` shows of a run."""
    words = [sys.executable, "-m", "fedgossip", "watch", str(run), "--once"]
    return subprocess.run(
        words, check=True, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout


def test_peers_behind_two_routers_learn_through_a_relay_also_after_it_was_killed(
    stack: ExitStack, tmp_path: Path
) -> None:
    """A third machine can be called: it is not spoken to through the relay."""
    site = relayed_world(stack, tmp_path)
    averaging(site.home("anna"), 3)
    invite = site.host("anna", "--relay", RELAY)
    for machine in ("bob", "open"):
        site.start(machine, "join", invite, "--yes")
    site.reach(5, "anna", "bob", "open")
    node = {m: int(re.findall(r"^peer (\d) at", site.log(m), re.MULTILINE)[0]) for m in ("anna", "bob", "open")}
    assert node["bob"] in site.events("anna", "via_relay") and node["anna"] in site.events("bob", "via_relay")
    assert node["open"] not in site.events("bob", "via_relay")
    (run,) = site.home("bob").glob("joined/*/run")
    assert f"via relay to {node['anna']}" in seen(run)
    site.running["relay"].send_signal(signal.SIGKILL)
    site.running["relay"].wait()
    site.start("relay", "relay", "--listen", "0.0.0.0:7777")
    reached = max(map(site.round, ("anna", "bob", "open")))
    site.reach(reached + 30, "anna", "bob", "open")
    check_wire(tmp_path, [averaging_task().initial(peer).tobytes() for peer in range(3)])


def averaging_task() -> Averaging:
    """What peers of `averaging` begin with, which they send as it is."""
    return Averaging(3, 5, seed=1)


def test_a_coordinator_behind_a_router_is_reached_by_its_clients_through_a_relay_also_after_it_was_killed(
    stack: ExitStack, tmp_path: Path
) -> None:
    site = relayed_world(stack, tmp_path)
    text = 'seed = 1\nrounds = 100000\ntask = { kind = "averaging", dim = 5 }\n'
    (site.home("anna") / "experiment.toml").write_text(text + "[coordinator]\nclients = 2\nsecure.on = false\n")
    invite = site.host("anna", "--relay", RELAY)
    for machine in ("bob", "open"):
        site.start(machine, "join", invite, "--yes")
    site.reach(5, "anna", seconds=FIRST_ROUND_SECONDS)
    assert site.events("bob", "via_relay") and site.events("open", "via_relay")
    (run,) = site.home("bob").glob("joined/*/run")
    assert "via relay to the coordinator" in seen(run)
    site.running["relay"].send_signal(signal.SIGKILL)
    site.running["relay"].wait()
    site.start("relay", "relay", "--listen", "0.0.0.0:7777")
    reached = site.round("anna")
    site.reach(reached + 10, "anna")
    check_wire(tmp_path, [averaging_task().initial(2).tobytes()])  # that of the coordinator, which nobody changes


@pytest.mark.long
def test_after_a_kill_in_mid_run_the_same_command_goes_on_at_a_joiner_and_at_the_host(
    stack: ExitStack, tmp_path: Path
) -> None:
    site = site_of(stack, LAN, tmp_path)
    averaging(site.home("anna"), 3)
    invite = site.host("anna")
    for machine in ("bob", "carl"):
        site.start(machine, "join", invite, "--yes")
    site.reach(20, *LAN)
    for machine, words in (("bob", ("join", invite, "--yes")), ("anna", ("host", "experiment.toml"))):
        site.running[machine].kill()
        site.running[machine].wait()
        site.start(machine, *words)
        again = lambda machine=machine: site.events(machine, "resumed")  # noqa: E731
        wait_until(again, SECONDS, f"{machine} goes on")
        reached = max(map(site.round, LAN))
        site.reach(reached + 20, *LAN)
