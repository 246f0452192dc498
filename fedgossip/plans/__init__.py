"""An experiment becomes machines and links: plans, tasks, keys, budgets.

It imports `experiment`, `protocols`, `simulation`, `privacy`, `audit` and all below.  A plan (`plan`) is what a driver
must know of a run: participants, links, machines, the summary.  Its `roles` define who learns, whose rounds count, who
is dialled and how, who keeps a signed log; drivers choose by them, and all texts about a run use their words.

Gossip, federation and parallel steps are plans, a line each in `experiment.reading.RUN_KINDS`; `compose` makes the plan
of a file, and no driver knows a kind.  What one participant alone has (identity, roster, policy, its log) is `Own`; a
simulation makes it from the seed.  Everything else of a machine is a `Seat`.

A run that did not do its work is not finished: `completeness` reads never-exchanged partners, uncounted clients, missed
exchanges (`half_missing`) and counting rounds (`lacking`).  The status is then `partial`, the exit code 9, or 7 where
nothing was exchanged.
"""
