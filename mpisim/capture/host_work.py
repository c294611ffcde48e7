"""CPU operators on parameters and gradients in host memory → bytes that they read and write.

Steps of torch.optim's optimizers are one kernel (``fused=True``) or a loop of operations
(``_single_tensor_adam`` in torch/optim/adam.py, which is also what ``foreach`` is on the CPU);
other operators are a kernel each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..base.kinds import Phase
from ..workloads.offloaded_optimizer import CPU_OPTIMIZER
from .recorder import Recorder
from .recording import HostWork, ItemKind

__all__ = ["LEAST_BYTES", "OptimizersOnCpu", "bytes_of", "record_operator"]

LEAST_BYTES = 1 << 20
"""Fewest bytes of a recorded CPU operator; smaller ones count as host time between launches."""


def bytes_of(tensor: torch.Tensor) -> int:
    """Tensor → bytes of its elements; of a distributed one, of this rank's part.

    Parameters
    ----------
    tensor : torch.Tensor
    """
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part.numel() * part.element_size()


def record_operator(recorder: Recorder, name: str, tensors: Iterable[Any]) -> None:
    """Record an operator on the CPU that works on gradients, between backward pass and optimizer.

    Before, the CPU prepares batches; steps of optimizers are recorded as a whole.

    Parameters
    ----------
    recorder : Recorder
    name : str
    tensors : iterable of torch.Tensor
        What it reads and what it writes.
    """
    size = sum(bytes_of(each) for each in tensors)
    if recorder.phase == Phase.BACKWARD and size >= LEAST_BYTES:
        recorder.host_work(size, f"{name} on CPU")


class OptimizersOnCpu:
    """Records steps of optimizers whose parameters are in the CPU's memory.

    Parameters
    ----------
    recorder : Recorder
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._done = 0

    def begins(self) -> None:
        """Note what has been recorded before an optimizer's step."""
        self._done = self._recorder.count(ItemKind.HOST_WORK)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer's step on the CPU, unless a stand-in (DeepSpeedCPUAdam) has done so.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
        """
        if self._recorder.count(ItemKind.HOST_WORK) > self._done:
            return
        work = {HostWork.KERNEL: 0, HostWork.LOOP: 0}
        for group in optimizer.param_groups:
            how = HostWork.KERNEL if group.get("fused") else HostWork.LOOP
            for parameter in group["params"]:
                if parameter.is_cpu and parameter.grad is not None:
                    found = optimizer.state.get(parameter, {})
                    states = [each for each in found.values() if isinstance(each, torch.Tensor)]
                    written = bytes_of(parameter) + sum(map(bytes_of, states))
                    work[how] += bytes_of(parameter.grad) + 2 * written
        for how, size in work.items():
            if size:
                self._recorder.host_work(size, CPU_OPTIMIZER, how)
