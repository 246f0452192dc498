"""A model with all that a board needs to answer for it, as one signed file: made of a run, and checked anywhere.

It imports `plans`, `report` and `audit`; `gathering` reads files alone: run directory, evaluation, plan, approvals,
logs.  The archive's comment, the end of the file, is key and signature of all bytes before it (`released`).  Checking
(`checking`) imports neither torch nor matplotlib, and verifies others' signed lines again, since the maker of a release
may sign anything.

A fit's folder is a run directory too; its model is tensors, trees, or the fit itself.
"""
