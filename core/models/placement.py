"""Decides where a model runs and in which numbers, and whether it fits there."""

from collections.abc import Mapping

import psutil
import torch
from torch import nn

from core import limits
from core.errors import BadInputError, OutOfMemoryError
from core.models.folder import FolderReport
from core.results import Dtype

LARGE_PARAMETERS = 1_000_000_000
"""From here on a GPU keeps the checkpoint's 16 bits instead of widening them to 32."""

_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_STORED_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


def pick_device(wanted: str) -> torch.device:
    """Returns the device to run on.

    Raises:
        BadInputError: the device that was asked for is not in this machine.
    """
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next((name for name, there in has.items() if there), "cpu"))
    if wanted != "cpu" and not has.get(wanted, False):
        there = ", ".join(["auto", "cpu", *(name for name, yes in has.items() if yes)])
        raise BadInputError(f"This machine has no device '{wanted}'.", f"Choose from {there}.")
    return torch.device(wanted)


def pick_dtype(wanted: Dtype, device: torch.device, report: FolderReport) -> torch.dtype:
    """Returns the data type to run in; "auto" as core.results.ModelRequest says."""
    if wanted != "auto":
        return _DTYPES[wanted]
    if device.type != "cpu" and report.n_elements >= LARGE_PARAMETERS:
        return _STORED_DTYPES.get(report.dtype, torch.float32)
    return torch.float32


def module_bytes(module: nn.Module) -> int:
    """Returns the bytes of parameters and buffers, shared ones once."""
    seen = {t.data_ptr(): t.nbytes for t in (*module.parameters(), *module.buffers())}
    return sum(seen.values())


def check_memory(report: FolderReport, dtype: torch.dtype, device: torch.device, name: str) -> None:
    """Refuses a model that does not fit, before anything is read.

    Raises:
        OutOfMemoryError: with what is needed and what is free.
    """
    needed = report.n_elements * dtype.itemsize if report.n_elements else report.n_bytes
    if device.type == "cuda":
        free, where = torch.cuda.mem_get_info(device)[0], "the GPU"
    else:
        free = psutil.virtual_memory().available - limits.MIN_FREE_BYTES
        where = "this machine"
    if needed > free:
        raise OutOfMemoryError(
            f"'{name}' needs {needed / limits.GIB:.1f} GiB in {dtype_name(dtype)}; "
            f"{where} has {max(0, free) / limits.GIB:.1f} GiB to spare.",
            "Choose 16 bits, another device or a smaller model, or close what uses the memory.",
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the short name of a data type, as requests use it."""
    names = {value: key for key, value in _DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))
