"""Autograd on a machine without a driver: the engine takes the device for one without streams.

Built with CUDA, the engine asks the driver before every backward pass which devices are in use, and
fails where there is none, also if all tensors are fake; built without, it asks nothing. Which of
the two it is, two functions of PyTorch's library say: `at::accelerator::getAccelerator` (there is
none) and `isAccelerator` (CUDA is none). They have no switch, so in the captured process, and only
there, their first instructions are replaced: both return 0.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from pathlib import Path
from typing import Any

import torch

from ..base.errors import InputError

__all__ = ["without_accelerator"]

FUNCTIONS = (
    "_ZN2at11accelerator14getAcceleratorEb",
    "_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE",
)
"""Names in ``libtorch_cpu.so`` (PyTorch 2.8 and newer); a missing one is not asked either."""

RETURN_ZERO = {
    "x86_64": bytes.fromhex("31c0c3"),  # xor eax, eax; ret
}

READ, WRITE, EXECUTE = 1, 2, 4
"""Permissions of pages, of mprotect(2)."""


def without_accelerator() -> None:
    """Have autograd do without streams of devices.

    Raises
    ------
    InputError
        Where instructions cannot be replaced.
    """
    anything: Any = torch
    anything._C._ensureCUDADeviceGuardSet()
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if torch.version.cuda is None and torch.version.hip is None:
        return
    instructions = RETURN_ZERO.get(platform.machine())
    if instructions is None:
        raise InputError(
            f"PyTorch with CUDA on {platform.machine()} cannot be captured; allowed: "
            f"{', '.join(RETURN_ZERO)}, or PyTorch without CUDA (download.pytorch.org/whl/cpu)"
        )
    functions = ctypes.CDLL(str(library))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for name in FUNCTIONS:
        function = getattr(functions, name, None)
        if function is None:
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        page = address - address % mmap.PAGESIZE
        length = address + len(instructions) - page
        if protect(page, length, READ | WRITE | EXECUTE):
            raise InputError(
                "this system does not let a process replace its own instructions, which capturing "
                "with PyTorch built with CUDA needs; PyTorch without CUDA does not "
                "(download.pytorch.org/whl/cpu)"
            )
        ctypes.memmove(address, instructions, len(instructions))
        protect(page, length, READ | EXECUTE)
