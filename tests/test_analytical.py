"""Machines, look-up of constants, and the analytical model around the families' formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import toy_formula
from hypothesis import given
from hypothesis import strategies as st
from toy_formula import TRUE, batch

from mpisim.base.errors import InputError
from mpisim.kernels import find_gpu, gpu_names
from mpisim.kernels.analytical import Analytical, Constant, KernelCalibration, formula_of
from mpisim.kernels.analytical.calibration import (
    ErrorBin,
    FittedConstants,
    decade_of,
    packaged_calibration,
)
from mpisim.kernels.analytical.families import FORMULAS, VARIANTS
from mpisim.kernels.analytical.lookup import (
    MISSING_FIGURE_ERROR,
    OTHER_FORMAT_ERROR,
    OTHER_GENERATION_ERROR,
    TEXTBOOK_ERROR,
    UNRELATED_ARCHITECTURE_ERROR,
    UNSEEN_POWER_ERROR,
    look_up,
)
from mpisim.kernels.gpu_parameters import GpuParameters
from mpisim.kernels.operations import Copy, Gemm, GemmVariant, Kernel


def table(efficiency: float, *, error: float = 0.1, **keys) -> FittedConstants:
    p90 = 1.645 * error
    bins = (ErrorBin(-5, 100, 0.0, 0.2, 0.05, 2 * p90), ErrorBin(-3, 100, 0.0, 0.2, 0.05, p90))
    return FittedConstants(
        source="nobody",
        files=("toy.csv",),
        gpus=("v100-pcie-32gb",),
        splits=("train",),
        rows=200,
        held_out="GPUs",
        constants=TRUE | {"efficiency": efficiency},
        errors=bins,
        **keys,
    )


def throttling(gpu: GpuParameters) -> float:
    """Standard deviation of a logarithm that is anywhere from that of `sustained` to 0."""
    return -np.log(gpu.sustained) / np.sqrt(12)


def unseen(gpu: GpuParameters) -> float:
    """The same of a chip that was not measured."""
    return np.hypot(throttling(gpu), -UNSEEN_POWER_ERROR * np.log(gpu.power_share))


# --- machines ------------------------------------------------------------------------------------


def test_numbers_of_a_machine():
    gpu = GpuParameters.of(find_gpu("A100-SXM-80GB"))
    assert (gpu.name, gpu.family, gpu.sms) == ("a100-sxm", "ampere", 108)
    assert gpu.peaks["bf16"] == 312e12
    assert gpu.l2_bandwidth == 48 * 108 * 1410e6
    assert gpu.sustained == 1.0


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_a_machine(name):
    gpu = GpuParameters.of(find_gpu(name))
    assert gpu.name == name
    assert 0.3 < gpu.sustained <= 1
    assert gpu.sms > 0
    assert gpu.l2 > 1e6
    assert gpu.clock > 5e8


def test_missing_numbers_are_a_siblings():
    # B300 has no multiprocessors in the datasheet: those of the B200, whose rate it has.
    assert GpuParameters.of(find_gpu("b300")).sms == find_gpu("b200").sms
    assert GpuParameters.of(find_gpu("gb300")).sms == find_gpu("gb200").sms


def test_power_limits():
    # 500 of 700 W: (5/7 - 0.2) / 0.8 = 0.643 of the power above static; its root 2.8 is 0.854.
    # torchtitan's 500 W parts reach 0.80 to 0.87 of what others do (design notes of the data).
    assert GpuParameters.of(find_gpu("h100-sxm-96gb-500w")).sustained == pytest.approx(
        0.855, abs=0.001
    )
    # A T4 at 70 W holds its base clock, 585 of 1590 MHz, and somewhat more: its watts a FLOP/s are
    # 0.465 of an RTX 2080 Ti's, 0.33 of the power above static, at the least voltage, 0.8² of it.
    assert GpuParameters.of(find_gpu("t4")).sustained == pytest.approx(
        ((70 / 8.1) / (250 / 13.4) - 0.2) / 0.8 / 0.64, rel=0.03
    )
    gpu = find_gpu("h100-sxm")
    # A P4 would be at 0.6; its maker warrants 810 of 1063 MHz.
    assert GpuParameters.of(find_gpu("p4")).sustained == pytest.approx(810 / 1063)
    unlimited = dataclasses.replace(gpu, title="no limit known", power=None)
    assert GpuParameters.of(unlimited).sustained == 1.0
    assert GpuParameters.of(unlimited).name == "no limit known"


@pytest.mark.parametrize(
    ("name", "rate"),
    [("rtx-3090", 76.5), ("rtx-4090", 165), ("rtx-5090", 237), ("rtx-a6000", 123), ("a40", 122)],
)
def test_large_products_of_cards_with_half_the_rate(name: str, rate: float):
    # TFLOP/s of torch.matmul in bf16 (github:zzc0721/torch-performance-test-data).
    picoseconds = Analytical(find_gpu(name)).estimate(Gemm(8192, 8192, 8192)).duration
    assert 2 * 8192**3 / picoseconds == pytest.approx(rate, rel=0.05)


@given(share=st.floats(0.02, 3.0), more=st.floats(1.0, 2.0))
def test_more_power_is_no_lower_a_clock(share: float, more: float):
    h100 = find_gpu("h100-sxm")

    def clock(factor: float) -> float:
        power = dataclasses.replace(h100.power, value=h100.power.value * factor)
        return GpuParameters.of(dataclasses.replace(h100, title="own", power=power)).sustained

    # Below the least voltage power goes with the clock: no slower than in proportion to it.
    assert clock(share) <= clock(share * more) <= 1
    if share > 0.3:
        assert clock(share) >= min(1.0, (share - 0.2) / 0.8)


# --- families ------------------------------------------------------------------------------------


def test_constants_are_within_their_limits():
    with pytest.raises(ValueError, match="constant 'x'"):
        Constant("x", 2.0, 0.0, 1.0, "share")


def test_unknown_family():
    class Odd(Kernel):
        family = "odd"
        traffic = 8

    with pytest.raises(InputError, match="no analytical model of the family 'odd'"):
        formula_of(Odd().qualified_family)


# --- look-up ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_own_constants_first_then_the_architectures_then_its_kins_then_all():
    gpu = GpuParameters.of(find_gpu("v100-pcie-32gb"))
    tables = {}
    for owner, efficiency in (("any", 0.5), ("volta", 0.6), (gpu.name, 0.7)):
        tables["gemm", owner, "fp16"] = table(efficiency)
        served = look_up(KernelCalibration(tables), "gemm", gpu, "fp16")
        assert served.constants["efficiency"] == efficiency
        assert served.name == f"gemm.{owner}.fp16"
        assert served.borrowed == (owner != gpu.name)
        added = throttling(gpu) if owner == gpu.name else unseen(gpu)
        assert served.error(2e-3) == pytest.approx(np.hypot(0.1, added))
    for other, name in (("h100-sxm", "gemm.volta.fp16"), ("mi100", "gemm.any.fp16")):
        served = look_up(
            KernelCalibration(tables), "gemm", GpuParameters.of(find_gpu(other)), "fp16"
        )
        assert served.name == name
        assert "borrowed" in served.source


@pytest.mark.usefixtures("toy")
def test_other_formats_stand_in():
    gpu = GpuParameters.of(find_gpu("h100-sxm"))

    def of_hopper(efficiency: float) -> FittedConstants:
        return dataclasses.replace(table(efficiency), gpus=("h100-pcie",))

    found = KernelCalibration(
        {("gemm", "any", "fp16"): of_hopper(0.5), ("gemm", "any", "fp32"): of_hopper(0.9)}
    )
    assert look_up(found, "gemm", gpu, "bf16").error(1e-3) == pytest.approx(0.1)  # the same units
    fp8 = look_up(found, "gemm", gpu, "fp8")
    assert fp8.name == "gemm.any.fp16"
    assert fp8.borrowed
    assert fp8.error(1e-3) == pytest.approx(np.hypot(0.1, OTHER_FORMAT_ERROR))
    textbook = look_up(KernelCalibration(), "gemm", gpu, "fp8")
    assert textbook.constants == {each.name: each.start for each in toy_formula.FORMULA.constants}
    assert textbook.error(1e-3) == TEXTBOOK_ERROR


def test_grouped_products_have_those_of_single_ones_in_a_format_that_was_not_measured():
    model = Analytical(find_gpu("h100-sxm"))
    assert model.look_up("grouped_gemm", "bf16").name == model.look_up("gemm", "bf16").name
    assert model.look_up("grouped_gemm", "fp8").name.startswith("grouped_gemm.")


@pytest.mark.usefixtures("toy")
def test_strangers_are_known_less_well():
    found = KernelCalibration({("gemm", "any", "fp16"): table(0.5)})  # of a V100
    kin = look_up(found, "gemm", GpuParameters.of(find_gpu("h100-sxm")), "fp16")
    assert kin.error(1e-3) == pytest.approx(np.hypot(0.1, OTHER_GENERATION_ERROR))
    amd = look_up(found, "gemm", GpuParameters.of(find_gpu("mi300x")), "fp16")
    assert amd.error(1e-3) == pytest.approx(np.hypot(0.1, UNRELATED_ARCHITECTURE_ERROR))


@pytest.mark.usefixtures("toy")
def test_one_gpu_alone_says_less_of_others():
    gpu = GpuParameters.of(find_gpu("h200"))
    alone = dataclasses.replace(table(0.5), held_out="shapes")
    served = look_up(KernelCalibration({("gemm", "hopper", "fp16"): alone}), "gemm", gpu, "fp16")
    assert served.error(1e-3) > 0.1


@pytest.mark.usefixtures("toy")
def test_another_board_of_the_chip_before_the_architecture():
    alone = dataclasses.replace(table(0.5), held_out="runs")
    tables = {
        ("gemm", "a100-sxm", "fp16"): alone,
        ("gemm", "a100-pcie-40gb", "fp16"): dataclasses.replace(
            alone, constants=TRUE | {"efficiency": 0.4}
        ),
        ("gemm", "ampere", "fp16"): table(0.6),
    }
    # The A100 of 80 GB on PCIe: 1.94 TB/s, the boards of 40 GB 1.56 and of SXM 2.04.
    gpu = GpuParameters.of(find_gpu("a100-pcie-80gb"))
    served = look_up(KernelCalibration(tables), "gemm", gpu, "fp16")
    assert served.name == "gemm.a100-sxm.fp16"
    assert served.borrowed
    # Chips left out say how far a board may be off; where none was, a tenth is added.
    assert served.error(2e-3) == pytest.approx(np.hypot(0.1, throttling(gpu)))
    farther = tables | {("gemm", "ampere", "fp16"): table(0.6, error=0.2)}
    served = look_up(KernelCalibration(farther), "gemm", gpu, "fp16")
    assert served.error(2e-3) == pytest.approx(np.hypot(0.2, throttling(gpu)))
    assert served.largest_error == pytest.approx(np.hypot(0.4, throttling(gpu)))
    unknown = tables | {("gemm", "ampere", "fp16"): alone}
    served = look_up(KernelCalibration(unknown), "gemm", gpu, "fp16")
    assert served.error(2e-3) > np.hypot(0.1, 0.09)
    # An A40 is another chip of the architecture.
    assert look_up(
        KernelCalibration(tables), "gemm", GpuParameters.of(find_gpu("a40")), "fp16"
    ).name == ("gemm.ampere.fp16")


@pytest.mark.usefixtures("toy")
def test_boards_that_differ_in_links_alone_are_one():
    alone = dataclasses.replace(table(0.5), gpus=("h800-sxm",), held_out="shapes")
    found = KernelCalibration({("gemm", "h800-sxm", "fp16"): alone})
    h100, h200 = (GpuParameters.of(find_gpu(name)) for name in ("h100-sxm", "h200"))
    own = look_up(found, "gemm", GpuParameters.of(find_gpu("h800-sxm")), "fp16")
    assert look_up(found, "gemm", h100, "fp16").error(2e-3) == own.error(2e-3)
    assert look_up(found, "gemm", h200, "fp16").error(2e-3) > own.error(2e-3)


@pytest.mark.usefixtures("toy")
def test_errors_of_few_rows_are_those_of_all():
    bins = [dataclasses.replace(each, rows=9) for each in table(0.5).errors]
    few = dataclasses.replace(table(0.5), errors=tuple(bins))
    together = np.sqrt((0.2**2 + 0.1**2) / 2)
    for seconds in (2e-5, 2e-4, 2e-3):
        assert few.error(seconds) == pytest.approx(together, rel=1e-3)
    assert few.largest_error == few.error(1e-3)


@pytest.mark.usefixtures("toy")
def test_what_is_added_is_off_together():
    plain = table(0.5)
    biased = [dataclasses.replace(each, bias=-0.1) for each in plain.errors]
    off = dataclasses.replace(plain, errors=tuple(biased))
    # Of 0.2² + 0.1² the spread is four fifths; of these kernels of one run share 0.22.
    own = off.own_share(2e-3)
    assert own == pytest.approx(0.8 * 0.78)
    assert plain.own_share(2e-3) == pytest.approx(0.78)
    few = [dataclasses.replace(each, rows=9) for each in biased]
    turning = (few[0], dataclasses.replace(few[1], bias=0.1))
    assert dataclasses.replace(off, errors=turning).own_share(2e-3) == pytest.approx(own)
    found = KernelCalibration({("gemm", "volta", "fp16"): off})
    v100, a100 = (GpuParameters.of(find_gpu(name)) for name in ("v100-sxm2-32gb", "a100-sxm"))
    assert look_up(found, "gemm", v100, "fp16").own_share(2e-3) == pytest.approx(own)
    added = 0.1**2 / (0.1**2 + OTHER_GENERATION_ERROR**2)
    assert look_up(found, "gemm", a100, "fp16").own_share(2e-3) == pytest.approx(own * added)
    # Of other formulas no layers were measured, with constants of their own or with those of gemm.
    assert look_up(found, "gemm_split", v100, "fp16").own_share(2e-3) > 0
    assert look_up(found, "grouped_gemm", v100, "fp16").own_share(2e-3) == 0
    experts = KernelCalibration({("grouped_gemm", "volta", "fp16"): off})
    assert look_up(experts, "grouped_gemm", v100, "fp16").own_share(2e-3) == 0


@pytest.mark.usefixtures("toy")
def test_boards_that_their_power_holds_down_are_known_less_well():
    t4 = GpuParameters.of(find_gpu("t4"))
    own = dataclasses.replace(table(0.5), gpus=("t4",))
    found = look_up(KernelCalibration({("gemm", "t4", "fp16"): own}), "gemm", t4, "fp16")
    # Anywhere from half of the boost clock to all of it: log(1 / 0.51) / sqrt(12) = 0.19.
    assert found.error(2e-3) == pytest.approx(np.hypot(0.1, throttling(t4)))
    assert throttling(t4) == pytest.approx(0.19, abs=0.02)


@pytest.mark.usefixtures("toy")
def test_chips_far_from_those_measured_are_known_less_well():
    def added(name: str, **figures: object) -> float:
        gpu = dataclasses.replace(GpuParameters.of(find_gpu(name)), **figures)
        tables = KernelCalibration({("gemm", "volta", "fp16"): table(0.5)})
        return look_up(tables, "gemm", gpu, "fp16").added

    v100 = added("v100-sxm2-32gb")
    assert v100 == 0.0
    assert added("a100-sxm") == OTHER_GENERATION_ERROR
    # Half of the reference's watts a FLOP/s, and one more figure unknown.
    power = UNSEEN_POWER_ERROR * np.log(2)
    assert added("v100-sxm2-32gb", power_share=0.5) == pytest.approx(power)
    assert added("v100-sxm2-32gb", missing=1) == MISSING_FIGURE_ERROR
    assert added("t4") > np.hypot(OTHER_GENERATION_ERROR, UNSEEN_POWER_ERROR * np.log(2))


def test_errors_by_size():
    found = table(0.5)
    assert found.error(3e-5) == pytest.approx(0.2)
    assert found.error(1e-9) == pytest.approx(0.2)
    assert found.error(3e-4) in (pytest.approx(0.1), pytest.approx(0.2))
    assert found.error(10.0) == pytest.approx(0.1)
    # A bin of few rows is passed over for the nearest of many.
    few = dataclasses.replace(found, errors=(*found.errors, ErrorBin(0, 3, 0.0, 9.0, 9.0, 9.0)))
    assert few.error(2.0) == pytest.approx(0.1)
    assert decade_of(9.9e-6) == -6
    assert decade_of(1e-5) == -5


GOOD = """
[gemm.any.fp16]
source = "nobody"
files = ["toy.csv"]
gpus = ["p4"]
splits = ["train"]
rows = 3
held_out = "shapes"
constants = { efficiency = 0.5, memory = 0.5, floor = 1e-6 }
errors = [{ decade = -4, rows = 3, bias = 0.0, sd = 0.1, median = 0.1, p90 = 0.2 }]
"""


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gemm.any", "gem.any", "unknown family 'gem' (did you mean 'gemm'?)"),
        ("efficiency =", "eficiency =", "unknown constant 'eficiency' (did you mean 'efficie"),
        ("efficiency = 0.5", "efficiency = 1.5", "efficiency is 1.5; it must be from 0.1 to 1"),
        (", floor = 1e-6", "", "[gemm.any.fp16] constant 'floor' is missing"),
        ("sd = 0.1", "sd = -1", "errors[0].sd"),
        ("rows = 3\n", "", "key 'gemm.any.fp16.rows' is missing"),
        ("[gemm.any.fp16]", "[gemm]", "must be a table, [gemm.source]"),
    ],
)
def test_bad_calibrations(old, new, words):
    with pytest.raises(InputError) as error:
        KernelCalibration.parse(GOOD.replace(old, new), "mine.toml")
    assert str(error.value).startswith("mine.toml: ")
    assert words in str(error.value)


def test_missing_calibration(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        KernelCalibration.read(tmp_path / "none.toml")


# --- the model ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_estimates():
    calibration = KernelCalibration({("gemm", "any", "fp32"): table(0.7)})
    model = Analytical(find_gpu("v100-pcie-32gb"), calibration)
    rows = batch("v100-pcie-32gb")
    many = model.estimate_many("gemm", rows.columns)
    assert many == pytest.approx(rows.seconds)
    kernel, seconds = rows.kernels[-1], rows.seconds[-1]
    found = model.estimate(kernel)
    assert found.duration == pytest.approx(seconds * 1e12, abs=1)
    assert found is model.estimate(kernel)
    assert sum(model.terms(kernel).values()) == pytest.approx(seconds)
    # What the estimate rests on is among the model's numbers, with the error bar of its size.
    ((name, share),) = found.shares.items()
    assert name == "gemm model (fp32)"
    held_down = unseen(GpuParameters.of(model.gpu))
    assert found.error == pytest.approx(np.hypot(0.1, held_down))
    # Kernels of 10 us are foretold half as well, and those of 1 ms are off by half as much.
    assert model.numbers[name].error == pytest.approx(np.hypot(0.2, held_down))
    assert share * model.numbers[name].error == pytest.approx(found.error)
    assert "[gemm.any.fp32], borrowed" in model.numbers[name].source


@pytest.mark.usefixtures("toy")
def test_a_gpu_without_the_format():
    model = Analytical(find_gpu("p4"), KernelCalibration())
    with pytest.raises(InputError, match="has no bf16"):
        model.estimate(Gemm(1, 1, 1))


def test_the_packaged_calibration():
    tables = packaged_calibration().tables
    # FlashAttention and scans in Triton, PyTorch's attention on AMD's GPUs, norms in registers,
    # rows moved by a list, casts and some products take a multiple of another kernel's time.
    multiples = {name for name, variant in VARIANTS.items() if variant.ratio}
    assert multiples == {
        "attention_aotriton",
        "attention_cudnn_9_13",
        "attention_flash_2",
        "attention_triton",
        "elementwise_block_scales",
        "elementwise_layout",
        "elementwise_row_copies",
        "elementwise_row_sums",
        "elementwise_scales_apart",
        "elementwise_slice_writes",
        "elementwise_sort_passes",
        "elementwise_widening",
        "norm_persistent",
        "gemm_blocks",
        "gemm_cores",
        "gemm_split",
        "gemm_scan",
        "gemm_scan_gradient",
        "gemm_single_words",
        "gemm_unaligned",
        "grouped_gemm_blocks",
        "grouped_gemm_split",
    }
    # FlashAttention-2 has constants of its own on Hopper, besides.
    fitted = set(FORMULAS) - multiples | {"attention_flash_2"}
    assert {formula for formula, _, _ in tables} == fitted
    for name in gpu_names():
        gpu = find_gpu(name)
        model = Analytical(gpu)
        for dtype in gpu.formats:
            error = model.estimate(Gemm(4096, 4096, 4096, dtype=dtype)).error
            assert 0 < error < 0.8
            seconds = model.estimate(Gemm(8192, 8192, 8192, dtype=dtype)).duration * 1e-12
            assert 0.15 < 2 * 8192**3 / seconds / gpu.peak(dtype).si < 1.1, (name, dtype)


def test_products_of_16_bit_numbers_on_cuda_cores():
    """Products of an attention on an A100, and the same in fp32 (xformers, pull request 587)."""
    model = Analytical(find_gpu("a100-sxm"), alone=True)

    def ms(variant: GemmVariant | None) -> float:
        sizes = ((197, 197, 88), (197, 88, 197))
        kernels = [
            Gemm(*size, 1024, dtype="fp32", output="fp16", variant=variant) for size in sizes
        ]
        return sum(model.estimate(kernel).duration for kernel in kernels) * 1e-9

    assert ms("cores") == pytest.approx(1.25 * ms(None), rel=1e-9)
    # Without softmax and scale, which take 0.27 and 0.13 ms in the two formats.
    assert ms(None) == pytest.approx(1.77 - 0.27, rel=0.1)
    assert ms("cores") == pytest.approx(2.22 - 0.13, rel=0.2)


def test_copies_have_no_format():
    found = Analytical(find_gpu("h100-sxm")).estimate(Copy(10**9))
    assert found.duration > 0
    assert 0 < found.error < 1
