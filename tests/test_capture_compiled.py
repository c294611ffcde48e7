"""``torch.compile`` without a GPU: kernels, bytes and memory of layers beside hand counts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from captures import SCRIPTS, alone, flops, needs_torch, script, sent

from mpisim.base.kinds import Phase
from mpisim.capture.rank_processes import RankProcesses
from mpisim.capture.recording import ItemKind, Recording
from mpisim.operators import FUSED, OperatorCall, TensorSpec, kernels_of

pytestmark = pytest.mark.timeout(600)

BF16, FP32 = 2, 4
TOKENS, HIDDEN, INNER, LAYERS = 4096, 1024, 2816, 2
"""Of tests/captured/compiled.py."""
ACTIVATION, WIDE = BF16 * TOKENS * HIDDEN, BF16 * TOKENS * INNER


def recorded(*words: str) -> Recording:
    """What the script does."""
    (part,) = alone(script(SCRIPTS / "compiled.py", *words))
    return part.recording


@pytest.fixture(scope="module")
def eager() -> Recording:
    return recorded()


@pytest.fixture(scope="module")
def compiled() -> Recording:
    return recorded("compile")


def moved(recording: Recording, phase: Phase, layer: int) -> list[int]:
    """Bytes of the kernels that Inductor has written."""
    calls = (
        recording.calls[item.number]
        for item in recording.items
        if (item.kind, item.phase, item.layer) == (ItemKind.CALL, phase, layer)
    )
    return [
        kernel.traffic
        for call in calls
        if call.name.startswith(FUSED)
        for kernel in kernels_of(call).kernels
    ]


def held_after_forward(recording: Recording) -> int:
    """Bytes that are allocated when the recorded backward pass begins."""
    begin = [item.phase for item in recording.items].index(Phase.BACKWARD)
    now: dict[int, int] = {}
    for each in recording.allocations:
        if each.item <= begin and not (each.item == begin and each.phase == Phase.BACKWARD):
            now[each.storage] = each.bytes
    return sum(now.values())


@needs_torch
def test_products_are_those_of_the_layers(eager: Recording, compiled: Recording) -> None:
    one = 2 * TOKENS * HIDDEN * INNER
    for found in (eager, compiled):
        assert flops(found, Phase.FORWARD) == {"gemm": 3 * LAYERS * one}
        # The gradient of the model's input is not asked for, but Inductor's graph of the norm's
        # weight needs that of its result.
        assert flops(found, Phase.BACKWARD) == {"gemm": 6 * LAYERS * one}


@needs_torch
def test_pointwise_chains_are_one_kernel_each(compiled: Recording) -> None:
    norm = 2 * ACTIVATION + BF16 * HIDDEN + FP32 * TOKENS
    for layer in range(LAYERS):
        first, gated = moved(compiled, Phase.FORWARD, layer)
        # Its statistics, one number a token, count twice: as a sum and as its root.
        assert first == norm + FP32 * TOKENS
        assert gated == 3 * WIDE  # gate and up are read, silu(gate) · up is written
        backward = moved(compiled, Phase.BACKWARD, layer)
        assert backward[0] == 5 * WIDE  # a gradient, gate and up are read, two gradients written


@needs_torch
def test_what_is_computed_again_is_not_kept(eager: Recording, compiled: Recording) -> None:
    # silu(gate), which the backward pass computes again from gate. The residual sum of the last
    # layer is the output in both.
    fewer = held_after_forward(eager) - held_after_forward(compiled)
    assert fewer == pytest.approx(LAYERS * WIDE, rel=0.01)


@needs_torch
def test_the_report_says_what_was_compiled(eager: Recording, compiled: Recording) -> None:
    assert not any("torch.compile" in line for line in eager.replaced)
    assert compiled.replaced == {
        "torch.compile: graphs fused by Inductor, kernels of Triton priced by their bytes": 2
    }


@needs_torch
def test_cuda_graphs_are_launched_once_each() -> None:
    found = recorded("graphs")
    launched = [item for item in found.items if item.kind is ItemKind.CALL]
    graphs = [a.name for a, b in pairwise(launched) if b.graph and not a.graph]
    assert len(graphs) == 2 * LAYERS  # forward and backward of each layer
    copies = [item.name for item in launched if "_foreach_copy_" in item.name]
    # Into memory of graphs: the first layer's input and the gradient of the last one's result.
    assert len(copies) == 2


OF_THE_USERS = """
class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)

model = Net(model)
"""
"""Dynamo compiles no frames of PyTorch's own modules."""


@needs_torch
def test_graphs_end_where_buckets_of_data_parallelism_do(tmp_path: Path) -> None:
    text = (SCRIPTS / "data_parallel.py").read_text()
    wrapped = "model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])\n"
    assert wrapped in text
    path = tmp_path / "train.py"
    compiled = f"{OF_THE_USERS}{wrapped}model = torch.compile(model)\n"
    path.write_text(text.replace(wrapped, compiled))
    (part,) = alone(script(path, world=4))
    (as_it_is,) = alone(script(SCRIPTS / "data_parallel.py", world=4))
    assert sent(part.recording) == sent(as_it_is.recording)
    assert flops(part.recording) == flops(as_it_is.recording)
    fused = "torch.compile: graphs fused by Inductor, kernels of Triton priced by their bytes"
    assert part.recording.replaced[fused] > 1


BROKEN = """
import torch
weight = torch.ones(256, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)

@torch.compile
def loss(x):
    y = torch.relu(x @ weight) * 2
    print("a graph ends here")
    return (torch.sigmoid(y) + 1).sum()

for _ in range(3):
    loss(torch.randn(256, 256, device="cuda")).backward()
    optimizer.step()
"""


@needs_torch
def test_graph_breaks_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BROKEN)
    (part,) = alone(script(path))
    said = "\n".join(part.recording.replaced)
    assert "torch.compile: graph break, as on a GPU" in said
    square = FP32 * 256 * 256
    forward, loss, rest = moved(part.recording, Phase.FORWARD, -1)
    assert forward == 2 * square + 256 * 256  # relu, its factor, and where it is 0 for its gradient
    assert square < loss + rest < square + 1000  # sigmoid, one and sum, the sum in two parts


DYNAMIC = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

class Drop(torch.nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.layer, self.keep = layer, keep

    def forward(self, x):
        return torch.relu(self.layer(x)) * x.new_empty(len(x), 1).bernoulli_(self.keep) / self.keep

model = torch.compile(Drop(0.9), dynamic=True)
for _ in range(3):
    model(torch.randn(32, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_dynamo_traces_anew_where_inductor_asks_for_it(tmp_path: Path) -> None:
    """Numbers of Python that the graph needs as such are found while it is compiled."""
    path = tmp_path / "train.py"
    path.write_text(DYNAMIC)
    (part,) = alone(script(path))
    assert not any("operator by operator" in line for line in part.recording.replaced)
    assert moved(part.recording, Phase.FORWARD, -1)


STEP = """
import torch
layer = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(layer.parameters(), foreach=True)

@torch.compile
def step():
    optimizer.step()

for _ in range(3):
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    step()
    optimizer.zero_grad()
"""


@needs_torch
def test_a_compiled_step_of_an_optimizer_is_fused(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STEP)
    (part,) = alone(script(path))
    assert not any("a graph runs operator by operator" in line for line in part.recording.replaced)
    # Parameters, both means and gradients are read, all but gradients written; and two counts.
    assert sum(moved(part.recording, Phase.OPTIMIZER, -1)) == 7 * FP32 * 65 * 32 + 2 * 2 * FP32


@needs_torch
def test_a_script_may_be_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with RankProcesses(show=False) as processes:  # which have the variable when PyTorch is loaded
        (part,) = alone(script(SCRIPTS / "compiled.py", "compile"), processes=processes)
    found = part.recording
    assert not moved(found, Phase.FORWARD, 0)
    assert list(found.replaced) == ["torch.compile: run eagerly, as TORCH_COMPILE_DISABLE says"]


def test_the_table_takes_inductors_bytes() -> None:
    tensors = (TensorSpec("bfloat16", (8, 8)),) * 2
    launched = kernels_of(OperatorCall(f"{FUSED}triton_poi_fused_mul", (1000, *tensors)))
    assert launched.known
    assert [kernel.traffic for kernel in launched.kernels] == [1000]


@pytest.mark.parametrize(("bias", "copied"), [((64,), 0), ((32, 64), 2 * 2 * 32 * 64)])
def test_a_matrix_is_copied_before_a_product_is_added(bias: tuple[int, ...], copied: int) -> None:
    shapes = (bias, (32, 16), (16, 64))
    call = OperatorCall("aten::addmm", tuple(TensorSpec("bfloat16", each) for each in shapes))
    *copies, product = kernels_of(call).kernels
    assert product.family == "gemm"
    assert sum(kernel.traffic for kernel in copies) == copied
