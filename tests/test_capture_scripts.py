"""Captures of scripts of many kinds: what each kind asks of a device, counted by hand.

Recurrent layers and losses of sequences, masks and counts, kernels of Triton. Without PyTorch all
of it is skipped.
"""

from __future__ import annotations

import dis
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from captures import (
    alone,
    captured,
    flops,
    kernels_in,
    needs_torch,
    script,
    unknown,
)

from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind
from mpisim.capture.repeated_reads import in_for_loop
from mpisim.operators import TensorSpec, kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]


RECURRENT = """
import torch
rnn = torch.nn.LSTM(32, 64, 2, dropout=0.1, bidirectional=True).cuda()
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
for _ in range(3):
    rnn(torch.randn(10, 8, 32, device="cuda"))[0].sum().backward()
    optimizer.step()
"""


def test_recurrent_layers(tmp_path: Path) -> None:
    found = captured(tmp_path, RECURRENT)
    steps, batch, wide, hidden = 10, 8, 4 * 64, 64
    # Two directions of two layers, the second of which reads both directions of the first.
    inputs = 2 * 32 + 2 * 2 * hidden
    forward = 2 * steps * batch * wide * (inputs + 4 * hidden)
    assert flops(found, Phase.FORWARD)["gemm"] == forward
    assert flops(found, Phase.BACKWARD)["gemm"] == 2 * forward
    assert unknown(found) == set()


SPEECH = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
rnn = torch.nn.GRU(16, 32, batch_first=True).cuda()
head = torch.nn.Linear(32, 20).cuda()
optimizer = torch.optim.AdamW([*rnn.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    lengths = torch.tensor([9, 12, 5])
    x = torch.randn(3, 12, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    scores = head(out.float()).log_softmax(-1).transpose(0, 1)
    words = torch.randint(1, 20, (3, 4)).cuda()
    torch.nn.functional.ctc_loss(scores, words, lengths, torch.tensor([4, 4, 2])).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_packed_sequences_and_their_loss(tmp_path: Path) -> None:
    found = captured(tmp_path, SPEECH)
    assert unknown(found) == set()
    (layer,) = (call for call in found.calls if call.name == "aten::_cudnn_rnn")
    assert isinstance(layer.inputs[0], TensorSpec)
    assert layer.inputs[0] == TensorSpec("bfloat16", (9 + 12 + 5, 16), (16, 1))
    assert any(call.name == "aten::_ctc_loss" for call in found.calls)


MASKS = """
import torch
n = 50_000
rows = torch.arange(n).remainder(5).eq(0).cuda()    # of the CPU: so many are true
kinds = torch.randint(0, 7, (n,)).cuda()
table = torch.nn.Parameter(torch.randn(n, 8, device="cuda"))
optimizer = torch.optim.SGD([table], lr=0.1)
for _ in range(3):
    counts = torch.bincount(kinds)
    drawn = torch.rand(n, device="cuda") < 0.25
    loss = table[rows].sum() + table[drawn].sum() + counts.sum()
    loss.backward()
    optimizer.step()
"""


def test_masks_and_counts_of_known_spread(tmp_path: Path) -> None:
    found = captured(tmp_path, MASKS)
    assert unknown(found) == set()
    chosen = [call for call in found.calls if call.name == "aten::index"]
    assert {call.outputs[0].shape for call in chosen} == {(10_000, 8), (12_500, 8)}  # type: ignore[union-attr]
    (counted,) = (call for call in found.calls if call.name == "aten::bincount")
    assert counted.outputs[0] == TensorSpec("int64", (7,), (1,))
    # For both masks the CPU waits forward and backward, and for the bounds of the counts.
    waits = [item for item in found.items if item.kind is ItemKind.HOST_WAIT]
    assert len(waits) == 2 + 2 + 1


TEACHER = """
import sys
import torch
from torch.nn.functional import cosine_similarity, logsigmoid, softmax
still = torch.inference_mode if sys.argv[1] == "inference" else torch.no_grad
first = torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.LayerNorm(288)
teacher = torch.nn.Sequential(*first, torch.nn.Linear(288, 64)).cuda()
student = torch.nn.Linear(64, 16).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(3):
    with still():
        x = teacher(torch.randn(32, 3, 8, 8, device="cuda"))
        y = torch.einsum("bc,dc->bd", softmax(x, -1), logsigmoid(x).mT.contiguous().mT)
        y = y.mT.reshape(-1).sum() + cosine_similarity(x, x.roll(1)).std()
    (student(x.clone()).sum() * y.clone()).backward()
    optimizer.step()
"""


def test_operators_come_whole_in_inference_mode(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TEACHER)
    found = [alone(script(path, how))[0].recording for how in ("inference", "no_grad")]
    assert kernels_in(found[0]) == kernels_in(found[1])
    products = 32 * 288 * 64 + 32 * 32 * 64 + 2 * 32 * 64 * 16  # the student's forward and back
    assert flops(found[0])["gemm"] == 2 * products


GENERATED = """
import torch
end, most = torch.tensor([2], device="cuda"), 12
model = torch.nn.Sequential(torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.no_grad()
def after(words):
    return torch.multinomial(model(words[:, -1]).softmax(-1), 1)

for _ in range(3):
    words = torch.randint(0, 100, (4, 1), device="cuda")
    alive = torch.ones(4, dtype=torch.bool, device="cuda")
    for _ in range(most):    # as scripts have it
        words = torch.cat([words, after(words)], 1)
        alive &= words[:, -1] != 2
        if not alive.any():
            break
    assert words.shape == (4, 1 + most)
    left, done = torch.ones(4, dtype=torch.long, device="cuda"), False
    while not done:          # as transformers' generate has it
        words = torch.cat([words, after(words) * left[:, None]], 1)
        full = torch.full((4,), words.shape[1] > 2 * most, device="cuda")
        left = left & ~(full | torch.isin(words[:, -1], end))
        done = left.max() == 0
    assert words.shape == (4, 1 + 2 * most)
    marks = torch.isin(torch.randint(0, 100, (4, 50), device="cuda"), end)
    assert marks.any()       # of given tokens, some end a text
    model(words).sum().backward()
    optimizer.step()
"""


def test_texts_are_generated_to_their_last_token(tmp_path: Path) -> None:
    found = captured(tmp_path, GENERATED)
    tokens, products = 4 * 24, 32 * 100
    assert flops(found)["gemm"] == 2 * products * (tokens + 3 * 4 * 25)


def test_a_loop_over_something_is_told_from_one_that_waits() -> None:
    def loops(rows: Any) -> None:
        for row in rows:
            row.first()
            while row.second():
                row.third()
        rows.fourth()

    code = loops.__code__
    found = {
        each.argval: in_for_loop(code, each.offset)  # the last: `while` asks once before its loop
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_METHOD", "LOAD_ATTR")
    }
    assert found == {"first": True, "second": False, "third": False, "fourth": False}


TRITON = """
import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

@triton.autotune([triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton_op("here::doubled", mutates_args={})
def doubled(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    wrap_triton(double)[(x.numel() // 512,)](x, y, x.numel())
    return y

doubled.register_autograd(lambda ctx, grad: 2 * grad)
weight = torch.nn.Parameter(torch.randn(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    out = torch.empty_like(weight)
    double[lambda meta: (triton.cdiv(weight.numel(), 512),)](weight.detach(), out, weight.numel())
    (doubled(weight) + out).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_kernels_of_triton(tmp_path: Path) -> None:
    found = captured(tmp_path, TRITON)
    (launch,) = (number for number, call in enumerate(found.calls) if "double" in call.name)
    assert found.calls[launch].name == "triton::double"
    (kernel,) = kernels_of(found.calls[launch]).kernels
    assert kernel.traffic == 2 * 4 * 1024 * 1024
    assert sum(each.kind is ItemKind.CALL and each.number == launch for each in found.items) == 2
