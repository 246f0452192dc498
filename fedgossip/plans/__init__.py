"""An experiment becomes machines and links: plans, tasks, keys, budgets.

It imports `experiment`, `protocols`, `simulation`, `privacy`, `audit` and all below.  A plan (`plan`) is what a driver
must know of a run: who takes part, who sends to whom, what a machine is made of, what the summary holds.  Its `roles`
name the participants and say who learns, whose rounds and vectors count, who is dialled and over which transport, who
keeps a signed log.  Drivers choose by them, and all texts about a run take their words from them: out of roles.json
while it goes on, out of the summary afterwards.

Gossip, federation and parallel steps are plans, a line each in `experiment.reading.RUN_KINDS`: `compose` reads the
file's kind and makes the plan; the simulator, local processes, peers, resume and replay know none of them.  A report
and a watched run have pages of their own for a run with a leader, and for graphs.  What one participant alone has
(identity, roster, policy, the lines of its log) is `Own`: `Credentials`, or pairs of keys; a simulation makes it from
the seed.  Everything else that a machine is made of beside the plan is a `Seat`.

A run that did not do its work is not finished.  `completeness` reads the rows of never-exchanged partners, of clients
that were never counted, of participants that missed half of their exchanges in a synchronous run (`half_missing`, also
reported while the run goes on), and of rounds that counted (`lacking`): of a participant for its own last row, of all
for the run.  Then the status is `partial` and the exit code 9, or 7 where nothing at all was exchanged.
"""
