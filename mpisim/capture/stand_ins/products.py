"""What layers of Transformer Engine share: products, operands gathered over ranks, and saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .fp8 import Quantized, Recipe, launch
from .norms import Norms

__all__ = [
    "gather",
    "general_gemm",
    "group_size",
    "multiply",
    "multiply_grouped",
    "no_gradient",
    "norms",
    "restore",
    "save",
    "scatter",
    "softmax_statistics",
]


norms = Norms(launch, "transformer_engine")

_dummies: dict[Any, Any] = {}
"""What stands for gradients, by shape and type."""


def multiply(
    a: Any,
    b: Any,
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    split: bool = False,
    recipe: Recipe | None = None,
    into: Any = None,
    accumulate: bool = False,
    columns: tuple[bool, bool] = (False, False),
) -> Any:
    """Record a product, and return its result of (m, n).

    Parameters
    ----------
    a, b : torch.Tensor or Quantized
    sizes : tuple of int
        m, n and k.
    dtype : torch.dtype
        Of the result.
    split : bool
        Whether sums in fp8 are kept in fp32.
    recipe : Recipe, optional
        Of operands in fp8.
    into : torch.Tensor, optional
        What takes the result.
    accumulate : bool
        Whether that is added to.
    columns : tuple of bool
        Which operands are read along their columns.
    """
    operands = [_operand(each, by) for each, by in zip((a, b), columns)]
    device = operands[0].device
    out = launch.empty(sizes[:2], dtype, device) if into is None else into
    if min(sizes):
        inputs = [*operands, *sizes, accumulate, _variant(a, split, recipe)]
        launch("transformer_engine::generic_gemm", inputs, [out])
    return out


def multiply_grouped(
    a: Any,
    b: Any,
    splits: Sequence[int],
    sizes: tuple[int, int],
    into: Sequence[Any],
    *,
    weight: bool = False,
    split: bool = False,
    recipe: Recipe | None = None,
    accumulate: bool = False,
    columns: tuple[bool, bool] = (False, False),
) -> None:
    """Record the products of all experts: one call, that launches one for each that has rows.

    Parameters
    ----------
    a : torch.Tensor or Quantized
        Rows of all experts.
    b : list, torch.Tensor or Quantized
        A matrix for each expert; for gradients of these, what the rows were multiplied to.
    splits : sequence of int
        Rows of each expert.
    sizes : tuple of int
        Columns of the result and of the matrix, n and k; of a weight, its rows and columns.
    into : sequence of torch.Tensor
        What takes the results: rows, or gradients of matrices.
    weight : bool
        Whether products are gradients of matrices.
    split, recipe, accumulate, columns
        As of `multiply`.
    """
    by, others = columns[1], b if isinstance(b, list) else [b]
    if any(splits) and min(sizes):
        inputs = [
            _operand(a, columns[0]), [_operand(each, by) for each in others], list(splits), *sizes,
            weight, accumulate, _variant(a, split, recipe),
        ]  # fmt: skip
        launch("transformer_engine::te_general_grouped_gemm", inputs, list(into))


def _variant(a: Any, split: bool, recipe: Recipe | None) -> str | None:
    """Return how a product in fp8 keeps its sums: by blocks, in fp32, or as cuBLAS does."""
    if isinstance(a, Quantized) and recipe is not None and not recipe.nvfp4():
        return "blocks" if recipe.kind == "blocks" else "split" if split else None
    return None


def _operand(tensor: Any, columns: bool) -> Any:
    if not isinstance(tensor, Quantized):
        return tensor
    chosen = tensor.columns if columns else tensor.rows
    return chosen if chosen is not None else tensor.rows


def general_gemm(A: Any, B: Any, workspace: Any = None, out_dtype: Any = None,
                 layout: str = "TN", out: Any = None, accumulate: bool = False,
                 **rest: Any) -> Any:  # fmt: skip
    """Product as cuBLAS takes it: layouts of both matrices by letters, T or N.

    Parameters and result are those of ``transformer_engine.pytorch.cpp_extensions.general_gemm``,
    of which the stand-in needs these; what it returns beside the product is None.
    """
    transposes_a, transposes_b = layout[0] == "T", layout[1] == "T"
    k, n = (A.shape[-1], A.shape[0]) if transposes_a else (A.shape[0], A.shape[-1])
    m = B.shape[-1] if transposes_b else B.numel() // B.shape[-1]
    made = multiply(B, A, (m, n, k), out_dtype or B.dtype, into=out, accumulate=accumulate)
    shaped = made if transposes_b or out is not None else made.view(*B.shape[:-1], n)
    return shaped, None, None, None


def no_gradient(weight: Any) -> Any:
    """Weight → the dummy gradient returned to autograd when the real one went to ``main_grad``.

    Parameters
    ----------
    weight : torch.Tensor

    Returns
    -------
    torch.Tensor
        Of the weight's shape and type, the same memory for all weights that share these, as in
        Transformer Engine (``get_dummy_wgrad``).
    """
    key = tuple(weight.shape), weight.dtype
    if key not in _dummies:
        _dummies[key] = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return _dummies[key].detach()


def softmax_statistics(q: Any) -> Any:
    """Queries → tensor of the softmax's statistics, which attention's backward pass reads.

    Parameters
    ----------
    q : torch.Tensor
        (…, head size).

    Returns
    -------
    torch.Tensor
        fp32, one number for each query: the log-sum-exp of its scores.
    """
    return launch.empty(q.shape[:-1], torch.float32, q.device)


def group_size(group: Any) -> int:
    """Process group → how many ranks it has; 1 if it is None.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or None

    Returns
    -------
    int
        1 for None.
    """
    return 1 if group is None else dist.get_world_size(group)


def gather(tensor: Any, group: Any, *, later: bool = False) -> tuple[Any, Any]:
    """All-gather: rows of this rank → rows of all ranks.

    Parameters
    ----------
    tensor : torch.Tensor or Quantized
        (rows of this rank, …); of a quantized one the bytes of a single form are sent.
    group : torch.distributed.ProcessGroup or None
    later : bool
        Whether the result is waited for later.

    Returns
    -------
    whole : torch.Tensor or Quantized
        (rows of all ranks, …), in the order of ranks.
    handle : torch.distributed.Work or None
        To be waited for; None unless `later`, and for one rank.
    """
    ranks = group_size(group)
    if ranks == 1:
        return tensor, None
    if isinstance(tensor, Quantized):
        by_rows = tensor.rows is not None
        part = tensor.rows if by_rows else tensor.columns
        whole = torch.empty((ranks * part.numel(),), dtype=torch.uint8, device=part.device)
        handle = dist.all_gather_into_tensor(
            whole, part.reshape(-1).view(torch.uint8), group=group, async_op=later
        )
        shape = (ranks * tensor.shape[0], *tensor.shape[1:])
        if part.dtype is not torch.float4_e2m1fn_x2:
            whole = whole.view(part.dtype).view(shape if by_rows else shape[::-1])
        return Quantized(shape, whole if by_rows else None, None if by_rows else whole), handle
    whole = torch.empty(
        (ranks * tensor.shape[0], *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    handle = dist.all_gather_into_tensor(whole, tensor.contiguous(), group=group, async_op=later)
    return whole, handle


def scatter(tensor: Any, group: Any, *, later: bool = False) -> tuple[Any, Any]:
    """Reduce-scatter: rows of all ranks → this rank's rows of their sum.

    Parameters
    ----------
    tensor : torch.Tensor
        (rows of all ranks, …).
    group : torch.distributed.ProcessGroup or None
    later : bool
        Whether the result is waited for later.

    Returns
    -------
    part : torch.Tensor
        (rows of this rank, …).
    handle : torch.distributed.Work or None
        To be waited for; None unless `later`, and for one rank.
    """
    ranks = group_size(group)
    if ranks == 1:
        return tensor, None
    part = torch.empty(
        (tensor.shape[0] // ranks, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device
    )
    return part, dist.reduce_scatter_tensor(part, tensor, group=group, async_op=later)


def save(ctx: Any, *operands: Any) -> None:
    """Save operands for the backward pass, quantized ones by the forms they have.

    Parameters
    ----------
    ctx : torch.autograd.function.FunctionCtx
        `restore` takes them from it.
    *operands : torch.Tensor or Quantized
    """
    tensors: list[Any] = []
    forms: list[Any] = []
    for each in operands:
        if isinstance(each, Quantized):
            forms.append((each.shape, each.rows is not None, each.columns is not None))
            tensors += [part for part in (each.rows, each.columns) if part is not None]
        else:
            forms.append(None)
            tensors.append(each)
    ctx.save_for_backward(*tensors)
    ctx.forms = forms


def restore(ctx: Any) -> list[Any]:
    """Context of a backward pass → the operands that `save` was given.

    Parameters
    ----------
    ctx : torch.autograd.function.FunctionCtx

    Returns
    -------
    list of torch.Tensor or Quantized
        In the order in which they were saved.
    """
    tensors, found = list(ctx.saved_tensors), []
    for form in ctx.forms:
        if form is None:
            found.append(tensors.pop(0))
        else:
            shape, rows, columns = form
            by_rows = tensors.pop(0) if rows else None
            found.append(Quantized(shape, by_rows, tensors.pop(0) if columns else None))
    return found
