"""Sites judge a model together by secure sums: `fedgossip evaluate MODEL EXPERIMENT.toml`."""

from __future__ import annotations

import csv
import functools
import hashlib
import html
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from commands import Output, finish, free_ports, in_process, start, typed
from hypothesis import given, settings
from hypothesis import strategies as some
from judging import SITES, patients, trained_in
from pages import blocks, page
from safetensors.numpy import load_file, save_file
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss, roc_auc_score

import fedgossip
from fedgossip import ConfigError, load_experiment, load_model
from fedgossip.base.errors import PeerError
from fedgossip.base.version import __version__
from fedgossip.core.messages import Hello
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.columns.table_schema import SchemaColumn, TableSchema
from fedgossip.data.record_groups import NO_GROUP
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.experiment import PrivacySection
from fedgossip.net import endpoints
from fedgossip.net.identity import Identity
from fedgossip.net.transport import refused
from fedgossip.plans.tasks import examples_of
from fedgossip.sites.evaluation.evaluated import (
    Evaluation,
    OutcomeFigures,
    ReliabilityPart,
    area_of,
    calibration_of,
    evaluation_of,
    hanley_mcneil,
    noisy_evaluation_of,
    read,
    thresholds_of,
    wilson,
)
from fedgossip.sites.evaluation.evaluation_sums import BINS, EDGES, EvaluationLayout, SiteAnswers, judged_sums, presence
from fedgossip.sites.plans.evaluation import asked, evaluated_from, evaluation_plan, evaluation_task, parted
from fedgossip.sites.releases import model_card
from fedgossip.sites.releases.gathering import of_figures, of_statistics
from fedgossip.sites.releases.released import Release, ReleasedModel, ReleasedPrivacy

SUPPRESS = 5
BUDGET = "--set coordinator.privacy.unit=record --set coordinator.privacy.noise=2"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five sites' files, what they agree on, and the model of a run."""
    return trained_in(tmp_path_factory.mktemp("judged"))


@functools.cache  # asked by most tests, and the same each time
def judged(folder: Path, *overrides: str, engine: str = "sim") -> tuple[Evaluation, dict[str, np.ndarray]]:
    """Return what the sums say, and what all records in one place are: answers, labels, groups, sites."""
    experiment, model = load_experiment(folder / "own.toml", overrides), load_model(folder / "run")
    plan, layout = evaluation_plan(experiment, model.facts)
    plan, task, refused = evaluation_task(plan, layout, experiment, model, range(SITES))
    assert not refused
    run = simulate_plan(plan, task=task, engine=engine)
    found = evaluated_from(task, run.vectors[plan.coordinator], SUPPRESS, plan.least)
    parts: dict[str, list[Any]] = {"answers": [], "y": [], "sex": [], "site": []}
    for site in range(SITES):
        examples = examples_of(experiment, [site], SITES)
        kept, _ = parted(experiment, site, examples)
        answers, y = asked(model, examples.train.subset(kept))
        with (folder / f"site-{site}.csv").open() as file:
            sex = [row["sex"] or NO_GROUP for row in csv.DictReader(file)]
        for name, part in (("answers", answers), ("y", y), ("sex", np.array(sex)[kept]), ("site", [site] * len(y))):
            parts[name].append(part)
    return found, {name: np.concatenate(values) for name, values in parts.items()}


def test_what_sites_find_together_is_what_all_records_in_one_place_say(trained: Path) -> None:
    """To 1e-9; the AUROC to what it states about itself."""
    found, pooled = judged(trained)
    y, said = pooled["y"], pooled["answers"][:, 1]
    answered = pooled["answers"].argmax(axis=1)
    assert (found.sites, found.records) == (SITES, len(y))
    assert found.score == pytest.approx((answered == y).mean(), abs=1e-15)
    assert found.loss == pytest.approx(log_loss(y, pooled["answers"]), abs=1e-9)
    assert np.array_equal(found.confusion, confusion_matrix(y, answered))
    (ill,) = found.outcomes
    assert ill.positives == y.sum() and ill.were == pytest.approx(y.mean(), abs=1e-15)
    assert ill.brier == pytest.approx(brier_score_loss(y, said), abs=1e-9)
    assert ill.said == pytest.approx(said.mean(), abs=1e-9)
    assert ill.auroc is not None and ill.auroc_within is not None and ill.auroc_within < 0.01
    assert abs(ill.auroc - roc_auc_score(y, said)) <= ill.auroc_within + 1e-12
    error = 0.0
    for part in ill.parts:
        inside = (said >= part.low) & (said < part.high)
        error += abs(said[inside].sum() - y[inside].sum())
        assert part.records in (None, inside.sum())
        if part.said is not None:
            assert part.said == pytest.approx(said[inside].mean(), abs=1e-9)
            assert part.were == pytest.approx(y[inside].mean(), abs=1e-9)
    assert sum(bool(part.records) for part in ill.parts) > 5
    assert ill.calibration_error == pytest.approx(error / len(y), abs=1e-9)


def test_groups_are_judged_where_they_are_large_and_at_enough_sites(trained: Path) -> None:
    """Of 20 rare records, all at one site, 8 are judged: not told, nor a group to subtract them by."""
    found, pooled = judged(trained)
    told = {group.name: group for group in found.groups}
    assert set(told) == {"f", "m", "x", "rare", NO_GROUP}
    assert told["x"].records == 0 and told["rare"].records is None and (pooled["sex"] == "rare").sum() >= SUPPRESS
    assert told[NO_GROUP].records is None and (pooled["sex"] == NO_GROUP).sum() < SUPPRESS
    for name in "fm":
        rows = pooled["sex"] == name
        y, said = pooled["y"][rows], pooled["answers"][rows, 1]
        assert told[name].records == rows.sum()
        assert abs(told[name].score - ((said > 0.5) == y).mean()) <= told[name].score_within + 1e-12
        assert told[name].loss == pytest.approx(log_loss(y, pooled["answers"][rows]), abs=1e-9)
        (ill,) = told[name].outcomes
        assert ill.brier == pytest.approx(brier_score_loss(y, said), abs=1e-9)
        assert abs(ill.auroc - roc_auc_score(y, said)) <= ill.auroc_within + 1e-12
    assert told["f"].score < told["m"].score - 0.05, "women are answered for less well"
    assert sum(group.records is None for group in found.groups) >= 2


def test_sites_are_ranked_and_named_only_where_all_have_allowed_it(trained: Path) -> None:
    found, pooled = judged(trained)
    right = pooled["answers"].argmax(axis=1) == pooled["y"]
    scores = [right[pooled["site"] == site].mean() for site in range(SITES)]
    wrong = [(~right)[pooled["site"] == site].sum() for site in range(SITES)]
    ordered = sorted(score for score, count in zip(scores, wrong, strict=True) if count >= SUPPRESS)
    assert not found.named and found.unplaced == SITES - len(ordered) == 2, "a place would give their few wrong answers"
    assert all(low <= one <= high for (low, high), one in zip(found.places, ordered, strict=True))
    named, _ = judged(trained, "data.site_scores=named")
    assert [one.site for one in named.named] == list(range(SITES))
    assert sum(one.score is not None for one in named.named) >= 3
    for one, score in zip(named.named, scores, strict=True):
        assert one.score is None or abs(one.score - score) <= one.score_within + 1e-12
    assert [one.records for one in named.named] == [int((pooled["site"] == site).sum()) for site in range(SITES)]


# --- under a budget ---------------------------------------------------------------------------------------------------


def noisy(groups: tuple[str, ...] = ("f", "m"), noise: float = 1.0, classes: tuple[str, ...] = ("no", "ill")) -> Any:
    return EvaluationLayout(model="", kind="classification", classes=classes, groups=groups, noise=noise)


def answers_of(draw: np.random.Generator, m: int, classes: int = 2) -> SiteAnswers:
    said = draw.dirichlet(np.ones(classes), m)
    y = np.array([draw.choice(classes, p=one) for one in said])
    return SiteAnswers(said, y, draw.integers(0, 2, m))


@given(some.integers(0, 10_000), some.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_no_record_adds_more_than_the_noise_is_a_multiple_of(seed: int, classes: int) -> None:
    """In units of the numbers, and to the rounding of each; what a record alone says is as long at most."""
    draw = np.random.default_rng(seed)
    layout = noisy(classes=tuple(map(str, range(classes)))).noisy
    site = answers_of(draw, 8, classes)
    certain = np.eye(classes)[draw.integers(0, classes, 8)]
    answers = np.where(draw.random((8, 1)) < 0.5, certain, site.answers)
    whole = layout.of_records(answers, site.y, site.groups)
    less = layout.of_records(answers[1:], site.y[1:], site.groups[1:])
    assert set(whole) == set(layout.units)
    added = [(whole[name] - less[name]) / unit for name, unit in layout.units.items()]
    assert np.linalg.norm(added) <= layout.length * (1 + 1e-12)


def test_a_confident_error_is_the_longest_record() -> None:
    """The bound is reached: of two classes, all on the wrong one, in a group."""
    layout = noisy().noisy
    one = layout.of_records(np.array([[0.0, 1.0]]), np.array([0]), np.array([1]))
    assert np.linalg.norm([one[name] / unit for name, unit in layout.units.items()]) == pytest.approx(layout.length)


def test_a_site_s_noise_is_as_long_as_the_budget_counts() -> None:
    """The budget pays for `noise` times the length of a record: of 80 draws of all numbers, to 6 standard errors."""
    layout, draw = noisy(noise=3.0).noisy, np.random.default_rng(7)
    nothing = dict.fromkeys(layout.units, 0)
    drawn = [layout.hidden(nothing, draw.bytes) for _ in range(80)]
    told = np.array([[value / layout.units[name] for name, value in one.items()] for one in drawn])
    within = 6 / (2 * told.size) ** 0.5
    assert abs(told.std() / (3.0 * layout.length) - 1) < within < 0.05
    assert abs(told.mean()) < 3 * told.std() / told.size**0.5 < 0.4, "rounded down, each was a half too low"


def test_without_noise_the_fewer_numbers_say_what_all_say() -> None:
    """What follows from others is what it would be, but for the coarser histogram."""
    site = answers_of(np.random.default_rng(3), 4000)
    exact = noisy(noise=0.0)
    first = presence(exact, site)
    everywhere = {**dict.fromkeys(first, 3), ("sites",): 1}
    whole = evaluation_of(exact, everywhere | judged_sums(exact, site, dict.fromkeys(first, 3), 0, 5), 5, 3)
    few = noisy().noisy
    told = few.completed(few.of_records(site.answers, site.y, site.groups))
    found = evaluation_of(noisy(), {("sites",): 1} | told, 5, 3)
    assert (found.records, found.score, found.confusion) == (whole.records, whole.score, whole.confusion)
    for one, other in zip(found.outcomes, whole.outcomes, strict=True):
        assert (one.brier, one.positives) == (other.brier, other.positives)
        assert one.said == pytest.approx(other.said, abs=1e-12)
        assert one.parts == other.parts
        assert abs(one.auroc - other.auroc) <= one.auroc_within + other.auroc_within
    for group, other in zip(found.groups, whole.groups, strict=True):
        assert (group.records, group.score) == (other.records, other.score)
        assert group.outcomes[0].brier == other.outcomes[0].brier


def test_noise_moves_a_figure_about_as_far_as_is_said() -> None:
    """Of 60 evaluations of the same records, each by other noise, 95 % lie as near as each states about itself."""
    draw, layout = np.random.default_rng(5), noisy(noise=2.0)
    sites = [answers_of(draw, 3000) for _ in range(3)]
    exact = [layout.noisy.of_records(site.answers, site.y, site.groups) for site in sites]
    truth = evaluation_of(layout, {("sites",): 3} | layout.noisy.completed(
        {name: sum(one[name] for one in exact) for name in layout.noisy.units}), 5, 3)  # fmt: skip
    near = {"score": 0, "brier": 0, "auroc": 0, "of group": 0}
    for _ in range(60):
        hidden = [layout.noisy.hidden(one, draw.bytes) for one in exact]
        sums = {("sites",): 3} | {name: sum(one[name] for one in hidden) for name in layout.noisy.units}
        assert max(abs(value) / layout.bounds[name] for one in hidden for name, value in one.items()) < 1
        found = noisy_evaluation_of(layout, sums, 5, 3)
        assert found.loss is None and found.membership is None and not found.places
        (ill,), (really,) = found.outcomes, truth.outcomes
        parts = [(part.said, k / 10) for k, part in enumerate(ill.parts) if part.said is not None]
        assert all(least - 1e-9 <= said <= least + 0.1 + 1e-9 for said, least in parts)
        near["score"] += abs(found.score - truth.score) <= found.noise_within["score"]
        near["brier"] += abs(ill.brier - really.brier) <= ill.noise_within["brier"]
        near["auroc"] += abs(ill.auroc - really.auroc) <= ill.noise_within["auroc"]
        near["of group"] += abs(found.groups[0].score - truth.groups[0].score) <= found.groups[0].noise_within["score"]
    assert all(50 <= count <= 60 for count in near.values()), near  # 57 expected
    assert found.noise_within["score"] < 0.02


def a_release() -> Release:
    model = ReleasedModel(source="softmax", kind="classification", numbers=4, weights="ab" * 32)
    return Release(
        version="1", name="ill", made="2026-11-23T00:00:00Z", signer="cd" * 32, use="To help a nurse.", model=model,
        privacy=ReleasedPrivacy(unit="record", epsilon=1.0, delta=1e-5, words=()), plan="ef" * 32, approvals=(),
        rounds=1, least=3, counted=(), logs=(), files={},
    )  # fmt: skip


def test_the_card_of_a_release_says_of_noisy_figures_that_they_are() -> None:
    """It said that all were exact, and outside of the budget."""
    layout, site = noisy(noise=2.0), answers_of(np.random.default_rng(5), 3000)
    sums = {("sites",): 3} | layout.noisy.of_records(site.answers, site.y, site.groups)
    found = noisy_evaluation_of(layout, sums, 5, 3)
    told = model_card.page(a_release(), None, found)
    assert "with noise of 2 times what one record can add" in told and "outside of the budget" not in told
    assert f"{found.score:.3g}"[:4] in told and told.count("±") >= 8 and '<li class="warn">no logs' in told
    schema = TableSchema(columns=(SchemaColumn(name="age"),))
    table = AgreedTable(schema=schema, suppress=5, sites=3, records=90, columns=(), noise=4.0)
    budget = PrivacySection(unit="record", noise=4.0, max_epsilon=3.0)
    ((_, words),) = of_statistics(table, budget, counted=True)
    assert "has noise of 4 times what one record can add: 2 releases, epsilon 1.48 alone" in words
    assert words.endswith("which the epsilon above counts.")
    exact = msgspec.structs.replace(found, layout=noisy(noise=0.0))
    assert "exact, and outside of the budget" in of_figures(exact, budget, 1.0)[0][1]
    ((_, words),) = of_figures(found, budget, 1.0)
    alone = float(re.findall(r"epsilon (\S+) alone", words)[0])
    assert f"at most {1 + alone:.2f}"[:9] in words and "at delta 2e-05" in words, "two promises add up"


def test_the_card_says_of_records_kept_apart_one_thing() -> None:
    """It said "records that no site has trained on", and below "no site has kept records apart from its training"."""
    layout, site = msgspec.structs.replace(noisy(noise=2.0), kept=True), answers_of(np.random.default_rng(5), 3000)
    sums = {("sites",): 3} | layout.noisy.of_records(site.answers, site.y, site.groups)
    told = model_card.page(a_release(), None, noisy_evaluation_of(layout, sums, 5, 3))
    assert "that no site has trained on" in told and "no site has kept" not in told
    assert "under a budget a site's own test is not published" in html.unescape(told)


def test_sites_judge_a_model_under_a_budget_and_their_ledger_says_so(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(trained, tmp_path)
    allowed = f"{BUDGET} --set coordinator.privacy.max_epsilon=8"
    said = type_in(folder, f"evaluate run own.toml {allowed}", monkeypatch, capsys)
    assert said.code == 0, said.err
    assert "with noise of 2 times what one record can add" in said.out and "membership" in said.out
    found = read(folder / "run" / "model" / "evaluation.json")
    pooled = judged(trained)[0]
    assert found.layout.noise == 2 and abs(found.score - pooled.score) < 3 * found.noise_within["score"]
    spent = [json.loads(line) for line in (folder / "agreed.json.spent").read_text().splitlines()]
    assert len([one for one in spent if one.get("spend", {}).get("noise") == 2]) == SITES, spent


def test_what_is_told_without_noise_is_noted_too(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(trained, tmp_path)
    assert type_in(folder, "evaluate run own.toml", monkeypatch, capsys).code == 0
    spent = [json.loads(line) for line in (folder / "agreed.json.spent").read_text().splitlines()]
    assert sum(one.get("exact") == "evaluation" for one in spent) == SITES


# --- all drivers ------------------------------------------------------------------------------------------------------


def test_all_drivers_find_the_same(trained: Path) -> None:
    assert judged(trained)[0] == judged(trained, engine="stacked")[0]


def test_without_kept_records_all_are_judged_and_nothing_is_said_of_membership(trained: Path) -> None:
    found, pooled = judged(trained, "data.local_test=0")
    assert found.records == len(pooled["y"]) == sum(60 + 20 * site for site in range(SITES))
    assert found.membership is None and not found.layout.kept
    kept, _ = judged(trained)
    assert kept.membership is not None and kept.membership.tested == SITES and kept.membership.flagged == 0
    assert kept.membership.records == found.records - kept.records


@settings(max_examples=40)
@given(some.lists(some.tuples(some.floats(0, 1), some.booleans()), min_size=2, max_size=40))
def test_an_auroc_of_histograms_lies_as_near_as_it_says(drawn: list[tuple[float, bool]]) -> None:
    said, y = np.array([one for one, _ in drawn]), np.array([two for _, two in drawn])
    counts = [np.bincount(np.searchsorted(EDGES, said[y == of], side="right"), minlength=BINS) for of in (True, False)]
    area, within = area_of(counts[0].tolist(), counts[1].tolist())
    if y.all() or not y.any():
        assert area is None
        return
    assert area is not None and within is not None
    assert abs(area - roc_auc_score(y, said)) <= within + 1e-12


def pooled_by_sums(layout: EvaluationLayout, sites: list[SiteAnswers]) -> Evaluation:
    """Return the evaluation by sums that are added here, without masks."""

    def added(parts: list[Mapping[Any, int]]) -> dict[Any, int]:
        return {name: sum(part.get(name, 0) for part in parts) for name in layout.bounds}

    first = added([presence(layout, site) for site in sites])
    second = added([judged_sums(layout, site, first, node, 1) for node, site in enumerate(sites)])
    return evaluation_of(layout, {name: first[name] + second[name] for name in layout.bounds}, 1, 3)


def test_many_classes_labels_and_numbers_are_judged_too() -> None:
    rng = np.random.default_rng(7)
    y, raw = rng.integers(4, size=90), rng.normal(size=(90, 4))
    answers = np.exp(raw + 2 * np.eye(4)[y])
    answers /= answers.sum(axis=1, keepdims=True)
    places = np.array_split(np.arange(90), 3)
    layout = EvaluationLayout(model="", kind="classification", classes=("a", "b", "c", "d"))
    found = pooled_by_sums(layout, [SiteAnswers(answers[at], y[at]) for at in places])
    assert [one.name for one in found.outcomes] == ["a", "b", "c", "d"]
    for k, one in enumerate(found.outcomes):
        assert abs(one.auroc - roc_auc_score(y == k, answers[:, k])) <= one.auroc_within + 1e-12  # type: ignore[operator]
    labels = (rng.random((90, 2)) < 0.5).astype(np.float32)
    layout = EvaluationLayout(model="", kind="multi-label", labels=("p", "q"))
    found = pooled_by_sums(layout, [SiteAnswers(answers[at][:, :2], labels[at]) for at in places])
    assert found.score == pytest.approx(((answers[:, :2] > 0.5) == labels).all(axis=1).mean())
    assert found.outcomes[1].brier == pytest.approx(brier_score_loss(labels[:, 1], answers[:, 1]), abs=1e-9)
    truth = rng.normal(100, 20, (90, 1))
    said = truth + rng.normal(0, 5, (90, 1))
    layout = EvaluationLayout(model="", kind="regression", labels=("cost",))
    found = pooled_by_sums(layout, [SiteAnswers(said[at], truth[at]) for at in places])
    assert found.score == pytest.approx(1 - ((said - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum(), abs=1e-9)
    assert found.numbers[0].rmse == pytest.approx(np.sqrt(((said - truth) ** 2).mean()), rel=1e-9)
    assert found.numbers[0].mae == pytest.approx(np.abs(said - truth).mean(), rel=1e-9)


# --- as a person types it ---------------------------------------------------------------------------------------------


def type_in(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Output:
    return in_process(command.split(), folder, monkeypatch, capsys)


def copied(trained: Path, to: Path) -> Path:
    shutil.copytree(trained, to, dirs_exist_ok=True)
    return to


def test_the_command_tells_it_and_keeps_it_with_the_model(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Site 4 has a word that nobody knows: it is told, the others judge without it."""
    folder = copied(trained, tmp_path)
    text = (folder / "site-4.csv").read_text().splitlines()
    row = text[1].split(",")
    (folder / "site-4.csv").write_text("\n".join([text[0], ",".join([*row[:3], "unheard-of", row[4]]), *text[2:]]))
    said = type_in(folder, "evaluate run own.toml", monkeypatch, capsys)
    assert said.code == 4, said.err
    assert "4 of 5 sites," in said.out and "accuracy of each site, the worst first: " in said.out
    assert "membership tests at 4 sites: flagged by none" in said.out
    assert "site 4 took no part: " in said.err and "'unheard-of' is no group that all know" in said.err
    found = read(folder / "run" / "model" / "evaluation.json")
    assert found.sites == 4 and found.score is not None and f"accuracy  {found.score:.4g}" in said.out
    again = type_in(folder, "evaluate run own.toml", monkeypatch, capsys)
    assert again.code == 2 and "judged already" in again.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--set coordinator.secure.on=false", "an evaluation is of secure sums"),
        ("--set coordinator.privacy.unit=client", "the sites' figures of a model are exact, with a budget"),
        (f"{BUDGET} --set data.site_scores=named", "a site's own score is of few records"),
        (f"{BUDGET} --set coordinator.privacy.max_epsilon=0.1", "at most 0.1 is allowed"),
        ("--set data.groups=age", "no column 'age'"),
        ("--set data.groups=a", "column 'a' has 60 different values; groups are 2 to 12"),
        ("--id 1", "--id without --endpoints"),
        ("--set data.local_test=0.01", "too few sites are left: 0 of 5, and"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_line(
    given: str, said: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = type_in(trained, f"evaluate run own.toml {given}", monkeypatch, capsys)
    assert told.code in (2, 6, 7) and said in told.err and not (trained / "run" / "model" / "evaluation.json").exists()


def test_why_sites_take_no_part_is_told_also_where_too_few_are_left(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = type_in(trained, "evaluate run own.toml --set data.local_test=0.01", monkeypatch, capsys)
    assert told.code == 7 and "site 0 took no part: fewer than 5 records" in told.err
    assert told.err.index("took no part") < told.err.index("too few sites")


def test_a_site_alone_tests_the_model_on_what_it_has_trained_on_and_kept(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same records as in the evaluation; other words are told in a line what is wanted."""
    said = type_in(trained, "privacy membership run own.toml --id 4", monkeypatch, capsys)
    assert said.code == 0 and said.out.startswith("84 records that the model was trained on, 56 others"), said
    for words, what in (
        ("own.toml", "Give --id K, and no --holdout"),
        ("own.toml --id 5", "there is no site 5"),
        ("site-0.csv", "Name others with --holdout"),
    ):
        told = type_in(trained, f"privacy membership run {words}", monkeypatch, capsys)
        assert told.code == 2 and what in told.err


def test_options_of_sites_are_refused_beside_a_file(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = type_in(trained, "evaluate run test.csv --id 3", monkeypatch, capsys)
    assert told.code == 2 and "--id is for sites that judge a model together" in told.err


def test_a_model_of_another_scale_is_not_judged(trained: Path, tmp_path: Path) -> None:
    """Each site says so: it was trained with other statistics than the sites have agreed on."""
    folder = copied(trained, tmp_path)
    path = folder / "run" / "model" / "model.json"
    facts = json.loads(path.read_text())
    facts["scale"]["mean"][0] += 1
    path.write_text(json.dumps(facts))
    experiment, model = load_experiment(folder / "own.toml"), load_model(folder / "run")
    plan, layout = evaluation_plan(experiment, model.facts)
    _, _, refused = evaluation_task(plan, layout, experiment, model, range(SITES))
    assert set(refused) == set(range(SITES)) and "on another scale" in str(refused[0])


def test_an_experiment_without_a_coordinator_or_of_text_is_not_judged_by_sums() -> None:
    with pytest.raises(ConfigError, match=r"no \[coordinator\]"):
        evaluation_plan(fedgossip.load_experiment({"topology": {"graph": "ring", "n": 3}}), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no records"):
        EvaluationLayout(model="", kind="language")
    with pytest.raises(ConfigError, match="101 classes; at most 100"):
        EvaluationLayout(model="", kind="classification", classes=tuple(map(str, range(101))))


@pytest.mark.long  # 6 processes; the plan of statistics, whose links are in tests/data/test_agreed_statistics.py
@pytest.mark.sockets
@pytest.mark.timeout(300)
def test_over_encrypted_links_all_write_one_evaluation_and_another_model_is_kept_out(
    trained: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    machines, keys = [tmp_path / f"machine{node}" for node in range(SITES + 1)], []
    for node, machine in enumerate(machines):
        machine.mkdir()
        for name in ("own.toml", "test.csv", "agreed.json", *([f"site-{node}.csv"] if node < SITES else [])):
            shutil.copy(trained / name, machine)
        shutil.copytree(trained / "run" / "model", machine / "model")
        where = ["--client"] if node < SITES else ["--address", f"tcp://127.0.0.1:{port}"]
        keys.append(typed(["keys", "new", "--id", str(node), *where], machine).out)
    facts = json.loads((machines[1] / "model" / "model.json").read_text())
    content = bytearray((machines[1] / "model" / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (machines[1] / "model" / "weights.safetensors").write_bytes(content)
    facts["weights"] = hashlib.sha256(content).hexdigest()
    (machines[1] / "model" / "model.json").write_text(json.dumps(facts))
    command = ["evaluate", "model", "own.toml", "--endpoints", "endpoints.toml", "--out", "log"]
    command += ["--set", "coordinator.start_timeout=20"]
    running = []
    for node, machine in enumerate(machines):
        (machine / "endpoints.toml").write_text("\n".join(keys))
        running.append(start([*command, *(["--id", str(node)] if node < SITES else [])], machine))
    said = [finish(one) for one in running]
    files = {(machines[node] / "model" / "evaluation.json").read_bytes() for node in (0, 2, 3, 4, 5)}
    assert len(files) == 1 and not (machines[1] / "model" / "evaluation.json").exists(), said
    assert said[1].code != 0 and "has another model" in said[1].errors[0], said[1]
    words = ["audit", "verify", "machine5/log", "machine0/log", "--endpoints", "machine0/endpoints.toml"]
    verified = typed(words, tmp_path)
    assert verified.code == 0, verified
    shutil.copytree(machines[5] / "model", machines[1] / "final-model")  # as the refusal says
    shutil.rmtree(machines[1] / "model")
    (machines[1] / "final-model").rename(machines[1] / "model")
    command[command.index("log")] = "again"
    for machine in machines:
        (machine / "model" / "evaluation.json").unlink()
    sites = [["--id", str(node)] for node in range(SITES)]
    running = [start([*command, *own], machine) for own, machine in zip([*sites, []], machines, strict=True)]
    assert [finish(one).code for one in running] == [0] * (SITES + 1)
    assert b'"sites": 5' in (machines[1] / "model" / "evaluation.json").read_bytes()


def test_a_site_that_left_early_is_told_whose_model_to_copy_and_what_to_type(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an older model, which the coordinator turns away, or none; what it is told to type names the copy."""
    for name in ("own.toml", "test.csv", "agreed.json", "site-1.csv"):
        shutil.copy(trained / name, tmp_path)
    blocks_of = [typed(["keys", "new", "--id", "1", "--client"], tmp_path).out]
    for node in (0, 2, 3, 4, 5):
        address = "tcp://127.0.0.1:1" if node == 5 else ""
        blocks_of.append(endpoints.block(node, endpoints.signed(Identity.new(), address)))
    (tmp_path / "endpoints.toml").write_text("\n".join(blocks_of))
    shutil.copytree(trained / "run" / "model", tmp_path / "older" / "model")
    (tmp_path / "nothing").mkdir()

    def turned_away(*_: object, **__: object) -> int:
        theirs = replace(ours := Hello("of the older", "x", __version__), schema="of the last")
        rejected = refused(5, theirs, ours)
        assert rejected
        raise PeerError(f"no partner to learn with: {rejected.text}", rejected.advice, peer=5)

    monkeypatch.setattr("fedgossip.cli.run.participant.Participant.take_part", turned_away)
    command = ["own.toml", "--id", "1", "--endpoints", "endpoints.toml"]
    for mine in ("older", "nothing"):
        said = typed(["evaluate", mine, *command], tmp_path)
        advice = said.err.splitlines()[-1]
        assert said.code and "the folder model/ of the coordinator's run from its machine" in advice, said
        (again,) = re.findall(r"fedgossip (evaluate .*)", advice)
        assert again.split() == ["evaluate", "final-model", *command]
    weights = json.loads((trained / "run" / "model" / "model.json").read_text())["weights"]
    assert f"weights {weights[:16]}" in typed(["evaluate", "older", *command], tmp_path).err


def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    for site in range(SITES):
        patients(tmp_path / f"site-{site}.csv", site, 80, sexes="fm")
    patients(tmp_path / "test.csv", 99, 60, sexes="fm")
    said = []
    for block in blocks(page("judging")):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text)
        elif block.kind == "sh":
            said += [typed(line.split()[1:], tmp_path) for line in block.text.splitlines()]
    assert [one.code for one in said] == [0] * 7, said
    told = said[2].out
    assert "5 of 5 sites, 120 records that no site has trained on" in told and "sex " in told
    assert "of the same records: statistics once\n" in said[2].err, "an evaluation is not statistics made twice"
    assert "judged-release.zip: sound, as it was signed on" in said[5].out and "--out without-2" in said[6].out


def test_a_model_that_answers_with_no_numbers_is_refused_in_a_line(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(trained, tmp_path)
    (path,) = (folder / "run" / "model").glob("*.safetensors")
    save_file({name: np.full_like(array, np.nan) for name, array in load_file(path).items()}, path)
    about = path.with_name("model.json")
    facts = json.loads(about.read_text())
    facts["weights"] = hashlib.sha256(path.read_bytes()).hexdigest()
    about.write_text(json.dumps(facts))
    said = type_in(folder, "evaluate run own.toml", monkeypatch, capsys)
    assert said.code == 5 and said.err.count("error: ") == 1
    assert re.search(r"error: the model answers (\d+) of \1 records with numbers that are not finite", said.err)
    assert not (folder / "run" / "model" / "evaluation.json").exists()


# --- intervals --------------------------------------------------------------------------------------------------------


def test_wilsons_interval_holds_all_shares_that_a_score_test_does_not_reject() -> None:
    """At its ends the score test of the share has z = 1.96, by definition."""
    for share, records in ((0.9, 100), (0.5, 20), (1.0, 50), (0.02, 300)):
        for end in wilson(share, records):
            if 0 < end < 1:
                assert abs(share - end) / np.sqrt(end * (1 - end) / records) == pytest.approx(1.959963984540054)
    assert wilson(0.9, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)


def test_an_auroc_moves_over_samples_as_its_interval_says() -> None:
    """Half an interval is 1.96 deviations of the AUROC of 600 samples of two exponential ones, to a tenth."""
    draw = np.random.default_rng(1)
    areas = [roc_auc_score([1] * 60 + [0] * 90, np.concatenate([draw.exponential(4, 60), draw.exponential(1, 90)]))
             for _ in range(600)]  # fmt: skip
    low, high = hanley_mcneil(float(np.mean(areas)), 60, 90)
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(areas), rel=0.1)


def test_thresholds_are_those_of_all_records_by_sklearn_and_the_formula_of_net_benefit() -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(1.2, 1.6, 900)
    y = rng.random(900) < p
    part = np.minimum((p * 10).astype(int), 9)
    parts = tuple(
        ReliabilityPart(k / 10, (k + 1) / 10, int((part == k).sum()), 0.5, float(y[part == k].mean()))
        for k in range(10)
    )
    one = OutcomeFigures(name="yes", positives=int(y.sum()), parts=parts)
    found = thresholds_of(one, 900)
    assert [point.at for point in found] == [k / 10 for k in range(1, 10)]
    for k, point in enumerate(found, 1):
        (tn, fp), (fn, tp) = confusion_matrix(y, part >= k)
        assert (point.sensitivity, point.specificity) == pytest.approx((tp / (tp + fn), tn / (tn + fp)), rel=1e-12)
        assert point.benefit == pytest.approx((tp - fp * (k / 10) / (1 - k / 10)) / 900, abs=1e-12)
    untold = (*parts[:8], ReliabilityPart(0.8, 0.9, None, None, None), ReliabilityPart(0.9, 1.0, None, None, None))
    few = thresholds_of(msgspec.structs.replace(one, parts=untold), 900)
    assert few == found[:8], "the ninth would tell how many are in each of the two"
    assert not thresholds_of(msgspec.structs.replace(one, noise_within={"auroc": 0.1}), 900)


def test_calibration_by_bins_is_that_of_the_records_to_the_width_of_a_bin() -> None:
    from sklearn.linear_model import LogisticRegression

    draw = np.random.default_rng(2)
    eta = draw.normal(-0.5, 1.5, 4000)
    y = draw.random(4000) < 1 / (1 + np.exp(-(0.7 * eta + 0.3)))
    bins = np.searchsorted(EDGES, 1 / (1 + np.exp(-eta)), side="right")
    having, lacking = (np.bincount(bins[one], minlength=BINS).tolist() for one in (y, ~y))
    slope, intercept = calibration_of(having, lacking)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(eta[:, None], y)
    assert slope is not None and slope[0] == pytest.approx(model.coef_[0, 0], abs=2e-3)
    assert slope[1] < 0.7 < slope[2] and intercept is not None
    at = np.linspace(-1, 1, 4001)
    off = [abs(float((1 / (1 + np.exp(-(eta + one))) - y).sum())) for one in at]
    assert intercept[0] == pytest.approx(at[int(np.argmin(off))], abs=3e-3)
    assert calibration_of([0] * BINS, lacking) == (None, None)
