"""Recurrent layers as cuDNN runs them: PyTorch's own way to it asks for the device.

`torch.nn.LSTM`, `GRU` and `RNN` call functions of C++ (aten/src/ATen/native/cudnn/RNN.cpp) that
look at the device, to keep a state of dropout for each, before they dispatch ``aten::_cudnn_rnn``.
Here that operator is called at once, with the arguments that they give it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["install"]

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Of cuDNN, by the function (cudnnRNNMode_t)."""


def install() -> None:
    """Put stand-ins in the place of the functions that layers call."""
    functions: Any = torch._VF
    for name, mode in _MODES.items():
        setattr(functions, name, _layer(mode, getattr(functions, name)))


def _layer(mode: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """Mode of cuDNN → the function: of sequences of one length, or packed ones."""

    def run(given: Any, *args: Any) -> Any:
        packed = isinstance(args[1], torch.Tensor | tuple)
        steps = args[0].tolist() if packed and given.is_cuda else []
        states, weights, biases, layers, dropout, train, both, *first = args[packed:]
        if not given.is_cuda:
            return original(given, *args)
        hidden, cells = states if isinstance(states, tuple) else (states, None)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            given, hidden = given.to(dtype), hidden.to(dtype)
            cells = cells if cells is None else cells.to(dtype)
            weights = [each.to(dtype) for each in weights]
        each = 4 if biases else 2
        size = weights[1].shape[0] // (1 if mode < 2 else 4 if mode == 2 else 3)
        projected = 0
        if cells is not None and hidden.shape[-1] != size:
            each, projected = each + 1, hidden.shape[-1]
        batch_first = bool(first and first[0])
        with torch.no_grad():
            buffer = torch._cudnn_rnn_flatten_weight(
                weights, each, given.shape[-1], mode, size, projected, layers, batch_first, both
            )
        with torch.autocast("cuda", enabled=False):
            out, last, last_cells, _, _ = torch._cudnn_rnn(
                given, weights, each, buffer, hidden, cells, mode, size, projected, layers,
                batch_first, float(dropout), train, both, steps, None,
            )  # fmt: skip
        return (out, last) if cells is None else (out, last, last_cells)

    return run
