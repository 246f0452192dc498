"""The steps of a pilot, at the coordinator and at a site: commands, and people's decisions between them.

    site         describe  plan  agree  [fit-plan]  train or fit  [judge]  hand-over
    coordinator            plan  agree              train or fit  [judge]  release

Both lists depend only on the experiment, so both ends know the next step.  A step consists of commands of the command
line and questions, and has no mechanism besides them.  In a command `new:NAME` is a folder to make, and `of:NAME` the
last folder made with that name.

`Walk` runs them: every answer and every command is a line of a signed log, decisions/audit.jsonl, which is both the
state from which the walk resumes and the record of each decision.  A command is typed in the pilot's folder exactly as
printed, so a reader can type it.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fedgossip.audit.log import AuditLog
from fedgossip.base import outside_files
from fedgossip.base.decoding import from_toml
from fedgossip.base.errors import ConfigError, FedgossipError, reason
from fedgossip.base.untrusted_text import line
from fedgossip.cli.people.invited import command_line
from fedgossip.cli.text import echo
from fedgossip.core.run_format import ENDPOINTS, EXPERIMENT, PEER_KEY, USE
from fedgossip.data.columns.table_schema import FEDERATED

if TYPE_CHECKING:
    from fedgossip.experiment import Experiment


Words = Sequence[str]
Answers = Mapping[str, str]

NEW, OF = "new:", "of:"
YES, MAYBE, WORDS, FILE, FOLDER = "yes", "maybe", "words", "file", "folder"
"""Kinds of an answer: a no to YES ends the pilot here, a no to MAYBE is noted; words; a path."""
NO = "no"
DAYS = "90"
"""Default validity of an approval in days."""


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
    """Commands before the questions: they show the subject of the decision, and send nothing."""
    asked: Sequence[Question] = ()
    typed: Callable[[Answers], Sequence[Words]] = lambda _: ()
    """Commands that follow from the answers."""


@dataclass(frozen=True)
class PilotFacts:
    """The properties of an experiment that determine its steps."""

    federated: bool
    """Whether the sites agree on statistics first."""
    fit: bool
    """Whether a model is fitted by sums instead of trained."""
    judged: bool
    """Whether the sites can evaluate the model together."""
    budget: bool
    """Whether each record has a privacy budget."""
    secure: bool


def facts_of(experiment: Experiment) -> PilotFacts:
    from fedgossip.sites.plans.fits import run_of

    run, federated = run_of(experiment), experiment.data.scale == FEDERATED
    judged = federated and (experiment.learns if run is None else run.model is not None)
    budget = experiment.budget is not None and experiment.budget.unit == "record"
    return PilotFacts(federated, run is not None, judged, budget, experiment.coordinator.secure.on)  # type: ignore[attr-defined]


APPROVE = "To approve it type the first 8 letters and digits of the line 'hash' above"


@dataclass(frozen=True)
class PilotSite:
    node: int
    waits: Words
    """Options of a command that waits for the others."""
    key: str
    ledger: str
    """Path of the site's ledger from the pilot's folder: it outlives a pilot."""


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
    asked = [by, *[total] * facts.budget, Question("approve", APPROVE, WORDS)]  # last: its command follows at once
    steps = [PilotStep("plan", "what is signed", [*read, *opened], asked, agreed_to)]
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
        steps.append(PilotStep("judge", "how well it answers", [[*words, *model] for words in read], [judged],
                          lambda given: [*signed(judged.name, *model)(given), evaluate]))  # fmt: skip
    text = f"May the folder {HANDED[facts.fit]} go to the coordinator, for the release?  (its log, its approval)"
    return [*steps, PilotStep("hand-over", "for the release", asked=[Question("hand-over", text, MAYBE)])]


HANDED = {False: "run", True: "fit-log"}
"""Folder of a site whose log and approval a release includes, by whether the model is a fit."""


def coordinator_steps(facts: PilotFacts, name: str, waits: Words) -> Sequence[PilotStep]:
    """Return the steps of the coordinator; `name`: of the release."""
    wait = ["--endpoints", ENDPOINTS, *waits]
    read = [["plan", "show", EXPERIMENT], ["plan", "hash", EXPERIMENT]]

    def same(plan: str = "") -> list[Question]:
        return [Question(f"same{plan}", "Have all sites read out these digits by telephone?")]

    steps = [PilotStep("plan", "what the sites sign", read, same())]
    if facts.federated:
        agree = ["data", "agree", EXPERIMENT, *wait, "--out", f"{NEW}agreed-log"]
        steps.append(PilotStep("agree", "statistics of all sites", typed=lambda _: [agree]))
    if facts.fit:
        fit = ["fit", EXPERIMENT, *wait, "--out", f"{NEW}fit-log", "--to", f"{NEW}run"]
        steps.append(PilotStep("fit", "the model of all sites", read, same("-fit"), lambda _: [fit]))
    else:
        lead = ["coordinator", EXPERIMENT, *wait, "--out", f"{NEW}run"]
        steps.append(PilotStep("train", "the model of all sites", typed=lambda _: [lead]))
    if facts.judged:
        evaluate = ["evaluate", f"{OF}run", EXPERIMENT, *wait, "--out", f"{NEW}judged-log"]
        shown = [[*words, "--model", f"{OF}run"] for words in read]
        steps.append(PilotStep("judge", "how well it answers", shown, same("-model"), lambda _: [evaluate]))
    use = Question("use", "File with the intended use of the model and its limits, written by a person", FILE, USE)
    handed = Question("handed", "Folder of the files that the sites handed over, one folder each (empty: none)", FOLDER)

    def released(given: Answers) -> list[Words]:
        folder, file = given["handed"], f"{name}-release.zip"
        handed = Path(folder).iterdir() if folder else ()  # a link in it could lead to another study's files
        sites = sorted(str(one) for one in handed if one.is_dir() and not one.is_symlink())
        logs = [word for one in (f"{OF}{HANDED[facts.fit]}", *sites) for word in ("--logs", one)]
        make = ["--use", given["use"], *logs, "--endpoints", ENDPOINTS, "--key", PEER_KEY, "--out", file]
        whole = [] if facts.fit else [["collect", EXPERIMENT, f"{OF}run", *sites, "--out", f"{NEW}whole"]]
        return [*whole, ["release", f"{OF}{'run' if facts.fit else 'whole'}", *make], ["release", "verify", file]]

    return [*steps, PilotStep("release", "one signed file for a board", asked=[use, handed], typed=released)]


ANSWERED, TYPED, DONE = "answered", "typed", "step_done"
"""Kinds of lines of the log."""
LETTERS = 1000
"""Maximum number of letters of an answer."""
WHOLE = (0, 9)
"""Exit codes of a command that reached its end; 9: with fewer sites than the experiment names."""
DECLINED = 4
"""Exit code of a pilot that this participant has declined."""


def read_answers(path: Path | None) -> Mapping[str, str]:
    """Return the answers in a file, NAME = "text" of each question; none without a file.  Raises ConfigError."""
    if path is None:
        return {}
    advice = 'Write a line for each question: records = "yes"'
    try:
        return msgspec.convert(from_toml(outside_files.read_text(outside_files.resolve(path))), dict[str, str])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: no answers: {line(reason(error))}", advice) from None


@dataclass(frozen=True)
class PilotAnswer:
    question: Question
    text: str
    source: str
    """"file" or "terminal"."""


def answer_to(question: Question, given: Mapping[str, str], base: Path) -> PilotAnswer:
    """Return the answer to a question, from the file of answers or a person; paths are relative to `base`.

    Raises ConfigError for an invalid answer, and if no person can answer.
    """
    source = "file" if question.name in given else "terminal"
    text = given[question.name] if source == "file" else _prompted(question)
    return PilotAnswer(question, _checked(question, text.strip(), base), source)


def _prompted(question: Question) -> str:
    if not sys.stdin.isatty():
        text = f"{question.name}: there is no terminal to answer at: {question.text}"
        raise ConfigError(text, f'Answer in a file, --answers FILE: {question.name} = "..."')
    if question.kind in (YES, MAYBE):
        return YES if click.confirm(question.text, default=False, err=True) else NO
    return str(click.prompt(question.text, default=question.default, err=True))


def _checked(question: Question, answer: str, base: Path) -> str:
    advice = f"Mend the answer {question.name}."
    if len(answer) > LETTERS or not answer.isprintable():
        raise ConfigError(f"{question.name}: an answer is one line of at most {LETTERS} letters", advice)
    if question.kind in (YES, MAYBE) and answer not in (YES, NO):
        raise ConfigError(f"{question.name} = {line(answer)!r}: neither {YES} nor {NO}", advice)
    if question.kind not in (FILE, FOLDER) or not answer:
        return answer
    path = base / Path(answer).expanduser()
    if not (path.is_dir() if question.kind == FOLDER else path.is_file()):
        raise ConfigError(f"{question.name}: {path}: no such {question.kind}", advice)
    return str(path.resolve())


def _is_unfinished(folder: Path) -> bool:
    """Return whether the fit in a folder is unfinished; a fit of fewer sites has the same exit code."""
    from fedgossip.sites.fits.fit_files import read_fit

    try:
        found = read_fit(folder)
    except ConfigError:
        return True
    return found is not None and bool(getattr(found[1], "problem", ""))


@dataclass
class Walk:
    """One participant's walk: `folder` holds all its files; relative paths in answers refer to the
    folder of its start.
    """

    folder: Path
    log: AuditLog
    answers: Mapping[str, str]

    def follow(self, steps: Sequence[PilotStep]) -> int:
        """Take the open steps; return the exit code.  Raises FedgossipError of a failed step."""
        for place, step in enumerate(steps, 1):
            if step.name in self._past(DONE):
                continue
            echo(f"\n{place} of {len(steps)}, {step.name}: {step.what}", err=True)
            if (code := self._take(step)) is not None:
                return code
            self.note(DONE, step=step.name)
        return 0

    def _past(self, kind: str) -> list[str]:
        return [str(facts["step"]) for one, facts in self._lines() if one == kind]

    def answered(self, question: str) -> str:
        """Return the last answer to a question; "" for none."""
        return self._read_given().get(question, "")

    def _lines(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        yield from self.log.past
        yield from self._new

    def __post_init__(self) -> None:
        self._new: list[tuple[str, Mapping[str, object]]] = []
        self._from = Path.cwd()

    def note(self, kind: str, **facts: str | int) -> None:
        """Write a line into the log."""
        self.log.append(kind, facts)
        self._new.append((kind, facts))

    def _take(self, step: PilotStep) -> int | None:
        """Take one step; return the exit code if the walk ends in it."""
        before = [
            int(str(facts["number"])) for kind, facts in self._lines() if kind == TYPED and facts["step"] == step.name
        ]
        given = self._read_given()
        if not before:  # else it is decided
            for words in step.shown:
                if (code := self._typed(self._placed(words))) not in WHOLE:
                    return code
            for question in step.asked:
                answer = answer_to(question, self.answers, self._from)
                self.note_answer(step.name, answer)
                given[question.name] = answer.text
                if question.kind == YES and answer.text == NO:
                    echo("Nothing more is done.  The same command asks again.", err=True)
                    return DECLINED
        for number, words in enumerate(step.typed(given)):
            if number in before:
                continue
            placed = self._placed(words)
            code = self._typed(placed)
            if code not in WHOLE:
                echo(f"To go on: {command_line()}", err=True)
                return code
            if code and placed[0] == "fit" and _is_unfinished(self.folder / placed[placed.index("--to") + 1]):
                echo("The fit is not at its end.  Mend the plan, with the other sites, and host a new pilot.", err=True)
                return code
            self.note(TYPED, step=step.name, number=number, command=shlex.join(["fedgossip", *placed]), code=code)
        return None

    def _read_given(self) -> dict[str, str]:
        return {str(facts["question"]): str(facts["answer"]) for kind, facts in self._lines() if kind == ANSWERED}

    def note_answer(self, step: str, answer: PilotAnswer) -> None:
        """Write an answer into the log."""
        question = answer.question
        facts = {"question": question.name, "answer": answer.text, "source": answer.source, "asked": question.text}
        self.note(ANSWERED, step=step, **facts)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _typed(self, placed: list[str]) -> int:
        from fedgossip.cli import cli

        echo(f"$ {shlex.join(['fedgossip', *placed])}", err=True)
        before, again = sys.argv, command_line()
        sys.argv = ["fedgossip", *placed]
        try:
            with contextlib.chdir(self.folder):
                return int(cli.main(placed, prog_name="fedgossip", standalone_mode=False) or 0)
        except FedgossipError as error:
            error.advice = f"{error.advice}  To go on: {again}".strip()
            raise
        except click.ClickException as error:
            raise ConfigError(error.format_message(), f"To go on: {again}") from None
        finally:
            sys.argv = before

    def _placed(self, words: Words) -> list[str]:
        """Return a command with its folders; an interrupted training resumes."""
        from fedgossip.runs.checkpoints import incarnation_of

        found = []
        for word in words:
            if word.startswith(OF):
                found.append(self.last(word.removeprefix(OF)))
            elif word.startswith(NEW):
                name = word.removeprefix(NEW)
                last = self.folder / self.last(name)
                if words[0] in ("client", "coordinator") and last.is_dir() and incarnation_of(last) >= 0:
                    found += [last.name, "--resume"]
                else:
                    found.append(self._free(name))
            else:
                found.append(word)
        return found

    def _names(self, name: str) -> Iterator[str]:
        yield name
        number = 2
        while True:
            yield f"{name}-{number}"
            number += 1

    def _free(self, name: str) -> str:
        return next(one for one in self._names(name) if not (self.folder / one).exists())

    def last(self, name: str) -> str:
        """Return the last folder made with this name: a failed command leaves its own."""
        last = name
        for one in self._names(name):
            if not (self.folder / one).exists():
                return last
            last = one
        raise AssertionError
