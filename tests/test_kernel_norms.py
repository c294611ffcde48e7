"""Layer norms on A100: constants that rest on vLLM's RMS norms, beside PyTorch's own kernels."""

from statistics import mean

import pytest

from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Norm

MEASURED = {
    (8192, 1536): 186.1,
    (6144, 2048): 182.5,
    (8192, 2048): 235.2,
    (4096, 3072): 187.8,
    (6144, 3072): 267.0,
    (8192, 3072): 346.7,
    (4096, 4096): 268.5,
    (6144, 4096): 389.8,
    (8192, 4096): 509.0,
}
"""Rows, columns: µs of torch.nn.LayerNorm in fp16 on an A100, forward and backward, of pull request
87445 of PyTorch (github:pytorch/pytorch, 2022-10). Sizes that the host binds, 105 to 150 µs, are
left out."""


def test_layer_norms_on_a100_as_pytorch_measured_them() -> None:
    model = Analytical(find_gpu("a100-sxm"), alone=True)
    errors = []
    for (rows, columns), microseconds in MEASURED.items():
        passes = [Norm(rows, columns, backward=each, dtype="fp16") for each in (False, True)]
        picoseconds = sum(model.estimate(each).duration for each in passes)
        errors.append(picoseconds / 1e6 / microseconds - 1)
    assert mean(errors) == pytest.approx(0, abs=0.05)
    assert max(map(abs, errors)) < 0.15
