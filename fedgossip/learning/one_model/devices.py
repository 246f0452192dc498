"""Training devices (a CUDA GPU, Apple's GPU, or the CPU) and their numerics.

**Mixed precision**: layers compute in 16 bits by torch's autocast; weights and steps stay float32.  float16 loses
gradients below 6e-8, so the loss is scaled up and the gradient down; an overflow skips the step and halves the scale,
many good steps double it (Micikevicius et al., Mixed precision training, ICLR 2018; numbers of GradScaler).

**train.portable**: the same bits on different x86-64 processors, by ATen's kernels for AVX2, MKL's COMPATIBLE ones
(`kernels`) and `optimizers.square_root`.  oneDNN is not used, because its order of sums depends on the processor.

**Convolutions**: images are stored channels innermost, [b, h, w, c], logically [b, c, h, w].  Weights keep their order,
as views of the exchanged vector; torch converts them at a small cost.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedgossip.base import kernels
from fedgossip.base.errors import ConfigError
from fedgossip.learning.settings import HOGWILD, TrainSettings

COMPILERS = ("c++", "g++", "clang++")
"""torch.compile generates C++ for the CPU and Triton for CUDA."""

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
FSDP_SINCE = (2, 6)  # fully_shard in torch.distributed.fsdp


def device_for(name: str) -> torch.device:
    """Return the device called `name`; "auto" is the first available of cuda, mps and cpu.

    Raises ConfigError for a missing device.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, ready in there.items() if ready))
    if not there[name.partition(":")[0]]:
        raise ConfigError(f"device = {name!r}, but torch finds none here", 'Use "auto" or "cpu".')
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {name!r}, but there are {torch.cuda.device_count()} GPUs", "They count from 0.")
    return device


def choose_float64(device: torch.device) -> torch.device:
    """Return the device, or the CPU if it has no float64 (Apple's GPU)."""
    return torch.device("cpu") if device.type == "mps" else device


def describe(device: torch.device) -> str:
    """Return the device's name for display."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return {"mps": "Apple's GPU", "cpu": "the CPU: no GPU was found"}[device.type]


def check(settings: TrainSettings, device: torch.device, module: nn.Module) -> None:
    """Raise ConfigError, with advice, for settings that this device, machine or model does not support."""
    if settings.channels_last:
        check_channels(module)
    if settings.processes > 1:
        _check_processes(settings.processes, device)
    if settings.parallel == "fsdp":
        _check_shards(module)
    if settings.parallel == HOGWILD:
        _check_buffers(module)
    if settings.processes == 1 or device.type == "cpu":  # of several GPUs each is tried by its own process
        check_precision(settings.precision, device)
    if settings.compile and device.type == "cpu" and not _compiler():
        advice = "Install a C++ compiler (g++ or clang++), or leave compile out."
        raise ConfigError("compile = true, and torch finds no C++ compiler here", advice)
    if settings.compile and device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError("compile = true, and there is no triton here", "Install triton, or leave compile out.")


def _check_processes(processes: int, device: torch.device) -> None:
    if not torch.distributed.is_available():
        raise ConfigError(f"processes = {processes}, but this torch has no torch.distributed", "Use processes = 1.")
    if device.type == "mps":
        raise ConfigError(f"processes = {processes}, but Apple's GPU serves one", 'Use processes = 1, or "cpu".')
    if device.type == "cuda" and processes > torch.cuda.device_count():
        found = torch.cuda.device_count()
        advice = f'Use processes = {found}, or device = "cpu".'
        raise ConfigError(f"processes = {processes}, one per GPU, and torch finds {found} here", advice)


def _check_shards(module: nn.Module) -> None:
    if TORCH < FSDP_SINCE:
        raise ConfigError(f'parallel = "fsdp" with torch {torch.__version__}', "Update torch, or use ddp.")
    for name, parameter in module.named_parameters():
        if not parameter.dim():
            advice = "Give it the shape (1,), or use ddp."
            raise ConfigError(f'parallel = "fsdp": {name} is one number, which cannot be divided', advice)


def _check_buffers(module: nn.Module) -> None:
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            advice = 'Take a model without BatchNorm, for example cnn:small; or parallel = "ddp".'
            raise ConfigError(f'parallel = "{HOGWILD}": {name} is a buffer, which every process would change', advice)


def check_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError if layers cannot compute with `precision` on the device: torch's builds differ, and
    so do GPUs.
    """
    dtype = dtype_of(precision)
    if dtype == torch.float32:
        return
    image = torch.ones(1, 1, 3, 3, device=device, requires_grad=True)
    try:
        with torch.autocast(device.type, dtype):
            found = functional.linear(functional.conv2d(image, image.detach()), image.new_ones(1, 1))
        found.float().sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        advice = 'Use precision = "float32", or "bfloat16" where this was float16.'
        raise ConfigError(f"precision = {precision!r} does not work on {device}: {reason}", advice) from error
    if found.dtype != dtype:
        raise ConfigError(f"precision = {precision!r}: torch does not cast to it on {device}", 'Use "float32".')


def dtype_of(precision: str) -> torch.dtype:
    """Return torch's type of this name."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    found = (shutil.which(name) for name in ((named,) if named else COMPILERS))
    return next((path for path in found if path), None)


FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000
"""Number of good steps after which the scale is doubled."""

LOSS_SCALE = "loss_scale"
"""Name in a node's state of [scale, good steps since its last change], float64."""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context for a model's computations in `precision`; a null context for float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype_of(precision))


class LossScale:
    """The scale of one node's loss; a power of two, so that dividing by it is exact."""

    def __init__(self, kept: npt.NDArray[np.float64] | None = None) -> None:
        self.value, self._good = (FIRST_SCALE, 0) if kept is None else (float(kept[0]), int(kept[1]))

    def take(self, finite: bool) -> bool:
        """Return whether to take a step with a `finite` gradient or not, and set the scale for the next one.

        A gradient that is not finite even without scaling is taken: divergence must be visible.
        """
        if not finite:
            if self.value <= 1:
                return True
            self.value, self._good = self.value / 2, 0
            return False
        self._good += 1
        if self._good == GROWTH_STEPS:
            self.value, self._good = self.value * 2, 0
        return True

    def get_state(self) -> npt.NDArray[np.float64]:
        """Return the state for the node's next job."""
        return np.array([self.value, self._good], np.float64)


LATE = (
    "Start Python with MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=avx2 set, or import fedgossip first and begin with the "
    "portable run; fedgossip run --portable does it by itself."
)


def capability() -> str:
    """Return the instruction sets of the kernels that ATen has chosen."""
    return torch.backends.cpu.get_cpu_capability()


def settle() -> None:
    """Compute portably from now on, in the whole process.  Raises ConfigError, with advice, if this is not possible."""
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
    """Return the processor's instruction sets; AVX2 where unknown."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {"avx2"}
    line = next((line for line in text.splitlines() if line.startswith("flags")), "flags : avx2")
    return set(line.partition(":")[2].split())


FLAT = (nn.Conv2d, nn.ConvTranspose2d)
SOLID = (nn.Conv3d, nn.ConvTranspose3d)


def check_channels(module: nn.Module) -> None:
    """Raise ConfigError for a module without a suitable convolution."""
    if not any(isinstance(part, (*FLAT, *SOLID)) for part in module.modules()):
        advice = "It is for models with Conv2d or Conv3d; leave channels_last out."
        raise ConfigError("channels_last = true, but the model has no convolution of images", advice)


def innermost(module: nn.Module) -> None:
    """Store the images of every convolution of the module with the channels innermost; the results follow."""
    for part in module.modules():
        if isinstance(part, FLAT):
            part.register_forward_pre_hook(_flat)
        elif isinstance(part, SOLID):
            part.register_forward_pre_hook(_solid)


def _flat(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].contiguous(memory_format=torch.channels_last), *inputs[1:]


def _solid(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0].contiguous(memory_format=torch.channels_last_3d), *inputs[1:]
