"""Traces: the events that a machine was told, on file.  `files` writes and reads them, `events` takes events apart."""
