"""Transformer Engine: its modules, as programs import them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from .fp8 import recipes
from .grouped_linear import grouped_linear
from .library import Contents, Launcher, Library
from .linears import Linears
from .multi_tensor import Applier, MultiTensor, fused_adam, fused_sgd
from .products import Engine, gather, scatter
from .transformer_layers import (
    activations,
    attention,
    cross_entropy,
    mlp,
    norm,
    permutation,
    rotary,
)
from .whole_layers import multihead_attention, transformer_layer

__all__ = ["LIBRARY"]


def _checkpoint(engine: Engine) -> Any:
    def checkpoint(
        function: Any,
        *args: Any,
        distribute_saved_activations: bool = False,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        use_reentrant: bool = True,
        context_fn: Any = None,
        determinism_check: str = "default",
        debug: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Keep what a function is given, and run it again in the backward pass."""
        if distribute_saved_activations:
            raise engine.refuse("checkpoint(distribute_saved_activations=True)")
        state = engine.state
        enabled, recipe, group = state.enabled, state.recipe, state.group

        def again(*given: Any) -> Any:
            with state.autocast(enabled, recipe=recipe, group=group) if enabled else nullcontext():
                return function(*given, **kwargs)

        state.depth += 1  # the autocast inside is not the outermost
        try:
            return torch_checkpoint(again, *args, use_reentrant=use_reentrant)
        finally:
            state.depth -= 1

    return checkpoint


class CudaRNGStatesTracker:
    """States of random generators, by name."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Any]:
        """Return all."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        """Take all."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Add one."""
        if seed in self.seeds_ or name in self.states_:
            raise RuntimeError(f"seed {seed} or state {name!r} already exists")
        self.seeds_.add(seed)
        self.states_[name] = seed

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Any:
        """Draw by one of them."""
        yield


class _Padding(torch.nn.Module):
    """Rows of experts padded to multiples of 16, or cut to what they were."""

    cuts = False

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size or 16

    def forward(self, inp: Any, m_splits: list[int]) -> Any:
        """Pad, or cut."""
        wide = [-(-each // self.align_size) * self.align_size for each in m_splits]
        if wide == list(m_splits):
            return inp if self.cuts else (inp, wide)
        rows = sum(m_splits) if self.cuts else sum(wide)
        out = inp.new_empty((rows, inp.shape[-1]))
        less = min(rows, inp.shape[0])
        out[:less].copy_(inp[:less])
        return out if self.cuts else (out, wide)


class Fp8Padding(_Padding):
    """Rows of experts padded."""


class Fp8Unpadding(_Padding):
    """Rows of experts cut."""

    cuts = True


class _SplitAlongDim(torch.autograd.Function):
    """Parts of a tensor, whose gradients are one tensor again."""

    @staticmethod
    def forward(ctx: Any, mixed: Any, axis: int, sizes: Any, squeeze: bool = False) -> Any:
        ctx.axis = axis
        parts = mixed.split(sizes, dim=axis)
        return tuple(each.squeeze(axis) if squeeze else each for each in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.cat(grads, dim=ctx.axis), None, None, None


def _offload(engine: Engine) -> Any:
    def get_cpu_offload_context(enabled: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Return what moves activations to the CPU: nothing, unless it is asked for."""
        if enabled:
            raise engine.refuse("get_cpu_offload_context(enabled=True)")
        return nullcontext(), lambda tensor: tensor

    return get_cpu_offload_context


def _build(launcher: Launcher) -> Contents:
    engine = Engine(launcher, LIBRARY)
    linears = Linears(engine)
    experts = grouped_linear(engine, linears.base)
    state, kernels = engine.state, MultiTensor(launcher)
    manager, turning, rows = state.manager(), rotary(engine), permutation(engine)
    dot_product, loss = attention(engine), cross_entropy(engine)
    checkpoint, offload = _checkpoint(engine), _offload(engine)

    def fp8_autocast(enabled: bool = True, calibrating: bool = False, fp8_recipe: Any = None,
                     fp8_group: Any = None, _graph: bool = False) -> Any:  # fmt: skip
        return state.autocast(enabled, calibrating, fp8_recipe, fp8_group)

    def autocast(enabled: bool = True, calibrating: bool = False, recipe: Any = None,
                 amax_reduction_group: Any = None, _graph: bool = False) -> Any:  # fmt: skip
        return state.autocast(enabled, calibrating, recipe, amax_reduction_group)

    def fp8_model_init(enabled: bool = True, recipe: Any = None,
                       preserve_high_precision_init_val: bool = False) -> Any:  # fmt: skip
        if enabled:
            raise engine.refuse("fp8_model_init(enabled=True), weights in fp8,")
        return nullcontext()

    def general_gemm(A: Any, B: Any, workspace: Any = None, out_dtype: Any = None,
                     layout: str = "TN", out: Any = None, accumulate: bool = False,
                     **rest: Any) -> Any:  # fmt: skip
        turned, straight = layout[0] == "T", layout[1] == "T"
        k, n = (A.shape[-1], A.shape[0]) if turned else (A.shape[0], A.shape[-1])
        m = B.shape[-1] if straight else B.numel() // B.shape[-1]
        made = engine.multiply(
            B, A, (m, n, k), out_dtype or B.dtype, into=out, accumulate=accumulate
        )
        shaped = made if straight or out is not None else made.view(*B.shape[:-1], n)
        return shaped, None, None, None

    quantized = {
        name: type(name, (), {})
        for name in (
            "QuantizedTensor",
            "QuantizedTensorStorage",
            "Quantizer",
            "Float8Tensor",
            "MXFP8Tensor",
            "Float8BlockwiseQTensor",
            "NVFP4Tensor",
            "Float8Quantizer",
            "Float8CurrentScalingQuantizer",
            "MXFP8Quantizer",
            "Float8BlockQuantizer",
            "NVFP4Quantizer",
        )
    }
    modules = {
        "Linear": linears.linear,
        "LayerNormLinear": linears.layernorm_linear,
        "GroupedLinear": experts,
        "LayerNormMLP": mlp(engine, linears),
        "LayerNorm": norm(engine, "layer"),
        "RMSNorm": norm(engine, "rms"),
        "Fp8Padding": Fp8Padding,
        "Fp8Unpadding": Fp8Unpadding,
    }
    parts = {**modules, **turning, "DotProductAttention": dot_product}
    parts["SplitAlongDim"] = _SplitAlongDim
    parts["MultiheadAttention"] = whole_attention = multihead_attention(engine, parts)
    whole_layer = transformer_layer(engine, parts)
    precision = {
        "fp8_autocast": fp8_autocast,
        "autocast": autocast,
        "fp8_model_init": fp8_model_init,
        "quantized_model_init": fp8_model_init,
        "is_fp8_available": state.available,
        "is_mxfp8_available": state.blocks_available,
        "is_nvfp4_available": state.blocks_available,
        "is_fp8_block_scaling_available": state.available,
        "get_default_recipe": state.default_recipe,
    }
    random = {"CudaRNGStatesTracker": CudaRNGStatesTracker, "checkpoint": checkpoint}
    optimizers = {
        **kernels.names,
        "FusedAdam": fused_adam(kernels, master_argument="master_weights"),
        "FusedSGD": fused_sgd(kernels),
        "MultiTensorApply": Applier,
        "multi_tensor_applier": Applier(),
    }
    formats = recipes()
    fp8 = {
        **{name: each for name, each in precision.items() if name != "autocast"},
        **formats,
        "FP8GlobalStateManager": manager,
        "get_default_fp8_recipe": state.default_recipe,
    }
    base = {"TransformerEngineBaseModule": linears.base, "get_workspace": lambda: None}
    root = "transformer_engine"
    return {
        root: {},
        f"{root}.common": {},
        f"{root}.common.recipe": formats,
        f"{root}.pytorch": {
            **modules,
            **precision,
            **random,
            **rows,
            "DotProductAttention": dot_product,
            "MultiheadAttention": whole_attention,
            "TransformerLayer": whole_layer,
            "RotaryPositionEmbedding": turning["RotaryPositionEmbedding"],
            "parallel_cross_entropy": loss,
            "get_cpu_offload_context": offload,
            "get_device_compute_capability": torch.cuda.get_device_capability,
            "is_bf16_available": lambda return_reason=False: (True, "") if return_reason else True,
            **quantized,
        },
        f"{root}.pytorch.attention": {
            "DotProductAttention": dot_product,
            "MultiheadAttention": whole_attention,
            "RotaryPositionEmbedding": turning["RotaryPositionEmbedding"],
        },
        f"{root}.pytorch.attention.dot_product_attention": {"DotProductAttention": dot_product},
        f"{root}.pytorch.attention.rope": turning,
        f"{root}.pytorch.cpp_extensions": {"general_gemm": general_gemm},
        f"{root}.pytorch.cpu_offload": {"get_cpu_offload_context": offload},
        f"{root}.pytorch.cross_entropy": {"parallel_cross_entropy": loss},
        f"{root}.pytorch.distributed": {
            **random,
            "gather_along_first_dim": gather,
            "reduce_scatter_along_first_dim": scatter,
            "get_distributed_world_size": lambda group=None: dist.get_world_size(group),
            "get_distributed_rank": lambda group=None: dist.get_rank(group),
            "is_fp8_activation_recompute_enabled": lambda: False,
            "in_fp8_activation_recompute_phase": lambda: False,
        },
        f"{root}.pytorch.float8_tensor": {"Float8Tensor": quantized["Float8Tensor"]},
        f"{root}.pytorch.fp8": fp8,
        f"{root}.pytorch.quantization": {**fp8, **precision},
        f"{root}.pytorch.graph": {
            "set_capture_start": lambda: None,
            "set_capture_end": lambda: None,
            "is_graph_capturing": lambda: False,
            "save_fp8_tensors": lambda modules, recipe=None: None,
            "restore_fp8_tensors": lambda modules, tensors: None,
        },
        f"{root}.pytorch.module": modules,
        f"{root}.pytorch.module.base": base,
        f"{root}.pytorch.module.linear": {"Linear": linears.linear},
        f"{root}.pytorch.module.layernorm_linear": {"LayerNormLinear": linears.layernorm_linear},
        f"{root}.pytorch.module.grouped_linear": {"GroupedLinear": experts},
        f"{root}.pytorch.module.layernorm": {"LayerNorm": modules["LayerNorm"]},
        f"{root}.pytorch.module.layernorm_mlp": {"LayerNormMLP": modules["LayerNormMLP"]},
        f"{root}.pytorch.module.rmsnorm": {"RMSNorm": modules["RMSNorm"]},
        f"{root}.pytorch.ops": activations(engine),
        f"{root}.pytorch.optimizers": optimizers,
        f"{root}.pytorch.permutation": rows,
        f"{root}.pytorch.tensor": quantized,
        f"{root}.pytorch.tensor.float8_tensor": {
            name: quantized[name]
            for name in ("Float8Tensor", "Float8Quantizer", "Float8CurrentScalingQuantizer")
        },
        f"{root}.pytorch.tensor.mxfp8_tensor": {
            name: quantized[name] for name in ("MXFP8Tensor", "MXFP8Quantizer")
        },
        f"{root}.pytorch.transformer": {"TransformerLayer": whole_layer},
        f"{root}.pytorch.utils": {
            "SplitAlongDim": _SplitAlongDim,
            "make_weak_ref": lambda tensor: tensor,
            "get_device_compute_capability": torch.cuda.get_device_capability,
            "is_bf16_compatible": lambda: True,
        },
    }


LIBRARY = Library(
    "transformer_engine",
    "transformer-engine",
    "2.9.0",
    _build,
    {
        "transformer_engine.common.recipe": ("CustomRecipe",),
        "transformer_engine.pytorch": (
            "InferenceParams",
            "UserBufferQuantizationMode",
            "initialize_ub",
            "destroy_ub",
            "make_graphed_callables",
            "onnx_export",
            "get_cudnn_version",
        ),
        "transformer_engine.pytorch.attention": ("InferenceParams",),
        "transformer_engine.pytorch.cpp_extensions": ("general_grouped_gemm",),
        "transformer_engine.pytorch.distributed": (
            "activation_recompute_forward",
            "prepare_te_modules_for_fsdp",
        ),
        "transformer_engine.pytorch.export": (),
        "transformer_engine.pytorch.graph": ("make_graphed_callables",),
        "transformer_engine.pytorch.module": ("initialize_ub", "destroy_ub"),
        "transformer_engine.pytorch.module.base": ("initialize_ub", "get_ub", "destroy_ub"),
        "transformer_engine.pytorch.ops": ("*",),
        "transformer_engine.pytorch.optimizers": (
            "multi_tensor_adam_fp8",
            "multi_tensor_adam_param_remainder",
        ),
        "transformer_engine.pytorch.quantization": ("CustomRecipeState",),
        "transformer_engine.pytorch.router": (),
        "transformer_engine.pytorch.tensor": ("cast_master_weights_to_fp8", "replace_raw_data"),
        "transformer_engine.pytorch.tensor.utils": (),
        "transformer_engine_torch": (),
    },
    ("transformer_engine_torch",),
)
"""The library."""
