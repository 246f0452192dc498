"""Training of one model by torch, the same bits each time: batches, optimisers, precision, scores.

It imports `data`, `learning.settings` and torch.  A job: `weights` copies the vector into the module, `batches` draws
the rows, `module_engine` takes the steps of `optimizers`, and the update is read by the layout of `flat`.

GPUs: examples lie on the device where they fit, else a thread prepares batches (`loading`).  Clients on one GPU take
turns by locked files, as many as its memory holds (`sharing`).  The host waits for a GPU at the ends of a job alone
(tests/learning/test_device_waits.py).  A step of a model that trains alone is captured and replayed (`captured_steps`).
"""
