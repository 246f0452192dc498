"""No thread of ours dies unnoticed: what it served would be waited for, for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedgossip
from fedgossip.base.guarded_threads import FAULT, guarded_thread


def test_a_thread_that_fails_ends_the_process_with_a_code_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    def fails(what: str) -> None:
        raise ZeroDivisionError(what)

    thread = guarded_thread(fails, "connections", "by zero")
    thread.start()
    thread.join(10)
    said = capsys.readouterr().err
    assert codes == [FAULT] and "ZeroDivisionError: by zero" in said and "the thread connections failed" in said


def test_each_thread_has_a_guard_or_hands_on_what_it_raises() -> None:
    root = Path(fedgossip.__file__).parent
    bare = {str(path.relative_to(root)) for path in root.rglob("*.py") if "threading.Thread(" in path.read_text()}
    loops = {"drivers/loops/joining.py", "drivers/loops/simulating.py"}  # to the loop, and to the simulation
    assert bare == {"base/guarded_threads.py", *loops}
