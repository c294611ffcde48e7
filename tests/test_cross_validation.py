"""Errors of rows that a fit did not see: shapes, runs, chips; and calibrations of several GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import toy_formula
from toy_formula import TRUE, batch

from mpisim.kernels.analytical import KernelCalibration
from mpisim.kernels.fitting import (
    FormulaFit,
    calibrate,
    leave_each_chip_out,
    with_own_launch,
    write,
)
from mpisim.kernels.fitting.cross_validation import (
    best_chip_weight,
    chip_count,
    cross_validate,
    leave_out_chips,
    shrink,
)

pytestmark = pytest.mark.usefixtures("toy")


def test_shapes_left_out_see_the_noise():
    rows = batch("v100-pcie-32gb", noise=0.05)
    held_out, (errors,) = cross_validate(toy_formula.FORMULA, [rows])
    assert held_out == "shapes"
    assert len(errors) == len(rows)
    assert errors.std() == pytest.approx(0.05, rel=0.2)


def test_runs_left_out_see_what_is_common_to_a_run():
    # One run on a board 20 % slower: each run is predicted by the other, log(0.7 / 0.56) off where
    # arithmetic makes the time.
    fast = batch("v100-pcie-32gb", run="morning")
    slow = batch("v100-pcie-32gb", run="noon", constants=TRUE | {"efficiency": 0.56})
    held_out, (first, second) = cross_validate(toy_formula.FORMULA, [fast, slow])
    assert held_out == "runs"
    assert first.max() == pytest.approx(np.log(0.7 / 0.56), rel=0.1)
    assert second.min() == pytest.approx(-np.log(0.7 / 0.56), rel=0.1)
    # The shapes of one run see none of it.
    assert np.abs(cross_validate(toy_formula.FORMULA, [fast])[1][0]).max() < 0.01


def test_a_run_of_most_rows_is_divided_by_shape():
    rows = batch("v100-pcie-32gb", run="long")
    few = batch("v100-pcie-32gb", run="short").take(np.arange(0, 135, 9))
    held_out, (errors, _) = cross_validate(toy_formula.FORMULA, [rows, few])
    assert held_out == "runs"
    # By the 15 rows alone the constants would not be known so well.
    assert np.abs(errors).max() < 0.01


def test_boards_of_one_chip_are_left_out_together():
    rows = [batch(gpu) for gpu in ("a100-pcie-40gb", "a100-sxm", "v100-pcie-32gb")]
    assert chip_count(rows) == 2
    ampere, volta = leave_out_chips(toy_formula.FORMULA, rows)
    assert [each.gpu for each in ampere.rows] == ["a100-pcie-40gb", "a100-sxm"]
    assert (ampere.architecture, ampere.chips) == ("volta", 1)
    assert (volta.architecture, volta.chips) == ("ampere", 1)
    assert leave_out_chips(toy_formula.FORMULA, rows[:2]) == []


def test_few_chips_are_shrunk_towards_all():
    kin = FormulaFit({"efficiency": 0.9}, {"a100-sxm": 30e-6}, 10)
    wide = FormulaFit({"efficiency": 0.6}, {"p4": 10e-6, "t4": 10e-6}, 90)
    # One chip at a third: 0.6 + (0.9 - 0.6) / 3; two of them count 2/3 against 2/3: a half.
    one, two = (shrink(kin, wide, number, 1 / 3) for number in (1, 2))
    assert one.constants["efficiency"] == pytest.approx(0.7)
    assert list(one.launch.values()) == pytest.approx([10e-6 + 20e-6 / 3])
    assert two.constants["efficiency"] == pytest.approx(0.75)
    assert shrink(kin, wide, 1, 1.0).constants == kin.constants
    assert shrink(kin, wide, 3, 0.0).constants == wide.constants


def test_what_kin_count_is_found_by_leaving_chips_out():
    slow = TRUE | {"efficiency": 0.35}
    alike = [batch("p100-pcie", constants=slow), batch("p4", constants=slow)]
    others = [batch("v100-pcie-32gb"), batch("a100-pcie-40gb")]
    # Kin tell all; where all GPUs are alike but for one, kin add nothing.
    assert (
        best_chip_weight(toy_formula.FORMULA, leave_out_chips(toy_formula.FORMULA, alike + others))
        > 0.9
    )
    odd = [batch("p100-pcie", constants=slow), batch("p4"), *others, batch("t4")]
    assert best_chip_weight(toy_formula.FORMULA, leave_out_chips(toy_formula.FORMULA, odd)) < 0.9
    assert best_chip_weight(toy_formula.FORMULA, []) == 0.5


def test_calibration_of_several_gpus():
    slow = TRUE | {"efficiency": 0.5}
    tables = list(
        calibrate(
            [batch("v100-pcie-32gb"), batch("a100-pcie-40gb"), batch("p100-pcie", constants=slow)]
        )
    )
    names = [owner for (_, owner, _), _ in tables]
    assert names == [
        "any",
        "ampere",
        "a100-pcie-40gb",
        "pascal",
        "p100-pcie",
        "volta",
        "v100-pcie-32gb",
    ]
    found = dict(zip(names, (table for _, table in tables)))
    assert found["p100-pcie"].constants["efficiency"] == pytest.approx(0.5, rel=0.03)
    assert found["v100-pcie-32gb"].constants["efficiency"] == pytest.approx(0.7, rel=0.03)
    # A GPU's own rows foretell its other shapes; other GPUs' rows do not foretell the slow one.
    assert found["p100-pcie"].held_out == "shapes"
    assert found["any"].held_out == found["volta"].held_out == "GPUs"
    assert max(each.p90 for each in found["p100-pcie"].errors) < 0.05
    assert max(each.p90 for each in found["any"].errors) > 0.25
    # What is written is read again.
    read = KernelCalibration.parse(write(tables), "written")
    assert read.tables == dict(tables)


def test_each_chip_is_predicted_from_the_others_alone():
    slow = TRUE | {"efficiency": 0.5}
    boards = ["a100-pcie-40gb", "a100-sxm", "v100-pcie-32gb", "p100-pcie"]
    rows = [batch(gpu, constants=slow if gpu == "p100-pcie" else TRUE) for gpu in boards]
    found = {chip.name: chip for chip in leave_each_chip_out(rows)}
    assert {name: chip.gpus for name, chip in found.items()} == {
        "a100-pcie-40gb": ("a100-pcie-40gb", "a100-sxm"),
        "p100-pcie": ("p100-pcie",),
        "v100-pcie-32gb": ("v100-pcie-32gb",),
    }
    for chip in found.values():
        for table in chip.calibration.tables.values():
            assert not set(table.gpus) & set(chip.gpus)
            assert table.held_out == "GPUs"
    # The slow one is predicted as fast as the others are, whatever its own rows say.
    tables = found["p100-pcie"].calibration.tables
    assert tables["gemm", "any", "fp32"].constants["efficiency"] == pytest.approx(0.7, rel=0.03)
    # What is stated of it is how far off the others were, which came out right.
    assert max(each.p90 for each in tables["gemm", "any", "fp32"].errors) < 0.3
    # Of the others one was off, and the worst counts.
    tables = found["v100-pcie-32gb"].calibration.tables
    assert max(each.p90 for each in tables["gemm", "any", "fp32"].errors) > 0.25


def test_a_family_of_one_chip_leaves_no_table():
    (only,) = leave_each_chip_out([batch("a100-pcie-40gb"), batch("a100-sxm")])
    assert only.calibration.tables == {}


def test_the_launch_of_the_host_is_read_off_its_own_rows():
    rows = batch("v100-pcie-32gb", launch=40e-6)
    alone = batch("v100-pcie-32gb").seconds
    (found,) = with_own_launch([rows], [alone])
    assert found == pytest.approx(rows.seconds, rel=1e-3)
    # A kernel that is predicted twice as long is not made right by it.
    (found,) = with_own_launch([rows], [2 * alone])
    assert found.max() / rows.seconds.max() > 1.8
    (unlaunched,) = with_own_launch([batch("p4")], [alone])
    assert (unlaunched == alone).all()
