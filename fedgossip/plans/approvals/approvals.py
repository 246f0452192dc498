"""Signed approvals of plans by sites: content, validity, and the log line, which anyone can verify.

    approval.jsonl          in the folder of a run: one signed line for each site; `read_signed`

An approval names the plan, the hash of the participants' signed entries, this site's versions, its records, a day, and
a number of rounds over all runs; for a run joined by an invite, the organiser's key.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from fedgossip.audit.entries import AuditError, LogEntry, is_signed, lines, moment, parsed
from fedgossip.base import outside_files, owner_files
from fedgossip.base.errors import NotWrittenError
from fedgossip.base.version import __version__
from fedgossip.core.run_format import AGREED, APPROVAL, PLAN
from fedgossip.data.columns.table_schema import FEDERATED
from fedgossip.data.objectives import SUMS
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import source_digest
from fedgossip.experiment import Experiment
from fedgossip.net.endpoints import Endpoints, roster_of
from fedgossip.plans.approvals.plan_statement import HASH_SHOWN, PlanStatement
from fedgossip.plans.federated.federation import FederationPlan

APPROVED = "approved"
"""Kind of the line."""
JOINING = -1
"""Participant in an approval to join: the organiser assigns the numbers."""
AGREE = "agree"
"""Step of a plan in which the sites agree on statistics; "" is the run itself."""
LIBRARIES = ("numpy", "torch")
"""Libraries with versions in an approval."""


@dataclass(frozen=True)
class Approval:
    """An approval as signed by its site."""

    plan: str
    """Hash of the plan."""
    name: str
    """Name of the plan, for readers."""
    participant: int
    """Participant's number in the run; `JOINING` if not yet assigned."""
    key: str
    """The site's signing key, in hex."""
    coordinator: str
    """The coordinator's signing key, in hex; to join, the organiser's key from the invite."""
    roster: str
    """Hash of the clients' signed entries; "" if not yet known."""
    versions: Mapping[str, str]
    time: str
    until: str
    rounds: int
    """Maximum number of rounds over all runs."""
    by: str
    """Name of the approver, as typed."""
    records: str
    """Seal of the site's own records (`SiteApprovals.sealed`); "" if the plan uses none."""
    agreed: str
    """sha256 of the agreed statistics if they existed and are outside the plan; otherwise ""."""
    hash: str
    line: bytes = field(repr=False)


@dataclass(frozen=True)
class ApprovalRequest:
    """A run that needs an approval before it begins."""

    statement: PlanStatement
    participant: int
    coordinator: str
    roster: str
    versions: Mapping[str, str]
    records: str = ""
    """Current digest of the site's own records; "" without own records."""
    agreed: str = ""
    """Current sha256 of the agreed statistics; "" if there are none, or if the plan names them."""
    step: str = ""
    """`AGREE` if this step of the plan is to begin."""


@dataclass(frozen=True)
class HowLong:
    """Limits of approvals by a site's policy; 0: the approval's own limit."""

    days: float = 0.0
    rounds: int = 0


def request_of(
    plan: FederationPlan, statement: PlanStatement, node: int, endpoints: Endpoints, data: str = ""
) -> ApprovalRequest:
    """Return the approval request to client `node`; `data`: its own source, if any.

    Raises ConfigError for unsigned entries and unreadable files.
    """
    roster, coordinator = roster_of(endpoints).first(plan.coordinator), endpoints[plan.tree.parent(node)].verify
    request = ApprovalRequest(statement, node, coordinator, roster.hash.hex(), versions())
    return _with_files(request, plan.experiment, node, data)


def request_to_join(
    statement: PlanStatement, experiment: Experiment, organiser: str, data: str = ""
) -> ApprovalRequest:
    """Return the approval request to a site that joins by this organiser's invite; `data`: its own source.

    Raises ConfigError for an unreadable file.
    """
    return _with_files(ApprovalRequest(statement, JOINING, organiser, "", versions()), experiment, JOINING, data)


def _with_files(request: ApprovalRequest, e: Experiment, node: int, data: str) -> ApprovalRequest:
    source, path = data or e.data.source, Path(e.data.agreed)
    own = (data or PLACE in source) and (e.learns or e.task.kind in SUMS)
    records = source_digest(source.replace(PLACE, str(node))) if own else ""
    part = e.data.scale != FEDERATED or path.name in request.statement.files or not path.is_file()
    content = b"" if part else outside_files.read_bytes(outside_files.resolve(path))
    return replace(request, records=records, agreed="" if part else hashlib.sha256(content).hexdigest())


def versions() -> dict[str, str]:
    """Return the installed versions of LIBRARIES without importing them."""
    found = {"fedgossip": __version__, "python": ".".join(platform.python_version_tuple()[:2])}
    return found | {name: metadata.version(name) for name in LIBRARIES}


def approval_of(entry: LogEntry, line: bytes) -> Approval:
    """Return the approval of an approval line.  Raises KeyError or ValueError for any other line."""
    facts = entry.facts
    text = {name: str(facts[name]) for name in ("plan", "name", "key", "coordinator", "roster", "until", "by")}
    numbers = {name: int(facts[name]) for name in ("participant", "rounds")}
    computed = {name.partition("_")[2]: str(one) for name, one in facts.items() if name.startswith("version_")}
    text |= {name: str(facts.get(name, "")) for name in ("records", "agreed")}  # missing in earlier releases
    moment(text["until"])
    return Approval(**text, **numbers, versions=computed, time=entry.time, hash=entry.hash, line=line)  # type: ignore[arg-type]


def site_of(approval: Approval, keys: Mapping[int, str]) -> int:
    """Return the participant of an approval, by its key among all keys in hex; `JOINING` for an unknown key."""
    if approval.participant != JOINING:
        return approval.participant
    return next((node for node, key in keys.items() if key == approval.key), JOINING)


def day_of(time: str) -> str:
    """Return the day of a time stamp."""
    return time.partition("T")[0]


def read_signed(path: Path) -> list[Approval]:
    """Return a file's approvals, each verified with the key that it names (the run's roster maps keys to participants).

    Raises AuditError for a line other than an approval, and for a changed or wrongly signed one.
    """
    found = []
    for place, line in enumerate(lines(path), 1):
        try:
            entry = parsed(line)
            if entry.kind != APPROVED:
                raise ValueError(f"no approval, but {entry.kind}")
            one = approval_of(entry, line)
            signed = is_signed(entry, bytes.fromhex(one.key))
        except (ValueError, KeyError) as error:
            raise AuditError(f"{path}, line {place}: {error}", "Ask the site for its approval.jsonl.") from None
        if not signed:
            text = f"{path}, line {place}: not signed with key {one.key[:HASH_SHOWN]}"
            raise AuditError(text, "Ask the site for its approval.jsonl.")
        found.append(one)
    return found


def gathered(folders: Sequence[Path], out: Path) -> None:
    """Collect the approvals in participants' folders into the run's folder, with plan and statistics.

    Raises AuditError, NotWrittenError.
    """
    found = [path / APPROVAL for path in folders if (path / APPROVAL).exists()]
    shared = (PLAN, AGREED)
    plans = {name: path / name for name in shared for path in folders if (path / name).exists()}
    signed = sorted((one for path in found for one in read_signed(path)), key=lambda one: one.participant)
    try:
        if signed:
            owner_files.written(out / APPROVAL, b"".join(one.line for one in signed))
        for name, path in plans.items():
            owner_files.written(out / name, outside_files.read_bytes(path))
    except OSError as error:
        raise NotWrittenError(out / APPROVAL, error) from None
