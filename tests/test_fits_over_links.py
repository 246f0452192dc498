"""Each kind of fit by processes with folders of their own: the file of the simulation, whoever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import typed
from fit_sites import SITES, machines, own_tables
from test_release_fits import patients

pytestmark = pytest.mark.sockets

TIMES, YES_NO = "label=days,died&drop=ill", "label=ill&drop=days,died"
QUERY = {"kaplan-meier": TIMES, "cox": TIMES, "glm": YES_NO, "trees": YES_NO}
SOURCE = {
    "kaplan-meier": "kaplan-meier?every=90&until=360",
    "cox": "cox?every=60&until=600",
    "glm": "glm:logistic",
    "trees": "trees:3x2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of all sites, and an experiment of each kind with what was agreed on."""
    found = tmp_path_factory.mktemp("fits")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    for kind, query in QUERY.items():
        more = '[task]\nkind = "regression"\n' if query == TIMES else ""
        (found / f"{kind}.toml").write_text(own_tables(kind, query, source=SOURCE[kind], more=more))
        assert typed(["data", "agree", f"{kind}.toml"], found).code == 0
    return found


def test_a_coordinator_whose_fit_has_stopped_advises_what_fit_has(folder: Path, tmp_path: Path) -> None:
    """`--resume` is of runs that train; a fit is begun again."""
    hub = machines(folder, tmp_path, ["glm.toml", "glm.json", "test.csv"])[SITES]
    words = ["fit", "glm.toml", "--endpoints", "endpoints.toml", "--out", "log", "--to", "fit"]
    for _ in ("nobody comes", "the folder is not empty"):
        said = typed([*words, "--set", "coordinator.start_timeout=1"], hub)
        assert said.code in (2, 7) and "Begin again, all together and in new folders (--out)" in said.err, said
        assert "--resume" not in said.err and not (hub / "fit").exists()
