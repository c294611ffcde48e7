"""Results of operators of which PyTorch knows no shapes without a device: those of cuDNN, of CTC.

PyTorch runs an operator on shapes by its ``Meta`` kernel, and goes to the device where there is
none. `RESULTS` has in its place what the result of such an operator looks like, by the operator's
implementation on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["RESULTS"]


def _flat_weights(weights: Any, *rest: Any) -> Any:
    """``_cudnn_rnn_flatten_weight`` → a buffer of all weights (cudnn/RNN.cpp)."""
    size = sum(each.numel() for each in weights)
    return weights[0].new_empty(size)


def _recurrent_backward(
    given: Any, weights: Any, stride: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> Any:
    """``_cudnn_rnn_backward`` → gradients of the input, of states and of the weights."""
    wanted = rest[-1]
    return (
        given.new_empty(given.shape),
        hx.new_empty(hx.shape) if wanted[1] else None,
        cx.new_empty(cx.shape) if cx is not None and wanted[2] else None,
        [each.new_empty(each.shape) for each in weights] if wanted[3] else [],
    )


def _ctc(scores: Any, targets: Any, given: Any, wanted: Any, *rest: Any) -> Any:
    """``_ctc_loss`` → a loss for each sample, and logarithms of alpha (cuda/LossCTC.cu)."""
    time, batch = scores.shape[:2] if scores.dim() == 3 else (scores.shape[0], 1)
    longest = targets.shape[-1] if targets.dim() > 1 else targets.numel() // max(batch, 1)
    return scores.new_empty((batch,)), scores.new_empty((batch, time, 2 * longest + 1))


def _ctc_backward(grad: Any, scores: Any, *rest: Any) -> Any:
    """``_ctc_loss_backward`` → the gradient of the scores."""
    return scores.new_empty(scores.shape)


def _ctc_of_cudnn(scores: Any, *rest: Any) -> Any:
    """``_cudnn_ctc_loss`` → a loss for each sample, and the gradient of the scores."""
    return scores.new_empty((scores.shape[1],)), scores.new_empty(scores.shape)


def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, *rest: Any) -> Any:
    """``_thnn_fused_gru_cell`` → the state, and what its gradient needs (cuda/RNN.cu)."""
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    """``_thnn_fused_gru_cell_backward`` → gradients of gates, of the state and of biases."""
    hidden = grad.shape[1]
    gates = (grad.shape[0], 3 * hidden)
    bias = (3 * hidden,)
    return (
        grad.new_empty(gates),
        grad.new_empty(gates),
        grad.new_empty(grad.shape),
        grad.new_empty(bias) if has_bias else None,
        grad.new_empty(bias) if has_bias else None,
    )


RESULTS: Mapping[str, Callable[..., Any]] = {
    "aten::_cudnn_rnn_flatten_weight": _flat_weights,
    "aten::_cudnn_rnn_backward": _recurrent_backward,
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": _ctc_backward,
    "aten::_cudnn_ctc_loss": _ctc_of_cudnn,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
"""Functions of an operator's arguments that make its results, by the operator's name."""
