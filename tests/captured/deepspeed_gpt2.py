"""GPT-2 of transformers under DeepSpeed: LAYERS STAGE [fused], of ZeRO, with its own FusedAdam."""

import sys

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

layers, stage = int(sys.argv[1]), int(sys.argv[2])
settings = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
if sys.argv[3:] != ["fused"]:
    settings["optimizer"]["params"]["torch_adam"] = True
config = GPT2Config(n_layer=layers, use_cache=False)
with deepspeed.zero.Init(config_dict_or_path=settings, enabled=stage == 3):
    model = GPT2LMHeadModel(config)
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=settings
)
for _ in range(4):
    words = torch.randint(0, config.vocab_size, (4, 1024), device=engine.device)
    loss = engine(input_ids=words, labels=words).loss
    engine.backward(loss)
    engine.step()
