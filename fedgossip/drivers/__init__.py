"""Who runs machines: the simulator, local processes, one participant, replay and resume."""
