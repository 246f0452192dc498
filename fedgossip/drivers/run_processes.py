"""The interface of a real run to the processes of its participants, on any machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self


class RunProcesses(Protocol):
    """The processes of a run's participants, on any machine: `PeerProcesses` here, others on the nodes of a cluster. A
    context manager: on exit it ends the remaining ones.
    """

    driver: str
    """Name of the driver in the summary."""
    bind: str
    """Where each participant listens; those elsewhere find out on their nodes."""
    delay: float
    """Maximum delay, in seconds, until a participant's files are visible here."""

    @property
    def exited(self) -> Mapping[int, int | None]:
        """The exit codes of ended processes; None for an unknown code."""
        ...

    def start(self, spec: dict[str, Any]) -> None:
        """Start one participant, or queue its start: `await_addresses` starts all of them."""
        ...

    def signal(self, node: int, number: int) -> None: ...

    def poll(self, timeout: float) -> None:
        """Wait for news, at most `timeout` seconds.  Raises NetworkError where there will be none."""
        ...

    def await_addresses(self, out: Path, folders: Sequence[Path]) -> None:
        """Return once all participants have received the addresses of the others.  Raises FedgossipError."""
        ...

    def stop(self) -> None:
        """Request all to end, and end them; return when none is left."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
