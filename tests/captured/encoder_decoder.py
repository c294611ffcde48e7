"""A transformer with an encoder, its projections a matrix each, on one GPU: LAYERS."""

import sys

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        shape = (batch, -1, self.heads, width // self.heads)
        q, k, v = (
            made.view(shape).transpose(1, 2) for made in (self.q(x), self.k(seen), self.v(seen))
        )
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """A layer of the encoder, or with `crosses` of the decoder."""

    def __init__(self, width: int, crosses: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3 if crosses else 2)])
        self.own = Attention(width, 8)
        self.cross = Attention(width, 8) if crosses else None
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor | None = None) -> torch.Tensor:
        normed = self.norms[0](x)
        x = x + self.own(normed, normed)
        if self.cross is not None and encoded is not None:
            x = x + self.cross(self.norms[2](x), encoded)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """Words → scores of the next."""

    def __init__(self, layers: int, width: int = 512, words: int = 4096) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = nn.ModuleList([Block(width, False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Block(width, True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        encoded, found = self.embedding(x), self.embedding(y)
        for block in self.encoder:
            encoded = block(encoded)
        for block in self.decoder:
            found = block(found, encoded)
        return self.head(self.norm(found))


model = Model(int(sys.argv[1])).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    x, y = (torch.randint(0, 4096, (4, 256), device="cuda") for _ in range(2))
    loss = functional.cross_entropy(model(x, y).flatten(0, 1).float(), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
