"""The mixture of Hugging Face's Mixtral and Qwen3-MoE, by hand: expert_modules.py experts topk."""

import sys

import torch
from torch import nn
from torch.nn import functional

TOKENS, HIDDEN, INNER = 512, 256, 128
EXPERTS, TOPK = int(sys.argv[1]), int(sys.argv[2])


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        shape, x = x.shape, x.view(-1, HIDDEN)
        weights = functional.softmax(self.gate(x), dim=1, dtype=torch.float)
        weights, chosen = torch.topk(weights, TOPK, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        total = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        # What one_hot does of a tensor on a GPU; of tensors without values it compares numbers.
        ones = torch.zeros(*chosen.shape, EXPERTS, dtype=chosen.dtype, device=x.device)
        mask = ones.scatter_(-1, chosen.unsqueeze(-1), 1).permute(2, 1, 0)
        for number in range(EXPERTS):
            place, row = torch.where(mask[number])
            found = self.experts[number](x[None, row].reshape(-1, HIDDEN))
            total.index_add_(0, row, (found * weights[row, place, None]).to(x.dtype))
        return total.reshape(shape)


layer = Mixture().to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(1, TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
for _ in range(3):
    layer(x).backward(x.detach())
    optimizer.step()
    optimizer.zero_grad()
    x.grad = None
