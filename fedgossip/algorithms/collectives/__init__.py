"""All-reduce as tables: which rank sends which part of its vector to which rank, and how an arriving part is used.

It imports `base`.  A collective is a pure function of the number of workers; one machine (`protocols.allreduce`) runs
any of them.  `names` has the closed forms of bytes and steps, which tests compare with the table for 1 to 64 workers.
"""
