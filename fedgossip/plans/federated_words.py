"""Texts about a federated run: banner, outlook, and its part of the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from fedgossip.algorithms.federated.base import EndingRule, Federated
from fedgossip.base import kernels
from fedgossip.core.machine import NodeId
from fedgossip.core.records import EventRow, PeerRow, Row
from fedgossip.core.run_summary import MethodFacts, PrivacyFacts, SpentFacts
from fedgossip.core.task import LocalTask, Segment, segments_of
from fedgossip.experiment import CoordinatorSection
from fedgossip.plans.federated.privacy_budget import PrivateRun, outlook
from fedgossip.plans.federated.tree import LEAF, MIDDLE, Tree
from fedgossip.plans.plan import NO_BUDGET, JoiningTerms, RunOutlook
from fedgossip.privacy.accounting import guarantee
from fedgossip.privacy.forecast import rounds
from fedgossip.secure.encoding import ExactSums

OPEN = "NO secure aggregation (coordinator.tiers, secure = false)"


class DescribedRun(PrivateRun, Protocol):
    """Properties of a federated run used in its texts; see `federation`."""

    @property
    def secure(self) -> bool: ...
    @property
    def section(self) -> CoordinatorSection: ...
    @property
    def federated(self) -> Federated[Any]: ...
    @property
    def name(self) -> str: ...
    @property
    def vectors(self) -> int: ...
    @property
    def buffered(self) -> bool: ...
    @property
    def goal(self) -> int: ...
    @property
    def invited(self) -> int: ...
    @property
    def threshold(self) -> int | None: ...
    @property
    def tree(self) -> Tree: ...
    @property
    def exact(self) -> ExactSums | None: ...
    @property
    def sizes(self) -> tuple[int, ...] | None: ...
    @property
    def trained_on(self) -> Mapping[NodeId, int]: ...
    def with_segments(self, segments: tuple[Segment, ...]) -> Self: ...
    def count_upload_bytes(self, length: int, kind: np.dtype[np.floating]) -> int: ...


def banner_of(run: DescribedRun) -> Sequence[str]:
    """Return the lines shown before the run begins: visibility of data, and spent privacy."""
    if run.exact is not None:
        return [
            _how_line(run),
            *describe_visibility(run),
            _exact_line(run, run.exact),
            *_budget_line(run),
            *kernels.remarks(),
        ]
    lines = _budget_line(run) or ([_no_budget_line(run)] if run.secure else [])
    return [_how_line(run), *describe_visibility(run), *lines, *kernels.remarks()]


def _how_line(run: DescribedRun) -> str:
    s = run.section
    how = f"steps of {run.goal} answers" if run.buffered else f"{run.cohort} in a round"
    coded = f", updates by {s.codec}" if s.codec else ""
    tiers = "" if run.tree.flat else f", {run.tree.words}"
    return f"{run.name}, {s.clients} clients{tiers}, {how}{coded}"


def describe_visibility(run: DescribedRun) -> Sequence[str]:
    """Return what each tier of coordinators sees, a line each."""
    if run.tree.flat:
        return [_describe_sums(run)]
    return [_describe_tier(run, tier) for tier in range(run.tree.tiers)]


def _describe_tier(run: DescribedRun, tier: int) -> str:
    groups = run.tree.select_tier(tier)
    who = "the root" if tier == run.tree.tiers - 1 else f"a {LEAF if tier == 0 else MIDDLE}"
    sizes = {len(group.members) for group in groups}
    of = f"{min(sizes)}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
    clients = run.tree.leaves_below(groups[0].coordinator, run.least)
    if tier == 0:
        if not groups[0].secure:
            return (
                f"NO secure aggregation (coordinator.tiers, secure = false): {who} sees each update of its {of} clients"
            )
        least = max(run.least, min(group.threshold or 0 for group in groups))
        return f"secure aggregation: {who} sees sums of its clients alone, each over at least {least} of {of}"
    if not groups[0].secure:
        one = run.tree.leaves_below(groups[0].members[0], run.least)
        seen = f"the sum of each of its {of} coordinators, over at least {one} clients"
        return f"{OPEN}: {who} sees {seen}"
    least = min(group.least for group in groups)
    over = f"over at least {least} of {of}, that is {clients} clients"
    return f"secure aggregation: {who} sees sums of its coordinators alone, each {over}"


def _describe_sums(run: DescribedRun) -> str:
    if not run.secure:
        return "NO secure aggregation (coordinator.secure.on = false): the coordinator sees every update"
    seen = f"the coordinator sees sums alone, each over at least {run.least} of {run.invited} clients"
    masks = f"; taking the masks off a sum needs {run.threshold} of them" if run.threshold else ""
    return f"secure aggregation: {seen}{masks}"


def _exact_line(run: DescribedRun, exact: ExactSums) -> str:
    rounds = run.experiment.rounds
    sums = {1: "one sum", 2: "two sums"}.get(rounds, f"{rounds} sums")
    sums = f"at most {sums}" if isinstance(run.federated.server, EndingRule) else sums
    numbers = f"{run.name}: {sums} of {len(exact.bounds):,} whole numbers of {exact.ring_bits} bits"
    if run.experiment.budget:
        return f"{numbers}, with noise on each site's"
    return f"{numbers}, exact and without noise; two of them disclose the sites that differ"


def terms_of(run: DescribedRun, parameters: int, itemsize: int) -> JoiningTerms:
    """Return a client's terms, for a model of `parameters` numbers of `itemsize` bytes."""
    up = run.count_upload_bytes(parameters, np.dtype(f"f{itemsize}"))
    disclosed = [*run.sent_metrics.words(run.sent_metrics.exact), *run.sent_metrics.words(run.sent_metrics.covered)]
    beside = f", with {'; '.join(disclosed)}" if disclosed else ""
    sent = f"this client's update to the coordinator, about {up:,} bytes a round{beside}; no data"
    without = _no_budget_line(run) if run.secure else NO_BUDGET
    return JoiningTerms(
        _how_line(run), sent, "; ".join(describe_visibility(run)), next(iter(_budget_line(run)), without)
    )


def _no_budget_line(run: DescribedRun) -> str:
    """Return a line on what a malicious coordinator learns without a budget; full batches are deterministic."""
    tells = "with a client and without it, tell what it learned"
    t, sizes = run.experiment.train, run.trained_on.values() or run.sizes or ()
    taken = (t.local_steps or 0) * t.examples_per_step
    if t.local_epochs is not None or any(taken >= size for size in sizes):
        return f"NO privacy budget, and whole passes in each round: two sums, {tells}"
    some = "" if sizes else ", or two where a round takes all examples of a client"
    return f"no privacy budget: many sums{some}, {tells}"


def _budget_line(run: DescribedRun) -> Sequence[str]:
    p = run.experiment.budget
    if p is None:
        return []
    worth = f"epsilon at most {p.max_epsilon:g}: {guarantee(p.max_epsilon)}"
    return [f"privacy of each {p.unit}: noise {p.noise:g}, clip {p.clip:g}; {worth}"]


def outlook_of(run: DescribedRun, task: LocalTask) -> RunOutlook:
    """Return the computed traffic of a round, and the forecast of the budget."""
    vector = task.length * task.dtype.itemsize * run.vectors
    up = run.with_segments(segments_of(task)).count_upload_bytes(task.length, task.dtype)
    beside = ", without the keys and shares of the secure sum" if run.secure else ""
    budget = [f"of the privacy budget: {rounds(outlook(run))}"] if run.experiment.budget else []
    return RunOutlook(
        run.cohort * (up + vector),
        {"clients": run.learners, "cohort": run.cohort, "secure": run.secure, "threshold": run.threshold},
        [f"{up:,} bytes up and {vector:,} down per client and round{beside}", *budget],
    )


def facts_of(run: DescribedRun, rows: Sequence[Row]) -> MethodFacts:
    """Return the summary's facts that only federated runs have."""
    s = run.section
    codec: MethodFacts = {"codec": s.codec} if s.codec else {}
    groups = [] if run.tree.flat else run.tree.groups
    tiers: MethodFacts = {"tiers": {str(group.coordinator): list(group.members) for group in groups}} if groups else {}
    return {
        "graph": "coordinator",
        "algorithm": s.algorithm,
        "mode": "federated",
        "clients": s.clients,
        "cohort": run.cohort,
        "secure": run.secure and run.tree.groups[0].secure,
        **codec,
        **tiers,
        "rounds_abandoned": sum(isinstance(row, EventRow) and row.name == "abandoned" for row in rows),
        **_find_spending(run, rows),
    }


def _find_spending(run: DescribedRun, rows: Sequence[Row]) -> SpentFacts:
    """Return the largest spending of any participant, if known."""
    p = run.experiment.budget
    if p is None:
        return {}
    done = [row for row in rows if isinstance(row, PeerRow)]
    epsilon = max((row.epsilon for row in done if row.epsilon is not None), default=None if done else 0.0)
    privacy: PrivacyFacts = {
        "unit": p.unit, "noise": p.noise, "clip": p.clip, "delta": p.delta, "max_epsilon": p.max_epsilon,
        "epsilon": epsilon, "guarantee": guarantee(p.max_epsilon if epsilon is None else epsilon),
    }  # fmt: skip
    return {"epsilon": epsilon, "privacy": privacy}
