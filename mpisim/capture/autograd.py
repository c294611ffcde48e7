"""Autograd on a machine without a driver: its engine takes the device for one without streams.

Built with CUDA, the engine asks the driver before every backward pass which devices are in use, and
fails where there is none, also if all tensors are fake; built without, it asks nothing. Which of
the two it is, two functions of PyTorch's library say: `at::accelerator::getAccelerator` (there is
none) and `isAccelerator` (CUDA is none). They have no switch, so in the captured process, and only
there, their first instructions are replaced. Outside of backward passes the accelerator is CUDA,
since devices may be given by number alone (``tensor.to(0)``).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from pathlib import Path
from typing import Any

import torch

from ..base.errors import InputError

__all__ = ["without_streams"]

IS_ACCELERATOR = "_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE"
GET_ACCELERATOR = "_ZN2at11accelerator14getAcceleratorEb"
"""Names in ``libtorch_cpu.so`` (PyTorch 2.8 and newer); what is missing is not asked either."""

NONE = bytes.fromhex("31c0909090c3")  # xor eax, eax; nop ×3; ret: false, or an optional of nothing
CUDA = bytes.fromhex("b801010000c3")  # mov eax, 0x101; ret: an optional that holds 1, CUDA
"""Instructions of x86-64."""

READ, WRITE, EXECUTE = 1, 2, 4
"""Permissions of pages, of mprotect(2)."""


def without_streams() -> None:
    """Have autograd do without streams of devices.

    Raises
    ------
    InputError
        Where instructions cannot be replaced.
    """
    anything: Any = torch
    anything._C._ensureCUDADeviceGuardSet()
    if torch.version.cuda is None and torch.version.hip is None:
        return
    if platform.machine() != "x86_64":
        raise InputError(
            f"PyTorch with CUDA on {platform.machine()} cannot be captured; allowed: x86_64, or "
            "PyTorch without CUDA (download.pytorch.org/whl/cpu)"
        )
    functions = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    is_accelerator, get_accelerator = (
        _writable(functions, name) for name in (IS_ACCELERATOR, GET_ACCELERATOR)
    )
    _write(is_accelerator, NONE)
    _write(get_accelerator, CUDA)
    graph: Any = torch.autograd.graph
    original, depth = graph._engine_run_backward, [0]

    def run(*args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        _write(get_accelerator, NONE)
        try:
            return original(*args, **kwargs)
        finally:
            depth[0] -= 1
            if not depth[0]:
                _write(get_accelerator, CUDA)

    graph._engine_run_backward = run
    anything.autograd._engine_run_backward = run


def _writable(functions: ctypes.CDLL, name: str) -> int | None:
    """Return the address of a function whose instructions may be written; None: there is none."""
    function = getattr(functions, name, None)
    if function is None:
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    page = address - address % mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(page, address + len(NONE) - page, READ | WRITE | EXECUTE):
        raise InputError(
            "this system does not let a process replace its own instructions, which capturing with "
            "PyTorch built with CUDA needs; PyTorch without CUDA does not "
            "(download.pytorch.org/whl/cpu)"
        )
    return address


def _write(address: int | None, instructions: bytes) -> None:
    if address is not None:
        ctypes.memmove(address, instructions, len(instructions))
