"""Results of operators of which PyTorch knows no shapes without a device.

Those of cuDNN, of CTC, batch norms over ranks, losses with margins, draws of distributions, and
fake quantisation.

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


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Operator that only writes to its arguments → no result."""


def _as_first(first: Any, *rest: Any, **kwargs: Any) -> Any:
    """Operator whose result has the shape and type of its first argument."""
    return first.new_empty(first.shape)


def _as_second(first: Any, second: Any, *rest: Any) -> Any:
    """Gradient of the second argument."""
    return second.new_empty(second.shape)


def _as_first_and_second(first: Any, second: Any, *rest: Any) -> Any:
    """Gradients of the first two arguments."""
    return first.new_empty(first.shape), second.new_empty(second.shape)


def _quantised(given: Any, *rest: Any) -> Any:
    """``fake_quantize_…_cachemask`` → rounded numbers, and which of them were within bounds."""
    import torch

    return given.new_empty(given.shape), given.new_empty(given.shape, dtype=torch.bool)


def _learnt_quantisation_backward(grad: Any, given: Any, scale: Any, zero: Any, *rest: Any) -> Any:
    """``_fake_quantize_learnable_…_backward`` → gradients of numbers, scale and zero point."""
    return tuple(each.new_empty(each.shape) for each in (given, scale, zero))


def _wide(given: Any) -> Any:
    """Return the type in which statistics of a tensor are held (``at::acc_type``)."""
    import torch

    return torch.float64 if given.dtype is torch.float64 else torch.float32


def _batch_statistics(given: Any, eps: float) -> Any:
    """``batch_norm_stats`` → mean and inverse deviation of each channel (cuda/Normalization.cu)."""
    return tuple(given.new_empty((given.shape[1],), dtype=_wide(given)) for _ in range(2))


def _gathered_statistics(given: Any, means: Any, *rest: Any) -> Any:
    """``batch_norm_gather_stats_with_counts`` → mean and inverse deviation over all ranks."""
    return tuple(means.new_empty((means.shape[1],), dtype=_wide(given)) for _ in range(2))


def _batch_sums(
    grad: Any, given: Any, mean: Any, deviation: Any, weight: Any, *wanted: bool
) -> Any:
    """``batch_norm_backward_reduce`` → two sums for the input, gradients of weight and bias."""
    sums = [mean.new_empty(mean.shape) if wanted[0] else None for _ in range(2)]
    like = mean if weight is None else weight
    return (*sums, *(like.new_empty(mean.shape) if each else None for each in wanted[1:]))


def _sampled(given: Any, grid: Any) -> Any:
    """``cudnn_grid_sampler`` → an image with the places of the grid."""
    return given.new_empty((*given.shape[:2], *grid.shape[1:3]))


def _affine_grid(theta: Any, images: int, channels: int, height: int, width: int) -> Any:
    """``cudnn_affine_grid_generator`` → two places for each pixel."""
    return theta.new_empty((images, height, width, 2))


def _affine_grid_backward(grad: Any, images: int, *rest: int) -> Any:
    """``cudnn_affine_grid_generator_backward`` → gradients of the matrices."""
    return grad.new_empty((images, 2, 3))


def _factors(given: Any) -> Any:
    """``geqrf`` → R with the reflectors below it, and their factors."""
    return (
        given.new_empty(given.shape),
        given.new_empty((*given.shape[:-2], min(given.shape[-2:]))),
    )


def _least_squares(given: Any, other: Any, rcond: Any = None, *, driver: Any = None) -> Any:
    """``linalg_lstsq`` → solutions, residuals where rows are more than columns; ranks: none.

    By ``gels``, which is all that there is on a GPU (BatchLinearAlgebra.cpp).
    """
    import torch

    rows, columns = given.shape[-2:]
    vector = other.dim() == 1 or (
        given.dim() - 1 == other.dim() and other.shape == given.shape[:-1]
    )
    batch = torch.broadcast_shapes(given.shape[:-2], other.shape[: -1 if vector else -2])
    width = () if vector else other.shape[-1:]
    residuals = (*batch, *width) if rows > columns else (0,)
    return (
        given.new_empty((*batch, columns, *width)),
        given.new_empty(residuals),
        given.new_empty((0,), dtype=torch.int64),
        given.new_empty((0,)),
    )


RESULTS: Mapping[str, Callable[..., Any]] = {
    "aten::_cudnn_rnn_flatten_weight": _flat_weights,
    "aten::_cudnn_rnn_backward": _recurrent_backward,
    "aten::_ctc_loss": _ctc,
    "aten::_ctc_loss_backward": _ctc_backward,
    "aten::_cudnn_ctc_loss": _ctc_of_cudnn,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten::_fused_sgd_": _nothing,
    "aten::_fused_adagrad_": _nothing,
    "aten::_fused_adam_": _nothing,
    "aten::_fused_adamw_": _nothing,
    "aten::batch_norm_stats": _batch_statistics,
    "aten::batch_norm_gather_stats_with_counts": _gathered_statistics,
    "aten::batch_norm_elemt": _as_first,
    "aten::batch_norm_backward_reduce": _batch_sums,
    "aten::batch_norm_backward_elemt": _as_second,
    "aten::multi_margin_loss_backward": _as_second,
    "aten::multilabel_margin_loss_backward": _as_second,
    "aten::fractional_max_pool3d_backward": _as_second,
    "aten::cudnn_grid_sampler": _sampled,
    "aten::cudnn_grid_sampler_backward": _as_first_and_second,
    "aten::cudnn_affine_grid_generator": _affine_grid,
    "aten::cudnn_affine_grid_generator_backward": _affine_grid_backward,
    "aten::_standard_gamma_grad": _as_first,
    "aten::_sample_dirichlet": _as_first,
    "aten::_dirichlet_grad": _as_first,
    "aten::binomial": _as_second,
    "aten::fake_quantize_per_tensor_affine_cachemask": _quantised,
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _quantised,
    "aten::fake_quantize_per_channel_affine_cachemask": _quantised,
    "aten::_fake_quantize_learnable_per_tensor_affine": _as_first,
    "aten::_fake_quantize_learnable_per_channel_affine": _as_first,
    "aten::_fake_quantize_learnable_per_tensor_affine_backward": _learnt_quantisation_backward,
    "aten::_fake_quantize_learnable_per_channel_affine_backward": _learnt_quantisation_backward,
    "aten::geqrf": _factors,
    "aten::linalg_lstsq": _least_squares,
}
"""Functions of an operator's arguments that make its results, by the operator's name."""
