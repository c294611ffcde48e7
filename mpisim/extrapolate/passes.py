"""Operation of the device in a Kineto trace → the pass that launched it, and its node of autograd.

See :mod:`.kineto_step` for the rules.
"""

from __future__ import annotations

from typing import Literal

from ..traces.gradients import EVALUATE, is_backward
from ..traces.kineto import KinetoTrace
from ..traces.operator_calls import enclosing_operators

__all__ = ["ACCUMULATE", "Pass", "Passes", "of_engine"]

ACCUMULATE = "torch::autograd::AccumulateGrad"
_OPTIMIZER = "Optimizer."

Pass = Literal["forward", "backward", "optimizer"]


class Passes:
    """Which pass launched what.

    Parameters
    ----------
    trace : KinetoTrace

    Attributes
    ----------
    chains : dict of int to list of int
        Operators around the launch of each operation of the device, the outermost first.
    launched : dict of int to int
        When the CPU launched each, in ps.
    """

    def __init__(self, trace: KinetoTrace) -> None:
        self.trace = trace
        self.chains = enclosing_operators(trace)
        self.launched = _launch_times(trace)
        self._threads, self._engines = _launch_threads(trace), _engines(trace)
        self._spans = [
            (int(begin), int(end))
            for name, begin, end in zip(
                trace.annotations.name, trace.annotations.begin, trace.annotations.end, strict=True
            )
            if name.startswith(_OPTIMIZER)
        ]

    def of(self, op: int, *, after_backward: bool) -> Pass:
        """Return the pass that launched an operation of the device.

        Parameters
        ----------
        op : int
        after_backward : bool
            Whether the backward pass has begun.
        """
        names = [self.trace.operators.name[i] for i in self.chains.get(op, ())]
        if any(name.startswith(_OPTIMIZER) for name in names):
            return "optimizer"
        if any(map(of_engine, names)) or self._threads.get(op) in self._engines:
            return "backward"
        at = self.launched.get(op, -1)
        if any(begin <= at <= end for begin, end in self._spans):
            return "optimizer"
        if after_backward and self._sequence(op) < 0:
            return "optimizer"
        return "forward"

    def _sequence(self, op: int) -> int:
        """Return the number of autograd around a launch: of the innermost operator with one."""
        for i in reversed(self.chains.get(op, ())):
            args = self.trace.operators.args[i]
            if args is not None and args.sequence is not None and args.sequence >= 0:
                return args.sequence
        return -1

    def node(self, op: int) -> int:
        """Return the number of the node that a launch of the backward pass belongs to; -1: none."""
        for i in self.chains.get(op, ()):
            args = self.trace.operators.args[i]
            if self.trace.operators.name[i].endswith(ACCUMULATE):
                return -1
            if args is not None and args.sequence is not None and args.sequence >= 0:
                return args.sequence
        return -1

    def first_number(self, op: int) -> int:
        """Return the number that autograd's next node had as the operator of a launch began."""
        for i in self.chains.get(op, ()):
            args = self.trace.operators.args[i]
            if args is not None and args.sequence is not None and args.sequence >= 0:
                return args.sequence
        return -1


def of_engine(name: str) -> bool:
    """Name of an operator → whether autograd's engine runs it in the backward pass.

    Parameters
    ----------
    name : str
        As the trace has it.

    Returns
    -------
    bool
    """
    return name == ACCUMULATE or name.startswith(EVALUATE) or is_backward(name)


def _launch_threads(trace: KinetoTrace) -> dict[int, int]:
    """Return the thread that launched each operation of the device."""
    by_correlation: dict[int, int] = {}
    for thread, args in zip(trace.calls.thread.tolist(), trace.calls.args, strict=True):
        if args is not None and args.correlation is not None:
            by_correlation.setdefault(args.correlation, thread)
    return {
        op: by_correlation[correlation]
        for op, correlation in enumerate(trace.device.correlation.tolist())
        if correlation in by_correlation
    }


def _engines(trace: KinetoTrace) -> set[int]:
    """Return the threads that run the backward pass alone."""
    names, threads = trace.operators.name, trace.operators.thread.tolist()
    found = {thread for name, thread in zip(names, threads, strict=True) if of_engine(name)}
    return found - set(threads[:1])


def _launch_times(trace: KinetoTrace) -> dict[int, int]:
    """Return when the CPU launched each operation of the device, in ps."""
    by_correlation: dict[int, int] = {}
    for begin, args in zip(trace.calls.begin.tolist(), trace.calls.args, strict=True):
        if args is not None and args.correlation is not None:
            by_correlation.setdefault(args.correlation, begin)
    return {
        op: by_correlation[correlation]
        for op, correlation in enumerate(trace.device.correlation.tolist())
        if correlation in by_correlation
    }
