"""Stand-ins for experts in captures: grouped products of Transformer Engine, DeepEP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from captures import (
    alone,
    captured,
    flops,
    kernels_in,
    needs_torch,
    operators_in,
    script,
    written,
)

from mpisim.capture.recording import ItemKind
from mpisim.kernels.operations import Elementwise, GroupedGemm
from mpisim.operators import kernels_of
from mpisim.operators.transformer_engine import looped

pytestmark = pytest.mark.timeout(400)  # each process that is captured loads PyTorch

EXPERTS = """
import torch
import transformer_engine.pytorch as te

experts = te.GroupedLinear(4, 1024, 2048, bias=False, params_dtype=torch.bfloat16)
optimizer = te.optimizers.FusedAdam(experts.parameters())
made = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
for step in range(3):
    x = torch.randn(512, 1024, **made)
    chosen = torch.ones(512, 4, dtype=torch.bool, device="cuda")
    rows, places = te.moe_permute(x, chosen, num_out_tokens=1024, map_type="mask")
    y = experts(rows, [256, 512, 0, 256], is_first_microbatch=step == 0)
    te.moe_unpermute(y[:, :1024], places, restore_shape=x.shape, map_type="mask").sum().backward()
    optimizer.step()
"""


@needs_torch
def test_products_of_experts(tmp_path: Path) -> None:
    found = captured(tmp_path, EXPERTS)
    counted = kernels_in(found)
    # Of three of the four: one has no rows.
    assert counted[GroupedGemm(1024, 3, 2048, 1024, ragged=True)] == 1
    assert counted[GroupedGemm(1024, 3, 1024, 2048, ragged=True)] == 1
    assert counted[GroupedGemm(1024, 3, 2048, 1024, weight=True)] == 1
    assert [looped(call) for call in found.calls if "grouped" in call.name] == [3, 3, 3]
    # Rows to experts and back, and the gradients of both.
    for variant in ("row_copies", "row_sums"):
        assert counted[Elementwise(2 * 1024 * (512 + 1024), variant=variant)] == 2  # type: ignore[arg-type]
    assert flops(found) == {"grouped_gemm": 3 * 2 * 1024 * 1024 * 2048}


DISPATCHED = """
import os
import sys
import torch
import torch.distributed as dist
from deep_ep import Buffer, EventOverlap

asynchronous = sys.argv[1] == "async"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
buffer = Buffer(dist.group.WORLD, 1 << 28, 1 << 28)
weight = torch.nn.Parameter(torch.ones(1024, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    scores = torch.rand(256, 64, device="cuda", dtype=torch.float32)
    weights, chosen = scores.topk(4, dim=-1)
    x = (torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16) * weight).detach()
    ranks, nodes, experts, inside, event = buffer.get_dispatch_layout(
        chosen, 64, previous_event=Buffer.capture() if asynchronous else None,
        async_finish=asynchronous,
    )
    received, ids, probabilities, counts, handle, event = buffer.dispatch(
        x, topk_idx=chosen, topk_weights=weights, num_tokens_per_rank=ranks,
        num_tokens_per_rdma_rank=nodes, num_tokens_per_expert=experts, is_token_in_rank=inside,
        previous_event=event if asynchronous else None, async_finish=asynchronous,
    )
    beside = torch.mm(weight.view(1, -1), weight.view(-1, 1))
    if asynchronous:
        event.current_stream_wait()
    local = 64 // dist.get_world_size()
    assert counts == [256 * 4 // local] * local, counts
    assert (ids >= 0).nonzero().shape == (256 * 4, 2)
    assert ids.shape == probabilities.shape == (received.shape[0], 4)
    out, _, _ = buffer.combine(received, handle)
    assert out.shape == x.shape
    ((out * weight).sum() + beside.sum()).backward()
    optimizer.step()
"""


def expected_parts(experts: int, choices: int, parts: int) -> float:
    """How many of the equal parts of the experts have one of a token's, by what misses a part."""
    from math import comb

    return parts * (1 - comb(experts - experts // parts, choices) / comb(experts, choices))


@needs_torch
@pytest.mark.parametrize(("world", "how"), [(8, "blocking"), (8, "async"), (32, "blocking")])
def test_deep_ep(tmp_path: Path, world: int, how: str) -> None:
    from math import ceil

    from mpisim.topo import find_cluster
    from mpisim.workloads.transformer.exchange_rates import ExchangeGroup, priced_bytes

    found = captured(tmp_path, DISPATCHED, how, world=world)
    inside, across = find_cluster("dgx-h100").rates() or (None, None)
    nodes = world // 8
    tokens = ceil(256 * expected_parts(64, 4, nodes if nodes > 1 else world))
    for way in ("dispatch", "combine"):
        group, row = ExchangeGroup(world, nodes, across if nodes > 1 else inside), 1024 * 2
        arrived, size = ceil(256 * expected_parts(64, 4, world)), row * tokens
        expected = priced_bytes("flex", way, group, size, arrived, row)  # type: ignore[arg-type]
        assert expected > size
        sizes = [each.bytes for each in found.items if each.name == f"DeepEP's {way}"]
        assert sizes == [expected]
    kinds = {
        name: count for name, count in operators_in(found).items() if name.startswith("deep_ep::")
    }
    assert kinds == {
        "deep_ep::get_dispatch_layout": 1,
        "deep_ep::notify_dispatch": 1,
        "deep_ep::cached_notify_combine": 1,
    }
    own_calls = [each for each in found.calls if each.name.startswith("deep_ep::")]
    assert all(kernels_of(each).known for each in own_calls)
    assert any("tokens that DeepEP sends to each expert" in line for line in found.values)
    # The CPU waits for the counts; the product beside the dispatch waits for it unless asked not.
    counts = [each for each in found.items if each.name == "DeepEP's counts of tokens"]
    (own,) = {each.stream for each in found.items if each.name.startswith("DeepEP's ") and
              each.kind is ItemKind.COLLECTIVE}  # fmt: skip
    assert own != 0
    assert [wait.stream for each in counts for wait in each.waits] == [own]
    product = next(each for each in found.items if each.name.startswith("mm"))
    assert [wait.stream for wait in product.waits] == ([] if how == "async" else [own])


@needs_torch
@pytest.mark.parametrize(
    ("line", "dispatched", "combined"),
    [
        ("Buffer.set_num_sms(4)", 4, 4),
        ("config = Buffer.get_dispatch_config(8); Buffer.set_num_sms(4)", 20, 4),
    ],
)
def test_deep_ep_takes_the_multiprocessors_that_a_script_gives(
    tmp_path: Path, line: str, dispatched: int, combined: int
) -> None:
    from math import ceil

    from mpisim.topo import find_cluster
    from mpisim.workloads.transformer.exchange_rates import ExchangeGroup, priced_bytes

    text = DISPATCHED.replace("buffer = ", f"config = None\n{line}\nbuffer = ").replace(
        "x, topk_idx", "x, config=config, topk_idx"
    )
    found = captured(tmp_path, text, "blocking", world=8)
    inside, _ = find_cluster("dgx-h100").rates() or (None, None)
    arrived, row = ceil(256 * expected_parts(64, 4, 8)), 1024 * 2
    group = ExchangeGroup(8, 1, inside)
    for way, number in (("dispatch", dispatched), ("combine", combined)):
        expected = priced_bytes("flex", way, group, row * arrived, arrived, row, number)  # type: ignore[arg-type]
        assert [each.bytes for each in found.items if each.name == f"DeepEP's {way}"] == [expected]


@needs_torch
def test_deep_ep_on_links_of_no_known_rate_says_what_is_left_out(tmp_path: Path) -> None:
    said = "DeepEP: without latency and multiprocessors of its kernels"
    for world, times in ((8, 1), (1, 0)):
        what = script(written(tmp_path, DISPATCHED), "blocking", world=world)
        what = replace(what, device=replace(what.device, rates=None))
        found = alone(what)[0].recording
        assert sum(line.startswith(said) for line in found.replaced) == times


LOW_LATENCY = """
import os
import sys
import torch
import torch.distributed as dist
from deep_ep import Buffer

hooked = sys.argv[1] == "hook"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size = Buffer.get_low_latency_rdma_size_hint(128, 1024, 8, 64)
buffer = Buffer(dist.group.WORLD, 0, size, low_latency_mode=True, num_qps_per_rank=8)
buffer.clean_low_latency_buffer(128, 1024, 64)
weight = torch.nn.Parameter(torch.ones(1024, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    weights, chosen = torch.rand(128, 64, device="cuda").topk(4, dim=-1)
    x = torch.randn(128, 1024, device="cuda", dtype=torch.bfloat16)
    how = {"return_recv_hook": hooked}
    (tokens, scales), counts, handle, event, hook = buffer.low_latency_dispatch(
        x, chosen, 128, 64, use_fp8=True, **how)
    beside = torch.mm(weight.view(1, -1), weight.view(-1, 1))
    if hooked:
        hook()
    assert tokens.shape == (8, 1024, 1024) and scales.shape == (8, 1024, 8)
    back = torch.empty(8, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    out, event, hook = buffer.low_latency_combine(back, chosen, weights, handle, **how)
    if hooked:
        hook()
    assert out.shape == x.shape
    ((out * weight).sum() + beside.sum()).backward()
    optimizer.step()
"""


@needs_torch
@pytest.mark.parametrize("how", ["hook", "blocking"])
def test_low_latency_kernels_of_deep_ep(tmp_path: Path, how: str) -> None:
    found = captured(tmp_path, LOW_LATENCY, how, world=8)
    copies = 128 * 4  # one for each expert of a token: 16 bytes, fp8, a scale for 128 of them
    sizes = {item.name: item.bytes for item in found.items if item.kind is ItemKind.COLLECTIVE}
    assert sizes == {
        "DeepEP's low-latency dispatch": copies * (16 + 1024 + 4 * 8),
        "DeepEP's low-latency combine": copies * 2 * 1024,
    }
    own_calls = [each for each in found.calls if each.name.startswith("deep_ep::")]
    assert len(own_calls) >= 4
    assert all(kernels_of(each).known for each in own_calls)
    # The product goes beside what is sent if a hook receives it.
    (network,) = {item.stream for item in found.items if item.kind is ItemKind.COLLECTIVE}
    product = next(each for each in found.items if each.name.startswith("mm"))
    assert [wait.stream for wait in product.waits] == ([] if how == "hook" else [network])
    assert not any(item.kind is ItemKind.HOST_WAIT for item in found.items)
