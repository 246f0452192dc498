"""Machines: who tells what to whom, and when.  No socket, clock, thread or random source lives here."""
