"""Commands that run an experiment, take part in a run, or show one.

It imports `drivers`, `report` and `runs`.  `fedgossip peer FILE` reads the experiment and the endpoints, makes the
participant (`participant`) and runs it by `drivers.peer`.
"""
