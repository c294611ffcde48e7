"""Five linear layers under DistributedDataParallel, in half precision with a scaler."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(5))).to(rank)
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x = torch.randn(64, 2048).to(rank)
    with torch.autocast("cuda", torch.float16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise SystemExit("the gradient is not finite")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
dist.destroy_process_group()
