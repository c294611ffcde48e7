"""A pipeline of all ranks but for a replica, 1F1B: MICRO_BATCHES."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, micro_batches = 256, int(sys.argv[1])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
mesh = init_device_mesh(
    "cuda", (2, int(os.environ["WORLD_SIZE"]) // 2), mesh_dim_names=("dp", "pp")
)
pipeline = mesh["pp"]
stage, stages = pipeline.get_local_rank(), pipeline.size()
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).to(device)
example = torch.randn(4, WIDTH, device=device, requires_grad=stage > 0)
out = torch.randn(4, WIDTH, device=device, requires_grad=True)
schedule = Schedule1F1B(
    PipelineStage(
        model, stage, stages, device, input_args=(example,), output_args=(out,),
        group=pipeline.get_group(),
    ),
    micro_batches,
    loss_fn=nn.MSELoss(),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    batch = torch.randn(4 * micro_batches, WIDTH, device=device)
    if stage == 0:
        schedule.step(batch)
    elif stage == stages - 1:
        schedule.step(target=batch)
    else:
        schedule.step()
    for each in model.parameters():
        dist.all_reduce(each.grad, group=mesh["dp"].get_group())
    optimizer.step()
    optimizer.zero_grad()
