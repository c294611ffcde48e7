"""Embeddings: tokens or image patches → vectors.

The vocabulary is spread over the tp group: each rank looks up what it has, and the results are
added up (``megatron/core/models/common/embeddings/language_model_embedding.py``). With sequence
parallelism a rank needs a share of the sequence alone, and the sum is a reduce-scatter; not so
where positions or token types are looked up, too, which Megatron-LM adds to the whole sequence.
"""

from __future__ import annotations

from mpisim.kernels.operations import Convolution, Copy, Elementwise, Embedding

from ...experiment.transformer import IMAGE_CHANNELS, TOKEN_TYPES
from ...program import Operation
from ..operators import Compute, Operator, Parameter, Task
from .autocast import autocast_copies, autocast_kept
from .pointwise import dropout, elementwise, norm
from .precision import accumulate_gradient
from .shapes import Shapes
from .tensor_parallel import reduce_output, tp_collective

__all__ = ["patch_embedding", "token_embedding"]


def token_embedding(
    s: Shapes, name: str = "embedding", *, parameters: bool = True
) -> tuple[Operator, ...]:
    """Tokens → hidden states: lookup, positions, token types, dropout.

    Parameters
    ----------
    s : Shapes
    name : str
    parameters : bool
        False where another stage lists the table.
    """
    model = s.model
    added = []
    if model.position == "learned":
        added.append(_replicated_lookup(s, f"{name} position", model.seq_len))
    if model.family == "bert":
        added.append(_replicated_lookup(s, f"{name} token type", TOKEN_TYPES))
    whole = bool(added)
    operators = [_vocabulary_lookup(s, name, whole=whole, parameters=parameters), *added]
    if whole and s.sequence_parallel:
        operators.append(_scatter_sequence(s, name))
    if model.family == "bert":
        operators.append(norm(s, f"{name} norm", s.sharded_tokens, model.hidden, casts=False))
    if model.dropout:
        operators.append(dropout(s, f"{name} dropout", s.sharded_tokens * model.hidden))
    return tuple(operators)


def patch_embedding(s: Shapes) -> tuple[Operator, ...]:
    """Images → hidden states: a convolution of patches, a class token, positions.

    ViT (arXiv:2010.11929, section 3.1), by a convolution as wide as its stride, as in Megatron-LM's
    `CLIPViTModel` (megatron/core/models/vision/clip_vit_model.py).
    """
    model, e, stream = s.model, s.element_size, s.stream_size
    side = model.image // model.patch
    size = IMAGE_CHANNELS * model.patch**2 * model.hidden
    dtype = s.matmul_format

    def convolution(direction: str) -> Convolution:
        return Convolution(
            s.batch,
            IMAGE_CHANNELS,
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
        Parameter(f"{name} weight", size, rows=model.hidden),
        Parameter(f"{name} bias", model.hidden),
        Parameter("class token", model.hidden, rows=1),
    )
    backward: list[Task] = [
        elementwise("class token backward", (e + stream) * tokens),
        Compute(f"{name} weight gradient", convolution("weight"), weight=True),
        Compute(
            f"{name} bias gradient",
            Elementwise.column_sums(e, s.tokens, model.hidden),
            weight=True,
        ),
    ]
    for parameter in parameters:
        narrow = parameter.name != "class token"
        backward += accumulate_gradient(s, parameter.name, parameter.size, narrow=narrow)
    pixels = s.batch * IMAGE_CHANNELS * model.image**2
    copied = {"pixels": pixels} | {each.name: each.size for each in parameters[:2]}
    patches = Operator(
        name,
        (
            *autocast_copies(s, copied),
            Compute(name, convolution("forward")),
            elementwise("class token", (e + stream) * tokens),
        ),
        tuple(backward),
        parameters,
        saved=e * pixels + autocast_kept(s, size),
    )
    positions = _added_table if s.autocast else _replicated_lookup
    operators = [patches, positions(s, "position", s.length)]
    if s.sequence_parallel:
        operators.append(_scatter_sequence(s, name))
    if model.dropout:
        operators.append(dropout(s, f"{name} dropout", s.sharded_tokens * model.hidden))
    return tuple(operators)


def _vocabulary_lookup(s: Shapes, name: str, *, whole: bool, parameters: bool) -> Operator:
    """Tokens → rows of the vocabulary's table, of which each rank of the tp group has a part.

    `whole`: all-reduced, as what is added to it has the whole sequence.
    """
    model, e = s.model, s.stream_size
    h, entries = model.hidden, s.vocabulary
    lookup = Embedding(s.tokens, h, entries, dtype=s.stream_format)
    adjoint = Embedding(s.tokens, h, entries, backward=True, dtype=s.stream_format)
    forward: list[Task] = [Compute(name, lookup)]
    backward: list[Task] = []
    if s.grid.tp > 1:
        forward.append(elementwise(f"{name} mask", e * s.tokens * h))
        if whole and s.sequence_parallel:
            forward.append(tp_collective(s, name, Operation.ALL_REDUCE, e * s.tokens * h))
        else:
            forward += reduce_output(s, name, h)
            if s.sequence_parallel:
                size = e * s.tokens * h
                backward.append(tp_collective(s, f"{name} gradient", Operation.ALL_GATHER, size))
        backward.append(elementwise(f"{name} mask backward", 2 * e * s.tokens * h))
    # The table's gradient is dense: filled with zeros, then added to by the rows looked up.
    backward += [
        Compute(f"{name} gradient fill", Copy(e * entries * h, "fill"), weight=True),
        Compute(f"{name} backward", adjoint, weight=True),
        *accumulate_gradient(s, f"{name} weight", entries * h, narrow=False),
    ]
    # A second copy beside the last blocks, for the head or to predict further tokens from.
    tied = model.tied_embeddings or model.mtp_layers > 0
    owned = (
        [Parameter(f"{name} weight", entries * h, tied=tied, rows=entries)] if parameters else []
    )
    return Operator(name, tuple(forward), tuple(backward), tuple(owned))


def _replicated_lookup(s: Shapes, name: str, entries: int) -> Operator:
    """Tokens → rows of a small table that every rank holds whole, added to the hidden states.

    The ranks of a tp group see the same tokens, so that its gradients agree by themselves. Where
    the model predicts several tokens, its last stage looks up in a copy.
    """
    h, e = s.model.hidden, s.stream_size
    lookup = Embedding(s.tokens, h, entries, dtype=s.stream_format)
    adjoint = Embedding(s.tokens, h, entries, backward=True, dtype=s.stream_format)
    forward = (Compute(name, lookup), elementwise(f"{name} sum", 3 * e * s.tokens * h))
    backward = (
        Compute(f"{name} gradient fill", Copy(e * entries * h, "fill"), weight=True),
        Compute(f"{name} backward", adjoint, weight=True),
        *accumulate_gradient(s, f"{name} weight", entries * h, narrow=False),
    )
    copied = s.model.mtp_layers > 0
    table = Parameter(f"{name} weight", entries * h, tied=copied, rows=entries)
    return Operator(name, forward, backward, (table,))


def _added_table(s: Shapes, name: str, entries: int) -> Operator:
    """Small table of a row for each token of a sequence, added to all sequences (timm's ViT)."""
    h, size = s.model.hidden, s.stream_size * s.tokens * s.model.hidden
    backward = (
        Compute(f"{name} backward", Elementwise(size), weight=True),
        *accumulate_gradient(s, f"{name} weight", entries * h, narrow=False),
    )
    table = Parameter(f"{name} weight", entries * h, rows=1)
    return Operator(name, (elementwise(f"{name} sum", 2 * size),), backward, (table,))


def _scatter_sequence(s: Shapes, name: str) -> Operator:
    """Whole sequence → this rank's share; its gradient is gathered."""
    h, e = s.model.hidden, s.element_size
    gather = tp_collective(s, f"{name} gradient", Operation.ALL_GATHER, e * s.tokens * h)
    return Operator(
        f"{name} scatter",
        (elementwise(f"{name} scatter", 2 * e * s.sharded_tokens * h),),
        (gather,),
    )
