"""`fedgossip evaluate` measures a model, on a file or at all sites together; `fedgossip predict` prints its outputs."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.cli.output_files import OutputFile
from fedgossip.cli.sites.sums import SET, OtherMachines, Record, find_held, over_machines, summed
from fedgossip.cli.text import NOISY, columns, echo, short
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.learning.models.loaded_model import LoadedModel
    from fedgossip.learning.models.model_files import ModelFacts
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.sites.evaluation.evaluated import Evaluation
    from fedgossip.sites.evaluation.evaluation_sums import EvaluationTask
    from fedgossip.sites.fits.fit_files import Fit


Command = Callable[..., Any]

MODEL = click.argument("model", type=click.Path(path_type=Path))


def model_options(command: Command) -> Command:
    """Add the options for opening a model."""
    node = click.option("--node", type=click.IntRange(min=0),
                        help="Node with the local layers to use, where some stay at the nodes.")  # fmt: skip
    code = click.option("--run-code", is_flag=True, help="Allow the modules inside the model's folder to run.")
    return node(code(command))


@click.command()
@MODEL
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=OutputFile(),
    default=Path("scored.csv"),
    show_default=True,
    help="File to write; an existing one is not overwritten.",
)
@model_options
def predict(model: Path, file: Path, out: Path, node: int | None, run_code: bool) -> None:
    """Write the rows of FILE, a CSV table, with MODEL's output for each: MODEL is a run directory, its folder model/,
    or the folder of a fit, which adds 95 % intervals.

    Columns are found by their names, in any order; unknown columns are copied and not read.
    """
    from fedgossip.base.owner_files import opened
    from fedgossip.sites.fits.fit_files import fit_in

    fit = fit_in(model)
    text, unknown = _score_model(model, file, node, run_code=run_code) if fit is None else _scored_by_fit(fit, file)
    if unknown:
        echo(f"not read: {', '.join(unknown)}", err=True)
    with opened(out, "xb") as written:
        written.write(text.encode())
    echo(f"Wrote {out}: {text.count(chr(10)) - 1} rows", err=True)


def _score_model(model: Path, file: Path, node: int | None, *, run_code: bool) -> tuple[str, Sequence[str]]:
    from fedgossip.learning.models.loaded_model import load_model
    from fedgossip.learning.models.scored_tables import scored

    return scored(load_model(model, node=node, run_code=run_code), file)


def _scored_by_fit(fit: Fit, file: Path) -> tuple[str, Sequence[str]]:
    from fedgossip.sites.fits import fitted_tables
    from fedgossip.sites.fits.cox.cox_result import CoxFit

    text, unknown = (
        fitted_tables.scored_hazards(fit, file) if isinstance(fit, CoxFit) else fitted_tables.scored(fit, file)
    )
    head, *rows = csv.reader(io.StringIO(text))
    if head[-1] == fitted_tables.MARKS and (marked := sum(bool(row[-1]) for row in rows)):
        what = "numbers outside the agreed bounds, or filled cells"
        echo(f"warning: {marked} of {len(rows)} rows have {what}: see their column {head[-1]!r}", err=True)
    return text, unknown


@click.command()
@MODEL
@click.argument("source", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
@model_options
@over_machines
@SET
def evaluate(
    model: Path,
    source: str,
    as_json: bool,
    node: int | None,
    run_code: bool,
    endpoints: Path | None,
    key: Path,
    ledger: Path | None,
    policy: Path,
    dry_run: bool,
    bind: str | None,
    out: Path | None,
    site: int | None,
    overrides: tuple[str, ...],
    carrier: FolderCarrier | None,
) -> int:
    """Measure MODEL on the labelled examples of FILE: a CSV table, or another source of data.source.

    FILE.toml, an experiment with a coordinator: all its sites evaluate MODEL on their own records, by secure sums.
    Then evaluation.json is written into MODEL's folder.  Without --endpoints all sites' files are on this machine; with
    it this is one of the sites, or the coordinator.
    """
    from fedgossip.base.errors import ConfigError
    from fedgossip.learning.models.model_files import read_checked_facts
    from fedgossip.sites.fits.cox.cox_result import CoxFit
    from fedgossip.sites.fits.fit_files import fit_in

    together = source.endswith(".toml")
    own = {"--endpoints": endpoints, "--links": carrier, "--id": site, "--ledger": ledger, "--bind": bind, "--out": out}
    given = {**own, "--set": overrides or None, "--dry-run": dry_run or None}
    if not together and (wrong := next((name for name, value in given.items() if value is not None), "")):
        advice = "Name the experiment, FILE.toml, with the sites that judge the model."
        raise ConfigError(f"{wrong} is for sites that judge a model together, and {source} is no experiment", advice)
    if not together and (fit := fit_in(model)) is not None:
        _judge_fit(fit, Path(source), as_json=as_json)
        return 0
    if together and isinstance(fit_in(model), CoxFit):
        text = f"{model}: proportional hazards, which are judged on a table"
        raise ConfigError(text, "Each site by itself:  fedgossip evaluate FIT FILE.csv.")
    known = OtherMachines(Path(source), endpoints, key, ledger, bind, out, overrides, policy, dry_run, carrier)
    if together and endpoints is not None and site is None:
        return _together(
            model, read_checked_facts(model), None, known, None, as_json=as_json
        )  # it does not run the model
    from fedgossip.learning.models.loaded_model import load_model

    try:
        loaded = load_model(model, node=node, run_code=run_code)
    except ConfigError as error:
        if together and site is not None and not _is_model(model):
            error.advice = _final_model(known, site)
        raise
    if together:
        return _together(model, loaded.facts, loaded, known, site, as_json=as_json)
    _on_a_file(loaded, source, as_json=as_json)
    return 0


def _on_a_file(loaded: LoadedModel, source: str, *, as_json: bool) -> None:
    from fedgossip.learning.models.scored_tables import examples_of

    examples = examples_of(loaded, source)
    measured = loaded.evaluate(examples)
    if as_json:
        echo(json.dumps({"examples": len(examples), **measured}))
        return
    rows = [["examples", str(len(examples))], *([name, f"{value:.6g}"] for name, value in measured.items())]
    echo(columns([*rows, *_describe_run_score(loaded.facts)]))


def _judge_fit(fit: Fit, path: Path, *, as_json: bool) -> None:
    from fedgossip.sites.fits import fitted_tables
    from fedgossip.sites.fits.cox.cox_result import CoxFit

    records, measured = (
        fitted_tables.judged_hazards(fit, path) if isinstance(fit, CoxFit) else fitted_tables.judged(fit, path)
    )
    if as_json:
        echo(json.dumps({"examples": records, **measured}))
        return
    echo(columns([["examples", str(records)], *([name, f"{value:.6g}"] for name, value in measured.items())]))


def _describe_run_score(facts: ModelFacts) -> list[list[str]]:
    score = facts.score
    if score.get("value") is None:
        return []
    on = f", on {score['on']}" if score.get("on") else ""
    return [["in its run", f"{score['value']:.6g} {score['name']}{on}"]]


# --- all sites together -----------------------------------------------------------------------------------------------


COPY = "final-model"


def _is_model(path: Path) -> bool:
    from fedgossip.base.errors import ConfigError
    from fedgossip.learning.models.model_files import find_folder

    try:
        return find_folder(path).is_dir()
    except ConfigError:
        return False


def _final_model(known: OtherMachines, site: int) -> str:
    command = ["fedgossip", "evaluate", COPY, str(known.experiment), "--id", str(site)]
    command += ["--endpoints", str(known.endpoints)] if known.endpoints else []
    folder = "the folder model/ of the coordinator's run"
    return f"A site that left early copies {folder} from its machine, as {COPY}, then:  {shlex.join(command)}"


def _together(
    model: Path,
    facts: ModelFacts,
    loaded: LoadedModel | None,
    known: OtherMachines,
    site: int | None,
    *,
    as_json: bool,
) -> int:
    from fedgossip.base.errors import ConfigError, PeerError
    from fedgossip.data.agreed.sums_task import draw_system_entropy
    from fedgossip.experiment import load_experiment
    from fedgossip.learning.models.model_files import find_folder
    from fedgossip.net.transport import OTHER_MODEL
    from fedgossip.sites.plans.evaluation import evaluation_plan, evaluation_task, opened_by
    from fedgossip.sites.plans.sums import from_seed

    experiment = load_experiment(known.experiment, known.overrides)
    plan, layout = evaluation_plan(experiment, facts)
    path = find_folder(model) / run_format.EVALUATION
    if path.exists() and not (known.dry_run or known.goes_on):
        advice = "Remove it to judge again; two evaluations by almost the same sites reveal the sites that differ."
        raise ConfigError(f"{path}: judged already", advice)
    held, draw = find_held(plan, known, site), draw_system_entropy if known.endpoints else from_seed(plan)
    plan, task, refused = evaluation_task(plan, layout, experiment, loaded, held, draw)

    def write(vector: Any, _record: Record) -> None:
        if not known.is_written(path):
            _write(path, plan, task, vector, experiment.data.suppress, as_json=as_json)

    if known.endpoints:
        echo(f"to be judged: the model with weights {facts.weights[:16]}, the same at all sites", err=True)
    try:
        return summed(plan, task, layout.digest, refused, site, known, write, opened_by(layout))
    except PeerError as error:
        if site is not None and OTHER_MODEL in str(error):
            error.advice = _final_model(known, site)
        raise


def _write(
    path: Path, plan: FederationPlan, task: EvaluationTask, vector: Any, suppress: int, *, as_json: bool
) -> None:
    from fedgossip.data.agreed.sums_task import encoded
    from fedgossip.runs.run_directory import write_whole
    from fedgossip.sites.plans.evaluation import evaluated_from

    found = evaluated_from(task, vector, suppress, plan.least)
    text = encoded(found)
    write_whole(path, text)
    echo(text.decode() if as_json else "\n".join(_lines(found, plan.learners)))
    echo(f"Wrote {path}", err=True)


def _lines(found: Evaluation, sites: int) -> list[str]:
    kept = "that no site has trained on" if found.layout.kept else "that the sites may have trained on"
    lines = [f"{found.sites} of {sites} sites, {found.records} records {kept}; sums over at least {found.least} sites"]
    if found.layout.noise:
        lines.append(NOISY.format(noise=found.layout.noise))
    score = _noisy(found, "score")
    lines.append(columns([[found.layout.score, score], *_loss(found), *_numbers(found)]))
    if found.outcomes:
        lines += ["", columns([OUTCOME_HEAD, *(_outcome(one.name, one) for one in found.outcomes)])]
    if len(found.layout.classes) <= 10 and found.confusion:
        head = ["true \\ answered", *found.layout.classes]
        rows = zip(found.layout.classes, found.confusion, strict=True)
        shown = ([name, *("-" if count is None else str(count) for count in row)] for name, row in rows)
        lines += ["", columns([head, *shown])]
    for one in (one for one in found.outcomes[:1] if one.parts):
        lines += ["", f"by the model's probability of {one.name}:", columns([PARTS_HEAD, *_parts(one.parts)])]
    for one in found.outcomes[:1]:
        lines += _decided(one, found.records)
    lines += [_calibration(one) for one in found.outcomes if one.slope and one.intercept]
    if found.groups:
        lines += ["", *_groups(found)]
    if found.layout.noise:
        return [*lines, "", WITHHELD]
    lines += ["", *([_places(found)] if found.places else []), *(_describe_sites(found))]
    return [*lines, *_membership(found)]


WITHHELD = "under a budget no loss and no site's own score is published; each site alone: fedgossip privacy membership"


THRESHOLD_HEAD = ["at least", "sensitivity", "specificity", "net benefit", "of acting on all"]


def _decided(one: Any, records: int) -> list[str]:
    from fedgossip.sites.evaluation.evaluated import thresholds_of

    rows = [[f"{point.at:.0%}", *map(short, point[1:])] for point in thresholds_of(one, records)]
    return ["", f"acting on a probability of {one.name} of:", columns([THRESHOLD_HEAD, *rows])] if rows else []


def _noisy(one: Any, name: str, shown: str = ".4g") -> str:
    value = getattr(one, name)
    if value is None:
        return "-"
    within = one.noise_within.get(name) or getattr(one, f"{name}_within", 0.0)
    text = f"{value:{shown}} ± {within:.2g}" if within else f"{value:{shown}}"
    return text + _interval(getattr(one, f"{name}_between", None))


def _interval(between: tuple[float, float] | None) -> str:
    return "" if between is None else f" ({between[0]:.4f} to {between[1]:.4f})"


def _loss(found: Evaluation) -> list[list[str]]:
    return [] if found.loss is None else [["loss", short(found.loss)]]


OUTCOME_HEAD = ["outcome", "records with it", "AUROC", "Brier score", "mean prediction", "were", "calibration error"]
PARTS_HEAD = ["between", "records", "mean prediction", "were"]


def _numbers(found: Evaluation) -> list[list[str]]:
    return [[f"RMSE, MAE of {one.name}", f"{one.rmse:.6g}, {one.mae:.6g}"] for one in found.numbers]


def _outcome(name: str, one: Any) -> list[str]:
    area = "-" if one.auroc is None else f"{one.auroc:.4f}"
    width = (one.auroc_within or 0.0) + one.noise_within.get("auroc", 0.0)
    within = f" ± {width:.4f}" if width else ""
    positives = _noisy(one, "positives", "d")
    figures = [*(_noisy(one, name) for name in ("brier", "said", "were")), short(one.calibration_error)]
    return [name, positives, area + within + _interval(one.auroc_between), *figures]


def _calibration(one: Any) -> str:
    slope, intercept = (f"{value:g} ({low:g} to {high:g})" for value, low, high in (one.slope, one.intercept))
    return f"calibration of {one.name}: slope {slope}, 1 at best; intercept {intercept}, 0 at best"


def _parts(parts: Any) -> list[list[str]]:
    return [
        [f"{100 * one.low:.0f} and {100 * one.high:.0f} %", "-" if one.records is None else str(one.records),
         short(one.said), short(one.were)]
        for one in parts
    ]  # fmt: skip


def _groups(found: Evaluation) -> list[str]:
    head = [found.layout.group_column, "records", found.layout.score, "loss"]
    single = len(found.layout.outcomes) == 1
    head += ["AUROC", "Brier score", "mean prediction", "were"] if single else []
    rows = []
    for group in found.groups:
        row = [group.name, _noisy(group, "records", "d"), _noisy(group, "score"), short(group.loss)]
        if single:
            row += _outcome("", group.outcomes[0])[2:6] if group.outcomes else ["-"] * 4
        rows.append(row)
    return [columns([head, *rows]), f"groups of fewer than {found.suppress} records, or at fewer than 3 sites: -"]


def _places(found: Evaluation) -> str:
    text = ", ".join(f"{100 * low:.0f} to {100 * high:.0f} %" for low, high in found.places)
    left = found.unplaced
    few = f"; not of {left}, with fewer than {found.suppress} right, or wrong, answers" if left else ""
    return f"{found.layout.score} of each site, the worst first: {text}{few}"


def _describe_sites(found: Evaluation) -> list[str]:
    within = {one.site: f" ± {one.score_within:.2g}" if one.score_within else "" for one in found.named}
    return [f"site {one.site}: {short(one.score)}{within[one.site]} on {one.records} records" for one in found.named]


def _membership(found: Evaluation) -> list[str]:
    membership = found.membership
    if membership is None:
        return []
    score = "" if membership.score is None else f"{found.layout.score} {short(membership.score)}, "
    on = f"on the {membership.records} records that it was trained on: {score}loss {short(membership.loss)}"
    text = f"FLAGGED by {membership.flagged}" if membership.flagged else "flagged by none"
    tested = f"membership tests at {membership.tested} sites: {text}"
    return [on, tested if membership.tested else "no site has enough records for a membership test"]
