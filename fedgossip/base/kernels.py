"""Which kernels torch computes with.  Its libraries read that from the environment, once, when they first compute.

    reproducible   MKL_CBWR=AUTO: a product has the same bits whatever it shares a call with.  The rule of this package,
                   for an update is to depend on its job alone; without it MKL rounds some odd shapes otherwise in a
                   batch of one (seen on an AMD EPYC with AVX-512; the mode costs nothing that could be measured).
    portable       MKL_CBWR=COMPATIBLE and ATEN_CPU_CAPABILITY=avx2: the same bits on unlike x86-64 processors too, for
                   experiments with train.portable; `learning.one_model.portable` has the rest of it.

`prepare` is called where `fedgossip` is imported, before any other module of it: so the command line, the warmed parent
of local peers, the processes of a team and a user's own program all come by it.  A value that the user has set stays,
but for portable runs.
"""

from __future__ import annotations

import os  # others are imported where they are used: the import of fedgossip costs nothing
import sys
from functools import cache

MKL, ATEN = "MKL_CBWR", "ATEN_CPU_CAPABILITY"
REPRODUCIBLE = {MKL: "AUTO"}
PORTABLE = {MKL: "COMPATIBLE", ATEN: "avx2"}

AUTO, COMPATIBLE = 2, 3
"""MKL's numbers of its modes; 1 is none."""

X86 = ("x86_64", "AMD64")

_usual: dict[str, str] = {}
"""What the environment says of runs that are not portable."""

_late = False
"""Whether torch had chosen its kernels before this package could ask for any."""


def prepare() -> None:
    """Ask for reproducible kernels, unless the user has asked for others.

    Where torch is loaded already it is not too late, as long as it has computed no product: MKL is asked.
    """
    global _late  # noqa: PLW0603 as torch's choice, of the whole process
    if MKL not in os.environ:
        os.environ.update(REPRODUCIBLE)
        _late = "torch" in sys.modules and _on_x86() and mkl_mode() != AUTO
    _usual.update({name: os.environ[name] for name in PORTABLE if name in os.environ})


def _on_x86() -> bool:
    import platform

    return platform.machine() in X86


def prefer(*, portable: bool) -> None:
    """Ask for the kernels of a run; of no effect once torch is loaded, which `learning.one_model.portable` notices."""
    if "torch" not in sys.modules:
        for name in PORTABLE:
            os.environ.pop(name, None)
        os.environ.update(_said(portable))


def environment(*, portable: bool) -> dict[str, str]:
    """Return the environment of a new process for a run."""
    return {name: value for name, value in os.environ.items() if name not in PORTABLE} | _said(portable)


def _said(portable: bool) -> dict[str, str]:
    return PORTABLE if portable else {**REPRODUCIBLE, **_usual}


def late() -> bool:
    """Whether torch had computed before this package was imported, with nothing said about its kernels."""
    return _late


def mkl_mode() -> int | None:
    """Return MKL's own word on its mode, where torch is loaded; None where this torch does not let it be asked.

    The function is not documented, but whether the environment was in time only MKL knows.
    """
    import ctypes
    from pathlib import Path

    try:
        place = Path(str(sys.modules["torch"].__file__)).parent
        return int(ctypes.CDLL(str(place / "lib" / "libtorch_cpu.so")).mkl_serv_cbwr_get(-1))
    except (KeyError, OSError, AttributeError):
        return None


def mode() -> str:
    """Return the mode of this process in a word or two: "reproducible", "portable", what the user asked for, "as they
    come"."""
    said = os.environ.get(MKL)
    if said is None or late():
        return "as they come"
    if all(os.environ.get(name) == value for name, value in PORTABLE.items()):
        return "portable"
    return "reproducible" if said == REPRODUCIBLE[MKL] else f"{MKL}={said}"


def used() -> str | None:
    """Return the mode where torch is loaded; None where nothing was computed with it."""
    return mode() if "torch" in sys.modules else None


def remarks() -> list[str]:
    """Return what a person should read of it before a run begins: nothing where all is as it should be."""
    if not late():
        return []
    told = "torch had computed before fedgossip was imported, so its kernels are as they come"
    return [f"{told}: an update may depend on what shares its call.  Import fedgossip first."]


def built_for_cpu() -> bool:
    """Whether the torch that is installed knows no GPU, as its own file of its version says; torch is not loaded.

    False where that is not said, and where a build for the CPU has Apple's GPU.
    """
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
    """Return the processor's name, as the system has it, with its family and model where that is said."""
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
    """Return 32 bits of a hash of the processor's name, never 0: two that differ are told apart by it."""
    import hashlib

    return int.from_bytes(hashlib.sha256(processor().encode()).digest()[:4], "big") or 1
