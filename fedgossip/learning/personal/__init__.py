"""Personal models: a model of its own at each participant, beside what it exchanges with the others.

It imports `core`, `base` and `learning.settings`; numpy alone.  A method (`base.PersonalMethod`) says what is trained
with what, what is sent, and with which model a participant answers; a file has the methods of one kind, `names` their
table.  `personal_task.PersonalTask` wraps any task with a method, so clients and gossip peers, in all drivers, train
and send as before.

Ditto at node 3, round r: the machine returns Train(job, w); `PersonalTask.train` trains w by the wrapped task, whose
update is sent; then it trains the node's own v with the pull of lambda to w.  v is part of the node's state, so that a
checkpoint has it, and it is what the node is tested with.
"""
