"""Sums of columns: blocks beside recorded launches, waiting beside a count by hand."""

from __future__ import annotations

import math
import re
import statistics

import numpy as np
import pytest

from mpisim.base.presets import packaged
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.analytical.column_sums import blocks_of_sums, column_sum_columns
from mpisim.kernels.gpu_parameters import gpu_parameters
from mpisim.kernels.numbers import quantity
from mpisim.kernels.operations import Elementwise
from mpisim.operators import OperatorCall, TensorSpec, kernels_of


def summed(rows: int, sums: int) -> Elementwise:
    """A matrix in fp32 whose columns are added up."""
    return Elementwise(4 * (rows * sums + sums), summed=rows, sums=sums)


# Rows, columns, blocks of the grid, threads of a block across and down: Kineto traces of PyTorch.
LAUNCHES = [
    ("a100-sxm-40gb", 1024, 100, 2, (16, 8)),
    ("a100-sxm-40gb", 1024, 128, 16, (32, 4)),
    ("a100-sxm-40gb", 1024, 256, 32, (32, 4)),
    ("a100-sxm-40gb", 1024, 1024, 128, (32, 4)),
    ("a100-sxm-40gb", 98304, 15, 192, (8, 64)),
    ("v100-sxm2-32gb", 4096, 2048, 1024, (32, 4)),
    ("v100-sxm2-32gb", 4096, 8192, 1280, (32, 4)),
]


@pytest.mark.parametrize(("gpu", "rows", "sums", "blocks", "threads"), LAUNCHES)
def test_blocks_are_those_recorded(
    gpu: str, rows: int, sums: int, blocks: int, threads: tuple[int, int]
) -> None:
    found = blocks_of_sums(column_sum_columns(summed(rows, sums)), gpu_parameters(gpu))
    assert (found.width, found.height) == threads
    assert found.lines == found.height
    assert found.beside * found.parts == blocks


# Of 65,536 rows and 256 columns a block takes 128 columns in 4 lines, 128 threads; on AMD's GPUs,
# whose wavefronts have 64, all 256 in 2. As many blocks share the rows as a GPU holds.
@pytest.mark.parametrize(
    ("gpu", "held", "beside", "height"),
    [
        ("t4", 40 * 1024 // 128, 2, 4),
        ("a40", 84 * 1536 // 128, 2, 4),
        ("rtx-4090", 128 * 1536 // 128, 2, 4),
        ("rtx-5090", 170 * 1536 // 128, 2, 4),
        ("p100-pcie", 56 * 2048 // 128, 2, 4),
        ("h100-sxm", 132 * 2048 // 128, 2, 4),
        ("mi100", 120 * 2560 // 128, 1, 2),
        ("mi300x", 304 * 2048 // 128, 1, 2),
    ],
)
def test_blocks_fill_the_threads_that_a_gpu_holds(
    gpu: str, held: int, beside: int, height: int
) -> None:
    found = blocks_of_sums(column_sum_columns(summed(1 << 16, 256)), gpu_parameters(gpu))
    assert (found.beside, found.height, found.room) == (beside, height, held)
    assert found.parts == min(-(-held // beside), (1 << 16) // (16 * height))


def test_several_kernels_at_once_have_the_blocks_of_each() -> None:
    gpu = gpu_parameters("h100-sxm")
    sizes = [(rows, sums) for rows in (1, 7, 1000, 98304) for sums in (1, 2, 15, 100, 4096)]
    rows, sums = (np.array(each) for each in zip(*sizes, strict=True))
    together = blocks_of_sums({"summed": rows, "sums": sums}, gpu)
    for i, (one, columns) in enumerate(sizes):
        alone = blocks_of_sums(column_sum_columns(summed(one, columns)), gpu)
        assert alone == tuple(each[i] for each in together)


def test_threads_wait_for_one_load_after_another() -> None:
    # 1,024 rows and 100 columns: 8 lines of 128 rows, four loaded at once, and a block's own sum.
    model = Analytical(find_gpu("a100-sxm"))
    kernel = summed(1024, 100)
    streamed = model.estimate(Elementwise(kernel.bytes)).duration
    floor = model.estimate(Elementwise(1)).duration
    hidden = streamed - floor
    waited = model.estimate(kernel).duration - streamed
    assert waited == pytest.approx(32 * 0.36e6 + 2.8e6 - hidden, rel=1e-3)


@pytest.mark.parametrize(("name", "key"), [("reduction_step", "step"), ("reduction_join", "row")])
def test_waits_are_medians_of_fits_that_tell_them_apart(name: str, key: str) -> None:
    tables = packaged("calibration/kernels.toml")
    own = [
        table["constants"]
        for family in ("norm", "softmax")
        for owner, formats in tables[family].items()
        for table in formats.values()
        if table["gpus"] == [owner]
    ]
    told = sorted(each[key] for each in own if min(each["step"], each["row"]) > 1e-9)
    assert len(told) == 11
    low, median, high = statistics.quantiles(told, n=4, method="inclusive")
    found = quantity(name)
    assert found.si == pytest.approx(median, rel=0.02)
    assert found.error == pytest.approx(math.log(high / low) / 1.35, rel=0.05)
    stated = re.search(r"quartiles ([\d.]+) and ([\d.]+)", found.source)
    assert stated is not None
    assert [float(each) for each in stated.groups()] == pytest.approx(
        [low * 1e6, high * 1e6], rel=0.03
    )


def test_large_matrices_are_bound_by_memory() -> None:
    model = Analytical(find_gpu("h100-sxm"))
    kernel = summed(1 << 20, 4096)
    streamed = model.estimate(Elementwise(kernel.bytes)).duration
    assert model.estimate(kernel).duration < 1.05 * streamed


@pytest.mark.parametrize(
    ("shape", "dims", "rows"),
    [((64, 32, 100), (0, 1), 2048), ((64, 100), (-2,), 64), ((64, 100), (1,), None)],
)
def test_sums_of_first_dimensions_are_of_columns(
    shape: tuple[int, ...], dims: tuple[int, ...], rows: int | None
) -> None:
    call = OperatorCall("aten::sum", (TensorSpec("float32", shape), dims))
    (kernel,) = kernels_of(call).kernels
    assert isinstance(kernel, Elementwise)
    assert (kernel.summed, kernel.sums) == (rows, rows and 100)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sums_are_written_in_their_own_format(dtype: str) -> None:
    columns = 1 << 20
    source, to = TensorSpec("bfloat16", (2, columns)), TensorSpec(dtype, (columns,))
    (kernel,) = kernels_of(OperatorCall("aten::sum", (source, (0,)), (to,))).kernels
    size = {"bfloat16": 2, "float32": 4}[dtype]
    assert kernel == Elementwise((2 * 2 + size) * columns, summed=2, sums=columns)
