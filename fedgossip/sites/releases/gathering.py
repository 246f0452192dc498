"""Gathers the contents of a release from the files of a run, an evaluation and the sites.

Its privacy statement names protected data, adversaries, strength, and limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fedgossip.base import outside_files
from fedgossip.base.errors import ConfigError
from fedgossip.base.version import __version__
from fedgossip.core.run_format import (
    AGREED,
    APPROVAL,
    AUDIT_LOG,
    CARD,
    ENDPOINTS,
    EVALUATION,
    LOGS,
    MODEL,
    MODEL_FACTS,
    PLAN,
    RELEASE,
    TRANSCRIPT,
    USE,
)
from fedgossip.data.agreed import agreed_table
from fedgossip.data.agreed.agreed_table import ROUNDS
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.data.objectives import REGRESSION
from fedgossip.experiment import PrivacySection, file_kept_in, load_experiment
from fedgossip.learning.models import model_files
from fedgossip.net.endpoints import load_blocks
from fedgossip.plans import compose
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import Approval, read_signed, site_of
from fedgossip.plans.approvals.plan_statement import study_of
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated_words import describe_visibility
from fedgossip.privacy.accounting import Mechanism, epsilon, meaning
from fedgossip.privacy.forecast import PrivacyPlan, adversary, hidden, not_hidden
from fedgossip.report.page.participation import Took
from fedgossip.report.page.reading import read_run
from fedgossip.sites.evaluation import evaluated
from fedgossip.sites.fits import fit_files
from fedgossip.sites.fits.cox.cox_result import CoxFit
from fedgossip.sites.fits.fit_files import AnyFit
from fedgossip.sites.fits.survival.survival_curves import CurveFit
from fedgossip.sites.releases import model_card, released
from fedgossip.sites.releases.checking import logs_of
from fedgossip.sites.releases.fitted import numbers_of
from fedgossip.sites.releases.released import Release, ReleasedApproval, ReleasedModel, ReleasedPrivacy

if TYPE_CHECKING:
    from fedgossip.data.agreed.agreed_table import AgreedTable
    from fedgossip.plans.approvals.plan_statement import PlanStatement
    from fedgossip.report.page.reading import Summary
    from fedgossip.sites.evaluation.evaluated import Evaluation


USE_LETTERS = 20_000
"""Maximum length of the text about the use."""

Contents = dict[str, bytes | Path]


@dataclass(frozen=True)
class ReleaseSources:
    """The sources: the run's directory, the folders with the sites' logs, and the file of keys."""

    run: Path
    use: Path
    logs: Sequence[Path] = ()
    endpoints: Path | None = None

    @property
    def keys(self) -> Path | None:
        """The file of all keys: the given one, or the file of a run on this machine."""
        own = self.run / ENDPOINTS
        return self.endpoints or (own if own.is_file() else None)

    @property
    def folders(self) -> Sequence[Path]:
        return self.logs or [self.run]


def gathered(sources: ReleaseSources, signer: str, now: datetime | None = None) -> tuple[Release, Contents]:
    """Return the description of a release, and its files in order.

    Raises ConfigError for a run without a model, of another kind, or with unrelated files.
    """
    run = read_run(sources.run)
    took = run.participation
    if took is None:
        raise ConfigError(f"{sources.run}: no federated run", "A release is of a run with a [coordinator].")
    if run.summary.status not in ("finished", "partial"):
        raise ConfigError(f"{sources.run}: this run is {run.summary.status}", "Release a finished one.")
    fitted = fit_files.read_fit(sources.run)
    plan = plan_statement.read(sources.run / PLAN)
    model = _describe_model(sources.run, fitted, str(plan.experiment["model"]["source"]))
    statistics = _agreed(sources, plan)
    evaluation, evaluation_file = _evaluation(sources, model.weights, plan)
    contents: Contents = {USE: _use(sources.use).encode()}
    contents |= _model(model_files.find_folder(sources.run)) if model.file.startswith(f"{MODEL}/") else {}
    if fitted:
        contents[fitted[0]] = sources.run / fitted[0]
    if evaluation_file:
        contents[f"{MODEL}/{EVALUATION}"] = evaluation_file
    contents[PLAN] = outside_files.read_bytes(sources.run / PLAN)
    if statistics:
        contents[AGREED] = encoded(statistics)
    logs = _logs(sources)
    approvals = _approvals(sources, plan.hash, contents, logs)
    contents |= logs
    table = took.table() if took.followed else np.zeros((0, 0))
    release = Release(
        version=__version__,
        name=run.name,
        made=(now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z"),
        signer=signer,
        use=_use(sources.use),
        model=model,
        privacy=_with_opened(
            privacy_of(sources.run, run.summary, plan, statistics, evaluation), plan.terms.sent if fitted else ""
        ),
        plan=plan.hash,
        approvals=approvals,
        rounds=run.summary.rounds,
        clients=run.summary.n,
        least=plan.experiment["coordinator"].get("min_clients") or run.summary.n,
        counted=tuple(tuple((np.flatnonzero(row == Took.COUNTED) + 1).tolist()) for row in table),
        logs=logs_of(contents),
        agreed=statistics.digest if statistics else "",
        agreed_file=str(plan.experiment["data"].get("agreed") or AGREED),
        judged=evaluation is not None,
        fit=fitted[0] if fitted else "",
        study=study_of(plan),
        files={},
    )
    contents[CARD] = model_card.page(release, statistics, evaluation, fitted[1] if fitted else None).encode()
    files = {name: _sha256(content) for name, content in contents.items()}
    release = released_with(release, files)
    return release, {RELEASE: released.encoded(release), **contents}


def released_with(release: Release, files: Mapping[str, str]) -> Release:
    """Return the release with the hashes of its files."""
    return msgspec.structs.replace(release, files=dict(files))


def _sha256(content: bytes | Path) -> str:
    return hashlib.sha256(
        content if isinstance(content, bytes) else outside_files.read_bytes(content, outside_files.LARGE)
    ).hexdigest()


def _use(path: Path) -> str:
    advice = f"Write into {path} in a few sentences the use of the model, its users, and what it must not be used for."
    try:
        text = outside_files.read_text(outside_files.resolve(path)).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}", advice) from None
    if not 20 <= len(text) <= USE_LETTERS:
        raise ConfigError(f"{path}: {len(text)} letters; the use takes 20 to {USE_LETTERS}", advice)
    return text


def _with_opened(privacy: ReleasedPrivacy, opened: str) -> ReleasedPrivacy:
    return msgspec.structs.replace(privacy, words=(*privacy.words, ("opened", opened))) if opened else privacy


def _describe_model(run: Path, fitted: tuple[str, AnyFit] | None, source: str) -> ReleasedModel:
    """Return the model's description; `source`: from the plan, more detailed than a fit's file."""
    if fitted and not (run / MODEL).is_dir():
        name, fit = fitted
        times = (fit.design.time, fit.design.event) if isinstance(fit, CoxFit | CurveFit) else (fit.design.outcome,)
        labels = tuple(filter(None, times))
        columns = fit.design.groups if isinstance(fit, CurveFit) else fit.design.columns
        return ReleasedModel(
            source=source, kind=REGRESSION, numbers=numbers_of(fit), weights=_sha256(run / name), file=name,
            columns=columns, labels=labels, versions=compose.versions(),
        )  # fmt: skip
    facts = model_files.facts_of(model_files.find_folder(run))
    numbers = sum(int(np.prod(shape)) for _, shape in facts.layout)
    return ReleasedModel(
        source=source if fitted else facts.source or "tensors without a recipe",
        kind=facts.kind,
        numbers=numbers or (numbers_of(fitted[1]) if fitted else 0),
        weights=facts.weights,
        file=f"{MODEL}/{model_files.weights_file(facts)}",
        classes=facts.classes,
        columns=facts.columns,
        labels=facts.labels,
        score=dict(facts.score),
        versions=dict(facts.versions),
    )


def _model(folder: Path) -> Contents:
    facts = model_files.facts_of(folder)
    found: Contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != EVALUATION and not path.name.endswith(".pyc"):
            found[f"{MODEL}/{path.relative_to(folder).as_posix()}"] = path
    if _sha256(found[f"{MODEL}/{model_files.weights_file(facts)}"]) != facts.weights:
        raise ConfigError(f"{folder}: not the weights that {MODEL_FACTS} describes", "Copy the folder again.")
    return found


def _agreed(sources: ReleaseSources, plan: PlanStatement) -> AgreedTable | None:
    """Return the run's statistics: its folder's, or the file that its experiment names, if it matches."""
    if AGREED not in {Path(name).name for name in plan.files} and plan.table is None:
        return None
    if (sources.run / AGREED).is_file():
        return agreed_table.read(sources.run / AGREED)
    from fedgossip.experiment import file_kept_in, load_experiment

    path = Path(load_experiment(file_kept_in(sources.run)).data.agreed)
    advice = f"Put {path.name} next to the experiment of the run."
    table = agreed_table.read(path)
    if plan.files.get(path.name) != hashlib.sha256(outside_files.read_bytes(outside_files.resolve(path))).hexdigest():
        raise ConfigError(f"{path}: not the statistics agreed on for the training", advice)
    return table


def _evaluation(sources: ReleaseSources, weights: str, plan: PlanStatement) -> tuple[Evaluation | None, Path | None]:
    """Return the evaluation in the run's model, or in a folder with logs.  Raises ConfigError for another model's, or
    records that were not held out.
    """
    where = [(run, kept) for run in (sources.run, *sources.folders) for kept in model_files.KEPT]
    for run, kept in where:
        path = run / kept / EVALUATION
        if path.is_file():
            found = evaluated.read(path)
            if found.layout.model != weights:
                text = f"{path}: of another model, weights {found.layout.model[:16]} and not {weights[:16]}"
                raise ConfigError(text, "Evaluate the model that is released.")
            if found.layout.kept and not plan.experiment["data"].get("local_test"):
                text = f"{path}: on records kept apart (data.local_test), and the plan of the training keeps none"
                raise ConfigError(
                    text, "Evaluate with the experiment as it was trained, without --set data.local_test."
                )
            return found, path
    return None, None


def _approvals(sources: ReleaseSources, plan: str, contents: Contents, logs: Contents) -> tuple[ReleasedApproval, ...]:
    folders = dict.fromkeys((sources.run, *sources.logs))  # each site of a fit has its own in the folder of its log
    found = list[Approval]()
    for path in (folder / APPROVAL for folder in folders):
        for one in read_signed(path) if path.is_file() else ():
            if one.plan != plan:
                raise ConfigError(
                    f"{path}: site {one.participant} approved another plan", "Put the run together again."
                )
            found += [one] if one.hash not in {other.hash for other in found} else []
    if not found:
        return ()
    contents[APPROVAL] = b"".join(one.line for one in found)
    # by the keys in the release: a later check has no others
    known = load_blocks(sources.keys) if sources.keys and ENDPOINTS in logs else {}
    keys = {node: one.verify for node, one in known.items()}
    return tuple(ReleasedApproval(site_of(one, keys), one.by, one.time, one.until, one.key) for one in found)


def _logs(sources: ReleaseSources) -> Contents:
    logs = sorted({path for folder in sources.folders for path in folder.rglob(AUDIT_LOG)})
    rounds = sorted({path for folder in sources.folders for path in folder.rglob(f"*{TRANSCRIPT}")})
    if not logs and not rounds:
        return {}
    if sources.keys is None:
        raise ConfigError("logs can be verified by everybody's keys alone", "Name them: --endpoints endpoints.toml")
    found: Contents = {ENDPOINTS: sources.keys}
    owners = sorted({path.parent for path in logs} | {path.parent.parent for path in rounds})
    for number, owner in enumerate(owners):
        found |= {f"{LOGS}/{number:03d}/{AUDIT_LOG}": path for path in logs if path.parent == owner}
        mine = [path for path in rounds if path.parent.parent == owner]
        found |= {f"{LOGS}/{number:03d}/{path.parent.name}/{path.name}": path for path in mine}
    return found


NOBODY = "Nothing is promised about single records: the model, and the sums of all rounds, may disclose them."


def privacy_of(
    run: Path,
    summary: Summary,
    stated: PlanStatement,
    statistics: AgreedTable | None,
    evaluation: Evaluation | None,
) -> ReleasedPrivacy:
    """Return a run's privacy guarantees, with its sites' other disclosures: the one source of these numbers.

    Raises ConfigError for a run directory without a federated run.
    """
    plan = compose.plan(load_experiment(file_kept_in(run)))
    if not isinstance(plan, FederationPlan):
        raise ConfigError(f"{run}: no federated run", "A release is of a run with a [coordinator].")
    seen = _seen(plan)
    budget, spent = plan.experiment.budget, summary.privacy
    if budget is None or spent is None:
        none = (
            ("promise", f"None by a budget.  {NOBODY}"),
            ("the coordinator", seen),
            ("not hidden", _of_all(plan)),
        )
        return ReleasedPrivacy(unit="none", words=none)
    about = PrivacyPlan(
        unit=budget.unit,
        clients=plan.learners,
        rounds=plan.experiment.rounds,
        noise=budget.noise,
        clip=budget.clip,
        delta=budget.delta,
        parameters=1,
        cohort=plan.cohort,
        max_epsilon=budget.max_epsilon,
        honest=plan.least if budget.unit == "client" else None,
        leaf=None if plan.tree.flat else plan.tree.smallest_leaf,
        batch_size=plan.experiment.train.batch_size,
        examples=(plan.experiment.train.batch_size,) * plan.learners,
        sent_metrics=plan.sent_metrics,
        secure=plan.hides(0),
        tested=plan.experiment.data.local_test > 0,
    )
    worth = budget.max_epsilon if spent.epsilon is None else spent.epsilon
    bound = "at most" if spent.epsilon is None else "spent, by the site that has spent most:"
    words = (
        ("unit", hidden(about)),
        ("from", adversary(about)),
        ("epsilon", f"{bound} {worth:.4g} at delta {budget.delta:g}"),
        ("verdict", meaning(worth, budget.unit)),
        *of_statistics(statistics, budget, counted=bool(stated.terms.before) or spent.epsilon is None),
        *of_figures(evaluation, budget, worth),
        ("the coordinator", seen),
        ("not hidden", f"{not_hidden(about)}  {_of_all(plan)}"),
    )
    return ReleasedPrivacy(unit=budget.unit, epsilon=worth, delta=budget.delta, words=words)


def of_statistics(statistics: AgreedTable | None, budget: PrivacySection, *, counted: bool) -> list[tuple[str, str]]:
    """Return (name, words) of the statistics that the sites agreed on; `counted`: in the epsilon of the run."""
    if statistics is None:
        return []
    title = "What the sites have agreed on before the training"
    if not statistics.noise:
        return [("statistics", f"{title} {EXACT}")]
    cost = _alone(statistics.noise, ROUNDS, budget)
    by = "counts" if counted else "counts where the ledger of a site's key held them"
    return [("statistics", f"{title} {cost}, which the epsilon above {by}.")]


def of_figures(evaluation: Evaluation | None, budget: PrivacySection, worth: float) -> list[tuple[str, str]]:
    """Return (name, words) of the sites' evaluation figures of a model; `worth`: the epsilon of its run."""
    if evaluation is None:
        return []
    title = "What the sites have disclosed to evaluate the model"
    if not evaluation.layout.noise:
        return [("figures", f"{title} {EXACT}")]
    both = worth + epsilon([Mechanism(evaluation.layout.noise, 1.0, 1)], budget.delta)  # the simple sum of two promises
    cost = _alone(evaluation.layout.noise, 1, budget)
    total = f"with it that is at most {both:.4g} at delta {2 * budget.delta:g}"
    return [("figures", f"{title} {cost}, after the epsilon above; {total}.")]


EXACT = "is exact, and outside of the budget."


def _alone(noise: float, releases: int, budget: PrivacySection) -> str:
    alone = epsilon([Mechanism(noise, 1.0, releases)], budget.delta)
    text = "one release" if releases == 1 else f"{releases} releases"
    return f"has noise of {noise:g} times what one record can add: {text}, epsilon {alone:.3g} alone"


def _seen(plan: FederationPlan) -> str:
    if not plan.tree.flat:
        return f"{'; '.join(describe_visibility(plan)).capitalize()}."
    if not plan.secure:
        return "It saw the update of every single site: there was no secure sum."
    return f"It saw sums alone, each over at least {plan.least} of {plan.invited} sites."


def _of_all(plan: FederationPlan) -> str:
    agreed = "  Statistics that the sites have agreed on." if plan.experiment.data.scale == "federated" else ""
    return f"Properties of all records together, which the model learned; which sites took part.{agreed}"
