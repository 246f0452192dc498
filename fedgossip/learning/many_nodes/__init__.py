"""Training of many simulated nodes at once, as rows of one array, with the bits of one model alone.

It imports `one_model`, `learning.settings` and torch; `simulation.resident_rounds` calls it through
`core.metrics`.

A job of 64 nodes: `job_blocks` groups jobs, `stacked_engine` trains a stack of linear layers by batched products,
`job_blocks` any other module on a GPU, up to 64 jobs in one gradient: vmap of grad of functional_call, over rows [k,
trained], on which optimisers are elementwise.  Batches are grouped by size and not padded, so that BatchNorm sees what
it would see alone. Dropout is refused: its masks would not be the loop's.  Whatever the stack raises, the loop trains
those jobs again, and the task reports it (`ReportingTask`).

On the CPU (`resident`) models stay in the layout in which products read them, once in memory.
Training copies a block of nodes, lets the copy take the local steps and adds the changes.  Mixing scales some columns
of all nodes into a buffer, sums rows there (embedding_bag, which adds term after term) and writes them back, so that a
row passes through memory once, however many neighbours receive it.

On a GPU (`device_stack`) models stay on the device.  A training that runs out of memory begins again
with smaller blocks, since a round goes from `models` to `trained`.  From the second round on it is one CUDA graph for
each mixing of a graph that repeats, 16 at most.  Indices of batches go there in one copy; losses return with the rows,
the disagreement in watched rounds, models in evaluated ones; `Stack.settle` copies everything back before an image is
taken.  On a CPU the same code is tested to the bit: a tensor without numbers (meta) shows that a round reads nothing
back, and a stand-in what is captured and replayed.
"""
