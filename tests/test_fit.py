"""Fits: what is put in comes out again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toy_formula
from toy_formula import TRUE, batch

from mpisim.kernels.fitting import FormulaFit, fit, log_errors

pytestmark = pytest.mark.usefixtures("toy")


def test_recovers_constants():
    found = fit(toy_formula.FORMULA, [batch("v100-pcie-32gb"), batch("a100-pcie-40gb")])
    assert found.constants == pytest.approx(TRUE, rel=0.02)
    assert found.launch == {}


def test_recovers_launch_beside_a_floor():
    # Only the sum of floor and launch shows in times; the pull towards the start divides it.
    rows = batch("v100-pcie-32gb", launch=30e-6)
    found = fit(toy_formula.FORMULA, [rows])
    fixed = found.launch["v100-pcie-32gb"] + found.constants["floor"]
    assert fixed == pytest.approx(34e-6, rel=0.02)
    assert found.constants["efficiency"] == pytest.approx(0.7, rel=0.02)
    (errors,) = log_errors(toy_formula.FORMULA, [rows], found)
    assert np.abs(errors).max() < 0.02


def test_recovers_growth_of_the_launch():
    rows = batch("v100-pcie-32gb", launch=30e-6, growth=400e-6)
    found = fit(toy_formula.FORMULA, [rows])
    assert found.growth["v100-pcie-32gb"] == pytest.approx(400e-6, rel=0.02)
    assert found.constants["efficiency"] == pytest.approx(0.7, rel=0.02)
    some = rows.take(np.arange(0, len(rows), 7))
    (errors,) = log_errors(toy_formula.FORMULA, [some], found)
    assert np.abs(errors).max() < 0.02


def test_outliers_pull_little():
    rows = batch("v100-pcie-32gb")
    seconds = rows.seconds.copy()
    seconds[::10] *= 5
    found = fit(toy_formula.FORMULA, [replace(rows, seconds=seconds)])
    assert found.constants["efficiency"] == pytest.approx(0.7, rel=0.05)


def test_every_gpu_counts_the_same():
    many = batch("v100-pcie-32gb")
    few = batch("a100-pcie-40gb", constants=TRUE | {"efficiency": 0.9}).take(np.arange(0, 135, 9))
    one = fit(toy_formula.FORMULA, [many, few]).constants["efficiency"]
    same = fit(toy_formula.FORMULA, [many, few, few, few]).constants["efficiency"]
    assert one == pytest.approx(same, rel=0.02)


def test_few_rows_stay_near_the_wider_fit():
    towards = {"efficiency": 0.5, "memory": 0.5, "floor": 5e-6}
    assert fit(toy_formula.FORMULA, [], towards) == FormulaFit(towards, {}, 0)
    largest = batch("v100-pcie-32gb").take(np.array([-1]))
    found = fit(toy_formula.FORMULA, [largest], towards).constants
    # One large product says nothing of the floor.
    assert found["floor"] == pytest.approx(5e-6, rel=0.01)


def test_is_deterministic():
    rows = [batch("v100-pcie-32gb", noise=0.1)]
    assert fit(toy_formula.FORMULA, rows) == fit(toy_formula.FORMULA, rows)
