"""Captured scripts with compressed sparse tensors: beside counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import captured, needs_torch

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.capture.recording import ItemKind, Recording
from mpisim.kernels.operations import Elementwise
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = [
    pytest.mark.timeout(400),  # each process that is captured loads PyTorch
    needs_torch,
]

GRAPH = """
import torch
places = torch.stack([torch.arange(3000) // 3, torch.arange(3000) % 1000])
links = torch.sparse_coo_tensor(places, torch.ones(3000), (1000, 1000))
MATRIX
weight = torch.nn.Parameter(torch.randn(1000, 64, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    hidden = torch.sparse.mm(matrix, (matrix @ weight).relu())
    hidden.sum().backward()
    optimizer.step()
"""
ON_CPU = "matrix = links.coalesce().to_sparse_csr().cuda()"
ON_DEVICE = "matrix = links.cuda().to_sparse_csr()"
BY_PARTS = """
matrix = links.coalesce().to_sparse_csr()
parts = matrix.crow_indices(), matrix.col_indices(), matrix.values()
matrix = torch.sparse_csr_tensor(*(each.cuda() for each in parts), (1000, 1000))
"""


def called(found: Recording, name: str, phase: Phase) -> list[OperatorCall]:
    """Calls of an operator in a pass."""
    items = (item for item in found.items if item.kind is ItemKind.CALL and item.phase == phase)
    calls = (found.calls[item.number] for item in items)
    return [call for call in calls if call.name == name]


@pytest.mark.parametrize("matrix", [ON_CPU, ON_DEVICE, BY_PARTS])
def test_products_with_a_compressed_matrix(tmp_path: Path, matrix: str) -> None:
    found = captured(tmp_path, GRAPH.replace("MATRIX", matrix))
    assert all(kernels_of(call).known for call in found.calls)
    elements, dense = (
        TensorSpec("float32", (3000,), (1,)),
        TensorSpec("float32", (1000, 64), (64, 1)),
    )
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        products = called(found, "cusparse::spmm", phase)
        assert [call.outputs for call in products] == [(dense,)] * 2
        assert all(call.inputs[2] == elements for call in products)
        # Of the transpose, which the gradient takes, elements are sorted by rows before.
        assert len(called(found, "aten::sort", phase)) == 2 * (phase is Phase.BACKWARD)
        (kernel,) = kernels_of(products[0]).kernels
        # A row of 64 for each element, numbers and columns, where rows begin, and the result.
        moved = 3000 * (64 * 4 + 4 + 8) + 1001 * 8 + 1000 * 64 * 4
        assert isinstance(kernel, Elementwise)
        assert kernel.traffic == moved


def test_what_is_not_known_of_compressed_tensors_is_named(tmp_path: Path) -> None:
    text = GRAPH.replace("MATRIX", ON_CPU).replace(
        "(matrix @ weight)", "((matrix * matrix) @ weight)"
    )
    with pytest.raises(
        InputError, match=r"train.py:9: aten::mul of compressed sparse tensors cannot be captured"
    ):
        captured(tmp_path, text)
