"""What a client asks its own site before it takes part: whether its key has approved the plan."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.drivers.joining import Joined
    from fedgossip.net.invitation import Invitation
    from fedgossip.plans.approvals import Approval, ApprovalRequest, HowLong
    from fedgossip.plans.plan import Plan
    from fedgossip.task import LocalTask

Begin = Callable[[Path], None]
"""What is to be done in the run's folder before it begins."""


def approved(
    wanted: Callable[[], ApprovalRequest], key: Path, limits: HowLong | None, left: Path | None, advice: str = ""
) -> Begin | None:
    """Return what begins a run under the approval of this key; None where this site approves of no plans.

    `limits`: of a policy that asks for an approval; `left`: the folder of a run that goes on; `advice`: what to do
    where the plan is not approved, "" for what the refusal says.  The approval is looked at again when the run begins,
    for the wait for the others may be long.  Raises ConfigError where the plan is not approved.
    """
    from fedgossip.errors import ConfigError
    from fedgossip.net.identity import Identity
    from fedgossip.plans.approvals import HowLong
    from fedgossip.plans.site_approvals import SiteApprovals, run_of

    held, identity = limits or HowLong(), Identity.load(key)
    if limits is None and not SiteApprovals(key, identity, time.time_ns).exists:
        return None
    request, run = wanted(), run_of(left) if left else ""

    def now() -> tuple[SiteApprovals, Approval]:
        approvals = SiteApprovals(key, identity, time.time_ns)
        try:
            return approvals, approvals.check(request, held, run)
        except ConfigError as error:
            raise ConfigError(str(error), advice or error.advice) from None

    def begin(folder: Path) -> None:
        approvals, found = now()
        approvals.begin(found, request, folder)

    _, found = now()
    echo(f"plan {found.plan[:16]}, approved on {found.time[:10]}{f' by {found.by}' if found.by else ''}", err=True)
    return begin


def approved_to_join(
    plan: Plan, task: LocalTask | None, invitation: Invitation, place: Joined, experiment: Path, limits: HowLong | None
) -> Begin | None:
    """Return it as `approved` does, for a client, or a peer, that joins by an invite, before it asks for a place.

    `task`: with its own data, where it brings them; `experiment`: the file to read and approve.
    """
    from fedgossip.drivers.hosting import RUN
    from fedgossip.errors import ConfigError
    from fedgossip.plans import compose
    from fedgossip.plans.approvals import request_to_join
    from fedgossip.plans.federation import FederationPlan
    from fedgossip.plans.gossip import GossipPlan
    from fedgossip.plans.plan_statement import statement_of

    def wanted() -> ApprovalRequest:
        if not isinstance(plan, FederationPlan | GossipPlan):
            text = "an approval is asked for, and this run is of workers that share every step"
            raise ConfigError(text, "Join with a key that has approved no plans, and without --approval-days.")
        if plan.experiment.loops:
            text = "an approval is asked for, and each trains with a script of its own, which no plan holds"
            raise ConfigError(text, "Join with a key that has approved no plans, and without --approval-days.")
        known = task or compose.task_of_dry_run(plan.experiment, plan.learners, [])[0]
        return request_to_join(statement_of(plan, known), invitation.key)

    file, key = (shlex.quote(str(path)) for path in (experiment, place.key))
    read, sign = f"fedgossip plan show {file}", f"fedgossip plan approve {file} --invite INVITE --key {key}"
    advice = f"Read it: {read}; if you agree: {sign}; then join again."
    return approved(wanted, place.key, limits, place.path / RUN, advice)
