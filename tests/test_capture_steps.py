"""Which steps of captured scripts are recorded: warm-up steps, optimizers, CUDA graphs, streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import ONE_GPU, captured, flops, kernels_in, needs_torch, sent

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]


TWO_OPTIMIZERS = """
import torch
one, other = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64).cuda()
first = torch.optim.Adam(one.parameters(), fused=True)
second = torch.optim.Adam(other.parameters(), fused=True)
x = torch.randn(8, 64, device="cuda")
for _ in range(4):
    one(x).sum().backward()
    first.step()
    other(x).sum().backward()
    second.step()
"""


def test_a_step_in_which_an_optimizer_makes_its_states_warms_up(tmp_path: Path) -> None:
    found = captured(tmp_path, TWO_OPTIMIZERS)
    names = [found.calls[each.number].name for each in found.items if each.kind is ItemKind.CALL]
    assert names.count("aten::_fused_adam_") == 2
    assert "aten::zeros_like" not in names


GRAPHED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
sample = torch.randn(8, 64, device="cuda", requires_grad=True)
model = torch.cuda.make_graphed_callables(model, (sample,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator("cuda").manual_seed(1)
for _ in range(3):
    x = torch.randn(8, 64, device="cuda", generator=generator).requires_grad_()
    model(x).sum().backward()
    optimizer.step()
"""


def test_graphs_of_callables(tmp_path: Path) -> None:
    found = captured(tmp_path, GRAPHED)
    calls = [each for each in found.items if each.kind is ItemKind.CALL]
    names = [found.calls[each.number].name for each in calls]
    assert (names.count("aten::addmm"), names.count("aten::mm")) == (1, 2)
    # The first of a graph has its launch: both gradients and the bias's are one graph.
    later = sorted(found.calls[each.number].name for each in calls if each.graph)
    assert later == ["aten::mm", "aten::sum"]


GRAPHED_STEP = """
import torch
from torch.nn.functional import mse_loss
model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
x, y = torch.randn(8, 64, device="cuda"), torch.randn(8, 32, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=True)
    mse_loss(model(x), y).backward()
    optimizer.step()

aside = torch.cuda.Stream()
aside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(aside):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(aside)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(4):
    x.copy_(torch.randn(8, 64).pin_memory(), non_blocking=True)
    graph.replay()
"""


def test_a_step_as_one_graph_is_the_step(tmp_path: Path) -> None:
    found = captured(tmp_path, GRAPHED_STEP, steps=2)
    launched = [each for each in found.items if each.kind in (ItemKind.CALL, ItemKind.COPY)]
    assert found.warm_up
    assert found.steps == 2
    # A copy and a graph are launched in each step: what warms up, by single operators, is left out.
    assert sum(not each.graph for each in launched) == 2 * 2
    assert flops(found)["gemm"] == 2 * 2 * (2 * 8 * 64 * 32)
    assert kernels_in(found, Phase.OPTIMIZER).total() == 2 * 2
    assert sum(each.bytes for each in launched if each.kind is ItemKind.COPY) == 2 * 8 * 64 * 4


OUTER = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(64, 64, bias=False).cuda()
kept = torch.nn.Parameter(layer.weight.detach().clone())
inner, outer = torch.optim.AdamW(layer.parameters()), torch.optim.SGD([kept], momentum=0.9)
for step in range(12):
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    inner.step()
    if step % 3 == 2:
        kept.grad = kept.detach() - layer.weight.detach()
        dist.all_reduce(kept.grad, op=dist.ReduceOp.AVG)
        outer.step()
        with torch.no_grad():
            layer.weight.copy_(kept)
"""


def test_an_optimizer_that_steps_seldom_is_told_of(tmp_path: Path) -> None:
    """As in DiLoCo, whose workers meet every so many steps."""
    said = "SGD: none of its steps is among those recorded (--warm-up, --steps)"
    found = captured(tmp_path, OUTER, world=4, steps=3)
    assert said not in found.replaced
    assert sent(found) == {"ALL_REDUCE": 64 * 64 * 4}
    first = OUTER.replace("step % 3 == 2", "step == 0")
    assert captured(tmp_path, first, world=4).replaced[said] == 1
    late = captured(tmp_path, OUTER.replace("step % 3 == 2", "step > 6"), world=4, warm_up=8)
    assert sent(late) == {"ALL_REDUCE": 64 * 64 * 4}


ONE_STEP = ONE_GPU.replace("512", "128")


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        (ONE_GPU, {"warm_up": 50, "steps": 10},
         r"made 4 steps; --warm-up 50 and --steps 10 need 60"),
        (ONE_STEP, {"warm_up": 1}, r"made 1 step; --warm-up 1 and --steps 1 need 2"),
        (ONE_GPU, {"steps": 4}, r"made 4 steps; --warm-up 1 and --steps 4 need 5"),
        (GRAPHED_STEP, {"warm_up": 4},
         r"made 4 steps after 3 that .* a CUDA graph; --warm-up 4 and --steps 1 need 5"),
    ],
)  # fmt: skip
def test_a_script_with_fewer_steps_than_are_asked_for(
    tmp_path: Path, text: str, asked: dict[str, int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        captured(tmp_path, text, **asked)
    least = {GRAPHED_STEP: {"warm_up": 3}, ONE_GPU: {"steps": 3}}.get(text, {})
    found = captured(tmp_path, text, **least)
    assert found.steps == least.get("steps", 1)
    assert found.warm_up == (text is not ONE_STEP)


POWER_SGD = """
import os
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(256, 512, bias=False).cuda()
model = torch.nn.parallel.DistributedDataParallel(layer)
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=1_000)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_gradients_of_power_sgd_are_compressed(tmp_path: Path) -> None:
    found = captured(tmp_path, POWER_SGD, world=4)
    assert sent(found) == {"ALL_REDUCE": 4 * (256 + 512) * 4}
    assert found.replaced["PowerSGD begins in step 3, in place of step 1001"] == 1
    # Two products with the gradient each way, and the layer's.
    layer = 2 * 8 * 256 * 512
    assert flops(found)["gemm"] == 2 * layer + 3 * (2 * 256 * 512 * 4)


ASIDE = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
with torch.cuda.stream(torch.cuda.Stream()):
    for step in range(100):
        assert step < 14
        layer(torch.randn(8 * (step + 1), 64, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_script_may_train_on_a_stream_of_its_own(tmp_path: Path) -> None:
    found = captured(tmp_path, ASIDE)
    assert found.steps == 1
    assert flops(found, Phase.FORWARD)["gemm"] % (2 * 8 * 64 * 64) == 0
