"""Vectors in fewer bytes: base (what a codec is), casts blocks sparse quantized signs (each a family), names (all of
them), senders (what one that sends remembers of what was left out), bits (numbers of a few bits side by side)."""
