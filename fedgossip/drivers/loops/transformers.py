"""A Trainer of Hugging Face as a loop:  Trainer(..., callbacks=[fedgossip.drivers.loops.transformers.joining()])"""

from __future__ import annotations

from typing import Any

from fedgossip.base.errors import needed
from fedgossip.drivers.loops.joining import join
from fedgossip.drivers.loops.loop_handle import JoinedLoop

OF_THE_TRAINER = ("epoch", "_runtime", "_per_second")
"""Ends of names that a Trainer puts beside the metrics of an evaluation."""


def joining(**how: Any) -> Any:
    """Return a TrainerCallback with the arguments of `fedgossip.join`, which joins at the start of training.

    `step()` follows each optimizer step; metrics of an evaluation go into the record by their names; the Trainer stops
    after the run.  Raises ConfigError without transformers.
    """
    base: Any = needed("transformers", "transformers", "joining()").TrainerCallback

    class JoinedTrainer(base):  # type: ignore[misc]
        peer: JoinedLoop | None = None

        def on_train_begin(self, _args: Any, _state: Any, _control: Any, **parts: Any) -> None:
            self.peer = join(parts["model"], parts["optimizer"], **how)

        def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> Any:
            assert self.peer is not None
            examples = args.per_device_train_batch_size * args.gradient_accumulation_steps
            if not self.peer.step(examples=examples):
                control.should_training_stop = True
            return control

        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            if self.peer is not None and logs and "loss" in logs and not self.peer.done:
                self.peer.log(loss=float(logs["loss"]))

        def on_evaluate(self, _args: Any, _state: Any, _control: Any, metrics: Any = None, **_: Any) -> None:
            if self.peer is not None and metrics and not self.peer.done:
                measured = {name: value for name, value in metrics.items() if not name.endswith(OF_THE_TRAINER)}
                self.peer.log(**measured)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            assert self.peer is not None
            self.peer.close()
            self.peer = None  # not of this run: what `evaluate` measures afterwards

    return JoinedTrainer()
