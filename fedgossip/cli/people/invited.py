"""The common end of `host` and `join`: from the files of an invite's seat to its participant."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedgossip.base import signals
from fedgossip.cli.people.keys import POLICY
from fedgossip.cli.run.participant import Participant, is_over, listens
from fedgossip.cli.text import echo
from fedgossip.core.run_format import ENDPOINTS, EXPERIMENT, HOSTED, ROWS

if TYPE_CHECKING:
    from fedgossip.cli.run.progress import Progress
    from fedgossip.cli.sites.approval import Gate
    from fedgossip.core.records import Row
    from fedgossip.drivers.participant import FolderCarrier
    from fedgossip.drivers.proposals import Learning
    from fedgossip.experiment import Experiment
    from fedgossip.net.endpoints import Endpoint, Members
    from fedgossip.net.relays.reachability import Ways
    from fedgossip.plans.approvals.approvals import HowLong
    from fedgossip.plans.plan import Plan
    from fedgossip.secure.session import Policy

Command = Callable[..., Any]

STOP_SECONDS = 30.0
"""Seconds for an interrupted script to end before it is killed."""

LOOK_SECONDS = 0.5
"""Seconds between two checks of the record of a script's participant."""


@dataclass(frozen=True)
class InvitedSeat:
    """`folder` holds the endpoints, the experiment, and the run; `key` may be elsewhere."""

    plan: Plan
    node: int
    folder: Path
    key: Path
    ways: Ways
    port: int | None = None
    """Its listening address; None without one."""
    late: bool = False
    """Whether the run has begun without it."""
    learning: Learning | None = None
    data: str = ""
    policy: Path | None = None
    """Its policy as a client; None for the one in the folder."""
    spent: Path | None = None
    script: tuple[str, ...] = ()
    """The script of the user's training loop, and its arguments, in a run of such loops."""
    approvals: HowLong | None = None
    """Validity of approvals, if a client requires them: written into the new policy."""
    prepare: Callable[[Path], None] | None = None
    """Called with the run's folder before the run begins, to write lines into it."""
    gate: Gate | None = None
    """Its site's approval of the plan, if required."""
    whole: Callable[[Path], None] | None = None
    """Called with the folder of a coordinator or server at the end."""
    carrier: FolderCarrier | None = None
    """The shared folder, in place of sockets."""
    command: str = ""
    """The command that resumes, if it differs from the typed one."""

    @property
    def out(self) -> Path:
        return self.folder / HOSTED

    @property
    def again(self) -> bool:
        """Whether it has begun in an earlier process."""
        from fedgossip.runs.checkpoints import incarnation_of

        return self.out.is_dir() and incarnation_of(self.out) >= 0

    def take_part(self) -> int:
        """Run to the end; return the exit code.  Raises FedgossipError."""
        from fedgossip.drivers.members import is_open
        from fedgossip.net.endpoints import load_endpoints, load_members

        keep_experiment(self.plan, self.folder)
        if self.script:
            return self._run_script()
        endpoints = self.folder / ENDPOINTS
        members = load_members(endpoints, self.node) if is_open(self.plan) and not self.carrier else None
        called = listens(self.plan, self.carrier)
        known = dict(members.endpoints if members else load_endpoints(endpoints, self.plan.n, called))
        learning, policy = self._agreed(known)
        seat = self._participant(known, members)
        return replace(seat, policy=policy, learning=learning).take_part(self._waiting())

    def _participant(self, known: dict[int, Endpoint], members: Members | None = None) -> Participant:
        return Participant(
            self.folder / EXPERIMENT, self.plan, self.node, self.plan.roles.label(self.node), self.key,
            self.folder / ENDPOINTS, known, self.out, self.again, f"tcp://*:{self.port}" if self.port else None,
            members, self.late, data=self.data, spent=self.spent, ways=self.ways, carrier=self.carrier,
            again=self.command or command_line(), prepare=self.prepare, gate=self.gate, whole=self.whole,
        )  # fmt: skip

    def _waiting(self) -> str:
        roles = self.plan.roles
        if self.node == roles.leader:
            return f"waiting for its {roles.one}s"
        return "waiting for the others" if roles.leader is None else f"calling the {roles.label(roles.leader)}"

    def is_over(self, code: int) -> bool:
        """Whether the run has ended here, by the return value of `take_part`; a script may be corrected and resumed."""
        if self.carrier:
            return is_over(self.out)
        return code == 0 if self.script else code != 130

    def _run_script(self) -> int:
        """Run the script, which calls fedgossip.join; return its exit code."""
        from fedgossip.drivers.loops.seats import InvitedFile, keep_seat

        paths = (str((self.folder / name).resolve()) for name in (EXPERIMENT, HOSTED, ENDPOINTS))
        experiment, out, endpoints = paths
        bind = f"tcp://*:{self.port}" if self.port else ""
        relayed = self.ways.through is not None
        seat_file = InvitedFile(experiment, self.node, out, endpoints, str(self.key.resolve()), bind, relayed)
        environment = keep_seat(self.folder, seat_file, portable=self.plan.experiment.train.portable)
        with self._progress() as progress:
            rows = NewRows(self.out / ROWS, progress)
            code = ended_script([sys.executable, "-u", *self.script], environment, rows.pass_on)
            rows.pass_on()
        if code == 0:
            echo(f"The script is over; everything is in {self.out}", err=True)
            self._participant({}).what_next(self.out)
        return 130 if code in (-2, 130) else abs(code)

    def _progress(self) -> Progress:
        """Return progress in plain lines: the script writes to the same terminal."""
        from fedgossip.cli.run.progress import Progress

        e, roles = self.plan.experiment, self.plan.roles
        return Progress(roles.label(self.node), e.rounds, roles, own=self.node, score=e.score, moving=False)

    def _agreed(self, known: dict[int, Endpoint]) -> tuple[Learning | None, Policy | None]:
        """Check a client against its first agreement, recorded in the file."""
        from fedgossip.plans import compose
        from fedgossip.plans.federated import policy
        from fedgossip.plans.federated.federation import FederationPlan

        if not isinstance(self.plan, FederationPlan) or self.node >= self.plan.learners:
            return self.learning, None
        path = self.policy or self.folder / POLICY
        if not self.plan.secure:
            return self.learning, policy.demands(path, self.plan, self.node, known, None)
        held = self.plan.experiment, self.plan.learners, [self.node]
        learning = self.learning or compose.task_of(*held, os.urandom)
        if not path.exists():
            policy.write(path, policy.policy_of(self.plan, self.node, known, learning[0], self.approvals))
        return learning, policy.demands(path, self.plan, self.node, known, learning[0])


class NewRows:
    """Passes on new rows of a participant in another process, from now on."""

    def __init__(self, record: Path, watch: Callable[[Row], None]) -> None:
        import msgspec

        from fedgossip.core.records import Row
        from fedgossip.report.watch.follow import Tail

        self._tail, self._watch, self._decoder = Tail(record), watch, msgspec.json.Decoder(Row)
        self._tail.offset = record.stat().st_size if record.exists() else 0

    def pass_on(self) -> None:
        """Pass on the new rows; a line that is no row is skipped."""
        import msgspec

        from fedgossip.base.decoding import UnreadableError, from_json

        while lines := self._tail.lines():
            for line in lines:
                with contextlib.suppress(UnreadableError, msgspec.ValidationError):
                    self._watch(from_json(self._decoder, line))


def ended_script(
    words: Sequence[str], environment: Mapping[str, str], beside: Callable[[], None] = lambda: None
) -> int:
    """Start a script, wait for its end and return its exit code; call `beside` every LOOK_SECONDS until then.

    A signal to end interrupts the script.  The script is in a separate process group, so that Ctrl-C reaches it once.
    If it has not ended STOP_SECONDS later, or at a second Ctrl-C, it is killed.
    """
    with signals.interruptible_children():
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, process_group=0)
    watch = signals.GroupWatch()
    watch.add(process.pid)
    try:
        while process.poll() is None:
            beside()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        return int(process.returncode)
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            signals.signal_group(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            return process.wait(STOP_SECONDS)
        return -signal.SIGINT
    finally:
        if process.poll() is None:
            signals.signal_group(process.pid, signals.KILL)
            process.wait()
        watch.drop(process.pid)
        watch.close()


def keep_experiment(plan: Plan, folder: Path) -> Path:
    """Write the experiment with its overrides to the place where commands find it; return the file."""
    import tomli_w

    from fedgossip.runs.run_directory import write_whole

    write_whole(folder / EXPERIMENT, tomli_w.dumps(plan.experiment.to_dict()).encode())
    return folder / EXPERIMENT


def invite_text(invite: tuple[str, ...]) -> str:
    """Return the text of an invite, read from a file or standard input if these are given.  Raises ConfigError."""
    from fedgossip.base import outside_files
    from fedgossip.base.errors import ConfigError, reason
    from fedgossip.net.invites.invitation import LETTERS_MAX, PREFIX

    text = "".join(invite)
    if text == "-":
        return str(click.prompt("Invite", err=True)) if sys.stdin.isatty() else sys.stdin.read(LETTERS_MAX)
    path = Path(invite[0])
    if len(invite) > 1 or text[:2].lower() == PREFIX[:2] or not path.is_file():
        return text
    try:
        return outside_files.read_text(outside_files.resolve(path), LETTERS_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: no invite can be read from it: {reason(error)}", "Write its text into a file."
        ) from None


def script_of(experiment: Experiment, words: str) -> tuple[str, ...]:
    """Return the given script, and its arguments.  Raises ConfigError if the experiment does not fit it."""
    from fedgossip.base.errors import ConfigError

    script = tuple(shlex.split(words))
    if bool(script) != experiment.loops:
        if script:
            raise ConfigError("this run is of no loops: it trains by itself", "Leave --script out.")
        advice = "Name yours: --script train.py; it takes part by fedgossip.join(model, optimizer)."
        raise ConfigError("each participant has a training loop of its own in this run", advice)
    check_script(words)
    return script


def check_script(words: str) -> None:
    """Raise ConfigError where the named script, if any, is none, or takes part in no run."""
    if script := shlex.split(words):
        from fedgossip.drivers.loops.scripts import Command

        Command(Path(script[0])).checked().check_joins()


def command_line() -> str:
    """Return the command as given, which resumes after an interruption."""
    return shlex.join(["fedgossip", *sys.argv[1:]])
