"""Captures of scripts whose operators are not of the common kinds: kernels, counted by hand.

Factorizations, distances, masks, gates of recurrent layers, transforms, and operators that know no
shapes of their own. Without PyTorch all of it is skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import captured, flops, kernels_in, needs_torch, unknown

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind
from mpisim.kernels.operations import Elementwise, Gemm
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]


FACTORS = """
import torch
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
teacher = torch.nn.TransformerEncoder(layer, 1).eval()
model = torch.nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
padded = torch.arange(10).expand(4, 10).cuda() > 7
for _ in range(3):
    x = torch.randn(4, 10, 64, device="cuda")
    with torch.no_grad():
        y = teacher(x, src_key_padding_mask=padded)
    model(y).sum().backward()
    square = model.weight.grad @ model.weight.grad.T
    model.weight.grad = torch.linalg.solve(square, model.weight.grad)
    optimizer.step()
"""


def test_encoders_in_evaluation_and_checks_of_factorizations(tmp_path: Path) -> None:
    found = captured(tmp_path, FACTORS)
    layer = 4 * 64 * 64 + 2 * 64 * 128
    products = 40 * layer + (40 + 40) * 64 * 64 + 64**3
    assert flops(found)["gemm"] == 2 * products
    # The CPU waits for the check of the solution alone.
    waits = [item for item in found.items if item.kind is ItemKind.HOST_WAIT]
    assert len(waits) == 1
    assert unknown(found) == {"aten::_linalg_solve_ex"}
    assert any("without PyTorch's fast path" in line for line in found.replaced)


DISTANCES = """
import torch
layer, pairs = torch.nn.Linear(16, 256, bias=False).cuda(), torch.nn.Bilinear(8, 8, 4).cuda()
optimizer = torch.optim.SGD([*layer.parameters(), *pairs.parameters()], lr=0.1)
for _ in range(3):
    x = layer(torch.ones(64, 16, device="cuda"))
    near = torch.cdist(x, torch.ones(128, 256, device="cuda")).sum()
    (near + pairs(x[:, :8], x[:, 8:16]).sum()).backward()
    optimizer.step()
"""


def test_operators_with_gradients_of_their_own_are_taken_apart(tmp_path: Path) -> None:
    found = captured(tmp_path, DISTANCES)
    assert unknown(found) == set()
    forward = [
        each for each in kernels_in(found, Phase.FORWARD).elements() if isinstance(each, Gemm)
    ]
    # Distances by one product, to which the squares of both sides' norms add two columns.
    shapes = {(each.m, each.n, each.k) for each in forward if each.batch == 1}
    assert shapes >= {(64, 256, 16), (64, 128, 256 + 2)}


def test_a_mask_selects_by_the_kernels_of_nonzero() -> None:
    mask, table = TensorSpec("bool", (100, 8)), TensorSpec("float32", (100, 8))
    call = OperatorCall("aten::index", (table, (mask,)), (TensorSpec("float32", (50,)),))
    found = kernels_of(call).kernels
    # Two that add up, two that select, one that divides places; then the elements.
    assert [kernel.traffic for kernel in found] == [800, 8, 8, 800 + 400, 3 * 400, 2 * 200 + 800]
    put = OperatorCall("aten::index_put_", (table, (mask,), TensorSpec("float32", ())))
    assert kernels_of(put).kernels == (Elementwise(2 * 3200 + 800, indexed=800),)


LACKS_SHAPES = """
import torch
x = torch.randn(4, 4, device="cuda", requires_grad=True)
x.detach().to_sparse_csr()
"""


def test_an_operator_that_only_a_device_knows_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"train.py:4: PyTorch has no shapes of what aten::_to_sparse_csr"
    ):
        captured(tmp_path, LACKS_SHAPES)


def test_gates_of_a_recurrent_layer_are_products_and_a_kernel_a_step() -> None:
    given = TensorSpec("float32", (5, 3, 16))
    weights = (TensorSpec("float32", (96, 16)), TensorSpec("float32", (96, 32)))
    rest = (2, None, TensorSpec("float32", (1, 3, 32)), None)
    call = OperatorCall(
        "aten::_cudnn_rnn",
        (given, weights, *rest, 3, 32, 0, 1, False, 0.0, True, False, (), None),
    )
    found = kernels_of(call).kernels
    assert found[0] == Gemm(15, 96, 16, dtype="fp32", output="fp32")
    assert found[1] == Gemm(3, 96, 32, dtype="fp32", output="fp32")
    assert len(found) == 1 + 2 * 5


ODDS = """
import torch
from torch import nn

lazy = nn.Sequential(nn.LazyConv1d(8, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(4))
lazy.to("cuda", torch.bfloat16)
x = torch.randn(4, 16, 32, device="cuda", dtype=torch.bfloat16)
lazy(x)
chosen = (torch.arange(300) % 3 == 0).cuda()    # of the CPU: its values are known
rows = nn.Parameter(torch.randn(300, 8, device="cuda"))
window = torch.hann_window(64, device="cuda")
optimizers = [
    torch.optim.SGD(lazy.parameters(), 0.1, momentum=0.9, fused=True),
    torch.optim.Adagrad([rows], 0.1, fused=True),
]
for _ in range(3):
    sound = torch.istft(torch.stft(rows.view(2, 1200), 64, window=window, return_complex=True),
                        64, window=window)
    rounded = torch.fake_quantize_per_tensor_affine(rows[chosen], 0.1, 0, -128, 127)
    drawn = torch.distributions.Dirichlet(rows.exp()).rsample()
    loss = nn.functional.multi_margin_loss(rows, torch.randint(0, 8, (300,), device="cuda"))
    (loss + sound.sum() + rounded.sum() + drawn.sum() + lazy(x).float().sum()).backward()
    for each in optimizers:
        each.step()
"""


def test_operators_without_shapes_of_their_own(tmp_path: Path) -> None:
    found = captured(tmp_path, ODDS)
    named = {call.name: call for call in found.calls}
    (picked,) = (call for call in found.calls if call.name == "aten::index")
    assert picked.outputs[0] == TensorSpec("float32", (100, 8), (8, 1))
    # Weights of both products, two biases, and what the norm multiplies by and adds.
    assert named["aten::_fused_sgd_"].inputs[0] == tuple(
        TensorSpec("bfloat16", shape, strides)
        for shape, strides in (
            ((8, 16, 3), (48, 3, 1)), ((8,), (1,)), ((8,), (1,)), ((8,), (1,)),
            ((4, 240), (240, 1)), ((4,), (1,)),
        )
    )  # fmt: skip
    assert "aten::_fused_adagrad_" in named
    # Of how draws are made, and of a loss that few use, nothing is known.
    assert unknown(found) <= {
        "aten::_sample_dirichlet",
        "aten::_dirichlet_grad",
        "aten::multi_margin_loss",
        "aten::multi_margin_loss_backward",
    }


def test_a_transform_goes_through_memory_once_for_each_dimension() -> None:
    image, half = TensorSpec("float32", (4, 64, 512)), TensorSpec("complex64", (4, 64, 257))
    real, spectrum = 4 * 4 * 64 * 512, 8 * 4 * 64 * 257
    call = OperatorCall("aten::_fft_r2c", (image, (1, 2), 0, True), (half,))
    moved = [Elementwise(real + spectrum), Elementwise(2 * spectrum)]
    assert list(kernels_of(call).kernels) == moved
    scaled = OperatorCall("aten::_fft_c2r", (half, (1, 2), 2, 512), (image,))
    assert list(kernels_of(scaled).kernels) == [*moved, Elementwise(2 * real)]
    long = TensorSpec("complex64", (1 << 20,))
    assert (
        len(kernels_of(OperatorCall("aten::_fft_c2c", (long, (0,), 0, True), (long,))).kernels) == 2
    )
