"""A Llama of transformers, in bf16, with PyTorch's AdamW: LAYERS STRATEGY BATCH.

STRATEGY is none, ddp or fsdp2. The sizes are those of Llama 3.2 1B, with a head of its own.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig

layers, strategy, batch = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
WORDS, TOKENS = 128256, 1024
config = LlamaConfig(
    num_hidden_layers=layers,
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=WORDS,
    use_cache=False,
)
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
if strategy != "none":
    dist.init_process_group("nccl")
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
model.train()
if strategy == "ddp":
    model = DistributedDataParallel(model, device_ids=[local])
if strategy == "fsdp2":
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    words = torch.randint(0, WORDS, (batch, TOKENS)).cuda()
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
