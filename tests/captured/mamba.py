"""Mamba of transformers, its kernels in plain PyTorch, on one GPU: LAYERS TOKENS."""

import sys

import torch
from transformers import MambaConfig, MambaForCausalLM

layers, tokens = int(sys.argv[1]), int(sys.argv[2])
config = MambaConfig(hidden_size=768, num_hidden_layers=layers, use_cache=False)
model = MambaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    words = torch.randint(0, config.vocab_size, (1, tokens), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
