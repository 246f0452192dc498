"""Sites that share sums: statistical models, joint evaluation, and releases.

It imports the core; the core never imports it.  `plans` turns an experiment into a run of secure sums; `fits` defines
the sums, and solves for the estimates; `evaluation` measures a model; `releases` signs it.

`fedgossip fit EXPERIMENT`: `plans.fits` makes a federated plan of exact sums, each site's task replies to a round with
its sums, and all compute the same fit.json.
"""
