"""Dense models of Hugging Face: ``config.json`` → keys of ``[model]``, one function a `model_type`.

Defaults of keys that a file may leave out are those of the class in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .huggingface_config import Config

Keys = dict[str, Any]

PLAIN = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_10": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "xielu": "gelu",
    "relu": "relu",
    "relu2": "relu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
    "relu2": "swiglu",
}
"""Names of activations, of feed-forward blocks with one matrix on the way in, and with two."""

ATTENTION = {
    "full_attention": "full",
    "sliding_attention": "window",
    "attention": "full",
}
"""Words of ``layer_types`` for layers with attention."""


def common_sizes(config: Config, family: str) -> Keys:
    """Return the sizes whose names most architectures share."""
    return {
        "family": family,
        "layers": config.size("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": config.size("hidden_size", "n_embed", "n_embd", "d_model", "dim"),
        "heads": config.size(
            "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"
        ),
        "vocab": config.size("vocab_size"),
        "seq_len": config.size(
            "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", default=()
        ),
    }


def gpt2(config: Config) -> Keys:
    rates = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("n_inner", default=()),
        "activation": config.choice("activation_function", PLAIN, "gelu_new"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def gpt_neox(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "qkv_bias": config.flag("attention_bias", True),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def opt(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("ffn_dim"),
        "activation": config.choice("activation_function", PLAIN, "relu"),
        "bias": config.flag("enable_bias", True),
        "dropout": config.any({"dropout": 0.1, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def bloom(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "position": "alibi",
        "dropout": config.any({"hidden_dropout": 0, "attention_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def falcon(config: Config) -> Keys:
    sizes = common_sizes(config, "gpt")
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


def mpt(config: Config) -> Keys:
    sizes, attention = common_sizes(config, "gpt"), config.part("attn_config")
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


def nemotron(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
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


def llama(config: Config, family: str = "llama", activations: Mapping[str, str] = GATED) -> Keys:
    """Return what Llama and its descendants have in common.

    Parameters
    ----------
    config : Config
    family : str
        Of `[model]`.
    activations : mapping of str to str
        `GATED`, or `PLAIN` for feed-forward blocks with one matrix on the way in.
    """
    gate = "hidden_activation" if config.table.get("hidden_activation") else "hidden_act"
    return common_sizes(config, family) | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "head_size": config.size("head_dim", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "activation": config.choice(gate, activations, "silu"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "dropout": config.any({"attention_dropout": 0, "resid_pdrop": 0, "embd_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def windows(config: Config, names: Mapping[str, str] = ATTENTION) -> Keys:
    """Sliding windows of a file → `window`, and which layers have none.

    Parameters
    ----------
    config : Config
        With ``sliding_window``; which layers have it is said by ``layer_types``, or by
        ``sliding_window_pattern`` (every so many-th has none); else all of them.
    names : mapping of str to str
        Words of ``layer_types`` → ``"window"`` or ``"full"``.
    """
    size = config.size("sliding_window", default=())
    if size == () or not config.flag("use_sliding_window", True):
        return {}
    kinds = config.words("layer_types", names)
    if kinds:
        whole = kinds.count("full")
        every = round(len(kinds) / whole) if whole else 0
    else:
        pattern = config.table.get("sliding_window_pattern")
        # EXAONE writes the pattern itself: "LLLG".
        every = len(pattern) if isinstance(pattern, str) else config.count("sliding_window_pattern")
    if every == 1:
        return {}
    return {"window": size, "whole_every": every}


def mistral(config: Config) -> Keys:
    return llama(config) | windows(config)


def qwen2(config: Config) -> Keys:
    return llama(config) | {"qkv_bias": True}


def qwen3(config: Config) -> Keys:
    # The class's own default; hidden / heads is another number for some sizes.
    head = config.size("head_dim", default=128)
    return llama(config) | {"head_size": head, "qk_norm": True}


def gemma(config: Config) -> Keys:
    tied = config.flag("tie_word_embeddings", True)
    head = config.size("head_dim", default=256)
    return llama(config) | {"head_size": head, "tied_embeddings": tied}


def gemma3(config: Config) -> Keys:
    head = config.size("head_dim", default=256)
    # The classes' own defaults, which published files leave out.
    defaults = {
        "heads": config.size("num_attention_heads", default=8),
        "kv_heads": config.size("num_key_value_heads", default=4),
        "vocab": config.size("vocab_size", default=262_208),
        "seq_len": config.size("max_position_embeddings", default=131_072),
    }
    whole = {"num_attention_heads": defaults["heads"], "vocab_size": defaults["vocab"]}
    filled = config.filled({**whole, "hidden_activation": "gelu_pytorch_tanh"})
    return (
        llama(filled)
        | defaults
        | {
            "head_size": head,
            "qk_norm": True,
            "tied_embeddings": config.flag("tie_word_embeddings", True),
            "window": config.size("sliding_window", default=4096),
            "whole_every": config.size("sliding_window_pattern", default=6),
        }
    )


def glm4(config: Config) -> Keys:
    head = config.size("head_dim", default=128)
    return llama(config) | {"head_size": head}


# --- descendants of Llama ---


def head_of_128(config: Config) -> Keys:
    """Return what Llama has, with heads of 128 elements where the file names none."""
    return llama(config) | {"head_size": config.size("head_dim", default=128)} | windows(config)


def arcee(config: Config) -> Keys:
    return llama(config.filled({"hidden_act": "relu2"}), activations=PLAIN)


def apertus(config: Config) -> Keys:
    return llama(config.filled({"hidden_act": "xielu"}), activations=PLAIN) | {"qk_norm": True}


def nanochat(config: Config) -> Keys:
    return llama(config.filled({"hidden_act": "relu2"}), activations=PLAIN) | {"qk_norm": True}


def jais2(config: Config) -> Keys:
    filled = config.filled({"hidden_act": "relu2", "mlp_bias": True, "attention_bias": True})
    return llama(filled, activations=PLAIN) | {"norm": "layer"}


def cohere(config: Config) -> Keys:
    return (
        llama(config)
        | {
            "norm": "layer",
            "qk_norm": config.flag("use_qk_norm", False),
            "tied_embeddings": config.flag("tie_word_embeddings", True),
        }
        | windows(config)
    )


def ernie4_5(config: Config) -> Keys:
    bias = config.flag("use_bias", False)
    return llama(config) | {
        "bias": bias,
        "qkv_bias": bias,
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def with_qk_norm(config: Config) -> Keys:
    """Return what Llama has, with norms of queries and keys (OLMo 2 and 3, EXAONE 4, Hunyuan)."""
    return llama(config) | {"qk_norm": True} | windows(config)


def olmo(config: Config) -> Keys:
    return llama(config) | {"norm": "layer"}


def smollm3(config: Config) -> Keys:
    tied = config.flag("tie_word_embeddings", True)
    return llama(config) | {"tied_embeddings": tied} | windows(config)


def stablelm(config: Config) -> Keys:
    return llama(config) | {
        "norm": "layer",
        "qkv_bias": config.flag("use_qkv_bias", False),
        "qk_norm": config.flag("qk_layernorm", False),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
    }


def latent_attention(config: Config) -> Keys:
    """Return the sizes of multi-head latent attention."""
    return {
        "attention": "mla",
        "kv_heads": (),
        "head_size": (),
        "q_lora_rank": config.count("q_lora_rank"),
        "kv_lora_rank": config.size("kv_lora_rank"),
        "qk_nope_head_size": config.size("qk_nope_head_dim"),
        "qk_rope_head_size": config.size("qk_rope_head_dim"),
        "v_head_size": config.size("v_head_dim"),
    }


def latent_llama(config: Config) -> Keys:
    """Return what Llama has, with multi-head latent attention (MiniCPM3, Youtu)."""
    tied = config.flag("tie_word_embeddings", True)
    return llama(config) | latent_attention(config) | {"tied_embeddings": tied}


# --- other decoders ---


def gptj(config: Config) -> Keys:
    return gpt2(config) | {
        "position": "rotary",
        "qkv_bias": False,
        "dropout": config.any({"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def gpt_neo(config: Config) -> Keys:
    # attention_types: global and local layers in turn, in every published file.
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size", default=()),
        "activation": config.choice("activation_function", PLAIN, "gelu_new"),
        "qkv_bias": False,
        "window": config.size("window_size", default=256),
        "whole_every": 2,
        "dropout": config.any({"attention_dropout": 0, "embed_dropout": 0, "resid_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def gpt_bigcode(config: Config) -> Keys:
    filled = config.filled({"activation_function": "gelu_pytorch_tanh"})
    return gpt2(filled) | {"kv_heads": 1 if config.flag("multi_query", True) else ()}


def starcoder2(config: Config) -> Keys:
    rates = {"attention_dropout": 0.0, "embedding_dropout": 0.0, "residual_dropout": 0.0}
    return (
        common_sizes(config, "gpt")
        | {
            "kv_heads": config.size("num_key_value_heads", default=2),
            "ffn_hidden": config.size("intermediate_size"),
            "position": "rotary",
            "activation": config.choice("hidden_act", PLAIN, "gelu_pytorch_tanh"),
            "bias": config.flag("use_bias", True),
            "dropout": config.any(rates),
            "tied_embeddings": config.flag("tie_word_embeddings", True),
        }
        | windows(config)
    )


def phi(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "kv_heads": config.size("num_key_value_heads", default=()),
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "gelu_new"),
        "qk_norm": config.flag("qk_layernorm", False),
        "dropout": config.any({"attention_dropout": 0, "embd_pdrop": 0, "resid_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def persimmon(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_act", PLAIN, "relu2"),
        "qk_norm": config.flag("qk_layernorm", True),
        "dropout": config.any({"attention_dropout": 0, "hidden_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def xglm(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("ffn_dim"),
        "position": "none",  # of sines, which are no parameters
        "activation": config.choice("activation_function", PLAIN, "gelu"),
        "dropout": config.any({"dropout": 0.1, "attention_dropout": 0.1}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def biogpt(config: Config) -> Keys:
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return common_sizes(config, "gpt") | {
        "ffn_hidden": config.size("intermediate_size"),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }
