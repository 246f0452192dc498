"""Runs of secure sums: the plan of each kind of fit, of statistics and of an evaluation."""
