"""docs/use/journeys.md: what four new users type on their first day, typed here in fewer rounds and by fewer peers.

The engineer's commands are those of the README's first door, which its test types: here they are typed if `--long`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import Reader, blocks_of, page, sections, typed
from test_host_join import People

HANGS = 400  # seconds; it bounds a hang

pytestmark = [pytest.mark.sockets, pytest.mark.anywhere, pytest.mark.timeout(600)]

JOURNEYS = sections(page("journeys"))
QUICK = {"-n 4": "-n 3", "range(200)": "range(20)"}
"""What the quick form writes in place of what the page says."""


class Newcomer(Reader):
    """Who reads one journey, and has little time: few rounds, few seeds."""

    def travel(self, heading: str) -> None:
        text = JOURNEYS[heading]
        for long, quick in QUICK.items():
            text = text.replace(long, quick)
        for block in blocks_of(text):
            if block.left_out:
                continue
            if block.kind == "sh":
                self._typed_quickly(block.text)
            else:
                self.follow(block)

    def _typed_quickly(self, text: str) -> None:
        for line in text.splitlines():
            typed(line)
            if line.startswith("cd "):
                for path in (*Path().glob("experiment.toml"), *Path().glob("compare.py")):
                    said = path.read_text().replace("rounds = 20", "rounds = 3").replace("rounds = 10", "rounds = 3")
                    path.write_text(said.replace("SEEDS = [1, 2, 3]", "SEEDS = [1, 2]"))


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newcomer:
    monkeypatch.chdir(tmp_path)
    return Newcomer(tmp_path)


def summaries(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in folder.rglob("summary.json") if "peers" not in path.parts]


def test_there_are_four_journeys() -> None:
    assert [heading.split()[1] for heading in JOURNEYS] == ["engineer", "hobbyist", "student", "privacy"]


@pytest.mark.long
def test_the_engineer_s_loop_learns_with_others(newcomer: Newcomer, tmp_path: Path) -> None:
    newcomer.travel("The engineer with a training loop")
    runs = summaries(tmp_path)
    assert len(runs) == 3 and {run["status"] for run in runs} == {"finished"}
    digests = [run["digest"] for run in runs]
    assert len(set(digests)) == 2, "simulated and launched end with the same bits"


def test_the_loop_of_the_page_has_five_lines_more() -> None:
    plain, joined = (block.text.splitlines() for block in blocks_of(JOURNEYS["The engineer with a training loop"])[:2])
    added = [line for line in joined if line.strip() and line not in plain]
    assert len(added) <= 6, "five, and the batch of its own share"


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    made = People(tmp_path)
    yield made
    made.stop()


@pytest.mark.long
def test_the_hobbyist_s_three_machines_learn_together(newcomer: Newcomer, people: People) -> None:
    newcomer.travel("The hobbyist with three machines")  # leaves us in the folder of the experiment
    (left_out,) = (block for block in blocks_of(JOURNEYS["The hobbyist with three machines"]) if block.left_out)
    host, join, watch = (shlex.split(line, comments=True) for line in left_out.text.splitlines())
    assert (host[:2], join[:2], watch[:2]) == (["fedgossip", "host"], ["fedgossip", "join"], ["fedgossip", "watch"])
    (people.home("host") / "experiment.toml").write_text(Path("experiment.toml").read_text())
    invite = people.host(*host[3:], "--set", "rounds=3")
    for who in ("laptop", "board"):
        people.join(who, invite)
    three = ("host", "laptop", "board")
    assert [people.running[who].wait(HANGS) for who in three] == [0, 0, 0], people.said("laptop")
    assert people.run_of("host") == people.home("host") / watch[2]
    assert all((people.run_of(who) / "model" / "model.json").exists() for who in three)


@pytest.mark.long
def test_the_student_s_graph_and_algorithm_are_run_and_compared(newcomer: Newcomer, tmp_path: Path) -> None:
    newcomer.travel("The student with a graph and an algorithm of her own")
    runs = summaries(tmp_path)
    assert len({run["digest"] for run in runs}) == 2 and len(runs) >= 3, "hers differs, and processes do not"


@pytest.mark.long
def test_the_privacy_officer_sees_what_left_each_site(newcomer: Newcomer, tmp_path: Path) -> None:
    newcomer.travel("The privacy officer")
    assert (tmp_path / "hospitals" / "site0.csv").read_text().count("masked") >= 3
