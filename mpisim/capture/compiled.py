"""``torch.compile``: Dynamo, AOTAutograd and Inductor run as on a GPU, but for the last step.

What a script compiles is traced, differentiated, cut into a forward and a backward graph (with what
is saved and what is computed again, as PyTorch chooses), fused and written as a module of Python
that launches kernels, all by PyTorch itself. Of that module, kernels of Triton are not compiled:
`_Kernel` stands for each, and a launch becomes an item that reads and writes the bytes that
Inductor counts. What else it calls (products, attention, collectives, allocations) is recorded as
everywhere, so that buffers live as long as on a GPU.

PyTorch's parts that look at the device get stand-ins when the first thing is compiled, since
their import takes seconds.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

from ..operators import FUSED, OperatorCall
from .data_parallel import DistributedDataParallel
from .dispatch import Dispatch, is_fake, spec_of
from .recorder import Recorder

__all__ = ["install"]

_BYTES = re.compile(r"'kernel_num_gb': ([0-9.e+-]+)")
_NUMBER = re.compile(r"(_\d+)+$")

_CHOICES: dict[str, Any] = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "benchmark_fusion": False,
    "benchmark_combo_kernel": False,
    "shape_padding": False,
}
"""Options of Inductor that are turned off: with them it times candidate kernels on the GPU."""

_ALWAYS: dict[str, Any] = {
    "fx_graph_cache": False,
    "wrap_inductor_compiled_regions": False,
    "profile_bandwidth": True,  # writes the bytes of each kernel into its source
}

_TUNED = ("max_autotune", "max_autotune_gemm", "coordinate_descent_tuning")


class _Kernel:
    """Stand-in for a Triton kernel that Inductor generated: a launch is recorded, not run.

    Parameters
    ----------
    name, source : str
        As Inductor has them.
    dispatch : Dispatch
    """

    def __init__(self, name: str, source: str, dispatch: Dispatch) -> None:
        found = _BYTES.search(source)
        self._bytes = None if found is None else round(float(found[1]) * 1e9)
        self._name, self._dispatch = _NUMBER.sub("", name), dispatch

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Record a launch."""
        tensors = [spec_of(each) for each in args if isinstance(each, torch.Tensor)]
        if self._bytes is None:  # a kernel of the user's
            call = OperatorCall(f"triton::{self._name}", tuple(tensors))
        else:
            call = OperatorCall(FUSED + self._name, (self._bytes, *tensors))
        self._dispatch.launched(call, self._name)


class _OnCpu(TorchDispatchMode):
    """Creates the constants of a graph on the CPU, so that Inductor can fold their values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **kwargs)


def install(recorder: Recorder, dispatch: Dispatch) -> None:
    """Have ``torch.compile`` compile for a device that is not there.

    Parameters
    ----------
    recorder : Recorder
        Told what is done otherwise.
    dispatch : Dispatch
        Gets kernels that are launched.
    """
    from torch.nn.attention import flex_attention

    anything: Any = torch
    original = torch.compile
    ready: list[bool] = []

    def compile(model: Any = None, **kwargs: Any) -> Any:
        import torch._dynamo.config

        if torch._dynamo.config.disable:
            recorder.replaced["torch.compile: run eagerly, as TORCH_COMPILE_DISABLE says"] += 1
            return (lambda each: each) if model is None else model
        if model is flex_attention.create_block_mask:
            return model  # the stand-in looks at values, and has no kernels to fuse
        if not ready:
            ready.append(True)
            _install_compiler(recorder, dispatch)
        return original(model, **kwargs)

    anything.compile = compile


def _install_compiler(recorder: Recorder, dispatch: Dispatch) -> None:
    """Stand-ins of what looks at the device or compiles for it."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.async_compile
    import torch._inductor.compile_fx
    from torch._dynamo import convert_frame, device_interface
    from torch._dynamo.eval_frame import skip_code
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _triton as triton

    inductor: Any = torch._inductor
    functorch: Any = torch._functorch
    inductor.config.compile_threads = 1
    functorch.config.enable_autograd_cache = False
    modes: Any = FakeTensorMode
    modes.avoid_device_init = property(lambda self: True)
    cuda: Any = device_interface.CudaInterface
    for name, each in vars(cuda).items():
        if isinstance(each, staticmethod) and hasattr(torch.cuda, name):
            setattr(cuda, name, staticmethod(getattr(torch.cuda, name)))
    cuda.get_raw_stream = staticmethod(lambda device: recorder.stream)
    anything: Any = triton
    for name in ("has_triton", "has_triton_package"):
        setattr(anything, name, lambda: True)
    anything.triton_backend = lambda: None
    anything.triton_hash_with_backend = lambda: ""
    recorder.values.own.append(cache_dir())  # where Inductor puts what it writes
    # Dynamo cuts graphs by its buckets, and begins behind its frame, as behind PyTorch's own.
    frames: Any = convert_frame
    frames.DistributedDataParallel = DistributedDataParallel
    skip_code(DistributedDataParallel.forward.__code__)
    _install_memory(recorder)
    _install_folding()
    _install_optimizers(dispatch)
    # `proxy_call` of torch/fx/experimental/proxy_tensor.py computes an operator as it traces where
    # all inputs are known numbers: a copy to the device would be made there, and there is none.
    # Only this tag has it leave an operator alone. Nothing is random about the copy. Of the other
    # passes that read the tag, folding constants (torch/_inductor/constant_folding.py) is to leave
    # it alone, too, and ordering random numbers (fx_passes/post_grad.py) keeps it in its place.
    put: Any = torch.ops.prims.device_put.default
    put._tags = [*put._tags, torch.Tag.nondeterministic_seeded]

    def kernel(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        return _Kernel(name, source, dispatch)

    inductor.async_compile.AsyncCompile.triton = kernel
    inductor.compile_fx.compile_fx = _compiling(recorder, inductor.compile_fx.compile_fx)
    inductor.compile_fx.cudagraphify = _graphs(recorder)
    _install_breaks(recorder)


def _install_memory(recorder: Recorder) -> None:
    """Functions of C++ with which compiled modules make tensors, past the dispatcher."""
    guards: Any = torch._C._dynamo.guards
    c: Any = torch._C

    def empty(size: Any, stride: Any, dtype: Any) -> Any:
        device = torch.device("cuda", torch.cuda.current_device())
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    viewed = guards._reinterpret_tensor

    def view(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        if not is_fake(tensor):
            return viewed(tensor, size, stride, offset)
        with torch.no_grad():
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    guards._empty_strided_cuda, guards._reinterpret_tensor = empty, view
    c._cuda_getCurrentRawStream = lambda device: recorder.stream


def _install_optimizers(dispatch: Dispatch) -> None:
    """States of optimizers, which Dynamo has made while it traces a step: recorded like others."""

    def recorded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_group(*args: Any, **kwargs: Any) -> Any:
            if dispatch in _get_current_dispatch_mode_stack():
                return original(*args, **kwargs)
            with dispatch:
                return original(*args, **kwargs)

        return init_group

    for each in vars(torch.optim).values():
        named: Any = each
        if isinstance(each, type) and "_init_group" in vars(each):
            named._init_group = recorded(named._init_group)


def _install_folding() -> None:
    """Constants of graphs: their few values are worked out on the CPU."""
    from torch._inductor.constant_folding import ConstantFolder

    folder: Any = ConstantFolder
    run_node, check = folder.run_node, folder.insertable_tensor_check

    def on_cpu(self: Any, node: Any) -> Any:
        with _OnCpu():
            return run_node(self, node)

    folder.run_node = on_cpu
    folder.insertable_tensor_check = lambda self, tensor: (
        not is_fake(tensor) and check(self, tensor)
    )


def _compiling(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's compiler → one that measures nothing, and leaves a graph as it is if it must."""
    inside: list[bool] = []

    def compile_fx(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inside:  # it calls itself with other settings
            return original(model, inputs, *args, **kwargs)
        found = [each for each in inputs if isinstance(each, torch.Tensor)]
        if not any(each.device.type == "cuda" for each in found):
            return model
        patches = dict(kwargs.get("config_patches") or {})
        if any(patches.get(name) or getattr(torch._inductor.config, name) for name in _TUNED):
            recorder.replaced["torch.compile: kernels are not tuned (max-autotune)"] += 1
        kwargs["config_patches"] = patches | _CHOICES | _ALWAYS
        inside.append(True)
        try:
            compiled = original(model, inputs, *args, **kwargs)
        except torch._dynamo.exc.RestartAnalysis:  # Dynamo traces anew, as it does on a device
            raise
        except Exception as error:  # PyTorch's own; the model runs without, too
            text = " ".join(str(error).split())[:100]
            recorder.replaced[
                f"torch.compile: a graph runs operator by operator ({type(error).__name__}: {text})"
            ] += 1
            return model
        finally:
            inside.clear()
        recorder.replaced[
            "torch.compile: graphs fused by Inductor, kernels of Triton priced by their bytes"
        ] += 1
        return compiled

    return compile_fx


def _graphs(recorder: Recorder) -> Callable[..., Any]:
    """CUDA graphs of ``mode="reduce-overhead"``: inputs are copied in, one launch starts all."""
    made: set[int] = set()

    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **kwargs: Any) -> Any:
        static = set(static_input_idxs)

        def run(inputs: Any) -> Any:
            copied = [
                each
                for number, each in enumerate(inputs)
                if number not in static and is_fake(each) and each.device.type == "cuda"
            ]
            copied = [each for each in copied if each.untyped_storage()._cdata not in made]
            if copied:
                with torch.no_grad():
                    torch._foreach_copy_([torch.empty_like(each) for each in copied], copied)
            del copied
            recorder.graph_begins()
            try:
                out = model(inputs)
            finally:
                recorder.launch_graph(recorder.graph_ends())
            for each in tree_leaves(out):
                if is_fake(each):
                    storage = each.untyped_storage()
                    made.add(storage._cdata)
                    weakref.finalize(storage, made.discard, storage._cdata)
            return out

        return run

    return cudagraphify


def _install_breaks(recorder: Recorder) -> None:
    """Graph breaks, and frames that Dynamo leaves as they are, are listed."""
    from torch._dynamo import convert_frame
    from torch._dynamo.utils import counters

    frames: Any = convert_frame.ConvertFrame
    original = frames.__call__
    torch._dynamo.config.suppress_errors = True

    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        before, broken = counters["frames"]["ok"], Counter(counters["graph_break"])
        with _disable_current_modes():  # which Dynamo does itself but for DistributedDataParallel
            found = original(self, frame, *args, **kwargs)
        for reason in counters["graph_break"] - broken:
            text = " ".join(str(reason).split("\n")[0].split())[:100]
            recorder.replaced[f"torch.compile: graph break, as on a GPU: {text}"] += 1
        if counters["frames"]["ok"] == before:
            name = frame.f_code.co_name
            recorder.replaced[f"torch.compile: {name} runs operator by operator"] += 1
        return found

    frames.__call__ = call
