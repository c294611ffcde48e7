"""Experts of Transformer Engine: their products, rows of tokens to them and back, and padding.

After version 2.9: transformer_engine/pytorch/module/grouped_linear.py, whose products a loop in C++
launches on several streams of cuBLAS (``nvte_multi_tensor_gemm``; here one kernel, timed as in
generated programs), permutation.py, and module/fp8_padding.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .fp8 import Quantized, launch, state
from .linears import TransformerEngineBaseModule, initial
from .products import group_size, multiply_grouped, no_gradient, restore, save

__all__ = ["PERMUTATION", "Fp8Padding", "Fp8Unpadding", "GroupedLinear"]


class _GroupedLinear(torch.autograd.Function):
    """Rows of experts → rows of experts."""

    @staticmethod
    def forward(ctx: Any, x: Any, splits: list[int], layer: Any, first: Any, grads: bool,
                *parameters: Any) -> Any:  # fmt: skip
        count = len(splits)
        weights, biases = parameters[:count], parameters[count:]
        outputs, inputs = weights[0].shape
        assert x.shape[-1] == inputs, "GEMM not possible"
        dtype = layer.activation_dtype(x)
        given = x.reshape(-1, inputs).to(dtype)
        recipe = state.recipe if state.enabled else None
        needs = grads and weights[0].requires_grad
        operand = given
        if recipe is not None:
            state.register(layer, count)
            operand = state.quantize(given, columns=needs)
        matrices = [
            layer.cast_weight(f"weight{i}", weight, dtype, first, grads)
            for i, weight in enumerate(weights)
        ]
        out = launch.empty((given.shape[0], outputs), dtype, x.device)
        multiply_grouped(operand, matrices, splits, (outputs, inputs), [out], recipe=recipe)
        if grads:
            if isinstance(operand, Quantized) and operand.columns is not None:
                operand = operand._replace(rows=None)
            save(ctx, operand if needs else None, *matrices)
            ctx.layer, ctx.first, ctx.recipe, ctx.dtype = layer, first, recipe, dtype
            ctx.splits, ctx.shape, ctx.biases, ctx.needs = splits, x.shape, biases, needs
            ctx.needs_input = x.requires_grad
            ctx.reduces = recipe is not None and state.is_first()
        return out.view(-1, *x.shape[1:-1], outputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        operand, *matrices = restore(ctx)
        layer, recipe, dtype, splits = ctx.layer, ctx.recipe, ctx.dtype, ctx.splits
        outputs, inputs = layer.weight0.shape
        grad = grad.reshape(-1, outputs).contiguous()
        if recipe is not None:
            grad = state.quantize(
                grad, columns=True, bias=bool(ctx.biases), backward=True, recipe=recipe
            )
        found = None
        if ctx.needs_input:
            found = launch.empty((math.prod(ctx.shape[:-1]), inputs), dtype,
                                        matrices[0].rows.device if recipe else
                                        matrices[0].device)  # fmt: skip
            multiply_grouped(
                grad, matrices, splits, (inputs, outputs), [found],
                split=True, recipe=recipe, columns=(False, True),
            )  # fmt: skip
        weights: list[Any] = [None] * len(splits)
        if ctx.needs:
            total, grad = state.for_columns(operand), state.for_columns(grad)
            weights = layer.weight_gradients(grad, total, splits, recipe, dtype, ctx.first)
        biases = [launch.like(each) for each in ctx.biases]
        if ctx.reduces and recipe.delayed():
            state.reduce(forward=False)
        if found is not None:
            found = found.view(ctx.shape)
        return (found, None, None, None, None, *weights, *biases)


class GroupedLinear(TransformerEngineBaseModule):
    """A matrix for each expert."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: Any = None,
        init_method: Any = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: Any = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        **overlaps: Any,
    ) -> None:
        super().__init__()
        for asked, value in overlaps.items():
            if value:
                raise launch.refuse(f"GroupedLinear({asked}=…)")
        self.num_gemms = num_gemms
        self.tp_group, self.parallel_mode = tp_group, parallel_mode
        self.tp_size = tp_size if tp_group is None else group_size(tp_group)
        self.use_bias, self.return_bias = bias, return_bias
        self.apply_bias = bias and not return_bias
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.save_original_input = save_original_input
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self._delayed = list[Callable[[], None]]() if delay_wgrad_compute else None
        if parallel_mode == "column":
            out_features //= self.tp_size
        elif parallel_mode == "row":
            in_features //= self.tp_size
        self.in_features, self.out_features = in_features, out_features
        dtype = params_dtype or torch.get_default_dtype()
        axis = {"column": 0, "row": 1}.get(parallel_mode or "")
        for i in range(num_gemms):
            self.made_parameter(
                f"weight{i}", [out_features, in_features], dtype, device,
                get_rng_state_tracker, initial(init_method), axis=axis,
            )  # fmt: skip
            if bias:
                self.made_parameter(
                    f"bias{i}", [out_features], dtype, device, None, torch.nn.init.zeros_
                )

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Nothing more than was done as they were made."""

    def weight_gradients(
        self, grad: Any, x: Any, splits: list[int], recipe: Any, dtype: torch.dtype,
        first: bool | None,
    ) -> list[Any]:  # fmt: skip
        """Record the products that make the matrices' gradients, now or in `backward_dw`."""
        weights: list[Any] = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        fused = self.fuse_wgrad_accumulation
        accumulate = fused and not first
        accumulate = accumulate and not getattr(weights[0], "overwrite_main_grad", False)

        def products() -> list[Any]:
            made = [
                each.main_grad if fused else launch.empty(each.shape, dtype, each.device)
                for each in weights
            ]
            multiply_grouped(
                grad, x, splits, tuple(weights[0].shape), made,
                weight=True, split=True, recipe=recipe, accumulate=accumulate,
                columns=(True, True),
            )  # fmt: skip
            return made

        if self._delayed is not None:

            def later() -> None:
                for weight, made in zip(weights, products()):
                    if not fused:
                        weight.grad = made

            self._delayed.append(later)
        else:
            made = products()
            if not fused:
                return made
        found: list[Any] = []
        for weight in weights:
            marked = fused and hasattr(weight, "grad_added_to_main_grad")
            if marked:
                weight.grad_added_to_main_grad = True
            found.append(no_gradient(weight) if marked else None)
        return found

    def forward(self, inp: Any, m_splits: Any, is_first_microbatch: Any = None) -> Any:
        """Multiply the rows of each expert."""
        splits = [int(each) for each in m_splits]
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        own = [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []
        out = _GroupedLinear.apply(
            inp, splits, self, is_first_microbatch, torch.is_grad_enabled(),
            *weights, *(own if self.apply_bias else []),
        )  # fmt: skip
        return (out, own) if self.return_bias else out


# --- rows of experts ------------------------------------------------------------------------------


_SUMS, _COPIES = "unpermute", "permute"
"""Kernels of Transformer Engine that take gradients of moved rows back: added up, or moved."""


class _Move(torch.autograd.Function):
    """Rows copied to other places, or gradients of copies added up."""

    @staticmethod
    def forward(ctx: Any, x: Any, places: Any, rows: int, probs: Any, back: str) -> Any:
        ctx.back = back
        out = launch.empty((rows, x.shape[-1]), x.dtype, x.device)
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        ctx.width = None if probs is None else probs.shape
        if probs is None:
            launch("transformer_engine::permute", [x, places], [out])
            return out
        moved = launch.empty((rows,), probs.dtype, x.device)
        launch("transformer_engine::permute", [x, places, probs], [out, moved])
        return out, moved

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_probs: Any = None) -> Any:
        (places,) = ctx.saved_tensors
        out = launch.empty((ctx.rows, grad.shape[-1]), grad.dtype, grad.device)
        probs, given, made = None, [grad.contiguous(), places], [out]
        if grad_probs is not None and ctx.width is not None:
            probs = launch.empty(ctx.width, grad_probs.dtype, grad.device)
            given, made = [*given, grad_probs], [*made, probs]
        launch(f"transformer_engine::{ctx.back}", given, made)
        return out, None, None, probs, None


class _Collect(torch.autograd.Function):
    """Rows of experts added up to tokens, with weights or without."""

    @staticmethod
    def forward(ctx: Any, x: Any, places: Any, weights: Any, shape: Any) -> Any:
        out = launch.empty(shape, x.dtype, x.device)
        launch("transformer_engine::unpermute", [x, places, weights], [out])
        ctx.save_for_backward(places, weights, x if weights is not None else None)
        ctx.rows = x.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        places, weights, x = ctx.saved_tensors
        out = launch.empty(ctx.rows, grad.dtype, grad.device)
        launch("transformer_engine::permute", [grad.contiguous(), places, x], [out])
        return out, None, None if weights is None else launch.like(weights), None


def _places_of(x: Any, routing_map: Any) -> Any:
    """Which experts tokens have → where their rows go."""
    found = launch.empty(routing_map.shape, torch.int32, x.device)
    launch("transformer_engine::make_row_id_map", [routing_map], [found])
    return found


def moe_permute(inp: Any, routing_map: Any, num_out_tokens: int = -1, max_token_num: int = -1,
                map_type: str = "mask") -> Any:  # fmt: skip
    """Tokens → rows of experts, and their places."""
    rows = num_out_tokens
    if rows < 0 and map_type == "index":
        rows = routing_map.numel()
    if rows < 0:
        raise launch.refuse("moe_permute without num_out_tokens")
    places = _places_of(inp, routing_map)
    return _Move.apply(inp, places, rows, None, _SUMS), places


def moe_permute_with_probs(inp: Any, probs: Any, routing_map: Any,
                           num_out_tokens: int = -1) -> Any:  # fmt: skip
    """Tokens and their weights → rows of experts, their weights and places."""
    if num_out_tokens < 0:
        raise launch.refuse("moe_permute_with_probs without num_out_tokens")
    places = _places_of(inp, routing_map)
    out, moved = _Move.apply(inp, places, num_out_tokens, probs, _SUMS)
    return out, moved, places


def moe_unpermute(inp: Any, row_id_map: Any, merging_probs: Any = None,
                  restore_shape: Any = None, map_type: str = "mask",
                  probs: Any = None) -> Any:  # fmt: skip
    """Rows of experts → tokens, added up."""
    shape = restore_shape if restore_shape is not None else inp.shape
    weights = merging_probs if merging_probs is not None else probs
    return _Collect.apply(inp, row_id_map, weights, tuple(shape))


def _sorted(inp: Any, split_sizes: Any, sorted_index: Any, probs: Any) -> Any:
    """Rows in chunks → chunks in another order, by a kernel that finds places, and one that moves.

    Each row goes to one place, and its gradient back.
    """
    places = launch.empty((inp.shape[0],), torch.int32, inp.device)
    launch("transformer_engine::make_chunk_sort_map", [split_sizes, sorted_index], [places])
    return _Move.apply(inp, places, inp.shape[0], probs, _COPIES)


def moe_sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_index: Any) -> Any:
    """Rows of experts by source → by expert."""
    return _sorted(inp, split_sizes, sorted_index, None)


def moe_sort_chunks_by_index_with_probs(inp: Any, probs: Any, split_sizes: Any,
                                        sorted_index: Any) -> Any:  # fmt: skip
    """Rows of experts and their weights by source → by expert."""
    return _sorted(inp, split_sizes, sorted_index, probs)


PERMUTATION = {
    each.__name__: each
    for each in (
        moe_permute,
        moe_permute_with_probs,
        moe_unpermute,
        moe_sort_chunks_by_index,
        moe_sort_chunks_by_index_with_probs,
    )
}
"""What the module ``permutation`` has."""


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
