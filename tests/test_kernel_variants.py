"""Variants of kernel families, and the empirical numbers that no calibration fits."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from mpisim.base.errors import InputError
from mpisim.base.presets import packaged
from mpisim.kernels import Roofline, find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.analytical.families import FORMULAS, VARIANTS, KernelVariant
from mpisim.kernels.measured.formats import COLLECTED_FAMILIES
from mpisim.kernels.numbers import FILE, quantity
from mpisim.kernels.operations import Attention, Elementwise, Gemm, Kernel, Norm

KERNELS = Path(__file__).resolve().parent.parent / "kernels"


def test_descriptions_and_the_table_name_the_same_variants() -> None:
    named = {
        f"{family}_{variant}"
        for family, kind in COLLECTED_FAMILIES.items()
        if "variant" in {each.name for each in fields(kind)}
        for choice in get_args(get_type_hints(kind)["variant"])
        if choice is not NoneType
        for variant in get_args(choice)
    }
    assert named == set(VARIANTS)


def test_a_ratio_of_work_leaves_the_floor() -> None:
    model = Analytical(find_gpu("h100-sxm"))
    ratio = VARIANTS["gemm_unaligned"].ratio["any"].si
    for size in (8, 512, 4096):
        kernel = Gemm(size, size, size)
        plain, unaligned = model.terms(kernel), model.terms(replace(kernel, variant="unaligned"))
        floor = plain.pop("floor")
        assert unaligned.pop("floor") == floor
        assert unaligned == pytest.approx({name: ratio * part for name, part in plain.items()})
        took = model.estimate(replace(kernel, variant="unaligned")).duration / 1e12
        assert took == pytest.approx(floor + sum(unaligned.values()))


def test_a_ratio_of_the_rate_leaves_memory() -> None:
    model = Analytical(find_gpu("a100-sxm"))
    wide = Gemm(8192, 8192, 8192, dtype="tf32", output="fp32")
    long = Gemm(100_000, 64, 512, dtype="tf32", output="fp32")
    took = [
        [
            model.estimate(each).duration
            for each in (kernel, replace(kernel, variant="single_words"))
        ]
        for kernel in (wide, long)
    ]
    ratio = VARIANTS["gemm_single_words"].ratio["ampere"].si
    assert took[0][1] / took[0][0] == pytest.approx(ratio, rel=0.02)
    assert took[1][1] / took[1][0] < 1.3


def test_rows_of_an_odd_length_on_other_architectures_take_the_time_of_aligned_ones() -> None:
    model = Analytical(find_gpu("h100-sxm"))
    kernel = Gemm(8192, 8192, 8192, dtype="tf32", output="fp32")
    aligned, odd = model.estimate(kernel), model.estimate(replace(kernel, variant="single_words"))
    assert odd.duration == aligned.duration
    assert odd.error > max(aligned.error, 0.5)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"of_rate": True}, "'of_rate' needs a ratio by architecture"),
        ({"of_rate": True, "ratio": ("forward", "backward")}, "'of_rate' needs a ratio"),
        ({"ratio": ("ampere",)}, "'ratio' has no 'any'"),
        ({"ratio": ("forward", "any")}, "it needs 'forward' and 'backward' alone"),
    ],
)
def test_ratios_that_no_formula_can_take_are_refused(keys: dict[str, Any], says: str) -> None:
    one = quantity("own_kernels")
    ratio = dict.fromkeys(keys.get("ratio", ()), one)
    with pytest.raises(InputError, match=says):
        KernelVariant("gemm", 0.1, "guess", **{**keys, "ratio": ratio})


def test_variants_are_kernels_of_their_own() -> None:
    kernel = Gemm(512, 512, 512, dtype="fp8")
    split = replace(kernel, variant="split")
    assert kernel != split
    assert len({kernel, split, replace(kernel, variant="split")}) == 2
    assert (kernel.qualified_family, split.qualified_family) == ("gemm", "gemm_split")


@pytest.mark.parametrize(
    ("gpu", "ratio"), [("h100-sxm", 1.15), ("l4", 1.15), ("b200", 1.0), ("mi300x", 1.0)]
)
def test_a_ratio_by_architecture(gpu: str, ratio: float) -> None:
    model = Analytical(find_gpu(gpu))
    kernel = Gemm(4096, 4096, 4096, dtype="fp8")
    plain, split = (model.estimate(each) for each in (kernel, replace(kernel, variant="split")))
    assert split.duration == pytest.approx(ratio * plain.duration, abs=2)
    assert split.error > plain.error


def test_a_ratio_by_pass_is_over_the_base() -> None:
    model = Analytical(find_gpu("h100-sxm"))
    for backward, ratio in ((False, 1.4), (True, 2.0)):
        kernel = Norm(4096, 8192, "rms", backward, variant="persistent")
        columns = FORMULAS["memory_bound"].columns(kernel)
        constants = model.look_up("memory_bound").constants
        streaming = FORMULAS["memory_bound"].seconds(columns, model.parameters, constants)
        assert model.estimate(kernel).duration == pytest.approx(ratio * streaming * 1e12, abs=1)


def test_rows_to_experts_as_measured() -> None:
    """4,096 tokens of 7,168 elements, 8 experts each: github:tile-ai/TileOPs, pull 2125."""
    model = Analytical(find_gpu("h200"))
    traffic = 2 * 7168 * 4096 * (1 + 8)
    copies = model.estimate(Elementwise(traffic, variant="row_copies")).duration
    sums = model.estimate(Elementwise(traffic, variant="row_sums")).duration
    streaming = model.estimate(Elementwise(traffic)).duration
    assert 0.212e9 < copies < 0.253e9  # TileOPs' kernel and vLLM's, without lists
    assert streaming < sums < copies


def test_a_cast_to_fp32_as_measured() -> None:
    """github:PaddlePaddle/Paddle, pull 76988: PyTorch's to fp32 in 2.774 ms, from it in 0.918."""
    model = Analytical(find_gpu("b200"))
    size = (2 + 4) * 1024**3
    wide = model.estimate(Elementwise(size, variant="widening")).duration
    assert wide == pytest.approx(2.774e9, rel=0.03)
    assert model.estimate(Elementwise(size)).duration == pytest.approx(0.918e9, rel=0.05)


def test_a_slice_written_by_xla_as_measured() -> None:
    """Not the profile that the ratio rests on: MaxText's with 8,192 tokens in fp8.

    github:AI-Hypercomputer/maxtext MaxText/configs/a3/llama_2_70b/fp8/pgle/16vm.pbtxt: queries are
    written in 344.6 us. Keys, in 44.6, would come from the cache, but instructions bound them.
    """
    model = Analytical(find_gpu("h100-sxm"))
    size = 2 * 2 * 8192 * 8192
    duration = model.estimate(Elementwise(size, variant="slice_writes")).duration
    assert duration == pytest.approx(344.6e6, rel=0.1)
    keys = model.estimate(Elementwise(size // 8, variant="slice_writes")).duration
    assert 0.65 < keys / 44.6e6 < 1


def test_a_cast_to_mxfp8_as_measured() -> None:
    """8,192 x 8,192 from bf16 on a B200: github:ROCm/TransformerEngine, pull 598."""
    model = Analytical(find_gpu("b200"))
    for layouts, measured in ((1, (34.84, 39.61)), (2, (52.34,))):
        size = (2 + layouts) * 8192**2
        duration = model.estimate(Elementwise(size, variant="block_scales")).duration
        assert all(duration == pytest.approx(each * 1e6, rel=0.12) for each in measured)


def test_scales_of_nvfp4_in_order_as_measured() -> None:
    """About 25 us in shapes of LLaMA: github:NVIDIA/TransformerEngine, pull 3011."""
    model = Analytical(find_gpu("b200"))

    def more(width: int) -> float:
        size = int((3 * 2 + 2 * 9 / 16) * 8192 * width)  # read three times, written twice
        apart = model.estimate(Elementwise(size, variant="scales_apart")).duration
        return apart - model.estimate(Elementwise(size)).duration

    assert more(8192) < 25e6 < more(14336)  # hidden states of a 70B, inner width of an 8B


def test_a_roofline_knows_no_variants() -> None:
    model = Roofline(find_gpu("h100-sxm"))
    kernel = Attention(2, 16, 16, 4096, 4096, 128, 128)
    assert model.estimate(replace(kernel, variant="triton")) == model.estimate(kernel)


def test_an_unknown_variant() -> None:
    kernel: Kernel = Gemm(1, 1, 1, variant="fast")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no analytical model of the family 'gemm_fast'; there"):
        Analytical(find_gpu("h100-sxm")).estimate(kernel)


def test_every_number_is_used_and_has_a_source() -> None:
    package = KERNELS.parent / "mpisim"
    users = (*KERNELS.rglob("*.py"), *package.glob("operators/*.py"))
    error_bars = package / "prediction/uncertainty.py"
    text = "".join(path.read_text() for path in (*users, error_bars))
    used = set(re.findall(r'(?<!\.)\b(?:number|quantity)\("(\w+)"\)', text))
    assert used - {"name"} == set(packaged(FILE))  # "name" is an example
    for name in packaged(FILE):
        assert quantity(name).error > 0
