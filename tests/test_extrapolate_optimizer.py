"""The optimizer of a traced step on a rank's share of the parameters."""

from __future__ import annotations

from mpisim.extrapolate.optimizer_share import OptimizerShare, list_call
from mpisim.extrapolate.step import TracedKernel, TracedWait
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import analytical_model
from mpisim.kernels.recorded import Recorded, RecordedKernels
from mpisim.operators import OperatorCall, TensorSpec, kernels_of
from mpisim.workloads.operators import Await, Compute

MODEL = analytical_model(find_gpu("h100-sxm"))

WEIGHTS = (TensorSpec("float32", (128256, 2048)), TensorSpec("float32", (2048,)))
"""An embedding of 262.7 million elements, 4,009 chunks of 65,536, and a norm."""


def added(weights: tuple[TensorSpec, ...] = WEIGHTS) -> OperatorCall:
    return OperatorCall("aten::_foreach_add_", (weights, weights, -0.1))


def traced(
    call: OperatorCall, *, times: tuple[int, ...] = (), number: int = 0
) -> list[TracedKernel]:
    """A call as it was captured, or with times as it was measured."""
    kernels = kernels_of(call).kernels
    return [
        TracedKernel(
            "add",
            call.name,
            number if times else number + i,
            times[i] if times else 0,
            kernels if times else (kernel,),
            host=1000 + i,
            priced=not times,
            lists=list_call(call),
        )
        for i, kernel in enumerate(kernels)
    ]


def on_share(tasks: list[TracedKernel], share: float) -> list[Recorded]:
    found = OptimizerShare(tuple(tasks))(share)
    kernels = [each.kernel for each in found if isinstance(each, Compute)]
    assert len(kernels) == len(found)
    return [each for each in kernels if isinstance(each, Recorded)]


def test_a_share_is_launched_as_the_operator_on_it() -> None:
    """Shards of 8 ranks, as FSDP keeps them, are what `torch.optim` goes through there."""
    shards = tuple(TensorSpec("float32", (each.elements // 8,)) for each in WEIGHTS)
    expected = kernels_of(added(shards)).kernels
    assert (len(kernels_of(added()).kernels), len(expected)) == (13, 2)
    found = on_share(traced(added()), 1 / 8)
    assert tuple(kernel for each in found for kernel in each.now) == expected


def test_equal_calls_that_follow_each_other_stay_two() -> None:
    call = added()
    found = on_share([*traced(call), *traced(call, number=13)], 1 / 8)
    assert len(found) == 4


def test_measured_times_are_those_of_the_whole_call() -> None:
    """13 kernels of unequal times become 2, which take the ratio of the models together."""
    times = tuple(90_000_000 + 1_000_000 * i for i in range(13))
    found = on_share(traced(added(), times=times), 1 / 8)
    model = RecordedKernels(MODEL, MODEL)
    total = sum(model.estimate(each).duration for each in found)
    before = sum(MODEL.estimate(each).duration for each in found[0].then)
    after = sum(MODEL.estimate(each).duration for each in found[0].now)
    assert len(found) == len(found[0].now) == 2
    assert abs(total - sum(times) * after / before) <= 4
    assert [each.host for each in found] == [1000, 1001]


def test_what_is_whole_or_no_list_stays_as_it_is() -> None:
    whole = on_share(traced(added()), 1.0)
    assert [each.now for each in whole] == [each.then for each in whole]
    product = OperatorCall("aten::mul_", WEIGHTS)
    assert list_call(product) is None
    assert list_call(OperatorCall("aten::sum", (WEIGHTS[0], (0, 1)))) is None
    other = traced(added())[:5]  # not as many kernels as the rule says
    assert len(on_share(other, 1 / 8)) == 5
    wait = TracedWait("item", 5, 6)
    assert OptimizerShare((wait,))(0.5) == (Await("item", host=5, tail=6),)
