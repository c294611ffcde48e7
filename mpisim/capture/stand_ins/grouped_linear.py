"""``GroupedLinear`` of Transformer Engine: a product for each expert, one after the other.

After transformer_engine/pytorch/module/grouped_linear.py of version 2.9, whose products run on
several streams of cuBLAS; here they follow each other, as in generated programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .fp8 import Quantized
from .linears import initial
from .products import Engine, group_size, restore, save

__all__ = ["grouped_linear"]


def grouped_linear(engine: Engine, base: Any) -> Any:
    """Return ``GroupedLinear``: a product for each expert, one after the other."""
    state = engine.state

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
            out = engine.launch.empty((given.shape[0], outputs), dtype, x.device)
            for rows, matrix in zip(splits, matrices):
                engine.multiply(
                    operand, matrix, (rows, outputs, inputs), dtype, recipe=recipe, into=out
                )
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
                found = engine.launch.empty((math.prod(ctx.shape[:-1]), inputs), dtype,
                                            matrices[0].rows.device if recipe else
                                            matrices[0].device)  # fmt: skip
                for rows, matrix in zip(splits, matrices):
                    engine.multiply(
                        grad, matrix, (rows, inputs, outputs), dtype,
                        split=True, recipe=recipe, into=found, columns=(False, True),
                    )  # fmt: skip
            weights: list[Any] = [None] * len(splits)
            if ctx.needs:
                total, grad = state.for_columns(operand), state.for_columns(grad)
                weights = [
                    layer.weight_gradient(f"weight{i}", grad, total, rows, recipe, dtype, ctx.first)
                    for i, rows in enumerate(splits)
                ]
            biases = [engine.launch.like(each) for each in ctx.biases]
            if ctx.reduces and recipe.delayed():
                state.reduce(forward=False)
            if found is not None:
                found = found.view(ctx.shape)
            return (found, None, None, None, None, *weights, *biases)

    class GroupedLinear(base):
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
                    raise base.refuse(f"GroupedLinear({asked}=…)")
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

        def forward(self, inp: Any, m_splits: Any, is_first_microbatch: Any = None) -> Any:
            """Multiply the rows of each expert."""
            splits = [int(each) for each in m_splits]
            weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
            own = (
                [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []
            )
            out = _GroupedLinear.apply(
                inp, splits, self, is_first_microbatch, torch.is_grad_enabled(),
                *weights, *(own if self.apply_bias else []),
            )  # fmt: skip
            return (out, own) if self.return_bias else out

    return GroupedLinear
