"""Proportional hazards: Cox's regression, with Breslow's or Efron's treatment of ties.

A fit takes two sums per Newton step (`cox_steps`): over the records at risk at each agreed time, and, with the hazards
that follow, one matrix over all records.  Sites receive the point and the hazards, the coordinator alone the sums over
those at risk.  The matrix counts for the sites of the sums before it.
"""
