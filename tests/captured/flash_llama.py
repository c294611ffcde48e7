"""Llama of transformers with flash-attn: batch, of four sequences, or packed, in one row."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
    attn_implementation="flash_attention_2",
    use_cache=False,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
packed = sys.argv[1] == "packed"
rows = {}
if packed:
    lengths = (3000, 2000, 2000, 1192)
    positions = torch.cat([torch.arange(each) for each in lengths]).unsqueeze(0)
    rows = {"position_ids": positions.cuda()}
for _ in range(3):
    words = torch.randint(0, 32000, (1, 8192) if packed else (4, 2048), device="cuda")
    model(input_ids=words, labels=words, **rows).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
