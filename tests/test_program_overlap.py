"""Programs that say what their kernels are: communications slow them, as in generated programs."""

from __future__ import annotations

import json

import pytest

from mpisim.base.errors import InputError, UsageError
from mpisim.base.kinds import Operation
from mpisim.experiment import ProgramExperiment
from mpisim.kernels import find_gpu, operations
from mpisim.kernels.analytical import analytical_model
from mpisim.kernels.counted import COUNTED, PricedShares, kept_kernels
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.program import Program, ProgramBuilder
from mpisim.simulate import simulate

KERNELS = {
    ("product", 1): operations.Gemm(m=4096, n=4096, k=8192),
    ("addition", 2): operations.Elementwise(bytes=1 << 30),
    ("attention", 3): operations.Attention(
        batch=1,
        heads=8,
        kv_heads=2,
        queries=512,
        keys=512,
        head_size=64,
        value_size=64,
        variant="flash_2",
    ),
    ("copy", 4): operations.Copy(bytes=4096),
}


def program(*, says: bool) -> Program:
    """Eight ranks that reduce gradients beside a product."""
    kernel = KERNELS["product", 1]
    duration = analytical_model(find_gpu("h100-sxm")).estimate(kernel).duration
    builder = ProgramBuilder()
    table = builder.table("all")
    for _ in range(4):
        table.kernel("product", 0, duration)
        table.collective(Operation.ALL_REDUCE, 0, 1, 1 << 28)
    number = builder.add_table(table.build())
    everyone = builder.communicator(range(8))
    for _ in range(8):
        builder.add_rank(number, [everyone])
    kept = kept_kernels({("product", duration): kernel}) if says else []
    text = json.dumps({"shares": [], "kernels": kept, "gpu": "h100-sxm"})
    return builder.build(attributes={COUNTED: text})


def chosen(**tables: object) -> ProgramExperiment:
    return ProgramExperiment("", {"cluster": {"preset": "dgx-h100"}, **tables}, "", source="here")


def test_kernels_are_kept_as_they_are() -> None:
    text = json.dumps({"shares": [], "kernels": kept_kernels(KERNELS), "gpu": "h100-sxm"})
    assert PricedShares.read(text, "here").kernels == KERNELS
    with pytest.raises(InputError, match="here: attribute 'counted' is damaged"):
        PricedShares.read(text.replace("Gemm", "Gem"), "here")


def test_communications_slow_the_kernels_of_a_program_that_names_them() -> None:
    steps = {}
    for says in (False, True):
        found = simulate(prepare_captured(chosen(), program(says=says)))
        steps[says] = found.step_time
        missing = " ".join(found.attributes["not_modelled"])
        assert ("slowdown of kernels" in missing) is not says
        assert ("overlap" in found.attributes) is says
    off = prepare_captured(chosen(overlap={"model": "off"}), program(says=True))
    assert simulate(off).step_time == steps[False] < steps[True]
    with pytest.raises(UsageError, match=r"overlap\.model' has no effect"):
        prepare_captured(chosen(overlap={"model": "coupled"}), program(says=False))
    alone = ProgramExperiment("", {"overlap": {"model": "coupled"}}, "", source="here")
    with pytest.raises(UsageError, match=r"here: overlap\.model needs a network: --cluster NAME"):
        prepare_captured(alone, program(says=True))
