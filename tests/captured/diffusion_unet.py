"""The U-Net of Stable Diffusion 1.5, from diffusers, under DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DConditionModel
from torch import nn
from torch.nn import functional

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768).to(device)
model = nn.parallel.DistributedDataParallel(model, device_ids=[device])
noises = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    latents = torch.randn(4, 4, 64, 64, device=device)
    text = torch.randn(4, 77, 768, device=device)
    noise = torch.randn_like(latents)
    times = torch.randint(0, noises.config.num_train_timesteps, (4,), device=device)
    noisy = noises.add_noise(latents, noise, times)
    with torch.autocast("cuda", torch.bfloat16):
        guess = model(noisy, times, encoder_hidden_states=text).sample
    loss = functional.mse_loss(guess.float(), noise)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
