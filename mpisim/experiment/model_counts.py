"""Parameters and model FLOPs of a transformer, from its dimensions.

They know nothing of operators or kernels: they define the FLOPs that utilisation counts, and tests
compare the generated workload with them.

Conventions: a multiplication and an addition are two operations; backward is twice forward;
recomputation does not count. Of causal attention only the half that the mask leaves counts, as in
Megatron-LM's `num_floating_point_operations`. Vocabularies are not padded.
"""

from __future__ import annotations

import itertools
from collections import Counter

from .models import Transformer
from .transformer import IMAGE_CHANNELS, RELATIVE_BUCKETS, TOKEN_TYPES

__all__ = [
    "active_matrices",
    "attention_flops",
    "feed_forward_matrices",
    "matrix_flops",
    "model_flops",
    "parameters",
    "patch_flops",
    "recurrence_flops",
    "samples",
]


# --- parameters -----------------------------------------------------------------------------------


def attention_matrices(model: Transformer) -> int:
    """Return the elements of the matrices of one attention."""
    h, a = model.hidden, model.heads
    out = a * model.value_head * h
    if model.attention == "mha":
        queries = a * model.head * (2 if model.attention_gate else 1)
        positions = h * a * model.head if model.memory else 0
        return h * (queries + model.kv * (model.head + model.value_head)) + out + positions
    rank = model.q_lora_rank
    queries = h * rank + rank * a * model.head if rank else h * a * model.head
    down = h * (model.kv_lora_rank + model.qk_rope_head_size)
    up = model.kv_lora_rank * a * (model.qk_nope_head_size + model.v_head_size)
    return queries + down + up + out


def feed_forward_matrices(model: Transformer, width: int) -> int:
    """Return the elements of the matrices of a feed-forward block of an inner width.

    Parameters
    ----------
    model : Transformer
    width : int
        Elements of a token between the two products.
    """
    return (3 if model.gated else 2) * model.hidden * width


def mixture_matrices(model: Transformer, experts: int) -> int:
    """Return those of a mixture: so many routed experts, the shared ones, and the router.

    Parameters
    ----------
    model : Transformer
    experts : int
        Routed experts that count: all the model has, or those that one token is sent to.
    """
    matrices = feed_forward_matrices(model, model.shared_ffn) + model.hidden * model.experts
    routed = feed_forward_matrices(model, experts * model.expert_ffn)
    if model.moe_latent is not None:  # experts are in the latent width, with a matrix to and fro
        routed = routed * model.moe_latent // model.hidden
        matrices += 2 * model.hidden * model.moe_latent
    return matrices + routed


def mamba_matrices(model: Transformer) -> int:
    """Return the elements of the matrices into and out of a Mamba-2 layer."""
    inner, shared = model.mamba_inner, 2 * model.mamba_groups * model.mamba_state
    return model.hidden * (2 * inner + shared + model.mamba_heads) + inner * model.hidden


def delta_matrices(model: Transformer) -> int:
    """Return the elements of the matrices into and out of a layer of the gated delta rule."""
    values = model.delta_value_heads * model.delta_value_size
    keys = model.delta_key_heads * model.delta_key_size
    return model.hidden * (2 * keys + 2 * values + 2 * model.delta_value_heads + values)


def _matrices(model: Transformer, letter: str) -> int:
    """Matrices that one token is multiplied with in a part of a layer."""
    if letter == "*":
        return attention_matrices(model)
    if letter == "-":
        return feed_forward_matrices(model, model.ffn)
    if letter == "E":
        return mixture_matrices(model, model.topk)
    return mamba_matrices(model) if letter == "M" else delta_matrices(model)


def active_matrices(model: Transformer) -> int:
    """Transformer → elements of the matrices that one token is multiplied with.

    Parameters
    ----------
    model : Transformer

    Returns
    -------
    int
        Those of the output layer included. Of T5 those of encoder and decoder together; each token
        passes one of them.
    """
    h = model.hidden
    letters = Counter("".join(model.kinds))
    total = sum(number * _matrices(model, letter) for letter, number in letters.items())
    total += decoder_matrices(model)
    total += model.mtp_layers * 2 * h * h
    total += (1 + model.mtp_layers) * _score_matrices(model)
    return total + (h * h if model.family == "bert" else 0)


def _score_matrices(model: Transformer) -> int:
    """Matrices from hidden states to scores that a token is multiplied with, in the mean."""
    h = model.hidden
    if not model.cutoffs:
        return model.vocab * h
    total = (model.cutoffs[0] + len(model.cutoffs)) * h
    for i, (words, share) in enumerate(zip(_tails(model), model.cutoff_shares, strict=True), 1):
        width = max(1, h // model.cutoff_divisor**i)
        # Scores, and beside narrower vectors a matrix on the way out and one on the way in.
        total += round(share * (words * width + (2 * h * width if width < h else 0)))
    return total


def _tails(model: Transformer) -> list[int]:
    """Words of the clusters behind the first."""
    bounds = (*model.cutoffs, model.vocab)
    return [last - first for first, last in itertools.pairwise(bounds)]


def decoder_matrices(model: Transformer) -> int:
    """Return the elements of the matrices of T5's decoder: two attentions a layer."""
    each = 2 * attention_matrices(model) + feed_forward_matrices(model, model.ffn)
    return model.decoder_layers * each


def parameters(model: Transformer) -> int:
    """Transformer → its number of parameters.

    Parameters
    ----------
    model : Transformer

    Returns
    -------
    int
        Those of multi-token prediction included.
    """
    h = model.hidden
    norm = 2 * h if model.norm == "layer" else h
    letters = Counter("".join(model.kinds[: model.layers]))
    total = sum(number * _part_parameters(model, letter) for letter, number in letters.items())
    total += norm  # the last
    if model.family == "vit":
        total += IMAGE_CHANNELS * model.patch**2 * h + h + h + model.seq_len * h
        return total + model.classes * (h + 1)
    if model.cutoffs:
        total += model.cutoffs[0] * h
        for i, words in enumerate(_tails(model), 1):
            width = max(1, h // model.cutoff_divisor**i)
            total += words * width + (2 * h * width if width < h else 0)
    else:
        total += model.vocab * h * (1 if model.tied_embeddings else 2)
    if model.position == "learned":
        total += model.seq_len * h
    if model.family == "bert":
        # Token types and the norm after the embeddings; the heads: a matrix, a norm and a bias of
        # the vocabulary for words, two matrices for sentences.
        total += TOKEN_TYPES * h + norm
        total += h * h + h + norm + model.vocab + h * h + h + 2 * h + 2
    if model.family == "t5":
        cross = _attention_parameters(model)
        each = _attention_parameters(model) + cross + _part_parameters(model, "-")
        total += model.decoder_layers * each + norm
    if model.position == "relative":
        stacks = 2 if model.family == "t5" else 1
        total += stacks * RELATIVE_BUCKETS * model.heads
    modules = min(model.mtp_layers, 1) if model.mtp_shared else model.mtp_layers
    for kind in model.kinds[model.layers : model.layers + modules]:
        total += sum(_part_parameters(model, letter) for letter in kind) + 2 * h * h + 3 * norm
    return total


def _part_parameters(model: Transformer, letter: str) -> int:
    """Parameters of a part of a layer, the norm before it included."""
    if letter == "*":
        return _attention_parameters(model)
    if letter in "-E":
        return _feed_forward_parameters(model, experts=letter == "E")
    before = (2 if model.norm == "layer" else 1) * model.hidden
    taps = model.convolution
    if letter == "M":
        # Convolution with bias; step size, decay and way past the state of each head; gated norm.
        channels = model.mamba_inner + 2 * model.mamba_groups * model.mamba_state
        own = channels * (taps + 1) + 3 * model.mamba_heads + model.mamba_inner
        return before + mamba_matrices(model) + own
    keys = model.delta_key_heads * model.delta_key_size
    values = model.delta_value_heads * model.delta_value_size
    own = (2 * keys + values) * taps + 2 * model.delta_value_heads + model.delta_value_size
    return before + delta_matrices(model) + own


def _attention_parameters(model: Transformer) -> int:
    """Matrices, biases and norms of one attention, the norm before it included."""
    total = attention_matrices(model) + (2 if model.norm == "layer" else 1) * model.hidden
    if model.bias:
        total += model.hidden
    if model.attention == "mla":
        each = 2 if model.norm == "layer" else 1
        return total + each * (model.q_lora_rank + model.kv_lora_rank)
    if model.has_qkv_bias:
        total += model.heads * model.head + model.kv * (model.head + model.value_head)
    if model.qk_norm:
        total += (4 if model.norm == "layer" else 2) * model.head
    return total


def _feed_forward_parameters(model: Transformer, *, experts: bool) -> int:
    total = (2 if model.norm == "layer" else 1) * model.hidden
    if experts:
        total += mixture_matrices(model, model.experts)
        if model.bias:
            each = (2 if model.gated else 1) * model.expert_ffn + model.hidden
            total += model.experts * each
        return total
    total += feed_forward_matrices(model, model.ffn)
    if model.bias:
        total += (2 if model.gated else 1) * model.ffn + model.hidden
    return total


# --- FLOPs ----------------------------------------------------------------------------------------


def samples(model: Transformer, batch: int) -> int:
    """Return what a batch of sequences is counted as: tokens, of ViT images.

    Parameters
    ----------
    model : Transformer
    batch : int
        Sequences, of ViT images.

    Returns
    -------
    int
        Tokens of encoder and decoder together, or images.
    """
    if model.family == "vit":
        return batch
    return batch * (model.seq_len + _decoder_length(model))


def matrix_flops(model: Transformer, batch: int) -> int:
    """Return the FLOPs of products with matrices of parameters, forward.

    Parameters
    ----------
    model : Transformer
    batch : int
        Sequences, of ViT images.

    Returns
    -------
    int
        FLOP of the whole model, not of one rank's share.
    """
    h = model.hidden
    if model.family == "t5":
        # The keys and values of the decoder's second attention are made from the encoder's tokens.
        pair = model.decoder_layers * h * model.kv * (model.head + model.value_head)
        decoder = decoder_matrices(model) - pair + model.vocab * h
        encoder = active_matrices(model) - decoder
        return 2 * batch * (model.seq_len * encoder + _decoder_length(model) * decoder)
    total = 2 * batch * model.seq_len * active_matrices(model)
    if model.family == "bert":
        total += 2 * batch * (h * h + 2 * h)
        if model.predicted is not None:
            spared = model.seq_len - model.predicted
            total -= 2 * batch * spared * (model.vocab * h + h * h)
    if model.family == "vit":
        total += 2 * batch * h * model.classes
    return total


def patch_flops(model: Transformer, batch: int) -> int:
    """ViT, batch → FLOP of the patch embedding, forward; images need no gradient.

    Parameters
    ----------
    model : Transformer
    batch : int
        Images.

    Returns
    -------
    int
        0 unless the model is a ViT.
    """
    if model.family != "vit":
        return 0
    return 2 * batch * (model.seq_len - 1) * IMAGE_CHANNELS * model.patch**2 * model.hidden


def attention_flops(model: Transformer, batch: int) -> int:
    """Transformer, batch → FLOP of attention scores and of their product with the values, forward.

    2 × heads × (head size + value size) for each pair of tokens that see each other.

    Parameters
    ----------
    model : Transformer
    batch : int
        Sequences.

    Returns
    -------
    int
        FLOP of the whole model, not of one rank's share.
    """
    pair = 2 * model.heads * (model.head + model.value_head)
    s = model.seq_len
    layers = [*range(model.layers), *[model.layers - 1] * model.mtp_layers]
    windowed = sum(map(model.windowed, layers))
    others = "".join(model.kinds).count("*") - windowed
    total = windowed * _pairs(model, s, causal=model.causal)
    total += others * _all_pairs(s, causal=model.causal, examples=_examples(model, s))
    if model.family == "t5":
        d = _decoder_length(model)
        total += model.decoder_layers * (_pairs(model, d, causal=True) + s * d)
    return batch * pair * total


def recurrence_flops(model: Transformer, batch: int) -> int:
    """Transformer, batch → FLOP of its recurrences, forward, counted token by token.

    As Megatron-LM counts them (`num_floating_point_operations` of megatron/training/training.py):
    7 for each element of a Mamba-2 state, 8 of a gated delta rule's.

    Parameters
    ----------
    model : Transformer
    batch : int
        Sequences.

    Returns
    -------
    int
        FLOP of the whole model; 0 without recurrent layers.
    """
    letters = Counter("".join(model.kinds))
    values = model.delta_value_heads * model.delta_value_size
    each = 7 * letters["M"] * model.mamba_inner * model.mamba_state
    each += 8 * letters["G"] * values * model.delta_key_size
    return batch * model.seq_len * each


def model_flops(model: Transformer, batch: int) -> int:
    """Transformer, batch → FLOP of a step, forward and backward.

    Three times the forward pass, 6 for each token and active matrix element; of patches twice.
    Matrices beside adapters are frozen: twice; the adapters' few are left out.

    Parameters
    ----------
    model : Transformer
    batch : int
        Sequences.

    Returns
    -------
    int
        FLOP of the whole model, without recomputation.
    """
    matrices = matrix_flops(model, batch)
    if model.lora_rank:
        return 2 * matrices + 3 * (attention_flops(model, batch) + recurrence_flops(model, batch))
    forward = matrices + attention_flops(model, batch) + recurrence_flops(model, batch)
    return 3 * forward + 2 * patch_flops(model, batch)


def _decoder_length(model: Transformer) -> int:
    return (model.decoder_seq_len or model.seq_len) if model.decoder_layers else 0


def _pairs(model: Transformer, s: int, *, causal: bool) -> int:
    """Pairs of tokens of a sequence that see each other."""
    w = model.window
    if w is None or w >= s:
        return _all_pairs(s, causal=causal, examples=_examples(model, s))
    return s * w - w * w // 2 if causal else s * w


def _examples(model: Transformer, s: int) -> int:
    """Examples of a packed sequence, as if all were as long."""
    return 1 if model.example_length is None else max(1, round(s / model.example_length))


def _all_pairs(s: int, *, causal: bool, examples: int = 1) -> int:
    pairs = s * s // examples
    return pairs // 2 if causal else pairs
