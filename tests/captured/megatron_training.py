"""What the scripts of megatron-core share: process groups, the pieces of a model, its training."""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

MICRO_BATCH = 1


def start(micro_batches, **parallel):
    """Make the process groups; data parallelism takes the rest of the ranks."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(**parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    dp = parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(0, None, micro_batches * dp, MICRO_BATCH, dp)


def built(config, sharding, spec, words, tokens, chunks=1, **ends):
    """Return the pieces of the model that this stage of the pipeline has."""
    model = []
    for chunk in range(chunks):
        at = {} if chunks == 1 else {"ignore_virtual": False, "vp_stage": chunk}
        part = GPTModel(
            config,
            spec(),
            words,
            tokens,
            pre_process=parallel_state.is_pipeline_first_stage(**at),
            post_process=parallel_state.is_pipeline_last_stage(**at),
            share_embeddings_and_output_weights=False,
            vp_stage=chunk if chunks > 1 else None,
            **ends,
        )
        part = part.cuda().bfloat16()
        model.append(DistributedDataParallel(config, sharding, part, disable_bucketing=chunk > 0))
    return model


def train(config, sharding, model, words, tokens, micro_batches, cp=1):
    """Train for three steps; `cp` ranks share a sequence."""
    sharded = sharding.use_distributed_optimizer
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=sharded, clip_grad=1.0
        ),
        model,
    )
    chunks = len(model)
    config.no_sync_func = [part.no_sync for part in model] if chunks > 1 else model[0].no_sync
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads

    def forward_step(iterator, part):
        here = tokens // cp
        text = torch.randint(0, words, (MICRO_BATCH, here + 1), device="cuda")
        positions = torch.arange(here, device="cuda").expand(MICRO_BATCH, here)
        out = part(text[:, :-1], positions, None, labels=text[:, 1:])
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
            seq_length=tokens,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        optimizer.step()
