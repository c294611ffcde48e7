"""Captures of scripts of many kinds: what ranks tell each other, counted by hand.

Hooks of gradients, buckets, counts of routers, statistics over ranks and
checkpoints. Without PyTorch all of it is skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import captured, needs_torch, unknown

from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind
from mpisim.operators import kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]


LOGGED = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
assert model._get_ddp_logging_data().get("bucket_cap_bytes") == 25 << 20    # as Lightning asks
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    torch.nn.functional.logsigmoid(model(torch.randn(8, 64, device="cuda"))).sum().backward()
    optimizer.step()
"""


def test_buckets_are_told_of(tmp_path: Path) -> None:
    assert unknown(captured(tmp_path, LOGGED, world=2, ranks=(0,))) == set()


HOOKED = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(2))).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_hook_halves_what_is_reduced(tmp_path: Path) -> None:
    found = captured(tmp_path, HOOKED, world=2, ranks=(0,))
    sums = [item for item in found.items if item.kind is ItemKind.COLLECTIVE]
    assert [item.bytes for item in sums] == [2 * 1024 * 1024] * 2
    assert all(item.phase == Phase.BACKWARD for item in sums)
    # The first runs beside the rest of the backward pass.
    products = [
        at for at, item in enumerate(found.items)
        if item.kind is ItemKind.CALL and found.calls[item.number].name == "aten::mm"
    ]  # fmt: skip
    assert found.items.index(sums[0]) < products[-1] < found.items.index(sums[1])


GATHERED = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
weight = torch.nn.Parameter(torch.randn(64, 8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    chosen = (torch.randn(1024, 64, device="cuda") @ weight).topk(2)[1]
    map = torch.zeros(1024, 8, dtype=torch.int32, device="cuda").scatter(1, chosen, 1).bool()
    counts = map.sum(0)
    everywhere = torch.empty(4 * 8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(everywhere, counts)
    rows = everywhere.view(4, 4, 2).sum(2)[:, dist.get_rank()].tolist()
    total = counts.sum()
    dist.all_reduce(total)
    assert rows == [512] * 4, rows
    assert total.item() == 4 * 2048
    (torch.randn(sum(rows), 64, device="cuda") @ weight).sum().backward()
    optimizer.step()
"""


def test_counts_of_an_even_router_are_those_of_all_ranks(tmp_path: Path) -> None:
    found = captured(tmp_path, GATHERED, world=4, ranks=(0,))
    line = "train.py:14: 4 values of type int64, of an even spread, taken as 512"
    assert found.values[line] == 3


OVER_RANKS = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).cuda()
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(4, 3, 10, 10, device="cuda")).sum().backward()
    saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id="never")
    optimizer.step()
    saving.result()
"""


def test_statistics_over_ranks_and_checkpoints(tmp_path: Path) -> None:
    found = captured(tmp_path, OVER_RANKS, world=2, ranks=(0,))
    assert unknown(found) == set()
    # Of each of 8 channels mean and deviation, and the count; two sums of the backward pass.
    bytes_of = [item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE]
    assert bytes_of == [4 * (2 * 8 + 1) * 2, 4 * 2 * 8]
    # Three masks of the ranks that have samples. Saved are the convolution, weight, bias, two
    # statistics and how many steps there were.
    copies = [item.bytes for item in found.items if item.kind is ItemKind.COPY]
    assert copies == [8, 8, 8, 4 * 8 * 27, 32, 32, 32, 32, 8]
    assert not (tmp_path / "never").exists()
    pixels = 4 * 8 * 8
    parts = ("stats", "elemt", "backward_reduce", "backward_elemt")
    named = {call.name: call for call in found.calls}
    norms = [kernels_of(named[f"aten::batch_norm_{each}"]).kernels[0] for each in parts]
    # Together they move what a norm of one rank does: three passes, and five.
    assert sum(each.traffic for each in norms[:2]) == pytest.approx(3 * 4 * pixels * 8, rel=0.02)
    assert sum(each.traffic for each in norms[2:]) == pytest.approx(5 * 4 * pixels * 8, rel=0.02)
