"""Runs with train.portable: the same bits on unlike x86-64 processors.

All computation then uses the same code everywhere: ATen's kernels for AVX2, MKL's COMPATIBLE ones (`kernels`), and
nothing of oneDNN, whose kernels follow the processor's instructions and caches: a convolution's sum has another order
with AVX2 than with AVX-512.  Roots are `optimizers.square_root`.  Other sources of different bits are refused with the
settings.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError

LATE = (
    "Start Python with MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=avx2 set, or import fedgossip first and begin with the "
    "portable run; fedgossip run --portable does it by itself."
)


def capability() -> str:
    """Return the instruction sets of the kernels that ATen has chosen."""
    return torch.backends.cpu.get_cpu_capability()


def settle() -> None:
    """Compute portably from now on, in all of this process.  Raises ConfigError, with advice, where that cannot be."""
    if platform.machine() not in kernels.X86:
        advice = "Leave portable out: the bits are this kind of machine's own then."
        raise ConfigError(f"portable = true is for x86-64 processors; this is {platform.machine()}", advice)
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        raise ConfigError("portable = true, and this torch has no MKL", "Install torch from its own wheels.")
    if kernels.mode() != "portable" or capability() != "AVX2" or kernels.mkl_mode() not in (None, kernels.COMPATIBLE):
        if "avx2" not in _flags():
            raise ConfigError("portable = true, and this processor has no AVX2", "Leave portable out.")
        what = f"torch was loaded with other kernels ({kernels.mode()}, {capability()})"
        raise ConfigError(f"portable = true, but {what}", LATE)
    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]


def _flags() -> set[str]:
    """Return the processor's instruction sets; where the system does not report them, AVX2 is assumed."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {"avx2"}
    line = next((line for line in text.splitlines() if line.startswith("flags")), "flags : avx2")
    return set(line.partition(":")[2].split())
