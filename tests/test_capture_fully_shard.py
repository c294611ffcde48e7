"""Copies of `fully_shard`, as captured."""

from __future__ import annotations

from captures import needs_torch

from mpisim.operators import TensorSpec, kernels_of

pytestmark = needs_torch

ELEMENTS = 100_000_000


def tensor(*shape: int, dtype: str = "bfloat16") -> object:
    """A tensor that has no values."""
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def test_copies_out_of_gathered_parameters_are_one_kernel() -> None:
    from mpisim.capture.dispatch import _sharded_copies

    out = [tensor(8, ELEMENTS // 8), tensor(8, 2)]
    call = _sharded_copies(
        "split_with_sizes_copy", (tensor(8, ELEMENTS // 8 + 2), []), {"out": out}
    )
    (kernel,) = kernels_of(call).kernels
    assert kernel.traffic == 2 * 2 * (ELEMENTS + 16)


def test_gradients_are_copied_to_the_type_that_is_reduced_by_one_kernel() -> None:
    from mpisim.capture.dispatch import _sharded_copies

    gradients = [tensor(ELEMENTS), tensor(16)]
    buffer = tensor(ELEMENTS + 16, dtype="float32")
    call = _sharded_copies("chunk_cat", (gradients, 0, 8), {"out": buffer})
    (kernel,) = kernels_of(call).kernels
    assert kernel.traffic == (2 + 4) * (ELEMENTS + 16)


def test_shards_are_copied_in_as_lists_are() -> None:
    from mpisim.capture.dispatch import _sharded_copies

    shards = [tensor(ELEMENTS)]
    call = _sharded_copies(
        "all_gather_copy_in", (shards, tensor(8 * ELEMENTS), [], ELEMENTS, 0), {}
    )
    assert call.name == "aten::_foreach_copy_"
    assert isinstance(call.inputs[0][0], TensorSpec)  # type: ignore[index]
    assert len(kernels_of(call).kernels) == 5  # of 320 × 65,536 elements
