"""From an experiment to machines and links: plans, tasks, keys, budgets.

It imports `experiment`, `protocols`, `simulation`, `privacy`, `audit` and all below.  A plan (`plan`) has all that a
driver needs for a run: participants, links, machines, the summary.  Its `roles` define the learners, the participants
with counted rounds, the dialled ones with their addresses, and the owners of a signed log.  Drivers branch on roles
only, and all texts about a run use their words.

Gossip, federation and parallel steps are plans, with one line each in `experiment.reading.RUN_KINDS`; `compose` makes
the plan of a file, and no driver depends on a kind of run.  `Own` holds what only one participant has (identity,
roster, policy, log); a simulation derives it from the seed.  `Seat` holds all other inputs of a machine.

`completeness` detects runs that did not do their work: partners that never exchanged, clients that never counted,
missed exchanges (`half_missing`), and too few counted rounds (`lacking`).  The status is then `partial` and the exit
code 9, or 7 if nothing was exchanged.
"""
