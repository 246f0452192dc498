"""A user's own training loop takes part in a run: `fedgossip.join`, `fedgossip launch`.

It imports `drivers`, `learning.own_loop`, `plans` and `net`.  A loop is a task (`task`): `train(job)` is answered when
the user's thread has called `step()` `local_steps` times; only that thread touches the model.

The update is the loop's model y minus its start; the machine computes `expected` = v + update.  If the next vector is
`expected`, nothing was mixed in, and the loop's bits stay.  Otherwise a waiting loop takes the vector, and one that has
continued training adds the difference.  A loop that ends is reported as `Stopping(over=True)`.

In a simulation each loop is a thread, and process-wide state is exchanged at every switch (`simulating`).
"""
