"""Captured scripts of several ranks: what ranks share, and which are captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from captures import (
    ONE_GPU,
    SCRIPTS,
    alone,
    flops,
    needs_torch,
    rank_processes,
    script,
    sent,
    written,
)
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation, Phase
from mpisim.capture.ranks import capture_parts
from mpisim.capture.recording import ItemKind
from mpisim.cli import main

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    pytest.mark.two_processes,
]


@needs_torch
def test_buckets_of_data_parallelism() -> None:
    (part,) = alone(script(SCRIPTS / "data_parallel.py", world=8))
    recording = part.recording
    buckets = [item.bytes for item in recording.items if item.kind is ItemKind.COLLECTIVE]
    # Gradients of 16 MiB: one is above the 1 MiB of the first bucket, two are above 25 MiB.
    assert buckets == [16 << 20, 32 << 20, 32 << 20]
    streams = {item.stream for item in recording.items if item.kind is ItemKind.COLLECTIVE}
    assert len(streams) == 1
    assert streams != {0}
    # Each of the five gradients is copied into its bucket and back.
    assert sum(item.by_reducer for item in recording.items) == 2 * 5
    # A bucket is on its way before the backward pass has ended.
    first = next(i for i, item in enumerate(recording.items) if item.bytes == 16 << 20)
    later = recording.items[first:]
    assert any(
        item.kind is ItemKind.CALL and item.phase == Phase.BACKWARD and item.name.startswith("mm")
        for item in later
    )


@needs_torch
def test_stages_of_a_pipeline_are_captured_once_each() -> None:
    parts = alone(script(SCRIPTS / "pipeline.py", "6", world=6), ranks=range(3))
    assert [part.ranks for part in parts] == [(0, 3), (1, 4), (2, 5)]
    activation = 4 * 256 * 4
    for stage, part in enumerate(parts):
        neighbours = (stage > 0) + (stage < 2)
        for kind in (ItemKind.SEND, ItemKind.RECV):
            expected = neighbours * 6 * activation
            assert sent(part.recording, kind) == {"SEND_RECV": expected}
        # Two products a micro-batch, and one more where the input needs a gradient.
        products = 6 * (2 + (stage > 0))
        assert flops(part.recording) == {"gemm": products * 2 * 4 * 256 * 256}


AGREES = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
for length in ([3, 5], [7]):
    sent = torch.tensor(length if rank == 0 else [-1] * len(length), device="cuda")
    dist.broadcast(sent, src=0)
    if sent.tolist() != length:
        raise RuntimeError(f"rank {rank} has {sent.tolist()}")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_ranks_agree_on_what_rank_0_broadcasts(tmp_path: Path) -> None:
    """As DeepSpeed compares the lengths of its lists with those of rank 0."""
    (part,) = alone(script(written(tmp_path, AGREES), world=8))
    assert part.ranks == tuple(range(8))
    assert part.recording.broadcasts == {(0, 0): (True, [3, 5]), (0, 1): (True, [7])}


OBJECTS = """
import dataclasses
import torch
import torch.distributed as dist

@dataclasses.dataclass
class Settings:
    width: int

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
found = [Settings(48), "adam"] if rank == 0 else [None, None]
dist.broadcast_object_list(found, src=0)
part = [None]
dist.scatter_object_list(part, [10 * n for n in range(4)] if rank == 0 else None, src=0)
assert part == [10 * rank], part
layer = torch.nn.Linear(found[0].width, 64, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.randn(8, 48, device="cuda")).sum().backward()
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
"""


@needs_torch
def test_objects_of_rank_0_are_sent(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, OBJECTS), world=4))
    assert part.ranks == tuple(range(4))
    assert not part.recording.replaced
    assert flops(part.recording, Phase.FORWARD)["gemm"] == 2 * 8 * 48 * 64


OBJECTS_OF_SOME = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
pair = dist.new_group([0, 1])
width, part, heard = [64 if rank == 0 else 48], [rank], [rank, rank]
dist.broadcast_object_list(width, src=0, group=pair)
dist.scatter_object_list(part, [7, 8] if rank == 0 else None, src=0, group=pair)
dist.all_gather_object(heard, rank, group=pair, weights_only=False)
dist.gather_object(rank, heard if rank == 0 else None, dst=0, group=pair)
assert (width[0], part[0]) == ((64, 7 + rank) if rank < 2 else (48, rank)), (width, part)
layer = torch.nn.Linear(width[0], 32, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.randn(8, width[0], device="cuda")).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_ranks_outside_a_group_keep_their_objects(tmp_path: Path) -> None:
    """`new_group` gives them ``GroupMember.NON_GROUP_MEMBER``, which is a number."""
    what = script(written(tmp_path, OBJECTS_OF_SOME), world=4)
    parts = alone(what, ranks=range(4))
    for part in parts:
        width = 64 if part.recording.rank < 2 else 48
        assert flops(part.recording, Phase.FORWARD)["gemm"] == 2 * 8 * width * 32
    said = {part.recording.rank: sum(part.recording.replaced.values()) for part in parts}
    assert said == {0: 2, 1: 2, 2: 0, 3: 0} or said == {0: 2, 2: 0}  # rank 1 may do as rank 0


@needs_torch
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "[None, None]",
            "[None]",
            "broadcast_object_list: rank 0 sends 2 objects, the list of rank 1 has 1",
        ),
        (
            "range(4)]",
            "range(3)]",
            "scatter_object_list: rank 0 gives 3 objects to a group of 4 ranks",
        ),
    ],
)
def test_objects_must_be_as_many_as_are_received(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    text = OBJECTS.replace(before, after)
    assert text != OBJECTS
    with pytest.raises(InputError, match=said):
        alone(script(written(tmp_path, text), world=4), ranks=range(2))


FUNCTIONAL = """
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce, wait_tensor
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    with torch.no_grad():
        x = torch.ones(64, device="cuda")
        one, two = (all_reduce(x, "sum", dist.group.WORLD) for _ in range(2))
        x = wait_tensor(one) * 2 + two
    layer(x).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_functional_collectives_are_waited_for_where_they_are_used(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, FUNCTIONAL), world=2), ranks=[0])
    items = part.recording.items
    sent_at = [number for number, item in enumerate(items) if item.kind is ItemKind.COLLECTIVE]
    found = [(item.name, wait.item) for item in items if item.stream == 0 for wait in item.waits]
    assert found == list(zip(("mul", "add"), sent_at, strict=True))


@needs_torch
@pytest.mark.mpi
def test_ranks_are_shared_by_processes(comm: Any) -> None:
    what = script(SCRIPTS / "pipeline.py", "2", world=4)
    parts = capture_parts(what, comm, lambda done, said="": None, rank_processes())
    shown = [(part.ranks, part.recording.digest()) for part in parts]
    assert comm.allgather(shown) == [shown] * comm.size
    assert [ranks for ranks, _ in shown] == [(0, 2), (1, 3)]


@needs_torch
@pytest.mark.parametrize("world", [1, 8])
def test_ranks_that_share_nothing_are_told_of(
    world: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, figures = str(written(tmp_path, ONE_GPU)), tmp_path / "figures.json"
    options = ["--world-size", str(world), "--json", str(figures)]
    assert main(["capture", *options, "--", "python", path]) == 0
    # What mpisim extrapolate needs of a job of one rank is in the program, not among its results.
    assert json.loads(figures.read_text())["program"] == {"captured": f"1 of {world} ranks"}
    said = [line for line in capfd.readouterr().err.splitlines() if "note:" in line]
    assert len(said) == (world > 1)
    assert not said or "8 equal ranks side by side, not one job" in said[0]


@needs_torch
def test_stages_that_no_rank_is_given_of_are_named_before_others_are_captured() -> None:
    said: list[str] = []
    what = script(SCRIPTS / "pipeline.py", "3", world=6)
    with pytest.raises(InputError, match=r"do as each of ranks 0,2 does; add them"):
        capture_parts(
            what, MPI.COMM_SELF, lambda done, rank="": said.append(rank), rank_processes(), [1]
        )
    assert said == ["rank 0"]  # whose groups say which ranks differ


@needs_torch
def test_two_ranks_on_one_device(tmp_path: Path) -> None:
    text = AGREES.replace("set_device(rank)", "set_device(rank // 2)")
    message = r"ranks 0 and 1 both communicate from cuda:0 of their node, which NCCL refuses"
    with pytest.raises(InputError, match=message):
        alone(script(written(tmp_path, text), world=2))


SPAWNED = f"""
import os
import torch.multiprocessing
def main(rank, world, rest):
    import torch.distributed as dist
    dist.init_process_group("nccl", "tcp://127.0.0.1:29501", world_size=world, rank=rank)
    exec(rest)
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (2, {AGREES.replace("dist.init_process_group", "str")!r}), 2)
"""


@needs_torch
def test_processes_that_a_script_starts_are_its_ranks(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, SPAWNED), world=2))
    assert part.ranks == (0, 1)
    assert sent(part.recording) == {"ALL_REDUCE": 4 * 65 * 64}
    assert any("one rank is run" in line for line in part.recording.replaced)
    message = "2 processes are started for a node, where the job has 4 ranks"
    with pytest.raises(InputError, match=message):
        alone(script(tmp_path / "train.py", world=4))


AFTER_BACKWARD = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layer = torch.nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    layer.weight.grad.div_(2)
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
    dist.broadcast(layer.weight.data, 0)
"""


@needs_torch
def test_gradients_reduced_after_the_backward_pass_belong_to_it(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, AFTER_BACKWARD), world=2))
    found = {
        Operation(item.number).name: item.phase
        for item in part.recording.items
        if item.kind is ItemKind.COLLECTIVE
    }
    assert found == {"ALL_REDUCE": Phase.BACKWARD, "BROADCAST": Phase.OPTIMIZER}
