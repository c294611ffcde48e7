"""Recurrent layers of cuDNN, and cells of PyTorch → products and what gates do between them.

A layer multiplies its whole input by the input's weights at once, then, step by step, the state by
the state's weights, behind which one kernel does what the gates do (Appleyard, Kocisky and Blunsom,
"Optimizing Performance of Recurrent Neural Networks on GPUs", arXiv:1604.01946, sections 3.1 to
3.3). Backward as many steps give the gradient of the state, and one product each those of the input
and of both weights. cuDNN has more ways: layers that run beside each other, and a kernel that keeps
the weights of all steps; which one it takes is not published.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..base.frozen import frozen
from ..kernels.operations import Kernel
from .call import OperatorCall, TensorSpec
from .products import product
from .streams import stream
from .tensors import all_tensors, element_bytes, number, numbers, tensor, touched

__all__ = ["ONE_CALL", "cell", "ctc", "ctc_backward", "layers", "layers_backward"]

Kernels = tuple[Kernel, ...]

ONE_CALL = ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward")
"""Operators that cuDNN launches the kernels of, one right after the other."""

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Of cuDNN's modes: RNN with relu and with tanh, LSTM, GRU (cudnnRNNMode_t)."""
_NEVER = ((0.0, True), (0.0, False))
"""Share that is dropped, and whether it is training, where nothing is."""
_GATES_READ = 2
"""Parts of the gates: of the input, and of the state."""


@frozen
class _Layer:
    """A direction of a layer: steps, samples of a step, and sizes of input, state and gates.

    The first direction of all layers but the first may have its input dropped out.
    """

    steps: int
    batch: int
    rows: int
    inputs: int
    hidden: int
    state: int
    gates: int
    dropped: bool


def _layers(call: OperatorCall, mode: int) -> Iterator[tuple[TensorSpec, _Layer]]:
    """Return the directions of all layers, the first of which reads the input."""
    given = tensor(call, 0)
    hidden, projected, count = (number(call, mode + i, 0) for i in (1, 2, 3))
    if given is None or not given.shape or min(hidden, count) < 1:
        return
    packed = numbers(call, mode + 8) or ()
    if packed:  # rows of all samples, those of a step behind one another
        steps, rows = len(packed), sum(packed)
    elif len(given.shape) == 3:
        steps = given.shape[1 if number(call, mode + 4, 0) else 0]
        rows = math.prod(given.shape[:2])
    else:
        return
    state = projected or hidden
    ways = 2 if number(call, mode + 7, 0) else 1
    for i in range(count):
        inputs = given.shape[-1] if i == 0 else ways * state
        gates = _GATES.get(number(call, mode, 2), 4)
        dropped = i > 0 and call.inputs[mode + 5 : mode + 7] not in _NEVER
        for way in range(ways):
            batch = -(-rows // max(steps, 1))
            yield (
                given,
                _Layer(steps, batch, rows, inputs, hidden, state, gates, dropped and way == 0),
            )


def layers(call: OperatorCall) -> Kernels | None:
    """``_cudnn_rnn`` (input, weights, …) → for each layer the input's product, and its steps."""
    found: list[Kernel] = []
    for given, layer in _layers(call, 6):
        size = element_bytes(given.dtype)
        wide = layer.gates * layer.hidden
        if layer.dropped:
            found += stream(2 * size * layer.rows * layer.inputs)
        found += product(given, layer.rows, wide, layer.inputs)
        step = (
            *product(given, layer.batch, wide, layer.state),
            *stream(size * layer.batch * (_GATES_READ * wide + 3 * layer.hidden)),
        )
        if layer.state != layer.hidden:
            step = (*step, *product(given, layer.batch, layer.state, layer.hidden))
        found += step * layer.steps
    return tuple(found) or None


def layers_backward(call: OperatorCall) -> Kernels | None:
    """``_cudnn_rnn_backward`` → steps, and gradients of input and weights, for each layer."""
    found: list[Kernel] = []
    for given, layer in _layers(call, 10):
        size = element_bytes(given.dtype)
        wide = layer.gates * layer.hidden
        step = (
            *stream(size * layer.batch * (_GATES_READ * wide + 4 * layer.hidden)),
            *product(given, layer.batch, layer.state, wide),
        )
        if layer.state != layer.hidden:
            step = (*step, *product(given, layer.batch, layer.hidden, layer.state))
        found += step * layer.steps
        found += product(given, layer.rows, layer.inputs, wide)
        found += product(given, wide, layer.inputs, layer.rows)
        found += product(given, wide, layer.state, layer.rows)
        found += stream(size * layer.rows * wide)  # biases
        if layer.dropped:
            found += stream(2 * size * layer.rows * layer.inputs)
    return tuple(found) or None


def cell(call: OperatorCall) -> Kernels | None:
    """``_thnn_fused_lstm_cell``, ``_thnn_fused_gru_cell`` → one kernel of all gates."""
    return stream(sum(map(touched, all_tensors((*call.inputs, *call.outputs))))) or None


def ctc(call: OperatorCall) -> Kernels | None:
    """``_ctc_loss`` (scores, targets, …) → one kernel that goes through alpha step by step.

    ``ctc_loss_log_alpha_gpu_kernel`` of aten/src/ATen/native/cuda/LossCTC.cu: of each state of a
    step three before it and a score are read, and it is written.
    """
    alpha = tuple(all_tensors(call.outputs))[-1:]
    if not alpha:
        return None
    return stream(5 * touched(alpha[0]))


def ctc_backward(call: OperatorCall) -> Kernels | None:
    """``_ctc_loss_backward`` → beta like alpha, and the gradient collected for each class.

    ``ctc_loss_backward_log_beta_gpu_kernel`` and one of the two that collect, behind a fill.
    """
    scores = tensor(call, 1)
    if scores is None:
        return None
    alpha = tensor(call, 6)
    states = touched(alpha if alpha is not None else scores)
    size = touched(scores)
    return (*stream(5 * states), *stream(size), *stream(2 * states + 2 * size))
