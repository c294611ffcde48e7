"""Kernels of a traced step at other sizes, beside the same kernels made at these sizes."""

from __future__ import annotations

import pytest

from mpisim.extrapolate.growth import Growth, grown, share_of
from mpisim.extrapolate.split import Split, split_kernel
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Elementwise, EmbeddingTables, Kernel
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

ROW_BYTES = 128
"""Of the tables: 32 numbers in fp32."""


def bias_gradient(rows: int, columns: int) -> Kernel:
    """The sum of a matrix's columns in bf16, as operators make it."""
    call = OperatorCall("aten::sum", (TensorSpec("bfloat16", (rows, columns)), (0,)))
    (kernel,) = kernels_of(call).kernels
    return kernel


def lookups(batch: int) -> EmbeddingTables:
    """Rows of cached tables, 1,024 for each sample of a batch, each looked up 64 times."""
    rows = 1024 * batch
    distinct = ROW_BYTES * rows // 64
    return EmbeddingTables(
        rows, ROW_BYTES * rows, distinct, ROW_BYTES * rows // 32, (distinct,) * 8
    )


def microseconds(kernel: Kernel) -> float:
    return Analytical(find_gpu("a100-sxm")).estimate(kernel).duration / 1e6


@pytest.mark.parametrize(("rows", "columns"), [(1024, 256), (4096, 1024), (16384, 4096)])
def test_more_samples_are_more_rows_of_sums(rows: int, columns: int) -> None:
    more = grown(bias_gradient(rows, columns), Growth(samples=4), (), backward=True)
    assert more == bias_gradient(4 * rows, columns)


def test_longer_sequences_are_more_rows_of_sums() -> None:
    longer = Growth(samples=2, length=1.5, sequence=512)
    assert grown(bias_gradient(1024, 256), longer, (), backward=True) == bias_gradient(3072, 256)


def test_ranks_of_tensor_parallelism_have_columns() -> None:
    split = Split("column", outputs=4096, inputs=1024)
    whole = bias_gradient(16384, 4096)
    assert split_kernel(whole, split, None, True, "", 8) == bias_gradient(16384, 512)
    assert split_kernel(whole, Split("inside"), None, True, "", 8) == bias_gradient(16384, 512)


def test_shards_of_parameters_have_rows() -> None:
    assert share_of(bias_gradient(4096, 1024), 1 / 4) == bias_gradient(1024, 1024)


def test_sums_take_the_time_of_sums_at_their_size() -> None:
    whole = bias_gradient(1024, 256)
    more = grown(whole, Growth(samples=4), (), backward=True)
    assert microseconds(more) > 1.3 * microseconds(whole)


def test_lookups_of_more_samples_read_more_rows_from_the_cache() -> None:
    more = grown(lookups(1024), Growth(samples=4), (), backward=False)
    assert more == lookups(4096)
    assert isinstance(more, EmbeddingTables)
    assert min(more.missed) >= more.distinct_bytes
    assert microseconds(more) > 3 * microseconds(lookups(1024))


def test_streaming_kernels_grow_by_bytes() -> None:
    kernel = Elementwise(1000, indexed=100, instructions=50, loads=10)
    expected = Elementwise(4000, indexed=400, instructions=200, loads=40)
    assert grown(kernel, Growth(samples=4), (), backward=False) == expected
