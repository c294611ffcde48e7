"""Models from ``config.json``: the published files give the presets; what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.base.schema import build
from mpisim.experiment import FAMILIES, Transformer, read
from mpisim.experiment.huggingface import MODEL_TYPES, from_config
from mpisim.experiment.model_counts import parameters
from mpisim.experiment.model_presets import find_model

# As published at huggingface.co; what only concerns text, files and inference is left out.
CONFIGS: dict[str, str] = {
    "gemma-3-12b": """{"architectures": ["Gemma3ForConditionalGeneration"],
        "image_token_index": 262144, "mm_tokens_per_image": 256, "model_type": "gemma3",
        "text_config": {"hidden_size": 3840, "intermediate_size": 15360,
        "model_type": "gemma3_text", "num_attention_heads": 16, "num_hidden_layers": 48,
        "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}, "torch_dtype": "bfloat16"}""",
    "glm-4-9b": """{"architectures": ["Glm4ForCausalLM"], "attention_bias": true,
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5, "tie_word_embeddings": false, "vocab_size": 151552}""",
    "glm-4.5-air": """{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true,
        "attention_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944,
        "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
        "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 96,
        "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rope_scaling": null,
        "tie_word_embeddings": false, "topk_group": 1, "use_qk_norm": false,
        "vocab_size": 151552}""",
    "qwen3-next-80b-a3b": """{"architectures": ["Qwen3NextForCausalLM"],
        "attention_bias": false, "attention_dropout": 0.0, "decoder_sparse_step": 1,
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
        "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 512,
        "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": false, "vocab_size": 151936}""",
    "nemotron-3-nano": """{"architectures": ["NemotronHForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "chunk_size": 128, "conv_kernel": 4, "expand": 2,
        "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "mamba_head_dim": 64, "mamba_num_heads": 64,
        "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
        "model_type": "nemotron_h", "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "num_attention_heads": 32,
        "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2,
        "ssm_state_size": 128, "tie_word_embeddings": false, "topk_group": 1,
        "vocab_size": 131072}""",
    "gpt2": """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "resid_pdrop": 0.1, "vocab_size": 50257}""",
    "gpt-neox-20b": """{"architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0,
        "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
        "initializer_range": 0.02, "intermediate_size": 24576, "max_position_embeddings": 2048,
        "model_type": "gpt_neox", "num_attention_heads": 64, "num_hidden_layers": 44,
        "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16",
        "vocab_size": 50432}""",
    "opt-1.3b": """{"activation_dropout": 0.0, "activation_function": "relu",
        "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0,
        "do_layer_norm_before": true, "dropout": 0.1, "ffn_dim": 8192, "hidden_size": 2048,
        "layerdrop": 0.0, "max_position_embeddings": 2048, "model_type": "opt",
        "num_attention_heads": 32, "num_hidden_layers": 24, "vocab_size": 50272,
        "word_embed_proj_dim": 2048}""",
    "bloom-176b": """{"apply_residual_connection_post_layernorm": false,
        "architectures": ["BloomForCausalLM"], "attention_dropout": 0.0,
        "attention_softmax_in_fp32": true, "hidden_dropout": 0.0, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true, "model_type": "bloom",
        "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "pretraining_tp": 4,
        "seq_length": 2048, "use_cache": true, "vocab_size": 250880}""",
    "falcon-7b": """{"alibi": false, "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0, "bias": false, "hidden_dropout": 0.0, "hidden_size": 4544,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
        "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71,
        "num_hidden_layers": 32, "parallel_attn": true, "vocab_size": 65024}""",
    "nemotron-4-15b": """{"attention_bias": false, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "relu2", "hidden_size": 6144, "intermediate_size": 24576,
        "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "nemotron",
        "norm_eps": 1e-05, "num_attention_heads": 48, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "tie_word_embeddings": false,
        "vocab_size": 256000}""",
    "llama-2-70b": """{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": 8192, "initializer_range": 0.02, "intermediate_size": 28672,
        "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 64,
        "num_hidden_layers": 80, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false,
        "vocab_size": 32000}""",
    "llama-3.2-1b": """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "rope_theta": 500000.0, "tie_word_embeddings": true,
        "vocab_size": 128256}""",
    "mistral-7b": """{"architectures": ["MistralForCausalLM"], "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "sliding_window": 4096, "tie_word_embeddings": false,
        "vocab_size": 32000}""",
    "phi-3-mini": """{"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "embd_pdrop": 0.0, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "resid_pdrop": 0.0, "sliding_window": 2047, "tie_word_embeddings": false,
        "vocab_size": 32064}""",
    "qwen2-7b": """{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "tie_word_embeddings": false, "use_sliding_window": false,
        "vocab_size": 152064}""",
    "qwen3-32b": """{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 25600, "max_position_embeddings": 40960, "max_window_layers": 64,
        "model_type": "qwen3", "num_attention_heads": 64, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "sliding_window": null, "tie_word_embeddings": false,
        "use_sliding_window": false, "vocab_size": 151936}""",
    "gemma-7b": """{"architectures": ["GemmaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "head_dim": 256, "hidden_act": "gelu",
        "hidden_activation": null, "hidden_size": 3072, "intermediate_size": 24576,
        "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 16, "vocab_size": 256000}""",
    "gemma-2-9b": """{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584,
        "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "gemma2",
        "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
        "sliding_window": 4096, "vocab_size": 256000}""",
    "mixtral-8x7b": """{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "output_router_logits": false, "sliding_window": null,
        "tie_word_embeddings": false, "vocab_size": 32000}""",
    "qwen2-57b-a14b": """{"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0,
        "decoder_sparse_step": 1, "hidden_act": "silu", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
        "model_type": "qwen2_moe", "moe_intermediate_size": 2560, "norm_topk_prob": false,
        "num_attention_heads": 28, "num_experts": 64, "num_experts_per_tok": 8,
        "num_hidden_layers": 28, "num_key_value_heads": 4,
        "shared_expert_intermediate_size": 20480, "sliding_window": 65536,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936}""",
    "qwen3-30b-a3b": """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": null,
        "tie_word_embeddings": false, "vocab_size": 151936}""",
    "deepseek-moe-16b": """{"architectures": ["DeepseekForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "first_k_dense_replace": 1,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
        "max_position_embeddings": 4096, "model_type": "deepseek", "moe_intermediate_size": 1408,
        "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 28,
        "num_key_value_heads": 16, "tie_word_embeddings": false, "vocab_size": 102400}""",
    "deepseek-v2-lite": """{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v2",
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
        "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "tie_word_embeddings": false,
        "v_head_dim": 128, "vocab_size": 102400}""",
    "deepseek-v3": """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
        "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3",
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "topk_group": 4, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "tie_word_embeddings": false, "v_head_dim": 128,
        "vocab_size": 129280}""",
    "gpt-oss-20b": """{"architectures": ["GptOssForCausalLM"], "attention_bias": true,
        "attention_dropout": 0.0, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "sliding_window": 128, "tie_word_embeddings": false,
        "vocab_size": 201088}""",
    "dbrx": """{"architectures": ["DbrxForCausalLM"], "attn_config": {"clip_qkv": 8,
        "kv_n_heads": 8, "model_type": "", "rope_theta": 500000}, "d_model": 6144,
        "emb_pdrop": 0.0, "ffn_config": {"ffn_hidden_size": 10752, "model_type": "",
        "moe_jitter_eps": 0, "moe_loss_weight": 0.05, "moe_num_experts": 16, "moe_top_k": 4},
        "max_seq_len": 32768, "model_type": "dbrx", "n_heads": 48, "n_layers": 40,
        "resid_pdrop": 0.0, "tie_word_embeddings": false, "vocab_size": 100352}""",
    "llama-4-maverick": """{"architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4", "text_config": {"attention_bias": false,
        "attention_chunk_size": 8192, "attention_dropout": 0.0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 2,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "max_position_embeddings": 1048576, "model_type": "llama4_text",
        "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
        "num_key_value_heads": 8, "num_local_experts": 128, "tie_word_embeddings": false,
        "use_qk_norm": false, "vocab_size": 202048}, "vision_config": {"hidden_size": 1408}}""",
    "bert-large": """{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 4096, "max_position_embeddings": 512,
        "model_type": "bert", "num_attention_heads": 16, "num_hidden_layers": 24,
        "type_vocab_size": 2, "vocab_size": 30522}""",
    "t5-3b": """{"architectures": ["T5WithLMHeadModel"], "d_ff": 16384, "d_kv": 128,
        "d_model": 1024, "dropout_rate": 0.1, "is_encoder_decoder": true, "model_type": "t5",
        "n_positions": 512, "num_heads": 32, "num_layers": 24,
        "relative_attention_num_buckets": 32, "vocab_size": 32128}""",
    "t5-v1.1-xl": """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 5120, "d_kv": 64,
        "d_model": 2048, "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": true, "model_type": "t5", "num_decoder_layers": 24,
        "num_heads": 32, "num_layers": 24, "tie_word_embeddings": false, "vocab_size": 32128}""",
    "vit-b-16": """{"architectures": ["ViTForImageClassification"],
        "attention_probs_dropout_prob": 0.0, "encoder_stride": 16, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 224,
        "intermediate_size": 3072, "model_type": "vit", "num_attention_heads": 12,
        "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": true}""",
}

# The released MPT has ALiBi and no biases; the preset is the one that was measured.
MPT_7B = """{"architectures": ["MPTForCausalLM"], "attn_config": {"alibi": true,
    "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
    "attn_type": "multihead_attention", "qk_ln": false}, "d_model": 4096, "emb_pdrop": 0,
    "expansion_ratio": 4, "learned_pos_emb": true, "max_seq_len": 2048, "model_type": "mpt",
    "n_heads": 32, "n_layers": 32, "no_bias": true, "resid_pdrop": 0, "vocab_size": 50432}"""


def written(folder: Path, config: str) -> Path:
    path = folder / "config.json"
    path.write_text(config)
    return path


def comparable(table: dict[str, Any]) -> Transformer:
    """Build a model, with what is only said in one of two ways."""
    cls, common = FAMILIES[table["family"]]
    model = build(cls, {"seq_len": 2048, **common, **table}, "test", "model")
    assert isinstance(model, Transformer)
    model = replace(
        model,
        kv_heads=model.kv,
        ffn_hidden=model.ffn,
        qkv_bias=model.has_qkv_bias,
        moe_ffn_hidden=model.expert_ffn if model.experts else None,
        shared_ffn_hidden=model.shared_ffn or None,
    )
    if model.family != "vit":
        model = replace(model, seq_len=2048, decoder_seq_len=None)
    if model.attention == "mha":
        model = replace(model, head_size=model.head)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_file_gives_the_preset(name: str, tmp_path: Path) -> None:
    found, guess = from_config(written(tmp_path, CONFIGS[name]))
    assert guess is None or guess.error == 0  # of models for images the text model
    assert comparable(found) == comparable(find_model(name))


CLASSES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("huggingface_parameters.json").read_text()
)["classes"]
"""Of transformers: sizes and the number of parameters (run_scripts/huggingface_parameters.py)."""

UNLIKE_ANY = {
    "deepseek_v2",  # does not say how many experts a token is sent to
    "glm4_moe",  # 4096 elements in 96 heads; published files say 128 each
}
"""Classes whose defaults are no model that anybody trains."""

NO_CLASS = {
    "deepseek",  # left transformers
    "kimi_k2",  # read by the function of deepseek_v3
    # Defaults that make no model, or are no causal language models.
    "dbrx",
    "distilbert",
    "dots1",
    "hunyuan_v1_dense",
    "ministral",
    "modernbert",
    "mt5",
    "nemotron",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "t5",
    "umt5",
    "vit",
}


def test_every_model_type_is_covered() -> None:
    tested = {json.loads(config)["model_type"] for config in [*CONFIGS.values(), MPT_7B]}
    uncounted = set(MODEL_TYPES) - set(CLASSES) - NO_CLASS
    assert not uncounted, (
        f"{uncounted}: parameters of the class in transformers are not recorded; run "
        "python run_scripts/huggingface_parameters.py --refresh, or add a type that transformers "
        "has no class of to NO_CLASS"
    )
    assert set(MODEL_TYPES) >= NO_CLASS
    assert NO_CLASS & set(CLASSES) == set()
    assert tested <= set(MODEL_TYPES)


@pytest.mark.parametrize("name", sorted((set(CLASSES) & set(MODEL_TYPES)) - UNLIKE_ANY))
def test_parameters_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    keys, guess = from_config(written(tmp_path, json.dumps(CLASSES[name]["config"])))
    cls, common = FAMILIES[keys["family"]]
    model = build(cls, {"seq_len": 2048, **common, **keys}, "test", "model")
    assert isinstance(model, Transformer)
    # Encoders have a head here that predicts words, where the class has another; towers for images.
    near = 0.006 if model.family == "bert" else 0.04 if guess is not None else 2e-4
    assert parameters(model) == pytest.approx(CLASSES[name]["parameters"], rel=near)


def test_most_unknown_types_are_read_as_known_ones(tmp_path: Path) -> None:
    """The error of a guess is what these classes show."""
    off = []
    for name in sorted(set(CLASSES) - set(MODEL_TYPES)):
        try:
            keys, guess = from_config(written(tmp_path, json.dumps(CLASSES[name]["config"])))
        except InputError:
            continue  # without attention, or sizes of other names
        cls, common = FAMILIES[keys["family"]]
        model = build(cls, {"seq_len": 2048, **common, **keys}, "test", "model")
        assert isinstance(model, Transformer)
        assert guess is not None
        off.append(abs(parameters(model) / CLASSES[name]["parameters"] - 1))
    assert len(off) >= 50
    assert guess is not None
    assert np.quantile(off, 0.5) <= 0.015
    assert np.quantile(off, 0.8) <= 1.28 * guess.error + 0.01


def test_a_text_model_stands_for_what_has_towers(tmp_path: Path) -> None:
    text = json.loads(CONFIGS["qwen2-7b"])
    config = {"model_type": "llava", "text_config": text, "vision_config": {"hidden_size": 1024}}
    keys, guess = from_config(written(tmp_path, json.dumps(config)))
    assert keys == from_config(written(tmp_path, CONFIGS["qwen2-7b"]))[0]
    assert guess is not None
    assert guess.notes == ("llava: its text model alone; towers for images or sound are left out",)


def test_keys_that_are_null_are_absent_and_lists_are_lists(tmp_path: Path) -> None:
    plain = json.loads(CONFIGS["qwen2-7b"])
    found = from_config(written(tmp_path, json.dumps(plain | {"text_config": None})))
    assert found == from_config(written(tmp_path, CONFIGS["qwen2-7b"]))
    with pytest.raises(InputError, match="'layer_types' is 7; it must be a list of texts"):
        from_config(written(tmp_path, json.dumps(plain | {"model_type": "new", "layer_types": 7})))


def test_mpt(tmp_path: Path) -> None:
    found, _ = from_config(written(tmp_path, MPT_7B))
    assert found == {
        "family": "gpt",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "vocab": 50432,
        "seq_len": 2048,
        "ffn_hidden": 16384,
        "position": "alibi",
        "bias": False,
        "qk_norm": False,
        "dropout": False,
        "tied_embeddings": True,
    }


def test_sequences_are_as_long_as_the_file_allows(tmp_path: Path) -> None:
    assert from_config(written(tmp_path, CONFIGS["qwen2-7b"]))[0]["seq_len"] == 131072
    assert from_config(written(tmp_path, CONFIGS["vit-b-16"]))[0]["seq_len"] == 197
    assert "seq_len" not in from_config(written(tmp_path, CONFIGS["falcon-7b"]))[0]


def test_an_experiment_takes_a_file_or_its_folder(tmp_path: Path) -> None:
    written(tmp_path, CONFIGS["llama-2-70b"])
    text = '[model]\nhf_config = "{}"\nlayers = 2\n[plan]\nglobal_batch = 8\n[cluster]\npreset = ""'
    for given in ("config.json", "."):
        experiment = read(text.format(given), str(tmp_path / "e.toml"))
        assert isinstance(experiment.model, Transformer)
        assert (experiment.model.layers, experiment.model.hidden) == (2, 8192)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {"model_type": None}, "key 'model_type' is missing"),
        (
            "gpt2",
            {"model_type": "gtp2"},
            "key 'model_type' is 'gtp2' (did you mean 'gpt2'?), which is not known, nor can it be ",
        ),
        ("gpt2", {"model_type": 2}, "key 'model_type' is 2; it must be a text"),
        (
            "gpt2",
            {"n_layer": None},
            "key 'num_hidden_layers' is missing (nor 'n_layer', 'n_layers', 'num_layers')",
        ),
        ("gpt2", {"n_embd": "768"}, "key 'n_embd' is '768'; it must be an integer, 1 or more"),
        ("gpt2", {"n_head": 0}, "key 'n_head' is 0; it must be an integer, 1 or more"),
        ("gpt2", {"n_head": True}, "key 'n_head' is True; it must be an integer, 1 or more"),
        ("gpt2", {"resid_pdrop": "a"}, "key 'resid_pdrop' is 'a'; it must be a number"),
        (
            "gpt2",
            {"activation_function": "tanh"},
            "key 'activation_function' is 'tanh'; known: gelu, ",
        ),
        (
            "llama-2-70b",
            {"tie_word_embeddings": 1},
            "key 'tie_word_embeddings' is 1; it must be true or false",
        ),
        ("dbrx", {"attn_config": []}, None),
        ("dbrx", {"attn_config": [1]}, "key 'attn_config' is [1]; it must be a table"),
        (
            "dbrx",
            {"ffn_config": {"moe_top_k": "4"}},
            "key 'ffn_config.moe_top_k' is '4'; it must be an integer, 1 or more",
        ),
        (
            "llama-4-maverick",
            {"text_config": {}},
            "key 'text_config.num_hidden_layers' is missing",
        ),
        (
            "qwen3-30b-a3b",
            {"mlp_only_layers": [7]},
            "key 'mlp_only_layers' is [7]; layers without experts must be the first ones",
        ),
        (
            "deepseek-v3",
            {"moe_layer_freq": 2},
            "key 'moe_layer_freq' is 2; every layer behind the dense ones must have experts",
        ),
        ("deepseek-v3", {"kv_lora_rank": None}, "key 'kv_lora_rank' is missing"),
        (
            "deepseek-v3",
            {"num_nextn_predict_layers": -1},
            "key 'num_nextn_predict_layers' is -1; it must be an integer, 0 or more",
        ),
    ],
)
def test_bad_files_are_one_line_with_file_and_key(
    name: str, changes: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    table = json.loads(CONFIGS[name]) | changes
    path = written(tmp_path, json.dumps({k: v for k, v in table.items() if v is not None}))
    if message is None:
        from_config(path)
        return
    with pytest.raises(InputError) as caught:
        from_config(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [("{", "not valid JSON"), ("[1]", "holds no table"), ("\xff", "not a text file in UTF-8")],
)
def test_files_that_are_no_json_table(contents: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(contents.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        from_config(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: cannot be read: No such file"):
        from_config(tmp_path)
