"""The coordinator of launched loops, a separate process:  python -m fedgossip.drivers.loops.coordinating SEAT"""

from __future__ import annotations

import sys
from pathlib import Path

from fedgossip.base import untrusted_text
from fedgossip.base.errors import FedgossipError
from fedgossip.drivers.kept_keys import load_identity
from fedgossip.drivers.loops import description
from fedgossip.drivers.loops.asked import AskingTask
from fedgossip.drivers.loops.seats import SeatFile, check_launched, hold, read_seat
from fedgossip.drivers.peer import run_peer
from fedgossip.experiment import load_experiment
from fedgossip.net.faulty import Faults, RunClock
from fedgossip.plans import compose
from fedgossip.plans.compose import DataShares, faults_of
from fedgossip.runs.checkpoints import incarnation_of


def coordinate(seat: SeatFile) -> int:
    """Run the coordinator; return the exit code.  The first loop sends the first model, and may measure it."""
    folder = Path(seat.folder)
    plan = compose.plan(load_experiment(Path(seat.experiment)))
    loops = list(range(plan.learners))
    task = AskingTask(description.described(folder.parent / "00"), Path(seat.asked), lambda: loops, "c")
    try:
        check_launched(seat)
        hold(folder)
        ended = run_peer(
            plan,
            seat.node,
            folder,
            identity=load_identity(folder),
            bind=seat.bind,
            endpoints=Path(seat.endpoints),
            child=True,
            resume=incarnation_of(folder) >= 0,
            checkpoint_seconds=seat.checkpoint_seconds,
            faults=Faults(faults_of(plan), seat.node, RunClock(Path(seat.began))),
            learning=(task, DataShares("the loop's own")),
        )
    except FedgossipError as error:
        print(f"error: {untrusted_text.line(error, 1000)}", file=sys.stderr, flush=True)
        return error.exit_code
    return ended.exit_code


if __name__ == "__main__":
    sys.exit(coordinate(read_seat(Path(sys.argv[1]))))
