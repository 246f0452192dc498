"""Proportional hazards: Cox's regression, with Breslow's or Efron's treatment of ties.

A fit (`sites.plans.fits`, `cox_steps`) takes two sums for each step of Newton's method: over the records at risk at
each agreed time, and, with the hazards that follow, one matrix over all records.  Unlike in `glm` the state is sent to
the sites, as trees are: sites receive the point and the hazards, the coordinator alone the sums over those at risk,
and a converged fit ends the run. The matrix counts for the sites whose sums came before it; otherwise the point is
asked about again.
"""
