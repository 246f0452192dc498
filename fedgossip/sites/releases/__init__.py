"""A model with all that a board needs to answer for it, as one signed file: made of a run, and checked anywhere.

It imports `plans`, `report` and `audit`, and is made of files alone (`gathering`): run directory, evaluation, plan,
approvals, logs. The archive's comment, the end of the file, is key and signature of all bytes before it
(`released`), so that no byte is outside of the signature and any zip program reads it.  Checking (`checking`)
imports neither torch nor matplotlib.  Lines that others have signed are verified again, by `audit` and
`plans.approvals.approvals`, since the maker of a release may sign anything.

The folder of a fit is a run directory too, written when the sums are there: plan, rows and summary, of a simulation as
it was, at a coordinator of what its own folder has.  So a release of it takes the same way; the model is tensors,
trees, or the fit itself.
"""
