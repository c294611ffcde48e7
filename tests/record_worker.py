"""``record_worker.py FOLDER STEPS``: train a small network on the CPU over gloo, recorded."""

from __future__ import annotations

import sys

import torch
from torch import distributed, nn

import mpisim


def main(folder: str, steps: int) -> None:
    """Train and record."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with mpisim.record(folder, steps=steps, warmup=2, timed=3) as recording:
        for _ in range(10 + steps):
            optimizer.zero_grad()
            model(torch.randn(64, 256)).square().mean().backward()
            optimizer.step()
            recording.step()
    assert recording.done
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
