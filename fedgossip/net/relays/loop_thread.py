"""An event loop of asyncio in a thread of its own, for streams beside a participant's links."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from fedgossip.base.guarded_threads import guarded_thread
from fedgossip.net.relays.splice import settled


class LoopThread:
    """Runs until `close`; all methods may be called from any other thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = guarded_thread(self._run, name)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self.loop.is_closed()

    def wait(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Return what `work` returns there.  Raises what it raises, and TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        """Cancel all that runs there, and end the thread; once is enough."""
        if self.closed:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(settled())
