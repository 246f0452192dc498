"""Proportional hazards: Cox's regression, with Breslow's or Efron's treatment of ties.

A fit takes two sums per Newton step (`cox_steps`): over the records at risk at each agreed time, and, with the
resulting hazards, one matrix over all records.  Sites receive the point and the hazards; only the coordinator receives
the sums over records at risk.  The matrix must be of the same sites as the sums before it.
"""
