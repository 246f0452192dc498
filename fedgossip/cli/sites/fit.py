"""`fedgossip fit`: a model of all sites' tables by secure sums; a generalised linear one as statisticians print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.sites.estimates import remarks, table_of
from fedgossip.cli.sites.fit_cox import fit_cox
from fedgossip.cli.sites.fit_survival import fit_survival
from fedgossip.cli.sites.fit_trees import fit_trees
from fedgossip.cli.sites.sums import EXPERIMENT, SET, OtherMachines, Record, held_by, over_machines, summed
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.data.agreed.agreed_table import AgreedTable
    from fedgossip.experiment import Experiment
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.sites.fits.glm.glm_result import GlmFit
    from fedgossip.sites.fits.glm.glm_sums import GlmLayout


@click.command()
@EXPERIMENT
@over_machines
@click.option("--to", type=click.Path(path_type=Path), help="Folder to make for the fit.  [default: fits/NAME]")
@click.option(
    "--bin-records",
    type=click.IntRange(min=1),
    help="What this site asks of trees: no bins of fewer records of a node than so many, on average.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@SET
def fit(
    experiment: Path,
    endpoints: Path | None,
    key: Path,
    ledger: Path | None,
    policy: Path,
    dry_run: bool,
    bind: str | None,
    out: Path | None,
    site: int | None,
    to: Path | None,
    bin_records: int | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> int:
    """Fit the model that model.source names to all sites' tables, by secure sums: it is that of all records in one
    place.  A generalised linear one (glm:logistic, glm:linear, glm:poisson), boosted trees (trees:100x6), survival
    (kaplan-meier?every=30&until=720) or proportional hazards (cox?every=30&until=720).

    Writes fit.json (of trees trees-fit.json, of survival survival.json), and except of times model/, into a new
    folder; `fedgossip predict` reads all but survival.json.  Without --endpoints all sites' files are on this machine;
    with it this is one of them, or the coordinator.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.sites.fits.trees.tree_options import is_trees
    from fedgossip.sites.plans.cox import is_cox
    from fedgossip.sites.plans.glm import glm_plan, glm_task
    from fedgossip.sites.plans.survival import is_survival

    whole = load_experiment(experiment, overrides)
    known = OtherMachines(experiment, endpoints, key, ledger, bind, out, overrides, policy, dry_run)
    if is_trees(whole.model.source):
        return fit_trees(whole, to or _folder(whole, experiment), known, site, bin_records, as_json=as_json)
    if is_survival(whole.model.source):
        return fit_survival(whole, to or _folder(whole, experiment), known, site, as_json=as_json)
    if is_cox(whole.model.source):
        return fit_cox(whole, to or _folder(whole, experiment), known, site, as_json=as_json)
    plan, layout, agreed = glm_plan(whole)
    folder = to or _folder(whole, experiment)
    if folder.exists() and not known.dry_run:
        raise ConfigError(f"{folder}: is there already", "Name another folder, --to, or remove it.")
    plan, task, refused = glm_task(plan, layout, agreed, held_by(plan, known, site))
    ended = list[int]()

    def write(vector: Any, record: Record) -> None:
        ended.append(_write(folder, plan, layout, agreed, vector, record, as_json=as_json))

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened) or max(ended, default=0)


def _folder(whole: Experiment, experiment: Path) -> Path:
    return Path("fits") / (whole.name or experiment.stem)


def _write(
    folder: Path,
    plan: FederationPlan,
    layout: GlmLayout,
    agreed: AgreedTable,
    vector: Any,
    record: Record,
    *,
    as_json: bool,
) -> int:
    """Write and show the fit; return the exit code."""
    from fedgossip.data.agreed.sum_files import encoded
    from fedgossip.learning.models.model_files import write_model
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.glm import fitted_from, model_of

    found = fitted_from(plan, layout, vector)
    record(folder)
    text = encoded(found)
    write_whole(folder / run_format.FIT, text)
    if found.converged:
        write_model(folder / run_format.MODEL, model_of(found, agreed), write_whole)
    echo(text.decode() if as_json else "\n".join(describe(found, plan.learners)))
    told = f", and {folder / run_format.MODEL}: fedgossip predict {quoted(folder)} FILE.csv" if found.converged else ""
    echo(f"Wrote {folder / run_format.FIT}{told}", err=True)
    if found.converged:
        return 0
    echo(_why(found), err=True)
    return 9


def _why(found: GlmFit) -> str:
    d = found.design
    if d.family == "logistic" and found.null_deviance and found.deviance < 0.01 * found.null_deviance:
        text = f"the columns separate nearly every {d.outcome} from the others, so the coefficients diverge"
        advice = "Leave out the separating column (the largest estimates), or use softmax with weight_decay."
        return f"error: {text}\n{advice}"
    if found.steps < d.steps:
        text = "the last rounds failed, or sites refused a point at which few of their records count"
        advice = "Read the events of the rounds (metrics.jsonl); where coefficients diverge, leave the column out."
        return f"error: not at the end after {found.steps} steps: {text}\n{advice}"
    return f"error: not at the end after {d.steps} steps\nScale or leave out the columns with the largest estimates."


def describe(found: GlmFit, sites: int) -> list[str]:
    """Return a fit for a person."""
    from fedgossip.sites.fits.glm.glm_result import RATIO

    d = found.design
    of = f"{d.outcome} = {d.of}" if d.of else d.outcome
    steps = "one step" if found.steps == 1 else f"{found.steps} steps"
    at = f"at the end after {steps}" if found.converged else f"NOT at the end after {steps}"
    lines = [f"{d.family} model of {of}: {found.records} records of {found.sites} of {sites} sites, {at}"]
    statistic = "t" if d.family == "linear" else "z"
    lines += table_of(found.coefficients, statistic, RATIO.get(d.family))
    lines += remarks(d.against, d.constant, found.silent)
    null = "" if found.null_deviance is None else f" ({found.null_deviance:.6g} of the mean alone)"
    if d.family == "linear":
        share = None if not found.null_deviance else 1 - found.deviance / found.null_deviance
        explained = "" if share is None else f", R² {share:.4f}"
        squares = f"squares {found.deviance:.6g}{null}{explained}"
        return [*lines, f"residual standard error {found.dispersion**0.5:.6g}, {squares}"]
    return [*lines, f"deviance {found.deviance:.6g}{null}, AIC {found.aic:.6g}"]
