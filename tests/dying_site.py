"""python tests/dying_site.py ROUND fit ...: the command, whose site kills itself (SIGKILL) in that round of sums."""

from __future__ import annotations

import os
import signal
import sys

from fedgossip.cli import main
from fedgossip.data.agreed.sums_task import SumsTask

if __name__ == "__main__":
    last, train = int(sys.argv.pop(1)), SumsTask.train

    def dying(self, jobs):  # type: ignore[no-untyped-def]
        if any(job.round >= last for job in jobs):
            os.kill(os.getpid(), signal.SIGKILL)
        return train(self, jobs)

    SumsTask.train = dying  # type: ignore[method-assign]
    main()
