"""Statistics and fits over sums of the user's own: the results of the commands, and what a site refuses of a sum."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from commands import typed
from fit_sites import QUERY, SITES, SOURCE, TIMES, own_tables, patients

from fedgossip import load_experiment
from fedgossip.base.errors import ConfigError, ProtocolError
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.experiment import Experiment
from fedgossip.secure import ExactEncoding, RoundAbandoned, SumClient, SumServer, sign_card
from fedgossip.sites.plans import given_sums

KINDS = ["glm", "cox", "trees", "firth"]
FILE = {"glm": "fit.json", "cox": "fit.json", "trees": "trees-fit.json", "firth": "tables.json"}


class PlainSums:
    """All sites in threads, which add numbers in the clear; `lie` changes a sum of this round, counted from 0."""

    def __init__(self, lie: Callable[[list[Any]], Any] = list, at: int = -1) -> None:
        self.meeting, self.told, self.lie, self.at = Barrier(SITES, timeout=30), dict[int, list[int]](), lie, at

    def together(self, function: Any, experiment: Experiment) -> list[Any]:
        def at_site(site: int) -> Any:
            try:
                return function(experiment, site, _OfSite(self, site))
            except Exception:
                self.meeting.abort()
                raise

        with ThreadPoolExecutor(SITES) as threads:
            running = [threads.submit(at_site, site) for site in range(SITES)]
        errors = [error for one in running if (error := one.exception()) and not isinstance(error, BrokenBarrierError)]
        if errors:
            raise errors[0]
        return [one.result() for one in running]


class _OfSite:
    def __init__(self, whole: PlainSums, site: int) -> None:
        self.whole, self.site, self.round = whole, site, 0

    def sum(self, numbers: Sequence[int]) -> list[int]:
        self.whole.told[self.site] = list(numbers)
        self.whole.meeting.wait()
        found = [sum(one) for one in zip(*self.whole.told.values(), strict=True)]
        self.whole.meeting.wait()
        self.round += 1
        return self.whole.lie(found) if self.round == self.whole.at + 1 else found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("given")
    for site in range(SITES):
        patients(where / f"site-{site}.csv", site)
    patients(where / "test.csv", 99)
    for kind in KINDS:
        more = '[task]\nkind = "regression"\n' if QUERY[kind] == TIMES else ""
        (where / f"{kind}.toml").write_text(own_tables(kind, QUERY[kind], source=SOURCE[kind], more=more))
    return where


def agreed(folder: Path, kind: str) -> Experiment:
    experiment = load_experiment(folder / f"{kind}.toml")
    if not (path := Path(experiment.data.agreed)).exists():
        table, *others = PlainSums().together(given_sums.agree_by_sums, experiment)
        path.write_bytes(encoded(table))
        assert all(encoded(other) == encoded(table) for other in others)
    return experiment


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_and_fits_are_those_of_the_commands_byte_for_byte(kind: str, folder: Path) -> None:
    with contextlib.chdir(folder):
        experiment = agreed(folder, kind)
        by_command = folder / f"{kind}.json"
        mine = by_command.rename(folder / "mine.json").read_bytes()
        assert typed(["data", "agree", f"{kind}.toml"], folder).code == 0
        assert by_command.read_bytes() == mine
        assert typed(["fit", f"{kind}.toml", "--to", f"fit-{kind}"], folder).code == 0
        results = PlainSums().together(given_sums.fit_by_sums, experiment)
        assert {encoded(one) for one in results} == {(folder / f"fit-{kind}" / FILE[kind]).read_bytes()}


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        (lambda total: total[:-1], "SCHEMA"),
        (lambda total: [float(one) for one in total], "SCHEMA"),
        (lambda total: [1 << 300, *total[1:]], "BOUND"),
        (lambda total: [total[0] - 1, *total[1:]], r"\(POINT\): .*sums of 4 sites, where 5 were signed"),
        (
            lambda total: [one // 20 if one > 20 else one for one in total],
            r"\(POINT\): .*below that of this site alone",
        ),
    ],
)
def test_a_sum_that_cannot_be_one_of_all_sites_is_refused(lie: Any, text: str, folder: Path) -> None:
    with contextlib.chdir(folder):
        experiment = agreed(folder, "glm")
        with pytest.raises(RoundAbandoned) as refused:
            PlainSums(lie, at=0).together(given_sums.fit_by_sums, experiment)
    assert refused.match(text)


def test_a_site_that_is_none_and_a_table_that_does_not_fit_are_refused(folder: Path) -> None:
    with contextlib.chdir(folder):
        experiment = agreed(folder, "glm")
        with pytest.raises(ConfigError, match="there is no site 5"):
            given_sums.fit_by_sums(experiment, SITES, PlainSums())  # type: ignore[arg-type]
        whole = (folder / "site-1.csv").read_text()
        (folder / "site-1.csv").write_text(whole.splitlines()[0] + "\n")
        with pytest.raises(ConfigError, match="no rows"):
            given_sums.fit_by_sums(experiment, 1, PlainSums())  # type: ignore[arg-type]
        (folder / "site-1.csv").write_text(whole)
        budget = (
            "coordinator.privacy.unit=record",
            "coordinator.privacy.noise=1.0",
            "coordinator.privacy.max_epsilon=1.0",
        )
        with pytest.raises(ConfigError, match="with a budget, over given sums"):
            given_sums.agree_by_sums(load_experiment(folder / "glm.toml", budget), 1, PlainSums())  # type: ignore[arg-type]


@pytest.mark.timeout(60)
def test_a_site_waits_for_no_sum_among_frames_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumClient, "take_part", lambda *_: None)
    encoding, key = ExactEncoding((9,)), bytes([1]) * 32
    cards = [sign_card(bytes([site + 1]) * 32) for site in range(SITES)]
    client = SumClient(key, cards, sign_card(bytes(32)), encoding, task="t", entropy=os.urandom)
    with pytest.raises(ProtocolError, match="100 frames, and none is the signed sum"):
        given_sums.FramedSums(client, lambda _: None, lambda: b"junk").sum([1])


@pytest.mark.timeout(60)
def test_only_a_site_ends_the_sums() -> None:
    """An empty frame is of no signature, and one of a number that is no site's ended all sites' fit."""
    cards = [sign_card(bytes([site + 1]) * 32) for site in range(SITES)]
    received = iter([(SITES, b""), (-1, b""), (0, b"")])
    given_sums.serve_sums(
        SumServer(bytes(32), cards, ExactEncoding((9,)), task="t"), lambda *_: None, lambda: next(received)
    )
    assert next(received, None) is None


def test_a_site_takes_no_sum_that_the_coordinator_has_not_signed() -> None:
    keys, boss, encoding = [bytes([site + 1]) * 32 for site in range(SITES)], bytes(32), ExactEncoding((9, 1 << 100))
    cards, inboxes = [sign_card(key) for key in keys], [Queue[bytes]() for _ in keys]
    replies: Queue[tuple[int, bytes]] = Queue()

    def send(site: int, frame: bytes) -> None:
        if len(frame) == 4 * encoding.ring.words:
            inboxes[site].put(bytes(len(frame)))
        inboxes[site].put(frame)

    def take_part(site: int) -> list[Sequence[int]]:
        client = SumClient(keys[site], cards, sign_card(boss), encoding, task="t", entropy=os.urandom)
        with given_sums.FramedSums(
            client, lambda frame: replies.put((site, frame)), lambda: inboxes[site].get(timeout=30)
        ) as sums:
            return [sums.sum([site, 1 << 100]), sums.sum([-site, 0])]

    with ThreadPoolExecutor(SITES) as threads:
        found = threads.map(take_part, range(SITES))
        given_sums.serve_sums(SumServer(boss, cards, encoding, task="t"), send, lambda: replies.get(timeout=30))
        assert [*found] == [[[10, 5 << 100], [-10, 0]]] * SITES
