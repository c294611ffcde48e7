"""Llama by megatron-core with Transformer Engine: TP PP CHUNKS LAYERS MICRO_BATCHES FORMAT [CP].

CHUNKS are the pieces of the model that each stage of the pipeline has, interleaved if more than 1.
Data parallelism takes the rest of the ranks, with the distributed optimizer. FORMAT is bf16, or
where scales of fp8 come from: delayed, tensorwise, mxfp8. With tensor parallelism sequences are
shared, too. CP ranks share each sequence, with keys and values going round.
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
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

tp, pp, chunks, layers, micro_batches = map(int, sys.argv[1:6])
cp = int(sys.argv[7]) if len(sys.argv) > 7 else 1
fp8 = {} if sys.argv[6] == "bf16" else {"fp8": "hybrid", "fp8_recipe": sys.argv[6]}
HIDDEN, HEADS, GROUPS, INNER, WORDS, TOKENS, MICRO_BATCH = 4096, 32, 8, 14336, 128256, 8192, 1

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=tp,
    pipeline_model_parallel_size=pp,
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    context_parallel_size=cp,
)
tensor_parallel.model_parallel_cuda_manual_seed(1234)
dp = parallel_state.get_data_parallel_world_size()
init_num_microbatches_calculator(0, None, micro_batches * dp, MICRO_BATCH, dp)
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
model = []
for chunk in range(chunks):
    at = {} if chunks == 1 else {"ignore_virtual": False, "vp_stage": chunk}
    part = GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(use_te_activation_func=True),
        WORDS,
        TOKENS,
        pre_process=parallel_state.is_pipeline_first_stage(**at),
        post_process=parallel_state.is_pipeline_last_stage(**at),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        rotary_base=500000,
        vp_stage=chunk if chunks > 1 else None,
    )
    part = part.cuda().bfloat16()
    model.append(DistributedDataParallel(config, sharding, part, disable_bucketing=chunk > 0))
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0
    ),
    model,
)
config.no_sync_func = [part.no_sync for part in model] if chunks > 1 else model[0].no_sync
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads


def forward_step(iterator, part):
    here = TOKENS // cp
    tokens = torch.randint(0, WORDS, (MICRO_BATCH, here + 1), device="cuda")
    positions = torch.arange(here, device="cuda").expand(MICRO_BATCH, here)
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
