"""Llama 3 8B as torchtitan of December 2024 trains it, its layers written anew: LAYERS BATCH.

fully_shard in bf16 with gradients reduced in fp32, selective activation checkpointing by operators
(attention, and every other matrix product is kept), rotary positions by complex numbers, heads
repeated, clipped gradients, AdamW.
"""

import os
import sys
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

WIDTH, HEADS, KV_HEADS, INNER, WORDS, TOKENS = 4096, 32, 8, 14336, 128256, 8192
HEAD = WIDTH // HEADS
torch.backends.cuda.enable_cudnn_sdp(False)  # PyTorch of then tries FlashAttention first
aten = torch.ops.aten
KEPT = {
    aten.mm.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def turned(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def repeated(x):
    batch, tokens, heads, size = x.shape
    times = HEADS // KV_HEADS
    spread = x[:, :, :, None, :].expand(batch, tokens, heads, times, size)
    return spread.reshape(batch, tokens, heads * times, size)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.wk = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, turns):
        q, k, v = (each(x).unflatten(-1, (-1, HEAD)) for each in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        q, k, v = (each.transpose(1, 2) for each in (q, repeated(k), repeated(v)))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, INNER, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        turns = torch.empty(TOKENS, HEAD // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns, persistent=False)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.turns[:, None])
        return self.output(self.norm(x))


def keeps_every_other_product():
    count = defaultdict(int)

    def policy(context, function, *args, **kwargs):
        products = f"{context.is_recompute} products"
        if function == aten.mm.default:
            count[products] += 1
        kept = function in KEPT and not (function == aten.mm.default and count[products] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


layers, batch = map(int, sys.argv[1:])
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    model = Llama(layers)
for number, layer in enumerate(model.layers):
    model.layers[number] = checkpoint_wrapper(
        layer, context_fn=keeps_every_other_product, preserve_rng_state=False
    )
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for number, layer in enumerate(model.layers):
    fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=number < layers - 1)
fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
while True:
    tokens = torch.randint(0, WORDS, (batch, TOKENS + 1)).cuda()
    optimizer.zero_grad()
    scores = model(tokens[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten(0, 1))
    del scores
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
