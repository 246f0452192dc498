"""Training of one model by torch, the same bits each time: batches, optimisers, precision, scores.

It imports `data`, `learning.settings` and torch.  A job: `weights` copies the vector into the module, `batches` draws
the rows, `module_engine` takes the steps of `optimizers`, and the update is read back by the layout of `flat`.

GPUs (tests that need one are marked gpu).  Examples lie on the device where they fit; otherwise a thread prepares the
next batches in host memory, on CUDA through pinned buffers and a stream of its own; a batch is the same rows either
way (`loading`). Clients on one GPU take turns by locked files: as many at once as the free memory holds of the
measured peak; a job that runs out of memory is trained again alone, then in pieces (`sharing`).  The
host waits for a GPU at the ends of a job, not between its steps (tests/learning/test_device_waits.py counts the
waits).

Captured steps (`captured_steps`): the step of a model that trains alone is captured once and replayed.  The
optimiser's memory and a client's terms stay at the addresses of the job before (`module_engine`), and a replay reads
its batch and its rates from buffers.  Python does not run in a replay, so the first steps are checked against the
ordinary ones: to refuse captures of modules that might remember something would refuse a client's own module, the
usual case.  Recurrent weights are copies of the flat tensor, in the one piece that cuDNN requires.
"""
