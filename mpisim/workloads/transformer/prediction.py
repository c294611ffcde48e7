"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2).

Each module joins the hidden states with the embeddings of the next tokens, passes them through a
block of its own and predicts one token further. Embedding and projection on the vocabulary are
the model's. Order as in ``megatron/core/transformer/multi_token_prediction.py``.
"""

from __future__ import annotations

from ...program import Operation
from ..operators import Operator, Task
from .embedding import token_embedding
from .head import logits
from .pointwise import norm, stream
from .shapes import Shapes
from .tensor_parallel import column_linear, exchange

__all__ = ["prediction_layer"]


def prediction_layer(
    s: Shapes, block: tuple[Operator, ...], *, first: bool
) -> tuple[Operator, ...]:
    """Return one module.

    Parameters
    ----------
    s : Shapes
    block : tuple of Operator
        Of the model's last layer, whose like it has.
    first : bool
        Whether it is the first module. The gradient of the matrix of scores is complete when the
        backward has come there: the matrix is listed with it.
    """
    h, e = s.model.hidden, s.element
    size = s.shared * h
    joined = Operator(
        "prediction join",
        (stream("prediction join", 4 * e * size),),
        (stream("prediction join backward", 4 * e * size),),
    )
    return (
        *token_embedding(s, "prediction embedding"),
        norm(s, "prediction embedding norm", s.shared, h),
        norm(s, "prediction hidden norm", s.shared, h),
        joined,
        column_linear(s, "prediction", 2 * h, h // s.grid.tp),
        *_whole(s),
        *block,
        norm(s, "prediction final norm", s.shared, h),
        *logits(s, parameters=first),
    )


def _whole(s: Shapes) -> tuple[Operator, ...]:
    """Bring the columns of all ranks together, then keep a share of the sequence."""
    if s.grid.tp == 1:
        return ()
    size = s.element * s.tokens * s.model.hidden
    share = s.element * s.shared * s.model.hidden
    forward: list[Task] = [
        exchange(s, "prediction columns", Operation.ALL_GATHER, size),
        stream("prediction columns", 2 * size),
    ]
    backward: list[Task] = [stream("prediction columns backward", 2 * size // s.grid.tp)]
    if s.sequence_parallel:
        forward.append(stream("prediction scatter", 2 * share))
        backward.insert(0, exchange(s, "prediction scatter gradient", Operation.ALL_GATHER, size))
    return (Operator("prediction columns", tuple(forward), tuple(backward)),)
