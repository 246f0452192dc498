"""`fedgossip fit` of boosted trees: the written files, and the printed summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.sites.sums import OtherMachines, Record, held_by, summed
from fedgossip.cli.text import columns, echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.data.agreed.agreed_table import AgreedTable
    from fedgossip.experiment import Experiment
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.sites.fits.trees.tree_result import TreesFit
    from fedgossip.sites.fits.trees.tree_sums import TreesLayout

SHOWN = 15
"""Columns that are printed; all are in the file."""
LOSSES = {"squares": "squared error, halved, in deviations of the label", "logistic": "log loss", "softmax": "log loss"}


def fit_trees(
    whole: Experiment, folder: Path, known: OtherMachines, site: int | None, bin_records: int | None, *, as_json: bool
) -> int:
    """Grow the trees that model.source names; return the exit code.

    `bin_records`: this site's own minimum, whatever the experiment has.  Raises ConfigError.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.sites.plans.trees import trees_plan, trees_task

    plan, layout, agreed = trees_plan(whole)
    if folder.exists() and not known.dry_run:
        raise ConfigError(f"{folder}: is there already", "Name another folder, --to, or remove it.")
    if bin_records and layout.design.bin_records < bin_records:
        text = f"bin_records = {layout.design.bin_records} in model.source, and this site asks for {bin_records}"
        raise ConfigError(text, f"Agree with the others on trees:...?bin_records={bin_records}, or take no part.")
    plan, task, refused = trees_task(plan, layout, agreed, held_by(plan, known, site))
    up, down = 4 * layout.exact.words, 8 * layout.length
    if not known.dry_run:
        echo(f"each level: {up:,} bytes up and {down:,} down for a site, beside the keys of its sum", err=True)
    ended = list[int]()

    def write(vector: Any, record: Record) -> None:
        ended.append(_write(folder, plan, layout, agreed, vector, record, as_json=as_json))

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened) or max(ended, default=0)


def _write(
    folder: Path,
    plan: FederationPlan,
    layout: TreesLayout,
    agreed: AgreedTable,
    vector: Any,
    record: Record,
    *,
    as_json: bool,
) -> int:
    """Write and show the trees; return the exit code."""
    from fedgossip.data.agreed.sum_files import encoded
    from fedgossip.learning.models.model_files import write_model
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.trees import grown_from, model_of_trees

    found, growing = grown_from(plan, layout, vector)
    record(folder)
    text = encoded(found)
    write_whole(folder / run_format.FIT_OF_TREES, text)
    write_model(folder / run_format.MODEL, model_of_trees(growing, agreed), write_whole)
    echo(text.decode() if as_json else "\n".join(describe(found, plan.learners)))
    wrote = f"{folder / run_format.FIT_OF_TREES}, and {folder / run_format.MODEL}"
    echo(f"Wrote {wrote}: fedgossip predict {quoted(folder)} FILE.csv", err=True)
    if found.whole:
        return 0
    echo(f"error: {found.trees} of {found.design.trees} trees; failed rounds have cost the rest\n"
         "The model is of those that are there; fit again when all sites are.", err=True)  # fmt: skip
    return 9


def describe(found: TreesFit, sites: int) -> list[str]:
    """Return the grown trees, for a person."""
    d = found.design
    of = f"{d.outcome} = {d.classes[1]}" if len(d.classes) == 2 else d.outcome
    asked = f"of {d.trees} " if found.trees < d.trees else ""
    each = f" for each of {d.outputs} classes" if d.outputs > 1 else ""
    grown = f"{found.trees} {asked}trees{each}, {found.leaves} leaves"
    lines = [f"boosted trees of {of}: {found.records} records of {found.sites} of {sites} sites, {grown}"]
    if found.fewest < found.sites:
        lines.append(f"some sums were over {found.fewest} sites alone")
    if found.trees < d.trees and found.whole:
        lines.append("ended before: no split gains anything any more")
    first, last = found.losses[0], found.losses[-1]
    lines.append(f"{LOSSES[d.loss]}: {first:.4g} before the first tree, {last:.4g} before the last")
    rows = [[one.name, f"{one.gain:.4g}", f"{100 * one.share:.1f} %", str(one.splits)] for one in found.gains[:SHOWN]]
    lines.append(columns([["column", "gain", "of all", "splits"], *rows]))
    more = len(found.gains) - SHOWN
    unused = len(d.columns) - len(found.gains)
    lines += [f"and {more} columns more"] if more > 0 else []
    lines += [f"in no split: {unused} columns"] if unused else []
    if d.constant:
        lines.append(f"left out, for they have one value at every site: {', '.join(d.constant)}")
    share = 100 * found.small / max(1, found.opened)
    lines.append(
        f"opened: {found.opened:,} sums over a bin of a column in a node, {share:.0f} % of them over 1 to "
        f"{d.suppress - 1} records; a leaf has at least {d.min_records}"
    )
    return lines
