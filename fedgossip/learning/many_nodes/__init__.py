"""Training of many simulated nodes at once, as rows of one array, with the same bits as one model alone.

It imports `one_model`, `learning.settings` and torch; `simulation.resident_rounds` calls it through `core.metrics`.

`job_blocks` groups jobs.  `stacked_engine` trains stacks of linear layers by batched products.  On a GPU any other
module is trained up to 64 jobs at a time (vmap of grad of functional_call, rows [k, trained]).  Batches are grouped by
size and not padded, as BatchNorm requires; dropout is refused, as its masks would differ.  Jobs that a stack cannot
train are trained again by the loop and reported (`ReportingTask`).

On the CPU (`resident`) models stay in the memory layout of the products.  Mixing scales some columns of all nodes into
a buffer and sums rows there (embedding_bag, term after term), so a row is read from memory once.

On a GPU (`device_stack`) models stay on the device; from the second round on a round is one CUDA graph per mixing of a
repeating schedule, 16 at most.  Losses are returned with the rows, the disagreement in watched rounds, models in
evaluated ones; `Stack.settle` copies everything back before a checkpoint.
"""
