"""What comes before the first block: tokens or patches become vectors.

The vocabulary is spread over the tp group: each rank looks up what it has, and the results are
added up (``megatron/core/models/common/embeddings/language_model_embedding.py``). With sequence
parallelism a rank needs a share of the sequence alone, and the sum is a reduce-scatter; not so
where positions or token types are looked up, too, which Megatron-LM adds to the whole sequence.
"""

from __future__ import annotations

from mpisim.kernels.operations import Convolution, Copy, Elementwise, Embedding

from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .gradients import accumulate
from .pointwise import dropout, norm, stream
from .shapes import Shapes
from .tensor_parallel import exchange, reduce

__all__ = ["CHANNELS", "TOKEN_TYPES", "patch_embedding", "token_embedding"]

TOKEN_TYPES = 2
"""Of BERT: which of two sentences a token belongs to."""
CHANNELS = 3
"""Of an image."""


def token_embedding(
    s: Shapes, name: str = "embedding", *, parameters: bool = True
) -> tuple[Operator, ...]:
    """Look up tokens, add positions, drop out.

    Parameters
    ----------
    s : Shapes
    name : str
    parameters : bool
        False where the table is another stage's.
    """
    model = s.model
    added = []
    if model.position == "learned":
        added.append(_table(s, f"{name} position", model.seq_len))
    if model.family == "bert":
        added.append(_table(s, f"{name} token type", TOKEN_TYPES))
    whole = bool(added)
    operators = [_words(s, name, whole=whole, parameters=parameters), *added]
    if whole and s.sequence_parallel:
        operators.append(_scatter(s, name))
    if model.family == "bert":
        operators.append(norm(s, f"{name} norm", s.shared, model.hidden))
    if model.dropout:
        operators.append(dropout(s, f"{name} dropout", s.shared * model.hidden))
    return tuple(operators)


def patch_embedding(s: Shapes) -> tuple[Operator, ...]:
    """Patches of images through a convolution as wide as its stride, a class token, positions."""
    model, e = s.model, s.element
    side = model.image // model.patch
    size = CHANNELS * model.patch**2 * model.hidden
    dtype = s.product

    def convolution(direction: str) -> Convolution:
        return Convolution(
            s.batch,
            CHANNELS,
            model.hidden,
            side,
            side,
            model.patch,
            model.patch,
            direction=direction,  # type: ignore[arg-type]
            dtype=dtype,
        )

    name, tokens = "patch embedding", s.tokens * model.hidden
    parameters = (
        Parameter(f"{name} weight", size),
        Parameter(f"{name} bias", model.hidden),
        Parameter("class token", model.hidden),
    )
    backward: list[Task] = [
        stream("class token backward", 2 * e * tokens),
        Compute(f"{name} weight gradient", convolution("weight"), weight=True),
        Compute(f"{name} bias gradient", Elementwise(e * tokens), weight=True),
    ]
    for parameter in parameters:
        backward += accumulate(s, parameter.name, parameter.size)
    pixels = e * s.batch * CHANNELS * model.image**2
    patches = Operator(
        name,
        (Compute(name, convolution("forward")), stream("class token", 2 * e * tokens)),
        tuple(backward),
        parameters,
        saved=pixels,
    )
    operators = [patches, _table(s, "position", s.length)]
    if s.sequence_parallel:
        operators.append(_scatter(s, name))
    if model.dropout:
        operators.append(dropout(s, f"{name} dropout", s.shared * model.hidden))
    return tuple(operators)


def _words(s: Shapes, name: str, *, whole: bool, parameters: bool) -> Operator:
    model, e = s.model, s.element
    h, entries = model.hidden, s.vocabulary
    lookup = Embedding(s.tokens, h, entries, dtype=s.stored)
    adjoint = Embedding(s.tokens, h, entries, backward=True, dtype=s.stored)
    forward: list[Task] = [Compute(name, lookup)]
    backward: list[Task] = []
    if s.grid.tp > 1:
        forward.append(stream(f"{name} mask", e * s.tokens * h))
        if whole and s.sequence_parallel:
            forward.append(exchange(s, name, Operation.ALL_REDUCE, e * s.tokens * h))
        else:
            forward += reduce(s, name, h)
            if s.sequence_parallel:
                size = e * s.tokens * h
                backward.append(exchange(s, f"{name} gradient", Operation.ALL_GATHER, size))
        backward.append(stream(f"{name} mask backward", 2 * e * s.tokens * h))
    # The table's gradient is dense: filled with zeros, then added to by the rows looked up.
    backward += [
        Compute(f"{name} gradient fill", Copy(e * entries * h, "fill"), weight=True),
        Compute(f"{name} backward", adjoint, weight=True),
        *accumulate(s, f"{name} weight", entries * h),
    ]
    # A second copy beside the last blocks, for the head or to predict further tokens from.
    tied = model.tied_embeddings or model.mtp_layers > 0
    owned = [Parameter(f"{name} weight", entries * h, tied=tied)] if parameters else []
    return Operator(name, tuple(forward), tuple(backward), tuple(owned))


def _table(s: Shapes, name: str, entries: int) -> Operator:
    """Look up a small table that every rank holds whole, and add.

    The ranks of a tp group see the same tokens, so that its gradients agree by themselves. Where
    the model predicts several tokens, its last stage looks up in a copy.
    """
    h, e = s.model.hidden, s.element
    lookup = Embedding(s.tokens, h, entries, dtype=s.stored)
    adjoint = Embedding(s.tokens, h, entries, backward=True, dtype=s.stored)
    forward = (Compute(name, lookup), stream(f"{name} sum", 3 * e * s.tokens * h))
    backward = (
        Compute(f"{name} gradient fill", Copy(e * entries * h, "fill"), weight=True),
        Compute(f"{name} backward", adjoint, weight=True),
        *accumulate(s, f"{name} weight", entries * h),
    )
    copied = s.model.mtp_layers > 0
    table = Parameter(f"{name} weight", entries * h, tied=copied)
    return Operator(name, forward, backward, (table,))


def _scatter(s: Shapes, name: str) -> Operator:
    """Keep a share of the sequence; its gradient is gathered."""
    h, e = s.model.hidden, s.element
    gather = exchange(s, f"{name} gradient", Operation.ALL_GATHER, e * s.tokens * h)
    return Operator(
        f"{name} scatter", (stream(f"{name} scatter", 2 * e * s.shared * h),), (gather,)
    )
