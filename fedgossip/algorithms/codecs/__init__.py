"""Vectors in fewer bytes, for all-reduce, parameter servers, uploads of clients and CHOCO-SGD.

It imports `base` and `core`: base (the interface), casts blocks sparse quantized signs (each a family), low_rank
(PowerSGD), names, senders (error memory), bits (numbers of a few bits).

A payload is one array of bytes whose length follows from (layout, round): a receiver knows it before anything is
allocated.  A codec is a value without memory.  `top-k:0.01`: `encode` gives the largest elements with their indices;
the receiver checks the length and each index.
"""
