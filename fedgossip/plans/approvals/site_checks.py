"""Checks of a single site before a federated run (`fedgossip client --dry-run`): nothing is sent or written.

A check returns its finding, or the error that would end the run.  Checks that depend on a failed one, or on other
sites, are omitted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgossip.base.errors import BudgetError, ConfigError, FedgossipError, TrainingError
from fedgossip.base.untrusted_text import quoted
from fedgossip.core import run_format
from fedgossip.core.machine import NodeId
from fedgossip.core.task import Job, LocalTask, segments_of, statistics_in
from fedgossip.data.partitions import PLACE
from fedgossip.data.record_groups import source_digest
from fedgossip.net.endpoints import Endpoint, load_endpoints, roster_of
from fedgossip.net.identity import Identity
from fedgossip.plans import compose
from fedgossip.plans.approvals.approvals import HowLong, request_of
from fedgossip.plans.approvals.plan_statement import HASH_SHOWN, statement_of
from fedgossip.plans.approvals.site_approvals import SiteApprovals
from fedgossip.plans.compose import DataShares
from fedgossip.plans.federated.federation import FederationPlan
from fedgossip.plans.federated.ledger import data_of, read_releases, standing
from fedgossip.plans.federated.policy import demands, how_long
from fedgossip.plans.federated.privacy_budget import outlook

NOT_LOOKED_AT = "whether the coordinator answers, the other participants, and the content of their files"
LATER = "not checked before the lines above are right"


@dataclass(frozen=True)
class ClientSite:
    """A site with the start arguments of its client."""

    plan: FederationPlan
    node: NodeId
    key: Path
    endpoints: Path
    policy: Path
    ledger: Path | None
    out: Path | None
    clock: Callable[[], int]
    """Nanoseconds since 1970."""

    @property
    def spent(self) -> Path:
        return self.ledger or self.key.with_name(f"{self.key.name}.{run_format.SPENT}")


@dataclass(frozen=True)
class SiteCheck:
    """One check: its finding, or the error."""

    what: str
    finding: str
    error: FedgossipError | None = None
    advice: str = ""
    """What to do if the run would continue with a worse result, or a weaker guarantee, than expected."""


@dataclass(frozen=True)
class Warned:
    """A finding that does not end the run but needs attention."""

    finding: str
    advice: str


class SiteChecks:
    """The checks of a site, in the order in which a run makes them."""

    def __init__(self, site: ClientSite) -> None:
        self._site = site
        self._identity: Identity | None = None
        self._known: dict[int, Endpoint] = {}
        self._learning: tuple[LocalTask, DataShares] | None = None

    def all(self) -> Iterator[SiteCheck]:
        """Yield each check after it is made; one of them trains a local round."""
        checks: dict[str, Callable[[], str | Warned | None]] = {
            "key": self._key,
            "participants": self._participants,
            "records": self._records,
            "one round": self._one_round,
            "policy": self._policy,
            "approval": self._approval,
            "budget": self._budget,
            "folder": self._folder,
        }
        for what, look in checks.items():
            try:
                found = look() or LATER
                if isinstance(found, Warned):
                    yield SiteCheck(what, found.finding, advice=found.advice)
                else:
                    yield SiteCheck(what, found)
            except FedgossipError as error:
                yield SiteCheck(what, str(error), error)

    def _key(self) -> str:
        self._identity = Identity.load(self._site.key)
        return f"{self._site.key}, signs as {self._identity.verify[:HASH_SHOWN]}"

    def _participants(self) -> str:
        site, plan = self._site, self._site.plan
        known = load_endpoints(site.endpoints, plan.n, plan.roles.listens)
        if self._identity and known[site.node].key != self._identity.public:
            advice = f"Put `fedgossip keys show {quoted(site.key)}` there, or name the right file with --key."
            raise ConfigError(f"{site.key} is not the key that {site.endpoints} gives client {site.node}", advice)
        roster = roster_of(known).first(plan.coordinator).hash.hex() if plan.secure else ""
        self._known = known
        named = f", roster {roster[:HASH_SHOWN]}: the same at all sites, compare it" if roster else ""
        return f"{plan.learners} clients, the coordinator at {known[plan.tree.parent(site.node)].address}{named}"

    def _records(self) -> str | Warned:
        plan, node = self._site.plan, self._site.node
        self._learning = compose.task_of(plan.experiment, plan.learners, [node], os.urandom)
        task, shares = self._learning
        compose.check_task(plan, task)
        source = plan.experiment.data.source.replace(PLACE, str(node))
        count = shares.trained_on.get(node)
        size = f"the model has {task.length:,} numbers"
        if not plan.experiment.learns:
            return f"none; {size}"
        if not count:
            return Warned(f"{source}: no example to train on; {size}", "Look at the file: fedgossip data describe.")
        return f"{source}: {count} examples to train on; {size}"

    def _one_round(self) -> str | Warned | None:
        """Train one round and discard it, to see its loss and update."""
        if self._learning is None:
            return None
        plan, node, (task, _) = self._site.plan, self._site.node, self._learning
        given = task.initial(node)
        (update,) = task.train([Job(node, 0, given, gradient=plan.gradients)])
        if update.difference is None:
            advice = "Look at the file, fedgossip data describe, and at train.local_steps and train.lr."
            return Warned("trained and discarded; the model did not change: this site would contribute nothing", advice)
        if not np.isfinite(update.difference).all():
            text = "the update of the first round is not finite"
            raise TrainingError(text, "Lower train.lr, and look at the columns: fedgossip data describe.")
        parameters = task.length - statistics_in(segments_of(task))  # a running statistic has no bound
        change = np.abs(update.difference[:parameters])
        largest = float(change.max())
        bound = plan.numbers.fixed_point(task.length, task.schema).clip_inf if plan.secure else float("inf")
        loss = f", loss {update.metrics['loss']:.4g}" if "loss" in update.metrics else ""
        found = f"trained and discarded{loss}; the largest change is {largest:.3g}"
        if largest <= bound:
            return found
        many = f"{int((change > bound).sum()):,} of {parameters:,} numbers"
        cut = f"{found}; {many} WOULD BE CUT to {bound:g}, the bound of a secure sum, and the model would learn wrongly"
        return Warned(
            cut, f"Raise coordinator.secure.bound above {largest:.3g} at all participants, or scale the columns."
        )

    def _policy(self) -> str | None:
        if not self._known or self._learning is None:
            return None
        site = self._site
        secure = self._learning[0] if site.plan.secure else None
        found = demands(site.policy, site.plan, site.node, self._known, secure)
        return f"{site.policy} allows this run" if found else "none is asked for: this run has no secure sum"

    def _approval(self) -> str | None:
        if self._identity is None or not self._known or self._learning is None:
            return None
        site = self._site
        approvals, limits = SiteApprovals(site.key, self._identity, site.clock), how_long(site.policy)
        statement = statement_of(site.plan, self._learning[0])
        if not approvals.exists and limits is None:
            return f"plan {statement.hash[:HASH_SHOWN]}; none is asked for until one is given: fedgossip plan approve"
        request = request_of(site.plan, statement, site.node, self._known)
        found = approvals.covering(request, limits or HowLong())
        left = found.rounds - approvals.used(found)
        return f"plan {found.plan[:HASH_SHOWN]}, until {found.until[:10]}, {left} of {found.rounds} rounds are left"

    def _budget(self) -> str | Warned | None:
        """Return the privacy spent by all rounds and by earlier runs, in words."""
        if self._learning is None:
            return None
        if not self._site.plan.experiment.learns:
            return "nothing is learned from records"
        site, plan = self._site, self._site.plan
        source = plan.experiment.data.source
        own = source.replace(PLACE, str(site.node))
        about = data_of(source, site.node), source_digest(own) if PLACE in source else ""
        total, exact = standing(site.spent, *about)
        if plan.experiment.budget is None:
            if total and exact < 1:
                text = f"no privacy budget, and this site allows epsilon {total.max_epsilon:g} of its records in all"
                raise BudgetError(text, "See the releases: fedgossip privacy ledger; --allow-exact allows more.")
            sentence = "no privacy budget: no epsilon covers this run's disclosure of a record"
            return Warned(
                sentence, "Accept that, as the plan states it, or agree on [coordinator.privacy] at all participants."
            )
        found = outlook(plan, site.node, read_releases(site.spent, plan.unit, *about), agreed=True)
        if not found.fits:
            most = plan.section.privacy.max_epsilon
            text = f"{found.rounds_within} of {plan.experiment.rounds} rounds fit into epsilon {most:g}"
            raise BudgetError(text, "See the spending: fedgossip privacy ledger; a plan that fits: privacy plan.")
        sentence = f"epsilon {found.epsilon:.3g} after all rounds, {found.total:.3g} with those before"
        if total is None:
            return f"{sentence}; no limit over all runs: fedgossip privacy ledger --max-epsilon-total"
        each = found.plan.round_spend
        after = total.spend(replace(each, steps=each.steps * plan.experiment.rounds))
        return f"{sentence}; {after.epsilon:.3g} of the {total.max_epsilon:g} that this site allows over all runs"

    def _folder(self) -> str:
        out = self._site.out
        if out is None:
            return "one is made below runs/"
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(
                f"{out}: not empty", "Name a new folder with --out; --resume continues in an existing one."
            )
        return f"{out}: new"
