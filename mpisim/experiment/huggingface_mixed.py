"""Models of Hugging Face with experts or recurrences: ``config.json`` → keys of ``[model]``.

One function a `model_type`. Defaults of keys that a file may leave out are those of the class in
``transformers``; its release 5 writes ``num_local_experts`` where others wrote ``num_experts``.
"""

from __future__ import annotations

from ..base.errors import InputError
from .huggingface_config import Config
from .huggingface_dense import PLAIN, Keys, common_sizes, latent_attention, llama, windows

MIXERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
"""Kinds of layers in files of Mamba-2 hybrids (transformers 4 and 5) → letters of `pattern`."""

BIASED_SIGMOIDS: Keys = {"router_scores": "sigmoid", "expert_bias": True}
"""Of a router as DeepSeek-V3's, whose classes have a buffer ``e_score_correction_bias``."""


def mixtral(config: Config) -> Keys:
    return llama(config, "moe") | {
        "window": config.size("sliding_window", default=()),
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
    }


def qwen2_moe(config: Config) -> Keys:
    dense = config.table.get("mlp_only_layers") or []
    every = config.size("decoder_sparse_step", default=1)
    if dense != list(range(len(dense))) or (dense and every > 1):
        raise config.refuse("mlp_only_layers", "layers without experts must be the first ones")
    shared = config.count("shared_expert_intermediate_size")
    return llama(config, "moe") | {
        "experts": config.size("num_experts", "num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": 1 if shared else 0,
        "shared_ffn_hidden": shared or (),
        "dense_layers": len(dense),
        "moe_every": every,
        "qkv_bias": config.flag("qkv_bias", True),
    }


def qwen3_moe(config: Config) -> Keys:
    bias = config.flag("attention_bias", False)
    return qwen2_moe(config) | {"qkv_bias": bias, "qk_norm": True}


def deepseek(config: Config) -> Keys:
    if config.size("moe_layer_freq", default=1) != 1:
        raise config.refuse("moe_layer_freq", "every layer behind the dense ones must have experts")
    return llama(config, "moe") | {
        "experts": config.size("n_routed_experts"),
        "topk": config.size("num_experts_per_tok"),
        "expert_groups": config.count("n_group") or 1,
        "topk_groups": config.count("topk_group") or 1,
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": config.count("n_shared_experts"),
        "dense_layers": config.count("first_k_dense_replace"),
    }


def glm4_moe(config: Config) -> Keys:
    head = config.size("head_dim", default=128)
    return (
        deepseek(config)
        | BIASED_SIGMOIDS
        | {
            "head_size": head,
            "qk_norm": config.flag("use_qk_norm", False),
            "mtp_layers": config.count("num_nextn_predict_layers"),
        }
    )


def qwen3_next(config: Config) -> Keys:
    return qwen2_moe(config) | _delta_layers(config, "E")


def nemotron_h(config: Config) -> Keys:
    words = {**MIXERS, "mlp": "-", "moe": "E"}
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
    found = common_sizes(
        config.filled({"num_hidden_layers": layers}), "moe" if mixed else "gpt"
    ) | {
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
    return (
        found
        | BIASED_SIGMOIDS
        | {
            "experts": config.size("n_routed_experts"),
            "topk": config.size("num_experts_per_tok"),
            "expert_groups": config.count("n_group") or 1,
            "topk_groups": config.count("topk_group") or 1,
            "moe_ffn_hidden": config.size("moe_intermediate_size"),
            "moe_latent": config.count("moe_latent_size") or (),
            "shared_experts": shared,
            "shared_ffn_hidden": config.count("moe_shared_expert_intermediate_size") or (),
        }
    )


def deepseek_v2(config: Config) -> Keys:
    return (
        deepseek(config)
        | latent_attention(config)
        | {
            "mtp_layers": config.count("num_nextn_predict_layers"),
        }
    )


def deepseek_v3(config: Config) -> Keys:
    return deepseek_v2(config) | BIASED_SIGMOIDS


def gpt_oss(config: Config) -> Keys:
    bias = config.flag("attention_bias", True)
    return llama(config, "moe") | {
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok", "experts_per_token"),
        "bias": True,
        "qkv_bias": bias,
        "window": config.size("sliding_window", default=()),
        "window_every": 2,
        "yarn": True,
        "swiglu_limit": 7.0,
    }


def dbrx(config: Config) -> Keys:
    attention, ffn = config.part("attn_config"), config.part("ffn_config")
    return common_sizes(config, "moe") | {
        "kv_heads": attention.size("kv_n_heads", default=1),
        "ffn_hidden": ffn.size("ffn_hidden_size", default=3584),
        "norm": "layer",
        "experts": ffn.size("moe_num_experts", default=4),
        "topk": ffn.size("moe_top_k", default=1),
        "dropout": attention.any({"attn_pdrop": 0}) or config.any({"resid_pdrop": 0}),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
    }


def llama4(config: Config) -> Keys:
    return llama(config, "moe") | {
        "ffn_hidden": config.size("intermediate_size_mlp"),
        "moe_ffn_hidden": config.size("intermediate_size"),
        "experts": config.size("num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
        "shared_experts": 1,
        "moe_every": config.size("interleave_moe_layer_step", default=1),
        "router_scores": "sigmoid",
        "qk_norm": config.flag("use_qk_norm", True),
    }


def olmoe(config: Config) -> Keys:
    return llama(config, "moe") | {
        "experts": config.size("num_experts", "num_local_experts"),
        "topk": config.size("num_experts_per_tok"),
        "qk_norm": True,
    }


def phimoe(config: Config) -> Keys:
    return mixtral(config) | {"norm": "layer"}


def granitemoe(config: Config) -> Keys:
    shared = config.count("shared_intermediate_size")
    return mixtral(config) | {
        "shared_experts": 1 if shared else 0,
        "shared_ffn_hidden": shared or (),
    }


def granitemoehybrid(config: Config) -> Keys:
    """Return Granite 4: layers of Mamba-2 or attention, each with experts or one dense block."""
    experts, shared = config.count("num_local_experts"), config.size("shared_intermediate_size")
    tail = "E" if experts else "-"
    words = {name: letter + tail for name, letter in MIXERS.items()}
    kinds = config.words("layer_types", words) or config.words("layers_block_type", words)
    heads = config.size("mamba_n_heads", default=128)
    width = config.size("mamba_expand", default=2) * config.size("hidden_size")
    head = config.table.get("mamba_d_head")
    rotary = config.text("position_embedding_type", "none") == "rope"
    found = llama(config, "moe" if experts else "llama") | {
        "position": "rotary" if rotary else "none",
        "pattern": _pattern(kinds or ["M" + tail]),
        "mamba_heads": heads,
        "mamba_head_size": width // heads
        if head in (None, "auto")
        else config.size("mamba_d_head"),
        "mamba_groups": config.size("mamba_n_groups", default=1),
        "mamba_state": config.size("mamba_d_state", default=256),
        "mamba_chunk": config.size("mamba_chunk_size", default=256),
        "convolution": config.size("mamba_d_conv", default=4),
    }
    if not experts:
        return found | {"ffn_hidden": shared}
    return found | {
        "experts": experts,
        "topk": config.size("num_experts_per_tok"),
        "shared_experts": 1,
        "shared_ffn_hidden": shared,
    }


def mamba2(config: Config) -> Keys:
    return common_sizes(config, "gpt") | {
        "head_size": config.size("head_dim", default=64),
        "norm": "rms",
        "position": "none",
        "bias": config.flag("use_bias", False),
        "dropout": False,
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "pattern": "M",
        "mamba_heads": config.size("num_heads", default=128),
        "mamba_head_size": config.size("head_dim", default=64),
        "mamba_groups": config.size("n_groups", default=8),
        "mamba_state": config.size("state_size", default=128),
        "mamba_chunk": config.size("chunk_size", default=256),
        "convolution": config.size("conv_kernel", default=4),
    }


def minimax_m2(config: Config) -> Keys:
    return mixtral(config) | BIASED_SIGMOIDS | {"qk_norm": config.flag("use_qk_norm", True)}


def ernie4_5_moe(config: Config) -> Keys:
    bias = config.flag("use_bias", False)
    return llama(config, "moe") | {
        "bias": bias,
        "qkv_bias": bias,
        "experts": config.size("moe_num_experts"),
        "topk": config.size("moe_k", default=6),
        "moe_ffn_hidden": config.size("moe_intermediate_size"),
        "shared_experts": config.count("moe_num_shared_experts"),
        "dense_layers": config.count("moe_layer_start_index"),
        "moe_every": config.size("moe_layer_interval", default=1),
        "tied_embeddings": config.flag("tie_word_embeddings", True),
    }


def dots1(config: Config) -> Keys:
    return deepseek(config) | BIASED_SIGMOIDS | {"qk_norm": True} | windows(config)


def glm4_moe_lite(config: Config) -> Keys:
    layers = config.words("mlp_layer_types", {"dense": "-", "sparse": "E"})
    dense = layers.index("E") if "E" in layers else config.count("first_k_dense_replace")
    return deepseek_v2(config) | {"dense_layers": dense}


def solar_open(config: Config) -> Keys:
    width = config.size("moe_intermediate_size")
    return deepseek(config.filled({"intermediate_size": width}))


def qwen3_5(config: Config) -> Keys:
    """Return Qwen3.5: layers of the gated delta rule or attention, each with a dense block."""
    return llama(config) | _delta_layers(config, "-")


def qwen3_5_moe(config: Config) -> Keys:
    width = config.size("moe_intermediate_size")
    return qwen2_moe(config.filled({"intermediate_size": width})) | _delta_layers(config, "E")


def _delta_layers(config: Config, tail: str) -> Keys:
    """Return what Qwen3-Next and Qwen3.5 have in common; `tail`: letter of what follows a mixer."""
    interval = config.size("full_attention_interval", default=4)
    words = {"linear_attention": "G" + tail, "full_attention": "*" + tail}
    regular = ["G" + tail] * (interval - 1) + ["*" + tail]
    return {
        "head_size": config.size("head_dim", default=256),
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": True,
        "attention_gate": True,
        "pattern": _pattern(config.words("layer_types", words) or regular),
        "delta_key_heads": config.size("linear_num_key_heads", default=16),
        "delta_value_heads": config.size("linear_num_value_heads", default=32),
        "delta_key_size": config.size("linear_key_head_dim", default=128),
        "delta_value_size": config.size("linear_value_head_dim", default=128),
        "convolution": config.size("linear_conv_kernel_dim", default=4),
    }


def _pattern(kinds: list[str]) -> str:
    """Letters of each layer → `pattern` of ``[model]``: its shortest period."""
    n = len(kinds)
    period = next(k for k in range(1, n + 1) if n % k == 0 and kinds == kinds[:k] * (n // k))
    # Without a blank each letter would be a layer.
    return " ".join(kinds[:period] if period > 1 else 2 * kinds[:1])
