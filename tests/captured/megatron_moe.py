"""A mixture of experts by megatron-core and Transformer Engine: EP LAYERS MICRO_BATCHES DISPATCHER.

Experts are spread over EP ranks, data parallelism takes all, with the distributed optimizer.
DISPATCHER is alltoall or deepep.
"""

import sys

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer import TransformerConfig
from megatron_training import built, start, train

ep, layers, micro_batches = map(int, sys.argv[1:4])
flex = sys.argv[4] == "deepep"
HIDDEN, HEADS, GROUPS, INNER, WORDS, TOKENS = 2048, 16, 4, 1024, 32768, 4096
EXPERTS, CHOICES = 64, 8

start(micro_batches, expert_model_parallel_size=ep)
config = TransformerConfig(
    num_layers=layers,
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    num_query_groups=GROUPS,
    ffn_hidden_size=INNER,
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    add_bias_linear=False,
    normalization="RMSNorm",
    attention_dropout=0.0,
    hidden_dropout=0.0,
    num_moe_experts=EXPERTS,
    moe_router_topk=CHOICES,
    moe_ffn_hidden_size=INNER,
    moe_router_dtype="fp32",
    moe_router_load_balancing_type="none",
    moe_grouped_gemm=True,
    moe_permute_fusion=True,
    moe_token_dispatcher_type="flex" if flex else "alltoall",
    moe_enable_deepep=flex,
    expert_model_parallel_size=ep,
    params_dtype=torch.bfloat16,
    bf16=True,
    gradient_accumulation_fusion=True,
    bias_dropout_fusion=True,
    bias_activation_fusion=True,
    apply_rope_fusion=True,
)
sharding = DistributedDataParallelConfig(
    use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True,
    grad_reduce_in_fp32=True,
)  # fmt: skip
model = built(
    config,
    sharding,
    lambda: get_gpt_layer_with_transformer_engine_spec(num_experts=EXPERTS, moe_grouped_gemm=True),
    WORDS,
    TOKENS,
    position_embedding_type="rope",
)
train(config, sharding, model, WORDS, TOKENS, micro_batches)
