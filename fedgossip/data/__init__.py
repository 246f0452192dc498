"""Examples: sources and formats, columns, partitions over peers.

It imports `base` and `core`, and no torch.  `data.load` reads a source by its name; `partitions` divides it over peers,
or reads each peer's file; `objectives` has the losses and metrics of a kind of task.

    load("csv:patients.csv?label=sick")    `tables` reads the file, checks each cell, and returns a `Dataset`
    split(dataset, 0.2, seed)              training and test set, every class in both
"""
