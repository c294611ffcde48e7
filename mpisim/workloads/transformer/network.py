"""A transformer as layers of operators, in the shapes of one rank."""

from __future__ import annotations

from collections.abc import Iterable

from ...experiment.models import Transformer
from ...experiment.plan import Plan
from ..grid import Grid
from ..model_counts import model_flops, samples
from ..operators import Layer, Network, Operator
from .accumulation import split_sums
from .decoder import encoder_decoder
from .embedding import patch_embedding, token_embedding
from .feed_forward import feed_forward
from .graphs import captured
from .head import classifier_head, masked_language_head, vocabulary_head
from .layers import layer
from .mixture import mixture
from .prediction import prediction_layer
from .self_attention import self_attention
from .shapes import Shapes

__all__ = ["transformer_network"]


def transformer_network(model: Transformer, plan: Plan, grid: Grid) -> Network:
    """Return what one rank does for one micro-batch; all ranks of a stage do the same.

    Parameters
    ----------
    model : Transformer
    plan : Plan
    grid : Grid

    Returns
    -------
    Network

    Raises
    ------
    InputError
        If the plan cannot share the model's dimensions; the message names the keys.
    """
    s = Shapes.of(model, plan, grid)
    layers = encoder_decoder(s) if model.family == "t5" else _stack(s)
    return Network(
        tuple(layers), model_flops(model, plan.micro_batch), samples(model, plan.micro_batch)
    )


def _stack(s: Shapes) -> Iterable[Layer]:
    model = s.model
    embedding = patch_embedding(s) if model.family == "vit" else token_embedding(s)
    yield layer(s, "embedding", embedding, "embedding")
    # Layers of one kind are one and the same tuple: built once, recognised as equal at once.
    kinds: dict[tuple[bool, bool], tuple[Operator, ...]] = {}
    for i in range(model.layers):
        kind = moe, windowed = model.is_moe(i), model.windowed(i)
        if kind not in kinds:
            seen = s if windowed else s.unwindowed()
            attention = captured(s, "attn", self_attention(seen))
            half = mixture(s) if moe else feed_forward(s)
            kinds[kind] = split_sums(s, (*attention, *half))
        yield layer(s, f"layer {i}", kinds[kind])
    for i in range(model.mtp_layers):
        block = kinds[kind]  # the last layer's
        predicting = split_sums(s, prediction_layer(s, block, first=not i))
        yield layer(s, f"prediction {i}", predicting, "head")
    if model.family == "vit":
        head = classifier_head(s)
    elif model.family == "bert":
        head = masked_language_head(s)
    else:
        head = vocabulary_head(s)
    yield layer(s, "head", head, "head")
