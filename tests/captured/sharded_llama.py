"""Llama 3 8B with fewer layers, sharded by fully_shard as torchtitan does it: LAYERS."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

WIDTH, HEADS, KV_HEADS, INNER, WORDS, TOKENS = 4096, 32, 8, 14336, 128256, 8192


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return functional.rms_norm(x, (WIDTH,), self.weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.attention_norm, self.ffn_norm = Norm(), Norm()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, KV_HEADS * self.head, bias=False)
        self.wv = nn.Linear(WIDTH, KV_HEADS * self.head, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)
        self.w1 = nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, INNER, bias=False)

    def forward(self, x):
        y = self.attention_norm(x)
        q, k, v = (
            each(y).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for each in (self.wq, self.wk, self.wv)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(out.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = Norm()
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    model = Llama(int(sys.argv[1]))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for layer in model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
while True:
    tokens = torch.randint(0, WORDS, (1, TOKENS + 1), device="cuda")
    logits = model(tokens[:, :-1]).flatten(0, 1).float()
    functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
