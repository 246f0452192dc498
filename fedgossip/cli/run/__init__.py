"""Commands that run an experiment, take part in a run, or look at one."""
