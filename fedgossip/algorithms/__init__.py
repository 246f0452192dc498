"""The mathematics of one round, written once, for one peer's vectors [d] and for all peers' [n, d]."""
