"""A site's approvals of plans: a signed, chained log next to its key, which its client checks before it takes part.

    peer.key.approvals      lines of an audit log (`audit.log`): approved, revoked, used, agreed, refused
    peer.key.plans/HASH.json    each approved plan, to compare the next with

Rounds are counted before the first computation on records, so a crash counts at most one run too many.  A run that
differs from the approved plan is refused, and the refusal is logged.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedgossip.audit.entries import Fact, LogEntry, Owner, entries, is_signed, lines, moment, stamp
from fedgossip.audit.log import AuditLog, read
from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import ConfigError, NotWrittenError
from fedgossip.base.version import __version__
from fedgossip.core.run_format import APPROVAL, APPROVAL_RUN, APPROVALS, ENDPOINTS, PLANS
from fedgossip.net.identity import Identity
from fedgossip.plans.approvals import plan_statement
from fedgossip.plans.approvals.approvals import (
    AGREE,
    APPROVED,
    JOINING,
    Approval,
    ApprovalRequest,
    HowLong,
    approval_of,
    day_of,
)
from fedgossip.plans.approvals.plan_statement import HASH_SHOWN, PlanStatement, differences

REVOKED, USED, AGREED, REFUSED = "revoked", "used", "agreed", "refused"
DAY_MS = 86_400_000
NAMED_MOST = 3
"""Maximum number of keys that a refusal names."""
LOG_OF = "approvals of plans"
"""Placeholder for the run's name in other logs."""
ANY = HowLong()


class SiteApprovals:
    """The approvals of one key; `clock`: ns since 1970; times before the log's last line are not trusted.

    Raises ConfigError for the log of another key and for a changed log, and NotWrittenError.
    """

    def __init__(self, key: Path, identity: Identity, clock: Callable[[], int]) -> None:
        self.key, self._identity, self._clock = key, identity, clock
        self.path, self.plans = key.with_name(f"{key.name}.{APPROVALS}"), key.with_name(f"{key.name}.{PLANS}")
        self._torn = False
        self._entries = self._read()

    @property
    def exists(self) -> bool:
        return bool(self._entries)

    @property
    def verify(self) -> str:
        """The site's signing key, in hex."""
        return self._identity.verify

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970; never before the last line, so that setting back the clock extends no approval."""
        last = moment(self._entries[-1].time) if self._entries else 0
        return max(self._clock() // 1_000_000, last)

    def _read(self) -> Sequence[LogEntry]:
        if not self.path.exists() or not self.path.stat().st_size:
            return ()
        lives = read(self.path)
        if lives.owner.key.hex() != self._identity.verify:
            text = f"{self.path}: signed with key {lives.owner.key.hex()[:HASH_SHOWN]}, which is not that of {self.key}"
            raise ConfigError(text, "Name the key that has approved with --key, or approve with this one.")
        self._torn, found = lives.torn_bytes > 0, tuple(entries(self.path))
        for one in found:  # `read` verifies only the last signature, and single lines may be published
            if not is_signed(one, lives.owner.key):
                text = f"{self.path}, line {one.number + 1}: not signed with {self.key}"
                raise ConfigError(text, "Put the file back as it was, or take it away and approve again.")
        return found

    # --- what stands ----------------------------------------------------------------------------------------------

    def all(self) -> Sequence[Approval]:
        """Return all approvals, including revoked ones, the latest last."""
        return [approval_of(one, line) for one, line in self._lines() if one.kind == APPROVED]

    def _lines(self) -> Sequence[tuple[LogEntry, bytes]]:
        return list(zip(self._entries, lines(self.path), strict=False)) if self._entries else []

    def revoked(self, approval: Approval) -> str | None:
        """Return when and why an approval was revoked; None if it is valid."""
        place = next(number for number, one in enumerate(self._entries) if one.hash == approval.hash)
        later = [one for one in self._entries[place:] if one.kind == REVOKED and one.facts["plan"] == approval.plan]
        return f"on {day_of(later[0].time)}: {later[0].facts['why']}" if later else None

    def ended(self, approval: Approval) -> bool:
        """Return whether an approval has expired."""
        return self.now_ms >= moment(approval.until)

    def refusals(self) -> Sequence[tuple[str, str]]:
        """Return the day and the reason of each refusal."""
        return [(day_of(one.time), str(one.facts["why"])) for one in self._entries if one.kind == REFUSED]

    def used(self, approval: Approval, without: str = "") -> int:
        """Return the number of rounds of all runs under an approval, except of the run named `without`."""
        return sum(int(one["rounds"]) for one in self._uses(approval, "") if one["run"] != without)

    def _uses(self, approval: Approval, step: str) -> Sequence[Mapping[str, Fact]]:
        mine = [one.facts for one in self._entries if one.kind == USED and one.facts["approval"] == approval.hash]
        return [one for one in mine if one.get("step", "") == step]

    def sealed(self, records: str) -> str:
        """Return the seal of records with this digest, or "".

        The seal needs the secret key: an approval is public, and a digest could be guessed.
        """
        text = f"fedgossip records {records}".encode()
        return hashlib.sha256(self._identity.sign_bytes(text)).hexdigest()[:32] if records else ""

    def last(self) -> PlanStatement | None:
        """Return the latest approved plan that was not revoked; None if there is none.  Raises ConfigError."""
        standing = [one for one in self.all() if self.revoked(one) is None]
        return self.plan_of(standing[-1]) if standing else None

    def plan_of(self, approval: Approval) -> PlanStatement:
        """Return the approved plan.  Raises ConfigError if its file is missing, or has another plan."""
        path = self._plan_file(approval.plan)
        found = plan_statement.read(path)
        if found.hash != approval.plan:
            raise ConfigError(f"{path}: not the plan that was approved", "Put the file back, or approve again.")
        return found

    def _plan_file(self, plan: str) -> Path:
        return self.plans / f"{plan[:HASH_SHOWN]}.json"

    # --- before a run ---------------------------------------------------------------------------------------------

    def check(self, request: ApprovalRequest, limits: HowLong = ANY, run: str = "") -> Approval:
        """Return the approval that covers a run (`run`: name of a resumed one).

        Raises ConfigError if none does; the reason is logged first.
        """
        try:
            return self.covering(request, limits, run)
        except ConfigError as error:
            if self._torn:  # a further line would repair it
                raise
            self._append(request.participant, REFUSED, {"plan": request.statement.hash, "why": str(error)[:500]})
            raise

    def covering(self, request: ApprovalRequest, limits: HowLong = ANY, run: str = "") -> Approval:
        """Return the approval as `check` does, without writing to the log."""
        if self._torn:  # its content is unknown
            raise ConfigError(f"{self.path}: its last line is torn", "Approve again: fedgossip plan approve")
        plan = request.statement
        named, again = f"plan {plan.hash[:HASH_SHOWN]}", "If you agree, approve it again: fedgossip plan approve"
        found = [one for one in self.all() if one.plan == plan.hash and one.participant == request.participant]
        if not found:
            text = f"{named} was never approved with {self.key}{self._nearest(plan)}"
            raise ConfigError(text, "Read it: fedgossip plan show; the changes: plan diff; then: plan approve.")
        one = found[-1]
        if why := self.revoked(one):
            raise ConfigError(f"the approval of {named} was revoked {why}", again)
        joining = request.participant == JOINING
        leads, where = ("organiser", "the invite") if joining else ("coordinator", ENDPOINTS)
        for what, was, now in (
            (leads, one.coordinator, request.coordinator),
            ("participants", one.roster, request.roster),
        ):
            if was != now:
                text = f"{named} was approved with other keys of the {what} ({was[:16]}, here {now[:16]})"
                raise ConfigError(text, f"Ask whose key is new in {where}.  {again}")
        for name in sorted({*one.versions, *request.versions}):
            was, now = one.versions.get(name, "none"), request.versions.get(name, "none")
            if was != now:
                raise ConfigError(f"{named} was approved with {name} {was}, and this is {name} {now}", again)
        self._check_files(one, named, request)
        self._check_time(one, named, limits)
        self._check_rounds(one, named, limits, run, request)
        return one

    def _check_files(self, one: Approval, named: str, request: ApprovalRequest) -> None:
        """Check the site's own records, and statistics not agreed on before."""
        if one.records != self.sealed(request.records):
            text = f"{named} was approved with other records of this site than its file has now"
            if not one.records:
                text = f"{named} was approved without the records of this site"
            again = "If the file is the right one, approve again: fedgossip plan approve"
            raise ConfigError(text, f"Look whether it is this site's own, and which version.  {again}")
        made = [str(line.facts["file"]) for line in self._entries if line.kind == AGREED]
        mine = [line.facts for line in self._entries if line.kind == AGREED and line.facts["approval"] == one.hash]
        known = one.agreed or next((str(facts["file"]) for facts in reversed(mine)), "")
        if request.agreed and request.agreed != known and request.step != AGREE:
            other = (
                "made under another approval" if request.agreed in made else "not the plan that this site has approved"
            )
            text = f"{named}: the agreed statistics here ({request.agreed[:HASH_SHOWN]}) are {other}"
            again = "Read them; if you agree, approve again: fedgossip plan approve"
            raise ConfigError(text, f"Put back the file that `fedgossip data agree` has made.  {again}")

    def _check_time(self, one: Approval, named: str, limits: HowLong) -> None:
        end = moment(one.until)
        if limits.days:
            end = min(end, moment(one.time) + int(limits.days * DAY_MS))
        if self.now_ms >= end:
            text = f"the approval of {named} ended on {day_of(stamp(end * 1_000_000))}"
            raise ConfigError(text, "If you still agree, approve it again: fedgossip plan approve")

    def _check_rounds(self, one: Approval, named: str, limits: HowLong, run: str, request: ApprovalRequest) -> None:
        allowed, wanted = min(one.rounds, limits.rounds or one.rounds), request.statement.rounds
        again = "If you agree to more, approve it again: fedgossip plan approve --rounds N"
        if request.step:
            times, done = allowed // wanted, sum(facts["run"] != run for facts in self._uses(one, request.step))
            if done >= times:
                text = f"the approval of {named} is for {_times(times)} of agreeing on statistics, and {done} began"
                raise ConfigError(text, again)
            return
        if (used := self.used(one, run)) + wanted > allowed:
            text = f"the approval of {named} is for {allowed} rounds, of which {used} are used; this run has {wanted}"
            raise ConfigError(text, again)

    def _nearest(self, plan: PlanStatement) -> str:
        try:
            last = self.last()
        except ConfigError:
            return ""
        if last is None:
            return ""
        keys = [key for key, _, _ in differences(last, plan)]
        if not keys:
            return " for this way to take part: the same plan was, as another participant or to join by invite"
        more = f" and {len(keys) - NAMED_MOST} more" if len(keys) > NAMED_MOST else ""
        return f"; the last that was, {last.hash[:HASH_SHOWN]}, differs in {', '.join(keys[:NAMED_MOST])}{more}"

    # --- lines ----------------------------------------------------------------------------------------------------

    def approve(self, request: ApprovalRequest, days: float, rounds: int, by: str = "") -> Approval:
        """Sign and store the plan of a run; the approval holds for `days` and `rounds` from now on."""
        plan, identity = request.statement, self._identity
        try:
            owner_files.make_folder(self.plans)
        except OSError as error:
            raise NotWrittenError(self.plans, error) from None
        plan_statement.write(self._plan_file(plan.hash), plan)
        until = stamp((self.now_ms + int(days * DAY_MS)) * 1_000_000)
        facts: dict[str, Fact] = {
            "plan": plan.hash, "name": plan.name[:200], "participant": request.participant, "key": identity.verify,
            "coordinator": request.coordinator, "roster": request.roster, "until": until, "rounds": rounds,
            "by": by[:200], **{f"version_{name}": value for name, value in request.versions.items()},
        }  # fmt: skip
        files = {"records": self.sealed(request.records), "agreed": request.agreed}
        facts |= {name: value for name, value in files.items() if value}
        self._append(request.participant, APPROVED, facts)
        return self.all()[-1]

    def revoke(self, approval: Approval, why: str) -> None:
        """Revoke all approvals of this approval's plan; no further run can begin under them."""
        self._append(approval.participant, REVOKED, {"plan": approval.plan, "why": why[:500]})

    @staticmethod
    def keep(approval: Approval, folder: Path) -> str:
        """Store the approval in a run's folder; return the name for counting its rounds.

        Raises NotWrittenError: nothing may be sent.
        """
        run = run_of(folder) or secrets.token_hex(8)
        for name, content in ((APPROVAL_RUN, run.encode()), (APPROVAL, approval.line)):
            try:
                owner_files.written(folder / name, content)
            except OSError as error:
                raise NotWrittenError(folder / name, error) from None
        return run

    def count(self, approval: Approval, request: ApprovalRequest, run: str) -> None:
        """Count the rounds of a run before anything is sent; a resumed run is not counted again.

        Raises NotWrittenError: nothing may be sent.
        """
        same = {one.hash for one in self.all() if one.plan == approval.plan}
        uses = (one.facts for one in self._entries if one.kind == USED)
        if any(one["run"] == run and one["approval"] in same and one.get("step", "") == request.step for one in uses):
            return
        facts: dict[str, Fact] = {"approval": approval.hash, "rounds": request.statement.rounds, "run": run}
        self._append(approval.participant, USED, facts | ({"step": request.step} if request.step else {}))

    def agreed(self, approval: Approval, file: bytes) -> None:
        """Record the statistics on which the sites agreed under an approval; from then on it covers the plan with
        these.
        """
        facts: dict[str, Fact] = {"approval": approval.hash, "file": hashlib.sha256(file).hexdigest()}
        self._append(approval.participant, AGREED, facts)

    def _append(self, participant: int, kind: str, facts: Mapping[str, Fact]) -> None:
        if self._entries:
            participant = int(self._entries[0].facts["participant"])  # of the first approval: one log for all of a key
        owner = Owner(participant, "client", bytes.fromhex(self._identity.verify), LOG_OF, __version__)
        with AuditLog(self.path, owner, self._identity.sign_bytes, lambda: self.now_ms * 1_000_000) as log:
            log.append(kind, facts)
        self._entries = self._read()


def _times(number: int) -> str:
    return "one time" if number == 1 else f"{number} times"


def run_of(folder: Path) -> str:
    """Return the name for counting the rounds of the run in a folder; "" if none were counted."""
    path = folder / APPROVAL_RUN
    try:
        return outside_files.read_text(path) if path.exists() else ""
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{path}: cannot be read", "Put it back, or start in a new folder.") from None
