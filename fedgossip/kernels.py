"""Which kernels torch computes with.  Its libraries read that from the environment, once, when they are loaded.

    reproducible   MKL_CBWR=AUTO: a product has the same bits whatever it shares a call with.  The rule of this package,
                   for an update is to depend on its job alone; without it MKL rounds some odd shapes otherwise in a
                   batch of one (seen on an AMD EPYC with AVX-512; the mode costs nothing that could be measured).
    portable       MKL_CBWR=COMPATIBLE and ATEN_CPU_CAPABILITY=avx2: the same bits on unlike x86-64 processors too, for
                   experiments with train.portable; `learning.portable` has the rest of it.

`prepare` is called where `fedgossip` is imported, before any other module of it: so the command line, the warmed parent
of local peers, the processes of a team and a user's own program all come by it.  A value that the user has set stays,
but for portable runs.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path

MKL, ATEN = "MKL_CBWR", "ATEN_CPU_CAPABILITY"
REPRODUCIBLE = {MKL: "AUTO"}
PORTABLE = {MKL: "COMPATIBLE", ATEN: "avx2"}

X86 = ("x86_64", "AMD64")

_usual: dict[str, str] = {}
"""What the environment says of runs that are not portable."""


def prepare() -> None:
    """Ask for reproducible kernels, unless the user has asked for others, or torch has been loaded: see `late`."""
    if not (MKL in os.environ or "torch" in sys.modules):
        os.environ.update(REPRODUCIBLE)
    _usual.update({name: os.environ[name] for name in PORTABLE if name in os.environ})


def prefer(*, portable: bool) -> None:
    """Ask for the kernels of a run; of no effect once torch is loaded, which `learning.portable` notices."""
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
    """Whether torch was loaded before this package, without a word about its kernels."""
    return MKL not in os.environ


def mode() -> str:
    """Return the mode of this process in a word or two: "reproducible", "portable", what the user asked for, "as they
    come"."""
    said = os.environ.get(MKL)
    if said is None:
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
    return ["torch was imported before fedgossip, so its kernels are as they come: an update may depend on what it is "
            "computed with.  Import fedgossip first."]  # fmt: skip


@cache
def processor() -> str:
    """Return the processor's name, as the system has it, with its family and model where that is said."""
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
    return int.from_bytes(hashlib.sha256(processor().encode()).digest()[:4], "big") or 1
