"""Proportional hazards."""
