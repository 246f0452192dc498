"""Training of one model by torch, with the same bits in every run: batches, optimisers, precision, scores.

It imports `data`, `learning.settings` and torch.  A job: `weights` copies the vector into the module, `batches` draws
the rows, `module_engine` takes the steps of `optimizers`, and the update is read by the layout of `flat`.

GPUs: examples are stored on the device if they fit, else a thread prepares batches (`loading`).  Clients on one GPU
take turns through locked files, several at once if its memory suffices (`sharing`).  The host waits for a GPU only at
the ends of a job (tests/learning/test_device_waits.py).  A step of a model that trains alone is captured and replayed
(`captured_steps`).
"""
