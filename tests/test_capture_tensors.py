"""Captured scripts whose tensors are jagged, sparse or of another stage: beside counts by hand."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from captures import SCRIPTS, alone, captured, flops, needs_torch, script, sent

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind, Recording
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]

JAGGED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(512), nn.Linear(512, 1536), nn.Linear(512, 512)
    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (each.unflatten(-1, [8, -1]).transpose(1, 2) for each in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(-2))

model = Attention().cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    rows = [torch.randn(n, 512, device="cuda", dtype=torch.bfloat16) for n in (100, 200, 300, 57)]
    loss = model(torch.nested.nested_tensor(rows, layout=torch.jagged)).values().float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SPARSE = """
import torch
from torch import nn
table = nn.Embedding(100_000, 64, sparse=True).cuda()
weight = nn.Parameter(torch.randn(1000, 64, device="cuda"))
rows = torch.optim.SparseAdam(list(table.parameters()))
others = torch.optim.SGD([weight], 0.1)
number = torch.arange(5000)
places = torch.stack([number % 1000, 7 * number % 1000])
for _ in range(3):
    chosen = torch.randint(0, 100_000, (512,), device="cuda")
    links = torch.sparse_coo_tensor(places.cuda(), torch.ones(5000, device="cuda"), (1000, 1000))
    loss = table(chosen).sum() + torch.sparse.mm(links.coalesce(), weight).sum()
    loss.backward()
    others.step()
    rows.step()
    others.zero_grad()
    rows.zero_grad()
"""


ATTENTIONS = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
q, k, v = (
    torch.randn(2, heads, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for heads in (8, 2, 2)
)
mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()
optimizer = torch.optim.SGD([q, k, v], 0.1)
for _ in range(3):
    found = attention(q, k, v, is_causal=True, enable_gqa=True)
    found = found + attention(q, k, v, mask, enable_gqa=True)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        found = found + attention(q, k, v, is_causal=True, enable_gqa=True)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION], True):
        found = found + attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.use_deterministic_algorithms(True)
    found = found + attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.use_deterministic_algorithms(False)
    found.float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TIED = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(5000, 256), nn.Linear(256, 256)
        self.head = nn.Linear(256, 5000, bias=False)
        self.head.weight = self.embedding.weight
        self.seen = []
        self.head.weight.register_post_accumulate_grad_hook(self.seen.append)
    def forward(self, words):
        return self.head(self.layer(self.embedding(words)))

model = Words().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    words = torch.randint(0, 5000, (8, 64), device="cuda")
    nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
    assert len(model.seen) == step + 1
    optimizer.step()
    optimizer.zero_grad()
"""


def calls(recording: Recording, name: str) -> list[OperatorCall]:
    """Calls of an operator, as often as it was called."""
    found = [recording.calls[item.number] for item in recording.items if item.kind is ItemKind.CALL]
    return [each for each in found if each.name == name]


def test_sequences_of_several_lengths(tmp_path: Path) -> None:
    found = captured(tmp_path, JAGGED)
    tokens = 100 + 200 + 300 + 57
    assert flops(found)["gemm"] == 3 * 2 * tokens * 512 * (1536 + 512)
    (forward,) = calls(found, "aten::_flash_attention_forward")
    packed = forward.inputs[0]
    assert isinstance(packed, TensorSpec)
    assert packed.shape == (tokens, 8, 64)
    assert forward.inputs[5] == 300  # the longest
    assert len(calls(found, "aten::_flash_attention_backward")) == 1


def test_a_weight_of_two_modules(tmp_path: Path) -> None:
    """It is moved to the GPU with both, and keeps the hooks of its gradient."""
    found = captured(tmp_path, TIED)
    shapes = [found.parameters[each.parameter].shape for each in found.completed]
    assert shapes == [(256,), (256, 256), (5000, 256)]


def test_sparse_tensors(tmp_path: Path) -> None:
    found = captured(tmp_path, SPARSE)
    shapes = {
        (call.inputs[0].shape, call.outputs[0].shape)  # type: ignore[union-attr]
        for call in calls(found, "aten::_coalesce")
    }
    # The graph's places repeat every thousand; of 512 draws among 100,000 that differ.
    drawn = round(100_000 * (1 - (1 - 1e-5) ** 512))
    assert ((2, 5000), (2, 1000)) in shapes
    assert ((1, 512), (1, drawn)) in shapes
    forward, backward = calls(found, "aten::_sparse_mm")
    assert forward.outputs == backward.outputs == (TensorSpec("float32", (1000, 64), (64, 1)),)
    # SparseAdam reads, changes and adds to the rows of both moments, and to those of the table.
    updated = [
        call.inputs[3].shape  # type: ignore[union-attr]
        for call in calls(found, "aten::index_add_")
    ]
    assert updated == [(drawn, 64)] * 3
    assert all("indices of a sparse tensor" in line for line in found.values)


def test_what_adding_up_equal_indices_moves() -> None:
    """It reads all elements and writes those that are left; sorted are keys with positions."""
    indices, elements = TensorSpec("int64", (1, 1 << 20)), TensorSpec("float32", (1 << 20, 64))
    left, sums = TensorSpec("int64", (1, 1 << 16)), TensorSpec("float32", (1 << 16, 64))
    launched = kernels_of(OperatorCall("aten::_coalesce", (indices, elements), (left, sums)))
    assert launched.known
    moved = sum(kernel.bytes for kernel in launched.kernels)  # type: ignore[attr-defined]
    rows = 4 * 64 * ((1 << 20) + (1 << 16))
    sorting = (1 << 20) * (8 + 8 * 2 * 16)  # eight digits, each reads and writes
    assert rows + sorting < moved < 1.2 * (rows + sorting)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h100-sxm", ["cudnn", "cudnn", "flash", "efficient", "flash"]),
        ("a100-sxm-80gb", ["flash", "efficient", "flash", "efficient", "flash"]),
    ],
)
def test_which_kernel_attention_takes(gpu: str, expected: list[str], tmp_path: Path) -> None:
    """As sdp_utils.cpp has it: without a choice, masked, two choices, without what is not exact."""
    if tuple(map(int, version("torch").split(".")[:2])) < (2, 11):
        pytest.skip("cuDNN first since PyTorch 2.11")
    found = captured(tmp_path, ATTENTIONS, gpu=gpu)
    names = [found.calls[item.number].name for item in found.items if item.kind is ItemKind.CALL]
    kernels = [name.split("_")[-2] for name in names if name.endswith("_attention")]
    assert kernels == expected
    backward = [name for name in names if name.endswith("_attention_backward")]
    assert sorted(name.split("_")[-3] for name in backward) == sorted(expected)


LEARNED_BIAS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

torch.set_default_dtype(torch.bfloat16)
layer = torch.nn.Linear(256, 768, device="cuda")
bias = torch.nn.Parameter(torch.randn(1, 4, 128, 128, device="cuda"))
optimizer = torch.optim.SGD([*layer.parameters(), bias], lr=0.1)
for step in range(3):
    parts = layer(torch.randn(2, 128, 256, device="cuda")).chunk(3, -1)
    q, k, v = (each.view(2, 128, 4, 64).transpose(1, 2) for each in parts)
    out = attention(q, k, v, bias) + attention(q, k, v, bias.detach())
    out = out + attention(q, k, v, bias.detach()[0])
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_bias_that_is_learned_is_not_given_to_cudnn(tmp_path: Path) -> None:
    """check_attn_mask_shape of PyTorch's sdp_utils_cpp.h: no gradient, two or four dimensions."""
    if tuple(map(int, version("torch").split(".")[:2])) < (2, 11):
        pytest.skip("cuDNN first since PyTorch 2.11")
    found = captured(tmp_path, LEARNED_BIAS)
    names = [found.calls[item.number].name for item in found.items if item.kind is ItemKind.CALL]
    kernels = [name.split("_")[-2] for name in names if name.endswith("_attention")]
    assert kernels == ["efficient", "cudnn", "efficient"]
    backward = [name for name in names if name.endswith("_attention_backward")]
    assert sorted(name.split("_")[-3] for name in backward) == sorted(kernels)


ADAPTIVE = """
import torch
body = torch.nn.Linear(64, 64).cuda()
head = torch.nn.AdaptiveLogSoftmaxWithLoss(64, 1000, cutoffs=[100, 500]).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    words = torch.randint(0, 1000, (128,), device="cuda")
    head(body(torch.randn(128, 64, device="cuda")), words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_clusters_of_an_adaptive_softmax_share_all_rows(tmp_path: Path) -> None:
    """Of 128 words that are drawn evenly among 1,000: below 100, 500 and 1,000; none is left."""
    found = captured(tmp_path, ADAPTIVE)
    rows = [call.outputs[0].shape[0] for call in calls(found, "aten::nonzero")]  # type: ignore[union-attr]
    assert rows == [13, 64 - 13, 128 - 64]
    tails = 2 * (51 * (64 * 16 + 16 * 400) + 64 * (64 * 4 + 4 * 500))
    assert flops(found, Phase.FORWARD) == {"gemm": tails + 2 * 128 * (64 * 64 + 64 * 102)}


def test_ranges_of_one_tensor_meet() -> None:
    import torch

    from mpisim.capture.drawn_ranges import Ranges

    drawn, other = torch.empty(1000), torch.empty(1000)
    ranges = Ranges()
    masks = [torch.empty(1000) for _ in range(6)]
    assert ranges.mark(masks[0], drawn, -5, 30, 100) == 0.3
    assert ranges.mark(masks[1], drawn, 20, 50, 100) == 0.3
    assert ranges.mark(masks[2], other, 20, 50, 100) == 0.3
    assert ranges.meet(masks[3], masks[0], masks[1], either=False) == 0.1
    assert ranges.meet(masks[4], masks[1], masks[0], either=True) == 0.5
    assert (ranges.rows(masks[3]), ranges.rows(masks[4])) == (100, 500)
    assert ranges.meet(masks[5], masks[0], masks[2], either=False) is None
    assert ranges.rows(masks[5]) is None
    drawn.zero_()  # now it is another
    ranges.mark(masks[5], drawn, 0, 10, 100)
    assert ranges.meet(masks[5], masks[5], masks[0], either=True) is None


def without_examples() -> str:
    """The script of a pipeline, whose stages get no examples."""
    text = (SCRIPTS / "pipeline.py").read_text()
    given = " input_args=(example,), output_args=(out,),"
    assert given in text
    return text.replace(given, "")


def test_stages_without_examples(tmp_path: Path) -> None:
    """They issue what those with examples do, of which another test counts the same."""
    path = tmp_path / "train.py"
    path.write_text(without_examples())
    parts = alone(script(path, "6", world=6), ranks=range(3))
    assert [part.ranks for part in parts] == [(0, 3), (1, 4), (2, 5)]
    for stage, part in enumerate(parts):
        expected = ((stage > 0) + (stage < 2)) * 6 * 4 * 256 * 4
        for kind in (ItemKind.SEND, ItemKind.RECV):
            assert sent(part.recording, kind) == {"SEND_RECV": expected}
        assert flops(part.recording) == {"gemm": 6 * (2 + (stage > 0)) * 2 * 4 * 256 * 256}


def test_stages_that_give_something_else(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    narrow = "model = nn.Sequential(nn.Linear(WIDTH, WIDTH >> (stage == 1)), nn.ReLU()).to(device)"
    text = without_examples()
    model = "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).to(device)"
    assert model in text
    path.write_text(text.replace(model, narrow))
    with pytest.raises(InputError, match=r"stage 1 of the pipeline gives float32 4x128, and the"):
        alone(script(path, "3", world=6), ranks=range(3))


def test_a_value_that_a_library_reads_is_given_by_its_line(tmp_path: Path) -> None:
    """A library reads twice for one line of the script; each place gets a number of its own."""
    library = tmp_path / "site-packages" / "boxes.py"
    library.parent.mkdir()
    library.write_text("def kept(x):\n    first = x[x > 0]\n    return first, x[x < 0]\n")
    text = """
import sys, torch
sys.path.insert(0, FOLDER)
from boxes import kept
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    above, below = kept(model(torch.randn(8, 64, device="cuda")))
    (above.sum() + below.sum()).backward()
    optimizer.step()
"""
    path = tmp_path / "train.py"
    path.write_text(text.replace("FOLDER", repr(str(library.parent))))
    with pytest.raises(InputError, match=r"train\.py:8: .* --value boxes\.py:2=ROWS, of train"):
        alone(script(path))
    values = (("boxes.py:2", 300.0), ("boxes.py:3", 212.0))
    (part,) = alone(script(path, values=values))
    rows = [
        call.outputs[0].shape  # type: ignore[union-attr]
        for call in calls(part.recording, "aten::index")
    ]
    assert rows == [(300,), (212,)]


def test_an_operator_whose_results_only_values_number_is_refused(tmp_path: Path) -> None:
    """If its function cannot be run; else the number is asked for where the function needs it."""
    text = """
import torch

@torch.library.custom_op("own::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    BODY

@kept.register_fake
def _(x):
    return x.new_empty((torch.library.get_ctx().new_dynamic_size(),))

kept(torch.randn(8, device="cuda"))
"""
    path = tmp_path / "train.py"
    outside = 'raise RuntimeError("an extension that reads memory")'
    for body, said in (
        (outside, r"train\.py:12: how many results own::kept has depends"),
        ("return x[x > 0]", r"train\.py:6: .* --value train\.py:6=ROWS"),
    ):
        path.write_text(text.replace("BODY", body))
        with pytest.raises(InputError, match=said):
            alone(script(path))
