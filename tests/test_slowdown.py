"""The slowdown of kernels beside communications: formulas, and what papers have measured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.experiment import load
from mpisim.kernels import KernelModel, Roofline, find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.analytical.tiles import wave_stretch
from mpisim.kernels.gpu_parameters import gpu_parameters
from mpisim.kernels.operations import ATTENTION_VARIANTS, Attention, Elementwise, Gemm, Kernel, Norm
from mpisim.kernels.slowdown import (
    CLASSES,
    Load,
    Parametric,
    packaged_constants,
    read_constants,
    work_of,
)
from mpisim.prediction.prepared import prepare
from mpisim.program import Operation
from mpisim.simulate import simulate

KERNELS: tuple[Kernel, ...] = (
    Gemm(m=4096, n=4096, k=4096),
    Gemm(m=8192, n=12288, k=4096),
    Attention(
        batch=1, heads=32, kv_heads=32, queries=4096, keys=4096, head_size=128, value_size=128
    ),
    Elementwise(400_000_000),
    Norm(rows=8192, columns=8192),
)


def model(gpu: str, kernels: tuple[Kernel, ...] = KERNELS, *, roofline: bool = False) -> Parametric:
    kernel_model: KernelModel = Roofline(find_gpu(gpu)) if roofline else Analytical(find_gpu(gpu))
    seconds = [kernel_model.estimate(each).duration * 1e-12 for each in kernels]
    return Parametric(work_of(kernel_model, kernels, seconds), packaged_constants())


def factors(found: Parametric, taken: int, bandwidth: float) -> np.ndarray:
    n = len(found.work)
    load = Load(np.full(n, taken), np.full(n, float(bandwidth)), np.full(n, -1))
    return found.kernels(np.arange(n), load)[0]


def test_constants() -> None:
    known = packaged_constants()
    assert known.traffic(Operation.ALL_GATHER, "ring") is known.gather
    assert known.traffic(Operation.REDUCE_SCATTER, "ring") is known.reduce
    assert known.traffic(Operation.ALL_REDUCE, "nvls") is known.multicast
    assert known.traffic(Operation.ALL_TO_ALL, "send") is known.send
    assert {getattr(known, name).unit for name in CLASSES} == {"1"}


def test_waves() -> None:
    machine = gpu_parameters("h100-sxm")  # 132 multiprocessors
    assert wave_stretch(132, machine, 24) == 2.0  # two waves in place of one
    assert wave_stretch(108, machine, 24) == 1.0  # still one
    assert wave_stretch(1320, machine, 24) == 1.3  # 1320 / 108 = 12.2: 13 in place of 10
    assert wave_stretch(1, machine, 200) == 1.0


def test_attention_has_tiles() -> None:
    analytical = Analytical(find_gpu("h100-sxm"))
    # 32 heads of 4096 / 128 = 32 blocks: 1024 tiles, 8 waves; on 108 multiprocessors 10.
    for variant in ATTENTION_VARIANTS.values():
        kernel = dataclasses.replace(KERNELS[2], variant=variant)
        assert analytical.stretch_of([kernel])(24).tolist() == [10 / 8]


def test_factors_kept_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few kernels with many numbers of multiprocessors occupied, too."""
    monkeypatch.setattr("mpisim.kernels.analytical.model.MAX_CACHED_KERNELS", 10)
    analytical = Analytical(find_gpu("h100-sxm"))
    for occupied in range(100):
        fresh = Analytical(find_gpu("h100-sxm")).stretch_of(KERNELS[2:3])(occupied)
        assert analytical.stretch_of(KERNELS[2:3])(occupied).tolist() == fresh.tolist()
        assert sum(map(len, analytical._stretches.values())) <= 12


def test_by_hand_memory() -> None:
    """A kernel all of memory, by the roofline: 4e8 bytes on an H100."""
    found = model("h100-sxm", (Elementwise(400_000_000),), roofline=True)
    known, bandwidth = packaged_constants(), find_gpu("h100-sxm").bandwidth.si
    used = 0.3
    fixed = float(found.work.fixed[0])
    memory = 1 / (1 - used)
    expected = (fixed + (1 - fixed) * memory) * (1 + known.streaming.value * used / 0.6)
    assert factors(found, 16, used * bandwidth)[0] == pytest.approx(expected, rel=1e-12)
    # Beside what only waits, it loses nothing.
    assert factors(found, 16, 0.0)[0] == 1.0


def test_limits() -> None:
    found = model("a100-sxm-80gb")
    assert factors(found, 0, 0.0).tolist() == [1.0] * len(KERNELS)
    most = packaged_constants().most.value
    assert factors(found, 10_000, 1e15).max() <= most


@given(
    taken=st.integers(0, 60), more=st.integers(0, 20), used=st.floats(0, 1), other=st.floats(0, 1)
)
def test_more_never_helps(taken: int, more: int, used: float, other: float) -> None:
    found = MODEL
    bandwidth = find_gpu("h100-sxm").bandwidth.si
    low = factors(found, taken, min(used, other) * bandwidth)
    high = factors(found, taken + more, max(used, other) * bandwidth)
    assert (high >= low * (1 - 1e-12)).all()
    assert (low >= 1).all()


MODEL = model("h100-sxm")


@pytest.mark.parametrize("name", ["bandwidth", "taken", "own"])
def test_sensitivity(name: str) -> None:
    """Against a small change of each, where no limit holds and work divides freely."""
    found = model("a100-sxm-80gb", (Norm(rows=8192, columns=8192),), roofline=False)
    step = 1e-5
    bandwidth = 0.2 * find_gpu("a100-sxm-80gb").bandwidth.si
    load = Load(np.array([16]), np.array([bandwidth]), np.array([-1]))
    factor, rests_on = found.kernels(np.array([0]), load)
    if name == "bandwidth":
        other = found.kernels(np.array([0]), load._replace(bandwidth=load.bandwidth * (1 + step)))
        slope = np.log(other[0] / factor) / step
    elif name == "own":
        known = found.constants
        changed = dataclasses.replace(
            known,
            reducing=dataclasses.replace(known.reducing, value=known.reducing.value * (1 + step)),
        )
        other = Parametric(found.work, changed).kernels(np.array([0]), load)
        slope = np.log(other[0] / factor) / step
    else:
        other = found.kernels(np.array([0]), load._replace(taken=np.array([17])))
        slope = np.log(other[0] / factor) * 16
    assert getattr(rests_on, name)[0] == pytest.approx(slope[0], rel=0.1, abs=1e-3)


def test_bad_constants(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "mine.toml"
    with pytest.raises(InputError, match="cannot be read"):
        read_constants(path)
    path.write_text("[gather]\nvalue = 2.0\nunit = '1'\nerror = 0.1\nsource = 'x'\n")
    with pytest.raises(InputError, match=r"mine.toml: key 'reduce' is missing"):
        read_constants(path)


# --- what papers have measured: not fitted, compared --------------------------------------------


def test_tail_effect() -> None:
    """A product of 132 tiles beside an all-gather of 24 thread blocks on an H100.

    The rate of the product falls from 80 to 47 % of the peak, a factor of 1.70.
    """
    # 11 × 12 tiles of 128 × 256.
    found = model("h100-sxm", (Gemm(m=11 * 128, n=12 * 256, k=8192),))
    assert factors(found, 24, 0.0)[0] == pytest.approx(80 / 47, rel=0.1)


def test_echo() -> None:
    """As in Echo (arXiv:2412.12487), DDP on A100.

    Products take 1.27 times as long beside all-reduces, elementwise kernels 1.51, steps 1.38 to
    1.48 where more than 57 % of kernels overlap. A ring inside a node: 24 channels, 230 GB/s on
    the bus, 3 bytes of memory a byte.
    """
    found = model("a100-sxm-80gb", KERNELS[:1] + KERNELS[1:2] + KERNELS[3:4])
    first, second, elementwise = factors(found, 24, 3 * 230e9).tolist()
    assert 1.1 < first < 1.6
    assert 1.1 < second < 1.6
    assert 1.3 < elementwise <= 1.7


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_lee(cluster: str) -> None:
    """As by Lee et al., A100 and H100, sharded data parallel and pipelines in a node.

    Computing takes 18.9 % longer on average where it overlaps, 40 % at most.
    """
    changes = [
        f'cluster.preset="{cluster}"',
        "model.layers=8",
        "plan.tp=1",
        "plan.dp=8",
        "plan.zero=3",
        "plan.global_batch=8",
        "model.seq_len=2048",
        "run.allow_oom=true",
    ]
    _, experiment = load(None, changes)
    results = simulate(prepare(experiment))
    assert results is not None
    lines = results.attributes["overlap_slowdowns"]
    pairs = [line.split(": x ")[1].split(" for ") for line in lines if "kernels" in line]
    longer = [float(factor) - 1 for factor, _ in pairs]
    alone = [float(rest.split(" ms")[0].replace(",", "")) for _, rest in pairs]
    mean = float(np.average(longer, weights=alone))
    assert 0.05 < mean < 0.40
