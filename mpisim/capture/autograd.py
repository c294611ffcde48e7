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
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ..base.errors import InputError
from ..base.kinds import Phase
from .recorder import Recorder

__all__ = ["Engine", "install_engine", "set_phase"]

IS_ACCELERATOR = "_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE"
GET_ACCELERATOR = "_ZN2at11accelerator14getAcceleratorEb"
"""Names in ``libtorch_cpu.so`` (PyTorch 2.8 and newer); what is missing is not asked either."""

NONE = bytes.fromhex("31c0909090c3")  # xor eax, eax; nop ×3; ret: false, or an optional of nothing
CUDA = bytes.fromhex("b801010000c3")  # mov eax, 0x101; ret: an optional that holds 1, CUDA
"""Instructions of x86-64."""

READ, WRITE, EXECUTE = 1, 2, 4
"""Permissions of pages, of mprotect(2)."""


class Engine:
    """The engine of autograd: without streams, and every backward pass is counted.

    Parameters
    ----------
    recorder : Recorder
    write : callable
        Of the instructions of `getAccelerator`.
    """

    def __init__(self, recorder: Recorder, write: Callable[[bytes], None]) -> None:
        self._recorder, self._write = recorder, write
        self._engine: Any = torch.autograd.Variable._execution_engine
        self._depth = 0

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, or one inside another, or one that a compiler traces."""
        before: dict[tuple[Any, str], Any] = {}
        traced = torch._guards.TracingContext.try_get() is not None
        if not self._depth:
            if not traced:
                self._recorder.backward_begins()
            before = _by_number()
        self._depth += 1
        self._write(NONE)
        again, self._recorder.again = self._recorder.again, 0
        try:
            return self._engine.run_backward(*args, **kwargs)
        finally:
            self._recorder.again = again
            self._depth -= 1
            if not self._depth:
                self._write(CUDA)
                for (owner, name), function in before.items():
                    setattr(owner, name, function)
                if not traced:
                    self._recorder.backward_ends()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


FACTORIES = ("empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "tensor")
METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")
"""Functions, and methods of tensors, that make tensors and may be given a device by its number."""


def _by_number() -> dict[tuple[Any, str], Any]:
    """Have what makes tensors take a number for CUDA's device; return the functions as they were.

    PyTorch asks for the accelerator, of which there is none in a backward pass.
    """

    def taking(function: Any) -> Any:
        @wraps(function)
        def make(*args: Any, **kwargs: Any) -> Any:
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
            return function(*args, **kwargs)

        return make

    names = [(torch, name) for name in FACTORIES] + [(torch.Tensor, name) for name in METHODS]
    before = {(owner, name): getattr(owner, name) for owner, name in names}
    for (owner, name), function in before.items():
        setattr(owner, name, taking(function))
    return before


def set_phase(recorder: Recorder) -> None:
    """Set a recorder's phase to forward or backward; optimizer steps set theirs.

    What comes between a backward pass and a step of the optimizer is about gradients. After that
    step batches are made ready, which is forward.

    Parameters
    ----------
    recorder : Recorder
    """
    if recorder.phase == Phase.OPTIMIZER:
        return
    if torch._C._current_graph_task_id() < 0:
        after = recorder.between == Phase.BACKWARD
        recorder.phase = int(Phase.BACKWARD if after else Phase.FORWARD)
    else:
        again = torch.is_grad_enabled() or recorder.again
        recorder.phase = int(Phase.RECOMPUTE if again else Phase.BACKWARD)


def _count_functions(recorder: Recorder) -> None:
    """Tell a recorder of ``autograd.Function`` that runs forward again in a backward pass.

    Their ``forward`` has gradients off, as a backward pass has.
    """
    function: Any = torch.autograd.Function
    applied = next(vars(each)["apply"] for each in function.__mro__ if "apply" in vars(each))

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() < 0 or not torch.is_grad_enabled():
            return applied.__get__(None, cls)(*args, **kwargs)
        recorder.again += 1
        try:
            return applied.__get__(None, cls)(*args, **kwargs)
        finally:
            recorder.again -= 1

    function.apply = classmethod(apply)


def install_engine(recorder: Recorder) -> None:
    """Have autograd do without streams of devices, and tell a recorder of backward passes.

    Parameters
    ----------
    recorder : Recorder

    Raises
    ------
    InputError
        Where instructions cannot be replaced.
    """
    variable: Any = torch.autograd.Variable
    variable._execution_engine = Engine(recorder, _without_streams())
    _count_functions(recorder)


def _without_streams() -> Callable[[bytes], None]:
    """Replace the instructions, and return what writes those of `getAccelerator`."""
    anything: Any = torch
    anything._C._ensureCUDADeviceGuardSet()
    if torch.version.cuda is None and torch.version.hip is None:
        return lambda instructions: None
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
    return lambda instructions: _write(get_accelerator, instructions)


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
