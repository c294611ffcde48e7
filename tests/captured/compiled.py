"""Layers of a feed-forward network, as they are or compiled: compiled.py [compile|graphs]."""

import sys

import torch
from torch.nn import functional

TOKENS, HIDDEN, INNER, LAYERS = 4096, 1024, 2816, 2


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(HIDDEN)
        self.gate = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.up = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


with torch.device("cuda"):
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).bfloat16()
mode = {"compile": None, "graphs": "reduce-overhead"}
if len(sys.argv) > 1:
    for name, layer in model.named_children():
        model.register_module(name, torch.compile(layer, fullgraph=True, mode=mode[sys.argv[1]]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
