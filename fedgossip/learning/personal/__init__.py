"""Personal models: a model of its own at each participant, beside what it exchanges with the others.

It imports `core`, `base` and `learning.settings`; numpy alone.  A method (`base.PersonalMethod`, `methods.METHODS`)
defines what is trained with what, what is sent, and which model answers.  `personal_task.PersonalTask` wraps any task
with a method.

Ditto: `PersonalTask.train` trains the received w by the wrapped task, whose update is sent; then the node's own v with
the pull of lambda to w.  v is part of the node's state, and it is tested with v.
"""
