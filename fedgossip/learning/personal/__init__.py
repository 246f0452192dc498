"""Personal models: a separate model at each participant, in addition to the exchanged one.

It imports `core`, `base` and `learning.settings`; only numpy.  A method (`base.PersonalMethod`, `methods.METHODS`)
defines how the models are trained, what is sent, and the model that predicts.  `personal_task.PersonalTask` wraps any
task with a method.

Ditto: `PersonalTask.train` trains the received w by the wrapped task, whose update is sent; then the node's model v
with the pull of lambda to w.  v is part of the node's state, and the node is tested with v.
"""
