"""Training devices: a CUDA GPU, Apple's GPU, or the CPU; and their capabilities."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch
from torch import nn
from torch.nn import functional

from fedgossip.base.errors import ConfigError
from fedgossip.learning.models import channels
from fedgossip.learning.settings import HOGWILD, TrainSettings

COMPILERS = ("c++", "g++", "clang++")
"""torch.compile generates C++ for the CPU and Triton for CUDA."""

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
FSDP_SINCE = (2, 6)  # fully_shard in torch.distributed.fsdp


def device_for(name: str) -> torch.device:
    """Return the device that `name` means here; "auto" is the first of cuda, mps and cpu.

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


def with_float64(device: torch.device) -> torch.device:
    """Return the device, or the CPU where it has no float64: Apple's GPU."""
    return torch.device("cpu") if device.type == "mps" else device


def describe(device: torch.device) -> str:
    """Return the device's name for display."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return {"mps": "Apple's GPU", "cpu": "the CPU: no GPU was found"}[device.type]


def check(settings: TrainSettings, device: torch.device, module: nn.Module) -> None:
    """Raise ConfigError, with advice, for settings that this device, machine or model cannot serve."""
    if settings.channels_last:
        channels.check(module)
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
            advice = 'Take a model without BatchNorm, cnn:small say; or parallel = "ddp".'
            raise ConfigError(f'parallel = "{HOGWILD}": {name} is a buffer, which every process would change', advice)


def check_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError where layers cannot compute with `precision` there: torch's builds differ, and so do GPUs."""
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
    """Return torch's type of that name."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]


def _compiler() -> str | None:
    """Return the C++ compiler that torch would use, or None."""
    named = os.environ.get("CXX")
    found = (shutil.which(name) for name in ((named,) if named else COMPILERS))
    return next((path for path in found if path), None)
