"""Traces: the events that a machine received, on file, so that a fresh machine can replay them.

It imports `core`.  A traced machine writes (now_ns, event) first, as received vectors may be used up, then a line per
effect, vectors by hash.  The opening holds the experiment, the first vector, and its tensors' places (`Plan.segments`).
`drivers.replay` reads it.
"""
