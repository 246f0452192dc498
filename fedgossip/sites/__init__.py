"""Sites that share sums: statistical models, joint evaluation, and releases.  Imports the core; the core never imports
it.

`plans` makes a run of secure sums of an experiment; `fits` says which sums, and solves for the estimates.
"""
