"""T5 (arXiv:1910.10683): an encoder, then a decoder that also attends to the encoder's output.

From the first layer of the decoder on, a pipeline hands on both. The decoder's tokens are looked up
where it begins, in the table that the first stage and the head share; its gradient counts there.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..operators import Layer, Operator
from .embedding import token_embedding
from .feed_forward import feed_forward
from .head import vocabulary_head
from .layers import layer
from .pointwise import dropout, norm
from .self_attention import cross_attention, relative_bias, self_attention
from .shapes import Shapes

__all__ = ["encoder_decoder"]


def encoder_decoder(s: Shapes) -> Iterator[Layer]:
    """Return the layers of encoder and decoder."""
    model = s.model
    d = s.of_length(model.decoder_seq_len or model.seq_len)
    yield layer(s, "embedding", token_embedding(s), "embedding")
    relative = model.position == "relative"

    encoder = (*self_attention(s), *feed_forward(s))
    end = _end(s, "encoder", s.element * s.shared * model.hidden)
    for i in range(model.layers):
        operators = encoder
        if relative and i == 0:
            operators = (relative_bias(s, "encoder relative bias"), *operators)
        if i == model.layers - 1:
            operators = (*operators, *end)
        yield layer(s, f"encoder layer {i}", operators)

    decoder = (*self_attention(d, causal=True), *cross_attention(d, s), *feed_forward(d))
    start = token_embedding(d, "decoder embedding", parameters=False)
    if relative:
        start = (*start, relative_bias(d, "decoder relative bias"))
    encoded = s.element * s.shared * model.hidden
    for i in range(model.decoder_layers):
        yield layer(d, f"decoder layer {i}", decoder if i else (*start, *decoder), beside=encoded)
    yield layer(d, "head", vocabulary_head(d), "head")


def _end(s: Shapes, name: str, keep: int) -> tuple[Operator, ...]:
    """The encoder's last norm; all layers of the decoder keep what comes out, counted once."""
    size = s.shared * s.model.hidden
    last = norm(s, f"{name} final norm", s.shared, s.model.hidden)
    if s.model.dropout:
        drop = dropout(s, f"{name} dropout", size)
        return (last, Operator(drop.name, drop.forward, drop.backward, (), drop.saved + keep))
    return (Operator(last.name, last.forward, last.backward, last.parameters, last.saved + keep),)
