"""Schedules: another graph in each round."""
