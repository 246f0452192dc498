"""`fedgossip run --dry-run`: what a run will be, before anything is trained."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.plans.plan import Plan


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Check everything, and print what is known: the experiment with all defaults, sizes, the forecast."""
    from fedgossip.cli.text import print_json, talk_to_stderr
    from fedgossip.plans import compose

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        task, shares = compose.task_of_dry_run(plan.experiment, plan.learners)
        plan = plan.with_shares(shares)
        last = plan.n - 1
        plan.machine(last, task.initial(last), task.schema, own=plan.simulated(last))
    outlook = plan.outlook(task)
    facts = {
        "n": plan.learners,
        "parameters": task.length,
        "schema": task.schema,
        "examples": shares.sizes,
        "experiment": plan.experiment.to_dict(),
        **outlook.facts,
        "bytes_per_round": outlook.bytes_per_round,
        "bytes_total": outlook.bytes_per_round * plan.experiment.rounds,
    }
    if as_json:
        print_json(facts)
        return
    import tomli_w

    echo(tomli_w.dumps(plan.experiment.to_dict()))
    for line in [*plan.banner, *outlook.lines]:
        echo(f"# {line}")
    total = f"{outlook.bytes_per_round:,} bytes a round, {facts['bytes_total']:,} in all"
    numbers = "1 parameter" if task.length == 1 else f"{task.length:,} parameters"
    echo(f"# {numbers} in {task.dtype.name}: {total}")
    if shares.sizes:
        counted = f"{min(shares.sizes)} to {max(shares.sizes)} each"
        echo(f"# {sum(shares.sizes):,} training examples, {counted}")
    echo("Nothing was trained: this was a dry run.", err=True)
