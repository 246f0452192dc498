"""What all participants share: messages and their frames, events and effects, roles, tasks, and the rows of a record.

A participant is a `machine.Machine`: it receives events and returns effects.  A peer that receives a neighbour's
model gets `Received`, and returns `Send` for each neighbour and `Train` for its task; who runs it (`simulation`,
`net`) is unknown here.
"""
