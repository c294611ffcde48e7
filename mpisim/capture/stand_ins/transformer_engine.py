"""Transformer Engine: its modules, as programs import them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from . import multi_tensor
from .dot_product_attention import DotProductAttention
from .experts import PERMUTATION, Fp8Padding, Fp8Unpadding, GroupedLinear
from .fp8 import (
    RECIPES,
    FP8GlobalStateManager,
    autocast,
    fp8_autocast,
    fp8_model_init,
    launch,
    state,
)
from .library import Contents, Library
from .linears import LayerNormLinear, Linear, TransformerEngineBaseModule
from .multi_tensor import Applier, MultiTensor
from .products import gather, general_gemm, scatter
from .quantized_weights import CLASSES
from .transformer_layers import (
    ACTIVATIONS,
    FusedRoPEFunc,
    LayerNorm,
    LayerNormMLP,
    RMSNorm,
    RotaryPositionEmbedding,
    SplitAlongDim,
    apply_rotary_pos_emb,
    parallel_cross_entropy,
)
from .whole_layers import MultiheadAttention, TransformerLayer

__all__ = ["LIBRARY"]


kernels = MultiTensor(launch)


class FusedAdam(multi_tensor.FusedAdam):
    """Transformer Engine's Adam, with the arguments in its own order."""

    kernels = kernels
    master_argument = "master_weights"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            **rest,
        )


class FusedSGD(multi_tensor.FusedSGD):
    """Transformer Engine's SGD."""

    kernels = kernels


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
        raise launch.refuse("checkpoint(distribute_saved_activations=True)")
    enabled, recipe, group = state.enabled, state.recipe, state.group

    def again(*given: Any) -> Any:
        with state.autocast(enabled, recipe=recipe, group=group) if enabled else nullcontext():
            return function(*given, **kwargs)

    state.depth += 1  # the autocast inside is not the outermost
    try:
        return torch_checkpoint(again, *args, use_reentrant=use_reentrant)
    finally:
        state.depth -= 1


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


def get_cpu_offload_context(enabled: bool = False, *args: Any, **kwargs: Any) -> Any:
    """Return what moves activations to the CPU: nothing, unless it is asked for."""
    if enabled:
        raise launch.refuse("get_cpu_offload_context(enabled=True)")
    return nullcontext(), lambda tensor: tensor


# --- the library ----------------------------------------------------------------------------------

QUANTIZED = CLASSES | {
    name: type(name, (), {})
    for name in (
        "QuantizedTensorStorage",
        "Quantizer",
        "NVFP4Tensor",
        "Float8Quantizer",
        "Float8CurrentScalingQuantizer",
        "MXFP8Quantizer",
        "Float8BlockQuantizer",
        "NVFP4Quantizer",
    )
}
"""Classes of tensors and of what casts them: programs ask whether something is one of them."""

MODULES = {
    each.__name__: each
    for each in (
        Linear,
        LayerNormLinear,
        GroupedLinear,
        LayerNormMLP,
        LayerNorm,
        RMSNorm,
        Fp8Padding,
        Fp8Unpadding,
    )
}
PRECISION = {
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
FP8 = {
    **{name: each for name, each in PRECISION.items() if name != "autocast"},
    **RECIPES,
    "FP8GlobalStateManager": FP8GlobalStateManager,
    "get_default_fp8_recipe": state.default_recipe,
}
RANDOM = {"CudaRNGStatesTracker": CudaRNGStatesTracker, "checkpoint": checkpoint}
ROTARY = {
    "FusedRoPEFunc": FusedRoPEFunc,
    "apply_rotary_pos_emb": apply_rotary_pos_emb,
    "RotaryPositionEmbedding": RotaryPositionEmbedding,
}
OPTIMIZERS = {
    **kernels.names,
    "FusedAdam": FusedAdam,
    "FusedSGD": FusedSGD,
    "MultiTensorApply": Applier,
    "multi_tensor_applier": Applier(),
}
"""What several modules have, by name."""


PYTORCH = "transformer_engine.pytorch"


def _modules() -> Contents:
    return {
        "transformer_engine": {},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": RECIPES,
        PYTORCH: {
            **MODULES,
            **PRECISION,
            **RANDOM,
            **PERMUTATION,
            "DotProductAttention": DotProductAttention,
            "MultiheadAttention": MultiheadAttention,
            "TransformerLayer": TransformerLayer,
            "RotaryPositionEmbedding": RotaryPositionEmbedding,
            "parallel_cross_entropy": parallel_cross_entropy,
            "get_cpu_offload_context": get_cpu_offload_context,
            "get_device_compute_capability": torch.cuda.get_device_capability,
            "is_bf16_available": lambda return_reason=False: (True, "") if return_reason else True,
            **QUANTIZED,
        },
        **_modules_of_layers(),
        **_modules_of_tensors(),
        **_modules_of_processes(),
    }


def _modules_of_layers() -> Contents:
    """Return the modules that layers and functions are imported from."""
    attention = {"DotProductAttention": DotProductAttention}
    base = {
        "TransformerEngineBaseModule": TransformerEngineBaseModule,
        "get_workspace": lambda: None,
    }
    return {
        f"{PYTORCH}.attention": {
            **attention,
            "MultiheadAttention": MultiheadAttention,
            "RotaryPositionEmbedding": RotaryPositionEmbedding,
        },
        f"{PYTORCH}.attention.dot_product_attention": attention,
        f"{PYTORCH}.attention.rope": ROTARY,
        f"{PYTORCH}.cross_entropy": {"parallel_cross_entropy": parallel_cross_entropy},
        f"{PYTORCH}.module": MODULES,
        f"{PYTORCH}.module.base": base,
        f"{PYTORCH}.module.linear": {"Linear": Linear},
        f"{PYTORCH}.module.layernorm_linear": {"LayerNormLinear": LayerNormLinear},
        f"{PYTORCH}.module.grouped_linear": {"GroupedLinear": GroupedLinear},
        f"{PYTORCH}.module.layernorm": {"LayerNorm": LayerNorm},
        f"{PYTORCH}.module.layernorm_mlp": {"LayerNormMLP": LayerNormMLP},
        f"{PYTORCH}.module.rmsnorm": {"RMSNorm": RMSNorm},
        f"{PYTORCH}.ops": ACTIVATIONS,
        f"{PYTORCH}.permutation": PERMUTATION,
        f"{PYTORCH}.transformer": {"TransformerLayer": TransformerLayer},
    }


def _modules_of_tensors() -> Contents:
    """Return the modules of formats, of tensors in them, of products and of optimizers."""

    def quantized(*names: str) -> dict[str, Any]:
        return {name: QUANTIZED[name] for name in names}

    return {
        f"{PYTORCH}.cpp_extensions": {"general_gemm": general_gemm},
        f"{PYTORCH}.float8_tensor": quantized("Float8Tensor"),
        f"{PYTORCH}.fp8": FP8,
        f"{PYTORCH}.optimizers": OPTIMIZERS,
        f"{PYTORCH}.quantization": {**FP8, **PRECISION},
        f"{PYTORCH}.tensor": QUANTIZED,
        f"{PYTORCH}.tensor.float8_tensor": quantized(
            "Float8Tensor", "Float8Quantizer", "Float8CurrentScalingQuantizer"
        ),
        f"{PYTORCH}.tensor.mxfp8_tensor": quantized("MXFP8Tensor", "MXFP8Quantizer"),
        f"{PYTORCH}.utils": {
            "SplitAlongDim": SplitAlongDim,
            "make_weak_ref": lambda tensor: tensor,
            "get_device_compute_capability": torch.cuda.get_device_capability,
            "is_bf16_compatible": lambda: True,
        },
    }


def _modules_of_processes() -> Contents:
    """Return the modules about ranks, copies to the CPU and CUDA graphs."""
    return {
        f"{PYTORCH}.cpu_offload": {"get_cpu_offload_context": get_cpu_offload_context},
        f"{PYTORCH}.distributed": {
            **RANDOM,
            "gather_along_first_dim": gather,
            "reduce_scatter_along_first_dim": scatter,
            "get_distributed_world_size": lambda group=None: dist.get_world_size(group),
            "get_distributed_rank": lambda group=None: dist.get_rank(group),
            "is_fp8_activation_recompute_enabled": lambda: False,
            "in_fp8_activation_recompute_phase": lambda: False,
        },
        f"{PYTORCH}.graph": {
            "set_capture_start": lambda: None,
            "set_capture_end": lambda: None,
            "is_graph_capturing": lambda: False,
            "save_fp8_tensors": lambda modules, recipe=None: None,
            "restore_fp8_tensors": lambda modules, tensors: None,
        },
    }


LIBRARY = Library(
    "transformer_engine",
    launch,
    _modules,
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
