"""Secure sums inside other frameworks: their transport carries the frames of `fedgossip.secure`.

It imports `secure` and `base`.  Each file is for one framework, which it imports; nothing else here imports the file.

    flower.py        Flower's Message API: a mod of the ClientApp, and a strategy around a strategy
"""
