"""Work on a device that is launched once and replayed: one CUDA graph in place of thousands of launches.

    first call      the parts one after another, as they are: they warm up what a capture must find ready
    then            the same calls once more, captured: nothing is computed by that
    later calls     the graph, in one launch

What is replayed reads and writes the memory that it did when it was captured: its inputs and outputs are buffers that
stay where they are, and no part asks the device for a number.  Where a capture fails it goes on without, part by part.
On the CPU there is nothing to capture, and the parts are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Part = Callable[[], None]
"""Work on buffers that stay where they are."""

Capture = Callable[[Part], Part]
"""Returns what replays the work.  Raises RuntimeError where it cannot be captured; nothing is computed either way."""


class CapturedWork:
    """Calls `parts` one after another, and replays them as soon as they are captured.

    `each` calls a part that is not captured: one that runs out of memory, say, once more.  `refused` is told why a
    capture failed; it is not tried again.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        capture: Capture | None,
        refused: Callable[[str], None],
        each: Callable[[Part], None] = lambda part: part(),
    ) -> None:
        self._parts, self._capture, self._refused, self._each = tuple(parts), capture, refused, each
        self._replay: Part | None = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        for part in self._parts:
            self._each(part)
        if self._capture is not None:
            capture, self._capture = self._capture, None
            try:
                self._replay = capture(self._all)
            except RuntimeError as error:  # of which torch's own errors of a device are kinds
                self._refused(first_line(error))

    def _all(self) -> None:
        for part in self._parts:
            part()


def first_line(error: Exception) -> str:
    """Return what an error says, without the advice to programmers that torch puts behind it."""
    return str(error).partition("\n")[0] or type(error).__name__


def capture_on(device: torch.device) -> Capture | None:
    """Return what captures work on a CUDA device; None for a device that has no graphs.

    The graphs share a pool for what their parts allocate, so they are replayed one after another, never at once.
    """
    if device.type != "cuda":
        return None
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Part) -> Part:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        drawn = torch.cuda.get_rng_state(device)
        try:
            # thread_local: what other threads of the process do on the device is no part of it
            with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                work()
        except Exception:
            torch.cuda.set_stream(stream)  # torch leaves both as the capture had them
            _draw_again(device, drawn)
            raise
        return graph.replay

    return capture


def _draw_again(device: torch.device, drawn: torch.Tensor) -> None:
    """Let the device's generator draw from this state on, outside of captures again."""
    fresh = torch.Generator(device)
    fresh.set_state(drawn)
    torch.cuda.default_generators[device.index or 0].graphsafe_set_state(fresh)
