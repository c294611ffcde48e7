"""Published formulas of transformer training: parameters, FLOPs, activations, communication.

They know a model's dimensions and nothing of operators or kernels: they say what model FLOPs are
(utilisation counts them), and hold the generated workload to account in tests.

Conventions: a multiplication and an addition are two operations; backward is twice forward;
nothing that is computed again counts. Of causal attention only the half that the mask leaves
counts, as in Megatron-LM's `num_floating_point_operations`; publications before it
(arXiv:2104.04473, arXiv:2205.05198) count all of it. Vocabularies are not padded.
"""

from __future__ import annotations

from ..experiment.models import Transformer

__all__ = [
    "activation_bytes",
    "active_matrices",
    "attention_flops",
    "context_parallel_bytes",
    "expert_parallel_bytes",
    "korthikanti_flops",
    "matrix_flops",
    "model_flops",
    "narayanan_flops",
    "parameters",
    "patch_flops",
    "samples",
    "tensor_parallel_bytes",
]

CHANNELS = 3
TOKEN_TYPES = 2
RELATIVE_BUCKETS = 32


# --- parameters -----------------------------------------------------------------------------------


def attention_matrices(model: Transformer) -> int:
    """Return the elements of the matrices of one attention."""
    h, a = model.hidden, model.heads
    out = a * model.value_head * h
    if model.attention == "mha":
        return h * (a * model.head + model.kv * (model.head + model.value_head)) + out
    rank = model.q_lora_rank
    queries = h * rank + rank * a * model.head if rank else h * a * model.head
    down = h * (model.kv_lora_rank + model.qk_rope_head_size)
    up = model.kv_lora_rank * a * (model.qk_nope_head_size + model.v_head_size)
    return queries + down + up + out


def feed_forward_matrices(model: Transformer, width: int) -> int:
    """Return the elements of the matrices of a feed-forward block of an inner width."""
    return (3 if model.gated else 2) * model.hidden * width


def mixture_matrices(model: Transformer, experts: int) -> int:
    """Return those of a mixture: so many routed experts, the shared ones, and the router."""
    widths = experts * model.expert_ffn + model.shared_ffn
    return feed_forward_matrices(model, widths) + model.hidden * model.experts


def active_matrices(model: Transformer) -> int:
    """Return the elements of matrices that one token is multiplied with, the vocabulary's included.

    Of T5 those of encoder and decoder together; each token passes one of them.
    """
    h = model.hidden
    total = (model.layers + model.mtp_layers) * attention_matrices(model)
    for layer in [*range(model.layers), *[model.layers - 1] * model.mtp_layers]:
        if model.is_moe(layer):
            total += mixture_matrices(model, model.topk)
        else:
            total += feed_forward_matrices(model, model.ffn)
    total += decoder_matrices(model)
    total += model.mtp_layers * 2 * h * h
    total += (1 + model.mtp_layers) * model.vocab * h
    return total + (h * h if model.family == "bert" else 0)


def decoder_matrices(model: Transformer) -> int:
    """Return the elements of the matrices of T5's decoder: two attentions a layer."""
    each = 2 * attention_matrices(model) + feed_forward_matrices(model, model.ffn)
    return model.decoder_layers * each


def parameters(model: Transformer) -> int:
    """Return the parameters of a model, those of multi-token prediction included."""
    h = model.hidden
    norm = 2 * h if model.norm == "layer" else h
    total = model.layers * _attention_parameters(model)
    total += sum(_feed_forward_parameters(model, layer) for layer in range(model.layers))
    total += norm  # the last
    if model.family == "vit":
        total += CHANNELS * model.patch**2 * h + h + h + model.seq_len * h
        return total + model.classes * (h + 1)
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
        each = _attention_parameters(model) + cross + _feed_forward_parameters(model, 0)
        total += model.decoder_layers * each + norm
    if model.position == "relative":
        stacks = 2 if model.family == "t5" else 1
        total += stacks * RELATIVE_BUCKETS * model.heads
    last = _attention_parameters(model) + _feed_forward_parameters(model, model.layers - 1)
    return total + model.mtp_layers * (last + 2 * h * h + 3 * norm)


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


def _feed_forward_parameters(model: Transformer, layer: int) -> int:
    total = (2 if model.norm == "layer" else 1) * model.hidden
    if model.is_moe(layer):
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
    """Return what a batch of sequences is counted as: tokens, of ViT images."""
    if model.family == "vit":
        return batch
    return batch * (model.seq_len + _decoder_length(model))


def matrix_flops(model: Transformer, batch: int) -> int:
    """Return the FLOPs of products with matrices of parameters, forward."""
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
    """Return the FLOPs of making vectors of patches, forward; images need no gradient."""
    if model.family != "vit":
        return 0
    return 2 * batch * (model.seq_len - 1) * CHANNELS * model.patch**2 * model.hidden


def attention_flops(model: Transformer, batch: int) -> int:
    """Return the FLOPs of scores and of their product with the values, forward.

    2 × heads × (head size + value size) for each pair of tokens that see each other.
    """
    pair = 2 * model.heads * (model.head + model.value_head)
    s = model.seq_len
    layers = [*range(model.layers), *[model.layers - 1] * model.mtp_layers]
    windowed = sum(map(model.windowed, layers))
    total = windowed * _pairs(model, s, causal=model.causal)
    total += (len(layers) - windowed) * _all_pairs(s, causal=model.causal)
    if model.family == "t5":
        d = _decoder_length(model)
        total += model.decoder_layers * (_pairs(model, d, causal=True) + s * d)
    return batch * pair * total


def model_flops(model: Transformer, batch: int) -> int:
    """Return the FLOPs of a batch of sequences, forward and backward.

    Three times the forward pass, 6 for each token and active matrix element; of patches twice.
    """
    forward = matrix_flops(model, batch) + attention_flops(model, batch)
    return 3 * forward + 2 * patch_flops(model, batch)


def narayanan_flops(model: Transformer, batch: int) -> float:
    """Return the FLOPs of a GPT's step with full recomputation (arXiv:2104.04473, section 5.1).

    96 B s l h² (1 + s/6h + V/16lh), for 4 h wide feed-forward blocks; attention is counted whole.
    """
    s, layers, h, V = model.seq_len, model.layers, model.hidden, model.vocab
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))


def korthikanti_flops(model: Transformer, batch: int) -> float:
    """Return a GPT's model FLOPs of a step (arXiv:2205.05198, equation 7).

    72 B L s h² (1 + s/6h + v/12hL), for 4 h wide feed-forward blocks; attention is counted whole.
    """
    s, layers, h, v = model.seq_len, model.layers, model.hidden, model.vocab
    return 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))


def _decoder_length(model: Transformer) -> int:
    return (model.decoder_seq_len or model.seq_len) if model.decoder_layers else 0


def _pairs(model: Transformer, s: int, *, causal: bool) -> int:
    """Pairs of tokens of a sequence that see each other."""
    w = model.window
    if w is None or w >= s:
        return _all_pairs(s, causal=causal)
    return s * w - w * w // 2 if causal else s * w


def _all_pairs(s: int, *, causal: bool) -> int:
    return s * s // 2 if causal else s * s


# --- memory and communication ---------------------------------------------------------------------


def activation_bytes(
    model: Transformer, batch: int, *, tp: int = 1, sp: bool = False, selective: bool = False
) -> float:
    """Return what one layer of a GPT keeps for its backward pass (arXiv:2205.05198, table 2).

    16-bit activations, scores in memory, dropout, 4 h wide feed-forward blocks: s b h (10 + 24/t
    + 5as/ht); 34 s b h/t and the scores' share with sequence parallelism; selective recomputation
    keeps no scores.
    """
    s, h, a = model.seq_len, model.hidden, model.heads
    scores = 0.0 if selective else 5 * a * s / (h * tp)
    whole = 10 / tp if sp else 10
    return s * batch * h * (whole + 24 / tp + scores)


def tensor_parallel_bytes(model: Transformer, tokens: int, *, layers: int, element: int = 2) -> int:
    """Return what a rank all-reduces in the blocks, forward and backward (arXiv:1909.08053).

    Four all-reduces a layer of the hidden states of all tokens. With sequence parallelism each is
    a reduce-scatter and an all-gather of as many bytes (arXiv:2205.05198, section 4.2.2), and two
    more all-gathers a layer bring back the inputs that were kept in shares.
    """
    return layers * 4 * element * tokens * model.hidden


def context_parallel_bytes(
    model: Transformer, batch: int, *, cp: int, tp: int = 1, element: int = 2
) -> int:
    """Return what a rank of a ring sends in one layer, forward (arXiv:2310.01889).

    Its keys and values, cp - 1 times; backward the same again, and as much for their gradients.
    """
    heads = max(1, model.kv // tp)
    tokens = batch * model.seq_len // cp
    return (cp - 1) * element * tokens * heads * (model.head + model.value_head)


def expert_parallel_bytes(model: Transformer, tokens: int, *, element: int = 2) -> int:
    """Return what a rank gives to each all-to-all of a layer (arXiv:2101.03961, arXiv:2412.19437).

    Each of its tokens once for each of its experts: dispatch and combine, and both backward.
    """
    return element * tokens * model.topk * model.hidden
