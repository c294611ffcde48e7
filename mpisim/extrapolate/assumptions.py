"""Traced step at another scale → its assumptions, a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ..experiment import Plan
from ..kernels import find_gpu, gpu_name
from .expert_parallel import experts_of
from .step import TracedKernel, TracedStep
from .target import Target

__all__ = ["assumptions_of"]


def assumptions_of(
    step: TracedStep, target: Target, plan: Plan, world: int, gpus: Mapping[str, TracedStep]
) -> tuple[str, ...]:
    """Traced step, target, plan → assumptions of the step at that scale, a line each.

    Parameters
    ----------
    step : TracedStep
    target : Target
    plan : Plan
        Of the target, with what it left open.
    world : int
        GPUs of the job.
    gpus : mapping of str to TracedStep
        GPU of the job, by name → the step that its ranks do as.
    """
    others = [name for name, each in gpus.items() if gpu_name(name) != each.gpu]
    return (
        *_of_step(step),
        *_of_sizes(step, target, plan, world, others),
        *_of_gpus(step, target, gpus),
        *_of_plan(step, target, plan),
        *_of_optimizer(step, plan),
        *_of_unknown(step, plan, others),
    )


def _of_step(step: TracedStep) -> Iterator[str]:
    kernels = step.kernel_time / 1e9
    title = find_gpu(step.gpu).title
    if step.priced:
        yield (
            f"extrapolated from {step.source}: a captured step of {step.batch} samples, of which "
            f"no kernel was measured: all are priced for {title} by their shapes, "
            f"{kernels:,.3f} ms together; launches and gaps are the GPU's"
        )
    else:
        yield (
            f"extrapolated from {step.source}: one step of {step.batch} samples on {title}, "
            f"{step.measured / 1e9:,.3f} ms, of which kernels {kernels:,.3f} ms"
        )
    yield (
        f"{len(step.layers())} layers, {sum(p.elements for p in step.parameters):,} parameters in "
        f"{len(step.parameters)} tensors, by the gradients that were accumulated"
    )
    yield from step.notes


def _of_sizes(
    step: TracedStep, target: Target, plan: Plan, world: int, others: list[str]
) -> Iterator[str]:
    if world > 1:
        yield (
            f"the traced GPU is taken for a typical one; of {world} the slowest sets "
            "the pace of products"
        )
    if plan.micro_batch != step.batch and not step.priced:
        yield (
            f"micro-batches of {plan.micro_batch} samples: measured times × the ratio of the "
            "kernel model at both sizes; launches as traced"
        )
    if target.sequence is not None and target.sequence != step.sequence:
        yield f"samples of {target.sequence} tokens in place of {step.sequence}, likewise"
    for name in () if step.priced else others:
        title = find_gpu(name).title
        yield f"measured times × the ratio of the kernel model on {title}; CPU as traced"


def _of_gpus(step: TracedStep, target: Target, gpus: Mapping[str, TracedStep]) -> Iterator[str]:
    for name, each in gpus.items():
        if each is not step:
            yield (
                f"ranks on {find_gpu(name).title} do as {each.source} has it, a step of "
                f"{each.batch} samples, of which kernels {each.kernel_time / 1e9:,.3f} ms"
            )
            yield from (f"{each.source}: {note}" for note in each.notes)
    for nodes, name in target.other_gpus.items():
        yield f"nodes {nodes} have {find_gpu(name).title}"


def _of_plan(step: TracedStep, target: Target, plan: Plan) -> Iterator[str]:
    if plan.pp > 1:
        yield (
            f"layers of each part of the pipeline: {list(plan.pipeline.stages)}; between parts "
            "goes the largest input of the layer behind"
        )
    if plan.tp > 1:
        between = (
            "what lies between such pairs has a share of the tokens"
            if plan.sequence_parallel
            else "what is not divided every rank computes"
        )
        yield (
            "tensor parallelism: columns and rows as Megatron-LM where matrices pair, else outputs "
            f"divided and gathered; {between}"
        )
    if plan.cp > 1:
        yield (
            f"context parallelism ({plan.framework.cp_style}): {plan.cp} ranks have a share of "
            "each sequence; kernels of attention × the ratio of the kernel model for the queries "
            "and keys of each part"
        )
    if experts_of(step) and plan.ep * plan.expert_tp > 1:
        over = f"spread over {plan.ep} ranks" if plan.ep > 1 else ""
        split = f"each split over {plan.expert_tp}" if plan.expert_tp > 1 else ""
        yield (
            f"experts {', '.join(filter(None, (over, split)))}: as many rows for each rank, tokens "
            "exchanged as Megatron-LM's all-to-all dispatcher does, which sends their counts first"
        )
    if target.upload:
        yield "each micro-batch begins with the copy of the first layer's input over PCIe"
    if target.threads and plan.pp > 1:
        yield (
            "stages are threads of one process (torch.distributed.pipeline.sync.Pipe): they share "
            "one interpreter, whose lock the CPU's whole work of the forward pass and of the "
            "optimizer is taken to hold (an upper limit)"
        )
        if plan.recompute.granularity != "none":
            yield (
                "activations of the last micro-batch are not computed again (Pipe's default, "
                'checkpoint="except_last")'
            )
    elif target.threads:
        yield (
            "torch.nn.DataParallel: threads share one interpreter, whose lock the CPU's whole work "
            "of the forward pass is taken to hold (an upper limit)"
        )


def _of_optimizer(step: TracedStep, plan: Plan) -> Iterator[str]:
    if not step.optimizer:
        yield "the trace has no optimizer: none is added"
    elif plan.zero or plan.pp > 1 or plan.tp > 1:
        yield "the optimizer's kernels × each rank's share of the parameters"


def _of_unknown(step: TracedStep, plan: Plan, others: list[str]) -> Iterator[str]:
    unknown = _unknown_operators(step)
    if unknown and (plan.micro_batch != step.batch or others or plan.tp > 1):
        named = ", ".join(f"{name} ({count})" for name, count in unknown.most_common(5))
        yield f"operators without a rule, scaled by the bytes of their tensors: {named}"


def _unknown_operators(step: TracedStep) -> Counter[str]:
    """Return the operators of a step that no rule describes, by how many kernels each launched."""
    tasks = [task for one in step.operators for task in (*one.forward, *one.backward)]
    return Counter(
        each.operator
        for each in (*tasks, *step.optimizer, *step.zeroing)
        if isinstance(each, TracedKernel) and not each.known and each.operator != "copy"
    )
