"""Secure sums inside other frameworks: their transport carries the frames of `fedgossip.secure`.

It imports `secure` and `base`.  Each file but `exchange` is for one framework, which it imports; nothing else here
imports the file.

    exchange.py      the common handling of a model's arrays and the replies of a stage
    flower.py        Flower's Message API: a mod of the ClientApp, and a strategy around a strategy
    nvflare.py       NVFlare: an executor around an executor, and a base of controllers of models
"""
