"""Gossip whose models are masked: a neighbour learns the weighted sum alone."""
