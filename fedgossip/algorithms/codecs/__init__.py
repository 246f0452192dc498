"""Vectors in fewer bytes, for all-reduce, parameter servers, uploads of clients and CHOCO-SGD.

It imports `base` and `core`: base (what a codec is), casts blocks sparse quantized signs (each a family), low_rank
(PowerSGD), names (all of them), senders (what a sender keeps of what was left out), bits (numbers of a few bits).

A payload is one array of bytes.  Its length follows from (layout, round), so a receiver knows it before anything is
allocated, and no codec chooses a length of its own.  A half that is too large is cut, and the rest is sent later, in
place of a dense payload.  A codec is a value without memory: the sender's memory is in `senders`.

`top-k:0.01`: `size` gives the bytes of every payload, `encode` the largest elements with their indices; the receiver
checks the length and each index, and `decode` returns a vector [d] with zeros elsewhere.
"""
