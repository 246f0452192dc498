"""A model with all documents for a responsible board, as one signed file: made from a run, and checked anywhere.

It imports `plans`, `report` and `audit`; `gathering` reads only files: run directory, evaluation, plan, approvals,
logs.  The archive's comment, the end of the file, is key and signature of all bytes before it (`released`).  Checking
(`checking`) imports neither torch nor matplotlib, and verifies others' signed lines again, since the maker of a release
may sign anything.

A fit's folder is also a run directory; its model is tensors, trees, or the fit itself.
"""
