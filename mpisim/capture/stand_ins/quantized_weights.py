"""Weights in fp8: Transformer Engine's ``fp8_model_init``, also called ``quantized_model_init``.

A weight holds its numbers by rows and, where products of the backward pass read them so, by
columns; no copy in 16 bits. It looks like a tensor of the type that its module has, and what is
no product works on a copy in that type (``QuantizedTensor.__torch_dispatch__`` in
transformer_engine/pytorch/quantized_tensor.py of version 2.9). What changes it casts it anew;
``FusedAdam`` writes fp8 itself. A transposed copy is made when a product needs it, and forgotten
when the weight changes (``update_usage`` in transformer_engine/pytorch/tensor/float8_tensor.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from .fp8 import Quantized, Recipe, launch, state

__all__ = ["CLASSES", "QuantizedTensor", "as_product_reads", "plain", "quantized"]

ATEN: Any = torch.ops.aten
SAME = (ATEN.detach.default, ATEN.alias.default)
"""What gives the same numbers."""
MADE = (
    ATEN.empty_like.default,
    ATEN.zeros_like.default,
    ATEN.ones_like.default,
    ATEN.full_like.default,
    ATEN.new_zeros.default,
    ATEN.new_empty.default,
)
"""What asks for shape, type and device alone."""
DIVIDES = ("split", "chunk", "slice", "narrow", "as_strided", "unbind")
"""What shards a weight, as `fully_shard` does."""


class QuantizedTensor(torch.Tensor):
    """A weight in fp8.

    Attributes
    ----------
    _data : torch.Tensor
        By rows.
    _transpose : torch.Tensor or None
        By columns.
    """

    _data: Any
    _transpose: Any
    _recipe: Recipe

    @staticmethod
    def __new__(cls, cast: Quantized, dtype: torch.dtype, recipe: Recipe) -> Any:
        make: Any = torch.Tensor._make_wrapper_subclass
        made = make(cls, cast.shape, dtype=dtype, device=cast.rows.device)
        made._data, made._transpose, made._recipe = cast.rows, cast.columns, recipe
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({tuple(self.shape)}, {self.dtype})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        parts = ["_data"] + (["_transpose"] if self._transpose is not None else [])
        return parts, (type(self), self.dtype, self._recipe)

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> Any:
        kind, dtype, recipe = context
        cast = Quantized(tuple(size), parts["_data"], parts.get("_transpose"))
        return kind(cast, dtype, recipe)

    def dequantize(self) -> Any:
        """Return the numbers in the type that the weight appears to have."""
        made = launch.empty(self.shape, self.dtype, self.device)
        launch("transformer_engine::dequantize", [self._data], [made])
        return made

    def quantize_(self, tensor: Any) -> Any:
        """Take the numbers of a tensor."""
        with torch.no_grad():
            given = plain(tensor).detach().to(self.dtype)
            cast = state.quantize(given, columns=self._transpose is not None, recipe=self._recipe)
        self._data, self._transpose = cast.rows, cast.columns
        return self

    def written(self) -> None:
        """Forget the transposed copy: a kernel has written the numbers."""
        self._transpose = None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first: Any = args[0] if args else None
        if func in SAME:
            return type(first)(
                Quantized(tuple(first.shape), first._data, first._transpose),
                first.dtype,
                first._recipe,
            )
        if func is ATEN.copy_.default and isinstance(first, QuantizedTensor):
            return first.quantize_(args[1])
        if func in MADE:
            return func(torch.empty_like(plain_shape(first)), *args[1:], **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name.startswith(DIVIDES):
            raise launch.refuse(f"{name} of a weight in fp8 (fp8_model_init), as of fully_shard,")
        given, named = tree_map(plain, (args, kwargs))
        out = func(*given, **named)
        if name.endswith("_") and isinstance(first, QuantizedTensor):
            return first.quantize_(given[0])
        if name.startswith(("_foreach_", "_fused_")) and name.endswith("_"):
            for each, changed in zip(first or (), given[0]):
                if isinstance(each, QuantizedTensor):
                    each.quantize_(changed)
        return out


class Float8Tensor(QuantizedTensor):
    """A weight with one scale."""


class MXFP8Tensor(QuantizedTensor):
    """A weight with a scale for 32 numbers."""


class Float8BlockwiseQTensor(QuantizedTensor):
    """A weight with a scale for 128 × 128 numbers."""


CLASSES = {
    each.__name__: each
    for each in (QuantizedTensor, Float8Tensor, MXFP8Tensor, Float8BlockwiseQTensor)
}
"""As programs know them, by name."""


def plain(value: Any) -> Any:
    """Weight in fp8 → its numbers in the type that it appears to have; all else is as it is."""
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def plain_shape(tensor: Any) -> Any:
    """Weight → a tensor like it, of which nothing is recorded."""
    return launch.empty(tensor.shape, tensor.dtype, tensor.device)


def quantized(tensor: Any, recipe: Recipe) -> QuantizedTensor:
    """Weight → the same in fp8.

    Parameters
    ----------
    tensor : torch.Tensor
        On the device.
    recipe : Recipe
    """
    with torch.no_grad():
        cast = state.quantize(tensor.detach(), columns=torch.is_grad_enabled(), recipe=recipe)
    if recipe.float8_per_tensor_scaling():
        return Float8Tensor(cast, tensor.dtype, recipe)
    kind = MXFP8Tensor if recipe.mxfp8() else Float8BlockwiseQTensor
    return kind(cast, tensor.dtype, recipe)


def as_product_reads(weight: QuantizedTensor, *, columns: bool) -> Quantized:
    """Weight in fp8 → an operand; a transposed copy is made if products read it and there is none.

    Parameters
    ----------
    weight : QuantizedTensor
    columns : bool
        Whether a product of the backward pass follows.
    """
    operand = Quantized(tuple(weight.shape), weight._data, weight._transpose)
    if columns:
        operand = state.for_columns(operand)
        weight._transpose = operand.columns
    return operand
