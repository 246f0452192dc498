"""A Trainer of Lightning as a loop:  Trainer(..., callbacks=[fedgossip.drivers.loops.lightning.joining()])"""

from __future__ import annotations

from typing import Any

from fedgossip.base.errors import needed
from fedgossip.drivers.loops.joining import join
from fedgossip.drivers.loops.loop_handle import JoinedLoop


def joining(**how: Any) -> Any:
    """Return a Callback with the arguments of `fedgossip.join`, which joins at the start of training.

    `step()` follows each optimizer step; metrics of a validation go into the record by their names; the Trainer stops
    after the run.  Raises ConfigError without lightning.
    """
    base: Any = needed("lightning.pytorch", "lightning", "joining()").Callback

    class JoinedModule(base):  # type: ignore[misc]
        peer: JoinedLoop | None = None
        steps = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.peer, self.steps = join(module, list(trainer.optimizers), **how), trainer.global_step

        def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, batch: Any, _index: int) -> None:
            assert self.peer is not None
            if isinstance(outputs, dict) and "loss" in outputs and not self.peer.done:
                self.peer.log(loss=outputs["loss"])
            if trainer.global_step == self.steps:  # gradients are still being gathered
                return
            self.steps = trainer.global_step
            if not self.peer.step(examples=_examples(batch) * trainer.accumulate_grad_batches):
                trainer.should_stop = True

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            if self.peer is not None and not self.peer.done:
                self.peer.log(**{name: value for name, value in trainer.callback_metrics.items() if name != "loss"})

        def on_train_end(self, _trainer: Any, _module: Any) -> None:
            assert self.peer is not None
            self.peer.close()
            self.peer = None  # not of this run: what `validate` measures afterwards

        def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
            if self.peer is not None:
                self.peer.leave(exception)

    return JoinedModule()


def _examples(batch: Any) -> int:
    """Return the number of examples in a batch: the length of its first tensor."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    first = parts[0] if isinstance(parts, list | tuple) else parts
    return len(first) if hasattr(first, "__len__") else 1
