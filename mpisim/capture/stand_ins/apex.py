"""Stand-in for Apex: fused optimizers, norms, softmax, losses, and its compiled extensions.

Apex has no versions; the functions are those of its sources of 2025 (github:NVIDIA/apex).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from . import multi_tensor
from .library import Contents, Launcher, Library
from .multi_tensor import Applier, MultiTensor
from .norms import Norms

__all__ = ["LIBRARY"]


launch = Launcher("apex", "0.1")
norms = Norms(launch, "apex")
kernels = MultiTensor(launch)


class FusedAdam(multi_tensor.FusedAdam):
    """Apex's Adam."""

    kernels = kernels


class FusedSGD(multi_tensor.FusedSGD):
    """Apex's SGD."""

    kernels = kernels


# --- apex.normalization ---------------------------------------------------------------------------


class _NormFunction(torch.autograd.Function):
    """Apex's fused layer or RMS norm → a recorded kernel each way, with Apex's arguments.

    Attributes
    ----------
    kind : {"layer", "rms"}
    weights : int
        How many there are.
    mixed : bool
        Whether the result has the type of the weights.
    """

    kind: ClassVar[str]
    weights: ClassVar[int]
    mixed: ClassVar[bool]

    @classmethod
    def forward(cls, ctx: Any, input: Any, *args: Any) -> Any:
        weight, bias = (*args[: cls.weights], None, None)[:2]
        small = bool(args[cls.weights + 2 :][:1] and args[cls.weights + 2])
        x = input.contiguous()
        if weight is None:
            shape = args[0]
            like = launch.empty((shape,) if isinstance(shape, int) else shape, x.dtype, x.device)
            out, sums = norms.forward(cls.kind, x, like, None)
        else:
            dtype = weight.dtype if cls.mixed else None
            out, sums = norms.forward(cls.kind, x, weight, bias, dtype)
        ctx.save_for_backward(out if small else x, weight, bias, sums)
        ctx.count = len(args)
        return out

    @classmethod
    def backward(cls, ctx: Any, grad: Any) -> Any:
        x, weight, bias, sums = ctx.saved_tensors
        found = norms.backward(cls.kind, grad, x, weight, sums, bias)
        made = found[: 1 + cls.weights]
        return (*made, *[None] * (ctx.count + 1 - len(made)))


class FusedLayerNormFunction(_NormFunction):
    """A layer norm without weights."""

    kind, weights, mixed = "layer", 0, False


class FusedLayerNormAffineFunction(_NormFunction):
    """A layer norm."""

    kind, weights, mixed = "layer", 2, False


class FusedLayerNormAffineMixedDtypesFunction(_NormFunction):
    """A layer norm whose result has the type of its weights."""

    kind, weights, mixed = "layer", 2, True


class FusedRMSNormFunction(_NormFunction):
    """An RMS norm without a weight."""

    kind, weights, mixed = "rms", 0, False


class FusedRMSNormAffineFunction(_NormFunction):
    """An RMS norm."""

    kind, weights, mixed = "rms", 1, False


class FusedRMSNormAffineMixedDtypesFunction(_NormFunction):
    """An RMS norm whose result has the type of its weight."""

    kind, weights, mixed = "rms", 1, True


class _FusedNorm(torch.nn.Module):
    """A norm over the last dimensions, on the CPU by PyTorch.

    Attributes
    ----------
    kind : {"layer", "rms"}
    mixed : bool
        Whether the result has the type of the weights.
    """

    kind: ClassVar[str]
    mixed: ClassVar[bool]

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
                 memory_efficient: bool = False, **rest: Any) -> None:  # fmt: skip
        super().__init__()
        whole = isinstance(normalized_shape, int)
        shape = (normalized_shape,) if whole else tuple(normalized_shape)
        self.normalized_shape, self.eps = torch.Size(shape), eps
        self.elementwise_affine, self.memory_efficient = elementwise_affine, memory_efficient
        self.weight: Any = None
        self.bias: Any = None
        if elementwise_affine:
            self.weight = torch.nn.Parameter(torch.ones(shape))
            if self.kind == "layer":
                self.bias = torch.nn.Parameter(torch.zeros(shape))

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if self.bias is not None:
                torch.nn.init.zeros_(self.bias)

    def forward(self, input: Any) -> Any:
        if input.device.type != "cuda":
            return self._on_cpu(input)
        dtype = self.weight.dtype if self.mixed and self.weight is not None else None
        return norms.apply(self.kind, input, self.weight, self.bias, dtype, self.memory_efficient)

    def _on_cpu(self, input: Any) -> Any:
        plain = torch.nn.functional
        if self.kind == "rms":
            return plain.rms_norm(input, self.normalized_shape, self.weight, self.eps)
        return plain.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class FusedLayerNorm(_FusedNorm):
    """A layer norm."""

    kind, mixed = "layer", False


class MixedFusedLayerNorm(_FusedNorm):
    """A layer norm whose result has the type of its weights."""

    kind, mixed = "layer", True


class FusedRMSNorm(_FusedNorm):
    """An RMS norm."""

    kind, mixed = "rms", False


class MixedFusedRMSNorm(_FusedNorm):
    """An RMS norm whose result has the type of its weight."""

    kind, mixed = "rms", True


FUSED_NORMS = (
    FusedLayerNormFunction,
    FusedLayerNormAffineFunction,
    FusedLayerNormAffineMixedDtypesFunction,
    FusedRMSNormFunction,
    FusedRMSNormAffineFunction,
    FusedRMSNormAffineMixedDtypesFunction,
    FusedLayerNorm,
    MixedFusedLayerNorm,
    FusedRMSNorm,
    MixedFusedRMSNorm,
)


# --- apex.contrib ---------------------------------------------------------------------------------


class FastLayerNormFN(torch.autograd.Function):
    """A layer norm whose rows are kept in registers."""

    @staticmethod
    def forward(ctx: Any, x: Any, gamma: Any, beta: Any, epsilon: float,
                memory_efficient: bool = False) -> Any:  # fmt: skip
        x = x.contiguous()
        out = launch.like(x)
        sums = launch.empty((2 * x.numel() // gamma.numel(),), torch.float32, x.device)
        launch("apex::fast_layernorm_fwd", [x, list(gamma.shape), gamma, beta], [out, sums])
        ctx.save_for_backward(out if memory_efficient else x, gamma, beta, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, gamma, beta, sums = ctx.saved_tensors
        made = [launch.like(each) for each in (x, gamma, beta)]
        inputs = [x, list(gamma.shape), grad.contiguous(), gamma, sums]
        launch("apex::fast_layernorm_bwd", inputs, made)
        return (*made, None, None)


class FastLayerNorm(torch.nn.Module):
    """A layer norm of a width that has a kernel."""

    def __init__(self, hidden_size: int, eps: float = 1e-5,
                 memory_efficient: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.epsilon, self.memory_efficient = eps, memory_efficient
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Any) -> Any:
        return FastLayerNormFN.apply(x, self.weight, self.bias, self.epsilon, self.memory_efficient)


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """One kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, smoothing: float = 0.0,
                padding_idx: int = 0, half_to_float: bool = False) -> Any:  # fmt: skip
        dtype = torch.float32 if half_to_float else logits.dtype
        losses = launch.empty(labels.shape, dtype, logits.device)
        sums = launch.empty(labels.shape, torch.float32, logits.device)
        launch("xentropy::forward", [logits, labels], [losses, sums])
        ctx.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        logits, sums, labels = ctx.saved_tensors
        out = launch.like(logits)
        launch("xentropy::backward", [grad, logits, sums, labels], [out])
        return out, None, None, None, None


def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> Any:  # fmt: skip
    """Scale gradients to a norm."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [each.grad for each in parameters if each.grad is not None]
    noop = torch.zeros(1, dtype=torch.int, device=grads[0].device)
    total = kernels.apply(kernels.names["multi_tensor_l2norm"], noop, [grads], False)[0]
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    kernels.apply(kernels.names["multi_tensor_scale"], noop, [grads, grads], factor)
    return total


# --- compiled extensions --------------------------------------------------------------------------


def _batch_per_block(queries: int, keys: int, batches: int, heads: int) -> int:
    """Rows of a block of threads (csrc/megatron/scaled_masked_softmax.h)."""
    elements = 1 << max(0, (keys - 1).bit_length())
    warp = min(elements, 32)
    return 128 // warp * (2 if elements <= 128 else 1)


def _softmax(name: str) -> dict[str, Callable[..., Any]]:
    """Name of a softmax over scores → the functions of its compiled module."""

    def forward(scores: Any, *rest: Any) -> Any:
        out = launch.like(scores)
        launch(f"apex::{name}_fwd", [scores], [out])
        return out

    def backward(grad: Any, result: Any, scale: float) -> Any:
        out = launch.like(grad)
        launch(f"apex::{name}_bwd", [grad, result], [out])
        return out

    return {
        "forward": forward,
        "backward": backward,
        "get_batch_per_block": _batch_per_block,
    }


def _weight_gradient(name: str) -> Callable[[Any, Any, Any], None]:
    """Name of a product that adds to ``main_grad`` → its function."""

    def function(x: Any, grad: Any, main_grad: Any) -> None:
        launch(f"fused_weight_gradient_mlp_cuda::{name}", [x, grad, main_grad], [])

    return function


# --- the library ----------------------------------------------------------------------------------


def _modules() -> Contents:
    applier = {"MultiTensorApply": Applier, "multi_tensor_applier": Applier()}
    fused_norms = {
        **{each.__name__: each for each in FUSED_NORMS},
        "fused_layer_norm": FusedLayerNormFunction.apply,
        "fused_layer_norm_affine": FusedLayerNormAffineFunction.apply,
        "mixed_dtypes_fused_layer_norm_affine": FusedLayerNormAffineMixedDtypesFunction.apply,
        "fused_rms_norm": FusedRMSNormFunction.apply,
        "fused_rms_norm_affine": FusedRMSNormAffineFunction.apply,
        "mixed_dtypes_fused_rms_norm_affine": FusedRMSNormAffineMixedDtypesFunction.apply,
    }
    norm_modules = ("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm")
    softmaxes = ("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax")
    products = ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16")
    return {
        "apex": {},
        "amp_C": kernels.names,
        "apex.multi_tensor_apply": applier,
        "apex.multi_tensor_apply.multi_tensor_apply": {"MultiTensorApply": Applier},
        "apex.normalization": {name: fused_norms[name] for name in norm_modules},
        "apex.normalization.fused_layer_norm": fused_norms,
        "apex.optimizers": {"FusedAdam": FusedAdam, "FusedSGD": FusedSGD},
        "apex.optimizers.fused_adam": {"FusedAdam": FusedAdam},
        "apex.optimizers.fused_sgd": {"FusedSGD": FusedSGD},
        "apex.contrib": {},
        "apex.contrib.clip_grad": {"clip_grad_norm_": clip_grad_norm_},
        "apex.contrib.layer_norm": {"FastLayerNorm": FastLayerNorm},
        "apex.contrib.layer_norm.layer_norm": {
            "FastLayerNormFN": FastLayerNormFN,
            "FastLayerNorm": FastLayerNorm,
        },
        "apex.contrib.xentropy": {"SoftmaxCrossEntropyLoss": SoftmaxCrossEntropyLoss},
        "fused_weight_gradient_mlp_cuda": {name: _weight_gradient(name) for name in products},
        **{f"{name}_cuda": _softmax(name) for name in softmaxes},
    }


LIBRARY = Library(
    "apex",
    launch,
    _modules,
    {
        "apex": ("RNN", "fp16_utils"),
        "amp_C": (
            "multi_tensor_l2norm_mp",
            "multi_tensor_l2norm_scale",
            "multi_tensor_lamb_mp",
            "multi_tensor_lamb_stage1_cuda",
            "multi_tensor_lamb_stage2_cuda",
            "multi_tensor_novograd",
            "multi_tensor_adagrad",
            "multi_tensor_lars",
            "update_scale_hysteresis",
        ),
        "apex.amp": (),
        "apex.contrib.fmha": (),
        "apex.contrib.group_norm": (),
        "apex.contrib.multihead_attn": (),
        "apex.contrib.optimizers": (),
        "apex.contrib.optimizers.distributed_fused_adam": (),
        "apex.fused_dense": (),
        "apex.mlp": (),
        "apex.optimizers": (
            "FusedAdagrad",
            "FusedLAMB",
            "FusedMixedPrecisionLamb",
            "FusedNovoGrad",
        ),
        "apex.parallel": (),
        "apex.transformer": (),
        "apex.transformer.functional": (),
        "apex.transformer.tensor_parallel": (),
        "fused_layer_norm_cuda": (),
        "fast_layer_norm": (),
    },
    (
        "amp_C",
        "fast_layer_norm",
        "fused_layer_norm_cuda",
        "fused_weight_gradient_mlp_cuda",
        "scaled_softmax_cuda",
        "scaled_masked_softmax_cuda",
        "scaled_upper_triang_masked_softmax_cuda",
    ),
)
"""The library."""
