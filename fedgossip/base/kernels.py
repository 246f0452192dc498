"""Tuning of a process before torch is imported: its kernels, memory and imports.

Torch's libraries read the environment at their first computation; `prefer` sets their kernels before:

    reproducible   MKL_CBWR=AUTO: the bits of a product do not depend on others in the call.  The default, since an
                   update depends on its job alone; without it MKL rounds some odd shapes differently in a batch of one
                   (observed on an AMD EPYC with AVX-512; the mode has no measurable cost).
    portable       MKL_CBWR=COMPATIBLE and ATEN_CPU_CAPABILITY=avx2: the same bits on different x86-64 processors, for
                   experiments with train.portable; `learning.one_model.devices` does the rest.

Importing `fedgossip` calls `prepare` before any other module, in every process.  A user's value is kept, except in
portable runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os  # others are imported at their use, so that importing fedgossip is cheap
import sys
from collections.abc import Iterator
from functools import cache

MKL, ATEN = "MKL_CBWR", "ATEN_CPU_CAPABILITY"
REPRODUCIBLE = {MKL: "AUTO"}
PORTABLE = {MKL: "COMPATIBLE", ATEN: "avx2"}

AUTO, COMPATIBLE = 2, 3
"""MKL's numbers for its modes; 1: no mode."""

X86 = ("x86_64", "AMD64")

_usual: dict[str, str] = {}
"""The environment of runs that are not portable."""

_late = False
"""Whether torch had selected its kernels before this package was imported."""


def prepare() -> None:
    """Request reproducible kernels, unless the user requested others; effective until torch's first product."""
    global _late  # noqa: PLW0603 as torch's choice, of the whole process
    if MKL not in os.environ:
        os.environ.update(REPRODUCIBLE)
        _late = "torch" in sys.modules and _on_x86() and mkl_mode() != AUTO
    _usual.update({name: os.environ[name] for name in PORTABLE if name in os.environ})


def _on_x86() -> bool:
    import platform

    return platform.machine() in X86


def prefer(*, portable: bool) -> None:
    """Request the kernels of a run; no effect once torch is loaded, which `learning.one_model.devices` detects."""
    if "torch" not in sys.modules:
        for name in PORTABLE:
            os.environ.pop(name, None)
        os.environ.update(_wanted(portable))


def environment(*, portable: bool) -> dict[str, str]:
    """Return the environment of a new process for a run."""
    return {name: value for name, value in os.environ.items() if name not in PORTABLE} | _wanted(portable)


def _wanted(portable: bool) -> dict[str, str]:
    return PORTABLE if portable else {**REPRODUCIBLE, **_usual}


def late() -> bool:
    """Whether torch had computed before this package was imported, without a request for its kernels."""
    return _late


def mkl_mode() -> int | None:
    """Return the mode that MKL reports (undocumented) if torch is loaded, else None.

    Only MKL shows whether the environment was set in time.
    """
    import ctypes
    from pathlib import Path

    try:
        place = Path(str(sys.modules["torch"].__file__)).parent
        return int(ctypes.CDLL(str(place / "lib" / "libtorch_cpu.so")).mkl_serv_cbwr_get(-1))
    except (KeyError, OSError, AttributeError):
        return None


def mode() -> str:
    """Return this process's mode: "reproducible", "portable", the user's value, or "as they come"."""
    chosen = os.environ.get(MKL)
    if chosen is None or late():
        return "as they come"
    if all(os.environ.get(name) == value for name, value in PORTABLE.items()):
        return "portable"
    return "reproducible" if chosen == REPRODUCIBLE[MKL] else f"{MKL}={chosen}"


def used() -> str | None:
    """Return the mode if torch is loaded; else None."""
    return mode() if "torch" in sys.modules else None


def remarks() -> list[str]:
    """Return warnings about the kernels, to show before a run begins; [] without any."""
    if not late():
        return []
    text = "torch had computed before fedgossip was imported, so its kernels are those of the machine"
    return [f"{text}: an update may depend on the other updates of its call.  Import fedgossip first."]


def threads_of_loops() -> int:
    """Return the number of torch's threads in a launched or simulated loop: OMP_NUM_THREADS, or one."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return max(1, int(given)) if given.isdecimal() else 1


def built_for_cpu() -> bool:
    """Whether the installed torch is a CPU-only build, by its version file; False if unknown, or with Apple's GPU."""
    from importlib.util import find_spec
    from pathlib import Path

    torch = find_spec("torch")
    if sys.platform == "darwin" or torch is None or torch.origin is None:
        return False
    try:
        lines = (Path(torch.origin).parent / "version.py").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    built = [line.rpartition("=")[2].strip() for line in lines if line.partition(":")[0] in ("cuda", "hip", "xpu")]
    return bool(built) and set(built) == {"None"}


@cache
def processor() -> str:
    """Return the processor's name as the system reports it, with family and model where available."""
    import platform
    from pathlib import Path

    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']}, family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}"


def processor_mark() -> int:
    """Return 32 bits of a hash of the processor's name, never 0, to distinguish processors."""
    import hashlib

    return int.from_bytes(hashlib.sha256(processor().encode()).digest()[:4], "big") or 1


PYTHON = (sys.executable, "-P")
"""Start of the command line of another fedgossip process.

With -P, as `python -m` would otherwise import modules from the working folder first.
"""

# The amount of freed memory that the C library retains for reuse.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep(block: int, total: int) -> None:
    """Retain freed blocks of up to `block` bytes for reuse, `total` bytes in all, in this process.

    glibc would return them to the system, and a page fault per 4 KiB costs more than writing.  No effect with other C
    libraries.
    """
    allocator = getattr(ctypes.CDLL(None), "mallopt", None)
    if allocator is not None:
        allocator(_M_MMAP_THRESHOLD, block)
        allocator(_M_TRIM_THRESHOLD, total)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off during an import, or the creation of many objects.

    It saves a tenth of torch's import time, and half of the set-up of a million seats.  The new objects then belong to
    the oldest generation.
    """
    before, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if before:
            # a few modules are not worth the count, which takes the frozen objects one by one
            if len(sys.modules) > modules + 100 and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, without a scan
            gc.enable()
