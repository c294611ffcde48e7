"""Activations offloaded to the host: their copies beside the passes, and the memory they free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import ALONE, plan_of
from sharing import layer, stepped, told
from toys import Free, Times, layout

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.experiment import read
from mpisim.kernels import Estimate
from mpisim.kernels.operations import Copy, Elementwise, Kernel
from mpisim.memory.activations import chunk_memory
from mpisim.workloads import training_step
from mpisim.workloads.layout import ModelChunk
from mpisim.workloads.offloaded_activations import windows
from mpisim.workloads.operators import Compute, Layer, LayerStack, Operator


def copying(name: str, forward: int, backward: int, saved: int) -> Layer:
    """A layer of one kernel in each pass, in ns of `Times`, and what it keeps."""
    operator = Operator(
        name,
        forward=(Compute(f"{name} forward", Elementwise(forward)),),
        backward=(Compute(f"{name} backward", Elementwise(backward)),),
        saved=saved,
    )
    return Layer(name, (operator,), "block", output=16, checkpoint=8)


class CopyTimes(Times):
    """Copies take as many picoseconds as they have bytes, too."""

    def estimate(self, kernel: Kernel) -> Estimate:
        """Return bytes as picoseconds."""
        return (
            Estimate(kernel.traffic, {}) if isinstance(kernel, Copy) else super().estimate(kernel)
        )


FOUR = tuple(copying(name, 10, 20, 100) for name in "abcd")


def test_windows_are_those_of_transformer_engine() -> None:
    # layer_window_map of AsyncDoubleBufferGroupOffloadHandler: N // K layers each, the first N % K
    # longer by one.
    assert windows(80, 20) == tuple(range(3, 80, 4))
    assert windows(80, 30) == (*range(2, 62, 3), *range(61, 80, 2))
    assert windows(4, 3) == (1, 2, 3)


@given(st.integers(2, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_a_window_ends_after_its_layer(sizes: tuple[int, int]) -> None:
    ends = windows(*sizes)
    assert len(ends) == sizes[1]
    assert all(i < end for i, end in enumerate(ends))
    assert ends[-1] == sizes[0] - 1


def test_copies_go_beside_the_passes() -> None:
    found = told(stepped(FOUR, 1, offload_activations=2, global_batch=1, dp_style="ddp").program)
    assert [row for row in found if "host" in row or "backward" in row or "forward" in row] == [
        "a forward",
        "activations to host",
        "b forward",
        "activations to host",
        "c forward",
        "d forward",
        "activations from host",
        "d backward",
        "c backward",
        "activations from host",
        "b backward",
        "a backward",
    ]


@pytest.mark.parametrize("copy", [5, 10, 25, 100])
def test_the_time_of_windows(copy: int) -> None:
    """Layers of 10 forward and 20 back, windows of two layers: in closed form."""
    layers = tuple(copying(name, 10, 20, copy) for name in "abcd")
    keys = {"offload_activations": 2, "global_batch": 1, "dp_style": "ddp", "clip": False}
    done = training_step(layout(LayerStack(layers, 6, 1), 1, **keys), CopyTimes())
    # Forward: the first copy runs from 10, and is awaited at 20; the second from there, at 40.
    first = max(20, 10 + copy)
    forward = first + max(20, copy)
    # Backward: the second layer's is asked for at once, and awaited two layers later, when the
    # first's is asked for, which is awaited before the first layer.
    asked = forward + max(40, copy)
    backward = asked + max(20, copy) + 20
    table = done.program.table_of(0)
    names = [done.program.names[name] for name in table.name]
    run = engine.simulate(done.program, network=Free())
    assert int(run.rows(0).end[names.index("a backward")]) == backward


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_memory_follows_the_copies(sizes: tuple[int, int]) -> None:
    """Beside what one layer works with, all is counted that is on the GPU at each layer."""
    n, offloaded = sizes
    ends = dict(enumerate(windows(n, offloaded)))
    chunk = ModelChunk(tuple(copying("a", 10, 20, 100) for _ in range(n)), tuple(range(n)))
    found = chunk_memory(chunk, plan_of(global_batch=1, offload_activations=offloaded), ALONE)
    plain = chunk_memory(chunk, plan_of(global_batch=1), ALONE)
    assert (plain.kept, found.kept, found.offloaded) == (
        100 * n,
        100 * (n - offloaded),
        100 * offloaded,
    )
    # Of layers up to the one at work, those that stay, and those of windows that have not ended.
    before = [sum(100 for i in range(g) if ends.get(i, n) >= g) for g in range(n)]
    own = plain.forward_by_layer[0]
    assert found.forward_by_layer == tuple(each + own for each in before)
    held = [sum(100 for i in range(g + 1) if ends.get(i, n) >= g) for g in range(n)]
    own = plain.backward_by_layer[0]
    assert found.backward_by_layer == tuple(each + own - found.kept for each in reversed(held))


# --- inputs of layers that are computed again -----------------------------------------------------

CHECKPOINTS = {
    "recompute": "full",
    "offload_activations": 4,
    "global_batch": 1,
    "dp_style": "ddp",
    "clip": False,
}


def inputs(copy: int) -> tuple[Layer, ...]:
    """Four blocks of 10 ns forward and 20 back, with inputs of `copy` bytes, between two ends."""
    ends = (replace(copying(name, 10, 20, 100), role="embedding") for name in "eh")
    first, last = ends
    blocks = (replace(copying(name, 10, 20, 100), checkpoint=copy) for name in "abcd")
    return (first, *blocks, last)


def ends_of(copy: int, **keys: Any) -> int:
    done = training_step(
        layout(LayerStack(inputs(copy), 6, 1), 1, **CHECKPOINTS, **keys), CopyTimes()
    )
    table = done.program.table_of(0)
    names = [done.program.names[name] for name in table.name]
    run = engine.simulate(done.program, network=Free())
    return int(run.rows(0).end[names.index("e backward")])


PLAIN = 6 * 10 + 6 * 20 + 4 * 10
"""Of a step without offload: forward, backward, and four forwards again."""


@pytest.mark.parametrize("copy", [2, 5, 30])
def test_save_on_cpu_stands_between_kernels(copy: int) -> None:
    """Every input goes and comes on the stream of the kernels, which do nothing meanwhile."""
    assert ends_of(copy) == PLAIN + 2 * 4 * copy


@pytest.mark.parametrize("copy", [2, 5, 10])
def test_copies_of_torchtune_hide_behind_kernels(copy: int) -> None:
    """A layer of 10 forward, and of 30 back, hides a copy that is not longer."""
    assert ends_of(copy, offload_overlap=True) == PLAIN


@pytest.mark.parametrize("copy", [35, 60])
def test_long_copies_of_torchtune_set_the_pace(copy: int) -> None:
    """In closed form: a stream of copies each way; the head hides a part of the first to come."""
    # Forward: the first input is there at 10; the head ends once all four copies have.
    forward = max(10 + 4 * copy, 50)
    # Backward: the last kernel of the forward, the head's, runs before the copies are awaited.
    begin = max(forward, 60)
    # The head's backward takes 20, beside the last input; each layer 30, beside the next.
    at = begin + 20
    came = begin + copy
    for _ in range(4):
        start = max(at, came)
        at, came = start + 30, start + copy
    assert ends_of(copy, offload_overlap=True) == at + 20


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("offloaded", [1, 3, 6])
def test_memory_without_inputs(offloaded: int, beside: bool) -> None:
    chunk = ModelChunk(tuple(copying("a", 10, 20, 100) for _ in range(6)), tuple(range(6)))
    keys = {"recompute": "full", "offload_activations": offloaded, "dp_style": "ddp"}
    plan = plan_of(global_batch=1, offload_overlap=beside, **keys)
    found = chunk_memory(chunk, plan, ALONE)
    plain = chunk_memory(chunk, plan_of(global_batch=1, recompute="full"), ALONE)
    assert plain.kept == 6 * 8  # each input has 8 bytes
    assert (found.kept, found.offloaded) == (8 * (6 - offloaded), 8 * offloaded)
    # The input of the layer at work is on the GPU, and beside kernels that of the one before it.
    for at, (here, there) in enumerate(
        zip(reversed(found.backward_by_layer), reversed(plain.backward_by_layer), strict=True)
    ):
        away = sum(i < at - beside for i in range(offloaded))
        assert found.kept + here == plain.kept + there - 8 * away


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pp": 2}, "pp = 2.*pp = 1 alone"),
        ({"recompute": "full"}, "set recompute = 'none'"),
        ({"cuda_graphs": True}, "framework.cuda_graphs = true"),
        ({"overlap_ep": True}, "overlap.ep = true"),
        ({"dp_style": "deepspeed", "zero": 2}, "cpu_checkpointing is not modelled"),
        ({"dp_style": "fsdp", "zero": 3}, "PyTorch offloads the inputs.*recompute = 'full'"),
        ({"dp_style": "ddp", "recompute": "selective"}, "allowed: 'none', 'full'"),
        (
            {"dp_style": "ddp", "recompute": "full", "recompute_layers": 2},
            "recompute.layers is 2.*allowed: 0 to 2",
        ),
        ({"offload_overlap": True}, "offload.overlap is true.*leave it out"),
    ],
)
def test_what_does_not_go_with_offloaded_activations(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_of(**{"global_batch": 8, "offload_activations": 3, **keys})


def test_one_layer_stays_on_the_gpu() -> None:
    with pytest.raises(InputError, match=r"2 layers.*allowed: 0 to 1"):
        stepped((layer("a", 40), layer("b", 40)), 1, offload_activations=2)


def test_overlap_of_nothing() -> None:
    with pytest.raises(InputError, match="optimizer is 0"):
        plan_of(global_batch=8, offload_overlap=True)


@pytest.mark.parametrize(
    "text",
    [
        'zero = 3\n[framework]\nname = "megatron-bridge"\n',
        'recompute = "full"\n[framework]\nname = "ddp"\n',
    ],
    ids=["Megatron-FSDP", "DDP"],
)
def test_what_offloads_is_the_frameworks(text: str) -> None:
    tables = '[model]\npreset = "llama3-8b"\n[cluster]\npreset = "dgx-h100"\n[plan]\n'
    tables += "global_batch = 8\noffload.activations = 4\n"
    plan = read(tables + text, "mine.toml").plan
    assert plan.offload.activations == 4
