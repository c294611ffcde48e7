"""Llama by megatron-core with Transformer Engine: TP PP CHUNKS LAYERS MICRO_BATCHES FORMAT [CP].

CHUNKS are the pieces of the model that each stage of the pipeline has, interleaved if more than 1.
Data parallelism takes the rest of the ranks, with the distributed optimizer. FORMAT is bf16, or
where scales of fp8 come from: delayed, tensorwise, mxfp8. With tensor parallelism sequences are
shared, too. CP ranks share each sequence, with keys and values going round.
"""

import sys

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer import TransformerConfig
from megatron_training import built, start, train

tp, pp, chunks, layers, micro_batches = map(int, sys.argv[1:6])
cp = int(sys.argv[7]) if len(sys.argv) > 7 else 1
fp8 = {} if sys.argv[6] == "bf16" else {"fp8": "hybrid", "fp8_recipe": sys.argv[6]}
HIDDEN, HEADS, GROUPS, INNER, WORDS, TOKENS = 4096, 32, 8, 14336, 128256, 8192

start(
    micro_batches,
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    context_parallel_size=cp,
)
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
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    context_parallel_size=cp,
    sequence_parallel=tp > 1,
    pipeline_dtype=torch.bfloat16,
    params_dtype=torch.bfloat16,
    bf16=True,
    gradient_accumulation_fusion=True,
    use_te_activation_func=True,
    bias_dropout_fusion=True,
    apply_rope_fusion=True,
    batch_p2p_comm=chunks == 1,
    overlap_p2p_comm=chunks > 1,
    **fp8,
)
sharding = DistributedDataParallelConfig(
    use_distributed_optimizer=True,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    grad_reduce_in_fp32=True,
)
model = built(
    config,
    sharding,
    lambda: get_gpt_layer_with_transformer_engine_spec(use_te_activation_func=True),
    WORDS,
    TOKENS,
    chunks,
    position_embedding_type="rope",
    rotary_base=500000,
)
train(config, sharding, model, WORDS, TOKENS, micro_batches, cp)
