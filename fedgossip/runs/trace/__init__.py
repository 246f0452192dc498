"""Traces: the events that a machine received, on file, so that a fresh machine can replay them.

It imports `core`.  `files` writes and reads them, `events` takes events apart.  A traced machine writes every (now_ns,
event) before its machine sees it, for received vectors may be used up, and a line per effect after it, vectors by
their hash.  The opening holds the experiment, the first vector, and where its tensors begin, which a plan gives its
machines (`Plan.segments`).  `drivers.replay` reads it.
"""
