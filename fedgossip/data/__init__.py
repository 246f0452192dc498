"""Examples: sources and formats, columns, partitions over peers.  No torch.

`data.load` reads a source by its name; `partitions` divides it over peers; `per_peer` reads a file of each peer's own.
"""
