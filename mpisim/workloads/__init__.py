"""Workload generator: experiment → program of one training step.

    from mpisim.workloads import lay_out, training_step
    workload = training_step(lay_out(experiment, gpus), kernels)

To be read in this order; each module uses only those above it:

`operators`
    A model in the shapes of one rank: network, layers, operators, tasks; all of them values.
`grid`
    Ranks on the parallel axes, and the groups of ranks that communicate.
`model_counts`
    Parameters and model FLOPs of a transformer, from its dimensions.
`eager_modules`
    Modules of PyTorch that convolutional networks and recommendation models have in common.
`transformer`, `cnn`, `dlrm`
    Model, plan, grid → network.
`schedules`
    Forward and backward passes of each pipeline stage, in order (1F1B, interleaved, ZB-H1, ...).
`layout`
    `lay_out`: experiment, number of GPUs → `Layout`: grid, schedule, networks, model chunks.
`pricing`
    Durations of kernels and launches.
`block_cache`
    Numbers of slots and streams in a table; cache of the rows and blocks that tables share.
`block_rows`
    `RowBlock`: rows whose place in a table is still open.
`pass_state`, `task_writer`, `blocks`
    Rows that the next row waits for. Tasks → rows, with the waits their order implies. Operators →
    `RowBlock`, each written once and copied.
`assembly`
    Blocks → table.
`messages`
    Blocks of the messages between stages.
`recomputation`
    Layers and operators that run again in the backward pass, and the results that are kept.
`data_parallel`
    Gradient reductions, parameter all-gathers and sharding (DDP, FSDP, ZeRO, Megatron-LM, Horovod).
`host`, `offloaded_optimizer`
    CPUs with their memory; the part of the optimizer's step that they run.
`optimizer`
    End of a step: last gradient reductions, clipping, optimizer update.
`offloaded_activations`
    Copies of activations to the host and back, beside the passes.
`stage_writer`
    Schedule, blocks → table of a stage.
`step`
    `training_step`: layout → `Workload`: a table for each stage, bound to ranks and communicators.
"""

from .layout import Layout, check_layout, lay_out
from .step import Workload, training_step

__all__ = ["Layout", "Workload", "check_layout", "lay_out", "training_step"]
