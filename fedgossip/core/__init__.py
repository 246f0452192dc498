"""Messages and their frames, events and effects, machines, roles, tasks, and record rows: shared by all rooms.

It imports `base` alone.  A participant is a `machine.Machine`: a peer that receives a neighbour's model gets
`Received`, and returns `Send` for each neighbour and `Train` for its task, whether `simulation` or `net` runs it.

Rules of events and effects:

- All are frozen and hold no reference to themselves; time is integer nanoseconds and always an argument.  The frequent
  ones are msgspec structs with gc=False (`machine`); `dataclasses.replace` fails on these.
- A driver acts on the type of an effect.  It reads nothing of a `Report` (a test reads the drivers' source); the
  properties of event names are in one table, event_kinds.toml.
- Effects are returned and never called: there is no re-entrancy, a test asserts on a list, and a driver commits a
  checkpoint before it sends.
- `Train` is answered by an update, a difference of vectors, or None if nothing changed.  With `gradient` it is
  answered by the mean gradient at the vector over `accumulate` batches: no optimiser takes part, nothing is stored,
  and no low bit is lost, as it would be in (x + u) - x.
- `Stopping` requests the `Leaving` messages and the end.  With `again` a person stops a participant that may be
  started again: a coordinator waits for such a client as for one that crashed.
- A timer's key contains its cause, ("deadline", round): a stale timer no longer matches.
- A machine checks first and assigns after: on a ProtocolError its state is unchanged, and a bad message costs that
  message only.  At the host an unforeseen exception costs one message too (`machine.guarded_handle`); a simulation
  raises it, since it is then a fault of this program.
- A refusal is written once for each cause, with the sender and the reason, and again with its count.
- A machine that ends early returns `Finish` with a `Failure`: the host raises it; a simulation reports it and ends as
  a run of processes does.
- A peer that sent `Leaving` is not awaited.  A host whose Hello differs is reported to the machine as `PeerGone`.

Models of two participants must be equal in layout, and agree in properties outside the layout (`model_fingerprint`)
within a tolerance for other processors; a client can pin them.
"""
