"""Vectors in fewer bytes, for all-reduce, parameter servers, uploads of clients and CHOCO-SGD.

It imports `base` and `core`: base (the interface), sparse and quantized (families of codecs), low_rank (PowerSGD),
names, senders (error memory).

A payload is one array of bytes.  Its length follows from (layout, round), so a receiver computes it before it
allocates.  A codec is a value without memory.  `top-k:0.01`: `encode` returns the largest elements with their indices;
the receiver checks the length and each index.
"""
