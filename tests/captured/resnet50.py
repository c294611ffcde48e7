"""timm's ResNet-50 under DistributedDataParallel, channels last, in half precision: MODEL."""

import os
import sys

import timm.loss
import timm.optim
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True
model = timm.create_model(sys.argv[1] if len(sys.argv) > 1 else "resnet50", num_classes=1000)
model = model.to(device, memory_format=torch.channels_last)
model = nn.parallel.DistributedDataParallel(model, device_ids=[device])
optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler()
loss_of = timm.loss.LabelSmoothingCrossEntropy(0.1)
for _ in range(3):
    images = torch.randn(128, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    classes = torch.randint(0, 1000, (128,), device=device)
    with torch.autocast("cuda", torch.float16):
        loss = loss_of(model(images), classes)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
