"""Stand-in for Apex: fused optimizers, norms, softmax, losses, and its compiled extensions.

Apex has no versions; the functions are those of its sources of 2025 (github:NVIDIA/apex).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .library import Contents, Launcher, Library
from .multi_tensor import Applier, MultiTensor, fused_adam, fused_sgd
from .norms import Norms

__all__ = ["LIBRARY"]


def _norm_functions(launcher: Launcher) -> dict[str, Any]:
    """Return what ``apex.normalization.fused_layer_norm`` has."""
    norms = Norms(launcher, "apex")

    def function(kind: str, name: str, affine: bool) -> Any:
        """Return the `torch.autograd.Function`, with the positional arguments of Apex's own."""
        parameters = (("weight",) if kind == "rms" else ("weight", "bias")) if affine else ()

        def forward(ctx: Any, input: Any, *args: Any) -> Any:
            weights = args[: len(parameters)]
            small = bool(args[len(parameters) + 2 :][:1] and args[len(parameters) + 2])
            weight, bias = (*weights, None, None)[:2]
            x = input.contiguous()
            if weight is None:
                shape = args[0]
                weight_like = launcher.empty(
                    (shape,) if isinstance(shape, int) else shape, x.dtype, x.device
                )
                out, sums = norms.forward(kind, x, weight_like, None)
            else:
                mixed = "Mixed" in name
                out, sums = norms.forward(kind, x, weight, bias, weight.dtype if mixed else None)
            ctx.save_for_backward(out if small else x, weight, bias, sums)
            ctx.count = len(args)
            return out

        def backward(ctx: Any, grad: Any) -> Any:
            x, weight, bias, sums = ctx.saved_tensors
            found = norms.backward(kind, grad, x, weight, sums, bias)
            made = found[: 1 + len(parameters)]
            return (*made, *[None] * (ctx.count + 1 - len(made)))

        body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), body)

    def module(kind: str, mixed: bool) -> Any:
        class Norm(torch.nn.Module):
            """A norm over the last dimensions."""

            def __init__(self, normalized_shape: Any, eps: float = 1e-5,
                         elementwise_affine: bool = True, memory_efficient: bool = False,
                         **rest: Any) -> None:  # fmt: skip
                super().__init__()
                shape = (
                    (normalized_shape,)
                    if isinstance(normalized_shape, int)
                    else (tuple(normalized_shape))
                )
                self.normalized_shape, self.eps = torch.Size(shape), eps
                self.elementwise_affine = elementwise_affine
                self.memory_efficient = memory_efficient
                self.weight: Any = None
                self.bias: Any = None
                if elementwise_affine:
                    self.weight = torch.nn.Parameter(torch.ones(shape))
                    if kind == "layer":
                        self.bias = torch.nn.Parameter(torch.zeros(shape))

            def reset_parameters(self) -> None:
                if self.elementwise_affine:
                    torch.nn.init.ones_(self.weight)
                    if self.bias is not None:
                        torch.nn.init.zeros_(self.bias)

            def forward(self, input: Any) -> Any:
                if input.device.type != "cuda":
                    if kind == "rms":
                        return torch.nn.functional.rms_norm(
                            input, self.normalized_shape, self.weight, self.eps
                        )
                    return torch.nn.functional.layer_norm(
                        input, self.normalized_shape, self.weight, self.bias, self.eps
                    )
                dtype = self.weight.dtype if mixed and self.weight is not None else None
                return norms.apply(
                    kind, input, self.weight, self.bias, dtype, self.memory_efficient
                )

        name = f"{'Mixed' * mixed}Fused{'RMS' if kind == 'rms' else 'Layer'}Norm"
        Norm.__name__ = Norm.__qualname__ = name
        return Norm

    found: dict[str, Any] = {}
    for kind, title, short in (
        ("layer", "LayerNorm", "layer_norm"),
        ("rms", "RMSNorm", "rms_norm"),
    ):
        for mixed in ("", "MixedDtypes"):
            name = f"Fused{title}Affine{mixed}Function"
            found[name] = function(kind, name, affine=True)
        found[f"Fused{title}Function"] = function(kind, f"Fused{title}Function", affine=False)
        found[f"Fused{title}"] = module(kind, mixed=False)
        found[f"MixedFused{title}"] = module(kind, mixed=True)
        for mixed, apply in (("", "Affine"), ("mixed_dtypes_", "AffineMixedDtypes")):
            found[f"{mixed}fused_{short}_affine"] = found[f"Fused{title}{apply}Function"].apply
        found[f"fused_{short}"] = found[f"Fused{title}Function"].apply
    return found


def _fast_norm(launcher: Launcher) -> dict[str, Any]:
    """Return what ``apex.contrib.layer_norm`` has: rows are kept in registers."""

    class FastLayerNormFN(torch.autograd.Function):
        """A layer norm."""

        @staticmethod
        def forward(ctx: Any, x: Any, gamma: Any, beta: Any, epsilon: float,
                    memory_efficient: bool = False) -> Any:  # fmt: skip
            x = x.contiguous()
            out = launcher.like(x)
            sums = launcher.empty((2 * x.numel() // gamma.numel(),), torch.float32, x.device)
            launcher("apex::fast_layernorm_fwd", [x, list(gamma.shape), gamma, beta], [out, sums])
            ctx.save_for_backward(out if memory_efficient else x, gamma, beta, sums)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, gamma, beta, sums = ctx.saved_tensors
            made = [launcher.like(each) for each in (x, gamma, beta)]
            inputs = [x, list(gamma.shape), grad.contiguous(), gamma, sums]
            launcher("apex::fast_layernorm_bwd", inputs, made)
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
            return FastLayerNormFN.apply(
                x, self.weight, self.bias, self.epsilon, self.memory_efficient
            )

    return {"FastLayerNormFN": FastLayerNormFN, "FastLayerNorm": FastLayerNorm}


def _softmax(launcher: Launcher, name: str) -> dict[str, Callable[..., Any]]:
    """Return a compiled module of softmax over scores, scaled and masked."""

    def forward(scores: Any, *rest: Any) -> Any:
        out = launcher.like(scores)
        launcher(f"apex::{name}_fwd", [scores], [out])
        return out

    def backward(grad: Any, result: Any, scale: float) -> Any:
        out = launcher.like(grad)
        launcher(f"apex::{name}_bwd", [grad, result], [out])
        return out

    def get_batch_per_block(queries: int, keys: int, batches: int, heads: int) -> int:
        """Rows of a block of threads (csrc/megatron/scaled_masked_softmax.h)."""
        elements = 1 << max(0, (keys - 1).bit_length())
        warp = min(elements, 32)
        return 128 // warp * (2 if elements <= 128 else 1)

    return {
        "forward": forward,
        "backward": backward,
        "get_batch_per_block": get_batch_per_block,
    }


def _weight_gradients(launcher: Launcher) -> dict[str, Any]:
    """Return the products that add to ``main_grad``."""

    def product(name: str) -> Any:
        def function(x: Any, grad: Any, main_grad: Any) -> None:
            launcher(f"fused_weight_gradient_mlp_cuda::{name}", [x, grad, main_grad], [])

        return function

    names = ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16")
    return {name: product(name) for name in names}


def _loss(launcher: Launcher) -> Any:
    """Return ``apex.contrib.xentropy.SoftmaxCrossEntropyLoss``."""

    class SoftmaxCrossEntropyLoss(torch.autograd.Function):
        """One kernel forward and one backward."""

        @staticmethod
        def forward(ctx: Any, logits: Any, labels: Any, smoothing: float = 0.0,
                    padding_idx: int = 0, half_to_float: bool = False) -> Any:  # fmt: skip
            dtype = torch.float32 if half_to_float else logits.dtype
            losses = launcher.empty(labels.shape, dtype, logits.device)
            sums = launcher.empty(labels.shape, torch.float32, logits.device)
            launcher("xentropy::forward", [logits, labels], [losses, sums])
            ctx.save_for_backward(logits, sums, labels)
            return losses

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            logits, sums, labels = ctx.saved_tensors
            out = launcher.like(logits)
            launcher("xentropy::backward", [grad, logits, sums, labels], [out])
            return out, None, None, None, None

    return SoftmaxCrossEntropyLoss


def _clip(kernels: MultiTensor) -> Any:
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

    return clip_grad_norm_


def _build(launcher: Launcher) -> Contents:
    kernels = MultiTensor(launcher)
    norms, fast = _norm_functions(launcher), _fast_norm(launcher)
    optimizers = {
        "FusedAdam": fused_adam(kernels, master_argument="use_master"),
        "FusedSGD": fused_sgd(kernels),
    }
    modules = ("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm")
    applier = {"MultiTensorApply": Applier, "multi_tensor_applier": Applier()}
    return {
        "apex": {},
        "amp_C": kernels.names,
        "apex.multi_tensor_apply": applier,
        "apex.multi_tensor_apply.multi_tensor_apply": {"MultiTensorApply": Applier},
        "apex.normalization": {name: norms[name] for name in modules},
        "apex.normalization.fused_layer_norm": norms,
        "apex.optimizers": optimizers,
        "apex.optimizers.fused_adam": {"FusedAdam": optimizers["FusedAdam"]},
        "apex.optimizers.fused_sgd": {"FusedSGD": optimizers["FusedSGD"]},
        "apex.contrib": {},
        "apex.contrib.clip_grad": {"clip_grad_norm_": _clip(kernels)},
        "apex.contrib.layer_norm": {"FastLayerNorm": fast["FastLayerNorm"]},
        "apex.contrib.layer_norm.layer_norm": fast,
        "apex.contrib.xentropy": {"SoftmaxCrossEntropyLoss": _loss(launcher)},
        "fused_weight_gradient_mlp_cuda": _weight_gradients(launcher),
        **{
            f"{name}_cuda": _softmax(launcher, name)
            for name in (
                "scaled_softmax",
                "scaled_masked_softmax",
                "scaled_upper_triang_masked_softmax",
            )
        },
    }


LIBRARY = Library(
    "apex",
    "apex",
    "0.1",
    _build,
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
