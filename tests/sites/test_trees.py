"""Sites grow boosted trees by secure sums: the same trees, to the byte, as of all records in one place."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from commands import Output, typed
from fit_sites import SITES, own_tables
from hypothesis import given
from hypothesis import strategies as some
from pages import blocks, page

from fedgossip import ConfigError, load_experiment, load_model
from fedgossip.base.errors import TooFewPeersError
from fedgossip.base.vectors import Vector
from fedgossip.drivers.simulate import simulate_plan
from fedgossip.learning.models.trees import (
    LOGISTIC,
    SOFTMAX,
    SQUARES,
    TreeMargins,
    TreesDesign,
    decoded_trees,
    encoded_trees,
)
from fedgossip.secure.aborts import RoundAbandoned
from fedgossip.secure.encoding import ExactSums, as_vector, long_numbers, long_words, words_in
from fedgossip.sites.fits.tree_result import tree_options
from fedgossip.sites.fits.tree_sums import (
    GrowingTrees,
    SiteMargins,
    SiteTable,
    TreesLayout,
    TreesServer,
    grown_alone,
    packed_counts,
    stepped,
    trees_file,
)
from fedgossip.sites.plans.fits import planned_fit
from fedgossip.sites.plans.trees import read_table

CLASSES = {LOGISTIC: ("no", "yes"), SOFTMAX: ("a", "b", "c"), SQUARES: ()}


def patients(path: Path, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "salt [mg]", "ward", "ill", "cost", "days", "still"])
        for _ in range(rows):
            age, salt, ward = rng.integers(20, 90), rng.normal(9e5, 2e4), rng.choice(["north", "south", "east"])
            odds = 4 * ((age > 50) != (ward == "south")) - 2
            ill = "yes" if rng.random() < 1 / (1 + np.exp(-odds)) else "no"
            cost, days = f"{3 * age + rng.normal():.3f}", rng.poisson(3)
            writer.writerow([age, f"{salt:.3f}", ward, ill, cost, days, 7])


def toml(source: str = "trees:4x3", label: str = "ill", more: str = "") -> str:
    others = ",".join(one for one in ("ill", "cost", "days") if one != label)
    query = f"label={label}&drop={others}"
    return own_tables("trees", query, agreed=label, source=source, more=more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("trees")
    for site in range(SITES):
        patients(found / f"site-{site}.csv", site, 30 + 5 * site)
    patients(found / "test.csv", 99, 40)
    rows = [(found / f"site-{site}.csv").read_text().splitlines() for site in range(SITES)]
    (found / "all.csv").write_text("\n".join([rows[0][0], *(row for one in rows for row in one[1:])]) + "\n")
    (found / "ill.toml").write_text(toml())
    (found / "cost.toml").write_text(toml("trees:3x2", "cost", '[task]\nkind = "regression"'))
    for name in ("ill", "cost"):
        assert typed(["data", "agree", f"{name}.toml"], found).code == 0
    return found


@pytest.mark.parametrize("name", ["ill", "cost"])
def test_the_trees_are_those_of_all_records_in_one_place_to_the_byte(folder: Path, name: str) -> None:
    fit = planned_fit(load_experiment(folder / f"{name}.toml"))
    layout, (plan, task, refused) = fit.layout, fit.of_sites(range(SITES))
    assert not refused
    found = []
    for engine in ("sim", "stacked"):
        vector = simulate_plan(plan, task=task, engine=engine).vectors[plan.coordinator]
        found.append(encoded_trees(trees_file(GrowingTrees(layout, vector))))
    of_all = msgspec.structs.replace(fit.agreed, noise=1.0)  # without it a site with all records is refused
    pooled = grown_alone(layout, read_table(layout, of_all, folder / "all.csv"))
    assert {*found} == {encoded_trees(trees_file(GrowingTrees(layout, pooled)))}
    assert b'"column": "age"' in found[0] and layout.design.constant == ("still",)


# --- the learner ------------------------------------------------------------------------------------------------------


def layout_of(
    loss: str,
    rows: int,
    *,
    trees: int = 5,
    depth: int = 3,
    missing: bool = False,
    bin_records: int = 0,
    sites: int = 0,
) -> TreesLayout:
    cuts = tuple(np.linspace(-2, 2, 9).tolist())
    return TreesLayout(
        TreesDesign(
            loss=loss, outcome="y", classes=CLASSES[loss], trees=trees, depth=depth, learning_rate=0.3, l2=1.0,
            min_child_weight=0.1, min_records=5, columns=("c0", "c1"), places=(0, 1), cuts=(cuts, cuts),
            mean=(0.0, 0.0), deviation=(1.0, 1.0), missing=missing, records=rows, suppress=5,
            bin_records=bin_records, sites=sites,
        )
    )  # fmt: skip


def drawn(loss: str, rows: int, *, empty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return x, whose first column is empty where the outcome is large, as often as `empty` says; and y."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    score = x[:, 0] * np.sign(x[:, 1]) + 0.2 * rng.normal(size=rows)
    x[(score > 0.5) & (rng.random(rows) < empty), 0] = np.nan
    if loss == SQUARES:
        return x, score / score.std()
    edges = [0.0] if loss == LOGISTIC else [-0.5, 0.5]
    return x, np.digitize(score, edges).astype(float)


def grown(layout: TreesLayout, tables: Sequence[SiteTable], absent: Mapping[int, set[int]] | None = None) -> Vector:
    """Return the ensemble of several sites, of which those in `absent[round]` are not there."""
    sites, x, server = [SiteMargins(layout, one) for one in tables], layout.initial(), TreesServer(layout)
    for number in range(layout.rounds):
        if server.over(x):
            break
        there = [one for k, one in enumerate(sites) if k not in (absent or {}).get(number, set())]
        if there:
            told = [words for one in there if (words := words_in(one.numbers(x))) is not None]
            total = np.sum([long_numbers(one) for one in told], axis=0)
            x = stepped(layout, x, as_vector(long_words(total)), len(there))
    return x


def parted(layout: TreesLayout, x: np.ndarray, y: np.ndarray) -> list[SiteTable]:
    bins = layout.bins.find_bins(x)
    return [SiteTable(bins[rows], y[rows]) for rows in np.array_split(np.arange(len(y)), 3)]


def forest_of(loss: str, columns: int, *, trees: int = 8) -> TreesLayout:
    return TreesLayout(msgspec.structs.replace(layout_of(loss, 300, trees=trees).design, forest_columns=columns))


@pytest.mark.parametrize("loss", CLASSES)
def test_the_trees_of_a_forest_all_begin_at_the_first_margins(loss: str) -> None:
    """With all columns each is the first of boosted trees, for no records are drawn."""
    x, y = drawn(loss, 300)
    forest, first = (
        trees_file(GrowingTrees(one, grown(one, parted(one, x, y)))).trees
        for one in (forest_of(loss, 2, trees=3), layout_of(loss, 300, trees=1))
    )
    assert [one.root for one in forest] == [one.root for one in first] * 3


@pytest.mark.parametrize("loss", CLASSES)
def test_each_tree_of_a_forest_splits_by_its_own_columns_however_the_records_are_divided(loss: str) -> None:
    layout, (x, y) = forest_of(loss, 1), drawn(loss, 300)
    growing = GrowingTrees(layout, grown(layout, parted(layout, x, y)))
    alone = GrowingTrees(layout, grown_alone(layout, SiteTable(layout.bins.find_bins(x), y)))
    assert encoded_trees(trees_file(alone)) == encoded_trees(trees_file(growing)) and growing.done == 8
    outputs = range(layout.design.outputs)
    trees = [growing.tree(number, output) for number in range(8) for output in outputs]
    drawn_ones = [layout.design.splits_by(number, output) for number in range(8) for output in outputs]
    for tree, by in zip(trees, drawn_ones, strict=True):
        assert by.sum() == 1 and {*tree.column[tree.is_split].tolist()} <= {*np.flatnonzero(by).tolist()}
    assert len({int(np.argmax(by)) for by in drawn_ones}) == 2


def test_a_split_by_a_column_that_was_not_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that grew all trees by the column it likes would ask for its finest nodes."""
    layout, (x, y) = forest_of(LOGISTIC, 1), drawn(LOGISTIC, 300)
    site, state = SiteMargins(layout, SiteTable(layout.bins.find_bins(x), y)), layout.initial()
    before = stepped(layout, state, site.numbers(state), 1)
    honest = stepped(layout, before, site.numbers(before), 1)
    truly = layout.design.splits_by
    with monkeypatch.context() as patch:
        patch.setattr(TreesDesign, "splits_by", lambda _, tree, output: ~truly(tree, output))
        lie = stepped(layout, before, site.numbers(before), 1)
    assert GrowingTrees(layout, before).broken(GrowingTrees(layout, honest)) == ""
    assert "not drawn for its tree" in GrowingTrees(layout, before).broken(GrowingTrees(layout, lie))


def test_a_forest_is_fitted_predicts_and_has_no_learning_rate(folder: Path) -> None:
    forest = "model.source=trees:6x3?forest_columns="
    said = typed_in(folder, "fit", "ill.toml", "--to", "forest", "--set", f"{forest}2")
    assert said.out.startswith("random forest of ill = yes, 2 columns a tree: 200 records of 5 of 5 sites, 6 trees, ")
    assert typed_in(folder, "evaluate", "forest", "test.csv").code == 0
    for more, why in (
        ("9", "forest_columns = 9: there are 5 columns"),
        ("2&learning_rate=0.1", "learning_rate of a forest"),
    ):
        refused = typed_in(folder, "fit", "ill.toml", "--to", "no", "--set", f"{forest}{more}")
        assert refused.code == 2 and why in refused.err, refused


@pytest.mark.parametrize("loss", CLASSES)
def test_trees_tell_apart_what_no_line_does_and_are_the_same_however_the_records_are_divided(loss: str) -> None:
    """Of x0 times the sign of x1, of which a linear model knows nothing."""
    x, y = drawn(loss, 600)
    layout = layout_of(loss, 600, trees=20)
    whole = grown(layout, [SiteTable(layout.bins.find_bins(x), y)])
    growing = GrowingTrees(layout, whole)
    parts = GrowingTrees(layout, grown(layout, parted(layout, x, y)))
    assert encoded_trees(trees_file(parts)) == encoded_trees(trees_file(growing))
    margins = TreeMargins(trees_file(growing), ("c0", "c1"))(x)
    assert growing.losses[growing.done - 1] < 0.5 * growing.losses[0]
    if loss == SQUARES:
        assert np.mean((margins[:, 0] - y) ** 2) < 0.4
    else:
        said = margins[:, 0] > 0 if loss == LOGISTIC else margins.argmax(axis=1)
        assert (said == y).mean() > 0.85


@pytest.mark.parametrize("loss", CLASSES)
def test_records_and_h_in_one_number_give_the_same_trees_by_a_third_less(loss: str) -> None:
    apart, together = (layout_of(loss, 300, sites=sites) for sites in (0, 5))
    x, y = drawn(loss, 300)
    table = SiteTable(together.bins.find_bins(x), y)
    trees = [encoded_trees(trees_file(GrowingTrees(one, grown_alone(one, table)))) for one in (apart, together)]
    assert trees[0] == trees[1]
    assert 3 * (together.numbers - 2) == (3 if loss == SQUARES else 2) * (apart.numbers - 2)


@given(some.integers(1, 1 << 20), some.integers(1, 1000))
def test_no_sum_of_h_reaches_the_records_beside_it(records: int, sites: int) -> None:
    """Every site has as many as it may, and all their h are as large as any."""
    packed = packed_counts(records, sites)
    if packed is None:
        assert records * sites > 1 << 14
        return
    each = np.array([packed.most - 1])
    number = packed.together(each, each << 28)
    assert number <= packed.bound and sites * packed.bound < 1 << 63
    assert [int(one[0]) for one in packed.apart(number * sites)] == [int(each[0]) * sites, (int(each[0]) << 28) * sites]


def test_a_site_with_more_records_than_all_had_agrees_again() -> None:
    layout, (x, y) = layout_of(LOGISTIC, 60, sites=5), drawn(LOGISTIC, 64)
    with pytest.raises(ConfigError, match="all sites together had 60 when they agreed"):
        SiteMargins(layout, SiteTable(layout.bins.find_bins(x), y))


def test_a_leaf_is_the_newton_step_of_its_records_to_what_five_of_them_add() -> None:
    """-learning_rate G / (H + l2), next multiple of the power of two above 0.3 * 5 / (H + l2); the gain that of its two
    sides; of one tree of one split, by hand."""
    x, y = drawn(LOGISTIC, 200)
    layout = layout_of(LOGISTIC, 200, trees=1, depth=1)
    growing = GrowingTrees(layout, grown_alone(layout, SiteTable(layout.bins.find_bins(x), y)))
    root, tree = trees_file(growing).trees[0].root, growing.tree(0, 0)
    assert root.yes is not None and root.no is not None and root.below is not None
    share = y.mean()
    goes = x[:, int(root.column[1])] < root.below
    score = []
    for side, node, records in zip((goes, ~goes), (root.yes, root.no), tree.records[1:3], strict=True):
        g, h = (share - y[side]).sum(), side.sum() * share * (1 - share)
        step = 2.0 ** np.ceil(np.log2(0.3 * 5 / (h + 1.0)))
        assert records == side.sum() and node.value == step * np.rint(-0.3 * g / (h + 1.0) / step) != 0
        score.append(g * g / (h + 1.0))
    assert tree.value[0] == pytest.approx(sum(score) / 2, rel=1e-6), "the whole has no gradient at its own mean"


def test_trees_end_where_no_leaf_is_worth_what_few_records_add() -> None:
    x, y = drawn(LOGISTIC, 200)
    layout = layout_of(LOGISTIC, 200, trees=400, depth=1)
    growing = GrowingTrees(layout, grown_alone(layout, SiteTable(layout.bins.find_bins(x), y)))
    values = [tree.root.yes.value or tree.root.no.value for tree in trees_file(growing).trees if tree.root.yes]  # type: ignore[union-attr]
    assert growing.over and growing.done < 400 and all(values[:-1]) and not values[-1]


def test_empty_cells_go_where_more_is_gained() -> None:
    x, y = drawn(LOGISTIC, 600, empty=0.8)
    layout = layout_of(LOGISTIC, 600, missing=True)
    file = trees_file(GrowingTrees(layout, grown(layout, parted(layout, x, y))))
    margins = TreeMargins(file, ("c0", "c1"))(x)[:, 0]
    table = SiteMargins(layout, SiteTable(layout.bins.find_bins(x), y))
    growing = GrowingTrees(layout, grown_alone(layout, table.table))
    np.testing.assert_array_equal(margins, table.margins(growing)[:, 0])
    assert (margins[np.isnan(x[:, 0])] > 0).mean() > 0.95, "an empty cell is a sign of the second class"


def test_a_site_that_leaves_in_the_middle_of_a_tree_and_rounds_that_fail_do_not_end_it() -> None:
    x, y = drawn(LOGISTIC, 600)
    layout = layout_of(LOGISTIC, 600)
    parts = parted(layout, x, y)
    everybody = {0, 1, 2}
    failed = GrowingTrees(layout, grown(layout, parts, {0: everybody, 2: everybody, 6: everybody}))
    assert encoded_trees(trees_file(failed)) == encoded_trees(trees_file(GrowingTrees(layout, grown(layout, parts))))
    left = GrowingTrees(layout, grown(layout, parts, {number: {2} for number in range(3, layout.rounds)}))
    assert left.over and (left.least, left.sites, left.records) == (2, 2, 400)


def test_no_leaf_and_no_open_node_is_smaller_than_was_agreed() -> None:
    x, y = drawn(SOFTMAX, 300)
    layout = layout_of(SOFTMAX, 300, depth=6)
    growing = GrowingTrees(layout, grown(layout, parted(layout, x, y)))
    for number in range(growing.done):
        for output in range(3):
            tree = growing.tree(number, output)
            assert tree.records[: tree.size].min() >= 5
            assert tree.records[: tree.size][tree.is_split[: tree.size]].min() >= 10


@pytest.mark.parametrize("missing", [False, True])
def test_coarser_bins_of_small_nodes_tell_of_fewer_records_and_every_record_goes_where_its_sums_went(
    missing: bool,
) -> None:
    x, y = drawn(LOGISTIC, 600, empty=0.3 * missing)
    fine, coarse = (layout_of(LOGISTIC, 600, depth=6, missing=missing, bin_records=k) for k in (0, 20))
    parts = parted(coarse, x, y)
    growing = GrowingTrees(coarse, grown(coarse, parts))
    pooled = GrowingTrees(coarse, grown_alone(coarse, SiteTable(coarse.bins.find_bins(x), y)))
    assert encoded_trees(trees_file(growing)) == encoded_trees(trees_file(pooled))
    opened, small = growing.opened
    before, were_small = GrowingTrees(fine, grown(fine, parts)).opened
    assert small / opened < 0.4 * were_small / before and small < 0.2 * were_small
    sites = SiteMargins(coarse, SiteTable(coarse.bins.find_bins(x), y))
    for number in range(growing.done):
        tree = growing.tree(number, 0)
        reached = np.bincount(sites._at(tree), minlength=tree.size)
        leaves = ~tree.is_split[: tree.size]
        np.testing.assert_array_equal(reached[leaves], tree.records[: tree.size][leaves])


def test_a_node_of_few_records_is_asked_about_by_few_bins() -> None:
    """Ten bins of values and one of empty cells: of 60 records, with 20 for each bin, there are three, and the empty
    cells; of ten there are still two."""
    bins = layout_of(LOGISTIC, 600, missing=True, bin_records=20).bins
    assert bins.sizes.tolist() == [11, 11]
    assert sorted({*bins.reporting_bins(600).tolist()}) == [*range(11)]
    assert bins.reporting_bins(60)[:11].tolist() == [3, 3, 3, 3, 7, 7, 7, 7, 9, 9, 10]
    assert bins.reporting_bins(10)[11:].tolist() == [4] * 5 + [9] * 5 + [10]


# --- the command ------------------------------------------------------------------------------------------------------


def typed_in(folder: Path, *words: str) -> Output:
    return typed(list(words), folder)


def test_a_dry_run_says_what_would_be_opened_and_a_site_asks_for_coarser_bins(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "here")
    here = tmp_path / "here"
    (here / "fits" / "trees").mkdir(parents=True)  # of a fit before
    files = sorted(here.rglob("*"))
    said = typed_in(here, "fit", "ill.toml", "--dry-run")
    assert said.code == 0 and "in each of at most 12 levels, the loss, and the records and gradients of" in said.out
    assert "no node of fewer than 20 records is asked about; bins of which many will have 1 to 4" in said.out
    up = int(re.findall(r"a site and round: ([\d,]+) bytes up", said.out)[0].replace(",", ""))
    layout = planned_fit(load_experiment(here / "ill.toml")).layout
    assert up >= 8 * layout.numbers and "in 24 rounds at most" in said.out
    refused = typed_in(here, "fit", "ill.toml", "--bin-records", "20", "--to", "new")
    assert refused.code == 2 and "bin_records = 0 in model.source, and this site asks for 20" in refused.err
    coarse = ["--set", "model.source=trees:4x3?bin_records=20"]
    said = typed_in(here, "fit", "ill.toml", "--bin-records", "20", "--dry-run", *coarse)
    assert said.code == 0 and "bins of 20 records of the node or more on average, but for two" in said.out
    patients(here / "site-1.csv", 1, 3)
    assert typed_in(here, "fit", "ill.toml", "--dry-run").code == 4
    assert sorted(here.rglob("*")) == files, "nothing is written"


def test_what_is_printed_reads_alone_and_the_model_predicts(folder: Path, tmp_path: Path) -> None:
    said = typed_in(folder, "fit", "ill.toml", "--to", str(tmp_path / "fit"), "--set", "model.source=trees:12x3")
    assert said.code == 0, said
    assert said.out.startswith("boosted trees of ill = yes: 200 records of 5 of 5 sites, 12 trees, ")
    assert "still" in said.out and "of them over 1 to 4 records; a leaf has at least 10" in said.out
    assert "bytes up and" in said.err and "at most 50 sums of" in said.err
    model = load_model(tmp_path / "fit")
    file = decoded_trees((tmp_path / "fit" / "model" / "trees.json").read_bytes(), "trees.json")
    ages = [(20, 45, (0, 0, 1)), (55, 90, (0, 0, 1)), (55, 90, (1, 0, 0))]
    given = np.array([[age, 9e5, *ward, 7] for low, high, ward in ages for age in np.linspace(low, high, 10)])
    wards = [name for name in model.facts.columns if name.startswith("ward")]
    assert wards == ["ward=east", "ward=north", "ward=south"] and file.outcome == "ill"
    shares = model(given)[:, 1].reshape(3, 10)
    odds = (shares / (1 - shares)).mean(axis=1)
    assert min(odds[0], odds[2]) > 1.1 * odds[1], "the young in the south, and the old elsewhere, are ill"
    assert typed_in(folder, "evaluate", str(tmp_path / "fit"), "test.csv").code == 0
    scored = ["predict", str(tmp_path / "fit"), "test.csv", "--out", str(tmp_path / "scored.csv")]
    assert typed_in(folder, *scored).code == 0
    changed = tmp_path / "fit" / "model" / "trees.json"
    changed.write_bytes(changed.read_bytes().replace(b"yes", b"Yes", 1))
    assert "not the weights" in typed_in(folder, *scored[:3], "--out", str(tmp_path / "again.csv")).err


def test_a_regression_predicts_in_the_labels_unit(folder: Path, tmp_path: Path) -> None:
    assert typed_in(folder, "fit", "cost.toml", "--to", str(tmp_path / "fit")).code == 0
    low, high = load_model(tmp_path / "fit")(np.array([[25.0, 9e5, 0, 1, 0, 7], [85.0, 9e5, 0, 1, 0, 7]]))[:, 0]
    assert 75 < low < 165 < high < 255


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.source=trees:100"], "how many trees, and how deep"),
        (["model.source=trees:10x0"], "depth = 0"),
        (["model.source=trees:10x11"], "depth = 11"),
        (["model.source=trees:10x3?learning_rat=1"], "'learning_rat' is not known"),
        (["model.source=trees:10x3?max_bins=many"], "not a whole number"),
        (["model.source=trees:10x3?min_records=2"], "a leaf of so few would disclose each"),
        (["model.source=trees:10x3?min_records=150"], "200 records, and 150 on each side"),
        (["data.scale=source", "data.categories=refuse", "data.agreed=agreed.json"], "the columns that the sites have"),
        (["coordinator.secure.on=false"], "a fit is of secure sums"),
        (["coordinator.privacy.unit=client", "coordinator.privacy.noise=1"], "exact, with a budget"),
        (["data.agreed=none.json"], "none.json"),
        (["data.columns.age={low=0,high=150}"], "agreed on for other columns"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_cannot_be_grown_is_refused(
    folder: Path, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=message) as refused:
        planned_fit(load_experiment(folder / "ill.toml", overrides))
    assert refused.value.advice


def test_sums_that_would_be_too_large_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgossip.sites.plans.trees.NUMBERS", 100)
    with pytest.raises(ConfigError, match="there are at most 100"):
        planned_fit(load_experiment(folder / "ill.toml"))


def test_one_class_only_is_refused_before_anything_is_summed(folder: Path, tmp_path: Path) -> None:
    for site in [*(f"site-{k}" for k in range(SITES)), "test"]:
        text = (folder / f"{site}.csv").read_text()
        (tmp_path / f"{site}.csv").write_text(text if site == "test" else text.replace(",yes,", ",no,"))
    (tmp_path / "ill.toml").write_text(toml())
    assert typed_in(tmp_path, "data", "agree", "ill.toml").code == 0
    said = typed_in(tmp_path, "fit", "ill.toml")
    assert said.code == 2 and "all 200 records are no" in said.err, said


def test_nothing_is_told_where_no_level_has_come_together(folder: Path) -> None:
    fit = planned_fit(load_experiment(folder / "ill.toml"))
    with pytest.raises(TooFewPeersError):
        fit.result(fit.layout.initial())
    assert tree_options("trees:100x6").learning_rate == 0.1


def test_running_such_an_experiment_names_the_command(folder: Path) -> None:
    said = typed_in(folder, "run", "ill.toml", "--no-report")
    assert said.code == 2 and "fedgossip fit" in said.err


@pytest.mark.long
def test_what_the_page_shows_runs(tmp_path: Path) -> None:
    for site in range(SITES):
        patients(tmp_path / f"site-{site}.csv", site, 40)
    patients(tmp_path / "test.csv", 99, 30)
    file, commands = blocks(page("trees"))[:2]
    (tmp_path / file.note.removeprefix("file: ")).write_text(file.text)
    said = [typed(line.split("#")[0].split()[1:], tmp_path) for line in commands.text.splitlines()]
    assert all(one.code == 0 for one in said), said


@pytest.mark.parametrize("value", [11, -11, 2**62])
def test_a_long_number_beyond_its_bound_is_refused_as_it_is_sent_and_in_the_sum(value: int) -> None:
    sums = ExactSums((100, 10), 64)
    words = long_words(np.array([7, value]))
    with pytest.raises(RoundAbandoned, match="beyond its bound"):
        sums.encode(as_vector(words), 1, {}, os.urandom)
    total = np.concatenate([long_words(np.array([7, 3 * value // 2])), long_words(np.array([1]))])
    with pytest.raises(RoundAbandoned, match="number 1 is beyond its bound"):
        sums.decode(total, 1)
