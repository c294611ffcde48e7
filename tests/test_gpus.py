"""GPU presets: that they load, agree with arithmetic and with each other, and can be added to."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from mpisim.base.errors import InputError
from mpisim.base.presets import normalized_name, packaged
from mpisim.base.quantity import Quantity
from mpisim.kernels import Gpu, find_gpu, gpu_names
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.gpu_parameters import gpu_parameters
from mpisim.kernels.operations import Gemm

GPUS = "gpus.toml"
FAMILIES = "gpu_families.toml"
GENERATIONS = "gpu_generations.toml"

OWN = """
[mine]
title = "My own GPU"
family = "hopper"
memory = { value = 48, unit = "GB", error = 0.0, source = "its datasheet" }
bandwidth = { value = 2, unit = "TB/s", error = 0.0, source = "its datasheet" }
peak_bf16 = { value = 500, unit = "TFLOP/s", error = 0.0, source = "its datasheet" }
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", gpu_names())
def test_presets_are_whole(name: str) -> None:
    gpu = find_gpu(name)
    assert name == name.lower()
    for field in dataclasses.fields(Gpu):
        number = getattr(gpu, field.name)
        if isinstance(number, Quantity):
            # Only what the maker says may claim to be exact.
            maker = any(word in number.source for word in ("datasheet", "whitepaper", "specif"))
            assert number.error > 0 or maker or "torchtitan" in number.source, field.name
    factors = [n for n in vars(gpu) if n.endswith("_fraction")]
    assert len(factors) == 10
    for each in factors:
        # A direct convolution's work can be done in less, by Winograd's algorithm.
        assert 0 < getattr(gpu, each).si <= (1.3 if each == "fp32_convolution_fraction" else 1)
    assert 1e9 < gpu.memory.si < 400e9
    assert gpu.pcie.si < gpu.bandwidth.si
    if gpu.nvlink is not None:
        assert gpu.nvlink.si < gpu.bandwidth.si


@pytest.mark.parametrize("name", gpu_names())
def test_formats_get_faster_as_they_get_narrower(name: str) -> None:
    gpu = find_gpu(name)
    ordered = [f for f in ("fp32", "tf32", "bf16", "fp16", "fp8") if f in gpu.formats]
    rates = [gpu.peak(f).si for f in ordered]
    assert rates == sorted(rates)
    if "tf32" in gpu.formats:
        assert gpu.peak("bf16").si == pytest.approx(2 * gpu.peak("tf32").si, rel=0.02)
    if "fp8" in gpu.formats:
        assert gpu.peak("fp8").si == pytest.approx(2 * gpu.peak("bf16").si, rel=0.03)


def operations_a_clock(name: str, family: str) -> int:
    """Return the fp32 operations of one multiprocessor a clock.

    2 for each core (NVIDIA's whitepapers), or those of the matrix units (AMD's).
    """
    if family.startswith("cdna"):
        return 256
    half = name.startswith(("p100", "v100", "gv100", "titan-v", "a100", "a30", "a800"))
    return 2 * (64 if half or family == "turing" else 128)


@pytest.mark.parametrize("name", gpu_names())
def test_fp32_peaks_are_cores_times_clock(name: str) -> None:
    gpu = find_gpu(name)
    if gpu.sms is None or gpu.clock is None or name in ("gv100", "h20", "h20-141gb"):
        pytest.skip("the maker's figures are missing or disagree, as noted beside them")
    expected = gpu.sms * operations_a_clock(name, gpu.family) * gpu.clock.si
    assert gpu.peak("fp32").si == pytest.approx(expected, rel=0.02)


def test_names_and_aliases_are_unique() -> None:
    tables = packaged(GPUS)
    names = [n for name, t in tables.items() for n in (name, *t.get("aliases", ()))]
    folded = [n.casefold() for n in names]
    assert len(set(folded)) == len(folded)


def test_families_fill_in_and_nothing_else() -> None:
    families = packaged(FAMILIES)
    keys = {frozenset(table) for table in families.values()}
    assert len(keys) == 1
    required = {f.name for f in dataclasses.fields(Gpu) if f.default is dataclasses.MISSING}
    assert next(iter(keys)) == required - {"title", "family", "memory", "bandwidth"}
    assert {t["family"] for t in packaged(GPUS).values()} <= set(families)


def test_borrowed_numbers_are_no_surer_than_measured_ones() -> None:
    for table in packaged(FAMILIES).values():
        for key, number in table.items():
            if number["source"].startswith(("borrowed", "guess")):
                assert number["error"] >= 0.08, key
    # A GPU that was measured is surer than its family.
    assert find_gpu("h100-sxm").gemm_fraction.error < find_gpu("h200").gemm_fraction.error


def test_names_resolve_in_any_case() -> None:
    assert find_gpu("A100-SXM-80GB") == find_gpu("a100-sxm") == find_gpu("a100-sxm4-80gb")
    assert find_gpu("V100-SXM3-32GB-450W").power == find_gpu("v100-dgx-2h").power


@pytest.mark.parametrize("file", ["e2e/all.csv", "gpus.csv"])
def test_names_in_published_measurements_resolve(shared: Path, file: str) -> None:
    with (shared / "groundtruth" / file).open(encoding="utf-8") as rows:
        for name in {row["gpu"] for row in csv.DictReader(rows)}:
            assert find_gpu(name)


def test_datasheet_figures_agree_with_a_second_table(shared: Path) -> None:
    columns = {
        "fp32_TFLOPS": "peak_fp32",
        "tf32_dense_TFLOPS": "peak_tf32",
        "fp16_bf16_dense_TFLOPS": "peak_fp16",
        "fp8_dense_TFLOPS": "peak_fp8",
        "mem_GBps": "bandwidth",
    }
    with (shared / "groundtruth" / "gpus.csv").open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            gpu = find_gpu(row["gpu"])
            for column, name in columns.items():
                if name == "peak_fp32" and gpu.family.startswith("cdna"):
                    continue  # the table has the vector units' rate
                found = getattr(gpu, name)
                assert (found.value if found else None) == (float(row[column] or 0) or None)


def test_a_gpu_of_ones_own(own: Path) -> None:
    gpu = find_gpu(own)
    assert gpu == find_gpu(str(own))
    assert gpu.title == "My own GPU"
    assert gpu.formats == ("bf16",)
    assert gpu.gemm_fraction == find_gpu("h200").gemm_fraction
    with pytest.raises(InputError, match="My own GPU has no fp8; it has bf16"):
        gpu.peak("fp8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"hopper"', '"hooper"', r"key 'mine.family' is 'hooper' \(did you mean 'hopper'\?\); all"),
        ('family = "hopper"', "", r"key 'mine.family' is missing; allowed: pascal, volta"),
        ('family = "hopper"', "family = 3", r"key 'mine.family' is 3; allowed: pascal"),
        ('"GB"', '"gb"', r"\[mine.memory\] unknown unit 'gb'"),
        ("bandwidth", "bandwith", r"unknown key 'bandwith' in \[mine\] \(did you mean 'bandwidth'"),
        ("memory = ", "sms = 3 #", r"key 'mine.memory' is missing"),
        ("peak_bf16 = ", "power = ", r"\[mine\] no peak rate is given: at least one of peak_fp32"),
        ("value = 2,", "value = 0,", r"\[mine\] 'bandwidth' is 0; it must be above 0"),
        ("[mine]", "", r"holds title, family, memory, bandwidth, peak_bf16 at the top level"),
        ("[mine]", "[mine", r"not valid TOML"),
        (OWN, "", r"holds nothing at the top level; it must be one table"),
    ],
)
def test_bad_files_are_refused(own: Path, old: str, new: str, message: str) -> None:
    own.write_text(OWN.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        find_gpu(own)
    assert str(caught.value).startswith(str(own))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: cannot be read: No such file"):
        find_gpu(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"a = \xff")
    with pytest.raises(InputError, match=r"not a text file in UTF-8 \(line 1, byte 4\)"):
        find_gpu(tmp_path / "binary.toml")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown GPU 'h100-smx' \(did you mean 'h100-sxm'\?\)"):
        find_gpu("h100-smx")


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla T4", "t4"),
        ("Quadro GV100", "gv100"),
        ("NVIDIA TITAN Xp", "titan-xp"),
        ("NVIDIA GH200 120GB", "gh200-96gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD INSTINCT MI100", "mi100"),
    ],
)
def test_names_that_tools_print(printed: str, name: str) -> None:
    assert find_gpu(printed).title == find_gpu(name).title


def test_a_name_means_one_gpu() -> None:
    known = {}
    for name, table in packaged(GPUS).items():
        for each in (name, *table.get("aliases", ())):
            assert known.setdefault(normalized_name(each), name) == name, each


def test_a_board_of_two_memories_is_the_smaller_unless_it_says_which() -> None:
    for name, size in (("RTX 4060 Ti", 8e9), ("4060 Ti", 8e9), ("RTX 4060 Ti 16GB", 16e9)):
        assert find_gpu(name).memory.si == size


def test_a_gpu_that_is_not_here_is_not_mistaken_for_another() -> None:
    with pytest.raises(InputError, match="unknown GPU 'NVIDIA A100X'"):
        find_gpu("NVIDIA A100X")


@pytest.mark.parametrize("name", gpu_names())
def test_multiprocessors_hold_the_threads_of_their_compute_capability(name: str) -> None:
    """CUDA programming guide; of Ampere's GA10x has 128 lanes a multiprocessor, GA100 64."""
    gpu = gpu_parameters(name)
    held = {"turing": 1024, "ada": 1536, "blackwell-rtx": 1536, "cdna1": 2560}
    _, many_lanes = gpu.design
    small_ampere = gpu.family == "ampere" and many_lanes
    assert gpu.sm_threads == (1536 if small_ampere else held.get(gpu.family, 2048))
    assert gpu.warp_size == (64 if gpu.family.startswith("cdna") else 32)


def test_boards_at_half_rate_are_those_of_nvidias_tables() -> None:
    """Ampere GA102, Ada and RTX Blackwell whitepapers: accumulating in fp32, GeForce has half."""
    slow = {each for each in gpu_names() if gpu_parameters(each).half_rate}
    geforce = {each for each in gpu_names() if "GeForce RTX" in find_gpu(each).title}
    assert {"rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"} <= geforce
    assert slow == geforce | {"a10g", "l20", "l40"}


def test_boards_at_half_rate_come_nearer_to_their_peak() -> None:
    """161 TFLOP/s on an RTX 4090 in fp16: github:qhduan/transformers-benchmarks, 0.97 of peak."""
    product = Gemm(8192, 8192, 8192, dtype="fp16", output="fp16")
    shares = {}
    for name in ("rtx-4090", "l40s"):
        gpu = find_gpu(name)
        seconds = Analytical(gpu, alone=True).estimate(product).duration * 1e-12
        shares[name] = product.flops / seconds / gpu.peak("fp16").si
    assert shares["l40s"] < shares["rtx-4090"] < 1
    assert shares["rtx-4090"] == pytest.approx(161 / 165.2, rel=0.12)


def test_every_family_has_a_year() -> None:
    years = packaged(GENERATIONS)
    assert years.keys() == packaged(FAMILIES).keys()
    assert all(2010 < each["year"] < 2030 and each["source"] for each in years.values())
