"""A model of megatron-core with its local layers: TP PP CHUNKS LAYERS MICRO_BATCHES [MODEL].

CHUNKS are the pieces of the model that each stage of the pipeline has, interleaved if more than 1.
Data parallelism takes the rest of the ranks, with the distributed optimizer. MODEL is gpt, with
learned positions, gpt_unsharded, without the distributed optimizer, or llama3_70b, whose layers
are computed again one by one: local layers keep the scores of the attention, 1 GiB a layer on one
of 8 ranks.
"""

import sys

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron_training import built, start, train

tp, pp, chunks, layers, micro_batches = map(int, sys.argv[1:6])
llama = sys.argv[6:] == ["llama3_70b"]
sharded = sys.argv[6:] != ["gpt_unsharded"]
HIDDEN, HEADS, WORDS, TOKENS = 4096, 32, 51200, 2048
block, ends, normalization = {}, {"position_embedding_type": "learned_absolute"}, "LayerNorm"
if llama:
    HIDDEN, HEADS, WORDS, TOKENS, normalization = 8192, 64, 128256, 8192, "RMSNorm"
    block = {
        "num_query_groups": 8,
        "ffn_hidden_size": 28672,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    ends = {"position_embedding_type": "rope", "rotary_base": 500000}

start(
    micro_batches,
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
)
config = TransformerConfig(
    num_layers=layers,
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    pipeline_dtype=torch.bfloat16,
    params_dtype=torch.bfloat16,
    bf16=True,
    gradient_accumulation_fusion=False,
    batch_p2p_comm=chunks == 1,
    overlap_p2p_comm=chunks > 1,
    normalization=normalization,
    **block,
)
sharding = DistributedDataParallelConfig(
    use_distributed_optimizer=sharded, overlap_grad_reduce=True, grad_reduce_in_fp32=True
)
model = built(
    config,
    sharding,
    lambda: get_gpt_layer_local_spec(normalization=normalization),
    WORDS,
    TOKENS,
    chunks,
    **ends,
)
train(config, sharding, model, WORDS, TOKENS, micro_batches)
