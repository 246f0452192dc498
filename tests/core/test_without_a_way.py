"""Machines that reach no other, and regions that reach their own coordinator alone, in network namespaces.

All are of the long form.  They type the rows on folders, sticks and regions of the table in docs/together/machines.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import wait_until
from safetensors.numpy import load_file
from test_machines import SECONDS, Site, averaging, site_of

from fedgossip.base.vectors import digest
from fedgossip.drivers.simulate import simulate
from fedgossip.net.endpoints import read_block

pytestmark = [pytest.mark.sockets, pytest.mark.root, pytest.mark.long, pytest.mark.timeout(400)]

WARDS = {"anna": ("10.83.1.1",), "bob": ("10.83.2.2",), "carl": ("10.83.3.3",)}
ROOT, LEAVES, CLIENTS = 8, (6, 7), range(6)
REGIONS = {
    "root": ("10.83.9.1",),
    **{f"leaf{leaf}": (f"10.83.{leaf}.1", f"10.83.9.{leaf}") for leaf in LEAVES},
    **{f"client{node}": (f"10.83.{6 + node // 3}.{10 + node}",) for node in CLIENTS},
}
TIERS = """
seed = 1
rounds = 1_000_000
task = { kind = "quadratic", dim = 5 }
[coordinator]
clients = 6
min_clients = 3
deadline = 20.0
return_timeout = 5.0
tiers = [{ clients = 3 }, { clients = 2, secure = false }]
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def alone(stack: ExitStack, folder: Path, rounds: int) -> Site:
    """Three machines without a network, and a folder that all see."""
    site = site_of(stack, WARDS, folder)
    for machine in WARDS:
        site.net.cut(machine)
    (folder / "with space ü").mkdir()
    averaging(site.home("anna"), 3, rounds=rounds)
    return site


def check_digest(site: Site) -> None:
    """The peers' vectors, each under the place that it was given, are the simulator's."""
    vectors = {}
    for machine in WARDS:
        (run,) = site.home(machine).glob("*/*/run")
        block = read_block(run / "endpoint.toml")
        assert block
        vectors[block[0]] = load_file(run / "vector.safetensors")["vector"]
    found = digest([vectors[node] for node in range(3)])
    assert found == simulate(next(site.home("anna").glob("hosting/*/experiment.toml"))).digest


LINKS = ("--links", "folder:../with space ü")


def test_machines_without_a_network_learn_through_a_folder_that_all_see(stack: ExitStack, tmp_path: Path) -> None:
    site = alone(stack, tmp_path, rounds=4)
    assert "unreachable" in site.net.ask("bob", ["ip", "route", "get", WARDS["anna"][0]])
    invite = site.host("anna", *LINKS, "--poll", "0.2")
    for machine in ("bob", "carl"):
        site.start(machine, "join", invite, "--yes", *LINKS, "--poll", "0.2")
    assert [site.running[machine].wait(SECONDS) for machine in WARDS] == [0, 0, 0], site.log("bob")
    check_digest(site)


def test_a_stick_is_carried_between_machines_without_a_network(stack: ExitStack, tmp_path: Path) -> None:
    site = alone(stack, tmp_path, rounds=2)

    def visit(machine: str, *words: str) -> str:
        run = next(site.home(machine).glob("*/*/run"), None)
        command = ["step", str(run)] if run else [*words, *LINKS, "--once"]
        at = f"import os; os.chdir({str(site.home(machine))!r}); from fedgossip.cli import main; main()"
        return site.net.ask(machine, [sys.executable, "-c", at, *command])

    said = visit("anna", "host", "experiment.toml")
    invite = next(line.split()[-1] for line in said.splitlines() if line.startswith("fedgossip join fg1-"))
    for _ in range(20):
        for machine in ("bob", "carl"):
            visit(machine, "join", invite, "--yes")
        visit("anna", "host", "experiment.toml")
        if all([*site.home(machine).glob("*/*/run/vector.safetensors")] for machine in WARDS):
            break
    check_digest(site)


def test_regions_learn_under_their_coordinators_one_of_which_is_killed_and_typed_again(
    stack: ExitStack, tmp_path: Path
) -> None:
    site = site_of(stack, REGIONS, tmp_path)
    assert "unreachable" in site.net.ask("client0", ["ip", "route", "get", REGIONS["root"][0]])
    (site.home("root") / "experiment.toml").write_text(TIERS)
    invite = site.host("root")
    typed = {}
    for leaf in LEAVES:
        typed[leaf] = ("join", invite, "--yes", "--coordinator", str(leaf), "--address", f"10.83.{leaf}.1")
        site.start(f"leaf{leaf}", *typed[leaf])
    for node in CLIENTS:
        leaf = f"leaf{6 + node // 3}"
        lines = lambda leaf=leaf: [one for one in site.log(leaf).splitlines() if "fedgossip join fg1-" in one]  # noqa: E731
        wait_until(lines, SECONDS, f"an invite of {leaf}: {site.log(leaf)}")
        site.start(f"client{node}", "join", lines()[-1].split()[2], "--yes", "--under", leaf[4:])
    wait_until(lambda: site.round("root") >= 3, SECONDS, f"three rounds; {site.log('root')[-800:]}")
    site.running["leaf6"].kill()
    site.running["leaf6"].wait()
    counts = lambda: [row["clients"] for row in site.rows("root") if row["kind"] == "peer" and row["round"]]  # noqa: E731
    wait_until(lambda: counts()[-1] == 3, SECONDS, "the root goes on with the other region")
    site.start("leaf6", *typed[6])
    wait_until(lambda: counts()[-1] == 6, 2 * SECONDS, f"the region is back; {site.log('leaf6')[-800:]}")
    assert set(counts()) == {3, 6} and site.events("leaf6", "resumed")
