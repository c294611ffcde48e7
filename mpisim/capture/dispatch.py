"""Operators of PyTorch → items: tensors of the device have shapes alone, those of the CPU values.

Small tensors on the CPU are real, so that samplers, schedules and masks work as they do. What is on
the device, or large, is a fake tensor: shape, type and storage. What is known of its values is in
`values`; reads of others get a likely one and are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ..base.kinds import Phase
from ..operators import OperatorCall, TensorSpec
from . import sparse, sparse_compressed
from .attention import PACKED, of_packed
from .autograd import set_phase
from .composite import NoShapesError, RegisteredKernels, composite_key
from .data_dependent import DataDependent, counts_rows
from .device_memory import DeviceMemory
from .host_work import LEAST_BYTES, bytes_of, record_operator
from .origins import Origins
from .recorder import Recorder
from .shapes import RESULTS
from .values import Values

__all__ = ["Dispatch", "is_fake", "spec_of"]

_empty, _empty_strided = torch.empty, torch.empty_strided  # programs put their own there

MAX_KEPT_BYTES = 1 << 20
"""Bytes of a tensor on the CPU above which its values are not kept."""

MAX_KEPT_PERMUTATION_BYTES = 1 << 30
"""The same of a random permutation: samplers read that of a million samples as a list."""

_NO_DEVICE = ("CUDA driver", "NVIDIA driver")
"""What PyTorch says where it asks for a device."""

_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
_SILENT = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::detach",
    "aten::alias",
    "prim::device",
    "aten::lift_fresh",
    "aten::record_stream",
    "fsdp::record_grad_output_stream",
}
_ONE_KERNEL = {
    "split_with_sizes_copy": "aten::split_with_sizes_copy",
    "chunk_cat": "aten::_chunk_cat",
}
"""Operators of `fully_shard` → those of PyTorch that launch one kernel for all their tensors."""


def is_fake(tensor: Any) -> bool:
    """Tensor → whether it is fake: has a shape, but no values.

    Parameters
    ----------
    tensor : torch.Tensor

    Returns
    -------
    bool
    """
    return isinstance(tensor, FakeTensor)


def _sharded_copies(short: str, args: Any, kwargs: Any) -> OperatorCall:
    """Operator of `fully_shard` → the copies that it is: into and out of buffers that are sent.

    Copies out of gathered parameters and into the buffer of gradients are one kernel for all
    tensors, whatever their sizes (`split_with_sizes_copy_out_contiguous_no_cast_kernel` and
    `chunk_cat_cuda_kernel` of aten/src/ATen/native/cuda/TensorShape.cu).
    """
    target, name = kwargs.get("out"), _ONE_KERNEL.get(short, "aten::_foreach_copy_")
    if short == "split_with_sizes_copy":
        into = out_of = spec_of(target)
    else:  # all_gather_copy_in, chunk_cat and chunk_cat_mixed_dtype: lists of tensors into one
        out_of = spec_of(args[0])
        buffer = spec_of(args[1] if target is None else target)
        into = tuple(TensorSpec(buffer.dtype, each.shape, each.strides) for each in out_of)
    return OperatorCall(name, (into, out_of, False))


def spec_of(value: Any) -> Any:
    """Argument of an operator → the form in which an `OperatorCall` keeps it.

    Parameters
    ----------
    value : object
        Tensor, list, number, text, type of elements, device, group, …

    Returns
    -------
    TensorSpec, tuple, bool, int, float, str or None
        A `TensorSpec` of a tensor, a tuple of a list. Text of what has no number: a device without
        its index, and the class of anything else, so that ranks that do the same have equal calls.
    """
    if isinstance(value, torch.Tensor):
        return TensorSpec(str(value.dtype)[6:], tuple(value.shape), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(map(spec_of, value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    if isinstance(value, torch.device):
        return value.type  # its number differs between ranks that do the same
    if isinstance(value, torch.layout | torch.memory_format | torch.SymInt | torch.SymFloat):
        return str(value)
    return type(value).__name__  # what generators and groups are called has their address


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
        Recorder of functional collectives.
    """

    def __init__(self, recorder: Recorder, collectives: Any) -> None:
        super().__init__()
        self.recorder, self.collectives = recorder, collectives
        self.fake = _WithoutDevice(allow_non_fake_inputs=True)
        self.values = Values()
        self.origins = Origins(recorder)
        self.memory = DeviceMemory(recorder, self._holder)
        self.sparse = sparse.SparseTensors(
            recorder, self.values, self.fake, self.__torch_dispatch__, self.launch
        )
        self.compressed = sparse_compressed.CompressedTensors(
            recorder, self.fake, self.__torch_dispatch__, self.launch
        )
        self._unrecorded = False
        self.data_dependent = DataDependent(recorder, self.values, self.fake, self._note)
        lifting: Any = torch._C
        lifting._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") by way of the CPU
        self._schemas: dict[Any, tuple[bool, bool]] = {}
        self.layers: dict[int, str] = {}
        self.registered = RegisteredKernels(recorder, self)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have Dynamo compile although this mode is active."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False  # which needs a driver
        if any(kind not in _TENSOR_TYPES and not issubclass(kind, FakeTensor) for kind in types):
            return NotImplemented  # a subclass that is made of others, such as DTensor
        flat, _ = tree_flatten((args, kwargs))
        tensors = [each for each in flat if isinstance(each, torch.Tensor)]
        others = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if others is not None and not any(map(self._is_own, tensors)):
            return func(*args, **kwargs)  # DTensor asks for a shape: nothing is run
        target = kwargs.get("device")
        on_device = target is not None and torch.device(target).type == "cuda"
        if on_device:  # a rank has one; without a driver PyTorch takes "cuda" for the first
            if torch.device(target).index:
                self.recorder.named_devices.add(torch.device(target).index)
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
        if short in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):  # ask for the driver's version
            return False
        out = self.data_dependent.run(func, short, args, kwargs, tensors)
        if out is not NotImplemented:
            return out
        compresses = short in sparse_compressed.CONSTRUCTORS or short == sparse_compressed.CONVERTS
        if compresses or sparse_compressed.has_compressed(tensors):
            out = self.compressed.run(short, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if short in sparse.CONSTRUCTORS or sparse.has_sparse(tensors):
            out = self.sparse.run(func, short, args, kwargs)
            if out is not NotImplemented:
                return out
        key = None if name in _SILENT else composite_key(func)
        if key is not None:
            with self:
                return func._op_dk(key, *args, **kwargs)
        out = NotImplemented if name in PACKED else self.registered.run(func, args, kwargs)
        if out is not NotImplemented:
            return out
        out = self._run(func, args, kwargs)
        if name in PACKED:
            func, args = of_packed(func, args, kwargs)
            name, kwargs = func._schema.name, {}
            short = name.partition("::")[2]
        self._note(func, name, short, args, kwargs, tensors, out)
        if short.strip("_").startswith("index_put") and counts_rows(args):
            self.recorder.copy(8, "copy to the host", blocking=True)
        if short in ("_to_copy", "copy_") and out.device.type == "cpu":
            known = self.values.sure(out)  # is real again where it is known
            if known is not None and self.values.is_even(out):
                self.data_dependent.list_even(known)
            return out if known is None or short == "copy_" else known
        return out

    def _is_own(self, tensor: Any) -> bool:
        return is_fake(tensor) and tensor.fake_mode is self.fake

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on shapes."""
        args, kwargs = tree_map(self._without_values, (args, kwargs))
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is torch.float32:
            return self._wide_grouped(func, args, kwargs)
        target = kwargs.get("out")
        if is_fake(target) and target.numel() and func._schema.returns:
            return target  # made by who calls: some of these operators say nothing of shapes
        shapes = RESULTS.get(func._schema.name)
        with self.fake:
            if shapes is not None:
                return shapes(*args, **kwargs)
            try:
                return func(*args, **kwargs)
            except DynamicOutputShapeException as error:
                raise NoShapesError(
                    f"{self.recorder.user_line()}: how many results {func._schema.name} has "
                    "depends on values, which a capture does not have"
                ) from error
            except RuntimeError as error:  # it has no kernel for shapes, and asks for the device
                if not any(each in str(error) for each in _NO_DEVICE):
                    raise
                where, name = self.recorder.user_line(), func._schema.name
                raise NoShapesError(
                    f"{where}: PyTorch has no shapes of what {name} gives without a device, so "
                    "that it cannot be captured"
                ) from error

    def _wide_grouped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Grouped products of 32 bits, of which a GPU knows the result and PyTorch no shape."""
        with self.fake:
            half = (each.to(torch.bfloat16) for each in args[:2])
            return func(*half, *args[2:], **kwargs).to(torch.float32)

    def _without_values(self, value: Any) -> Any:
        """Real tensor → a fake one, made anew: a module may exchange the one for the other."""
        if not isinstance(value, torch.Tensor) or is_fake(value) or value.device.type == "meta":
            return value
        if value.dim() == 0 and not value.requires_grad:
            return value  # as a number: the operator may look at it
        with self.fake:
            return _empty_strided(
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
            large = (
                MAX_KEPT_PERMUTATION_BYTES
                if func._schema.name == "aten::randperm"
                else MAX_KEPT_BYTES
            )
            if isinstance(out, torch.Tensor) and out.numel() * out.element_size() > large:
                self.values.follow(func, func._schema.name[6:], args, kwargs, [], [out])
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
        self.values.follow(func, short, args, kwargs, tensors, results)
        everything = [*tensors, *results]
        if not any(each.device.type == "cuda" for each in everything):
            if everything and name not in _SILENT and not self._is_view(func):
                set_phase(self.recorder)
                record_operator(self.recorder, short, everything)
            return
        self.memory.keep(results)
        self.origins.see(tensors)
        if name in _SILENT or self._is_view(func):
            return
        recorder = self.recorder
        set_phase(self.recorder)
        recorder.origin = self.origins.of(tensors)
        between = [each for each in everything if each.dim() and each.device.type == "cpu"]
        if between and short in ("_to_copy", "copy_", "copy"):
            blocking = not (
                kwargs.get("non_blocking") or (short == "copy_" and args[2:3] == (True,))
            )
            source = tensors[1] if short == "copy_" else tensors[0]
            self._copied(source, results[0], blocking=blocking)
            return
        layer, where = self._where()
        label = f"{short} in {where}" if where else short
        if name.startswith("fsdp::"):
            recorder.call(_sharded_copies(short, args, kwargs), layer, label)
            return
        if "attention" in short:  # whether it is causal is said by a default, too
            named = [each for each in func._schema.arguments[len(args) :] if not each.kwarg_only]
            args = (*args, *(kwargs.get(each.name, each.default_value) for each in named))
            kwargs = {k: v for k, v in kwargs.items() if k not in {each.name for each in named}}
        specs = tuple(map(spec_of, args))
        if kwargs:
            given = {
                each.name: spec_of(kwargs[each.name])
                for each in func._schema.arguments
                if each.name in kwargs and not (each.is_out and results)  # stands in the results
            }
            specs = (*specs, *given.values())
        if short == "_grouped_mm" and (*args, None, None)[2] is not None:
            recorder.values.evenly("rows of each group of _grouped_mm")
        call = OperatorCall(name, specs, tuple(spec_of(each) for each in results))
        recorder.call(call, layer, label)
        self.memory.inside(call)

    def _copied(self, source: Any, result: Any, *, blocking: bool) -> None:
        """Record a copy between host and device, with the conversion to another type.

        The CPU converts where it waits for the copy, otherwise the device (``copy_kernel_cuda`` in
        aten/src/ATen/native/cuda/Copy.cu).
        """
        recorder, to_device = self.recorder, result.device.type == "cuda"
        converts = source.dtype != result.dtype
        before = to_device == blocking  # it is converted where it comes from
        kind = {True: result, False: source}[before or not converts]
        size = result.numel() * kind.element_size()
        name = "copy to the device" if to_device else "copy to the host"
        both = (spec_of(source), spec_of(result))
        conversion = OperatorCall("aten::_to_copy", both[:1], both[1:])
        if converts and before:
            self._converted(conversion, [source, result], on_cpu=blocking)
        recorder.copy(size, name, blocking=blocking)
        if converts and not before:
            self._converted(conversion, [source, result], on_cpu=blocking)

    def _converted(self, call: OperatorCall, tensors: list[Any], *, on_cpu: bool) -> None:
        if not on_cpu:
            self.recorder.call(call, *self._where())
        elif sum(map(bytes_of, tensors)) >= LEAST_BYTES:
            self.recorder.host_work(sum(map(bytes_of, tensors)), "conversion on CPU")

    def launched(self, call: OperatorCall, name: str) -> None:
        """Record a kernel that no operator of PyTorch stands for.

        Parameters
        ----------
        call : OperatorCall
        name : str
            For people.
        """
        if self._unrecorded:
            return
        set_phase(self.recorder)
        layer, where = self._where()
        if torch._C._current_autograd_node() is None and self.recorder.module:
            # In the forward of an autograd.Function, whose node has got its number before.
            self.layers[torch.autograd._get_sequence_nr() - 1] = self.recorder.module[-1]
        self.recorder.call(call, layer, f"{name} in {where}" if where else name)

    def launch(self, name: str, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Record a kernel of a library, by what it reads and returns.

        Parameters
        ----------
        name : str
            With its namespace, as in the table of operators.
        inputs, results : sequence
            Tensors, lists of them, numbers and names; new tensors.
        """
        if self._unrecorded:
            return
        self.memory.keep(each for each in results if isinstance(each, torch.Tensor))
        call = OperatorCall(name, tuple(map(spec_of, inputs)), tuple(map(spec_of, results)))
        self.launched(call, name.partition("::")[2] or name)
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

    def _where(self) -> tuple[int, str]:
        """Return number of the layer and path of the module that is executed."""
        node = torch._C._current_autograd_node()
        if node is not None and not torch.is_grad_enabled():
            path = self.layers.get(node._sequence_nr(), "")
        else:
            path = self.recorder.module[-1] if self.recorder.module else ""
            if torch.is_grad_enabled():
                number = torch.autograd._get_sequence_nr()
                self.layers[number] = self.layers[number - 1] = path
        found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
        layer = min(int(found[1]), 32767) if found else -1
        return layer, re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", path)

    def _holder(self) -> str:
        """Return what holds a storage that comes now: module and pass, or the user's line."""
        set_phase(self.recorder)
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
