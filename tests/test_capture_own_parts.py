"""Scripts that bring parts of their own: operators, parameters, scales, ranks that join."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import alone, captured, flops, needs_torch, operators_in, script, sent, written

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind

pytestmark = needs_torch

OPERATORS = """
import torch

@torch.library.custom_op("own::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor, by: float) -> torch.Tensor:
    return torch.mm(x.div(by), weight)

@scaled.register_fake
def _(x, weight, by):
    return x.new_empty(x.shape[0], weight.shape[1])

@torch.library.custom_op("own::scaled_backward", mutates_args=())
def scaled_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x.t(), gradient)

@scaled_backward.register_fake
def _(gradient, x):
    return x.new_empty(x.shape[1], gradient.shape[1])

def keep(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])

def backward(ctx, gradient):
    return None, torch.ops.own.scaled_backward(gradient, *ctx.saved_tensors), None

scaled.register_autograd(backward, setup_context=keep)

@torch.library.custom_op("own::outside", mutates_args=())
def outside(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("an extension that reads memory")

@outside.register_fake
def _(x):
    return torch.empty_like(x)

outside.register_autograd(lambda ctx, gradient: gradient)

class Own(torch.nn.Parameter):
    def __new__(cls, data, name):
        return super().__new__(cls, data)

    def __init__(self, data, name):
        self.label = name

    def rows(self):
        return self.shape[0]

module = torch.nn.Module()
module.large = Own(torch.randn(256, 512, device="cuda"), "large")
module.small = Own(torch.zeros(4), "small")
module.cuda()
assert (module.large.rows(), module.small.rows()) == (256, 4)
assert (module.large.label, module.small.label) == ("large", "small")
assert isinstance(module.small, Own) and module.small.is_cuda
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(128, 256, device="cuda")
    y = outside(scaled(x, module.large, 2.0)).sum() + module.small.sum()
    y.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_operators_of_a_program_are_what_their_function_runs(tmp_path: Path) -> None:
    found = captured(tmp_path, OPERATORS)
    product = 2 * 128 * 256 * 512
    assert flops(found)["gemm"] == 2 * product
    assert flops(found, Phase.BACKWARD)["gemm"] == product
    names = operators_in(found)
    assert names["own::outside"] == 1  # its function cannot be run
    assert not names["own::scaled"]
    assert names["aten::div"] == 1
    said = "own::outside: its function ended with RuntimeError: priced by its bytes"
    assert found.replaced[said] == 1
    assert not any("own::scaled" in line for line in found.replaced)


RUN_ONCE = """
import torch

calls = []

@torch.library.custom_op("own::counted", mutates_args=("seen",))
def counted(x: torch.Tensor, weight: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(1)
    calls.append(len(calls))
    y = torch.mm(x, weight)
    y.sum().item()
    return y

@counted.register_fake
def _(x, weight, seen):
    return x.new_empty(x.shape[0], weight.shape[1])

@torch.library.custom_op("own::looks_up", mutates_args=())
def looks_up(x: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x, x)
    if x.dtype is torch.float16 or x.shape[0] == 32:
        {}["address"]
    return y

@looks_up.register_fake
def _(x):
    return torch.empty_like(x)

layer = torch.nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
seen, weight = torch.zeros(1), torch.randn(64, 64, device="cuda")
for step in range(3):
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    with torch.no_grad():
        counted(torch.randn(16, 64, device="cuda"), weight, seen)
        assert len(calls) == seen.item() == step + 1
        looks_up(torch.randn(128, 128, device="cuda"))
        looks_up(torch.randn(128, 128, device="cuda", dtype=torch.float16))
        if step == 1:
            peak = torch.cuda.max_memory_allocated()
            looks_up(torch.randn(32, 32, device="cuda"))
            assert torch.cuda.max_memory_allocated() == peak
    optimizer.step()
    optimizer.zero_grad()
"""


def test_functions_of_operators_run_once_and_leave_nothing_where_they_fail(tmp_path: Path) -> None:
    found = captured(tmp_path, RUN_ONCE, steps=2)
    names = operators_in(found)
    assert names["own::counted"] == 0
    # With 16-bit numbers, and of 32 rows, it fails behind its product; other calls stay what they
    # are, in the second step, too.
    assert names["own::looks_up"] == 2 + 1
    said = "own::looks_up: its function ended with KeyError: priced by its bytes"
    assert found.replaced[said] == 2  # once for each format
    of_each_step = 2 * 8 * 64 * 64 + 16 * 64 * 64
    assert flops(found)["gemm"] == 2 * 2 * (of_each_step + 128**3)
    reads = [item for item in found.items if item.kind is ItemKind.HOST_WAIT]
    assert len(reads) == 2


ASKS = OPERATORS.replace(
    'raise RuntimeError("an extension that reads memory")', "return x[x.sum(1) > 0].mean() * x"
)


def test_what_functions_of_operators_ask_for_is_asked_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows that a mask selects .* --value train\.py:\d+=ROWS"):
        captured(tmp_path, ASKS)


SCALES = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
for step in range(4):
    x = torch.randn(8, 64, device="cuda")
    factor, failed = torch.linalg.cholesky_ex(x.t() @ x)
    if failed.any():
        raise RuntimeError("not positive definite")
    scaler.scale(layer(x).sum()).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == before * (2 if step % 2 else 1)
    optimizer.zero_grad()
"""


def test_scales_grow_and_factorizations_succeed(tmp_path: Path) -> None:
    assert len(captured(tmp_path, SCALES).items)


JOINED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(64, 64, bias=False).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with HOW:
    for _ in range(4):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        half = [torch.zeros(32, 64, device="cuda") for _ in range(2)]
        works = [dist.all_reduce(each, async_op=True).get_future() for each in half]
        torch.futures.collect_all(works).wait()
        assert torch.futures.wait_all(works)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("how", ["Join([model])", "model.join()"])
def test_ranks_that_join_say_so_each_step(tmp_path: Path, how: str) -> None:
    path = written(tmp_path, JOINED.replace("HOW", how))
    found = alone(script(path, world=2), [0, 1])[0].recording
    # Gradients, as much again in halves, and two numbers: inputs are left, gradients are summed.
    assert sent(found)["ALL_REDUCE"] == 4 * (64 * 64 * 2 + 2)
    sizes = [item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE]
    assert sizes[:2] == [4, 4]


LOSSES = """
import torch
import torch.nn.functional as F
layer = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    y = layer(torch.randn(64, 1024, device="cuda"))
    target = torch.rand(64, 1024, device="cuda")
    loss = F.binary_cross_entropy_with_logits(y, target) + F.soft_margin_loss(y, target)
    (loss + F.binary_cross_entropy(y.sigmoid(), target)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_losses_are_the_kernels_that_they_are_made_of(tmp_path: Path) -> None:
    names = operators_in(captured(tmp_path, LOSSES))
    assert names["aten::binary_cross_entropy"] == 1
    assert names["aten::log_sigmoid_forward"] == 1
    assert not names["aten::binary_cross_entropy_with_logits"] + names["aten::soft_margin_loss"]
    assert names["aten::exp_"] == 1
    assert names["aten::log1p_"] == 1
