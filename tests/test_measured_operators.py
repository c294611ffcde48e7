"""Measured times of operators: exact, interpolated, and tables that are not as they must be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.kernels import find_gpu
from mpisim.operators import OperatorCall, TensorSpec, kernels_of
from mpisim.operators.measured import MeasuredOperators
from mpisim.operators.pricing import OperatorPricing

SIZES = st.integers(1, 300)


def mm(m: int, k: int, n: int, dtype: str = "bfloat16") -> OperatorCall:
    return OperatorCall("aten::mm", (TensorSpec(dtype, (m, k)), TensorSpec(dtype, (k, n))))


@given(SIZES, SIZES, SIZES, st.floats(0.2, 2.0), st.integers(2, 4), st.data())
def test_a_power_of_one_size_is_met_between_two(
    m: int, k: int, n: int, power: float, ratio: int, data: st.DataObject
) -> None:
    def time(rows: int) -> float:
        return 1e-6 * rows**power

    database = MeasuredOperators([(mm(x, k, n), time(x)) for x in (m, ratio * m)])
    between = data.draw(st.integers(m, ratio * m))
    found = database.find(mm(between, k, n))
    assert found is not None
    assert found.seconds == pytest.approx(time(between))
    assert found.how == ("exact" if between in (m, ratio * m) else "interpolated")
    assert (found.error < 0.05) == (found.how == "exact")
    assert database.find(mm(between, k, n, "float16")) is None
    assert database.find(mm(between, k, n + 1)) is None
    for outside in (m - 1, ratio * m + 1):
        assert database.find(mm(outside, k, n)) is None


@given(SIZES, SIZES)
def test_a_size_may_occur_in_several_places(rows: int, width: int) -> None:
    def call(rows: int) -> OperatorCall:
        x, weight = TensorSpec("float32", (rows, width)), TensorSpec("float32", (width,))
        flat = TensorSpec("float32", (rows * width,))  # a product of it with another
        return OperatorCall("aten::native_layer_norm_backward", ((x, flat), x, weight, 1e-5))

    assume(rows != width)
    database = MeasuredOperators([(call(rows), 1.0), (call(4 * rows), 4.0)])
    found = database.find(call(2 * rows))
    assert found is not None
    assert found.seconds == pytest.approx(2.0)
    assert (
        MeasuredOperators([(call(rows), 1.0), (call(5 * rows), 5.0)]).find(call(2 * rows)) is None
    )


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(
        "time_us,operator,shapes,types,who\n"
        "10,aten::mm,64x32 32x16,bfloat16 c10::BFloat16,me\n"
        "30,aten::mm,64x32 32x16,bfloat16 bfloat16,me\n"
        "20,aten::mm,64x32 32x16,bfloat16 bfloat16,me\n"
        "7,aten::add_,8 (),float32 float64,\n"
        "9,my::operator,3x0,int64,\n"
    )
    database = MeasuredOperators.read(path)
    assert len(database) == 3
    found = database.find(mm(64, 32, 16))
    assert found is not None
    assert found.seconds == pytest.approx(20e-6)
    added = OperatorCall("aten::add_", (TensorSpec("float32", (8,)), TensorSpec("float64", ()), 1))
    assert database.find(added) is not None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("operator,shapes,types\na,1,int64", "no column 'time_us'"),
        ("operator,shape,types,time_us\na,1,int64,1", "no column 'shapes' (did you mean 'shape'?)"),
        ("{}aten::addm,8x8,float32,1", "line 2: column 'operator' is 'aten::addm'"),
        ("{}aten::cudnn_convolutio,8x8,float32,1", "(did you mean 'aten::cudnn_convolution'?)"),
        ("{}mm,8x8,float32,1", "an operator as PyTorch's dispatcher names it"),
        ("{}aten::mm,8x8 8x8,float32,1", "there are 2 shapes and 1 types"),
        ("{}aten::mm,8x-8,float32,1", "sizes as 8x16 4 ()"),
        ("{}aten::mm,8*8,float32,1", "sizes as 8x16 4 ()"),
        ("{}aten::mm,8x8,float23,1", "no 'float23' (did you mean"),
        ("{}aten::mm,8x8,float32,0", "column 'time_us' is '0'; it must be more than 0"),
        ("{}aten::mm,8x8,float32,fast", "column 'time_us' is 'fast'; it must be a number"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(rows: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(rows.format("operator,shapes,types,time_us\n"))
    with pytest.raises(InputError) as caught:
        MeasuredOperators.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_kernels_of_a_measured_call_take_its_time_together() -> None:
    gradient = TensorSpec("float32", (4096, 512))
    call = OperatorCall("aten::_softmax_backward_data", (gradient, gradient, -1, "float32"))
    launched = kernels_of(call)
    assert len(launched.kernels) == 2
    gpu = find_gpu("a100-sxm")
    modelled = OperatorPricing(gpu).price(launched, call)
    assert modelled.how == "model"
    pricing = OperatorPricing(gpu, MeasuredOperators([(call, 123e-6)]))
    priced = pricing.price(launched, call)
    assert priced.how == "exact"
    assert priced.duration == 123_000_000
    ratios = [a.duration / b.duration for a, b in zip(priced.estimates, modelled.estimates)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)
    # One that the table does not know is known once it is measured.
    unknown = OperatorCall("my::operator", (gradient,))
    assert not pricing.price(kernels_of(unknown), unknown).known
    mine = OperatorPricing(gpu, MeasuredOperators([(unknown, 5e-6)]))
    assert mine.price(kernels_of(unknown), unknown).duration == 5_000_000
    assert mine.price(kernels_of(unknown), unknown).known
