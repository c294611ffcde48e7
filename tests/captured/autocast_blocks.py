"""Plain PyTorch, DDP and autocast: autocast_blocks.py vit|gpt fp16|bf16 batch [compile]."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

LAYERS, HIDDEN, HEADS = 4, 384, 6
VIT, BATCH, IMAGE, PATCH, CLASSES = sys.argv[1] == "vit", int(sys.argv[3]), 224, 16, 1000
WORDS, LENGTH = 8192, 1024
FORMAT = {"fp16": torch.float16, "bf16": torch.bfloat16}[sys.argv[2]]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, HIDDEN // HEADS)
        q, k, v = (y.view(shape).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=not VIT)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        if VIT:
            self.patches = nn.Conv2d(3, HIDDEN, PATCH, stride=PATCH)
            self.token = nn.Parameter(torch.zeros(1, 1, HIDDEN))
            self.position = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, HIDDEN))
        else:
            self.words, self.position = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES if VIT else WORDS, bias=VIT)
        if not VIT:
            self.head.weight = self.words.weight

    def forward(self, x, targets):
        if VIT:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        else:
            x = self.words(x) + self.position(torch.arange(LENGTH, device=x.device))
        x = self.norm(self.blocks(x))
        scores = self.head(x[:, 0] if VIT else x)
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = Transformer().to(device)
if "compile" in sys.argv:
    model = torch.compile(model)
model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
for _ in range(4):
    if VIT:
        x = torch.randn(BATCH, 3, IMAGE, IMAGE, device=device)
        y = torch.randint(CLASSES, (BATCH,), device=device)
    else:
        x = torch.randint(WORDS, (BATCH, LENGTH), device=device)
        y = torch.randint(WORDS, (BATCH, LENGTH), device=device)
    with torch.autocast("cuda", FORMAT):
        loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
