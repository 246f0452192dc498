"""Drivers run machines: the simulator, local processes, one participant of several machines, replay and resume.

It imports `runs`, `plans`, `simulation`, `net` and all below.  experiment.toml -> topology -> spectral forecast ->
machines and a driver -> records -> run directory -> a report with forecast and measurement.  Drivers branch on a plan's
`roles` and depend on no kind of run.

A real run on one machine (`local`, `peer_processes`): `fork_server` imports torch once and, as long as it has one
thread, forks a peer per node.  Each peer binds a free port and writes endpoint.toml; `local` joins these to the file
for which all wait.  The collector reads peers' rows and snapshots as they grow and feeds the simulator's `Network`
record; on several machines `runs.collect` does.

Stop and resume: after each round a machine returns `Checkpoint`, before its next `Train`.  The host passes it through
the worker's queue, so that the task's memory is of the same round.  Nothing is copied, as vectors are frozen; a thread
writes it every ten seconds and at the end.  The next incarnation is a new machine made from it, with a higher number on
disk before the first Hello.  SIGTERM and SIGHUP act as a Ctrl-C for every command (`signals.as_interrupt`, exit codes
143, 129, 130).

A simulation is written whole between two instants (`sim_checkpoint`, `image_write`, `image_types`): its objects'
attributes, by an encoder that knows fedgossip's classes and calls nothing; values that follow from the experiment are
stored by name.  A new attribute of a machine is included automatically if it is data.  In a run by folder an image of
the participant replaces the events of its journal (`journal_image`).

A forecast (`forecasting`): a plan per graph -> `simulation.probe` or `shadow`; of a run that waits for nobody, the run
with other draws of times and faults (`drawn_runs`) -> forecast.json, written before the run -> the comparison, in the
summary.  The task's memory is restored, so the run's bits do not change.  A lossy run also gets forecast-realised.json.

A saved model (`learning.models.model_files`) is the folder model/, with model.json written last; layers of a node are
in its folder, or in own/.  Replay (`replay`) passes the events of a trace to a fresh machine and reports the first
difference of effects.
"""
