"""A model of megatron-core with its local layers: TP PP CHUNKS LAYERS MICRO_BATCHES [MODEL].

CHUNKS are the pieces of the model that each stage of the pipeline has, interleaved if more than 1.
Data parallelism takes the rest of the ranks, with the distributed optimizer. MODEL is gpt, with
learned positions, gpt_unsharded, without the distributed optimizer, or llama3_70b, whose layers
are computed again one by one: local layers keep the scores of the attention, 1 GiB a layer on one
of 8 ranks.
"""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

tp, pp, chunks, layers, micro_batches = map(int, sys.argv[1:6])
llama = sys.argv[6:] == ["llama3_70b"]
sharded = sys.argv[6:] != ["gpt_unsharded"]
HIDDEN, HEADS, WORDS, TOKENS, MICRO_BATCH = 4096, 32, 51200, 2048, 1
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

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
)
tensor_parallel.model_parallel_cuda_manual_seed(1234)
dp = parallel_state.get_data_parallel_world_size()
init_num_microbatches_calculator(0, None, micro_batches * dp, MICRO_BATCH, dp)
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
model = []
for chunk in range(chunks):
    at = {} if chunks == 1 else {"ignore_virtual": False, "vp_stage": chunk}
    part = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization=normalization),
        WORDS,
        TOKENS,
        pre_process=parallel_state.is_pipeline_first_stage(**at),
        post_process=parallel_state.is_pipeline_last_stage(**at),
        share_embeddings_and_output_weights=False,
        vp_stage=chunk if chunks > 1 else None,
        **ends,
    )
    part = part.cuda().bfloat16()
    model.append(DistributedDataParallel(config, sharding, part, disable_bucketing=chunk > 0))
optimizer = get_megatron_optimizer(
    OptimizerConfig(lr=1e-4, bf16=True, use_distributed_optimizer=sharded, clip_grad=1.0), model
)
config.no_sync_func = [part.no_sync for part in model] if chunks > 1 else model[0].no_sync
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads


def forward_step(iterator, part):
    tokens = torch.randint(0, WORDS, (MICRO_BATCH, TOKENS + 1), device="cuda")
    positions = torch.arange(TOKENS, device="cuda").expand(MICRO_BATCH, TOKENS)
    out = part(tokens[:, :-1], positions, None, labels=tokens[:, 1:])
    return out, lambda losses: (losses.float().mean(), {"loss": losses.float().mean()})


run = get_forward_backward_func()
for _ in range(3):
    for part in model:
        part.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward_step,
        data_iterator=[iter([])] * chunks if chunks > 1 else iter([]),
        model=model if chunks > 1 else model[0],
        num_microbatches=micro_batches,
        seq_length=TOKENS,
        micro_batch_size=MICRO_BATCH,
        forward_only=False,
    )
    optimizer.step()
