"""Kernel models of other simulators."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from toy_formula import TRUE, batch

from mpisim.base.errors import InputError
from mpisim.kernels import Estimate, Roofline, find_gpu
from mpisim.kernels.alternatives import Li, OperationDatabase, Scaling, regress
from mpisim.kernels.operations import Elementwise, Gemm

pytestmark = pytest.mark.usefixtures("toy")

V100, A100 = "v100-pcie-32gb", "a100-pcie-40gb"


def product(m: int, n: int, k: int) -> Gemm:
    return Gemm(m, n, k, dtype="fp32", output="fp32")


# --- Li -----------------------------------------------------------------------------------------


def test_a_line_is_found():
    # The toy's times are a line in arithmetic and traffic.
    line = regress([batch(V100)])["gemm", V100, "fp32"]
    assert line.arithmetic == pytest.approx(1 / TRUE["efficiency"])
    assert line.memory == pytest.approx(1 / TRUE["memory"])
    assert line.floor == pytest.approx(TRUE["floor"])
    assert line.error < 1e-6


def test_lines_are_carried_to_other_gpus():
    lines = regress([batch(V100), batch(A100)])
    rows = batch("p100-pcie")
    model = Li(find_gpu("p100-pcie"), lines)
    found = [model.estimate(kernel).duration * 1e-12 for kernel in rows.kernels]
    assert found == pytest.approx(rows.seconds, rel=1e-3)
    with pytest.raises(InputError, match="no measured kernels of memory_bound"):
        model.estimate(Elementwise(100))


def test_launches_are_no_part_of_a_line():
    line = regress([batch(V100, launch=20e-6)], lambda _: 20e-6)["gemm", V100, "fp32"]
    assert line.floor == pytest.approx(TRUE["floor"])


# --- SimAI --------------------------------------------------------------------------------------


def test_scaling_by_peak_or_by_bandwidth():
    base, gpu = Roofline(find_gpu("a100-sxm")), find_gpu("h100-sxm")
    model = Scaling(gpu, base)
    assert model.ratio(Gemm(8192, 8192, 8192)) == pytest.approx(312 / 989.4)
    assert model.ratio(Gemm(1, 8192, 8192)) == pytest.approx(2039 / 3350)
    assert model.ratio(Elementwise(1000)) == pytest.approx(2039 / 3350)
    kernel = Elementwise(10**9)
    slower = base.estimate(kernel)
    assert model.estimate(kernel) == Estimate(
        round(slower.duration * 2039 / 3350), slower.shares, slower.error
    )
    assert model.gpu is gpu


# --- database ------------------------------------------------------------------------------------


def test_exact_interpolated_and_missing():
    rows = batch(V100)
    fallback = Roofline(find_gpu(V100))
    model = OperationDatabase([rows, batch(A100)], fallback)
    assert len(model) == 135
    # Exact.
    kernel = rows.kernels[70]
    assert model.estimate(kernel).duration == round(rows.seconds[70] * 1e12)
    assert model.estimate(kernel) is model.estimate(kernel)
    # Between two neighbours in m: the geometric mean half-way in logarithms.
    low, high = product(256, 1024, 256), product(1024, 1024, 256)
    times = dict(zip(rows.kernels, rows.seconds.tolist()))
    only = np.array([k in (low, high) for k in rows.kernels])
    between = OperationDatabase([rows.take(only)], fallback)
    found = between.estimate(product(512, 1024, 256))
    assert found.duration == pytest.approx(1e12 * np.sqrt(times[low] * times[high]))
    # Outside, and of another format.
    for missing in (product(8192, 1024, 256), Gemm(256, 1024, 256, dtype="fp16")):
        assert between.estimate(missing) == fallback.estimate(missing)
    assert between.counts == {"interpolated": 1, "missing": 2}
    assert model.counts == {"exact": 1}


def test_far_neighbours_are_not_interpolated():
    rows = batch(V100)
    ends = (product(16, 1024, 256), product(4096, 1024, 256))
    only = np.array([k in ends for k in rows.kernels])
    model = OperationDatabase([rows.take(only)], Roofline(find_gpu(V100)))
    model.estimate(product(256, 1024, 256))
    assert model.counts == {"missing": 1}


def test_launches_are_taken_off_and_medians_count():
    rows = batch(V100, launch=20e-6)
    outlier = dataclasses.replace(rows, seconds=rows.seconds * 3)
    model = OperationDatabase([rows, rows, outlier], Roofline(find_gpu(V100)), lambda _: 20e-6)
    net = rows.seconds - 20e-6
    found = [model.estimate(kernel).duration * 1e-12 for kernel in rows.kernels]
    assert found == pytest.approx(net)
    # A launch longer than the measurement leaves a tenth of it.
    model = OperationDatabase([rows], Roofline(find_gpu(V100)), lambda _: 1.0)
    assert model.estimate(rows.kernels[0]).duration == round(1e11 * rows.seconds[0])


@pytest.mark.parametrize("kind", ["li", "simai", "database"])
def test_every_model_has_numbers_for_its_shares(kind):
    rows = [batch(V100), batch(A100)]
    gpu = find_gpu(V100)
    model = {
        "li": lambda: Li(gpu, regress(rows)),
        "simai": lambda: Scaling(gpu, Roofline(find_gpu(A100))),
        "database": lambda: OperationDatabase(rows, Roofline(gpu)),
    }[kind]()
    for kernel in (rows[0].kernels[50], product(300, 1024, 256), product(2**15, 100, 100)):
        found = model.estimate(kernel)
        assert found.duration > 0
        assert 0 <= found.error < 1
        assert set(found.shares) <= set(model.numbers)
