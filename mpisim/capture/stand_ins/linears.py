"""Matrix products of Transformer Engine: ``Linear`` and ``LayerNormLinear``.

Kernels and communications come in the order in which version 2.9 issues them
(transformer_engine/pytorch/module/linear.py and layernorm_linear.py). Gradients
of weights are added to ``main_grad`` where a program asks for that, those of biases come from the
same product, or in fp8 from the cast of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from .fp8 import Quantized, launch, state
from .products import (
    gather,
    group_size,
    multiply,
    no_gradient,
    norms,
    restore,
    save,
    scatter,
)
from .quantized_weights import QuantizedTensor, as_product_reads, plain, quantized

__all__ = ["LayerNormLinear", "Linear", "TransformerEngineBaseModule", "initial"]


class _Linear(torch.autograd.Function):
    """Rows of features → rows of features."""

    @staticmethod
    def forward(ctx: Any, x: Any, norm_weight: Any, norm_bias: Any, weight: Any, bias: Any,
                layer: Any, first: bool | None, grads: bool) -> Any:  # fmt: skip
        outputs, inputs = weight.shape
        assert x.shape[-1] == inputs, "GEMM not possible"
        dtype = layer.activation_dtype(x)
        group, kind = layer.tp_group, layer.norm_kind
        given = x.reshape(-1, inputs).to(dtype)
        recipe = state.recipe if state.enabled else None
        needs = grads and weight.requires_grad
        gathers = layer.parallel_mode == "column" and layer.sequence_parallel
        whole = recipe is not None and recipe.float8_per_tensor_scaling()
        operand, sums = given, None
        if kind:
            casts = recipe is not None and recipe.delayed() and not layer.returns_norm
            operand, sums = norms.forward(
                kind, given, norm_weight, norm_bias, torch.float8_e4m3fn if casts else dtype
            )
            normed = operand
            if casts:
                operand = Quantized(tuple(given.shape), operand, None)
        if recipe is not None:
            state.register(layer, 1)
            if not isinstance(operand, Quantized):
                operand = state.quantize(
                    operand,
                    columns=needs and not (gathers and whole),
                    reduced=group if gathers else None,
                )
        total = gather(operand, group)[0] if gathers else operand
        matrix = layer.cast_weight("weight", weight, dtype, first, grads)
        rows = total.shape[0]
        out = multiply(total, matrix, (rows, outputs, inputs), dtype, recipe=recipe)
        if layer.parallel_mode == "row" and group_size(group) > 1:
            if layer.sequence_parallel:
                out = scatter(out, group)[0]
            else:
                dist.all_reduce(out, group=group)
        if grads:
            if isinstance(operand, Quantized) and operand.columns is not None:
                operand = operand._replace(rows=None)
            keeps = given if kind else None
            save(ctx, keeps, norm_weight, norm_bias, sums, operand if needs else None,
                   matrix)  # fmt: skip
            ctx.layer, ctx.first, ctx.recipe, ctx.dtype = layer, first, recipe, dtype
            ctx.weight, ctx.bias = weight, bias
            ctx.shape, ctx.gathers, ctx.needs = x.shape, gathers, needs
            ctx.needs_input = x.requires_grad or (kind and norm_weight.requires_grad)
            ctx.reduces = recipe is not None and state.is_first()
        out = out.view(-1, *x.shape[1:-1], outputs)
        if layer.returns_norm:
            if layer.returns_gathered and gathers:
                normed = gather(normed, group)[0]
            return out, normed.view(-1, *x.shape[1:])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_norm: Any = None) -> Any:
        given, norm_weight, norm_bias, sums, operand, matrix = restore(ctx)
        layer, recipe, weight, bias = ctx.layer, ctx.recipe, ctx.weight, ctx.bias
        group, dtype = layer.tp_group, ctx.dtype
        outputs, inputs = weight.shape
        grad = grad.reshape(-1, outputs).contiguous()
        gathers_grad = layer.parallel_mode == "row" and layer.sequence_parallel
        grad_bias = None
        if recipe is not None:
            fused = bias is not None and not gathers_grad
            if bias is not None:
                grad_bias = launch.like(bias) if fused else grad.sum(dim=0)
            whole = recipe.float8_per_tensor_scaling()
            grad = state.quantize(
                grad,
                columns=not (gathers_grad and whole),
                reduced=group if gathers_grad else None,
                bias=fused,
                backward=True,
                recipe=recipe,
            )
        if gathers_grad:
            grad = gather(grad, group)[0]
        total, work = operand, None
        if ctx.needs and ctx.gathers:
            total, work = gather(operand, group, later=True)
        rows = grad.shape[0]
        found, reduction = None, None
        if ctx.needs_input:
            found = multiply(
                grad, matrix, (rows, inputs, outputs), dtype,
                split=True, recipe=recipe, columns=(False, True),
            )  # fmt: skip
            if layer.parallel_mode == "column" and group_size(group) > 1:
                if layer.sequence_parallel:
                    found, reduction = scatter(found, group, later=True)
                else:
                    reduction = dist.all_reduce(found, group=group, async_op=True)
        grad_weight = None
        if ctx.needs:
            if work is not None:
                work.wait()
            total, grad = state.for_columns(total), state.for_columns(grad)
            grad_weight = layer.weight_gradient(
                "weight", grad, total, rows, recipe, dtype, ctx.first
            )
        if recipe is None and bias is not None:
            grad_bias = launch.like(bias)  # of the product above
        if reduction is not None:
            reduction.wait()
        grad_weights = (None, None)
        if layer.norm_kind and found is not None:
            if grad_norm is not None:
                found = found + grad_norm.reshape(found.shape)
            found, *grad_weights = norms.backward(
                layer.norm_kind, found, given, norm_weight, sums, norm_bias
            )
        if ctx.reduces and recipe.delayed():
            state.reduce(forward=False)
        if found is not None:
            found = found.view(ctx.shape)
        return found, *grad_weights, grad_weight, grad_bias, None, None, None


class TransformerEngineBaseModule(torch.nn.Module):
    """A module with matrices that are cast for their products."""

    norm_kind = ""
    returns_norm = returns_gathered = False

    def __init__(self) -> None:
        super().__init__()
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = False
        self.fuse_wgrad_accumulation = False
        self._delayed: list[Callable[[], None]] | None = None
        self._hooks: list[Callable[[], None]] = []
        self._workspaces: dict[str, Quantized] = {}

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Take the tensor-parallel group."""
        self.tp_group = tp_group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Make what fp8 needs: nothing here."""

    def get_extra_state(self) -> Any:
        """Return what checkpoints keep of fp8."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, found: Any) -> None:
        """Take what checkpoints have of fp8."""

    def fast_setattr(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self.__dict__[name] = value

    def activation_dtype(self, x: Any) -> torch.dtype:
        """Type that products take their operands in."""
        if torch.is_autocast_enabled("cuda"):
            return torch.get_autocast_dtype("cuda")
        return x.dtype

    def made_parameter(
        self, name: str, shape: Sequence[int], dtype: Any, device: Any, tracker: Any,
        method: Callable[[Any], Any] | None, *, axis: int | None = None,
    ) -> None:  # fmt: skip
        """Register a parameter; `axis` is split over ranks."""
        parameter = torch.nn.Parameter(torch.empty(tuple(shape), dtype=dtype, device=device))
        anything: Any = parameter
        if axis is not None:
            anything.tensor_model_parallel = True
            anything.partition_dim, anything.partition_stride = axis, 1
        if method is not None and parameter.device.type != "meta":
            with torch.no_grad(), tracker().fork() if tracker else nullcontext():
                method(parameter)
        if len(shape) == 2 and state.of_weights is not None:
            if parameter.device.type != "cuda":
                raise launch.refuse("fp8_model_init of weights on another device")
            if state.of_weights.nvfp4():
                raise launch.refuse("fp8_model_init with NVFP4BlockScaling")
            cast = torch.nn.Parameter(quantized(parameter, state.of_weights))
            cast.__dict__.update(parameter.__dict__)
            parameter = cast
        self.register_parameter(name, parameter)

    def cast_weight(
        self, name: str, weight: Any, dtype: torch.dtype, first: bool | None, grads: bool
    ) -> Any:
        """Return a matrix as products take it: cast in each pass, or in the first of a step."""
        if not state.enabled:
            return plain(weight).to(dtype)
        if isinstance(weight, QuantizedTensor):
            return as_product_reads(weight, columns=grads)
        if first or first is None or name not in self._workspaces:
            cast = state.quantize(weight, columns=grads)
            if first is None:
                return cast
            self._workspaces[name] = cast
        return self._workspaces[name]

    def weight_gradient(
        self, name: str, grad: Any, x: Any, rows: int, recipe: Any, dtype: torch.dtype,
        first: bool | None,
    ) -> Any:  # fmt: skip
        """Record the product that makes a matrix's gradient, now or in `backward_dw`."""
        weight: Any = getattr(self, name)
        fused = self.fuse_wgrad_accumulation

        def product() -> Any:
            return multiply(
                grad, x, (*weight.shape, rows),
                weight.main_grad.dtype if fused else dtype,
                split=True, recipe=recipe, columns=(True, True),
                into=weight.main_grad if fused else None,
                accumulate=fused and not first
                and not getattr(weight, "overwrite_main_grad", False),
            )  # fmt: skip

        if self._delayed is not None:

            def later() -> None:
                made = product()
                if not fused:
                    weight.grad = made

            self._delayed.append(later)
        else:
            made = product()
            if not fused:
                return made
        if fused and hasattr(weight, "grad_added_to_main_grad"):
            weight.grad_added_to_main_grad = True
            return no_gradient(weight)
        return None

    def need_backward_dw(self) -> bool:
        """Whether gradients of matrices are made in `backward_dw`."""
        return self._delayed is not None

    def register_wgrad_accumulation_and_reduce_hooks(self, hook: Any) -> None:
        """Have something called after `backward_dw`."""
        self._hooks.append(hook)

    def backward_dw(self) -> None:
        """Make the gradients of matrices that were put off."""
        if self._delayed:
            for each in self._delayed:
                each()
            self._delayed.clear()
            for hook in self._hooks:
                hook()


def initial(method: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Initialisation that is asked for → function that fills a weight.

    Parameters
    ----------
    method : callable, optional
        Takes a tensor and fills it.

    Returns
    -------
    callable
        `method`; Transformer Engine's own, a normal distribution of 0.023, for None.
    """
    return method or (lambda tensor: torch.nn.init.normal_(tensor, mean=0.0, std=0.023))


class _Product(TransformerEngineBaseModule):
    """A matrix, split by columns or by rows over ranks or not, with a norm before it or not.

    Attributes
    ----------
    normed : bool
        Whether it has the norm.
    """

    normed: ClassVar[bool]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        init_method: Any = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: Any = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: Any = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
        **overlaps: Any,
    ) -> None:
        super().__init__()
        for asked in ("parameters_split", "symmetric_ar_type"):
            if locals()[asked] is not None:
                raise launch.refuse(f"{type(self).__name__}({asked}=…)")
        for asked, value in overlaps.items():
            if value:
                raise launch.refuse(f"{type(self).__name__}({asked}=…)")
        self.in_features, self.out_features, self.eps = in_features, out_features, eps
        self.tp_group = tp_group
        self.tp_size = tp_size if tp_group is None else group_size(tp_group)
        self.parallel_mode, self.normalization = parallel_mode, normalization
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input = save_original_input
        self.get_rng_state_tracker = get_rng_state_tracker
        self.ub_name, self.zero_centered_gamma = ub_name, zero_centered_gamma
        self._delayed = list[Callable[[], None]]() if delay_wgrad_compute else None
        dtype = params_dtype or torch.get_default_dtype()
        if parallel_mode == "column":
            self.out_features = out_features // self.tp_size
        elif parallel_mode == "row":
            self.in_features = in_features // self.tp_size
        if self.normed:
            self.returns_norm = self.return_layernorm_output = return_layernorm_output
            self.returns_gathered = return_layernorm_output_gathered
            self._make_norm(in_features, dtype, device)
        self._make_product(bias, dtype, device, init_method)

    def _make_norm(self, width: int, dtype: Any, device: Any) -> None:
        """Register the parameters of the norm."""
        self.norm_kind = "rms" if self.normalization == "RMSNorm" else "layer"
        filled = torch.nn.init.zeros_ if self.zero_centered_gamma else torch.nn.init.ones_
        self.made_parameter("layer_norm_weight", [width], dtype, device, None, filled)
        if self.norm_kind == "layer":
            self.made_parameter(
                "layer_norm_bias", [width], dtype, device, None, torch.nn.init.zeros_
            )
        else:
            self.register_parameter("layer_norm_bias", None)
        for each in (self.layer_norm_weight, self.layer_norm_bias):
            if each is not None:
                each.sequence_parallel = self.sequence_parallel

    def _make_product(self, bias: bool, dtype: Any, device: Any, init_method: Any) -> None:
        """Register the matrix and its bias."""
        axis = {"column": 0, "row": 1}.get(self.parallel_mode or "")
        self.made_parameter(
            "weight", [self.out_features, self.in_features], dtype, device,
            self.get_rng_state_tracker, initial(init_method), axis=axis,
        )  # fmt: skip
        if bias:
            self.made_parameter(
                "bias", [self.out_features], dtype, device, None, torch.nn.init.zeros_,
                axis=0 if axis == 0 else None,
            )  # fmt: skip
            if self.parallel_mode == "row":
                self.bias.sequence_parallel = self.sequence_parallel
        else:
            self.register_buffer("bias", torch.empty(0, dtype=dtype, device=device), False)

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Give parameters that were made on the device ``meta`` memory."""
        if not defer_init:
            for name, each in self.named_parameters(recurse=False):
                if each.device.type == "meta":
                    moved = torch.nn.Parameter(torch.empty_like(each, device="cuda"))
                    moved.__dict__.update(each.__dict__)
                    self._parameters[name] = moved

    def forward(
        self, inp: Any, is_first_microbatch: bool | None = None, fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:  # fmt: skip
        """Multiply."""
        bias = self.bias if self.apply_bias else None
        weight = getattr(self, "layer_norm_weight", None)
        shift = getattr(self, "layer_norm_bias", None)
        grads = torch.is_grad_enabled()
        out = _Linear.apply(inp, weight, shift, self.weight, bias, self, is_first_microbatch, grads)
        if self.return_bias:
            out = out if isinstance(out, tuple) else (out,)
            return (out[0], self.bias, *out[1:])
        return out


class Linear(_Product):
    """A product."""

    normed = False


class LayerNormLinear(_Product):
    """A norm and a product."""

    normed = True
