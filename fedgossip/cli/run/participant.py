"""One participant of a run over several machines: the common part of `peer`, `worker`, `server`, `client`, ...

Also declares the options --portable, of commands that take part in an experiment, and --run-code, of those that read
untrusted files.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.people.keys import key_option
from fedgossip.cli.text import echo, some
from fedgossip.core.run_format import ENDED, JOURNAL, MASKED, MODEL, MODEL_BEST, ROWS, SPENT, STEP

if TYPE_CHECKING:
    from fedgossip.cli.sites.approval import Gate
    from fedgossip.core.task import LocalTask
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.net.endpoints import Endpoint, Members
    from fedgossip.net.identity import Identity
    from fedgossip.net.relays.reachability import Ways
    from fedgossip.plans.approvals.approvals import ApprovalRequest, HowLong
    from fedgossip.plans.plan import Plan
    from fedgossip.plans.tasks import DataShares
    from fedgossip.runs.peer_files import PeerEnded
    from fedgossip.secure.session import Policy


Command = Callable[..., Any]


def web_options(command: Command) -> Command:
    """Add --proxy and --ca, for relays by the web, to a command that connects to relays."""

    @click.option(
        "--proxy",
        metavar="URL",
        help="To a relay by the web: a proxy, none, or a file with its URL.  [default: of the environment]",
    )
    @click.option(
        "--ca",
        metavar="FILE",
        help="To a relay by the web: certificates of more authorities, such as this network's own.",
    )
    @functools.wraps(command)
    def run_command(*given: Any, proxy: str | None, ca: str | None, **named: Any) -> Any:
        if proxy is not None or ca is not None:
            from fedgossip.net.relays.web_way import choose

            choose(proxy, ca)
        return command(*given, **named)

    return run_command


def options(command: Command) -> Command:
    """Add the options of every participant."""
    given: list[Callable[[Command], Command]] = [
        click.option("--endpoints", type=click.Path(path_type=Path), required=True,
                     help="File with all participants' ids, addresses and public keys."),
        key_option("One's own key pair, from `fedgossip keys new`."),
        click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True,
                     help="Replace a key of the file; at all participants."),
        portable_option,
        click.option("--seed", type=int, help="Replace the file's seed; at all participants."),
        click.option("--out", type=click.Path(path_type=Path), help="Folder to make.  [default: runs/NAME-WHO-TIME]"),
        click.option("--resume", is_flag=True, help="Resume from the last checkpoint in the folder --out."),
    ]  # fmt: skip
    for option in reversed(given):
        command = option(command)
    return web_options(command)


PATIENCE_HOURS = 72.0
"""Minimum wait for a missing participant over a folder: people carry it, or cron runs once a day."""

FOLDER = "folder:"

SUMMING = "fit", "data", "evaluate"
"""The commands that compute sums over all sites, by their first words: they resume without an option."""


def folder_options(command: Command) -> Command:
    """Add the options of a participant that may exchange messages through a folder.

    The command receives `carrier`, None for sockets.
    """
    given: list[Callable[[Command], Command]] = [
        click.option("--links", metavar="folder:DIR", default="",
                     help="Exchange messages as sealed files in DIR, a folder that all see.  [default: sockets]"),
        click.option("--poll", metavar="SECONDS", type=click.FloatRange(min=0.05, max=86400), default=2.0,
                     show_default=True, help="The longest time between two looks into DIR."),
        click.option("--once", is_flag=True, help="With a folder: do all possible work now, and end; then: step."),
        click.option("--patience", metavar="HOURS", type=click.FloatRange(min=0, min_open=True, max=100_000),
                     default=PATIENCE_HOURS, show_default=True,
                     help="With a folder: the least wait for a participant that is missing; the file's waits are "
                          "longer in proportion."),
    ]  # fmt: skip

    @functools.wraps(command)
    def run_command(*words: Any, links: str, poll: float, once: bool, patience: float, **named: Any) -> Any:
        from fedgossip.base.errors import ConfigError

        if "://" in links:  # it may hold a password
            raise ConfigError(
                "--links: a URL, and the folder is one of this machine", "Mount it: --links folder:/mnt/run"
            )
        if links and not (links.startswith(FOLDER) and links != FOLDER):
            raise ConfigError(f"--links {links}: neither left out nor folder:DIR", "Write --links folder:/mnt/run")
        if once and not links:
            raise ConfigError("--once is for a run over a folder", "Add --links folder:DIR.")
        return command(*words, carrier=_carrier(links, poll, once, patience) if links else None, **named)

    wrapped: Command = run_command
    for option in reversed(given):
        wrapped = option(wrapped)
    return wrapped


def _carrier(links: str, poll: float, once: bool, patience: float) -> FolderCarrier:
    from fedgossip.drivers.participant import FolderCarrier  # imported late: it imports the plans of every kind of run

    return FolderCarrier(Path(links.removeprefix(FOLDER)), poll, once, patience * 3600)


def listens(plan: Plan, carrier: FolderCarrier | None) -> Callable[[int], bool]:
    """Return the test whether a participant needs an address in the endpoints; over a folder none does."""
    return plan.roles.listens if carrier is None else lambda _: False


@dataclass(frozen=True)
class ReadyParticipant:
    """A participant that may begin: its folder, its key, its own address, and its site's approval."""

    folder: Path
    identity: Identity
    bind: str
    gate: Gate | None


@dataclass(frozen=True)
class Participant:
    """One participant, as given on the command line."""

    experiment: Path
    plan: Plan
    node: int
    title: str
    """Its name in messages, such as "peer 3"."""
    key: Path
    endpoints: Path
    known: dict[int, Endpoint]
    out: Path | None
    resume: bool
    bind: str | None = None
    members: Members | None = None
    join: bool = False
    policy: Policy | None = None
    learning: tuple[LocalTask, DataShares] | None = None
    """The task, if already created."""
    prepare: Callable[[Path], None] | None = None
    """Called with its folder before the run begins."""
    gate: Gate | None = None
    """Its site's approval of the plan, if obtained already; every other learner requests it in `take_part`."""
    limits: HowLong | None = None
    """Validity of approvals by the site's policy; None if no policy requires one."""
    request: Callable[[], ApprovalRequest] | None = None
    """The plan that its site must have approved; None: the plan of this run."""
    data: str = ""
    """The source of its own data, if the experiment names none."""
    spent: Path | None = None
    """File of its spent privacy budget; None: next to the key."""
    ways: Ways | None = None
    carrier: FolderCarrier | None = None
    trace_bytes: int = 0
    again: str = ""
    """The command that resumes after an interruption; "" for this one with --out and --resume."""
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    whole: Callable[[Path], None] | None = None
    """Called with the folder of a coordinator or server at the end; None: print the command that combines the run."""
    concluded: Callable[[Path, PeerEnded], None] | None = None
    """Called with the folder at the end of a run without a model; None: print the facts about the model."""

    def take_part(self, waiting: str) -> int:
        """Run to the end; return the exit code.  Raises FedgossipError."""
        from fedgossip.cli.run.progress import Progress

        ready, e = self.get_ready(), self.plan.experiment
        self._announce(ready.bind, waiting)
        with Progress(self.title, e.rounds, self.plan.roles, own=self.node, score=e.score) as progress:
            ended = self.run(ready, watch=progress)
        return self._print_end(ready.folder, ended)

    def get_ready(self) -> ReadyParticipant:
        """Check the key and the approval, and make the folder; nothing is sent.  Raises FedgossipError."""
        from fedgossip.runs.peer_files import empty_folder
        from fedgossip.runs.run_directory import new_path

        identity, gate = self.load_identity(), self.gate or self._gate()
        who = self.title.replace(" ", "")
        folder = self._find_left() if self.resume else empty_folder(self.out or new_path(self.plan, who, Path("runs")))
        if self.carrier:
            write_step(folder, self.again or _line(folder.resolve()))
        if self.prepare:
            self.prepare(folder)
        if gate:
            gate.keep(folder)
        return ReadyParticipant(folder, identity, self.bind or self.known[self.node].address, gate)

    def _announce(self, bind: str, waiting: str) -> None:
        for line in self.plan.banner:
            echo(line, err=True)
        if not (self.carrier or self.ways):  # an invite's are shown before
            _print_open_relays([one.address for one in self.known.values()])
        where = f"{self.title} at {bind}" if listens(self.plan, self.carrier)(self.node) else self.title
        if self.carrier:
            where, waiting = f"{self.title} by the folder {self.carrier.root}", "looking for messages"
        echo(f"{where}: {waiting}", err=True)

    def run(self, ready: ReadyParticipant, **driven: Any) -> PeerEnded:
        """Run to the end; `driven`: further arguments of `run_peer`.  Raises FedgossipError."""
        from fedgossip.drivers.peer import run_peer
        from fedgossip.net.relays.reachability import DIRECT

        return run_peer(
            self.plan,
            self.node,
            ready.folder,
            identity=ready.identity,
            bind=ready.bind,
            endpoints=self.known,
            resume=self.resume,
            members=self.members,
            join=self.join,
            policy=self.policy,
            learning=self.learning,
            trace_bytes=self.trace_bytes,
            masked=self.key.with_name(f"{self.key.name}.{MASKED}"),
            spent=self.spent or self.key.with_name(f"{self.key.name}.{SPENT}"),
            data=self.data,
            ways=self.ways or DIRECT,
            first_work=ready.gate.open if ready.gate else None,
            carrier=self.carrier,
            **driven,
        )

    def _print_end(self, folder: Path, ended: PeerEnded) -> int:
        from fedgossip.base.errors import TooFewPeersError
        from fedgossip.drivers.peer import WAITING

        if ended.status == WAITING:
            echo(f"waiting for the others, after {some(ended.rounds, 'round')}", err=True)
            echo(f"To go on: fedgossip step {quoted(folder)}", err=True)
            return 0
        early = ended.counts.get("ended_early")
        word = f"ended by the {self._leader}" if early else ended.status
        echo(f"{word} after {some(ended.rounds, 'round')}; everything is in {folder}", err=True)
        if self.concluded:
            self.concluded(folder, ended)
        elif ended.status == "interrupted":
            echo(f"To go on: {self.again or _line(folder)}", err=True)
        else:
            self.what_next(folder)
            self._print_closing(folder, ended)
        if self.carrier and ended.exit_code == 0 and not is_over(folder):
            echo(
                "Its last messages wait for the others; its journal, with secrets, is kept until they are fetched,",
                err=True,
            )
            echo(f"and removed by: fedgossip step {quoted(folder)}", err=True)
        if early:
            echo(f"When the {self._leader} goes on: {_line(folder)}", err=True)
            return TooFewPeersError.exit_code
        return ended.exit_code

    def _gate(self) -> Gate | None:
        """Request this site's approval, if its messages could contain records."""
        from fedgossip.cli.sites.approval import approved

        if self.node >= self.plan.learners:
            return None
        return approved(self.request or self._request, self.key, self.limits, self.out if self.resume else None)

    def _request(self) -> ApprovalRequest:
        from fedgossip.base.errors import ConfigError
        from fedgossip.cli.sites.approval import OTHER_KEY, approvable
        from fedgossip.plans import compose
        from fedgossip.plans.approvals.approvals import request_of
        from fedgossip.plans.approvals.plan_statement import statement_of
        from fedgossip.plans.federated.federation import FederationPlan

        plan = approvable(self.plan)
        if not isinstance(plan, FederationPlan):
            text = "an approval is asked for, and peers of a graph are approved by an invite"
            raise ConfigError(text, f"Join by one: fedgossip join.  {OTHER_KEY}")
        task = self.learning[0] if self.learning else compose.task_of_dry_run(plan.experiment, plan.learners, [])[0]
        return request_of(plan, statement_of(plan, task), self.node, self.known, self.data)

    @property
    def _leader(self) -> str:
        leader = self.plan.roles.leader
        return "others" if leader is None else self.plan.roles.label(leader)

    def load_identity(self) -> Identity:
        """Return the key pair.  Raises ConfigError for another one than the endpoints name."""
        from fedgossip.base.errors import ConfigError
        from fedgossip.net.identity import Identity

        identity = Identity.load(self.key)
        if self.known[self.node].key != identity.public:
            advice = f"Put `fedgossip keys show {quoted(self.key)}` there, or name the right file with --key."
            raise ConfigError(f"{self.key} is not the key that {self.endpoints} gives {self.title}", advice)
        return identity

    def what_next(self, folder: Path) -> None:
        """Print the command that combines the run: the experiment with the overrides from here."""
        from fedgossip.data.custom import ALLOW

        words = ["fedgossip", "collect", str(self.experiment)]
        words += [ALLOW] if self.plan.experiment.reaches else []
        roles = self.plan.roles
        if roles.leader is None:
            everybody = f"all-{roles.one}s"
            own = f"this one as {everybody}/{self.title.replace(' ', '')}"
            echo(f"For a report of all, copy all {roles.one}s' folders to one machine, {own}; there:", err=True)
            words.append(everybody)
        elif self.node == roles.leader and self.whole:
            self.whole(folder)
            return
        elif self.node == roles.leader:
            echo("For the report of the whole run:", err=True)
            words.append(str(folder))
        else:
            return
        words += [word for override in self.overrides for word in ("--set", override)]
        words += [] if self.seed is None else ["--seed", str(self.seed)]
        echo(shlex.join(words), err=True)

    def _print_closing(self, folder: Path, ended: PeerEnded) -> None:
        """Print failures and their causes, the model's quality, and its path."""
        from fedgossip.core.records import PeerRow, read_rows
        from fedgossip.runs.summary import refusals

        record = folder / ROWS
        rows = read_rows(record) if record.exists() else []
        if ended.message:
            for cause in refusals(rows):
                times = "once" if cause["times"] == 1 else f"{cause['times']} times"
                echo(f"Refused {times}: {cause['text']}  {cause['advice']}".rstrip(), err=True)
            echo(f"{'MISSING' if ended.status == 'finished' else ended.status.upper()}: {ended.message}", err=True)
        roles = self.plan.roles
        measured = [(row.round, row.score) for row in rows if isinstance(row, PeerRow) and row.score is not None]
        own = f" on this {roles.one}'s own examples" if roles.leader not in (None, self.node) else ""
        for round, value in measured[-1:]:
            score = self.plan.experiment.score
            echo(f"Test {score.word} {value:.4f}{own}, in round {round}{score.note}", err=True)
        known = (folder / MODEL).exists()
        if (folder / MODEL_BEST).exists():
            echo(f"The model of the best round: {folder / MODEL_BEST}", err=True)
        echo(f"The model: {folder / MODEL}" if known else "There is no model: nothing was trained.", err=True)

    def resume_line(self) -> str:
        """Return the typed command, with --resume and --out of the folder that the clients' folders are in."""
        assert self.out is not None
        return _line(self.out.parent)

    def _find_left(self) -> Path:
        from fedgossip.base.errors import ConfigError, ResumeError
        from fedgossip.runs.checkpoints import incarnation_of

        if self.out is None:
            raise ConfigError("--resume needs the folder of the run", "Name it with --out.")
        if not self.out.is_dir():
            raise ResumeError(f"{self.out}: no such folder", "Leave --resume out to start there.")
        if incarnation_of(self.out) < 0:
            raise ResumeError(f"{self.out}: no run has begun here", "Leave --resume out to start.")
        return self.out


def _print_open_relays(addresses: Sequence[str]) -> None:
    from fedgossip.net.endpoints import addresses_of
    from fedgossip.net.relays.web_way import without_tls

    for one in dict.fromkeys(one for text in addresses for one in addresses_of(text)):
        if note := without_tls(one):
            echo(note, err=True)


def is_over(folder: Path) -> bool:
    """Whether a run by folder has ended here, and the others have fetched all files from this participant."""
    return (folder / ENDED).exists() and not (folder / JOURNAL).exists()


def write_step(folder: Path, command: str) -> None:
    """Write the resuming command, and its folder, for `fedgossip step`, with this user's mark.

    Another person's folder must not choose a command, such as `join --yes` or an experiment that names code.
    """
    from fedgossip.base.owner_files import mark_of
    from fedgossip.runs.run_directory import write_whole

    words = shlex.split(command)[1:]
    if words[0] in SUMMING:  # these commands have no such option
        words = [word for word in words if word != "--resume"]
    content: dict[str, Any] = {"in": os.fspath(Path.cwd()), "words": words}
    if not (folder / STEP).exists():  # written once: `step` runs with other arguments
        content["mark"] = mark_of(step_content(words, str(content["in"])))
        write_whole(folder / STEP, json.dumps(content, indent=1, ensure_ascii=False).encode())


def step_content(words: Sequence[str], place: str) -> bytes:
    """Return the content that a command's mark covers: the command and its folder."""
    return json.dumps([list(words), place]).encode()


def _line(folder: Path) -> str:
    words = [word for word in sys.argv[1:] if word != "--resume" and not word.startswith("--out=")]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(["fedgossip", *words, "--out", str(folder), "--resume"])


run_code_option = click.option(
    "--run-code", is_flag=True, help="Allow the files to name code to run, and places to write to."
)
"""Without it no code is imported that a run directory, a trace or a model's folder names, and no record is sent to a
place named there.
"""

trace_limit_option = click.option(
    "--trace-limit",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Maximum size of a peer's trace; the run continues without it.",
)


def portable_option(command: Command) -> Command:
    """Add `--portable` to a command that has `--set`, as `overrides`."""

    @click.option("--portable", is_flag=True, help="The same bits on unlike processors: --set train.portable=true.")
    @functools.wraps(command)
    def run_command(*given: Any, portable: bool, overrides: tuple[str, ...], **named: Any) -> Any:
        more = ("train.portable=true",) if portable else ()
        if portable:
            from fedgossip.experiment import check_agree

            check_agree(overrides, {"train.portable": "true"})
        return command(*given, overrides=(*overrides, *more), **named)

    return run_command
