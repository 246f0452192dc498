"""The steps of a pilot, at the coordinator and at a site: commands, and what people decide between them.

    site         describe  plan  agree  [fit-plan]  train or fit  [judge]  hand-over
    coordinator            plan  agree              train or fit  [judge]  release

Both lists follow from the experiment alone, so that both ends know which step is next.  A step is commands of the
command line and questions: no step has a mechanism of its own.  In a command `new:NAME` is a folder to make, and
`of:NAME` the folder of that name made last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.core.run_format import ENDPOINTS, EXPERIMENT, PEER_KEY, USE
from fedgossip.data.columns.table_schema import FEDERATED

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment

Words = Sequence[str]
Answers = Mapping[str, str]

NEW, OF = "new:", "of:"
YES, MAYBE, WORDS, PATH = "yes", "maybe", "words", "path"
"""Kinds of an answer: a no to YES ends the pilot here, a no to MAYBE is noted; WORDS; a file or a folder."""
NO = "no"
DAYS = "90"
"""Days for which an approval holds."""


@dataclass(frozen=True)
class Question:
    """A decision of people; `name`: its key in a file of answers."""

    name: str
    text: str
    kind: str = YES
    default: str = ""


@dataclass(frozen=True)
class PilotStep:
    name: str
    what: str
    shown: Sequence[Words] = ()
    """Commands before the questions: they show what is decided, and send nothing."""
    asked: Sequence[Question] = ()
    typed: Callable[[Answers], Sequence[Words]] = lambda _: ()
    """Commands that follow from the answers."""


@dataclass(frozen=True)
class PilotFacts:
    """The properties of an experiment by which its steps differ."""

    federated: bool
    """The sites agree on statistics first."""
    fit: bool
    """A model is fitted by sums instead of trained."""
    judged: bool
    """The sites can judge the model together."""
    budget: bool
    """Each record has a budget of privacy."""
    secure: bool


def facts_of(experiment: Experiment) -> PilotFacts:
    from fedgossip.sites.plans.fits import run_of

    run, federated = run_of(experiment), experiment.data.scale == FEDERATED
    judged = federated and (experiment.learns if run is None else run.model is not None)
    budget = experiment.budget is not None and experiment.budget.unit == "record"
    return PilotFacts(federated, run is not None, judged, budget, experiment.coordinator.secure.on)  # type: ignore[attr-defined]


APPROVE = "To approve it type the first 8 digits of its hash"


@dataclass(frozen=True)
class PilotSite:
    node: int
    waits: Words
    """Options of a command that waits for the others."""
    key: str
    ledger: str
    """Paths from the pilot's folder: the ledger of a site outlives a pilot."""


def site_steps(facts: PilotFacts, site: PilotSite) -> Sequence[PilotStep]:
    """Return the steps of a site."""
    who = ["--id", str(site.node), "--endpoints", ENDPOINTS, "--key", site.key]
    spends = [*who, "--ledger", site.ledger]
    wait = [*spends, *site.waits]
    read = [["plan", "show", EXPERIMENT], ["plan", "hash", EXPERIMENT]]

    def signed(question: str, *model: str) -> Callable[[Answers], list[Words]]:
        def words(given: Answers) -> list[Words]:
            by = ["--by", given["by"]] if given.get("by") else []
            approve = ["plan", "approve", EXPERIMENT, *model, *who, "--plan", given[question], "--days", DAYS, *by]
            return [approve]

        return words

    def agreed_to(given: Answers) -> list[Words]:
        words = signed("approve")(given)
        if facts.secure and not facts.fit:
            words.append(
                ["privacy", "policy", EXPERIMENT, "--endpoints", ENDPOINTS, "--approval-days", DAYS, "--short"]
            )
        if given.get("total"):
            words.append(["privacy", "ledger", *spends[4:], "--max-epsilon-total", given["total"]])
        return words

    by = Question("by", "Name of the approving person, for the release (empty: none)", WORDS)
    total = Question("total", "Most epsilon that these records may spend in all runs together (empty: no limit)", WORDS)
    opened = [["data", "agree", EXPERIMENT, *spends, "--dry-run"]] if facts.federated else []
    steps = [
        PilotStep("plan", "what is signed", [*read, *opened], [Question("approve", APPROVE, WORDS), by]
             + [total] * facts.budget, agreed_to)
    ]  # fmt: skip
    if facts.federated:
        own = Question("records", "Are these the records for this study, and may they be used for it?")
        steps.insert(
            0, PilotStep("describe", "the site's own table", [["data", "describe", EXPERIMENT, *who[:2]]], [own])
        )
        agree = ["data", "agree", EXPERIMENT, *wait, "--out", f"{NEW}agreed-log"]
        steps.append(PilotStep("agree", "statistics of all sites", typed=lambda _: [agree]))
    if facts.fit:
        again = Question("approve-fit", APPROVE, WORDS)
        steps.append(PilotStep("fit-plan", "what is signed: the fit", read, [again], signed(again.name)))
        fit = ["fit", EXPERIMENT, *wait, "--out", f"{NEW}fit-log", "--to", f"{NEW}run"]
        steps.append(PilotStep("fit", "the model of all sites", typed=lambda _: [fit]))
    else:
        client = ["client", EXPERIMENT, *wait, "--out", f"{NEW}run"]
        steps.append(PilotStep("train", "the model of all sites", typed=lambda _: [client]))
    if facts.judged:
        model = ("--model", f"{OF}run")
        judged = Question("approve-model", APPROVE, WORDS)
        evaluate = ["evaluate", f"{OF}run", EXPERIMENT, *wait, "--out", f"{NEW}judged-log"]
        steps.append(PilotStep("judge", "how well it answers", [["plan", "show", EXPERIMENT, *model]], [judged],
                          lambda given: [*signed(judged.name, *model)(given), evaluate]))  # fmt: skip
    text = f"May the folder {HANDED[facts.fit]} go to the coordinator, for the release?  (its log, its approval)"
    return [*steps, PilotStep("hand-over", "for the release", asked=[Question("hand-over", text, MAYBE)])]


HANDED = {False: "run", True: "fit-log"}
"""By whether the model is a fit: the folder of a site of which a release has the log and the approval."""


def coordinator_steps(facts: PilotFacts, name: str, waits: Words) -> Sequence[PilotStep]:
    """Return the steps of the coordinator; `name`: of the release."""
    wait = ["--endpoints", ENDPOINTS, *waits]
    read = [["plan", "show", EXPERIMENT], ["plan", "hash", EXPERIMENT]]
    same = Question("same", "Have all sites read out these digits by telephone?")
    steps = [PilotStep("plan", "what the sites sign", read, [same])]
    if facts.federated:
        agree = ["data", "agree", EXPERIMENT, *wait, "--out", f"{NEW}agreed-log"]
        steps.append(PilotStep("agree", "statistics of all sites", typed=lambda _: [agree]))
    if facts.fit:
        fit = ["fit", EXPERIMENT, *wait, "--out", f"{NEW}fit-log", "--to", f"{NEW}run"]
        steps.append(PilotStep("fit", "the model of all sites", read, typed=lambda _: [fit]))
    else:
        lead = ["coordinator", EXPERIMENT, *wait, "--out", f"{NEW}run"]
        steps.append(PilotStep("train", "the model of all sites", typed=lambda _: [lead]))
    if facts.judged:
        evaluate = ["evaluate", f"{OF}run", EXPERIMENT, *wait, "--out", f"{NEW}judged-log"]
        shown = [["plan", "show", EXPERIMENT, "--model", f"{OF}run"]]
        steps.append(PilotStep("judge", "how well it answers", shown, typed=lambda _: [evaluate]))
    use = Question("use", "File in which a person has written what the model is for, and what not", PATH, USE)
    handed = Question("handed", "Folder of what the sites handed over, one folder each (empty: none)", PATH)

    def released(given: Answers) -> list[Words]:
        folder, file = given["handed"], f"{name}-release.zip"
        sites = sorted(str(one) for one in Path(folder).iterdir() if one.is_dir()) if folder else []
        logs = [word for one in (f"{OF}{HANDED[facts.fit]}", *sites) for word in ("--logs", one)]
        make = ["--use", given["use"], *logs, "--endpoints", ENDPOINTS, "--key", PEER_KEY, "--out", file]
        whole = [] if facts.fit else [["collect", EXPERIMENT, f"{OF}run", *sites, "--out", f"{NEW}whole"]]
        return [*whole, ["release", f"{OF}{'run' if facts.fit else 'whole'}", *make], ["release", "verify", file]]

    return [*steps, PilotStep("release", "one signed file for a board", asked=[use, handed], typed=released)]
