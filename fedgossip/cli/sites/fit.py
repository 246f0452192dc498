"""`fedgossip fit`: a model of all sites' tables by secure sums; a generalised linear one in the usual statistical
table.

Each kind of fit has its tables here, and its reasons for an unfinished fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.sites.sums import EXPERIMENT, SET, OtherMachines, Record, find_held, over_machines, summed
from fedgossip.cli.text import columns, echo, short
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.data.agreed.sums_task import SumsTask
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.experiment import Experiment
    from fedgossip.sites.fits.cox.cox_result import CoxFit
    from fedgossip.sites.fits.families.family import FamilyFit
    from fedgossip.sites.fits.glm.glm_result import Coefficient, GlmFit
    from fedgossip.sites.fits.imputation.rubin import Pooling
    from fedgossip.sites.fits.survival.survival_curves import CurveFit, GroupCurve
    from fedgossip.sites.fits.tree_result import TreesFit
    from fedgossip.sites.plans.sums import PlannedFit


@click.command()
@EXPERIMENT
@over_machines
@click.option("--to", type=click.Path(path_type=Path), help="Folder to make for the fit.  [default: fits/NAME]")
@click.option(
    "--bin-records",
    type=click.IntRange(min=1),
    help="Requirement of this site on trees: mean number of a node's records per bin, at least.",
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
    carrier: FolderCarrier | None,
) -> int:
    """Fit the model of model.source to all sites' tables, by secure sums: it equals that of all records in one place.
    A generalised linear one (glm:logistic, glm:linear, glm:poisson, glm:gamma), boosted trees (trees:100x6), survival
    (kaplan-meier?every=30&until=720), proportional hazards (cox?every=30&until=720), or tables (table1?by=COLUMN,
    correlations, meta-analysis?family=logistic, multinomial, ordinal, negative-binomial, firth,
    elastic-net?family=logistic, weibull, mixed?by=COLUMN, mixed-logistic, gee?by=COLUMN&family=logistic).

    Writes fit.json (for trees trees-fit.json, for survival survival.json, for tables tables.json), and for predicting
    models model/, into a new folder; `fedgossip predict` reads fit.json and model/.  Without --endpoints all sites'
    files are on this machine; with it this is one of the sites, or the coordinator.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.experiment import load_experiment
    from fedgossip.sites.plans.fits import planned_fit

    whole = load_experiment(experiment, overrides)
    known = OtherMachines(experiment, endpoints, key, ledger, bind, out, overrides, policy, dry_run, carrier)
    planned, folder = planned_fit(whole), to or Path("fits") / (whole.name or experiment.stem)
    layout = planned.layout
    if folder.exists() and not (dry_run or known.goes_on):
        raise ConfigError(f"{folder}: exists already", "Name another folder, --to, or remove it.")
    if bin_records and getattr(layout.design, "bin_records", bin_records) < bin_records:
        text = f"bin_records = {layout.design.bin_records} in model.source, and this site asks for {bin_records}"
        raise ConfigError(text, f"Agree with the others on trees:...?bin_records={bin_records}, or take no part.")
    held = find_held(planned.plan, known, site)
    plan, task, refused = planned.of_sites(held)
    if not dry_run:
        up, down = plan.count_upload_bytes(task.length, task.dtype), task.length * task.dtype.itemsize
        echo(f"each round: {up:,} bytes up and {down:,} down for a site, without the keys of its sum", err=True)
    ended = list[int]()

    def write(vector: Any, record: Record) -> None:
        if not known.is_written(folder / planned.run.file):
            look = partial(_refused, whole, planned, task, [one for one in held if one not in refused], vector)
            ended.append(_write(folder, planned, vector, record, look, as_json=as_json))

    return summed(plan, task, layout.design.digest, refused, site, known, write, layout.opened) or max(ended, default=0)


def _write(
    folder: Path, planned: PlannedFit, vector: Any, record: Record, look: Callable[[], list[str]], *, as_json: bool
) -> int:
    """Write and show the fit, with the lines of `look` if it is unfinished; return the exit code."""
    from fedgossip.base.errors import TooFewPeersError
    from fedgossip.data.agreed.sums_task import encoded
    from fedgossip.learning.models.model_files import write_model
    from fedgossip.runs.run_directory import write_whole

    run = planned.run
    try:
        found = planned.result(vector)
    except TooFewPeersError as error:
        if reasons := look():
            raise TooFewPeersError(f"{error}: {'; '.join(reasons)}", error.advice) from None
        raise
    record(folder)
    text, wrote = encoded(found), folder / run.file
    write_whole(wrote, text)
    model = run.model(planned.layout, planned.agreed, vector) if run.model else None
    if model is not None:
        write_model(folder / run_format.MODEL, model, write_whole)
    of = [f"only records with {where.text}"] if (where := planned.agreed.schema.where) else []
    echo(text.decode() if as_json else "\n".join([*describe(found, planned.plan.learners), *of]))
    written, why = str(wrote), why_not(found)
    if model is not None:
        written += f", and {folder / run_format.MODEL}"
    if model is not None or (run.file == run_format.FIT and not why):
        written += f": fedgossip predict {quoted(folder)} FILE.csv"
    echo(f"Wrote {written}", err=True)
    if why:
        echo("\n".join([why, *look()]), err=True)
    return 9 if why else 0


def _refused(
    experiment: Experiment, planned: PlannedFit, task: SumsTask, held: Sequence[int], vector: Any
) -> list[str]:
    """Return why the `held` sites refuse the final point."""
    from fedgossip.experiment import FederatedExperiment
    from fedgossip.sites.fits.design_columns import FAR, quartile_cuts
    from fedgossip.sites.plans.fits import accepted_with_cuts

    last = planned.plan.experiment.rounds - 2  # the last step, before any further round
    reasons = {node: task.uneven(node, last, vector) or task.uneven(node, last + 1, vector) for node in held}
    found = [f"site {node}: {reason}" for node, reason in reasons.items() if reason]
    if not found or len(held) < planned.plan.learners or not isinstance(experiment, FederatedExperiment):
        return found
    every = quartile_cuts(planned.agreed)
    lines = [line for line in found if FAR in line] or found
    named = {name: ends for name, ends in every.items() if any(f"'{name}'" in line for line in lines)}
    singles = ({name: ends} for name, ends in every.items() if len(every) > 1)  # all cut: only categories are left
    for cuts in (one for one in (named, every, *singles) if one):
        if accepted_with_cuts(experiment, cuts):
            declared = [f'"{name}" = {{ cuts = [{", ".join(map(short, ends))}] }}' for name, ends in cuts.items()]
            tried = "Tried: with these columns cut at their agreed quartiles no site refuses.  Agree again with"
            return [*found, tried, "", "[data.columns]", *declared]
    for least in range(planned.agreed.suppress - 1, 1, -1):
        if planned.accepted(held, least):
            return [
                *found,
                f"Tried: with data.suppress = {least} no site refuses.  If all allow it, agree again with it",
            ]
    return found


SHOWN = 15
"""Maximum number of printed columns of trees; all are in the file."""
LOSSES = {"squares": "squared error, halved, in deviations of the label", "logistic": "log loss", "softmax": "log loss"}


def describe(found: Any, sites: int) -> list[str]:
    """Return a fit of any kind as lines for a reader; `sites` of the experiment."""
    return WORDS[type(found).__name__][0](found, sites)


def why_not(found: Any) -> str:
    """Return why a fit is unfinished, with advice; "" for a finished one."""
    return WORDS[type(found).__name__][1](found)


def _describe_steps(steps: int) -> str:
    return f"not at the end after {'one step' if steps == 1 else f'{steps} steps'}"


# --- generalised linear models ----------------------------------------------------------------------------------------


def _glm(found: GlmFit, sites: int) -> list[str]:
    from fedgossip.sites.fits.glm.glm_result import RATIO, rounding

    d = found.design
    of = f"{d.outcome} = {d.of}" if d.of else d.outcome
    steps = "one step" if found.steps == 1 else f"{found.steps} steps"
    at = f"at the end after {steps}" if found.converged else f"NOT at the end after {steps}"
    lines = [f"{d.of_family.title} model of {of}: {found.records} records of {found.sites} of {sites} sites, {at}"]
    of_t = (d.of_family.disperses and d.errors != "robust") or d.errors == "quasi" or found.pooling
    lines += table_of(found.coefficients, "t" if of_t else "z", RATIO.get(d.family))
    lines += _pooled(found.pooling) if found.pooling else []
    lines += remarks(d.against, d.constant, found.silent)
    lines += [f"{what}: {one.name}" for what, one in (("offset", d.offset), ("weights", d.weights)) if one]
    lines += _glm_tests(found)
    lines += [text] if (text := rounding(found)) else []
    null = "" if found.null_deviance is None else f" ({found.null_deviance:.6g} of the mean alone)"
    null += ", means over the tables" if found.pooling else ""
    if d.family == "linear":
        share = None if not found.null_deviance else 1 - found.deviance / found.null_deviance
        explained = "" if share is None else f", R² {share:.4f}"
        squares = f"squares {found.deviance:.6g}{null}{explained}"
        return [*lines, f"residual standard error {found.dispersion**0.5:.6g}, {squares}"]
    aic = "" if found.aic is None else f", AIC {found.aic:.6g}"
    return [*lines, f"deviance {found.deviance:.6g}{null}{aic}"]


def _pooled(pooling: Pooling) -> list[str]:
    head = ["column", "within", "between", "total", "degrees", "missing information"]
    rows = [
        [one.name, *map(short, (one.within, one.between, one.total)), f"{one.free:.4g}",
         f"{100 * one.missing_information:.1f} %"]
        for one in pooling.variances
    ]  # fmt: skip
    table = ["variances of the estimates", columns([head, *rows])] if rows else []
    return [*table, *pooling.lines]


DISPERSED = 1.5
"""X² / degrees of freedom of counts above which a line reports that a Poisson model's errors are too small."""


def _glm_tests(found: GlmFit) -> list[str]:
    lines = []
    for one in found.tests:
        test = chi_squared(one.statistic, one.freedom, one.p)
        if one.free is not None:
            free = f"{one.free:.4g}" if isinstance(one.free, float) else one.free
            test = f"F {one.statistic:.4g} of {one.freedom} and {free} degrees of freedom, p {chance(one.p)}"
        name = "all columns, likelihood ratio" if one.name == "likelihood ratio" else f"{one.name}, Wald"
        lines.append(f"{name}: {test}")
    if found.pearson is not None and found.free > 0:
        ratio = found.pearson / found.free
        lines.append(f"Pearson's X² {found.pearson:.6g} of {found.free} degrees of freedom: dispersion {ratio:.4g}")
        if found.design.family == "poisson" and ratio > DISPERSED and not found.design.errors:
            other = "" if found.design.prior else ", or take negative-binomial"
            lines.append("counts vary more than a Poisson model has it, so these errors are too small: add")
            lines.append(
                f"errors=quasi or errors=robust to the options of model.source (glm:poisson?errors=quasi){other}"
            )
    return [*lines, _errors(found)] if found.design.errors else lines


def _errors(found: GlmFit | CoxFit) -> str:
    if found.clusters is None:
        return f"errors are {found.design.errors}"
    from fedgossip.sites.fits.glm.glm_result import clusters_in_words

    assert found.design.cluster
    return f"errors are {found.design.errors}, {clusters_in_words(found.design.cluster, found.clusters)}"


def _glm_not(found: GlmFit) -> str:
    if found.converged:
        return ""
    from fedgossip.sites.fits.design_columns import CUT_SHORT, LOOK

    d = found.design
    if d.family == "logistic" and found.null_deviance and found.deviance < 0.01 * found.null_deviance:
        text = f"the columns separate nearly every {d.outcome} from the others, so the coefficients diverge"
        advice = "Leave out the separating column (the largest estimates), or use softmax with weight_decay."
        return f"error: {text}\n{advice}"
    if found.steps < d.steps:
        return f"error: {_describe_steps(found.steps)}: {CUT_SHORT}\n{LOOK}."
    return f"error: not at the end after {d.steps} steps\nScale or leave out the columns with the largest estimates."


# --- proportional hazards ---------------------------------------------------------------------------------------------


def _cox(found: CoxFit, sites: int) -> list[str]:
    from fedgossip.sites.fits.cox.cox_result import cost_of_grid, rounding

    d = found.design
    steps = "one step" if found.steps == 1 else f"{found.steps} steps"
    at = f"at the end after {steps}" if found.converged else f"NOT at the end after {steps}"
    records = f"{found.records} records of {found.sites} of {sites} sites"
    times = len(found.strata[0].points)
    of = "" if found.unused is None else f" of {found.events + found.unused}"
    text = f"{found.events}{of} events until {d.grid[-1]:g} at {times} reported times"
    lines = [f"{d.title}: {records}, {text}, {at}"]
    lines += table_of(found.coefficients, "z", "hazard ratio")
    lines += remarks(d.against, d.constant, found.silent)
    if d.strata_column:
        lines.append(f"each {d.strata_column} has a hazard of its own: {', '.join(d.strata)}")
    lines += [f"records are at risk after {d.entry.name}"] if d.entry else []
    if d.ties != "breslow":
        lines.append("events at one reported time are taken one after another: ties are Efron's")
    lines += [cost] if (cost := cost_of_grid(found)) else []
    lines += [text] if (text := rounding(found)) else []
    lines += [_errors(found)] if d.errors else []
    if d.ridge:
        lines.append(f"estimates and errors are those with a ridge of {d.ridge:g}, on columns of deviation 1")
    if found.log_likelihood is not None:
        null = "" if found.null_log_likelihood is None else f" ({found.null_log_likelihood:.6g} without any column)"
        ratio = ""
        if found.ratio is not None and found.p is not None:
            ratio = f"; likelihood ratio {chi_squared(found.ratio, found.freedom, found.p)}"
        lines.append(f"log likelihood {found.log_likelihood:.6g}{null}{ratio}")
    if found.concordance is not None:
        error = "" if found.concordance_error is None else f" (std. error {found.concordance_error:.4f})"
        lines.append(f"concordance {found.concordance:.4f}{error}, of {found.pairs:,} pairs of records of one site")
    if found.proportional:
        rows = [[one.name, short(one.statistic), str(one.freedom), chance(one.p)] for one in found.proportional]
        lines.append(columns([["effect changes with time", "chi squared", "degrees of freedom", "p"], *rows]))
    return [*lines, _describe_seen(found)]


def _describe_seen(found: CoxFit) -> str:
    from fedgossip.sites.fits.cox.cox_sums import EFRON

    each = f"{len(found.coefficients) + 1} sums over those at risk"
    each += " and as many over those with their event" if found.design.ties == EFRON else ""
    each += f" at each reported time, at {found.points} points"
    return f"seen by the coordinator: {each}; no two of them differ by fewer than {found.smallest} records"


def _cox_not(found: CoxFit) -> str:
    """Report the diverging columns."""
    if found.converged:
        return ""
    from fedgossip.sites.fits.design_columns import CUT_SHORT, LOOK

    d = found.design
    scaled = [abs(one.estimate) * by for one, by in zip(found.coefficients, d.deviation, strict=True)]
    name = found.coefficients[max(range(len(scaled)), key=scaled.__getitem__)].name
    text = f"the likelihood grows without end with the estimate of {name}: it orders the records by {d.event} = 1"
    if max(scaled) < 5 and found.steps < d.steps:
        small = 'or keep estimates small:  model.source = "cox?ridge=1"'
        return f"error: {_describe_steps(found.steps)}: {CUT_SHORT}\n{LOOK}; {small}."
    if max(scaled) < 5:
        text = f"{_describe_steps(found.steps)}; the largest estimate is that of {name}"
    return f'error: {text}\nLeave it out, drop=COLUMN; or keep estimates small:  model.source = "cox?ridge=1".'


# --- survival ---------------------------------------------------------------------------------------------------------


def _survival(found: CurveFit, sites: int) -> list[str]:
    d, whole = found.design, found.everybody
    unit = f" [{d.unit}]" if d.unit else ""
    records = f"{whole.records} records of {found.sites} of {sites} sites, {whole.events} events"
    lines = [f"Kaplan-Meier survival, {d.time}{unit} until {d.event} = 1: {records}"]
    head = [d.time, "at risk", "events", "survival", "std. error", "95 % from", "to", "on the grid", "to"]
    for one in (whole, *found.groups):
        lines += [f"{d.group_column} = {one.name}"] if one.name else []
        rows = [
            [f"{point.time:g}", str(point.risk), str(point.events)]
            + [short(value) for value in (point.survival, point.error, point.low, point.high)]
            + [short(value) for value in (point.grid_low, point.grid_high)]
            for point in one.points
        ]
        lines.append(columns([head, *rows]))
    rows = [_median(one) for one in (whole, *found.groups)]
    lines.append(
        columns([["", "records", "events", "expected", "median", "95 % from", "to", "lies above", "at most"], *rows])
    )
    lines += _means(found)
    if found.statistic is not None and found.p is not None:
        lines.append(f"log-rank: {chi_squared(found.statistic, found.freedom or 0, found.p)}")
    if found.hidden:
        lines.append(f"withheld, as they are too small or at too few sites: {', '.join(found.hidden)}")
    return lines


def _means(found: CurveFit) -> list[str]:
    """Return the mean times without the event until the last reported one, and two groups' difference."""
    from statistics import NormalDist

    from fedgossip.sites.fits.glm.glm_result import LEVEL, coefficient

    reach = NormalDist().inv_cdf((1 + LEVEL) / 2)  # scipy takes a fifth of the time of a curve to import
    every = [one for one in (found.everybody, *found.groups) if one.mean is not None and one.mean_error is not None]
    if not every:
        return []
    head = ["", f"mean until {every[0].points[-1].time:g}", "std. error", "95 % from", "to", "at least", "at most"]
    rows = []
    for one in every:
        mean, error = one.mean or 0.0, one.mean_error or 0.0
        between = (mean - reach * error, mean + reach * error) if error else (None, None)
        figures = mean, one.mean_error, *between, one.mean_least, one.mean_most
        rows.append([one.name or "all", *map(short, figures)])
    lines = [columns([head, *rows])]
    if len(found.groups) == 2:
        one, other = found.groups
        apart = (one.mean or 0.0) - (other.mean or 0.0)
        contrast = coefficient("", apart, ((one.mean_error or 0.0) ** 2 + (other.mean_error or 0.0) ** 2) ** 0.5)
        if contrast.p is not None:
            interval = f"95 % {short(contrast.low)} to {short(contrast.high)}, p {chance(contrast.p)}"
            lines.append(f"mean of {one.name} less that of {other.name}: {short(apart)} ({interval})")
    return lines


def _median(one: GroupCurve) -> list[str]:
    figures = (one.expected, one.median, one.median_low, one.median_high, one.median_above, one.median_until)
    return [one.name or "all", str(one.records), str(one.events), *map(short, figures)]


# --- trees ------------------------------------------------------------------------------------------------------------


def _trees(found: TreesFit, sites: int) -> list[str]:
    d = found.design
    of = f"{d.outcome} = {d.classes[1]}" if len(d.classes) == 2 else d.outcome
    asked = f"of {d.trees} " if found.trees < d.trees else ""
    each = f" for each of {d.outputs} classes" if d.outputs > 1 else ""
    grown = f"{found.trees} {asked}trees{each}, {found.leaves} leaves"
    kind = f"random forest of {of}, {d.forest_columns} columns a tree" if d.forest_columns else f"boosted trees of {of}"
    lines = [f"{kind}: {found.records} records of {found.sites} of {sites} sites, {grown}"]
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


def _trees_not(found: TreesFit) -> str:
    if found.whole:
        return ""
    text = f"error: {found.trees} of {found.design.trees} trees; failed rounds have cost the rest"
    return f"{text}\nThe model is of the present sites; fit again when all are."


# --- families ---------------------------------------------------------------------------------------------------------


def _tables(found: FamilyFit, sites: int) -> list[str]:
    lines = [f"{found.title}: {found.records} records of {found.sites} of {sites} sites"]
    for one in found.tables:
        rows = [[_figure(*both) for both in zip(row, one.head, strict=True)] for row in one.rows]
        lines += [one.name, columns([one.head, *rows])]
    return [*lines, *found.remarks]


def _figure(value: str | float | None, head: str) -> str:
    if isinstance(value, str):
        return value
    return chance(value) if head == "p" else str(value) if isinstance(value, int) else short(value)


def _tables_not(found: FamilyFit) -> str:
    return f"error: {found.problem}" if found.problem else ""


WORDS: Mapping[str, tuple[Callable[[Any, int], list[str]], Callable[[Any], str]]] = {
    "GlmFit": (_glm, _glm_not),
    "CoxFit": (_cox, _cox_not),
    "CurveFit": (_survival, lambda _: ""),
    "TreesFit": (_trees, _trees_not),
    "FamilyFit": (_tables, _tables_not),
}
"""By the class name of a result, which is imported only when one exists: its tables, and why it is unfinished."""


def table_of(coefficients: Sequence[Coefficient], statistic: str, ratio: str | None) -> list[str]:
    """Return a line for each; `statistic` is the name of estimate / error, `ratio` that of exp(estimate)."""
    head = ["column", "estimate", "std. error", statistic, "p", "95 % from", "to"]
    head += [ratio, "from", "to"] if ratio else []
    return [columns([head, *(_line(one, ratio=bool(ratio)) for one in coefficients)])]


def _line(one: Coefficient, *, ratio: bool) -> list[str]:
    numbers = [one.estimate, one.error, one.statistic]
    row = [one.name, *map(short, numbers), chance(one.p), short(one.low), short(one.high)]
    if not ratio:
        return row
    return [*row, *(["", "", ""] if one.name.startswith("(") else map(short, one.ratio))]


def remarks(against: Sequence[str], constant: Sequence[str], silent: Sequence[str]) -> list[str]:
    """Return remarks on the columns."""
    lines = []
    if against:
        lines.append(f"compared with: {', '.join(against)}")
    if constant:
        lines.append(f"left out, for they have one value at every site: {', '.join(constant)}")
    if silent:
        text = "depend on each other, so their errors are not known and their estimates are one choice of many"
        lines.append(f"{text}: {', '.join(silent)}")
    return lines


def chi_squared(statistic: float, freedom: int, p: float) -> str:
    degrees = "1 degree" if freedom == 1 else f"{freedom} degrees"
    return f"chi squared {statistic:.4g} of {degrees} of freedom, p {chance(p)}"


def chance(p: float | None) -> str:
    return "-" if p is None else "<1e-16" if p < 1e-16 else f"{p:.2g}"
