"""A release of what sums over sites have fitted: coefficients, trees, hazards, curves; as of a trained model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import typed
from fit_sites import SITES, own_tables, patients
from test_release import USE, flip, refused

from fedgossip.base.errors import ConfigError
from fedgossip.net.identity import Identity
from fedgossip.report.page.numbers import number
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.fit_files import read_fit
from fedgossip.sites.fits.glm.glm_result import GlmFit
from fedgossip.sites.releases.checking import check, contains
from fedgossip.sites.releases.fitted import section_of
from fedgossip.sites.releases.released import write_signed

KINDS = {
    "glm": ("yesno", "glm:logistic", "model/weights.safetensors", "fit.json"),
    "trees": ("yesno", "trees:3x2", "model/trees.json", "trees-fit.json"),
    "cox": ("times", "cox?every=60&until=600", "fit.json", "fit.json"),
    "firth": ("yesno", "firth", "model/weights.safetensors", "tables.json"),
    "kaplan-meier": ("times", "kaplan-meier?every=90&until=360", "survival.json", "survival.json"),
}
"""The experiment of each, its model.source, the file that is the model, the file that tells the fit."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fits")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site)
    patients(found / "test.csv", 99)
    (found / "yesno.toml").write_text(own_tables("yesno", "label=ill&drop=days,died", least=SITES))
    times = own_tables("times", "label=days,died&drop=ill", more='[task]\nkind = "regression"\n', least=SITES)
    (found / "times.toml").write_text(times)
    for name in ("yesno", "times"):
        assert typed(["data", "agree", f"{name}.toml"], found).code == 0
    (found / "use.txt").write_text(USE)
    Identity.new().save(found / "peer.key")
    return found


@cache
def released(folder: Path, kind: str) -> Path:
    """Fit and release, once for all tests that look at it."""
    name, source, *_ = KINDS[kind]
    said = typed(["fit", f"{name}.toml", "--set", f"model.source={source}", "--to", kind], folder)
    assert said.code == 0, said
    said = typed(["release", kind, "--out", f"{kind}.zip"], folder)
    assert said.code == 0, said
    return folder / f"{kind}.zip"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_is_released_with_its_plan_its_sites_and_what_was_opened(folder: Path, kind: str) -> None:
    _, source, model, fit = KINDS[kind]
    found = check(released(folder, kind))
    release = found.release
    assert not found.faults and (release.model.source, release.model.file, release.fit) == (source, model, fit)
    rounds = tuple(range(1, release.rounds + 1))
    assert release.counted == (rounds,) * SITES and release.rounds >= 2 and release.least == SITES
    with zipfile.ZipFile(found_at := released(folder, kind)) as archive:
        plan = json.loads(archive.read("plan.json"))
        assert archive.read(fit) == (folder / kind / fit).read_bytes(), found_at
    assert (
        plan["experiment"]["model"]["source"] == source
        and plan["terms"]["sent"] == dict(release.privacy.words)["opened"]
    )
    assert set(plan["files"]) == {f"{KINDS[kind][0]}.json", "test.csv"}
    assert (
        contains(release, 2)[0]
        == f"{model}: its records are in the sums of {release.rounds} of {release.rounds} rounds"
    )


COUNTS = {"format", "rounds", "counted", "least", "clients", "numbers"}
"""Fields of release.json that hold whole numbers: of rounds, sites and elements of the model."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_holds_no_count_of_records_beside_the_files_that_the_solver_reads(folder: Path, kind: str) -> None:
    """So what tests/sites/test_disclosure.py finds of agreed statistics and fits holds for releases of them."""
    with zipfile.ZipFile(released(folder, kind)) as archive:
        facts = json.loads(archive.read("release.json"))
        assert archive.read("agreed.json") == (folder / f"{KINDS[kind][0]}.json").read_bytes()
    found: list[str] = []

    def walk(value: object, place: str) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                walk(one, key)
        elif isinstance(value, list):
            for one in value:
                walk(one, place)
        elif isinstance(value, int | float) and not isinstance(value, bool) and place not in COUNTS:
            found.append(f"{place}: {value}")

    walk(facts, "")
    assert found == []


def shown(folder: Path, kind: str) -> str:
    released(folder, kind)
    return (folder / kind / "card.html").read_text().partition("What was fitted")[2].partition("<h2")[0]


def test_the_card_tells_coefficients_with_their_errors(folder: Path) -> None:
    page, fit = (
        shown(folder, "glm"),
        msgspec.json.decode(released(folder, "glm").with_name("glm").joinpath("fit.json").read_bytes(), type=GlmFit),
    )
    hazards = (
        msgspec.json.decode((folder / "cox" / "fit.json").read_bytes(), type=CoxFit) if shown(folder, "cox") else None
    )
    assert hazards is not None
    for told, coefficients in ((page, fit.coefficients), (shown(folder, "cox"), hazards.coefficients)):
        cells = [re.sub("<[^>]+>", "", row) for row in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", told)]
        for one in coefficients:
            row = cells[cells.index(one.name) :]
            assert row[1:6] == [number(value) for value in (one.estimate, one.error, one.low, one.high, one.p)]
            if not one.name.startswith("("):
                ratio = float(row[6])
                assert abs(ratio - one.ratio[0]) < 0.06 * abs(one.ratio[0] - 1) + 5e-7, "two digits of the effect"
    assert "Odds ratio" in page and "Hazard ratio" in shown(folder, "cox")
    assert 'id="forest-odds-ratios"' in page and 'id="forest-hazard-ratios"' in shown(folder, "cox")


def test_the_card_tells_curves_and_what_columns_were_worth(folder: Path) -> None:
    (curve, trees) = (
        json.loads((released(folder, kind).with_suffix("") / KINDS[kind][3]).read_bytes())
        for kind in ("kaplan-meier", "trees")
    )
    for point in curve["everybody"]["points"]:
        assert f">{number(point['survival'])}<" in shown(folder, "kaplan-meier")
    card = (folder / "kaplan-meier" / "card.html").read_text()
    assert "Kind of task" not in card and f" events until {curve['everybody']['points'][-1]['time']:g}." in card
    assert 'id="survival"' in card and f'<td class="number">{curve["everybody"]["median"]:g}</td>' in card
    words = card.partition("Words on this page")[2]
    assert "<td>Kaplan-Meier</td>" in words and "<td>AUROC</td>" not in words
    assert trees["gains"] and all(f">{one['name']}<" in shown(folder, "trees") for one in trees["gains"])
    assert "fedgossip evaluate" not in (folder / "kaplan-meier" / "card.html").read_text().partition("<script")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_one_byte_changed_anywhere_in_the_release_of_a_fit_is_refused(folder: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(content := released(folder, kind).read_bytes())
    places = np.random.default_rng(7).integers(0, len(content), 40).tolist()
    for at in (*places, content.index(b'"design"') + 3, len(content) - 1):
        flip(path, at, 1 << at % 8)
        assert refused(path), at
        flip(path, at, 1 << at % 8)
    assert not refused(path)


@pytest.mark.parametrize("kind", ["trees", "cox"])
def test_a_fit_that_was_changed_and_signed_anew_is_not_what_the_card_tells_of(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    with zipfile.ZipFile(released(folder, kind)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    identity, model = Identity.new(), KINDS[kind][2]
    contents[model] = contents[model].replace(b"1", b"2", 1)
    contents["release.json"] = json.dumps(json.loads(contents["release.json"]) | {"signer": identity.verify}).encode()
    write_signed(tmp_path / "forged.zip", contents, identity)
    assert f"{model}: not the weights that the card describes" in check(tmp_path / "forged.zip").faults


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_a_stranger_s_fit_are_text_on_the_card_and_what_contradicts_itself_is_refused(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    """Every word, number and list of the file in turn."""
    released(folder, kind)
    shutil.copytree(folder / kind, tmp_path / kind)
    path = tmp_path / kind / KINDS[kind][3]
    content = json.loads(path.read_text())
    evil = "</text></svg><script>alert(1)</script>\x1b[2J$\\frac$"
    for at, value in leaves_of(content):
        other = evil if isinstance(value, str) else [] if isinstance(value, list) else 1e300
        path.write_text(json.dumps(replaced(content, at, other)))
        try:
            found = read_fit(tmp_path / kind)
            assert found
            page = section_of(found[1]) or ""
        except ConfigError as error:
            assert "\n" not in str(error)
            continue
        assert "<script" not in page and "\x1b" not in page, at


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (("design", "classes"), [], "a logistic model without two classes"),
        (("coefficients", 1, "estimate"), 1.7e308, "an estimate, or its variance, beyond 1e\\+30"),
        (("covariance", 0, 0), 1e300, "an estimate, or its variance, beyond 1e\\+30"),
    ],
)
def test_a_fit_that_predicts_no_number_is_refused(
    folder: Path, tmp_path: Path, at: tuple[Any, ...], value: Any, why: str
) -> None:
    """Predictions of the first had no class, and the others warned of an overflow."""
    released(folder, "glm")
    content = json.loads((folder / "glm" / "fit.json").read_text())
    (tmp_path / "fit.json").write_text(json.dumps(replaced(content, at, value)))
    with pytest.raises(ConfigError, match=why):
        read_fit(tmp_path)


def leaves_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the place and value of each word, number and list; of a list its first item alone."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from leaves_of(one, (*at, key))
    if at and isinstance(value, str | float | list):
        yield at, value


def replaced(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = other
    return copy


@pytest.mark.sockets  # a process of its own
def test_the_release_of_a_fit_is_verified_where_there_is_no_torch(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('torch', 'matplotlib', 'sklearn', 'scipy'))\n"  # None: an ImportError
        f"sys.argv = ['fedgossip', 'release', 'verify', {str(released(folder, 'cox'))!r}]\n"
        "from fedgossip.cli import main\n"
        "main()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and ": sound, as it was signed on " in said.stdout, said.stderr


def test_a_site_that_withdraws_is_told_to_fit_again(folder: Path) -> None:
    said = typed(["release", "withdraw", str(released(folder, "glm")), "--site", "1"], folder).out
    assert "fedgossip fit EXPERIMENT.toml" in said and "--id K --to without-1" in said
    assert "fedgossip client" not in said and "policy" not in said


def test_the_commands_without_a_site_remove_the_statistics_by_the_name_that_the_sites_gave_them(folder: Path) -> None:
    """The experiments here call them yesno.json and times.json."""
    for kind in ("glm", "cox"):
        name = f"{KINDS[kind][0]}.json"
        said = typed(["release", "withdraw", str(released(folder, kind)), "--site", "1"], folder).out
        assert f"{name}: its records are in the statistics" in said
        assert said.splitlines().count(f"  rm {name}") == 2 and "agreed.json" not in said


def test_a_fit_that_is_not_at_its_end_is_not_released(folder: Path, tmp_path: Path) -> None:
    released(folder, "cox")
    for path in (folder / "cox").glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b'"converged": true', b'"converged": false'))
    said = typed(["release", str(tmp_path), "--out", "no.zip"], folder)
    assert said.code == 2 and "not at the end" in said.err and not (folder / "no.zip").exists()
