"""The cache: numbers of slots in copies, keys by value, tables as if all were written anew."""

import numpy as np
import pytest
from plans import GPT_STEP, plan_text

from mpisim.experiment import read
from mpisim.kernels import Roofline, find_gpu
from mpisim.kernels.operations import Gemm
from mpisim.program import COLUMNS, Names, Operation
from mpisim.workloads import Workload, blocks, lay_out, training_step
from mpisim.workloads.block_cache import BlockCache, Slots
from mpisim.workloads.operators import Communicate, Compute, Operator
from mpisim.workloads.pass_state import PassState
from mpisim.workloads.pricing import Pricing

PLANS = {
    "tensor parallel": 'pp = 4\ntp = 2\nglobal_batch = 8\nschedule = "1f1b"',
    "sequence parallel": "pp = 2\ntp = 2\nsp = true\nzero = 1\nglobal_batch = 8",
    "interleaved": 'pp = 4\nvpp = 2\nglobal_batch = 8\nschedule = "interleaved"\nzero = 1',
    "recomputed": 'pp = 4\nglobal_batch = 8\nrecompute = "full"\nrecompute_layers = 1',
    "selective": 'tp = 4\nglobal_batch = 8\nrecompute = "selective"',
    "weights put off": 'pp = 4\nglobal_batch = 8\nschedule = "zb-h1"',
    "context parallel": "cp = 4\nglobal_batch = 8",
    "sharded": 'global_batch = 8\nzero = 3\ndp_style = "fsdp"',
    "sharded by DeepSpeed": 'global_batch = 8\nzero = 3\ndp_style = "deepspeed"',
    "overlapped": "tp = 4\nsp = true\noverlap_tp = true\nglobal_batch = 8",
    "blocking": "tp = 2\nlaunch_blocking = true\nglobal_batch = 8",
}
EXPERTS = "experts = 8\ntopk = 2"


def step(model: str, plan: str) -> Workload:
    """The step of a plan."""
    layout = lay_out(read(GPT_STEP.format(model=model, plan=plan_text(plan)), "test.toml"), 8)
    return training_step(layout, Roofline(find_gpu("h100-sxm")))


CASES = [("", plan) for plan in PLANS.values()] + [
    (EXPERTS, "ep = 8\nglobal_batch = 8"),
    (EXPERTS, "ep = 2\ntp = 2\npp = 2\nglobal_batch = 8"),
]


@pytest.mark.parametrize(("model", "plan"), CASES, ids=[*PLANS, "experts", "experts, stages"])
def test_steps_are_as_if_every_operator_were_written_anew(
    model: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = step(model, plan)
    monkeypatch.setattr(PassState, "idle", False)
    anew = step(model, plan)
    assert copied.program.names == anew.program.names
    assert copied.executed_flops == anew.executed_flops
    for one, other in zip(copied.program.tables, anew.program.tables, strict=True):
        assert one is not None
        assert other is not None
        for column in (*COLUMNS, "wait_index", "wait_row"):
            assert np.array_equal(getattr(one, column), getattr(other, column)), column
    # What durations rest on, in the order in which it was first asked for.
    for a, b in zip(copied.pricings, anew.pricings, strict=True):
        assert list(a.shares.items()) == list(b.shares.items())
        assert list(a.kernels.items()) == list(b.kernels.items())


def test_an_operator_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 layers alike, and 2 passes that differ in what data parallelism adds."""
    written = []
    write = blocks.BlockBuilder._rows_of_operators

    def counted(builder, some, cache):  # type: ignore[no-untyped-def]
        written.append(some)
        return write(builder, some, cache)

    monkeypatch.setattr(blocks.BlockBuilder, "_rows_of_operators", counted)
    step("", "global_batch = 16\nmicro_batch = 1\nzero = 1\ntp = 2")
    assert len(written) == len(set(written))
    assert any(len(some) > 1 for some in written)


def matrix(name: str = "matrix") -> Operator:
    """A product whose result two groups reduce, made anew each time."""
    reductions = [Communicate(f"{g} sum", Operation.ALL_REDUCE, g, 64) for g in ("tp", "cp")]
    return Operator(name, (Compute(name, Gemm(4, 8, 16)), *reductions))


def test_operators_are_values() -> None:
    one, same, other = matrix(), matrix(), matrix("other")
    assert one is not same
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert len({one, same, other}) == 2


def test_equal_operators_are_written_once_and_renumbered() -> None:
    """A second table that used cp first: the copy has its numbers, as if it were written anew."""
    sizes = {"tp": 2, "cp": 2}
    names, pricing, cache = Names(), Pricing(Roofline(find_gpu("h100-sxm"))), BlockCache()
    cp = Communicate("gather", Operation.ALL_GATHER, "cp", 8)

    def columns(operator: Operator, cache: BlockCache | None, *before: Communicate) -> list[int]:
        builder = blocks.BlockBuilder(names, pricing, Slots(sizes), cache)
        builder.write(before)
        list(builder.write_operator(operator, "forward"))
        values = builder.done().values
        return values[:, [list(COLUMNS).index(each) for each in ("slot", "stream")]].tolist()

    assert columns(matrix(), cache) == [[-1, 0], [0, 1], [1, 2]]
    copied = columns(matrix(), cache, cp)
    assert copied == columns(matrix(), None, cp) == [[0, 1], [-1, 0], [1, 2], [0, 1]]
    assert len(cache._entries) == 1
