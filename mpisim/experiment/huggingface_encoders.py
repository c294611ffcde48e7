"""Encoders of Hugging Face: ``config.json`` → keys of ``[model]``, one function a `model_type`.

Defaults of keys that a file may leave out are those of the class in ``transformers``.
"""

from __future__ import annotations

from .huggingface_config import Config
from .huggingface_dense import GATED, PLAIN, Keys, common_sizes


def bert(config: Config) -> Keys:
    positions = {
        "absolute": "learned",
        "relative_key": "relative",
        "relative_key_query": "relative",
    }
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return common_sizes(config, "bert") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": config.choice("position_embedding_type", positions, "absolute"),
        "activation": config.choice("hidden_act", PLAIN, "gelu"),
        "dropout": config.any(rates),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def t5(config: Config) -> Keys:
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


def vit(config: Config) -> Keys:
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


def distilbert(config: Config) -> Keys:
    return common_sizes(config, "bert") | {
        "ffn_hidden": config.size("hidden_dim"),
        "activation": config.choice("activation", PLAIN, "gelu"),
        "dropout": config.any({"dropout": 0.1, "attention_dropout": 0.1}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def modernbert(config: Config) -> Keys:
    every = config.size("global_attn_every_n_layers", default=3)
    return common_sizes(config, "bert") | {
        "ffn_hidden": config.size("intermediate_size"),
        "position": "rotary",
        "activation": config.choice("hidden_activation", GATED, "gelu"),
        "bias": config.flag("mlp_bias", False),
        "qkv_bias": config.flag("attention_bias", False),
        "window": config.size("local_attention", default=128),
        "whole_every": every,
        "dropout": config.any({"attention_dropout": 0, "mlp_dropout": 0, "embedding_dropout": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }
