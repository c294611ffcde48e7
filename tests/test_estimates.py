"""Single kernels are priced with floats, tables of them with arrays: the same times."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.quantity import PICOSECONDS
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical, formula_of, stack_columns
from mpisim.kernels.analytical.families import FORMULAS
from mpisim.kernels.operations import (
    ATTENTION_VARIANTS,
    Attention,
    Convolution,
    Copy,
    CrossEntropy,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
    OptimizerStep,
    Softmax,
)

GPUS = ("a100-sxm", "p100-pcie", "l4")
MODELS = {name: Analytical(find_gpu(name)) for name in GPUS}

SIZES = st.integers(1, 100_000)
FEW = st.integers(1, 64)
HEADS = st.sampled_from((16, 64, 128, 192))
FORMATS = st.sampled_from(("fp32", "fp16"))
KERNELS = st.one_of(
    st.builds(Gemm, SIZES, SIZES, SIZES, FEW, FORMATS, FORMATS, st.booleans()),
    st.builds(GroupedGemm, SIZES, FEW, SIZES, SIZES, FORMATS, FORMATS, weight=st.booleans()),
    st.builds(
        Attention,
        *(FEW, FEW, FEW, SIZES, SIZES, HEADS, HEADS, st.booleans(), st.booleans()),
        st.just("fp16"),
    ),
    st.builds(
        Convolution,
        *(FEW, FEW, FEW, FEW, FEW, st.sampled_from((1, 3, 7)), st.integers(1, 2), st.just(1)),
        st.sampled_from(("forward", "input", "weight")),
    ),
    st.builds(Elementwise, st.integers(1, 10**11)),
    st.builds(OptimizerStep, st.integers(1, 10**10), st.integers(1, 20)),
    st.builds(Copy, st.integers(1, 10**11), st.sampled_from(("device", "fill", "host"))),
    st.builds(Softmax, SIZES, SIZES, st.booleans(), FORMATS),
    st.builds(CrossEntropy, SIZES, SIZES, st.booleans(), FORMATS),
    st.builds(
        Norm, SIZES, SIZES, st.sampled_from(("layer", "rms", "batch")), st.booleans(), FORMATS
    ),
    st.builds(Gemm, SIZES, SIZES, SIZES, FEW, st.just("fp32"), FORMATS, variant=st.just("cores")),
    st.builds(
        Norm,
        *(SIZES, SIZES, st.just("layer"), st.booleans(), FORMATS),
        variant=st.just("persistent"),
    ),
    st.builds(Embedding, SIZES, SIZES, SIZES, FEW, st.booleans(), FORMATS),
)


@settings(max_examples=400, deadline=None)
@given(KERNELS, st.sampled_from(GPUS))
def test_one_kernel_is_a_row_of_a_table(kernel: Kernel, gpu: str):
    if gpu == "p100-pcie" and isinstance(kernel, Attention):
        return
    model = MODELS[gpu]
    columns = stack_columns([kernel, kernel])
    family = formula_of(kernel.qualified_family).name
    several = model.estimate_many(family, columns)
    found = model.estimate(kernel)
    assert several.shape == (2,)
    # Rounded to a picosecond; above a second that is finer than the last digits of a float.
    assert found.duration == pytest.approx(several[0] * PICOSECONDS, rel=1e-13, abs=0.501)
    terms = model.terms(kernel)
    assert sum(terms.values()) == pytest.approx(several[1], rel=1e-12)
    assert all(type(value) is float for value in terms.values())
    lookup = model.look_up(family, columns.get("dtype", "any"))
    seconds = float(several[0])
    assert found.error == lookup.error(seconds)
    # Its own number or its lender's, and what the borrower is off by beside that.
    parts = [share * model.numbers[name].error for name, share in found.shares.items()]
    assert len(parts) == 1 or lookup.base is not None
    assert math.hypot(*parts) == pytest.approx(found.error)


def drawn(random: Random) -> list[Kernel]:
    """Products and convolutions whose formulas weigh many ways against each other."""

    def size(most: int) -> int:
        return round(most ** random.random())

    formats = ("fp32", "fp16")
    return [
        kernel
        for _ in range(40)
        for dtype in formats
        for kernel in (
            Gemm(size(32768), size(32768), size(32768), size(256), dtype, dtype),
            GroupedGemm(
                *(size(65536), size(128), size(16384), size(16384), dtype, dtype),
                weight=random.random() < 0.5,
            ),
            Convolution(
                *(size(256), size(512), size(512), size(224), size(224)),
                *(random.choice((1, 3, 7)), random.choice((1, 2)), 1),
                random.choice(("forward", "input", "weight")),
                dtype,
            ),
        )
    ]


@pytest.mark.parametrize("gpu", ["a100-sxm", "h100-sxm", "l4", "p100-pcie", "t4"])
def test_to_the_picosecond(gpu):
    model = Analytical(find_gpu(gpu))
    kernels: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in drawn(Random(1)):
        kernels.setdefault((kernel.family, kernel.dtype), []).append(kernel)
    for (family, _), alike in kernels.items():
        several = model.estimate_many(family, stack_columns(alike))
        durations = [model.estimate(each).duration for each in alike]
        # Half a picosecond, and of kernels of seconds the last digits of a float.
        found = np.abs(several * PICOSECONDS - durations)
        assert (found <= 0.5 + 1e-14 * np.array(durations)).all()


@pytest.mark.parametrize("family", sorted(FORMULAS))
def test_formulas_take_plain_numbers(family):
    kernel = {
        "gemm": Gemm(512, 768, 1024),
        "gemm_cores": Gemm(512, 768, 1024, dtype="fp32", variant="cores"),
        "gemm_split": Gemm(512, 768, 1024, variant="split"),
        "gemm_blocks": Gemm(512, 768, 1024, variant="blocks"),
        "gemm_scan": Gemm(512, 768, 1024, variant="scan"),
        "gemm_scan_gradient": Gemm(512, 768, 1024, variant="scan_gradient"),
        "gemm_unaligned": Gemm(512, 769, 1024, variant="unaligned"),
        "gemm_single_words": Gemm(512, 769, 1024, variant="single_words"),
        "grouped_gemm": GroupedGemm(4096, 8, 512, 1024),
        "grouped_gemm_split": GroupedGemm(4096, 8, 512, 1024, variant="split"),
        "grouped_gemm_blocks": GroupedGemm(4096, 8, 512, 1024, variant="blocks"),
        "convolution": Convolution(8, 64, 64, 56, 56, 3),
        **{
            each.qualified_family: each
            for variant in ATTENTION_VARIANTS.values()
            for each in [Attention(1, 8, 8, 512, 512, 64, 64, backward=True, variant=variant)]
        },
        "memory_bound": Elementwise(10**6),
        "elementwise_block_scales": Elementwise(10**6, variant="block_scales"),
        "elementwise_row_copies": Elementwise(10**6, variant="row_copies"),
        "elementwise_layout": Elementwise(10**6, variant="layout"),
        "elementwise_row_sums": Elementwise(10**6, variant="row_sums"),
        "elementwise_scales_apart": Elementwise(10**6, variant="scales_apart"),
        "elementwise_sort_passes": Elementwise(10**6, variant="sort_passes"),
        "elementwise_slice_writes": Elementwise(10**6, variant="slice_writes"),
        "elementwise_widening": Elementwise(10**6, variant="widening"),
        "softmax": Softmax(4096, 1500),
        "norm": Norm(4096, 1500),
        "norm_persistent": Norm(4096, 1536, backward=True, variant="persistent"),
        "embedding": Embedding(4096, 1024, 50_000),
    }[family]
    formula = formula_of(kernel.qualified_family)
    constants = {each.name: each.start for each in formula.constants}
    machine = MODELS["a100-sxm"].parameters
    one = formula.seconds(formula.columns(kernel), machine, constants)
    (row,) = formula.seconds(stack_columns([kernel]), machine, constants)
    assert type(one) is float
    assert one == pytest.approx(row, rel=1e-12)
    shares = formula.shares(formula.columns(kernel), machine, constants)
    rows = formula.shares(stack_columns([kernel, kernel]), machine, constants)
    assert {name: each.shape for name, each in rows.items()} == dict.fromkeys(shares, (2,))
    assert list(shares.values()) == pytest.approx([each[0] for each in rows.values()], rel=1e-12)


def test_an_unknown_kernel_adds_its_number():
    model = Analytical(find_gpu("a100-sxm"))
    assert not model.numbers
    model.look_up("norm", "bf16")
    assert not model.numbers  # nothing rests on it yet
    model.estimate(Norm(1, 1))
    model.estimate(Elementwise(8))
    assert list(model.numbers) == ["norm model (bf16)", "memory_bound model"]
    assert np.isfinite([each.error for each in model.numbers.values()]).all()
