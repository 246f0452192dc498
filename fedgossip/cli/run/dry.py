"""`fedgossip run --dry-run`: the properties of a run, before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedgossip.cli.text import echo

if TYPE_CHECKING:
    from fedgossip.core.task import LocalTask
    from fedgossip.learning.processes.process_memory import ProcessMemory
    from fedgossip.learning.settings import TrainSettings
    from fedgossip.plans.plan import Plan


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Check everything, and print the facts before a run: the experiment with all defaults, sizes, the forecast."""
    from fedgossip.cli.text import print_json, talk_to_stderr
    from fedgossip.core.task import segments_of
    from fedgossip.plans import compose

    with talk_to_stderr() if as_json else contextlib.nullcontext():
        task, shares = compose.task_of_dry_run(plan.experiment, plan.learners)
        plan = plan.with_shares(shares)
        compose.check_task(plan, task)
        plan = plan.with_segments(segments_of(task))
        last = plan.n - 1
        plan.machine(last, task.initial(last), task.schema, own=plan.simulated(last))
    outlook = plan.outlook(task)
    facts = {
        "n": plan.learners,
        "parameters": task.length,
        "schema": task.schema,
        "examples": shares.sizes,
        **({"notes": list(shares.notes)} if shares.notes else {}),
        "experiment": plan.experiment.to_dict(),
        **outlook.facts,
        "bytes_per_round": outlook.bytes_per_round,
        "bytes_total": outlook.bytes_per_round * plan.experiment.rounds,
    }
    memory = _memory_of(plan, task)
    if memory:
        facts["processes"] = [asdict(one) for one in memory]
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
    if memory:
        for line in _describe(memory, plan.experiment.train):
            echo(f"# {line}")
    if shares.sizes:
        counted = f"{min(shares.sizes)} to {max(shares.sizes)} each"
        echo(f"# {sum(shares.sizes):,} training examples, {counted}")
    for note in shares.notes:
        echo(f"# {note}")
    echo("Nothing was trained: this was a dry run.", err=True)


def _memory_of(plan: Plan, task: LocalTask) -> Sequence[ProcessMemory]:
    """Return the memory of a learner's processes, where each has a part of the model."""
    if not plan.experiment.train.in_parts:
        return ()
    from fedgossip.learning.task import TorchTask

    return task.memory if isinstance(task, TorchTask) else ()


def _describe(memory: Sequence[ProcessMemory], train: TrainSettings) -> Iterator[str]:
    """Yield a sentence on the process with the most memory, and one on its machine, on request."""
    most = max(memory, key=lambda one: one.total)
    saved = "activations not counted" if most.activations is None else f"activations {most.activations:,}"
    held = f"parameters {most.parameters:,}, gradients as many, slots {most.slots:,}, {saved}"
    yield f"the fullest of {len(memory)} processes of a learner holds, in bytes: {held}"
    if most.together:
        yield f"train.zero = {train.zero}: between its passes all parameters too, {most.together:,} bytes"
    if train.offload:
        yield "train.offload: parameters, gradients and slots in host memory, page-locked beside a GPU; activations"
        yield "  and the layers that compute on the device.  On a CPU both are one memory: nothing is gained."
