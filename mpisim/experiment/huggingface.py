"""Models from Hugging Face: ``config.json`` → keys of ``[model]``.

Each architecture names its sizes in its own way; what one name means stands in the function of its
`model_type`. Keys that a file may leave out have the default of the architecture's class in
``transformers`` (github.com/huggingface/transformers, ``src/transformers/models``).
:mod:`.huggingface_config` checks each value as it is read.

What the keys of ``[model]`` cannot say is left out: windows of Gemma 2, attention and feed-forward
blocks side by side (Falcon, GPT-NeoX), norms behind a block (Gemma 2 and 3, GLM-4), rotary
positions of a part of a head (GLM-4, Qwen3-Next), towers for images (Gemma 3, Llama 4).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..base.errors import InputError, nearest
from .huggingface_config import Config, read_config

__all__ = ["MODEL_TYPES", "from_config"]

Keys = dict[str, Any]

PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_10": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
"""Names of activations, of feed-forward blocks with one matrix on the way in, and with two."""


def from_config(path: str | Path) -> Keys:
    """Read a model from a ``config.json``.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of a checkpoint, which has one.

    Returns
    -------
    dict
        Keys of ``[model]``. `seq_len` is the longest sequence the file allows; it is left out where
        the file names none, and has to be given beside `hf_config` then.

    Raises
    ------
    InputError
        If the file cannot be read, its `model_type` is not known, or a key is missing or makes no
        sense; the message names file and key.
    """
    file = Path(path, "config.json") if os.path.isdir(path) else Path(path)
    config = read_config(file)
    model_type = config.text("model_type", "")
    if not model_type:
        raise InputError(f"{file}: key 'model_type' is missing")
    if model_type not in MODEL_TYPES:
        raise InputError(
            f"{file}: key 'model_type' is {model_type!r}{nearest(model_type, MODEL_TYPES)}; "
            f"known: {', '.join(MODEL_TYPES)}"
        )
    return {key: value for key, value in MODEL_TYPES[model_type](config).items() if value != ()}


# --- one function for each model_type -------------------------------------------------------------


def _sizes(config: Config, family: str) -> Keys:
    """Return the sizes whose names most architectures share."""
    return {
        "family": family,
        "layers": config.size("num_hidden_layers", "n_layer", "n_layers"),
        "hidden": config.size("hidden_size", "n_embed", "n_embd", "d_model"),
        "heads": config.size("num_attention_heads", "n_head", "n_heads"),
        "vocab": config.size("vocab_size"),
        "seq_len": config.size(
            "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=()
        ),
    }


def _gpt2(config: Config) -> Keys:
    rates = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("n_inner", default=()),
        "activation": config.choice("activation_function", PLAIN, "gelu_new"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _gpt_neox(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "qkv_bias": config.flag("attention_bias", True),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _opt(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "ffn_hidden": config.size("ffn_dim"),
        "activation": config.choice("activation_function", PLAIN, "relu"),
        "bias": config.flag("enable_bias", True),
        "dropout": config.any({"dropout": 0.1, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _bloom(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "position": "alibi",
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _falcon(config: Config) -> Keys:
    sizes = _sizes(config, "gpt")
    if config.flag("new_decoder_architecture", False):
        kv = config.size("num_kv_heads", "n_head_kv", default=sizes["heads"])
    else:
        kv = 1 if config.flag("multi_query", True) else sizes["heads"]
    return sizes | {
        "kv_heads": kv,
        "ffn_hidden": config.size("ffn_hidden_size", default=()),
        "position": "alibi" if config.flag("alibi", False) else "rotary",
        "bias": config.flag("bias", False),
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _mpt(config: Config) -> Keys:
    sizes, attention = _sizes(config, "gpt"), config.part("attn_config")
    position = "learned" if config.flag("learned_pos_emb", True) else "none"
    if attention.flag("rope", False):
        position = "rotary"
    if attention.flag("alibi", False):
        position = "alibi"
    dropout = config.any({"resid_pdrop": 0, "emb_pdrop": 0}) or attention.any({"attn_pdrop": 0})
    return sizes | {
        "kv_heads": attention.size("kv_n_heads", default=()),
        "ffn_hidden": config.size("expansion_ratio", default=4) * sizes["hidden"],
        "position": position,
        "bias": not config.flag("no_bias", False),
        "qk_norm": attention.flag("qk_ln", False),
        "dropout": dropout,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _nemotron(config: Config) -> Keys:
    return _sizes(config, "gpt") | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "head_size": config.size("head_dim", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "relu2"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _llama(config: Config, family: str = "llama") -> Keys:
    """Return what Llama and its descendants have in common."""
    gate = "hidden_activation" if config.table.get("hidden_activation") else "hidden_act"
    return _sizes(config, family) | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "head_size": config.size("head_dim", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "activation": config.choice(gate, GATED, "silu"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"attention_dropout": 0, "resid_pdrop": 0, "embd_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _mistral(config: Config) -> Keys:
    return _llama(config) | {"window": config.size("sliding_window", default=())}


def _qwen2(config: Config) -> Keys:
    return _llama(config) | {"qkv_bias": True}


def _qwen3(config: Config) -> Keys:
    # The class's own default; hidden / heads is another number for some sizes.
    head = config.size("head_dim", default=128)
    return _llama(config) | {"head_size": head, "qk_norm": True}


def _gemma(config: Config) -> Keys:
    tied = config.flag("tie_word_embeddings", True)
    head = config.size("head_dim", default=256)
    return _llama(config) | {"head_size": head, "tied_embeddings": tied}


def _gemma3(config: Config) -> Keys:
    text = config.part("text_config") if "text_config" in config.table else config
    head = text.size("head_dim", default=256)
    # The classes' own defaults, which published files leave out.
    defaults = {
        "heads": text.size("num_attention_heads", default=8),
        "kv_heads": text.size("num_key_value_heads", default=4),
        "vocab": text.size("vocab_size", default=262_208),
        "seq_len": text.size("max_position_embeddings", default=131_072),
    }
    whole = {"num_attention_heads": defaults["heads"], "vocab_size": defaults["vocab"]}
    filled = text.filled({**whole, "hidden_activation": "gelu_pytorch_tanh"})
    return (
        _llama(filled)
        | defaults
        | {
            "head_size": head,
            "qk_norm": True,
            "tied_embeddings": text.flag("tie_word_embeddings", True),
            "window": text.size("sliding_window", default=4096),
            "whole_every": text.size("sliding_window_pattern", default=6),
        }
    )


def _glm4(config: Config) -> Keys:
    head = config.size("head_dim", default=128)
    return _llama(config) | {"head_size": head}


def _mixtral(config: Config) -> Keys:
    return _llama(config, "moe") | {
        "window": config.size("sliding_window", default=()),
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
    }


def _qwen2_moe(config: Config) -> Keys:
    dense = config.table.get("mlp_only_layers") or []
    every = config.size("decoder_sparse_step", default=1)
    if dense != list(range(len(dense))) or (dense and every > 1):
        raise config.refuse("mlp_only_layers", "layers without experts must be the first ones")
    shared = config.count("shared_expert_intermediate_size")
    return _llama(config, "moe") | {
        "experts": config.size("num_experts"),
        "topk": config.size("num_experts_per_tok"),
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": 1 if shared else 0,
        "shared_ffn_hidden": shared or (),
        "dense_layers": len(dense),
        "moe_every": every,
        "qkv_bias": config.flag("qkv_bias", True),
    }


def _qwen3_moe(config: Config) -> Keys:
    bias = config.flag("attention_bias", False)
    return _qwen2_moe(config) | {"qkv_bias": bias, "qk_norm": True}


def _deepseek(config: Config) -> Keys:
    if config.size("moe_layer_freq", default=1) != 1:
        raise config.refuse("moe_layer_freq", "every layer behind the dense ones must have experts")
    return _llama(config, "moe") | {
        "experts": config.size("n_routed_experts"),
        "topk": config.size("num_experts_per_tok"),
        "expert_groups": config.count("n_group") or 1,
        "topk_groups": config.count("topk_group") or 1,
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": config.count("n_shared_experts"),
        "dense_layers": config.count("first_k_dense_replace"),
    }


def _glm4_moe(config: Config) -> Keys:
    head = config.size("head_dim", default=128)
    return _deepseek(config) | {
        "head_size": head,
        "qk_norm": config.flag("use_qk_norm", False),
        "mtp_layers": config.count("num_nextn_predict_layers"),
    }


def _qwen3_next(config: Config) -> Keys:
    interval = config.size("full_attention_interval", default=4)
    words = {"linear_attention": "GE", "full_attention": "*E"}
    regular = ["GE"] * (interval - 1) + ["*E"]
    kinds = config.words("layer_types", words) or regular
    return _qwen2_moe(config) | {
        "head_size": config.size("head_dim", default=256),
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": True,
        "attention_gate": True,
        "pattern": " ".join(kinds) if len(kinds) > 1 else kinds[0],
        "delta_key_heads": config.size("linear_num_key_heads", default=16),
        "delta_value_heads": config.size("linear_num_value_heads", default=32),
        "delta_key_size": config.size("linear_key_head_dim", default=128),
        "delta_value_size": config.size("linear_value_head_dim", default=128),
        "convolution": config.size("linear_conv_kernel_dim", default=4),
    }


def _nemotron_h(config: Config) -> Keys:
    words = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    pattern = config.text("hybrid_override_pattern", "")
    pattern = pattern or "".join(config.words("layers_block_type", words))
    if not pattern:
        raise InputError(
            f"{config.file}: key 'hybrid_override_pattern' is missing (nor 'layers_block_type')"
        )
    layers = config.size("num_hidden_layers", default=len(pattern))
    if layers != len(pattern):
        raise config.refuse("num_hidden_layers", f"its pattern has {len(pattern)} letters")
    modules = config.count("num_nextn_predict_layers")
    predicted = config.text("mtp_hybrid_override_pattern", "")
    predicted = predicted or "".join(config.words("mtp_layers_block_type", words)) or "*E"
    mixed = "E" in pattern
    found = _sizes(config.filled({"num_hidden_layers": layers}), "moe" if mixed else "gpt") | {
        "kv_heads": config.size("num_key_value_heads", default=8),
        "head_size": config.size("head_dim", "attention_head_dim", default=128),
        "ffn_hidden": config.size("intermediate_size", default=()),
        "activation": config.choice("mlp_hidden_act", PLAIN, "relu2"),
        "norm": "rms",
        "position": "none",
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "pattern": pattern,
        "mamba_heads": config.size("mamba_num_heads", default=128),
        "mamba_head_size": config.size("mamba_head_dim", default=64),
        "mamba_groups": config.size("n_groups", "mamba_n_groups", default=8),
        "mamba_state": config.size("ssm_state_size", default=128),
        "mamba_chunk": config.size("chunk_size", default=128),
        "convolution": config.size("conv_kernel", default=4),
        "mtp_layers": modules,
        "mtp_pattern": predicted if modules else "",
        "mtp_shared": modules > 0,
    }
    if not mixed:
        return found
    shared = config.count("n_shared_experts")
    return found | {
        "experts": config.size("n_routed_experts"),
        "topk": config.size("num_experts_per_tok"),
        "expert_groups": config.count("n_group") or 1,
        "topk_groups": config.count("topk_group") or 1,
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "moe_latent": config.count("moe_latent_size") or (),
        "shared_experts": shared,
        "shared_ffn_hidden": config.count("moe_shared_expert_intermediate_size") or (),
    }


def _deepseek_v2(config: Config) -> Keys:
    return _deepseek(config) | {
        "attention": "mla",
        "kv_heads": (),
        "head_size": (),
        "q_lora_rank": config.count("q_lora_rank"),
        "kv_lora_rank": config.size("kv_lora_rank"),
        "qk_nope_head_size": config.size("qk_nope_head_dim"),
        "qk_rope_head_size": config.size("qk_rope_head_dim"),
        "v_head_size": config.size("v_head_dim"),
        "mtp_layers": config.count("num_nextn_predict_layers"),
    }


def _gpt_oss(config: Config) -> Keys:
    bias = config.flag("attention_bias", True)
    return _llama(config, "moe") | {
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok", "experts_per_token"),
        "bias": True,
        "qkv_bias": bias,
        "window": config.size("sliding_window", default=()),
        "window_every": 2,
        "yarn": True,
        "swiglu_limit": 7.0,
    }


def _dbrx(config: Config) -> Keys:
    attention, ffn = config.part("attn_config"), config.part("ffn_config")
    return _sizes(config, "moe") | {
        "kv_heads": attention.size("kv_n_heads", default=1),
        "ffn_hidden": ffn.size("ffn_hidden_size", default=3584),
        "norm": "layer",
        "experts": ffn.size("moe_num_experts", default=4),
        "topk": ffn.size("moe_top_k", default=1),
        "dropout": attention.any({"attn_pdrop": 0}) or config.any({"resid_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def _llama4(config: Config) -> Keys:
    text = config.part("text_config") if "text_config" in config.table else config
    return _llama(text, "moe") | {
        "ffn_hidden": text.size("intermediate_size_mlp"),
        "moe_ffn_hidden": text.size("intermediate_size"),
        "experts": text.size("num_local_experts"),
        "topk": text.size("num_experts_per_tok"),
        "shared_experts": 1,
        "moe_every": text.size("interleave_moe_layer_step", default=1),
        "qk_norm": text.flag("use_qk_norm", True),
    }


def _bert(config: Config) -> Keys:
    positions = {
        "absolute": "learned",
        "relative_key": "relative",
        "relative_key_query": "relative",
    }
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return _sizes(config, "bert") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": config.choice("position_embedding_type", positions, "absolute"),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _t5(config: Config) -> Keys:
    blocks = PLAIN | {f"gated-{name}": ours for name, ours in GATED.items()}
    layers = config.size("num_layers")
    # Positions are relative: no length is built in. T5 was trained on 512 tokens.
    length = config.size("n_positions", default=512)
    return {
        "family": "t5",
        "layers": layers,
        "decoder_layers": config.size("num_decoder_layers", default=layers),
        "hidden": config.size("d_model"),
        "heads": config.size("num_heads"),
        "head_size": config.size("d_kv"),
        "ffn_hidden": config.size("d_ff"),
        "vocab": config.size("vocab_size"),
        "seq_len": length,
        "decoder_seq_len": length,
        "activation": config.choice("feed_forward_proj", blocks, "relu"),
        "dropout": config.any({"dropout_rate": 0.1}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def _vit(config: Config) -> Keys:
    image, patch = config.size("image_size", default=224), config.size("patch_size", default=16)
    labels = config.part("id2label").table
    rates = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return {
        "family": "vit",
        "layers": config.size("num_hidden_layers"),
        "hidden": config.size("hidden_size"),
        "heads": config.size("num_attention_heads"),
        "ffn_hidden": config.size("intermediate_size"),
        "image": image,
        "patch": patch,
        "seq_len": (image // patch) ** 2 + 1,
        "classes": config.size("num_labels", default=len(labels) or ()),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "qkv_bias": config.flag("qkv_bias", True),
        "dropout": config.any(rates),
    }


MODEL_TYPES: Mapping[str, Callable[[Config], Keys]] = {
    "bert": _bert,
    "bloom": _bloom,
    "dbrx": _dbrx,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v2,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek_v2,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    "phi3": _mistral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "t5": _t5,
    "vit": _vit,
}
"""How to read the file, by its `model_type`."""
