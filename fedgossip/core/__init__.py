"""Messages and their frames, events and effects, machines, roles, tasks, and the rows of a record: what all share.

It imports `base` alone.  A participant is a `machine.Machine`: a peer that receives a neighbour's model gets
`Received`, and returns `Send` for each neighbour and `Train` for its task, whether `simulation` or `net` runs it.

Rules of events and effects:

- All are frozen and hold no reference to themselves; time is integer nanoseconds and always an argument.  Those of
  which a round has several are msgspec's structs with gc=False (`machine`), on which `dataclasses.replace` fails.
- A driver acts on the type of an effect.  It reads nothing of a `Report` (a test reads the drivers' source); what is
  known of the names of events stands in one table, event_kinds.toml.
- Effects are returned and never called: there is no re-entrancy, a test asserts on a list, and a driver commits a
  checkpoint before it sends.
- `Train` is answered by an update, a difference of vectors, or None where nothing changed.  With `gradient` it is
  answered by the mean gradient at the vector over `accumulate` batches: no optimiser takes part, nothing is stored,
  and no low bit is lost, as it would be in (x + u) - x.
- `Stopping` asks for the goodbye and the end.  With `again` a person stops a participant that may be started again: a
  coordinator waits for such a client as for one that crashed.
- A timer's key carries what made it relevant, ("deadline", round): a stale timer no longer matches.
- A machine checks first and assigns after: on a ProtocolError its state is unchanged, and a bad message costs that
  message only.  At the host an unforeseen exception costs one message too (`machine.guarded_handle`); in a simulation
  it is raised, since the fault is then ours.
- A refusal is written once for each cause, with the sender and the reason, and again with its count.
- A machine that ends before its time returns `Finish` with a `Failure`: the host raises it, and a simulation reports
  it and ends as a run of processes does.
- A peer that sent `Leaving` is not awaited.  A host whose Hello differs is reported to the machine as `PeerGone`.

Models of two participants must be equal in layout, and alike in what no layout shows (`model_fingerprint`), within a
tolerance for other processors; a client can pin it.
"""
