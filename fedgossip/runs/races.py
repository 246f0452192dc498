"""What a summary tells of a run whose processes did not wait for each other (Hogwild!)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgossip.core.records import PeerRow, Row
from fedgossip.experiment import Experiment
from fedgossip.learning.processes.lost_updates import LOST
from fedgossip.learning.settings import HOGWILD


def race_facts(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """Return that no other run has its bits, and the share of updates that were lost, where they were counted."""
    if experiment.train.parallel != HOGWILD:
        return {}
    logged = [row.logged.get(LOST) for row in rows if isinstance(row, PeerRow) and row.logged]
    counted = [share for share in logged if share is not None]
    return {"identical": False, **({LOST: sum(counted) / len(counted)} if counted else {})}
