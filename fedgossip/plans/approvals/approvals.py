"""Signed approvals of plans by sites: content, validity, and the log line, which anyone can verify.

    approval.jsonl          in the folder of a run: one signed line for each site; `read_signed`

An approval names the plan, the hash of the participants' signed entries, this site's versions, its records, a day, and
a number of rounds over all runs; one by an invite the organiser's key.
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
"""The kind of the line."""
JOINING = -1
"""The participant of an approval to join: the organiser gives out the numbers."""
AGREE = "agree"
"""The step of a plan in which the sites agree on statistics; "" is the run that it is a plan of."""
LIBRARIES = ("numpy", "torch")
"""Libraries whose versions an approval includes."""


@dataclass(frozen=True)
class Approval:
    """One approval, as its site signed it."""

    plan: str
    """The hash of the plan."""
    name: str
    """Name of the plan, for readers."""
    participant: int
    """Its number in the run; `JOINING` where that is open."""
    key: str
    """The site's key of signatures, in hex."""
    coordinator: str
    """The coordinator's key of signatures, in hex; to join, the organiser's key as in the invite."""
    roster: str
    """The hash of the clients' signed entries; "" where that is open."""
    versions: Mapping[str, str]
    time: str
    until: str
    rounds: int
    """In all, over all runs."""
    by: str
    """Name of the approver, as typed."""
    records: str
    """The seal of the site's own records (`SiteApprovals.sealed`); "" where the plan has none of its own."""
    agreed: str
    """sha256 of the agreed statistics, where they were there and are no part of the plan; "" where they were not."""
    hash: str
    line: bytes = field(repr=False)


@dataclass(frozen=True)
class ApprovalRequest:
    """A run about to begin that needs an approval."""

    statement: PlanStatement
    participant: int
    coordinator: str
    roster: str
    versions: Mapping[str, str]
    records: str = ""
    """The digest of the site's own records as they are now; "" where it has none of its own."""
    agreed: str = ""
    """sha256 of the agreed statistics as they are now; "" where there are none, or the plan itself names them."""
    step: str = ""
    """`AGREE` where this step of the plan is to begin."""


@dataclass(frozen=True)
class HowLong:
    """Validity of approvals by a site's policy; 0: their own."""

    days: float = 0.0
    rounds: int = 0


def request_of(
    plan: FederationPlan, statement: PlanStatement, node: int, endpoints: Endpoints, data: str = ""
) -> ApprovalRequest:
    """Return the approval request to client `node`; `data`: its own source, if any.  Raises ConfigError for unsigned
    entries and unreadable files.
    """
    roster, coordinator = roster_of(endpoints).first(plan.coordinator), endpoints[plan.tree.parent(node)].verify
    request = ApprovalRequest(statement, node, coordinator, roster.hash.hex(), versions())
    return _with_files(request, plan.experiment, node, data)


def request_to_join(
    statement: PlanStatement, experiment: Experiment, organiser: str, data: str = ""
) -> ApprovalRequest:
    """Return the approval request to one that joins by this organiser's invite; `data`: its own source.

    Raises ConfigError for an unreadable file.
    """
    return _with_files(ApprovalRequest(statement, JOINING, organiser, "", versions()), experiment, JOINING, data)


def _with_files(request: ApprovalRequest, e: Experiment, node: int, data: str) -> ApprovalRequest:
    source, path = data or e.data.source, Path(e.data.agreed)
    own = (data or PLACE in source) and (e.learns or e.task.kind in SUMS)
    records = source_digest(source.replace(PLACE, str(node))) if own else ""
    part = e.data.scale != FEDERATED or path.name in request.statement.files or not path.is_file()
    content = b"" if part else outside_files.read_bytes(outside_files.named(path))
    return replace(request, records=records, agreed="" if part else hashlib.sha256(content).hexdigest())


def versions() -> dict[str, str]:
    """Return the installed versions of LIBRARIES without importing them."""
    found = {"fedgossip": __version__, "python": ".".join(platform.python_version_tuple()[:2])}
    return found | {name: metadata.version(name) for name in LIBRARIES}


def approval_of(entry: LogEntry, line: bytes) -> Approval:
    """Return the approval of a line that is one.  Raises KeyError, ValueError for another."""
    facts = entry.facts
    text = {name: str(facts[name]) for name in ("plan", "name", "key", "coordinator", "roster", "until", "by")}
    numbers = {name: int(facts[name]) for name in ("participant", "rounds")}
    computed = {name.partition("_")[2]: str(one) for name, one in facts.items() if name.startswith("version_")}
    text |= {name: str(facts.get(name, "")) for name in ("records", "agreed")}  # from before them: none
    moment(text["until"])
    return Approval(**text, **numbers, versions=computed, time=entry.time, hash=entry.hash, line=line)  # type: ignore[arg-type]


def site_of(approval: Approval, keys: Mapping[int, str]) -> int:
    """Return the participant of an approval, from all keys in hex; `JOINING` for an unknown key."""
    if approval.participant != JOINING:
        return approval.participant
    return next((node for node, key in keys.items() if key == approval.key), JOINING)


def day_of(time: str) -> str:
    """Return the day of a stamp."""
    return time.partition("T")[0]


def read_signed(path: Path) -> list[Approval]:
    """Return a file's approvals, each checked with the key that it names (the run's roster maps keys to participants).

    Raises AuditError for a line that is no approval, was changed, or is not signed with its key.
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
    """Gather the approvals in participants' folders in the run's, with plan and statistics.  Raises AuditError,
    NotWrittenError.
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
