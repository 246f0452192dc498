"""Differential privacy of single records: clipped gradients of each example, and noise."""
