"""Stand-ins of attention in captures: Transformer Engine, its whole layers, FlashAttention."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from captures import alone, captured, flops, kernels_in, needs_torch, operators_in, script

from mpisim.base.kinds import Operation, Phase
from mpisim.capture.recording import ItemKind
from mpisim.kernels.operations import Attention
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = pytest.mark.timeout(400)  # each process that is captured loads PyTorch

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


@needs_torch
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


@needs_torch
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
    counted, called = kernels_in(found), operators_in(found)
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


@needs_torch
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
    counted = kernels_in(found)
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


@needs_torch
def test_heads_are_exchanged_for_tokens(tmp_path: Path) -> None:
    found = captured(tmp_path, AROUND, "a2a", world=4)
    assert flops(found, Phase.FORWARD) == {"attention": 2 * 2 * 2 * 16 * 64 * 2048**2 // 2 // 4}
    (whole,) = (each for each in kernels_in(found, Phase.FORWARD) if isinstance(each, Attention))
    assert (whole.queries, whole.keys, whole.heads, whole.kv_heads) == (2048, 2048, 4, 1)
    queries, keys = (2 * 512 * 2 * heads * 64 for heads in (16, 4))
    sizes = [item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE]
    assert sizes == [queries, keys, keys, queries, queries, queries, keys, keys]
    assert {call.name for call in found.calls if not kernels_of(call).known} == set()


@needs_torch
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


@needs_torch
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_attention_of_transformer_engine(tmp_path: Path, layout: str) -> None:
    counted = kernels_in(captured(tmp_path, ATTENTION, layout))
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


@needs_torch
def test_flash_attention(tmp_path: Path) -> None:
    found = captured(tmp_path, FLASH)
    counted = kernels_in(found)
    for backward in (False, True):
        rest = {"backward": backward, "variant": "flash_2"}
        windowed = Attention(2, 8, 2, 1024, 1024, 128, 128, window=256, **rest)  # type: ignore[arg-type]
        assert counted[windowed] == 1
        padded = Attention(2, 4, 4, 256, 256, 64, 64, causal=False, **rest)  # type: ignore[arg-type]
        assert counted[padded] == 1
        mean = Attention(3, 8, 8, 341, 341, 128, 128, **rest)  # type: ignore[arg-type]
        assert counted[mean] == 1
    assert operators_in(found)["flash_attn::cross_entropy_fwd"] == 1
    assert any("flash-attn 2.8.3" in line for line in found.replaced)
