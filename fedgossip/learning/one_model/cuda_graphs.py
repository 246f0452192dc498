"""Work on a device that is launched once and replayed: one CUDA graph in place of thousands of launches.

    first call      the parts one after another, uncaptured: they warm up all that a capture must find ready
    then            the same calls once more, captured: this computes nothing
    later calls     the graph, in one launch

A replay reads and writes the same memory as the capture: its inputs and outputs are buffers at fixed places, and no
part reads a number from the device.  After a failed capture calls continue without, part by part.  On the CPU there is
nothing to capture, and the parts are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Part = Callable[[], None]
"""Work on buffers that stay where they are."""

Capture = Callable[[Part], Part]
"""Returns what replays the work.  Raises RuntimeError where it cannot be captured; nothing is computed either way."""


class CapturedWork:
    """Calls `parts` one after another, and replays them once captured.

    `each` calls an uncaptured part: it may repeat one that runs out of memory.  `refused` receives the reason of a
    failed capture, which is not retried.
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
            except RuntimeError as error:  # torch's device errors are kinds of RuntimeError
                self._refused(first_line(error))

    def _all(self) -> None:
        for part in self._parts:
            part()


def first_line(error: Exception) -> str:
    """Return the first line of an error, without torch's advice to programmers."""
    return str(error).partition("\n")[0] or type(error).__name__


def capture_on(device: torch.device) -> Capture | None:
    """Return the capture function of a CUDA device; None for a device without graphs.

    The graphs share a pool for their parts' allocations, so they are replayed one after another, never at once.
    """
    if device.type != "cuda":
        return None
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Part) -> Part:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        drawn = torch.cuda.get_rng_state(device)
        try:
            # thread_local: device operations of other threads of the process are excluded
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
