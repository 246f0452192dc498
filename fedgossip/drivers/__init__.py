"""Drivers run machines: the simulator, local processes, one participant of several machines, replay and resume.

It imports `runs`, `plans`, `simulation`, `net` and all below.  An experiment: experiment.toml -> topology -> spectral
forecast -> machines and a driver -> records -> run directory -> a report with the forecast and the measurement in one
figure.  Drivers choose by a plan's `roles` and know no kind of run.

A real run on one machine (`local`, `peer_processes`).  `fork_server` imports torch once and forks a peer per node, as
long as it has one thread; where a library has started another, a peer is a fresh interpreter.  `fedgossip run` starts
it as soon as the experiment is read, so that both processes import at once; a refused run ends it.  Each peer binds a
free port and writes endpoint.toml; `local` joins these to the file for which all wait.  Peers write rows, and snapshots
of evaluated rounds; the collector reads them as they grow and feeds the same `Network` record that the simulator
feeds.  On several machines people do by hand what `local` does, and `runs.collect` does what the collector does.

Stop and resume.  After each round a machine returns `Checkpoint`, before its next `Train`.  The host passes it through
the worker's queue, so that the task's memory is of the same round.  Nothing is copied, for vectors are frozen and a
task replaces its memory; a thread of its own writes it every ten seconds and at the end.  A next life is a new machine
made from it, with a higher incarnation that is on disk before the first Hello (`protocols.transfer` has a life without
a checkpoint).  SIGTERM and a closed terminal (SIGHUP) are a Ctrl-C for every command (`signals.as_interrupt`, exit
codes 143, 129, 130).  A peer without a last row has died, unless it had not ended when the run was stopped.

A simulation is written whole between two instants (`sim_checkpoint`): its objects' attributes, by an encoder that
knows fedgossip's classes and arrays and calls nothing (`image_write`, `image_types`); what follows
from the experiment is stored by name.  A new attribute of a machine is included by itself, as long as it is data: no
lambda, no generator.  A round of resident models that fails leaves nothing to go on from, so no image is taken then.

A forecast (`forecasting`).  A plan for each graph -> `simulation.probe` or `shadow` -> `forecasts.RunForecast` ->
forecast.json, written after INCOMPLETE and before everything else -> the run -> the comparison, in the summary.  The
task's memory is restored, so the run has its bits.  After a run that lost something the forecast of what was mixed is
forecast-realised.json.

A model to be used (`learning.models.model_files`).  A driver requests the whole model of a vector from the task, and
writes it as model/, with model.json last.  `load_model` makes the module again from its source, by the
copy of the user's own modules and no other of that name, and fills in every parameter and buffer.  Layers that stay at
a node are in that node's folder, or in own/.

Replay (`replay`) gives a fresh machine the events of a trace (`runs.trace`) and names the first event after which the
effects differ; so the bits of an asynchronous run can be reproduced.
"""
