"""Captures of sequences that follow one another, of experts by hand, and of cut pipelines.

What each launches is counted by hand. Without PyTorch all of it is skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import alone, captured, flops, needs_torch, operators_in, script, sent, written

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.kernels.operations import Attention
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]

VARLEN = """
import torch
from torch.nn.attention.varlen import varlen_attn
layer = torch.nn.Linear(256, 768).cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
starts = torch.tensor([0, 256, 512, 1024]).int().cuda()
for _ in range(3):
    x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16)
    q, k, v = layer(x).view(1024, 12, 64).split(4, 1)
    packed = varlen_attn(q, k, v, starts, starts, 512, 512, window_size=WINDOW)
    packed.sum().backward()
    optimizer.step()
"""


def test_sequences_that_follow_one_another(tmp_path: Path) -> None:
    found = captured(tmp_path, VARLEN.replace("WINDOW", "(-1, 0)"))
    whole = 2 * 4 * 3 * 341 * 341 // 2 * 128  # three of a mean length, half of it masked
    assert flops(found, Phase.FORWARD)["attention"] == pytest.approx(whole, rel=0.01)
    assert flops(found, Phase.BACKWARD)["attention"] == pytest.approx(2.5 * whole, rel=0.01)
    names = operators_in(found)
    assert names["aten::_flash_attention_forward"] == names["aten::_flash_attention_backward"] == 1
    # Without a mask PyTorch prefers cuDNN's kernel on Hopper.
    names = operators_in(captured(tmp_path, VARLEN.replace("WINDOW", "(-1, -1)")))
    assert names["aten::_cudnn_attention_forward"] == names["aten::_cudnn_attention_backward"] == 1


@pytest.mark.parametrize(
    ("window", "causal", "seen"), [((-1, 0), True, None), ((127, 0), True, 128)]
)
def test_windows_of_packed_attention(
    window: tuple[int, int], causal: bool, seen: int | None
) -> None:
    q, starts = TensorSpec("bfloat16", (1024, 4, 64)), TensorSpec("int32", (3,))
    given = (q, q, q, starts, starts, 512, 512, 0.0, False, False, None, *window)
    (kernel,) = kernels_of(OperatorCall("aten::_flash_attention_forward", given)).kernels
    assert isinstance(kernel, Attention)
    assert (kernel.batch, kernel.queries, kernel.causal, kernel.window) == (2, 512, causal, seen)


FLEXIBLE = """
import torch
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention
layer = torch.nn.Linear(64, 192).cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
documents = (torch.arange(1024) // 256).cuda()
def causal(b, h, q, k):
    return q >= k
def near(b, h, q, k):
    return q - k <= 255
MASK
attend = torch.compile(flex_attention)
for _ in range(3):
    mask = create_block_mask(holds, None, None, 1024, 1024)
    x = torch.randn(2, 1024, 64, device="cuda", dtype=torch.bfloat16)
    q, k, v = layer(x).view(2, 1024, 3, 64).split(1, 2)
    attend(*(each.transpose(1, 2) for each in (q, k, v)), block_mask=mask).sum().backward()
    optimizer.step()
"""
HALF_OF_ALL = 512


@pytest.mark.parametrize(
    ("mask", "visited"),
    [
        # Of 8 rows of blocks of 128 the first sees one, the second two, all others three.
        ("holds = and_masks(causal, near)", 128 * (1 + 2 + 6 * 3) // 8),
        # Two blocks to a document.
        ("holds = lambda b, h, q, k: documents[q] == documents[k]", 256),
        # Made by what is compiled, as in torchtitan.
        (
            "create_block_mask = torch.compile(create_block_mask)\nholds = and_masks(causal, near)",
            128 * (1 + 2 + 6 * 3) // 8,
        ),
        # Its values are not known: as causal.
        (
            "seed = torch.rand(1024).cuda()\nholds = lambda b, h, q, k: seed[q] < seed[k]",
            HALF_OF_ALL,
        ),
    ],
)
def test_blocks_that_a_mask_leaves(tmp_path: Path, mask: str, visited: int) -> None:
    found = captured(tmp_path, FLEXIBLE.replace("MASK", mask))
    forward = 2 * 2 * 1024 * visited * (64 + 64)
    assert flops(found, Phase.FORWARD)["attention"] == forward
    assert flops(found, Phase.BACKWARD)["attention"] == 2.5 * forward


@pytest.mark.parametrize("saved", [True, False])
def test_checkpoints_save_flexible_attention_that_they_name(tmp_path: Path, saved: bool) -> None:
    policy = """
from functools import partial
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
chosen = partial(create_selective_checkpoint_contexts, [NAMED])
def attend(*args, flex=torch.compile(flex_attention), **kwargs):
    return checkpoint(lambda *x: flex(*x, **kwargs), *args, use_reentrant=False, context_fn=chosen)
""".replace("NAMED", "torch.ops.higher_order.flex_attention" if saved else "")
    text = FLEXIBLE.replace("MASK", "holds = causal")
    found = captured(tmp_path, text.replace("attend = torch.compile(flex_attention)", policy))
    again = flops(found, Phase.RECOMPUTE)["attention"]
    assert again == (0 if saved else flops(found, Phase.FORWARD)["attention"])


def test_flexible_attention_that_is_not_compiled_writes_all_scores(tmp_path: Path) -> None:
    text = FLEXIBLE.replace("MASK", "holds = causal").replace(
        "torch.compile(flex_attention)", "flex_attention"
    )
    found = captured(tmp_path, text)
    products = 2 * 2 * 2 * 1024 * 1024 * 64  # scores and output, of two sequences
    assert flops(found, Phase.FORWARD) == {"gemm": products + 2 * 2 * 1024 * 64 * 192}
    assert all(kernels_of(call).known for call in found.calls)


JAGGED = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    rows = [torch.randn(length, 64) for length in (3, 5, 8)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged).cuda()
    y = layer(x) + x
    assert y.shape == x.shape
    y.to_padded_tensor(0.0).sum().backward()
    optimizer.step()
"""


def test_nested_tensors_move_to_the_device(tmp_path: Path) -> None:
    found = captured(tmp_path, JAGGED)
    assert flops(found, Phase.FORWARD)["gemm"] == 2 * (3 + 5 + 8) * 64 * 64
    assert all(kernels_of(call).known for call in found.calls)


EXPERTS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
router = torch.nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(router.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(512, 32, device="cuda")
    weights, chosen = router(x).softmax(-1).topk(2, -1)
    counts = torch.histc(chosen.flatten().float(), 8, 0, 7).long()
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    sizes = counts.view(4, 2).sum(1).tolist(), received.view(4, 2).sum(1).tolist()
    rows = x.new_empty(sum(sizes[1]), 32)
    dist.all_to_all_single(rows, x.repeat(2, 1), sizes[1], sizes[0])
    expert = torch.arange(2, device="cuda").repeat(4).repeat_interleave(received)
    assert expert.shape == (1024,)
    weights.sum().backward()
    optimizer.step()
"""


def test_counts_of_numbers_that_are_no_integers(tmp_path: Path) -> None:
    # Each of 4 ranks gets a quarter of 1,024 rows of 32 numbers from each; counts are 64 bytes.
    assert sent(captured(tmp_path, EXPERTS, world=4), least=1000)["ALL_TO_ALL"] == 1024 * 32 * 4


CUT = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline
dist.init_process_group("nccl")
rank = dist.get_rank()
device = torch.device("cuda", rank)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512))
cut = pipeline(model, (torch.randn(4, 512),), split_spec={"1": SplitPoint.BEGINNING})
stage = cut.build_stage(rank, device)
schedule = Schedule1F1B(stage, 2, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(8, 512, device=device)
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank else {}))
    optimizer.step()
"""


def test_stages_that_were_cut_are_on_the_device(tmp_path: Path) -> None:
    # Matrices of 2 MiB have no values, as PyTorch's own fakes, which it leaves where they are.
    first, last = alone(script(written(tmp_path, CUT), world=2))
    for part in (first.recording, last.recording):
        assert flops(part, Phase.FORWARD)["gemm"] == 2 * 8 * 512 * 1024


CAUSES = """
import torch
try:
    torch.zeros(2, 3) @ torch.zeros(2, 3)
except RuntimeError as error:
    raise ValueError("stage 0 failed") from error
"""


def test_the_cause_of_an_error_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ValueError: stage 0 failed, since RuntimeError: mat1 "):
        captured(tmp_path, CAUSES)


SHARED_EXPERTS = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import silu
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "ep"))
everyone, group = mesh._flatten("all"), mesh["ep"].get_group()

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(8, 256, 512, device="cuda"))
        self.down = torch.nn.Parameter(torch.randn(8, 512, 256, device="cuda"))

    def forward(self, x, counts):
        up, down = (each.to_local().bfloat16() for each in (self.up, self.down))
        ends = counts.cumsum(0, dtype=torch.int32)
        x = silu(torch._grouped_mm(x.bfloat16(), up, offs=ends))
        return torch._grouped_mm(x, down, offs=ends)

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out, into):
        ctx.out, ctx.into = out, into
        y = x.new_empty(sum(out), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), out, into, group=group)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, ctx.into, ctx.out), None, None

class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(256, 8, bias=False, device="cuda")
        self.experts = Experts()

    def forward(self, x):
        weights, chosen = self.router(x).float().sigmoid().topk(2, dim=1)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.histc(chosen.flatten().float(), bins=8, min=0, max=8)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=group)
        into, out = (each.view(4, -1).sum(1).int().tolist() for each in (counts, received))
        rows = Exchange.apply(x[order // 2], out, into)
        y = self.experts(rows, received.view(4, -1).sum(0).int())
        y = Exchange.apply(y, into, out) * weights.flatten()[order, None].to(y.dtype)
        return torch.zeros_like(x).index_add(0, order // 2, y)

layers = torch.nn.ModuleList(Mixture() for _ in range(2))
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for layer in layers:
    for name, each in list(layer.experts.named_parameters()):
        own = torch.nn.Parameter(distribute_tensor(each, mesh["ep"], [Shard(0)]))
        layer.experts.register_parameter(name, own)
    rows = {"shard_placement_fn": lambda _: Shard(1)}
    fully_shard(layer.experts, mesh=mesh["dp"], mp_policy=policy, **rows)
    fully_shard(layer, mesh=everyone, mp_policy=policy)
optimizer = torch.optim.AdamW(layers.parameters())
for _ in range(3):
    x = torch.randn(1024, 256, device="cuda")
    for layer in layers:
        x = x + layer(x).float()
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_experts_are_sharded_along_another_dimension(tmp_path: Path) -> None:
    """Experts of four ranks, each sharded over two along their rows, as torchtitan has them."""
    found = captured(tmp_path, SHARED_EXPERTS, ranks=[0], world=8)
    rows, inner, outer = 2 * 1024, 256, 512
    product = 2 * rows * inner * outer
    # Two products forward and four backward a layer; the first layer's input has no gradient.
    assert flops(found)["grouped_gemm"] == (2 * 6 - 1) * product
    # Tokens there and back in both directions, but for that gradient.
    assert sent(found, size=4, least=1000) == {"ALL_TO_ALL": (2 * 4 - 1) * rows * inner * 2}
    experts = 2 * (8 // 4) * inner * outer
    halves = sent(found, size=2)
    assert halves == {"ALL_GATHER": 2 * 2 * experts * 2, "REDUCE_SCATTER": 2 * experts * 4}
