"""A transformer as layers of operators, in the shapes of one rank.

Decoders, encoders and ViT are one stack of blocks. T5 (arXiv:1910.10683) is an encoder, then a
decoder that also attends to the encoder's output: from the first layer of the decoder on, a
pipeline hands on both. The decoder's tokens are looked up where it begins, in the table that the
first stage and the head share; its gradient counts there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from ...experiment.model_counts import model_flops, samples
from ...experiment.models import Transformer
from ...experiment.plan import Plan
from ..grid import Grid
from ..operators import Layer, LayerStack, Operator
from ..recomputation import with_stack_writes
from .adapters import adapt, freeze_embedding
from .attention import cross_attention, relative_bias, self_attention
from .embedding import patch_embedding, token_embedding
from .feed_forward import feed_forward
from .head import (
    classifier_head,
    masked_language_head,
    multi_token_prediction,
    vocabulary_head,
)
from .mixture_of_experts import mixture_of_experts
from .module_options import capture_module
from .pointwise import dropout, norm
from .precision import split_accumulators
from .recurrence import gated_delta_layer, mamba_layer
from .segment_memory import clustered_embedding, memory_attention
from .shapes import Shapes

__all__ = ["transformer_network"]

Role = Literal["embedding", "block", "head"]

MOST_LAYERS = 512
"""Kinds of layers that are kept, of up to 30 KB each."""


def transformer_network(model: Transformer, plan: Plan, grid: Grid) -> LayerStack:
    """Model, plan and grid → one rank's layers of operators for one micro-batch.

    All ranks of a pipeline stage do the same.

    Parameters
    ----------
    model : Transformer
    plan : Plan
    grid : Grid
        How many ranks share the model along each axis.

    Raises
    ------
    InputError
        If the plan cannot share the model's dimensions; the message names the keys.
    """
    s = Shapes.of(model, plan, grid)
    layers = _encoder_decoder(s) if model.family == "t5" else _stack_of_blocks(s)
    return LayerStack(
        tuple(layers), model_flops(model, plan.micro_batch), samples(model, plan.micro_batch)
    )


def _stack_of_blocks(s: Shapes) -> Iterator[Layer]:
    """Embedding, blocks, modules of multi-token prediction, head."""
    model = s.model
    embedding = patch_embedding(s) if model.family == "vit" else token_embedding(s)
    if model.cutoffs:
        embedding = clustered_embedding(s)
    yield _layer(s, "embedding", embedding, "embedding")
    # Layers of one kind are one and the same tuple: built once, recognised as equal at once.
    kinds: dict[tuple[str, bool, bool], tuple[Operator, ...]] = {}
    precision = s.plan.precision
    quantised = range(precision.first_wide, model.layers - precision.last_wide)
    for i in range(model.layers):
        kind = letters, windowed, _ = model.kind(i), model.windowed(i), i in quantised
        if kind not in kinds:
            of_layer = s if i in quantised else s.wide()
            shapes = of_layer if windowed else of_layer.without_window()
            kinds[kind] = _one_of_equals(_block(shapes, letters))
        yield _layer(s, f"layer {i}", kinds[kind])
    further = s.wide("mtp")
    if not (model.mtp_pattern or model.windowed(model.layers - 1)):
        further = further.without_window()
    block = _block(further, model.kinds[-1]) if model.mtp_layers else ()
    for i in range(model.mtp_layers):
        module = multi_token_prediction(further, block, first=not i)
        predicting = split_accumulators(further, module)
        if model.mtp_shared and i:
            predicting = tuple(replace(each, parameters=()) for each in predicting)
        yield _layer(s, f"prediction {i}", predicting, "head")
    if model.family == "vit":
        head = classifier_head(s)
    elif model.family == "bert":
        head = masked_language_head(s)
    else:
        head = vocabulary_head(s)
    yield _layer(s, "head", head, "head")


def _block(s: Shapes, letters: str) -> tuple[Operator, ...]:
    """Kind of a layer (`Transformer.kind`) → its operators."""
    attention = memory_attention if s.model.memory else self_attention
    parts = {
        "M": mamba_layer,
        "G": gated_delta_layer,
        "*": lambda s: capture_module(s, "attn", attention(s.wide("attention"))),
        "-": feed_forward,
        "E": mixture_of_experts,
    }
    operators = tuple(operator for letter in letters for operator in parts[letter](s))
    return adapt(s, split_accumulators(s, operators))


@lru_cache(maxsize=MOST_LAYERS)
def _one_of_equals(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a layer → the first that were equal to them.

    Networks of plans that differ in other layers, or in other things, then have one tuple: whatever
    is kept of it is found without looking into it.
    """
    return operators


def _encoder_decoder(s: Shapes) -> Iterator[Layer]:
    """Embedding, blocks of the encoder, blocks of the decoder, head (T5)."""
    model = s.model
    d = s.with_length(model.decoder_seq_len or model.seq_len)
    yield _layer(s, "embedding", token_embedding(s), "embedding")
    relative = model.position == "relative"

    encoder = (*self_attention(s), *feed_forward(s))
    end = _encoder_end(s, "encoder", s.element_size * s.sharded_tokens * model.hidden)
    for i in range(model.layers):
        operators = encoder
        if relative and i == 0:
            operators = (relative_bias(s, "encoder relative bias"), *operators)
        if i == model.layers - 1:
            operators = (*operators, *end)
        yield _layer(s, f"encoder layer {i}", operators)

    decoder = (*self_attention(d, causal=True), *cross_attention(d, s), *feed_forward(d))
    start = token_embedding(d, "decoder embedding", parameters=False)
    if relative:
        start = (*start, relative_bias(d, "decoder relative bias"))
    encoded = s.element_size * s.sharded_tokens * model.hidden
    for i in range(model.decoder_layers):
        yield _layer(
            d, f"decoder layer {i}", decoder if i else (*start, *decoder), extra_output=encoded
        )
    yield _layer(d, "head", vocabulary_head(d), "head")


def _encoder_end(s: Shapes, name: str, keep: int) -> tuple[Operator, ...]:
    """The encoder's last norm; all layers of the decoder keep its output, counted once."""
    size = s.sharded_tokens * s.model.hidden
    last = norm(s, f"{name} final norm", s.sharded_tokens, s.model.hidden)
    if s.model.dropout:
        drop = dropout(s, f"{name} dropout", size)
        return (last, Operator(drop.name, drop.forward, drop.backward, (), drop.saved + keep))
    return (Operator(last.name, last.forward, last.backward, last.parameters, last.saved + keep),)


def _layer(
    s: Shapes,
    name: str,
    operators: tuple[Operator, ...],
    role: Role = "block",
    *,
    extra_output: int = 0,
) -> Layer:
    """Operators → a layer whose input and output are hidden states.

    Parameters
    ----------
    s : Shapes
    name : str
    operators : tuple of Operator
    role : {"embedding", "block", "head"}
    extra_output : int
        Bytes handed on besides its own output.
    """
    output = s.stream_size * s.sharded_tokens * s.model.hidden
    if s.model.lora_rank and role == "embedding":
        operators = freeze_embedding(operators)
    elif role != "block":
        operators = adapt(s, operators)
    if role != "block":
        operators = _one_of_equals(operators)
    else:
        operators = with_stack_writes(s.plan, operators, output)
    return Layer(name, operators, role, output + extra_output, output)
