"""A causal model of transformers, trained with Accelerate: MODEL LAYERS STRATEGY.

MODEL is gpt2, llama, mixtral or qwen3_moe, each in the size of its first release; STRATEGY is
ddp, fsdp1 or fsdp2.
"""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3MoeConfig,
    get_linear_schedule_with_warmup,
)

name, layers, strategy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TOKENS = 1024
configs = {
    "gpt2": lambda: GPT2Config(n_layer=layers),
    "llama": lambda: LlamaConfig(num_hidden_layers=layers),
    "mixtral": lambda: MixtralConfig(num_hidden_layers=layers),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        num_hidden_layers=layers, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
    ),
}
config = configs[name]()
config.use_cache = False
plugin = None
if strategy.startswith("fsdp"):
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=int(strategy[-1]),
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=strategy[-1] == "2" or "FULL_SHARD",
    )
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
model = AutoModelForCausalLM.from_config(config)
if plugin is not None:
    plugin.transformer_cls_names_to_wrap = model._no_split_modules
rows = torch.randint(0, config.vocab_size, (256, TOKENS))
loader = DataLoader([{"input_ids": row, "labels": row} for row in rows], batch_size=2, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
model.train()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if step % 10 == 0:
        accelerator.print(step, accelerator.gather(loss).mean().item())
