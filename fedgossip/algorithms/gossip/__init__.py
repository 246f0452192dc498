"""Gossip methods, a file per paper: a local step and a weighted mean of the neighbours' vectors."""
