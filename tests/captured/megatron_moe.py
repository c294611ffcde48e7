"""A mixture of experts by megatron-core and Transformer Engine: EP LAYERS MICRO_BATCHES DISPATCHER.

Experts are spread over EP ranks, data parallelism takes all, with the distributed optimizer.
DISPATCHER is alltoall or deepep.
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

ep, layers, micro_batches = map(int, sys.argv[1:4])
flex = sys.argv[4] == "deepep"
HIDDEN, HEADS, GROUPS, INNER, WORDS, TOKENS = 2048, 16, 4, 1024, 32768, 4096
EXPERTS, CHOICES = 64, 8

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
parallel_state.initialize_model_parallel(expert_model_parallel_size=ep)
tensor_parallel.model_parallel_cuda_manual_seed(1234)
dp = parallel_state.get_data_parallel_world_size()
init_num_microbatches_calculator(0, None, micro_batches * dp, 1, dp)
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
part = GPTModel(
    config,
    get_gpt_layer_with_transformer_engine_spec(num_experts=EXPERTS, moe_grouped_gemm=True),
    WORDS,
    TOKENS,
    share_embeddings_and_output_weights=False,
    position_embedding_type="rope",
)
model = DistributedDataParallel(config, sharding, part.cuda().bfloat16())
optimizer = get_megatron_optimizer(
    OptimizerConfig(
        optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True, clip_grad=1.0
    ),
    [model],
)
config.no_sync_func = model.no_sync
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads


def forward_step(iterator, part):
    tokens = torch.randint(0, WORDS, (1, TOKENS + 1), device="cuda")
    positions = torch.arange(TOKENS, device="cuda").expand(1, TOKENS)
    out = part(tokens[:, :-1], positions, None, labels=tokens[:, 1:])
    return out, lambda losses: (losses.float().mean(), {"loss": losses.float().mean()})


run = get_forward_backward_func()
for _ in range(3):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward_step,
        data_iterator=iter([]),
        model=model,
        num_microbatches=micro_batches,
        seq_length=TOKENS,
        micro_batch_size=1,
        forward_only=False,
    )
    optimizer.step()
