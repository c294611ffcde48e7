"""Traces at other scales: a recorded step → the program of a larger job.

To be read in this order:

`step`
    A traced step of one GPU: operators with measured kernels, parameters, layers.
`passes`
    Which pass launched a kernel, and for which node of autograd.
`whole`
    Whether a trace is a whole training step of one GPU.
`step_rows`
    Rows of a trace → those of one step, marked or not.
`kineto_step`, `triosim_step`, `captured_step`
    Kineto's traces, TrioSim's tables, captured programs of one rank → traced step.
`roles`
    Samples and tokens of a step; which kernels work on weights or on scores alone.
`layers`
    Which operators make a layer, and which layers a stage of a pipeline.
`growth`, `split`
    Kernels at other sizes, and those of one tensor-parallel rank.
`tensor_parallel`, `expert_parallel`, `context_parallel`, `scans`, `threads`
    Which layers are split and how; experts and what they exchange; attention over a shared context;
    scans over states; threads of one process.
`gpu_traces`
    Traces of one step on several GPUs → which of them each GPU's ranks do as.
`optimizer_share`
    The optimizer's kernels on a rank's share of the parameters.
`li_scaling`
    Li's regression lines over the kernels of a step, in place of the kernel model.
`network`
    Traced step, plan → network of the workload generator.
`target`, `assumptions`, `error_sources`
    Where a step is to run, and how; what it rests on there; the numbers that its times depend on.
`grow`
    ``extrapolate``: traced step, plan, cluster → program, and what it rests on.
`triosim_write`
    Traced step → TrioSim's tables.
`read`
    ``read_step``: any of the inputs → traced step.
`prepare`
    ``prepare_workload``: experiments of a trace or of a program, ready to be run.

Traces of several ranks have a parallel plan already, and grow along its axes:

`parallel_axes`, `parallel_structure`
    Communicators of a job → axes with names; the grid that they form, and what each carries.
`parallel_changes`
    What is asked for, refused where no job allows it.
`parallel_network`
    NCCL's model, calibrated by what the recording measured.
`parallel_replicas`, `parallel_growth`
    The ranks of a job with more or fewer data-parallel replicas; its program, also on another
    network.
`parallel_shards`, `parallel_optimizer`, `parallel_buckets`, `parallel_rounds`, `parallel_overlap`,
`parallel_slowest`
    The optimizer's shares, sharded or not; larger buckets; more micro-batches; slowdown by what
    runs beside; the slowest of more GPUs.
`parallel_order`, `parallel_recorded`, `parallel_passes`, `parallel_partition`
    Passes and layers of a recorded pipeline; which stage of another number of them runs which.
`parallel_copies`, `parallel_rank_rows`, `parallel_stages`
    Copies of recorded rows; those of each new rank, in order; the new program.
`parallel_answer`
    The answer: text for people, figures, program.
`parallel`
    All of these: the files of a job → what is simulated, and what it says of itself.
`parallel_origin`
    Files and changes of a grown job ↔ text, from which its results are exported.
"""

from .grow import Extrapolated, extrapolate
from .read import read_step
from .step import TracedStep
from .target import Target

__all__ = ["Extrapolated", "Target", "TracedStep", "extrapolate", "read_step"]
