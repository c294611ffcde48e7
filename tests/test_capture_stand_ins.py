"""Stand-ins of kernel libraries in captures: what calls are recorded as, beside counts by hand.

Scripts are written for the libraries alone. Without PyTorch all of this is skipped but for the
rules of operators and the lines of the command.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from captures import alone, flops, script

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation, Phase
from mpisim.capture.recording import ItemKind, Recording
from mpisim.cli import main
from mpisim.cli.capture import STOOD_IN_FOR
from mpisim.kernels.operations import (
    Attention,
    Elementwise,
    Gemm,
    GroupedGemm,
    Kernel,
    Norm,
)
from mpisim.operators import OperatorCall, TensorSpec, kernels_of
from mpisim.operators.transformer_engine import looped

pytestmark = pytest.mark.timeout(400)  # each process that is captured loads PyTorch
torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


def captured(folder: Path, text: str, *arguments: str, **options: Any) -> Recording:
    """What the first rank of a script leaves behind."""
    path = folder / "train.py"
    path.write_text(text)
    return alone(script(path, *arguments, **options))[0].recording


def kernels(recording: Recording, *phases: Phase) -> Counter[Kernel]:
    """Kernels of a recording, of all phases or some; all of them of operators that are known."""
    found: Counter[Kernel] = Counter()
    for item in recording.items:
        if item.kind is ItemKind.CALL and (not phases or item.phase in phases):
            launched = kernels_of(recording.calls[item.number])
            assert launched.known, recording.calls[item.number].name
            found.update(launched.kernels)
    return found


def names(recording: Recording) -> Counter[str]:
    """Operators of a recording."""
    return Counter(
        recording.calls[item.number].name for item in recording.items if item.kind is ItemKind.CALL
    )


# --- Transformer Engine ---------------------------------------------------------------------------

LAYER = """
import sys
import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling

recipe = {"bf16": None, "delayed": DelayedScaling(), "current": Float8CurrentScaling(),
          "blocks": MXFP8BlockScaling()}[sys.argv[1]]
given = {"params_dtype": torch.bfloat16, "bias": False}
norm = te.LayerNormLinear(1024, 4096, normalization="RMSNorm", **given)
plain = te.Linear(4096, 1024, **given)
optimizer = te.optimizers.FusedAdam([*norm.parameters(), *plain.parameters()])
for step in range(3):
    x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
        y = plain(norm(x, is_first_microbatch=True), is_first_microbatch=True)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@torch
def test_transformer_engine_in_bf16(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "bf16")
    product = 2 * 512 * 1024 * 4096
    assert flops(found, Phase.FORWARD) == {"gemm": 2 * product}
    assert flops(found, Phase.BACKWARD) == {"gemm": 4 * product}
    counted = kernels(found)
    for backward in (False, True):
        norm = Norm(512, 1024, kind="rms", backward=backward, variant="persistent")
        assert counted[norm] == 1
    assert counted[Gemm(512, 4096, 1024)] == 2  # of the input of one, and the gradient of the other
    assert names(found)["apex::multi_tensor_adam"] == 1
    assert any("transformer-engine 2.9.0" in line for line in found.replaced)
    assert not any("apex" in line for line in found.replaced)


@torch
def test_transformer_engine_in_fp8(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "delayed")
    counted = kernels(found)
    fast = Gemm(512, 4096, 1024, dtype="fp8")
    split = Gemm(512, 4096, 1024, dtype="fp8", variant="split")
    assert counted[fast] == 1  # forward
    assert counted[split] == 1  # the gradient of the second's input
    assert not any(isinstance(each, Gemm) and each.dtype == "bf16" for each in counted)
    # The norm writes fp8. Weights, the second's input and both gradients are read once, and written
    # in two layouts; what the norm wrote is transposed.
    casts = {
        size: Elementwise(4 * size, transposes=True) for size in (4 << 20, 512 << 12, 512 << 10)
    }
    assert counted[casts[4 << 20]] == 2
    assert counted[casts[512 << 12]] == 2
    assert counted[casts[512 << 10]] == 1
    assert counted[Elementwise(2 * (512 << 10), transposes=True)] == 1
    scales = "transformer_engine::fused_amax_and_scale_update_after_reduction"
    assert names(found)[scales] == 2  # forward and backward


@torch
def test_scales_of_the_whole_operand_read_it_twice(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "current")
    # Bytes of the norm's output, in bf16: read for its largest number, read again, written twice.
    size = 512 << 10
    assert kernels(found)[Elementwise(2 * 2 * size + 2 * size, transposes=True)] == 2
    assert names(found)["transformer_engine::fp8_transpose"] == 0


@torch
def test_blocks_need_a_gpu_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"compute capability 10\.0 or higher .* this is 9\.0"):
        captured(tmp_path, LAYER, "blocks")


MICRO_BATCHES = """
import torch
import transformer_engine.pytorch as te

layer = te.Linear(1024, 2048, bias=True, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
layer.weight.main_grad = torch.zeros(2048, 1024, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    with te.autocast(enabled=True):
        for batch in range(4):
            x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
            layer(x, is_first_microbatch=batch == 0).sum().backward()
    optimizer.step()
"""


@torch
def test_weights_are_cast_once_a_step_and_gradients_added_up(tmp_path: Path) -> None:
    counted = kernels(captured(tmp_path, MICRO_BATCHES))
    assert counted[Elementwise(4 * (2 << 20), transposes=True)] == 1
    shape = {"dtype": "fp8", "output": "fp32", "variant": "split"}
    assert counted[Gemm(2048, 1024, 256, accumulate=False, **shape)] == 1  # type: ignore[arg-type]
    assert counted[Gemm(2048, 1024, 256, accumulate=True, **shape)] == 3  # type: ignore[arg-type]
    assert counted[Gemm(256, 2048, 1024, dtype="fp8")] == 4


PARALLEL = """
import os
import sys
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
group = dist.new_group(range(4))
given = {"params_dtype": torch.bfloat16, "tp_group": group, "tp_size": 4, "bias": False,
         "sequence_parallel": sys.argv[1] == "shared"}
one = te.LayerNormLinear(1024, 4096, parallel_mode="column", **given)
two = te.Linear(4096, 1024, parallel_mode="row", **given)
optimizer = te.optimizers.FusedSGD([*one.parameters(), *two.parameters()], momentum=0.9)
for step in range(3):
    x = torch.randn(256, 2, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=sys.argv[2] == "fp8", fp8_group=group):
        y = two(one(x, is_first_microbatch=True), is_first_microbatch=True)
    y.sum().backward()
    optimizer.step()
"""


def sent_by(recording: Recording) -> Counter[tuple[str, int]]:
    """Communications of a recording, by operation and bytes."""
    return Counter(
        (Operation(item.number).name, item.bytes)
        for item in recording.items
        if item.kind is ItemKind.COLLECTIVE
    )


@torch
def test_tensor_parallelism(tmp_path: Path) -> None:
    whole = 512 * 1024 * 2
    shared = captured(tmp_path, PARALLEL, "shared", "bf16", world=4)
    # Gathered are the input, forward and again for its product, and the gradient of the output.
    assert sent_by(shared) == {
        ("ALL_GATHER", 4 * whole): 3,
        ("REDUCE_SCATTER", 4 * whole): 2,
    }
    parted = captured(tmp_path, PARALLEL, "parted", "bf16", world=4)
    assert sent_by(parted) == {("ALL_REDUCE", whole): 2}
    in_fp8 = captured(tmp_path, PARALLEL, "shared", "fp8", world=4)
    # Operands are gathered in fp8; then the largest numbers of 2 × 3 operands, 2 × 2 gradients.
    assert sent_by(in_fp8) == {
        ("ALL_GATHER", 4 * whole // 2): 3,
        ("REDUCE_SCATTER", 4 * whole): 2,
        ("ALL_REDUCE", 4 * 2 * 3): 1,
        ("ALL_REDUCE", 4 * 2 * 2): 1,
    }


EXPERTS = """
import torch
import transformer_engine.pytorch as te

experts = te.GroupedLinear(4, 1024, 2048, bias=False, params_dtype=torch.bfloat16)
optimizer = te.optimizers.FusedAdam(experts.parameters())
made = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
for step in range(3):
    x = torch.randn(512, 1024, **made)
    chosen = torch.ones(512, 4, dtype=torch.bool, device="cuda")
    rows, places = te.moe_permute(x, chosen, num_out_tokens=1024, map_type="mask")
    y = experts(rows, [256, 512, 0, 256], is_first_microbatch=step == 0)
    te.moe_unpermute(y[:, :1024], places, restore_shape=x.shape, map_type="mask").sum().backward()
    optimizer.step()
"""


@torch
def test_products_of_experts(tmp_path: Path) -> None:
    found = captured(tmp_path, EXPERTS)
    counted = kernels(found)
    # Of three of the four: one has no rows.
    assert counted[GroupedGemm(1024, 3, 2048, 1024, ragged=True)] == 1
    assert counted[GroupedGemm(1024, 3, 1024, 2048, ragged=True)] == 1
    assert counted[GroupedGemm(1024, 3, 2048, 1024, weight=True)] == 1
    assert [looped(call) for call in found.calls if "grouped" in call.name] == [3, 3, 3]
    # Rows to experts and back, and the gradients of both.
    for variant in ("row_copies", "row_sums"):
        assert counted[Elementwise(2 * 1024 * (512 + 1024), variant=variant)] == 2  # type: ignore[arg-type]
    assert flops(found) == {"grouped_gemm": 3 * 2 * 1024 * 1024 * 2048}


DISPATCHED = """
import os
import sys
import torch
import torch.distributed as dist
from deep_ep import Buffer, EventOverlap

asynchronous = sys.argv[1] == "async"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
buffer = Buffer(dist.group.WORLD, 1 << 28, 1 << 28)
weight = torch.nn.Parameter(torch.ones(1024, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    scores = torch.rand(256, 64, device="cuda", dtype=torch.float32)
    weights, chosen = scores.topk(4, dim=-1)
    x = (torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16) * weight).detach()
    ranks, nodes, experts, inside, event = buffer.get_dispatch_layout(
        chosen, 64, previous_event=Buffer.capture() if asynchronous else None,
        async_finish=asynchronous,
    )
    received, ids, probabilities, counts, handle, event = buffer.dispatch(
        x, topk_idx=chosen, topk_weights=weights, num_tokens_per_rank=ranks,
        num_tokens_per_rdma_rank=nodes, num_tokens_per_expert=experts, is_token_in_rank=inside,
        previous_event=event if asynchronous else None, async_finish=asynchronous,
    )
    beside = torch.mm(weight.view(1, -1), weight.view(-1, 1))
    if asynchronous:
        event.current_stream_wait()
    local = 64 // dist.get_world_size()
    assert counts == [256 * 4 // local] * local, counts
    assert (ids >= 0).nonzero().shape == (256 * 4, 2)
    assert ids.shape == probabilities.shape == (received.shape[0], 4)
    out, _, _ = buffer.combine(received, handle)
    assert out.shape == x.shape
    ((out * weight).sum() + beside.sum()).backward()
    optimizer.step()
"""


def expected_parts(experts: int, choices: int, parts: int) -> float:
    """How many of the equal parts of the experts have one of a token's, by what misses a part."""
    from math import comb

    return parts * (1 - comb(experts - experts // parts, choices) / comb(experts, choices))


@torch
@pytest.mark.parametrize(("world", "how"), [(8, "blocking"), (8, "async"), (32, "blocking")])
def test_deep_ep(tmp_path: Path, world: int, how: str) -> None:
    from math import ceil

    from mpisim.workloads.transformer.exchange_rates import slowdown

    found = captured(tmp_path, DISPATCHED, how, world=world)
    nodes = world // 8
    tokens = ceil(256 * expected_parts(64, 4, nodes if nodes > 1 else world))
    for way in ("dispatch", "combine"):
        factor = slowdown("flex", way, world, nodes)  # type: ignore[arg-type]
        assert (factor > 1) == (nodes > 1)
        sizes = [each.bytes for each in found.items if each.name == f"DeepEP's {way}"]
        assert sizes == [ceil(factor * tokens * 1024 * 2)]
    kinds = {name: count for name, count in names(found).items() if name.startswith("deep_ep::")}
    assert kinds == {
        "deep_ep::get_dispatch_layout": 1,
        "deep_ep::notify_dispatch": 1,
        "deep_ep::cached_notify_combine": 1,
    }
    own_calls = [each for each in found.calls if each.name.startswith("deep_ep::")]
    assert all(kernels_of(each).known for each in own_calls)
    assert any("tokens that DeepEP sends to each expert" in line for line in found.values)
    # The CPU waits for the counts; the product beside the dispatch waits for it unless asked not.
    counts = [each for each in found.items if each.name == "DeepEP's counts of tokens"]
    (own,) = {each.stream for each in found.items if each.name.startswith("DeepEP's ") and
              each.kind is ItemKind.COLLECTIVE}  # fmt: skip
    assert own != 0
    assert [wait.stream for each in counts for wait in each.waits] == [own]
    product = next(each for each in found.items if each.name.startswith("mm"))
    assert [wait.stream for wait in product.waits] == ([] if how == "async" else [own])


LOW_LATENCY = """
import os
import sys
import torch
import torch.distributed as dist
from deep_ep import Buffer

hooked = sys.argv[1] == "hook"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size = Buffer.get_low_latency_rdma_size_hint(128, 1024, 8, 64)
buffer = Buffer(dist.group.WORLD, 0, size, low_latency_mode=True, num_qps_per_rank=8)
buffer.clean_low_latency_buffer(128, 1024, 64)
weight = torch.nn.Parameter(torch.ones(1024, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    weights, chosen = torch.rand(128, 64, device="cuda").topk(4, dim=-1)
    x = torch.randn(128, 1024, device="cuda", dtype=torch.bfloat16)
    how = {"return_recv_hook": hooked}
    (tokens, scales), counts, handle, event, hook = buffer.low_latency_dispatch(
        x, chosen, 128, 64, use_fp8=True, **how)
    beside = torch.mm(weight.view(1, -1), weight.view(-1, 1))
    if hooked:
        hook()
    assert tokens.shape == (8, 1024, 1024) and scales.shape == (8, 1024, 8)
    back = torch.empty(8, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    out, event, hook = buffer.low_latency_combine(back, chosen, weights, handle, **how)
    if hooked:
        hook()
    assert out.shape == x.shape
    ((out * weight).sum() + beside.sum()).backward()
    optimizer.step()
"""


@torch
@pytest.mark.parametrize("how", ["hook", "blocking"])
def test_low_latency_kernels_of_deep_ep(tmp_path: Path, how: str) -> None:
    found = captured(tmp_path, LOW_LATENCY, how, world=8)
    copies = 128 * 4  # one for each expert of a token: 16 bytes, fp8, a scale for 128 of them
    sizes = {item.name: item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE}
    assert sizes == {
        "DeepEP's low-latency dispatch": copies * (16 + 1024 + 4 * 8),
        "DeepEP's low-latency combine": copies * 2 * 1024,
    }
    own_calls = [each for each in found.calls if each.name.startswith("deep_ep::")]
    assert len(own_calls) >= 4
    assert all(kernels_of(each).known for each in own_calls)
    # The product goes beside what is sent if a hook receives it.
    (network,) = {item.stream for item in found.items if item.kind is ItemKind.COLLECTIVE}
    product = next(each for each in found.items if each.name.startswith("mm"))
    assert [wait.stream for wait in product.waits] == ([] if how == "hook" else [network])
    assert not any(item.kind is ItemKind.HOST_WAIT for item in found.items)


AROUND = """
import os
import sys
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
attend = te.DotProductAttention(16, 64, num_gqa_groups=4, qkv_format="sbhd")
attend.set_context_parallel_group(dist.group.WORLD, list(range(4)), torch.cuda.Stream(),
                                  sys.argv[1])
weight = torch.nn.Parameter(torch.ones(1, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    made = [torch.randn(512, 2, heads, 64, device="cuda", dtype=torch.bfloat16) * weight
            for heads in (16, 4, 4)]
    out = attend(*made)
    assert out.shape == (512, 2, 1024)
    out.sum().backward()
    optimizer.step()
"""


@torch
@pytest.mark.parametrize("rank", [0, 3])
def test_keys_and_values_go_round(tmp_path: Path, rank: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(AROUND)
    parts = alone(script(path, "p2p", world=4), range(4))
    found = next(part.recording for part in parts if rank in part.ranks)
    # A share of the masked attention of the whole sequence, 2,048 tokens: two products.
    share = 2 * 2 * 2 * 16 * 64 * 2048**2 // 2 // 4
    assert flops(found, Phase.FORWARD) == {"attention": share}
    assert sum(item.name.startswith("fused_attn_fwd") for item in found.items) == 4
    # Keys and values go three times; back as often, and their gradients thrice, one step behind.
    pair = 2 * 2 * 512 * 2 * 4 * 64
    for kind in (ItemKind.SEND, ItemKind.RECV):
        sizes = [item.bytes for item in found.items if item.kind is kind]
        assert sizes == [pair] * 3 + [pair, 2 * pair, 2 * pair, pair]
    assert not any(not kernels_of(call).known for call in found.calls if "::" in call.name and
                   call.name.startswith("transformer_engine"))  # fmt: skip


WHOLE = """
import sys
import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

fused, turned = sys.argv[1] == "fused", sys.argv[2] == "rotary"
layer = te.TransformerLayer(1024, 4096, 16, num_gqa_groups=4 if turned else None,
                            hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=fused,
                            params_dtype=torch.bfloat16, bias=True)
names = [name for name, _ in layer.self_attention.layernorm_qkv.named_parameters()]
assert ("query_weight" in names) is not fused
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
angles = te.RotaryPositionEmbedding(64)(512) if turned else None
for step in range(3):
    x = torch.randn(512, 2, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=sys.argv[3] == "fp8", fp8_recipe=DelayedScaling()):
        y = layer(x, rotary_pos_emb=angles)
    assert y.shape == x.shape
    y.sum().backward()
    assert all(each.grad.shape == each.shape for each in layer.parameters())
    optimizer.step()
    optimizer.zero_grad()
"""


@torch
@pytest.mark.parametrize(
    "how", [("fused", "rotary", "bf16"), ("apart", "plain", "bf16"), ("apart", "rotary", "fp8")]
)
def test_whole_layers_of_transformer_engine(tmp_path: Path, how: tuple[str, ...]) -> None:
    found = captured(tmp_path, WHOLE, *how)
    groups = 4 if how[1] == "rotary" else 16
    matrices = 1024 * (2 * 1024 + 2 * 64 * groups) + 2 * 1024 * 4096
    forward = 2 * 2 * 512 * matrices
    assert flops(found, Phase.FORWARD)["gemm"] == forward
    assert flops(found, Phase.BACKWARD)["gemm"] == 2 * forward
    counted, called = kernels(found), names(found)
    for backward in (False, True):
        kernel = Attention(2, 16, groups, 512, 512, 64, 64, backward=backward, variant="cudnn")
        assert counted[kernel] == 1
    # A kernel for bias, dropout and residual behind either block; bias and activation are TE's.
    adds = [name for name in called if name.startswith("inductor::") and "add" in name]
    assert sum(called[name] for name in adds) >= 2
    # Parameters of a product lie one behind the other; only positions part gradients. Delayed
    # scaling puts largest numbers together, forward and backward.
    fp8 = how[2] == "fp8"
    assert called["aten::cat"] == (how[1] == "rotary") + 2 * fp8
    assert (called["transformer_engine::quantize"] > 0) is fp8


DECODER = """
import sys
import torch
import transformer_engine.pytorch as te

fused = sys.argv[1] == "fused"
layer = te.TransformerLayer(1024, 4096, 16, num_gqa_groups=4, layer_type="decoder",
                            hidden_dropout=0.0, attention_dropout=0.0, fuse_qkv_params=fused,
                            params_dtype=torch.bfloat16)
names = [name for name, _ in layer.inter_attention.key_value.named_parameters()]
assert ("key_weight" in names) is not fused
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(512, 2, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    other = torch.randn(128, 2, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = layer(x, encoder_output=other)
    assert y.shape == x.shape
    y.sum().backward()
    assert other.grad.shape == other.shape
    assert all(each.grad.shape == each.shape for each in layer.parameters())
    optimizer.step()
    optimizer.zero_grad()
"""


@torch
@pytest.mark.parametrize("how", ["fused", "apart"])
def test_decoders_of_transformer_engine_attend_to_another_sequence(
    tmp_path: Path, how: str
) -> None:
    found = captured(tmp_path, DECODER, how)
    width, kv = 1024, 4 * 64
    own = 2 * width**2 + 2 * width * kv + 2 * width * 4096 + 2 * width**2  # and two across
    forward = 2 * 2 * (512 * own + 128 * 2 * width * kv)
    assert flops(found, Phase.FORWARD)["gemm"] == forward
    assert flops(found, Phase.BACKWARD)["gemm"] == 2 * forward
    counted = kernels(found)
    for backward in (False, True):
        for keys in (512, 128):
            kernel = Attention(
                2, 16, 4, 512, keys, 64, 64, causal=keys == 512, backward=backward, variant="cudnn"
            )
            assert counted[kernel] == 1


def test_causal_masks_that_end_with_the_last_key() -> None:
    q, k = (TensorSpec("bfloat16", (2, tokens, 16, 64)) for tokens in (100, 400))
    call = OperatorCall(
        "transformer_engine::fused_attn_fwd", (q, k, k, None, "bshd", 2, -1, "cudnn")
    )
    (kernel,) = kernels_of(call).kernels
    assert kernel.flops == 2 * 16 * 100 * (400 - 50) * 2 * (64 + 64)


@torch
def test_heads_are_exchanged_for_tokens(tmp_path: Path) -> None:
    found = captured(tmp_path, AROUND, "a2a", world=4)
    assert flops(found, Phase.FORWARD) == {"attention": 2 * 2 * 2 * 16 * 64 * 2048**2 // 2 // 4}
    (whole,) = (each for each in kernels(found, Phase.FORWARD) if isinstance(each, Attention))
    assert (whole.queries, whole.keys, whole.heads, whole.kv_heads) == (2048, 2048, 4, 1)
    queries, keys = (2 * 512 * 2 * heads * 64 for heads in (16, 4))
    sizes = [item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE]
    assert sizes == [queries, keys, keys, queries, queries, queries, keys, keys]
    assert {call.name for call in found.calls if not kernels_of(call).known} == set()


@torch
@pytest.mark.parametrize("rank", [0, 3])
def test_keys_and_values_are_gathered(tmp_path: Path, rank: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(AROUND)
    parts = alone(script(path, "all_gather", world=4), range(4))
    found = next(part.recording for part in parts if rank in part.ranks)
    assert flops(found, Phase.FORWARD) == {"attention": 2 * 2 * 2 * 16 * 64 * 2048**2 // 2 // 4}
    all_keys = 4 * 2 * 512 * 2 * 4 * 64
    sizes = Counter(
        (Operation(item.number).name, item.bytes)
        for item in found.items
        if item.kind is ItemKind.COLLECTIVE
    )
    assert sizes == {("ALL_GATHER", all_keys): 4, ("REDUCE_SCATTER", all_keys): 2}
    assert sum(item.name.startswith("fused_attn_bwd") for item in found.items) == 2


ATTENTION = """
import sys
import torch
import transformer_engine.pytorch as te

attend = te.DotProductAttention(16, 64, num_gqa_groups=4, qkv_format=sys.argv[1])
weight = torch.nn.Parameter(torch.ones(1, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
begins = torch.arange(0, 5, dtype=torch.int32, device="cuda") * 512
packed = {"cu_seqlens_q": begins, "cu_seqlens_kv": begins, "max_seqlen_q": 512,
          "max_seqlen_kv": 512, "attn_mask_type": "padding_causal"}
front = {"sbhd": (1024, 2), "bshd": (2, 1024), "thd": (2048,)}[sys.argv[1]]
for step in range(3):
    q, k, v = (torch.randn(*front, heads, 64, device="cuda", dtype=torch.bfloat16) * weight
               for heads in (16, 4, 4))
    out = attend(q, k, v, **(packed if sys.argv[1] == "thd" else {}))
    assert out.shape == (*front, 1024)
    out.sum().backward()
    optimizer.step()
"""


@torch
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_attention_of_transformer_engine(tmp_path: Path, layout: str) -> None:
    counted = kernels(captured(tmp_path, ATTENTION, layout))
    batch, tokens = (2, 1024) if layout == "sbhd" else (4, 512)
    for backward in (False, True):
        kernel = Attention(batch, 16, 4, tokens, tokens, 64, 64, backward=backward, variant="cudnn")
        assert counted[kernel] == 1


# --- FlashAttention -------------------------------------------------------------------------------

FLASH = """
import torch
from importlib.metadata import version
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.losses.cross_entropy import CrossEntropyLoss

assert version("flash-attn") == "2.8.3"
weight = torch.nn.Parameter(torch.ones(1, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
begins = torch.tensor([0, 100, 1000, 1024], dtype=torch.int32, device="cuda")
made = {"device": "cuda", "dtype": torch.bfloat16}
for step in range(3):
    q, k, v = (torch.randn(2, 1024, heads, 128, **made) * weight for heads in (8, 2, 2))
    out = flash_attn_func(q, k, v, causal=True, window_size=(255, 0))
    packed = flash_attn_qkvpacked_func(torch.randn(2, 256, 3, 4, 60, **made) * weight)
    assert packed.shape == (2, 256, 4, 60)
    rows = (torch.randn(1024, 8, 128, **made) * weight for _ in range(3))
    more = flash_attn_varlen_func(*rows, begins, begins, 900, 900, causal=True)
    loss = CrossEntropyLoss()(out.reshape(2048, 1024), torch.zeros(2048, device="cuda").long())
    (loss + packed.sum() + more.sum()).backward()
    optimizer.step()
"""


@torch
def test_flash_attention(tmp_path: Path) -> None:
    found = captured(tmp_path, FLASH)
    counted = kernels(found)
    for backward in (False, True):
        rest = {"backward": backward, "variant": "flash_2"}
        windowed = Attention(2, 8, 2, 1024, 1024, 128, 128, window=256, **rest)  # type: ignore[arg-type]
        assert counted[windowed] == 1
        padded = Attention(2, 4, 4, 256, 256, 64, 64, causal=False, **rest)  # type: ignore[arg-type]
        assert counted[padded] == 1
        mean = Attention(3, 8, 8, 341, 341, 128, 128, **rest)  # type: ignore[arg-type]
        assert counted[mean] == 1
    assert names(found)["flash_attn::cross_entropy_fwd"] == 1
    assert any("flash-attn 2.8.3" in line for line in found.replaced)


# --- Apex -----------------------------------------------------------------------------------------

APEX = """
import amp_C
import torch
from apex.contrib.layer_norm import FastLayerNorm
from apex.multi_tensor_apply import multi_tensor_applier
from apex.normalization import FusedLayerNorm, FusedRMSNorm
from apex.optimizers import FusedAdam

model = torch.nn.Sequential(
    FusedLayerNorm(1024), FusedRMSNorm(1024), FastLayerNorm(1024), torch.nn.Linear(1024, 256)
).cuda()
optimizer = FusedAdam(model.parameters(), lr=1e-3)
for step in range(3):
    model(torch.randn(512, 1024, device="cuda")).sum().backward()
    grads = [each.grad for each in model.parameters()]
    noop = torch.zeros(1, dtype=torch.int, device="cuda")
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, noop, [grads], False)
    optimizer.step()
    optimizer.zero_grad()
"""


@torch
def test_apex(tmp_path: Path) -> None:
    found = captured(tmp_path, APEX)
    counted = kernels(found)
    for backward in (False, True):
        assert counted[Norm(512, 1024, kind="layer", backward=backward, dtype="fp32")] == 1
        assert counted[Norm(512, 1024, kind="rms", backward=backward, dtype="fp32")] == 1
        fast = Norm(512, 1024, backward=backward, dtype="fp32", variant="persistent")
        assert counted[fast] == 1
    elements = 5 * 1024 + 1024 * 256 + 256
    # Gradients are read, parameters and two moments read and written.
    steps = kernels(found, Phase.OPTIMIZER)
    moved = sum(each.traffic * count for each, count in steps.items())
    assert moved == pytest.approx(7 * 4 * elements, rel=1e-3)
    assert names(found)["apex::multi_tensor_l2norm"] == 1


# --- what is there, and what is not ---------------------------------------------------------------


@torch
def test_the_same_capture_twice(tmp_path: Path) -> None:
    first, second = (captured(tmp_path, LAYER, "delayed").digest() for _ in range(2))
    assert first == second


@torch
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import transformer_engine.pytorch as te\nte.make_graphed_callables(None, ())",
            r"train.py:2: transformer_engine.pytorch.make_graphed_callables is not part of what",
        ),
        (
            "from flash_attn.modules.mha import MHA\nclass Own(MHA):\n    pass\nOwn(8)",
            r"train.py:4: flash_attn.modules.mha.MHA is not part of what stands in",
        ),
        (
            "import transformer_engine.pytorch as te\nwith te.fp8_model_init():\n    pass",
            r"train.py:2: fp8_model_init\(enabled=True\)",
        ),
        (
            "from flash_attn import flash_attn_fanc",
            r"train.py:1: ImportError: cannot import name 'flash_attn_fanc'",
        ),
        (
            "from apex.contrib.focal_loss import focal_loss",
            r"train.py:1: ModuleNotFoundError: apex.contrib.focal_loss is not part of what stands",
        ),
    ],
)
def test_what_a_stand_in_lacks_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        captured(tmp_path, text)


@torch
def test_libraries_that_the_job_does_not_have(tmp_path: Path) -> None:
    text = "import importlib.util\nassert importlib.util.find_spec('apex') is None\nimport apex"
    with pytest.raises(InputError, match=r"train\.py:3: ModuleNotFoundError"):
        captured(tmp_path, text, without=("apex",))


@torch
def test_a_module_of_the_user_comes_first(tmp_path: Path) -> None:
    (tmp_path / "apex.py").write_text("raise RuntimeError('mine')")
    with pytest.raises(InputError, match="mine"):
        captured(tmp_path, "import apex")


@torch
def test_the_command_names_all_libraries() -> None:
    from mpisim.capture.stand_ins.deepspeed import NAME
    from mpisim.capture.stand_ins.install import LIBRARIES

    assert sorted(STOOD_IN_FOR) == sorted([NAME, *(each.name for each in LIBRARIES)])


def test_a_library_that_is_not_stood_in_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--without", "flash-atn", "--", "python", __file__]) == 2
    said = capsys.readouterr().err
    assert "--without flash-atn: no stand-in of that name (did you mean 'flash_attn'?)" in said


# --- operators ------------------------------------------------------------------------------------


def test_operators_of_transformer_engine() -> None:
    x = TensorSpec("bfloat16", (4096, 1024))
    fp8 = [TensorSpec("float8_e4m3fn", shape) for shape in ((4096, 1024), (1024, 4096))]

    def of(name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Kernel, ...]:
        launched = kernels_of(OperatorCall(f"transformer_engine::{name}", inputs, outputs))
        assert launched.known
        return launched.kernels

    size = 4096 * 1024
    assert of("quantize", (x, "delayed", False), (fp8[0],)) == (Elementwise(3 * size),)
    blocks = of("quantize", (x, "blocks", False), tuple(fp8))
    assert blocks == (Elementwise(4 * size, variant="block_scales"),)
    out = TensorSpec("float32", (1024, 512))
    gemm = of("generic_gemm", (fp8[0], fp8[1], 1024, 512, 4096, True, "blocks"), (out,))
    assert gemm == (
        Gemm(1024, 512, 4096, dtype="fp8", output="fp32", accumulate=True, variant="blocks"),
    )
    moved = of(
        "unpermute", (x, TensorSpec("int32", (1024, 8))), (TensorSpec("bfloat16", (1024, 1024)),)
    )
    assert moved == (Elementwise(2 * (size + 1024 * 1024), variant="row_sums"),)
