"""A training loop of the user's own takes part in a run: `fedgossip.join`, `fedgossip launch`.

It imports `drivers`, `learning.own_loop`, `plans` and `net`.  A loop is a task (`task`): `train(job)` is answered when
the user's thread has called `step()` `local_steps` times.  The host runs in a thread beside it, and only the user's
thread touches the model (`task`).

The loop hands in its model y; the update is y minus the vector that it began with, so the machine computes `expected`
= v + update.  If its next vector is `expected`, nothing was mixed in, and the loop's bits stay.  Otherwise a loop that
waits takes the vector, and one that has trained on (asynchronous) adds the difference.  A loop that ends is reported
to its machine as `Stopping(over=True)`: leave as after the last round.

In a simulation each loop is a thread, and the simulator passes control (`simulating`).  Process-wide state (random
states, threads, environment, of scripts `__main__` and the modules beside it) is exchanged at every hand-over.
"""
