"""A command's check of its own site before any data leave it: whether the site's key has approved the plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedgossip.base.untrusted_text import quoted
from fedgossip.cli.text import echo
from fedgossip.core import run_format

if TYPE_CHECKING:
    from fedgossip.core.task import LocalTask
    from fedgossip.drivers.invite_joining import Joined
    from fedgossip.net.identity import Identity
    from fedgossip.net.invites.invitation import Invitation
    from fedgossip.plans.approvals.approvals import Approval, ApprovalRequest, HowLong
    from fedgossip.plans.approvals.site_approvals import SiteApprovals
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.gossip.gossip import GossipPlan
    from fedgossip.plans.plan import Plan


class Gate:
    """The approval under which numbers may leave this site in one run: every sending command requires it.

    `keep` writes it into the run's folder.  `open` checks it again, because the wait for the others may be long, and
    counts the run: it is called before the first number is computed from records.
    """

    def __init__(
        self, request: ApprovalRequest, key: Path, identity: Identity, limits: HowLong, run: str, advice: str
    ) -> None:
        self._request, self._key, self._identity, self._limits = request, key, identity, limits
        self._run, self._advice = run, advice
        self.approval = self._standing()[1]

    def keep(self, folder: Path) -> None:
        """Write the approval into the folder of the run.  Raises NotWrittenError."""
        self._run = self._standing()[0].keep(self.approval, folder)

    def open(self) -> None:
        """Count the run; nothing may leave if this raises ConfigError or NotWrittenError."""
        approvals, found = self._standing()
        approvals.count(found, self._request, self._run)

    def agreed(self, file: bytes) -> None:
        """Record the statistics that were agreed on in this run."""
        self._standing()[0].agreed(self.approval, file)

    def _standing(self) -> tuple[SiteApprovals, Approval]:
        from fedgossip.base.errors import ConfigError
        from fedgossip.plans.approvals.site_approvals import SiteApprovals

        approvals = SiteApprovals(self._key, self._identity, time.time_ns)
        try:
            return approvals, approvals.check(self._request, self._limits, self._run)
        except ConfigError as error:
            raise ConfigError(str(error), self._advice or error.advice) from None


def approved(
    wanted: Callable[[], ApprovalRequest], key: Path, limits: HowLong | None, left: Path | None, advice: str = ""
) -> Gate | None:
    """Return the gate of a run under the approval of this key; None if this site does not require approvals.

    `limits`: of a policy that requires an approval; `left`: the folder of a resumed run; `advice`: for a plan without
    approval, "" for that of the refusal.  Raises ConfigError for a plan without approval.
    """
    from fedgossip.net.identity import Identity
    from fedgossip.plans.approvals.approvals import HowLong
    from fedgossip.plans.approvals.site_approvals import SiteApprovals, run_of

    held, identity = limits or HowLong(), Identity.load(key)
    if limits is None and not SiteApprovals(key, identity, time.time_ns).exists:
        return None
    gate = Gate(wanted(), key, identity, held, run_of(left) if left else "", advice)
    found = gate.approval
    echo(f"plan {found.plan[:16]}, approved on {found.time[:10]}{f' by {found.by}' if found.by else ''}", err=True)
    return gate


def approvable(plan: Plan) -> FederationPlan | GossipPlan:
    """Return a plan that a site can approve.  Raises ConfigError for other plans, which no approval can cover."""
    from fedgossip.base.errors import ConfigError
    from fedgossip.plans.federated.federation import FederationPlan
    from fedgossip.plans.gossip.gossip import GossipPlan

    if not isinstance(plan, FederationPlan | GossipPlan):
        text = "an approval is asked for, and this run is of workers that share every step"
        raise ConfigError(text, OTHER_KEY)
    if plan.experiment.loops:
        text = "an approval is asked for, and each trains with a script of its own, which no plan holds"
        raise ConfigError(text, OTHER_KEY)
    return plan


OTHER_KEY = "Take part with a key that has approved no plans, and without --approval-days."


def approved_to_join(
    plan: Plan,
    task: LocalTask | None,
    invitation: Invitation,
    place: Joined,
    experiment: Path,
    limits: HowLong | None,
    data: str = "",
) -> Gate | None:
    """Return the gate as `approved` does, for a client, or a peer, that joins by an invite, before it requests a place.

    `task`: with the site's own data, if it has some, from the source `data`; `experiment`: the file to read and
    approve.
    """
    from fedgossip.plans import compose
    from fedgossip.plans.approvals.approvals import request_to_join
    from fedgossip.plans.approvals.plan_statement import statement_of

    def wanted() -> ApprovalRequest:
        made = approvable(plan)
        known = task or compose.task_of_dry_run(made.experiment, made.learners, [])[0]
        return request_to_join(statement_of(made, known), made.experiment, invitation.key, data)

    own = f" --data {quoted(data)}" if data else ""
    read = f"fedgossip plan show {quoted(experiment)}"
    sign = f"fedgossip plan approve {quoted(experiment)} --invite INVITE{own} --key {quoted(place.key)}"
    advice = f"Read it: {read}; if you agree: {sign}; then join again."
    return approved(wanted, place.key, limits, place.path / run_format.HOSTED, advice)
