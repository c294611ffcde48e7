"""End of a training step: last gradient reductions, overflow check, clipping, optimizer update.

Megatron-LM's ``finalize_model_grads`` (megatron/core/distributed) and ``optimizer.step``
(megatron/core/optimizer): gradients of parameters that tensor-parallel ranks replicate are reduced
where the ranks saw different tokens, those of tied embeddings over the first and the last stage;
the CPU reads the norm of all gradients, gradients are clipped, and one kernel updates everything.
In fp16 gradients are checked for overflow before. Gradients in 16 bits are copied to fp32 before
all that, and weights to the format of the passes after it (``_copy_model_grads_to_main_grads``,
``_copy_main_params_to_model_params``). DeepSpeed does the same over its own groups, but for fp16
without ZeRO (``FP16_Optimizer``, deepspeed/runtime/fp16/fused_optimizer.py): there the CPU asks of
one gradient after the other whether it is finite, before they are converted and joined, and what
unscales them clips them, too. FSDP, which converts when it communicates, leaves the norm on the
GPU; DDP's users rarely clip (``plan.clip``).

Before PyTorch 2.0 its optimizers and ``clip_grad_norm_`` go through parameters one by one
(``framework.parameter_loops``): as many launches as there are parameters for each of their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpisim.kernels.operations import (
    BYTES,
    Copy,
    Elementwise,
    OptimizerStep,
    operand_bytes,
)

from ..experiment.plan import Plan
from ..program import Operation
from .blocks import BlockBuilder
from .data_parallel import Strategy
from .host import host_of
from .layout import Layout
from .offloaded_optimizer import (
    offloaded_parameters,
    write_cpu_optimizer,
    write_gradients_to_host,
)
from .operators import Communicate, Compute

__all__ = ["OPTIMIZER_STATES", "optimizer_bytes", "reduce_mirrored", "write_optimizer"]

MIRRORED = "mirrored gradients"
"""Port of the sums that `reduce_mirrored` starts."""

FP32 = BYTES["fp32"]

OPTIMIZER_STATES: Mapping[str, int] = {
    "adam": 2,
    "lamb": 2,
    "momentum": 1,
    "adagrad": 1,
    "sgd": 0,
}
"""Numbers that an optimizer keeps of a parameter."""

FOREACH_KERNELS: Mapping[str, Sequence[tuple[str, int]]] = {
    "adam": (
        ("adam average gradient", 3),
        ("adam scale squares", 2),
        ("adam add squares", 3),
        ("adam square root", 2),
        ("adam correct bias", 2),
        ("adam add epsilon", 2),
        ("adam update", 4),
    ),
    "lamb": (
        ("lamb moments", 7),
        ("lamb weight norm", 1),
        ("lamb clamp norm", 0),
        ("lamb update norm", 1),
        ("lamb trust ratio", 0),
        ("lamb update", 3),
    ),
    "momentum": (("momentum scale", 2), ("momentum add gradient", 3), ("momentum update", 3)),
    "adagrad": (
        ("adagrad add squares", 3),
        ("adagrad square root", 2),
        ("adagrad add epsilon", 2),
        ("adagrad scale gradient", 2),
        ("adagrad update", 4),
    ),
    "sgd": (("sgd update", 3),),
}
"""Optimizer → kernels that ``torch.optim`` runs over all parameters without ``fused=True``, and how
many numbers each reads and writes of a parameter (``_multi_tensor_adam`` and its like), 0
where it works on norms alone. LAMB: what TorchScript's fuser makes of `lamb_kernel` in
github:NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/Transformer-XL (``lamb.py``)."""

PRIMITIVE_KERNELS: Mapping[str, Sequence[tuple[str, int]]] = {
    "adam": (
        ("adam scale average", 2),
        ("adam scale gradient", 2),
        ("adam average gradient", 3),
        ("adam scale squares", 2),
        ("adam square", 2),
        ("adam scale square", 2),
        ("adam add squares", 3),
        ("adam square root", 2),
        ("adam add epsilon", 2),
        ("adam divide", 3),
        ("adam decay", 2),
        ("adam add decay", 3),
        ("adam scale update", 2),
        ("adam update", 3),
        ("adam assignments", 6),
    ),
}
"""The same for TensorFlow's operations (`AdamWeightDecayOptimizer` of BERT's optimization.py)."""


def optimizer_bytes(plan: Plan, strategy: Strategy) -> int:
    """Return the bytes one fused optimizer step reads and writes for each parameter.

    The gradient is read; the main parameter and the states are read and written. LAMB also writes
    the update, reads it and the weight for their norms, and both again (apex's ``FusedLAMB``).

    Parameters
    ----------
    plan : Plan
    strategy : Strategy
        It knows the format of the gradient.
    """
    states = BYTES[plan.precision.moments] * OPTIMIZER_STATES[plan.optimizer]
    main = BYTES[plan.precision.main_parameters]
    norms = 5 * main if plan.optimizer == "lamb" else 0
    return strategy.optimizer_gradient_size + 2 * (main + states) + norms


def write_optimizer(
    block: BlockBuilder, layout: Layout, stage: int, strategy: Strategy, which: int = 0
) -> None:
    """Append the end of a stage's step to a block.

    Parameters
    ----------
    block : BlockBuilder
    layout : Layout
    stage : int
    strategy : Strategy
        Of the stage's data parallelism.
    which : int
        Index into the layout's networks.
    """
    if layout.experiment.plan.overlap.mirror:
        block.await_next([block.port(MIRRORED)])
    strategy.before_optimizer(block)
    _reduce_further(block, layout, stage, strategy)
    network = layout.networks[which]
    if network.optimizer is not None:  # as it was traced, whatever it consists of
        share = strategy.updated_parameters / network.size if network.size else 1.0
        if share:
            block.write(network.optimizer(share))
        strategy.after_optimizer(block)
        return
    plan = layout.experiment.plan
    converts = strategy.style != "fsdp"
    one_by_one = _checks_one_by_one(plan, strategy)
    if one_by_one:
        _check_each(block, strategy)
    offloaded = offloaded_parameters(plan, strategy)
    own = strategy.updated_parameters - offloaded  # of the GPU
    # DeepSpeed's CPU scales the gradients that it has; Megatron-LM's gets them scaled.
    scaled = own if strategy.style == "deepspeed" else strategy.updated_parameters
    if converts:
        source, target = strategy.gradient_size, strategy.optimizer_gradient_size
        _convert(block, "gradients", source, target, strategy.updated_parameters)
    if one_by_one:
        size = strategy.optimizer_gradient_size * strategy.updated_parameters
        block.compute(Compute("flatten gradients", Elementwise(2 * size)))
    elif plan.precision.products == "fp16" and (strategy.norm_groups or plan.clip):
        _check_overflow(block, strategy, scaled)
    clips = bool(plan.clip if plan.clip is not None else strategy.norm_groups)
    on_host = strategy.style == "fsdp" and plan.offload.parameters
    if one_by_one or (clips and not on_host):
        _clip(block, layout, strategy, scaled)
    if offloaded:
        host = host_of(layout.experiment, layout.grid.world)
        copied = write_gradients_to_host(block, plan, strategy, host)
        _update(block, plan, strategy, own)
        states = OPTIMIZER_STATES[plan.optimizer]
        write_cpu_optimizer(block, plan, strategy, host, states, copied, clips=clips)
    else:
        _update(block, plan, strategy, own)
    if converts:
        main = BYTES[plan.precision.main_parameters]
        _convert(block, "weights", main, strategy.weight_size, own)
    strategy.after_optimizer(block)
    if strategy.style == "megatron":
        _quantise(block, layout.experiment.plan, strategy)


def reduce_mirrored(block: BlockBuilder, strategy: Strategy, chunk: int) -> None:
    """Add up a chunk's gradients with the stage that holds it for the other direction; no waiting.

    Chimera's eager synchronization (arXiv:2107.06925, section 3.2): an all-reduce that does not
    block begins once the last backward has made them, and runs in what is left of the bubbles. The
    optimizer waits for it.

    Parameters
    ----------
    block : BlockBuilder
        Of the chunk's last backward, at its end.
    strategy : Strategy
    chunk : int
        Of the stage, from 0.
    """
    size = strategy.gradient_size * sum(each.size for each in strategy.parameters[chunk])
    row = block.launch(_all_reduce("mirror", size, "gradient")) if size else None
    block.export(MIRRORED, [] if row is None else [row])


def _reduce_further(block: BlockBuilder, layout: Layout, stage: int, strategy: Strategy) -> None:
    """Reduce gradients over ranks that replicate a parameter, other than data-parallel ones."""
    plan, pipeline = layout.experiment.plan, layout.pipeline
    parameters = [each for chunk in strategy.parameters for each in chunk]
    if pipeline.mirrored and strategy.updated_parameters and not plan.overlap.mirror:
        # Two stages hold the same layers, one for each direction of the pipeline.
        size = strategy.gradient_size * strategy.updated_parameters
        block.communicate(_all_reduce("mirror", size, "gradient"))
    shared = [
        each
        for each in parameters
        if each.parameter.replicated and (plan.sequence_parallel or each.parameter.partial)
    ]
    if plan.tp > 1 and shared:
        size = strategy.gradient_size * sum(each.size for each in shared)
        block.compute(Compute("flatten gradients", Elementwise(2 * size)))
        block.communicate(_all_reduce("tp", size, "replicated gradient"))
        strategy.write_copies(block, "unflatten gradient", shared, strategy.gradient_size)
    # In a V the first stage holds both the embedding and the head.
    apart = pipeline.stages > 1 and not pipeline.mirrored and not pipeline.v_shaped
    if apart and stage in (0, pipeline.stages - 1):
        for each in parameters:
            if each.parameter.tied:
                size = strategy.gradient_size * each.size
                block.communicate(_all_reduce("embedding", size, "embedding gradient"))


def _check_overflow(block: BlockBuilder, strategy: Strategy, scaled: int) -> None:
    """Unscale fp16 gradients of some parameters; the CPU reads whether one of all is not finite."""
    if strategy.updated_parameters:
        size = strategy.optimizer_gradient_size * (strategy.updated_parameters + scaled)
        block.compute(Compute("unscale gradients", Elementwise(size)))
    for group in strategy.norm_groups:
        block.communicate(_all_reduce(group, FP32, "overflow"))
    _read(block, "overflow")


def _checks_one_by_one(plan: Plan, strategy: Strategy) -> bool:
    """Whether DeepSpeed's ``FP16_Optimizer`` updates what the stage holds."""
    fp16 = plan.precision.products == "fp16" and strategy.gradient_size == BYTES["fp16"]
    return (
        strategy.style == "deepspeed" and not plan.zero and fp16 and strategy.updated_parameters > 0
    )


def _check_each(block: BlockBuilder, strategy: Strategy) -> None:
    """The CPU reads the sum of each gradient (``CheckOverflow`` of deepspeed/runtime/utils.py)."""
    for chunk in strategy.parameters:
        for each in chunk:
            size = (strategy.gradient_size + FP32) * each.size
            block.compute(Compute("convert gradient", Elementwise(size)))
            block.compute(Compute("sum gradient", Elementwise(FP32 * each.size)))
            _read(block, "overflow")
    for group in strategy.norm_groups:
        block.communicate(_all_reduce(group, FP32, "overflow"))
    _read(block, "overflow")


def _clip(block: BlockBuilder, layout: Layout, strategy: Strategy, scaled: int) -> None:
    """Scale gradients of some parameters by the norm of all, over the whole model."""
    sums: list[tuple[int, Sequence[str]]] = [(strategy.updated_parameters, strategy.norm_groups)]
    if strategy.norm_groups == ("model",) and _has_experts(layout):
        # Megatron-LM has a second optimizer for experts, over other groups of ranks.
        sums = [
            (strategy.parameter_count(False), ("model",)),
            (strategy.parameter_count(True), ("emodel",)),
        ]
    for parameters, groups in sums:
        if parameters:
            loop = _loop(layout.experiment.plan, strategy)
            for each in loop or (parameters,):
                size = strategy.optimizer_gradient_size * each
                block.compute(Compute("gradient norm", Elementwise(size)))
            if loop:
                block.compute(Compute("norm of norms", Elementwise(FP32 * len(loop))))
        for group in groups:
            block.communicate(_all_reduce(group, FP32, "gradient norm"))
        if strategy.style != "fsdp":
            _read(block, "gradient norm")
    if scaled:
        for each in _loop(layout.experiment.plan, strategy) or (scaled,):
            size = strategy.optimizer_gradient_size * each
            block.compute(Compute("clip gradients", Elementwise(2 * size)))


def _loop(plan: Plan, strategy: Strategy) -> tuple[int, ...]:
    """Sizes of the parameters that are gone through one by one; empty if all are together."""
    if not plan.framework.parameter_loops or strategy.style != "ddp" or plan.zero:
        return ()
    return tuple(each.size for chunk in strategy.parameters for each in chunk)


def _update(block: BlockBuilder, plan: Plan, strategy: Strategy, parameters: int) -> None:
    """Update parameters on the GPU."""
    if not parameters:
        return
    torch = strategy.style in ("ddp", "fsdp") or plan.framework.fused_optimizer is False
    if plan.framework.fuses_optimizer or not torch:
        each = optimizer_bytes(plan, strategy)
        block.compute(Compute(plan.optimizer, OptimizerStep(parameters, each)))
        return
    kernels = FOREACH_KERNELS[plan.optimizer]
    if plan.optimizer in plan.framework.primitive:
        kernels = PRIMITIVE_KERNELS[plan.optimizer]
    number = BYTES[plan.precision.main_parameters]
    for size in _loop(plan, strategy) or (parameters,):
        for name, numbers in kernels:
            step = OptimizerStep(size, number * numbers) if numbers else Elementwise(2 * FP32)
            block.compute(Compute(name, step))


def _convert(block: BlockBuilder, what: str, source: int, target: int, parameters: int) -> None:
    """Copy gradients or weights from one format to another, if the two differ."""
    if source != target and parameters:
        size = (source + target) * parameters
        block.compute(Compute(f"convert {what}", Elementwise(size)))


def _quantise(block: BlockBuilder, plan: Plan, strategy: Strategy) -> None:
    """Cast all weights of layers to the format of products, once for all micro-batches.

    Transformer Engine does so in the first pass (``is_first_microbatch``); for the casts see
    :mod:`.transformer.casts`; those to NVFP4 also read a weight for its largest value. Weights that
    were gathered in fp8 are only transposed, where products take one layout alone
    (``post_all_gather_processing``, megatron/core/fp8_utils.py).
    """
    if plan.precision.products not in ("fp8", "nvfp4") or plan.framework.fp8_weight_casts:
        return
    size = 0
    for chunk, held in enumerate(strategy.parameters):
        quantised = [strategy.quantises(chunk, i) for i in range(len(strategy.chunks[chunk]))]
        size += sum(each.size for each in held if quantised[each.layer])
    layouts = 2 if plan.framework.fp8_transposed or plan.precision.fp8_scaling == "blocks" else 1
    if strategy.gathers_fp8:
        if layouts == 2:
            traffic = 2 * operand_bytes(plan.precision.products, size)
            block.compute(Compute("transpose weights", Elementwise(traffic, transposes=True)))
        return
    current = plan.precision.products == "nvfp4" or plan.precision.fp8_scaling == "current"
    traffic = (2 if current else 1) * BYTES[plan.weight_format] * size
    traffic += layouts * operand_bytes(plan.precision.products, size)
    block.compute(Compute("cast weights", Elementwise(traffic, transposes=layouts == 2)))


def _read(block: BlockBuilder, what: str) -> None:
    """Copy a number to the CPU, which waits for it."""
    block.compute(Compute(f"read {what}", Copy(FP32, path="host")))
    block.host_wait([block.last], f"wait for {what}")


def _has_experts(layout: Layout) -> bool:
    """Whether any stage holds routed experts."""
    return any(layer.has_experts for network in layout.networks for layer in network.layers)


def _all_reduce(group: str, size: int, what: str) -> Communicate:
    return Communicate(f"{what} all-reduce", Operation.ALL_REDUCE, group, size)
