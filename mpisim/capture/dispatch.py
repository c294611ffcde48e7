"""Operators of PyTorch → items: tensors of the device have shapes alone, those of the CPU values.

Small tensors on the CPU are real, so that samplers, schedules and masks work as they do. What is on
the device, or large, is a fake tensor: shape, type and storage, no values. Reads of values that do
not exist get a likely one (`likely`), and are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from ..base.errors import InputError
from ..base.kinds import Phase
from ..operators import OperatorCall, TensorSpec
from .device_memory import DeviceMemory
from .recorder import Recorder

__all__ = ["Dispatch", "is_fake"]

LARGE = 1 << 20
"""Bytes of a tensor on the CPU above which its values are not kept."""

_KNOWN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
_SILENT = {
    "aten::detach",
    "aten::alias",
    "prim::device",
    "aten::lift_fresh",
    "aten::record_stream",
    "fsdp::record_grad_output_stream",
}
_PASSED_ON = {
    "_to_copy", "clone", "any", "all", "max", "amax", "sum", "view", "reshape", "detach", "copy",
    "logical_or", "bitwise_or", "logical_and", "bitwise_and", "squeeze", "unsqueeze", "stack",
    "cat", "add", "mul", "select", "alias", "lift_fresh", "abs", "expand", "_unsafe_view", "slice",
    "unbind", "split", "maximum", "wait_tensor", "all_reduce",
}  # fmt: skip
"""Operators whose result is as likely as their operands: not a number stays that."""


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no values."""
    return isinstance(tensor, FakeTensor)


def _sharded_copies(short: str, args: Any, kwargs: Any) -> OperatorCall:
    """Operator of `fully_shard` → the copies that it is: into and out of buffers that are sent."""
    target = kwargs.get("out")
    if short == "split_with_sizes_copy":
        into = out_of = _spec(target)
    else:  # all_gather_copy_in, chunk_cat and chunk_cat_mixed_dtype: lists of tensors into one
        out_of = _spec(args[0])
        buffer = _spec(args[1] if target is None else target)
        into = tuple(TensorSpec(buffer.dtype, each.shape, each.strides) for each in out_of)
    return OperatorCall("aten::_foreach_copy_", (into, out_of, False))


def _spec(value: Any) -> Any:
    """Argument of an operator → as an `OperatorCall` keeps it."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(str(value.dtype)[6:], tuple(value.shape), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(map(_spec, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    if isinstance(value, torch.device):
        return value.type  # its number differs between ranks that do the same
    return str(value)


class _WithoutDevice(FakeTensorMode):
    """Fake tensors that never touch the device, although `torch.cuda` says that there is one."""

    @property
    def avoid_device_init(self) -> bool:
        return True


class Dispatch(TorchDispatchMode):
    """Run every operator without a device, and record what it would issue.

    Parameters
    ----------
    recorder : Recorder
    collectives : Collectives
        What records functional collectives.
    """

    def __init__(self, recorder: Recorder, collectives: Any) -> None:
        super().__init__()
        self.recorder, self.collectives = recorder, collectives
        self.fake = _WithoutDevice(allow_non_fake_inputs=True)
        self.likely: Any = WeakIdKeyDictionary()
        self.memory = DeviceMemory(recorder, self._holder)
        self._unrecorded = False
        self._schemas: dict[Any, tuple[bool, bool]] = {}
        self.layers: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in _KNOWN for kind in types):
            return NotImplemented  # a subclass that is made of others, such as DTensor
        flat, _ = tree_flatten((args, kwargs))
        tensors = [each for each in flat if isinstance(each, torch.Tensor)]
        target = kwargs.get("device")
        on_device = target is not None and torch.device(target).type == "cuda"
        if on_device:  # a rank has one; without a driver PyTorch takes "cuda" for the first
            kwargs = {**kwargs, "device": torch.device("cuda", torch.cuda.current_device())}
        fake = on_device or any(map(is_fake, tensors))
        if not fake:
            return self._on_cpu(func, tensors, args, kwargs)
        name = func._schema.name
        namespace = name.partition("::")[0]
        short = name.partition("::")[2]
        if namespace in ("_c10d_functional", "_dtensor"):
            out = self.collectives.functional(func, short, args, kwargs, self._run)
            self.memory.keep(each for each in tree_flatten(out)[0] if is_fake(each))
            return out
        if short in ("_local_scalar_dense", "equal", "is_nonzero"):
            return self._read(short, args[0])
        if short in ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"):
            return self._rows_by_value(func, short, args, kwargs)
        if short == "repeat_interleave" and len(args) == 1:
            return self._rows_by_value(func, short, args, kwargs)
        if short == "index" and any(
            isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8)
            for each in args[1]
        ):
            return self._masked(func, args)
        out = self._run(func, args, kwargs)
        self._note(func, name, short, args, kwargs, tensors, out)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on shapes."""
        args, kwargs = tree_map(self._without_values, (args, kwargs))
        with self.fake:
            return func(*args, **kwargs)

    def _without_values(self, value: Any) -> Any:
        """Real tensor → a fake one, made anew: a module may exchange the one for the other."""
        if not isinstance(value, torch.Tensor) or is_fake(value) or value.device.type == "meta":
            return value
        if value.dim() == 0 and not value.requires_grad:
            return value  # as a number: the operator may look at it
        with self.fake:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=value.device
            )

    def _on_cpu(self, func: Any, tensors: list[Any], args: Any, kwargs: Any) -> Any:
        """Run an operator on the CPU, for its values if they are few."""
        if not tensors:
            target = kwargs.get("device")
            if target is not None and torch.device(target).type != "cpu":
                return func(*args, **kwargs)
            with self.fake:
                out = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and out.numel() * out.element_size() > LARGE:
                return out
        return func(*args, **kwargs)

    # --- recording --------------------------------------------------------------------------------

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Record no operators and storages in this block: what asks for shapes alone."""
        before, self._unrecorded = self._unrecorded, True
        try:
            yield
        finally:
            self._unrecorded = before

    def _note(
        self,
        func: Any,
        name: str,
        short: str,
        args: Any,
        kwargs: Any,
        tensors: list[Any],
        out: Any,
    ) -> None:
        """Record an operator that was run on shapes."""
        results, _ = tree_flatten(out)
        results = [each for each in results if isinstance(each, torch.Tensor)]
        if self._unrecorded:
            return
        self._pass_on(short, tensors, results, args)
        everything = [*tensors, *results]
        if not any(each.device.type == "cuda" for each in everything):
            return
        self.memory.keep(results)
        if name in _SILENT or self._is_view(func):
            return
        recorder = self.recorder
        self._set_phase()
        between = [each for each in everything if each.dim() and each.device.type == "cpu"]
        if between and short in ("_to_copy", "copy_", "copy"):
            moved = results[0]
            to_device = moved.device.type == "cuda"
            blocking = not (
                kwargs.get("non_blocking") or (short == "copy_" and args[2:3] == (True,))
            )
            recorder.copy(
                moved.numel() * moved.element_size(),
                "copy to the device" if to_device else "copy to the host",
                blocking=blocking,
            )
            return
        layer, where = self._where()
        label = f"{short} in {where}" if where else short
        if name.startswith("fsdp::"):
            recorder.call(_sharded_copies(short, args, kwargs), layer, label)
            return
        specs = tuple(map(_spec, args))
        if kwargs:
            given = {
                each.name: _spec(kwargs[each.name])
                for each in func._schema.arguments
                if each.name in kwargs
            }
            specs = (*specs, *given.values())
        call = OperatorCall(name, specs, tuple(_spec(each) for each in results))
        recorder.call(call, layer, label)
        self.memory.inside(call)

    def _is_view(self, func: Any) -> bool:
        found = self._schemas.get(func)
        if found is None:
            schema = func._schema
            writes = any(
                each.alias_info is not None and each.alias_info.is_write
                for each in schema.arguments
            )
            aliases = any(each.alias_info is not None for each in schema.returns)
            found = self._schemas[func] = (aliases and not writes, writes)
        return found[0]

    def _set_phase(self) -> None:
        """Forward, backward or recomputation, as autograd says; the optimizer says it itself."""
        if self.recorder.phase == Phase.OPTIMIZER:
            return
        if torch._C._current_graph_task_id() < 0:
            self.recorder.phase = int(Phase.FORWARD)
        elif torch.is_grad_enabled():
            self.recorder.phase = int(Phase.RECOMPUTE)
        else:
            self.recorder.phase = int(Phase.BACKWARD)

    def _where(self) -> tuple[int, str]:
        """Return number of the layer and path of the module that is executed."""
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            path = self.layers.get(node._sequence_nr(), "")
        else:
            path = self.recorder.module[-1] if self.recorder.module else ""
            if torch.is_grad_enabled():
                self.layers[torch.autograd._get_sequence_nr()] = path
                self.layers[torch.autograd._get_sequence_nr() - 1] = path
        number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
        layer = min(int(number[1]), 32767) if number else -1
        return layer, re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)

    def _holder(self) -> str:
        """Return what holds a storage that comes now: module and pass, or the user's line."""
        self._set_phase()
        phase = Phase(self.recorder.phase)
        if phase is Phase.OPTIMIZER:
            return "optimizer's step"
        _, where = self._where()
        if not where:
            return "backward" if phase is Phase.BACKWARD else self.recorder.user_line()
        passes = {Phase.BACKWARD: " (backward)", Phase.RECOMPUTE: " (recomputed)"}
        return where + passes.get(phase, "")

    def resized(self, storage: Any, size: int) -> None:
        """Record that a storage got another size, as FSDP's do.

        Parameters
        ----------
        storage : torch.UntypedStorage
        size : int
            Bytes.
        """
        self.memory.resized(storage, size)

    # --- values -----------------------------------------------------------------------------------

    def _pass_on(self, short: str, tensors: list[Any], results: list[Any], args: Any) -> None:
        """Keep what is likely of values that no tensor has."""
        if short in ("isnan", "isinf"):
            for each in results:
                self.likely[each] = 0.0
        elif short == "_amp_foreach_non_finite_check_and_unscale_":
            self.likely[args[1]] = 0.0
        elif short in ("zero_", "zeros", "zeros_like", "new_zeros"):
            pass
        elif short in _PASSED_ON:
            known = [self.likely[each] for each in tensors if each in self.likely]
            if known and all(each == 0.0 for each in known):
                for each in results:
                    self.likely[each] = 0.0
        elif short in ("logical_not", "bitwise_not") and tensors and tensors[0] in self.likely:
            self.likely[results[0]] = 1.0 - self.likely[tensors[0]]

    def likely_value(self, tensor: Any) -> Any:
        """Return what is taken for a value of a tensor: 1, true; where "not finite" is asked, 0.

        Parameters
        ----------
        tensor : torch.Tensor
        """
        value = self.likely.get(tensor, 1.0)
        if tensor.dtype is torch.bool:
            return bool(value)
        return value if tensor.is_floating_point() else int(value)

    def _read(self, short: str, tensor: Any) -> Any:
        """Read a value: the CPU waits for it."""
        known = getattr(tensor, "constant", None)
        if tensor.device.type == "cuda":
            self._set_phase()
            self.recorder.copy(tensor.element_size(), "copy to the host", blocking=True)
        if known is not None:
            return known.item()
        if short == "equal":
            return self.recorder.unknown("whether two tensors are equal", True)
        what = f"a value of type {str(tensor.dtype)[6:]}"
        return self.recorder.unknown(what, self.likely_value(tensor))

    def _rows_by_value(self, func: Any, short: str, args: Any, kwargs: Any) -> Any:
        """Run an operator whose number of results depends on values: the user says how many."""
        where = self.recorder.user_line()
        if where not in self.recorder.given:
            raise InputError(
                f"{where}: the number of rows that {short} finds depends on values, which a "
                f"capture does not have; give it: --value {where}=ROWS"
            )
        rows = int(self.recorder.unknown(f"number of rows of {short}", 1))
        tensor = args[0]
        with self.fake:
            if short == "nonzero":
                out = torch.empty((rows, tensor.dim()), dtype=torch.int64, device=tensor.device)
            elif short in ("masked_select", "repeat_interleave"):
                out = torch.empty((rows,), dtype=tensor.dtype, device=tensor.device)
            else:
                kept = torch.empty((rows,), dtype=tensor.dtype, device=tensor.device)
                numbers = torch.empty(tensor.shape, dtype=torch.int64, device=tensor.device)
                counts = torch.empty((rows,), dtype=torch.int64, device=tensor.device)
                out = (kept, numbers, counts)
        flat = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        self._note(func, func._schema.name, short, args, kwargs, flat, out)
        if tensor.device.type == "cuda":  # the CPU needs the number
            self.recorder.copy(8, "copy to the host", blocking=True)
        return out

    def _masked(self, func: Any, args: Any) -> Any:
        """Index by a mask, whose number of results the user says."""
        where = self.recorder.user_line()
        if where not in self.recorder.given:
            raise InputError(
                f"{where}: the number of rows that a mask selects depends on values, which a "
                f"capture does not have; give it: --value {where}=ROWS"
            )
        rows = int(self.recorder.unknown("number of rows a mask selects", 1))
        mask = next(each for each in args[1] if each is not None)
        with self.fake:
            shape = (rows, *args[0].shape[mask.dim() :])
            out = torch.empty(shape, dtype=args[0].dtype, device=args[0].device)
        tensors = [args[0], *(each for each in args[1] if isinstance(each, torch.Tensor))]
        self._note(func, func._schema.name, "index", args, {}, tensors, out)
        if args[0].device.type == "cuda":
            self.recorder.copy(8, "copy to the host", blocking=True)
        return out
