"""The simulator of a run: machines, virtual network and faults; of a run that is kept, and of one that forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgossip.base.kernels import uncollected
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import Checkpoint, Machine, NodeId
from fedgossip.core.metrics import Network
from fedgossip.core.records import Row
from fedgossip.core.task import LocalTask
from fedgossip.core.timeline import TimelineLog
from fedgossip.faults import FaultScript
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares, Plan, network_settings
from fedgossip.plans.plan import Results
from fedgossip.simulation.network import VACANT, SimulatedNetwork
from fedgossip.simulation.simulator import Simulator


@uncollected()
def build_simulator(
    plan: Plan,
    script: FaultScript,
    task: LocalTask,
    initial: Sequence[Vector],
    record: Network,
    write: Callable[[Row], None],
    shares: DataShares,
    timeline: TimelineLog,
    draws: int | None = None,
) -> tuple[Simulator, Callable[[Callable[[], None]], Results], Mapping[str, object]]:
    """Return the simulator of a run, the function that finishes it, and its objects that follow from the experiment.

    `write` takes the rows; the function's argument is called between two instants.  `draws`: the seed of the network's
    and the devices' draws; None: the experiment's.
    """
    step = compose.step_inside(plan.experiment, task)
    seed = plan.experiment.seed if draws is None else draws
    network = SimulatedNetwork(network_settings(plan.experiment, plan.n, step), plan.n, seed)
    restarts = False
    if script.restarts:
        from fedgossip.plans.gossip.gossip import peer_of, recovers

        restarts = recovers(plan)

    def seat(node: NodeId) -> Machine:
        if restarts:
            return peer_of(plan, node, initial[node], task.schema)
        return plan.machine(node, initial[node], task.schema, own=plan.simulated(node))

    vacant = plan.vacant
    machines = [VACANT if node in vacant else seat(node) for node in range(plan.n)]
    links = [plan.partners(node) for node in range(plan.n)]
    soon = plan.shorten_start()

    def rebirth(node: NodeId, incarnation: int, saved: Checkpoint | None) -> Machine:
        if restarts:
            return peer_of(soon, node, initial[node], task.schema, saved, incarnation=incarnation)
        own = plan.simulated(node, incarnation, simulator.logs.get(node, ()))
        return soon.machine(node, initial[node], task.schema, saved, incarnation=incarnation, own=own)

    timed = network.settings.per_example is not None
    examples = compose.job_examples(plan.experiment, shares.sizes) if timed else None
    run = machines, links, task, network, record, write
    given: dict[str, Any] = {"rebirth": rebirth, "examples": examples, "timeline": timeline}
    simulator = Simulator(*run, script=script, seat=seat if vacant else None, **given)

    def finish(between: Callable[[], None]) -> Results:
        vectors = simulator.run(between=between)
        there = [vectors.get(node) for node in range(plan.n)]
        return Results(there, simulator.counts, simulator.failures, simulator.payload, simulator.checkpoints)

    made = {"script": script, "rebirth": rebirth, "seat": seat, "vacant": VACANT, "timeline": timeline}
    return simulator, finish, made
