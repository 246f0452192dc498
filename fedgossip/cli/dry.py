"""`fedgossip run --dry-run`: what a run will be, before anything is trained."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedgossip.plans.federation import FederationPlan
    from fedgossip.plans.plan import Plan
    from fedgossip.task import LocalTask


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Check everything, and print what is known: the experiment with all defaults, sizes, the forecast."""
    from fedgossip.cli.text import print_json, talk_to_stderr
    from fedgossip.plans import compose

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        task, shares = compose.task_of(plan.experiment, plan.learners)
        plan = plan.with_shares(shares)
        last = plan.n - 1
        plan.machine(last, task.initial(last), task.schema, own=plan.simulated(last))
    own, lines = _federation(plan, task) if isinstance(plan, compose.FederationPlan) else _gossip(plan, task)
    facts = {
        "n": plan.learners,
        "parameters": task.length,
        "schema": task.schema,
        "examples": shares.sizes,
        "experiment": plan.experiment.to_dict(),
        **own,
        "bytes_total": own["bytes_per_round"] * plan.experiment.rounds,
    }
    if as_json:
        print_json(facts)
        return
    import tomli_w

    echo(tomli_w.dumps(plan.experiment.to_dict()))
    for line in [*plan.banner, *lines]:
        echo(f"# {line}")
    total = f"{own['bytes_per_round']:,} bytes a round, {facts['bytes_total']:,} in all"
    echo(f"# {task.length:,} parameters in {task.dtype.name}: {total}")
    if shares.sizes:
        counted = f"{min(shares.sizes)} to {max(shares.sizes)} each"
        echo(f"# {sum(shares.sizes):,} training examples, {counted}")
    echo("Nothing was trained: this was a dry run.", err=True)


def _gossip(plan: Plan, task: LocalTask) -> tuple[dict[str, Any], Sequence[str]]:
    from fedgossip.messages import Model
    from fedgossip.plans import compose
    from fedgossip.wire import wire_bytes

    assert isinstance(plan, compose.GossipPlan)
    forecast = plan.forecast
    size = wire_bytes(Model(0, task.schema, (task.initial(0),) * plan.vectors))
    lines = [f"{plan.n} peers, {len(plan.topology.edges)} links"]
    if plan.schedule.period != 1 and forecast.exact_after:
        lines.append(f"the exact mean after {forecast.exact_after} rounds, for they change and complete each other")
    if forecast.slem is not None and forecast.n_w is not None:
        halved, gone = _rounds(forecast.rounds_to_halve), _rounds(forecast.rounds_to_1_percent)
        gap = f"gap {1 - forecast.slem:.6f}, n_W({forecast.gamma}) {forecast.n_w:.2f}"
        lines.append(f"{gap}; disagreement falls to a half {halved}, to 1 % {gone}")
    return {"forecast": forecast.to_dict(), "bytes_per_round": int(size * forecast.messages * plan.n)}, lines


def _federation(plan: FederationPlan, task: LocalTask) -> tuple[dict[str, Any], Sequence[str]]:
    vector = task.length * task.dtype.itemsize * plan.vectors
    words = plan.masked(task.length)
    up = 4 * words if words else vector
    beside = ", beside the keys and shares of the secure sum" if words else ""
    lines = [f"{up:,} bytes up and {vector:,} down per client and round{beside}", *_budget(plan)]
    facts = {"clients": plan.learners, "cohort": plan.cohort, "secure": plan.secure, "threshold": plan.threshold}
    return {**facts, "bytes_per_round": plan.cohort * (up + vector)}, lines


def _budget(plan: FederationPlan) -> list[str]:
    from fedgossip.plans.privacy_outlook import outlook
    from fedgossip.privacy.wording import rounds

    return [] if plan.unit == "none" else [f"of the budget of privacy: {rounds(outlook(plan))}"]


def _rounds(count: int | None) -> str:
    """A number of rounds in words; None is never."""
    if count is None:
        return "never"
    return "in 1 round" if count == 1 else f"in {count:,} rounds"
